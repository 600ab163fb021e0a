"""Requests of clients: each verb of the protocol is a method here.

A method gets the connection, the request's number and its message. It returns the answer, or None
when the answer comes later (`Connection.later`) or was given already.
"""

from __future__ import annotations

import binascii
import errno
import os
import signal
import sys
import time
from functools import partial

from ..core import spawn_spec, wire
from ..core.errors import (
    BadDirectory,
    BadRequest,
    HoldfastError,
    KeeperError,
    LimitReached,
    NotFound,
    NotRunning,
    SpawnError,
    StoreError,
    Unsupported,
    not_found,
)
from ..core.home import check_session, is_handle
from ..core.machine import boot_id
from ..core.outbox import end_event_id
from ..core.programs import keeper_program
from ..core.quote import one_line
from ..core.record import DEFAULT_SESSION, Record, rfc3339, signal_number
from ..core.version import __version__
from ..core.watch import MOST_WATCHES, begun, checked
from ..linux import kernel, sandbox
from . import agents, launch
from .child import Child, clear_log, log_writer
from .connection import Connection
from .damaged_files import put_aside
from .journal import say
from .modes import runner
from .modes.base import Order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.agent_record import AgentRecord
    from .modes.tmux import Start
    from .worker import Worker

    Message = dict[str, Any]
    Answer = dict[str, Any]

# Understood from clients of any protocol: the way out of a mismatch.
_FOR_EVER = 1e10  # seconds; three hundred years
_MOST_HANDLES = 1000  # of which a client asks at once


