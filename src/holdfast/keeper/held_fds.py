"""Descriptors and facts that both halves of the keeper hold of each process.

Descriptors travel with a message over the channel; the message says which of them come along.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time

from ..core.record import ExitNote, Record, signal_name
from ..linux import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BRIEF = 8192  # bytes of a record that the guard is told
_SHORT = 200
DESCRIPTORS = ("pidfd", "out", "err", "stdin", "tty", "splice_pipe", "fd_store", "input")


class Held:
    """One process in the hands of both halves. Descriptors are -1 where there is none."""

    __slots__ = ("pid", *DESCRIPTORS, "token", "sent", "record")

    def __init__(
        self,
        pid: int,
        pidfd: int,
        out: int = -1,
        err: int = -1,
        stdin: int = -1,
        tty: int = -1,
        splice_pipe: int = -1,
        fd_store: int = -1,
        input: int = -1,
        token: str = "",
        sent: int = 0,
        record: str = "",
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.out = out
        self.err = err
        self.stdin = stdin
        # The process's side of its terminal. While one is open here the terminal outlives the
        # process, so nothing that was written to it can be lost before it is read.
        self.tty = tty
        # What came out of the terminal and is not in the log yet.
        self.splice_pipe = splice_pipe
        # Of a process with a runner: what one runner leaves for the next, and the end of its stdin
        # that is read, so that nothing in it is lost between two of them.
        self.fd_store = fd_store
        self.input = input
        # The last send and how much of it was written, so that a client that repeats it after a
        # crash has none of it typed twice. Less than 0: the worker died in the very write.
        self.token = token
        self.sent = sent
        # Its record as it began, should the one on disk be damaged or deleted.
        self.record = record

    def descriptors(self) -> list[int]:
        return [fd for name in DESCRIPTORS if (fd := getattr(self, name)) >= 0]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


Table = dict[str, Held]


def brief(record: Record) -> str:
    """A record for the guard to keep: whole, or what must be known of it if it is long."""
    data = record.to_json()
    text = json.dumps(data, separators=(",", ":"))
    if len(text) > _BRIEF:
        data |= {"command": record.command_text[:_SHORT], "watches": [], "notes": []}
        text = json.dumps(data, separators=(",", ":"))
    return text if len(text) <= 2 * _BRIEF else ""


def shape(held: Held) -> list[int]:
    """pid, and which descriptors come along."""
    return [held.pid, *(int(getattr(held, name) >= 0) for name in DESCRIPTORS)]


def received(shape: list[Any], ancillary: list[tuple[int, int, bytes]]) -> Held:
    record, pid, *present = shape
    held = Held(pid, -1, record=record)
    descriptors = (
        fd
        for level, kind, payload in ancillary
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
        for fd in struct.unpack(f"{len(payload) // 4}i", payload)
    )
    for name, here in zip(DESCRIPTORS, present, strict=False):
        if here:
            setattr(held, name, next(descriptors, -1))  # we may have run out of them
    return held


def note_of(pid: int) -> ExitNote:
    """The exit note of a dead child that has not been reaped."""
    death = kernel.peek(pid)
    assert death is not None
    return ExitNote(
        code=death.code,
        signal=None if death.signal is None else signal_name(death.signal),
        at=time.time(),
        clock=time.monotonic(),
        peak_memory_bytes=death.peak_memory_bytes,
        cpu_seconds=death.cpu_seconds,
    )


def ticks() -> int:
    """Now, as ``/proc/<pid>/stat`` counts start times."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
