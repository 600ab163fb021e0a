"""Sessions whose client was lost, and who takes over what they left.

A session in its grace may be adopted by a session that works in the same directory: its processes,
their logs and cursors, and the events that nobody was told of become the adopter's. A session that
somebody holds is neither shown nor given away.

DESIGN. ``adopted.json`` of the adopter names the session and its processes; with that written, it
has happened. The moves that follow can each be done twice, and whoever starts after a kill does
them again before anything else is looked at. The directory of the old session goes last.
"""

from __future__ import annotations

import json
import os
import shutil
import time

from .._errors import BadRequest, NotFound, StoreError
from .._home import make_private_directory, read_private, replace_private
from .._model import Record
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .._home import Home
    from .leases import Lease
    from .worker import Worker

_UNREADABLE = (OSError, StoreError, LookupError, TypeError, ValueError, AttributeError)


def left_behind(worker: Worker, session: str) -> list[dict[str, Any]]:
    """What sessions of the same directory left, oldest first."""
    found = []
    for lease in _candidates(worker, session):
        records = _records(worker, lease.session)
        pending = worker.delivery.pending(lease.session)
        if records or pending:
            assert lease.lost_clock is not None
            lost = time.monotonic() - lease.lost_clock
            found.append(
                {
                    "session": lease.session,
                    "lost_seconds": round(lost, 3),
                    "stops_in_seconds": round(max(0.0, lease.grace - lost), 3),
                    "events": pending,
                    "records": [record.to_json() for record in records],
                }
            )
    return sorted(found, key=lambda each: -float(each["lost_seconds"]))


def adopt(worker: Worker, old: str, new: str) -> list[str]:
    """Make everything of a lost session this one's; the handles of what it was."""
    before = _adopted(worker.home, new)
    if old in before:
        return before[old]  # asked before, and the answer was lost
    if old not in [lease.session for lease in _candidates(worker, new)]:
        raise NotFound(
            f"no session {str(old)[:80]!r} was left behind in this directory; its client may be "
            "back, its time may be up, or somebody else has adopted it"
        )
    for start in worker.tmux.starting(old):
        worker.tmux.cancel(start)  # whoever asked for it is gone
    handles = [record.handle for record in _records(worker, old)]
    make_private_directory(worker.home.session(new))
    noted = json.dumps({**before, old: handles}).encode()
    replace_private(_path(worker.home, new), noted)
    worker.leases.forget(old)
    _move(worker, old, new, handles)
    return handles


def finish(worker: Worker) -> None:
    """Before records are looked at: do what a worker left half done when it was killed."""
    for new in worker.home.session_names():
        for old, handles in _adopted(worker.home, new).items():
            if os.path.isdir(worker.home.session(old)):
                _move(worker, old, new, handles)


def _candidates(worker: Worker, session: str) -> list[Lease]:
    directory = worker.leases.directory(session)
    if directory is None:
        raise BadRequest("only a client that holds a session can take over another; see `connect`")
    return [each for each in worker.leases.lost_in(directory) if each.session != session]


def _records(worker: Worker, session: str) -> list[Record]:
    running = [child.record for child in worker.running(session)]
    seen = {record.handle for record in running}
    ended = [each for each in worker.shelf.ended(session) if each.handle not in seen]
    return sorted([*ended, *running], key=lambda record: record.started_at)


def _move(worker: Worker, old: str, new: str, handles: list[str]) -> None:
    home = worker.home
    for handle in handles:
        child = worker.children.get(handle)
        try:
            record = worker.store.load(handle) if child is None else child.record
        except (NotFound, StoreError):
            continue
        if record.session == old:
            worker.shelf.take(old, handle)
            record.session = new
            worker.store.save(record)
            if not record.running:
                worker.shelf.put(record)
    worker.delivery.move(old, new)
    worker.agents.move(old, new)
    _move_cursors(home, old, new)
    shutil.rmtree(home.session(old), ignore_errors=True)
    say(f"a session has taken over {len(handles)} processes of a lost one")


def _move_cursors(home: Home, old: str, new: str) -> None:
    source, target = home.session(old) + "/cursors", home.session(new) + "/cursors"
    for directory, _, names in os.walk(source):
        there = target + directory.removeprefix(source)
        for path in (target, there):
            make_private_directory(path)
        for name in names:
            os.replace(f"{directory}/{name}", f"{there}/{name}")


def _path(home: Home, session: str) -> str:
    return home.session(session) + "/adopted.json"


def _adopted(home: Home, session: str) -> dict[str, list[str]]:
    try:
        data = json.loads(read_private(_path(home, session)))
        return {str(old): [str(each) for each in handles] for old, handles in data.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except _UNREADABLE as error:
        say(f"what a session adopted cannot be read: {error}")
        return {}
