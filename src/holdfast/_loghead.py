"""Where a log begins: the few bytes that the keeper's pump writes and every reader checks.

A log's offsets count from the first byte its process ever wrote and stay valid for good. When the
head of a log is freed (its cap was reached, or it was cleared) the pump first writes here where the
log now begins, and frees the bytes after that. So a reader that reads bytes and *then* looks at the
head knows whether what it read was still there: bytes before `begin` are gone, whatever the file
showed.

    begin     the first offset that can still be read
    base      the offset of the first byte of ``.log``
    old_base  the offset of the first byte of ``.log.old``, which holds [old_base, base)

`base` and `old_base` are 0 except on file systems that cannot punch holes, where the pump rotates.
"""

from __future__ import annotations

import binascii
import os
import struct
import time

from ._errors import StoreError
from ._home import open_private

_FORMAT = struct.Struct("<QQQ")
_SIZE = _FORMAT.size + 4


class LogHead:
    __slots__ = ("begin", "base", "old_base")

    def __init__(self, begin: int = 0, base: int = 0, old_base: int = 0) -> None:
        self.begin, self.base, self.old_base = begin, base, old_base

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogHead) and self._key() == other._key()

    __hash__ = None  # type: ignore[assignment]

    def _key(self) -> tuple[int, int, int]:
        return self.begin, self.base, self.old_base

    def __repr__(self) -> str:
        return f"LogHead(begin={self.begin}, base={self.base}, old_base={self.old_base})"


def read_head(path: str) -> LogHead:
    """The head of a log; one that was never freed has none, and begins at 0."""
    for _ in range(200):
        try:
            fd = open_private(path, os.O_RDONLY)
        except FileNotFoundError:
            return LogHead()
        try:
            data = os.pread(fd, _SIZE, 0)
        finally:
            os.close(fd)
        if not data:
            return LogHead()  # made but never written, and nothing is freed before that
        body = data[: _FORMAT.size]
        if len(data) == _SIZE and data[_FORMAT.size :] == _checksum(body):
            return LogHead(*_FORMAT.unpack(body))
        time.sleep(0.001)  # caught in the middle of a write, which takes microseconds
    raise StoreError(f"{path} is damaged; `holdfast keeper restart` may mend it")


def write_head(path: str, head: LogHead) -> None:
    body = _FORMAT.pack(head.begin, head.base, head.old_base)
    fd = open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(fd, body + _checksum(body), 0)
    finally:
        os.close(fd)


def spoil_head(path: str, head: LogHead) -> None:
    """Make readers wait: the head stays where it is, with a checksum that is wrong."""
    body = _FORMAT.pack(head.begin, head.base, head.old_base)
    fd = open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(fd, body + _spoiled(body), 0)
    finally:
        os.close(fd)


def broken_head(path: str) -> LogHead | None:
    """The head that `spoil_head` left behind, or None if it is whole or missing."""
    try:
        fd = open_private(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        data = os.pread(fd, _SIZE, 0)
    finally:
        os.close(fd)
    body = data[: _FORMAT.size]
    if len(data) == _SIZE and data[_FORMAT.size :] == _spoiled(body):
        return LogHead(*_FORMAT.unpack(body))
    return None


def _spoiled(body: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in _checksum(body))


def _checksum(body: bytes) -> bytes:
    return binascii.crc32(body).to_bytes(4, "little")
