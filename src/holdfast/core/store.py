"""Records on disk: writes that no crash can tear, scan, quarantine, and the guard's exit notes.

DESIGN. A record is one JSON object in ``.meta.json``. A short one (nearly all are) fills exactly
one page, padded with blanks, and is overwritten in place by a single write: that cannot be cut in
half by a kill, needs no room on a full disk, and costs a twentieth of a new file renamed over the
old. A reader that catches the write in the middle sees it by the checksum and looks again. A longer
one is written whole beside itself and renamed.

The order at an end is: output drained into the log, record saved (ended, but not told), process
reaped, waiters told, outbox entry appended, record saved (told). A crash after any step leaves the
rest to the next worker: before the first save the process is still there to be asked, as a zombie;
after it the record says what is left to do.

Where the guard has to reap, because there is no worker or because the process became its child, it
writes down what it saw in ``.exit`` before it does, and the worker goes on from that.
"""

from __future__ import annotations

import binascii
import errno
import json
import os
import stat
import struct
import time

from . import index
from .errors import NotFound, StoreError, not_found, why
from .home import (
    Home,
    cannot,
    is_handle,
    open_private,
    read_private,
    replace_private,
    set_aside,
    unlink,
    unusable,
)
from .record import ExitNote, Record
from .wire import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .index import Index

_PAGE = 4096
_TEAR_TRIES = 50
_CHECK = b'{"check":"'
_FOR_NOW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_decoder = json.JSONDecoder()
_NOTE_HEAD = struct.Struct("<4sIH")
_NOTE_MAGIC = b"HFX1"
# Written by a process's runner: what it runs, where it is in that, how that ended. Each is written
# as ``.new`` and renamed.
RUNNER_FILES = (".runner", ".place", ".end")
# In the order of deletion: the record goes last, so that a deletion cut short can be repeated.
_SUFFIXES = (
    ".exit",
    ".screen",
    ".begun",
    *RUNNER_FILES,
    *(f"{suffix}.new" for suffix in RUNNER_FILES),
    ".log",
    ".out",
    ".head",
    ".err.log",
    ".err.out",
    ".err.head",
    ".log.old",
    ".err.log.old",
    ".meta.json",
)


