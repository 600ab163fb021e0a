"""The guard: the half of the keeper that does nothing, so that nothing can go wrong with it.

DESIGN. Guard and worker both hold, for every process, a pidfd and the descriptors that must not be
lost (the readers of its output, the writing end of its stdin, both ends of its terminal), and both
are subreapers. The worker is the guard's child and does all the work; over a socket pair it tells
the guard what it launches.

Worker killed: its children become the guard's. The guard reaps them exactly (it peeks, writes the
exit note, then reaps, so a death between any two steps leaves the step to somebody else) and forks
a new worker, which inherits every descriptor. Children that came to the guard this way stay its
children for life; the worker sees their pidfd hang up once the guard has reaped them, which is
after the note is on disk.

Guard killed: the worker sees the socket pair end and turns itself into the guard by execve: same
pid, so its children stay its children; then it forks a new worker. `holdfast keeper restart` is
this same road, taken on purpose, with the code that is now on disk.

A worker killed while it was launching: "launching" came, with the descriptors, before the process
was made, so the guard looks among its new children for the one that carries the handle's mark, or,
if that one is dead already, for the only newcomer that can be it.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import struct
import time

from .. import _kernel
from .._home import Home
from .._model import ExitNote, signal_name
from .._store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MESSAGE = 65536
_CLAIM_TRIES = 200
_DESCRIPTORS = ("pidfd", "out", "err", "stdin", "tty", "tank", "shelf", "input")


class Held:
    """What both halves hold of one process. Descriptors are -1 where there is none."""

    __slots__ = ("pid", *_DESCRIPTORS, "token", "sent")

    def __init__(
        self,
        pid: int,
        pidfd: int,
        out: int = -1,
        err: int = -1,
        stdin: int = -1,
        tty: int = -1,
        tank: int = -1,
        shelf: int = -1,
        input: int = -1,
        token: str = "",
        sent: int = 0,
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
        self.tank = tank
        # Of a process with a runner: what one runner leaves for the next, and the end of its stdin
        # that is read, so that nothing in it is lost between two of them.
        self.shelf = shelf
        self.input = input
        # The last send and how much of it was written, so that a client that repeats it after a
        # crash has none of it typed twice. Less than 0: the worker died in the very write.
        self.token = token
        self.sent = sent

    def descriptors(self) -> list[int]:
        return [fd for name in _DESCRIPTORS if (fd := getattr(self, name)) >= 0]

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


Table = dict[str, Held]


class Channel:
    """The worker's end of the socket pair: what it tells the guard.

    What is told need not be heard at once, only kept: should the worker die, it is all still in the
    socket, descriptors included. So the guard sleeps through messages until it is nudged, which the
    worker does once for many; waking it for each would cost more than starting the process.
    """

    __slots__ = ("_nudge", "_socket")

    def __init__(self, end: socket.socket, nudge: int) -> None:
        self._socket = end
        self._nudge = nudge

    def fileno(self) -> int:
        return self._socket.fileno()

    def tell(self, what: str, handle: str = "", *details: Any) -> None:
        """Raises OSError when the guard is gone."""
        self._send(json.dumps([what, handle, *details]).encode(), [])

    def hand_over(self, what: str, handle: str, held: Held) -> None:
        message = json.dumps([what, handle, ticks(), *_shape(held)]).encode()
        self._send(message, held.descriptors())

    def _send(self, message: bytes, descriptors: list[int]) -> None:
        while True:
            try:
                if descriptors:
                    socket.send_fds(self._socket, [message], descriptors, socket.MSG_DONTWAIT)
                else:
                    self._socket.send(message, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self.nudge()
                poll = select.poll()
                poll.register(self._socket, select.POLLOUT)
                poll.poll()
            else:
                return

    def guard_lives(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def nudge(self) -> None:
        """Have the guard take in what it was told."""
        try:
            os.write(self._nudge, b"n")
        except OSError:
            return  # gone, which the socket will say; or nudged so often that it is awake anyway


def _shape(held: Held) -> list[int]:
    """pid, and which descriptors come along."""
    return [held.pid, *(int(getattr(held, name) >= 0) for name in _DESCRIPTORS)]


class Guard:
    __slots__ = (
        "home",
        "store",
        "lock",
        "listen",
        "table",
        "idle",
        "nofile",
        "fresh",
        "_coming",
        "_launching",
        "_launched_clock",
        "_quit",
        "_wake",
        "_wake_write",
        "_worker",
        "_worker_failed",
    )

    def __init__(
        self,
        home: Home,
        lock: int,
        listen: int,
        table: Table,
        idle: float,
        nofile: int,
        *,
        fresh: bool,
    ) -> None:
        self.home = home
        self.store = Store(home)
        self.lock = lock
        self.listen = listen
        self.table = table
        self.idle = idle
        self.nofile = nofile
        # True until what an earlier keeper left has been taken up: only then can there be processes
        # on disk that we have never heard of.
        self.fresh = fresh
        self._launching = ""
        self._launched_clock = 0
        self._coming = Held(0, -1)
        self._quit = False
        self._worker = 0
        self._worker_failed = False
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Guard until told to quit. Returns only in a process that is to exit."""
        from .worker import run_worker

        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        failures = 0
        while not self._quit:
            started = time.monotonic()
            gc.freeze()  # what exists now is shared with the worker and left alone by both
            try:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                nudged, nudge = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
                self._worker = os.fork()
            except OSError:
                self._settle_for(0.5)  # no descriptors or no processes to be had; later perhaps
                continue
            if self._worker == 0:
                signal.set_wakeup_fd(-1)
                ours.close()
                for fd in (self._wake, self._wake_write, nudged):
                    os.close(fd)
                run_worker(self, Channel(theirs, nudge))
                os._exit(0)
            theirs.close()
            os.close(nudge)
            self._worker_failed = False
            self._serve(ours, nudged)
            ours.close()
            os.close(nudged)
            # A worker that was killed is replaced at once; one that fails by itself, again and
            # again, is replaced more and more slowly.
            if self._worker_failed and time.monotonic() - started < 5:
                failures = min(failures + 1, 9)
                self._settle_for(0.01 * 2**failures)
            else:
                failures = 0

    def _serve(self, channel: socket.socket, nudged: int) -> None:
        """Until the worker is gone: listen to it when nudged, and reap what has become ours."""
        ours = channel.fileno()
        channel.setblocking(False)
        with select.epoll() as epoll:
            epoll.register(ours, select.EPOLLRDHUP)  # its end, not each of its messages
            epoll.register(nudged, select.EPOLLIN)
            epoll.register(self._wake, select.EPOLLIN)
            alive = True
            while alive:
                for fd, _ in epoll.poll():
                    if fd != ours:
                        _empty(fd)
                alive = self._hear_all(channel)
                self._settle()
        try:
            # Its end of the channel closes a moment before its children become ours.
            os.waitid(os.P_PID, self._worker, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # reaped already
        if self._launching:
            self._claim(self._launching)
        self._settle()

    def _settle_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            poll.poll(left * 1000)
            _empty(self._wake)
            self._settle()

    def _hear_all(self, channel: socket.socket) -> bool:
        """Take in what was told; False at the end of it, which is the worker's."""
        try:
            while self._hear(channel):
                pass
        except BlockingIOError:
            return True
        except ConnectionResetError:
            pass
        return False

    def _hear(self, channel: socket.socket) -> bool:
        # Not socket.recv_fds: it drops its flags, and our children would inherit what it received.
        data, ancillary, _, _ = channel.recvmsg(
            _MESSAGE, socket.CMSG_LEN(4 * len(_DESCRIPTORS)), socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            return False
        what, handle, *details = json.loads(data)
        held = self.table.get(handle)
        if what == "launching":
            self._launching = handle
            self._launched_clock, *shape = details
            self._coming = _held(shape, ancillary)
        elif what == "relaunching":
            self._launching = handle
            self._launched_clock, *shape = details
            self._coming = _held(shape, ancillary)
            if held is not None:
                self._coming.token, self._coming.sent = held.token, held.sent
                for fd in held.descriptors():
                    os.close(fd)
            self.table[handle] = self._coming  # which stays, whatever comes of it
        elif what == "failed":
            self._give_up()
        elif what == "held":
            came = _held(details[1:], ancillary)
            if handle == self._launching:
                self._launching = ""
                self._coming.pid, self._coming.pidfd = came.pid, came.pidfd
                came = self._coming
            self.table[handle] = came
        elif what == "recovered":
            self.fresh = False
        elif what == "quit":
            self._quit = True
        elif held is None:
            pass
        elif what == "sent":
            held.token, held.sent = details
        elif what == "closed":
            for name in details:
                fd = getattr(held, name)
                if fd >= 0:
                    os.close(fd)
                    setattr(held, name, -1)
        elif what == "forget":
            del self.table[handle]
            for fd in held.descriptors():
                os.close(fd)
        return True

    def _settle(self) -> None:
        """Reap whatever of ours has ended: the worker, orphans, and processes that became ours."""
        by_pid = {held.pid: handle for handle, held in self.table.items()}
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            handle = by_pid.get(ended.si_pid)
            if handle is not None:
                try:
                    if self.store.read_exit(handle) is None:
                        self.store.write_exit(handle, note_of(ended.si_pid))
                except OSError:
                    pass  # a full disk: newer kernels can still tell, and nothing may end the guard
            elif self._launching and ended.si_pid != self._worker:
                return  # it may be the one that was being launched, to be claimed first
            os.waitpid(ended.si_pid, 0)
            if ended.si_pid == self._worker:
                killed = ended.si_code == os.CLD_KILLED and ended.si_status == signal.SIGKILL
                self._worker_failed = not killed

    def _claim(self, handle: str) -> None:
        """Find the process that the dead worker was launching, if it got that far."""
        known = {held.pid for held in self.table.values()} | {self._worker}
        dead = 0
        for _ in range(_CLAIM_TRIES):
            undecided = False
            for pid in _kernel.children():
                found = _kernel.stat(pid)
                if pid in known or found is None or found.start_time < self._launched_clock:
                    continue
                mark = _kernel.mark_of(pid)
                if mark == handle:
                    self._take(handle, pid)
                    return
                if mark is None and found.state != "Z":
                    undecided = True  # in the middle of exec it has no environment at all
                elif mark is None and found.session == pid:
                    dead = pid
            if not undecided:
                break
            time.sleep(0.001)
        if dead:
            self._take(handle, dead)
        else:
            self._give_up()

    def _take(self, handle: str, pid: int) -> None:
        self._launching = ""
        self._coming.pid, self._coming.pidfd = pid, os.pidfd_open(pid)
        self.table[handle] = self._coming

    def _give_up(self) -> None:
        """What was being launched never was; a runner that was is launched again."""
        handle, self._launching = self._launching, ""
        if self.table.get(handle) is not self._coming:
            for fd in self._coming.descriptors():
                os.close(fd)


def _held(shape: list[int], ancillary: list[tuple[int, int, bytes]]) -> Held:
    pid, *present = shape
    held = Held(pid, -1)
    descriptors = (
        fd
        for level, kind, payload in ancillary
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS
        for fd in struct.unpack(f"{len(payload) // 4}i", payload)
    )
    for name, here in zip(_DESCRIPTORS, present, strict=True):
        if here:
            setattr(held, name, next(descriptors))
    return held


def note_of(pid: int) -> ExitNote:
    """The exit note of a dead child that has not been reaped."""
    death = _kernel.peek(pid)
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


def _ignore(number: int, frame: object) -> None:
    """SIGCHLD needs a handler so that it reaches the wakeup descriptor."""


def _empty(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return
