"""One client's connection: lines in, answers out, and what it is still waiting for.

A client may send hundreds of requests at once. They are answered in their order, a few in each turn
of the loop, so that everybody else is answered meanwhile, and what processes and tmux say is heard.
"""

from __future__ import annotations

import socket
import time
from collections import deque

from ..core import wire
from ..core.errors import HoldfastError
from .loop import IN, OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .loop import Loop
    from .modes.tmux import Start

_READ = 1 << 18
_TURN = 0.01  # seconds for the requests of one connection in one turn
_UNSENT_LIMIT = 32 << 20
_UNANSWERED = frozenset({"acknowledge", "answered", "release"})


class Connection:
    __slots__ = (
        "_loop",
        "socket",
        "_decoder",
        "_requests",
        "_unsent",
        "_on_message",
        "_on_close",
        "_waiting",
        "pid",
        "client",
        "session",
        "leased",
        "greeted",
        "limited",
        "pane",
        "closed",
    )

    def __init__(
        self,
        loop: Loop,
        end: socket.socket,
        pid: int,
        on_message: Callable[[Connection, dict[str, Any]], None],
        on_close: Callable[[Connection], None],
    ) -> None:
        self._loop = loop
        self.socket = end
        self._decoder = wire.Decoder(wire.REQUEST_LIMIT, self._too_long)
        self._requests: deque[dict[str, Any]] = deque()  # read, and not looked at yet
        self._unsent = bytearray()
        self._on_message = on_message
        self._on_close = on_close
        self._waiting: dict[int, Callable[[], None]] = {}
        self.pid = pid
        self.client = ""
        self.session: str | None = None
        self.leased = False
        self.greeted = False
        self.limited = False  # speaks another protocol: may only ask for status, restart, quit
        self.pane: Start | None = None  # not a client: a pane of tmux that asks for its command
        self.closed = False
        end.setblocking(False)
        loop.add(end.fileno(), IN, self._ready)

    def _ready(self, events: int) -> None:
        if events & OUT:
            self._flush()
        if self.closed or self._requests or not events & ~OUT:
            return
        try:
            data = self.socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            self._requests.extend(self._decoder.feed(data))
        except (ValueError, RecursionError):
            self.close()
            return
        self._take_turn()

    def _take_turn(self) -> None:
        until = time.monotonic() + _TURN
        while self._requests:
            message = self._requests.popleft()
            # Whoever hangs up upon an acknowledgement did not take it back.
            if not self.closed or message.get("verb") in _UNANSWERED:
                self._on_message(self, message)
                if self._requests and time.monotonic() > until:
                    self._loop.after(0, self._take_turn)
                    return

    def _too_long(self, number: int) -> None:
        self.refuse(number, wire.too_long())

    # -- answers -------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        if self.closed:
            return
        data = wire.encode(message)
        if not self._unsent:
            try:
                sent = self.socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close()
                return
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.change(self.socket.fileno(), IN | OUT)
        self._unsent += data
        if len(self._unsent) > _UNSENT_LIMIT:
            self.close()  # a client that asks and never reads

    def _flush(self) -> None:
        try:
            sent = self.socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.change(self.socket.fileno(), IN)

    def answer(self, number: int, result: dict[str, Any]) -> None:
        self._waiting.pop(number, None)
        self.send({"id": number, "ok": result})

    def refuse(self, number: int, error: HoldfastError) -> None:
        self._waiting.pop(number, None)
        self.send({"id": number, "error": error.to_wire()})

    # -- what is answered later ----------------------------------------------------------------

    def later(self, number: int, cancel: Callable[[], None]) -> None:
        """The answer comes later; `cancel` is called if nobody waits for it any more."""
        self._waiting[number] = cancel

    def cancel(self, number: int) -> None:
        cancel = self._waiting.pop(number, None)
        if cancel is not None:
            cancel()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._loop.remove(self.socket.fileno())
        self.socket.close()
        waiting, self._waiting = self._waiting, {}
        for cancel in waiting.values():
            cancel()
        self._on_close(self)
