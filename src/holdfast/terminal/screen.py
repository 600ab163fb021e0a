"""The screen of a terminal as a person at it would see it now, drawn from its log.

DESIGN. A `Rendering` feeds a log to a terminal without a window and remembers how far it came, so
another look costs only what is new. Where more than `WINDOW` has to be read, it starts over inside
the last `WINDOW` bytes, at a place where text has a known column. What was skipped may still be on
the screen, and the answer must say so; two things see to that:

- Every cell of a screen that starts over holds `_UNKNOWN`, a character that no program writes. A
  clear, a scroll, or text on top replaces it. So a picture is exact when none of it is left, and
  nobody has to guess which of a program's many ways to clear the screen was the one. Both screens
  are filled: what the alternate one hid is as unknown as it was when a program leaves it.
- Modes, title and keyboard flags are taken from where it stood before, and from what the skipped
  bytes say about them (all of them where they are few, else the first and the last).

A freed head is the same thing: bytes that cannot be fed.
"""

from __future__ import annotations

import re
import threading

from ..core.record import Screen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..output.log import Log
    from .ghostty import Terminal

WINDOW = 2 << 20
DEFAULT_SIZE = 120, 40
_CHUNK = 1 << 20
_FIRST_MODES = 64 << 10
_LAST_MODES = 2 << 20

_UNKNOWN = "\U0010ffff"
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_NOT_SGR = re.compile(r"\x1b(?!\[[\d;:]*m)|[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f]")
_TITLE = 1000
_LAST = re.compile(rb"([\xc2-\xf4][\x80-\xbf]{1,3})(?:\x1b\[[\d;:]*m)*$")

# Where a replay can begin: what comes next has a known column, and no sequence is cut in two.
_ANCHOR = re.compile(rb"[\r\n]|\x1b(?:c|\[2J|\[[\d;]*[Hf]|\[\?1049h)")
_CLEAR = re.compile(rb"\x1b(?:c|\[2J|\[(?:1;1)?H\x1b\[0?J|\[\?1049h)")
# What skipped bytes may say about the state of the terminal rather than its contents.
_STATE = re.compile(
    rb"\x1b(?:\[(?:\?[\d;]+[hl]|4[hl]|[<>=][\d;]*u|>[\d;]*m|\d? q|[\d;]*r|!p)"
    rb"|\](?:0|2);[^\x07\x1b]{0,1000}(?:\x07|\x1b\\)|[=>c]|\([0AB])"
)
_MODE = re.compile(rb"\x1b\[(\??)(\d+)([hl])")
_REGION = re.compile(rb"\x1b\[(\d+);\d+([rs])")
# Set by ourselves in their place; or, those that clear the screen, hold it back or make the
# terminal talk by itself, never.
_NOT_REDRAWN = {b"?" + number for number in b"3 6 40 47 69 1047 1048 1049 2026 2027 2048".split()}


