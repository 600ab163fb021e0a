"""A log as its readers see it: a range, the last lines, lines by number, new since an offset.

DESIGN. Readers take logs straight from the files while the keeper's pump appends to them and frees
their heads. They take no lock; these rules make every byte they return a right one:

- The pump writes the new head (`core.log_head`) before it frees a byte, and readers look at the
  head *after* they have read. Bytes before its `begin` may be anything: they are dropped, and a gap
  is reported or the reading done again.
- Which file holds an offset follows from the head's `base` and `old_base`. The pump keeps the head
  from being read while it rotates, so files opened between two equal looks at the head are the ones
  it speaks of; where the looks differ they are opened again.

- The head says in the same write how many lines there are before its `begin`, so a line that is
  counted from there has the number it has had since it was written. What was counted of bytes that
  were freed meanwhile is not believed.

A removed log loses its ``.log`` before its head, so a log that is still linked has its head too.

A log is never held in memory: a reading holds what it returns and one block.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import weakref
from dataclasses import dataclass

from ..core.errors import BadRequest, StoreError
from ..core.home import open_private
from ..core.log_head import LogHead, Tally, read_head
from .lines import LineIndex

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_SCAN = 1 << 20
_MARK = 1 << 20  # bytes between places whose line numbers are remembered
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

    Of lines that were asked for by number, `first_line` is the number of the first one here, and
    `gone` says how many of those before it were freed. If that one lost its front with them, `gap`
    is how many bytes. `next_line` is where to go on.
    """

    data: bytes
    start: int
    end: int
    gap: int = 0
    more: bool = False
    cut: bool = False
    first_line: int | None = None
    gone: int = 0

    @property
    def next_line(self) -> int | None:
        """The number to go on with; a last line that is not finished yet is asked for again."""
        if self.first_line is None:
            return None
        ends = self.data.count(b"\n")
        return self.first_line + (ends or bool(self.cut and self.data))

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")

    def __repr__(self) -> str:
        shown = repr(self.data[:40]) + ("..." if len(self.data) > 40 else "")
        marks = "" if self.first_line is None else f" first_line={self.first_line}"
        for name in ("gone", "gap"):
            marks += f" {name}={getattr(self, name)}" if getattr(self, name) else ""
        marks += "".join(f" {name}" for name in ("more", "cut") if getattr(self, name))
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

    __slots__ = ("_log", "_old", "begin", "end", "head", "numbered", "path", "tally")

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
        # Numbers that nobody counted, those of the first lines, change with the next head.
        self.numbered = head.lines is not None and self.begin == head.begin
        self.tally = head.tally if self.begin == head.begin else Tally(self.begin, 0, self.begin)

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
    takes most of the cost out of following a log. Where lines are is remembered, every mebibyte,
    so that one page after another costs no more than the first. Threads may share a `Log`.
    """

    __slots__ = ("__weakref__", "_index", "_kept", "_seen", "head_path", "path")

    def __init__(self, path: str, head_path: str) -> None:
        self.path = path
        self.head_path = head_path
        self._kept: _File | None = None
        self._index = LineIndex()
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
            keep = _whole(data, waiting=len(data) < limit)
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
                    found = start + after_newlines(block, count - left + 1)
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
        """`count` lines from number `first` on; line 0 is the first the process ever wrote.

        A negative `first` counts from the end: the last 50 are ``lines(-50, 50)``. Where line
        `first` was freed, the lines returned are the first that are kept. Of more than `max_bytes`
        only whole lines at the front are returned; a first line that is longer than that loses its
        end.
        """
        _check_count(count)
        _check_count(max_bytes)
        for view in self._views():
            place = self._place(view, first)
            if place is None:
                continue
            begin, gone, gap = place
            start = begin.offset
            parts: list[bytes] = []
            stop, left, room = start, count, max_bytes
            size = _FIRST_BLOCK
            while left > 0 and room > 0:
                part = view.read(stop, min(size, room))
                if not part:
                    break
                if (found := part.count(b"\n")) >= left:
                    part = part[: after_newlines(part, left)]
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
            if view.numbered and data:
                self._index.remember(view.begin, [], begin.after(data))
            return Output(data, start, stop, gap, stop < view.end, cut, begin.lines, gone)
        raise self._too_fast()

    def numbers(self, offsets: list[int], most: int) -> list[int] | None:
        """The numbers of the lines at these offsets, of which each is after the one before.

        None where more than `most` bytes would have to be counted, or some of them were freed.
        """
        for view in self._views():
            at = self._before_offset(view, offsets[0])
            if offsets[0] < at.offset or offsets[-1] - at.offset > most:
                return None
            numbers = []
            for offset in offsets:
                if (found := self._walk(view, at, offset)) is None:
                    break
                at = found
                numbers.append(at.lines)
            else:
                return numbers
        raise self._too_fast()

    def tally(self) -> Tally:
        """The lines up to the end of the log."""
        for view in self._views():
            tally = self._walk(view, self._before_offset(view, view.end), view.end)
            if tally is not None:
                return tally
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

    # -- counting ------------------------------------------------------------------------------

    def _place(self, view: _View, first: int) -> tuple[Tally, int, int] | None:
        """The offset of line `first`, the lines before it that are gone, and its bytes that are.

        The end if there is no such line; None when something was freed while we counted.
        """
        if first < 0:
            end = self._walk(view, self._before_offset(view, view.end), view.end)
            if end is None:
                return None
            first = max(first + end.lines + (end.line_start < end.offset), 0)
        known = view.tally
        if first <= known.lines:
            return known, known.lines - first, known.offset - known.line_start
        start = self._index.before_line(first, known) if view.numbered else known
        found = self._walk(view, start, view.end, first)
        if found is None:
            return None
        offset = found.line_start if found.lines == first else view.end
        return Tally(offset, first, offset), 0, 0

    def _before_offset(self, view: _View, offset: int) -> Tally:
        return self._index.before_offset(offset, view.tally) if view.numbered else view.tally

    def _walk(self, view: _View, tally: Tally, end: int, line: int = _LARGEST) -> Tally | None:
        """Count on to `end`, or to where `line` begins; None when what was read was freed."""
        marks: list[Tally] = []
        size = _FIRST_BLOCK
        freed = False
        while tally.offset < end and tally.lines < line:
            most = min(size, _MARK - tally.offset % _MARK, end - tally.offset)
            block = view.read(tally.offset, most)
            if freed := not self._settled(view, tally.offset):
                break
            if not block:
                break
            following = tally.after(block)
            if following.lines >= line:
                block = block[: after_newlines(block, line - tally.lines)]
                following = tally.after(block)
            tally = following
            if tally.offset % _MARK == 0:
                marks.append(tally)
            size = min(size * 4, _SCAN)
        if view.numbered:
            self._index.remember(view.begin, marks, tally)
        return None if freed else tally

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
            return _File(open_private(path, os.O_RDONLY), base)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refusal(error, self.path) from error

    def _too_fast(self) -> StoreError:
        return StoreError(f"the log {self.path} is freed faster than it can be read; try again")


_keeping: list[weakref.ref[Log]] = []


def _refusal(error: OSError, path: str) -> StoreError:
    if isinstance(error, StoreError):
        return error
    path = error.filename or path
    if error.errno == errno.ELOOP:
        return StoreError(f"{path} is a symlink, which is never followed; remove it")
    return StoreError(f"cannot read the log {path}: {error.strerror}; check its permissions")


def _check_count(n: int) -> None:
    if n < 0:
        raise BadRequest(f"a count must not be negative, as {n} is")


def after_newlines(data: bytes, n: int) -> int:
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
    """The number of bytes of `data` to return so that it does not end inside something.

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
    """The number of bytes at the end that are the beginning of a UTF-8 character."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            _, used = codecs.utf_8_decode(data[-back:], "replace", False)
            return 0 if used else back
    return 0


def _continued(data: bytes, start: int) -> int:
    """The number of bytes at `start` that are the end of a UTF-8 character cut in two."""
    for more in range(min(4, len(data) - start)):
        if data[start + more] & 0xC0 != 0x80:
            return more
    return 0
