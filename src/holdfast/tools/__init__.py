"""Tools for models: one toolset, in the vocabulary that the model already knows.

    tools = holdfast.Toolset(client, dialect="native")
    request(tools=tools.definitions("anthropic"))
    result = await tools.call(block.name, block.input)

A dialect is a file in `dialects`; `Toolset` adds what all of them share: arguments are checked
before anything is done, errors become answers that tell the model what to do, and what the session
was not told of yet comes along with the next answer, whatever it was that was asked.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import time
from dataclasses import replace

from ..client.client import Client
from ..client.config import UNSET
from ..client.labels import labelled, note
from ..core.completion_text import as_many_as_fit
from ..core.errors import BadRequest, HoldfastError
from ..core.units import parse_patience
from ._confinement import STARTED, Confinement, confinement
from ._forged_notices import told_apart
from ._schema import check
from ._tool import CALL, Call, Reply, Result, published

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    from ..core.record import Event
    from ..core.types import DialectName, Duration, Progress, Size, Style
    from ._adoption import Adoption
    from ._dialect import Dialect
    from ._tool import Tool

__all__ = ["DIALECTS", "Result", "Toolset", "load_dialect", "told_apart"]

# name: the module and class that has it. Loaded only when used.
DIALECTS = {
    "native": ("native", "Native"),
    "duragent": ("duragent", "Duragent"),
    "claude-code": ("claude_code", "ClaudeCode"),
    "deepchat": ("deepchat", "DeepChat"),
    "dodo": ("dodo", "Dodo"),
    "codex": ("codex", "Codex"),
    "openclaw": ("openclaw", "OpenClaw"),
    "hermes": ("hermes", "Hermes"),
}
STYLES = ("anthropic", "openai", "mcp")
_CLAIM_PATIENCE = 5.0  # for a keeper that says nothing: they can come with a later result
# Calls of one turn come together. One that comes so many seconds after another that is not answered
# yet is a sign that the caller no longer waits for that one.
_OVERTAKEN = 4.0


class Toolset:
    """The tools of one dialect over a client; made for one conversation, the client's session.

    With `adoption`, the first answer tells of what lost sessions of the same directory left behind,
    and a tool `adopt` takes it over.

    With `docker` (an image, or as for `Client.spawn`) every command runs in a container, with
    `sandbox` in a sandbox, whatever the dialect and whatever a model says; in the agent's
    directory, which is all that they share with it. `memory`, `cpu`, `processes` and `files` are
    the most that each may have.

    The others are options of one dialect or another, under the names that they have there:

    - claude-code: `names` of the tools, those of its shells or Claude's own
    - codex: `stdin`, `max_running`, `background_terminal_max_timeout` in milliseconds
    - hermes: `timeout` and `max_foreground_timeout` in seconds, `max_running`
    - deepchat: `backgroundMs`, `cleanupMs`, `timeoutSec`, `maxOutputChars`
    - openclaw: `backgroundMs`, `cleanupMs`, `timeoutSeconds`
    """

    def __init__(
        self,
        client: Client,
        dialect: DialectName = "native",
        *,
        adoption: bool = False,
        docker: str | Mapping[str, Any] | None = None,
        sandbox: bool | Mapping[str, Any] = False,
        memory: Size | None = UNSET,
        cpu: float | None = UNSET,
        processes: int | None = UNSET,
        files: int | None = UNSET,
        names: Literal["shell", "claude"] = UNSET,
        stdin: bool = UNSET,
        max_running: int = UNSET,
        background_terminal_max_timeout: int = UNSET,
        timeout: int = UNSET,
        max_foreground_timeout: int = UNSET,
        backgroundMs: float | None = UNSET,
        cleanupMs: float | None = UNSET,
        timeoutSec: float = UNSET,
        timeoutSeconds: float = UNSET,
        maxOutputChars: int = UNSET,
    ) -> None:
        if not isinstance(client, Client):
            raise BadRequest(
                "a Toolset needs a Client, from `async with connect()`; SyncToolset takes a "
                "SyncClient, from `with connect()`"
            )
        self.client = client
        options = {
            "names": names,
            "stdin": stdin,
            "max_running": max_running,
            "background_terminal_max_timeout": background_terminal_max_timeout,
            "timeout": timeout,
            "max_foreground_timeout": max_foreground_timeout,
            "backgroundMs": backgroundMs,
            "cleanupMs": cleanupMs,
            "timeoutSec": timeoutSec,
            "timeoutSeconds": timeoutSeconds,
            "maxOutputChars": maxOutputChars,
        }
        given = {name: value for name, value in options.items() if value is not UNSET}
        self.dialect = _made(load_dialect(dialect), client, given)
        self.dialect.confinement = confined = confinement(
            client,
            docker=docker,
            sandbox=sandbox,
            memory=memory,
            cpu=cpu,
            processes=processes,
            files=files,
        )
        self._tools: dict[str, Tool] = {
            tool.name: _confined(tool, confined) for tool in self.dialect.tools()
        }
        self._adoption: Adoption | None = None
        if adoption:
            from ._adoption import Adoption

            self._adoption = Adoption(client, confined)
            self._tools["adopt"] = self._adoption.tool()
        self._shown: dict[str, Event] = {}  # in an answer, and not acknowledged yet
        self._acknowledging: set[str] = set()  # of those
        self._called = 0.0  # when the last call came
        self._leased = False

    def __repr__(self) -> str:
        return f"<holdfast.Toolset {self.dialect.name} session={self.client.session!r}>"

    @property
    def names(self) -> list[str]:
        return [tool.name for tool in self._tools.values() if not tool.hidden]

    @property
    def callable(self) -> frozenset[str]:
        """Every name that can be called: some that no model is told of, too."""
        return frozenset(self._tools)

    def definitions(self, style: Style = "anthropic") -> list[dict[str, Any]]:
        """The tools as a model's API, or an MCP client, wants them described."""
        if style not in STYLES:
            raise BadRequest(f"definitions are for {', '.join(STYLES)}, not {style!r}")
        found = [self._tools[name].definition(style) for name in self.names]
        if style == "mcp" and self.dialect.always_loaded:
            found = [{**each, "_meta": {"anthropic/alwaysLoad": True}} for each in found]
        return found

    async def call(
        self,
        name: str,
        arguments: dict[str, Any] | str | None = None,
        *,
        patience: Duration | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Do what a model asked for; what it did wrong is an answer too, never an exception.

        `arguments` may be the JSON text that some APIs give. With `patience`, calls that block
        answer within that time, with a word that the process goes on. `progress` is called every
        few seconds meanwhile, with the seconds so far and a line of text, and may be asynchronous.
        """
        seconds = None if patience is None else parse_patience(patience, "patience")
        return await self._perform(Call(seconds, progress), name, arguments)

    async def _perform(
        self, call: Call, name: str, arguments: dict[str, Any] | str | None
    ) -> Result:
        if not call.detached:  # which nobody makes now, having read the results before
            self._called = call.began
            await self._acknowledge_shown()
            if self._adoption is not None:
                self._adoption.called()
        given: dict[str, Any] = {}
        notes: list[str] = []
        within, done_as = STARTED.set(call.started), CALL.set(call)
        try:
            call.tool = tool = self._named(name)
            given = check(tool.renamed(_parsed(arguments, name)), tool.schema, name)
            given = {
                key: self._handles(value, notes) if key in tool.handles else value
                for key, value in given.items()
            }
            call.arguments = given
            await self._lease()
            answer = await tool.run(call, **given)
            text = answer.text if isinstance(answer, Reply) else None
            result = Result(answer, text=text)
        except HoldfastError as error:
            answer = self.dialect.failure(error, name, given)
            text = answer.text if isinstance(answer, Reply) else None
            result = Result(answer, text=text, error=error)
        finally:
            STARTED.reset(within)
            CALL.reset(done_as)
            if not call.detachable:
                await call.let_go()
        if notes:
            result.add_note("; ".join(notes))
        if call.leaves and call.detachable and not result.is_error and call.left_running:
            call.detach()
        if call.detached:
            return result  # events come with what is read at once
        with contextlib.suppress(HoldfastError):  # it comes with a later answer then
            if self._adoption is not None:
                await self._adoption.tell(result)
            if self._awaited(call):
                await self._add_events(result)
        return result

    def _awaited(self, call: Call) -> bool:
        """The caller still waits for this result, as far as one can know: news may go with it.

        Some give up on a call without a word, and what came too late would count as read when they
        call again.
        """
        late = call.patience is not None and time.monotonic() - call.began > call.patience
        return not late and self._called - call.began <= _OVERTAKEN

    def _named(self, name: str) -> Tool:
        try:
            return self._tools[name]
        except KeyError:
            names = ", ".join(self.names)
            raise BadRequest(f"there is no tool {str(name)[:60]!r}; there are {names}") from None

    def _handles(self, given: Any, notes: list[str]) -> Any:
        """A handle, or several, for whatever labels were given; what is neither stays as it is."""
        if isinstance(given, list):
            return [self._handles(each, notes) for each in given]
        record = labelled(self.client.store, self.client.session, given)
        if record is None:
            return given
        notes.append(note(given, record, self.client.session))
        return record.handle

    async def _lease(self) -> None:
        grace = self.dialect.lease_grace
        if not self._leased and grace is not None:
            await self.client.lease(grace)
            self._leased = True

    # -- what the session is to be told --------------------------------------------------------

    async def _acknowledge_shown(self) -> None:
        """The model has read what it was shown before, else it would not ask again."""
        read = {id: e for id, e in self._shown.items() if id not in self._acknowledging}
        if not read:
            return
        self._acknowledging |= read.keys()
        try:
            await self.client.acknowledge(*read.values())
            self._shown = {id: e for id, e in self._shown.items() if id not in read}
        except HoldfastError:
            return  # the next call tries again
        finally:
            self._acknowledging -= read.keys()

    async def _add_events(self, result: Result) -> None:
        """Add what nobody else tells of: claimed, until the model has read it."""
        fresh = [event async for event in self.client.events()]
        texts = as_many_as_fit(fresh, self.notice)
        if not texts:
            return
        wanted = [event for event in fresh if event.id in texts]
        mine = await self.client.claim(*wanted, timeout=_CLAIM_PATIENCE)
        self._shown.update((event.id, event) for event in mine)
        told = [{**_shown(each, texts[each.id]), **self._published(each)} for each in mine]
        left = len(fresh) - len(texts)
        if left:
            told.append({"type": "more", "text": f"{left} more events come with the next results"})
        if told:
            result.add_events(told)

    def notice(self, event: Event) -> str:
        """The text of an event, in the words of the dialect."""
        return self.dialect.notice(event)

    async def read(self) -> None:
        """Say that the model has read all results so far, as it has when it answered its user.

        Else the next call says so; until then this program's death has their events told again.
        """
        await self._acknowledge_shown()

    async def unread(self, result: Result) -> None:
        """Say that a result did not reach its model: its events come with the next one.

        Or somebody else in the session tells of them.
        """
        ids = [each.get("id") for each in result.get("events", [])]
        events = [self._shown.pop(each) for each in ids if each in self._shown]
        with contextlib.suppress(HoldfastError):
            await self.client.release(*events)

    def _published(self, event: Event) -> dict[str, Any]:
        """The ports of the container it is about, as in every result."""
        try:
            record = self.client.store.load(event.handle) if event.handle else None
        except HoldfastError:
            return {}
        return {} if record is None else published(record)


def load_dialect(name: str) -> type[Dialect]:
    try:
        module, cls = DIALECTS[name]
    except (KeyError, TypeError):
        known = ", ".join(DIALECTS)
        raise BadRequest(f"there is no dialect {name!r}; there are {known}") from None
    found: type[Dialect] = getattr(importlib.import_module(f".dialects.{module}", __name__), cls)
    return found


def _made(dialect: type[Dialect], client: Client, options: dict[str, Any]) -> Dialect:
    try:
        return dialect(client, **options)
    except TypeError as error:
        code = dialect.__init__.__code__
        takes = [
            name
            for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            if name not in ("self", "client")
        ]
        odd = [name for name in options if name not in takes]
        if not odd:
            raise BadRequest(
                f"the options of dialect {dialect.name} make no sense: {error}"
            ) from None
        its = f"it takes {', '.join(takes)}" if takes else "it takes none"
        raise BadRequest(f"dialect {dialect.name} has no option {odd[0]!r}; {its}") from None


def _confined(tool: Tool, confinement: Confinement) -> Tool:
    """With a word about where commands run."""
    if not tool.starts or not confinement.words:
        return tool
    return replace(tool, description=f"{tool.description} {confinement.words}")


def _parsed(arguments: dict[str, Any] | str | None, name: str) -> object:
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the arguments of {name} are no JSON: {error}") from None


def _shown(event: Event, text: str) -> dict[str, Any]:
    """An event as a model is told of it: the text says it all, the rest is for programs."""
    told = {
        "id": event.id,
        "type": event.type,
        "handle": event.handle,
        "group": event.group,
        "status": event.status,
        "exit_code": event.exit_code,
        "text": text,
    }
    return {key: value for key, value in told.items() if value not in (None, "")}
