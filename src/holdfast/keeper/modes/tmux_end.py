"""The end of a process in tmux: what is left to do when the kernel has said that it is dead.

DESIGN. How it ended is in an exit note first, as where the guard reaps. What it wrote may still be
on its way through the kernel and tmux. So we let go of its terminal, and so did it: tmux, having
read everything, finds that nobody has it open, and calls the pane dead once it has passed all of it
on. Its parent (see `tmux_pane`), which tmux must not see end before that, is ended then. Then the
last screen is taken and the session is let go: at once if nobody looks at it, else when they have
gone. With it the pipe ends, and when that has hung up the log has everything, and the end is
written down as any other.

What it left behind may have the terminal open too: then the parent is ended when the output is
quiet, and tmux hangs up on the rest.

tmux may be stopped, or hang: it is asked again and again, less and less often. Meanwhile an end of
which the note is there is settled when the output is quiet. Of one that the kernel will not speak
of (sudo, say) while its parent leaves it unreaped, more is known when that has ended.
"""

from __future__ import annotations

import os
import signal
import time

from ...core import tmux_server
from ...core.home import replace_private
from ...core.record import ExitNote, signal_name
from ...linux import kernel
from ..held_fds import note_of
from ..journal import say
from ..orphan_sweep import Origin, leftovers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ClassVar

    from ..child import Child
    from ..held_fds import Held
    from ..worker import Worker
    from .tmux import Tmux

_PATIENCE = 2.0
_QUIET = 0.03
_HELD_UP = 0.1
_SOON, _LATEST = 0.005, 30.0
_GONE = (b"no server running", b"can't find", b"error connecting", b"server exited", b"lost server")


class Pane:
    """A pane, as tmux tells of it."""

    FORM: ClassVar[str] = "#{pane_dead};#{session_attached};#{pane_pid};#{pane_id};#{pane_tty};"
    __slots__ = ("attached", "dead", "id", "ours", "pid", "tty")

    def __init__(self, line: bytes) -> None:
        """ValueError for what is no pane: tmux leaves everything empty then."""
        fields = line.decode("ascii", "replace").split(";")
        dead, attached, pid, self.id, self.tty, ours = fields
        self.pid = int(pid)  # of what tmux started: the parent of the process
        self.dead = dead == "1"
        self.attached = attached not in ("", "0")
        self.ours = ours.strip() == "1"


def end_parent(pid: int, handle: str) -> None:
    """End the parent of a process in tmux, which waits for just that."""
    try:
        found = kernel.stat(pid)
    except OSError:
        return
    if found is not None and found.parent > 1:
        # It may be dead, and whoever was left the process in its place is not ours to end.
        end_stayer(found.parent, handle)


def end_stayer(pid: int, handle: str) -> None:
    """End what stays in a pane beside its process, if this pid is that (see `tmux_pane`)."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    if said_by(pid, b"HOLDFAST_PANE") == handle:
        kernel.send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


def stayer_of(handle: str) -> int:
    """The pid of what stays in the pane of a process, by its environment; 0 if there is nobody."""
    for each in kernel.all_processes():
        if said_by(each.pid, b"HOLDFAST_PANE") == handle:
            return each.pid
    return 0


def where_it_stays(stayer: int) -> tuple[str | None, str | None]:
    """The terminal and the pane, for when tmux does not answer."""
    return said_by(stayer, b"HOLDFAST_TTY") or None, said_by(stayer, b"TMUX_PANE") or None


def said_by(pid: int, name: bytes) -> str:
    """A variable of the environment a process was started with."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            _, _, rest = (b"\0" + file.read()).partition(b"\0" + name + b"=")
    except OSError:
        return ""
    return os.fsdecode(rest.partition(b"\0")[0])


def _note(held: Held) -> ExitNote | None:
    """The end of a process that was nobody's to ask about while its parent was there."""
    try:
        return note_of(held.pid)  # it was left to us
    except ChildProcessError:
        pass
    try:
        death = kernel.exit_of_stranger(held.pid, held.pidfd)
    except OSError:
        return None  # no descriptor to look with; it is asked again
    if death is None:
        return None
    name = None if death.signal is None else signal_name(death.signal)
    return ExitNote(death.code, name, time.time(), time.monotonic())


def _reap(held: Held) -> bool:
    """True once nothing is left of a process that lost its parent, perhaps to us."""
    if held.pidfd < 0:
        return True
    try:
        os.waitpid(held.pid, os.WNOHANG)
    except ChildProcessError:
        pass  # it was left to the guard, or to init
    return not kernel.send_signal(held.pidfd, 0)


