"""One MCP connection and the holdfast session it has: its client, its tools, its end.

DESIGN. A call that is cancelled must not undo or repeat anything: only waiting is given up. So what
is asked of the keeper goes through a link that asks to the end, whoever listens (`SteadyLink`).

The session is held from the first call on, until `let_go` (a lost client: the lease's grace begins)
or `end` (in good order: its processes stop). A connection that was let go of and is used again
holds the same session again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from ..client.client import Client, make_config
from ..client.config import UNSET
from ..client.link import Greeting
from ..client.link_asyncio import AsyncioLink
from ..core.errors import HoldfastError
from ..core.home import Home
from ..tools import load_dialect
from ..tools.detachable import DetachableToolset
from . import _subagents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..core.types import DialectName
    from ..tools import Result
    from ..tools.detachable import Call

# Requests that only wait. Everything else is done to its end.
_WAITS = frozenset({"wait", "agent_watch"})
# After these there is another list of processes.
_LISTED = frozenset({"spawn", "remove", "adopt"})
# Whoever ends us does not wait for long either; the keeper finishes what it was asked for.
_CLOSING = 1.5


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command line."""

    dialect: DialectName = "native"
    session: str | None = None
    on_exit: str | None = None  # "stop" or "grace"; None: as it ends
    channel: bool = False
    patience: float | None = None
    confinement: Mapping[str, Any] = field(default_factory=dict)  # as a Toolset takes it


class SteadyLink(AsyncioLink):
    listed: Callable[[], None] | None = None

    async def call(self, verb: str, args: dict[str, Any], timeout: float | None = None) -> Any:
        if verb in _WAITS or timeout is not None:
            return await super().call(verb, args, timeout)
        task = asyncio.get_running_loop().create_task(super().call(verb, args))
        self._posted.add(task)  # so that closing waits for it
        task.add_done_callback(self._posted.discard)
        answer = await asyncio.shield(task)
        if verb in _LISTED and self.listed is not None:
            self.listed()
        return answer


class Session:
    def __init__(self, settings: Settings, name: str, *, adoption: bool = True) -> None:
        self.name = name
        self._settings = settings
        self._adoption = adoption
        self._home = Home.locate()
        self._client: Client | None = None
        self._tools: DetachableToolset | None = None
        self._used = False
        self.listed: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"<holdfast.mcp.Session {self.name!r}>"

    @property
    def client(self) -> Client:
        """Made at the first use; it holds the session once it has asked the keeper for anything."""
        if self._client is None:
            config = make_config(self._home)
            grace = load_dialect(self._settings.dialect).lease_grace
            if self._settings.on_exit == "stop":
                grace = 0.0  # also if we are killed and can stop nothing any more
            seconds = config.choose("lease_grace", UNSET if grace is None else grace)
            link = SteadyLink(self._home, Greeting(self.name, seconds), config["keeper_idle"])
            link.listed = self._listed
            self._client = Client(self._home, link, self.name, config)
        return self._client

    @property
    def tools(self) -> DetachableToolset:
        if self._tools is None:
            settings = self._settings
            self._tools = DetachableToolset(
                self.client, settings.dialect, adoption=self._adoption, **settings.confinement
            )
        return self._tools

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools as clients are told of them."""
        found = self.tools.definitions("mcp")
        return _subagents.offered(found) if self.tools.dialect.subagents else found

    async def perform(self, call: Call, name: str, arguments: dict[str, Any]) -> Result:
        self.use()
        return await self.tools.perform(call, name, arguments)

    def use(self) -> None:
        """It is used: there may be something to stop when it ends."""
        self._used = True

    async def hold(self) -> None:
        """Hold the session from now on, if there is anything of it: its grace may be running."""
        if self._home.exists() and self.name in self._home.session_names():
            self._used = True
            try:
                await self.client.keeper_start()
            except HoldfastError:
                return  # the first call will say what is wrong

    async def let_go(self) -> None:
        """The client is lost: what it started goes on for the lease's grace."""
        client, self._client, self._tools = self._client, None, None
        if client is not None:
            await _bounded(client.close())

    async def end(self) -> None:
        """The client said that it is over: what it started stops, except what is to be kept."""
        if self._used:
            await _bounded(self.client.end_session())
            self._used = False
        await self.let_go()

    def _listed(self) -> None:
        if self.listed is not None:
            self.listed()


async def _bounded(work: Any) -> None:
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(work)), _CLOSING)
    except (TimeoutError, HoldfastError):
        return
