"""Evidence that a process waits for input: the kernel's word, never what it printed.

DESIGN. A process waits for input when one of its threads sits in a call that only its terminal
(or, in pipe mode, its stdin) can end: a read of it, or a select, poll or epoll of nothing else and
without a time limit. The call and its arguments are in ``/proc/PID/task/TID/syscall``, what its
descriptors are in ``/proc/PID/fd``. Of a terminal, only the foreground process group is asked: no
other may read it.

Where the kernel will not say, the answer is "unknown": other descriptors or a time limit beside
the terminal (node, fish, ssh), io_uring, a process of somebody else, a machine whose calls we do
not know. Two things can still be said of a process whose calls are hidden:

- Yama's ptrace_scope hides the call but not the kernel function that a thread sleeps in. If that is
  where readers of terminals sleep, and the process holds nothing else whose readers sleep there, it
  is a read.
- A terminal in lines without echo is what asking for a password makes of it. So a foreground
  process of another user that sleeps (sudo, su) asks for one.

Everything is read while the process goes on, or goes away; what is gone is no evidence.
"""

from __future__ import annotations

import os
import stat
import struct
import sys

from .kernel import Stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Final, Literal

    Kind = Literal["line", "password", "key"]
    Answer = Literal[False, "unknown"] | Kind

_READ, _SELECT, _POLL, _EPOLL, _RING, _AGAIN = range(6)

# Call: what it is, and the argument that is the descriptor it reads, or that is its time limit
# (its address, or for the last kind its milliseconds, where less than 0 is none).
_GENERIC = {
    63: (_READ, 0),  # read
    65: (_READ, 0),  # readv
    71: (_READ, 1),  # sendfile
    76: (_READ, 0),  # splice
    77: (_READ, 0),  # tee
    72: (_SELECT, 4),  # pselect6
    73: (_POLL, 2),  # ppoll
    22: (_EPOLL, ~3),  # epoll_pwait
    441: (_EPOLL, 3),  # epoll_pwait2
    426: (_RING, 0),  # io_uring_enter
    128: (_AGAIN, ~2),  # restart_syscall
}
_CALLS = {
    "aarch64": _GENERIC,
    "riscv64": _GENERIC,
    "x86_64": {
        0: (_READ, 0),
        19: (_READ, 0),
        40: (_READ, 1),
        275: (_READ, 0),
        276: (_READ, 0),
        23: (_SELECT, 4),  # select
        270: (_SELECT, 4),
        7: (_POLL, ~2),  # poll
        271: (_POLL, 2),
        232: (_EPOLL, ~3),  # epoll_wait
        281: (_EPOLL, ~3),
        441: (_EPOLL, 3),
        426: (_RING, 0),
        219: (_AGAIN, ~2),
    },
}.get(os.uname().machine if sys.platform == "linux" else "")

_POLL_ENTRY = struct.Struct("=ihh")
_POLLIN = 0x41  # POLLIN and POLLRDNORM
_CONTROLLING = os.makedev(5, 0)  # /dev/tty
_32_BIT = 1 << 32
_MOST_PROCESSES = 256
_MOST_DESCRIPTORS = 256

# Kernel functions by their first letters, where a thread that sleeps in them does not read.
_ELSEWHERE = (
    "do_wait",
    "kernel_wait",
    "hrtimer_nanosleep",
    "do_nanosleep",
    "common_nsleep",
    "futex",
    "do_sigtimedwait",
    "sigsuspend",
    "do_pause",
    "__x64_sys_pause",
)
_TERMINAL_READ = "wait_woken"  # also of sockets and inotify
_PIPE_READ = ("pipe_read", "anon_pipe_read")

# What one thread's call says.
_NO, _MAYBE, _YES = range(3)


class Seen:
    """The result of a look, and for a process that waits the thread that does."""

    __slots__ = ("answer", "pid", "tid")

    def __init__(self, answer: Answer, pid: int = 0, tid: int = 0) -> None:
        self.answer: Final = answer
        self.pid: Final = pid
        self.tid: Final = tid

    @property
    def waits(self) -> bool:
        """True if the kernel says so; not if it does not, or will not say."""
        return self.answer is not False and self.answer != "unknown"

    def __repr__(self) -> str:
        return f"<Seen {self.answer!r} pid={self.pid} tid={self.tid}>"


