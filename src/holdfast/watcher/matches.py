"""Tells of the lines of a process's output that match a pattern, in each of its streams.

Lines are looked at when they are whole, and as they are if nobody finishes them for a moment.

What matches within the cooldown is held back and counted: when the cooldown is over, the last of it
is said, with how many there were before. Without a cooldown each line is said, but not so fast that
the keeper would have nothing else to do. Of a process that has ended the rest is said at once.

A place is never moved past a match that was neither said nor counted in what is said with it. So
whoever begins there finds the others again. What is held back in one stream may be counted in what
is said of the other; then both places are moved in one step.
"""

from __future__ import annotations

import time
from collections import deque

from ..core.watch import listed
from ..detectors.output import OutputDetector
from .watches import WatchReporter, last_of, tail_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.watch import Watch
    from ..detectors.output import Hit
    from ..output.pattern import Pattern
    from .watched_process import Stream, Watched

_UNFINISHED = 0.3
_PACE = 0.01
_AFTER = 1500  # bytes after a match that are shown with it
_MOST_GROUPS = 20
_PROGRESS = 16 << 20  # looked at without a match: so much need not be looked at again


class _Reading(OutputDetector):
    """The place in one stream, and up to where of it nothing is left to say."""

    __slots__ = ("_end", "_wrote", "passed", "stream")

    def __init__(self, stream: Stream, place: int, partly: bool) -> None:
        super().__init__(stream.log, place, partly)
        self.stream = stream
        self.passed = place, partly
        self._end = stream.end
        self._wrote = time.monotonic()

    def grown(self, now: float) -> None:
        if self.stream.end > self._end:
            self._end = self.stream.end
            self._wrote = now
            self.more = True

    @property
    def at_the_end(self) -> bool:
        """True if nothing more is to be looked at, ever."""
        return self.stream.final is not None and not self.more

    @property
    def left_alone(self) -> float:
        """The time at which a line that nobody finishes is looked at as it is."""
        return self._wrote + _UNFINISHED

    def next(self, pattern: Pattern, now: float) -> list[Hit]:
        final = self.stream.final
        return self.search(
            pattern,
            unfinished=final is not None or now >= self.left_alone,
            end=self.stream.end if final is None else final,
        )

    def progress(self) -> bool:
        """Pass what was looked at without a match; True if that is so much that it is said."""
        if self.at - self.passed[0] < _PROGRESS:
            return False
        self.passed = self.at, self._partly
        return True


class OutputReporter(WatchReporter):
    def __init__(self, watched: Watched, watch: Watch) -> None:
        super().__init__(watched, watch)
        self._text: str = watch["output"]
        self._pattern: Pattern | None = None
        places = zip(self._streams, self._place, listed(watch["partly"]), strict=True)
        self._readings = [_Reading(*each) for each in places]
        self._hits: deque[tuple[_Reading, Hit]] = deque()
        self._held: tuple[_Reading, Hit] | None = None
        self._missed = 0  # how many were held back, with that one
        self._rested = 0.0

    def grown(self, now: float) -> None:
        for reading in self._readings:
            reading.grown(now)
        self._plan(now)

    def ended(self) -> None:
        for reading in self._readings:
            reading.more = True
        self.due = 0.0

    def look(self, now: float) -> None:
        began = time.monotonic()
        try:
            if self._pattern is None:
                from ..output.pattern import Pattern

                self._pattern = Pattern(self._text)
            if not self._hits:
                self._search(self._pattern, now)
        except (ValueError, ImportError) as error:  # no pattern, or one that takes too long
            self._give_up(now, str(error))
            return
        self._report(now)
        if not self.over:
            # While output keeps coming, a rest as long as the work took.
            self._rested = 2 * time.monotonic() - began
            self._plan(now)

    def _search(self, pattern: Pattern, now: float) -> None:
        for reading in self._readings:
            if reading.more or reading.unfinished:
                self._hits.extend((reading, hit) for hit in reading.next(pattern, now))
        if not self._hits and not self._held:
            progress = [reading.progress() for reading in self._readings]
            if any(progress):
                self._say(*self._passed())

    def _plan(self, now: float) -> None:
        times = []
        if self._hits or self._held:
            times.append(self._cooled)
        for reading in self._readings:
            if reading.more and not self._hits:
                times.append(max(now, self._rested))
            elif reading.unfinished:
                times.append(max(now, reading.left_alone))
        self.due = min(times, default=None)

    # -- saying --------------------------------------------------------------------------------

    def _report(self, now: float) -> None:
        last_chance = all(reading.at_the_end for reading in self._readings)
        while self._hits and not self.over:
            if now >= self._cooled:
                self._tell_of(*self._next(), now)
            elif self._cooldown:
                self._held = self._next()
                self._missed += 1
            else:
                break
        if self._held is not None and (last_chance or now >= self._cooled) and not self.over:
            self._missed -= 1
            self._tell_of(*self._held, now)
        if last_chance and not self._hits:
            self.over = True

    def _next(self) -> tuple[_Reading, Hit]:
        """The next hit; with what is said then, its stream is looked at up to there."""
        reading, hit = self._hits.popleft()
        reading.passed = hit.until, hit.partly
        return reading, hit

    def _passed(self) -> tuple[list[int], list[bool]]:
        places, partly = zip(*(reading.passed for reading in self._readings), strict=True)
        return list(places), list(partly)

    def _tell_of(self, reading: _Reading, hit: Hit, now: float) -> None:
        found, stream = hit.found, reading.stream
        places, partly = self._passed()
        self._tell(
            now,
            places,
            found.line,
            tail_of(stream, min(stream.end, hit.until + _AFTER)),
            partly=partly,
            match=found.match,
            groups=found.groups[:_MOST_GROUPS],
            offset=hit.offset,
            missed=self._missed,
            stream=self._name(stream),
        )
        self._cooled = max(self._cooled, now + _PACE)
        self._held, self._missed = None, 0

    def _give_up(self, now: float, why: str) -> None:
        self._tell(
            now,
            self._place,
            why,
            last_of(self._streams),
            over=True,
            reason="given_up",
            missed=self._missed,
        )