class Verbs:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def named(self, name: object) -> Callable[[Connection, int, Message], Answer | None]:
        method = getattr(self, f"verb_{name}", None) if isinstance(name, str) else None
        if method is None:
            shown = str(name)[:60]
            raise BadRequest(
                f"the keeper has no verb {shown!r}; renew it with `holdfast keeper restart`"
            )
        return method  # type: ignore[no-any-return]

    # -- starting ------------------------------------------------------------------------------

    def verb_spawn(self, connection: Connection, number: int, m: Message) -> None:
        worker = self.worker
        handle = m["handle"]
        if not is_handle(handle):
            raise BadRequest("a handle is proc- and 16 to 64 small letters or digits")
        session = connection.session or DEFAULT_SESSION
        if handle in worker.children:  # asked before, and the answer was lost
            self._answer_existing(connection, number, handle, session, m.get("claim"))
            return
        start = worker.modes.starts.get(handle)
        if start is not None and start.record.session == session:
            start.waiting.append(self._started(connection, number))
            return
        options = spawn_spec.from_wire(m)
        self._check_room(session, options["max_running"])
        argv, env, cwd, umask, tmux = m["argv"], m["env"], m["cwd"], m["umask"], m["tmux"]
        launch.check_directory(cwd)
        by = None if m.get("runner") is None else runner.checked(m["runner"])
        if by is not None:
            argv, env, umask = by["argv"], by["env"], 0o077
        worker.modes.check(m["mode"], None if by is None else by["kind"])
        program = launch.find_program(argv, env, cwd)
        separate = options["stderr"] == "separate"
        watches = _watches(m.get("watches") or [], 2 if separate else 1)
        record = Record(
            handle=handle,
            session=session,
            command=m["command"],
            cwd=cwd,
            started_at=rfc3339(time.time()),
            started_clock=time.monotonic(),
            log=worker.home.log(handle),
            err_log=worker.home.log(handle, "stderr") if separate else None,
            mode=m["mode"],
            attach=m["attach"],
            boot_id=boot_id(),
            sandbox=m.get("sandbox"),
            runner=None if by is None else {"kind": by["kind"], "argv": argv, "starts": []},
            docker=m.get("docker"),
            ends_with=worker.ends_with,
            notes=list(m["notes"]),
            watches=watches,
            watches_made=len(watches),
            **spawn_spec.recorded(options),
        )
        mode = worker.modes.of(record)
        mode.describe(record, m)
        try:
            record.check()
        except StoreError as error:
            raise BadRequest(str(error)) from None
        limits = mode.limit(record, {name: options[name] for name in spawn_spec.LIMITS})
        plan = worker.containment.plan(record, options["containment"], limits)
        if record.sandbox is not None:
            root = record.sandbox.get("root") or cwd
            launch.check_directory(root)
            if os.path.samefile(root, "/"):
                raise BadDirectory("a sandbox in / would have nothing that is closed; give a cwd")
            asked = record.sandbox
            openings = {name: bool(asked.get(name)) for name in sandbox.OPENINGS}
            argv = sandbox.arguments(
                asked["program"],
                program,
                argv,
                cwd,
                root=root,
                homes=[worker.home.path, *asked.get("homes", ())],
                ways_out=asked.get("ways_out", ()),
                fixed=asked.get("fixed", ()),
                env=env,
                **openings,
            )
            program, plan.ignored = argv[0], sandbox.IGNORED
            record.sandbox = openings if asked.get("root") is None else {**openings, "root": root}
        worker.delivery.claim_end(connection, record, m.get("claim"))
        try:
            worker.store.create(record)
        except FileExistsError:
            self._answer_existing(connection, number, handle, session, m.get("claim"))
            return
        order = Order(record, program, argv, env, umask, plan, tmux)
        mode.launch(order, self._started(connection, number))

    def _started(
        self, connection: Connection, number: int
    ) -> Callable[[Child | None, HoldfastError | None], None]:
        def started(child: Child | None, error: HoldfastError | None) -> None:
            if child is not None:
                connection.answer(number, {"record": child.record.to_json()})
            elif error is not None:
                connection.refuse(number, error)

        return started

    def _answer_existing(
        self, connection: Connection, number: int, handle: str, session: str, claim: object
    ) -> None:
        record = self._record(handle)
        if record.session != session:
            raise BadRequest("this handle is taken; choose another one")
        self.worker.delivery.claim_end(connection, record, claim)
        connection.answer(number, {"record": record.to_json()})

    def _check_room(self, session: str, limit: int) -> None:
        running = [child.record for child in self.worker.running(session)]
        running += [start.record for start in self.worker.modes.starting(session)]
        if len(running) >= limit:
            names = ", ".join(
                f"{record.handle} ({one_line(record.label)})" if record.label else record.handle
                for record in running
            )
            raise LimitReached(
                f"session {session!r} already runs {len(running)} of at most {limit} processes; "
                f"kill one or wait for one: {names}",
                running=[record.handle for record in running],
            )

    # -- one process ---------------------------------------------------------------------------

    def verb_held(self, connection: Connection, number: int, m: Message) -> Answer:
        """Tell what is held of these; their records, which no client could read, are made anew."""
        found = []
        for handle in m["handles"][:_MOST_HANDLES]:
            if not is_handle(handle):
                continue
            child = self.worker.children.get(handle)
            if child is not None and child.note is None:
                child.restore(damaged=True)
                if connection.session in (None, child.record.session):
                    found.append(child.record.to_json())
            else:
                self._set_aside(handle)
        return {"records": found}

    def _set_aside(self, handle: str) -> None:
        """A record that nobody can read, of a process that is not running."""
        try:
            self.worker.store.load(handle)
        except StoreError as error:
            if not error.detail.get("newer") and not error.detail.get("for_now"):
                put_aside(self.worker.home.meta(handle), error)
                self.worker.index.drop(handle)
        except NotFound:
            return

    def _find(self, connection: Connection, handle: object) -> tuple[Record, Child | None]:
        """The record and, while it is kept, the child. Another session's is not found."""
        if not is_handle(handle):
            raise not_found(str(handle))
        assert isinstance(handle, str)
        record = self._record(handle)
        if connection.session not in (None, record.session):
            raise not_found(handle)
        return record, self.worker.children.get(handle)

    def _record(self, handle: str) -> Record:
        """With what its runner says by now, if it has one."""
        child = self.worker.children.get(handle)
        if child is None:
            return self.worker.store.load(handle)
        self.worker.store.add_runner(child.record)
        return child.record

    def _find_running(self, connection: Connection, handle: object) -> Child:
        record, child = self._find(connection, handle)
        if child is None or child.note is not None:
            raise NotRunning(
                f"{record.handle} is not running any more ({record.status}); its log can still "
                "be read",
                handle=record.handle,
                status=record.status,
            )
        return child

    def _starting(self, connection: Connection, handle: object) -> Start | None:
        """A process that is on its way into tmux, and not there yet."""
        start = self.worker.modes.starts.get(handle) if isinstance(handle, str) else None
        visible = start is not None and connection.session in (None, start.record.session)
        return start if visible else None

    def _cancel_start(self, connection: Connection, handle: object) -> None:
        """Whoever stops or removes it is told that it never was."""
        start = self._starting(connection, handle)
        if start is not None:
            self.worker.modes.cancel(start)

    def verb_wait(self, connection: Connection, number: int, m: Message) -> Answer | None:
        start = self._starting(connection, m["handle"])
        if start is not None:

            def begun(child: Child | None, error: HoldfastError | None) -> None:
                if child is None:
                    connection.refuse(number, not_found(start.record.handle))
                elif not connection.closed:
                    answer = self.verb_wait(connection, number, m)
                    if answer is not None:
                        connection.answer(number, answer)

            start.waiting.append(begun)
            return None
        record, child = self._find(connection, m["handle"])
        self.worker.delivery.claim_end(connection, record, m.get("claim"))
        if child is None or child.note is not None:
            return record.ending()

        def ended(record: Record) -> None:
            connection.answer(number, record.ending())

        child.waiters.append(ended)
        connection.later(number, lambda: child.stop_waiting(ended))
        return None

    def verb_send(self, connection: Connection, number: int, m: Message) -> None:
        child = self._find_running(connection, m["handle"])
        data = binascii.a2b_base64(m["data"])
        if len(data) > wire.SEND_BYTES:
            raise BadRequest(f"at most {wire.SEND_BYTES} bytes at once; send it in parts")

        def done(written: int, error: HoldfastError | None) -> None:
            if child.held.stdin < 0:
                self.worker.tell("closed", child.record.handle, "stdin")
            if error is not None:
                connection.refuse(number, error)
            else:
                connection.answer(number, {"written": written})
                person = connection.session is None
                self.worker.watching.typed(child, data, bool(m["eof"]), person)

        child.send(data, str(m["token"]), bool(m["eof"]), seconds(m["timeout"]), done)

    def verb_answered(self, connection: Connection, number: int, m: Message) -> Answer:
        """A client typed something into a pane of tmux, which we have no part in."""
        _, child = self._find(connection, m["handle"])
        if child is not None:
            self.worker.watching.answered(child)
        return {}

    def verb_watch(self, connection: Connection, number: int, m: Message) -> Answer:
        child = self._find_running(connection, m["handle"])
        return {"watch": self.worker.watching.watch(child, m["watch"])}

    def verb_unwatch(self, connection: Connection, number: int, m: Message) -> Answer:
        child = self._find_running(connection, m["handle"])
        self.worker.watching.unwatch(child, m["watch"])
        return {}

    def verb_resize(self, connection: Connection, number: int, m: Message) -> Answer:
        child = self._find_running(connection, m["handle"])
        columns, rows = spawn_spec.SPAWN_SPEC["size"].meaning(m["size"])
        if not child.mode.terminal_here or child.held.out < 0:
            raise Unsupported(
                f"{child.record.handle} has no terminal here; start it with one to resize it",
                handle=child.record.handle,
            )
        child.resize(columns, rows)
        self.worker.save(child.record)
        self.worker.watching.resized(child)
        return {"sizes": child.record.sizes}

    def verb_signal(self, connection: Connection, number: int, m: Message) -> Answer:
        child, number = self._find_running(connection, m["handle"]), _signal(m["signal"])
        child.mode.signal(child, number)
        return {}

    def verb_kill(self, connection: Connection, number: int, m: Message) -> Answer | None:
        polite = _signal(m["signal"])
        grace = 0.0 if polite == signal.SIGKILL else _grace(m["grace"])
        self._cancel_start(connection, m["handle"])
        record, child = self._find(connection, m["handle"])
        if child is not None:
            child.mode.check_signal(record, polite)
            self.worker.delivery.claim_end(connection, record, m.get("claim"))
            self.worker.stop(child, "killed", f"pid {connection.pid}", polite, grace)
        self._when_stopped(connection, number, record, child, grace, lambda receipt: receipt)
        return None

    def _when_stopped(
        self,
        connection: Connection,
        number: int,
        record: Record,
        child: Child | None,
        grace: float | None,
        answer: Callable[[Answer], Answer],
    ) -> None:
        """Answer once nothing is left of a process that is being stopped, or has ended."""

        def finish(receipt: Answer) -> None:
            try:
                connection.answer(number, answer(receipt))
            except HoldfastError as error:
                connection.refuse(number, error)
            except OSError as error:
                say(f"{record.handle}: {error}")
                connection.refuse(number, translated(error))

        def done(receipt: Answer) -> None:
            finish({"record": record.to_json(), **receipt})

        stopping = None if child is None else child.stopping
        if stopping is not None:
            stopping.when_done(done)
            connection.later(number, lambda: stopping.forget(done))
        elif child is None or child.note is not None:
            self.worker.clear([record], grace, done)
        else:
            self.worker.clear_at_end(child, grace, done)
            connection.later(number, lambda: None)

    def verb_clear(self, connection: Connection, number: int, m: Message) -> Answer:
        record, child = self._find(connection, m["handle"])
        if child is not None:
            child.clear(m.get("counted"))
            return {}
        for stream in record.streams:
            writer = log_writer(self.worker.home, record, stream)
            clear_log(writer, m.get("counted"))
            writer.close()
        return {}

    def verb_remove(self, connection: Connection, number: int, m: Message) -> Answer | None:
        self._cancel_start(connection, m["handle"])
        record, child = self._find(connection, m["handle"])

        def removed(receipt: Answer) -> Answer:
            if record.running:
                raise KeeperError(f"{record.handle} could not be stopped in time; try again later")
            if child is not None:
                self.worker.delivery.settle(child)
            self.worker.delivery.acknowledge(record.session, [end_event_id(record.handle)])
            self.worker.delivery.acknowledge_watches(record)
            self.worker.forget(record.session, record.handle)
            return {}

        if child is not None:
            self.worker.stop(child, "killed", f"pid {connection.pid}")
        self._when_stopped(connection, number, record, child, None, removed)
        return None

    # -- a session -----------------------------------------------------------------------------

    def verb_stop_all(self, connection: Connection, number: int, m: Message) -> Answer | None:
        return self._kill_many(connection, number, lambda record: True, m)

    def verb_stop_group(self, connection: Connection, number: int, m: Message) -> Answer | None:
        group = _group(m["group"])
        return self._kill_many(connection, number, lambda record: record.group == group, m)

    def _kill_many(
        self, connection: Connection, number: int, wanted: Callable[[Record], bool], m: Message
    ) -> Answer | None:
        polite, grace = _signal(m["signal"]), _grace(m["grace"])
        running = self.worker.running(connection.session)
        children = [child for child in running if wanted(child.record)]
        for start in self.worker.modes.starting(connection.session):
            if wanted(start.record):
                self.worker.modes.cancel(start)
        ended = [record for record in self.worker.ended(connection.session) if wanted(record)]
        for child in children:
            self.worker.delivery.claim_end(connection, child.record, m.get("claim"))
        return self._stop_many(connection, number, children, "killed", polite, grace, ended)

    def verb_gather(self, connection: Connection, number: int, m: Message) -> Answer:
        """Tell of a group as one."""
        worker, group = self.worker, _group(m["group"])
        session = connection.session or DEFAULT_SESSION
        records = [child.record for child in worker.running(session)]
        records += worker.retention.ended(session)
        members = [record for record in records if record.group == group]
        members.sort(key=lambda record: record.started_at)
        return {"members": worker.delivery.gatherings.gather(m["name"], session, group, members)}

    def verb_close(self, connection: Connection, number: int, m: Message) -> Answer | None:
        """End the session in good order, if this client is the last that holds it."""
        session = connection.session
        if session is None or not self.worker.leases.close(session, connection.client):
            return {"receipts": []}
        connection.leased = False
        self.worker.agents.close(session)
        children = self.worker.leased(session)
        for start in self.worker.modes.starting(session):
            if not start.record.keep:
                self.worker.modes.cancel(start)
        ended = [record for record in self.worker.ended(session) if not record.keep]
        for child in children:  # whoever closes a session knows that what it started has ended
            self.worker.delivery.claim_end(connection, child.record, f"close-{connection.client}")
        return self._stop_many(
            connection, number, children, "lease_ended", signal.SIGTERM, None, ended
        )

    def verb_left_behind(self, connection: Connection, number: int, m: Message) -> Answer:
        directory = m.get("directory")
        where = None if directory is None else str(directory)
        return {"sessions": self.worker.adoptions.left_behind(connection.session or "", where)}

    def verb_adopt(self, connection: Connection, number: int, m: Message) -> Answer:
        if connection.session is None:
            raise BadRequest("only a client that holds a session can take over another")
        old = check_session(m["session"])
        adopt = self.worker.adoptions.adopt
        return {"handles": adopt(old, connection.session, str(m["token"]))}

    def verb_lease(self, connection: Connection, number: int, m: Message) -> Answer:
        if not connection.leased or connection.session is None:
            raise BadRequest("this client holds no session; `connect` does")
        self.worker.leases.set_grace(connection.session, seconds(m["grace"]))
        return {}

    def _stop_many(
        self,
        connection: Connection,
        number: int,
        children: list[Child],
        reason: str,
        polite: int,
        grace: float | None,
        ended_before: list[Record],
    ) -> Answer | None:
        """Stop some, and end what those that ended before left behind."""
        receipts: list[Answer] = []
        waits: list[Callable[[], None]] = []  # how to stop waiting for each
        sweep = False

        def done(child: Child, receipt: Answer) -> None:
            receipts.append({"record": child.record.to_json(), **receipt})
            if reason == "lease_ended":
                self._closed(child.record)
            answer_at_last()

        def cleared(receipt: Answer) -> None:
            nonlocal sweep
            sweep = False
            answer_at_last()

        def answer_at_last() -> None:
            if len(receipts) == len(waits) and not sweep:
                connection.answer(number, {"receipts": receipts})

        for child in children:
            self.worker.stop(child, reason, f"pid {connection.pid}", polite, grace)
            if child.stopping is not None:
                stopped = partial(done, child)
                child.stopping.when_done(stopped)
                waits.append(partial(child.stopping.forget, stopped))
            elif child.note is None:  # ended by itself, with its last output on its way
                self.worker.clear_at_end(child, grace, partial(done, child))
                waits.append(lambda: None)
            else:
                ended_before.append(child.record)
        sweep = bool(ended_before)
        if not waits and not sweep:
            return {"receipts": []}

        def forget() -> None:
            for stop_waiting in waits:
                stop_waiting()

        connection.later(number, forget)
        if sweep:
            self.worker.clear(ended_before, grace, cleared)
        return None

    def _closed(self, record: Record) -> None:
        """Whoever closes a session knows that what it started has ended."""
        try:
            self.worker.delivery.acknowledge(record.session, [end_event_id(record.handle)])
        except OSError as error:
            say(f"{record.handle}: its end cannot be acknowledged: {error}")

    # -- agents --------------------------------------------------------------------------------

    def verb_register_agent(self, connection: Connection, number: int, m: Message) -> Answer:
        session = connection.session or DEFAULT_SESSION
        record = agents.made(session, m, connection.pid)
        pidfd = kernel.peer_pidfd(connection.socket)
        return {"agent": self.worker.agents.register(record, pidfd).to_json()}

    def verb_agent_done(self, connection: Connection, number: int, m: Message) -> Answer:
        record = self._agent(connection, m)
        if record is not None:
            tail = agents.checked_tail(m.get("tail"))
            self.worker.agents.done(record, bool(m["success"]), tail)
        return _agent_answer(record)

    def verb_agent_watch(self, connection: Connection, number: int, m: Message) -> Answer | None:
        """Answered when it is to be stopped, or is over."""
        record = self._agent(connection, m)
        if record is None or not record.running or record.stop_requested:
            return _agent_answer(record)

        def answer(record: AgentRecord) -> None:
            connection.answer(number, _agent_answer(record))

        connection.later(number, self.worker.agents.watch(record, answer))
        return None

    def verb_agent_stop(self, connection: Connection, number: int, m: Message) -> Answer | None:
        """Answered when it is over."""
        record = self._agent(connection, m)
        if record is None or not record.running:
            return _agent_answer(record)

        def answer(record: AgentRecord) -> None:
            connection.answer(number, _agent_answer(record))

        connection.later(number, self.worker.agents.when_over(record, answer))
        self.worker.agents.stop(record)
        return None

    def _agent(self, connection: Connection, m: Message) -> AgentRecord | None:
        session = connection.session or DEFAULT_SESSION
        return self.worker.agents.find(session, m["agent"], m.get("token"))

    # -- events --------------------------------------------------------------------------------

    def verb_claim(self, connection: Connection, number: int, m: Message) -> Answer:
        """Claim events that are there, and the ends of these processes, for one who will tell."""
        session, by = connection.session or check_session(m["session"]), m["by"]
        delivery = self.worker.delivery
        claimed = delivery.claim(connection, session, _ids(m.get("ids", [])), by, ahead=False)
        for handle in m.get("handles", [])[:_MOST_HANDLES]:
            start = self._starting(connection, handle)
            record = start.record if start is not None else self._find(connection, handle)[0]
            delivery.claim_end(connection, record, by)
        return {"claimed": claimed}

    def verb_release(self, connection: Connection, number: int, m: Message) -> Answer:
        """Let go of a claim, or of some events of it: whoever made it will not tell after all."""
        session = connection.session or check_session(m["session"])
        ids = None if m.get("ids") is None else _ids(m["ids"])
        self.worker.delivery.free(session, str(m["by"]), ids)
        return {}

    def verb_acknowledge(self, connection: Connection, number: int, m: Message) -> Answer:
        session = connection.session or check_session(m["session"])
        ids, by = _ids(m["ids"]), str(m.get("by") or "")
        return {"acknowledged": self.worker.delivery.acknowledge(session, ids, by)}

    # -- the keeper ----------------------------------------------------------------------------

    def verb_status(self, connection: Connection, number: int, m: Message) -> Answer:
        worker = self.worker
        return {
            "running": True,
            "version": __version__,
            "protocol": wire.PROTOCOL,
            "guard": os.getppid(),
            "worker": os.getpid(),
            "started_at": worker.started_at,
            "processes": len(worker.running(None)),
            "connections": len(worker.connections),
            "leases": len(worker.leases),
            "python": sys.version.split()[0],
            "containment": worker.containment.kind,
        }

    def verb_restart(self, connection: Connection, number: int, m: Message) -> None:
        """Renew both halves: the guard goes, the worker takes its place with the caller's code."""
        command = m.get("program") or keeper_program()
        if not all(isinstance(part, str) for part in command) or not os.access(command[0], os.X_OK):
            raise BadRequest("there is no such interpreter; nothing was restarted")
        say("restarting")
        connection.answer(number, {})
        self.worker.end_guard()
        self.worker.become_guard(command)

    def verb_quit(self, connection: Connection, number: int, m: Message) -> None:
        running = self.worker.running(None)
        if running or self.worker.modes.starts:
            raise KeeperError(
                f"the keeper keeps {len(running)} running processes; `holdfast keeper restart` "
                "leaves them running, `holdfast keeper stop --kill` stops them first",
                running=[child.record.handle for child in running],
            )
        connection.answer(number, {})
        self.worker.quit()


