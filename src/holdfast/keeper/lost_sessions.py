"""Sessions whose client was lost, and who takes over what they left.

A session in its grace may be adopted by a session that works in the same directory: its processes,
their logs, cursors and waits, and the events that nobody was told of become the adopter's. A
session that somebody holds is neither shown nor given away.

DESIGN. ``adopted.json`` of the adopter names the session, its processes and the request; with that
written, it has happened. The moves that follow can each be done twice: whoever starts after a kill
does them again before anything else is looked at, and on a full disk they are tried until there is
room. The directory of the old session goes last, and then the entry says `done`: a session of that
name is another one from then on. Before that nobody can connect to it.
"""

from __future__ import annotations

import json
import os
import shutil
import time

from ..core.errors import BadRequest, NotFound, StoreError
from ..core.home import check_session, make_private_directory, read_private, replace_private
from ..core.record import Record
from .held_fds import brief
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.home import Home
    from .leases import Lease
    from .loop import Timer
    from .worker import Worker

_AGAIN = 1.0


class _Adoption:
    __slots__ = ("done", "handles", "new", "old", "said", "token")

    def __init__(
        self, old: str, new: str, token: str, handles: list[str], *, done: bool = False
    ) -> None:
        self.old = old
        self.new = new
        # Of the request, which gets the same answer if it is asked again; empty if it was finished
        # later and nobody was answered yet.
        self.token = token
        self.handles = handles
        self.done = done
        self.said = False  # that it cannot be finished yet

    def to_json(self) -> dict[str, Any]:
        return {"token": self.token, "handles": self.handles, "done": self.done}


class Adoptions:
    __slots__ = ("_timer", "_unfinished", "_worker")

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._unfinished: dict[str, _Adoption] = {}  # by the old session
        self._timer: Timer | None = None

    def left_behind(self, session: str, directory: str | None = None) -> list[dict[str, Any]]:
        """The processes that sessions of the same directory left, oldest first."""
        worker, found = self._worker, []
        for lease in self._candidates(session, directory):
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

    def _candidates(self, session: str, directory: str | None = None) -> list[Lease]:
        leases = self._worker.leases
        directory = directory or leases.directory(session)
        if directory is None:
            raise BadRequest(
                "only a client that holds a session can take over another; see `connect`"
            )
        return [each for each in leases.lost_in(directory) if each.session != session]

    def adopt(self, old: str, new: str, token: str) -> list[str]:
        """Make everything of a lost session this one's; the handles of what it was."""
        adoption = self._unfinished.get(old)
        if adoption is not None and adoption.new == new:
            adoption.token = token  # of whoever asks now for what could not be finished before
        else:
            before = _adopted(self._worker.home, new).get(old)
            if before is not None and before.token == token:
                return before.handles  # asked before, and the answer was lost
            lost = old in [lease.session for lease in self._candidates(new)]
            if before is not None and not before.token and not lost:
                before.token = token  # whoever asked then was told that it could not be done yet
                _note(self._worker.home, before)
                return before.handles
            if not lost:
                raise NotFound(
                    f"no session {str(old)[:80]!r} was left behind in this directory; its client "
                    "may be back, its time may be up, or somebody else has adopted it"
                )
            adoption = self._begin(old, new, token)
        self._finish(adoption)
        return adoption.handles

    def _begin(self, old: str, new: str, token: str) -> _Adoption:
        worker = self._worker
        for earlier in [each for each in self._unfinished.values() if each.new == old]:
            self._finish_late(earlier)  # whose entry goes with the directory of `old`
        adoption = _Adoption(old, new, token, [each.handle for each in _records(worker, old)])
        _note(worker.home, adoption)
        self._unfinished[old] = adoption
        for start in worker.modes.starting(old):
            worker.modes.cancel(start)  # whoever asked for it is gone
        return adoption

    def _finish(self, adoption: _Adoption) -> None:
        """Move what is not moved yet; if that fails now, it is tried again."""
        try:
            _move(self._worker, adoption.old, adoption.new, adoption.handles)
            adoption.done = True
            _note(self._worker.home, adoption)
        except (OSError, StoreError) as error:
            adoption.done = False
            if not adoption.said:
                say(f"what a lost session left cannot be taken over yet: {error}")
            adoption.said = True
            if self._timer is None:
                self._timer = self._worker.loop.after(_AGAIN, self._again)
            raise
        del self._unfinished[adoption.old]
        say(f"a session has taken over {len(adoption.handles)} processes of a lost one")

    def _finish_late(self, adoption: _Adoption) -> None:
        adoption.token = ""
        self._finish(adoption)

    def _again(self) -> None:
        self._timer = None
        for adoption in list(self._unfinished.values()):
            try:
                self._finish_late(adoption)
            except (OSError, StoreError):
                continue  # which set the timer

    def take_up(self) -> None:
        """Before records are looked at: do what a worker left half done when it was killed."""
        for new in self._worker.home.session_names():
            try:
                found = _adopted(self._worker.home, new)
            except (OSError, StoreError) as error:
                say(f"what a session adopted cannot be read: {error}")
                continue
            self._unfinished.update((old, each) for old, each in found.items() if not each.done)
        self._again()

    def settle(self, session: str) -> None:
        """Somebody connects to a session; if it is being taken over, that comes first."""
        adoption = self._unfinished.get(session)
        if adoption is not None:
            try:
                self._finish_late(adoption)
            except OSError as error:
                raise StoreError(
                    f"session {session!r} is being taken over by another one, which cannot be "
                    f"finished now: {error.strerror}; free some space and try again"
                ) from error


