"""System calls and /proc: everything here is Linux's own, and nowhere else is.

Processes are named by pid *and* start time (a recycled pid has another start time) and by boot id
(after a reboot nothing that was running is). Signals and waits go through pidfds, which cannot
come to mean another process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from ctypes import CDLL, Array, c_char

_PR_SET_CHILD_SUBREAPER = 36
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 8
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2
_SO_PEERPIDFD = 77
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_FIONREAD = 0x541B
_PIDFD_SIGNAL_PROCESS_GROUP = 4

_TICKS = os.sysconf("SC_CLK_TCK")
_MACHINE = os.uname().machine
_SYS_PIDFD_GETFD = 438
_SYS_WAITID = {"x86_64": 247, "aarch64": 95, "riscv64": 95}
_P_PID = 1

MARK = "HOLDFAST_HANDLE"
RLIMIT_MARK = 10  # RLIMIT_LOCKS

_libc: CDLL | None = None
_siginfo: Array[c_char] | None = None
_rusage: Array[c_char] | None = None


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


def child_signals() -> int:
    """A descriptor that is readable when a child has died, in place of a signal handler."""
    import ctypes

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    mask = ctypes.create_string_buffer(128)
    libc().sigemptyset(mask)
    libc().sigaddset(mask, int(signal.SIGCHLD))
    fd: int = libc().signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Give the blocks of a range back to the file system; the file keeps its size."""
    import ctypes

    mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
    _check(libc().fallocate(fd, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def make_splice_pipe() -> int:
    """A pipe that one descriptor is both ends of: what is put into it waits until it is taken."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        return os.open(f"/proc/self/fd/{writer}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(reader)
        os.close(writer)


def unread(fd: int) -> int:
    """The number of bytes in a pipe, asked of either end."""
    return int.from_bytes(fcntl.ioctl(fd, _FIONREAD, bytes(4)), sys.byteorder)


class Stat:
    """The fields of ``/proc/<pid>/stat`` that identify a process and its place in the tree."""

    __slots__ = (
        "pid",
        "name",
        "state",
        "parent",
        "group",
        "session",
        "terminal",
        "foreground",
        "threads",
        "cpu_seconds",
        "start_time",
        "wait_status",
    )

    def __init__(self, pid: int, line: bytes) -> None:
        # The name in parentheses may itself hold spaces and parentheses.
        close = line.rindex(b")")
        rest = line[close + 2 :].split()
        self.pid = pid
        self.name = line[line.index(b"(") + 1 : close].decode("utf-8", "replace")
        self.state = rest[0].decode()
        self.parent, self.group, self.session = int(rest[1]), int(rest[2]), int(rest[3])
        self.terminal = int(rest[4])  # its device number; 0 without one
        self.foreground = int(rest[5])  # the group that has the terminal
        self.threads = int(rest[17])
        self.cpu_seconds = sum(int(ticks) for ticks in rest[11:15]) / _TICKS  # with its children's
        self.start_time = int(rest[19])
        self.wait_status = int(rest[49])


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


def lives(pid: int, start_time: int) -> bool:
    """True while this very process runs; a zombie does not."""
    found = stat(pid)
    return found is not None and found.start_time == start_time and found.state not in "ZX"


def age(start_time: int | None) -> float:
    """Seconds since a process began, by its start time; 0 where that is not known."""
    if start_time is None:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_time / _TICKS)


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


def mark_number(handle: str) -> int:
    """The same mark as a number. It is carried by a limit that Linux no longer knows what to do
    with (file locks), but still hands down to every child, whatever that does to its environment.
    """
    return (1 << 57) + int(handle[-11:], 36)


def marked_number(pid: int, foreign: dict[int, int] | None = None) -> int:
    """The number a process carries; 0 for one that is unmarked or gone.

    What is found out of another user's is put into `foreign`, and not looked for again.
    """
    try:
        soft, _ = resource.prlimit(pid, RLIMIT_MARK)
    except ProcessLookupError:
        return 0
    except PermissionError:
        foreign = {} if foreign is None else foreign
        if pid not in foreign:
            foreign[pid] = _written_mark(pid)
        soft = foreign[pid]
    return soft if soft >> 57 == 1 else 0


def _written_mark(pid: int) -> int:
    """The same limit of another user's process, in writing."""
    try:
        with open(f"/proc/{pid}/limits", "rb") as file:
            _, _, rest = file.read().partition(b"Max file locks")
        word = rest.split(None, 1)[0]
        return int(word) if word.isdigit() else 0
    except (OSError, IndexError):
        return 0


def threads_of(uid: int) -> int:
    """The number of threads a user has now."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                continue
    return count


def ignores(pid: int, number: int) -> bool:
    """True if a process ignores this signal."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            _, _, rest = file.read().partition(b"\nSigIgn:")
    except OSError:
        return False
    return bool(rest and int(rest.split(None, 1)[0], 16) & 1 << (number - 1))


def children(pid: int = 0) -> list[int]:
    """Our own children, dead or alive, or those of a process with one thread."""
    pid = pid or os.getpid()
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def open_process(pid: int, started: int) -> int | None:
    """A pidfd for exactly the process that had `pid` and that start time, or None."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None
    # Only now, with the pidfd in hand, can the pid no longer come to mean another process.
    if start_time(pid) != started:
        os.close(pidfd)
        return None
    return pidfd


def copy_descriptor(pidfd: int, number: int) -> int:
    """A descriptor of another process, as our own; -1 where we may not have it."""
    copy: int = libc().syscall(_SYS_PIDFD_GETFD, pidfd, number, 0)
    return copy


def send_group_signal(pidfd: int, number: int) -> bool:
    """Signal a process's group through its pidfd; False where the kernel cannot (before 6.9)."""
    try:
        signal.pidfd_send_signal(pidfd, number, None, _PIDFD_SIGNAL_PROCESS_GROUP)
    except OSError as error:
        return error.errno not in (errno.EINVAL, errno.ESRCH, errno.EPERM)
    return True


def send_signal(pidfd: int, number: int) -> bool:
    """True if the process was there to be signalled."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # there, but somebody else's by now
    return True


class Death:
    """The end of a child and what it used: known, through `peek`, before it is reaped."""

    __slots__ = ("code", "signal", "peak_memory_bytes", "cpu_seconds")

    def __init__(self, code: int | None, signal: int | None) -> None:
        self.code = code
        self.signal = signal
        self.peak_memory_bytes: int | None = None
        self.cpu_seconds: float | None = None


def peek(pid: int) -> Death | None:
    """Look at a dead child of ours without reaping it; None while it lives.

    The kernel's waitid tells the resources used too, which neither the C library's nor Python's
    passes on; where the number of the call is not known they stay unknown.
    """
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    number = _SYS_WAITID.get(_MACHINE)
    if number is None:
        ended = os.waitid(os.P_PID, pid, flags)
        if ended is None:
            return None
        exited = ended.si_code == os.CLD_EXITED
        return Death(ended.si_status, None) if exited else Death(None, ended.si_status)
    import ctypes

    global _siginfo, _rusage
    if _siginfo is None or _rusage is None:
        # int signo, errno, code; padding; int pid, uid, status. Two timevals, then longs.
        _siginfo, _rusage = ctypes.create_string_buffer(128), ctypes.create_string_buffer(144)
    if libc().syscall(number, _P_PID, pid, _siginfo, flags, _rusage) != 0:
        raise ChildProcessError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    code, found, status = struct.unpack_from("8xi4xi4xi", _siginfo)
    if found == 0:
        return None
    death = Death(status, None) if code == os.CLD_EXITED else Death(None, status)
    user, user_micro, system, system_micro, peak = struct.unpack_from("5l", _rusage)
    death.cpu_seconds = round(user + system + (user_micro + system_micro) / 1e6, 6)
    death.peak_memory_bytes = peak * 1024
    return death


def own_peak_memory() -> int:
    """The most that this process ever had, which its children have too until they exec."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def exit_of_stranger(pid: int, pidfd: int) -> Death | None:
    """The end of a process that is not our child; None where the kernel cannot say.

    While it is a zombie the last field of its stat is its wait status, or 0 if that is not for us
    to see. Once it is reaped there is PIDFD_GET_INFO with PIDFD_INFO_EXIT (Linux 6.15), whose exit
    code means something only when the answer's mask says so: before that it reads 0.
    """
    found = stat(pid)
    if found is not None and found.state == "Z" and send_signal(pidfd, 0) and not _is_hidden(pid):
        death = _death(found.wait_status)
        death.cpu_seconds = found.cpu_seconds
        return death
    request = struct.pack("Q56x", _PIDFD_INFO_EXIT)
    try:
        answer = fcntl.ioctl(pidfd, _PIDFD_GET_INFO, request)
    except OSError:
        return None
    (mask,) = struct.unpack_from("Q", answer)
    (status,) = struct.unpack_from("i", answer, 60)
    if not mask & _PIDFD_INFO_EXIT:
        return None
    return _death(status)


def _is_hidden(pid: int) -> bool:
    """True if the kernel keeps from us what only a debugger may know, as of sudo."""
    try:
        os.readlink(f"/proc/{pid}/cwd")
    except OSError as error:
        return isinstance(error, PermissionError)  # else: a zombie has none
    return False


def _death(status: int) -> Death:
    return Death(None, status & 0x7F) if status & 0x7F else Death(status >> 8 & 0xFF, None)


def forget_variable(name: str) -> str | None:
    """Take a variable out of our environment, also as others see it in ``/proc/PID/environ``.

    What is shown there is the memory in which the environment was when we began, whatever became of
    the variables since. Where that cannot be written to, the variable is gone for those that we
    start, but not from there.
    """
    value = os.environ.pop(name, None)
    if value is None:
        return None
    entry = os.fsencode(f"{name}={value}")
    try:
        with open("/proc/self/stat", "rb") as file:
            numbers = file.read().rpartition(b")")[2].split()
        start, end = int(numbers[47]), int(numbers[48])  # env_start, env_end
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            data = os.pread(memory.fileno(), end - start, start)
            at = 0
            for each in data.split(b"\0"):
                if each == entry:
                    os.pwrite(memory.fileno(), b"\0" * len(each), start + at)
                at += len(each) + 1
    except (OSError, ValueError, IndexError):
        pass
    return value


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end of a Unix socket."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid


def peer_pidfd(connection: socket.socket) -> int | None:
    """A pidfd of the process at the other end, or None if it is gone; OSError for want of room."""
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, 4)
        pidfd: int = struct.unpack("i", data)[0]
        os.set_inheritable(pidfd, False)
        return pidfd
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
    try:
        pid, _ = peer_of(connection)
        return os.pidfd_open(pid) if pid > 0 else None
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        return None


def shares_pids(connection: socket.socket) -> bool:
    """True if the process at the other end is in our pid namespace, whatever it says itself.

    OSError for want of a descriptor to look with.
    """
    pidfd = peer_pidfd(connection)
    if pidfd is None:
        return False
    try:
        there = os.readlink(f"/proc/{peer_of(connection)[0]}/ns/pid")
        # If it still lives now, it was that one's.
        return there == os.readlink("/proc/self/ns/pid") and send_signal(pidfd, 0)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        return False
    finally:
        os.close(pidfd)


class MemoryKills:
    """The pids that the kernel killed because memory ran out, from its log.

    Reads only what is new in the log each time it is asked. Without the right to read it, nothing
    is known and every answer is no.
    """

    __slots__ = ("_fd", "_seen")

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        try:
            self._fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self._fd = -1

    def includes(self, pid: int, since: float) -> bool:
        """True if `pid` was killed for memory, and after `since` (pids are used again)."""
        while self._fd >= 0:
            try:
                entry = os.read(self._fd, 8192)
            except BrokenPipeError:
                continue  # this entry was overwritten; the next read goes on after it
            except OSError:
                break
            # "priority,sequence,microseconds since boot,flags;... Killed process 123 (name) ..."
            _, found, rest = entry.partition(b"Killed process ")
            number = rest.partition(b" ")[0]
            if found and number.isdigit():
                if len(self._seen) > 1000:
                    self._seen.clear()
                self._seen[int(number)] = int(entry.split(b",", 3)[2]) / 1e6
        return self._seen.get(pid, -1.0) >= since
