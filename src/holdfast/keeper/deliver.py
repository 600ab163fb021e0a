"""Telling of an end, a prompt, or what a watch saw: the outbox entry, then the record that says so.

Whoever sees in a record that a process has ended finds the entry too, unless the end is somebody
else's: where a waiter has claimed it, the waiter is answered first. A worker that dies in between
leaves a record that says running, or not told; its successor appends the entry unless it is there:
an entry is never appended twice, for its id is the process's own. On a full disk the entry waits
here, and the record on disk says that it was not told meanwhile.
"""

from __future__ import annotations

import binascii
import os
import time

from ..core.completion_text import TAIL_BYTES, joined_tail
from ..core.errors import StoreError
from ..core.home import Home, unusable
from ..core.outbox import OutboxWriter, end_event_id, input_event_id, watch_event_id
from ..core.record import DEFAULT_SESSION, rfc3339
from ..core.store import Store
from ..core.watch import advance, catch_up, condition, is_live, key
from .claims import Claims
from .damaged_files import clear_way, clear_way_for_directory, is_for_now
from .group_end import Gatherings
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.record import Record
    from ..core.watch import Watch
    from .child import Child
    from .connection import Connection
    from .log_writer import LogWriter
    from .loop import Loop, Timer

_AGAIN = 1.0
_OPEN_OUTBOXES = 100


