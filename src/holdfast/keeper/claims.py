"""Claims on events: who will tell of them, and is still there to do so.

A claim is the client's, whichever of its connections it was made on, and ends with the last of
them: whoever hangs up tells nobody. A process that dies ends its claims too, though a forked child
may keep its socket open. Across the death of a worker claims are on disk (`core.outbox`): a client
that lives comes back to its own, and one that died meanwhile is found to be dead when somebody
else asks.
"""

from __future__ import annotations

import os

from ..core.errors import BadRequest, HoldfastError
from ..core.outbox import Claim
from ..core.record import DEFAULT_SESSION
from ..linux import kernel
from .journal import say
from .loop import IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.outbox import OutboxWriter
    from .connection import Connection
    from .loop import Loop

_LONGEST_NAME = 64


class _Reader:
    """A client that has claimed something, or may have before this worker."""

    __slots__ = ("connections", "pid", "pidfd", "sessions", "start_time")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.start_time = -1  # not asked for yet
        self.pidfd: int | None = None
        self.connections: set[Connection] = set()
        self.sessions: set[str] = set()


class Claims:
    __slots__ = ("_loop", "_outbox", "_readers")

    def __init__(self, loop: Loop, outbox: Callable[[str], OutboxWriter | None]) -> None:
        self._loop = loop
        self._outbox = outbox  # of a session, if there is one
        self._readers: dict[str, _Reader] = {}

    def connected(self, connection: Connection) -> None:
        reader = self._readers.setdefault(connection.client, _Reader(connection.pid))
        reader.connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        reader = self._readers.get(connection.client)
        if reader is not None:
            reader.connections.discard(connection)
            if not reader.connections:
                reader.sessions.add(connection.session or DEFAULT_SESSION)
                self._gone(connection.client)

    def claim(
        self,
        connection: Connection,
        outbox: OutboxWriter,
        session: str,
        ids: list[str],
        by: object,
        *,
        ahead: bool = False,
    ) -> list[str]:
        """Claim events for a client under a name of its choice; those that it now has."""
        if not isinstance(by, str) or not 0 < len(by) <= _LONGEST_NAME:
            raise BadRequest("a claim has a name of its own, such as 16 random letters")
        reader = self._readers.get(connection.client)
        if reader is None or connection.closed:
            return []
        if reader.start_time < 0:
            self._watch(connection, reader)
        reader.sessions.add(session)
        claim = Claim(by, connection.client, reader.pid, reader.start_time)
        return outbox.claim(claim, ids, self._lives, ahead=ahead)

    def _watch(self, connection: Connection, reader: _Reader) -> None:
        reader.start_time = kernel.start_time(reader.pid) or 0
        try:
            reader.pidfd = kernel.peer_pidfd(connection.socket)
            if reader.pidfd is not None:
                self._loop.add(reader.pidfd, IN, lambda _: self._gone(connection.client))
        except OSError as error:  # no descriptor: then the end of its connections will have to do
            say(f"a client cannot be watched: {error}")
            self._unwatch(reader)

    def _unwatch(self, reader: _Reader) -> None:
        if reader.pidfd is not None:
            self._loop.remove(reader.pidfd)
            os.close(reader.pidfd)
            reader.pidfd = None

    def _lives(self, claim: Claim) -> bool:
        return kernel.lives(claim.pid, claim.start_time)

    def _gone(self, client: str) -> None:
        reader = self._readers.pop(client, None)
        if reader is None:
            return
        self._unwatch(reader)
        for session in reader.sessions:
            try:
                outbox = self._outbox(session)
            except (OSError, HoldfastError) as error:
                say(f"the events of a session cannot be read: {error}")
                continue
            if outbox is not None:
                outbox.free([by for by, c in outbox.claims.by.items() if c.client == client])
