"""Ending what processes left behind that have ended, or are stopped.

Whoever is in the control group of one, in its process group or session, or carries its mark in the
environment or among the limits, has what is left of the grace, then gets SIGKILL, through a pidfd
that was checked against the start time. This is looked for again until nothing is found. One look
at all processes of the machine serves everything that is being cleared at the time.

Without a control group they are stopped (SIGSTOP) before they are killed, until a look finds nobody
who runs: what is at its limit of processes could else fork as fast as it is killed. Whoever forks
and exits all the time is somewhere else before a look at the whole machine has come to it. But each
time it is an orphan, and so a child of ours: these are looked at again and again, and stopped at
once, before anything else is asked of them.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import time

from ..core.record import Record
from ..linux import cgroup, kernel
from .receipt import Receipt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop, Timer

    Found = list[tuple["Origin", kernel.Stat]]

_LOOK_FIRST, _LOOK_EVERY, _LOOK_POLITELY, _LOOK_AGAIN = 0.001, 0.01, 0.15, 0.1
_TOGETHER = 0.005
_FORCED_PATIENCE = 2.0
_HOLD_ROUNDS = 10
_CHASE, _STILL = 0.03, 3  # seconds that others wait for a chase; rounds in which nobody moved
_QUIET_LOOKS = 3


class Origin:
    """A process that may have left others behind, and how they are known to be its."""

    __slots__ = ("born", "groups", "handle", "number", "pid")

    def __init__(self, record: Record, pid: int) -> None:
        self.handle = record.handle
        self.number = kernel.mark_number(record.handle)
        self.pid = pid  # of its process group and session, or 0 if that may be somebody else's now
        self.born = record.start_time or 0
        self.groups = record.cgroups

    def notice_another(self) -> None:
        """Forget its pid once it is another's, which it can be when nobody is left in its group."""
        if self.pid and self.born:
            found = kernel.stat(self.pid)
            if found is not None and found.start_time != self.born:
                self.pid = 0


class Sweep:
    """The processes that are ended with one receipt."""

    __slots__ = (
        "done",
        "due",
        "every",
        "forced_at",
        "groups",
        "kill_clock",
        "origins",
        "polite",
        "quiet",
        "told",
    )

    def __init__(
        self,
        origins: list[Origin],
        kill_clock: float,
        told: Receipt,
        done: Callable[[list[kernel.Stat]], None],
    ) -> None:
        self.origins = origins
        self.groups = [path for origin in origins for path in origin.groups]
        self.kill_clock = kill_clock
        self.polite: set[int] = set()
        self.told = told
        self.done = done
        self.due = 0.0
        self.forced_at = math.inf
        self.every = _LOOK_FIRST
        self.quiet = 0

    def must_go(self, now: float) -> bool:
        return self.told.forced or now >= self.kill_clock

    def ask(self, found: list[kernel.Stat]) -> None:
        groups = {origin.pid for origin in self.origins if origin.pid}
        for each in found:
            # Those in the group had the signal already; those that left it had not.
            if each.pid not in self.polite and each.group not in groups:
                self.signal(each, signal.SIGTERM)
            self.polite.add(each.pid)

    def signal(self, found: kernel.Stat, number: int, *, tell: bool = True) -> None:
        pidfd = kernel.open_process(found.pid, found.start_time)
        if pidfd is not None:
            if kernel.send_signal(pidfd, number) and tell:
                self.told.add(found, number)
            os.close(pidfd)


