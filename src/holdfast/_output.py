"""A log as its readers see it: a range, the last lines, lines by number, new since an offset.

DESIGN. Readers take logs straight from the files while the keeper's pump appends to them and frees
their heads. They take no lock; two rules make every byte they return a right one:

- The pump writes the new head (`_loghead`) before it frees a byte, and readers look at the head
  *after* they have read. Bytes before its `begin` may be anything: they are dropped, and a gap is
  reported or the reading done again.
- Which file holds an offset follows from the head's `base` and `old_base`. The pump keeps the head
  from being read while it rotates, so files opened between two equal looks at the head are the ones
  it speaks of; where the looks differ they are opened again.

A removed log loses its ``.log`` before its head, so a log that is still linked has its head too.

A log is never held in memory: a reading holds what it returns and one block.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
import weakref
from dataclasses import dataclass

from ._errors import BadRequest, StoreError
from ._home import open_private
from ._loghead import LogHead, read_head

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_SCAN = 1 << 20
_FIRST_BLOCK = 16 << 10
_TRIES = 200
_LARGEST = 1 << 62
_KEPT_OPEN = 8
_HEAD_BYTES = 64  # more than any head has
_NO_HEAD = LogHead()

# A control sequence that has begun and not ended: CSI, the string kinds (which a line end ends, as
# it does where output is cleaned), and the escapes with intermediate bytes.
_ESCAPE_BYTES = 256
_UNFINISHED_ESCAPE = re.compile(
    rb"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*\x1b?|[ -/]*)\Z", re.DOTALL
)


@dataclass(slots=True, repr=False)
class Output:
    """A piece of a log.

    `start` and `end` are offsets in the log; go on reading at `end`. `gap` is the number of bytes
    that were asked for and freed before they could be read, `more` is true when another read at
    `end` would return something now, and `cut` is true when lines were left out, or one shortened,
    to stay within the bytes allowed.
    """

    data: bytes
    start: int
    end: int
    gap: int = 0
    more: bool = False
    cut: bool = False

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")

    def __repr__(self) -> str:
        shown = repr(self.data[:40]) + ("..." if len(self.data) > 40 else "")
        marks = (f" gap={self.gap}" if self.gap else "") + "".join(
            f" {name}" for name in ("more", "cut") if getattr(self, name)
        )
        return f"<Output {self.start}:{self.end} {shown}{marks}>"


class _File:
    """An open file and the offset of its first byte; closed when the last one using it lets go."""

    __slots__ = ("base", "fd")

    def __init__(self, fd: int, base: int = 0) -> None:
        self.fd = fd
        self.base = base

    def __del__(self) -> None:
        _close(self.fd)


_close = os.close


class _View:
    """The files of a log, as they stood at one moment."""

    __slots__ = ("_log", "_old", "begin", "end", "head", "path")

    def __init__(self, path: str, head: LogHead, log: _File | None, old: _File | None) -> None:
        self.path = path
        self.head = head
        self._log = log
        self._old = old
        end = head.base if log is None else log.base + os.fstat(log.fd).st_size
        self.begin = head.begin
        if head.begin < head.base:
            held = 0 if old is None else os.fstat(old.fd).st_size
            if held < head.base - head.old_base:
                self.begin = head.base  # not all of it is there, as a power cut can leave it
        self.end = max(end, self.begin)

    def settled(self, now: LogHead, start: int) -> bool:
        """True when, by the head as it is `now`, what was read from `start` on was still there.

        A rotation since the files were opened changes nothing in them. A removed log has no head.
        """
        file = self._log or self._old
        return now.begin <= start and (file is None or os.fstat(file.fd).st_nlink > 0)

    def read(self, start: int, limit: int) -> bytes:
        """Up to `limit` bytes; fewer only where the log has no more."""
        limit = min(limit, self.end - start)
        parts: list[bytes] = []
        while limit > 0:
            base = self.head.base
            file, room = (self._log, limit) if start >= base else (self._old, base - start)
            if file is None:
                break
            try:
                part = os.pread(file.fd, min(limit, room), start - file.base)
            except OSError as error:
                raise _refusal(error, self.path) from error
            if not part:
                break
            parts.append(part)
            start += len(part)
            limit -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def backwards(self, low: int) -> Iterator[tuple[int, bytes]]:
        """Blocks with their offsets from the end down to `low`, small ones first."""
        stop, size = self.end, _FIRST_BLOCK
        while stop > low:
            start = max(low, stop - size)
            yield start, self.read(start, stop - start)
            stop, size = start, min(size * 4, _SCAN)


class Log:
    """The log of one process: `path` and the head beside it. A log without files is empty.

    Reading at an offset keeps the file open for the next time (few of them in one program), which
    takes most of the cost out of following a log. Threads may share a `Log`.
    """

    __slots__ = ("__weakref__", "_kept", "_seen", "head_path", "path")

    def __init__(self, path: str, head_path: str) -> None:
        self.path = path
        self.head_path = head_path
        self._kept: _File | None = None
        # The head file, the bytes it last had, and what they say.
        self._seen: tuple[_File, bytes, LogHead] | None = None

    def __repr__(self) -> str:
        return f"Log({self.path!r})"

    def close(self) -> None:
        """Let go of the files; reading goes on to work and opens them again."""
        self._kept = self._seen = None

    # -- what can be asked ---------------------------------------------------------------------

    def begin(self) -> int:
        """The first offset that can still be read."""
        return self._head().begin

    def size(self) -> int:
        """The offset after the last byte."""
        return self._view().end

    def read(self, offset: int, limit: int, *, whole_characters: bool = False) -> Output:
        """Up to `limit` bytes from `offset` on.

        With `whole_characters` the data does not end inside a UTF-8 character or a control sequence
        that the process may still finish; the bytes of such a beginning are left for the next read.
        When the process has ended, read the last of it without.
        """
        if offset < 0 or limit < 0 or offset > _LARGEST:
            raise BadRequest(f"no log has {limit} bytes at {offset}; both count from 0")
        output = self._read_kept(offset, limit)
        if output is None:
            output = self._read_anew(offset, limit)
        if whole_characters and output.data:
            data = output.data
            keep = _whole(data, waiting=len(data) < limit and not output.more)
            if keep < len(data):
                output.data = data[:keep]
                output.end = output.start + keep
        return output

    def tail_bytes(self, n: int) -> Output:
        """The last `n` bytes, or all that is kept."""
        _check_count(n)
        for view in self._views():
            start = max(view.begin, view.end - n)
            data = view.read(start, n)
            if self._settled(view, start):
                return Output(data, start, start + len(data))
        raise self._too_fast()

    def tail_lines(self, n: int, max_bytes: int = 1 << 20) -> Output:
        """The last `n` lines; a last one without a line end counts.

        Of more than `max_bytes` only whole lines at the end are returned; a last line that is
        longer than that loses its front.
        """
        _check_count(n)
        _check_count(max_bytes)
        for view in self._views():
            end = view.end
            if n == 0 or max_bytes == 0:
                return Output(b"", end, end, cut=n > 0 and end > view.begin)
            # One byte more than allowed, to see whether what is allowed begins a line.
            low = max(view.begin, end - max_bytes - 1)
            blocks: list[bytes] = []
            start, left = end, n
            found = -1
            for start, block in view.backwards(low):
                blocks.append(block)
                # The very last byte ends the last line or belongs to it; no line begins after it.
                stop = len(block) - (start + len(block) == end)
                count = block.count(b"\n", 0, stop)
                if count >= left:
                    found = start + _after_newlines(block, count - left + 1)
                    break
                left -= count
            blocks.reverse()
            data = b"".join(blocks)
            lowest, cut = start, False
            if found >= 0:
                start = found
            elif end - start > max_bytes:
                cut = True
                newline = data.find(b"\n", 0, len(data) - 1)
                start += newline + 1 if newline >= 0 else 1 + _continued(data, 1)
            if len(data) == end - lowest and self._settled(view, start):
                return Output(data[start - lowest :], start, end, cut=cut)
        raise self._too_fast()

    def lines(self, first: int, count: int, max_bytes: int = 1 << 20) -> Output:
        """`count` lines from number `first` on, counted from 0 at the beginning of what is kept.

        Of more than `max_bytes` only whole lines at the front are returned; a first line that is
        longer than that loses its end.
        """
        _check_count(first)
        _check_count(count)
        _check_count(max_bytes)
        for view in self._views():
            start = self._line_offset(view, first)
            if start is None:
                continue
            parts: list[bytes] = []
            stop, left, room = start, count, max_bytes
            size = _FIRST_BLOCK
            while left > 0 and room > 0:
                part = view.read(stop, min(size, room))
                if not part:
                    break
                if (found := part.count(b"\n")) >= left:
                    part = part[: _after_newlines(part, left)]
                left -= min(found, left)
                room -= len(part)
                stop += len(part)
                parts.append(part)
                size = min(size * 4, _SCAN)
            if not self._settled(view, start):
                continue
            data = b"".join(parts)
            cut = left > 0 and room == 0 and stop < view.end
            if cut:
                data = data[: data.rfind(b"\n") + 1 or len(data) - _unfinished_character(data)]
            stop = start + len(data)
            return Output(data, start, stop, more=stop < view.end, cut=cut)
        raise self._too_fast()

    # -- reading -------------------------------------------------------------------------------

    def _read_kept(self, offset: int, limit: int) -> Output | None:
        """Read from the file kept open; None when there is none or the log changed its shape."""
        kept = self._kept
        if kept is None or offset < kept.base or limit > _SCAN:
            return None
        try:
            data = os.pread(kept.fd, limit, offset - kept.base)
            head = self._head_again()
            info = os.fstat(kept.fd)
        except OSError as error:
            raise _refusal(error, self.path) from error
        if head is None or head.base != kept.base or head.begin > offset or info.st_nlink == 0:
            return None
        end = offset + len(data)
        return Output(data, offset, end, 0, kept.base + info.st_size > end)

    def _read_anew(self, offset: int, limit: int) -> Output:
        start = offset
        for view in self._views(keep=True):
            start = max(offset, view.begin)
            data = view.read(start, limit)
            stop = start + len(data)
            now = self._head()
            if start < now.begin < stop and view.settled(now, now.begin):
                data = data[now.begin - start :]
                start = now.begin
            elif not view.settled(now, start):
                continue
            return Output(data, start, stop, start - offset, view.end > stop)
        return Output(b"", start, start, start - offset, True)

    def _line_offset(self, view: _View, first: int) -> int | None:
        """Where line `first` begins, or the end; None when it was freed while we counted."""
        offset, size = view.begin, _FIRST_BLOCK
        while first > 0 and offset < view.end:
            block = view.read(offset, size)
            if not self._settled(view, offset):
                return None
            if not block:
                return view.end
            found = block.count(b"\n")
            if found >= first:
                return offset + _after_newlines(block, first)
            first -= found
            offset += len(block)
            size = min(size * 4, _SCAN)
        return offset

    # -- files ---------------------------------------------------------------------------------

    def _views(self, keep: bool = False) -> Iterator[_View]:
        """The log as it is now, again and again: what was read from one may have been freed."""
        for _ in range(_TRIES):
            yield self._view(keep)

    def _view(self, keep: bool = False) -> _View:
        for _ in range(_TRIES):
            head = self._head()
            log = self._open(self.path, head.base)
            old = None
            if head.base > head.old_base:
                old = self._open(self.path + ".old", head.old_base)
            now = self._head()
            if now.base != head.base or now.old_base != head.old_base:
                continue
            if keep and log is not None:
                self._keep(log)
            return _View(self.path, head, log, old)
        raise self._too_fast()

    def _settled(self, view: _View, start: int) -> bool:
        return view.settled(self._head(), start)

    def _head(self) -> LogHead:
        try:
            return read_head(self.head_path)
        except OSError as error:
            raise _refusal(error, self.path) from error

    def _head_again(self) -> LogHead | None:
        """The head if it is as it was last seen, at a fraction of the cost; else None."""
        if (seen := self._seen) is None:
            there = os.access(self.head_path, os.F_OK, follow_symlinks=False)
            return None if there else _NO_HEAD
        file, data, head = seen
        return head if os.pread(file.fd, _HEAD_BYTES, 0) == data else None

    def _keep(self, log: _File) -> None:
        self._kept = log
        self._seen = None
        if (file := self._open(self.head_path, 0)) is not None:
            # In this order: while the file has these bytes, the head is the newest there is.
            try:
                data = os.pread(file.fd, _HEAD_BYTES, 0)
            except OSError as error:
                raise _refusal(error, self.head_path) from error
            self._seen = file, data, self._head()
        # An open file that was removed keeps its room on the disk, so only a few are kept.
        _keeping[:] = [ref for ref in _keeping if ref() not in (None, self)]
        _keeping.append(weakref.ref(self))
        while len(_keeping) > _KEPT_OPEN:
            if (oldest := _keeping.pop(0)()) is not None:
                oldest.close()

    def _open(self, path: str, base: int) -> _File | None:
        try:
            # O_NONBLOCK: a FIFO in the place of a log is refused below, not waited for.
            file = _File(open_private(path, os.O_RDONLY | os.O_NONBLOCK), base)
            if stat.S_ISREG(os.fstat(file.fd).st_mode):
                return file
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refusal(error, self.path) from error
        raise StoreError(f"{path} is not a regular file and so no log; remove it")

    def _too_fast(self) -> StoreError:
        return StoreError(f"the log {self.path} is freed faster than it can be read; try again")


_keeping: list[weakref.ref[Log]] = []


def _refusal(error: OSError, path: str) -> StoreError:
    path = error.filename or path
    if error.errno == errno.ELOOP:
        return StoreError(f"{path} is a symlink, which is never followed; remove it")
    return StoreError(f"cannot read the log {path}: {error.strerror}; check its permissions")


def _check_count(n: int) -> None:
    if n < 0:
        raise BadRequest(f"a count must not be negative, as {n} is")


def _after_newlines(data: bytes, n: int) -> int:
    """The index after the `n`-th newline of `data`, which has that many."""
    low, high = 0, len(data)
    while high - low > 4096:
        middle = (low + high) // 2
        before = data.count(b"\n", low, middle)
        if before >= n:
            high = middle
        else:
            n -= before
            low = middle
    for _ in range(n):
        low = data.index(b"\n", low) + 1
    return low


def _whole(data: bytes, *, waiting: bool) -> int:
    """How many bytes of `data` to return so that it does not end inside something.

    Nothing at all only while `waiting` for the process to write more.
    """
    characters = len(data) - _unfinished_character(data)
    keep = characters
    window = max(0, characters - _ESCAPE_BYTES)
    if data.find(b"\x1b", window, characters) >= 0 and (
        match := _UNFINISHED_ESCAPE.search(data, window, characters)
    ):
        keep = match.start()
    return keep if keep or waiting else characters or len(data)


def _unfinished_character(data: bytes) -> int:
    """How many bytes at the end are the beginning of a UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            _, used = codecs.utf_8_decode(data[-back:], "replace", False)
            return 0 if used else back
    return 0


def _continued(data: bytes, start: int) -> int:
    """How many bytes at `start` are the end of a UTF-8 character cut in two."""
    for more in range(min(4, len(data) - start)):
        if data[start + more] & 0xC0 != 0x80:
            return more
    return 0
