"""The first answers on stdio, given before the package is imported.

DESIGN. Importing `mcp` takes about a second, and some clients begin without a server that is so
slow. The first requests of a client that shakes hands (initialize, tools/list, ping) need nothing
of the package. So they are answered here, from `_advertised`, while a thread imports it. Any other
request, or the end of the import, ends this, and the package takes over. It is given `initialize`
again, to learn who the client is, and its answer to that is dropped: the client has one. Clients of
the newer protocol shake no hands. Their `server/discover`, which asks what we speak and is not
waited for long, is answered here too, and leaves nothing behind; all else is the package's. Nothing
is held yet, so a signal may end the program on the spot.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading

from ._advertised import (
    NAME,
    TITLE,
    VERSION,
    capabilities,
    handshake_versions,
    stateless_versions,
)
from ._session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._session import Settings

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_MODERN = "io.modelcontextprotocol/protocolVersion"
_SERVER = "io.modelcontextprotocol/serverInfo"
_CLIENT = "io.modelcontextprotocol/clientInfo"
_CAPABLE_OF = "io.modelcontextprotocol/clientCapabilities"
# The import holds the interpreter in its first moments. A client that speaks within this time is
# answered before it begins.
_AT_ONCE = 0.002


def take_stdio() -> tuple[int, int]:
    """Descriptors of our own for the wire; 0 reads nothing and 1 goes to stderr from now on."""
    wire = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return wire


class Handshake:
    def __init__(self, wire: tuple[int, int], settings: Settings) -> None:
        self.wire = wire
        self.answered: set[Any] = set()  # ids of requests whose answer by the package is dropped
        self._settings = settings
        self._session = Session(settings, "unused")
        self._versions = handshake_versions()
        self._stateless = stateless_versions()
        self._replay = b""
        self._unread = bytearray()
        self._greeted = False

    @property
    def input(self) -> bytes:
        """The bytes that the package is to read before anything that comes from now on."""
        return self._replay + bytes(self._unread)

    def run(self, load: Callable[[], None]) -> None:
        """Call `load` in a thread, and answer what can be answered until it returns."""
        for number in SIGNALS:
            signal.signal(number, lambda *_: os._exit(0))
        awake, waker = os.pipe()
        failed: list[BaseException] = []

        def work() -> None:
            try:
                load()
            except BaseException as error:
                failed.append(error)
            finally:
                os.write(waker, b".")

        thread = threading.Thread(target=work, daemon=True)
        try:
            if self._listen(awake, _AT_ONCE):
                thread.start()
                self._listen(awake, None)
        finally:
            if thread.ident is None:
                thread.start()
            thread.join()
            os.close(awake)
            os.close(waker)
        if failed:
            raise failed[0]

    def _listen(self, awake: int, timeout: float | None) -> bool:
        """Answer requests; True after a silence of `timeout`, False where the package goes on."""
        while True:
            while (end := self._unread.find(b"\n")) >= 0:
                if not self._answer(bytes(self._unread[: end + 1])):
                    return False
                del self._unread[: end + 1]
            ready = select.select([self.wire[0], awake], [], [], timeout)[0]
            if not ready:
                return True
            if awake in ready:
                return False
            data = os.read(self.wire[0], 1 << 16)
            if not data:
                return False  # the package will find the end of input too
            self._unread += data

    def _answer(self, line: bytes) -> bool:
        """Answer one message; False if that is the package's to do."""
        try:
            message = json.loads(line)
            method, params = message.get("method"), message.get("params") or {}
            modern = _MODERN in (params.get("_meta") or {})
            if message.get("jsonrpc") != "2.0":
                return False
        except (ValueError, AttributeError, TypeError, RecursionError):
            return False
        if self._greeted and method == "notifications/initialized" and "id" not in message:
            self._replay += line
            return True
        id = message.get("id")
        if type(id) not in (int, str):
            return False
        if modern:
            result = self._discovered(params["_meta"]) if method == "server/discover" else None
        else:
            result = self._result(method, params)
        if result is None:
            return False
        if method == "initialize":
            self._greeted = True
            self._replay += line
            self.answered.add(id)
        data = json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode() + b"\n"
        while data:
            data = data[os.write(self.wire[1], data) :]
        return True

    def _result(self, method: object, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "initialize" and not self._greeted and self._versions and _is_valid(params):
            return self._greeting(params["protocolVersion"])
        if not self._greeted:
            return None
        # With the channel, the package has to see the first request after the greeting.
        if method == "tools/list" and not params.get("cursor") and not self._settings.channel:
            return {"tools": self._session.definitions}
        return {} if method == "ping" else None

    def _greeting(self, version: str) -> dict[str, Any]:
        return {
            "protocolVersion": version if version in self._versions else self._versions[-1],
            "serverInfo": _ABOUT,
            **self._offer(modern=False),
        }

    def _discovered(self, meta: dict[str, Any]) -> dict[str, Any] | None:
        known = meta.get(_MODERN) in self._stateless and isinstance(meta.get(_CAPABLE_OF), dict)
        if self._greeted or not known or not _is_client(meta.get(_CLIENT)):
            return None
        return {
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "private",
            "supportedVersions": list(self._stateless),
            "_meta": {_SERVER: _ABOUT},
            **self._offer(modern=True),
        }

    def _offer(self, *, modern: bool) -> dict[str, Any]:
        offered = capabilities(channel=self._settings.channel, modern=modern)
        offer: dict[str, Any] = {"capabilities": offered}
        if instructions := self._session.tools.dialect.instructions:
            offer["instructions"] = instructions
        return offer


_ABOUT = {"name": NAME, "title": TITLE, "version": VERSION}


def _is_valid(params: dict[str, Any]) -> bool:
    """True if the package would take it too; what it would not, it refuses in its own words."""
    return (
        isinstance(params.get("protocolVersion"), str)
        and isinstance(params.get("capabilities"), dict)
        and _is_client(params.get("clientInfo"))
    )


def _is_client(about: object) -> bool:
    return (
        isinstance(about, dict)
        and isinstance(about.get("name"), str)
        and isinstance(about.get("version"), str)
    )
