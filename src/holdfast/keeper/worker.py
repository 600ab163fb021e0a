"""The worker: the half of the keeper that does the work.

DESIGN. The worker may be killed between any two instructions, so whatever it does is on disk, or
with the guard, before anybody relies on it.

Start: record written (without a pid); guard told "launching"; process made; guard given the
descriptors; caller answered; record written with the pid. End: output drained; outbox entry
appended; record written (ended, and told); process reaped; waiters told. Those who have claimed the
end are told as soon as it is in the record.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time

from ..core import wire
from ..core.cursors import forget_cursors
from ..core.errors import BadRequest, HoldfastError, KeeperError
from ..core.home import check_session, unlink
from ..core.index import Index
from ..core.machine import boot_id, machine
from ..core.programs import keeper_program
from ..core.record import ExitNote, Record, Stop, rfc3339, signal_name
from ..core.version import __version__
from ..core.waits import forget_waits
from ..core.watch import is_live
from ..linux import cgroup, kernel
from ..linux.lifetime import ends_with
from .agents import Agents
from .child import Child
from .connection import Connection
from .containment import Containment
from .deliver import Delivery
from .held_fds import Held
from .journal import say
from .leases import Leases
from .life_cycle import Lives
from .loop import IN, Loop
from .lost_sessions import Adoptions
from .modes import Modes, runner
from .orphan_sweep import Origin, Sweep, Sweeps
from .presence import Presence
from .receipt import Receipt
from .recover import recover
from .reexec import renew
from .requests import Verbs, seconds, translated
from .retention import Retention, open_long_logs, shred
from .run_program import Helpers
from .stop import Stopping
from .watchdog import LOOK, STOPPED_LOOKS
from .watcher_process import Watching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .channel import Channel
    from .guard import Guard
    from .held_fds import Table
    from .loop import Timer

_REAP_DELAY = 0.05
_NUDGE_DELAY = 0.02
_ACCEPT_AGAIN = 0.1
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def run_worker(guard: Guard, channel: Channel) -> None:
    worker = None
    try:
        worker = Worker(guard, channel)
        worker.run()
    except Exception:
        say("the worker failed:")
        sys.excepthook(*sys.exc_info())  # which needs nothing that is not there already
        if not channel.guard_lives():
            # Nobody would start another worker, and all that is held would be lost. What failed may
            # have been for want of descriptors.
            channel.close()
            renew(guard, guard.table if worker is None else worker.held(), keeper_program())
        os._exit(1)


class Worker:
    def __init__(self, guard: Guard, channel: Channel) -> None:
        self.guard = guard
        self.presence = Presence(self)
        self.home = guard.home
        self.store = guard.store
        self.index = self.store.index = Index(self.home, guard.lock)
        self.loop = Loop(guard.pulse.rounds, self._beat)
        self.children: dict[str, Child] = {}
        self.connections: set[Connection] = set()
        self.delivery = Delivery(self.home, self.store, self.loop, self.let_go_if_quiet)
        self.agents = Agents(self.home, self.loop, self.delivery.outbox, self._check_idle)
        self.retention = Retention(self.home, self.store, self.loop, self.forget)
        self.leases = Leases(self.home, self.loop, self._lease_ran_out)
        self.adoptions = Adoptions(self)
        self.started_at = rfc3339(time.time())
        self.ends_with = ends_with(os.getpid())
        self._channel = channel
        self.containment = Containment(self.home.path, guard.nofile)
        self.sweeps = Sweeps(self.loop)
        self.helpers = Helpers(self.loop, guard.nofile)
        self.modes = Modes(self)
        self.lives = Lives(self, channel)
        self.watching = Watching(self)
        self._verbs = Verbs(self)
        self._listener = socket.socket(fileno=os.dup(guard.listen))
        self._listener.setblocking(False)
        self.serving = False
        self._nudge: Timer | None = None
        self._look: Timer | None = None  # at the guard
        self._looks = 0
        self._heard = 0
        self._idle: Timer | None = None
        self._reap: Timer | None = None

    def run(self) -> None:
        kernel.become_subreaper()
        signals = kernel.child_signals()
        self.loop.add(signals, IN, lambda _: self._child_died(signals))
        self.loop.add(self._channel.fileno(), IN, lambda _: self.become_guard(keeper_program()))
        self.presence.begin()
        recover(self)
        self.presence.ready()
        self.loop.add(self._listener.fileno(), IN, self._accept)
        self.serving = True
        self._check_idle()
        self.loop.run()

    # -- the other half ------------------------------------------------------------------------

    def become_guard(self, program: list[str]) -> None:
        """The guard never speaks, so a readable channel means that it is gone: take its place."""
        renew(self.guard, self.held(), program)

    def held(self) -> Table:
        """The processes held, with those not taken up yet if we are still recovering."""
        children = {handle: child.held for handle, child in self.children.items()}
        return self.guard.table | children

    def end_guard(self) -> None:
        self._channel.end_guard()

    def tell(self, what: str, handle: str = "", *details: Any) -> None:
        try:
            self._channel.tell(what, handle, *details)
        except OSError:
            self.become_guard(keeper_program())
        self._nudge_later()

    def _nudge_later(self) -> None:
        if self._nudge is None:
            self._nudge = self.loop.after(_NUDGE_DELAY, self._nudge_now)

    def _nudge_now(self) -> None:
        self._nudge = None
        self._channel.nudge()
        self._look_later()

    def _beat(self) -> None:
        """Have the guard see that there is work, and see that it does."""
        self._channel.nudge()
        self._look_later()

    def _look_later(self) -> None:
        if self._look is None:
            self._looks = 0
            self._look = self.loop.after(LOOK, self._look_at_guard)

    def _look_at_guard(self) -> None:
        """A guard that takes in no nudge, from one look to the next, hangs or is stopped.

        One that is slow, on a busy machine, may have another before it at every look.
        """
        self._look = None
        if not self._channel.unheard():
            return
        heard, self._heard = self._heard, self._channel.heard()
        slow = heard != self._heard
        self._looks = 0 if slow or self._channel.guard_is_traced() else self._looks + 1
        if self._looks >= STOPPED_LOOKS:
            say("the guard does not answer: ending it, and going on in its place")
            self.end_guard()
            return
        self._look = self.loop.after(LOOK, self._look_at_guard)

    def hold(self, handle: str, held: Held) -> None:
        try:
            self._channel.hand_over("held", handle, held)
        except OSError:
            pass  # the channel's end is next in the loop, and by then the child is in our table
        self._nudge_later()

    def _child_died(self, signals: int) -> None:
        """Children of our own have pidfds; this is for orphans, which can wait a little."""
        os.read(signals, 4096)
        if self._reap is None:
            self._reap = self.loop.after(_REAP_DELAY, self._reap_strangers)

    def _reap_strangers(self) -> None:
        """A subreaper must also reap what its processes left behind."""
        self._reap = None
        own = {child.held.pid for child in self.children.values() if child.mine}
        own |= self.helpers.pids | self.watching.pids
        try:
            children = kernel.children()
        except OSError:  # no descriptor to be had
            self._reap = self.loop.after(_ACCEPT_AGAIN, self._reap_strangers)
            return
        for pid in children:
            if pid not in own:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    # -- connections ---------------------------------------------------------------------------

    def _accept(self, events: int) -> None:
        while True:
            try:
                end, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                self.loop.remove(self._listener.fileno())
                self.loop.after(_ACCEPT_AGAIN, self._accept_again)
                return
            pid, uid = kernel.peer_of(end)
            if uid != os.geteuid():
                say(f"refused a connection of uid {uid}")
                end.close()
                continue
            self.connections.add(Connection(self.loop, end, pid, self._message, self._disconnected))
            self._check_idle()

    def _accept_again(self) -> None:
        self.loop.remove(self._listener.fileno())
        self.loop.add(self._listener.fileno(), IN, self._accept)

    def listen(self, listener: int) -> None:
        """Go on at another socket, for the name of the old one is gone."""
        self.replace("listen", listener)
        os.close(listener)
        if self.serving:
            self._accept(IN)  # whoever came to the old one in time
        self.loop.remove(self._listener.fileno())
        self._listener.close()
        self._listener = socket.socket(fileno=os.dup(self.guard.listen))
        self._listener.setblocking(False)
        if self.serving:
            self.loop.add(self._listener.fileno(), IN, self._accept)

    def replace(self, what: str, descriptor: int) -> None:
        """Have another ``lock`` or ``listen`` in both halves, under the number of the old one."""
        os.dup2(descriptor, getattr(self.guard, what), inheritable=False)
        try:
            self._channel.replace(what, descriptor)
        except OSError:
            pass  # the guard is gone, and what we have is what counts
        self._channel.nudge()

    def _disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.delivery.claims.disconnected(connection)
        if connection.pane is not None:
            self.modes.tmux.pane_gone(connection.pane)
        if connection.leased and connection.session is not None:
            self.leases.disconnected(connection.session, connection.client, connection)
        self._check_idle()

    def _message(self, connection: Connection, message: dict[str, Any]) -> None:
        if "hello" in message:
            self._greet(connection, message)
            return
        if connection.pane is not None:
            self.modes.tmux.pane_said(connection.pane, message)
            return
        if "pane" in message:
            self.modes.tmux.pane(connection, message)
            return
        if connection.greeted and "cancel" in message:
            if isinstance(message["cancel"], int):
                connection.cancel(message["cancel"])
            return
        number, verb = message.get("id"), message.get("verb")
        if not connection.greeted or not isinstance(number, int):
            connection.close()
            return
        request = f"{verb} {message.get('handle', '')}".encode("ascii", "replace")[:100]
        self.guard.pulse.request = request
        try:
            if request == self.guard.hung_over:
                self.guard.hung_over = b""  # whoever asks anew may have mended what it was
                raise KeeperError(
                    f"the keeper hung over this request ({verb}) and was replaced, so it was not "
                    "tried again; do the directory and files that it names answer? see keeper.log"
                )
            if connection.limited and verb not in wire.ALWAYS_ALLOWED:
                raise KeeperError("another protocol; run `holdfast keeper restart`", version=True)
            answer = self._verbs.named(verb)(connection, number, message)
        except HoldfastError as error:
            connection.refuse(number, error)
        except (OSError, MemoryError) as error:
            say(f"{verb}: {error!r}")
            connection.refuse(number, translated(error))
        except _MALFORMED as error:
            why = f"{type(error).__name__}: {error}"[:200]
            connection.refuse(number, BadRequest(f"a malformed request to {verb}: {why}"))
        else:
            if answer is not None:
                connection.answer(number, answer)
        self.guard.pulse.request = b""

    def _greet(self, connection: Connection, message: dict[str, Any]) -> None:
        try:
            if message["hello"] != wire.PROTOCOL:
                connection.greeted = connection.limited = True
                raise wire.version_error(
                    str(message.get("version")), __version__, wire.PROTOCOL, message["hello"]
                )
            there = message["machine"] != machine()
            if there or not kernel.shares_pids(connection.socket):
                raise KeeperError(
                    "this home is in use by a keeper in another container or on another machine; "
                    "set HOLDFAST_HOME to a directory of this one"
                )
            if message["session"] is not None:
                connection.session = check_session(message["session"])
                self.adoptions.settle(connection.session)
            connection.client = str(message["client"])
            self.delivery.claims.connected(connection)
            if message["lease"] is not None and connection.session is not None:
                grace = seconds(message["lease"]["grace"])
                directory = message["lease"].get("directory")
                where = None if directory is None else str(directory)
                self.leases.hold(connection.session, grace, where, connection)
                connection.leased = True
        except (HoldfastError, OSError) as error:
            said = translated(error) if isinstance(error, OSError) else error
            connection.send({"error": said.to_wire(), "version": __version__})
            if not connection.limited:
                connection.close()
            return
        except _MALFORMED:
            connection.close()
            return
        connection.greeted = True
        connection.send(
            {
                "hello": wire.PROTOCOL,
                "version": __version__,
                "guard": os.getppid(),
                "worker": os.getpid(),
            }
        )

    def save(self, record: Record) -> None:
        """Save a running process's record; what is in it can also be found without it."""
        try:
            self.store.save(record)
        except OSError as error:
            say(f"{record.handle}: {error}")
            child = self.children.get(record.handle)
            if child is not None and child.note is None:
                child.restore()

    def note_exit(self, child: Child, note: ExitNote) -> None:
        """Write down how a process ended that is not ours to reap."""
        try:
            self.store.write_exit(child.record.handle, note)
        except OSError as error:
            say(f"{child.record.handle}: its exit note cannot be written: {error}")

    # -- stopping ------------------------------------------------------------------------------

    def running(self, session: str | None) -> list[Child]:
        return [
            child
            for child in self.children.values()
            if child.note is None and session in (None, child.record.session)
        ]

    def leased(self, session: str) -> list[Child]:
        """The processes that end with a session."""
        return [child for child in self.running(session) if not child.record.keep]

    def _lease_ran_out(self, session: str) -> None:
        self.agents.close(session)
        children = self.leased(session)
        for start in self.modes.starting(session):
            if not start.record.keep:
                self.modes.cancel(start)
        if children:
            say(f"nobody came back to session {session!r}: stopping {len(children)} processes")
        for child in children:
            self.stop(child, "lease_ended", "keeper")
            if child.stopping is None and child.note is None:
                self.clear_at_end(child)
        self.clear([record for record in self.ended(session) if not record.keep])

    def ended(self, session: str | None) -> list[Record]:
        """The ended processes of one session or of all, which may have left something behind."""
        records = [child.record for child in self.children.values() if child.note is not None]
        records += self.retention.ended(session)
        found = {record.handle: record for record in records if session in (None, record.session)}
        return list(found.values())

    def clear(
        self,
        records: list[Record],
        grace: float | None = None,
        done: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """End what processes left behind that have ended; of these nobody is told again."""
        boot = boot_id()
        # What had a group of its own, and left it empty, has left nobody behind.
        origins = [
            Origin(record, 0)
            for record in records
            if record.boot_id == boot and (record.cgroups or record.containment in ("tree", ""))
        ]
        longest = max((record.grace for record in records), default=0.0)
        told = Receipt()

        def cleared(left: list[kernel.Stat]) -> None:
            for record in records:
                cgroup.remove(record.cgroups)
            if done is not None:
                done(told.receipt(left, True))

        if not origins:
            cleared([])
            return
        clock = time.monotonic() + (longest if grace is None else grace)
        self.sweeps.begin(Sweep(origins, clock, told, cleared))

    def clear_at_end(
        self,
        child: Child,
        grace: float | None = None,
        done: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Clear after one that ended by itself before it could be stopped."""

        def ended(record: Record) -> None:
            # Once its end is told too, which comes after those who wait for it.
            self.loop.after(0.0, lambda: self.clear([record], grace, done))

        child.waiters.append(ended)

    def stop(
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
            if child.note is not None or not child.mode.again:
                return
        if not record.capabilities.takes(signal_name(polite)):
            polite = signal.SIGTERM
        record.stop = Stop(reason, by, signal_name(polite), now, now + grace)
        self.save(record)
        self.stopping(child).begin(polite)

    def stopping(self, child: Child) -> Stopping:
        child.stopping = Stopping(self.loop, self.sweeps, child)
        child.stopping.when_done(lambda receipt: self._stopped(child, receipt))
        return child.stopping

    def _stopped(self, child: Child, receipt: dict[str, Any]) -> None:
        if child.note is None:
            note = f"{runner.what(self.store, child.record)} could not be ended in time"
            if note not in child.record.notes:
                child.record.notes.append(note)
            self.save(child.record)
            return
        if receipt["survivors"]:
            names = ", ".join(str(pid) for pid in receipt["survivors"])
            child.record.notes.append(f"still alive after the kill: pid {names}")
            self.delivery.end(child)
        cgroup.remove(child.record.cgroups)
        self.let_go_if_quiet(child)

    # -- ending --------------------------------------------------------------------------------

    def ended_now(self, child: Child) -> None:
        child.close_stdin()
        self.watching.drop(child)
        self.release_terminal(child)
        if child.stopping is None and cgroup.remove(child.record.cgroups):
            child.record.cgroups = []
        self.delivery.end(child)
        self.retention.finished(child.record)
        if child.stopping is not None:
            child.stopping.process_ended()
        self.let_go_if_quiet(child)

    def release_terminal(self, child: Child) -> None:
        """Let go of its terminal, once nobody else holds it, and of what its runner had."""
        if names := child.release_ends():
            self.tell("closed", child.record.handle, *names)
            self._channel.nudge()  # its terminal hangs up when the guard has let go of it too

    def let_go_if_quiet(self, child: Child) -> None:
        """Let go of a process that has ended, once it was told of and its log is complete."""
        handle = child.record.handle
        if (
            child.quiet
            and child.stopping is None
            and handle not in self.delivery
            and handle in self.children
        ):
            self._let_go(child)

    def _let_go(self, child: Child) -> None:
        handle = child.record.handle
        del self.children[handle]
        unread = bool(child.pumps)
        child.close()
        self.tell("forget", handle)
        for stream in ("stdout", "stderr"):
            unlink(self.home.fifo(handle, stream))
        if unread:
            child.mode.unread(child)
        self.settle(child.record)
        self._check_idle()

    def settle(self, record: Record) -> None:
        """Say so if nothing is left to be done for a process that has ended."""
        if (
            record.told
            and record.handle not in self.children
            and not any(is_live(watch) for watch in record.watches)
            and cgroup.remove(record.cgroups)  # else it left somebody behind
        ):
            self.index.settle(record)

    def forget(self, session: str, handle: str) -> None:
        """Delete every trace of a finished process but the session's events."""
        self.retention.take(session, handle)
        self.delivery.forget(handle)
        child = self.children.get(handle)
        if child is not None:
            self._let_go(child)
        forget_cursors(self.home, session, handle)
        forget_waits(self.home, session, handle)
        logs = open_long_logs(self.home, handle)
        self.store.delete(handle)
        for fd in logs:
            shred(self.loop, fd)

    # -- going ---------------------------------------------------------------------------------

    @property
    def is_needed(self) -> bool:
        """True while there is something to keep, or somebody connected."""
        kept = self.children or self.guard.table  # which is what is not taken up yet
        return bool(self.connections or kept or self.modes.starts or len(self.agents))

    def _check_idle(self) -> None:
        if self.is_needed:
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
        elif self._idle is None:
            self._idle = self.loop.after(self.guard.idle, self.quit)

    def quit(self) -> None:
        self.presence.end()
        # Under the lock, which we hold: whoever connects from now on finds no socket, waits for
        # the lock, and starts the next keeper. If the home was deleted under us, what now has its
        # name is another keeper's.
        try:
            if os.path.samestat(os.stat(self.home.lock), os.fstat(self.guard.lock)):
                unlink(self.home.socket)
                self.modes.tmux.leave()
        except OSError:
            pass
        self.containment.clean_up(going=True)
        self.tell("quit")
        self._channel.nudge()
        for connection in list(self.connections):
            connection.close()
        self.loop.stop()
