"""Groups that are told of as one: a single event when the last of them has ended.

DESIGN. A gathering is a file, ``sessions/<session>/gathered/<id>.json``. It names its members, and
has for each that ended what its own event would have said. The file is written before the member's
record says that its end was told, and the one event is appended before the file says `told`, under
the gathering's own id; so whoever takes up after a kill finds every end, and tells of all once. It
is deleted when the event was acknowledged, which seeing each end by itself (`wait`, `kill`) does
too.
"""

from __future__ import annotations

import binascii
import json
import os
import time

from ..core.errors import BadRequest, HoldfastError, NotFound
from ..core.home import Home, is_gathering, make_private_directory, read_private, replace_private
from ..core.outbox import OutboxWriter, end_event_id, group_event_id
from ..core.record import Record, rfc3339
from .damaged_files import drop, is_for_now, put_aside
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Entry = dict[str, Any]

_UNREADABLE = (
    OSError,
    HoldfastError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_LATEST = 1e11  # seconds since the epoch
_TAIL = 4096  # bytes that are kept of each member's last output


class Gathering:
    __slots__ = ("began", "ends", "group", "id", "seen", "session", "told")

    def __init__(self, id: str, session: str, group: str, began: float) -> None:
        self.id = id
        self.session = session
        self.group = group
        self.began = began  # seconds since the epoch: when its first member started
        self.ends: dict[str, Entry | None] = {}
        self.seen: set[str] = set()
        self.told = False

    @property
    def complete(self) -> bool:
        return all(end is not None for end in self.ends.values())

    def entry(self) -> Entry:
        """The event of the whole group."""
        ends = [end for end in self.ends.values() if end is not None]
        good = all(end["status"] == "completed" for end in ends)
        now = time.time()
        return {
            "id": group_event_id(self.id),
            "type": "group",
            "at": rfc3339(now),
            "group": self.group,
            "status": "completed" if good else "failed",
            "duration_seconds": round(max(0.0, now - self.began), 6),
            "members": ends,
        }

    def to_json(self) -> Entry:
        return {
            "group": self.group,
            "began": self.began,
            "ends": self.ends,
            "seen": sorted(self.seen),
            "told": self.told,
        }


class Gatherings:
    """Every gathering that is not over."""

    __slots__ = ("_by_id", "_home", "_outbox")

    def __init__(self, home: Home, outbox: Callable[[str], OutboxWriter]) -> None:
        self._home = home
        self._outbox = outbox
        self._by_id: dict[str, Gathering] = {}

    # -- making one ----------------------------------------------------------------------------

    def gather(self, id: str, session: str, group: str, records: list[Record]) -> list[str]:
        """Tell of these together from now on; of those that ended, only whom nobody heard of yet.

        One that is asked for while another of the same group is open adds to that one.
        """
        if not is_gathering(id):
            raise BadRequest("a gathering's name is gather- and 16 small letters or digits")
        outbox = self._outbox(session)
        same = self._by_id.get(id)
        if same is not None and same.session == session:  # asked before, and the answer was lost
            return list(same.ends)
        found = self._open(session, group) or Gathering(id, session, group, time.time())
        ended = outbox.open_entries(end_event_id(record.handle) for record in records)
        for record in records:
            if record.running:
                found.ends.setdefault(record.handle, None)
            elif entry := ended.get(end_event_id(record.handle)):
                found.ends.setdefault(record.handle, _shortened(entry))
            else:
                continue
            found.began = min(found.began, time.time() - (record.elapsed() or 0.0))
        if not found.ends:
            raise NotFound(
                f"nothing runs in group {group!r}, and nothing of it is left to be told; "
                "start processes with this group first"
            )
        self._save(found)
        self._by_id[found.id] = found
        outbox.acknowledge(ended)
        self._tell_if_complete(found)
        return list(found.ends)

    def _open(self, session: str, group: str) -> Gathering | None:
        for gathering in self._by_id.values():
            if (gathering.session, gathering.group) == (session, group) and not gathering.told:
                return gathering
        return None

    # -- ends ----------------------------------------------------------------------------------

    def ended(self, handle: str, entry: Entry) -> bool:
        """Take a member's end instead of its own event; False if it is nobody's member."""
        gathering = self._of(handle)
        if gathering is None:
            return False
        if gathering.ends[handle] is None:
            gathering.ends[handle] = _shortened(entry)
            try:
                self._save(gathering)
            except OSError:
                gathering.ends[handle] = None  # the disk is full; it is tried again
                raise
        self._tell_if_complete(gathering)
        return True

    def has(self, handle: str) -> bool:
        return self._of(handle) is not None

    def _of(self, handle: str) -> Gathering | None:
        for gathering in self._by_id.values():
            if handle in gathering.ends:
                return gathering
        return None

    def _tell_if_complete(self, gathering: Gathering) -> None:
        if gathering.told or not gathering.complete:
            return
        outbox = self._outbox(gathering.session)
        self._claim_for_waiters(gathering, outbox)
        outbox.append(gathering.entry())
        gathering.told = True
        self._save(gathering)
        self._forget_if_seen(gathering)

    def _claim_for_waiters(self, gathering: Gathering, outbox: OutboxWriter) -> None:
        """Where somebody waits for the end of each member, all of it is theirs to tell."""
        unseen = [each for each in gathering.ends if each not in gathering.seen]
        waiters = [outbox.claims.on(end_event_id(handle)) for handle in unseen]
        if all(waiters):
            for claim in {each.by: each for claims in waiters for each in claims}.values():
                outbox.claim(claim, [group_event_id(gathering.id)], lambda _: False, ahead=True)

    # -- acknowledgements ----------------------------------------------------------------------

    def acknowledged(self, session: str, ids: Iterable[str]) -> None:
        """The event itself was used, or somebody saw the end of one member."""
        given = set(ids)
        for gathering in [each for each in self._by_id.values() if each.session == session]:
            seen = {h for h in gathering.ends if end_event_id(h) in given} - gathering.seen
            if group_event_id(gathering.id) in given and gathering.told:
                self._forget(gathering)
            elif seen:
                gathering.seen |= seen
                try:
                    self._save(gathering)
                    self._forget_if_seen(gathering)
                except OSError as error:  # at worst it is told of once more
                    say(f"what was seen of a group cannot be written: {error}")

    def _forget_if_seen(self, gathering: Gathering) -> None:
        if gathering.told and gathering.seen.issuperset(gathering.ends):
            self._outbox(gathering.session).acknowledge([group_event_id(gathering.id)])
            self._forget(gathering)

    def _forget(self, gathering: Gathering) -> None:
        self._by_id.pop(gathering.id, None)
        drop(self._path(gathering.session, gathering.id))

    # -- on disk -------------------------------------------------------------------------------

    def _path(self, session: str, id: str) -> str:
        return f"{self._home.gathered(session)}/{id}.json"

    def _save(self, gathering: Gathering) -> None:
        make_private_directory(self._home.session(gathering.session))
        make_private_directory(self._home.gathered(gathering.session))
        data = json.dumps(gathering.to_json(), separators=(",", ":")).encode()
        replace_private(self._path(gathering.session, gathering.id), data)

    def move(self, old: str, new: str) -> None:
        """Give a session's gatherings to another."""
        for gathering in [each for each in self._by_id.values() if each.session == old]:
            gathering.session = new
            try:
                self._save(gathering)
            except OSError:
                gathering.session = old  # the disk is full; it is tried again
                raise

    def load(self) -> None:
        """Take up what an earlier worker left, before any end is told."""
        for session in self._home.session_names():
            try:
                names = os.listdir(self._home.gathered(session))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                say(f"the gatherings of a session cannot be read: {error}")
                continue
            for id in (name.removesuffix(".json") for name in names if name.endswith(".json")):
                try:
                    self._by_id[id] = self._read(session, id)
                except _UNREADABLE as error:
                    if is_for_now(error):
                        say(f"a gathering cannot be read: {error}")
                    else:
                        put_aside(self._path(session, id), f"{type(error).__name__}: {error}")

    def _read(self, session: str, id: str) -> Gathering:
        data = json.loads(read_private(self._path(session, id)))
        began = float(data["began"])
        if not 0 <= began < _LATEST:
            raise ValueError("it did not begin then")
        gathering = Gathering(id, session, str(data["group"]), began)
        for handle, end in data["ends"].items():
            gathering.ends[handle] = None if end is None else {**end, "status": str(end["status"])}
        gathering.seen = set(map(str, data["seen"]))
        gathering.told = bool(data["told"])
        return gathering

    def take_up(self, running: Callable[[str], bool]) -> None:
        """After every process was taken up: nobody else will tell of those that are gone."""
        for gathering in list(self._by_id.values()):
            try:
                outbox = self._outbox(gathering.session)
                outbox.acknowledge(map(end_event_id, gathering.ends))
                if gathering.told and group_event_id(gathering.id) not in outbox:
                    self._forget(gathering)
                    continue
                for handle, end in gathering.ends.items():
                    if end is None and not running(handle):
                        gathering.ends[handle] = {"handle": handle, "status": "lost"}
                self._tell_if_complete(gathering)
            except (OSError, HoldfastError) as error:
                say(f"a group cannot be told of yet: {error}")


def _shortened(entry: Entry) -> Entry:
    """A member's end: its own event, with less of its output."""
    kept = {key: value for key, value in entry.items() if key not in ("seq", "id", "type")}
    data = binascii.a2b_base64(str(kept.get("tail", "")))
    kept["tail"] = binascii.b2a_base64(data[-_TAIL:], newline=False).decode()
    return kept
