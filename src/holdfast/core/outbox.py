"""A session's events: append, read after a number, acknowledge.

DESIGN. ``outbox.jsonl`` is append-only and has one writer, the keeper. A line is an event with a
number, or an acknowledgement naming event ids. Readers take it straight from the disk. A torn last
line (a crash or a full disk in the middle of an append) is skipped by readers; the writer starts a
new line after it, and the event it was to be is appended again, because the record it came from
still says running.

Ids are stable (``<handle>:end``), so a consumer that was told twice can tell. The file is rewritten
without what was acknowledged once that is most of it; more than `LIMIT` unacknowledged events are
cut down to a gap mark that says how many were let go.

An acknowledgement may say `by` whom: a claim. Whoever asks again under that name gets the same
answer, so a claim outlives the rewriting, which may happen within the very request: the last ones
are written again, and of the others those that a client may still ask for.
"""

from __future__ import annotations

import binascii
import json
import os
import time

from .home import (
    Home,
    cannot,
    make_private_directory,
    open_private,
    read_private,
    replace_private,
    write_all,
)
from .record import Event, Member

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .types import Status

LIMIT = 1000
_KEPT_AT_OVERFLOW = 900
_COMPACT_LINES = 200
# Claims that are kept when an outbox is written anew: the last ones in any case, more for as long
# as a client may still be trying to ask again.
_CLAIMS_KEPT, _CLAIMS_AT_MOST = 100, 1000
_CLAIM_SECONDS = 120.0


def read_events(home: Home, session: str) -> list[Event]:
    """Every event in the outbox, in order, each marked acknowledged or not."""
    try:
        data = read_private(home.outbox(session))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise cannot(f"read the events of session {session!r}", error) from error
    events: dict[str, Event] = {}
    for entry in _entries(data):
        if "ack" in entry:
            for event_id in entry["ack"]:
                if event_id in events:
                    events[event_id].acknowledged = True
        elif "seq" in entry:
            event = _event(entry, session)
            events.setdefault(event.id, event)
    return list(events.values())


def end_event_id(handle: str) -> str:
    return f"{handle}:end"


def input_event_id(handle: str, offset: int, times: int = 0) -> str:
    """One for each prompt: where in the log it is, and how many there were before at that place."""
    return f"{handle}:input:{offset}" + (f".{times}" if times else "")


def watch_event_id(handle: str, watch: str, key: str) -> str:
    """One for each place to which a watch was moved; see `core.watch`."""
    return f"{handle}:watch:{watch}:{key}"


def group_event_id(gathering: str) -> str:
    return f"{gathering}:end"