class Sweeps:
    """The sweeps that are going on."""

    __slots__ = ("_all", "_foreign", "_loop", "_members", "_missed", "_timer")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._all: list[Sweep] = []
        self._timer: Timer | None = None
        self._foreign: dict[int, int] = {}  # the marks of other users' processes
        self._members: dict[int, list[kernel.Stat]] | None = None
        self._missed: set[Origin] = set()  # of whom somebody was there, and gone in that moment

    def begin(self, sweep: Sweep) -> None:
        self._all.append(sweep)
        self._wake_at(0.0)  # with all others of this turn of the loop

    def hasten(self, sweep: Sweep, kill_clock: float) -> None:
        sweep.kill_clock = min(sweep.kill_clock, kill_clock)
        sweep.due = min(sweep.due, kill_clock)
        self._wake_at(sweep.due)

    def process_group(self, number: int) -> list[kernel.Stat]:
        """The members of a process group, as of this turn of the loop."""
        if self._members is None:
            self._members = {}
            self._loop.after(0.0, self._forget_members)
            for found in kernel.all_processes():
                if found.state not in "ZX":
                    self._members.setdefault(found.group, []).append(found)
        return self._members.get(number, [])

    def _forget_members(self) -> None:
        self._members = None

    def _wake_at(self, clock: float) -> None:
        if self._timer is not None:
            if self._timer.clock <= clock:
                return
            self._timer.cancel()
        self._timer = self._loop.at(clock, self._look)

    def _look(self) -> None:
        self._timer = None
        now = time.monotonic()
        due = [each for each in self._all if each.due <= now + _TOGETHER]
        over: dict[Sweep, list[kernel.Stat]] = {}
        try:
            found = self._find(due)
            over = {each: found[each] for each in due if self._is_over(each, found[each], now)}
            self._all = [each for each in self._all if each not in over]
            self._end({each: found[each] for each in due if each not in over}, now)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            for each in due:
                each.due = now + _LOOK_AGAIN
        if self._all:
            self._wake_at(min(each.due for each in self._all))
        else:
            self._foreign.clear()
        for each, left in over.items():
            each.done(left)

    def _find(self, due: list[Sweep]) -> dict[Sweep, list[kernel.Stat]]:
        found: dict[Sweep, list[kernel.Stat]] = {each: [] for each in due}
        looks: tuple[dict[Origin, Sweep], dict[Origin, Sweep]] = ({}, {})
        self._missed.clear()
        for each in due:
            if each.told.forced and not cgroup.empty(each.groups):
                found[each] = living(cgroup.members(each.groups))  # enough, as long as they die
            else:
                # One that forks and exits all the time may be missed. It is our child by then.
                looks[each.quiet > 0].update(dict.fromkeys(each.origins, each))
        for orphans, origins in enumerate(looks):
            for origin, process in self._leftovers(list(origins), bool(orphans)):
                found[origins[origin]].append(process)
        return found

    def _leftovers(self, origins: list[Origin], orphans: bool = False) -> Found:
        if not origins:
            return []
        return leftovers(origins, orphans=orphans, foreign=self._foreign, missed=self._missed)

    def _is_over(self, each: Sweep, found: list[kernel.Stat], now: float) -> bool:
        """True if that was the last look; else it is set when the next one is due."""
        if found or not self._missed.isdisjoint(each.origins) or not cgroup.empty(each.groups):
            each.quiet = 0
            over = now - each.forced_at > _FORCED_PATIENCE
        else:
            each.quiet += 1
            over = each.quiet >= _QUIET_LOOKS or all(origin.groups for origin in each.origins)
        each.due = now + each.every
        longest = _LOOK_EVERY
        if not each.quiet and not each.must_go(now):
            each.due = min(each.due, each.kill_clock)
            longest = _LOOK_POLITELY
        each.every = min(2 * each.every, longest)
        return over

    def _end(self, found: dict[Sweep, list[kernel.Stat]], now: float) -> None:
        forced = {}
        for each, processes in found.items():
            if each.quiet:
                continue
            if not each.must_go(now):
                each.ask(processes)
            else:
                each.forced_at = min(each.forced_at, now)
                each.told.forced = True
                forced[each] = self._kill_groups(each, processes)
        missed = self._missed
        self._hold_and_kill(
            {
                each: outside
                for each, outside in forced.items()
                if outside or not missed.isdisjoint(each.origins)
            }
        )

    def _kill_groups(self, each: Sweep, found: list[kernel.Stat]) -> list[kernel.Stat]:
        """Kill who is in its control groups; those are left that are not."""
        inside = set(cgroup.members(each.groups))
        for process in found:
            if process.pid in inside:
                each.told.add(process, signal.SIGKILL)
        cgroup.kill(each.groups)
        return [process for process in found if process.pid not in inside]

    def _hold_and_kill(self, forced: dict[Sweep, list[kernel.Stat]]) -> None:
        owners = {origin: each for each in forced for origin in each.origins}
        found = [(each, process) for each, processes in forced.items() for process in processes]
        held: set[tuple[int, int]] = set()
        orphans: set[int] = set()
        for _ in range(_HOLD_ROUNDS if owners else 0):
            new = [entry for entry in found if (entry[1].pid, entry[1].start_time) not in held]
            for each, process in new:
                held.add((process.pid, process.start_time))
                each.signal(process, signal.SIGSTOP, tell=False)
            if not _hold_orphans({origin.number for origin in owners}, orphans) and not new:
                break
            found = [(owners[origin], process) for origin, process in self._leftovers(list(owners))]
        for each, process in found:
            each.signal(process, signal.SIGKILL)


