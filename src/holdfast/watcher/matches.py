"""Sees the lines of a process's output that match a pattern, in each of its streams.

Lines are looked at when they are whole. A line that nobody finishes for a moment, as a prompt, is
looked at as it is; if it matches, the rest of it is not looked at any more.

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

from .._watches import listed
from .watches import WatchEye, last_of, tail_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .._match import Found, Pattern
    from .._watches import Watch
    from .watched import Stream, Watched

_CHUNK = 64 << 10  # of output in one look, and of a line
_UNFINISHED = 0.3
_PACE = 0.01
_AFTER = 1500  # bytes after a match that are shown with it
_MOST_GROUPS = 20
_PROGRESS = 16 << 20  # looked at without a match: so much need not be looked at again


class _Hit:
    """A line that matches: where it begins, and from where on is to be looked for the next."""

    __slots__ = ("found", "offset", "partly", "reading", "until")

    def __init__(
        self, reading: _Reading, found: Found, offset: int, until: int, partly: bool
    ) -> None:
        self.reading = reading
        self.found = found
        self.offset = offset
        self.until = until
        self.partly = partly


class _Reading:
    """How far one stream was looked at."""

    __slots__ = ("_at", "_end", "_partly", "_wrote", "more", "passed", "stream", "unfinished")

    def __init__(self, stream: Stream, place: int, partly: bool) -> None:
        self.stream = stream
        self.passed = place, partly  # before this nothing is left to say
        self._at = place
        self._partly = partly  # what is looked at next is the rest of a line
        self._end = stream.end
        self._wrote = time.monotonic()
        self.more = True  # there is output that was not looked at
        self.unfinished = False  # it ends in a line that was not looked at

    def grown(self, now: float) -> None:
        if self.stream.end > self._end:
            self._end = self.stream.end
            self._wrote = now
            self.more = True

    @property
    def at_the_end(self) -> bool:
        """Whether nothing more is to be looked at, ever."""
        return self.stream.final is not None and not self.more

    @property
    def left_alone(self) -> float:
        """When a line that nobody finishes is looked at as it is."""
        return self._wrote + _UNFINISHED

    def search(self, pattern: Pattern, now: float) -> list[_Hit]:
        stream = self.stream
        end = stream.end if stream.final is None else stream.final
        output = stream.log.read(self._at, max(0, min(_CHUNK, end - self._at)))
        data, start = output.data, output.start
        self.more = bool(data) and output.end < end
        if self._partly and not output.gap:
            rest = data.find(b"\n") + 1
            self._partly = not rest
            rest = rest or len(data)
            data, start = data[rest:], start + rest
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == _CHUNK:
            whole = len(data)
        # What follows the last whole line: looked at with it, or when nothing more comes.
        left_alone = stream.final is not None or now >= self.left_alone
        if whole < len(data) and left_alone and not self.more:
            lines = data
            self.unfinished = False
        else:
            lines = data[:whole]
            self.unfinished = whole < len(data)
        self._at = start + whole
        hits = list(_hits(self, pattern, lines, start, whole))
        if hits and hits[-1].partly:
            self._at = hits[-1].until
            self._partly = True
        return hits

    def progress(self) -> bool:
        """Pass what was looked at without a match; True if that is so much that it is said."""
        if self._at - self.passed[0] < _PROGRESS:
            return False
        self.passed = self._at, self._partly
        return True


class OutputEye(WatchEye):
    def __init__(self, watched: Watched, watch: Watch) -> None:
        super().__init__(watched, watch)
        self._text: str = watch["output"]
        self._pattern: Pattern | None = None
        places = zip(self._streams, self._place, listed(watch["partly"]), strict=True)
        self._readings = [_Reading(*each) for each in places]
        self._hits: deque[_Hit] = deque()
        self._held: _Hit | None = None
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
                from .._match import Pattern

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
                self._hits.extend(reading.search(pattern, now))
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
                self._tell_of(self._next(), now)
            elif self._cooldown:
                self._held = self._next()
                self._missed += 1
            else:
                break
        if self._held is not None and (last_chance or now >= self._cooled) and not self.over:
            self._missed -= 1
            self._tell_of(self._held, now)
        if last_chance and not self._hits:
            self.over = True

    def _next(self) -> _Hit:
        """The next hit; with what is said then, its stream is looked at up to there."""
        hit = self._hits.popleft()
        hit.reading.passed = hit.until, hit.partly
        return hit

    def _passed(self) -> tuple[list[int], list[bool]]:
        places, partly = zip(*(reading.passed for reading in self._readings), strict=True)
        return list(places), list(partly)

    def _tell_of(self, hit: _Hit, now: float) -> None:
        found, stream = hit.found, hit.reading.stream
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


def _hits(
    reading: _Reading, pattern: Pattern, data: bytes, start: int, whole: int
) -> Iterator[_Hit]:
    """The lines of `data` that match; what is after `whole` is not finished."""
    at = number = 0
    for found in pattern.lines(data) if data else ():
        at = _skip(data, at, found.first_line - number)
        until = _skip(data, at, found.last_line - found.first_line + 1)
        yield _Hit(reading, found, start + at, start + until, until > whole)
        at, number = until, found.last_line + 1


def _skip(data: bytes, at: int, lines: int) -> int:
    for _ in range(lines):
        at = data.find(b"\n", at) + 1
        if at == 0:
            return len(data)
    return at
