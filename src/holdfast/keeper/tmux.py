"""Processes in tmux: a pane of the home's private server, piped into the process's FIFO.

DESIGN. The server holds the terminals, so they survive both halves of the keeper. A pane runs
`pane.py`, which asks for its command over our socket and becomes it: its pid is the process's, and
the kernel tells us of its end as of any other's. `remain-on-exit` keeps a dead pane, and in it the
exit code, for the case that no keeper was there to see.

Start: record written; FIFO made; session made and piped by one tmux command; the pane asks, is
answered, writes a file that says so, and its connection ends when it becomes the command; record
written with the pid. A worker killed before the answer leaves a pane that ends by itself, and a
record with neither pid nor such a file: it never was. Killed after it, the pane has the pid.

End: the kernel says so, and how; that goes into an exit note, as where the guard reaps. What the
process wrote may still be on its way through tmux, which calls the pane dead once it has passed all
of it on. Then its last screen is taken and the session is let go: at once if nobody looks at it,
else when they have gone. With it the pipe ends, and when that has hung up the log has everything
and the end is written down as any other.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time

from .. import _kernel, _tmux
from .._errors import HoldfastError, SpawnError
from .._home import replace_private, unlink
from .._model import ExitNote, Record, signal_name
from . import launch
from .guard import Held
from .journal import say
from .loop import IN

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
_QUIET = 0.03
_SOON = 0.005
_DEATH = "#{pane_dead};#{pane_dead_status};#{pane_dead_signal};#{pane_dead_time}"
_DEAD_PANE = _DEATH + ";#{session_attached}"
_PANE = _DEATH + ";#{pid};#{pane_pid};#{pane_tty}"
_AGAIN = 0.05
_TRIES = 5
_SERVER_GOING = (b"server exited", b"lost server", b"no server running", b"error connecting")
_HISTORY = 5000
_BEREAVED = "its tmux server or session was ended from outside, and its terminal with it"
_TERMINFO = ("/etc/terminfo", "/lib/terminfo", "/usr/lib/terminfo", "/usr/share/terminfo")


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
        "failure",
        "timer",
        "waiting",
        "token",
    )

    def __init__(self, record: Record, program: str, spec: dict[str, Any]) -> None:
        self.record = record
        self.program = program  # tmux itself
        self.spec: dict[str, Any] | None = spec  # what the pane asks for, once
        self.reader = -1
        self.tries = 0
        self.piped = False
        self.pane: Connection | None = None
        self.pid = 0
        self.pidfd = -1
        self.tty: str | None = None
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
        self.starts: dict[str, Start] = {}

    # -- the start -----------------------------------------------------------------------------

    def start(self, record: Record, program: str, spec: dict[str, Any], done: Started) -> None:
        """Begin; `done` gets the child, or why there is none and nothing left of it."""
        self._program = program
        start = Start(record, program, spec)
        start.waiting.append(done)
        try:
            fifo = self._home.fifo(record.handle)
            self._worker.store.make_fifo(fifo)
            start.reader = launch.open_reader(fifo)
        except BaseException:
            self._worker.store.delete(record.handle)
            raise
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
        asks = ["--", sys.executable, "-I", "-S", *map(_unparsed, (pane, self._home.path))]
        asks += [record.handle, start.token]
        commands = [
            ["set-option", "-g", "remain-on-exit", "on"],
            ["set-option", "-gq", "remain-on-exit-format", ""],
            ["set-option", "-g", "default-terminal", _terminal_name()],
            ["set-option", "-g", "history-limit", str(_HISTORY)],
            ["set-option", "-s", "escape-time", "50"],
            ["new-session", "-d", "-s", session, "-x", str(columns), "-y", str(rows), *asks],
            ["pipe-pane", "-t", name, f"test -p {fifo} && exec cat 1<>{fifo}"],
            ["display-message", "-p", "#{pid}"],
        ]
        arguments: list[str] = []
        for command in commands:
            arguments += [*command, ";"]
        start.tries += 1
        self._run(arguments[:-1], lambda code, said: self._made(start, code, said))

    def _run(
        self, arguments: list[str], done: Callable[[int, bytes], None], timeout: float = _PATIENCE
    ) -> None:
        self._worker.helpers.run(
            _tmux.arguments(self._home, *arguments), self.program, self._home.path, timeout, done
        )

    @property
    def program(self) -> str:
        """tmux, as the last caller found it, or as it is found on our own path."""
        return self._program or _tmux.find_tmux() or "/usr/bin/tmux"

    def _made(self, start: Start, code: int, said: bytes) -> None:
        if self.starts.get(start.record.handle) is not start:
            return
        if code == 0:
            start.piped = True
            self._watch_server(said, [start.record.handle])
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
        except OSError:
            pass  # it is gone already, which its connection will say
        self._answer(start)

    def _answer(self, start: Start) -> None:
        """The pane gets its command once all is ready for the first byte of output."""
        if start.piped and start.pane is not None and start.spec is not None:
            spec, start.spec = start.spec, None
            start.pane.send(spec)

    def pane_said(self, start: Start, message: dict[str, Any]) -> None:
        number = message.get("failed")
        if isinstance(number, int):
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
        held = Held(start.pid, start.pidfd, out=start.reader)
        record.pid = start.pid
        record.start_time = _kernel.start_time(start.pid)
        record.tty = start.tty
        self._worker.save(record)
        unlink(self._home.begun(record.handle))
        child = self._worker.add_child(record, held)
        self._worker.hold(record.handle, held)
        for done in start.waiting:
            done(child, None)
        child.watch_output(new=True)
        if start.pidfd < 0:
            self.process_died(child)
        else:
            child.watch_end()
        self._worker.set_deadline(child)
        self._worker.watching.add(child)

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
        for fd in (start.reader, start.pidfd):
            if fd >= 0:
                os.close(fd)
        self._worker.store.delete(handle)
        self._end_session(start.record)
        for done in start.waiting:
            done(None, error)

    def _end_session(self, record: Record, then: Callable[[], None] | None = None) -> None:
        name = _tmux.target(record.tmux_session or "")
        self._run(["kill-session", "-t", name], lambda code, said: then() if then else None)

    # -- the server ----------------------------------------------------------------------------

    def _watch_server(self, said: bytes, handles: list[str]) -> None:
        try:
            server = int(said)
            if server not in self._servers:
                self._servers[server] = os.pidfd_open(server)
                self._loop.add(self._servers[server], IN, lambda _: self._server_ended(server))
        except (ValueError, OSError):
            return
        self._panes.update(dict.fromkeys(handles, server))

    def _server_ended(self, server: int) -> None:
        pidfd = self._servers.pop(server)
        self._loop.remove(pidfd)
        os.close(pidfd)
        for handle, its_server in list(self._panes.items()):
            if its_server == server:
                del self._panes[handle]
                child = self._worker.children.get(handle)
                if child is not None and not child.exited():
                    self._bereaved(child)

    def _bereaved(self, child: Child) -> None:
        """Most end by the hangup; those that do not go on, and can still be waited for."""
        if _BEREAVED not in child.record.notes:
            say(f"{child.record.handle}: {_BEREAVED}")
            child.record.notes.append(_BEREAVED)
            child.record.attach = None
            self._worker.save(child.record)

    def look_for_server(self, handle: str) -> None:
        """After a worker's death: which server it is that holds the panes we took up."""
        self._run(
            ["display-message", "-p", "#{pid}"],
            lambda code, said: self._watch_server(said if code == 0 else b"", [handle]),
        )

    # -- the end -------------------------------------------------------------------------------

    def process_died(self, child: Child) -> None:
        """The process is dead; write down how, take its last screen, and let the session go."""
        note = child.death_note()
        if note is not None:
            self._note(child, note)
        self._look_at_dead_pane(child, time.monotonic() + _END_PATIENCE)

    def _note(self, child: Child, note: ExitNote) -> None:
        try:
            self._worker.store.write_exit(child.record.handle, note)
        except OSError as error:
            say(f"{child.record.handle}: its exit note cannot be written: {error}")

    def _look_at_dead_pane(self, child: Child, until: float) -> None:
        def looked(code: int, said: bytes) -> None:
            if child.note is not None:
                return
            about, _, screen = said.partition(b"\n")
            fields = about.decode("ascii", "replace").split(";")
            dead, status, number, at, attached = fields if len(fields) == 5 else [""] * 5
            reaped = status.isdigit() or number.isdigit()
            if code == 0 and not (dead == "1" and reaped) and time.monotonic() < until:
                # tmux has not noticed yet, or has not passed on all of the output; or it has missed
                # the signal (3.3a does, for one in ten that are killed), so it gets another.
                self._nudge(child)
                self._loop.after(_SOON, lambda: self._look_at_dead_pane(child, until))
                return
            if code == 0:
                self._save_screen(child, screen)
                if not child.death_known and (note := _exit_note(status, number, at)):
                    self._note(child, note)  # the kernel is too old to have told us
                self._let_go(child, attached not in ("", "0"))
            else:
                self._bereaved(child)
                self._when_quiet(child)

        name = _tmux.target(child.record.tmux_session or "")
        look = ["display-message", "-p", "-t", name, _DEAD_PANE, ";"]
        self._run([*look, *_tmux.capture(child.record.tmux_session or "")], looked, _END_PATIENCE)

    def _nudge(self, child: Child) -> None:
        pidfd = self._servers.get(self._panes.get(child.record.handle, 0))
        if pidfd is not None:
            _kernel.send_signal(pidfd, signal.SIGCHLD)

    def _save_screen(self, child: Child, screen: bytes) -> None:
        size = _tmux.size_in(screen)
        if size is not None and size != child.record.size:
            child.record.resized(child.writers[0].size if child.writers else 0, *size)
        try:
            replace_private(self._home.screen(child.record.handle), screen)
        except OSError as error:
            say(f"{child.record.handle}: its screen cannot be saved: {error}")

    def _let_go(self, child: Child, attached: bool) -> None:
        """Destroyed when nobody is attached: now, or when they have gone."""
        name = _tmux.target(child.record.tmux_session or "")
        if attached or not child.pumps:
            self._when_quiet(child)
        else:
            child.when_hung_up = lambda: self._settle(child)
            self._loop.after(_END_PATIENCE, lambda: self._settle(child))
        self._run(["set-option", "-t", name, "destroy-unattached", "on"], lambda code, said: None)

    def _when_quiet(self, child: Child, before: int = -1) -> None:
        """Settle once nothing more comes through its pipe, for lack of better evidence."""
        size = child.writers[0].size if child.writers else 0
        if size == before:
            self._settle(child)
        else:
            self._loop.after(_QUIET, lambda: self._when_quiet(child, size))

    def _settle(self, child: Child) -> None:
        child.when_hung_up = None
        self._panes.pop(child.record.handle, None)
        if child.note is None:
            child.settle_strange()

    # -- taking up -----------------------------------------------------------------------------

    def exit_left(self, record: Record) -> ExitNote | None:
        """How it ended while there was no keeper, if its dead pane is still there to say."""
        until = time.monotonic() + _END_PATIENCE
        while (pane := self._ask(record)) is not None and time.monotonic() < until:
            # tmux may know how it ended and still not call it dead, while output waits for us.
            if note := _exit_note(pane.status, pane.signal, pane.at):
                return note
            os.kill(pane.server, signal.SIGCHLD)  # see `_look_at_dead_pane`
            time.sleep(_SOON)
        return None

    def begun(self, record: Record) -> bool:
        """A worker died while it started this. True if it came to be; else it is ended.

        A pane that has its command says so in a file and becomes it within moments; one that has
        not sleeps, waiting for an answer that will never come, or is dead.
        """
        asleep = 0
        until = time.monotonic() + _END_PATIENCE
        while time.monotonic() < until and asleep < _TRIES:
            pane = self._ask(record)
            if pane is None:
                return False
            begun = os.path.exists(self._home.begun(record.handle))
            if begun and (pane.dead or _kernel.mark_of(pane.pid) == record.handle):
                record.pid, record.tty = pane.pid, pane.tty
                record.start_time = _kernel.start_time(pane.pid)
                return True
            if pane.dead:
                break
            found = _kernel.stat(pane.pid)
            asleep = asleep + 1 if found is not None and found.state == "S" else 0
            time.sleep(_SOON)
        self._run_now("kill-session", "-t", _tmux.target(record.tmux_session or ""))
        return False

    def _ask(self, record: Record) -> _Pane | None:
        name = _tmux.target(record.tmux_session or "")
        code, said = self._run_now("display-message", "-p", "-t", name, _PANE)
        fields = said.decode("utf-8", "replace").strip().split(";")
        return _Pane(fields) if code == 0 and len(fields) == 7 else None

    def _run_now(self, *arguments: str) -> tuple[int, bytes]:
        return self._worker.helpers.run_now(
            _tmux.arguments(self._home, *arguments), self.program, self._home.path, _END_PATIENCE
        )

    def take_up_dead(self, child: Child) -> None:
        """It ended, with an exit note, and how far its session was let go nobody knows."""
        self._look_at_dead_pane(child, time.monotonic() + _END_PATIENCE)


class _Pane:
    """What tmux says of a pane."""

    __slots__ = ("dead", "status", "signal", "at", "server", "pid", "tty")

    def __init__(self, fields: list[str]) -> None:
        dead, self.status, self.signal, self.at, server, pid, self.tty = fields
        self.dead = dead == "1"
        self.server = int(server)
        self.pid = int(pid)


def _exit_note(status: str, number: str, at: str) -> ExitNote | None:
    if not (status.isdigit() or number.isdigit()):
        return None
    when = float(at) if at.isdigit() else time.time()
    return ExitNote(
        code=None if number.isdigit() else int(status),
        signal=signal_name(int(number)) if number.isdigit() else None,
        at=when,
        clock=time.monotonic() - max(0.0, time.time() - when),
    )


def _unparsed(argument: str) -> str:
    """An argument of which tmux does not take a `;` at the end for its own."""
    return argument[:-1] + "\\;" if argument.endswith(";") else argument


def _terminal_name() -> str:
    """What tmux is to call itself: the most capable one that programs here know."""
    for place in _TERMINFO:
        if os.path.exists(f"{place}/t/tmux-256color"):
            return "tmux-256color"
    return "screen-256color"
