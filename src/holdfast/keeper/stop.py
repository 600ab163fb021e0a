"""Stopping a process with everything it started.

The polite signal goes to the process group; what is still there when the grace is over is killed:
all of its control group at once, or the process group where there is none. That the stop was begun
is in the record before the first signal goes out, with the time at which force is due, so a worker
that takes over half-way goes on from there.

After the process itself has ended, whatever it left behind gets the rest of the grace, then
SIGKILL, through pidfds that were checked against the start time: whoever is in its control group,
in its process group or session, or carries its mark in the environment or among the limits. This
is looked for again until nothing is found. Only then is a stop done; its receipt names what would
not go, and why.

Without a control group they are stopped (SIGSTOP) before they are killed, until a look finds nobody
who runs: what is at its limit of processes could else fork as fast as it is killed.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from .. import _cgroup, _kernel
from .._model import Record, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .child import Child
    from .loop import Loop, Timer

_LOOK_FIRST, _LOOK_EVERY, _LOOK_AGAIN = 0.001, 0.01, 0.1
_FORCED_PATIENCE = 2.0
_RUNNER_PATIENCE = 15.0
_IGNORED_AGAIN = 0.2
_HOLD_ROUNDS = 10
_QUIET_LOOKS = 3
_MOST_TOLD = 100


class Told:
    """What was done to whom, for the receipt."""

    __slots__ = ("_done", "_seen", "forced", "signalled", "why")

    def __init__(self) -> None:
        self._done: dict[int, dict[str, Any]] = {}
        self._seen: set[tuple[int, int]] = set()
        self.signalled = 0
        self.forced = False
        self.why = ""  # somebody is left, where that is not seen by looking

    def add(self, found: _kernel.Stat, number: int) -> None:
        if (found.pid, number) in self._seen:
            return  # still dying
        self._seen.add((found.pid, number))
        self.signalled += 1
        entry = {"pid": found.pid, "name": found.name, "signal": signal_name(number)}
        if found.pid in self._done or len(self._done) < _MOST_TOLD:
            self._done[found.pid] = entry

    def receipt(self, left: list[_kernel.Stat], already_ended: bool) -> dict[str, Any]:
        for found in left:
            entry = self._done.setdefault(found.pid, {"pid": found.pid, "name": found.name})
            entry["survived"] = self.why or _why(found)
        return {
            "signalled": self.signalled,
            "forced": self.forced,
            "survivors": [found.pid for found in left],
            "already_ended": already_ended,
            "processes": list(self._done.values()),
        }


def _why(found: _kernel.Stat) -> str:
    try:
        uid = os.stat(f"/proc/{found.pid}").st_uid
    except OSError:
        uid = os.geteuid()
    if os.geteuid() not in (0, uid):
        return f"it belongs to user {uid}, whom we may not signal"
    if found.state == "D":
        return "it is inside the kernel (state D) and ends when that lets it go"
    return "it did not end in time"


class Left:
    """What an ended process may have left behind, and how that is known."""

    __slots__ = ("born", "groups", "handle", "number", "pid")

    def __init__(self, record: Record, pid: int) -> None:
        self.handle = record.handle
        self.number = _kernel.mark_number(record.handle)
        self.pid = pid  # of its process group and session, or 0 if that may be somebody else's now
        self.born = record.start_time or 0
        self.groups = record.cgroups

    def notice_another(self) -> None:
        """Its pid is free for others when nobody is left in its group and session."""
        if self.pid and self.born:
            found = _kernel.stat(self.pid)
            if found is not None and found.start_time != self.born:
                self.pid = 0


class Clearing:
    """Ends what processes left behind."""

    __slots__ = (
        "_done",
        "_every",
        "_groups",
        "_kill_clock",
        "_lefts",
        "_loop",
        "_polite",
        "_quiet",
        "told",
    )

    def __init__(
        self,
        loop: Loop,
        lefts: list[Left],
        kill_clock: float,
        told: Told,
        done: Callable[[list[_kernel.Stat]], None],
    ) -> None:
        self._loop = loop
        self._lefts = lefts
        self._groups = [path for left in lefts for path in left.groups]
        self._kill_clock = kill_clock
        self._polite: set[int] = set()
        self._done = done
        self._every = _LOOK_FIRST
        self._quiet = 0
        self.told = told

    def hasten(self, kill_clock: float) -> None:
        self._kill_clock = min(self._kill_clock, kill_clock)

    def look(self) -> None:
        try:
            self._look()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            self._loop.after(_LOOK_AGAIN, self.look)

    def _look(self) -> None:
        if self.told.forced and not _cgroup.empty(self._groups):
            found = _living(_cgroup.members(self._groups))  # enough, as long as they die
        else:
            found = leftovers(self._lefts, orphans=self._quiet > 0)
        now = time.monotonic()
        overdue = now - self._kill_clock
        if not found and _cgroup.empty(self._groups):
            # One that forks and exits all the time may have been missed. It is our child by then.
            self._quiet += 1
            if self._quiet >= _QUIET_LOOKS or all(left.groups for left in self._lefts):
                self._done([])
                return
        elif overdue > _FORCED_PATIENCE:
            self._done(found)
            return
        else:
            self._quiet = 0
            if overdue >= 0 or self.told.forced:
                self._kill_clock = min(self._kill_clock, now)
                self._force(found)
            else:
                self._ask(found)
        self._loop.after(self._every, self.look)
        self._every = min(2 * self._every, _LOOK_EVERY)

    def _ask(self, found: list[_kernel.Stat]) -> None:
        groups = {left.pid for left in self._lefts if left.pid}
        for each in found:
            # Those in the group had the signal already; those that left it had not.
            if each.pid not in self._polite and each.group not in groups:
                self._signal(each, signal.SIGTERM)
            self._polite.add(each.pid)

    def _force(self, found: list[_kernel.Stat]) -> None:
        self.told.forced = True
        self._polite.update(each.pid for each in found)
        if self._groups:
            inside = set(_cgroup.members(self._groups))
            for each in found:
                if each.pid in inside:
                    self.told.add(each, signal.SIGKILL)
            _cgroup.kill(self._groups)
            found = [each for each in found if each.pid not in inside]
        held: set[tuple[int, int]] = set()
        for _ in range(_HOLD_ROUNDS):
            new = [each for each in found if (each.pid, each.start_time) not in held]
            if not new:
                break
            for each in new:
                held.add((each.pid, each.start_time))
                self._signal(each, signal.SIGSTOP, tell=False)
            found = leftovers(self._lefts)
        for each in found:
            self._signal(each, signal.SIGKILL)

    def _signal(self, found: _kernel.Stat, number: int, *, tell: bool = True) -> None:
        pidfd = _kernel.open_process(found.pid, found.start_time)
        if pidfd is not None:
            if _kernel.send_signal(pidfd, number) and tell:
                self.told.add(found, number)
            os.close(pidfd)


class Stopping:
    __slots__ = ("_loop", "_child", "_clearing", "_timer", "_done", "_told")

    def __init__(self, loop: Loop, child: Child) -> None:
        self._loop = loop
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
                found = _living(_cgroup.members(record.cgroups))
            else:
                found = leftovers([Left(record, pid)])
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
            self._clearing.hasten(kill_clock)
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
        self._clearing = Clearing(self._loop, lefts, stop.kill_clock, self._told, self._finish)
        self._clearing.look()

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


def _living(pids: list[int]) -> list[_kernel.Stat]:
    found = (_kernel.stat(pid) for pid in pids)
    return [process for process in found if process is not None and process.state not in "ZX"]


def leftovers(lefts: list[Left], *, orphans: bool = False) -> list[_kernel.Stat]:
    """Living processes that ended processes left behind; or those that came to us as orphans."""
    for left in lefts:
        left.notice_another()
    numbers = {left.number: left for left in lefts}
    handles = {left.handle for left in lefts}
    # Of what has a group, or ended long ago, only those marks tell that cannot be washed off.
    pids = {left.pid for left in lefts if left.pid and not left.groups}
    born = min(left.born for left in lefts)
    inside = set(_cgroup.members([path for left in lefts for path in left.groups]))
    ours = {os.getpid(), os.getppid(), 1}
    found = []
    if orphans:
        pids_now = _kernel.children() + _kernel.children(os.getppid())
    else:
        pids_now = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for pid in sorted(pids_now, reverse=True):  # the newest first, before they are gone
        if pid in ours:
            continue
        number = _kernel.marked_number(pid)
        if number and number not in numbers and pid not in inside:
            continue  # another process's
        if not number and pid not in inside and not pids:
            continue
        process = _kernel.stat(pid)
        if process is None or process.state in "ZX":
            continue
        if not number and pid not in inside:
            if process.start_time < born:
                continue
            mark = _kernel.mark_of(pid)
            # Same group number but another handle's mark: the number was used again.
            related = mark is None and not pids.isdisjoint((process.group, process.session))
            if mark not in handles and not related:
                continue
        found.append(process)
    return found