class Rendering:
    """The picture of one terminal, brought up to date from its log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.RLock()
        self._sizes: list[tuple[int, int, int]] = []
        self._opened: Terminal | None = None
        self._doubtful = 0  # rows that may hold text in a wrong column
        self._note = ""
        self.offset = 0

    def __repr__(self) -> str:
        return f"<Rendering of {self._log!r} at {self.offset}>"

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None
            self._log.close()
            self.offset = 0
            self._doubtful = 0
            self._note = ""

    def update(self, sizes: Iterable[Sequence[int]], *, until: int | None = None) -> None:
        """Bring the picture to the end of the log, or to the offset `until`.

        `sizes` tells from which offset on the terminal had which size: (offset, columns, rows).
        """
        with self._lock:
            self._sizes = sorted((offset, columns, rows) for offset, columns, rows in sizes)
            goal = until
            if self._opened is None:
                goal = self._log.size() if until is None else until
                if goal > WINDOW or self._log.begin() > 0:
                    self._start_over(goal)
            self._feed_to(goal)
            self._terminal.resize(*self._size_at(self.offset))

    def _feed_to(self, goal: int | None) -> None:
        """Feed up to `goal`; where it is None, to the end as it is when there is much to read."""
        while goal is None or self.offset < goal:
            self._terminal.resize(*self._size_at(self.offset))
            changes = [at for at, _, _ in self._sizes if at > self.offset]
            stop = min([self.offset + _CHUNK, *changes[:1], *([] if goal is None else [goal])])
            output = self._log.read(self.offset, stop - self.offset)
            if goal is None and (output.gap or output.more):
                goal = self._log.size()
            if goal is not None and (output.gap or goal - self.offset > WINDOW):
                self._start_over(goal)
                continue
            self._terminal.feed(output.data)
            self._has_fed(output.data)
            if not output.more or not output.data:
                break

    def _has_fed(self, data: bytes) -> None:
        self.offset += len(data)
        if self._doubtful:
            cleared = _CLEAR.search(data) is not None
            self._doubtful = 0 if cleared else max(0, self._doubtful - data.count(b"\n"))

    def _start_over(self, goal: int) -> None:
        """Skip to the last `WINDOW` before `goal`, or to where the log begins now."""
        begin = self._log.begin()
        low = max(begin, goal - WINDOW)
        size = columns, rows = self._size_at(low)
        scratch = _fresh(*size)
        if self._opened is not None:
            scratch.feed(_drawing(self._opened, []))
        for data in self._skipped(self.offset, low):
            scratch.feed(b"".join(match[0] for match in _STATE.finditer(data)))
        output = self._log.read(low, min(_CHUNK, max(goal - low, 0)))
        self.close()
        self._opened = _fresh(*size)
        unknown = [(_UNKNOWN * columns).encode()] * rows
        self._opened.feed(_rows(unknown))
        self._opened.feed(_drawing(scratch, unknown, cursor=(0, rows - 1)))
        scratch.close()
        self.offset, known = _place_to_begin(output.data, output.start)
        self._doubtful = 0 if known else 2 * rows
        self._note = (
            f"only the last {WINDOW >> 20} MiB of its output were replayed"
            if low > begin
            else "the output before was freed"
        ) + "; what was drawn earlier may be missing"

    def _skipped(self, start: int, end: int) -> Iterable[bytes]:
        start = max(start, self._log.begin())
        tail = max(start, end - _LAST_MODES)
        parts = [(start, min(tail, start + _FIRST_MODES)), (tail, end)]
        for at, stop in parts:
            while at < stop:
                output = self._log.read(at, min(_CHUNK, stop - at))
                if not output.data:
                    break
                yield output.data
                at = output.end

    def _size_at(self, offset: int) -> tuple[int, int]:
        size = self._sizes[0][1:] if self._sizes else DEFAULT_SIZE
        for at, columns, rows in self._sizes:
            if at <= offset:
                size = columns, rows
        return size

    @property
    def _terminal(self) -> Terminal:
        if self._opened is None:
            self._opened = _fresh(*self._size_at(self.offset))
        return self._opened

    # -- what is seen --------------------------------------------------------------------------

    def screen(self, *, colours: bool = False) -> Screen:
        with self._lock:
            terminal = self._terminal
            plain = terminal.plain().decode("utf-8", "replace")
            exact = not self._note or (not self._doubtful and _UNKNOWN not in plain)
            return Screen(
                _tidy(_CONTROL.sub("", plain).split("\n")),
                (terminal.columns, terminal.rows),
                terminal.cursor if terminal.cursor_visible else None,
                _one_line(terminal.title),
                terminal.alternate,
                exact,
                "" if exact else self._note,
                _coloured(terminal) if colours else None,
            )

    def cursor_line(self) -> str:
        """The text before the cursor in its row, as a prompt has it."""
        with self._lock:
            terminal = self._terminal
            column, row = terminal.cursor
            last = column if terminal.pending_wrap else column - 1
            if last < 0:
                return ""
            return _one_line(terminal.plain_before(last, row).decode("utf-8", "replace"))

    def redraw(self) -> bytes:
        """The bytes that bring a terminal of the same size, just reset, to this picture.

        The bytes of the log from `offset` on can follow, even where that is inside a sequence.
        """
        with self._lock:
            terminal = self._terminal
            rows = terminal.styled(trim=False).replace(_UNKNOWN.encode(), b" ").split(b"\r\n")
            return _drawing(terminal, rows) + terminal.unfinished()

    def answer(self, data: bytes) -> bytes:
        """Feed the next bytes of the log; return what a terminal replies to queries in them."""
        with self._lock:
            replies = self._terminal.ask(data)
            self._has_fed(data)
            return replies

    @property
    def fullscreen(self) -> bool:
        with self._lock:
            return self._terminal.alternate

    @property
    def bracketed_paste(self) -> bool:
        with self._lock:
            return self._terminal.mode(2004)

    @property
    def application_cursor(self) -> bool:
        with self._lock:
            return self._terminal.mode(1)

    @property
    def kitty_flags(self) -> int:
        with self._lock:
            return self._terminal.kitty_flags


def _fresh(columns: int, rows: int) -> Terminal:
    from .ghostty import Terminal  # not before a screen is drawn: it takes a while to load

    return Terminal(columns, rows)


def _place_to_begin(data: bytes, start: int) -> tuple[int, bool]:
    """The place to begin at in the bytes at `start`, and whether the column is known there."""
    if (anchor := _ANCHOR.search(data)) is not None:
        return start + (anchor.start() if data[anchor.start()] == 0x1B else anchor.end()), True
    if (escape := data.find(b"\x1b")) >= 0:
        return start + escape, False
    whole = next((n for n in range(min(4, len(data))) if data[n] & 0xC0 != 0x80), 0)
    return start + whole, False


def _drawing(terminal: Terminal, rows: list[bytes], cursor: tuple[int, int] | None = None) -> bytes:
    """Bytes that give a fresh terminal these rows, and the state of `terminal`."""
    parts = [b"\x1b[?1049h"] if terminal.alternate else []
    if terminal.mode(2027):
        parts.append(b"\x1b[?2027h")  # how wide a cluster of characters is
    parts.append(terminal.tab_stops())
    # Without wrapping: where two terminals disagree about a width, a row must not spill over.
    parts += [b"\x1b[?7l", _rows(rows), b"\x1b[?7h"]
    if terminal.mode(69):
        parts.append(b"\x1b[?69h")
    parts.append(region := terminal.region())
    top = left = 0
    if terminal.mode(6):
        parts.append(b"\x1b[?6h")
        begin = {kind: int(first) - 1 for first, kind in _REGION.findall(region)}
        top, left = begin.get(b"r", 0), begin.get(b"s", 0)
    column, row = cursor or terminal.cursor
    end = b""
    if rows and cursor is None and terminal.pending_wrap:
        # The state that only writing to the end of a row leaves.
        end = terminal.styled_part((column, row), (column, row))
        if end and column and end == terminal.styled_part((column - 1, row), (column, row)):
            column -= 1  # both halves of a wide character
    parts.append(b"\x1b[%d;%dH%s" % (max(row - top, 0) + 1, max(column - left, 0) + 1, end))
    if title := _one_line(terminal.title):
        parts.append(b"\x1b]2;%s\x07" % title.encode())
    if (shape := terminal.cursor_shape()) != 2:
        parts.append(b"\x1b[%d q" % shape)
    parts += [
        match[0]
        for match in _MODE.finditer(terminal.modes())
        if match[1] + match[2] not in _NOT_REDRAWN
    ]
    parts.append(terminal.pen())
    return b"".join(parts)


def _rows(rows: list[bytes]) -> bytes:
    parts = []
    for at, row in enumerate(rows, 1):
        if row:
            # Where nothing wraps, an accent on the last character would go to the one before it.
            form = b"\x1b[%d;1H\x1b[?7h%s\x1b[?7l" if _ends_in_accent(row) else b"\x1b[%d;1H%s"
            parts.append(form % (at, row))
    return b"".join(parts)


def _ends_in_accent(row: bytes) -> bool:
    end = _LAST.search(row[-200:])
    if end is None:
        return False
    import unicodedata

    return unicodedata.category(end[1].decode("utf-8", "replace")[:1]) in ("Mn", "Me", "Mc", "Cf")


def _coloured(terminal: Terminal) -> str:
    styled = terminal.styled().decode("utf-8", "replace")
    return _tidy(_NOT_SGR.sub("", styled).split("\n"))


def _tidy(rows: list[str]) -> str:
    return "\n".join([row.replace(_UNKNOWN, " ").rstrip(" ") for row in rows]).rstrip("\n")


def _one_line(text: str) -> str:
    return _CONTROL.sub("", text.replace("\n", " ").replace(_UNKNOWN, " ")).strip()[:_TITLE]
