"""One tool: what a model is shown of it, one call of it, and what comes back."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field

from ..core.errors import HoldfastError, WaitTimeout
from ..core.quote import json_line
from ._schema import object_schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence
    from typing import Any

    from ..client.client import Client
    from ..client.process import Process
    from ..client.wait_for import Waited
    from ..core.record import Exit, Record
    from ..core.types import Progress
    from ._schema import Schema

_PROGRESS = 5.0  # seconds between two words to whoever waits
# Of a caller's patience, so much is left for the answer to get there.
_MARGIN = 0.5


class Result(dict[str, "Any"]):
    """The result of a tool: a dictionary that is JSON as it is.

    `text` is what a model is shown: the same as JSON, unless the dialect has a form of its own. If
    it could not be done, `error` is what was raised, and the dictionary says what to do next.
    """

    def __init__(
        self, data: dict[str, Any], *, text: str | None = None, error: HoldfastError | None = None
    ) -> None:
        super().__init__(data)
        self._text = text
        self.error = error

    @property
    def is_error(self) -> bool:
        return self.error is not None

    @property
    def in_words(self) -> bool:
        """The text is the answer, and not the dictionary written as JSON."""
        return self._text is not None

    @property
    def text(self) -> str:
        if self._text is not None:
            return self._text
        return json_line(json.dumps(self, ensure_ascii=False))

    def add_events(self, events: list[dict[str, Any]]) -> None:
        """The events that the session had not been told of yet, whatever was asked."""
        self.add("events", events, "\n\n".join(event["text"] for event in events))

    def add_note(self, note: str) -> None:
        """A word about the answer, after those it has already."""
        self.add("note", f"{self['note']}; {note}" if "note" in self else note, f"[{note}]")

    def add(self, key: str, value: Any, text: str) -> None:
        """Something that nobody asked for: `text` is how a model is told where it sees no JSON."""
        self[key] = value
        if self._text is not None:
            self._text += f"\n\n{text}"


class Reply(dict[str, "Any"]):
    """The answer of a tool that shows its models something else than JSON."""

    def __init__(self, data: dict[str, Any], text: str) -> None:
        super().__init__(data)
        self.text = text


def published(record: Record) -> dict[str, Any]:
    """The ports of a container on this machine: ``{"ports": {"3000": 49153}}``."""
    return {"ports": record.ports} if record.ports else {}


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str
    run: Callable[..., Awaitable[dict[str, Any]]]  # (call, **arguments)
    properties: dict[str, Schema] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    title: str = ""
    reads: bool = False  # changes nothing
    destroys: bool = False  # may end something that cannot be begun again
    starts: bool = False  # a command that a model gives
    hidden: bool = False  # can be called, but no model is told of it
    also: dict[str, str] = field(default_factory=dict)  # other names of arguments: the one for each
    handles: tuple[str, ...] = ()  # the arguments that name processes, by handle or label

    @property
    def schema(self) -> Schema:
        return object_schema(self.properties, self.required)

    def renamed(self, arguments: object) -> object:
        """The same arguments by the names that the schema has; none is taken twice."""
        if not self.also or not isinstance(arguments, dict):
            return arguments
        found = dict(arguments)
        for other, name in self.also.items():
            if other in found and name not in found:
                found[name] = found.pop(other)
        return found

    @property
    def shown(self) -> Schema:
        """The schema without what is taken but no model is told of: ``"hidden": True``."""
        known = self.properties.items()
        return object_schema(
            {name: each for name, each in known if not each.get("hidden")}, self.required
        )

    def definition(self, style: str) -> dict[str, Any]:
        about = {"name": self.name, "description": self.description}
        if style == "anthropic":
            return {**about, "input_schema": self.shown}
        if style == "openai":
            return {"type": "function", "function": {**about, "parameters": self.shown}}
        return {
            **about,
            "title": self.title or self.name,
            "inputSchema": self.shown,
            "annotations": {
                "readOnlyHint": self.reads,
                "destructiveHint": self.destroys,
                "idempotentHint": self.reads,
                "openWorldHint": not self.reads,
            },
        }


class Call:
    """One call while it lasts: how long it may block, and who is told how it goes."""

    __slots__ = ("_ends", "_progress", "began")

    def __init__(self, patience: float | None = None, progress: Progress | None = None) -> None:
        self.began = time.monotonic()
        self._ends = None if patience is None else self.began + max(0.0, patience - _MARGIN)
        self._progress = progress

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def left(self, timeout: float | None) -> tuple[float | None, bool]:
        """The time to wait, and whether that is because the caller's patience ends before."""
        if self._ends is None:
            return timeout, False
        left = max(0.0, self._ends - time.monotonic())
        return (timeout, False) if timeout is not None and timeout <= left else (left, True)

    async def say(self, text: str) -> None:
        if self._progress is not None:
            answer = self._progress(self.elapsed, text)
            if hasattr(answer, "__await__"):
                await answer

    async def wait(self, process: Process, timeout: float | None = None) -> Exit | None:
        """Wait for its end; None if it does not come before time or the caller's patience is up."""
        claimed = process.claimed or not process.record.running
        if not claimed:
            with suppress(WaitTimeout):  # from a keeper that says nothing
                await process.claim()  # for all of it, not for each piece
        try:
            for step in self._steps(timeout):
                try:
                    return await process.wait(step)
                except WaitTimeout:
                    await self.say(f"{process.handle} is running")
            return None
        finally:
            if not claimed:
                await process.release()

    async def wait_for(
        self,
        client: Client,
        processes: Sequence[Process],
        conditions: Sequence[Any],
        *,
        all: bool = False,
        timeout: float | None = None,
    ) -> Waited:
        """Wait as `Client.wait_for` does, within the caller's patience."""
        whole, _ = self.left(timeout)
        progress = None if self._progress is None else self._waiting
        return await client.wait_for(
            processes, *conditions, all=all, timeout=whole, progress=progress
        )

    async def _waiting(self, seconds: float, text: str) -> None:
        await self.say(f"waiting for {text}")

    def _steps(self, timeout: float | None) -> Iterator[float | None]:
        """The pieces a wait is cut into, so that there is a word about it now and then."""
        whole, _ = self.left(timeout)
        until = None if whole is None else time.monotonic() + whole
        piece = None if self._progress is None else _PROGRESS
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            yield piece if left is None else left if piece is None else min(piece, left)
            if until is not None and time.monotonic() >= until:
                return
