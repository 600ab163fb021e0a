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
    from collections.abc import Callable
    from typing import Any

KINDS = ("auto", "cgroup", "cgroup-v1", "tree")
_CONTROLLER = {"memory": "memory", "processes": "pids", "cpu": "cpu"}
# Before whoever has not asked for less the kernel ends what we keep, and never the keeper for it.
_PREFERRED = 300
_MOST_SPARES = 16


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
        plan = Plan(self, self._trees, record)
        plan.oom = (self._oom, self._oom_own, min(1000, self._oom_own + _PREFERRED))
        record.containment = self._at_most(wanted)
        unlimited = not any(limits.values())
        tree = {"cgroup": _cgroup.V2, "cgroup-v1": "freezer"}.get(record.containment)
        if tree is not None:
            spare = self._spares and unlimited and record.containment == self.kind
            plan.group(tree, self._spares.pop() if spare else self._new(tree))
        for name, limit in limits.items():
            if limit is None:
                continue
            by = self._by_group(plan, record, name, limit) or _by_process(plan, name, limit)
            if by is None:
                record.notes.append(f"{name} is not limited: that needs a control group here")
            else:
                record.limits[name] = {"limit": limit, "by": by}
        record.cgroups = plan.paths
        return plan

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
        if len(paths) == 1 and not record.limits and record.containment == self.kind:
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
        """The kernel would not have it there; then without."""
        say(f"{record.handle}: not in a control group: {error.strerror}")
        record.containment = self.kind = "tree"

    def clean_up(self, *, going: bool = False) -> None:
        self._trees.clean_up(going=going)


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
        for path in self._where.values():
            self._trees.make(path)

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
                    home = self._trees.home_tasks(tree)
                    after.callback(_hop, home)
                    _hop(f"{self._where[tree]}/tasks")
            group = -1
            if _cgroup.V2 in self._where:
                group = os.open(self._where[_cgroup.V2], os.O_RDONLY | os.O_DIRECTORY)
                after.callback(os.close, group)
            try:
                pid = begin(group, self.rlimits)
            except clone.Refused as error:
                self._owner.refused(self._record, error)
                pid = begin(-1, self.rlimits)
        try:
            self._set_limits()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
                os.waitpid(pid, 0)
            raise SpawnError(f"its limits could not be set: {error.strerror}") from None
        return pid

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


def _hop(tasks: str) -> None:
    """Only ourselves, a single thread: that the kernel does at once."""
    fd = os.open(tasks, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)
