"""The worker: the half of the keeper that does the work. Each verb of the protocol is a method.

DESIGN. The worker may be killed between any two instructions, so whatever it does is on disk, or
with the guard, before anybody is told of it.

Start: record written (without a pid); guard told "launching"; process made; guard given the
descriptors; caller answered; record written with the pid. End: output drained; exit note written;
process reaped; waiters told; outbox entry appended; record saved. A successor finds a record that
says running, and beside it either a living process, or a note from which the rest follows.
"""

from __future__ import annotations

import binascii
import errno
import os
import signal
import socket
import sys
import time
from functools import partial

from .. import _kernel, _wire
from .._completion import TAIL_BYTES
from .._cursors import forget_cursors
from .._errors import (
    BadRequest,
    HoldfastError,
    KeeperError,
    LimitReached,
    NotFound,
    NotRunning,
    SpawnError,
    StoreError,
    not_found,
)
from .._home import check_session, is_handle
from .._model import DEFAULT_SESSION, ExitNote, Record, Stop, rfc3339, signal_name, signal_number
from .._outbox import OutboxWriter, end_event_id
from .._start import keeper_program
from .._version import __version__
from . import adopt, launch
from .child import Child, log_writer
from .connection import Connection
from .guard import Held
from .journal import say
from .leases import Leases
from .loop import IN, Loop
from .renew import renew
from .stop import Stopping, signal_group

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .guard import Channel, Guard
    from .loop import Timer

_SAVE_AGAIN = 1.0
_REAP_DELAY = 0.05
_SESSION_KEPT = 7 * 86400.0
_ALWAYS_ALLOWED = frozenset({"status", "restart", "quit"})


def run_worker(guard: Guard, channel: Channel) -> None:
    try:
        Worker(guard, channel).run()
    except Exception:
        import traceback

        say("the worker failed:\n" + traceback.format_exc())
        os._exit(1)


