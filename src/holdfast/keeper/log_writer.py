"""A log on disk, written by the keeper alone and kept in its cap.

DESIGN. When the log has passed its cap by a mebibyte (or an eighth, if that is less) its head is
freed before more is written: first the head file says where the log now begins, then the blocks go
back to the file system, so a reader that looks at the head after reading knows what to throw away.
A writer killed between the two leaves blocks that the next freeing returns.

Lines keep their numbers for good, so in the same write the head also says how many line ends there
were before. They are counted in what is freed and nowhere else, and that is little at a time: at no
moment does anybody wait for a long count.

Where the file system cannot punch holes the log is rotated instead: first the head says that what
is in ``.log.old`` is gone, then ``.log`` takes its name and a new one begins. While that happens
the head's checksum is wrong, which makes readers wait; a writer that finds it wrong when it opens
the log finishes or undoes the rotation.
"""

from __future__ import annotations

import errno
import os

from ..core.errors import StoreError
from ..core.home import open_private, unlink
from ..core.log_head import LogHead, Tally, broken_head, read_head, spoil_head, write_head
from ..linux import kernel
from .damaged_files import clear_way, is_for_now, put_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    pass

_BLOCK = 4096
_PIECE = 1 << 20
# Of a log that somebody deleted: bytes that are kept, and bytes of which the lines are counted.
_RESTORED, _COUNTED_AT_ONCE = 4 << 20, 64 << 20
_MARGIN = 1 << 20  # how far a log may pass its cap
_COUNTED = 2 << 20  # bytes whose lines are counted at a time, twice what comes in
_COUNT_PIECE = 1 << 16
_COPY_PIECE = 1 << 16


