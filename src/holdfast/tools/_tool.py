"""One tool: what a model is shown of it, one call of it, and what comes back."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial

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

# The call that is being done.
CALL: ContextVar[Call | None] = ContextVar("call", default=None)
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
    resumable: bool = False  # called again with the same arguments it goes on waiting

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
    """One call while it lasts: how long it may block, and who is told how it goes.

    A call that is `detachable` may be answered before it is over (`detach`), and its result read
    later or never. So it acknowledges no end that it shows: it holds on to them until its caller
    says that the result was read (`told`), or gives it up (`let_go`).
    """

    __slots__ = (
        "_blocked",
        "_ends",
        "_held",
        "_progress",
        "_shown",
        "_then",
        "_waited",
        "arguments",
        "began",
        "detachable",
        "detached",
        "leaves",
        "limit",
        "only_ends",
        "patience",
        "started",
        "tool",
        "waits_for",
    )

    def __init__(
        self,
        patience: float | None = None,
        progress: Progress | None = None,
        *,
        detachable: bool = False,
        leaves: bool = False,
    ) -> None:
        self.began = time.monotonic()
        self.patience = patience
        self._ends = None if patience is None else self.began + max(0.0, patience - _MARGIN)
        self._progress = progress
        self.detachable = detachable
        self.leaves = leaves  # a process that runs on is detached, too
        self.detached = False
        self.tool: Tool | None = None
        self.arguments: dict[str, Any] = {}  # checked, and with handles for labels
        self.started: list[Process] = []
        self.waits_for: list[Process] = []  # in this moment
        self.only_ends = False  # and it waits for nothing but their ends
        self.limit: float | None = None  # of that wait, in seconds, whatever the caller's patience
        self._blocked = False  # it has waited for something
        self._held: list[Process] = []  # whose ends are claimed, besides those it started
        self._shown: list[Process] = []  # whose ends the result shows
        self._then: dict[str, Callable[[], Awaitable[None]]] = {}
        self._waited: list[Waited] = []

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def left(self, timeout: float | None) -> tuple[float | None, bool]:
        """The time to wait, and whether that is because the caller's patience ends before."""
        if self._ends is None:
            return timeout, False
        left = max(0.0, self._ends - time.monotonic())
        return (timeout, False) if timeout is not None and timeout <= left else (left, True)

    def at_most(self, seconds: float) -> None:
        """Lower the caller's patience, unless nobody waits for the answer."""
        if not self.detached:
            until = time.monotonic() + seconds
            self._ends = until if self._ends is None else min(self._ends, until)

    async def say(self, text: str) -> None:
        if self._progress is not None:
            answer = self._progress(self.elapsed, text)
            if hasattr(answer, "__await__"):
                await answer

    # -- one that goes on without its caller ---------------------------------------------------

    def detach(self) -> None:
        """Go on without the caller, who was answered: as long as it lasts, and in silence."""
        self.detached = True
        self._ends = self._progress = None

    @property
    def left_running(self) -> Process | None:
        """The one process that it started and did not wait for at all.

        Not one with ports of a container: the result says where those are.
        """
        if self._blocked or len(self.started) != 1:
            return None
        record = self.started[0].record
        return self.started[0] if record.running and not record.ports else None

    async def hold(self) -> None:
        """Claim the ends that the result shows, or is to show, after they were let go of."""
        for process in (*self.started, *self._held):
            with suppress(HoldfastError):
                await process.claim()

    async def let_go(self) -> None:
        """The result is read by nobody: whoever else is there tells of the ends."""
        for process in (*self.started, *self._held):
            with suppress(HoldfastError):
                await process.release()

    async def told(self) -> None:
        """The result was read: what it shows counts as told, and the rest is anybody's again."""
        for waited in self._waited:
            waited.keep_places()
        for process in self._shown:
            with suppress(HoldfastError):  # it may have been removed since
                await process.wait(0)
        for acknowledge in self._then.values():
            with suppress(HoldfastError):
                await acknowledge()
        await self.let_go()

    def saw(self, record: Record, acknowledge: Callable[[Record], Awaitable[None]]) -> None:
        """The result shows the end of this one, too; acknowledge that when it was read."""
        self._then[record.handle] = partial(acknowledge, record)

    @property
    def ends(self) -> set[str]:
        """The handles of those whose ends the result shows."""
        return {*(process.handle for process in self._shown), *self._then}

    async def _hold(self, processes: Sequence[Process]) -> None:
        for process in processes:
            if process not in self._held and process not in self.started:
                self._held.append(process)
                with suppress(HoldfastError):
                    await process.claim()

    # -- waiting -------------------------------------------------------------------------------

    async def wait(self, process: Process, timeout: float | None = None) -> Exit | None:
        """Wait for its end; None if it does not come before time or the caller's patience is up."""
        claimed = process.claimed or not process.record.running
        if self.detachable:
            await self._hold([process])
        elif not claimed:
            with suppress(WaitTimeout):  # from a keeper that says nothing
                await process.claim()  # for all of it, not for each piece
        self._begin([process], timeout)
        try:
            for step in self._steps(timeout):
                try:
                    ended = await process.wait(step, acknowledge=not self.detachable)
                except WaitTimeout:
                    await self.say(f"{process.handle} is running")
                    continue
                self._shown.append(process)
                return ended
            return None
        finally:
            self.waits_for = []
            if not claimed and not self.detachable:
                await process.release()

    def _begin(
        self, processes: Sequence[Process], timeout: float | None, *, only_ends: bool = True
    ) -> None:
        self.waits_for, self.limit, self._blocked = list(processes), timeout, True
        self.only_ends = only_ends

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
        began = time.monotonic()
        progress = None if self._progress is None else self._waiting
        if self.detachable:
            await self._hold(processes)
        ends = [each == "exit" for each in conditions]
        self._begin(processes, timeout, only_ends=False not in ends)
        try:
            while True:
                passed = time.monotonic() - began
                rest, cut_short = self.left(None if timeout is None else max(0.0, timeout - passed))
                waited = await client.wait_for(
                    processes,
                    *conditions,
                    all=all,
                    timeout=rest,
                    progress=progress,
                    acknowledge=not self.detachable,
                )
                if not (waited.timed_out and cut_short and self.detached):
                    break
        finally:
            self.waits_for = []
        if self.detachable:
            self._waited.append(waited)
            self._shown += [each for each in processes if each.handle in waited.ended]
        waited.seconds = time.monotonic() - began
        return waited

    async def _waiting(self, seconds: float, text: str) -> None:
        await self.say(f"waiting for {text}")

    def _steps(self, timeout: float | None) -> Iterator[float | None]:
        """The pieces a wait is cut into, so that there is a word about it now and then."""
        began = time.monotonic()
        while True:
            passed = time.monotonic() - began
            left, _ = self.left(None if timeout is None else max(0.0, timeout - passed))
            piece = None if self._progress is None else _PROGRESS
            yield piece if left is None else left if piece is None else min(piece, left)
            # Asked again, since the caller may have been answered meanwhile.
            passed = time.monotonic() - began
            left, _ = self.left(None if timeout is None else max(0.0, timeout - passed))
            if left == 0.0:
                return
