"""Work that is not a process of ours: agents inside a client's program, kept by name.

The registrant does the work and says when it is done; the keeper remembers it, passes on that
somebody wants it stopped, tells of its end, and notices when the registrant has died, which makes
its agents `lost`.

DESIGN. ``sessions/<session>/agents/<name>.json`` is the truth. An end is written there first, with
`told` false; then the event is appended, under an id that has the number of this registration;
then `told` is written. Whoever starts after a kill tells of what was not told yet, and watches the
registrants that live, by pid and start time.
"""

from __future__ import annotations

import binascii
import json
import os
import stat
import time

from .. import _kernel
from .._agents import AgentRecord, agent_event_id, load_agents, no_agent
from .._completion import TAIL_BYTES
from .._errors import BadRequest, HoldfastError
from .._home import Home, make_private_directory, replace_private, unlink
from .._model import rfc3339
from .journal import say
from .loop import IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .._outbox import OutboxWriter
    from .loop import Loop, Timer

_GRACE = 5.0  # for a registrant to end what it was asked to stop
_KEPT = 100
_KEPT_SECONDS = 1800.0


class _Agent:
    """One that is not over."""

    __slots__ = ("pidfd", "record", "timer", "watchers")

    def __init__(self, record: AgentRecord, pidfd: int | None) -> None:
        self.record = record
        self.pidfd = pidfd
        self.watchers: list[Callable[[AgentRecord], None]] = []
        self.timer: Timer | None = None


