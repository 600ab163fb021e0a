"""Output that is held back on a full disk: seen while it is so, and not any more when it is not."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys

import pytest

from holdfast import SyncClient
from holdfast.testing import wait_until

LIMIT = 64 << 10  # room for records and leases, and not for more output than this


def limit(hf: SyncClient, size: int) -> None:
    status = hf.keeper_status()
    for half in ("guard", "worker"):
        _, hard = resource.prlimit(status[half], resource.RLIMIT_FSIZE)
        resource.prlimit(status[half], resource.RLIMIT_FSIZE, (size, hard))


def held_back(hf: SyncClient, handle: str) -> bool:
    return any("held back" in note for note in hf.get(handle).record.notes)


@pytest.mark.parametrize("killed", ["nobody", "worker"])
def test_a_note_says_so_as_long_as_it_is_so(hf: SyncClient, killed: str) -> None:
    """In every list and status, whoever asks; it goes when there is room, the output comes."""
    process = hf.spawn("head -c 400000 /dev/zero | tr '\\\\0' x; echo; read line", stdin=True)
    limit(hf, LIMIT)
    other = hf.spawn("head -c 400000 /dev/zero | tr '\\\\0' y; echo; read line", stdin=True)
    wait_until(lambda: held_back(hf, other.handle), timeout=60)
    listed = {each.handle: each.record.notes for each in hf.list()}
    assert any("held back" in note for note in listed[other.handle])
    shown = subprocess.run(
        [sys.executable, "-m", "holdfast", "status", other.handle, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert any("held back" in note for note in json.loads(shown.stdout)["notes"])
    if killed == "worker":
        worker = hf.keeper_status()["worker"]
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: hf.keeper_status()["worker"] != worker)
    limit(hf, resource.RLIM_INFINITY)
    wait_until(lambda: not held_back(hf, other.handle), timeout=60)
    wait_until(lambda: other.tail_bytes(1).end == 400_001, timeout=60)
    for each in (process, other):
        each.send("x", enter=True)
        assert each.wait(30).code == 0
    notes = other.refresh().notes
    assert not any("held back" in note for note in notes)
    assert any("came late" in note for note in notes)
