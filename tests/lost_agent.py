"""An agent that is lost: a program with a session that is killed with -9."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

AGENT = """
import sys, holdfast
with holdfast.connect(session=sys.argv[1], lease_grace="30m") as hf:
    for command in sys.argv[3:]:
        print(hf.spawn(command, group="g").handle, flush=True)
    exec(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.read()
"""


class Lost:
    """An agent in a directory that starts processes and is killed with -9."""

    def __init__(self, directory: Path, session: str, *commands: str, then: str = "") -> None:
        self._agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, session, then, *commands],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._agent.stdout is not None
        self.handles = [self._agent.stdout.readline().strip() for _ in commands]
        assert self._agent.stdout.readline() == "ready\n"

    def kill(self) -> Lost:
        self._agent.kill()
        self._agent.communicate()
        return self