def look(pid: int, tty: str | None) -> Answer:
    """Look what a process waits for; `tty` is its terminal's path, or None for a pipe as stdin."""
    return see(pid, tty).answer


def sleeps_of(seen: Seen, number: int) -> tuple[int, int] | None:
    """A waiter, and how often it went to sleep: another number once it has woken up.

    None where nobody waits, or whoever does ignores the signal of this number and sleeps on.
    """
    status = read_proc(f"/proc/{seen.pid}/task/{seen.tid}/status") if seen.tid else b""
    fields = dict(line.split(b":", 1) for line in status.splitlines() if b":" in line)
    try:
        ignored = int(fields[b"SigIgn"], 16) >> (number - 1) & 1
        return None if ignored else (seen.tid, int(fields[b"voluntary_ctxt_switches"]))
    except (LookupError, ValueError):
        return None


def see(pid: int, tty: str | None, name: str = "") -> Seen:
    """Look, and see who waits; the terminal may have another name where that is."""
    if _CALLS is None:
        return Seen("unknown")
    try:
        leader = _Task.of(pid)
        if leader is None or leader.dead:
            return Seen(False)
        if tty is None:
            source = os.readlink(f"/proc/{pid}/fd/0")
            if not source.startswith(("pipe:", "socket:")):
                return Seen(False)  # it has put something else in the place of what we gave it
            return _see(leader, _Pipe(source))
        device = os.stat(tty).st_rdev
        if leader.terminal != device or leader.foreground <= 0:
            return Seen("unknown")  # it has left the terminal
        return _see(leader, _Terminal(tty, name or tty, device, leader))
    except (FileNotFoundError, ProcessLookupError):
        return Seen(False)
    except (OSError, ValueError, IndexError):
        return Seen("unknown")


# -- the walk --------------------------------------------------------------------------------------


class _Task(Stat):
    """A process or one of its threads."""

    __slots__ = ()

    @classmethod
    def of(cls, pid: int) -> _Task | None:
        line = read_proc(f"/proc/{pid}/stat")
        return cls(pid, line) if line else None

    @property
    def dead(self) -> bool:
        # The first thread of a process may end before the others.
        return self.state in "ZX" and self.threads <= 1

    @property
    def stopped(self) -> bool:
        return self.state in "Tt"

    def threads_now(self) -> list[str]:
        if self.threads == 1:
            return [str(self.pid)]
        try:
            return os.listdir(f"/proc/{self.pid}/task")
        except OSError:
            return []


class _Terminal:
    """The terminal as an input, and the processes that may read it.

    That is the foreground group; and whoever left the session, to whom it is a file like others.
    """

    __slots__ = ("_device", "_group", "_name", "_names", "_path", "_session")

    def __init__(self, path: str, name: str, device: int, leader: _Task) -> None:
        self._path = path
        self._name = name
        self._device = device
        self._group, self._session = leader.foreground, leader.session
        self._names = (os.path.basename(name), "tty", "console")

    def asks(self, task: _Task) -> bool:
        return task.group == self._group or task.session != self._session

    def first(self) -> list[int]:
        return [self._group]

    def includes(self, pid: int, fd: str) -> bool:
        path = f"/proc/{pid}/fd/{fd}"
        # By its name first: to ask a dead file server about a file can take for ever.
        if os.readlink(path).rpartition("/")[2] not in self._names:
            return False
        info = os.stat(path)
        # In the foreground group the controlling terminal is this one.
        return stat.S_ISCHR(info.st_mode) and info.st_rdev in (self._device, _CONTROLLING)

    def reads_by(self, function: str) -> bool:
        return function == _TERMINAL_READ

    def confusable(self, link: str) -> bool:
        """True if readers of what a descriptor links to may sleep where a terminal's do."""
        if link.startswith("/dev/"):
            return link not in (self._name, "/dev/tty", "/dev/null")
        return link.startswith("socket:") or "notify" in link

    def kind(self, by_read: bool) -> Answer:
        import termios

        # Without O_NOCTTY it could become the terminal that controls us.
        flags = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self._path, flags)
        try:
            _, _, _, local, _, _, characters = termios.tcgetattr(fd)
        except termios.error:
            return "unknown"
        finally:
            os.close(fd)
        if local & termios.ICANON:
            return "line" if local & termios.ECHO else "password"
        if by_read and characters[termios.VMIN] in (0, b"\0"):
            return "unknown"  # such a read ends by itself after VTIME
        return "key"


