"""Terminals, as the kernel keeps them: sizes, modes, and lines that are too long for them."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINE = 4000  # a terminal in canonical mode drops what exceeds 4095 bytes of one line
_IFLAG, _LFLAG, _CC = 0, 3, 6
_IUTF8 = 0o40000


def open_terminal(path: str) -> int:
    """Open a terminal by its path, without its becoming ours or waiting for anything."""
    return os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)


def get_size(fd: int) -> tuple[int, int]:
    """Columns and rows."""
    rows, columns = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))[:2]
    return columns, rows


def set_size(fd: int, columns: int, rows: int) -> None:
    """Change the size; the foreground program gets SIGWINCH if it is another one."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _modes(fd: int) -> list[Any]:
    try:
        return termios.tcgetattr(fd)
    except termios.error as error:  # which is no OSError, but is one
        raise OSError(*error.args) from None


def set_utf8(fd: int) -> None:
    """Have the kernel erase whole characters, not bytes, where it edits lines."""
    modes = _modes(fd)
    modes[_IFLAG] |= _IUTF8
    termios.tcsetattr(fd, termios.TCSANOW, modes)


def end_of_input(fd: int) -> bytes:
    """The character that means end of file to whoever reads lines from this terminal."""
    return _special(_modes(fd), termios.VEOF) or b"\x04"


def _special(modes: list[Any], which: int) -> bytes:
    character: bytes = modes[_CC][which]
    return b"" if character in (b"\0", b"\xff") else character


def typed(fd: int, data: bytes, eof: bool, before: int = 0) -> tuple[bytes, list[int], int]:
    """`data` as it can be typed into this terminal, and where something was put into it.

    In canonical mode the kernel gathers a line and silently drops what exceeds its buffer. The
    end-of-file character in the middle of a line hands over what was gathered so far, so a long
    line is typed in pieces with one after each: the reader sees just the line. `before` is how much
    of an unfinished line was typed earlier; how much of one is left now is the third of the answer.
    """
    modes = _modes(fd)
    end = _special(modes, termios.VEOF) or b"\x04"
    lines = bool(modes[_LFLAG] & termios.ICANON)
    out, pending = data, before if lines else 0
    inserted: list[int] = []
    if lines and (pending + len(data) > LINE or eof or pending or not data.endswith(b"\n")):
        out, inserted, pending = _in_pieces(modes, data, end, pending)
    if eof:
        # After an unfinished line the first one only hands it over; at the beginning of a line it
        # is the end.
        ends = end * 2 if lines and pending else end
        inserted += range(len(out) + 1, len(out) + len(ends) + 1)
        out += ends
        pending = 0
    return out, inserted, pending


def typed_unseen(data: bytes, eof: bool) -> tuple[bytes, list[int], int]:
    """The same for a terminal that nobody can ask; it is likely to take whole lines."""
    if not eof:
        return data, [], 0
    ends = b"\x04" if data.endswith(b"\n") or not data else b"\x04\x04"
    return data + ends, list(range(len(data) + 1, len(data) + len(ends) + 1)), 0


def _in_pieces(
    modes: list[Any], data: bytes, end: bytes, pending: int
) -> tuple[bytes, list[int], int]:
    literal = _special(modes, termios.VLNEXT)
    out = bytearray()
    inserted: list[int] = []
    for line in re.findall(_line_pattern(modes), data):
        while pending + len(line) > LINE:
            cut = max(1, LINE - pending)
            if cut > 1 and literal and line[cut - 1 : cut] == literal:
                cut -= 1  # what follows it is taken as it is
            if cut >= len(line):
                break
            out += line[:cut] + end
            inserted.append(len(out))
            line = line[cut:]
            pending = 0
        out += line
        pending = 0 if _ends(modes, line) else pending + len(line)
    return bytes(out), inserted, pending


def _enders(modes: list[Any]) -> bytes:
    """The byte that ends a line as the terminal is set now."""
    found = b"\n" + _special(modes, termios.VEOF) + _special(modes, termios.VEOL)
    if modes[_IFLAG] & termios.ICRNL and not modes[_IFLAG] & termios.IGNCR:
        found += b"\r"
    return found


def _ends(modes: list[Any], line: bytes) -> bool:
    return line[-1:] in [bytes([number]) for number in _enders(modes)]


def _line_pattern(modes: list[Any]) -> bytes:
    enders = re.escape(_enders(modes))
    return b"[^" + enders + b"]*[" + enders + b"]|[^" + enders + b"]+"


def taken(written: int, inserted: list[int]) -> int:
    """The bytes of what was asked for among the first `written` ones of what was typed."""
    return written - sum(place <= written for place in inserted)
