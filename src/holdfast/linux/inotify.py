"""Waking up when files change: inotify where it is to be had, else nothing and the caller polls.

A path that does not exist is watched for through the nearest directory above it that does, and one
that is renamed or replaced is found again under its name. Both happen in `drain`, so the order that
misses nothing is: drain, look at the files, wait until `fileno` is readable, drain again.
"""

from __future__ import annotations

import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

MODIFY = 0x2
ATTRIB = 0x4
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
OVERFLOW = 0x4000
IGNORED = 0x8000
ONLY_DIRECTORY = 0x01000000 | 0x02000000  # and no link to one
_MASK_ADD = 0x20000000

_ITSELF = MODIFY | ATTRIB | MOVE_SELF | DELETE_SELF
_WITHIN = CREATE | MOVED_TO
_ABOVE = _WITHIN | MOVE_SELF | DELETE_SELF
# After these a name may mean another file. An unlinked file that somebody holds open says so by
# its attributes alone: its link count changed.
_SHIFTED = ATTRIB | MOVE_SELF | DELETE_SELF | IGNORED

_EVENT = struct.Struct("iIII")
_READ = 64 << 10
_SPARES = 4


def make() -> int:
    """A descriptor to be told of changes to files; -1 where there are none, or no more of them."""
    if sys.platform != "linux":
        return -1
    try:
        from .kernel import libc

        fd: int = libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    except (ImportError, OSError, AttributeError):
        return -1  # a Python without ctypes, a C library without inotify
    return fd


def add_watch(fd: int, path: str, mask: int) -> int:
    """The number under which changes of that kind are told; -1 if they are not."""
    from .kernel import libc

    number: int = libc().inotify_add_watch(fd, os.fsencode(path), mask)
    return number


def remove_watch(fd: int, number: int) -> None:
    from .kernel import libc

    libc().inotify_rm_watch(fd, number)


def pending(fd: int | None) -> Iterator[tuple[int, int, bytes]]:
    """Read an inotify descriptor until it is silent: watches, masks, and names in directories."""
    while fd is not None:
        try:
            data = os.read(fd, _READ)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            yield number, mask, data[at : at + length].rstrip(b"\0")
            at += length


class Spares:
    """Descriptors of watches that are over, for the next ones.

    The kernel takes up to 20 ms to close one that was used, and does nothing else for its caller
    meanwhile.
    """

    __slots__ = ("_fds", "_most", "_pid")

    def __init__(self) -> None:
        self._fds: list[int] = []
        self._most = _SPARES
        self._pid = os.getpid()

    def take(self) -> int | None:
        if os.getpid() != self._pid:  # forked: those are our parent's, who hears of its files there
            self._fds, self._pid = [], os.getpid()
        try:
            return self._fds.pop()
        except IndexError:
            return None

    def give(self, fd: int) -> bool:
        """Keep a descriptor that watches nothing any more; False if there are enough of them."""
        if os.getpid() != self._pid or len(self._fds) >= self._most:
            return False
        self._fds.append(fd)
        return True

    def close(self) -> None:
        self._most = 0
        while (fd := self.take()) is not None:
            os.close(fd)


class Watch:
    """Changes to `paths`, files or directories.

    `fileno` is readable when something may have changed; it is None where the kernel has no inotify
    or allows no more of it, and the caller looks every 50 ms instead.
    """

    __slots__ = ("_above", "_fd", "_found", "_paths", "_spares")

    def __init__(self, paths: list[str], spares: Spares | None = None) -> None:
        self._spares = spares
        self._paths = list(dict.fromkeys(os.path.abspath(path) for path in paths))
        self._fd: int | None = None
        self._found: dict[str, int] = {}  # path: the watch on it
        self._above: dict[str, int] = {}  # path that is not there: the watch on a directory above
        fd = self._spares.take() if self._spares is not None else None
        if fd is None:
            fd = make()
        if fd >= 0:
            self._fd = fd
            self._place(self._paths)

    def fileno(self) -> int | None:
        return self._fd

    def drain(self) -> set[str]:
        """Take all that is pending, and follow names to the files they mean now.

        Returns the paths of which something was heard.
        """
        changed: set[str] = set()
        # Letting go of a watch makes an event too, which would wake the caller for nothing.
        for _ in range(3):
            touched, shifted = self._take()
            everything = -1 in touched
            for path in self._paths:
                if everything or touched & {self._found.get(path), self._above.get(path)}:
                    changed.add(path)
            if not shifted:
                break
            self._place(
                [
                    path
                    for path in self._paths
                    if everything
                    or self._found.get(path) in shifted
                    or self._above.get(path) in shifted
                ]
            )
        return changed

    def _take(self) -> tuple[set[int], set[int]]:
        """The watches that had events, and those whose names may mean other files now.

        -1 stands for events that were lost.
        """
        touched: set[int] = set()
        shifted: set[int] = set()
        for number, mask, _ in pending(self._fd):
            touched.add(number)
            if mask & (_SHIFTED | _WITHIN | OVERFLOW):
                shifted.add(number)  # -1 for an overflow
        return touched, shifted

    def _place(self, paths: list[str]) -> None:
        """Watch each path, or where it would appear; give up when inotify allows no more."""
        before = {*self._found.values(), *self._above.values()}
        for path in paths:
            if not self._place_one(path):
                self._spares = None  # it may watch more than we know of
                self.close()
                return
        assert self._fd is not None
        for watch in before.difference(self._found.values(), self._above.values()):
            remove_watch(self._fd, watch)

    def _place_one(self, path: str) -> bool:
        self._found.pop(path, None)
        self._above.pop(path, None)
        while True:
            watch = self._watch(path, _ITSELF | _WITHIN)
            if watch is not None:
                if watch >= 0:
                    self._found[path] = watch
                return watch >= 0
            above, missing = os.path.dirname(path), path
            while (watch := self._watch(above, _ABOVE)) is None and above != missing:
                above, missing = os.path.dirname(above), above
            if watch is None or watch < 0:
                return False
            self._above[path] = watch
            # It may have come before the directory was watched, and then no event will tell.
            if not os.path.exists(missing):
                return True

    def _watch(self, path: str, mask: int) -> int | None:
        """The watch on a path, None if there is no such path, -1 if it cannot be had."""
        import ctypes
        from errno import ENOENT, ENOTDIR

        # One file has one watch, whose mask may serve several paths: add to it.
        assert self._fd is not None
        watch = add_watch(self._fd, path, mask | _MASK_ADD)
        if watch < 0 and ctypes.get_errno() in (ENOENT, ENOTDIR):
            return None
        return watch

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None and self._spares is not None:
            for watch in {*self._found.values(), *self._above.values()}:
                remove_watch(fd, watch)
            fd = None if self._spares.give(fd) else fd
        self._found.clear()
        self._above.clear()
        if fd is not None:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        how = "polled" if self._fd is None else f"fd={self._fd}"
        return f"<Watch {how} {', '.join(self._paths)}>"
