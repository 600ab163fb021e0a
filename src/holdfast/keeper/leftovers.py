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

from .. import _cgroup, _kernel
from .._model import Record, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .loop import Loop, Timer

    Found = list[tuple["Left", _kernel.Stat]]

_LOOK_FIRST, _LOOK_EVERY, _LOOK_POLITELY, _LOOK_AGAIN = 0.001, 0.01, 0.15, 0.1
_TOGETHER = 0.005
_FORCED_PATIENCE = 2.0
_HOLD_ROUNDS = 10
_CHASE, _STILL = 0.03, 3  # seconds that others wait for a chase; rounds in which nobody moved
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
    """What is to be ended with one receipt."""

    __slots__ = (
        "done",
        "due",
        "every",
        "forced_at",
        "groups",
        "kill_clock",
        "lefts",
        "polite",
        "quiet",
        "told",
    )

    def __init__(
        self,
        lefts: list[Left],
        kill_clock: float,
        told: Told,
        done: Callable[[list[_kernel.Stat]], None],
    ) -> None:
        self.lefts = lefts
        self.groups = [path for left in lefts for path in left.groups]
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

    def ask(self, found: list[_kernel.Stat]) -> None:
        groups = {left.pid for left in self.lefts if left.pid}
        for each in found:
            # Those in the group had the signal already; those that left it had not.
            if each.pid not in self.polite and each.group not in groups:
                self.signal(each, signal.SIGTERM)
            self.polite.add(each.pid)

    def signal(self, found: _kernel.Stat, number: int, *, tell: bool = True) -> None:
        pidfd = _kernel.open_process(found.pid, found.start_time)
        if pidfd is not None:
            if _kernel.send_signal(pidfd, number) and tell:
                self.told.add(found, number)
            os.close(pidfd)


class Clearings:
    """All that is being cleared."""

    __slots__ = ("_all", "_foreign", "_loop", "_members", "_missed", "_timer")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._all: list[Clearing] = []
        self._timer: Timer | None = None
        self._foreign: dict[int, int] = {}  # the marks of other users' processes
        self._members: dict[int, list[_kernel.Stat]] | None = None
        self._missed: set[Left] = set()  # of whom somebody was there, and gone in that moment

    def begin(self, clearing: Clearing) -> None:
        self._all.append(clearing)
        self._wake_at(0.0)  # with all others of this turn of the loop

    def hasten(self, clearing: Clearing, kill_clock: float) -> None:
        clearing.kill_clock = min(clearing.kill_clock, kill_clock)
        clearing.due = min(clearing.due, kill_clock)
        self._wake_at(clearing.due)

    def process_group(self, number: int) -> list[_kernel.Stat]:
        """Who is in a process group, as of this turn of the loop."""
        if self._members is None:
            self._members = {}
            self._loop.after(0.0, self._forget_members)
            for found in _kernel.all_processes():
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
        over: dict[Clearing, list[_kernel.Stat]] = {}
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

    def _find(self, due: list[Clearing]) -> dict[Clearing, list[_kernel.Stat]]:
        found: dict[Clearing, list[_kernel.Stat]] = {each: [] for each in due}
        looks: tuple[dict[Left, Clearing], dict[Left, Clearing]] = ({}, {})
        self._missed.clear()
        for each in due:
            if each.told.forced and not _cgroup.empty(each.groups):
                found[each] = living(_cgroup.members(each.groups))  # enough, as long as they die
            else:
                # One that forks and exits all the time may be missed. It is our child by then.
                looks[each.quiet > 0].update(dict.fromkeys(each.lefts, each))
        for orphans, lefts in enumerate(looks):
            for left, process in self._leftovers(list(lefts), bool(orphans)):
                found[lefts[left]].append(process)
        return found

    def _leftovers(self, lefts: list[Left], orphans: bool = False) -> Found:
        if not lefts:
            return []
        return leftovers(lefts, orphans=orphans, foreign=self._foreign, missed=self._missed)

    def _is_over(self, each: Clearing, found: list[_kernel.Stat], now: float) -> bool:
        """Whether that was the last look; else when the next one is due."""
        if found or not self._missed.isdisjoint(each.lefts) or not _cgroup.empty(each.groups):
            each.quiet = 0
            over = now - each.forced_at > _FORCED_PATIENCE
        else:
            each.quiet += 1
            over = each.quiet >= _QUIET_LOOKS or all(left.groups for left in each.lefts)
        each.due = now + each.every
        longest = _LOOK_EVERY
        if not each.quiet and not each.must_go(now):
            each.due = min(each.due, each.kill_clock)
            longest = _LOOK_POLITELY
        each.every = min(2 * each.every, longest)
        return over

    def _end(self, found: dict[Clearing, list[_kernel.Stat]], now: float) -> None:
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
                if outside or not missed.isdisjoint(each.lefts)
            }
        )

    def _kill_groups(self, each: Clearing, found: list[_kernel.Stat]) -> list[_kernel.Stat]:
        """Kill who is in its control groups; those are left that are not."""
        inside = set(_cgroup.members(each.groups))
        for process in found:
            if process.pid in inside:
                each.told.add(process, signal.SIGKILL)
        _cgroup.kill(each.groups)
        return [process for process in found if process.pid not in inside]

    def _hold_and_kill(self, forced: dict[Clearing, list[_kernel.Stat]]) -> None:
        owners = {left: each for each in forced for left in each.lefts}
        found = [(each, process) for each, processes in forced.items() for process in processes]
        held: set[tuple[int, int]] = set()
        orphans: set[int] = set()
        for _ in range(_HOLD_ROUNDS if owners else 0):
            new = [entry for entry in found if (entry[1].pid, entry[1].start_time) not in held]
            for each, process in new:
                held.add((process.pid, process.start_time))
                each.signal(process, signal.SIGSTOP, tell=False)
            if not _hold_orphans({left.number for left in owners}, orphans) and not new:
                break
            found = [(owners[left], process) for left, process in self._leftovers(list(owners))]
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
        orphans = _kernel.children() + _kernel.children(os.getppid())
        for pid in reversed(orphans):  # the youngest first, before they are gone
            if pid in known:
                continue
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                known.add(pid)
                if _kernel.marked_number(pid) in numbers:
                    _kernel.send_signal(pidfd, signal.SIGSTOP)
                    if living([pid]):
                        held, still = True, 0
            finally:
                os.close(pidfd)
    return held


