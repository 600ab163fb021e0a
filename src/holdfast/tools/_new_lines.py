"""The unseen part of a log, by whole lines, for dialects that speak of lines.

The last line of a process that runs may not be finished: it waits for its end, so that no line is
ever given in two halves. Only one of more than a mebibyte is given as far as it is there.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ..core.completion_text import clean_text
from ..output.plain import CODES_BYTES
from ..output.view import read_range, view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..output.log import Log
    from ..output.pattern import Pattern

_PIECE = 1 << 20
_BEGINNING = 64 << 10
_LONGEST_LINE = 2000
# A pattern is looked for in what is new for so long, and until so much of it matches.
_SECONDS = 2.0
_MATCHING = 1 << 20
_AT_ONCE = 10_000

_BLANK = bytes({*range(0x21), 0x7F} - {0x0A})
_MARKS = bytes(0x0A if byte == 0x0A else ord("x") for byte in range(256))


@dataclass(slots=True)
class NewLines:
    text: str
    end: int  # where to go on
    gone: int = 0  # bytes that nobody can read any more
    notes: list[str] = field(default_factory=list)


def new_lines(
    log: Log,
    start: int,
    *,
    running: bool,
    budget: int,
    pattern: Pattern | None = None,
    blanks: bool = False,
) -> NewLines:
    """The lines from offset `start` on, or those that match; blank ones only with `blanks`.

    Of more than `budget` characters the first and the last are shown, and the first error.
    """
    low, high = max(start, log.begin()), log.size()
    if running:
        high = _last_line_end(log, low, high)
    found = NewLines("", max(low, high), gone=low - start)
    if low < high and pattern is None:
        _all(log, low, high, budget, blanks, found)
    elif pattern is not None:
        _filtered(log, low, high, budget, blanks, found, pattern)
    if found.gone:
        found.notes.append(f"{found.gone:,} bytes were let go unread (the log is capped)")
    return found


def lines_of(data: bytes, blanks: bool = False) -> list[str]:
    """Output as lines, without terminal codes."""
    return _lines(clean_text(data), blanks)


def first_lines(log: Log, count: int) -> list[str]:
    """The first lines that are not blank, as far as they are in the beginning of what is kept."""
    begin = log.begin()
    _, data = read_range(log, begin, begin + _BEGINNING)
    return [_cut(line) for line in lines_of(data)[:count]]


class LineCounts:
    """A count of the lines of each log that are not blank; what was counted is not read again."""

    def __init__(self) -> None:
        self._counted: dict[str, tuple[int, int]] = {}

    def of(self, log: Log) -> int:
        at, lines = self._counted.get(log.path, (0, 0))
        end = log.size()
        rest = 0  # the last line, which may go on
        while at < end:
            start, data = read_range(log, at, min(max(at, log.begin()) + _PIECE, end))
            whole = data.rfind(b"\n") + 1
            if not whole and start + len(data) < end:
                whole = len(data)
            lines += _count(data[:whole])
            at = start + whole
            if start + len(data) >= end or not data:
                rest = _count(data[whole:])
                break
        self._counted[log.path] = at, lines
        return lines + rest

    def forget_others(self, logs: list[Log]) -> None:
        paths = {log.path for log in logs}
        self._counted = {path: n for path, n in self._counted.items() if path in paths}


def _last_line_end(log: Log, low: int, high: int) -> int:
    """The offset after the last whole line before `high`; `low` if there is none."""
    start, data = read_range(log, max(low, high - _PIECE), high)
    newline = data.rfind(b"\n")
    if newline >= 0:
        return start + newline + 1
    if len(data) < _PIECE:
        return low
    return log.read(start, _PIECE, whole_characters=True).end


def _all(log: Log, low: int, high: int, budget: int, blanks: bool, found: NewLines) -> None:
    if high - low <= budget:
        start, data = read_range(log, low, high)
        found.gone += start - low
        found.text = "\n".join(lines_of(data, blanks))
        return
    seen = view(log, budget=budget, start=low, end=high)
    found.text = "\n".join(_lines(seen.text, blanks))
    if not seen.complete:
        found.notes.append(f"not all of it is shown; it is in {log.path}")


def _filtered(
    log: Log, low: int, high: int, budget: int, blanks: bool, found: NewLines, pattern: Pattern
) -> None:
    until = time.monotonic() + _SECONDS
    kept: list[str] = []
    room = _MATCHING
    while low < high:
        start, data = read_range(log, low, min(low + _PIECE, high))
        if start + len(data) < high:
            data = data[: data.rfind(b"\n") + 1 or len(data)]
        lines = lines_of(data, blanks)
        matching: list[str] = []
        for first in range(0, len(lines), _AT_ONCE):  # the pattern's time is for so many
            matching += pattern.keep(lines[first : first + _AT_ONCE])
        kept += matching
        room -= sum(map(len, matching))
        found.gone += start - low
        low = start + len(data)
        if low < high and (room < 0 or not data or time.monotonic() > until):
            found.notes.append(f"{high - low:,} bytes were not looked at yet: read again")
            break
    found.end = low
    found.text = "\n".join(kept)
    if len(found.text) > budget:
        found.text = _first_and_last(kept, budget)
        found.notes.append(f"not all lines that match are shown; they are in {log.path}")


def _first_and_last(lines: list[str], budget: int) -> str:
    lines = [_cut(line) for line in lines]
    head = _fitting(lines, budget // 3)
    tail = _fitting(lines[head:][::-1], budget - budget // 3)
    left_out = len(lines) - head - tail
    between = [f"... +{left_out} more lines"] if left_out else []
    return "\n".join(lines[:head] + between + lines[len(lines) - tail :])


def _fitting(lines: list[str], room: int) -> int:
    for number, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return number
    return len(lines)


def _lines(text: str, blanks: bool) -> list[str]:
    if blanks:
        return text.removesuffix("\n").split("\n") if text else []
    return [line for line in text.split("\n") if line.strip()]


def _count(data: bytes) -> int:
    """Count the lines that are not blank; fast, because a log may have any number of them."""
    if b"\x1b" in data:
        data = CODES_BYTES.sub(b"", data)
    marks = data.translate(_MARKS, _BLANK)
    return marks.count(b"x\n") + marks.endswith(b"x")


def _cut(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[:_LONGEST_LINE]}... +{len(line) - _LONGEST_LINE} characters"
