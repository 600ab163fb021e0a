"""Which of many files have grown: one inotify for all of them.

A file that is renamed or removed is given up; whoever wants to know of its successor adds the path
again. (`holdfast._watch.Watch` follows names by itself, which takes more watches for each.)
"""

from __future__ import annotations

import os
import sys

from .._watch import ATTRIB, DELETE_SELF, IGNORED, MODIFY, MOVE_SELF, OVERFLOW, pending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_GONE = ATTRIB | MOVE_SELF | DELETE_SELF  # one that is unlinked has a new count of links


class Changes:
    """`fd` is readable when a file has changed; None where there is no inotify."""

    __slots__ = ("_libc", "_paths", "_watches", "fd")

    def __init__(self) -> None:
        self.fd: int | None = None
        self._libc: Any = None
        self._watches: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        if sys.platform == "linux":
            try:
                import ctypes

                self._libc = ctypes.CDLL(None)
                fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            except (ImportError, OSError, AttributeError):
                return
            self.fd = fd if fd >= 0 else None

    def add(self, path: str) -> bool:
        """Watch a file; False if that is not to be had, or there is none."""
        if path in self._watches:
            return True
        if self.fd is None:
            return False
        mask = MODIFY | _GONE
        watch = self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
        if watch < 0:
            return False
        self._watches[path] = watch
        self._paths[watch] = path
        return True

    def remove(self, path: str) -> None:
        watch = self._watches.pop(path, None)
        if watch is not None and self._paths.pop(watch, None) is not None:
            self._libc.inotify_rm_watch(self.fd, watch)

    def take(self) -> set[str] | None:
        """The files that changed since the last time; None when that was too much to be told."""
        changed: set[str] = set()
        lost = False
        for watch, mask in pending(self.fd):
            lost = lost or bool(mask & OVERFLOW)
            path = self._paths.get(watch)
            if path is not None:
                changed.add(path)
                if mask & (_GONE | IGNORED):
                    self.remove(path)
        return None if lost else changed
