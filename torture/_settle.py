"""The end of a round: python -m torture._settle ROOT. Everything ends, and the keeper goes.

A program of its own, because a keeper that hangs must not take the driver along. What it does and
sees is in its journal.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from holdfast import HoldfastError
from holdfast.client.connect import open_client
from holdfast.core.home import Home

from ._journal import Journal
from ._plan import NATURAL, Script

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast import SyncClient

PATIENCE = 45.0
# What a keeper with nothing to keep has open, one client connected, and some to spare.
DESCRIPTORS = {"guard": 14, "worker": 26}


def main(argv: list[str]) -> int:
    root = argv[0]
    journal = Journal(root + "/journals/settle.jsonl")
    home = Home(root + "/disk/home")
    scripts = []
    for name in sorted(os.listdir(root + "/scripts")):
        with open(f"{root}/scripts/{name}") as file:
            scripts.append(Script.from_json(json.load(file)["script"]))
    specs = {handle: spec for script in scripts for handle, spec in script.specs.items()}
    client = open_client(home, None)

    def running(*kinds: str) -> list[str]:
        return [
            process.handle
            for process in client.list()
            if process.record.running
            and (spec := specs.get(process.handle)) is not None
            and (spec.kind in kinds or spec.timeout is not None or not kinds)
        ]

    def untold() -> list[str]:
        """What ended is told a moment later, or once there is room for it."""
        return [
            process.handle
            for process in client.list()
            if not process.record.running and not process.record.told
        ]

    def step(name: str, act: Callable[[], Any]) -> Any:
        journal.write(settle=name)
        try:
            result = act()
        except HoldfastError as error:
            journal.write(settle=name, error=error.code, message=str(error)[:300])
            return None
        journal.write(settle=name, ok=result)
        return result

    # Whatever was killed last: one that nobody needs any more is not started, and clears nothing.
    step("keeper", client.keeper_start)
    ends = tuple(kind for kind in NATURAL if kind != "daemon")
    step("naturally", lambda: _until(lambda: not running(*ends), lambda: running(*ends)))
    step("stop", lambda: _stop(client, running))
    for handle, spec in specs.items():
        if spec.kind == "daemon":
            step("kill", lambda handle=handle: _kill(client, handle))  # type: ignore[misc]
    step("running", running)
    step("told", lambda: _until(lambda: not untold(), untold))
    step("events", lambda: _events(client))
    step("descriptors", lambda: _descriptors(client))
    client.close()
    client = open_client(home, None)
    step("quit", client.keeper_stop)
    client.close()
    return 0


def _until(condition: Callable[[], bool], otherwise: Callable[[], Any]) -> Any:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            return otherwise()
        time.sleep(0.1)
    return []


def _stop(client: SyncClient, running: Callable[[], list[str]]) -> list[Any]:
    asked = running()
    receipts = client.stop_all(grace=0.5)
    return [asked, [[receipt.record.handle, receipt.survivors] for receipt in receipts]]


def _kill(client: SyncClient, handle: str) -> list[Any]:
    receipt = client.get(handle).kill(grace=0.2)
    return [handle, receipt.survivors, receipt.processes if receipt.survivors else []]


def _events(client: SyncClient) -> list[list[Any]]:
    return [
        [
            event.session,
            event.id,
            event.acknowledged,
            event.status,
            event.exit_code,
            event.signal,
            [member.handle for member in event.members],
        ]
        for event in client.events(acknowledged=True)
    ]


def _descriptors(client: SyncClient) -> dict[str, Any]:
    """What both halves have open, if that is more than a keeper of nothing needs."""

    def seen() -> dict[str, list[str]]:
        status = client.keeper_status()
        if not status["running"]:
            return {}
        found: dict[str, list[str]] = {}
        for half, most in DESCRIPTORS.items():
            names = []
            for number in os.listdir(f"/proc/{status[half]}/fd"):
                try:
                    names.append(os.readlink(f"/proc/{status[half]}/fd/{number}"))
                except OSError:
                    continue
            if len(names) > most or any("/processes/proc-" in name for name in names):
                found[half] = sorted(names)
        return found

    until = time.monotonic() + 20
    while found := seen():
        if time.monotonic() > until:
            return found
        time.sleep(0.2)
    return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
