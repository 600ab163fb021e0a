"""Work that is not a process of ours: agents inside a client's program, kept by name.

The registrant does the work and says when it is done; the keeper remembers it, passes on that
somebody wants it stopped, tells of its end, and notices when the registrant has died, which makes
its agents `lost`.

DESIGN. ``sessions/<session>/agents/<name>.json`` is the truth. An end is written there first, with
`told` false and the end of its output; then the event is appended, under an id that has the token
of this registration; then `told` is written. Whoever starts after a kill tells of what was not told
yet, and watches the registrants that live, by pid and start time. On a full disk an end waits here
until there is room.

The output file is read by whoever says `done`, never here: it may be on a network that hangs.
"""

from __future__ import annotations

import binascii
import json
import os
import time
from dataclasses import replace

from ..core.agent_record import AgentRecord, agent_event_id, load_agent, load_agents, no_agent
from ..core.completion_text import TAIL_BYTES
from ..core.errors import BadRequest, HoldfastError
from ..core.home import Home, file_name, make_private_directory, replace_private, unlink
from ..core.machine import boot_id
from ..core.record import rfc3339
from ..linux import kernel
from .damaged_files import drop
from .journal import say
from .loop import IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.outbox import OutboxWriter
    from ..core.types import Status
    from .loop import Loop, Timer

_GRACE = 5.0  # for a registrant to end what it was asked to stop
_AGAIN = 1.0
_KEPT = 100
_KEPT_SECONDS = 1800.0
_LONGEST_NAME = 200  # of a file, with room for what is added to it


class _Agent:
    """One that is not over."""

    __slots__ = ("pidfd", "record", "timer", "watchers")

    def __init__(self, record: AgentRecord, pidfd: int | None) -> None:
        self.record = record
        self.pidfd = pidfd
        self.watchers: list[Callable[[AgentRecord], None]] = []
        self.timer: Timer | None = None


