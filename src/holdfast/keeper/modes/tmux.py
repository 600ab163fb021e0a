"""Processes in tmux: a pane of the home's private server, piped into the process's FIFO.

DESIGN. The server holds the terminals, so they survive both halves of the keeper. A pane runs
`tmux_pane.py`, of which a child asks for its command over our socket and becomes it: its pid is the
process's, and the kernel tells us of its end as of any other's. Its parent stays and never reaps
it, so how it ended is still to be seen when no keeper was there. `remain-on-exit` keeps the pane.

While the process runs we have its terminal open. Else tmux would hang up on a program that closes
it before it exits, as many do, and that would be how it ended.

Start: record written; FIFO made; session made and piped by one tmux command; the pane asks, is
answered, writes a file that says so, and its connection ends when it becomes the command; record
written with the pid. A worker killed before the answer leaves a pane that ends by itself, and a
record with neither pid nor such a file: it never was. Killed after it, the process is the child of
what the pane runs.

End: see `tmux_end`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from ...core import tmux_server
from ...core.errors import BadRequest, HoldfastError, SpawnError, Unavailable
from ...core.home import unlink
from ...core.machine import boot_id
from ...core.programs import pane_program
from ...core.record import Record
from ...linux import cgroup, kernel
from ...linux.tty import open_terminal
from .. import adopt, launch
from ..held_fds import Held, brief
from ..journal import say
from ..loop import IN
from .base import Mode
from .tmux_end import Pane, PaneEnd, end_parent, end_stayer, stayer_of, where_it_stays
from .tmux_strays import end_strays, pipe_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..child import Child
    from ..connection import Connection
    from ..loop import Timer
    from ..worker import Worker
    from .base import Order, Started


_PATIENCE = 10.0
_END_PATIENCE = 2.0
_SOON = 0.005
_LATER = 1.0
_AGAIN = 0.05
_TRIES = 5
_GOING = 0.3
_LEAVING = 2.0
_SERVER_GOING = (b"server exited", b"lost server", b"no server running", b"error connecting")
_HISTORY = 5000
_PANE_LOST = "its tmux server or session was ended from outside, and its terminal with it"
_UNSEEN = "it ended while no keeper ran: the time of its end is when the next one saw it"
_TERMINFO = ("/etc/terminfo", "/lib/terminfo", "/usr/lib/terminfo", "/usr/share/terminfo")
# For people: whose terminal this is, and when it has ended, how they leave it.
_HOW = "#{?" + tmux_server.ENDED + ", (#{" + tmux_server.ENDED + "}),}"
_STATUS = "#{?pane_dead, ended" + _HOW + "#, C-b d leaves ,[#{session_name}] }"


class Start:
    """A process on its way into a pane."""

    __slots__ = (
        "record",
        "program",
        "spec",
        "reader",
        "tries",
        "piped",
        "pane",
        "pid",
        "pidfd",
        "tty",
        "terminal",
        "failure",
        "timer",
        "waiting",
        "token",
    )

    def __init__(self, record: Record, spec: dict[str, Any]) -> None:
        self.record = record
        self.program = str(spec["program"])
        self.spec: dict[str, Any] | None = spec  # what the pane asks for, once
        self.reader = -1
        self.tries = 0
        self.piped = False
        self.pane: Connection | None = None
        self.pid = 0
        self.pidfd = -1
        self.tty: str | None = None
        self.terminal = -1
        self.failure: HoldfastError | None = None
        self.timer: Timer | None = None
        self.waiting: list[Started] = []
        self.token = os.urandom(8).hex()  # so that a pane of an earlier try is not taken for ours


class Tmux(Mode):
    name = "tmux"

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._loop = worker.loop
        self._home = worker.home
        self._program = ""
        self._servers: dict[int, int] = {}  # pidfds; one is going while the next one comes
        self._panes: dict[str, int] = {}  # which server has the pane of a handle
        self._used = False  # since this worker began
        self._patience = _END_PATIENCE
        self.starts: dict[str, Start] = {}

    # -- the start -----------------------------------------------------------------------------

    def describe(self, record: Record, asked: dict[str, Any]) -> None:
        program = asked["tmux"]
        if not isinstance(program, str):
            raise BadRequest("tmux mode needs the path of tmux")
        if not os.access(program, os.X_OK):
            raise Unavailable(f"there is no tmux at {program} that could be run; install it")
        record.stdin = True
        record.sizes = [[0, *asked["size"]]]
        record.tmux_session = tmux_server.session_name(record.handle)

    def launch(self, order: Order, done: Started) -> None:
        record = order.record
        try:
            spec = {
                "contain": order.plan.for_pane(),
                "program": order.program,
                "argv": order.argv,
                "env": {**order.env, kernel.MARK: record.handle},
                "cwd": record.cwd,
                "umask": order.umask,
            }
            self._begin(record, order.tmux or "", spec, done)
        except BaseException:
            order.plan.give_up()
            self._worker.store.delete(record.handle)
            raise

    def _begin(self, record: Record, program: str, spec: dict[str, Any], done: Started) -> None:
        self._program = program
        start = Start(record, spec)
        start.waiting.append(done)
        fifo = self._home.fifo(record.handle)
        self._worker.store.make_fifo(fifo)
        self._used = True
        start.reader = launch.open_reader(fifo)
        self.starts[record.handle] = start
        start.timer = self._loop.after(_PATIENCE, lambda: self._overdue(start))
        self._make_session(start)

    def _make_session(self, start: Start) -> None:
        record = start.record
        session = record.tmux_session or ""
        columns, rows = record.size or (80, 24)
        # tmux expands formats and times in what it pipes to, and hands it to sh.
        through = pipe_command(self._home, record.handle).replace("#", "##").replace("%", "%%")
        name = tmux_server.target(session)
        told = ["-P", "-F", "#{pid} #{pane_id}"]
        sized = ["-x", str(columns), "-y", str(rows)]
        asks = [_unparsed(word) for word in (*pane_program(), self._home.path)]
        asks += [record.handle, start.token]
        commands = [
            ["set-option", "-g", "remain-on-exit", "on"],
            ["set-option", "-gq", "remain-on-exit-format", ""],
            ["set-option", "-g", "default-terminal", _terminal_name()],
            ["set-option", "-g", "history-limit", str(_HISTORY)],
            ["set-option", "-s", "escape-time", "50"],
            ["set-option", "-g", "status-interval", "1"],
            ["set-option", "-g", "status-left-length", "60"],
            ["set-option", "-g", "status-left", _STATUS],
            ["new-session", "-d", "-s", session, *told, *sized, "--", *asks],
            tmux_server.mark(record.handle),
            ["pipe-pane", "-t", name, through],
        ]
        arguments: list[str] = []
        for command in commands:
            arguments += [*command, ";"]
        start.tries += 1
        self.run(arguments[:-1], lambda code, said: self._made(start, code, said))

    def run(
        self, arguments: list[str], done: Callable[[int, bytes], None], timeout: float = _PATIENCE
    ) -> None:
        self._worker.helpers.run(
            tmux_server.arguments(self._home, *arguments),
            self.program,
            self._home.path,
            timeout,
            done,
        )

    @property
    def program(self) -> str:
        """tmux, as the last caller found it, or as it is found on our own path."""
        if os.access(self._program, os.X_OK):
            return self._program
        return tmux_server.find_tmux() or "/usr/bin/tmux"

    def _made(self, start: Start, code: int, said: bytes) -> None:
        if self.starts.get(start.record.handle) is not start:
            if code == 0 and start.record.handle not in self._worker.children:
                self._end_session(start.record)  # it was stopped meanwhile
            return
        if code == 0:
            server, _, start.record.pane = said.decode("ascii", "replace").strip().partition(" ")
            start.piped = True
            if self._watch_server(server, start.record.handle):
                self._answer(start)
            else:
                self._server_crashed(start)
        elif start.tries < _TRIES and any(word in said for word in _SERVER_GOING):
            # The server was just ending, with its last session; the next one is another.
            self._loop.after(_AGAIN * start.tries, lambda: self._make_session_again(start))
        elif start.tries < _TRIES and b"duplicate session" in said:
            # A worker was killed while it started this, and what it had begun came to be after all.
            self._end_session(start.record, lambda: self._make_session_again(start))
        else:
            why = said.decode("utf-8", "replace").strip().splitlines() or [f"exit code {code}"]
            self._fail(start, SpawnError(f"tmux could not make a session: {why[-1]}"))

    def _make_session_again(self, start: Start) -> None:
        if self.starts.get(start.record.handle) is start and start.tries < _TRIES:
            self._make_session(start)

    def pane(self, connection: Connection, message: dict[str, Any]) -> None:
        """A pane asks for its command."""
        start = self.starts.get(str(message["pane"]))
        if start is None or start.pane is not None or message.get("token") != start.token:
            connection.close()
            return
        connection.pane = start
        start.pane, start.pid = connection, connection.pid
        try:
            start.pidfd = os.pidfd_open(start.pid)  # now, while it is surely the one
            start.tty = os.readlink(f"/proc/{start.pid}/fd/0")
            start.terminal = open_terminal(start.tty)
        except OSError as error:
            self._fail(start, SpawnError(f"its pane cannot be held on to: {error.strerror}"))
            return
        self._answer(start)

    def _answer(self, start: Start) -> None:
        """The pane gets its command once all is ready for the first byte of output."""
        if start.piped and start.pane is not None and start.spec is not None:
            spec, start.spec = start.spec, None
            start.pane.send(spec)

    def pane_said(self, start: Start, message: dict[str, Any]) -> None:
        number = message.get("failed")
        if isinstance(number, int) and 0 < number < 1000:
            start.failure = launch.refusal(OSError(number, os.strerror(number)), start.program)
        else:
            start.failure = SpawnError(f"the command cannot be run: {message.get('why')}")

    def pane_gone(self, start: Start) -> None:
        """Called when a pane's connection ends: it is the command now, or could not become it."""
        if self.starts.get(start.record.handle) is not start:
            return
        if start.failure is None and start.spec is None:
            self._started(start)
        else:
            self._fail(start, start.failure or SpawnError("the pane ended before it began"))

    def _started(self, start: Start) -> None:
        record = start.record
        del self.starts[record.handle]
        if start.timer is not None:
            start.timer.cancel()
        held = Held(start.pid, start.pidfd, out=start.reader, tty=start.terminal)
        record.pid = start.pid
        record.start_time = kernel.start_time(start.pid)
        record.tty = start.tty
        held.record = brief(record)
        self._worker.save(record)
        unlink(self._home.begun(record.handle))
        child = self._worker.lives.add(record, held)
        self._worker.hold(record.handle, held)
        for done in start.waiting:
            done(child, None)
        self._worker.lives.launched(child)

    def cancel(self, start: Start) -> None:
        """Somebody stops it before it has begun."""
        self._fail(start, SpawnError("it was stopped before it had begun"))

    def _overdue(self, start: Start) -> None:
        if self.starts.get(start.record.handle) is start:
            self._fail(start, SpawnError(f"tmux did not start it within {_PATIENCE:g} s"))

    def _fail(self, start: Start, error: HoldfastError) -> None:
        handle = start.record.handle
        del self.starts[handle]
        if start.timer is not None:
            start.timer.cancel()
        if start.pane is not None:
            start.pane.pane = None
            start.pane.close()
        for fd in (start.reader, start.pidfd, start.terminal):
            if fd >= 0:
                os.close(fd)
        self._worker.store.delete(handle)
        cgroup.kill(start.record.cgroups)
        cgroup.remove(start.record.cgroups)

        def ended() -> None:
            end_parent(start.pid, handle)
            self.end_strays()  # its output may have been more than anybody has read

        self._end_session(start.record, ended)
        for done in start.waiting:
            done(None, error)

    def _end_session(self, record: Record, then: Callable[[], None] | None = None) -> None:
        name = tmux_server.target(record.tmux_session or "")
        self.run(["kill-session", "-t", name], lambda code, said: then() if then else None)

    # -- the server ----------------------------------------------------------------------------

    def _watch_server(self, pid: str, handle: str) -> bool:
        """False if it has ended already."""
        try:
            server = int(pid)
            if server not in self._servers:
                self._servers[server] = os.pidfd_open(server)
                self._loop.add(self._servers[server], IN, lambda _: self._server_ended(server))
        except ProcessLookupError:
            return False
        except (ValueError, OSError):
            return True  # as far as we know
        self._panes[handle] = server
        return True

    def _server_ended(self, server: int) -> None:
        pidfd = self._servers.pop(server)
        self._loop.remove(pidfd)
        os.close(pidfd)
        for handle, its_server in list(self._panes.items()):
            if its_server == server:
                del self._panes[handle]
                child = self._worker.children.get(handle)
                if child is not None and not child.exited():
                    self.pane_lost(child)
                start = self.starts.get(handle)
                if start is not None:
                    self._server_crashed(start)

    def _server_crashed(self, start: Start) -> None:
        """Begin anew what was being started in it, if nothing of it has begun."""
        if start.pane is None:
            start.piped = False
            self._loop.after(_AGAIN, lambda: self._make_session_again(start))

    def leave(self) -> None:
        """Let all go that is ours, and remove the socket that a server leaves behind.

        A server may still be there afterwards: a person's own sessions are in it, or it is stopped.
        """
        self._used |= self._was_used
        if self._is_served() and self._let_all_go():
            until = time.monotonic() + _GOING
            while self._is_served() and time.monotonic() < until:
                time.sleep(_SOON)
        if self._used:
            self.end_strays()

    @property
    def _was_used(self) -> bool:
        """True if there is, or was, a server, as far as its socket says."""
        return bool(self._servers) or os.path.lexists(self._home.tmux_socket)

    def end_strays(self) -> None:
        """End what is left around panes of which there is no record any more."""
        children = self._worker.children
        home = self._home
        try:
            end_strays(
                home,
                lambda handle: (
                    handle in children
                    or handle in self.starts
                    or os.path.lexists(home.meta(handle))
                ),
            )
        except OSError as error:  # no descriptor to look with; whoever comes next looks too
            say(f"what is left around panes cannot be looked for: {error}")

    def recovered(self) -> None:
        """Look for what an earlier keeper left, once nobody waits for this one to begin."""
        self._used |= self._was_used
        if self._used:
            self._loop.after(_LATER, self.end_strays)

    def unread(self, child: Child) -> None:
        self.end_strays()

    def _is_served(self) -> bool:
        """True if a server is there and stays; the socket of one that is gone is removed."""
        poll = select.poll()
        for pidfd in self._servers.values():
            poll.register(pidfd, select.POLLIN)
        poll.poll(_GOING * 1000 if self._servers else 0)
        os.chdir(self._worker.home.path)  # the way to a socket whose path is too long
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect("tmux.sock")
            return True
        except ConnectionRefusedError:
            os.unlink("tmux.sock")
            return False
        except OSError:
            return False  # there is none
        finally:
            os.chdir("/")

    def _let_all_go(self) -> bool:
        """Let sessions go of which tmux, stopped when it was asked, knows only their dead panes.

        True if the server goes too, now or already.
        """
        self._patience = _LEAVING
        goes = True
        code, said = self._run_now("list-panes", "-a", "-F", "#{pane_pid} #{session_name}")
        commands: list[str] = []
        for line in said.decode("utf-8", "replace").splitlines() if code == 0 else ():
            pid, _, session = line.partition(" ")
            if not session.startswith(tmux_server.PREFIX) or not pid.isdigit():
                goes = False  # a person's own
                continue
            end_stayer(int(pid), session.removeprefix(tmux_server.PREFIX))
            commands += [
                "set-option",
                "-t",
                tmux_server.target(session),
                "destroy-unattached",
                "on",
                ";",
            ]
        if commands:
            self._run_now(*commands[:-1])
        return goes and code >= 0  # else it is stopped

    def pane_lost(self, child: Child) -> None:
        """Most end by the hangup; those that do not go on, and can still be waited for."""
        if _PANE_LOST not in child.record.notes:
            say(f"{child.record.handle}: {_PANE_LOST}")
            child.record.notes.append(_PANE_LOST)
            child.record.attach = None
            self._worker.save(child.record)

    def nudge(self, handle: str) -> None:
        """Have the server see who of its children has ended."""
        pidfd = self._servers.get(self._panes.get(handle, 0))
        if pidfd is not None:
            kernel.send_signal(pidfd, signal.SIGCHLD)

    # -- the end -------------------------------------------------------------------------------

    def on_death(self, child: Child) -> bool:
        note = child.death_note()
        if note is not None:
            self._worker.note_exit(child, note)
        PaneEnd(self, self._worker, child).begin()
        return True

    def forget(self, handle: str) -> None:
        self._panes.pop(handle, None)

    # -- taking up -----------------------------------------------------------------------------

    def holds(self, held: Held) -> bool:
        return held.tty >= 0 and held.splice_pipe < 0

    def find_ends(self, record: Record, held: Held) -> None:
        held.tty = adopt.terminal(held.pid, record.tty or "")

    def take_up(self, child: Child) -> None:
        """After a worker's death, or a keeper's."""
        if child.record.boot_id != boot_id():
            return
        if self._worker.guard.fresh and child.held.pidfd >= 0 and child.exited():
            child.record.notes.append(_UNSEEN)
        self._find_server(child)

    def _find_server(self, child: Child) -> None:
        """Find the server that holds the pane."""

        def done(code: int, said: bytes) -> None:
            if code == 0:
                self._watch_server(said.decode("ascii", "replace").strip(), child.record.handle)
            elif code < 0 and child.note is None:  # it took too long
                self._loop.after(_LATER, lambda: self._find_server(child))

        self.run(["display-message", "-p", "#{pid}"], done)

    def take_up_dead(self, child: Child) -> bool:
        """Ask the pane of a process that ended while there was no keeper."""
        if child.record.boot_id != boot_id():
            return False
        PaneEnd(self, self._worker, child).begin()
        return True

    def take_up_ended(self, child: Child) -> None:
        """Let go of its session from the beginning: how far that went, nobody knows."""
        if not self.take_up_dead(child):
            super().take_up_ended(child)

    def may_have_begun(self, record: Record) -> bool:
        """A worker died while it started this. True if it came to be; else it is ended.

        A pane that has its command says so in a file and becomes it within moments; one that has
        not sleeps, waiting for an answer that will never come, or is dead. If tmux was killed
        meanwhile there is no pane, but what was in it is there.
        """
        asleep = stayer = 0
        until = time.monotonic() + self._patience
        while time.monotonic() < until and asleep < _TRIES:
            pane = self._first_pane(record)
            stayer = pane.pid if pane is not None else stayer_of(record.handle)
            found = _child_of(stayer) if stayer else None
            became = found is not None and (
                found.state == "Z" or kernel.mark_of(found.pid) == record.handle
            )
            begun = os.path.exists(self._home.begun(record.handle))
            dead = pane is not None and pane.dead
            if begun and (became or (found is None and dead)):
                if pane is not None:
                    record.tty, record.pane = pane.tty, pane.id
                else:
                    record.tty, record.pane = where_it_stays(stayer)
                if found is not None:
                    record.pid, record.start_time = found.pid, found.start_time
                self._worker.save(record)  # whoever types into it goes by what is written down
                self.forget_begun(record.handle)
                return True
            if dead or not stayer:
                break
            asleep = asleep + 1 if found is not None and found.state == "S" else 0
            time.sleep(_SOON)
        self._run_now("kill-session", "-t", tmux_server.target(record.tmux_session or ""))
        if stayer:
            end_stayer(stayer, record.handle)
        return False

    def forget_begun(self, handle: str) -> None:
        """Delete what says that a process came to be, unless nothing else does."""
        if self._worker.store.has_begun(handle):
            unlink(self._home.begun(handle))

    def _first_pane(self, record: Record) -> Pane | None:
        """The only pane of its session: nobody can have made another yet."""
        name = tmux_server.target(record.tmux_session or "")
        form = Pane.FORM + tmux_server.is_ours(record.handle)
        code, said = self._run_now("list-panes", "-s", "-t", name, "-F", form)
        try:
            return Pane(said.splitlines()[0]) if code == 0 else None
        except (ValueError, IndexError):
            return None

    def _run_now(self, *arguments: str) -> tuple[int, bytes]:
        """Before the loop runs, and in all no longer than a worker may take to start."""
        began = time.monotonic()
        answer = self._worker.helpers.run_now(
            tmux_server.arguments(self._home, *arguments),
            self.program,
            self._home.path,
            self._patience,
        )
        self._patience = max(0.01, self._patience - (time.monotonic() - began))
        return answer


def _child_of(pid: int) -> kernel.Stat | None:
    return next((found for found in kernel.all_processes() if found.parent == pid), None)


def _unparsed(argument: str) -> str:
    """An argument of which tmux does not take a `;` at the end for its own."""
    return argument[:-1] + "\\;" if argument.endswith(";") else argument


def _terminal_name() -> str:
    """The name that tmux gives its terminals: the most capable one that programs here know."""
    for place in _TERMINFO:
        if os.path.exists(f"{place}/t/tmux-256color"):
            return "tmux-256color"
    return "screen-256color"
