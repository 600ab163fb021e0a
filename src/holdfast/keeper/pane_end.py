"""The end of a process in tmux: what is left to do when the kernel has said that it is dead.

DESIGN. How it ended is in an exit note first, as where the guard reaps; where the kernel could not
tell, tmux can, from the dead pane. What the process wrote may still be on its way through tmux,
which calls a pane dead once it has passed all of it on. Then the last screen is taken and the
session is let go: at once if nobody looks at it, else when they have gone. With it the pipe ends,
and when that has hung up the log has everything, and the end is written down as any other.

tmux may be stopped, or hang: it is asked again and again, less and less often. Meanwhile an end of
which the note is there is settled when the output is quiet; one that only tmux knows waits.
"""

from __future__ import annotations

import time

from .. import _tmux
from .._home import replace_private
from .._model import ExitNote, signal_name
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

    from .child import Child
    from .tmux import Tmux
    from .worker import Worker

_PATIENCE = 2.0
_QUIET = 0.03
_SOON, _LATEST = 0.005, 30.0
_GONE = (b"no server running", b"can't find", b"error connecting", b"server exited", b"lost server")


class Pane:
    """What tmux says of a pane."""

    FORM: ClassVar[str] = (
        "#{pane_dead};#{pane_dead_status};#{pane_dead_signal};#{pane_dead_time};"
        "#{session_attached};#{pane_pid};#{pane_id};#{pane_tty}"
    )
    __slots__ = ("at", "attached", "dead", "id", "pid", "signal", "status", "tty")

    def __init__(self, line: bytes) -> None:
        """ValueError for what is no pane: tmux leaves everything empty then."""
        fields = line.decode("ascii", "replace").strip().split(";")
        if len(fields) != 8:
            raise ValueError
        dead, self.status, self.signal, self.at, attached, pid, self.id, self.tty = fields
        self.dead = dead == "1"
        self.attached = attached not in ("", "0")
        self.pid = int(pid)

    @property
    def reaped(self) -> bool:
        return self.status.isdigit() or self.signal.isdigit()

    def exit_note(self) -> ExitNote | None:
        if not self.reaped:
            return None
        when = float(self.at) if self.at.isdigit() else time.time()
        return ExitNote(
            code=None if self.signal.isdigit() else int(self.status),
            signal=signal_name(int(self.signal)) if self.signal.isdigit() else None,
            at=when,
            clock=time.monotonic() - max(0.0, time.time() - when),
        )


class PaneEnd:
    """Sees to one dead process until its session is let go."""

    __slots__ = ("_began", "_child", "_loop", "_step", "_tmux", "_worker")

    def __init__(self, tmux: Tmux, worker: Worker, child: Child) -> None:
        self._tmux = tmux
        self._worker = worker
        self._loop = worker.loop
        self._child = child
        self._began = time.monotonic()
        self._step = _SOON

    @property
    def _id(self) -> str:
        return self._child.record.pane or "%"

    def look(self) -> None:
        about = ["display-message", "-p", "-t", self._id, Pane.FORM, ";"]
        self._tmux.run([*about, *_tmux.capture(self._id)], self._looked, _PATIENCE)

    def _again(self) -> None:
        self._loop.after(self._step, self.look)
        self._step = min(self._step * 1.5, _LATEST)

    def _looked(self, code: int, said: bytes) -> None:
        about, _, screen = said.partition(b"\n")
        try:
            pane = Pane(about) if code == 0 else None
        except ValueError:
            pane = None
        if pane is not None and pane.pid == self._child.record.pid:
            self._found(pane, screen)
        elif code == 0 or any(word in said for word in _GONE):
            self._tmux.bereaved(self._child)
            self._settle_when_quiet()
        else:
            # It did not answer, or could not be run. It will be there, and its pane, later.
            if self._child.death_known:
                self._settle_when_quiet()
            self._again()

    def _found(self, pane: Pane, screen: bytes) -> None:
        child = self._child
        if not child.death_known and (note := pane.exit_note()):
            self._worker.note_exit(child, note)
        overdue = time.monotonic() - self._began > _PATIENCE
        if not pane.dead or not (pane.reaped or (overdue and child.death_known)):
            # tmux has not noticed yet, or has not passed on all of the output; or it has missed
            # the signal (3.3a does, for one in ten that are killed), so it gets another.
            self._tmux.nudge(child.record.handle)
            self._again()
        elif any(pump.blocked for pump in child.pumps):
            self._again()  # there is more in its pipe than the disk can take
        else:
            self._save_screen(screen)
            self._let_go(pane.attached)

    def _save_screen(self, screen: bytes) -> None:
        record = self._child.record
        try:
            size = _tmux.Captured(screen).size
            if size != record.size:
                writers = self._child.writers
                record.resized(writers[0].size if writers else 0, *size)
            replace_private(self._worker.home.screen(record.handle), screen)
        except (OSError, ValueError) as error:
            say(f"{record.handle}: its screen cannot be saved: {error}")

    def _let_go(self, attached: bool) -> None:
        """Destroyed when nobody is attached: now, or when they have gone."""
        child = self._child

        def told(code: int, said: bytes) -> None:
            if code != 0 and not any(word in said for word in _GONE):
                self._again()

        if child.note is None:
            if attached or not child.pumps:
                self._settle_when_quiet()
            else:
                child.when_hung_up = self._settle
                self._loop.after(_PATIENCE, self._settle)
        let_go = f"set-option -t {self._id} destroy-unattached on"
        self._tmux.run(_tmux.if_ours(self._id, child.record.pid or 0, let_go), told)

    def _settle_when_quiet(self, before: int = -1) -> None:
        """Settle once nothing more comes through its pipe, for lack of better evidence."""
        child = self._child
        size = child.writers[0].size if child.writers else 0
        if size == before:
            self._settle()
        elif child.note is None:
            self._loop.after(_QUIET, lambda: self._settle_when_quiet(size))

    def _settle(self) -> None:
        child = self._child
        child.when_hung_up = None
        self._tmux.forget(child.record.handle)
        if child.note is None:
            child.settle_strange()
