"""Records on disk: atomic writes, scan, quarantine, and the exit note.

DESIGN. For each process two files say how it stands. The record (``.meta.json``) is written whole
beside itself and renamed, at every transition. The exit note (``.exit``) is a block that was
allocated when the process was started and is overwritten in place, so the end can be written down
on a full disk too; a checksum tells a whole note from a torn or empty one.

The order at an end is: output drained into the log, note written, process reaped, outbox entry
appended, record saved. A crash after any step leaves a record that says ``running`` beside a note
that says how it ended: `load` shows such a process as ended, and the next keeper appends the outbox
entry if it is missing and saves the record. Before the note, the process is still a zombie that the
other half of the keeper can ask.
"""

from __future__ import annotations

import binascii
import json
import os
import struct
import time

from ._errors import StoreError, not_found
from ._home import Home, is_handle, open_private, read_private, replace_private, write_all
from ._model import ExitNote, Record

_NOTE_SIZE = 512
_NOTE_HEAD = struct.Struct("<4sIH")
_NOTE_MAGIC = b"HFX1"
_SUFFIXES = (
    ".meta.json",
    ".exit",
    ".log",
    ".out",
    ".head",
    ".err.log",
    ".err.out",
    ".err.head",
    ".log.old",
    ".err.log.old",
)


class Store:
    """The records of one home."""

    __slots__ = ("home",)

    def __init__(self, home: Home) -> None:
        self.home = home

    # -- records -------------------------------------------------------------------------------

    def create(self, record: Record) -> None:
        """Write a new record; FileExistsError if the handle is taken."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        fd = open_private(self.home.meta(record.handle), flags)
        try:
            write_all(fd, _encode(record))
        finally:
            os.close(fd)

    def save(self, record: Record) -> None:
        replace_private(self.home.meta(record.handle), _encode(record))

    def load(self, handle: str) -> Record:
        """The record as it stands now, ended if its exit note says so."""
        record = self.load_saved(handle)
        if record.running:
            note = self.read_exit(handle)
            if note is not None and note.drained:
                record.end(note)
        return record

    def load_saved(self, handle: str) -> Record:
        if not is_handle(handle):
            raise not_found(str(handle))
        try:
            data = read_private(self.home.meta(handle))
        except FileNotFoundError:
            raise not_found(handle) from None
        except OSError as error:
            raise StoreError(
                f"cannot read the record of {handle}: {error.strerror}", handle=handle
            ) from error
        try:
            record = Record.from_json(json.loads(data))
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
        return record

    def handles(self) -> list[str]:
        try:
            names = os.listdir(self.home.processes)
        except FileNotFoundError:
            return []
        suffix = ".meta.json"
        return [
            name[: -len(suffix)]
            for name in names
            if name.endswith(suffix) and is_handle(name[: -len(suffix)])
        ]

    def scan(self) -> tuple[list[Record], list[StoreError]]:
        """Every record that loads, oldest first, and a word about each that does not."""
        records: list[Record] = []
        problems: list[StoreError] = []
        for handle in self.handles():
            try:
                records.append(self.load(handle))
            except StoreError as error:
                problems.append(error)
            except LookupError:
                continue
            except Exception as error:
                if getattr(error, "code", None) != "not_found":  # removed while we looked
                    raise
        records.sort(key=lambda record: (record.started_at, record.handle))
        return records, problems

    def is_empty(self, handle: str) -> bool:
        try:
            return os.lstat(self.home.meta(handle)).st_size == 0
        except FileNotFoundError:
            return True

    def set_aside(self, handle: str) -> str:
        """Move a record nobody can read out of the way, so that it is kept but never loaded."""
        target = self.home.meta(handle) + ".bad"
        os.replace(self.home.meta(handle), target)
        return target

    def delete(self, handle: str) -> None:
        for suffix in _SUFFIXES:
            try:
                os.unlink(f"{self.home.processes}/{handle}{suffix}")
            except FileNotFoundError:
                continue

    # -- looks ---------------------------------------------------------------------------------

    def look(self, handle: str) -> None:
        """Note that somebody looked: a finished process is kept for a while after the last look."""
        try:
            os.utime(self.home.meta(handle))
        except FileNotFoundError:
            return

    def looked_at(self, handle: str) -> float | None:
        """When it was last looked at (or changed), in wall seconds."""
        try:
            return os.stat(self.home.meta(handle)).st_mtime
        except FileNotFoundError:
            return None

    def expires_in(self, record: Record) -> float:
        """Seconds until a finished process may be forgotten."""
        looked = self.looked_at(record.handle)
        return 0.0 if looked is None else looked + record.retention - time.time()

    # -- exit notes ----------------------------------------------------------------------------

    def prepare_exit(self, handle: str) -> None:
        fd = open_private(self.home.exit(handle), os.O_WRONLY | os.O_CREAT)
        try:
            write_all(fd, bytes(_NOTE_SIZE))
        finally:
            os.close(fd)

    def write_exit(self, handle: str, note: ExitNote) -> None:
        body = json.dumps(note.to_json(), separators=(",", ":")).encode()
        head = _NOTE_HEAD.pack(_NOTE_MAGIC, binascii.crc32(body), len(body))
        fd = open_private(self.home.exit(handle), os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(fd, (head + body).ljust(_NOTE_SIZE, b"\0"), 0)
        finally:
            os.close(fd)

    def read_exit(self, handle: str) -> ExitNote | None:
        """The exit note, or None while there is none (or only a torn one)."""
        try:
            data = read_private(self.home.exit(handle))
        except (FileNotFoundError, StoreError):
            return None
        if len(data) < _NOTE_HEAD.size:
            return None
        magic, checksum, length = _NOTE_HEAD.unpack_from(data)
        body = data[_NOTE_HEAD.size : _NOTE_HEAD.size + length]
        if magic != _NOTE_MAGIC or binascii.crc32(body) != checksum:
            return None
        return ExitNote.from_json(json.loads(body))


def _encode(record: Record) -> bytes:
    return json.dumps(record.to_json(), separators=(",", ":")).encode() + b"\n"
