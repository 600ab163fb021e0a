"""Starting in Docker: how long it takes against Docker's own command."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from ._measure import Row, interleave, now, ratio_row

if TYPE_CHECKING:
    from ._stage import Stage

_DOCKER = "/usr/bin/docker"  # the one that comes with the engine
_SLEEP = ["sleep", "1000"]
_AT_MOST = 1.3


def docker_start(stage: Stage) -> list[Row]:
    """Until a container runs and is known; in the library, and on the command line."""
    from tests import docker_engine

    if not os.access(_DOCKER, os.X_OK):
        return []  # nothing to measure it against
    try:
        with docker_engine.use(docker_engine.new_key()) as engine:
            before = os.environ.get("DOCKER_HOST")
            os.environ["DOCKER_HOST"] = engine.host
            try:
                return _rows(stage)
            finally:
                os.environ.pop("DOCKER_HOST")
                if before is not None:
                    os.environ["DOCKER_HOST"] = before
    except docker_engine.EngineFailed:
        return []  # no engine here
    finally:
        docker_engine.sweep()


def _rows(stage: Stage) -> list[Row]:
    with stage.client() as client:

        def ours() -> float:
            started = now()
            process = client.spawn(_SLEEP, docker="hfbox")
            took = now() - started
            process.kill(signal="KILL")
            return took

        def typed() -> float:
            command = [sys.executable, "-m", "holdfast", "run", "-d", "--docker", "hfbox", "--"]
            started = now()
            done = subprocess.run([*command, *_SLEEP], stdout=subprocess.PIPE, check=True)
            took = now() - started
            handle = done.stdout.decode().strip()
            subprocess.run(
                [sys.executable, "-m", "holdfast", "kill", "-s", "KILL", handle],
                stdout=subprocess.DEVNULL,
                check=True,
            )
            return took

        def theirs() -> float:
            started = now()
            done = subprocess.run(
                [_DOCKER, "run", "-d", "hfbox", *_SLEEP], stdout=subprocess.PIPE, check=True
            )
            took = now() - started
            name = done.stdout.decode().strip()
            subprocess.run([_DOCKER, "rm", "-f", name], stdout=subprocess.DEVNULL, check=True)
            return took

        mine, by_hand, floor = interleave(stage.pick(20, 5), ours, typed, theirs)
    return [
        ratio_row(
            "start in Docker, `spawn` against `docker run -d`", mine, floor, at_most=_AT_MOST
        ),
        ratio_row("start in Docker, `holdfast run -d` against it", by_hand, floor, at_most=None),
    ]
