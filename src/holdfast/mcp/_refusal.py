"""The answer to a line that is no message: whoever sent it waits for one.

What cannot be read may be JSON all the same, nested more deeply than parsers go. Its id is looked
for without taking it apart, so that the answer reaches the call that waits for it.
"""

from __future__ import annotations

import json
import re

import mcp_types as types

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}:,]|[^]\s"[{}:,]++|"')
_OPENS = {b"}": b"{", b"]": b"["}


def refusal(line: bytes) -> types.JSONRPCError | None:
    """The error to answer with; None for an answer to us, which is not answered again."""
    try:
        json.loads(line)
    except RecursionError:
        pass
    except ValueError:
        return _no_json()
    found = _outermost(line)
    if found is None:
        return _no_json()
    if "method" not in found and ("result" in found or "error" in found):
        return None
    id = found.get("id")
    return _error(
        id if type(id) in (int, str) else None,
        types.INVALID_REQUEST,
        "Invalid request: no message of JSON-RPC 2.0, or nested too deeply",
    )


def _no_json() -> types.JSONRPCError:
    return _error(None, types.PARSE_ERROR, "Parse error: a message is one line of JSON")


def _error(id: object, code: int, text: str) -> types.JSONRPCError:
    error = {"code": code, "message": f"{text}; nothing was done"}
    return types.JSONRPCError.model_validate({"jsonrpc": "2.0", "id": id, "error": error})


def _outermost(line: bytes) -> dict[str, object] | None:
    """The names in the outermost object, with values that are plain; None for what is torn."""
    found: dict[str, object] = {}
    inside: list[bytes] = []
    name, named = b"", False  # the last text there, and whether its value comes now
    for match in _TOKEN.finditer(line):
        token = match[0]
        if token == b'"':
            return None  # a text without an end
        if inside == [b"{"] and token not in (b"}", b"]"):
            if token == b":":
                named = True
            elif named:
                found[str(_plain(name))] = _plain(token)
                named = False
            else:
                name = token
        if token in (b"{", b"["):
            inside.append(token)
        elif token in _OPENS and (not inside or inside.pop() != _OPENS[token]):
            return None
    return None if inside else found


def _plain(token: bytes) -> object:
    try:
        return None if token in (b"{", b"[") else json.loads(token)
    except ValueError:
        return None