class PaneEnd:
    """Sees to one dead process until its session is let go."""

    __slots__ = (
        "_began",
        "_child",
        "_grew",
        "_loop",
        "_orphan_until",
        "_size",
        "_step",
        "_tmux",
        "_worker",
    )

    def __init__(self, tmux: Tmux, worker: Worker, child: Child) -> None:
        self._tmux = tmux
        self._worker = worker
        self._loop = worker.loop
        self._child = child
        self._began = self._grew = time.monotonic()
        self._orphan_until = 0.0  # by then somebody has reaped it, once its parent was ended
        self._size = 0
        self._step = _SOON

    def begin(self) -> None:
        self._worker.release_terminal(self._child)
        self._look()

    def _look(self) -> None:
        record = self._child.record
        form = Pane.FORM + tmux_server.is_ours(record.handle)
        about = ["display-message", "-p", "-t", record.pane or "%", form, ";"]
        self._tmux.run([*about, *tmux_server.capture(record)], self._looked, _PATIENCE)

    def _again(self) -> None:
        self._loop.after(self._step, self._look)
        self._step = min(self._step * 1.5, _LATEST)

    def _looked(self, code: int, said: bytes) -> None:
        about, _, screen = said.partition(b"\n")
        try:
            pane = Pane(about) if code == 0 else None
        except ValueError:
            pane = None
        if pane is not None and pane.ours:
            self._found(pane, screen)
        elif code == 0 or any(word in said for word in _GONE):
            if not self._was_let_go():
                self._tmux.pane_lost(self._child)
            self._end_parent(self._settle_when_quiet)
        else:
            # It did not answer, or could not be run. It will be there, and its pane, later.
            if self._child.death_known:
                self._settle_when_quiet()
            self._again()

    def _was_let_go(self) -> bool:
        """True if a worker that is dead now had let the session go, and saved its screen before."""
        child = self._child
        saved = os.path.exists(self._worker.home.screen(child.record.handle))
        return saved or child.note is not None

    def _found(self, pane: Pane, screen: bytes) -> None:
        child = self._child
        if any(pump.blocked for pump in child.pumps):
            self._again()  # there is more in its pipe than the disk can take
        elif pane.dead:
            self._save_screen(screen)
            self._end_parent(lambda: self._let_go(pane.attached))
        elif self._is_held_up():
            self._end_parent(self._nudge)
        else:
            self._again()

    def _nudge(self) -> None:
        """tmux may have missed the end of the parent."""
        self._tmux.nudge(self._child.record.handle)
        self._again()

    def _is_held_up(self) -> bool:
        """True if something else has its terminal open, so that tmux goes on reading."""
        now, size = time.monotonic(), self._log_size()
        if size != self._size:
            self._size, self._grew = size, now
        quiet = now - self._grew
        if quiet < _HELD_UP and now - self._began < _PATIENCE:
            return False
        if quiet >= _PATIENCE:
            return True
        try:
            return bool(leftovers([Origin(self._child.record, self._child.held.pid)]))
        except OSError:
            return False  # no descriptor to look with

    def _end_parent(self, then: Callable[[], None]) -> None:
        """Go on when it is known how the process ended, or nobody can know any more."""
        child = self._child
        end_parent(child.held.pid, child.record.handle)
        self._orphan_until = time.monotonic() + _PATIENCE
        self._find_out(then)

    def _find_out(self, then: Callable[[], None]) -> None:
        child = self._child
        if child.note is None and child.held.pidfd >= 0 and not child.death_known:
            note = _note(child.held)
            if note is not None:
                self._worker.note_exit(child, note)
            elif time.monotonic() < self._orphan_until:
                self._loop.after(_SOON, lambda: self._find_out(then))
                return
        then()

    def _save_screen(self, screen: bytes) -> None:
        record = self._child.record
        try:
            size = tmux_server.Captured(screen).size
            if size != record.size:
                record.resized(self._log_size(), *size)
            if os.path.exists(self._worker.home.meta(record.handle)):  # not removed meanwhile
                replace_private(self._worker.home.screen(record.handle), screen)
        except (OSError, ValueError) as error:
            say(f"{record.handle}: its screen cannot be saved: {error}")

    def _let_go(self, attached: bool) -> None:
        """Destroyed when nobody is attached: now, or when they have gone."""
        child = self._child

        def done(code: int, said: bytes) -> None:
            if code != 0 and not any(word in said for word in _GONE):
                self._again()

        if child.note is None:
            if attached or not child.pumps:
                self._settle_when_quiet()
            else:
                child.when_hung_up = self._settle
                self._loop.after(_PATIENCE, self._settle)
        pane = child.record.pane
        shown = f"set-option -p -t {pane} {tmux_server.ENDED} '{self._how()}'"
        let_go = f"{shown} ; set-option -t {pane} destroy-unattached on"
        self._tmux.run(tmux_server.if_ours(child.record, let_go), done)

    def _how(self) -> str:
        """The end in words, for a person who looks at its last screen."""
        child = self._child
        note = child.note or self._worker.store.read_exit(child.record.handle) or child.death_note()
        if note is None or not note.known:
            return "nobody knows how"
        return note.signal or f"exit code {note.code}"

    def _log_size(self) -> int:
        return self._child.writers[0].size if self._child.writers else 0

    def _settle_when_quiet(self, before: int = -1) -> None:
        """Settle once nothing more comes through its pipe, for lack of better evidence."""
        size = self._log_size()
        if size == before:
            self._settle()
        elif self._child.note is None:
            self._loop.after(_QUIET, lambda: self._settle_when_quiet(size))

    def _settle(self) -> None:
        child = self._child
        child.when_hung_up = None
        if child.note is None and time.monotonic() < self._orphan_until and not _reap(child.held):
            self._loop.after(_SOON, self._settle)
            return
        self._tmux.forget(child.record.handle)
        if child.note is None:
            child.settle_foreign()
            self._tmux.forget_begun(child.record.handle)
