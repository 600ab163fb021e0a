"""A session's events: append, read after a number, acknowledge.

DESIGN. ``outbox.jsonl`` is append-only and has one writer, the keeper. A line is an event with a
number, or an acknowledgement naming event ids. Readers take it straight from the disk. A torn last
line (a crash or a full disk in the middle of an append) is skipped by readers; the writer starts a
new line after it, and the event it was to be is appended again, because the record it came from
still says running.

Ids are stable (``<handle>:end``), so a consumer that was told twice can tell. The file is rewritten
without what was acknowledged once that is most of it; more than `LIMIT` unacknowledged events are
cut down to a gap mark that says how many were let go.

A claim says who will tell of an event: the name of the claim, and the client's process. While that
lives, nobody else is told. An event that is there is claimed by one; the end of a process that
still runs may be claimed ahead, by everybody who waits for it, so that there is no moment in which
others see it. A claim ends when its events are acknowledged, when whoever has it lets go of it, and
with its process: the event is then everybody's again. Claims outlive the rewriting as they are, and
so do the last acknowledgements: what they name is not told again.
"""

from __future__ import annotations

import binascii
import json
import os

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
from .wire import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from .types import Status

LIMIT = 1000
_KEPT_AT_OVERFLOW = 900
_COMPACT_LINES = 200
# Acknowledged events that are remembered when an outbox is written anew. A worker that was killed
# between telling of an end and writing that down tells again.
_REMEMBERED = 200


class Claim:
    """A claim on events: its name, the client that made it, and that client's process."""

    __slots__ = ("by", "client", "ids", "pid", "start_time")

    def __init__(self, by: str, client: str, pid: int, start_time: int) -> None:
        self.by = by
        self.client = client
        self.pid = pid
        self.start_time = start_time
        self.ids: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<Claim {self.by} of pid {self.pid} on {', '.join(self.ids)}>"

    def line(self, ids: Iterable[str]) -> bytes:
        return encode(
            {
                "claim": list(ids),
                "by": self.by,
                "client": self.client,
                "pid": self.pid,
                "start": self.start_time,
            }
        )


class Claims:
    """The claims of one outbox that are in force, by their names."""

    __slots__ = ("by",)

    def __init__(self) -> None:
        self.by: dict[str, Claim] = {}

    def heed(self, entry: dict[str, Any]) -> None:
        """Take in a line of the file, of whatever kind."""
        if "ack" in entry:
            self.acknowledged(entry["ack"], entry.get("by"))
        elif "claim" in entry:
            by, pid, start = (entry.get(key) for key in ("by", "pid", "start"))
            if isinstance(by, str) and type(pid) is int and type(start) is int:
                claim = Claim(by, str(entry.get("client")), pid, start)
                self.by.setdefault(by, claim).ids.update(dict.fromkeys(entry["claim"]))
        elif "free" in entry:
            for by in entry["free"]:
                self.by.pop(by, None)

    def acknowledged(self, ids: Iterable[str], by: object = None) -> None:
        """Nobody needs to claim these any more; and a claim that was used is over."""
        if isinstance(by, str):
            self.by.pop(by, None)
        for event_id in ids:
            for claim in self.on(event_id):
                del claim.ids[event_id]
                if not claim.ids:
                    self.by.pop(claim.by, None)

    def on(self, event_id: str) -> list[Claim]:
        return [claim for claim in self.by.values() if event_id in claim.ids]


def read_events(home: Home, session: str) -> list[Event]:
    """Every event in the outbox, in order, each marked acknowledged or not."""
    return read_outbox(home, session)[0]


def read_outbox(home: Home, session: str) -> tuple[list[Event], Claims]:
    """Every event in the outbox, and who has claimed which."""
    claims = Claims()
    try:
        data = read_private(home.outbox(session))
    except (FileNotFoundError, NotADirectoryError):
        return [], claims
    except OSError as error:
        raise cannot(f"read the events of session {session!r}", error) from error
    events: dict[str, Event] = {}
    acknowledged: set[str] = set()
    for entry in _entries(data):
        if "seq" in entry:
            event = _event(entry, session)
            events.setdefault(event.id, event)
            continue
        acknowledged.update(entry.get("ack", ()))
        claims.heed(entry)
    for event_id in acknowledged & events.keys():
        events[event_id].acknowledged = True
    return list(events.values()), claims


