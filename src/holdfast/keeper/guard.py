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

A worker that hangs or is stopped is killed, and replaced like any other that died: see `watchdog`.

A guard that hangs: the worker sees it by nudges that are not taken in, looks in the same way, kills
it, and takes its place. The same goes for a full channel: what is told is kept in the socket, which
holds a few hundred messages. A worker that finds it full nudges the guard and waits for room; only
then does anybody rely on what was told.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import time

from ..core.home import Home
from ..core.store import Store
from ..linux import inotify, kernel
from .channel import Ends
from .held_fds import DESCRIPTORS, Held, note_of, received
from .watchdog import LOOK, Pulse, Watchdog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .channel import Channel
    from .held_fds import Table

_MESSAGE = 65536
_CLAIM_TRIES = 200


class Guard:
    __slots__ = (
        "home",
        "store",
        "lock",
        "listen",
        "notify",
        "table",
        "idle",
        "nofile",
        "fresh",
        "pid",
        "pulse",
        "hung_over",
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
        notify: int = -1,
    ) -> None:
        self.home = home
        self.store = Store(home)
        self.lock = lock
        self.listen = listen
        self.notify = notify if notify >= 0 else inotify.make()  # see `presence`
        self.table = table
        self.idle = idle
        self.nofile = nofile
        # True until what an earlier keeper left has been taken up: only then can there be processes
        # on disk that we have never heard of.
        self.fresh = fresh
        self.pid = os.getpid()  # also in the worker, whose parent is another when we have died
        self._launching = ""
        self._launched_clock = 0
        self._coming = Held(0, -1)
        self._quit = False
        self._worker = 0
        self._worker_failed = False
        self._wake, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.pulse = Pulse()
        self.hung_over = b""  # the request over which the last worker hung, if it did

    def run(self, work: Callable[[Guard, Channel], None]) -> None:
        """Guard until told to quit; each worker is a fork that does `work`.

        Returns only in a process that is to exit.
        """
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        failures = 0
        while not self._quit:
            started = time.monotonic()
            gc.freeze()  # what exists now is shared with the worker and left alone by both
            self.pulse.begin()
            ends = Ends()
            try:
                ends.make()
                self._worker = os.fork()
            except OSError:
                ends.close()
                self._settle_for(0.5)  # no descriptors or no processes to be had; later perhaps
                continue
            if self._worker == 0:
                signal.set_wakeup_fd(-1)
                os.close(self._wake)
                os.close(self._wake_write)
                work(self, ends.for_worker())
                os._exit(0)
            ends.for_guard()
            self._worker_failed = False
            self._serve(ends)
            # A worker that was killed is replaced at once; one that fails by itself, again and
            # again, is replaced more and more slowly.
            if self._worker_failed and time.monotonic() - started < 5:
                failures = min(failures + 1, 9)
                self._settle_for(0.01 * 2**failures)
            else:
                failures = 0

    def _serve(self, ends: Ends) -> None:
        """Until the worker is gone: listen to it when nudged, and reap what has become ours."""
        assert ends.ours is not None
        ours, epoll = ends.ours.fileno(), ends.epoll
        watchdog = Watchdog(self._worker, self.pulse)
        epoll.register(ours, select.EPOLLRDHUP)  # its end, not each of its messages
        epoll.register(ends.nudged, select.EPOLLIN)
        epoll.register(self._wake, select.EPOLLIN)
        alive = True
        while alive:
            for fd, _ in epoll.poll(LOOK if watchdog.watching else -1):
                if fd != ours:
                    _empty(fd)
                if fd == ends.nudged:
                    watchdog.nudged()
            alive = self._hear_all(ends.ours)
            self._settle()
            watchdog.look()
        self.hung_over = watchdog.hung_over
        ends.close()  # which leaves room to look for what it was launching
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
            _MESSAGE, socket.CMSG_LEN(4 * len(DESCRIPTORS)), socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            return False
        what, handle, *details = json.loads(data)
        held = self.table.get(handle)
        if what == "launching":
            self._launching = handle
            self._launched_clock, *shape = details
            self._coming = received(shape, ancillary)
        elif what in ("lock", "listen"):
            came = received(["", 0, 1], ancillary)  # its descriptor, where a pidfd would be
            if came.pidfd >= 0:
                os.dup2(came.pidfd, getattr(self, what), inheritable=False)
                os.close(came.pidfd)
        elif what == "relaunching":
            self._launching = handle
            self._launched_clock, *shape = details
            self._coming = received(shape, ancillary)
            if held is not None:
                self._coming.token, self._coming.sent = held.token, held.sent
                for fd in held.descriptors():
                    os.close(fd)
            self.table[handle] = self._coming  # which stays, whatever comes of it
        elif what == "failed":
            self._give_up()
        elif what == "held":
            came = received(details[1:], ancillary)
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
        elif what == "record":
            (held.record,) = details
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
        by_pid: dict[int, str] | None = None
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if by_pid is None:
                by_pid = {held.pid: handle for handle, held in self.table.items()}
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
        """Find the process that the dead worker was launching, if it got that far.

        One that has ended has no environment any more, but still the limit that marks it. Other
        children of the worker have ended too: its helpers with it, and daemons of anybody's.
        """
        known = {held.pid for held in self.table.values()} | {self._worker}
        number, dead = kernel.mark_number(handle), 0
        for _ in range(_CLAIM_TRIES):
            undecided = False
            for pid in kernel.children():
                found = kernel.stat(pid)
                if pid in known or found is None or found.start_time < self._launched_clock:
                    continue
                mark = kernel.mark_of(pid)
                if mark == handle:
                    self._take(handle, pid)
                    return
                if mark is None and found.state != "Z":
                    undecided = True  # in the middle of exec it has no environment at all
                elif mark is None and not dead and kernel.marked_number(pid) == number:
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
        """Give up what was being launched; a runner that was is launched again."""
        handle, self._launching = self._launching, ""
        if self.table.get(handle) is not self._coming:
            for fd in self._coming.descriptors():
                os.close(fd)


def _ignore(number: int, frame: object) -> None:
    """SIGCHLD needs a handler so that it reaches the wakeup descriptor."""


def _empty(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return
