"""The record of a background agent, and reading those of a session from the home."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import dataclass, field, fields

from .errors import HoldfastError, NotFound
from .home import Home, read_private, text_of_file_name
from .record import rfc3339

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .types import Status


@dataclass(slots=True)
class AgentRecord:
    """One agent as the keeper knows it; `status` is running, completed, failed, killed or lost."""

    id: str
    type: str
    session: str
    output_file: str | None
    started_at: str
    started_clock: float
    status: Status = "running"
    reason: str | None = None
    ended_at: str | None = None
    duration_seconds: float | None = None
    stop_requested: bool = False
    told: bool = False
    tail: str | None = field(default=None, repr=False)  # base64, until it is told
    # Who does the work, and which registration this is.
    token: str = field(default="", repr=False)
    pid: int = 0
    start_time: int = 0
    boot_id: str = ""

    @property
    def running(self) -> bool:
        return self.status == "running"

    def end(self, status: Status, reason: str) -> None:
        self.status, self.reason = status, reason
        self.ended_at = rfc3339(time.time())
        self.duration_seconds = round(max(0.0, time.monotonic() - self.started_clock), 6)

    def to_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> AgentRecord:
        """A ValueError for what this was never written as."""
        record = cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})
        for each in fields(cls):
            if not _fits(str(each.type), getattr(record, each.name)):
                raise ValueError(f"an agent's {each.name} cannot be that")
        return record

    def public(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _PUBLIC}


def _fits(kind: str, value: object) -> bool:
    if value is None:
        return kind.endswith(" | None")
    kind = kind.removesuffix(" | None")
    if kind in ("str", "Status"):
        return isinstance(value, str)
    if kind == "bool":
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int if kind == "int" else (int, float)):
        return False
    return abs(value) < 1 << 63  # neither infinite nor NaN


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


def load_agents(home: Home, session: str, *, every: bool = False) -> list[AgentRecord]:
    """A session's agents, oldest first; what cannot be read is left out, or an error."""
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
            record = load_agent(home, session, id)
        except OSError:
            if every:
                raise
            continue
        if record is not None:
            found.append(record)
    return sorted(found, key=lambda record: record.started_at)


def load_agent(home: Home, session: str, id: str) -> AgentRecord | None:
    """One of them by its name; None if there is none, or none that can be made sense of."""
    try:
        data = read_private(home.agent(session, id))
        record = AgentRecord.from_json(json.loads(data))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            return None
        raise
    except (HoldfastError, LookupError, TypeError, ValueError, RecursionError):
        return None
    return record if record.id == id and record.session == session else None


def no_agent(id: object) -> NotFound:
    return NotFound(f"Agent not found: {str(id)[:80]}")
