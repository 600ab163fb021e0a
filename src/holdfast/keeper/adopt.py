"""Finding again what an earlier keeper left when both its halves died.

Its processes go on (their FIFOs wait, tmux holds their terminals; only those whose terminal was the
keeper's are hung up), but they are nobody's children we know. Pid, start time and
boot id say whether the one that has the pid is the one we started; a pidfd then holds on to it. A
record without a pid was written in the moment before a start: if that start happened, the process
carries the handle in its environment.
"""

from __future__ import annotations

import os

from .. import _kernel
from .._home import Home
from .._model import Record
from .._tty import open_terminal
from .guard import Held


def find(home: Home, record: Record) -> Held | None:
    """What can be held of a process that was running, or None if it is not to be found."""
    if record.boot_id != _kernel.boot_id():
        return None
    pid, started = record.pid, record.start_time
    if pid is None or started is None:
        found = _marked(record.handle)
        if found is None:
            return None
        pid, started = found.pid, found.start_time
        record.pid, record.start_time = pid, started
    pidfd = _kernel.open_process(pid, started)
    if pidfd is None:
        return None
    held = readers_only(home, record)
    held.pid, held.pidfd = pid, pidfd
    if record.mode == "tmux":
        held.tty = _terminal(pid, record.tty or "")
    return held


def readers_only(home: Home, record: Record) -> Held:
    """The FIFOs alone: of a process that has ended a grandchild may still hold and fill them."""
    held = Held(record.pid or 0, -1)
    held.out = _reader(home.fifo(record.handle))
    if record.err_log is not None:
        held.err = _reader(home.fifo(record.handle, "stderr"))
    return held


def _marked(handle: str) -> _kernel.Stat | None:
    """The session leader among the processes that carry this handle's mark."""
    for found in _kernel.all_processes():
        if found.session == found.pid and _kernel.mark_of(found.pid) == handle:
            return found
    return None


def _terminal(pid: int, path: str) -> int:
    """The terminal of a process, if it still has that one: a name is used again."""
    try:
        terminal = open_terminal(path)
    except OSError:
        return -1
    found = _kernel.stat(pid)
    if found is None or found.terminal != os.fstat(terminal).st_rdev:
        os.close(terminal)
        return -1
    return terminal


def _reader(path: str) -> int:
    flags = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        reader = os.open(path, os.O_RDONLY | flags)
        # A FIFO that has had no writer since it was opened never hangs up. Give it one that goes.
        os.close(os.open(path, os.O_WRONLY | flags))
    except OSError:
        return -1
    return reader
