"""Waits that outlive whoever began them: a call of a tool that can be made again.

One is ``sessions/<session>/waits/<id>.json``, where the id has the handle of the first process that
is waited for: it goes with that process, when it is taken over and when it is forgotten.
"""

from __future__ import annotations

import json
import os

from .home import Home, is_handle, make_private_directory, read_private, replace_private, unlink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PREFIX = "wait-"
_RANDOM = 8


def new_wait(handle: str) -> str:
    return f"{_PREFIX}{handle}-{os.urandom(_RANDOM // 2).hex()}"


def handle_of_wait(id: str) -> str | None:
    """The process in the id of a wait; None for what is no such id."""
    first, _, rest = id.removeprefix(_PREFIX).rpartition("-")
    proper = id.startswith(_PREFIX) and len(rest) == _RANDOM and rest.isascii() and rest.isalnum()
    return first if proper and is_handle(first) else None


def save_wait(home: Home, session: str, id: str, wait: dict[str, Any]) -> None:
    """Keep it; OSError if that cannot be."""
    for directory in (home.session(session), _directory(home, session)):
        make_private_directory(directory)
    replace_private(_path(home, session, id), json.dumps(wait).encode())


def load_wait(home: Home, session: str, id: str) -> dict[str, Any] | None:
    """As it was kept; None if there is none, or it cannot be read."""
    if handle_of_wait(id) is None:
        return None
    try:
        found = json.loads(read_private(_path(home, session, id)))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def drop_wait(home: Home, session: str, id: str) -> None:
    unlink(_path(home, session, id))


def forget_waits(home: Home, session: str, handle: str) -> None:
    """Remove those that began with a process which is forgotten."""
    try:
        names = os.listdir(_directory(home, session))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if name.startswith(f"{_PREFIX}{handle}-"):
            unlink(f"{_directory(home, session)}/{name}")


def _directory(home: Home, session: str) -> str:
    return home.session(session) + "/waits"


def _path(home: Home, session: str, id: str) -> str:
    return f"{_directory(home, session)}/{id}.json"
