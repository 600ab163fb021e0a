"""The protocol between client and keeper: JSON lines over a Unix socket, both ends in one file.

A client begins with a greeting and goes on with requests; it need not wait in between.

    -> {"hello": 1, "version": "0.1.0", "client": id, "session": name or null,
        "lease": {"grace": seconds} or null, "machine": [boot id, pid namespace]}
    <- {"hello": 1, "version": "0.1.0", "guard": pid, "worker": pid}
    -> {"id": 7, "verb": "kill", "handle": "proc-...", ...}
    <- {"id": 7, "ok": {...}}    or    {"id": 7, "error": {"code", "message", "handle", "detail"}}
    -> {"cancel": 7}             the client no longer waits for 7; what it started goes on

Every request can be repeated after a lost answer without doing its work twice: a spawn by the
handle the client chose, a send by its token, the rest because they ask for a state.

Text that is not UTF-8 (a path, an argument) travels as surrogate escapes, which JSON carries.
"""

from __future__ import annotations

import json

from ._errors import HoldfastError, KeeperError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROTOCOL = 3
# What a keeper answers to clients of any protocol, so that the newer of the two can replace it.
ALWAYS_ALLOWED = frozenset({"status", "restart", "quit"})
# What is answered only when something has happened or was stopped; everything else at once.
WAITS = frozenset(
    {
        "wait",
        "send",
        "kill",
        "remove",
        "stop_all",
        "stop_group",
        "close",
        "agent_watch",
        "agent_stop",
    }
)
# The longest line either end accepts: a spawn carries an environment (2 MiB at most on Linux), a
# send up to SEND_BYTES in base64.
LINE_LIMIT = 16 << 20
SEND_BYTES = 4 << 20

_encoder = json.JSONEncoder(separators=(",", ":"))


def encode(message: dict[str, Any]) -> bytes:
    return _encoder.encode(message).encode() + b"\n"


class Decoder:
    """Bytes in, messages out; holds the part of a line that has not arrived whole."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        buffer = self._buffer
        if not buffer and data.endswith(b"\n"):
            lines = data.split(b"\n")  # the common case: whole lines
        else:
            buffer += data
            if b"\n" not in data:
                if len(buffer) > LINE_LIMIT:
                    raise ValueError("a message longer than any the protocol has")
                return []
            *lines, rest = bytes(buffer).split(b"\n")
            buffer[:] = rest
        messages = []
        for line in lines:
            if line:
                message = json.loads(line)
                if not isinstance(message, dict):
                    raise ValueError("a message that is not an object")
                messages.append(message)
        return messages


def check_greeting(answer: dict[str, Any], version: str) -> HoldfastError | None:
    """Raise if the keeper cannot be spoken to, saying the way out.

    Of one with another protocol, which still answers what is always allowed, return that.
    """
    from ._errors import from_wire

    if "error" in answer:
        error = from_wire(answer["error"])
        if error.detail.get("version"):
            return error
        raise error
    if answer.get("hello") != PROTOCOL:
        return version_error(version, str(answer.get("version")), answer.get("hello"), PROTOCOL)
    return None


def version_error(client: str, keeper: str, theirs: object, ours: object) -> KeeperError:
    return KeeperError(
        f"the keeper is holdfast {keeper} (protocol {theirs}), this client is {client} (protocol "
        f"{ours}); run `holdfast keeper restart` with the newer one, which loses nothing",
        version=True,
    )
