"""Stopping a process with everything it started.

The polite signal goes to the process group; what is still there when the grace is over is killed.
That the stop was begun is in the record before the first signal goes out, with the time at which
force is due, so a worker that takes over half-way goes on from there.

After the process itself has ended, whatever it left behind (its group, its session, and anything
that carries its handle in the environment) gets the rest of the grace, then SIGKILL, through
pidfds that were checked against the start time. Only then is a stop done; its receipt names what
would not go.
"""

from __future__ import annotations

import os
import signal
import time

from .. import _kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .child import Child
    from .loop import Loop, Timer

_LOOK_EVERY = 0.01
_FORCED_PATIENCE = 2.0
_IGNORED_AGAIN = 0.2


class Stopping:
    __slots__ = ("_loop", "_child", "_timer", "_done", "_polite", "signalled", "forced")

    def __init__(self, loop: Loop, child: Child) -> None:
        self._loop = loop
        self._child = child
        self._timer: Timer | None = None
        self._done: list[Callable[[dict[str, Any]], None]] = []
        self._polite: set[int] = set()
        self.signalled = 0
        self.forced = False

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
        self.signalled += 1
        signal_group(self._child, number)
        if self._child.record.mode != "pipe":
            self._hang_up_if_ignored(number)
        # A stopped process would sit out its grace without ever seeing the signal.
        signal_group(self._child, signal.SIGCONT)
        self._timer = self._loop.at(stop.kill_clock, self._force)

    def _hang_up_if_ignored(self, number: int) -> None:
        """A shell at its prompt ignores SIGTERM; it ends, and its jobs, when it is hung up on."""
        if self._child.note is not None or self._child.stopping is not self:
            return
        if _kernel.ignores(self._child.held.pid, number):
            signal_group(self._child, signal.SIGHUP)
        else:  # perhaps it was just not at its prompt
            self._loop.after(_IGNORED_AGAIN, lambda: self._hang_up_if_ignored(number))

    def hasten(self, kill_clock: float) -> None:
        """A later, more impatient stop moves the force forward, never back."""
        stop = self._child.record.stop
        if stop is None or kill_clock >= stop.kill_clock:
            return
        stop.kill_clock = kill_clock
        if self._child.note is None:
            self._cancel()
            self._timer = self._loop.at(kill_clock, self._force)

    def _force(self) -> None:
        self._timer = None
        if self._child.note is not None:
            return
        self.forced = True
        self.signalled += 1
        signal_group(self._child, signal.SIGKILL)

    def process_ended(self) -> None:
        """The process is gone; see to what it left behind."""
        self._cancel()
        self._look()

    def _look(self) -> None:
        self._timer = None
        stop = self._child.record.stop
        left = leftovers(self._child)
        assert stop is not None
        if not left:
            self._finish([])
            return
        overdue = time.monotonic() - stop.kill_clock
        if overdue > _FORCED_PATIENCE:
            self._finish([found.pid for found in left])
            return
        for found in left:
            if overdue >= 0 or self.forced:
                self.forced = True
                self._signal(found, signal.SIGKILL)
            elif found.pid not in self._polite:
                # Those in the group had the signal already; those that left it had not.
                self._polite.add(found.pid)
                if found.group != self._child.held.pid:
                    self._signal(found, signal.SIGTERM)
        if self.forced:
            stop.kill_clock = min(stop.kill_clock, time.monotonic())
        self._timer = self._loop.after(_LOOK_EVERY, self._look)

    def _signal(self, found: _kernel.Stat, number: int) -> None:
        pidfd = _kernel.open_process(found.pid, found.start_time)
        if pidfd is not None:
            self.signalled += _kernel.send_signal(pidfd, number)
            os.close(pidfd)

    def _finish(self, survivors: list[int]) -> None:
        done, self._done = self._done, []
        receipt = {
            "signalled": self.signalled,
            "forced": self.forced,
            "survivors": survivors,
            "already_ended": False,
        }
        self._child.stopping = None
        for callback in done:
            callback(receipt)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def signal_group(child: Child, number: int) -> None:
    """Signal the process and its group, if the process is still the one we started."""
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


def leftovers(child: Child) -> list[_kernel.Stat]:
    """Living processes that an ended process left behind."""
    pid, handle = child.held.pid, child.record.handle
    born = child.record.start_time or 0
    ours = {os.getpid(), os.getppid(), 1}
    found = []
    for process in _kernel.all_processes():
        if process.state in "ZX" or process.pid in ours or process.start_time < born:
            continue
        related = pid in (process.group, process.session)
        mark = _kernel.mark_of(process.pid)
        # Same group number but another handle's mark: the number was used again.
        if mark == handle or (related and mark is None):
            found.append(process)
    return found
