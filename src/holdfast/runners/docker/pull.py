"""Fetching an image, with a line of progress for each state of each layer."""

from __future__ import annotations

import json
import select
from urllib.parse import quote

from .engine import Engine, EngineError
from .refusal import Refused, silent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SILENCE = 300.0


def has(engine: Engine, image: str) -> bool:
    try:
        engine.call("GET", f"/images/{quote(image)}/json")
    except EngineError as error:
        if error.status == 404:
            return False
        raise
    return True


def pull(
    engine: Engine,
    image: str,
    login: str,
    say: Callable[[str], None],
    woken: int,
    stopped: Callable[[], bool],
) -> bool:
    """Returns whether it is there now; not if we were stopped meanwhile (`woken` is readable)."""
    name, tag = _split(image)
    query = f"fromImage={quote(name, safe='')}" + (f"&tag={quote(tag, safe='')}" if tag else "")
    try:
        where = f"/images/create?{query}"
        end, rest = engine.open("POST", where, timeout=_SILENCE, login=login)
    except EngineError as error:
        if error.status == 0:
            raise silent(error, engine.path) from None
        raise _failed(image, error.message) from None
    told: set[tuple[str, str]] = set()
    with end:
        while True:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                _tell(image, line, told, say)
            ready, _, _ = select.select([end.fileno(), woken], [], [], _SILENCE)
            if woken in ready and stopped():
                return False
            if not ready:
                raise _failed(image, "nothing has come for five minutes")
            if end.fileno() not in ready:
                continue
            try:
                piece = end.recv(1 << 16)
            except OSError as error:
                raise _failed(image, error.strerror or str(error)) from None
            if not piece:
                break
            rest += piece
        _tell(image, rest, told, say)
    if not has(engine, image):
        raise _failed(image, "the engine stopped before it was complete")
    return True


def _tell(image: str, line: bytes, told: set[tuple[str, str]], say: Callable[[str], None]) -> None:
    if not line.strip():
        return
    try:
        state: dict[str, Any] = json.loads(line)
    except ValueError:
        return
    if "error" in state:
        raise _failed(image, str(state["error"]))
    what = str(state.get("id") or ""), str(state.get("status") or "")
    if what not in told and what[1]:
        told.add(what)
        say(f"{what[0]}: {what[1]}" if what[0] else what[1])


def _failed(image: str, cause: str) -> Refused:
    return Refused(
        f"the image {image} cannot be pulled: {cause.strip().rstrip('.')}; check its name, the "
        "network and docker login",
        "unavailable",
    )


def _split(image: str) -> tuple[str, str]:
    """Name and tag; without a tag the engine would pull all of them."""
    if "@" in image:
        return image, ""
    head, slash, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    return head + slash + name, tag or "latest"
