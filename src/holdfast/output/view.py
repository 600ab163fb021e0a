"""A log as a model should read it: plain text within a budget, and notes about what is missing.

What counts as content is what a terminal would have left to read (`output.plain`): codes, control
characters and the earlier states of a line that was drawn over do not. Lines that repeat are folded
into one and a count. If that is more than the budget, very long lines lose their middle; then the
first and the last lines are kept and between them the first error (`output.error_blocks`), in at
most a third of the budget (`output.fit`). Each piece left out is told in the text, with the offset
to read it at, and in `View.gaps`.

A log is never read whole, unless it is small: a window at its beginning, one at its end, and a
bounded look for an error between them.
"""

from __future__ import annotations

import codecs
import time
from dataclasses import asdict, dataclass, field
from functools import cached_property

from ..core.errors import BadRequest
from ..core.terminal_codes import without_codes
from .error_blocks import Block, first_error, may_have_error
from .fit import Gap, Hole, fit
from .plain import Row, rows_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .log import Log

    # The bytes from one offset to another, and where they begin: later where some were freed.
    Read = Callable[[int, int], tuple[int, bytes]]

BUDGET = 10_000
ERRORS_BELOW = "[stderr]\n"
_LARGEST_BUDGET = 1_000_000
_SMALLEST_WINDOW = 16 << 10
_LARGEST_WINDOW = 1 << 20
_COUNTED = 64 << 20
_PIECE = 1 << 20
# The look for an error between the windows: so many bytes in such pieces, and no longer than this.
# The rare kinds are looked for in half of the time.
_SEARCHED = 1 << 30
_SEARCH_PIECE = 256 << 10
_SEARCH_SECONDS = 0.4
_OVERLAP = 1 << 10
_BEFORE_ERROR = 2 << 10
_AFTER_ERROR = 64 << 10


@dataclass(slots=True)
class View:
    """Text for a model, and what it is of.

    `text` is never longer than the budget, notes included; of a budget that no note fits in, ``…``
    is left, or nothing of one of 0. `start` and `end` are the offsets of what was looked at. `gaps`
    has what is not in the text, also where there was no room for a note. Of a view of two streams
    the offsets are stdout's, and `streams` has the view of each.
    """

    text: str
    start: int
    end: int
    gaps: list[Gap] = field(default_factory=list)
    streams: dict[str, View] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return not self.gaps

    def __str__(self) -> str:
        return self.text

    def public(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "text": self.text,
            "start": self.start,
            "end": self.end,
            "complete": self.complete,
            "gaps": [asdict(gap) for gap in self.gaps],
        }
        if self.streams:
            told["streams"] = {name: each.public() for name, each in self.streams.items()}
        return told


def view(
    log: Log,
    *,
    budget: int = BUDGET,
    start: int | None = None,
    end: int | None = None,
    errors: bool = True,
    stream: str = "",
) -> View:
    """`log`, or its bytes from `start` to `end`, in at most `budget` characters.

    With `errors` the first error is looked for, and kept if there is room. A budget of more than a
    million characters is taken as a million. Notes name the `stream`, if one is given.
    """
    _check(budget, start or 0, end)
    size = log.size()
    high = size if end is None else min(end, size)
    low = min(start or 0, high)

    def read(low: int, high: int) -> tuple[int, bytes]:
        return read_range(log, low, high)

    return _view(read, low, min(max(low, log.begin()), high), high, budget, errors, stream)