class Store:
    """The records of one home."""

    __slots__ = ("home", "index")

    def __init__(self, home: Home) -> None:
        self.home = home
        self.index: Index | None = None  # of the worker, who writes it

    # -- records -------------------------------------------------------------------------------

    def create(self, record: Record) -> None:
        """Write a new record; FileExistsError if the handle is taken."""
        path = self.home.meta(record.handle)
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if self.index is not None:
            self.index.add(record.handle, record.session)
        try:
            self._create(path, _encode(record))
        except BaseException:
            if self.index is not None:
                self.index.drop(record.handle)
            raise

    def _create(self, path: str, data: bytes) -> None:
        spare = self.home.spare_record
        if len(data) <= _PAGE:
            try:
                if self._overwrite(spare, data):
                    os.rename(spare, path)
                    return
            except FileNotFoundError:
                pass
            except OSError:
                if not unusable(spare):
                    raise
                set_aside(spare)
        replace_private(path, data)

    def prepare(self) -> None:
        """Have the files of the next process ready: making them takes longer than naming them."""
        try:
            if not os.path.lexists(self.home.spare_record):
                os.close(open_private(self.home.spare_record, os.O_WRONLY | os.O_CREAT))
            if not os.path.lexists(self.home.spare_fifo):
                os.mkfifo(self.home.spare_fifo, 0o600)
        except OSError:
            return  # then they are made when they are needed, and the error is told there

    def make_fifo(self, path: str) -> None:
        try:
            os.rename(self.home.spare_fifo, path)
            if stat.S_ISFIFO(os.lstat(path).st_mode):
                return
        except FileNotFoundError:
            pass
        except OSError:
            if not os.path.isdir(path):
                raise
        unlink(path)  # as renaming does
        os.mkfifo(path, 0o600)

    def save(self, record: Record) -> None:
        """Write a record again; FileNotFoundError if it was deleted meanwhile."""
        data = _encode(record)
        path = self.home.meta(record.handle)
        if len(data) <= _PAGE and self._overwrite(path, data):
            return
        os.lstat(path)
        replace_private(path, data)

    def restore(self, record: Record) -> str | None:
        """Write a record anew that was deleted, or for which something else was put there.

        Returns where that was moved.
        """
        path, moved = self.home.meta(record.handle), None
        if self.index is not None:
            self.index.add(record.handle, record.session)
        if unusable(path):
            moved = set_aside(path)
        elif os.path.lexists(path):
            os.chmod(path, 0o600)
        replace_private(path, _encode(record))
        return moved

    def _overwrite(self, path: str, data: bytes) -> bool:
        """False for a file that was longer: its end would be left over."""
        fd = open_private(path, os.O_WRONLY)
        try:
            fits = os.fstat(fd).st_size <= len(data)
            if fits:
                os.pwrite(fd, data, 0)
            return fits
        finally:
            os.close(fd)

    def load(self, handle: str) -> Record:
        if not is_handle(handle):
            raise not_found(str(handle))
        try:
            data = _read_whole(self.home.meta(handle))
        except FileNotFoundError:
            raise not_found(handle) from None
        except OSError as error:
            raise StoreError(
                f"cannot read the record of {handle}: {why(error)}",
                handle=handle,
                for_now=error.errno in _FOR_NOW,
            ) from error
        try:
            record = Record.from_json(_decode(data))
            if record.handle != handle:
                raise StoreError("the record is another process's")
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"the record of {handle} is torn or empty; the next keeper sets it aside",
                handle=handle,
            ) from error
        except StoreError as error:
            error.handle = handle
            raise
        record.log = self.home.log(handle)
        if record.err_log is not None:
            record.err_log = self.home.log(handle, "stderr")
        self.add_runner(record)
        return record

    def handles(self, session: str | None = None, *, ended: bool = True) -> list[str]:
        """The handles on disk; some may be another session's, or ended, where that is asked."""
        if session is not None or not ended:
            found = index.handles(self.home, session, ended=ended)
            if found is not None:
                return found
        try:
            names = os.listdir(self.home.processes)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise cannot(f"look into {self.home.processes}", error) from error
        suffix = ".meta.json"
        return [
            name[: -len(suffix)]
            for name in names
            if name.endswith(suffix) and is_handle(name[: -len(suffix)])
        ]

    def scan(
        self, session: str | None = None, *, ended: bool = True
    ) -> tuple[list[Record], list[StoreError]]:
        """Every record that loads, oldest first, and a word about each that does not.

        Of one session, or without those that have ended, it costs what that is.
        """
        records: list[Record] = []
        problems: list[StoreError] = []
        for handle in self.handles(session, ended=ended):
            try:
                record = self.load(handle)
            except StoreError as error:
                problems.append(error)
            except NotFound:
                continue  # removed while we looked
            else:
                if session in (None, record.session) and (ended or record.running):
                    records.append(record)
        records.sort(key=lambda record: (record.started_at, record.handle))
        return records, problems

    def is_empty(self, handle: str) -> bool:
        try:
            return os.lstat(self.home.meta(handle)).st_size == 0
        except FileNotFoundError:
            return True

    def is_sound(self, handle: str) -> bool:
        """True if a record is as we wrote it, by its checksum."""
        try:
            data = read_private(self.home.meta(handle))
        except OSError:
            return False
        return data.startswith(_CHECK) and _checks(data)

    def set_aside(self, handle: str) -> str:
        """Move a record nobody can read out of the way, so that it is kept but never loaded."""
        target = set_aside(self.home.meta(handle))
        if self.index is not None:
            self.index.drop(handle)
        return target

    def has_begun(self, handle: str) -> bool:
        """True if a record by itself says that its process came to be."""
        try:
            record = self.load(handle)
        except (NotFound, StoreError):
            return False
        return record.pid is not None or not record.running

    def clean_up(self) -> None:
        """Delete what a killed writer left; there must be no other writer."""
        for name in os.listdir(self.home.processes):
            handle = name.removesuffix(".begun")
            needless = handle != name and (self.is_empty(handle) or self.has_begun(handle))
            if name.endswith(".tmp") or needless:
                try:
                    os.unlink(f"{self.home.processes}/{name}")
                except OSError:
                    continue  # not of our making

    def delete(self, handle: str) -> None:
        for suffix in _SUFFIXES:
            unlink(f"{self.home.processes}/{handle}{suffix}")
        if self.index is not None:
            self.index.drop(handle)

    # -- looks ---------------------------------------------------------------------------------

    def look(self, handle: str) -> None:
        """Note that somebody looked: a finished process is kept for a while after the last look."""
        try:
            os.utime(self.home.meta(handle), follow_symlinks=False)
        except OSError:
            return  # removed; or the home is not for us to write, and then to read only

    def version(self, handle: str) -> tuple[int, ...] | None:
        """Something that is another one once a record was written anew, or looked at."""
        try:
            found = os.lstat(self.home.meta(handle))
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def looked_at(self, handle: str) -> float | None:
        """The time of the last look (or change), in wall seconds."""
        try:
            return os.lstat(self.home.meta(handle)).st_mtime
        except OSError:
            return None

    # -- runners -------------------------------------------------------------------------------

    def said(self, handle: str, suffix: str) -> dict[str, Any]:
        """A runner's report; empty where there is none, or none that makes sense."""
        try:
            data = json.loads(read_private(f"{self.home.processes}/{handle}{suffix}"))
        except (OSError, StoreError, ValueError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}

    def add_runner(self, record: Record) -> None:
        """Add what its runner says of where it runs, if it has one."""
        if not record.elsewhere:
            return
        told = self.said(record.handle, ".runner")
        if isinstance(told.get("ports"), dict):
            record.ports = told["ports"]
        if isinstance(told.get("container"), str):
            record.docker = {**(record.docker or {}), "container": told["container"]}

    # -- exit notes ----------------------------------------------------------------------------

    def write_exit(self, handle: str, note: ExitNote) -> None:
        body = encode(note.to_json())[:-1]
        head = _NOTE_HEAD.pack(_NOTE_MAGIC, binascii.crc32(body), len(body))
        path = self.home.exit(handle)
        if unusable(path):
            set_aside(path)
        fd = open_private(path, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(fd, head + body, 0)
        finally:
            os.close(fd)

    def drop_exit(self, handle: str) -> None:
        unlink(self.home.exit(handle))

    def read_exit(self, handle: str) -> ExitNote | None:
        """The exit note, or None while there is none (or only a torn one)."""
        try:
            data = read_private(self.home.exit(handle))
        except OSError as error:
            if error.errno in _FOR_NOW:
                raise
            return None  # there is none, or none of ours
        if len(data) < _NOTE_HEAD.size:
            return None
        magic, checksum, length = _NOTE_HEAD.unpack_from(data)
        body = data[_NOTE_HEAD.size : _NOTE_HEAD.size + length]
        if magic != _NOTE_MAGIC or binascii.crc32(body) != checksum:
            return None
        try:
            return ExitNote.from_json(json.loads(body))
        except (ValueError, RecursionError):
            return None


def _encode(record: Record) -> bytes:
    body = encode(record.to_json())[1:-1]
    data = b'%s%08x",%s' % (_CHECK, binascii.crc32(body), body)
    return data.ljust(_PAGE - 1) + b"\n"


def _checks(data: bytes) -> bool:
    head = len(_CHECK)
    body = data[head + 10 : data.rfind(b"}") + 1]
    return data[head : head + 8] == b"%08x" % binascii.crc32(body)


def _decode(data: bytes) -> Any:
    """Decode as `json.loads` does, which takes three times as long over the blanks."""
    if not data.startswith(_CHECK):
        return json.loads(data)
    text = data[: data.rfind(b"}") + 1].decode()
    value, end = _decoder.raw_decode(text)
    if end != len(text):
        raise ValueError("there is more than a record")
    return value


def _read_whole(path: str) -> bytes:
    """A record's bytes, not caught in the middle of a write.

    A file that stays as it is though its checksum is wrong was edited by hand, and may be right.
    """
    data = read_private(path)
    for _ in range(_TEAR_TRIES):
        head = len(_CHECK)
        if not data.startswith(_CHECK) or len(data) < head + 10:
            return data
        if _checks(data):
            return data
        before = data
        time.sleep(0.001)
        data = read_private(path)
        if data == before:
            return data
    return data
