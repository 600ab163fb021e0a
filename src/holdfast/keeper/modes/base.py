"""The interface of a mode. Where one has no answer of its own, that of `Mode` holds."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...linux import cgroup, kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar

    from ...core.errors import HoldfastError
    from ...core.record import ExitNote, Record
    from ...core.types import ModeName
    from ..child import Child
    from ..containment import Plan
    from ..held_fds import Held
    from ..launch import Action, Ends
    from ..worker import Worker

    Started = Callable[[Child | None, HoldfastError | None], None]
    Typed = tuple[bytes, list[int], int]

_UNCOUNTED = 1 << 20  # bytes by which the kernel may be behind with what a process has


@dataclass(slots=True)
class Order:
    """A process to be started; its record is on disk."""

    record: Record
    program: str
    argv: list[str]
    env: dict[str, str]
    umask: int
    plan: Plan
    tmux: str | None  # the program, for those who need it


class Mode:
    """One kind of process: its start, recovery, input, signals and end."""

    name: ClassVar[ModeName]
    # The keeper itself holds its terminal: types into it, resizes it, answers its questions.
    terminal_here: bool = False
    # The death of its pid need not be its end: another one may take over.
    again: bool = False
    # Its FIFOs are kept open between those who write to them.
    keeps_fifos: bool = False

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    # -- the start -----------------------------------------------------------------------------

    def describe(self, record: Record, asked: dict[str, Any]) -> None:
        """Write into a new record what is this mode's own; errors for what it cannot do."""

    def limit(self, record: Record, limits: dict[str, Any]) -> dict[str, Any]:
        """The limits that are the keeper's to enforce."""
        return limits

    def launch(self, order: Order, done: Started) -> None:
        """Start it, or raise and leave nothing. `done` is called now or later, and once."""
        child = self._worker.lives.launch(order)
        done(child, None)
        os.sched_yield()  # the caller waits for this processor: what is left to do can wait
        self._worker.lives.launched(child)

    def make_ends(self, record: Record) -> tuple[Ends, list[Action]]:
        """Make its descriptors: those that the keeper keeps, and how the process gets its own."""
        raise NotImplementedError

    def make_ends_again(self, record: Record, held: Held) -> tuple[Ends, list[Action]]:
        """The same for who takes over, of what is held already."""
        raise NotImplementedError

    def directory(self, record: Record) -> str:
        return record.cwd

    # -- finding it again ----------------------------------------------------------------------

    def holds(self, held: Held) -> bool:
        """True if what is held of a process looks like one of this mode."""
        return True

    def may_have_begun(self, record: Record) -> bool:
        """True if there may be a process for a record without a pid that the guard does not hold.

        A worker died before it made it, else the guard would hold it, unless there is another guard
        now: then its mark tells.
        """
        return self._worker.guard.fresh

    def is_its(self, record: Record, pid: int) -> bool:
        """True if a process with its mark, which leads a session, is the one that was started."""
        return True

    def find_ends(self, record: Record, held: Held) -> None:
        """Find what both halves of a keeper held of a living process, beside its FIFOs."""

    def mend(self, record: Record, held: Held) -> None:
        """Make anew what cannot be found."""

    def adopted(self, record: Record) -> None:
        """Say in its record what was lost with the last keeper."""

    def take_up(self, child: Child) -> None:
        """A process that runs, or ran until just now, has another worker."""

    def take_up_dead(self, child: Child) -> bool:
        """True if more is to be learned of its end than the kernel can tell."""
        return False

    def take_up_ended(self, child: Child) -> None:
        """Do what follows an end that is written down, and may not have been done."""
        self._worker.release_terminal(child)

    # -- while it runs -------------------------------------------------------------------------

    def typed(self, child: Child, data: bytes, eof: bool) -> Typed | None:
        """Data as its terminal takes it, see `linux.tty.typed`; None where it is just written."""
        return None

    def why_no_stdin(self, record: Record) -> str:
        handle = record.handle
        if not record.stdin:
            return f"{handle} was started without stdin; start it with stdin open to write to it"
        return f"the stdin of {handle} is closed; start the process again to write to it"

    def resized(self, child: Child) -> None:
        """Follow another size of its terminal here, which those at it know by themselves."""

    def check_signal(self, record: Record, number: int) -> None:
        """Unsupported for one that does not reach it."""

    def signal(self, child: Child, number: int) -> None:
        child.signal_group(number)

    def at_terminal(self, child: Child) -> list[int]:
        """Whoever gets the signals of its terminal's keys."""
        return [child.held.pid]

    # -- the end -------------------------------------------------------------------------------

    def on_death(self, child: Child) -> bool:
        """The kernel says that it is dead; True if its end is settled later."""
        return False

    def on_exit(self, child: Child, note: ExitNote) -> bool:
        """Follow an end that is known; True if another takes over, and it is not the end."""
        return False

    def conclude(self, child: Child, note: ExitNote) -> ExitNote:
        """The last word on how it ended."""
        note.out_of_memory = _out_of_memory(child, note)
        note.peak_memory_bytes = _peak_memory(child.record, note)
        return note

    def unread(self, child: Child) -> None:
        """See to who else writes into its FIFO, which is gone before all of it was read."""


def _peak_memory(record: Record, note: ExitNote) -> int | None:
    """The peak of its group, or of one process; None where it may have been the keeper's.

    The kernel counts what a process had before exec, too, and that was ours.
    """
    together = cgroup.peak_memory(record.cgroups)
    if together is not None:
        return together
    alone, floor = note.peak_memory_bytes, record.memory_floor
    floor = (floor or kernel.own_peak_memory()) + _UNCOUNTED
    return alone if alone is not None and alone > floor else None


def _out_of_memory(child: Child, note: ExitNote) -> bool:
    record = child.record
    if record.stop is not None or (note.signal is None and note.code in (0, None)):
        return False
    if cgroup.ran_out_of_memory(record.cgroups):
        return True
    if note.signal != "SIGKILL":
        return False
    return child.memory_kills.includes(child.held.pid, record.started_clock)
