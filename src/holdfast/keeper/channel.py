"""The channel between guard and worker: the worker tells, the guard keeps what it is told.

The guard never answers, so a channel that is readable for the worker means that the guard is gone.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import struct
import time

from ..linux import kernel
from .held_fds import shape, ticks
from .journal import say
from .watchdog import LOOK, STOPPED_LOOKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .held_fds import Held

_UNHEARD = 64  # messages in the channel, which holds some 200, until the guard is nudged


class Channel:
    """The worker's end of the socket pair: what it tells the guard.

    What is told need not be heard at once, only kept: should the worker die, it is all still in the
    socket, descriptors included. So the guard sleeps through messages until it is nudged, which the
    worker does once for many; waking it for each would cost more than starting the process.
    """

    __slots__ = ("_nudge", "_nudges", "_guard", "_socket", "_unheard")

    def __init__(self, end: socket.socket, nudge: int, guard: int) -> None:
        self._socket = end
        self._nudge = nudge
        self._nudges = 0
        self._guard = guard  # a pidfd
        self._unheard = 0

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
        os.close(self._nudge)
        os.close(self._guard)

    def tell(self, what: str, handle: str = "", *details: Any) -> None:
        """Raises OSError when the guard is gone."""
        self._send(json.dumps([what, handle, *details]).encode(), b"")

    def hand_over(self, what: str, handle: str, held: Held) -> None:
        message = json.dumps([what, handle, ticks(), held.record, *shape(held)]).encode()
        descriptors = held.descriptors()
        self._send(message, struct.pack(f"{len(descriptors)}i", *descriptors))

    def replace(self, what: str, descriptor: int) -> None:
        """Give the guard another ``lock`` or ``listen``."""
        self._send(json.dumps([what, ""]).encode(), struct.pack("i", descriptor))

    def _send(self, message: bytes, descriptors: bytes) -> None:
        # Not socket.send_fds, which drops its flags and would block.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)] if descriptors else []
        looks = 0
        while True:
            try:
                self._socket.sendmsg([message], rights, socket.MSG_DONTWAIT)
            except OSError as error:
                # Or more descriptors on their way than an ordinary user may have there.
                if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS):
                    raise
            else:
                break
            self.nudge()
            if not self._room_within(LOOK):
                looks += 1
            if looks >= STOPPED_LOOKS and not self.guard_is_traced():
                say("the guard takes in nothing: ending it, and going on in its place")
                self.end_guard()
                raise BrokenPipeError(errno.EPIPE, "the guard does not listen")
        self._unheard += 1
        if self._unheard >= _UNHEARD:
            self.nudge()

    def _room_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.unheard():
            if time.monotonic() > until:
                return False
            time.sleep(0.0005)
        return True

    def unheard(self) -> bool:
        """True while the guard has not taken in the last nudge."""
        return kernel.unread(self._nudge) > 0

    def heard(self) -> int:
        """A number that changes whenever the guard takes in nudges, however late."""
        return self._nudges - kernel.unread(self._nudge)

    def guard_lives(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def guard_is_traced(self) -> bool:
        """Also where that cannot be seen, for want of descriptors: it is given more time then."""
        try:
            found = kernel.stat(os.getppid())
        except OSError:
            return True
        return found is not None and found.state == "t"

    def end_guard(self) -> None:
        """Kill the guard, which is our parent while it lives; never whoever came after it."""
        if self.guard_lives():
            kernel.send_signal(self._guard, signal.SIGKILL)

    def nudge(self) -> None:
        """Have the guard take in what it was told."""
        self._unheard = 0
        try:
            self._nudges += os.write(self._nudge, b"n")
        except OSError:
            return  # gone, which the socket will say; or nudged so often that it is awake anyway


class Ends:
    """The ends of a channel: a socket pair, a pipe for nudges, the guard's epoll and pidfd."""

    __slots__ = ("epoll", "guard", "nudge", "nudged", "ours", "theirs")

    epoll: select.epoll

    def __init__(self) -> None:
        self.ours: socket.socket | None = None
        self.theirs: socket.socket | None = None
        self.nudged = self.nudge = self.guard = -1

    def make(self) -> None:
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.setblocking(False)
        self.nudged, self.nudge = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # By the guard itself: when a worker asks for its parent, that may be another already.
        self.guard = os.pidfd_open(os.getpid())
        self.epoll = select.epoll()

    def for_worker(self) -> Channel:
        theirs, self.theirs = self.theirs, None
        nudge, self.nudge = self.nudge, -1
        guard, self.guard = self.guard, -1
        assert theirs is not None
        self.close()
        return Channel(theirs, nudge, guard)

    def for_guard(self) -> None:
        assert self.theirs is not None
        self.theirs.close()
        os.close(self.nudge)
        os.close(self.guard)
        self.theirs, self.nudge, self.guard = None, -1, -1

    def close(self) -> None:
        for end in (self.ours, self.theirs):
            if end is not None:
                end.close()
        for fd in (self.nudged, self.nudge, self.guard):
            if fd >= 0:
                os.close(fd)
        if hasattr(self, "epoll"):
            self.epoll.close()
