"""Finished processes, until they are forgotten: by count, oldest first, or by time after a look.

Of each no more is known here than when it may be forgotten: there may be very many of them. They
are looked at when that time has come, a few in each turn of the loop.
"""

from __future__ import annotations

import os
import shutil
import time

from ..core.errors import NotFound, StoreError
from ..core.home import Home
from ..core.index import Ended, seconds_of
from ..core.record import Record
from ..core.store import Store
from ..linux import cgroup
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .loop import Loop, Timer

_SESSION_KEPT = 7 * 86400.0
_SHRED_STEP = 32 << 20
_AGAIN = 60.0
_AT_ONCE = 50  # forgotten or looked at before others have their turn


class _Kept:
    __slots__ = ("due", "ended", "handle", "retention", "session")

    def __init__(self, session: str, handle: str, ended: float, retention: float) -> None:
        self.session, self.handle = session, handle
        self.ended, self.retention = ended, retention
        self.due = ended + retention  # in wall seconds; later, if somebody has looked since


class Retention:
    __slots__ = ("_forget", "_groups", "_home", "_kept", "_loop", "_store", "_timer", "_unseen")

    def __init__(
        self, home: Home, store: Store, loop: Loop, forget: Callable[[str, str], None]
    ) -> None:
        self._home = home
        self._store = store
        self._loop = loop
        self._forget = forget  # (session, handle): delete every trace but the session's events
        self._kept: dict[str, dict[str, _Kept]] = {}  # session -> handle -> it, oldest first
        self._unseen: list[_Kept] = []  # nobody knows yet when they were last looked at
        self._groups: dict[str, list[str]] = {}  # of those that left something behind
        self._timer: Timer | None = None

    def take_up(self, settled: list[Ended], ended: list[Record]) -> None:
        """Take up those that there are when a worker starts, each oldest first."""
        for each in settled:
            self._put(_Kept(each.session, each.handle, each.at, each.retention))
        for record in ended:
            self.put(record)
        for session in {record.session for record in ended}:
            by_end = sorted(self._kept[session].values(), key=lambda each: each.ended)
            self._kept[session] = {each.handle: each for each in by_end}
        self._unseen = [each for kept in self._kept.values() for each in kept.values()]

    def put(self, record: Record) -> None:
        ended = seconds_of(record.ended_at)
        self._put(_Kept(record.session, record.handle, ended, record.retention))
        if record.cgroups:
            self._groups[record.handle] = record.cgroups

    def _put(self, kept: _Kept) -> None:
        self._kept.setdefault(kept.session, {})[kept.handle] = kept

    def has(self, session: str, handle: str) -> bool:
        return handle in self._kept.get(session, ())

    def _is_over(self, handle: str) -> bool:
        """True unless something it left behind runs: that is stopped by its handle."""
        return handle not in self._groups or cgroup.empty(self._groups[handle])

    def take(self, session: str, handle: str) -> None:
        cgroup.remove(self._groups.pop(handle, []))
        handles = self._kept.get(session)
        if handles is not None:
            handles.pop(handle, None)
            if not handles:
                del self._kept[session]

    def ended(self, session: str | None) -> list[Record]:
        """The finished processes of a session, or of all, oldest first."""
        found = []
        sessions = list(self._kept) if session is None else [session]
        for handle in [handle for name in sessions for handle in self._kept.get(name, ())]:
            try:
                found.append(self._store.load(handle))
            except (NotFound, StoreError):
                continue
        return found

    def finished(self, record: Record) -> None:
        """A process has just ended: make room for it, and see that it is forgotten in time."""
        self.put(record)
        self._make_room(record.session, record.max_finished)
        self._look_in(record.retention)

    def _make_room(self, session: str, most: int) -> None:
        kept = self._kept.get(session, {})
        over = (handle for handle in list(kept) if self._is_over(handle))
        for _ in range(_AT_ONCE):
            oldest = next(over, None) if len(kept) > most else None
            if oldest is None:
                return
            self._forget_one(session, oldest)
        self._loop.after(0.001, lambda: self._make_room(session, most))

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = time.time()
        due = self._unseen or [each for each in self._all() if each.due <= now]
        for each in due[:_AT_ONCE]:
            self._look_at(each, now)
        self._unseen = due[_AT_ONCE:]
        if self._unseen:
            self._timer = self._loop.after(0.001, self.prune)
        elif self._kept:
            self._look_in(min(each.due for each in self._all()) - now)

    def _all(self) -> Iterator[_Kept]:
        return (each for kept in self._kept.values() for each in kept.values())

    def _look_at(self, each: _Kept, now: float) -> None:
        if self._kept.get(each.session, {}).get(each.handle) is not each:
            return  # forgotten meanwhile
        looked = self._store.looked_at(each.handle)
        each.due = now if looked is None else looked + each.retention
        if each.due <= now:
            if self._is_over(each.handle):
                self._forget_one(each.session, each.handle)
            else:
                each.due = now + _AGAIN

    def prune_sessions(self, in_use: set[str]) -> None:
        """Drop sessions that hold no process and in which nothing has happened for a week."""
        for session in self._home.session_names():
            if session in in_use or session in self._kept:
                continue
            path = self._home.session(session)
            newest = max(_mtime(path), _mtime(self._home.outbox(session)))
            if time.time() - newest > _SESSION_KEPT:
                shutil.rmtree(path, ignore_errors=True)


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
