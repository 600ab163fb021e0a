"""What a wait sees a watch sees too, and the other way round: both have the same detectors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Event, SyncClient, SyncProcess
from holdfast.core.outbox import read_events
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.shared_keeper

PIECE = 64 << 10  # of a log that is looked at at once
LINE = b"x" * 63 + b"\n"
MANY = 32 << 20  # bytes that nobody looks at in one look
# Serves a port from outside of its family: another session, no parent of theirs, no environment.
FAR = """
import os, sys
if len(sys.argv) == 2:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            code, port = os.environ["CODE"], sys.argv[1]
            os.execve(sys.executable, [sys.executable, "-c", code, port, "again"], {})
        os._exit(0)
    os.wait()
    input()
else:
    import socket, time
    server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    time.sleep(1000)
"""


def told(hf: SyncClient) -> list[Event]:
    return [event for event in read_events(hf.home, hf.session or "") if event.type == "watch"]


Write = Callable[[bytes], SyncProcess]


@pytest.fixture
def writes(hf: SyncClient, tmp_path: Path) -> Write:
    """Start a process that has written this, and goes on until its stdin ends."""

    def write(data: bytes) -> SyncProcess:
        (tmp_path / "data").write_bytes(data)
        process = hf.spawn("cat data; cat", cwd=tmp_path, stdin=True, log_cap=4 * MANY)
        wait_until(lambda: process.tail_bytes(1).end == len(data))
        return process

    return write


def seen_by_both(hf: SyncClient, process: SyncProcess, condition: dict[str, Any]) -> int:
    """Where a wait and a watch find what they look for, which is the same place."""
    waited = process.wait_for(condition, timeout=60)
    assert waited.ok
    process.watch({**condition, "most": 1})
    (event,) = wait_until(lambda: told(hf))
    found: int = waited.met[0].detail["offset"]
    assert event.offset == found
    return found


@pytest.mark.parametrize("size", [PIECE, 1 << 20])
def test_a_line_that_a_piece_ends_in_is_not_taken_for_a_whole_one(
    hf: SyncClient, writes: Write, size: int
) -> None:
    """The piece ends after the word, and the line does not."""
    before = LINE * (size // len(LINE) - 1) + LINE[5:]
    process = writes(before + b"ready or not\nready\n")
    found = seen_by_both(hf, process, {"output": "^ready$", "since": "start"})
    assert found == size - 5 + len("ready or not\n")


@pytest.mark.parametrize("size", [PIECE, 1 << 20])
def test_a_match_that_two_pieces_of_a_long_line_share_is_found(
    hf: SyncClient, writes: Write, size: int
) -> None:
    """In a line without an end, wherever it is cut."""
    process = writes(b"x" * (size - 3) + b"needle" + b"x" * size * 2)
    assert seen_by_both(hf, process, {"output": "needle", "since": "start"}) <= size - 3


@pytest.mark.weight(4)
def test_a_wait_keeps_its_time_however_much_there_is_to_look_at(writes: Write) -> None:
    """The same wait again goes on where it stopped, to the last line, though the process ended."""
    process = writes(LINE * (MANY // len(LINE)) + b"the end\n")
    for condition in ("output=^the end$", "output=^no end$"):
        assert process.wait_for(condition, timeout=0).timed_out
    process.send("", eof=True)
    process.wait(60)
    again = process.wait_for("output=^the end$", timeout=120)
    assert again.met[0].detail["offset"] == MANY
    assert not process.wait_for("output=^no end$", timeout=120).timed_out


def test_a_server_that_left_the_family_is_still_its_own(hf: SyncClient, port: int) -> None:
    """Its control group knows it, though nothing else does; nobody takes it for a stranger."""
    argv = [sys.executable, "-c", FAR, str(port)]
    process = hf.spawn(argv, stdin=True, env={"CODE": FAR}, watch=f"port={port}")
    if not process.record.cgroups:
        pytest.skip("there are no control groups here")
    waited = process.wait_for(f"port={port}", timeout=60)
    (event,) = wait_until(lambda: told(hf))
    assert event.line == f"{port}, pid {waited.met[0].detail['pid']}"
    assert event.reason is None
