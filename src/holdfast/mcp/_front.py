"""The first answers on stdio, before the package is there.

DESIGN. Importing `mcp` takes half a second, and some clients begin without a server that is so
slow. What older clients ask first (initialize, tools/list, ping) needs nothing of it. So that is
answered here, while a thread imports. Anything else that is asked, or the end of the import, ends
this, and the package takes over: it is given `initialize` again, so that it knows the client, and
its answer to that is dropped, because it was given. Newer clients are the package's from their
first line on. Nothing is held yet, so a signal may end it all on the spot.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading

from .._version import __version__
from ._session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._session import Settings

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_MODERN = "io.modelcontextprotocol/protocolVersion"
_AT_ONCE = 0.002  # a client that asks later than this is not kept waiting by the import's beginning


def claim() -> tuple[int, int]:
    """Descriptors of our own for the wire; 0 reads nothing and 1 goes to stderr from now on."""
    wire = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return wire


class Front:
    def __init__(self, wire: tuple[int, int], settings: Settings) -> None:
        self.wire = wire
        self.answered: set[Any] = set()  # requests whose answer by the package is dropped
        self._settings = settings
        self._tools = Session(settings, "unused").tools
        self._again = b""
        self._unread = bytearray()
        self._known = False

    @property
    def said(self) -> bytes:
        """What the package is to read before anything that comes from now on."""
        return self._again + bytes(self._unread)

    def run(self, load: Callable[[], None]) -> None:
        """Answer what can be answered until `load` is done, which is done in any case."""
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
        """Answer as long as we know what to say; True if there was nothing to be heard in time."""
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
        try:
            message = json.loads(line)
            method, params = message.get("method"), message.get("params") or {}
            modern = _MODERN in (params.get("_meta") or {})
            if message.get("jsonrpc") != "2.0":
                return False
        except (ValueError, AttributeError, TypeError, RecursionError):
            return False
        if self._known and method == "notifications/initialized" and "id" not in message:
            self._again += line
            return True
        id = message.get("id")
        if modern or type(id) not in (int, str):
            return False
        result = self._result(method, params)
        if result is None:
            return False
        if method == "initialize":
            self._known = True
            self._again += line
            self.answered.add(id)
        data = json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode() + b"\n"
        while data:
            data = data[os.write(self.wire[1], data) :]
        return True

    def _result(self, method: object, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "initialize" and not self._known and _makes_sense(params):
            return self._hello(params["protocolVersion"])
        if not self._known:
            return None
        # With the channel, the package has to see the first request after the greeting.
        if method == "tools/list" and not params.get("cursor") and not self._settings.channel:
            return {"tools": self._tools.definitions("mcp")}
        return {} if method == "ping" else None

    def _hello(self, version: str) -> dict[str, Any]:
        capabilities: dict[str, Any] = {
            "resources": {"subscribe": True, "listChanged": True},
            "tools": {"listChanged": False},
        }
        if self._settings.channel:
            capabilities["experimental"] = {"claude/channel": {}}
        return {
            "protocolVersion": version if version in _VERSIONS else _VERSIONS[-1],
            "capabilities": capabilities,
            "serverInfo": {"name": "holdfast", "title": "holdfast", "version": __version__},
            "instructions": self._tools.dialect.instructions,
        }


def _makes_sense(params: dict[str, Any]) -> bool:
    """Whether the package would take it too; what it would not, it refuses in its own words."""
    about = params.get("clientInfo")
    return (
        isinstance(params.get("protocolVersion"), str)
        and isinstance(params.get("capabilities"), dict)
        and isinstance(about, dict)
        and isinstance(about.get("name"), str)
        and isinstance(about.get("version"), str)
    )
