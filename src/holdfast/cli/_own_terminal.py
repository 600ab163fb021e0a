"""The terminal of the person who runs us: taken over while they are attached, given back as it was.

DESIGN. What is shown changes its modes, and there is no way to ask how they were. So each mode a
program is likely to change is set to what a shell expects, whether it was changed or not, except
where that could spoil something: colours and keyboard protocols are only reset if they were seen to
be set, the alternate screen is only left if we are in it, and the cursor stays where it is.
"""

from __future__ import annotations

import errno
import re
import termios
import tty

from holdfast.core.quote import DIRECTIONS
from holdfast.linux.tty import get_size

from ..terminal.escape_filter import EscapeFilter
from ._streams import tell_gap, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from holdfast.output.log import Output

    Modes = list[Any]

_SWITCH = re.compile(rb"\x1b\[\?(?:[0-9;]*;)?(?:47|1047|1049)(?:;[0-9;]*)?([hl])|\x1bc")
_KEYBOARD = re.compile(rb"\x1b\[[>=][0-9;]*u")
_COLOURS = re.compile(rb"\x1b\](?:4|5|1[0-9]);")
# Titles, directories, marks of shells, which would stay; and what turns the direction of writing.
_NOT_LOGGED = re.compile(
    r"\x1b\](?:[0127]|133|633)(?:;[^\x07\x1b]*)?(?:\x07|\x1b\\)|\x1b\[2[23](?:;[0-9]*)*t"
    rf"|[{DIRECTIONS}]"
)
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


def foreground_modes() -> Modes:
    """The terminal's modes, once we are in its foreground.

    Setting them, even to what they are, stops us in the background. What stood there then was the
    shell's; with a handler for SIGCONT that is not set after all, and we ask again.
    """
    while True:
        modes = termios.tcgetattr(0)
        if _done(termios.tcsetattr, 0, termios.TCSADRAIN, modes):
            return modes


def set_modes(modes: Modes, when: int = termios.TCSADRAIN) -> None:
    while not _done(termios.tcsetattr, 0, when, modes):
        pass


def set_raw() -> None:
    while not _done(tty.setraw, 0, termios.TCSADRAIN):
        pass


def _done(change: Callable[..., object], *arguments: object) -> bool:
    """True if the terminal was changed: not if a signal came first, such as that of `fg`."""
    try:
        change(*arguments)
    except termios.error as error:
        if error.args[0] == errno.EINTR:
            return False
        raise OSError(*error.args) from None
    return True


def restore(modes: Modes, undo: bytes) -> None:
    """Have a terminal as it was; one that is gone needs nothing."""
    try:
        write(1, undo)
        set_modes(modes, termios.TCSAFLUSH)
    except OSError:
        pass


def show_all(outputs: Iterable[Output]) -> None:
    """Output of a terminal, on another one: it asks nothing of that, and leaves it as it was."""
    import codecs

    person, escape_filter = Person(), EscapeFilter()
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    try:
        for output in outputs:
            tell_gap(output)
            text = _NOT_LOGGED.sub("", decoder.decode(escape_filter.feed(output.data)))
            person.show(text.encode("utf-8", "surrogateescape"))
        person.show(decoder.decode(b"", True).encode("utf-8", "surrogateescape"))
    finally:
        write(1, person.undo())


class Person:
    """A terminal on our stdin and stdout."""

    def __init__(self) -> None:
        self._before: Modes | None = None
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
            self._before = foreground_modes()
            write(1, _PUT_TITLE_AWAY)
        elif not again:
            return
        set_raw()

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
        """The sequences that undo the modes, on the screen that is shown."""
        keyboard = _FORGET_KEYBOARD if self._keyboard else b""
        # This one moves the cursor, so only where it has to be.
        return PLAIN + keyboard + (_off(6) if self._origin else b"")

    def undo(self) -> bytes:
        """The sequences that undo everything, and leave the alternate screen."""
        parts = [self.plain()]
        if self.alternate:
            parts += [LEAVE_ALTERNATE, _FORGET_KEYBOARD if self._keyboard else b""]
        if self._colours:
            parts.append(_FORGET_COLOURS)
        return b"".join(parts)

    def give_back(self) -> None:
        """Put everything back."""
        before, self._before = self._before, None
        if before is None:
            return
        undo = self.undo() + _FETCH_TITLE
        if self.alternate:
            undo += b"" if self._line_start_before else b"\r\n"
        else:
            undo += (b"" if self.line_start else b"\r\n") + b"\x1b[J"
        restore(before, undo)
        self._keyboard = self._colours = self._origin = self.alternate = False