class Agents:
    __slots__ = ("_home", "_loop", "_on_end", "_open", "_outbox", "_timer", "_untold")

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
        self._untold: dict[tuple[str, str], AgentRecord] = {}  # over, and not written down yet
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return len(self._open) + len(self._untold)

    def sessions(self) -> set[str]:
        """The sessions that have agents which are not over, or not told of."""
        return {session for session, _ in (*self._open, *self._untold)}

    def register(self, record: AgentRecord, pidfd: int | None) -> AgentRecord:
        """Begin to keep an agent; a name that is over may be used again. Takes over `pidfd`."""
        try:
            known = self._registered(record)
            if known is None:
                self._save(record)
                self._keep(record, pidfd)
                return record
        except BaseException:
            _close(pidfd)
            raise
        _close(pidfd)
        return known

    def _registered(self, record: AgentRecord) -> AgentRecord | None:
        """This registration, if it was asked for before and the answer was lost."""
        known = self._named(record.session, record.id)
        if known is not None:
            if known.token == record.token:
                return known
            if known.running:
                raise BadRequest(
                    f"agent {record.id!r} is registered and running; choose another id, or stop it"
                )
            if not known.told or _key(known) in self._untold:
                self._write_end(known)  # which must not be written over
        self._prune(record.session)
        return None

    def _keep(self, record: AgentRecord, pidfd: int | None) -> _Agent:
        agent = _Agent(record, pidfd)
        if pidfd is not None:
            self._loop.add(pidfd, IN, lambda _: self._end(agent, "lost", "lost"))
        self._open[_key(record)] = agent
        return agent

    def _take_up(self, record: AgentRecord) -> None:
        """One that runs as far as the disk says: by an earlier worker."""
        pidfd = None
        if record.boot_id == boot_id() and 0 < record.pid < 1 << 31:
            pidfd = kernel.open_process(record.pid, record.start_time)
        try:
            agent = self._keep(record, pidfd)
        except BaseException:
            _close(pidfd)
            raise
        if pidfd is None:
            self._end(agent, "lost", "lost")
        elif record.stop_requested:
            self._set_grace(agent)

    def find(self, session: str, id: object, token: object = None) -> AgentRecord | None:
        """Find an agent, over or not.

        With a token it is that registration, whatever it is called since an adoption; None if the
        name is another one's by now, so that this one is over.
        """
        if token is not None:
            for agent in self._open.values():
                if agent.record.token == token:
                    return agent.record
        record = self._named(session, id) if isinstance(id, str) else None
        if record is None:
            raise no_agent(id)
        return record if token in (None, record.token) else None

    def _named(self, session: str, id: str) -> AgentRecord | None:
        agent = self._open.get((session, id))
        if agent is not None:
            return agent.record
        untold = self._untold.get((session, id))
        if untold is not None:
            return untold
        record = load_agent(self._home, session, id)
        if record is not None and record.running:
            self._take_up(record)  # which could not be done when this worker began
        return record

    def watch(
        self, record: AgentRecord, watcher: Callable[[AgentRecord], None]
    ) -> Callable[[], None]:
        """Call when it is to stop or is over; returns how to stop waiting for that."""
        agent = self._open[_key(record)]
        agent.watchers.append(watcher)
        return lambda: _without(agent.watchers, watcher)

    def when_over(
        self, record: AgentRecord, waiter: Callable[[AgentRecord], None]
    ) -> Callable[[], None]:
        agent = self._open[_key(record)]

        def look(record: AgentRecord) -> None:
            if record.running:
                agent.watchers.append(look)  # it was only asked to stop
            else:
                waiter(record)

        agent.watchers.append(look)
        return lambda: _without(agent.watchers, look)

    def stop(self, record: AgentRecord) -> None:
        """Pass it on to the registrant, which has a moment to end it."""
        agent = self._open.get(_key(record))
        if agent is None or record.stop_requested:
            return
        record.stop_requested = True
        try:
            self._save(record)
        except (OSError, HoldfastError) as error:
            say(f"the stop of an agent cannot be written: {error}")
        self._set_grace(agent)
        self._tell(agent)

    def _set_grace(self, agent: _Agent) -> None:
        agent.timer = self._loop.after(_GRACE, lambda: self._end(agent, "killed", "unconfirmed"))

    def done(self, record: AgentRecord, success: bool, tail: str | None) -> None:
        """The registrant says that it is over; what is over already stays as it was."""
        agent = self._open.get(_key(record))
        if agent is None:
            return
        stopped = record.stop_requested and not success
        status: Status = "killed" if stopped else "completed" if success else "failed"
        self._end(agent, status, "stopped" if stopped else "done", tail)

    def close(self, session: str) -> None:
        """The session ends, and its agents with it."""
        for agent in [each for each in self._open.values() if each.record.session == session]:
            self._end(agent, "killed", "lease_ended")

    def _end(self, agent: _Agent, status: Status, reason: str, tail: str | None = None) -> None:
        record = agent.record
        if self._open.get(_key(record)) is not agent:
            return
        del self._open[_key(record)]
        if agent.timer is not None:
            agent.timer.cancel()
        if agent.pidfd is not None:
            self._loop.remove(agent.pidfd)
            os.close(agent.pidfd)
        record.end(status, reason)
        if tail is None and record.output_file is not None:
            words = f"(its output is in {record.output_file})".encode("utf-8", "replace")
            tail = binascii.b2a_base64(words, newline=False).decode()
        record.tail = tail
        self._deliver(record)
        self._tell(agent)
        self._on_end()

    def _tell(self, agent: _Agent) -> None:
        watchers, agent.watchers = agent.watchers, []
        for watcher in watchers:
            watcher(agent.record)

    # -- telling of an end ---------------------------------------------------------------------

    def _deliver(self, record: AgentRecord) -> None:
        """Write an end down and tell of it, now or as soon as there is room."""
        known = _key(record) in self._untold
        self._untold[_key(record)] = record
        try:
            self._write_end(record)
        except FileNotFoundError:
            del self._untold[_key(record)]  # deleted under us, perhaps with the whole home
        except (OSError, HoldfastError) as error:
            if not known:
                say(f"the end of an agent cannot be written yet: {error}")
            if self._timer is None:
                self._timer = self._loop.after(_AGAIN, self._deliver_again)
        except Exception as error:
            del self._untold[_key(record)]
            say(f"the end of an agent cannot be told: {type(error).__name__}: {error}")

    def _deliver_again(self) -> None:
        self._timer = None
        for record in list(self._untold.values()):
            self._deliver(record)
        self._on_end()

    def _write_end(self, record: AgentRecord) -> None:
        if not record.told:
            self._save(record)
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
                    "tail": record.tail or "",
                }
            )
        record.told, record.tail = True, None
        self._save(record)
        self._untold.pop(_key(record), None)

    # -- on disk -------------------------------------------------------------------------------

    def _save(self, record: AgentRecord) -> None:
        make_private_directory(self._home.session(record.session))
        make_private_directory(self._home.agents(record.session))
        path = self._home.agent(record.session, record.id)
        replace_private(path, json.dumps(record.to_json()).encode())

    def _prune(self, session: str) -> None:
        """Forget agents that were over for a while, and those above a number."""
        over = [record for record in load_agents(self._home, session) if record.told]
        over.sort(key=lambda record: record.ended_at or "")
        oldest = rfc3339(time.time() - _KEPT_SECONDS)
        for n, record in enumerate(over):
            if (record.ended_at or "") < oldest or n < len(over) - _KEPT:
                drop(self._home.agent(session, record.id))

    def move(self, old: str, new: str) -> None:
        """Give a session's agents to another: they are over, or will be told of there.

        One whose name is taken there gets another. Can be done again after a kill or a full disk:
        the token tells what has been moved.
        """
        there = {record.token: record.id for record in load_agents(self._home, new)}
        for record in load_agents(self._home, old, every=True):
            key = (old, record.id)
            agent, untold = self._open.get(key), self._untold.get(key)
            record = agent.record if agent is not None else untold or record
            id = there.get(record.token)
            if id is None:
                id = self._free_name(new, record.id)
                self._save(replace(record, session=new, id=id))
            unlink(self._home.agent(*key))
            record.session, record.id = new, id
            if agent is not None:
                del self._open[key]
                self._open[new, id] = agent
            if untold is not None:
                del self._untold[key]
                self._untold[new, id] = untold

    def _free_name(self, session: str, id: str) -> str:
        name, number = id, 1
        while os.path.lexists(self._home.agent(session, name)):
            number += 1
            name = f"{id}-{number}"
        return name

    def recover(self) -> None:
        """Take up what an earlier worker left; nothing of it may keep this one from its work."""
        for session in self._home.session_names():
            try:
                found = load_agents(self._home, session)
            except OSError as error:
                say(f"the agents of a session cannot be read: {error}")
                continue
            for record in found:
                try:
                    if record.running:
                        self._take_up(record)
                    elif not record.told:
                        self._deliver(record)
                except Exception as error:
                    say(f"an agent cannot be taken up: {type(error).__name__}: {error}")


