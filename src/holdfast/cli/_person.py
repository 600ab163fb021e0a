"""The terminal of the person who runs us: taken over while they are attached, given back as it was.

DESIGN. What is shown changes its modes, and there is no way to ask how they were. So each mode a
program is likely to change is set to what a shell expects, whether it was changed or not, except
where that could spoil something: colours and keyboard protocols are only reset if they were seen to
be set, the alternate screen is only left if we are in it, and the cursor stays where it is.
"""

from __future__ import annotations

import re
import termios
import tty

from holdfast._tty import get_size

from ._streams import write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SWITCH = re.compile(rb"\x1b\[\?(?:[0-9;]*;)?(?:47|1047|1049)(?:;[0-9;]*)?([hl])|\x1bc")
_KEYBOARD = re.compile(rb"\x1b\[[>=][0-9;]*u")
_COLOURS = re.compile(rb"\x1b\](?:4|5|1[0-9]);")
_ORIGIN = re.compile(rb"\x1b\[\?(?:[0-9;]*;)?6(?:;[0-9;]*)?h")

LEAVE_ALTERNATE = b"\x1b[?1049l"
_FORGET_KEYBOARD = b"\x1b[<99u"
_FORGET_COLOURS = b"".join(b"\x1b]%d\x1b\\" % n for n in (104, 110, 111, 112, 117, 119))
_PUT_TITLE_AWAY, _FETCH_TITLE = b"\x1b[22;0t", b"\x1b[23;0t"


def _off(*modes: int) -> bytes:
    return b"".join(b"\x1b[?%dl" % mode for mode in modes)


PLAIN = (
    b"\x18"  # whatever sequence was left unfinished
    + _off(2026)  # held back output
    + _off(9, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016)  # mouse and focus
    + _off(2004, 2031, 2048)  # paste, reports
    + _off(1, 66)  # cursor keys and keypad
    + b"\x1b>"
    + _off(5, 45, 69)  # reverse video, wrapping backwards, margins
    + b"\x1b[4l\x1b[20l\x1b[>4m"  # insert, newline, modified keys
    + b"\x1b7\x1b[r\x1b8"  # a scroll region; without moving the cursor
    + b"\x1b[?7h\x1b[?25h\x1b[0 q"  # wrap, cursor seen, in its own shape
    + b"\x1b]8;;\x1b\\\x1b(B\x1b)B\x0f\x1b[m"  # link, character sets, colours
)


class Person:
    """A terminal on our stdin and stdout."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self._keyboard = self._colours = self._origin = False
        self.alternate = False
        self.line_start = True  # where the cursor is, as far as we know, ...
        self._line_start_before = True  # ... and where it was when the alternate screen came

    def size(self) -> tuple[int, int] | None:
        """Columns and rows; None from a terminal that does not know."""
        try:
            columns, rows = get_size(1)
        except OSError:
            return None
        return (columns, rows) if columns > 1 and rows > 0 else None

    def take(self, again: bool = False) -> None:
        """Have every key as it is pressed, and show every byte as it is."""
        if self._before is None:
            self._before = termios.tcgetattr(0)
            write(1, _PUT_TITLE_AWAY)
        elif not again:
            return
        tty.setraw(0, termios.TCSADRAIN)

    def show(self, data: bytes) -> None:
        """Output of the program."""
        if data:
            self.command(data, text=True)
            self.line_start = data.endswith(b"\n")

    def command(self, data: bytes, text: bool = False) -> None:
        """Something of our own, that leaves the cursor in its line."""
        if b"\x1b" in data:
            for switch in _SWITCH.finditer(data):
                if switch[1] == b"h" and not self.alternate:
                    said = text and switch.start() > 0
                    before = data[: switch.start()].endswith(b"\n") if said else self.line_start
                    self._line_start_before = before
                self.alternate = switch[1] == b"h"
            self._keyboard = self._keyboard or _KEYBOARD.search(data) is not None
            self._colours = self._colours or _COLOURS.search(data) is not None
            self._origin = self._origin or _ORIGIN.search(data) is not None
        write(1, data)

    def plain(self) -> bytes:
        """What undoes the modes, on the screen that is shown."""
        keyboard = _FORGET_KEYBOARD if self._keyboard else b""
        # This one moves the cursor, so only where it has to be.
        return PLAIN + keyboard + (_off(6) if self._origin else b"")

    def give_back(self) -> None:
        """Put everything back; a terminal that is gone needs nothing."""
        before, self._before = self._before, None
        if before is None:
            return
        parts = [self.plain()]
        if self.alternate:
            parts += [LEAVE_ALTERNATE, _FORGET_KEYBOARD if self._keyboard else b""]
        if self._colours:
            parts.append(_FORGET_COLOURS)
        parts.append(_FETCH_TITLE)
        if self.alternate:
            parts.append(b"" if self._line_start_before else b"\r\n")
        else:
            parts.append((b"" if self.line_start else b"\r\n") + b"\x1b[J")
        try:
            write(1, b"".join(parts))
            termios.tcsetattr(0, termios.TCSAFLUSH, before)
        except (OSError, termios.error):
            pass
        self._keyboard = self._colours = self._origin = self.alternate = False