class LogWriter:
    """The one writer of one log. `size` counts every byte the process ever wrote."""

    __slots__ = (
        "path",
        "head_path",
        "cap",
        "size",
        "_fd",
        "_head",
        "_can_punch",
        "can_splice",
        "_due",
        "_full",
        "_punched",
        "_tally",
    )

    def __init__(self, path: str, head_path: str, cap: int, *, new: bool = False) -> None:
        self.path = path
        self.head_path = head_path
        self.cap = cap
        self._can_punch: bool | None = None  # asked when it begins to matter
        self.can_splice = hasattr(os, "splice")
        self._head = LogHead() if new else self._found_head()
        self._tally = self._head.tally  # the lines of what is freed next, as far as counted
        self._punched = 0  # what is before that was given back, and not only said to be gone
        self._fd = open_private(path, os.O_RDWR | os.O_CREAT)
        self.size = self._head.base + os.fstat(self._fd).st_size
        self._plan()

    def _found_head(self) -> LogHead:
        try:
            head = self._recovered_head()
        except (OSError, StoreError) as error:
            if is_for_now(error) or not put_aside(self.head_path, error):
                raise
            head = LogHead()
        if head.begin == 0 and (begin := _first_data(self.path)):
            # Its head is lost. What was freed is a hole, which would read as so many zeros.
            head = LogHead(begin)
            write_head(self.head_path, head)
        return head

    def _recovered_head(self) -> LogHead:
        head = broken_head(self.head_path)
        if head is None:
            return read_head(self.head_path)
        # A rotation was cut short. Without a .log (or with a fresh one) the rename had been done.
        size = _size(self.path)
        old = _size(self.path + ".old")
        if size == 0 and old > 0:
            begin = max(head.begin, head.base)
            lines = head.lines if begin == head.begin else None  # as an earlier version left it
            head = LogHead(begin, head.base + old, head.base, lines, head.line_start)
        write_head(self.head_path, head)
        return head

    def _write_head(self, head: LogHead) -> None:
        clear_way(self.head_path)
        write_head(self.head_path, head)
        self._head = head

    @property
    def begin(self) -> int:
        return self._head.begin

    def take(self, source: int, limit: int) -> int:
        """Splice up to `limit` bytes from a pipe; 0 at its end, BlockingIOError if it is empty.

        Only while `can_splice`: a file system may refuse to take pages from pipes.
        """
        limit = min(limit, self._room)
        try:
            moved = os.splice(source, self._fd, limit, offset_dst=self.size - self._head.base)
        except OSError as error:
            if error.errno == errno.EINVAL:
                self.can_splice = False
                return 0
            raise
        self._grew(moved)
        return moved

    def append(self, data: bytes) -> None:
        """Write all of it; on an error `size` says how much of it is there."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view[: self._room], self.size - self._head.base)
            self._grew(written)
            view = view[written:]

    @property
    def _room(self) -> int:
        """The bytes that can be written before something has to be freed."""
        return max(_BLOCK, self._full - self.size)

    def _grew(self, by: int) -> None:
        self.size += by
        if self.size >= self._due:
            self._keep_cap()

    def _plan(self) -> None:
        """The size at which something is to be done about the cap."""
        if self._can_punch:
            self._full = self._due = self._head.begin + self.cap + min(_MARGIN, self.cap // 8)
            return
        # Rotated, the two files are half the cap each; so that is when one has to know.
        self._full = self._due = self._head.base + self.cap // 2
        if self._tally.offset < self._head.base:
            self._due = min(self._due, self.size + _PIECE)

    def _keep_cap(self) -> None:
        if self._can_punch is None:
            self._ask()
            self._plan()
            if self.size < self._due:
                return
        if self._can_punch:
            self._count((self.size - self.cap) // _BLOCK * _BLOCK, self.size)
            self._free()
        if not self._can_punch:
            if self.size >= self._head.base + self.cap // 2:
                self._rotate()
            else:
                self._count(self._head.base, _COUNTED)
        self._plan()

    def _ask(self) -> None:
        """Find out if this file system can punch holes; a log once rotated goes on that way."""
        self._can_punch = self._head.base == 0 and self._punch(self.size, _BLOCK)

    def clear(self, counted: Tally | None = None) -> None:
        """Free everything; the next byte gets the offset it would have had.

        Counting the lines of a long log takes long, so whoever asks for this may have `counted`
        most of it.
        """
        if self.size == 0:
            return
        if self._can_punch is None:
            self._ask()
        if counted is not None and self._tally.offset < counted.offset <= self.size:
            self._tally = counted
        self._count(self.size, self.size)
        self._free()
        if not self._can_punch:
            if self.size > self._head.base:
                self._rotate()
            head = self._head
            head = LogHead(head.begin, head.base, head.base, head.lines, head.line_start)
            self._write_head(head)
        unlink(self.path + ".old")
        self._plan()

    def _count(self, goal: int, most: int) -> None:
        """Count the lines of what is freed next, up to `goal`, but no more than so many bytes."""
        tally = self._tally
        end = min(goal, tally.offset + most)
        while tally.offset < end:
            size = min(_COUNT_PIECE, end - tally.offset)
            try:
                data = self._read(tally.offset, size)
            except (OSError, StoreError):  # wrong numbers rather than output that waits for ever
                data = b""
            tally = tally.after(data or bytes(size))
        self._tally = tally

    def _free(self) -> None:
        """Everything that was counted: say that it is gone, then give it back."""
        head = self._head.freed(self._tally)
        self._write_head(head)
        if self._can_punch and head.begin > self._punched:
            self._can_punch = self._punch(self._punched, head.begin - self._punched)
            self._punched = head.begin // _BLOCK * _BLOCK

    def _punch(self, offset: int, length: int) -> bool:
        try:
            kernel.punch_hole(self._fd, offset, length)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            return False
        return True

    def _rotate(self) -> None:
        if self._head.begin < self._head.base:
            self._count(self._head.base, self.size)
            self._free()
        head = self._head
        spoil_head(self.head_path, head)
        os.rename(self.path, self.path + ".old")
        full, self._fd = self._fd, open_private(self.path, os.O_RDWR | os.O_CREAT)
        os.close(full)
        self._head = LogHead(head.begin, self.size, head.base, head.lines, head.line_start)
        self._write_head(self._head)

    def restore(self) -> bool:
        """Make a log again that was deleted; False if not all that was in it could be kept."""
        head = self._head
        start = max(head.begin, head.base, self.size - _RESTORED)
        whole = start == head.begin
        if not whole:
            self._count(start, _COUNTED_AT_ONCE)
            numbered = self._tally.offset == start
            lines = (self._tally.lines, self._tally.line_start) if numbered else ()
            head = LogHead(start, head.base, head.base, *lines)
        fd = open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            at = start - head.base
            while piece := os.pread(self._fd, _COPY_PIECE, at):
                at += os.pwrite(fd, piece, at)
            os.ftruncate(fd, self.size - head.base)
            if start > 0:
                self._write_head(head)
            os.dup2(fd, self._fd, inheritable=False)
        except BaseException:
            unlink(self.path)
            raise
        finally:
            os.close(fd)
        self._tally, self._punched = self._head.tally, 0
        self._plan()
        return whole

    def tail(self, count: int) -> bytes:
        """The last bytes of the log, for the outbox."""
        head = self._head
        start = max(head.begin, self.size - count)
        older = b""
        if start < head.base:
            older = self._read(start, head.base - start)
            start = head.base
        return older + self._read(start, self.size - start)

    def _read(self, start: int, count: int) -> bytes:
        """Up to `count` bytes of the file that has the first of them."""
        head = self._head
        if start >= head.base:
            return os.pread(self._fd, count, start - head.base)
        try:
            fd = open_private(self.path + ".old", os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            return os.pread(fd, min(count, head.base - start), start - head.old_base)
        finally:
            os.close(fd)

    def close(self) -> None:
        os.close(self._fd)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0


def _first_data(path: str) -> int:
    """The end of the hole that a file begins with, or 0."""
    try:
        fd = open_private(path, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError:  # it has none, or its file system cannot say
        return 0
    finally:
        os.close(fd)