def living(pids: list[int]) -> list[_kernel.Stat]:
    found = (_kernel.stat(pid) for pid in pids)
    return [process for process in found if process is not None and process.state not in "ZX"]


def leftovers(
    lefts: list[Left],
    *,
    orphans: bool = False,
    foreign: dict[int, int] | None = None,
    missed: set[Left] | None = None,
) -> Found:
    """Living processes that ended processes left behind; or those that came to us as orphans.

    Who was there and was gone in the next moment is `missed`: there may be another one of it.
    """
    for left in lefts:
        left.notice_another()
    numbers = {left.number: left for left in lefts}
    handles = {left.handle: left for left in lefts}
    # Of what has a group, or ended long ago, only those marks tell that cannot be washed off.
    pids = {left.pid: left for left in lefts if left.pid and not left.groups}
    born = min(left.born for left in lefts)
    inside = {pid: left for left in lefts for pid in _cgroup.members(left.groups)}
    ours = {os.getpid(), os.getppid(), 1}
    found: Found = []
    if orphans:
        pids_now = _kernel.children() + _kernel.children(os.getppid())
    else:
        pids_now = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for pid in sorted(pids_now, reverse=True):  # the newest first, before they are gone
        if pid in ours:
            continue
        number = _kernel.marked_number(pid, foreign)
        whose = inside.get(pid) or numbers.get(number)
        if whose is None and (number or not pids):
            continue  # another process's
        process = _kernel.stat(pid)
        if process is None and whose is not None and missed is not None:
            missed.add(whose)
        if process is None or process.state in "ZX":
            continue
        if whose is None and process.start_time >= born:
            mark = _kernel.mark_of(pid)
            whose = handles.get(mark or "")
            if mark is None:  # with another handle's, the number of its group was used again
                whose = pids.get(process.group) or pids.get(process.session)
        if whose is not None:
            found.append((whose, process))
    return found