class Delivery:
    __slots__ = (
        "_home",
        "_loop",
        "_on_saved",
        "_outboxes",
        "_store",
        "_timer",
        "_unsaved",
        "claims",
        "gatherings",
    )

    def __init__(
        self, home: Home, store: Store, loop: Loop, on_saved: Callable[[Child], None]
    ) -> None:
        self._home = home
        self._store = store
        self._loop = loop
        self._on_saved = on_saved
        self._outboxes: dict[str, OutboxWriter] = {}
        self._unsaved: dict[str, Child] = {}
        self._timer: Timer | None = None
        self.gatherings = Gatherings(home, self.outbox)
        self.claims = Claims(loop, self._outbox_if_any)

    def __contains__(self, handle: str) -> bool:
        """True while the end of this process is not written down yet."""
        return handle in self._unsaved

    def first_end(self, child: Child) -> None:
        """Tell of an end and write it down, before anybody is answered.

        Of one that a waiter has claimed it is enough that it is written down: nobody else is to be
        told, and `end`, which comes next, tells it.
        """
        if not os.path.lexists(self._home.meta(child.record.handle)):
            try:  # somebody deleted it while it ran, perhaps with the whole home
                self._home.ensure()
                self._store.restore(child.record)
            except (OSError, StoreError) as error:
                say(f"{child.record.handle}: {error}")
        if child.waiters and self._is_claimed(child.record):
            try:
                self._store.save(child.record)
            except (OSError, StoreError):
                pass  # `end` writes it too, and says what is wrong
        else:
            self.end(child)

    def _is_claimed(self, record: Record) -> bool:
        outbox = self._outboxes.get(record.session)
        return outbox is not None and bool(outbox.claims.on(end_event_id(record.handle)))

    def end(self, child: Child) -> None:
        """Tell of an end, or of what was learnt about it since."""
        record = child.record
        problem: OSError | StoreError | None = None
        try:
            if not record.told:
                self._append(child)
                record.told = True
        except (OSError, StoreError) as error:
            problem = error
        try:
            self._store.save(record)  # also where it could not be told yet
        except FileNotFoundError:
            problem = None  # deleted under us, perhaps with the whole home
        except (OSError, StoreError) as error:
            problem = problem or error
        if problem is None:
            self._unsaved.pop(record.handle, None)
            return
        if record.handle not in self._unsaved:
            say(f"{record.handle}: its end cannot be written yet: {problem}")
        if not is_for_now(problem):
            self._restore(record)
            self._outboxes.pop(record.session, None)  # what is in its place is looked at again
        self._unsaved[record.handle] = child
        if self._timer is None:
            self._timer = self._loop.after(_AGAIN, self._again)

    def _restore(self, record: Record) -> None:
        """See that there is a record to be written to next time, and nothing else in its place."""
        if unusable(self._home.meta(record.handle)):
            try:
                say(f"{record.handle}: set aside as {self._store.restore(record)}")
            except OSError as error:
                say(f"{record.handle}: its record cannot be written anew: {error}")

    def _append(self, child: Child) -> None:
        record = child.record
        entry = {
            "id": end_event_id(record.handle),
            "type": "end",
            "at": record.ended_at,
            "handle": record.handle,
            "label": record.label,
            "group": record.group,
            "command": record.command,
            "status": record.status,
            "exit_code": record.exit_code,
            "signal": record.signal,
            "reason": record.reason,
            "duration_seconds": record.duration_seconds,
            "tail": binascii.b2a_base64(_tail(child), newline=False).decode(),
        }
        outbox = self.outbox(record.session)
        if record.stdin:  # nobody can answer what it asked any more
            outbox.acknowledge(outbox.open_prompts(record.handle))
        if not self.gatherings.ended(record.handle, entry):
            outbox.append(entry)

    def prompt(self, child: Child, said: dict[str, Any], *, again: bool) -> None:
        """Tell that a process waits for input: once for each place in its log, or `again` there."""
        record = child.record
        try:
            outbox = self.outbox(record.session)
            known = outbox.prompts_at(record.handle, int(said["offset"]))
            if known and not again:
                return  # by a watcher that was started anew
            outbox.acknowledge(outbox.open_prompts(record.handle))  # it has gone on since
            tail = str(said.get("screen") or "").encode() or _tail(child)
            outbox.append(
                {
                    "id": input_event_id(record.handle, int(said["offset"]), len(known)),
                    "type": "input",
                    "at": rfc3339(time.time()),
                    "handle": record.handle,
                    "label": record.label,
                    "command": record.command,
                    "status": record.status,
                    "prompt": str(said["prompt"]),
                    "kind": str(said["kind"]),
                    "duration_seconds": round(record.elapsed() or 0.0, 6),
                    "tail": binascii.b2a_base64(tail[-TAIL_BYTES:], newline=False).decode(),
                }
            )
        except OSError as error:
            say(f"{record.handle}: its prompt cannot be told of: {error}")

    def watch(self, record: Record, watch: Watch, said: dict[str, Any]) -> None:
        """Move a watch on, and tell what it saw on the way; OSError if that cannot be told now."""
        place, partly, over = said["place"], said["partly"], bool(said.get("over"))
        seen = said.get("event")
        if seen is not None:
            nth = watch["told"] + 1
            self.outbox(record.session).append(
                {
                    "id": watch_event_id(
                        record.handle, watch["id"], key(place, partly, watch["place"])
                    ),
                    "type": "watch",
                    "at": rfc3339(time.time()),
                    "handle": record.handle,
                    "label": record.label,
                    "command": record.command,
                    "status": record.status,
                    "watch": watch["id"],
                    "condition": condition(watch),
                    "match": str(seen.get("match", "")),
                    "groups": list(seen.get("groups", ())),
                    "line": str(seen["line"]),
                    "stream": str(seen.get("stream", "")),
                    "offset": seen.get("offset"),
                    "reason": seen.get("reason"),
                    "nth": nth,
                    "most": watch["most"],
                    "missed": int(seen.get("missed", 0)),
                    "last": over or nth >= watch["most"],
                    "duration_seconds": round(record.elapsed() or 0.0, 6),
                    "tail": str(seen["tail"]),
                }
            )
            watch["clock"] = time.monotonic()
        advance(watch, place, partly, told=seen is not None, over=over)
        self._save_watches(record)

    def take_up_watches(self, record: Record) -> None:
        """A worker may have died between telling what a watch saw and writing that down."""
        if not any(is_live(watch) for watch in record.watches):
            return
        try:
            outbox = self.outbox(record.session)
            behind = [
                watch
                for watch in record.watches
                if is_live(watch) and catch_up(watch, outbox.watch_keys(record.handle, watch["id"]))
            ]
        except OSError as error:
            say(f"{record.handle}: what was told of its watches cannot be read: {error}")
            return
        if behind:
            self._save_watches(record)

    def watches_done(self, record: Record) -> None:
        """Note that an ended process's output was looked at to the end."""
        for watch in record.watches:
            watch["done"] = True
        self._save_watches(record)

    def _save_watches(self, record: Record) -> None:
        try:
            self._store.save(record)
        except FileNotFoundError:
            return  # deleted under us
        except OSError as error:
            # The outbox says as much, should we be killed; the next save may succeed.
            say(f"{record.handle}: its watches cannot be written down: {error}")

    def acknowledge_watches(self, record: Record) -> None:
        """Acknowledge what watches saw of a process that is to be forgotten."""
        if not record.watches_made:
            return
        try:
            outbox = self.outbox(record.session)
            outbox.acknowledge(outbox.open_watch_events(record.handle))
        except OSError as error:
            say(f"{record.handle}: its events cannot be acknowledged: {error}")

    def acknowledge_prompts(self, record: Record) -> None:
        """Nobody needs to be told of these any more: they are answered, or it has ended."""
        try:
            outbox = self.outbox(record.session)
            outbox.acknowledge(outbox.open_prompts(record.handle))
        except OSError as error:
            say(f"{record.handle}: its prompts cannot be acknowledged: {error}")

    def _again(self) -> None:
        self._timer = None
        for handle, child in list(self._unsaved.items()):
            self.end(child)
            if handle not in self._unsaved:
                self._on_saved(child)

    def settle(self, child: Child) -> None:
        """Before it is forgotten: its group is still to be told how it ended."""
        record = child.record
        if not record.told and self.gatherings.has(record.handle):
            self._append(child)
            record.told = True

    def forget(self, handle: str) -> None:
        self._unsaved.pop(handle, None)

    def acknowledge(self, session: str, ids: list[str], by: str = "") -> list[str]:
        outbox = self._outbox_if_any(session)
        if outbox is None:
            return []
        self.gatherings.acknowledged(session, ids)
        return outbox.acknowledge(ids, by)

    def claim(
        self, connection: Connection, session: str, ids: list[str], by: object, *, ahead: bool
    ) -> list[str]:
        """Claim events for a client; see `claims`."""
        if not ahead and self._outbox_if_any(session) is None:
            return []
        outbox = self.outbox(session)
        return self.claims.claim(connection, outbox, session, ids, by, ahead=ahead)

    def claim_end(self, connection: Connection, record: Record, by: object) -> None:
        """The client on this connection will be shown how a process ended.

        Of somebody else's process nothing is claimed, as nothing of it is acknowledged.
        """
        if by is None or record.session != (connection.session or DEFAULT_SESSION):
            return
        ids = [end_event_id(record.handle)]
        try:
            self.claim(connection, record.session, ids, by, ahead=record.running)
        except OSError as error:  # no reason not to start, stop or wait for it
            say(f"{record.handle}: its end cannot be claimed: {error}")

    def free(self, session: str, by: str, ids: list[str] | None = None) -> None:
        outbox = self._outbox_if_any(session)
        if outbox is not None:
            outbox.free([by], ids)

    def pending(self, session: str) -> int:
        """The number of events of a session that nobody has acknowledged."""
        outbox = self._outbox_if_any(session)
        return 0 if outbox is None else outbox.pending

    def move(self, old: str, new: str) -> None:
        """Give a session's events to another; what is there already is not told twice."""
        if os.path.exists(self._home.outbox(old)):
            source, target = self.outbox(old), self.outbox(new)
            entries = source.open_entries()
            for entry in entries.values():
                target.append({key: value for key, value in entry.items() if key != "seq"})
            source.acknowledge(entries)
        self._outboxes.pop(old, None)
        self.gatherings.move(old, new)

    def _outbox_if_any(self, session: str) -> OutboxWriter | None:
        known = session in self._outboxes or os.path.exists(self._home.outbox(session))
        return self.outbox(session) if known else None

    def outbox(self, session: str) -> OutboxWriter:
        writer = self._outboxes.get(session)
        if writer is None:
            if len(self._outboxes) >= _OPEN_OUTBOXES:
                self._outboxes.clear()
            clear_way_for_directory(self._home.session(session))
            clear_way(self._home.outbox(session))
            writer = self._outboxes[session] = OutboxWriter(self._home, session)
        return writer


def _tail(child: Child) -> bytes:
    """The last output: of stdout, and after it of stderr where that is separate."""
    out, *rest = [_last_of(writer) for writer in child.writers] or [b""]
    return joined_tail(out, *rest) if rest else out


def _last_of(writer: LogWriter) -> bytes:
    try:
        return writer.tail(TAIL_BYTES)
    except OSError as error:
        if is_for_now(error):
            raise
        return b""  # what became of its log is no reason not to tell of its end
