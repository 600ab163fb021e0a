"""Finding again what an earlier keeper left when both its halves died.

Its processes go on (their FIFOs wait, tmux holds their terminals; only those whose terminal was the
keeper's are hung up), but they are nobody's children we know. Pid, start time and
boot id say whether the one that has the pid is the one we started; a pidfd then holds on to it. A
record without a pid was written in the moment before a start: if that start happened, the process
carries the handle in its environment.
"""

from __future__ import annotations

import os
import select
import signal
import stat

from .. import _kernel
from .._home import Home
from .._model import Record
from .._tty import open_terminal
from .guard import Held
from .launch import SHELF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DIES_WITHIN = 1000  # milliseconds


def find(home: Home, record: Record) -> Held | None:
    """What can be held of a process that was running, or None if it is not to be found."""
    if record.boot_id != _kernel.boot_id():
        return None
    pid, started = record.pid, record.start_time
    if pid is None or started is None:
        found = marked(record.handle, record.runner)
        if found is None:
            return None
        pid, started = found.pid, found.start_time
        record.pid, record.start_time = pid, started
    pidfd = _kernel.open_process(pid, started)
    if pidfd is None and record.runner is not None:
        # The next runner may have been started just before both halves died.
        found = marked(record.handle, record.runner)
        if found is not None:
            record.pid, record.start_time = pid, started = found.pid, found.start_time
            pidfd = _kernel.open_process(pid, started)
    if pidfd is None:
        return None
    held = readers_only(home, record)
    held.pid, held.pidfd = pid, pidfd
    if held.out < 0 and record.mode == "pipe":
        held.out = _theirs(pid, 1, home.fifo(record.handle))
    if held.err < 0 and record.err_log is not None:
        held.err = _theirs(pid, 2, home.fifo(record.handle, "stderr"))
    if record.runner is not None:
        held.shelf = _shelf(pidfd)
        if record.mode == "pty":  # it is at a terminal that is gone; the next one gets a new one
            _end(held)
    if record.mode == "tmux":
        held.tty = _terminal(pid, record.tty or "")
    return held


def _shelf(pidfd: int) -> int:
    """A runner's own end of the shelf, with all that lies there, where we may have it."""
    shelf = _kernel.copy_descriptor(pidfd, SHELF)
    if shelf >= 0 and not stat.S_ISSOCK(os.fstat(shelf).st_mode):
        os.close(shelf)
        return -1
    return shelf


def _end(held: Held) -> None:
    _kernel.send_signal(held.pidfd, signal.SIGKILL)
    poll = select.poll()
    poll.register(held.pidfd, select.POLLIN)
    poll.poll(_DIES_WITHIN)
    os.close(held.pidfd)
    held.pid, held.pidfd = 0, -1


def readers_only(home: Home, record: Record) -> Held:
    """The FIFOs alone: of a process that has ended a grandchild may still hold and fill them."""
    held = Held(record.pid or 0, -1)
    held.out = _reader(home.fifo(record.handle))
    if record.err_log is not None:
        held.err = _reader(home.fifo(record.handle, "stderr"))
    return held


def marked(handle: str, runner: dict[str, Any] | None = None) -> _kernel.Stat | None:
    """The session leader among the processes that carry this handle's mark, or its runner."""
    for found in _kernel.all_processes():
        if found.session != found.pid or _kernel.mark_of(found.pid) != handle:
            continue
        if runner is None or _words(found.pid) == runner["argv"]:
            return found
    return None


def _words(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


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


def _theirs(pid: int, number: int, path: str) -> int:
    """A FIFO whose name was deleted or used for something else: the process has it still."""
    link = f"/proc/{pid}/fd/{number}"
    try:
        if os.readlink(link).removesuffix(" (deleted)") == path:
            return _reader(link, 0)
    except OSError:
        pass
    return -1


def _reader(path: str, follow: int = os.O_NOFOLLOW) -> int:
    flags = os.O_NONBLOCK | os.O_CLOEXEC | follow
    reader = -1
    try:
        reader = os.open(path, os.O_RDONLY | flags)
        if stat.S_ISFIFO(os.fstat(reader).st_mode):
            # A FIFO that had no writer since it was opened never hangs up. Give it one that goes.
            os.close(os.open(path, os.O_WRONLY | flags))
            return reader
    except OSError:
        pass
    if reader >= 0:
        os.close(reader)
    return -1
