"""Sees the lines of a process's output that match a pattern.

Lines are looked at when they are whole. A line that nobody finishes for a moment, as a prompt, is
looked at as it is; if it matches, the rest of it is not looked at any more.

What matches within the cooldown is held back and counted: when the cooldown is over, the last of it
is said, with how many there were before. Without a cooldown each line is said, but not so fast that
the keeper would have nothing else to do. Of a process that has ended the rest is said at once.

A place is never moved past a match that was not said. Whoever begins there finds it again.
"""

from __future__ import annotations

import time
from collections import deque

from .watches import WatchEye

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .._match import Found, Pattern
    from .._watches import Watch
    from .watched import Watched

_CHUNK = 64 << 10  # of output in one look, and of a line
_UNFINISHED = 0.3
_PACE = 0.01
_AFTER = 1500  # bytes after a match that are shown with it
_MOST_GROUPS = 20
_PROGRESS = 16 << 20  # looked at without a match: so much need not be looked at again


class _Hit:
    """A line that matches: where it begins, and from where on is to be looked for the next."""

    __slots__ = ("found", "offset", "partly", "until")

    def __init__(self, found: Found, offset: int, until: int, partly: bool) -> None:
        self.found = found
        self.offset = offset
        self.until = until
        self.partly = partly


class OutputEye(WatchEye):
    def __init__(self, watched: Watched, watch: Watch) -> None:
        super().__init__(watched, watch)
        self._text: str = watch["output"]
        self._pattern: Pattern | None = None
        self._at = self._place
        self._partly: bool = watch["partly"]  # what is looked at next is the rest of a line
        self._hits: deque[_Hit] = deque()
        self._held: _Hit | None = None
        self._missed = 0  # how many were held back, with that one
        self._wrote = time.monotonic()
        self._final: int | None = None
        self._rested = 0.0
        self._more = True  # there is output that was not looked at
        self._unfinished = False  # it ends in a line that was not looked at

    def grown(self, now: float) -> None:
        self._wrote = now
        self._more = True
        self._plan(now)

    def ended(self, size: int) -> None:
        self._final = size
        self._more = True
        self.due = 0.0

    def look(self, now: float) -> None:
        began = time.monotonic()
        try:
            if self._pattern is None:
                from .._match import Pattern

                self._pattern = Pattern(self._text)
            if not self._hits and (self._more or self._unfinished):
                self._search(self._pattern, now)
        except (ValueError, ImportError) as error:  # no pattern, or one that takes too long
            self._give_up(now, str(error))
            return
        self._report(now)
        if not self.over:
            # While output keeps coming, a rest as long as the work took.
            self._rested = 2 * time.monotonic() - began
            self._plan(now)

    def _plan(self, now: float) -> None:
        times = []
        if self._hits or self._held:
            times.append(self._cooled)
        if self._more and not self._hits:
            times.append(max(now, self._rested))
        elif self._unfinished:
            times.append(max(now, self._wrote + _UNFINISHED))
        self.due = min(times, default=None)

    # -- finding -------------------------------------------------------------------------------

    def _search(self, pattern: Pattern, now: float) -> None:
        log = self._watched.log
        end = self._watched.end if self._final is None else self._final
        output = log.read(self._at, max(0, min(_CHUNK, end - self._at)))
        data, start = output.data, output.start
        self._more = bool(data) and output.end < end
        if self._partly and not output.gap:
            rest = data.find(b"\n") + 1
            self._partly = not rest
            rest = rest or len(data)
            data, start = data[rest:], start + rest
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == _CHUNK:
            whole = len(data)
        # What follows the last whole line: looked at with it, or when nothing more comes.
        left_alone = self._final is not None or now - self._wrote >= _UNFINISHED
        if whole < len(data) and left_alone and not self._more:
            lines = data
            self._unfinished = False
        else:
            lines = data[:whole]
            self._unfinished = whole < len(data)
        self._at = start + whole
        self._hits.extend(_hits(pattern, lines, start, whole))
        if self._hits and self._hits[-1].partly:
            self._at = self._hits[-1].until
            self._partly = True
        if not self._hits and not self._held and self._at - self._place >= _PROGRESS:
            self._say(self._at, self._partly)

    # -- saying --------------------------------------------------------------------------------

    def _report(self, now: float) -> None:
        last_chance = self._final is not None and not self._more
        while self._hits and not self.over:
            if now >= self._cooled:
                self._tell_of(self._hits.popleft(), now)
            elif self._cooldown:
                self._held = self._hits.popleft()
                self._missed += 1
            else:
                break
        if self._held is not None and (last_chance or now >= self._cooled) and not self.over:
            self._missed -= 1
            self._tell_of(self._held, now)
        if last_chance and not self._hits:
            self.over = True

    def _tell_of(self, hit: _Hit, now: float) -> None:
        found = hit.found
        self._tell(
            now,
            hit.until,
            found.line,
            self._tail(min(self._watched.end, hit.until + _AFTER)),
            partly=hit.partly,
            match=found.match,
            groups=found.groups[:_MOST_GROUPS],
            offset=hit.offset,
            missed=self._missed,
        )
        self._cooled = max(self._cooled, now + _PACE)
        self._held, self._missed = None, 0

    def _give_up(self, now: float, why: str) -> None:
        end = self._watched.end
        self._tell(
            now,
            self._place,
            why,
            self._tail(end),
            partly=self._partly,
            over=True,
            reason="given_up",
            missed=self._missed,
        )


def _hits(pattern: Pattern, data: bytes, start: int, whole: int) -> Iterator[_Hit]:
    """The lines of `data` that match; what is after `whole` is not finished."""
    at = number = 0
    for found in pattern.lines(data) if data else ():
        at = _skip(data, at, found.first_line - number)
        until = _skip(data, at, found.last_line - found.first_line + 1)
        yield _Hit(found, start + at, start + until, until > whole)
        at, number = until, found.last_line + 1


def _skip(data: bytes, at: int, lines: int) -> int:
    for _ in range(lines):
        at = data.find(b"\n", at) + 1
        if at == 0:
            return len(data)
    return at
