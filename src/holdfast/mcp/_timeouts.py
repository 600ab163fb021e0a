"""HTTP connections that do not hold others up: limits on what is half sent, and on how many.

A request has so long to arrive, head and body, from its first byte (of a new connection: from its
beginning), however its bytes come. An answer takes as long as it takes. Where there are as many
connections as there may be, the one that has been sending for longest makes room for a new one:
who is only half there keeps nobody out.
"""

from __future__ import annotations

import asyncio
import resource
from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from typing import Any

HEAD, BODY = 10.0, 30.0  # seconds
_MOST = 512
_OURS = 64  # descriptors that are for other things: logs, the keeper, what is watched
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


def most_connections() -> int:
    """Half of what is left of our descriptors: what they ask for takes some too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    left = _MOST if soft == resource.RLIM_INFINITY else (soft - _OURS) // 2
    return max(8, min(_MOST, left))


class PatientProtocol(H11Protocol):
    """A connection of uvicorn's that gives up on requests which do not arrive."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._limit: asyncio.TimerHandle | None = None
        self._in_body = False
        self._since = 0.0  # when what is half sent was begun

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        others = [each for each in self.connections if isinstance(each, PatientProtocol)]
        super().connection_made(transport)
        if len(others) >= most_connections():
            sending = [each for each in others if each._limit is not None]
            if sending:
                min(sending, key=lambda each: each._since).give_up()
            else:
                transport.write(_FULL)
                transport.close()
                return
        self._arriving()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._arriving()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # What comes next has its time from its first byte on; until then uvicorn's own limit holds.
        self._arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def _arriving(self) -> None:
        """Begin or end the time limit, as what we have by now demands."""
        cycle = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if self.transport.is_closing() or (answering and not cycle.more_body):
            self._arrived()
        elif self._limit is None or self._in_body != answering:
            self._arrived()
            self._in_body = answering
            self._since = self.loop.time()
            self._limit = self.loop.call_later(BODY if answering else HEAD, self.give_up)

    def _arrived(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def give_up(self) -> None:
        self._arrived()
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_TOO_LATE)
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()
