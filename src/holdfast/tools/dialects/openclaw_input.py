"""Typing as OpenClaw's `process` does it: write, send-keys, submit, paste."""

from __future__ import annotations

import re
from itertools import groupby

from ...core.errors import BadRequest, Unavailable
from ...terminal.keys import Key, parse
from .openclaw_words import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...client.process import Process

STDIN_CLOSED = " (stdin closed)."
_MODIFIED = re.compile(r"(?:[CMS]-)+(.+)", re.IGNORECASE | re.DOTALL)
_HEX = re.compile(r"(?:0x)?([0-9a-f]{1,2})", re.IGNORECASE)


async def typed(
    process: Process,
    action: str,
    data: str = "",
    eof: bool = False,
    literal: str = "",
    hex: Sequence[str] = (),
    keys: Sequence[str] = (),
    text: str = "",
    bracketed: bool = True,
    **_: Any,
) -> str:
    """Do it, and say so."""
    if action == "write":
        return await _write(process, _raw(data), eof)
    if action == "send-keys":
        return await _send_keys(process, literal, hex, keys)
    if action == "paste":
        return await _paste(process, text, bracketed)
    await process.send("", enter=True)
    sent = "CR" if process.record.capabilities.terminal else "LF"
    return f"Submitted session {process.handle} (sent {sent})."


async def _write(process: Process, data: bytes, eof: bool) -> str:
    written = await process.send(data, eof=eof)
    if written < len(data):
        return (
            f"Wrote {written} bytes to session {process.handle}.\nIt does not read the other "
            f"{len(data) - written} now; write them again later."
        )
    return f"Wrote {written} bytes to session {process.handle}{STDIN_CLOSED if eof else '.'}"


async def _send_keys(
    process: Process, literal: str, hexes: Sequence[str], keys: Sequence[str]
) -> str:
    """Text, then bytes, then keys; what is no key is typed as it is."""
    warnings = []
    raw = _raw(literal)
    for each in hexes:
        if digits := _HEX.fullmatch(each.strip()):
            raw += bytes([int(digits[1], 16)])
        else:
            warnings.append(f"Invalid hex byte: {cut(each, 40)}")
    parts: list[bytes | Key] = [raw] if raw else []
    for each in filter(None, keys):
        try:
            parts.append(parse(each))
        except BadRequest:
            base = each
            if modified := _MODIFIED.fullmatch(each):
                base = modified[1]
                warnings.append(f'Unknown key "{cut(base, 40)}" for modifiers; sending literal.')
            parts.append(_raw(base))
    if not parts:
        raise BadRequest("\n- ".join(["No key data provided.", *warnings]))
    if not process.record.capabilities.terminal and any(isinstance(part, Key) for part in parts):
        raise BadRequest(
            f"Session {process.handle} has no terminal to press keys in; use write, or start it "
            "again with exec pty=true."
        )
    sent = 0
    for kind, run in groupby(parts, type):
        if kind is Key:
            pressed = [part for part in run if isinstance(part, Key)]
            await process.keys(*(key.shown for key in pressed))
            sent += sum(map(_size, pressed))
        else:
            sent += await process.send(b"".join(part for part in run if isinstance(part, bytes)))
    told = f"Sent {sent} bytes to session {process.handle}."
    return told + ("\nWarnings:\n- " + "\n- ".join(warnings) if warnings else "")


async def _paste(process: Process, text: str, bracketed: bool) -> str:
    if not text:
        raise BadRequest("No paste text provided.")
    try:
        await process.send(text, paste=bracketed and process.record.capabilities.terminal)
    except Unavailable:  # nothing here can tell whether the program wants brackets
        await process.send(text)
    return f"Pasted {len(text)} chars to session {process.handle}."


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _size(key: Key) -> int:
    try:
        return len(key.code())
    except BadRequest:
        return 1  # not every terminal has it; whether this one does, `keys` finds out
