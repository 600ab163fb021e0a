"""Stopping a process with everything it started.

The polite signal goes to the process group; what is still there when the grace is over is killed:
all of its control group at once, or the process group where there is none. That the stop was begun
is in the record before the first signal goes out, with the time at which force is due, so a worker
that takes over half-way goes on from there.

After the process itself has ended, what it left behind is ended too (`orphan_sweep`). Only then is
a stop done; its receipt names what would not go, and why.
"""

from __future__ import annotations

import signal
import time

from ..linux import cgroup, kernel
from .orphan_sweep import Origin, Sweep, living
from .receipt import Receipt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .child import Child
    from .loop import Loop, Timer
    from .orphan_sweep import Sweeps

_RUNNER_PATIENCE = 15.0
_IGNORED_AGAIN = 0.2
_HANG_UP_AGAIN = 1.0


class Stopping:
    __slots__ = ("_loop", "_child", "_sweep", "_sweeps", "_timer", "_done", "_receipt")

    def __init__(self, loop: Loop, sweeps: Sweeps, child: Child) -> None:
        self._loop = loop
        self._sweeps = sweeps
        self._child = child
        self._timer: Timer | None = None
        self._done: list[Callable[[dict[str, Any]], None]] = []
        self._receipt = Receipt()
        self._sweep: Sweep | None = None

    def when_done(self, callback: Callable[[dict[str, Any]], None]) -> None:
        self._done.append(callback)

    def forget(self, callback: Callable[[dict[str, Any]], None]) -> None:
        if callback in self._done:
            self._done.remove(callback)

    def begin(self, number: int) -> None:
        """Send the polite signal (or SIGKILL, if that was asked for) and start the clock."""
        stop = self._child.record.stop
        assert stop is not None
        if number == signal.SIGKILL or stop.kill_clock <= time.monotonic():
            self._force()
            return
        self._tell(number)
        self._child.signal_group(number)
        if self._child.record.capabilities.terminal:
            self._hang_up_if_ignored(number)
        # A stopped process would sit out its grace without ever seeing the signal.
        self._child.signal_group(signal.SIGCONT)
        self._timer = self._loop.at(stop.kill_clock, self._force)

    def _tell(self, number: int, *, everybody: bool = False) -> None:
        """Write into the receipt whom a signal goes to: its group, or all of its control group."""
        record, pid = self._child.record, self._child.held.pid
        try:
            if record.cgroups:
                found = living(cgroup.members(record.cgroups))
            else:
                found = self._sweeps.process_group(pid)
        except OSError:
            return  # no descriptor to look with; the signal needs none
        for each in sorted(found, key=lambda each: each.pid != pid):
            if each.group == pid or (everybody and record.cgroups):
                self._receipt.add(each, number)

    def _hang_up_if_ignored(self, number: int, again: float = _HANG_UP_AGAIN) -> None:
        """A shell at its prompt ignores SIGTERM; it ends, and its jobs, when it is hung up on.

        One that goes to its prompt just then may note the hang-up and wait for a key all the same
        (readline looks for signals before it waits, not while it begins to): it is hung up on
        again, ever less often.
        """
        if self._child.note is not None or self._child.stopping is not self:
            return
        if any(kernel.ignores(pid, number) for pid in self._child.mode.at_terminal(self._child)):
            self._child.signal_group(signal.SIGHUP)
            self._loop.after(again, lambda: self._hang_up_if_ignored(number, 2 * again))
        else:  # perhaps it was just not at its prompt
            self._loop.after(_IGNORED_AGAIN, lambda: self._hang_up_if_ignored(number, again))

    def hasten(self, kill_clock: float) -> None:
        """A later, more impatient stop moves the force forward, never back."""
        stop = self._child.record.stop
        if stop is None or kill_clock >= stop.kill_clock:
            return
        stop.kill_clock = kill_clock
        if self._sweep is not None:
            self._sweeps.hasten(self._sweep, kill_clock)
        elif self._child.note is None:
            self._cancel()
            self._timer = self._loop.at(kill_clock, self._force)

    def _force(self) -> None:
        self._timer = None
        child = self._child
        if child.note is not None:
            return
        self._receipt.forced = True
        self._tell(signal.SIGKILL, everybody=True)
        if child.record.cgroups:
            cgroup.kill(child.record.cgroups)
        child.signal_group(signal.SIGKILL)
        if child.mode.again:
            self._timer = self._loop.after(_RUNNER_PATIENCE, self._give_up)

    def runner_begun(self) -> None:
        """Called when its runner was started again, and was told of the stop."""
        stop = self._child.record.stop
        assert stop is not None
        self._cancel()
        if stop.kill_clock > time.monotonic():
            self._timer = self._loop.at(stop.kill_clock, self._force)
        else:
            self._receipt.forced = True
            self._timer = self._loop.after(_RUNNER_PATIENCE, self._give_up)

    def _give_up(self) -> None:
        """Even by force its runner could not end what it runs: it is still at it."""
        self._timer = None
        found = kernel.stat(self._child.held.pid)
        self._receipt.why = "it has not ended what it runs yet, and goes on trying"
        self._finish([] if found is None else [found])

    def process_ended(self) -> None:
        """The process is gone; see to what it left behind."""
        self._cancel()
        child, stop = self._child, self._child.record.stop
        assert stop is not None
        origins = [Origin(child.record, child.held.pid)]
        self._sweep = Sweep(origins, stop.kill_clock, self._receipt, self._finish)
        self._sweeps.begin(self._sweep)

    def _finish(self, left: list[kernel.Stat]) -> None:
        done, self._done = self._done, []
        receipt = self._receipt.receipt(left, False)
        self._child.stopping = None
        for callback in done:
            callback(receipt)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
