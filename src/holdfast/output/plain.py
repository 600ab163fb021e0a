"""Output as rows of plain text: what a terminal would have left on its paper.

Codes are removed. What a program drew over itself (``\\r``, backspace, erased lines, the cursor
moved up to draw a block again, as progress bars do) shows in its last state. The terminal's width
is not known here, so lines never wrap; a full-screen program's screen is the business of
`terminal.screen`.

Work is linear in the bytes given, whatever they are: rows that were drawn over stay lists of
characters, and moves cost nothing.
"""

from __future__ import annotations

import re
from itertools import groupby

from ..core.terminal_codes import CSI, ESCAPE, STRING, without_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Codes in bytes that are not decoded yet; C1 controls are two bytes there.
CODES_BYTES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]?"
    rb"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    rb"|\x1b[ -/]*[0-~]?"
)

_SPECIAL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
_DRAWS = re.compile(r"[\r\x08]|(?:\x1b\[|\x9b)[0-?]*[ -/]*[A-H`Jf]|\x1bM")
_DRAWS_BYTES = re.compile(rb"[\r\x08]|\x1b\[[0-?]*[ -/]*[A-H`Jf]|\x1bM")
_TOKEN = re.compile(
    rf"(?P<text>[^\x00-\x08\x0b-\x1f\x7f-\x9f]+)|{CSI}|{STRING}|{ESCAPE}|(?P<control>.)",
    re.DOTALL,
)

_STRAY = re.compile("[\udc80-\udcff]")
_FRESH = "HJf"

_COLUMNS = 200  # no move goes further right than this, unless there is text already
_UP = 200
_EDITED = 2000  # longer rows are written over, but nothing is inserted in them or taken out


def clean_line(text: str) -> str:
    """A line without codes and controls; what was drawn over stays, one state after another."""
    return without_codes(text).replace("\r", "")


class Row:
    """A line of text; `start` is the offset of the bytes it begins with, `times` how often it came.

    A row owns the bytes from its `start` to that of the next row.
    """

    __slots__ = ("_cells", "_text", "start", "times")

    def __init__(self, start: int, text: str = "", times: int = 1) -> None:
        self.start = start
        self.times = times
        self._text = text
        self._cells: list[str] | None = None

    @property
    def text(self) -> str:
        return self._text if self._cells is None else "".join(self._cells).rstrip(" ")

    @property
    def cells(self) -> list[str]:
        if self._cells is None:
            self._cells = list(self._text)
        return self._cells

    @property
    def empty(self) -> bool:
        return not (self._text if self._cells is None else self._cells)

    def __repr__(self) -> str:
        return f"<Row {self.start} {self.text!r} x{self.times}>"


def rows_of(data: bytes, start: int = 0) -> list[Row]:
    """The rows of `data`, which begins at `start`; the last is what follows the last newline."""
    canvas = _Canvas(start)
    *lines, rest = data.split(b"\n")
    for raw, group in groupby(lines):
        times = len(list(group))
        line = raw.rstrip(b"\r")
        text = None if canvas.moved else _plain_text(line)
        if text is not None:
            canvas.add(text, len(raw) + 1, times)
        else:
            for _ in range(times):
                canvas.draw(line)
                canvas.newline(len(raw) + 1)
    text = None if canvas.moved else _plain_text(rest)
    if text is None:
        canvas.draw(rest)
    else:
        canvas.rows[-1] = Row(canvas.rows[-1].start, text)
    return _folded(canvas.rows)


def shown_line(line: bytes) -> str:
    """One line as it shows by itself, whatever stands above it."""
    line = line.rstrip(b"\r")
    if b"\r" in line and _SPECIAL.search(line.replace(b"\r", b"")) is None:
        return _overwritten(line)
    text = _plain_text(line)
    if text is not None:
        return text
    canvas = _Canvas(0)
    canvas.draw(line)
    return " ".join(row.text for row in canvas.rows if not row.empty)


def _overwritten(line: bytes) -> str:
    """The rest of a line that was begun again and again, which most progress bars are."""
    shown = ""
    for part in reversed(line.decode("utf-8", "surrogateescape").split("\r")):
        if len(part) > len(shown):
            shown += part[len(shown) :]
    return _STRAY.sub("\N{REPLACEMENT CHARACTER}", shown).rstrip(" ")


def shown_lines(data: bytes) -> bytes:
    """`data` with each of its lines as it shows; line ends stay, and so do other controls."""
    if b"\r" in data:
        for _ in range(2):
            data = data.replace(b"\r\n", b"\n")
    if b"\r" not in data and b"\b" not in data and b"\x1b" not in data:
        return data
    if _DRAWS_BYTES.search(data) is None:
        return CODES_BYTES.sub(b"", data)
    lines = [line.rstrip(b"\r") for line in data.split(b"\n")]
    return b"\n".join(
        shown_line(line).encode() if _DRAWS_BYTES.search(line) else CODES_BYTES.sub(b"", line)
        for line in lines
    )


def _plain_text(line: bytes) -> str | None:
    """The text of a line in which nothing is drawn over; None if something is."""
    text = line.decode("utf-8", "replace")
    if _SPECIAL.search(line) is None:
        return text
    return None if _DRAWS.search(text) else clean_line(text)


def repeat_note(times: int) -> str:
    return f"[last line repeated {times - 1:,} more times]"


def _folds(text: str, times: int) -> bool:
    """True where a note makes less to read than the lines it is for."""
    return times > 3 and (len(text) + 1) * (times - 1) > len(repeat_note(times)) + 1