class Worker:
    def __init__(self, guard: Guard, channel: Channel) -> None:
        self.guard = guard
        self.home = guard.home
        self.store = guard.store
        self.channel = channel
        self.loop = Loop()
        self.children: dict[str, Child] = {}
        self.finished: dict[str, dict[str, None]] = {}  # session -> handles, oldest first
        self.connections: set[Connection] = set()
        self.outboxes: dict[str, OutboxWriter] = {}
        self.unsaved: dict[str, Child] = {}
        self.memory_kills = _kernel.MemoryKills()
        self.leases = Leases(self.home, self.loop, self._lease_expired)
        self.started_at = rfc3339(time.time())
        self._idle: Timer | None = None
        self._prune: Timer | None = None
        self._save: Timer | None = None
        self._reap: Timer | None = None
        self._listener = socket.socket(fileno=os.dup(guard.listen))
        self._verbs: dict[str, Callable[[Connection, int, dict[str, Any]], dict[str, Any] | None]]
        self._verbs = {
            name[5:]: getattr(self, name) for name in dir(self) if name.startswith("verb_")
        }

    def run(self) -> None:
        _kernel.become_subreaper()
        read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self.loop.add(read, IN, lambda _: self._child_died(read))
        self.loop.add(self.channel.fileno(), IN, lambda _: self._guard_died())
        self._recover()
        self._listener.setblocking(False)
        self.loop.add(self._listener.fileno(), IN, self._accept)
        self._check_idle()
        self.loop.run()

    # -- the two halves ------------------------------------------------------------------------

    def _guard_died(self, command: list[str] | None = None) -> None:
        """The guard never speaks, so a readable channel means that it is gone: take its place."""
        table = {handle: child.held for handle, child in self.children.items()}
        renew(self.guard, table, command or keeper_program())

    def _tell(self, what: str, handle: str = "", *details: Any) -> None:
        try:
            self.channel.tell(what, handle, *details)
        except OSError:
            self._guard_died()

    def _hold(self, handle: str, held: Held) -> None:
        try:
            self.channel.hand_over(handle, held)
        except OSError:
            pass  # the channel's end is next in the loop, and the child is in our table by then

    def _child_died(self, wake: int) -> None:
        """Children of our own have pidfds; this is for orphans, which can wait a little."""
        try:
            while os.read(wake, 4096):
                pass
        except BlockingIOError:
            pass
        if self._reap is None:
            self._reap = self.loop.after(_REAP_DELAY, self._reap_strangers)

    def _reap_strangers(self) -> None:
        """A subreaper must also reap what its processes left behind."""
        self._reap = None
        own = {child.held.pid for child in self.children.values() if child.mine}
        for pid in _kernel.children():
            if pid not in own:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    # -- recovery ------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Take up what is on disk and in the guard's hands."""
        now = time.time()
        for handle in self.store.handles():
            try:
                record = self.store.load_saved(handle)
            except StoreError as error:
                self._recover_unreadable(handle, error)
                continue
            except NotFound:
                continue
            held = self.guard.table.get(handle)
            if record.running:
                self._recover_running(record, held)
            else:
                self.finished.setdefault(record.session, {})[handle] = None
                if held is None and os.path.exists(self.home.fifo(handle)):
                    held = adopt.readers_only(self.home, record)
                if held is not None:
                    self._recover_lingering(record, held)
        for handle, held in self.guard.table.items():
            if handle not in self.children:
                self._tell("forget", handle)
                for fd in held.descriptors():
                    os.close(fd)
        self.guard.table.clear()
        self.leases.recover()
        self._prune_sessions(now)
        self._plan_prune()
        self._tell("recovered")

    def _recover_unreadable(self, handle: str, error: StoreError) -> None:
        if not self.guard.fresh and handle not in self.guard.table and self.store.is_empty(handle):
            self.store.delete(handle)  # a worker died as it began to write it: it never was
            return
        say(str(error))
        if not error.detail.get("newer"):
            say(f"set aside as {self.store.set_aside(handle)}")

    def _recover_running(self, record: Record, held: Held | None) -> None:
        handle = record.handle
        note = self.store.read_exit(handle)
        if held is None:
            if record.pid is None and not self.guard.fresh:
                # A worker died before it made the process, or the guard would hold it: it never was.
                self.store.delete(handle)
                return
            held = adopt.find(self.home, record) if note is None else None
            if held is None:
                held = adopt.readers_only(self.home, record)
            else:
                self._hold(handle, held)
                say(f"adopted {handle}, pid {held.pid}")
        if record.pid is None and held.pid:
            # A worker died between making the process and writing down its pid.
            record.pid, record.start_time = held.pid, _kernel.start_time(held.pid)
            self.store.save(record)
        found = _kernel.stat(held.pid)
        guarded = found is not None and found.parent == os.getppid()
        child = self.children[handle] = self._child(record, held, guarded=guarded)
        child.watch_output()
        stopping = self._stopping(child) if record.stop is not None else None
        if note is not None:
            child.settle_strange()
        elif held.pidfd < 0:
            child.settle_lost()
        else:
            child.watch_end()
            self._set_deadline(child)
            if stopping is not None and record.stop is not None:
                stopping.begin(signal_number(record.stop.signal) or signal.SIGTERM)

    def _recover_lingering(self, record: Record, held: Held) -> None:
        """It has ended, but something it started may still hold its output."""
        child = self._child(record, held)
        child.note = self.store.read_exit(record.handle) or ExitNote(None, None, 0.0, 0.0)
        self.children[record.handle] = child
        child.watch_output()
        self._quiet(child)

    def _child(
        self, record: Record, held: Held, *, mine: bool = False, guarded: bool = False
    ) -> Child:
        return Child(
            self.loop,
            self.store,
            record,
            held,
            mine=mine,
            guarded=guarded,
            memory_kills=self.memory_kills,
            on_end=self._ended,
            on_quiet=self._quiet,
            on_limit=lambda child: self._stop(child, "log_limit", "keeper"),
            on_sent=lambda child, token, n: self._tell("sent", child.record.handle, token, n),
        )

    # -- connections ---------------------------------------------------------------------------

    def _accept(self, events: int) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self.loop.remove(self._listener.fileno())
                self.loop.after(
                    0.1, lambda: self.loop.add(self._listener.fileno(), IN, self._accept)
                )
                return
            pid, uid = _kernel.peer_of(end)
            if uid != os.geteuid():
                say(f"refused a connection of uid {uid}")
                end.close()
                continue
            self.connections.add(Connection(self.loop, end, pid, self._message, self._disconnected))
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None

    def _disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if connection.leased and connection.session is not None:
            self.leases.disconnected(connection.session, connection.client, connection)
        self._check_idle()

    def _message(self, connection: Connection, message: dict[str, Any]) -> None:
        if "hello" in message:
            self._greet(connection, message)
            return
        if not connection.greeted:
            connection.close()
            return
        if "cancel" in message:
            connection.cancel(message["cancel"])
            return
        number, verb = message.get("id"), message.get("verb")
        if not isinstance(number, int):
            connection.close()
            return
        handler = self._verbs.get(verb) if isinstance(verb, str) else None
        try:
            if handler is None:
                raise BadRequest(f"the keeper has no verb {verb!r}; upgrade it with `holdfast keeper restart`")
            if connection.limited and verb not in _ALWAYS_ALLOWED:
                raise KeeperError("another protocol; run `holdfast keeper restart`", version=True)
            result = handler(connection, number, message)
        except HoldfastError as error:
            connection.refuse(number, error)
        except OSError as error:
            say(f"{verb}: {error}")
            connection.refuse(number, _os_error(error))
        except (KeyError, TypeError, ValueError) as error:
            connection.refuse(number, BadRequest(f"{verb}: malformed request ({error!r})"))
        else:
            if result is not None:
                connection.answer(number, result)

    def _greet(self, connection: Connection, message: dict[str, Any]) -> None:
        try:
            if message["hello"] != _wire.PROTOCOL:
                connection.greeted = connection.limited = True
                raise _wire.version_error(
                    str(message.get("version")), __version__, _wire.PROTOCOL, message["hello"]
                )
            if message["machine"] != _kernel.machine():
                raise KeeperError(
                    "this home is in use by a keeper in another container or on another machine; "
                    "set HOLDFAST_HOME to a directory of this one"
                )
            if message["session"] is not None:
                connection.session = check_session(message["session"])
            lease = message["lease"]
            connection.client = str(message["client"])
            if lease is not None and connection.session is not None:
                connection.leased = True
                self.leases.hold(
                    connection.session,
                    float(lease["grace"]),
                    connection.client,
                    connection.pid,
                    _kernel.peer_pidfd(connection.socket),
                    connection,
                )
        except HoldfastError as error:
            connection.send({"error": error.to_wire(), "version": __version__})
            if not connection.limited:
                connection.close()
            return
        except (KeyError, TypeError, ValueError):
            connection.close()
            return
        connection.greeted = True
        connection.send(
            {
                "hello": _wire.PROTOCOL,
                "version": __version__,
                "guard": os.getppid(),
                "worker": os.getpid(),
            }
        )

    # -- spawn ---------------------------------------------------------------------------------

    def verb_spawn(self, connection: Connection, number: int, m: dict[str, Any]) -> None:
        handle = m["handle"]
        if not is_handle(handle):
            raise BadRequest("a handle is proc- and 16 to 64 small letters or digits")
        session = connection.session or check_session(m.get("session") or DEFAULT_SESSION)
        if handle in self.children:
            connection.answer(number, {"record": self._existing(handle, session).to_json()})
            return
        self._check_room(session, m["max_running"])
        argv: list[str] = m["argv"]
        env: dict[str, str] = m["env"]
        launch.check_directory(m["cwd"])
        found = launch.find_program(argv, env, m["cwd"])
        record = Record(
            handle=handle,
            session=session,
            command=m["command"],
            cwd=m["cwd"],
            label=m["label"],
            group=m["group"],
            started_at=rfc3339(time.time()),
            started_clock=time.monotonic(),
            log=self.home.log(handle),
            err_log=self.home.log(handle, "stderr") if m["stderr"] == "separate" else None,
            stdin=bool(m["stdin"]),
            keep=bool(m["keep"]),
            timeout=m["timeout"],
            grace=m["grace"],
            log_cap=m["log_cap"],
            log_limit=m["log_limit"],
            retention=m["retention"],
            max_finished=m["max_finished"],
            boot_id=_kernel.boot_id(),
        )
        try:
            self.store.create(record)
        except FileExistsError:  # asked before, and ended since
            connection.answer(number, {"record": self._existing(handle, session).to_json()})
            return
        child = self._launch(record, found, argv, env, m["umask"])
        connection.answer(number, {"record": record.to_json()})
        # The caller has its handle; what follows was already safe with the guard.
        record.start_time = _kernel.start_time(child.held.pid)
        try:
            self.store.prepare_exit(handle)
            self.store.save(record)
        except OSError as error:
            say(f"{handle}: {error}")
        child.watch_output(new=True)
        child.watch_end()
        self._set_deadline(child)

    def _existing(self, handle: str, session: str) -> Record:
        child = self.children.get(handle)
        record = self.store.load(handle) if child is None else child.record
        if record.session != session:
            raise BadRequest("this handle is taken; choose another one")
        return record

    def _check_room(self, session: str, limit: int) -> None:
        running = [
            child.record
            for child in self.children.values()
            if child.note is None and child.record.session == session
        ]
        if len(running) >= limit:
            names = ", ".join(
                f"{record.handle} ({record.label})" if record.label else record.handle
                for record in running
            )
            raise LimitReached(
                f"session {session!r} already runs {len(running)} of at most {limit} processes; "
                f"kill one or wait for one: {names}",
                running=[record.handle for record in running],
            )

    def _launch(
        self, record: Record, found: str, argv: list[str], env: dict[str, str], umask: int
    ) -> Child:
        handle = record.handle
        try:
            ends, actions = launch.make_ends(self.home, record)
        except BaseException:
            self.store.delete(handle)
            raise
        try:
            self.channel.tell("launching", handle)
            pid = launch.start(found, argv, env, record, actions, umask, self.guard.nofile)
        except BaseException as error:
            ends.close_all()
            self.store.delete(handle)
            if not isinstance(error, HoldfastError):
                self._guard_died()  # it could not be told; the caller will ask our successor
            self._tell("failed", handle)
            raise
        held = Held(pid, os.pidfd_open(pid), ends.out, ends.err, ends.stdin)
        record.pid = pid
        child = self.children[handle] = self._child(record, held, mine=True)
        self._hold(handle, held)
        ends.close_theirs()
        return child

    def _set_deadline(self, child: Child) -> None:
        clock = child.record.deadline_clock
        if clock is not None:
            child.deadline = self.loop.at(clock, lambda: self._stop(child, "timeout", "keeper"))

    # -- the end -------------------------------------------------------------------------------

    def _ended(self, child: Child) -> None:
        if child.held.stdin >= 0:
            child.close_stdin()
        self._write_end(child)
        record = child.record
        self.finished.setdefault(record.session, {})[record.handle] = None
        if child.stopping is not None:
            child.stopping.process_ended()
        self._quiet(child)
        self._evict(record.session, record.max_finished)
        self._plan_prune()

    def _write_end(self, child: Child) -> None:
        """Outbox, then record; on a full disk later, the exit note has it all."""
        record = child.record
        try:
            self._outbox(record.session).append(
                {
                    "id": end_event_id(record.handle),
                    "type": "end",
                    "at": record.ended_at,
                    "handle": record.handle,
                    "label": record.label,
                    "command": record.command,
                    "status": record.status,
                    "exit_code": record.exit_code,
                    "signal": record.signal,
                    "reason": record.reason,
                    "duration_seconds": record.duration_seconds,
                    "tail": binascii.b2a_base64(self._tail(child), newline=False).decode(),
                }
            )
            self.store.save(record)
        except OSError as error:
            say(f"{record.handle}: its end cannot be written yet: {error}")
            self.unsaved[record.handle] = child
            if self._save is None:
                self._save = self.loop.after(_SAVE_AGAIN, self._save_again)
        else:
            self.unsaved.pop(record.handle, None)

    def _save_again(self) -> None:
        self._save = None
        for child in list(self.unsaved.values()):
            self._write_end(child)

    def _tail(self, child: Child) -> bytes:
        """The last output, of stdout and after it stderr where they are separate."""
        count = TAIL_BYTES // len(child.writers)
        return b"".join(writer.tail(count) for writer in child.writers)

    def _quiet(self, child: Child) -> None:
        """Let go of a process that has ended, once nothing of it can write to its log."""
        handle = child.record.handle
        if child.quiet and child.stopping is None and handle in self.children:
            self._let_go(child)

    def _let_go(self, child: Child) -> None:
        handle = child.record.handle
        del self.children[handle]
        child.close()
        self._tell("forget", handle)
        for stream in ("stdout", "stderr"):
            try:
                os.unlink(self.home.fifo(handle, stream))
            except FileNotFoundError:
                continue
        self._check_idle()

    def _outbox(self, session: str) -> OutboxWriter:
        writer = self.outboxes.get(session)
        if writer is None:
            if len(self.outboxes) > 100:
                self.outboxes.clear()
            writer = self.outboxes[session] = OutboxWriter(self.home, session)
        return writer

    # -- forgetting ----------------------------------------------------------------------------

    def _evict(self, session: str, limit: int) -> None:
        handles = self.finished.get(session, {})
        while len(handles) > limit:
            self._forget(session, next(iter(handles)))

    def _forget(self, session: str, handle: str) -> None:
        """Delete every trace but the session's events."""
        child = self.children.get(handle)
        if child is not None:
            self._let_go(child)
        self.unsaved.pop(handle, None)
        self.finished.get(session, {}).pop(handle, None)
        self.store.delete(handle)
        forget_cursors(self.home, session, handle)

    def _plan_prune(self) -> None:
        if self._prune is None:
            soonest = self._prune_finished()
            if soonest is not None:
                self._prune = self.loop.after(max(1.0, soonest), self._prune_due)

    def _prune_due(self) -> None:
        self._prune = None
        self._plan_prune()

    def _prune_finished(self) -> float | None:
        """Forget what nobody has looked at for its retention; seconds until the next is due."""
        soonest: float | None = None
        for session, handles in list(self.finished.items()):
            for handle in list(handles):
                if handle in self.unsaved:
                    continue
                try:
                    left = self.store.expires_in(self.store.load_saved(handle))
                except NotFound:
                    del handles[handle]
                    continue
                except StoreError:
                    continue
                if left <= 0:
                    self._forget(session, handle)
                elif soonest is None or left < soonest:
                    soonest = left
            if not handles:
                del self.finished[session]
        return soonest

    def _prune_sessions(self, now: float) -> None:
        """Sessions that nothing has happened in for a week, and that hold no process, are dropped."""
        import shutil

        used = set(self.finished) | {child.record.session for child in self.children.values()}
        for session in self.home.session_names():
            path = self.home.session(session)
            try:
                newest = max(os.stat(path).st_mtime, _mtime(self.home.outbox(session)))
            except FileNotFoundError:
                continue
            if session not in used and now - newest > _SESSION_KEPT:
                shutil.rmtree(path, ignore_errors=True)

    # -- verbs on a process --------------------------------------------------------------------

    def _find(self, connection: Connection, handle: object) -> Child | Record:
        """The live child, or the record of an ended process; not found if it is another session's."""
        if not is_handle(handle):
            raise not_found(str(handle))
        assert isinstance(handle, str)
        child = self.children.get(handle)
        record = self.store.load(handle) if child is None else child.record
        if connection.session not in (None, record.session):
            raise not_found(handle)
        return record if child is None or child.note is not None else child

    def verb_wait(
        self, connection: Connection, number: int, m: dict[str, Any]
    ) -> dict[str, Any] | None:
        found = self._find(connection, m["handle"])
        if isinstance(found, Record):
            return {"record": found.to_json()}

        def ended(record: Record) -> None:
            connection.answer(number, {"record": record.to_json()})

        child = found
        child.waiters.append(ended)
        connection.later(number, lambda: child.stop_waiting(ended))
        return None

    def verb_send(
        self, connection: Connection, number: int, m: dict[str, Any]
    ) -> dict[str, Any] | None:
        found = self._find(connection, m["handle"])
        if isinstance(found, Record):
            raise _not_running(found)
        data = binascii.a2b_base64(m["data"])
        if len(data) > _wire.SEND_BYTES:
            raise BadRequest(f"at most {_wire.SEND_BYTES} bytes at once; send it in parts")
        child = found

        def done(written: int, error: Exception | None) -> None:
            if child.held.stdin < 0:
                self._tell("eof", child.record.handle)
            if isinstance(error, HoldfastError):
                connection.refuse(number, error)
            else:
                connection.answer(number, {"written": written})

        connection.later(number, lambda: None)
        child.send(data, str(m["token"]), bool(m["eof"]), float(m["timeout"]), done)
        return None

    def verb_signal(
        self, connection: Connection, number: int, m: dict[str, Any]
    ) -> dict[str, Any]:
        found = self._find(connection, m["handle"])
        if isinstance(found, Record):
            raise _not_running(found)
        signal_group(found, _signal(m["signal"]))
        return {}

    def verb_kill(
        self, connection: Connection, number: int, m: dict[str, Any]
    ) -> dict[str, Any] | None:
        found = self._find(connection, m["handle"])
        record = found if isinstance(found, Record) else found.record
        child = self.children.get(record.handle)
        if child is None:
            return _ended_already(record)
        self._stop(child, "killed", f"pid {connection.pid}", _signal(m["signal"]), m["grace"])
        self._when_stopped(connection, number, child, lambda receipt: receipt)
        return None

    def _when_stopped(
        self,
        connection: Connection,
        number: int,
        child: Child,
        result: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        """Answer once nothing is left of a process that is being stopped, or has ended by itself."""

        def done(receipt: dict[str, Any]) -> None:
            connection.answer(number, result({"record": child.record.to_json(), **receipt}))

        def ended(record: Record) -> None:
            connection.answer(number, result(_ended_already(record)))

        stopping = child.stopping
        if stopping is not None:
            stopping.when_done(done)
            connection.later(number, lambda: stopping.forget(done))
        elif child.note is not None:
            ended(child.record)
        else:
            child.waiters.append(ended)
            connection.later(number, lambda: child.stop_waiting(ended))

    def _stop(
        self,
        child: Child,
        reason: str,
        by: str,
        polite: int = signal.SIGTERM,
        grace: float | None = None,
    ) -> None:
        """Begin to stop a process, or hurry a stop that has begun."""
        record = child.record
        now = time.monotonic()
        grace = 0.0 if polite == signal.SIGKILL else record.grace if grace is None else float(grace)
        if child.stopping is not None:
            child.stopping.hasten(now + grace)
            return
        if child.exited():
            child.settle_if_exited()  # it ended by itself a moment ago, and that stands
            return
        record.stop = Stop(reason, by, signal_name(polite), now, now + grace)
        try:
            self.store.save(record)
        except OSError as error:
            say(f"{record.handle}: {error}")
        self._stopping(child).begin(polite)

    def _stopping(self, child: Child) -> Stopping:
        child.stopping = Stopping(self.loop, child)
        child.stopping.when_done(lambda receipt: self._stopped(child, receipt))
        return child.stopping

    def _stopped(self, child: Child, receipt: dict[str, Any]) -> None:
        if receipt["survivors"]:
            names = ", ".join(str(pid) for pid in receipt["survivors"])
            child.record.notes.append(f"still alive after the kill: pid {names}")
            self._write_end(child)
        self._quiet(child)

    def verb_stop_all(
        self, connection: Connection, number: int, m: dict[str, Any]
    ) -> dict[str, Any] | None:
        session = connection.session or m.get("session")
        return self._stop_many(
            connection,
            number,
            [
                child
                for child in self.children.values()
                if child.note is None and session in (None, child.record.session)
            ],
            "killed",
            m.get("grace"),
        )

    def _stop_many(
        self,
        connection: Connection,
        number: int,
        children: list[Child],
        reason: str,
        grace: float | None,
    ) -> dict[str, Any] | None:
        receipts: list[dict[str, Any]] = []
        stoppings: list[tuple[Stopping, Callable[[dict[str, Any]], None]]] = []

        def done(child: Child, receipt: dict[str, Any]) -> None:
            receipts.append({"record": child.record.to_json(), **receipt})
            if len(receipts) == len(stoppings):
                connection.answer(number, {"receipts": receipts})

        for child in children:
            self._stop(child, reason, f"pid {connection.pid}", grace=grace)
            if child.stopping is not None:
                stoppings.append((child.stopping, partial(done, child)))
        if not stoppings:
            return {"receipts": []}

        def forget() -> None:
            for stopping, callback in stoppings:
                stopping.forget(callback)

        connection.later(number, forget)
        for stopping, callback in stoppings:
            stopping.when_done(callback)
        return None

    def verb_clear(self, connection: Connection, number: int, m: dict[str, Any]) -> dict[str, Any]:
        found = self._find(connection, m["handle"])
        record = found if isinstance(found, Record) else found.record
        child = self.children.get(record.handle)
        if child is not None:
            child.clear()
            return {}
        for stream in ("stdout", "stderr")[: 1 if record.err_log is None else 2]:
            writer = log_writer(self.home, record, stream)
            writer.clear()
            writer.close()
        return {}

    def verb_remove(
        self, connection: Connection, number: int, m: dict[str, Any]
    ) -> dict[str, Any] | None:
        found = self._find(connection, m["handle"])
        record = found if isinstance(found, Record) else found.record
        child = self.children.get(record.handle)
        if child is None:
            self._remove(record)
            return {}
        self._stop(child, "killed", f"pid {connection.pid}", grace=m.get("grace"))

        def removed(receipt: dict[str, Any]) -> dict[str, Any]:
            self._remove(record)
            return {}

        self._when_stopped(connection, number, child, removed)
        return None

    def _remove(self, record: Record) -> None:
        self._forget(record.session, record.handle)
        self._outbox(record.session).acknowledge([end_event_id(record.handle)])

    # -- verbs on a session --------------------------------------------------------------------

    def verb_acknowledge(
        self, connection: Connection, number: int, m: dict[str, Any]
    ) -> dict[str, Any]:
        session = connection.session or check_session(m["session"])
        if session not in self.outboxes and not os.path.exists(self.home.outbox(session)):
            return {"acknowledged": []}
        return {"acknowledged": self._outbox(session).acknowledge(m["ids"])}

    def verb_close(
        self, connection: Connection, number: int, m: dict[str, Any]
    ) -> dict[str, Any] | None:
        """End the session in good order, if this client is the last that holds it."""
        session = connection.session
        if session is None or not self.leases.close(session, connection.client):
            return {"receipts": []}
        connection.leased = False
        return self._stop_many(connection, number, self._of_lease(session), "lease_ended", None)

    def _of_lease(self, session: str) -> list[Child]:
        return [
            child
            for child in self.children.values()
            if child.note is None and child.record.session == session and not child.record.keep
        ]

    def _lease_expired(self, session: str) -> None:
        children = self._of_lease(session)
        if children:
            say(f"nobody came back to session {session!r}: stopping {len(children)} processes")
        for child in children:
            self._stop(child, "lease_ended", "keeper")
        self._check_idle()

    # -- verbs on the keeper -------------------------------------------------------------------

    def verb_status(self, connection: Connection, number: int, m: dict[str, Any]) -> dict[str, Any]:
        return {
            "running": True,
            "version": __version__,
            "protocol": _wire.PROTOCOL,
            "guard": os.getppid(),
            "worker": os.getpid(),
            "started_at": self.started_at,
            "processes": sum(child.note is None for child in self.children.values()),
            "connections": len(self.connections),
            "leases": len(self.leases),
            "python": sys.version.split()[0],
        }

    def verb_restart(
        self, connection: Connection, number: int, m: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Renew both halves: the guard goes, and this worker takes its place with the caller's code."""
        command = m.get("program") or keeper_program()
        if not all(isinstance(part, str) for part in command) or not os.access(command[0], os.X_OK):
            raise BadRequest("there is no such interpreter; nothing was restarted")
        say(f"restarting as {command[-1]}")
        connection.answer(number, {})
        os.kill(os.getppid(), signal.SIGKILL)
        self._guard_died(command)
        return None

    def verb_quit(
        self, connection: Connection, number: int, m: dict[str, Any]
    ) -> dict[str, Any] | None:
        running = [child for child in self.children.values() if child.note is None]
        if running:
            raise KeeperError(
                f"the keeper keeps {len(running)} running processes; `holdfast keeper restart` "
                "leaves them running, `holdfast keeper stop --kill` stops them first",
                running=[child.record.handle for child in running],
            )
        connection.answer(number, {})
        self._quit()
        return None

    def _check_idle(self) -> None:
        busy = self.connections or self.children or self.unsaved
        if busy:
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
        elif self._idle is None:
            self._idle = self.loop.after(self.guard.idle, self._quit)

    def _quit(self) -> None:
        # Under the lock, which we hold: whoever connects from now on finds no socket, waits for
        # the lock, and starts the next keeper.
        try:
            os.unlink(self.home.socket)
        except FileNotFoundError:
            pass
        self._tell("quit")
        for connection in list(self.connections):
            connection.close()
        self.loop.stop()


def _signal(name: object) -> int:
    number = signal_number(name) if isinstance(name, (str, int)) else None
    if number is None:
        raise BadRequest(f"no signal {name!r}; names like TERM, KILL or INT are understood")
    return number


def _not_running(record: Record) -> NotRunning:
    return NotRunning(
        f"{record.handle} is not running any more ({record.status}); its log can still be read",
        handle=record.handle,
        status=record.status,
    )


def _ended_already(record: Record) -> dict[str, Any]:
    return {
        "record": record.to_json(),
        "signalled": 0,
        "forced": False,
        "survivors": [],
        "already_ended": True,
    }


def _os_error(error: OSError) -> HoldfastError:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return SpawnError("the keeper is out of descriptors; end some processes and try again")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreError("no space left in the home directory; free some and try again")
    return StoreError(f"the keeper could not do it: {error.strerror or error}")


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0
