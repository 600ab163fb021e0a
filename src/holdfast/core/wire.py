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

from .errors import BadRequest, HoldfastError, KeeperError, SpawnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PROTOCOL = 4
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
# The longest request: while it is taken in nobody else is answered. A spawn carries arguments and
# environment (2 MiB on most machines, never more than 6), a send up to SEND_BYTES in base64.
REQUEST_LIMIT = 6 << 20
ANSWER_LIMIT = 256 << 20
SEND_BYTES = 4 << 20
SEND_PIECE = 1 << 20  # what a client sends at once, so that others are answered in between

_encoder = json.JSONEncoder(separators=(",", ":"))


def encode(message: dict[str, Any]) -> bytes:
    return _encoder.encode(message).encode() + b"\n"


def encode_request(number: int, verb: str, args: dict[str, Any]) -> bytes:
    data = encode({"id": number, "verb": verb, **args})
    if len(data) > REQUEST_LIMIT:
        has = f"has {len(data) / (1 << 20):.1f} MiB"
        if verb == "spawn":
            raise SpawnError(
                f"arguments and environment are too long: the request {has}, and the keeper takes "
                f"at most {REQUEST_LIMIT >> 20} MiB at once; pass them in a file"
            )
        raise too_long(f"to {verb} {has}")
    return data


def too_long(which: str = "is too long") -> BadRequest:
    return BadRequest(
        f"the request {which}, and the keeper takes at most {REQUEST_LIMIT >> 20} MiB at once; "
        "pass long text in a file, or send it to the process's stdin"
    )


class Decoder:
    """Bytes in, messages out; holds the part of a line that has not arrived whole.

    Of a line that is too long, `overlong` gets the number of the request, and the rest of it is
    passed over; ValueError without.
    """

    __slots__ = ("_buffer", "_limit", "_overlong", "_skipping")

    def __init__(
        self, limit: int = ANSWER_LIMIT, overlong: Callable[[int], None] | None = None
    ) -> None:
        self._buffer = bytearray()
        self._limit = limit
        self._overlong = overlong
        self._skipping = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        buffer = self._buffer
        if self._skipping:
            _, end, data = data.partition(b"\n")
            if not end:
                return []
            self._skipping = False
        if not buffer and data.endswith(b"\n"):
            lines = data.split(b"\n")  # the common case: whole lines
        else:
            buffer += data
            if b"\n" not in data:
                if len(buffer) > self._limit:
                    self._pass_over()
                return []
            *lines, rest = bytes(buffer).split(b"\n")
            buffer[:] = rest
        messages: list[dict[str, Any]] = []
        for line in lines:
            if line:
                message = json.loads(line)
                if not isinstance(message, dict):
                    raise ValueError("a message that is not an object")
                messages.append(message)
        return messages

    def _pass_over(self) -> None:
        if self._overlong is None:
            raise ValueError("a message longer than any the protocol has")
        _, _, rest = bytes(self._buffer[:40]).partition(b'{"id":')  # as `encode_request` writes it
        number = rest.partition(b",")[0]
        self._buffer.clear()
        self._skipping = True
        self._overlong(int(number) if number.isdigit() else 0)


def check_greeting(answer: dict[str, Any], version: str) -> HoldfastError | None:
    """Raise if the keeper cannot be spoken to, saying the way out.

    Of one with another protocol, which still answers what is always allowed, return that.
    """
    from .errors import from_wire

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
