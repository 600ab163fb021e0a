"""What we ask of the kernel: everything here is Linux's own, and nowhere else is.

Processes are named by pid *and* start time (a recycled pid has another start time) and by boot id
(after a reboot nothing that was running is). Signals and waits go through pidfds, which cannot
come to mean another process.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from ctypes import CDLL

_PR_SET_CHILD_SUBREAPER = 36
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 8
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2
_SO_PEERPIDFD = 77

MARK = "HOLDFAST_HANDLE"

_libc: CDLL | None = None
_boot_id = ""


def libc() -> CDLL:
    global _libc
    if _libc is None:
        import ctypes

        _libc = ctypes.CDLL(None, use_errno=True)
    return _libc


def _check(result: int) -> None:
    if result != 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def become_subreaper() -> None:
    """Orphans among our descendants become our children, not init's. Survives execve."""
    _check(libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Give the blocks of a range back to the file system; the file keeps its size."""
    import ctypes

    mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
    _check(libc().fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def boot_id() -> str:
    global _boot_id
    if not _boot_id:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            _boot_id = file.read().strip().decode()
    return _boot_id


def machine() -> list[str]:
    """What two processes share when pids mean the same to both: boot and pid namespace."""
    return [boot_id(), os.readlink("/proc/self/ns/pid")]


class Stat:
    """The fields of ``/proc/<pid>/stat`` that identify a process and its place in the tree."""

    __slots__ = ("pid", "state", "parent", "group", "session", "start_time")

    def __init__(self, pid: int, line: bytes) -> None:
        # The name in parentheses may itself hold spaces and parentheses.
        rest = line[line.rindex(b")") + 2 :].split()
        self.pid = pid
        self.state = rest[0].decode()
        self.parent, self.group, self.session = int(rest[1]), int(rest[2]), int(rest[3])
        self.start_time = int(rest[19])


def stat(pid: int) -> Stat | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        return Stat(pid, os.read(fd, 4096))
    except (ProcessLookupError, ValueError):
        return None
    finally:
        os.close(fd)


def start_time(pid: int) -> int | None:
    found = stat(pid)
    return None if found is None else found.start_time


def all_processes() -> Iterator[Stat]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = stat(int(name))
            if found is not None:
                yield found


def mark_of(pid: int) -> str | None:
    """The handle in a process's environment as it was started; None if unmarked or unreadable."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environment = file.read()
    except OSError:
        return None
    wanted = MARK.encode() + b"="
    for entry in environment.split(b"\0"):
        if entry.startswith(wanted):
            return entry[len(wanted) :].decode("ascii", "replace")
    return None


def children() -> list[int]:
    """Our own children, dead or alive."""
    pid = os.getpid()
    with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
        return [int(child) for child in file.read().split()]


def open_process(pid: int, started: int) -> int | None:
    """A pidfd for exactly the process that had `pid` and that start time, or None."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    # The pidfd came after the check would have to be: check now, when the pid can no longer change hands.
    if start_time(pid) != started:
        os.close(pidfd)
        return None
    return pidfd


def send_signal(pidfd: int, number: int) -> bool:
    """True if the process was there to be signalled."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


def exit_of_stranger(pidfd: int) -> tuple[int | None, int | None] | None:
    """(code, signal) of a reaped process that was not our child; None where the kernel cannot say.

    PIDFD_GET_INFO with PIDFD_INFO_EXIT is Linux 6.15. Its exit code means something only when the
    answer's mask says so: before the process is reaped it reads 0.
    """
    request = struct.pack("Q56x", _PIDFD_INFO_EXIT)
    try:
        answer = fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request)
    except OSError:
        return None
    (mask,) = struct.unpack_from("Q", answer)
    (status,) = struct.unpack_from("i", answer, 60)
    if not mask & _PIDFD_INFO_EXIT:
        return None
    return (None, status & 0x7F) if status & 0x7F else (status >> 8 & 0xFF, None)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end of a Unix socket."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid


def peer_pidfd(connection: socket.socket) -> int | None:
    """A pidfd of the process at the other end, or None where it cannot be had."""
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
        pidfd: int = struct.unpack("i", data)[0]
        os.set_inheritable(pidfd, False)
        return pidfd
    except OSError:
        pass
    try:
        pid, _ = peer_of(connection)
        return os.pidfd_open(pid) if pid > 0 else None
    except OSError:
        return None


def killed_for_memory(pid: int, since: float) -> bool:
    """True when the kernel's log says that it killed this pid, after `since`, for want of memory."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    wanted = f"Killed process {pid} (".encode()
    try:
        while True:
            try:
                entry = os.read(fd, 8192)
            except BrokenPipeError:
                continue  # this entry was overwritten; the next read goes on after it
            except OSError:
                return False
            # "priority,sequence,microseconds since boot,flags;text"
            if wanted in entry and int(entry.split(b",", 3)[2]) / 1e6 >= since:
                return True
    finally:
        os.close(fd)
