"""Moving a process's output from its FIFO or terminal into its log.

DESIGN. The process holds its FIFO open for reading and writing, so it never breaks: it fills, and
the process waits. The pump splices what is there into the log, where only the pump writes. From a
terminal it splices into a pipe that the guard holds too, and from there into the log: so at no
moment is output in our memory alone, to be lost with us.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
import time

from .log_writer import LogWriter
from .loop import HUP, IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop, Timer

_PIECE = 1 << 20
_TURN = 1 << 20  # bytes moved before others get their turn
_COPY_PIECE = 1 << 16
_SPLICE_PIPE = 48 << 10
_SHORT = 1 << 10
_TERMINAL_BUFFER = 1 << 18
# A flooding process gets a bigger pipe; many of them smaller ones, which fit into the cache.
_PIPE_SIZE, _PIPE_SIZE_OF_MANY, _MANY = 1 << 20, 1 << 17, 4
_F_SETPIPE_SZ = 1031
_FLOOD = 8 << 10
_REST = 0.004
_URGENT = 0.05
_DISK_FULL_REST = 0.5


def _waiting(fd: int) -> int:
    """The number of bytes there are to be read."""
    waiting: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0]
    return waiting


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
        "_in_splice_pipe",
        "_splice_pipe",
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
        splice_pipe: int = -1,
    ) -> None:
        self._splice_pipe = splice_pipe  # of a terminal
        self._in_splice_pipe = _waiting(splice_pipe) if splice_pipe >= 0 else 0
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
            # A terminal holds too little to wait for more.
            self._loop.flooded |= self._splice_pipe < 0
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
                moved = self._splice(turn) if self._splice_pipe < 0 else self._splice_terminal(turn)
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
        """Into the splice pipe until there is no more or it is full, then from there to the log."""
        moved = 0
        piece = _PIECE
        self._empty_splice_pipe()
        while moved < turn and piece >= _SHORT:
            before = self._in_splice_pipe
            try:
                while self._in_splice_pipe < _SPLICE_PIPE:
                    piece = os.splice(self.fd, self._splice_pipe, _PIECE)
                    self._in_splice_pipe += piece
                    if piece < _SHORT and turn == _TURN:
                        break  # that was all; should there be more, we hear of it
            except BlockingIOError:
                pass
            except OSError as error:
                if error.errno == errno.EINVAL:
                    self._can_splice = False  # an older kernel
                elif error.errno != errno.EIO:  # which is how a terminal hangs up
                    raise
            if self._in_splice_pipe == before:
                break
            moved += self._in_splice_pipe - before
            if self._in_splice_pipe >= _SPLICE_PIPE and not self._grown:
                self._grow(self._splice_pipe)
            self._empty_splice_pipe()
        return moved

    def _empty_splice_pipe(self) -> None:
        while self._in_splice_pipe > 0:
            piece = 0
            if self.writer.can_splice:
                piece = self.writer.take(self._splice_pipe, self._in_splice_pipe)
            if piece == 0:
                data = os.read(self._splice_pipe, self._in_splice_pipe)
                self.writer.append(data)
                piece = len(data)
            self._in_splice_pipe -= piece

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
        if self._splice_pipe >= 0:
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
        """The bytes that the log could not take yet; None if the kernel does not say."""
        if self._splice_pipe >= 0:
            return None if self.blocked else 0
        return len(self._held_back) + _waiting(self.fd)

    def close(self) -> None:
        self._loop.floods -= self._grown
        if self._rest is not None:
            self._rest.cancel()
        if self._watched:
            self._loop.remove(self.fd)
        os.close(self.fd)
