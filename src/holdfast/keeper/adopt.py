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

from ..core.home import Home
from ..core.machine import boot_id
from ..core.record import Record
from ..linux import kernel
from ..linux.tty import open_terminal
from .held_fds import Held
from .launch import FD_STORE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .modes.base import Mode

_DIES_WITHIN = 1000  # milliseconds


def find(home: Home, record: Record, mode: Mode) -> Held | None:
    """Find what can be held of a process that was running; None if it is not to be found."""
    if record.boot_id != boot_id():
        return None
    pid, started = record.pid, record.start_time
    if pid is None or started is None:
        found = marked(record, mode)
        if found is None:
            return None
        pid, started = found.pid, found.start_time
        record.pid, record.start_time = pid, started
    pidfd = kernel.open_process(pid, started)
    if pidfd is None and mode.again:
        # The next runner may have been started just before both halves died.
        found = marked(record, mode)
        if found is not None:
            record.pid, record.start_time = pid, started = found.pid, found.start_time
            pidfd = kernel.open_process(pid, started)
    if pidfd is None:
        return None
    held = readers_only(home, record)
    held.pid, held.pidfd = pid, pidfd
    mode.find_ends(record, held)
    return held


def fd_store(pidfd: int) -> int:
    """A runner's own end of its store of descriptors, where we may have it, and what lies there."""
    found = kernel.copy_descriptor(pidfd, FD_STORE)
    if found >= 0 and not stat.S_ISSOCK(os.fstat(found).st_mode):
        os.close(found)
        return -1
    return found


def end(held: Held) -> None:
    """Kill one that is of no use any more."""
    kernel.send_signal(held.pidfd, signal.SIGKILL)
    poll = select.poll()
    poll.register(held.pidfd, select.POLLIN)
    poll.poll(_DIES_WITHIN)
    os.close(held.pidfd)
    held.pid, held.pidfd = 0, -1


def readers_only(home: Home, record: Record) -> Held:
    """The FIFOs alone: of a process that has ended a grandchild may still hold and fill them."""
    held = Held(record.pid or 0, -1)
    held.out = _reader(home.fifo(record.handle))
    if "stderr" in record.streams:
        held.err = _reader(home.fifo(record.handle, "stderr"))
    return held


def marked(record: Record, mode: Mode) -> kernel.Stat | None:
    """The session leader among the processes that carry a process's mark."""
    return leader(record.handle, lambda pid: mode.is_its(record, pid))


def leader(handle: str, is_its: Callable[[int], bool] = lambda pid: True) -> kernel.Stat | None:
    """The oldest such leader: a daemon that it started leads a session too, and has its mark."""
    found = [
        each
        for each in kernel.all_processes()
        if each.session == each.pid and kernel.mark_of(each.pid) == handle and is_its(each.pid)
    ]
    pids = {each.pid for each in found}
    # Pids are used again from the beginning, and two may have started in the same hundredth.
    return min(found, key=lambda each: (each.start_time, each.parent in pids), default=None)


def words(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def terminal(pid: int, path: str) -> int:
    """The terminal of a process, if it still has that one: a name is used again."""
    try:
        opened = open_terminal(path)
    except OSError:
        return -1
    found = kernel.stat(pid)
    if found is None or found.terminal != os.fstat(opened).st_rdev:
        os.close(opened)
        return -1
    return opened


def theirs(pid: int, number: int, path: str) -> int:
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