def new_claim() -> str:
    """A name for a claim that nobody else has."""
    return os.urandom(8).hex()


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

    __slots__ = (
        "_done",
        "_home",
        "_late",
        "_lines",
        "_next",
        "_open",
        "_path",
        "_session",
        "claims",
    )

    def __init__(self, home: Home, session: str) -> None:
        self._home = home
        self._session = session
        self._path = home.outbox(session)
        make_private_directory(home.session(session))
        self._next = 1
        self._open: dict[str, int] = {}
        self._done: dict[str, int] = {}  # acknowledged, and not to be told again
        self.claims = Claims()
        self._late = b""  # lines for which there was no room
        self._lines = 0
        self._load()

    def _load(self) -> None:
        try:
            data = read_private(self._path)
        except FileNotFoundError:
            return
        for entry in _entries(data):
            self._lines += 1
            self.claims.heed(entry)
            if "ack" in entry:
                for event_id in entry["ack"]:
                    self._done[event_id] = self._open.pop(event_id, 0)
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
        self._append(encode(line))
        self._next = seq + 1
        self._open[event_id] = seq
        self._lines += 1
        if len(self._open) > LIMIT:
            self._overflow()
        return seq

    def claim(
        self, claim: Claim, ids: list[str], lives: Callable[[Claim], bool], *, ahead: bool
    ) -> list[str]:
        """Claim events; those that are this claim's from now on.

        Of one that is there, nobody else who `lives` may have a claim. `ahead`: others, which are
        still to come, are shared with whoever else claims them so. Whoever asks again under the
        same name, because the answer was lost, gets the same answer.
        """
        held = self.claims.by.get(claim.by)
        known = held.ids if held is not None else {}
        fresh: list[str] = []
        for event_id in ids:
            if event_id in known or event_id in self._done:
                continue
            if event_id in self._open:
                if any(lives(other) for other in self.claims.on(event_id)):
                    continue
            elif not ahead:
                continue
            fresh.append(event_id)
        if fresh:
            # Whoever has the claim on an event that is there tells of it: that must be on disk, for
            # a successor of ours. A waiter is answered, on a full disk too.
            write = self._write_in_time if ahead else self._write
            write(claim.line(fresh))
            held = self.claims.by.setdefault(claim.by, claim)
            held.ids.update(dict.fromkeys(fresh))
            self._tidy()
        return [event_id for event_id in ids if held is not None and event_id in held.ids]

    def free(self, names: Iterable[str], ids: list[str] | None = None) -> None:
        """Let go of claims, or of these events of theirs: they are everybody's again."""
        given = [self.claims.by[by] for by in names if by in self.claims.by]
        if not given:
            return
        data = encode({"free": [claim.by for claim in given]})
        for claim in given:
            del self.claims.by[claim.by]
            claim.ids = {each: None for each in claim.ids if ids is not None and each not in ids}
            if claim.ids:
                self.claims.by[claim.by] = claim
                data += claim.line(claim.ids)
        self._write_in_time(data)
        self._tidy()

    def acknowledge(self, ids: Iterable[str], by: str = "") -> list[str]:
        """Mark events as used; returns the ones that were still open.

        `by`, the claim that they were used under, is over then. What it claimed ahead may not be
        there yet, because the disk is full, and is not told any more.
        """
        claim = self.claims.by.get(by)
        given = [event_id for event_id in ids if event_id not in self._done]
        done = [event_id for event_id in given if event_id in self._open]
        ahead = [each for each in given if claim is not None and each in claim.ids]
        known = list(dict.fromkeys(done + ahead))
        if known or claim is not None:
            self._write(encode({"ack": known, "by": by} if claim is not None else {"ack": known}))
            for event_id in known:
                self._done[event_id] = self._open.pop(event_id, 0)
            self.claims.acknowledged(known, by)
            self._tidy()
        return done

    def _write_in_time(self, line: bytes) -> None:
        """Append now, or on a full disk before whatever is appended next."""
        try:
            self._write(line)
        except OSError:
            self._late += line

    def _write(self, line: bytes) -> None:
        self._append(line)
        self._lines += 1

    def _tidy(self) -> None:
        """Write the file anew when most of it is about what nobody needs any more."""
        needed = len(self._open) + len(self.claims.by)
        if self._lines > _COMPACT_LINES and self._lines > 4 * needed:
            try:
                self._rewrite()
            except OSError:
                return  # the disk is full: one more line may still find room

    def _append(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            fd = open_private(self._path, flags)
        except FileNotFoundError:  # its directory was deleted under us
            make_private_directory(self._home.session(self._session))
            fd = open_private(self._path, flags)
        data = self._late + data
        try:
            written = os.write(fd, data)
            if written < len(data):
                self._append_rest(fd, data, written)
            self._late = b""
        finally:
            os.close(fd)

    def _append_rest(self, fd: int, data: bytes, written: int) -> None:
        size = os.fstat(fd).st_size - written
        try:
            write_all(fd, data[written:])
        except OSError:
            os.ftruncate(fd, size)  # a full disk: leave no half line behind
            raise

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
        lines = [encode({"next": self._next})]
        lines += [encode(entry) for entry in entries]
        remembered = list(self._done)[-_REMEMBERED:]
        if remembered:
            lines.append(encode({"ack": remembered}))
        lines += [claim.line(claim.ids) for claim in self.claims.by.values()]
        replace_private(self._path, b"".join(lines))
        self._late = b""
        self._open = {entry["id"]: entry["seq"] for entry in entries}
        self._done = dict.fromkeys(remembered, 0)
        self._lines = len(lines)


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
    for kind in ("ack", "claim", "free"):
        if kind in entry:
            ids = entry[kind]
            return isinstance(ids, list) and all(isinstance(each, str) for each in ids)
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
