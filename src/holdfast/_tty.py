"""Terminals, as the kernel keeps them: sizes, modes, and lines that are too long for them."""

from __future__ import annotations

import fcntl
import os
import struct
import termios

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


def set_utf8(fd: int) -> None:
    """Have the kernel erase whole characters, not bytes, where it edits lines."""
    modes = termios.tcgetattr(fd)
    modes[_IFLAG] |= _IUTF8
    termios.tcsetattr(fd, termios.TCSANOW, modes)


def end_of_input(fd: int) -> bytes:
    """The character that means end of file to whoever reads lines from this terminal."""
    character: bytes = termios.tcgetattr(fd)[_CC][termios.VEOF]
    return b"\x04" if character in (b"\0", b"\xff") else character


def typed(fd: int, data: bytes, eof: bool) -> tuple[bytes, list[int]]:
    """`data` as it can be typed into this terminal, and where something was put into it.

    In canonical mode the kernel gathers a line and silently drops what exceeds its buffer. The
    end-of-file character in the middle of a line hands over what was gathered so far, so a long
    line is typed in pieces with one after each: the reader sees just the line.
    """
    end = end_of_input(fd)
    inserted: list[int] = []
    if len(data) > LINE and termios.tcgetattr(fd)[_LFLAG] & termios.ICANON:
        out = bytearray()
        for line in data.splitlines(keepends=True):
            while len(line) > LINE:
                out += line[:LINE] + end
                inserted.append(len(out))
                line = line[LINE:]
            out += line
        data = bytes(out)
    if eof:
        # After an unfinished line the first one only hands it over; at the beginning of a line it
        # is the end.
        ends = end if not data or data[-1:] in b"\r\n" else end * 2
        inserted += range(len(data) + 1, len(data) + len(ends) + 1)
        data += ends
    return data, inserted


def taken(written: int, inserted: list[int]) -> int:
    """How much of what was asked for is in the first `written` bytes of what was typed."""
    return written - sum(place <= written for place in inserted)
