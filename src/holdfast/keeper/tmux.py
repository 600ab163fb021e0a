"""Processes in tmux: a pane of the home's private server, piped into the process's FIFO.

DESIGN. The server holds the terminals, so they survive both halves of the keeper. A pane runs
`pane.py`, of which a child asks for its command over our socket and becomes it: its pid is the
process's, and the kernel tells us of its end as of any other's. Its parent stays and never reaps
it, so how it ended is still to be seen when no keeper was there. `remain-on-exit` keeps the pane.

While the process runs we have its terminal open. Else tmux would hang up on a program that closes
it before it exits, as many do, and that would be how it ended.

Start: record written; FIFO made; session made and piped by one tmux command; the pane asks, is
answered, writes a file that says so, and its connection ends when it becomes the command; record
written with the pid. A worker killed before the answer leaves a pane that ends by itself, and a
record with neither pid nor such a file: it never was. Killed after it, the process is the child of
what the pane runs.

End: see `pane_end`.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import sys
import time

from .. import _cgroup, _kernel, _tmux
from .._errors import HoldfastError, SpawnError
from .._home import unlink
from .._model import Record
from .._tty import open_terminal
from . import launch
from .guard import Held
from .journal import say
from .loop import IN
from .pane_end import Pane, PaneEnd, end_parent
from .recover import brief

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .child import Child
    from .connection import Connection
    from .loop import Timer
    from .worker import Worker

    Started = Callable[[Child | None, HoldfastError | None], None]

_PATIENCE = 10.0
_END_PATIENCE = 2.0
_SOON = 0.005
_LATER = 1.0
_AGAIN = 0.05
_TRIES = 5
_GOING = 0.3
_SERVER_GOING = (b"server exited", b"lost server", b"no server running", b"error connecting")
_HISTORY = 5000
_BEREAVED = "its tmux server or session was ended from outside, and its terminal with it"
_UNSEEN = "it ended while no keeper ran: the time of its end is when the next one saw it"
_TERMINFO = ("/etc/terminfo", "/lib/terminfo", "/usr/lib/terminfo", "/usr/share/terminfo")
# For people: whose terminal this is, and when it has ended, how they leave it.
_HOW = "#{?" + _tmux.ENDED + ", (#{" + _tmux.ENDED + "}),}"
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


class Tmux:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = worker.loop
        self._home = worker.home
        self._program = ""
        self._servers: dict[int, int] = {}  # pidfds; one is going while the next one comes
        self._panes: dict[str, int] = {}  # which server has the pane of a handle
        self._patience = _END_PATIENCE
        self.starts: dict[str, Start] = {}

    # -- the start -----------------------------------------------------------------------------

    def start(self, record: Record, program: str, spec: dict[str, Any], done: Started) -> None:
        """Begin, or raise; `done` gets the child, or why there is none and nothing left of it."""
        self._program = program
        start = Start(record, spec)
        start.waiting.append(done)
        fifo = self._home.fifo(record.handle)
        self._worker.store.make_fifo(fifo)
        start.reader = launch.open_reader(fifo)
        self.starts[record.handle] = start
        start.timer = self._loop.after(_PATIENCE, lambda: self._overdue(start))
        self._make_session(start)

    def _make_session(self, start: Start) -> None:
        record = start.record
        session = record.tmux_session or ""
        columns, rows = record.size or (80, 24)
        pane = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pane.py")
        # tmux expands formats and times in what it pipes to, and hands it to sh.
        fifo = shlex.quote(self._home.fifo(record.handle))
        fifo = fifo.replace("#", "##").replace("%", "%%")
        name = _tmux.target(session)
        told = ["-P", "-F", "#{pid} #{pane_id}"]
        sized = ["-x", str(columns), "-y", str(rows)]
        asks = [sys.executable, "-I", "-S", *map(_unparsed, (pane, self._home.path))]
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
            _tmux.mark(record.handle),
            ["pipe-pane", "-t", name, f"test -p {fifo} && exec cat 1<>{fifo}"],
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
            _tmux.arguments(self._home, *arguments), self.program, self._home.path, timeout, done
        )

    @property
    def program(self) -> str:
        """tmux, as the last caller found it, or as it is found on our own path."""
        if os.access(self._program, os.X_OK):
            return self._program
        return _tmux.find_tmux() or "/usr/bin/tmux"

    def _made(self, start: Start, code: int, said: bytes) -> None:
        if self.starts.get(start.record.handle) is not start:
            if code == 0 and start.record.handle not in self._worker.children:
                self._end_session(start.record)  # it was stopped meanwhile
            return
        if code == 0:
            server, _, start.record.pane = said.decode("ascii", "replace").strip().partition(" ")
            start.piped = True
            self._watch_server(server, start.record.handle)
            self._answer(start)
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
        if self.starts.get(start.record.handle) is start:
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
        """Its connection ended: it is the command now, or could not become it."""
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
        record.start_time = _kernel.start_time(start.pid)
        record.tty = start.tty
        held.record = brief(record)
        self._worker.save(record)
        unlink(self._home.begun(record.handle))
        child = self._worker.add_child(record, held)
        self._worker.hold(record.handle, held)
        for done in start.waiting:
            done(child, None)
        self._worker.launched(child)

    def cancel(self, start: Start) -> None:
        """Somebody stops it before it has begun."""
        self._fail(start, SpawnError("it was stopped before it had begun"))

    def starting(self, session: str | None) -> list[Start]:
        return [each for each in self.starts.values() if session in (None, each.record.session)]

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
        _cgroup.kill(start.record.cgroups)
        _cgroup.remove(start.record.cgroups)
        self._end_session(start.record, lambda: end_parent(start.pid, handle))
        for done in start.waiting:
            done(None, error)

    def _end_session(self, record: Record, then: Callable[[], None] | None = None) -> None:
        name = _tmux.target(record.tmux_session or "")
        self.run(["kill-session", "-t", name], lambda code, said: then() if then else None)

    # -- the server ----------------------------------------------------------------------------

    def _watch_server(self, pid: str, handle: str) -> None:
        try:
            server = int(pid)
            if server not in self._servers:
                self._servers[server] = os.pidfd_open(server)
                self._loop.add(self._servers[server], IN, lambda _: self._server_ended(server))
        except (ValueError, OSError):
            return
        self._panes[handle] = server

    def _server_ended(self, server: int) -> None:
        pidfd = self._servers.pop(server)
        self._loop.remove(pidfd)
        os.close(pidfd)
        for handle, its_server in list(self._panes.items()):
            if its_server == server:
                del self._panes[handle]
                child = self._worker.children.get(handle)
                if child is not None and not child.exited():
                    self.bereaved(child)

    def leave(self) -> None:
        """Remove the socket that a server leaves behind; a person's own may still be there."""
        poll = select.poll()
        for pidfd in self._servers.values():
            poll.register(pidfd, select.POLLIN)
        poll.poll(_GOING * 1000 if self._servers else 0)
        os.chdir(self._worker.home.path)  # the way to a socket whose path is too long
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.connect("tmux.sock")
        except ConnectionRefusedError:
            os.unlink("tmux.sock")
        except OSError:
            pass  # there is none
        finally:
            os.chdir("/")

    def bereaved(self, child: Child) -> None:
        """Most end by the hangup; those that do not go on, and can still be waited for."""
        if _BEREAVED not in child.record.notes:
            say(f"{child.record.handle}: {_BEREAVED}")
            child.record.notes.append(_BEREAVED)
            child.record.attach = None
            self._worker.save(child.record)

    def nudge(self, handle: str) -> None:
        """Have the server see who of its children has ended."""
        pidfd = self._servers.get(self._panes.get(handle, 0))
        if pidfd is not None:
            _kernel.send_signal(pidfd, signal.SIGCHLD)

    # -- the end -------------------------------------------------------------------------------

    def process_died(self, child: Child) -> None:
        note = child.death_note()
        if note is not None:
            self._worker.note_exit(child, note)
        PaneEnd(self, self._worker, child).begin()

    def forget(self, handle: str) -> None:
        self._panes.pop(handle, None)

    # -- taking up -----------------------------------------------------------------------------

    def take_up(self, child: Child) -> None:
        """After a worker's death, or a keeper's."""
        if self._worker.guard.fresh and child.held.pidfd >= 0 and child.exited():
            child.record.notes.append(_UNSEEN)
        self._find_server(child)

    def _find_server(self, child: Child) -> None:
        """Which server it is that holds the pane."""

        def told(code: int, said: bytes) -> None:
            if code == 0:
                self._watch_server(said.decode("ascii", "replace").strip(), child.record.handle)
            elif code < 0 and child.note is None:  # it took too long
                self._loop.after(_LATER, lambda: self._find_server(child))

        self.run(["display-message", "-p", "#{pid}"], told)

    def take_up_dead(self, child: Child) -> None:
        """It ended while there was no keeper, or how far its session was let go nobody knows."""
        PaneEnd(self, self._worker, child).begin()

    def begun(self, record: Record) -> bool:
        """A worker died while it started this. True if it came to be; else it is ended.

        A pane that has its command says so in a file and becomes it within moments; one that has
        not sleeps, waiting for an answer that will never come, or is dead.
        """
        asleep = 0
        until = time.monotonic() + self._patience
        while time.monotonic() < until and asleep < _TRIES:
            pane = self._first_pane(record)
            if pane is None:
                return False
            found = _child_of(pane.pid)
            became = found is not None and (
                found.state == "Z" or _kernel.mark_of(found.pid) == record.handle
            )
            begun = os.path.exists(self._home.begun(record.handle))
            if begun and (became or (found is None and pane.dead)):
                record.tty, record.pane = pane.tty, pane.id
                if found is not None:
                    record.pid, record.start_time = found.pid, found.start_time
                self._worker.save(record)  # whoever types into it goes by what is written down
                return True
            if pane.dead:
                break
            asleep = asleep + 1 if found is not None and found.state == "S" else 0
            time.sleep(_SOON)
        self._run_now("kill-session", "-t", _tmux.target(record.tmux_session or ""))
        return False

    def _first_pane(self, record: Record) -> Pane | None:
        """Its own, for nobody can have made another yet."""
        name = _tmux.target(record.tmux_session or "")
        form = Pane.FORM + _tmux.is_ours(record.handle)
        code, said = self._run_now("list-panes", "-s", "-t", name, "-F", form)
        try:
            return Pane(said.splitlines()[0]) if code == 0 else None
        except (ValueError, IndexError):
            return None

    def _run_now(self, *arguments: str) -> tuple[int, bytes]:
        """Before the loop runs, and in all no longer than a worker may take to start."""
        began = time.monotonic()
        answer = self._worker.helpers.run_now(
            _tmux.arguments(self._home, *arguments), self.program, self._home.path, self._patience
        )
        self._patience = max(0.01, self._patience - (time.monotonic() - began))
        return answer


def _child_of(pid: int) -> _kernel.Stat | None:
    return next((found for found in _kernel.all_processes() if found.parent == pid), None)


def _unparsed(argument: str) -> str:
    """An argument of which tmux does not take a `;` at the end for its own."""
    return argument[:-1] + "\\;" if argument.endswith(";") else argument


def _terminal_name() -> str:
    """What tmux is to call itself: the most capable one that programs here know."""
    for place in _TERMINFO:
        if os.path.exists(f"{place}/t/tmux-256color"):
            return "tmux-256color"
    return "screen-256color"
