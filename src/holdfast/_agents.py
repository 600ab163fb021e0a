"""Background agents: work inside a program that a session keeps track of as of a process.

    agent = await hf.register_agent("review-7", "reviewer", "/tmp/review-7.md", on_stop=task.cancel)
    ...
    await agent.done()  # or done(success=False); its end is delivered like any other

What is known of them is read from the home; registering, ending and stopping go through the keeper,
which also notices when the program that does the work has died: its agents are then `lost`.
"""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import dataclass, fields

from ._errors import HoldfastError, NotFound
from ._home import Home, read_private, text_of_file_name
from ._model import rfc3339

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._client import Client

NO_OUTPUT = "(no output yet)"
UNREADABLE = "(failed to read output file)"


@dataclass(slots=True)
class AgentRecord:
    """What is known of one agent; `status` is running, completed, failed, killed or lost."""

    id: str
    type: str
    session: str
    output_file: str | None
    started_at: str
    started_clock: float
    status: str = "running"
    reason: str | None = None
    ended_at: str | None = None
    duration_seconds: float | None = None
    stop_requested: bool = False
    told: bool = False
    # Who does the work, and which registration this is.
    token: str = ""
    pid: int = 0
    start_time: int = 0
    boot_id: str = ""

    @property
    def running(self) -> bool:
        return self.status == "running"

    def end(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        self.ended_at = rfc3339(time.time())
        self.duration_seconds = round(max(0.0, time.monotonic() - self.started_clock), 6)

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AgentRecord:
        return cls(**{field.name: data[field.name] for field in fields(cls)})

    def public(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PUBLIC}


_PUBLIC = (
    "id",
    "type",
    "session",
    "output_file",
    "status",
    "reason",
    "started_at",
    "ended_at",
    "duration_seconds",
    "stop_requested",
)


def agent_event_id(record: AgentRecord) -> str:
    """A name may be used again, so the event is this registration's."""
    return f"agent:{record.token}:end"


def load_agents(home: Home, session: str) -> list[AgentRecord]:
    """A session's agents, oldest first; what cannot be read is left out."""
    found = []
    try:
        names = os.listdir(home.agents(session))
    except (FileNotFoundError, NotADirectoryError):
        return []
    for name in names:
        id = text_of_file_name(name.removesuffix(".json")) if name.endswith(".json") else None
        if id is None:
            continue
        try:
            record = AgentRecord.from_json(json.loads(read_private(home.agent(session, id))))
        except (OSError, HoldfastError, LookupError, TypeError, ValueError):
            continue
        if record.id == id and record.session == session:
            found.append(record)
    return sorted(found, key=lambda record: record.started_at)


class Agent:
    """One background agent, as one client sees it. From `register_agent`, `agent` or `agents`."""

    def __init__(self, client: Client, record: AgentRecord) -> None:
        self._client = client
        self.record = record

    def __repr__(self) -> str:
        return f"<holdfast.Agent {self.id!r} {self.record.type} {self.record.status}>"

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def status(self) -> str:
        """As of the last look: running, completed, failed, killed or lost."""
        return self.record.status

    async def refresh(self) -> AgentRecord:
        """Look again: the record as it stands now."""
        self.record = (await self._client.agent(self.id)).record
        return self.record

    async def done(self, success: bool = True) -> AgentRecord:
        """Say that the work is over; the session is told."""
        return await self._ask("agent_done", success=success)

    async def stop(self) -> AgentRecord:
        """Ask whoever does the work to stop it, and wait until it has.

        A registrant that does not say so within a few seconds is not waited for: the agent is
        `killed` then, with the reason ``unconfirmed``.
        """
        return await self._ask("agent_stop")

    async def stop_requested(self) -> bool:
        """Wait until somebody asks for its stop (True), or until it is over (False)."""
        answer = await self._client._link.call("agent_watch", {"agent": self.id})
        self.record = AgentRecord.from_json(answer["agent"])
        return self.record.running

    async def _when_stopped(self, on_stop: Callable[[], Any]) -> None:
        watching = Agent(self._client, self.record)
        if await watching.stop_requested():
            answer = on_stop()
            if hasattr(answer, "__await__"):
                await answer

    async def output(self, limit: int = 1 << 20) -> str:
        """What is in its output file, at most the last `limit` bytes of it."""
        return await self._client._link.aside(lambda: read_output(self.record.output_file, limit))

    async def _ask(self, verb: str, **more: Any) -> AgentRecord:
        answer = await self._client._link.call(verb, {"agent": self.id, **more})
        self.record = AgentRecord.from_json(answer["agent"])
        return self.record


def read_output(path: str | None, limit: int) -> str:
    """The text of an agent's output file, or why there is none."""
    if path is None or not os.path.lexists(path):
        return NO_OUTPUT
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                return UNREADABLE
            data = os.pread(fd, limit, max(0, info.st_size - limit))
        finally:
            os.close(fd)
    except OSError:
        return UNREADABLE
    return data.decode("utf-8", "replace")


def no_agent(id: object) -> NotFound:
    return NotFound(f"Agent not found: {str(id)[:80]}")
