"""Which records there are, told by names alone: a list opens only the records that it shows.

DESIGN. Every record has an entry, an empty file that the keeper makes:

    active/<handle>.<tag>                          it runs, or something is left to be done for it
    ended/<session>/<end>,<retention>,<handle>     it has ended and was told of; it waits to be
                                                   forgotten (both in seconds; the session as in
                                                   ``sessions/``)

An entry is made before its record and goes after it; in between it is renamed from the one to the
other. So a reader that looks into ``active`` first and into ``ended`` after that meets every record
in one of them at least. What it meets may be gone, or ended in ``active``, or another session's of
the same tag: entries only say where to look, and the record says what is so.

A keeper killed at any step leaves an entry without a record, or an ended record in ``active``. The
next worker compares names with names, mends what differs, and opens no record that is in ``ended``.

``keeper.lock`` says whether there is an index that can be relied on. A keeper that finds none, or
one that a keeper without it or another boot of the machine has passed over, makes it first. Where
it cannot be kept (a full disk, a directory that was deleted) the lock says that there is none, and
everybody looks at all records until the next worker.
"""

from __future__ import annotations

import binascii
import errno
import json
import os
import stat

from .home import (
    Home,
    is_handle,
    is_private_directory,
    make_private_directory,
    open_private,
    text_of_file_name,
)
from .machine import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .record import Record

_ANY = "-"  # the tag of what cannot be read: every session is told of it
_LOCK_BYTES = 4096


class Ended:
    """The facts in an entry of a settled process."""

    __slots__ = ("at", "handle", "retention", "session")

    def __init__(self, session: str, handle: str, at: float, retention: float) -> None:
        self.session, self.handle = session, handle
        self.at, self.retention = at, retention

    @classmethod
    def parse(cls, session: str, name: str) -> Ended | None:
        try:
            at, retention, handle = name.split(",")
            return cls(session, handle, float(at), float(retention)) if is_handle(handle) else None
        except ValueError:
            return None


def tag_of(session: str) -> str:
    return f"{binascii.crc32(session.encode('utf-8', 'surrogatepass')):08x}"


# -- readers -----------------------------------------------------------------------------------


