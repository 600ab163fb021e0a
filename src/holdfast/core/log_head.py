"""The head of a log: the few bytes that the keeper's pump writes and every reader checks.

A log's offsets count from the first byte its process ever wrote and stay valid for good, and so do
the numbers of its lines. When the head of a log is freed (its cap was reached, or it was cleared)
the pump first writes here where the log now begins, and frees the bytes after that. So a reader
that reads bytes and *then* looks at the head knows whether what it read was still there: bytes
before `begin` are gone, whatever the file showed.

    begin       the first offset that can still be read
    base        the offset of the first byte of ``.log``
    old_base    the offset of the first byte of ``.log.old``, which holds [old_base, base)
    lines       how many line ends there are before `begin`, or None where nobody counted them
    line_start  where the line that `begin` is in begins, or began: bytes of it may be gone

`base` and `old_base` are 0 except on file systems that cannot punch holes, where the pump rotates.

The first three have a checksum of their own, and are all that versions before line numbers know:
they read heads of this one, and where such a pump has written over one, the second checksum, which
is of all five, says that `lines` no longer belongs to `begin`.
"""

from __future__ import annotations

import binascii
import os
import struct
import time

from .errors import StoreError
from .home import open_private

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PLACE = struct.Struct("<QQQ")
_LINES = struct.Struct("<QQ")
_FIRST = _PLACE.size + 4
_SIZE = _FIRST + _LINES.size + 4
_UNCOUNTED = (1 << 64) - 1
_TRIES = 200
_TRIES_FOR_ROTATION = 3000
_TRIES_FOR_LINES = 5


class Tally:
    """The line ends counted up to an offset, and where the line begins that it is in."""

    __slots__ = ("offset", "lines", "line_start")

    def __init__(self, offset: int, lines: int, line_start: int) -> None:
        self.offset, self.lines, self.line_start = offset, lines, line_start

    def __repr__(self) -> str:
        return f"Tally({self.offset}, lines={self.lines}, line_start={self.line_start})"

    @classmethod
    def of(cls, value: object) -> Tally | None:
        """From what was sent over a wire, if that makes sense."""
        match value:
            case [int(offset), int(lines), int(line_start)] if 0 <= line_start <= offset:
                return cls(offset, max(lines, 0), line_start)
        return None

    def to_json(self) -> list[int]:
        return [self.offset, self.lines, self.line_start]

    def after(self, data: bytes) -> Tally:
        """The same with the bytes that follow."""
        end = self.offset + len(data)
        if b"\n" not in data:  # many times as fast as counting none
            return Tally(end, self.lines, self.line_start)
        return Tally(end, self.lines + data.count(b"\n"), self.offset + data.rfind(b"\n") + 1)


class LogHead:
    __slots__ = ("begin", "base", "old_base", "lines", "line_start")

    def __init__(
        self,
        begin: int = 0,
        base: int = 0,
        old_base: int = 0,
        lines: int | None = None,
        line_start: int | None = None,
    ) -> None:
        self.begin, self.base, self.old_base = begin, base, old_base
        self.lines = 0 if begin == 0 else lines
        self.line_start = begin if line_start is None or self.lines is None else line_start

    @property
    def tally(self) -> Tally:
        """The lines up to `begin`; where nobody counted them, the first that is kept is line 0."""
        return Tally(self.begin, self.lines or 0, self.line_start)

    def freed(self, tally: Tally) -> LogHead:
        """The head once everything before `tally` is freed."""
        return LogHead(tally.offset, self.base, self.old_base, tally.lines, tally.line_start)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogHead) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def _key(self) -> tuple[int, int, int, int | None, int]:
        return self.begin, self.base, self.old_base, self.lines, self.line_start

    def __repr__(self) -> str:
        return (
            f"LogHead(begin={self.begin}, base={self.base}, old_base={self.old_base}, "
            f"lines={self.lines}, line_start={self.line_start})"
        )


def read_head(path: str) -> LogHead:
    """The head of a log; one that was never freed has none, and begins at 0."""
    patience = _TRIES
    attempt = -1
    while (attempt := attempt + 1) < patience:
        data = _bytes_of(path)
        if not data:
            return LogHead()  # none, or made but never written: nothing is freed before that
        place, checksum = data[: _PLACE.size], data[_PLACE.size : _FIRST]
        if checksum == _checksum(place):
            if data[_SIZE - 4 :] == _checksum(_counted(data)):
                return _unpacked(data)
            if len(data) <= _FIRST or attempt >= _TRIES_FOR_LINES:
                return LogHead(*_PLACE.unpack(place))
        elif checksum == _spoiled(place):
            patience = _TRIES_FOR_ROTATION  # which may wait for a disk and for its turn
        time.sleep(0.001)  # caught in the middle of a write, which takes microseconds
    raise StoreError(f"{path} is damaged; `holdfast keeper restart` may mend it")


def write_head(path: str, head: LogHead) -> None:
    _write(path, head, _checksum)


def spoil_head(path: str, head: LogHead) -> None:
    """Make readers wait: the head stays where it is, with checksums that are wrong."""
    _write(path, head, _spoiled)


def broken_head(path: str) -> LogHead | None:
    """The head that `spoil_head` left behind, or None if it is whole or missing."""
    data = _bytes_of(path)
    place, checksum = data[: _PLACE.size], data[_PLACE.size : _FIRST]
    if checksum != _spoiled(place):
        return None
    if data[_SIZE - 4 :] == _spoiled(_counted(data)):
        return _unpacked(data)
    return LogHead(*_PLACE.unpack(place))


def _bytes_of(path: str) -> bytes:
    try:
        fd = open_private(path, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, _SIZE, 0)
    finally:
        os.close(fd)


def _write(path: str, head: LogHead, checksum: Callable[[bytes], bytes]) -> None:
    body = _PLACE.pack(head.begin, head.base, head.old_base)
    body += checksum(body)
    body += _LINES.pack(_UNCOUNTED if head.lines is None else head.lines, head.line_start)
    body += checksum(_counted(body))
    fd = open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(fd, body, 0)
    finally:
        os.close(fd)


def _unpacked(data: bytes) -> LogHead:
    begin, base, old_base = _PLACE.unpack_from(data)
    lines, line_start = _LINES.unpack_from(data, _FIRST)
    return LogHead(begin, base, old_base, None if lines == _UNCOUNTED else lines, line_start)


def _counted(data: bytes) -> bytes:
    """The bytes of the second checksum: without the first, after which a CRC is always the same."""
    return data[: _PLACE.size] + data[_FIRST : _SIZE - 4]


def _spoiled(body: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in _checksum(body))


def _checksum(body: bytes) -> bytes:
    return binascii.crc32(body).to_bytes(4, "little")