class OutboxWriter:
    """The keeper's side of one session's outbox."""

    __slots__ = ("_claims", "_done", "_home", "_lines", "_next", "_open", "_path", "_session")

    def __init__(self, home: Home, session: str) -> None:
        self._home = home
        self._session = session
        self._path = home.outbox(session)
        make_private_directory(home.session(session))
        self._next = 1
        self._open: dict[str, int] = {}
        self._done: dict[str, int] = {}  # acknowledged, and not to be told again
        # Who acknowledged what, as far as they said, and when; oldest first.
        self._claims: dict[str, tuple[list[str], float]] = {}
        self._lines = 0
        self._load()

    def _load(self) -> None:
        try:
            data = read_private(self._path)
        except FileNotFoundError:
            return
        for entry in _entries(data):
            self._lines += 1
            if "ack" in entry:
                for event_id in entry["ack"]:
                    self._done[event_id] = self._open.pop(event_id, 0)
                if isinstance(entry.get("by"), str):
                    self._claims[entry["by"]] = entry["ack"], _clock(entry.get("clock"))
            elif "seq" in entry:
                if entry["id"] not in self._done:
                    self._open.setdefault(entry["id"], entry["seq"])
                self._next = max(self._next, entry["seq"] + 1)
            elif "next" in entry:
                self._next = max(self._next, entry["next"])
        if data and not data.endswith(b"\n"):
            self._append(b"\n")

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._open

    @property
    def pending(self) -> int:
        return len(self._open)

    def open_prompts(self, handle: str) -> list[str]:
        """The prompts of a process that nobody has acknowledged."""
        return [event_id for event_id in self._open if event_id.startswith(f"{handle}:input:")]

    def prompts_at(self, handle: str, offset: int) -> list[str]:
        """The prompts known at one place of a log, acknowledged or not."""
        first = input_event_id(handle, offset)
        known = [*self._open, *self._done]
        return [each for each in known if each == first or each.startswith(first + ".")]

    def watch_keys(self, handle: str, watch: str) -> list[str]:
        """The ends of the ids of a watch's events, as far as they are known."""
        first = watch_event_id(handle, watch, "")
        known = [*self._open, *self._done]
        return [each.removeprefix(first) for each in known if each.startswith(first)]

    def open_watch_events(self, handle: str) -> list[str]:
        return [event_id for event_id in self._open if event_id.startswith(f"{handle}:watch:")]

    def append(self, entry: dict[str, Any]) -> int:
        """Append an event (a dict with an ``id``), once, and return its number."""
        event_id = entry["id"]
        seq = self._open.get(event_id) or self._done.get(event_id)
        if seq is not None:
            return seq
        seq = self._next
        line = {"seq": seq, **entry}
        self._append(_line(line))
        self._next = seq + 1
        self._open[event_id] = seq
        self._lines += 1
        if len(self._open) > LIMIT:
            self._overflow()
        return seq

    def acknowledge(self, ids: Iterable[str], by: str = "") -> list[str]:
        """Mark events as used; returns the ones that were still open.

        Whoever asks again under the same name, because the answer was lost, gets the same answer.
        """
        if by in self._claims:
            return self._claims[by][0]
        done = [event_id for event_id in ids if event_id in self._open]
        if done:
            claim = (done, time.monotonic())
            self._append(_claim_line(by, *claim) if by else _line({"ack": done}))
            self._lines += 1
            if by:
                self._claims[by] = claim
            for event_id in done:
                self._done[event_id] = self._open.pop(event_id)
            if self._lines > _COMPACT_LINES and self._lines > 4 * len(self._open):
                self._rewrite()
        return done

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            fd = open_private(self._path, flags)
        except FileNotFoundError:  # its directory was deleted under us
            make_private_directory(self._home.session(self._session))
            fd = open_private(self._path, flags)
        try:
            size = os.fstat(fd).st_size
            try:
                write_all(fd, data)
            except OSError:
                os.ftruncate(fd, size)  # a full disk: leave no half line behind
                raise
        finally:
            os.close(fd)

    def open_entries(self, ids: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
        """The entries with these ids, or all, that nobody has acknowledged."""
        wanted = set(self._open) if ids is None else {each for each in ids if each in self._open}
        if not wanted:
            return {}
        return {entry["id"]: entry for entry in self._open_entries() if entry["id"] in wanted}

    def _overflow(self) -> None:
        entries = self._open_entries()
        dropped, kept = entries[:-_KEPT_AT_OVERFLOW], entries[-_KEPT_AT_OVERFLOW:]
        if not dropped:  # somebody has emptied it
            self._rewrite(kept)
            return
        last = dropped[-1]
        count = sum(_number(entry.get("dropped", 1)) or 1 for entry in dropped)
        mark = {
            "seq": last["seq"],
            "id": f"gap:{last['seq']}",
            "type": "gap",
            "at": last["at"],
            "dropped": count,
        }
        self._rewrite([mark, *kept])

    def _open_entries(self) -> list[dict[str, Any]]:
        seen: dict[str, dict[str, Any]] = {}
        try:
            data = read_private(self._path)
        except FileNotFoundError:
            return []
        for entry in _entries(data):
            if entry.get("id") in self._open and "seq" in entry:
                seen.setdefault(entry["id"], entry)
        return list(seen.values())

    def _rewrite(self, entries: list[dict[str, Any]] | None = None) -> None:
        if entries is None:
            entries = self._open_entries()
        lines = [_line({"next": self._next})]
        lines += [_line(entry) for entry in entries]
        claims = self._lasting_claims()
        kept = [_claim_line(by, *claim) for by, claim in claims.items()]
        replace_private(self._path, b"".join(lines + kept))
        self._open = {entry["id"]: entry["seq"] for entry in entries}
        self._done = {event_id: 0 for ids, _ in claims.values() for event_id in ids}
        self._claims = claims
        self._lines = len(lines)  # of claims there are never too many

    def _lasting_claims(self) -> dict[str, tuple[list[str], float]]:
        last = list(self._claims.items())[-_CLAIMS_AT_MOST:]
        now = time.monotonic()
        return {
            by: claim
            for left, (by, claim) in zip(range(len(last), 0, -1), last, strict=True)
            if left <= _CLAIMS_KEPT or 0 <= now - claim[1] < _CLAIM_SECONDS
        }


def _claim_line(by: str, ids: list[str], clock: float) -> bytes:
    return _line({"ack": ids, "by": by, "clock": round(clock, 3)})


def _clock(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e12 else 0.0


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _entries(data: bytes) -> Iterable[dict[str, Any]]:
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and _makes_sense(entry):
            yield entry


def _makes_sense(entry: dict[str, Any]) -> bool:
    """One damaged line must not take the others along."""
    if "ack" in entry:
        ids = entry["ack"]
        return isinstance(ids, list) and all(isinstance(event_id, str) for event_id in ids)
    if "seq" in entry:
        texts = (entry.get("id"), entry.get("type"), entry.get("at"), entry.get("tail", ""))
        return _is_number(entry["seq"]) and all(isinstance(text, str) for text in texts)
    return _is_number(entry.get("next"))


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _number(value: object) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 62 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _status(value: object) -> Status | None:
    return value if isinstance(value, str) else None  # type: ignore[return-value]  # as written


def _seconds(value: object) -> float | None:
    return value if type(value) in (int, float) and abs(value) < 1e12 else None  # type: ignore


def _command(value: object) -> str | list[str]:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    return value if isinstance(value, str) else ""


def _decoded(tail: str) -> bytes:
    try:
        return binascii.a2b_base64(tail)
    except ValueError:
        return b""


def _texts(groups: object) -> list[str | None]:
    if not isinstance(groups, list):
        return []
    return [None if group is None else str(group) for group in groups]


def _event(entry: dict[str, Any], session: str) -> Event:
    return Event(
        seq=entry["seq"],
        id=entry["id"],
        type=entry["type"],
        at=entry["at"],
        session=session,
        handle=_text(entry.get("handle")),
        label=_text(entry.get("label")) or "",
        command=_command(entry.get("command")),
        status=_status(entry.get("status")),
        exit_code=_number(entry.get("exit_code")),
        signal=_text(entry.get("signal")),
        reason=_text(entry.get("reason")),
        duration_seconds=_seconds(entry.get("duration_seconds")),
        tail=_decoded(entry.get("tail", "")),
        prompt=str(entry.get("prompt", "")),
        kind=str(entry.get("kind", "")),
        watch=str(entry.get("watch", "")),
        condition=str(entry.get("condition", "")),
        match=str(entry.get("match", "")),
        groups=_texts(entry.get("groups")),
        line=str(entry.get("line", "")),
        stream=str(entry.get("stream", "")),
        offset=_number(entry.get("offset")),
        nth=_number(entry.get("nth")) or 0,
        most=_number(entry.get("most")) or 0,
        missed=_number(entry.get("missed")) or 0,
        last=bool(entry.get("last", False)),
        dropped=_number(entry.get("dropped")) or 0,
        agent=str(entry.get("agent", "")),
        group=str(entry.get("group", "")),
        members=[_member(each) for each in _tables(entry.get("members"))],
    )


def _tables(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _member(entry: dict[str, Any]) -> Member:
    return Member(
        handle=str(entry.get("handle", "")),
        label=str(entry.get("label", "")),
        command=_command(entry.get("command")),
        status=_status(entry.get("status")) or "lost",
        exit_code=_number(entry.get("exit_code")),
        signal=_text(entry.get("signal")),
        reason=_text(entry.get("reason")),
        duration_seconds=_seconds(entry.get("duration_seconds")),
        tail=_decoded(str(entry.get("tail", ""))),
    )
