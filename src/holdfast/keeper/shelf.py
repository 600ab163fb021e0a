"""Finished processes, until they are forgotten: by count, oldest first, or by time after a look."""

from __future__ import annotations

import os
import shutil
import time

from .. import _cgroup, _kernel
from .._errors import NotFound, StoreError
from .._home import Home
from .._model import Record
from .._store import Store
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop, Timer

_SESSION_KEPT = 7 * 86400.0
_SHRED_STEP = 32 << 20
_AGAIN = 60.0


class Shelf:
    __slots__ = ("_forget", "_groups", "_handles", "_home", "_loop", "_store", "_timer")

    def __init__(
        self, home: Home, store: Store, loop: Loop, forget: Callable[[str, str], None]
    ) -> None:
        self._home = home
        self._store = store
        self._loop = loop
        self._forget = forget  # (session, handle): delete every trace but the session's events
        # session -> handles and when they ended, oldest first
        self._handles: dict[str, dict[str, tuple[bool, float, str]]] = {}
        self._groups: dict[str, list[str]] = {}  # of those that left something behind
        self._timer: Timer | None = None

    def put(self, record: Record) -> None:
        handles = self._handles.setdefault(record.session, {})
        handles.pop(record.handle, None)
        end = _end(record)
        late = not handles or next(reversed(handles.values())) <= end
        handles[record.handle] = end
        if not late:  # found by a worker that starts, which finds them in any order
            ordered = sorted(handles.items(), key=lambda each: each[1])
            self._handles[record.session] = dict(ordered)
        if record.cgroups:
            self._groups[record.handle] = record.cgroups

    def _is_over(self, handle: str) -> bool:
        """What left something behind is kept as long as that runs: by its handle it is stopped."""
        return handle not in self._groups or _cgroup.empty(self._groups[handle])

    def take(self, session: str, handle: str) -> None:
        _cgroup.remove(self._groups.pop(handle, []))
        handles = self._handles.get(session)
        if handles is not None:
            handles.pop(handle, None)
            if not handles:
                del self._handles[session]

    def ended(self, session: str | None) -> list[Record]:
        """What is known of the finished processes of a session, or of all, oldest first."""
        found = []
        sessions = list(self._handles) if session is None else [session]
        for handle in [handle for name in sessions for handle in self._handles.get(name, ())]:
            try:
                found.append(self._store.load(handle))
            except (NotFound, StoreError):
                continue
        return found

    def finished(self, record: Record) -> None:
        """A process has just ended: make room for it, and see that it is forgotten in time."""
        self.put(record)
        handles = self._handles[record.session]
        over = (handle for handle in list(handles) if self._is_over(handle))
        while len(handles) > record.max_finished and (oldest := next(over, None)):
            self._forget_one(record.session, oldest)
        self._look_in(record.retention)

    def _forget_one(self, session: str, handle: str) -> None:
        """Forget a process; what cannot be deleted is left to the next keeper, which tries too."""
        try:
            self._forget(session, handle)
        except OSError as error:
            say(f"{handle}: not all of it can be deleted: {error}")

    def _look_in(self, seconds: float) -> None:
        clock = time.monotonic() + max(1.0, seconds)
        if self._timer is not None:
            if self._timer.clock <= clock:
                return
            self._timer.cancel()
        self._timer = self._loop.at(clock, self.prune)

    def prune(self) -> None:
        """Forget what nobody has looked at for its retention, and come back for the next."""
        self._timer = None
        soonest: float | None = None
        for session, handles in list(self._handles.items()):
            for handle in list(handles):
                try:
                    left = self._store.expires_in(self._store.load(handle))
                except NotFound:
                    left = 0.0
                except StoreError:
                    continue
                if left <= 0 and self._is_over(handle):
                    self._forget_one(session, handle)
                elif left <= 0:
                    soonest = _AGAIN if soonest is None else min(soonest, _AGAIN)
                elif soonest is None or left < soonest:
                    soonest = left
        if soonest is not None:
            self._look_in(soonest)

    def prune_sessions(self, in_use: set[str]) -> None:
        """Drop sessions that hold no process and in which nothing has happened for a week."""
        for session in self._home.session_names():
            if session in in_use or session in self._handles:
                continue
            path = self._home.session(session)
            newest = max(_mtime(path), _mtime(self._home.outbox(session)))
            if time.time() - newest > _SESSION_KEPT:
                shutil.rmtree(path, ignore_errors=True)


def _end(record: Record) -> tuple[bool, float, str]:
    """When a process ended, to be compared: the time of day may be set back, the clock never is."""
    now = record.boot_id == _kernel.boot_id()
    return now, record.started_clock + (record.duration_seconds or 0.0), record.ended_at or ""


def open_long_logs(home: Home, handle: str) -> list[int]:
    """Descriptors of logs so long that deleting them at once would keep others waiting."""
    found = []
    for stream in ("stdout", "stderr"):
        try:
            fd = os.open(home.log(handle, stream), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        if _on_disk(fd) > _SHRED_STEP:
            found.append(fd)
        else:
            os.close(fd)
    return found


def shred(loop: Loop, fd: int) -> None:
    """Give a deleted file's blocks back a piece at a time; the rest goes with the descriptor.

    Freeing a gigabyte takes a tenth of a second, in which nobody else would be answered.
    """
    if _on_disk(fd) <= _SHRED_STEP:
        os.close(fd)
        return
    os.ftruncate(fd, max(0, os.fstat(fd).st_size - _SHRED_STEP))
    loop.after(0.001, lambda: shred(loop, fd))


def _on_disk(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0
