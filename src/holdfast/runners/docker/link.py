"""A connection to the container's output, and the store of descriptors in which it outlives us.

DESIGN. Output is looked at while it stays in the connection's own queue, is written, and only then
taken from the queue. The socket itself remembers how much of the queue was looked at and not taken
yet (SO_PEEK_OFF): looking adds to that number, taking subtracts from it, in the same system call.
So a runner that finds such a number knows: this is one batch, and the resume state tells what of it
was written. To look at that batch again the number has to be set aside for a moment, to -1; its
size is in the resume state by then.

The store is a socket that is connected to itself and held by both halves of the keeper. What we
send stays in its queue, descriptors and all. So the connection outlives us, and with it the
container's stdin, which ends with its connection. A newer link is put behind the older one before
that is taken away; each has a number, its token, by which the resume state says which one it is
about.

Before there is a link, the connection on which the container is asked for lies there. The engine
goes on making one whoever is killed, and by its name it cannot be found until it is made.
"""

from __future__ import annotations

import os
import select
import socket
import struct

_FD_STORE = 3
_TOKEN = struct.Struct("<Q")
_REQUEST = 0
_REQUEST_PATIENCE, _ANSWER_PATIENCE = 1.0, 120.0
_BATCH = 1 << 16
_FD = struct.Struct("i")
_SO_PEEK_OFF = 42  # which the socket module has no name for
_AGAIN = -1


class Link:
    __slots__ = ("connection", "token")

    def __init__(self, connection: socket.socket, token: int) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.token = token

    def begin(self) -> None:
        """Nothing was looked at so far."""
        self._set_looked_at(0)

    def store(self) -> None:
        """Put it into the store, in place of an older one."""
        fd_store = _fd_store()
        if fd_store is None:
            return
        token = _TOKEN.pack(self.token)
        with fd_store:
            socket.send_fds(fd_store, [token], [self.connection.fileno()])
            while fd_store.recv(_TOKEN.size, socket.MSG_PEEK | socket.MSG_DONTWAIT) != token:
                fd_store.recv(_TOKEN.size, socket.MSG_DONTWAIT)

    def look(self) -> bytes | None:
        """The next batch, which stays where it is: empty at the end, None if nothing has come."""
        try:
            return self.connection.recv(_BATCH, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except OSError:  # reset: the engine died
            return b""

    def take(self, count: int) -> None:
        """Take a batch from the queue, all of which was written."""
        while count:
            count -= len(self.connection.recv(count))

    def looked_at(self) -> int | None:
        """The size of a batch that a predecessor left; None if it was looking at it again."""
        count = self.connection.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF)
        return None if count == _AGAIN else count

    def look_again(self, count: int) -> bytes:
        """Look at a predecessor's batch; its size must be on disk."""
        self._set_looked_at(_AGAIN)
        data = self.connection.recv(count, socket.MSG_PEEK)
        self._set_looked_at(count)
        return data

    def _set_looked_at(self, count: int) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF, count)

    def close(self) -> None:
        self.connection.close()


def from_fd_store() -> Link | None:
    """The oldest link there; if that is a dead one, who finds it puts a newer one there."""
    token, fds = _oldest()
    if token == _REQUEST:
        for fd in fds:
            os.close(fd)
        return None
    return Link(socket.socket(fileno=fds[0]), token)


def store_request(connection: socket.socket) -> None:
    fd_store = _fd_store()
    if fd_store is not None:
        with fd_store:
            socket.send_fds(fd_store, [_TOKEN.pack(_REQUEST)], [connection.fileno()])


def await_request() -> bool:
    """Wait until the engine is done with a predecessor's request; False if there is none."""
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
    """Token and descriptors of what has been in the store for longest; it stays there."""
    fd_store = _fd_store()
    if fd_store is None:
        return _REQUEST, []
    # MSG_PEEK copies the descriptor and leaves the message where it is; `socket.recv_fds` does not
    # pass the flag on in Python 3.11.
    flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    with fd_store:
        try:
            token, ancillary, _, _ = fd_store.recvmsg(_TOKEN.size, socket.CMSG_LEN(_FD.size), flags)
        except OSError:
            return _REQUEST, []
    return _TOKEN.unpack(token)[0], list(_FD.unpack(ancillary[0][2]))


def _fd_store() -> socket.socket | None:
    try:
        return socket.socket(fileno=os.dup(_FD_STORE))
    except OSError:
        return None