class _Pipe:
    """The stdin of a process as an input: it may pass it on to any descendant.

    It is taken for the one that it was given. A process that put a pipe of its own in its place,
    as bash does for ``exec < <(command)``, is not told apart.
    """

    __slots__ = ("_link",)

    def __init__(self, link: str) -> None:
        self._link = link

    def asks(self, task: _Task) -> bool:
        return True

    def first(self) -> list[int]:
        return []

    def includes(self, pid: int, fd: str) -> bool:
        return os.readlink(f"/proc/{pid}/fd/{fd}") == self._link

    def reads_by(self, function: str) -> bool:
        return function in _PIPE_READ

    def confusable(self, link: str) -> bool:
        return link.startswith("pipe:") and link != self._link

    def kind(self, by_read: bool) -> Answer:
        return "line"


if TYPE_CHECKING:
    Source = _Terminal | _Pipe


def _see(leader: _Task, source: Source) -> Seen:
    unsure = hidden = False
    for task in _family(leader, source):
        if task is None:
            unsure = True
        elif source.asks(task) and not task.stopped and not task.dead:
            for tid in task.threads_now():
                verdict, by_read = _verdict(task.pid, tid, source)
                if verdict == _YES and not _stopped(task, tid):
                    answer = source.kind(by_read)
                    if answer != "unknown":
                        return Seen(answer, task.pid, int(tid))
                if verdict != _NO:
                    unsure = True
                    hidden = hidden or (verdict == _MAYBE and _anothers(task))
    if hidden and source.kind(True) == "password":
        return Seen("password")
    return Seen("unknown" if unsure else False)


def _family(leader: _Task, source: Source) -> Iterator[_Task | None]:
    """The leader and its descendants, the likeliest first; None in the place of too many."""
    if not _children_told():
        yield from _by_session(leader)
        return
    known = {leader.pid}
    queue = [leader]
    for pid in source.first():
        if pid not in known and (task := _Task.of(pid)) is not None:
            known.add(pid)
            queue.insert(0, task)
    at = 0
    while at < len(queue):
        task = queue[at]
        yield task
        for pid in _children(task):
            if pid not in known and (child := _Task.of(pid)) is not None:
                known.add(pid)
                queue.append(child)
        at += 1
        if at == _MOST_PROCESSES:
            yield None
            return


def _children(task: _Task) -> Iterator[int]:
    for tid in task.threads_now():
        yield from map(int, read_proc(f"/proc/{task.pid}/task/{tid}/children").split())


_told: bool | None = None


def _children_told() -> bool:
    """True if this kernel lists the children of a process."""
    global _told
    if _told is None:
        _told = os.path.exists("/proc/thread-self/children")
    return _told


def _by_session(leader: _Task) -> Iterator[_Task]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            task = _Task.of(int(name))
            if task is not None and task.session == leader.session:
                yield task


# -- one thread ------------------------------------------------------------------------------------


def _verdict(pid: int, tid: str, source: Source) -> tuple[int, bool]:
    """The verdict of a thread's system call, and whether the call is a read."""
    try:
        fields = _call_of(pid, tid).split()
        if len(fields) < 9:
            return _NO, False  # it runs, or sleeps outside of any call
        call = _CALLS.get(int(fields[0])) if _CALLS is not None else None
        if int(fields[7], 16) < _32_BIT:
            return _MAYBE, False  # a 32-bit program, whose calls have other numbers
        if call is None:
            return _NO, False
        what, which = call
        arguments = [int(field, 16) for field in fields[1:7]]
        if what == _AGAIN:
            # What was interrupted goes on, and its arguments are still there. Of those that go on
            # in this way only poll sleeps there.
            if "poll" not in _sleeps_in(pid, tid):
                return _NO, False
            what = _POLL
        if what == _READ:
            fd = _signed(arguments[which])
            return (_YES if fd >= 0 and source.includes(pid, str(fd)) else _NO), True
        if what == _RING:
            return _MAYBE, False
        endless = arguments[which] == 0 if which >= 0 else _signed(arguments[~which]) < 0
        if what == _SELECT:
            looked_at, others = _selected(pid, arguments)
        elif what == _POLL:
            looked_at, others = _polled(pid, arguments[0], arguments[1])
        else:
            looked_at, others = _epolled(pid, _signed(arguments[0]))
        if len(looked_at) > _MOST_DESCRIPTORS:
            return _MAYBE, False
        found = [source.includes(pid, fd) for fd in looked_at]
        if not any(found):
            return _NO, False
        return (_YES if endless and all(found) and not others else _MAYBE), False
    except PermissionError:
        return _hidden(pid, tid, source)
    except (FileNotFoundError, ProcessLookupError):
        return _NO, False
    except (OSError, ValueError, OverflowError, struct.error):
        return _MAYBE, False