def _hold_orphans(numbers: set[int], known: set[int]) -> bool:
    """Stop those who carry one of these marks and came to us as orphans; True if any ran.

    Who is `known` was seen before; nobody is reaped meanwhile, so its pid is nobody else's.
    """
    until = time.monotonic() + _CHASE
    held, still = False, 0
    while still < _STILL and time.monotonic() < until:
        still += 1
        orphans = kernel.children() + kernel.children(os.getppid())
        for pid in reversed(orphans):  # the youngest first, before they are gone
            if pid in known:
                continue
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                known.add(pid)
                if kernel.marked_number(pid) in numbers:
                    kernel.send_signal(pidfd, signal.SIGSTOP)
                    if living([pid]):
                        held, still = True, 0
            finally:
                os.close(pidfd)
    return held


def living(pids: list[int]) -> list[kernel.Stat]:
    found = (kernel.stat(pid) for pid in pids)
    return [process for process in found if process is not None and process.state not in "ZX"]


def leftovers(
    origins: list[Origin],
    *,
    orphans: bool = False,
    foreign: dict[int, int] | None = None,
    missed: set[Origin] | None = None,
) -> Found:
    """Living processes that ended processes left behind; or those that came to us as orphans.

    Who was there and was gone in the next moment is `missed`: there may be another one of it.
    """
    for origin in origins:
        origin.notice_another()
    numbers = {origin.number: origin for origin in origins}
    handles = {origin.handle: origin for origin in origins}
    # Of what has a group, or ended long ago, only those marks tell that cannot be washed off.
    pids = {origin.pid: origin for origin in origins if origin.pid and not origin.groups}
    born = min(origin.born for origin in origins)
    inside = {pid: origin for origin in origins for pid in cgroup.members(origin.groups)}
    ours = {os.getpid(), os.getppid(), 1}
    found: Found = []
    if orphans:
        pids_now = kernel.children() + kernel.children(os.getppid())
    else:
        pids_now = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for pid in sorted(pids_now, reverse=True):  # the newest first, before they are gone
        if pid in ours:
            continue
        number = kernel.marked_number(pid, foreign)
        whose = inside.get(pid) or numbers.get(number)
        if whose is None and (number or not pids):
            continue  # another process's
        process = kernel.stat(pid)
        if process is None and whose is not None and missed is not None:
            missed.add(whose)
        if process is None or process.state in "ZX":
            continue
        if whose is None and process.start_time >= born:
            mark = kernel.mark_of(pid)
            whose = handles.get(mark or "")
            if mark is None:  # with another handle's, the number of its group was used again
                whose = pids.get(process.group) or pids.get(process.session)
        if whose is not None:
            found.append((whose, process))
    return found
