"""Moving a process's output from its FIFO or terminal into its log, and keeping that in its cap.

DESIGN. The process holds its FIFO open for reading and writing, so it never breaks: it fills, and
the process waits. The pump splices what is there into the log, where only the pump writes. From a
terminal it splices into a pipe that the guard holds too, the tank, and from there into the log: so
at no moment is output in our memory alone, to be lost with us. When
the log has passed its cap by a mebibyte (or an eighth, if that is less) its head is freed before
more is written: first the head file says where the log now begins, then the blocks go back to the
file system, so a reader that looks at the head after reading knows what to throw away. A pump
killed between the two leaves blocks that the next freeing returns.

Lines keep their numbers for good, so in the same write the head also says how many line ends there
were before. They are counted in what is freed and nowhere else, and that is little at a time: at no
moment does anybody wait for a long count.

Where the file system cannot punch holes the log is rotated instead: first the head says that what
is in ``.log.old`` is gone, then ``.log`` takes its name and a new one begins. While that happens
the head's checksum is wrong, which makes readers wait; a pump that finds it wrong when it opens the
log finishes or undoes the rotation.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
import time

from .. import _kernel
from .._errors import StoreError
from .._home import open_private, unlink
from .._loghead import LogHead, Tally, broken_head, read_head, spoil_head, write_head
from .files import clear_way, is_for_now, put_aside
from .loop import HUP, IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop, Timer

_BLOCK = 4096
_PIECE = 1 << 20
_TURN = 1 << 20  # bytes moved before others get their turn
# Of a log that somebody deleted: bytes that are kept, and bytes of which the lines are counted.
_RESTORED, _COUNTED_AT_ONCE = 4 << 20, 64 << 20
_MARGIN = 1 << 20  # how far a log may pass its cap
_COUNTED = 2 << 20  # bytes whose lines are counted at a time, twice what comes in
_COUNT_PIECE = 1 << 16
_COPY_PIECE = 1 << 16
_TANK = 48 << 10
_SHORT = 1 << 10
_TERMINAL_BUFFER = 1 << 18
# A flooding process gets a bigger pipe; many of them smaller ones, which fit into the cache.
_PIPE_SIZE, _PIPE_SIZE_OF_MANY, _MANY = 1 << 20, 1 << 17, 4
_F_SETPIPE_SZ = 1031
_FLOOD = 8 << 10
_REST = 0.004
_URGENT = 0.05
_DISK_FULL_REST = 0.5


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
        """How much can be written before something has to be freed."""
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
        """Whether this file system can punch holes; a log once rotated goes on that way."""
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
            _kernel.punch_hole(self._fd, offset, length)
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


def _waiting(fd: int) -> int:
    """How much there is to be read."""
    waiting: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
    return waiting


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:
        return 0


def _first_data(path: str) -> int:
    """Where the first hole of a file ends, if it begins with one."""
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


class Pump:
    """The reading end of one FIFO or terminal and the log it goes to."""

    __slots__ = (
        "_loop",
        "fd",
        "writer",
        "_limit",
        "_on_limit",
        "_on_hangup",
        "_on_disk_full",
        "_on_room",
        "_rest",
        "_last",
        "_urgent_until",
        "_grown",
        "_can_splice",
        "_held_back",
        "_in_tank",
        "_tank",
        "_watched",
        "blocked",
    )

    def __init__(
        self,
        loop: Loop,
        fd: int,
        writer: LogWriter,
        limit: int | None,
        on_limit: Callable[[], None],
        on_hangup: Callable[[Pump], None],
        on_disk_full: Callable[[OSError], None],
        on_room: Callable[[], None],
        *,
        tank: int = -1,
    ) -> None:
        self._tank = tank  # of a terminal
        self._in_tank = _waiting(tank) if tank >= 0 else 0
        self._can_splice = True
        self._held_back = b""
        self.blocked = False  # the log cannot take what there is
        self._loop = loop
        self.fd = fd
        self.writer = writer
        self._limit = limit
        self._on_limit = on_limit
        self._on_hangup = on_hangup
        self._on_disk_full = on_disk_full
        self._on_room = on_room
        self._rest: Timer | None = None
        self._last = 0.0
        self._urgent_until = 0.0
        self._grown = False
        self._watched = True
        loop.add(fd, IN, self._ready, bulk=True)

    def _ready(self, events: int) -> None:
        moved = self._move(_TURN)
        if moved is None:
            return
        if moved == 0 and events & HUP:
            self._on_hangup(self)
            return
        # Immediate when quiet, batched when busy: a process that writes line after line is read a
        # few hundred times a second, not once a line; one that floods is read without a pause.
        # One that was just written to is read at once: somebody waits for its answer.
        now = time.monotonic()
        if moved >= _FLOOD:
            self._loop.flooded |= self._tank < 0  # a terminal holds too little to wait for more
        elif now - self._last < _REST and now > self._urgent_until:
            self._pause(_REST)
        self._last = now

    def hurry(self) -> None:
        self._urgent_until = time.monotonic() + _URGENT
        if self._rest is not None and self._rest.clock - time.monotonic() <= _REST:
            self._rest.cancel()
            self._resume()

    def _move(self, turn: int) -> int | None:
        """Bytes moved in one turn; None if the log could not take them."""
        try:
            moved = 0
            if self._can_splice:
                moved = self._splice(turn) if self._tank < 0 else self._splice_terminal(turn)
            if not self._can_splice:
                moved += self._copy(turn)
        except OSError as error:
            # The output waits in the FIFO, and the process with it, until there is room, or until
            # whatever else is wrong with its log or head has been mended.
            self.blocked = True
            self._on_disk_full(error)
            self._pause(_DISK_FULL_REST)
            return None
        if self.blocked:
            self.blocked = False
            self._on_room()
        if self._limit is not None and self.writer.size > self._limit:
            self._limit = None
            self._on_limit()
        return moved

    def _splice(self, turn: int) -> int:
        moved = 0
        try:
            while moved < turn:
                piece = self.writer.take(self.fd, _PIECE)
                if piece == 0:
                    self._can_splice = self.writer.can_splice
                    break
                moved += piece
                if piece >= 1 << 16 and not self._grown:
                    self._grow(self.fd)
        except BlockingIOError:
            pass
        return moved

    def _splice_terminal(self, turn: int) -> int:
        """Into the tank until there is no more or it is full, then from there into the log."""
        moved = 0
        piece = _PIECE
        self._empty_tank()
        while moved < turn and piece >= _SHORT:
            before = self._in_tank
            try:
                while self._in_tank < _TANK:
                    piece = os.splice(self.fd, self._tank, _PIECE)
                    self._in_tank += piece
                    if piece < _SHORT and turn == _TURN:
                        break  # that was all; should there be more, we hear of it
            except BlockingIOError:
                pass
            except OSError as error:
                if error.errno == errno.EINVAL:
                    self._can_splice = False  # an older kernel
                elif error.errno != errno.EIO:  # which is how a terminal hangs up
                    raise
            if self._in_tank == before:
                break
            moved += self._in_tank - before
            if self._in_tank >= _TANK and not self._grown:
                self._grow(self._tank)
            self._empty_tank()
        return moved

    def _empty_tank(self) -> None:
        while self._in_tank > 0:
            piece = self.writer.take(self._tank, self._in_tank) if self.writer.can_splice else 0
            if piece == 0:
                data = os.read(self._tank, self._in_tank)
                self.writer.append(data)
                piece = len(data)
            self._in_tank -= piece

    def _copy(self, turn: int) -> int:
        """Read and write; what the log cannot take now is held back until it can."""
        pieces = [self._held_back]
        moved = 0
        try:
            while moved < turn and not self._held_back:
                piece = os.read(self.fd, _COPY_PIECE)
                if not piece:
                    break
                pieces.append(piece)
                moved += len(piece)
                if len(piece) < _SHORT and turn == _TURN:
                    break  # that was all; should there be more, we hear of it
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EIO:  # which is how a terminal hangs up
                raise
        self._held_back = b"".join(pieces)
        before = self.writer.size
        try:
            self.writer.append(self._held_back)
        finally:
            self._held_back = self._held_back[self.writer.size - before :]
        return moved

    def _grow(self, pipe: int) -> None:
        """Give a flooding process a bigger pipe; the kernel may refuse, which costs only speed."""
        self._grown = True
        self._loop.floods += 1
        size = _PIPE_SIZE if self._loop.floods < _MANY else _PIPE_SIZE_OF_MANY
        try:
            fcntl.fcntl(pipe, _F_SETPIPE_SZ, size)
        except OSError:
            return

    def _pause(self, seconds: float) -> None:
        if self._watched:
            self._loop.remove(self.fd)
            self._watched = False
            self._rest = self._loop.after(seconds, self._resume)

    def _resume(self) -> None:
        self._rest = None
        self._watched = True
        self._loop.add(self.fd, IN, self._ready, bulk=True)

    def drain(self) -> bool:
        """Move what is there now, and no more: a grandchild may go on writing for ever."""
        if self._tank >= 0:
            # The kernel does not say how much that is, but not to be more than it buffers.
            return self._move(_TERMINAL_BUFFER) is not None
        waiting = _waiting(self.fd)
        while waiting > 0:
            moved = self._move(min(waiting, _TURN))
            if moved is None:
                return False
            if moved == 0:
                break
            waiting -= moved
        return True

    @property
    def behind(self) -> int | None:
        """How much there is that the log could not take; None if the kernel does not say."""
        if self._tank >= 0:
            return None if self.blocked else 0
        return len(self._held_back) + _waiting(self.fd)

    def close(self) -> None:
        self._loop.floods -= self._grown
        if self._rest is not None:
            self._rest.cancel()
        if self._watched:
            self._loop.remove(self.fd)
        os.close(self.fd)
