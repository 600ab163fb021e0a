"""Cursors: where each reader of a log left off.

One is ``sessions/<session>/cursors/<reader>/<handle>.<stream>``, a small text file with the offset
to go on at, written over in one piece: a crash leaves the old or the new one. Whatever else is
found in its place counts as 0, and the reader begins anew.
"""

from __future__ import annotations

import os

from .errors import BadRequest, StoreError, not_found
from .home import (
    Home,
    file_name,
    is_handle,
    make_private_directory,
    open_private,
    read_private,
    unlink,
)

STREAMS = ("stdout", "stderr")
_READER_BYTES = 80
_DIGITS = 18  # an offset beyond this fits no file


def check_reader(reader: object) -> str:
    if not isinstance(reader, str) or not reader:
        raise BadRequest("a reader is a non-empty string; leave it out for the default")
    if not reader.isprintable():
        raise BadRequest("a reader's name must be printable; choose another one")
    if len(reader.encode()) > _READER_BYTES:
        raise BadRequest(f"a reader's name has at most {_READER_BYTES} bytes; choose a shorter one")
    return reader


def load_cursor(home: Home, session: str, reader: str, handle: str, stream: str = "stdout") -> int:
    """The offset `reader` goes on at; 0 where it never read."""
    path = _path(home, session, reader, handle, stream)
    try:
        data = read_private(path)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreError(
            f"cannot read the cursor {path}: {error.strerror}; remove it to begin anew"
        ) from error
    digits = data.removesuffix(b"\n")
    return int(digits) if digits.isdigit() and len(digits) <= _DIGITS else 0


def save_cursor(
    home: Home, session: str, reader: str, handle: str, stream: str, offset: int
) -> None:
    path = _path(home, session, reader, handle, stream)
    try:
        try:
            _write(path, offset)
        except FileNotFoundError:
            directory = os.path.dirname(path)
            cursors = os.path.dirname(directory)
            for missing in (os.path.dirname(cursors), cursors, directory):
                make_private_directory(missing)
            _write(path, offset)
    except OSError as error:
        raise StoreError(
            f"cannot keep the cursor {path}: {error.strerror}; make the home writable"
        ) from error


def _write(path: str, offset: int) -> None:
    # Always the same few bytes, so that they can be written over: a new file each time would cost
    # more than the reading.
    fd = open_private(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.pwrite(fd, b"%0*d\n" % (_DIGITS, offset), 0)
    finally:
        os.close(fd)


def forget_cursors(home: Home, session: str, handle: str) -> None:
    """Remove every reader's cursors for `handle`, and the readers that have none left."""
    if not is_handle(handle):
        raise not_found(str(handle))
    cursors = home.session(session) + "/cursors"
    for reader in _names(cursors):
        directory = f"{cursors}/{reader}"
        for name in _names(directory):
            if name.startswith(handle + "."):
                unlink(f"{directory}/{name}")
        try:
            os.rmdir(directory)
        except OSError:
            continue  # there are others, or it is being used again


def _path(home: Home, session: str, reader: str, handle: str, stream: str) -> str:
    if not is_handle(handle):
        raise not_found(str(handle))
    if stream not in STREAMS:
        raise BadRequest(f"a stream is {' or '.join(STREAMS)}, not {stream!r}")
    return f"{home.session(session)}/cursors/{file_name(check_reader(reader))}/{handle}.{stream}"


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