def _records(worker: Worker, session: str) -> list[Record]:
    running = [child.record for child in worker.running(session)]
    seen = {record.handle for record in running}
    ended = [each for each in worker.retention.ended(session) if each.handle not in seen]
    return sorted([*ended, *running], key=lambda record: record.started_at)


def _move(worker: Worker, old: str, new: str, handles: list[str]) -> None:
    worker.leases.forget(old)
    for handle in handles:
        child = worker.children.get(handle)
        try:
            record = worker.store.load(handle) if child is None else child.record
            if record.session == old:
                _move_record(worker, record, new)
            worker.index.moved(record)  # also where a worker was killed before it could
        except (NotFound, FileNotFoundError):
            continue
        except StoreError as error:
            if error.detail.get("for_now"):
                raise
    worker.delivery.move(old, new)
    worker.agents.move(old, new)
    for kind in ("cursors", "waits"):
        _move_files(worker.home, old, new, kind)
    shutil.rmtree(worker.home.session(old), ignore_errors=True)


def _move_record(worker: Worker, record: Record, new: str) -> None:
    old, record.session = record.session, new
    try:
        worker.store.save(record)
    except BaseException:
        record.session = old
        raise
    if record.handle in worker.children:
        worker.tell("record", record.handle, brief(record))
    worker.retention.take(old, record.handle)
    if not record.running:
        worker.retention.put(record)


def _move_files(home: Home, old: str, new: str, kind: str) -> None:
    source, target = f"{home.session(old)}/{kind}", f"{home.session(new)}/{kind}"
    for directory, _, names in os.walk(source):
        there = target + directory.removeprefix(source)
        for path in (target, there):
            make_private_directory(path)
        for name in names:
            os.replace(f"{directory}/{name}", f"{there}/{name}")


def _path(home: Home, session: str) -> str:
    return home.session(session) + "/adopted.json"


def _note(home: Home, adoption: _Adoption) -> None:
    entries = {old: each.to_json() for old, each in _adopted(home, adoption.new).items()}
    make_private_directory(home.session(adoption.new))
    noted = json.dumps({**entries, adoption.old: adoption.to_json()}).encode()
    replace_private(_path(home, adoption.new), noted)


def _adopted(home: Home, session: str) -> dict[str, _Adoption]:
    """The adoptions of a session, by the sessions it took over from."""
    try:
        data = read_private(_path(home, session))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    try:
        return {
            old: _Adoption(
                check_session(old),
                session,
                str(each["token"]),
                [str(handle) for handle in each["handles"]],
                done=bool(each["done"]),
            )
            for old, each in json.loads(data).items()
        }
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        say(f"what a session adopted cannot be read: {type(error).__name__}: {error}"[:300])
        return {}
