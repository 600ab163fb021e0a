"""Serving HTTP: who may ask, who is still there, and how it ends.

DESIGN. Nothing of a request reaches the package before it has passed `AccessControl`: the right
host (a page of somebody else's cannot point its own name at us), no foreign origin, the token,
JSON. What is refused has done nothing.

A client that says DELETE has closed in good order. One that is gone without a word is seen by what
it has open: an older client keeps a stream, and when neither that nor a request is there any more,
it is lost after a moment. Clients that keep none open are lost after half an hour without a word.
Being lost is not final: with its next request a client holds its session again.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import signal
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from ._handshake import SIGNALS
from ._stdio_server import leave, settle_memory
from ._timeouts import PatientProtocol
from ._tool_server import MODERN, Connections, build, connection_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, MutableMapping
    from typing import Any, NoReturn

    from ._address import Address
    from ._session import Settings
    from ._tool_server import ToolServer

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Any, Receive, Send], Awaitable[None]]

_AWAY = 10.0  # without the stream that it had: older clients come back within seconds
_IDLE = 1800.0
_PATH = "/mcp"
_BACKLOG = 64  # connections that are taken at once, before any of them is looked at


class Presence:
    """The requests of a client that are under way, by which it is seen to be there."""

    __slots__ = ("streamed", "timer", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        self.streamed = False  # it keeps a stream open while it lives
        self.timer: asyncio.TimerHandle | None = None


class AccessControl:
    """The application around the package's: who may ask, and which clients are still there."""

    def __init__(
        self,
        inner: App,
        connections: Connections,
        hosts: frozenset[str],
        token: str | None,
        idle: float = _IDLE,
    ) -> None:
        self._inner = inner
        self._connections = connections
        self._hosts = hosts
        self._token = token
        self._idle = idle
        self._present: dict[str, Presence] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        refusal = self._refusal(scope["method"], headers)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        # The package looks again, but at upper and lower case.
        scope = {**scope, "headers": [_in_lower_case(*each) for each in scope["headers"]]}
        key = self._key(scope, headers)
        ends = scope["method"] == "DELETE"

        async def watched(message: Message) -> None:
            if ends and message["type"] == "http.response.start" and message["status"] == 200:
                await self._connections.ended(key, orderly=True)
            await send(message)

        with self._there(key, scope["method"]):
            await self._inner(scope, receive, watched)

    # -- who may ask ---------------------------------------------------------------------------

    def _refusal(self, method: str, headers: dict[str, list[str]]) -> tuple[int, str] | None:
        hosts = [host.lower() for host in headers.get("host", [])]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 421, "this server does not go by that name; see --allow-host"
        for origin in headers.get("origin", []):
            scheme, _, host = origin.lower().partition("://")
            if scheme not in ("http", "https") or host not in self._hosts:
                return 403, "requests from pages of other origins are refused"
        if self._token is not None and not self._shown(headers.get("authorization", [])):
            return 401, "the token is missing or wrong: Authorization: Bearer TOKEN"
        kind = headers.get("content-type", [""])[0].partition(";")[0].strip().lower()
        if method == "POST" and kind != "application/json":
            return 415, "a request is JSON: Content-Type: application/json"
        return None

    def _shown(self, given: list[str]) -> bool:
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        assert self._token is not None
        right = hmac.compare_digest(token.strip().encode(), self._token.encode())
        return scheme.lower() == "bearer" and right

    # -- who is there --------------------------------------------------------------------------

    def _key(self, scope: Any, headers: dict[str, list[str]]) -> str:
        named = parse_qs(scope["query_string"].decode("latin-1")).get("session", [None])[0]
        modern = headers.get("mcp-protocol-version", [""])[0] >= MODERN
        id = headers.get("mcp-session-id", [""])[0]
        return connection_key(None if modern else id, self._connections.settings.session or named)

    @contextmanager
    def _there(self, key: str, method: str) -> Iterator[None]:
        presence = self._present.setdefault(key, Presence())
        presence.under_way += 1
        presence.streamed |= method == "GET"
        if presence.timer is not None:
            presence.timer.cancel()
        try:
            yield
        finally:
            presence.under_way -= 1
            if key not in self._connections.by_key:
                self._present.pop(key, None)
            elif not presence.under_way:
                after = _AWAY if presence.streamed else self._idle
                self._later(presence, after, key)

    def _later(self, presence: Presence, seconds: float, key: str) -> None:
        presence.timer = asyncio.get_running_loop().call_later(seconds, self._lost, key, seconds)

    def _lost(self, key: str, waited: float) -> None:
        forget = waited >= self._idle
        task = asyncio.get_running_loop().create_task(self._connections.lost(key, forget=forget))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        if forget:
            self._present.pop(key, None)
        else:
            self._later(self._present[key], self._idle, key)


def _in_lower_case(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    return name, value.lower() if name in (b"host", b"origin") else value


async def _refuse(send: Send, status: int, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Web(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are ours


def serve_http(
    settings: Settings,
    address: Address,
    token: str | None,
    make: Callable[[Connections], ToolServer] = build,
) -> NoReturn:
    logging.getLogger().addHandler(logging.NullHandler())  # stderr is for the person
    listening = address.listen()
    settle_memory()
    asyncio.run(_serve(settings, address, listening, token, make))


async def _serve(
    settings: Settings,
    address: Address,
    listening: socket.socket,
    token: str | None,
    make: Callable[[Connections], ToolServer],
) -> NoReturn:
    connections = Connections(settings)
    server = make(connections)
    port = listening.getsockname()[1]
    hosts = address.hosts(port)
    inner = server.streamable_http_app(
        streamable_http_path=_PATH,
        transport_security=TransportSecuritySettings(
            allowed_hosts=sorted(hosts),
            allowed_origins=[
                f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")
            ],
        ),
        session_idle_timeout=_IDLE,
    )
    config = uvicorn.Config(
        AccessControl(inner, connections, hosts, token),
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="on",
        ws="none",
        http=PatientProtocol,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=2,
    )
    web = Web(config)
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        connections.stop()
        # Not `should_exit`: this one also ends the streams. The answers go out before.
        loop.call_later(0.2, web.handle_exit, number, None)

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
    shown = f"[{address.host}]" if ":" in address.host else address.host
    print(f"holdfast mcp: http://{shown}:{port}{_PATH}", file=sys.stderr, flush=True)
    try:
        await web.serve(sockets=[listening])
    finally:
        await connections.close()
    leave()  # from here: a thread that still looks at something must not keep us
