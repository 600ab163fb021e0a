"""A connection to the container's output, with the tank behind it, and the shelf where both lie.

DESIGN. Output goes from the connection into the tank, a pipe, without passing through our memory.
There it is looked at and written, and only then is the tank emptied. It is filled only when it is
empty, so a runner that finds something in it knows: this is one batch, and the place tells what of
it was written.

The shelf is a socket that is connected to itself and held by both halves of the keeper. What we
send stays in its queue, descriptors and all. So the connection outlives us, and with it the
container's stdin, which ends with its connection. A newer link is put behind the older one before
that is taken away; each has a number, its token, by which the place says which one it is about.

Before there is a link, the connection on which the container is asked for lies there. The engine
goes on making one whoever is killed, and by its name it cannot be found until it is made.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios

_SHELF = 3
_TOKEN = struct.Struct("<Q")
_REQUEST = 0
_REQUEST_PATIENCE, _ANSWER_PATIENCE = 1.0, 120.0
_TANK = 1 << 16
_FDS = struct.Struct("3i")


class Link:
    __slots__ = ("_scratch", "_tank", "connection", "token")

    def __init__(self, connection: socket.socket, token: int, tank: tuple[int, int]) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.token = token
        self._tank = tank
        self._scratch = make_tank()

    def fill(self) -> int | None:
        """Move what has come into the tank: 0 at the end, None if nothing has come."""
        try:
            return os.splice(self.connection.fileno(), self._tank[1], _TANK)
        except BlockingIOError:
            return None
        except OSError:  # reset: the engine died
            return 0

    def held(self) -> int:
        """How many bytes are in the tank."""
        count: int = struct.unpack("i", fcntl.ioctl(self._tank[0], termios.FIONREAD, bytes(4)))[0]
        return count

    def look(self, count: int) -> bytes:
        """They, while they stay there."""
        import ctypes  # not needed before there is output, and then at once

        libc = ctypes.CDLL(None, use_errno=True)
        copied = libc.tee(self._tank[0], self._scratch[1], ctypes.c_size_t(count), 0)
        if copied != count:
            raise OSError(ctypes.get_errno(), f"tee copied {copied} of {count} bytes")
        return _read(self._scratch[0], count)

    def empty(self, count: int) -> None:
        _read(self._tank[0], count)

    def close(self) -> None:
        self.connection.close()
        for fd in (*self._tank, *self._scratch):
            os.close(fd)

    def put_on_shelf(self) -> None:
        shelf = _shelf()
        if shelf is None:
            return
        token = _TOKEN.pack(self.token)
        with shelf:
            socket.send_fds(shelf, [token], [self.connection.fileno(), *self._tank])
            while shelf.recv(_TOKEN.size, socket.MSG_PEEK | socket.MSG_DONTWAIT) != token:
                shelf.recv(_TOKEN.size, socket.MSG_DONTWAIT)


def from_shelf() -> Link | None:
    """The oldest link there; if that is a dead one, who finds it puts a newer one there."""
    token, fds = _oldest()
    if token == _REQUEST:
        for fd in fds:
            os.close(fd)
        return None
    connection, *tank = fds
    return Link(socket.socket(fileno=connection), token, (tank[0], tank[1]))


def put_request_on_shelf(connection: socket.socket) -> None:
    shelf = _shelf()
    if shelf is not None:
        with shelf:
            socket.send_fds(shelf, [_TOKEN.pack(_REQUEST)], [connection.fileno()])


def await_request() -> bool:
    """Until the engine is done with a predecessor's request; False if there is none."""
    token, fds = _oldest()
    if token != _REQUEST or not fds:
        for fd in fds:
            os.close(fd)
        return False
    with socket.socket(fileno=fds[0]) as connection:
        connection.settimeout(_ANSWER_PATIENCE)
        try:
            if not select.select([connection], [], [], _REQUEST_PATIENCE)[0]:
                connection.shutdown(socket.SHUT_WR)  # perhaps it was not sent, and never will be
            while connection.recv(1 << 16):
                pass
        except OSError:
            pass
    return True


def _oldest() -> tuple[int, list[int]]:
    """Token and descriptors of what has been on the shelf for longest; it stays there."""
    shelf = _shelf()
    if shelf is None:
        return _REQUEST, []
    # MSG_PEEK copies the descriptors and leaves the message where it is.
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    with shelf:
        try:
            token, ancillary, _, _ = shelf.recvmsg(_TOKEN.size, socket.CMSG_LEN(_FDS.size), flags)
        except OSError:
            return _REQUEST, []
    data = ancillary[0][2]
    return _TOKEN.unpack(token)[0], list(struct.unpack(f"{len(data) // 4}i", data))


def make_tank() -> tuple[int, int]:
    return os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)


def _shelf() -> socket.socket | None:
    try:
        return socket.socket(fileno=os.dup(_SHELF))
    except OSError:
        return None


def _read(fd: int, count: int) -> bytes:
    data = os.read(fd, count)
    while len(data) < count:
        data += os.read(fd, count - len(data))
    return data
