"""Lines of output that match a pattern, from a place in a log on.

A log is looked at in pieces, each in a bounded time. Lines are looked at when they are whole; one
that is longer than a piece is looked at piece by piece. The last one, which nobody has finished
yet, as nobody finishes a prompt, is looked at as it is if the caller says so. If it matches, the
rest of it is passed over; if not, it is looked at again when there is more of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..output.log import Log
    from ..output.pattern import Found, Pattern

_PIECE = 64 << 10
_OVERLAP = 4 << 10  # of the pieces of a long line, so that a match is in one of them


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that matches: where it begins, and from where on is to be looked for the next."""

    found: Found
    offset: int
    until: int
    partly: bool  # `until` is in this line, which was not finished


class OutputDetector:
    """The place in one log up to which it was looked at."""

    __slots__ = ("_log", "_partly", "at", "more", "unfinished")

    def __init__(self, log: Log, at: int, partly: bool = False) -> None:
        self._log = log
        self.at = at
        self._partly = partly  # what is looked at next is the rest of a line
        self.more = True  # there is output that was not looked at
        self.unfinished = False  # it ends in a line that was not looked at

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.at} of {self._log!r}>"

    def search(
        self,
        pattern: Pattern,
        *,
        unfinished: bool = True,
        end: int | None = None,
        most: int | None = None,
    ) -> list[Hit]:
        """The lines of the next piece that match, at `most` so many of them.

        What is after `end` is not looked at; a last line that is not finished only if `unfinished`.
        """
        room = _PIECE if end is None else max(0, min(_PIECE, end - self.at))
        output = self._log.read(self.at, room)
        data, start = output.data, output.start
        self.more = bool(data) and (output.more if end is None else output.end < end)
        if output.gap:
            self._partly = False  # the rest of that line is among what is gone
        if self._partly:
            rest = data.find(b"\n") + 1
            self._partly = not rest
            rest = rest or len(data)
            data, start = data[rest:], start + rest
        whole = data.rfind(b"\n") + 1
        too_long = not whole and len(data) == _PIECE
        if too_long:
            whole = len(data)
        as_it_is = whole < len(data) and unfinished and not self.more
        self.unfinished = whole < len(data) and not as_it_is
        lines = data if as_it_is else data[:whole]
        hits = list(islice(_hits(pattern, lines, start, whole), most))
        self.at = start + whole
        if hits and (hits[-1].partly or len(hits) == most):
            self.at, self._partly = hits[-1].until, hits[-1].partly
            self.more = self.more or self.at < start + len(data)
        elif too_long and not hits:
            self.at -= _OVERLAP
        return hits


def _hits(pattern: Pattern, data: bytes, start: int, whole: int) -> Iterator[Hit]:
    """The lines of `data` that match; what is after `whole` is not finished."""
    at = number = 0
    for found in pattern.lines(data) if data else ():
        at = _skip(data, at, found.first_line - number)
        until = _skip(data, at, found.last_line - found.first_line + 1)
        yield Hit(found, start + at, start + until, until > whole)
        at, number = until, found.last_line + 1


def _skip(data: bytes, at: int, lines: int) -> int:
    for _ in range(lines):
        at = data.find(b"\n", at) + 1
        if at == 0:
            return len(data)
    return at