def is_whole(home: Home) -> bool:
    """True where lists may go by the index: its keeper, dead or alive, says that it is complete."""
    try:
        lock = open_private(home.lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        said = _said(lock)
    finally:
        os.close(lock)
    return said.get("index") is True and _same_boot(said)


def handles(home: Home, session: str | None, *, ended: bool) -> list[str] | None:
    """The handles of a session, or of all; None where there is no index to go by."""
    if not (is_whole(home) and is_private_directory(home.active)):
        return None
    if ended and not is_private_directory(home.ended):
        return None
    tags = None if session is None else (tag_of(session), _ANY)
    found: dict[str, None] = {}
    try:
        for name in os.listdir(home.active):
            handle, _, tag = name.partition(".")
            if (tags is None or tag in tags) and is_handle(handle):
                found[handle] = None
        if ended:
            for each in [session] if session is not None else _sessions(home):
                for name in _listed(home.ended_of(each)):
                    entry = Ended.parse(each, name)
                    if entry is not None:
                        found[entry.handle] = None
            os.stat(home.ended)  # nothing ended there, or it is gone: those are not the same
    except OSError:
        return None
    return list(found)


def _sessions(home: Home) -> list[str]:
    texts = [text_of_file_name(name) for name in os.listdir(home.ended)]
    return [text for text in texts if text is not None]


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _said(lock: int) -> dict[str, Any]:
    try:
        said = json.loads(os.pread(lock, _LOCK_BYTES, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _same_boot(said: dict[str, Any]) -> bool:
    machine = said.get("machine")
    return isinstance(machine, list) and machine[:1] == [boot_id()]


# -- the lock ----------------------------------------------------------------------------------


def write_lock(lock: int, said: dict[str, Any]) -> None:
    """Say who keeps this home; that its index is complete stays said if it was, in this boot."""
    before = _said(lock)
    said["index"] = before.get("index") is True and _same_boot(before)
    if said["ready"] is None:
        said["ready"] = before.get("ready") is True
    _write(lock, said)


def _write(lock: int, said: dict[str, Any]) -> None:
    """Write in place, which needs no room; a reader of half of it goes by no index."""
    text = json.dumps(said).encode()
    before = os.fstat(lock).st_size
    os.pwrite(lock, text.ljust(before - 1) + b"\n", 0)


# -- the keeper --------------------------------------------------------------------------------


class Index:
    """The one writer of the index."""

    __slots__ = ("_failed", "_home", "_lock", "_paths", "unsure")

    def __init__(self, home: Home, lock: int) -> None:
        self._home = home
        self._lock = lock
        self._failed = False  # something could not be put into its place
        self._paths: dict[str, str] = {}
        self.unsure: list[str] = []  # records that have to be looked at

    def take_up(self, records: list[str]) -> list[Ended]:
        """Compare with the records there are: those that are settled, oldest first.

        All others are `unsure`: to be looked at, and then put into their place.
        """
        home, there = self._home, set(records)
        settled: list[Ended] = []
        self._paths.clear()
        try:
            for path in (home.active, home.ended):
                make_private_directory(path)
                _check(path)
            for name in os.listdir(home.active):
                handle = name.partition(".")[0]
                self._meet(handle, f"{home.active}/{name}", there)
            for session in _sessions(home):
                directory = home.ended_of(session)
                names = _listed(directory)
                if not names:
                    _remove_directory(directory)
                for name in names:
                    entry = Ended.parse(session, name)
                    handle = "" if entry is None else entry.handle
                    if self._meet(handle, f"{directory}/{name}", there) and entry is not None:
                        settled.append(entry)
        except OSError:
            settled = []  # then every record is looked at
            self._give_up()
        known = {entry.handle for entry in settled}
        self.unsure = [handle for handle in records if handle not in known]
        settled.sort(key=lambda entry: entry.at)
        return settled

    def _meet(self, handle: str, path: str, there: set[str]) -> bool:
        """False for an entry of nothing, or a second one: it goes."""
        if handle in there and handle not in self._paths:
            self._paths[handle] = path
            return True
        _remove(path)
        return False

    def complete(self) -> None:
        """Every record was looked at: say so if they all are in their places."""
        if not self._failed:
            self._say(True)

    def add(self, handle: str, session: str | None) -> None:
        """Before a record is made, or when one is found that has no entry. None: unreadable."""
        tag = _ANY if session is None else tag_of(session)
        self._put(handle, f"{self._home.active}/{handle}.{tag}")

    def again(self, record: Record) -> None:
        """Somebody deleted the entry of a process that runs."""
        self._paths.pop(record.handle, None)
        self.add(record.handle, record.session)

    def moved(self, record: Record) -> None:
        """Note that a process is another session's from now on."""
        if self._is_settled(record.handle):
            self.settle(record)
        else:
            self.add(record.handle, record.session)

    def _is_settled(self, handle: str) -> bool:
        return self._paths.get(handle, "").startswith(self._home.ended + "/")

    def settle(self, record: Record) -> bool:
        """Note that a process has ended, and that nothing is left to be done but to forget it."""
        if record.handle not in self._paths:
            return False  # it was removed before the watcher was done with it
        directory = self._home.ended_of(record.session)
        name = f"{seconds_of(record.ended_at):.6f},{record.retention:.3f},{record.handle}"
        return self._put(record.handle, f"{directory}/{name}", directory)

    def drop(self, handle: str) -> None:
        """After a record is deleted."""
        path = self._paths.pop(handle, None)
        if path is None:
            return
        _remove(path)
        directory = os.path.dirname(path)
        if directory != self._home.active:
            _remove_directory(directory)

    def _put(self, handle: str, path: str, directory: str = "") -> bool:
        before = self._paths.get(handle)
        if self._failed or before == path:
            return not self._failed
        try:
            if directory:
                make_private_directory(directory)
            if before is not None:
                os.rename(before, path)
            else:
                os.mknod(path, 0o600)
        except FileExistsError:
            pass
        except FileNotFoundError:
            self._paths.pop(handle, None)  # deleted under us
            self._give_up()
            return False
        except OSError:
            if before is None:
                self._give_up()
            return False  # or it stays where it is, where it is found as well
        self._paths[handle] = path
        if before is not None and os.path.dirname(before) not in (self._home.active, directory):
            _remove_directory(os.path.dirname(before))
        return True

    def _give_up(self) -> None:
        """Lists look at all records from now on, until another worker has put things right."""
        if not self._failed:
            self._failed = True
            self._say(False)

    def _say(self, whole: bool) -> None:
        said = _said(self._lock)
        if said and said.get("index") is not whole:
            _write(self._lock, {**said, "index": whole})


def seconds_of(at: str | None) -> float:
    """The wall seconds of an RFC 3339 time as records have it (`strptime` imports a megabyte)."""
    try:
        text = at or ""
        year, month, day = int(text[:4]), int(text[5:7]), int(text[8:10])
        early = (14 - month) // 12
        year, month = year + 4800 - early, month + 12 * early - 3
        days = day + (153 * month + 2) // 5 + 365 * year + year // 4 - year // 100 + year // 400
        clock = int(text[11:13]) * 3600 + int(text[14:16]) * 60 + float(text[17:].rstrip("Z"))
        return (days - 32045 - 2440588) * 86400 + clock
    except ValueError:
        return 0.0


def _check(path: str) -> None:
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except IsADirectoryError:
        _remove_directory(path)
    except OSError:
        return


def _remove_directory(path: str) -> None:
    """Remove a directory if nothing is in it."""
    try:
        os.rmdir(path)
    except OSError:
        return