def _folded(rows: list[Row]) -> list[Row]:
    result: list[Row] = []
    for text, group in groupby(rows, lambda row: row.text):
        run = list(group)
        times = sum(row.times for row in run)
        if _folds(text, times):
            result.append(Row(run[0].start, text, times))
        else:
            result.extend(run)
    return result


class _Canvas:
    """Rows as they are drawn, and the place that is drawn at next."""

    def __init__(self, start: int) -> None:
        self.rows = [Row(start)]
        self._at = start  # the offset of the line that is being read
        self._here = start  # the offset in it where the screen was last cleared
        self._x = self._y = 0

    @property
    def moved(self) -> bool:
        """True unless the place is at the beginning of the last row, which is empty."""
        return self._y < len(self.rows) - 1 or not self.rows[-1].empty

    def add(self, text: str, size: int, times: int) -> None:
        """Whole lines of `size` bytes, where nothing has moved."""
        self.rows.pop()
        if _folds(text, times):
            self.rows.append(Row(self._at, text, times))
        else:
            self.rows.extend(Row(self._at + number * size, text) for number in range(times))
        self._at += size * times
        self.rows.append(Row(self._at))
        self._x, self._y = 0, len(self.rows) - 1

    def newline(self, size: int) -> None:
        self._at += size
        self._x = 0
        self._y += 1
        if self._y == len(self.rows):
            self.rows.append(Row(self._at))

    def draw(self, line: bytes) -> None:
        # Stray bytes become surrogates, so that characters can be counted back into bytes.
        text = line.decode("utf-8", "surrogateescape")
        self._here, counted = self._at, 0
        for token in _TOKEN.finditer(text):
            if run := token["text"]:
                self._write(run)
            elif control := token["control"]:
                if control == "\r":
                    self._x = 0
                elif control == "\b":
                    self._x = max(self._x - 1, 0)
            elif final := token["final"]:
                if final in _FRESH:
                    passed = text[counted : token.start()]
                    self._here += len(passed.encode("utf-8", "surrogateescape"))
                    counted = token.start()
                if final in _EFFECTS:
                    _EFFECTS[final](self, _number(token["numbers"]))
            elif token["escape"] == "M":
                self._up(1)

    def _write(self, run: str) -> None:
        run = _STRAY.sub("\N{REPLACEMENT CHARACTER}", run)
        cells = self.rows[self._y].cells
        if self._x > len(cells):
            cells.extend(" " * (self._x - len(cells)))
        cells[self._x : self._x + len(run)] = run
        self._x += len(run)

    def _up(self, n: int | None) -> None:
        self._y = max(self._y - min(n or 1, _UP), 0)

    def _down(self, n: int | None) -> None:
        self._y = min(self._y + (n or 1), len(self.rows) - 1)

    def _line_up(self, n: int | None) -> None:
        self._up(n)
        self._x = 0

    def _line_down(self, n: int | None) -> None:
        self._down(n)
        self._x = 0

    def _left(self, n: int | None) -> None:
        self._x = max(self._x - (n or 1), 0)

    def _right(self, n: int | None) -> None:
        self._column(self._x + (n or 1) + 1)

    def _column(self, n: int | None) -> None:
        furthest = max(_COLUMNS, len(self.rows[self._y].cells))
        self._x = min((n or 1) - 1, furthest)

    def _fresh(self, n: int | None = None) -> None:
        """A cleared screen, or a place on it: what was there stays above, to be read."""
        self._y = len(self.rows) - 1
        if not self.rows[-1].empty:
            self._y += 1
            self.rows.append(Row(self._here))
        self._x = 0

    def _erase_below(self, n: int | None) -> None:
        if n:
            self._fresh()
        else:
            del self.rows[self._y + 1 :]
            self._erase(0)

    def _erase(self, n: int | None) -> None:
        cells = self.rows[self._y].cells
        if n == 2:
            cells.clear()
        elif not n:
            del cells[self._x :]
        elif self._x < _EDITED:
            cells[: self._x + 1] = " " * min(self._x + 1, len(cells))

    def _take_out(self, n: int | None) -> None:
        cells = self.rows[self._y].cells
        if len(cells) < _EDITED:
            del cells[self._x : self._x + (n or 1)]

    def _insert(self, n: int | None) -> None:
        cells = self.rows[self._y].cells
        if self._x < len(cells) < _EDITED:
            cells[self._x : self._x] = " " * min(n or 1, _COLUMNS)

    def _blank(self, n: int | None) -> None:
        cells = self.rows[self._y].cells
        stop = min(self._x + min(n or 1, _COLUMNS), len(cells))
        cells[self._x : stop] = " " * (stop - self._x)


_EFFECTS: dict[str, Callable[[_Canvas, int | None], None]] = {
    "A": _Canvas._up,
    "B": _Canvas._down,
    "C": _Canvas._right,
    "D": _Canvas._left,
    "E": _Canvas._line_down,
    "F": _Canvas._line_up,
    "G": _Canvas._column,
    "`": _Canvas._column,
    "H": _Canvas._fresh,
    "f": _Canvas._fresh,
    "J": _Canvas._erase_below,
    "K": _Canvas._erase,
    "P": _Canvas._take_out,
    "X": _Canvas._blank,
    "@": _Canvas._insert,
}


def _number(numbers: str) -> int | None:
    first = numbers.partition(";")[0]
    return int(first[:4]) if first.isdecimal() else None
