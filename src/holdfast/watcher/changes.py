"""Which of many files have grown: one inotify for all of them.

A file that is renamed or removed is given up; whoever wants to know of its successor adds the path
again. (`holdfast.linux.inotify.Watch` follows names by itself, which takes more watches for each.)
"""

from __future__ import annotations

from ..linux import inotify

_GONE = (
    inotify.ATTRIB | inotify.MOVE_SELF | inotify.DELETE_SELF
)  # one that is unlinked has a new count of links


class Changes:
    """`fd` is readable when a file has changed; None where there is no inotify."""

    __slots__ = ("_paths", "_watches", "fd")

    def __init__(self) -> None:
        fd = inotify.make()
        self.fd: int | None = fd if fd >= 0 else None
        self._watches: dict[str, int] = {}
        self._paths: dict[int, str] = {}

    def add(self, path: str) -> bool:
        """Watch a file; False if that is not to be had, or there is none."""
        if path in self._watches:
            return True
        if self.fd is None:
            return False
        watch = inotify.add_watch(self.fd, path, inotify.MODIFY | _GONE)
        if watch < 0:
            return False
        self._watches[path] = watch
        self._paths[watch] = path
        return True

    def remove(self, path: str) -> None:
        watch = self._watches.pop(path, None)
        if watch is not None and self._paths.pop(watch, None) is not None and self.fd is not None:
            inotify.remove_watch(self.fd, watch)

    def take(self) -> set[str] | None:
        """The files that changed since the last time; None when that was too much to be told."""
        changed: set[str] = set()
        lost = False
        for watch, mask, _ in inotify.pending(self.fd):
            lost = lost or bool(mask & inotify.OVERFLOW)
            path = self._paths.get(watch)
            if path is not None:
                changed.add(path)
                if mask & (_GONE | inotify.IGNORED):
                    self.remove(path)
        return None if lost else changed