class Agents:
    __slots__ = ("_home", "_loop", "_on_end", "_open", "_outbox")

    def __init__(
        self,
        home: Home,
        loop: Loop,
        outbox: Callable[[str], OutboxWriter],
        on_end: Callable[[], None],
    ) -> None:
        self._home = home
        self._loop = loop
        self._outbox = outbox
        self._on_end = on_end
        self._open: dict[tuple[str, str], _Agent] = {}

    def __len__(self) -> int:
        return len(self._open)

    def register(self, record: AgentRecord, pidfd: int | None) -> AgentRecord:
        """Begin to keep an agent; a name that is over may be used again."""
        key = (record.session, record.id)
        known = self._open.get(key)
        if known is not None:
            if pidfd is not None:
                os.close(pidfd)
            if known.record.token == record.token:
                return known.record  # asked before, and the answer was lost
            raise BadRequest(
                f"agent {record.id!r} is registered and running; choose another id, or stop it"
            )
        self._prune(record.session)
        self._save(record)
        self._keep(record, pidfd)
        return record

    def _keep(self, record: AgentRecord, pidfd: int | None) -> None:
        agent = self._open[record.session, record.id] = _Agent(record, pidfd)
        if pidfd is not None:
            self._loop.add(pidfd, IN, lambda _: self._end(agent, "lost", "lost"))

    def find(self, session: str | None, id: object) -> AgentRecord:
        """What is known of an agent, over or not."""
        agent = self._open.get((session or "", str(id)))
        if agent is not None:
            return agent.record
        for record in load_agents(self._home, session or ""):
            if record.id == id:
                return record
        raise no_agent(id)

    def watch(
        self, session: str, id: str, watcher: Callable[[AgentRecord], None]
    ) -> Callable[[], None]:
        """Call when it is to stop or is over; returns how to stop waiting for that."""
        agent = self._open[session, id]
        agent.watchers.append(watcher)
        return lambda: _without(agent.watchers, watcher)

    def when_over(
        self, session: str, id: str, waiter: Callable[[AgentRecord], None]
    ) -> Callable[[], None]:
        agent = self._open[session, id]

        def look(record: AgentRecord) -> None:
            if record.running:
                agent.watchers.append(look)  # it was only asked to stop
            else:
                waiter(record)

        agent.watchers.append(look)
        return lambda: _without(agent.watchers, look)

    def stop(self, session: str, id: str) -> None:
        """Pass it on to the registrant, which has a moment to end it."""
        agent = self._open.get((session, id))
        if agent is None or agent.record.stop_requested:
            return
        agent.record.stop_requested = True
        self._save(agent.record)
        self._set_grace(agent)
        self._tell(agent)

    def _set_grace(self, agent: _Agent) -> None:
        agent.timer = self._loop.after(_GRACE, lambda: self._end(agent, "killed", "unconfirmed"))

    def done(self, session: str, id: str, success: bool) -> AgentRecord:
        agent = self._open.get((session, id))
        if agent is None:
            return self.find(session, id)
        stopped = agent.record.stop_requested and not success
        status = "killed" if stopped else "completed" if success else "failed"
        self._end(agent, status, "stopped" if stopped else "done")
        return agent.record

    def close(self, session: str) -> None:
        """The session ends in good order, and its agents with it."""
        for agent in [each for each in self._open.values() if each.record.session == session]:
            self._end(agent, "killed", "lease_ended")

    def _end(self, agent: _Agent, status: str, reason: str) -> None:
        record = agent.record
        if self._open.pop((record.session, record.id), None) is None:
            return
        if agent.timer is not None:
            agent.timer.cancel()
        if agent.pidfd is not None:
            self._loop.remove(agent.pidfd)
            os.close(agent.pidfd)
        record.end(status, reason)
        try:
            self._save(record)
            self._tell_end(record)
        except OSError as error:
            say(f"the end of an agent cannot be written: {error}")
        self._tell(agent)
        self._on_end()

    def _tell(self, agent: _Agent) -> None:
        watchers, agent.watchers = agent.watchers, []
        for watcher in watchers:
            watcher(agent.record)

    def _tell_end(self, record: AgentRecord) -> None:
        if record.told:
            return
        self._outbox(record.session).append(
            {
                "id": agent_event_id(record),
                "type": "agent",
                "at": record.ended_at,
                "agent": record.id,
                "label": record.type,
                "status": record.status,
                "reason": record.reason,
                "duration_seconds": record.duration_seconds,
                "tail": binascii.b2a_base64(_tail(record.output_file), newline=False).decode(),
            }
        )
        record.told = True
        self._save(record)

    # -- on disk -------------------------------------------------------------------------------

    def _save(self, record: AgentRecord) -> None:
        make_private_directory(self._home.session(record.session))
        make_private_directory(self._home.agents(record.session))
        path = self._home.agent(record.session, record.id)
        replace_private(path, json.dumps(record.to_json()).encode())

    def _prune(self, session: str) -> None:
        """Those that are over are kept for a while, and not more than so many."""
        over = [record for record in load_agents(self._home, session) if not record.running]
        over.sort(key=lambda record: record.ended_at or "")
        oldest = rfc3339(time.time() - _KEPT_SECONDS)
        for n, record in enumerate(over):
            if (record.ended_at or "") < oldest or n < len(over) - _KEPT:
                unlink(self._home.agent(session, record.id))

    def move(self, old: str, new: str) -> None:
        """Give a session's agents to another: they are over, or will be told of there."""
        for record in load_agents(self._home, old):
            agent = self._open.pop((old, record.id), None)
            record = record if agent is None else agent.record
            record.session = new
            self._save(record)
            unlink(self._home.agent(old, record.id))
            if agent is not None:
                self._open[new, record.id] = agent

    def recover(self) -> None:
        for session in self._home.session_names():
            for record in load_agents(self._home, session):
                if not record.running:
                    try:
                        self._tell_end(record)
                    except (OSError, HoldfastError) as error:
                        say(f"the end of an agent cannot be told: {error}")
                    continue
                pidfd = None
                if record.boot_id == _kernel.boot_id():
                    pidfd = _kernel.open_process(record.pid, record.start_time)
                self._keep(record, pidfd)
                agent = self._open[session, record.id]
                if pidfd is None:
                    self._end(agent, "lost", "lost")
                elif record.stop_requested:
                    self._set_grace(agent)


def _without(watchers: list[Any], watcher: object) -> None:
    if watcher in watchers:
        watchers.remove(watcher)


def made(session: str, message: dict[str, Any], pid: int) -> AgentRecord:
    """The record of a new one, from what a client asked for."""
    id, kind, path = message["agent"], message["type"], message["output_file"]
    for name, text in (("id", id), ("type", kind)):
        if not isinstance(text, str) or not text or len(text) > 80 or not text.isprintable():
            raise BadRequest(f"an agent's {name} is printable text of 1 to 80 characters")
    if path is not None and (not isinstance(path, str) or "\0" in path or len(path) > 4096):
        raise BadRequest("an agent's output file is a path")
    return AgentRecord(
        id=id,
        type=kind,
        session=session,
        output_file=path,
        started_at=rfc3339(time.time()),
        started_clock=time.monotonic(),
        token=str(message["token"]),
        pid=pid,
        start_time=_kernel.start_time(pid) or 0,
        boot_id=_kernel.boot_id(),
    )


def _tail(path: str | None) -> bytes:
    """The end of a file that somebody else writes; never waits, whatever it is."""
    if path is None:
        return b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            return b""
        return os.pread(fd, TAIL_BYTES, max(0, info.st_size - TAIL_BYTES))
    except OSError:
        return b""
    finally:
        os.close(fd)
