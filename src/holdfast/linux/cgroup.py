"""Control groups: where a process and all it ever starts can be kept together, limited and ended.

The keeper makes its groups below its own one, so that nothing leaves the limits of whoever
started it: ``<own>/holdfast-<number of the home>/<name>``. Version 2 is one tree, in which a write
to `cgroup.kill` ends everybody at once. Version 1 is a tree for each controller; there `freezer`
holds them still while they are killed. Both may be there at the same time, and controllers that
limit in either.

The keeper itself is in a group of its own (`keeper`): in version 2 a group with groups in it that
are limited must have no processes beside them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time

from . import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

V2 = ""
LIMITS = ("memory", "pids", "cpu")
_KEEPER = "keeper"
_OURS = re.compile(r"/holdfast-[0-9a-f]{8}(/.*)?$", re.DOTALL)
_FREEZE_PATIENCE = 0.05
_LEAVE_PATIENCE = 0.5


def own_groups() -> dict[str, str]:
    """The directory of our own group in each tree, by controller; version 2 has no name."""
    own: dict[str, str] = {}
    for line in _read("/proc/self/cgroup").splitlines():
        _, listed, path = line.split(":", 2)
        for name in listed.split(","):
            own[name] = path
    found: dict[str, str] = {}
    for line in _read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, mount = before.split(" ")[3:5]
        names = [V2] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            path = own.get(name, "/..")
            if name in found or "/.." in path:
                continue
            inner = path[len(root) :] if root != "/" and path.startswith(root) else path
            where = os.path.normpath(f"{mount}/{inner if root == '/' or inner != path else ''}")
            if os.path.isdir(where):
                found[name] = where
    return found


class Trees:
    """The control groups the machine lets us make, for the processes of one home."""

    __slots__ = ("_name", "_own", "controllers")

    def __init__(self, home: str) -> None:
        import zlib

        self._name = f"holdfast-{zlib.crc32(os.fsencode(home)):08x}"
        # A keeper is in nobody's group: not in a process's of ours.
        self._own = {name: _OURS.sub("", path) for name, path in own_groups().items()}
        self.controllers: dict[str, str] = {}  # which tree limits what

    def _base(self, tree: str) -> str:
        return f"{self._own[tree]}/{self._name}"

    def enter(self) -> None:
        """Leave the group we were started in, if it is a process's, for one of our own."""
        for tree, path in own_groups().items():
            home = self._own.get(tree)
            if home is None:
                continue
            try:
                if tree == V2 and _words(f"{home}/cgroup.controllers") & set(LIMITS):
                    home = f"{self._base(V2)}/{_KEEPER}"
                    os.makedirs(home, exist_ok=True)
                if home != path:
                    _write(f"{home}/cgroup.procs", "0")
            except OSError:
                continue  # then we stay, and less is possible

    def usable(self, tree: str) -> bool:
        """True if groups can be made and joined in a tree."""
        own = self._own.get(tree)
        if own is None or not os.access(f"{own}/cgroup.procs", os.W_OK):
            return False
        try:
            os.mkdir(self._base(tree), 0o755)
        except FileExistsError:
            pass
        except OSError:
            return False
        return os.access(f"{self._base(tree)}/cgroup.procs", os.W_OK)

    def kind(self) -> str:
        """The strongest containment that can be had."""
        if self.usable(V2):
            return "cgroup"
        return "cgroup-v1" if self.usable("freezer") else "tree"

    def limiting(self, controller: str) -> str | None:
        """The tree in which a controller can be used, or None."""
        if controller in self.controllers:
            return self.controllers[controller]
        tree = None
        if controller in self._own:
            tree = controller if self.usable(controller) else None
        elif self.usable(V2) and self._enable(controller):
            tree = V2
        if tree is not None:
            self.controllers[controller] = tree
        return tree

    def could_limit(self, controller: str) -> bool:
        """Foretell `limiting` without changing anything; others in our group can spoil it."""
        if controller in self._own:
            return self.usable(controller)
        own = self._own.get(V2, "/nonexistent")
        given = controller in _words(f"{own}/cgroup.controllers")
        return given and os.access(f"{own}/cgroup.subtree_control", os.W_OK)

    def _enable(self, controller: str) -> bool:
        for path in (self._own[V2], self._base(V2)):
            if controller in _words(f"{path}/cgroup.subtree_control"):
                continue
            try:
                _write(f"{path}/cgroup.subtree_control", f"+{controller}")
            except OSError:
                return False  # not given to us, or somebody else is in our group
        return True

    def path(self, tree: str, name: str) -> str:
        return f"{self._base(tree)}/{name}"

    def make(self, path: str) -> None:
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            pass
        except FileNotFoundError:  # the one above was removed
            os.makedirs(path, 0o755)

    def clean_up(self, kept: Iterable[str] = (), *, going: bool = False) -> None:
        """Remove groups that nobody is in: those of the past and, when we go, our own."""
        kept = set(kept)
        for tree in self._own:
            base = self._base(tree)
            for name in _directories(base):
                if name != _KEEPER and f"{base}/{name}" not in kept:
                    _remove(f"{base}/{name}")
            if going:
                _remove(base)  # not where we are in it ourselves: then the last of us does

    def leave(self) -> None:
        """Remove the group that was made for the keeper, as the last who is in it."""
        own, base = self._own.get(V2), f"{self._own.get(V2)}/{self._name}"
        if own is None or not os.path.isdir(f"{base}/{_KEEPER}"):
            return
        alone = _directories(own) == [self._name]
        for path in (base, own) if alone else (base,):
            for name in LIMITS:  # with which nobody may be in the group itself
                with contextlib.suppress(OSError):
                    _write(f"{path}/cgroup.subtree_control", f"-{name}")
        with contextlib.suppress(OSError):
            _write(f"{own}/cgroup.procs", "0")
        until = time.monotonic() + _LEAVE_PATIENCE
        while not _remove(base) and time.monotonic() < until:
            time.sleep(0.005)  # until those that we started have noticed that we go


