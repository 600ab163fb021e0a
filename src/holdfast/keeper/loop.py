"""One thread, one epoll, timers: the worker's event loop.

asyncio would do, but importing it takes some 7 MiB and 30 ms, and each request through its
transports and futures longer than the rest of what we do to start a process.

DESIGN. What epoll reports in one round was true when it was asked. A handler may close a descriptor
that comes later in the list, and the next thing that is opened gets its number. So what was added
in a round is never called with that round's reports. Nothing is lost by it: whatever is really
ready is reported again in the next round.

`pulse` counts the rounds where the guard can see it: odd while handlers run, even while the loop
waits. `beat` is called about once in a second of work, to have the guard look (see `guard`).
"""

from __future__ import annotations

import heapq
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, MutableSequence

IN = select.EPOLLIN
OUT = select.EPOLLOUT
HUP = select.EPOLLHUP


class Timer:
    __slots__ = ("clock", "callback")

    def __init__(self, clock: float, callback: Callable[[], None]) -> None:
        self.clock = clock
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


# Bulk handlers (output of processes) get this long in a row before others are asked again.
_BULK_TIME = 0.004
# After a round that moved a lot, wait for more of it: fewer and larger pieces, and writers that
# need not wake us for each.
_BULK_NAP = 0.0001
_BULK_MANY = 4
_TIDY = 256
_BEAT = 1.0


class Loop:
    __slots__ = (
        "_beat",
        "_beaten",
        "_bulk",
        "_count",
        "_epoll",
        "_handlers",
        "_newcomers",
        "_pulse",
        "_stopped",
        "_tidy_at",
        "_timers",
        "_turn",
        "flooded",
        "floods",
    )

    def __init__(
        self,
        pulse: MutableSequence[int] | memoryview | None = None,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._pulse = [0] if pulse is None else pulse
        self._beat = beat
        self._beaten = 0.0
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._newcomers: set[int] = set()  # added in this round
        self._bulk: set[int] = set()
        self._turn = 0
        self.flooded = False  # set by bulk handlers that moved a lot
        self.floods = 0  # how many have a bigger pipe now
        self._timers: list[tuple[float, int, Timer]] = []
        self._tidy_at = _TIDY
        self._count = 0
        self._stopped = False

    def add(
        self, fd: int, events: int, handler: Callable[[int], None], *, bulk: bool = False
    ) -> None:
        """Call `handler` with the events seen on `fd`; HUP and errors are always among them.

        `bulk` handlers come after all others and share a bounded time, in turns.
        """
        self._epoll.register(fd, events)
        self._handlers[fd] = handler
        self._newcomers.add(fd)
        if bulk:
            self._bulk.add(fd)

    def change(self, fd: int, events: int) -> None:
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            self._bulk.discard(fd)

    def at(self, clock: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(clock, callback)
        self._count += 1
        heapq.heappush(self._timers, (clock, self._count, timer))
        if len(self._timers) > self._tidy_at:
            # Deadlines of processes that ended long before: most timers are cancelled.
            self._timers[:] = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._tidy_at = max(_TIDY, 2 * len(self._timers))
        return timer

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self.at(time.monotonic() + seconds, callback)

    def stop(self) -> None:
        self._stopped = True

    def alive(self) -> None:
        """Say that work goes on, between two parts of what may take long."""
        self._pulse[0] = (self._pulse[0] | 1) + 2
        now = time.monotonic()
        if now - self._beaten > _BEAT:
            self._beaten = now
            self._beat()

    def run(self) -> None:
        while not self._stopped:
            bulk = []
            self._pulse[0] = (self._pulse[0] | 1) + 1
            ready = self._epoll.poll(self._patience())
            self._newcomers.clear()
            self.alive()
            for fd, events in ready:
                if fd in self._bulk:
                    bulk.append((fd, events))
                else:
                    self._call(fd, events)
            if bulk:
                self._run_bulk(bulk)
            if self._timers:
                self._run_timers()

    def _call(self, fd: int, events: int) -> None:
        handler = self._handlers.get(fd)  # None: removed by an earlier handler of this round
        if handler is not None and fd not in self._newcomers:
            handler(events)

    def _run_bulk(self, ready: list[tuple[int, int]]) -> None:
        until = time.monotonic() + _BULK_TIME
        start = self._turn % len(ready)
        for fd, events in ready[start:] + ready[:start]:
            self._turn += 1
            self._call(fd, events)
            if time.monotonic() > until:
                break  # what is left over is reported again, and begins the next round
        if self.flooded:
            self.flooded = False
            if len(ready) < _BULK_MANY:
                time.sleep(_BULK_NAP)

    def _patience(self) -> float:
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
        if not timers:
            return -1
        # epoll counts in milliseconds and Python rounds up, so a timer never fires early.
        return min(max(0.0, timers[0][0] - time.monotonic()), 86400.0)

    def _run_timers(self) -> None:
        now = time.monotonic()
        timers = self._timers
        while timers and timers[0][0] <= now:
            callback = heapq.heappop(timers)[2].callback
            if callback is not None:
                callback()
