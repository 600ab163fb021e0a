"""The guard's eye on its worker: one that hangs, or that somebody stopped, is killed and replaced.

DESIGN. The worker's loop counts its rounds in memory that both halves see, odd while it works and
even while it waits, and nudges the guard about once in a second of work. From then on the guard
looks once a second, until the loop waits again and has nudged nobody for longer than that: a round
in the second after a nudge brings no other. Nobody wakes for it while there is nothing to do. That
the worker was stopped (SIGSTOP) the kernel tells its parent.

Looks are counted and not seconds, so that nothing follows from both having stood still together.
Who is being debugged is left alone.

The same memory says which request the worker is at. One that hung a worker is refused by the next:
its caller asks again as for any answer that was lost, and would hang one worker after the other.
"""

from __future__ import annotations

import mmap
import os
import signal
import time

from ..linux import kernel
from .journal import say

LOOK = 1.0
STOPPED_LOOKS = 10
_ROUND_LOOKS = 15
_AFTER_A_NUDGE = 1.5 * LOOK
_REQUEST = slice(8, 128)


class Pulse:
    """The worker's place in its work, for the guard to see: memory that a fork shares."""

    __slots__ = ("_page", "rounds")

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)
        self.rounds = memoryview(self._page)[:8].cast("Q")

    def begin(self) -> None:
        """Before a worker is made: it is at work from the first, and at no request."""
        self.rounds[0] = 1
        self.request = b""

    @property
    def request(self) -> bytes:
        return self._page[_REQUEST].rstrip(b"\0")

    @request.setter
    def request(self, request: bytes) -> None:
        self._page[_REQUEST] = request.ljust(120, b"\0")[:120]


class Watchdog:
    __slots__ = (
        "_looked",
        "_looks",
        "_pulse",
        "_seen",
        "_until",
        "_worker",
        "hung_over",
        "watching",
    )

    def __init__(self, worker: int, pulse: Pulse) -> None:
        self._worker = worker
        self._pulse = pulse
        self._seen = -1
        self._looks = 0
        self._looked = self._until = time.monotonic()
        self.watching = True
        self.hung_over = b""  # the request that it was killed over

    def nudged(self) -> None:
        self._until = time.monotonic() + _AFTER_A_NUDGE

    def look(self) -> None:
        seen: int = self._pulse.rounds[0]
        try:
            found = kernel.stat(self._worker)
        except OSError:  # no descriptor to be had
            found = None
        stopped = found is not None and found.state == "T"
        at_work = stopped or seen % 2 == 1
        self.watching = at_work or time.monotonic() < self._until
        if seen != self._seen or found is None or found.state == "t" or not at_work:
            self._seen, self._looks, self._looked = seen, 0, time.monotonic()
            return
        if time.monotonic() - self._looked < LOOK / 2:
            return  # woken by something else
        self._looks, self._looked = self._looks + 1, time.monotonic()
        if self._looks != (STOPPED_LOOKS if stopped else _ROUND_LOOKS):
            return
        if stopped:
            say("the worker is stopped: ending it, another takes its place")
        else:
            self.hung_over = self._pulse.request
            at = self.hung_over.decode("ascii", "replace") or "nothing that was asked"
            say(f"the worker hangs, at {at}: ending it, another takes its place")
        os.kill(self._worker, signal.SIGKILL)  # our child, which nobody but we can reap