def _key(record: AgentRecord) -> tuple[str, str]:
    return record.session, record.id


def _close(pidfd: int | None) -> None:
    if pidfd is not None:
        os.close(pidfd)


def _without(watchers: list[Any], watcher: object) -> None:
    if watcher in watchers:
        watchers.remove(watcher)


def made(session: str, message: dict[str, Any], pid: int) -> AgentRecord:
    """The record of a new one, from what a client asked for."""
    id, kind, path = message["agent"], message["type"], message["output_file"]
    for name, text in (("id", id), ("type", kind)):
        if not isinstance(text, str) or not text or len(text) > 80 or not text.isprintable():
            raise BadRequest(f"an agent's {name} is printable text of 1 to 80 characters")
    if len(file_name(id)) > _LONGEST_NAME:
        raise BadRequest("this agent's id is too long to be a file's name; choose a shorter one")
    if path is not None and not _is_path(path):
        raise BadRequest("an agent's output file is a path; this one cannot be a file's")
    return AgentRecord(
        id=id,
        type=kind,
        session=session,
        output_file=path,
        started_at=rfc3339(time.time()),
        started_clock=time.monotonic(),
        token=str(message["token"]),
        pid=pid,
        start_time=kernel.start_time(pid) or 0,
        boot_id=boot_id(),
    )


def _is_path(path: object) -> bool:
    try:
        return isinstance(path, str) and "\0" not in path and len(os.fsencode(path)) <= 4096
    except ValueError:
        return False


def checked_tail(text: object) -> str | None:
    """The end of an output, in base64, as a client sent it."""
    if text is None:
        return None
    if not isinstance(text, str) or len(text) > 2 * TAIL_BYTES:
        raise BadRequest(f"the end of an agent's output is base64 of at most {TAIL_BYTES} bytes")
    binascii.a2b_base64(text)
    return text
