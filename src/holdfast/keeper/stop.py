"""Stopping a process with everything it started.

The polite signal goes to the process group; what is still there when the grace is over is killed:
all of its control group at once, or the process group where there is none. That the stop was begun
is in the record before the first signal goes out, with the time at which force is due, so a worker
that takes over half-way goes on from there.

After the process itself has ended, what it left behind is ended too (`leftovers`). Only then is a
stop done; its receipt names what would not go, and why.
"""

from __future__ import annotations

import os
import signal
import time

from .. import _cgroup, _kernel
from .leftovers import Clearing, Left, Told, living

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .child import Child
    from .leftovers import Clearings
    from .loop import Loop, Timer

_RUNNER_PATIENCE = 15.0
_IGNORED_AGAIN = 0.2


class Stopping:
    __slots__ = ("_loop", "_child", "_clearing", "_clearings", "_timer", "_done", "_told")

    def __init__(self, loop: Loop, clearings: Clearings, child: Child) -> None:
        self._loop = loop
        self._clearings = clearings
        self._child = child
        self._timer: Timer | None = None
        self._done: list[Callable[[dict[str, Any]], None]] = []
        self._told = Told()
        self._clearing: Clearing | None = None

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
        signal_group(self._child, number)
        if self._child.record.mode != "pipe":
            self._hang_up_if_ignored(number)
        # A stopped process would sit out its grace without ever seeing the signal.
        signal_group(self._child, signal.SIGCONT)
        self._timer = self._loop.at(stop.kill_clock, self._force)

    def _tell(self, number: int, *, everybody: bool = False) -> None:
        """Who is about to be signalled: its process group, or everybody in its control group."""
        record, pid = self._child.record, self._child.held.pid
        try:
            if record.cgroups:
                found = living(_cgroup.members(record.cgroups))
            else:
                found = self._clearings.process_group(pid)
        except OSError:
            return  # no descriptor to look with; the signal needs none
        for each in sorted(found, key=lambda each: each.pid != pid):
            if each.group == pid or (everybody and record.cgroups):
                self._told.add(each, number)

    def _hang_up_if_ignored(self, number: int) -> None:
        """A shell at its prompt ignores SIGTERM; it ends, and its jobs, when it is hung up on."""
        if self._child.note is not None or self._child.stopping is not self:
            return
        if any(_kernel.ignores(pid, number) for pid in self._at_terminal()):
            signal_group(self._child, signal.SIGHUP)
        else:  # perhaps it was just not at its prompt
            self._loop.after(_IGNORED_AGAIN, lambda: self._hang_up_if_ignored(number))

    def _at_terminal(self) -> list[int]:
        """Who got the signal there: the process, or what a runner runs, which is below an init."""
        record = self._child.record
        if record.runner is None:
            return [self._child.held.pid]
        from .._container import Container

        container = Container.of_record(record)
        pid = None if container is None else container.pid
        return [] if pid is None else [pid, *_kernel.children(pid)]

    def hasten(self, kill_clock: float) -> None:
        """A later, more impatient stop moves the force forward, never back."""
        stop = self._child.record.stop
        if stop is None or kill_clock >= stop.kill_clock:
            return
        stop.kill_clock = kill_clock
        if self._clearing is not None:
            self._clearings.hasten(self._clearing, kill_clock)
        elif self._child.note is None:
            self._cancel()
            self._timer = self._loop.at(kill_clock, self._force)

    def _force(self) -> None:
        self._timer = None
        child = self._child
        if child.note is not None:
            return
        self._told.forced = True
        self._tell(signal.SIGKILL, everybody=True)
        if child.record.cgroups:
            _cgroup.kill(child.record.cgroups)
        signal_group(child, signal.SIGKILL)
        if child.record.runner is not None:
            self._timer = self._loop.after(_RUNNER_PATIENCE, self._give_up)

    def runner_begun(self) -> None:
        """Its runner was started again, and was told of the stop."""
        stop = self._child.record.stop
        assert stop is not None
        self._cancel()
        if stop.kill_clock > time.monotonic():
            self._timer = self._loop.at(stop.kill_clock, self._force)
        else:
            self._told.forced = True
            self._timer = self._loop.after(_RUNNER_PATIENCE, self._give_up)

    def _give_up(self) -> None:
        """Even by force its runner could not end what it runs: it is still at it."""
        self._timer = None
        found = _kernel.stat(self._child.held.pid)
        self._told.why = "it has not ended what it runs yet, and goes on trying"
        self._finish([] if found is None else [found])

    def process_ended(self) -> None:
        """The process is gone; see to what it left behind."""
        self._cancel()
        child, stop = self._child, self._child.record.stop
        assert stop is not None
        lefts = [Left(child.record, child.held.pid)]
        self._clearing = Clearing(lefts, stop.kill_clock, self._told, self._finish)
        self._clearings.begin(self._clearing)

    def _finish(self, left: list[_kernel.Stat]) -> None:
        done, self._done = self._done, []
        receipt = self._told.receipt(left, False)
        self._child.stopping = None
        for callback in done:
            callback(receipt)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def signal_group(child: Child, number: int) -> None:
    """Signal the process and its group, if the process is still the one we started."""
    if child.held.pidfd < 0:
        return  # between two runners
    if _kernel.send_group_signal(child.held.pidfd, number):
        return
    # Until it is reaped its pid, and so its group's id, cannot be anybody else's. A child of ours
    # is reaped by us; another's is checked through its pidfd in the moment before.
    if not child.mine and not _kernel.send_signal(child.held.pidfd, 0):
        return
    try:
        os.killpg(child.held.pid, number)
    except (ProcessLookupError, PermissionError):
        # Not a group leader (any more), or one that changed its user: try the process alone.
        try:
            _kernel.send_signal(child.held.pidfd, number)
        except PermissionError:
            return