def seconds(value: object) -> float:
    """A duration that clocks can be counted with: a timer that is not a number would stop all."""
    if isinstance(value, (int, float)) and 0 <= value < _FOR_EVER:
        return float(value)
    raise BadRequest(f"not a number of seconds: {str(value)[:60]}")


def translated(error: OSError | MemoryError) -> HoldfastError:
    """An error of the system, as a caller is told it."""
    if isinstance(error, MemoryError):
        return KeeperError("the keeper is out of memory; end some processes and try again")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return SpawnError("the keeper is out of descriptors; end some processes and try again")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError("no space left in the home directory; free some and try again")
    return StoreError(f"the keeper could not do it: {error.strerror or error}")


def _ids(value: object) -> list[str]:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    raise BadRequest("ids are a list of the ids of events")


def _group(value: object) -> str:
    if isinstance(value, str) and value:
        return value
    raise BadRequest("a group is a name that its processes were started with")


def _grace(value: object) -> float | None:
    return None if value is None else seconds(value)


def _watches(asked: object, logs: int) -> list[Answer]:
    if not isinstance(asked, list) or len(asked) > MOST_WATCHES:
        raise BadRequest(f"watches are a list of at most {MOST_WATCHES}")
    now = time.monotonic()
    ends = [0] * logs
    return [begun(checked(spec), number, ends, now) for number, spec in enumerate(asked, 1)]


def _signal(name: object) -> int:
    number = signal_number(name) if isinstance(name, (str, int)) else None
    if number is None:
        raise BadRequest(f"no signal {name!r}; names like TERM, KILL or INT are understood")
    return number


def _agent_answer(record: AgentRecord | None) -> Answer:
    """None: that registration is over, and its name another one's."""
    return {"agent": None if record is None else record.to_json()}
