"""Modes, the ways in which the keeper runs a process: one interface (`base.Mode`), a file each.

Nobody outside this room asks which mode a process has: they ask its mode to do something, or its
record what can be done (`core.capabilities`). It imports what the keeper does.
"""

from __future__ import annotations

from ...core.errors import BadRequest
from .pipe import Pipe
from .pty import Pty
from .runner import Runner
from .tmux import Tmux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...core.record import Record
    from ...core.types import ModeName
    from ..held_fds import Held
    from ..worker import Worker
    from .base import Mode
    from .tmux import Start


class Modes:
    """The modes of one worker, and what is on its way into one of them."""

    __slots__ = ("_elsewhere", "_here", "tmux")

    def __init__(self, worker: Worker) -> None:
        self.tmux = Tmux(worker)
        here = (Pipe(worker), Pty(worker), self.tmux)
        self._here: dict[str, Mode] = {mode.name: mode for mode in here}
        inner = (Pipe(worker, shared=True), Pty(worker, raw=True))
        self._elsewhere: dict[str, Mode] = {mode.name: Runner(worker, mode) for mode in inner}

    def of(self, record: Record) -> Mode:
        return (self._here if record.runner is None else self._elsewhere)[record.mode]

    def check(self, name: object, runner: str | None) -> None:
        """BadRequest for what there is no mode for."""
        if name not in self._here:
            raise BadRequest(f"a mode is one of {', '.join(self._here)}")
        if runner is not None and name not in self._elsewhere:
            raise BadRequest(f"what runs in {runner} has no {name} here")

    def guess(self, held: Held) -> ModeName:
        """The mode of a process of which nothing is known but what is held of it."""
        return next(mode.name for mode in reversed(self._here.values()) if mode.holds(held))

    # -- not begun yet -------------------------------------------------------------------------

    @property
    def starts(self) -> dict[str, Start]:
        return self.tmux.starts

    def starting(self, session: str | None) -> list[Start]:
        return [each for each in self.starts.values() if session in (None, each.record.session)]

    def cancel(self, start: Start) -> None:
        """Somebody stops it before it has begun."""
        self.tmux.cancel(start)
