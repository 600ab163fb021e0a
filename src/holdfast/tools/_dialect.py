"""The base of every dialect: tools over one client, and how it says that something is wrong."""

from __future__ import annotations

from ..core.record import Exit
from ._confinement import Confinement
from ._tool import CALL, Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..client.client import Client
    from ..client.process import Process
    from ..client.wait_for import Waited
    from ..core.errors import HoldfastError
    from ..core.record import Event, Record
    from ._tool import Call, Tool

OUTPUT = 10_000  # characters of output in one answer, unless the dialect says otherwise


class Dialect:
    """A published vocabulary of tools over a client; each is a small file beside this one.

    The session is the client's. Nothing a model says can name another.
    """

    name = ""
    # Few tools that a model uses again and again: not to be hidden behind a search for tools.
    always_loaded = False
    # Where its tools are served to a program with subagents, these may have sessions of their own.
    subagents = False
    lease_grace: float | None = None  # how long what it started may outlive its client
    # What a model is told once, where there is a place for it (the instructions of an MCP server).
    instructions = ""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.confinement = Confinement(client)

    def tools(self) -> list[Tool]:
        raise NotImplementedError

    def failure(self, error: HoldfastError, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer to a call that could not be done."""
        return {"error": str(error), "code": error.code}

    def notice(self, event: Event) -> str:
        """The text of an event for a model."""
        return event.text

    async def spawn(self, command: str | list[str], **options: Any) -> Process:
        """Start a command where and as the toolset has its commands run."""
        return await self.confinement.spawn(command, **options)

    async def find(self, handle: str) -> Process:
        """The session's process with exactly this handle or label; NotFound for anything else."""
        return await self.client.get(handle)

    def check_input(self, process: Process) -> None:
        """Before anything is typed: refused for what is not confined as the toolset's commands."""
        self.confinement.check_input(process.record)

    async def until(
        self,
        call: Call,
        processes: Sequence[Process],
        conditions: Sequence[Any],
        *,
        all: bool = False,
        timeout: float | None = None,
    ) -> Waited:
        """Wait as `Client.wait_for` does, for what a model may know."""
        checked = await self.confinement.conditions(conditions, processes)
        return await call.wait_for(self.client, processes, checked, all=all, timeout=timeout)

    async def finished(self, process: Process) -> dict[str, Any]:
        """The answer about a process that has ended, where the call that started it is gone."""
        record = process.record
        output = await self.output(process)
        text = f"{record.handle} {Exit.of(record).describe()}\n{output}"
        answer = {
            "handle": record.handle,
            "status": record.status,
            "exit_code": record.exit_code,
            "output": output,
        }
        return Reply(answer, text)

    async def saw(self, record: Record) -> None:
        """Whoever was shown the end of a process needs no event for it."""
        if record.running:
            return
        call = CALL.get()
        if call is not None and call.detachable:
            call.saw(record, self.client.acknowledge_end)
        else:
            await self.client.acknowledge_end(record)

    async def saw_prompt(self, record: Record) -> None:
        """Whoever was shown the output up to a prompt needs no event for that prompt."""
        if record.running and record.stdin:
            asked = [
                event
                async for event in self.client.events()
                if event.type == "input" and event.handle == record.handle
            ]
            if asked:
                await self.client.acknowledge(*asked)

    async def output(self, process: Process, budget: int = OUTPUT) -> str:
        """The whole output as a model should read it; stderr after stdout where it is separate."""
        text = (await process.view(budget=budget, stream="stdout")).text
        if len(process.record.streams) > 1:
            errors = (await process.view(budget=budget, stream="stderr")).text
            if errors:
                text += ("" if text.endswith("\n") or not text else "\n") + errors
        return text
