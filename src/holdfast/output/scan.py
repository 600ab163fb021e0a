"""One pass over a log that finds the lines a pattern matches.

DESIGN. A log is searched in pieces of whole lines, from the end when the last matches are wanted:
when the time runs out, the ones found are still the last. Where a text can be told that every
matching line has in it, only the lines that have it are looked at one by one; a pattern that is
nothing but such a text is counted at the speed of a byte search. Everything else is the business of
`regex`, which stops at a time limit and lets other threads run meanwhile. A call of it costs more
than a short line, so it is given all lines of a piece at once; if that takes too long, they are
looked at one by one, to tell how far the search came.

A line is what stands between two newlines, decoded, as it shows: without terminal codes, and where
a program drew over it, as it was last.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from .log import after_newlines
from .plain import shown_lines
from .view import read_range

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .log import Log
    from .matcher import Lines, Matcher

_PIECE = 1 << 20
_SMALL_PIECE = 64 << 10  # of lines that are all looked at
_RARE = 1000  # times in a piece
_SLOW = 0.1  # seconds for what was drawn over in a piece
_MOST_SLOW = 3  # pieces that take a pattern too long


@dataclass(slots=True)
class Hit:
    offset: int
    end: int
    line: str
    place: int


class _OutOfTime(Exception):
    """Out of time, at this index of the piece."""

    def __init__(self, at: int) -> None:
        self.at = at


class Scan:
    """One pass over a range of a log."""

    def __init__(
        self,
        log: Log,
        matcher: Matcher,
        low: int,
        high: int,
        want: int,
        *,
        backwards: bool,
        deadline: float,
    ) -> None:
        self.low, self.high = low, high
        self.searched = (high, high) if backwards else (low, low)
        self.hits: list[Hit] = []
        self.count = 0
        self.late = self.long_lines = self.enough = False
        self._log, self._matcher, self._want = log, matcher, want
        self.backwards, self._deadline = backwards, deadline
        self._chosen = False
        self._data = self._rare = b""
        self._size = _SMALL_PIECE
        self._lines = matcher.lines
        self._slow = 0

    def run(self) -> None:
        if not self.backwards and self._want == 0:
            return
        for start, raw in self._pieces():
            if self.late or time.monotonic() > self._deadline:
                self.late = True
                break
            began = time.monotonic()
            clean = shown_lines(raw)
            if time.monotonic() - began > _SLOW:
                self._size = _SMALL_PIECE
            piece = _Piece(start, raw, clean, clean.lower() if self._matcher.fold else clean)
            if not self._chosen:
                self._choose(piece.folded)
            low, high = start, start + len(raw)
            try:
                self._look(piece)
            except _OutOfTime as stopped:
                self.late = True
                at = piece.offset(stopped.at)
                low, high = (at, high) if self.backwards else (low, at)
            if self.enough:
                high = min(self.hits[-1].end + 1, high)
            self.searched = (low, self.searched[1]) if self.backwards else (self.searched[0], high)
            if self.enough:
                break
        if self.backwards:
            self.hits.reverse()

    def _look(self, piece: _Piece) -> None:
        matcher = self._matcher
        missing = self._want - len(self.hits)
        if matcher.test is None and (self.backwards or missing <= 0):
            count = self._count(piece.folded)
            self.count += count
            if count and missing > 0:
                spans = piece.spans(self._data, backwards=True)
                for _, (low, high) in zip(range(missing), spans, strict=False):
                    line = piece.line(low, high)
                    self.hits.append(piece.hit(low, high, line, matcher.place(line) or 0))
            return
        if self._data and self._data not in piece.folded:
            return
        if self._lines is not None and not self._data:
            try:
                self._look_at_all(piece, self._lines)
                return
            except (TimeoutError, MemoryError):
                self._slow += 1
                if self._slow == _MOST_SLOW:
                    self._lines = None
        looks = 0
        for low, high in piece.spans(self._data, backwards=self.backwards):
            looks += 1
            line = piece.line(low, high)
            after = min(high + 1, len(piece.clean))
            try:
                place = matcher.place(line)
            except (TimeoutError, MemoryError):
                raise _OutOfTime(after if self.backwards else low) from None
            if place is not None:
                self.count += 1
                if len(self.hits) < self._want:
                    self.hits.append(piece.hit(low, high, line, place))
                if not self.backwards and len(self.hits) == self._want:
                    self.enough = True
                    return
            if time.monotonic() > self._deadline:
                raise _OutOfTime(low if self.backwards else after)
        if looks > _RARE and self._lines is not None:
            self._data, self._size = b"", _SMALL_PIECE  # it is not rare here

    def _look_at_all(self, piece: _Piece, lines: Lines) -> None:
        """The lines of a piece in one go; nothing is changed if there is no time for that."""
        text = piece.text()
        missing = max(self._want - len(self.hits), 0)
        if not missing:
            self.count += lines.count(text)
            return
        places = lines.places(text)
        if self.backwards:
            found = list(places)
            self.count += len(found)
            self.hits += [piece.hit_in(text, place) for place in reversed(found[-missing:])]
            return
        found = [place for place, _ in zip(places, range(missing), strict=False)]
        self.count += len(found)
        self.hits += [piece.hit_in(text, place) for place in found]
        self.enough = len(found) == missing

    def _choose(self, hay: bytes) -> None:
        """Choose, of the texts that every match has, the one that is rarest where we begin.

        A search for one byte is many times as fast as one for several, so where the text has a
        rare byte, that is looked for first. A text that is everywhere is of no use to a pattern.
        """
        self._chosen = True
        limit = max(_RARE * len(hay) // _PIECE, 1)
        texts, pattern = self._matcher.texts, self._matcher.test is not None
        data = min(texts, key=lambda text: (hay.count(text), -len(text)), default=b"")
        if data and not (pattern and hay.count(data) > limit):
            self._data = data
            self._size = _PIECE
            rarest = min((bytes([byte]) for byte in set(data)), key=hay.count)
            self._rare = rarest if hay.count(rarest) <= limit else b""

    def _count(self, hay: bytes) -> int:
        """Count the lines that have the text in them."""
        data, rare = self._data, self._rare
        if not rare:
            return len(re.findall(re.escape(data) + b".*", hay)) if data in hay else 0
        ahead = data.index(rare)
        count = looks = 0
        at = hay.find(rare)
        while at >= 0:
            looks += 1
            if at >= ahead and hay.startswith(data, at - ahead):
                count += 1
                if (at := hay.find(b"\n", at)) < 0:
                    break
            at = hay.find(rare, at + 1)
        if looks > _RARE:
            self._rare = b""  # it is not rare here
        return count

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        """Whole lines, each piece with its offset; of a line that is too long, parts."""
        at = self.high if self.backwards else self.low
        while self.low < at if self.backwards else at < self.high:
            for most in (self._size, _PIECE):
                if self.backwards:
                    start, data = read_range(self._log, max(at - most, self.low), at)
                    cut = data.find(b"\n", 0, len(data) - 1) + 1 if start > self.low else 0
                    whole = start <= self.low or cut > 0
                    start, data = start + cut, data[cut:]
                else:
                    start, data = read_range(self._log, at, min(at + most, self.high))
                    cut = data.rfind(b"\n") + 1
                    whole = start + len(data) >= self.high or cut > 0
                    if start + len(data) < self.high and cut:
                        data = data[:cut]
                if whole:
                    break
            else:
                self.long_lines = True
            if not data:
                return
            yield start, data
            at = start if self.backwards else start + len(data)


@dataclass(slots=True)
class _Piece:
    """Lines of a log: as they are, without codes, and in one case where that is asked for."""

    start: int
    raw: bytes
    clean: bytes
    folded: bytes

    def spans(self, data: bytes, *, backwards: bool) -> Iterator[tuple[int, int]]:
        """The spans of lines that have `data` in them, the last ones first if `backwards`."""
        hay = self.folded
        low, high = 0, len(hay) - hay.endswith(b"\n")
        while low <= high:
            at = hay.rfind(data, low, high) if backwards else hay.find(data, low, high)
            if at < 0:
                return
            start = hay.rfind(b"\n", 0, at) + 1
            end = hay.find(b"\n", at)
            end = len(hay) if end < 0 else end
            yield start, end
            if backwards:
                high = start - 1
            else:
                low = end + 1

    def line(self, low: int, high: int) -> str:
        return self.clean[low:high].decode("utf-8", "replace")

    def text(self) -> str:
        """The whole text, with an end of the last line."""
        end = b"" if self.clean.endswith(b"\n") else b"\n"
        return (self.clean + end).decode("utf-8", "replace")

    def offset(self, at: int) -> int:
        """The offset in the log of a line that begins at `at`, or of the end."""
        if self.clean is self.raw:
            return self.start + at
        if at == len(self.clean) and not self.clean.endswith(b"\n"):
            return self.start + len(self.raw)
        return self.start + after_newlines(self.raw, self.clean.count(b"\n", 0, at))

    def hit(self, low: int, high: int, line: str, place: int) -> Hit:
        return self._hit(self.offset(low), line, place)

    def hit_in(self, text: str, at: int) -> Hit:
        """The match at a place in the whole text."""
        begin = text.rfind("\n", 0, at) + 1
        offset = self.start + after_newlines(self.raw, text.count("\n", 0, at))
        return self._hit(offset, text[begin : text.find("\n", at)], at - begin)

    def _hit(self, offset: int, line: str, place: int) -> Hit:
        end = self.raw.find(b"\n", offset - self.start)
        return Hit(offset, self.start + (len(self.raw) if end < 0 else end), line, place)