# -- the groups of one process, as its record names them -----------------------------------------


def members(paths: list[str]) -> list[int]:
    """The members of groups and of groups within, without dead ones that nobody has reaped."""
    found: dict[int, None] = {}
    for path in paths:
        for group in _within(path):
            for pid in _read(f"{group}/cgroup.procs").split():
                found[int(pid)] = None
    return [pid for pid in found if pid > 0]


def empty(paths: list[str]) -> bool:
    return not any(_populated(path) for path in paths)


def open_door(path: str) -> int:
    """Whoever writes 0 to it is in the group: at once in version 1, 2 takes its time."""
    tasks = f"{path}/tasks"
    door = tasks if os.path.exists(tasks) else f"{path}/cgroup.procs"
    return os.open(door, os.O_WRONLY | os.O_CLOEXEC)


def kill(paths: list[str]) -> None:
    """Send SIGKILL to everybody in them, whatever they fork meanwhile."""
    for path in paths:
        try:
            _write(f"{path}/cgroup.kill", "1")
        except FileNotFoundError:
            _kill_held(path)
        except OSError:
            continue  # it is gone


def _kill_held(path: str) -> None:
    """Without `cgroup.kill` they are held still, so that none is born while we go through them."""
    until = time.monotonic() + (_FREEZE_PATIENCE if _freeze(path, True) else 0)
    try:
        while not _is_frozen(path) and time.monotonic() < until:
            time.sleep(0.001)
        for pid in members([path]):
            try:
                pidfd = os.pidfd_open(pid)
            except OSError:
                continue
            if _is_in(pid, path):  # else it was somebody else's by then
                kernel.send_signal(pidfd, 9)
            os.close(pidfd)
    finally:
        for group in _within(path):  # also those that one of them froze
            _freeze(group, False)


def _is_in(pid: int, path: str) -> bool:
    return f"/{'/'.join(path.split('/')[-2:])}" in _read(f"/proc/{pid}/cgroup")


def _freeze(path: str, on: bool) -> bool:
    for name, words in (("cgroup.freeze", "01"), ("freezer.state", ("THAWED", "FROZEN"))):
        if os.path.exists(f"{path}/{name}"):
            with contextlib.suppress(OSError):
                _write(f"{path}/{name}", words[on])
                return True
    return False


def _is_frozen(path: str) -> bool:
    return "frozen 1" in _read(f"{path}/cgroup.events") or "FROZEN" in _read(
        f"{path}/freezer.state"
    )


def ran_out_of_memory(paths: list[str]) -> bool:
    """True if the kernel killed one of them because they had reached their limit."""
    for path in paths:
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(f"{path}/{name}").splitlines():
                word, _, count = line.partition(" ")
                if word == "oom_kill" and count.strip() != "0":
                    return True
    return False


def remove(paths: list[str]) -> bool:
    """True if nothing is left of them."""
    return not [path for path in paths if not _remove(path)]


def peak_memory(paths: list[str]) -> int | None:
    """The most that everybody in them had together, as the kernel counts it for limits."""
    for path in paths:
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            try:
                return int(_read_number(f"{path}/{name}"))
            except (OSError, ValueError):
                continue
    return None


def limit_memory(path: str, size: int) -> None:
    """The whole group ends when it has more; no way around it through swap."""
    if os.path.exists(f"{path}/memory.max"):
        with contextlib.suppress(OSError):
            _write(f"{path}/memory.swap.max", "0")
        with contextlib.suppress(OSError):
            _write(f"{path}/memory.oom.group", "1")
        _write(f"{path}/memory.max", str(size))
        return
    _write(f"{path}/memory.limit_in_bytes", str(size))
    with contextlib.suppress(OSError):  # where swap is not counted
        _write(f"{path}/memory.memsw.limit_in_bytes", str(size))


def limit_processes(path: str, count: int) -> None:
    _write(f"{path}/pids.max", str(count))


def limit_cpu(path: str, cpus: float) -> None:
    quota = max(1000, int(cpus * 100_000))
    if os.path.exists(f"{path}/cpu.max"):
        _write(f"{path}/cpu.max", f"{quota} 100000")
        return
    _write(f"{path}/cpu.cfs_period_us", "100000")
    _write(f"{path}/cpu.cfs_quota_us", str(quota))


def _within(path: str) -> Iterator[str]:
    yield path
    for name in _directories(path):
        yield from _within(f"{path}/{name}")


def _populated(path: str) -> bool:
    events = _read(f"{path}/cgroup.events")
    return "populated 1" in events if events else bool(members([path]))


def _remove(path: str) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        if _populated(path):
            return False
        inner = _directories(path)  # which whoever was in there made
        return bool(inner) and all(_remove(f"{path}/{name}") for name in inner) and _remove(path)
    return True


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _words(path: str) -> set[str]:
    return set(_read(path).split())


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise  # which says nothing of what is there
        return ""


def _read_number(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 64)
    finally:
        os.close(fd)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
