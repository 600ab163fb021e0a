"""The resume state: the position in the container's output, kept for the next runner.

DESIGN. The file is made whole, by rename, before there is a container; after that each thing in it
is changed by one write of a few bytes, which is in the page cache when the call returns and so
outlives a runner that is killed. Its room is taken whole, so a disk that fills up is not in the way
of those. It says:

    head    the batch that is being written: how much output came before it, the frame that it
            begins in, the one that it ends in, and its size. Set before the batch is written, and
            again when it is done.
    link    the token of the connection in the store of descriptors that this is about, whether our
            log goes on from it (else from the engine's log), and the streams whose position is
            known.
    mark    a time, how many bytes of each stream there were before it, and whether none of them
            is in the engine's log; and when the engine died, if what it left behind was not looked
            at yet. Read from there, its log and ours can be compared by counting.
    sent    the signals that were passed on, and what is to be remarked at the end.
    runs    of a log in which both streams are one: at what size a run of one stream began, and how
            much of stderr there was before. With it, any size splits into both counts. The last
            4096 are kept; of two that contradict each other the later one is right.
    request the part of the request that is needed to go on. No environment: that is a secret.
"""

from __future__ import annotations

import json
import os
import struct

from .frames import ERR, OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .frames import Frame

    Head = tuple[int, Frame, Frame, int]

_HEAD = struct.Struct("<QBIBII")
_LINK = struct.Struct("<QBB")
_SENT = struct.Struct("<QB")
_MARK = struct.Struct("<32sQQ32sB")
_RUN = struct.Struct("<QQQB")  # number, size, of stderr, stream
_HEAD_AT, _LINK_AT, _SENT_AT, _MARK_AT, _RUNS_AT = 0, 32, 48, 64, 256
_RUNS = 4096
_REQUEST_AT = _RUNS_AT + _RUNS * _RUN.size


class ResumeState:
    __slots__ = (
        "_fd",
        "_number",
        "_runs",
        "_sent",
        "died",
        "head",
        "link",
        "mark",
        "mark_is_first",
        "request",
        "remarks",
        "touched_ns",
    )

    @classmethod
    def make(cls, path: str, request: dict[str, Any]) -> None:
        text = json.dumps(request).encode()
        fd = os.open(f"{path}.new", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _REQUEST_AT + len(text))
            os.pwrite(fd, text, _REQUEST_AT)
        finally:
            os.close(fd)
        os.rename(f"{path}.new", path)

    def __init__(self, path: str) -> None:
        """FileNotFoundError if no runner came so far as to make it."""
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        found = os.fstat(self._fd)
        self.touched_ns = found.st_mtime_ns  # when output was last written
        data = os.pread(self._fd, found.st_size, 0)
        self.request: dict[str, Any] = json.loads(data[_REQUEST_AT:])
        total, *frames, size = _HEAD.unpack_from(data, _HEAD_AT)
        self.head: Head = total, (frames[0], frames[1]), (frames[2], frames[3]), size
        self.link: tuple[int, int, int] = _LINK.unpack_from(data, _LINK_AT)
        self._sent: int
        self.remarks: int
        self._sent, self.remarks = _SENT.unpack_from(data, _SENT_AT)
        when, out, err, died, is_first = _MARK.unpack_from(data, _MARK_AT)
        self.mark: tuple[str, int, int] = _text(when), out, err
        self.died = _text(died)
        self.mark_is_first = bool(is_first)
        at = range(_RUNS_AT, _REQUEST_AT, _RUN.size)
        runs = sorted(run for run in (_RUN.unpack_from(data, i) for i in at) if run[0])
        self._runs: list[tuple[int, int, int]] = []
        for _, size, err, stream in runs:
            while self._runs and self._runs[-1][0] >= size:
                self._runs.pop()
            self._runs.append((size, err, stream))
        self._number = runs[-1][0] if runs else 0

    def set_head(self, total: int, before: Frame, after: Frame, size: int = 0) -> None:
        self.head = total, before, after, size
        os.pwrite(self._fd, _HEAD.pack(total, *before, *after, size), _HEAD_AT)

    def set_link(self, token: int, live: bool, known: int) -> None:
        self.link = token, int(live), known
        os.pwrite(self._fd, _LINK.pack(*self.link), _LINK_AT)

    def set_mark(self, when: str, out: int, err: int, *, is_first: bool = False) -> None:
        """Also forgets that the engine died: what it left behind was before this."""
        self.mark, self.mark_is_first, self.died = (when, out, err), is_first, ""
        self._write_mark()

    def set_died(self, when: str) -> None:
        self.died = when
        self._write_mark()

    def _write_mark(self) -> None:
        when, out, err = self.mark
        died, is_first = self.died.encode(), self.mark_is_first
        os.pwrite(self._fd, _MARK.pack(when.encode(), out, err, died, is_first), _MARK_AT)

    def add_sent(self, number: int) -> None:
        self._sent |= 1 << number
        self._write_sent()

    def was_sent(self, number: int) -> bool:
        return bool(self._sent >> number & 1)

    def add_remark(self, bit: int) -> None:
        self.remarks |= bit
        self._write_sent()

    def _write_sent(self) -> None:
        os.pwrite(self._fd, _SENT.pack(self._sent, self.remarks), _SENT_AT)

    def add_run(self, size: int, err: int, stream: int) -> None:
        """Note where a run of one stream begins; only the next runner reads it."""
        self._number += 1
        at = _RUNS_AT + self._number % _RUNS * _RUN.size
        os.pwrite(self._fd, _RUN.pack(self._number, size, err, stream), at)

    def split(self, size: int) -> tuple[int, int, int]:
        """Split the size of a log into its stdout and stderr; and which of them was last."""
        for begin, err, stream in reversed(self._runs):
            if begin <= size:
                err += size - begin if stream == ERR else 0
                return size - err, err, stream
        return size, 0, OUT


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode()