def _call_of(pid: int, tid: str) -> bytes:
    """A thread's call: its number and arguments, stack and place, or the word "running"."""
    fd = os.open(f"/proc/{pid}/task/{tid}/syscall", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 256)
    finally:
        os.close(fd)


def _signed(argument: int) -> int:
    argument &= 0xFFFFFFFF
    return argument - _32_BIT if argument >= 1 << 31 else argument


def _selected(pid: int, arguments: list[int]) -> tuple[set[str], bool]:
    """The descriptors a select waits to read, and whether it waits for anything else."""
    count = min(arguments[0], 1 << 16)
    size = (count + 63) // 64 * 8
    sets: list[set[str]] = []
    for address in arguments[1:4]:
        bits = int.from_bytes(_memory(pid, address, size), sys.byteorder) if address else 0
        bits &= (1 << count) - 1
        sets.append({str(fd) for fd in range(bits.bit_length()) if bits >> fd & 1})
    read, write, special = sets
    return read, bool(write or special - read)


def _polled(pid: int, address: int, count: int) -> tuple[set[str], bool]:
    if count > _MOST_DESCRIPTORS:
        raise ValueError("too many to look at")
    read, others = set(), False
    for fd, events, _ in _POLL_ENTRY.iter_unpack(_memory(pid, address, 8 * count)):
        if fd >= 0 and events & _POLLIN:
            read.add(str(fd))
        elif fd >= 0:
            others = True
    return read, others


def _epolled(pid: int, fd: int) -> tuple[set[str], bool]:
    read, others = set(), False
    for line in read_proc(f"/proc/{pid}/fdinfo/{fd}").split(b"\n"):
        if line.startswith(b"tfd:"):
            # tfd: 0 events: 19 data: ...
            words = line.split()
            if int(words[3], 16) & _POLLIN:
                read.add(words[1].decode())
            else:
                others = True
    # Nobody waits for a descriptor that is closed: it may stay in the list all the same.
    gone = {fd for fd in read if not os.path.lexists(f"/proc/{pid}/fd/{fd}")}
    return read - gone, others or bool(gone)


def _memory(pid: int, address: int, size: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", 0) as file:
        data = os.pread(file.fileno(), size, address)
    if len(data) != size:
        raise ValueError("not there")
    return data


def _stopped(task: _Task, tid: str) -> bool:
    if task.threads == 1:
        return False  # it was looked at
    line = read_proc(f"/proc/{task.pid}/task/{tid}/stat")
    return not line or _Task(int(tid), line).stopped


# -- processes whose calls are hidden --------------------------------------------------------------


def _hidden(pid: int, tid: str, source: Source) -> tuple[int, bool]:
    function = _sleeps_in(pid, tid)
    if function.startswith(_ELSEWHERE):
        return _NO, False
    try:
        if source.reads_by(function):
            links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
            if not any(source.confusable(link) for link in links):
                return _YES, True
        task = _Task(int(tid), read_proc(f"/proc/{pid}/task/{tid}/stat"))
    except (FileNotFoundError, ProcessLookupError):
        return _NO, False
    except (OSError, ValueError, IndexError):
        return _MAYBE, False
    return (_NO if task.state == "R" else _MAYBE), False


def _sleeps_in(pid: int, tid: str) -> str:
    """The kernel function a thread sleeps in; "0" where it does not, or we may not know."""
    return read_proc(f"/proc/{pid}/task/{tid}/wchan").decode("ascii", "replace")


def _anothers(task: _Task) -> bool:
    """True if a process that sleeps belongs to another user, or to nobody we may look at."""
    if task.state != "S":
        return False
    try:
        os.readlink(f"/proc/{task.pid}/fd/0")
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def read_proc(path: str) -> bytes:
    """Read a small file in /proc; nothing for one that is gone or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = b""
        while more := os.read(fd, 1 << 14):
            data += more
        return data
    except OSError:
        return b""
    finally:
        os.close(fd)
