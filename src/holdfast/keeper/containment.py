"""Containment and limits of a process: the strongest that the machine allows.

``cgroup``: a control group of its own (version 2), which it is born in. ``cgroup-v1``: one of the
old kind. ``tree``: none can be made; then what it started is found by what every process inherits:
its process group, its session, its environment, and a mark among its limits
(`linux.kernel.mark_number`) that survives even an emptied environment.

DESIGN. What is made for a process is named in its record before it is made, and never used for
another: a group remembers who ran out of memory in it, and on some kernels kills who is born in it
after a `cgroup.kill`. The child sets its own limits and joins its groups before exec (`clone`);
what it cannot (CPUs, ignored signals, its badness when memory is short), the worker, which has one
thread, takes on for the moment of the start. If it is killed then, the guard's next worker has none
of it. A limit of memory is set after exec: until then the child shares our memory.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import signal

from ..core.errors import SpawnError
from ..core.record import Record
from ..linux import cgroup, kernel
from . import clone
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Begin = Callable[[int, list[int], list[tuple[int, int, int]]], int]

_CONTROLLER = {"memory": "memory", "processes": "pids", "cpu": "cpu"}
# Before whoever has not asked for less the kernel ends what we keep, and never the keeper for it.
_PREFERRED = 300
_TREES = {"cgroup": cgroup.V2, "cgroup-v1": "freezer"}
_KEPT_DESCRIPTORS = 32
_FOR_GOOD = (errno.EPERM, errno.EACCES, errno.EROFS, errno.EOPNOTSUPP)
_MEMORY_NOTE = (
    "memory is limited for each of its processes by itself (rlimit): one that wants more is "
    "refused it, and ends as it sees fit"
)


class Containment:
    """The containment that the machine allows, for the processes of one home."""

    __slots__ = ("_spare", "_trees", "kind", "nofile", "oom", "oom_own")

    def __init__(self, home: str, nofile: int) -> None:
        self._trees = cgroup.Trees(home)
        self.kind = self._trees.kind()
        self._spare = ""
        self.nofile = nofile  # as many descriptors as those get who do not ask for another limit
        self.oom, self.oom_own = -1, 0
        with contextlib.suppress(OSError):  # where /proc is read-only
            self.oom = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self.oom_own = int(os.read(self.oom, 16))

    def plan(self, record: Record, wanted: str, limits: dict[str, Any]) -> Plan:
        """Decide, and say so in the record."""
        _check_descriptors()
        plan = Plan(self, self._trees, record)
        record.containment = self._at_most(wanted)
        tree = _TREES.get(record.containment)
        if tree is not None:
            ready = self._spare if record.containment == self.kind else ""
            plan.group(tree, ready or self._new(tree))
        for name, limit in limits.items():
            if limit is None:
                continue
            by = self._by_group(plan, record, name, limit) or _by_process(plan, name, limit)
            if by is None:
                record.notes.append(f"{name} is not limited: that needs a control group here")
            else:
                record.limits[name] = {"limit": limit, "by": by}
                if (name, by) == ("memory", "rlimit"):
                    record.notes.append(_MEMORY_NOTE)
        record.cgroups = plan.paths
        return plan

    def again(self, record: Record) -> Plan:
        """Plan for the next runner of a process."""
        plan = Plan(self, self._trees, record)
        tree = _TREES.get(record.containment)
        if tree is not None:
            plan.group(tree, self._new(tree))
        left = [path for path in record.cgroups if not cgroup.remove([path])]
        record.cgroups = left + plan.paths
        return plan

    def use(self, path: str) -> None:
        """A group is made, or was already."""
        if path == self._spare:
            self._spare = ""
        self._trees.make(path)

    def _at_most(self, wanted: str) -> str:
        if wanted == "cgroup-v1" and self._trees.usable("freezer"):
            return wanted
        return "tree" if wanted == "tree" else self.kind

    def _by_group(self, plan: Plan, record: Record, name: str, limit: Any) -> str | None:
        if record.containment == "tree" or name not in _CONTROLLER:
            return None
        tree = self._trees.limiting(_CONTROLLER[name])
        if tree is None:
            return None
        path = plan.group(tree)
        plan.limits.append((name, path, limit))
        return "cgroup" if tree == cgroup.V2 else "cgroup-v1"

    def prepare(self) -> None:
        """Have a group ready for the next one."""
        if not self._spare and self.kind != "tree":
            path = self._new(_TREES[self.kind])
            with contextlib.suppress(OSError):
                self._trees.make(path)
                self._spare = path

    def _new(self, tree: str) -> str:
        """Not named after a process: nobody knows yet which one it is for."""
        return self._trees.path(tree, os.urandom(6).hex())

    def refused(self, record: Record, error: OSError) -> None:
        """There is no group for it; then without, and if that will not change all others too."""
        say(f"{record.handle}: not in a control group: {error.strerror}")
        record.containment = "tree"
        if error.errno in _FOR_GOOD:
            self.kind = "tree"

    def clean_up(self, kept: Iterable[str] = (), *, going: bool = False) -> None:
        """Remove groups that nobody is in, but those that somebody may be on the way to."""
        self._trees.clean_up(kept, going=going)


class Plan:
    """The groups and limits made for the start of one process."""

    __slots__ = (
        "_owner",
        "_record",
        "_trees",
        "_where",
        "affinity",
        "ignored",
        "limits",
        "rlimits",
    )

    def __init__(self, owner: Containment, trees: cgroup.Trees, record: Record) -> None:
        self._owner = owner
        self._trees = trees
        self._record = record
        self._where: dict[str, str] = {}
        self.limits: list[tuple[str, str, Any]] = []
        self.rlimits: dict[int, tuple[int, int]] = {}
        self.affinity: set[int] | None = None
        self.ignored: tuple[int, ...] = ()  # signals that it does not get before it asks for them
        self.limit(kernel.RLIMIT_MARK, kernel.mark_number(record.handle))
        self.limit(resource.RLIMIT_NOFILE, owner.nofile)

    def limit(self, number: int, value: int, *, for_good: bool = False) -> None:
        """A limit that it has for itself, and if `for_good` cannot raise again."""
        _, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY and value > hard:
            value = hard
        self.rlimits[number] = (value, value if for_good else hard)

    def group(self, tree: str, path: str = "") -> str:
        if tree not in self._where:
            self._where[tree] = path or self._trees.path(tree, self._record.handle)
        return self._where[tree]

    @property
    def paths(self) -> list[str]:
        return list(self._where.values())

    def make(self) -> None:
        """Make its groups, with all limits that can be set before somebody is in there."""
        for tree, path in list(self._where.items()):
            try:
                self._owner.use(path)
            except OSError as error:
                self._do_without(tree, error)
        self._set_limits("processes", "cpu")  # it may fork at once

    def _do_without(self, tree: str, error: OSError) -> None:
        """Go on without a group, unless a limit depends on it: then nothing is started."""
        if any(path == self._where[tree] for _, path, _ in self.limits):
            raise SpawnError(
                f"the control group that is to limit it cannot be used: {error.strerror}; "
                'containment = "tree" in the settings limits each process by itself'
            )
        cgroup.remove([self._where.pop(tree)])
        self._record.cgroups = self.paths
        self._owner.refused(self._record, error)

    def give_up(self) -> None:
        cgroup.remove(self.paths)
        self._where.clear()

    def for_pane(self) -> dict[str, Any]:
        """The part that the program in a pane of tmux does itself before it becomes the command."""
        self.make()
        self._set_limits("memory")
        return {
            "groups": self.paths,
            "rlimits": [(number, *values) for number, values in self.rlimits.items()],
            "oom": self._preferred,
            "affinity": None if self.affinity is None else sorted(self.affinity),
            "ignored": list(self.ignored),
        }

    @property
    def _preferred(self) -> int:
        return min(1000, self._owner.oom_own + _PREFERRED)

    def start(self, begin: Begin) -> int:
        """Call `begin`: with its group of version 2 or -1, the lists of others, and its limits."""
        with contextlib.ExitStack() as after:
            self._take_on(after)
            pid = self._begin(begin)
        try:
            self._set_limits("memory")
        except SpawnError:
            cgroup.kill(self.paths)
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            raise
        return pid

    def _begin(self, begin: Begin) -> int:
        """Have it born in its group, or go there, or be without."""
        for born in (True, False):
            try:
                return self._begin_in(begin, born)
            except clone.Refused as error:
                refused = error
        self._do_without(next(iter(self._where)), refused)
        return self._begin_in(begin, False)

    def _begin_in(self, begin: Begin, born: bool) -> int:
        group, joins = -1, []
        with contextlib.ExitStack() as after:
            for tree, path in self._where.items():
                if tree == cgroup.V2 and born:
                    fd = group = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                else:
                    fd = cgroup.open_door(path)
                    joins.append(fd)
                after.callback(os.close, fd)
            rlimits = [(number, *values) for number, values in self.rlimits.items()]
            return begin(group, joins, rlimits)

    def _take_on(self, after: contextlib.ExitStack) -> None:
        owner = self._owner
        if owner.oom >= 0:
            os.pwrite(owner.oom, b"%d" % self._preferred, 0)
            after.callback(os.pwrite, owner.oom, b"%d" % owner.oom_own, 0)
        for number in self.ignored:
            signal.signal(number, signal.SIG_IGN)
            after.callback(signal.signal, number, signal.SIG_DFL)
        if self.affinity is not None:
            after.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, self.affinity)

    def _set_limits(self, *names: str) -> None:
        for name, path, limit in self.limits:
            if name in names:
                try:
                    _SET[name](path, limit)
                except OSError as error:
                    why = f"its limit of {name} cannot be set: {error.strerror}"
                    raise SpawnError(f"{why}; is it more than the keeper itself has?") from None


_SET: dict[str, Callable[[str, Any], None]] = {
    "memory": cgroup.limit_memory,
    "processes": cgroup.limit_processes,
    "cpu": cgroup.limit_cpu,
}


def _check_descriptors() -> None:
    """The last ones are for ending what runs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest that is free
    os.close(free)
    if free > soft - _KEPT_DESCRIPTORS:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _by_process(plan: Plan, name: str, limit: Any) -> str | None:
    """Limits that each process has for itself and hands down."""
    if name == "cpu":
        allowed = sorted(os.sched_getaffinity(0))
        count = min(len(allowed), max(1, math.ceil(limit)))
        first = os.urandom(1)[0]  # so that not all of them share the first ones
        plan.affinity = {allowed[(first + n) % len(allowed)] for n in range(count)}
        return "affinity"
    if name == "files":
        number, value = resource.RLIMIT_NOFILE, int(limit)
    elif name == "memory":
        number, value = resource.RLIMIT_DATA, int(limit)
    else:
        if os.geteuid() == 0:
            return None  # the kernel does not count root's
        # It counts all that a user runs, so what there is now comes on top.
        number, value = resource.RLIMIT_NPROC, int(limit) + kernel.threads_of(os.getuid())
    plan.limit(number, value, for_good=True)
    return "rlimit"
