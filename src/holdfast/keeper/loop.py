"""One thread, one epoll, timers: the worker's event loop.

asyncio would do, but importing it takes some 7 MiB and 30 ms, and each request through its
transports and futures longer than the rest of what we do to start a process.
"""

from __future__ import annotations

import heapq
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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


class Loop:
    __slots__ = (
        "_bulk",
        "_count",
        "_epoll",
        "_handlers",
        "_stopped",
        "_tidy_at",
        "_timers",
        "_turn",
        "flooded",
        "floods",
    )

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
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

    def run(self) -> None:
        while not self._stopped:
            bulk = []
            for fd, events in self._epoll.poll(self._patience()):
                if fd in self._bulk:
                    bulk.append((fd, events))
                else:
                    self._call(fd, events)
            if bulk:
                self._run_bulk(bulk)
            if self._timers:
                self._run_timers()

    def _call(self, fd: int, events: int) -> None:
        handler = self._handlers.get(fd)
        if handler is not None:  # else removed by an earlier handler of this round
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