def view_both(stdout: Log, stderr: Log, *, budget: int = BUDGET) -> View:
    """Two streams: stdout, and under a mark stderr, which is given at least half of the budget."""
    _check(budget, 0, None)
    half = max(budget // 2 - len(ERRORS_BELOW), 0)
    errors = view(stderr, budget=half, stream="stderr")
    if errors.start == errors.end and errors.complete:
        shown = view(stdout, budget=budget)
        shown.streams = {"stdout": View(shown.text, shown.start, shown.end, shown.gaps)}
        shown.streams["stderr"] = errors
        return shown
    mark = len(ERRORS_BELOW) + 1 if errors.text else 0
    output = view(stdout, budget=budget - mark - len(errors.text), stream="stdout")
    rest = budget - len(output.text) - len(ERRORS_BELOW) - 1
    if not errors.complete and rest > half:
        errors = view(stderr, budget=rest, stream="stderr")
    text = output.text
    if errors.text:
        text += ("\n" if text and not text.endswith("\n") else "") + ERRORS_BELOW + errors.text
    gaps = output.gaps + errors.gaps
    return View(text, output.start, output.end, gaps, {"stdout": output, "stderr": errors})


def read_range(log: Log, low: int, high: int) -> tuple[int, bytes]:
    """The bytes of `log` from `low` to `high`, or those at the end that were not freed."""
    start = low
    parts: list[bytes] = []
    while low < high:
        output = log.read(low, min(high - low, _PIECE))
        if output.gap:
            start, parts = min(output.start, high), []
        if not output.data or output.start >= high:
            break
        parts.append(output.data[: high - output.start])
        low = output.start + len(parts[-1])
    return start, b"".join(parts)


def _check(budget: int, start: int, end: int | None) -> None:
    if min(budget, start, end or 0) < 0:
        raise BadRequest("a budget or an offset cannot be negative; both count from 0")
    if end is not None and end < start:
        raise BadRequest(f"a range from {start} to {end} ends before it begins; swap them")


def _view(
    read: Read, asked: int, low: int, high: int, budget: int, errors: bool, stream: str = ""
) -> View:
    """`asked` is where the view should begin, `low` where there is something."""
    budget = min(budget, _LARGEST_BUDGET)
    windows = _windows(read, low, high, budget)
    unsearched = 0
    if len(windows) == 1:
        errors = errors and windows[0].characters > budget
    elif errors:
        unsearched = _look_between(read, windows)
    holes: list[Hole] = []
    entries: list[Row | Hole] = []
    block: tuple[int, int] | None = None
    sure = False
    position = asked
    for window in windows:
        if window.start > position:
            holes.append(_hole(read, position, window.start, freed=position == asked))
            entries.append(holes[-1])
        if errors and not sure and (error := window.error) and (error.sure or block is None):
            block = len(entries) + error.start, len(entries) + error.end
            sure = error.sure
        entries.extend(window.rows)
        position = window.end
    if unsearched and not sure:
        holes[-1].unsearched = unsearched

    def lines(start: int, end: int) -> int | None:
        total = sum(window.newlines(start, end) for window in windows)
        for hole in holes:
            if start <= hole.start and hole.end <= end:
                if hole.lines is None:
                    return None
                total += hole.lines
        last = windows[-1]
        return total + (start < end == last.end and not last.data.endswith(b"\n"))

    text, gaps = fit(entries, position, budget, block, lines, stream)
    return View(text, asked, position, gaps)


# -- windows ---------------------------------------------------------------------------------------


class _Window:
    """Bytes that are looked at, from `start` on, and their rows."""

    def __init__(self, start: int, data: bytes, *, last: bool = False) -> None:
        self.start = start
        self.end = start + len(data)
        self.data = data
        self.rows = rows_of(data, start)
        if not last and data.endswith(b"\n"):
            self.rows.pop()  # what follows begins a row of its own

    @property
    def characters(self) -> int:
        return sum(len(row.text) + 1 for row in self.rows)

    @cached_property
    def error(self) -> Block | None:
        return first_error([row.text for row in self.rows])

    def newlines(self, start: int, end: int) -> int:
        low, high = max(start - self.start, 0), max(end - self.start, 0)
        return self.data.count(b"\n", low, high)


def _windows(read: Read, low: int, high: int, budget: int) -> list[_Window]:
    """The whole log, or as much of both ends as fills the budget with what shows of them."""
    size = max(_SMALLEST_WINDOW, 4 * budget)
    largest = max(_LARGEST_WINDOW, size)
    while high - low > 2 * size:
        windows = [_first(*read(low, low + size)), _last(*read(high - size - 1, high))]
        enough = windows[0].characters > budget // 3 and windows[1].characters > budget
        if enough or size == largest:
            return windows
        size = min(4 * size, largest)
    return [_Window(*read(low, high), last=True)]


def _first(start: int, data: bytes) -> _Window:
    """A window that ends with a line, or else with a character."""
    end = data.rfind(b"\n") + 1
    if not end:
        _, end = codecs.utf_8_decode(data, "replace", False)
    return _Window(start, data[:end])


def _last(start: int, data: bytes) -> _Window:
    """A window that begins with a line, or else with a character; the first byte is one before."""
    begin = data.find(b"\n", 0, len(data) - 1) + 1
    if not begin:
        begin = next((n for n in (1, 2, 3) if data[n : n + 1] < b"\x80" or data[n] >= 0xC0), 4)
    begin = min(begin, len(data))
    return _Window(start + begin, data[begin:], last=True)


def _hole(read: Read, start: int, end: int, *, freed: bool) -> Hole:
    hole = Hole(start, end, freed=freed)
    if freed or end - start > _COUNTED:
        return hole
    lines = 0
    for low in range(start, end, _PIECE):
        high = min(low + _PIECE, end)
        at, data = read(low, high)
        if at != low or len(data) != high - low:
            return hole
        lines += data.count(b"\n")
    hole.lines = lines
    return hole


# -- errors between the windows --------------------------------------------------------------------


def _look_between(read: Read, windows: list[_Window]) -> int:
    """Put a window at the first error between the two; return how many bytes were not searched.

    There is no look where a sure error comes before.
    """
    first, last = windows
    if first.error is not None and first.error.sure:
        return 0
    at, stop = first.end, last.start
    began = time.monotonic()
    perhaps: int | None = None
    sure = False
    while at < stop:
        spent = time.monotonic() - began
        if at - first.end >= _SEARCHED or spent > _SEARCH_SECONDS:
            break
        start, data = read(at, min(at + _SEARCH_PIECE, stop))
        if not data:
            break
        at = start + len(data)
        offset, sure = _error_in(start, data, thorough=spent < _SEARCH_SECONDS / 2)
        if offset is not None and (sure or perhaps is None):
            perhaps = offset
            if sure:
                break
        if at < stop:  # the end of this piece is looked at again, with what follows it
            at -= min(_OVERLAP, len(data) // 2)
            at = start + (data.find(b"\n", at - start) + 1 or len(data))
    else:
        at = stop
    found_elsewhere = first.error is not None or (last.error is not None and last.error.sure)
    if perhaps is not None and (sure or not found_elsewhere):
        windows.insert(1, _around(read, perhaps, first.end, stop))
    return stop - at


def _error_in(start: int, data: bytes, *, thorough: bool) -> tuple[int | None, bool]:
    if not may_have_error(data, thorough=thorough):
        return None, False
    text = without_codes(data.decode("utf-8", "replace")).replace("\r", "")
    error = first_error(text.split("\n"))
    if error is None:
        return None, False
    raw = data.split(b"\n", error.start)[: error.start]
    return start + sum(len(line) + 1 for line in raw), error.sure


def _around(read: Read, offset: int, low: int, high: int) -> _Window:
    begin = max(low, offset - _BEFORE_ERROR)
    start, data = read(begin, min(offset + _AFTER_ERROR, high))
    if start > low:
        cut = data.find(b"\n", 0, max(offset - start, 0)) + 1
        start, data = start + cut, data[cut:]
    return _first(start, data)
