"""How a process is contained and limited: the strongest that the machine allows.

``cgroup``: a control group of its own (version 2), which it is born in. ``cgroup-v1``: one of the
old kind. ``tree``: none can be made; then what it started is found by what every process inherits:
its process group, its session, its environment, and a mark among its limits (`_kernel.set_mark`)
that survives even an emptied environment.

DESIGN. What is made for a process is named in its record before it is made. The worker, which has
one thread, takes on what `posix_spawn` cannot give to a child (soft limits, CPUs, its place in the
trees of version 1, which is cheap to change for a single thread) for the moment of the call. If it
is killed then, the guard's next worker has none of it. A limit of memory is set when we are out of
the group again: until exec the child shares our memory, and who is killed for it may be we.

A group that is empty again is used for another process, since to remove one keeps the kernel busy
for a while; but not before the record on disk has forgotten it, so that no record ever names the
group of another process.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import random
import resource
import signal

from .. import _cgroup, _kernel
from .._errors import SpawnError
from .._model import Record
from . import clone
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

KINDS = ("auto", "cgroup", "cgroup-v1", "tree")
_CONTROLLER = {"memory": "memory", "processes": "pids", "cpu": "cpu"}
# Before whoever has not asked for less the kernel ends what we keep, and never the keeper for it.
_PREFERRED = 300
_MOST_SPARES = 16
_KEPT_DESCRIPTORS = 32
_FOR_GOOD = (errno.EPERM, errno.EACCES, errno.EROFS, errno.EOPNOTSUPP)
_MEMORY_NOTE = (
    "memory is limited for each of its processes by itself (rlimit): one that wants more is "
    "refused it, and ends as it sees fit"
)


class Containment:
    """What the machine allows, for the processes of one home."""

    __slots__ = ("_oom", "_oom_own", "_spares", "_trees", "kind")

    def __init__(self, home: str) -> None:
        self._trees = _cgroup.Trees(home)
        self.kind = self._trees.kind()
        self._spares: list[str] = []
        self._oom = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._oom_own = int(os.read(self._oom, 16))

    def plan(self, record: Record, wanted: str, limits: dict[str, Any]) -> Plan:
        """Decide, and say so in the record."""
        _check_descriptors()
        plan = Plan(self, self._trees, record)
        plan.oom = (self._oom, self._oom_own, min(1000, self._oom_own + _PREFERRED))
        record.containment = self._at_most(wanted)
        unlimited = not any(limits.values())
        tree = {"cgroup": _cgroup.V2, "cgroup-v1": "freezer"}.get(record.containment)
        if tree is not None:
            spare = self._spares and unlimited and record.containment == self.kind
            plan.group(tree, self._spares[-1] if spare else self._new(tree))
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
        """For the next runner of a process.

        In a new group: Linux kills at once what is born in one that everybody was killed in.
        """
        plan = Plan(self, self._trees, record)
        plan.oom = (self._oom, self._oom_own, min(1000, self._oom_own + _PREFERRED))
        tree = {"cgroup": _cgroup.V2, "cgroup-v1": "freezer"}.get(record.containment)
        if tree is not None:
            plan.group(tree, self._new(tree))
        left = [path for path in record.cgroups if not _cgroup.remove([path])]
        record.cgroups = left + plan.paths
        return plan

    def use(self, path: str) -> None:
        """A group is made, or taken from the spare ones."""
        if path in self._spares:
            self._spares.remove(path)
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
        return "cgroup" if tree == _cgroup.V2 else "cgroup-v1"

    def prepare(self) -> None:
        """Have a group ready for the next one."""
        if not self._spares and self.kind != "tree":
            tree = _cgroup.V2 if self.kind == "cgroup" else "freezer"
            path = self._new(tree)
            with contextlib.suppress(OSError):
                self._trees.make(path)
                self._spares.append(path)

    def _new(self, tree: str) -> str:
        """Not named after a process: the next one that it is used for has another handle."""
        return self._trees.path(tree, os.urandom(6).hex())

    def let_go(self, record: Record) -> list[str]:
        """A process has ended: forget its groups, if nobody is in them; for `give_back`."""
        paths = record.cgroups
        if not paths or not _cgroup.empty(paths):
            return []
        record.cgroups = []
        plain = len(paths) == 1 and not record.limits and record.containment == self.kind
        if plain and record.runner is None and _cgroup.as_new(paths[0]):
            return paths
        _cgroup.remove(paths)
        return []

    def give_back(self, paths: list[str]) -> None:
        """The record on disk does not name them any more."""
        if len(self._spares) < _MOST_SPARES:
            self._spares += paths
        else:
            _cgroup.remove(paths)

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
    """What is made and taken on for the start of one process."""

    __slots__ = (
        "_handle",
        "_owner",
        "_record",
        "_trees",
        "_where",
        "affinity",
        "ignored",
        "limits",
        "oom",
        "rlimits",
    )

    def __init__(self, owner: Containment, trees: _cgroup.Trees, record: Record) -> None:
        self._owner = owner
        self._trees = trees
        self._record = record
        self._handle = record.handle
        self._where: dict[str, str] = {}
        self.limits: list[tuple[str, str, Any]] = []
        self.rlimits: list[tuple[int, int]] = []
        self.affinity: set[int] | None = None
        self.oom = (-1, 0, 0)
        self.ignored: tuple[int, ...] = ()  # signals that it does not get before it asks for them

    def group(self, tree: str, spare: str = "") -> str:
        if tree not in self._where:
            self._where[tree] = spare or self._trees.path(tree, self._handle)
        return self._where[tree]

    @property
    def paths(self) -> list[str]:
        return list(self._where.values())

    def make(self) -> None:
        for tree, path in list(self._where.items()):
            try:
                self._owner.use(path)
            except OSError as error:
                self._do_without(tree, error)

    def _do_without(self, tree: str, error: OSError) -> None:
        """It is not limited by that group, or it is not started."""
        if any(path == self._where[tree] for _, path, _ in self.limits):
            raise SpawnError(
                f"the control group that is to limit it cannot be used: {error.strerror}; "
                'containment = "tree" in the settings limits each process by itself'
            )
        _cgroup.remove([self._where.pop(tree)])
        self._record.cgroups = self.paths
        self._owner.refused(self._record, error)

    def give_up(self) -> None:
        _cgroup.remove(self.paths)
        self._where.clear()

    def for_pane(self) -> dict[str, Any]:
        """What the program in a pane of tmux does for itself, before it becomes the command."""
        self.make()
        self._set_limits()
        return {
            "groups": self.paths,
            "rlimits": [*self.rlimits, (_kernel.RLIMIT_MARK, _kernel.mark_number(self._handle))],
            "oom": self.oom[2],
            "affinity": None if self.affinity is None else sorted(self.affinity),
            "ignored": list(self.ignored),
        }

    def start(self, begin: Callable[[int, list[tuple[int, int]]], int]) -> int:
        """Call `begin` with the group that the child is to be born in, or -1, and its limits."""
        with contextlib.ExitStack() as after:
            self._take_on(after)
            for tree in self._where:
                if tree != _cgroup.V2:
                    self._hop(tree, after)
            pid = self._begin(begin, after)
        for number, value in self.rlimits:
            with contextlib.suppress(OSError):  # it may have ended, or be another user's by now
                resource.prlimit(pid, number, (value, value))
        try:
            self._set_limits()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            raise SpawnError(f"its limits could not be set: {error.strerror}") from None
        return pid

    def _begin(
        self, begin: Callable[[int, list[tuple[int, int]]], int], after: contextlib.ExitStack
    ) -> int:
        if _cgroup.V2 in self._where:
            group = os.open(self._where[_cgroup.V2], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return begin(group, self.rlimits)
            except clone.Refused:
                pass  # an old kernel, or a filter of system calls: then the long way
            finally:
                os.close(group)
            try:
                self._hop(_cgroup.V2, after)
            except OSError as error:
                self._do_without(_cgroup.V2, error)
        return begin(-1, self.rlimits)

    def _hop(self, tree: str, after: contextlib.ExitStack) -> None:
        """Be in its group until it is started, and then back."""
        after.callback(_cgroup.join, self._trees.here(tree))
        _cgroup.join(self._where[tree])

    def _take_on(self, after: contextlib.ExitStack) -> None:
        marks = [(_kernel.RLIMIT_MARK, _kernel.mark_number(self._handle))]
        for number, value in marks + self.rlimits:
            soft, hard = resource.getrlimit(number)
            if hard == resource.RLIM_INFINITY or value <= hard:
                resource.setrlimit(number, (value, hard))
                after.callback(resource.setrlimit, number, (soft, hard))
        fd, own, theirs = self.oom
        if theirs > own:
            os.pwrite(fd, b"%d" % theirs, 0)
            after.callback(os.pwrite, fd, b"%d" % own, 0)
        for number in self.ignored:
            signal.signal(number, signal.SIG_IGN)
            after.callback(signal.signal, number, signal.SIG_DFL)
        if self.affinity is not None:
            after.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
            os.sched_setaffinity(0, self.affinity)

    def _set_limits(self) -> None:
        for name, path, limit in self.limits:
            {
                "memory": _cgroup.limit_memory,
                "processes": _cgroup.limit_processes,
                "cpu": _cgroup.limit_cpu,
            }[name](path, limit)


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
        plan.affinity = set(random.sample(allowed, count))
        return "affinity"
    if name == "files":
        number, value = resource.RLIMIT_NOFILE, int(limit)
    elif name == "memory":
        number, value = resource.RLIMIT_DATA, int(limit)
    else:
        if os.geteuid() == 0:
            return None  # the kernel does not count root's
        # It counts all that a user runs, so what there is now comes on top.
        number, value = resource.RLIMIT_NPROC, int(limit) + _kernel.threads_of(os.getuid())
    _, hard = resource.getrlimit(number)
    plan.rlimits.append((number, value if hard == resource.RLIM_INFINITY else min(value, hard)))
    return "rlimit"
