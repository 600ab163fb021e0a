"""The use of a process and all that belongs to it: processor, memory, files, ports.

Everything is from ``/proc`` and from the moment of the look; nothing is measured while nobody asks.
Which processes belong together, and where they are reached, their site says (`linux.site`). What
those used that have ended is in the processor time and the I/O of whoever waited for them, and else
in nothing.

Memory is counted in proportion where that is cheap (PSS: what several processes share is counted
once), because forked workers share much of theirs. The kernel walks the page tables for it, about
10 us for a MiB, so beyond 256 MiB it is the plain sum (RSS), and `memory_kind` says which.

I/O is what went to and from storage: what is read from the page cache or a socket is none.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from dataclasses import dataclass, field, fields

from ..core.record import rfc3339
from .ports import Snapshot
from .site import site_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any, Literal

    from ..core.record import Record

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_CHEAP_MEMORY = 256 << 20


@dataclass(slots=True)
class Usage:
    """One look at a process and all that belongs to it; None is what could not be known."""

    at: float  # seconds since the epoch
    cpu_percent: float | None = None  # 100 is one processor; since the look before this one
    cpu_average_percent: float | None = None  # the same since its start
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    memory_kind: Literal["pss", "rss"] = "pss"
    peak_memory_bytes: int | None = None  # the most that one process had, or all in a look
    processes: int | None = None
    threads: int | None = None
    open_files: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    ports: list[int] = field(default_factory=list)
    hidden: int = 0  # processes of another user, whose files, ports and I/O are not included
    # Not shown: what a later look compares with.
    clock: float = 0.0
    spent: float = 0.0

    def public(self) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in _PUBLIC}
        data["at"] = rfc3339(self.at)
        return data


_PUBLIC = tuple(f.name for f in fields(Usage) if f.name not in ("clock", "spent"))
_CURVES = (
    *("cpu_percent", "memory_bytes", "processes", "threads", "open_files"),
    *("read_bytes", "written_bytes"),
)


def usage(
    record: Record,
    *,
    interval: float = 0.0,
    since: Usage | None = None,
    look: Snapshot | None = None,
) -> Usage:
    """The usage of a process at one moment.

    The percentage of a processor needs two looks: this one and `since`, an earlier answer; or two
    that are `interval` seconds apart, for which this waits. Without either it is None, and there is
    only the average. A new `Snapshot` can be shared by all who are looked at in the same moment.
    """
    if interval > 0:
        before = {} if since is None else {record.handle: since}
        return usages([record], interval=interval, since=before)[record.handle]
    return _usage(record, since, look or Snapshot())


def usages(
    records: Iterable[Record], *, interval: float = 0.0, since: Mapping[str, Usage] | None = None
) -> dict[str, Usage]:
    """The same for many, by their handles; they share the looks, and the interval."""
    records = list(records)
    before = dict(since or {})
    if interval > 0:
        look = Snapshot()
        for record in records:
            before[record.handle] = _begin(record, before.get(record.handle), look)
        time.sleep(interval)
    look = Snapshot()
    return {record.handle: _usage(record, before.get(record.handle), look) for record in records}


class UsageHistory:
    """The last looks at one process, kept by whoever looks.

    history = UsageHistory()
    history.look(record)  # now and then; the percentage is since the look before
    history.public()["memory_bytes"]

    Looks that found nothing alive are not kept, so what it used is still here after its end.
    """

    __slots__ = ("_samples",)

    def __init__(self, limit: int = 120) -> None:
        self._samples: deque[Usage] = deque(maxlen=limit)

    def __repr__(self) -> str:
        last = f" {self._samples[-1]!r}" if self._samples else ""
        return f"<holdfast.UsageHistory of {len(self)} looks{last}>"

    def begin(self, record: Record) -> Usage:
        """Begin an interval: a look at its end says how much of a processor it had in it."""
        return _begin(record, self._last, Snapshot())

    def look(
        self, record: Record, *, since: Usage | None = None, look: Snapshot | None = None
    ) -> Usage:
        found = usage(record, since=since or self._last, look=look)
        if found.processes:
            self._samples.append(found)
        return found

    @property
    def _last(self) -> Usage | None:
        return self._samples[-1] if self._samples else None

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Usage]:
        return iter(list(self._samples))  # another thread may be looking

    def public(self) -> dict[str, list[Any]]:
        """The history for plots: a list for the times, and one for each thing that varies."""
        samples = list(self)
        data: dict[str, list[Any]] = {"at": [rfc3339(each.at) for each in samples]}
        for name in _CURVES:
            data[name] = [getattr(each, name) for each in samples]
        return data


def _begin(record: Record, since: Usage | None, look: Snapshot) -> Usage:
    """Only what a later look needs of this one, and of the one before."""
    members = _members(record, look)
    begun = Usage(time.time(), clock=time.monotonic(), spent=sum(each.spent for each in members))
    if since is not None:
        begun.memory_kind, begun.peak_memory_bytes = since.memory_kind, since.peak_memory_bytes
    return begun


def _usage(record: Record, since: Usage | None, look: Snapshot) -> Usage:
    found = Usage(time.time(), clock=time.monotonic())
    if not record.running:
        found.cpu_seconds, found.peak_memory_bytes = record.cpu_seconds, record.peak_memory_bytes
        _average(found, record)
    if sys.platform != "linux":
        return found
    site = site_of(record)
    if not site.visible:
        return found  # it has not begun, or cannot be looked into from here
    members = _members(record, look)
    found.processes = len(members)
    found.threads = sum(each.threads for each in members)
    if members:
        found.spent = sum(each.spent for each in members)
        if record.running:
            found.cpu_seconds = round(found.spent, 6)
            _average(found, record)
        if since is not None and found.clock > since.clock:
            # Less than before if one ended whom nobody in the family waited for.
            spent = max(0.0, found.spent - since.spent)
            found.cpu_percent = round(100 * spent / (found.clock - since.clock), 1)
        _count_memory(found, members, since)
        _count_files(found, members, look)
        found.ports = site.ports((each.pid for each in members), look)
    return found


def _average(found: Usage, record: Record) -> None:
    elapsed = record.elapsed()
    if elapsed and found.cpu_seconds is not None:
        found.cpu_average_percent = round(100 * found.cpu_seconds / elapsed, 1)


def _count_memory(found: Usage, members: list[_Member], since: Usage | None) -> None:
    # Once in plain sums, always: a curve must not jump because the way of counting changed.
    plain = sum(each.rss for each in members)
    shares: list[int | None] = [None]
    if plain <= _CHEAP_MEMORY and (since is None or since.memory_kind == "pss"):
        shares = [_kibibytes(each.pid, "smaps_rollup", b"Pss:") for each in members]
    known = [share for share in shares if share is not None]
    exact = len(known) == len(shares)
    found.memory_bytes, found.memory_kind = (sum(known), "pss") if exact else (plain, "rss")
    peaks = [found.memory_bytes, found.peak_memory_bytes]
    peaks += [] if since is None else [since.peak_memory_bytes]
    peaks += [_kibibytes(each.pid, "status", b"VmHWM:") for each in members]
    found.peak_memory_bytes = max(peak for peak in peaks if peak is not None)


def _count_files(found: Usage, members: list[_Member], look: Snapshot) -> None:
    for each in members:
        open_files = look.descriptors(each.pid)
        moved = _moved(each.pid)
        if open_files is None or moved is None:
            found.hidden += 1
            continue
        found.open_files = (found.open_files or 0) + open_files.count
        found.read_bytes = (found.read_bytes or 0) + moved[0]
        found.written_bytes = (found.written_bytes or 0) + moved[1]


# -- the kernel ------------------------------------------------------------------------------------


class _Member:
    __slots__ = ("pid", "rss", "spent", "threads")

    def __init__(self, pid: int, line: bytes) -> None:
        rest = line[line.rindex(b")") + 2 :].split()
        self.pid = pid
        self.threads, self.rss = int(rest[17]), int(rest[21]) * _PAGE
        own = (int(rest[11]) + int(rest[12])) / _TICKS
        try:
            # The clock of another process (clock_getcpuclockid) is exact where stat has ticks.
            own = time.clock_gettime(~pid << 3 | 2)
        except OSError:
            pass
        self.spent = own + (int(rest[13]) + int(rest[14])) / _TICKS  # with those it waited for


def _members(record: Record, look: Snapshot) -> list[_Member]:
    found = []
    for pid in site_of(record).family(look):
        line = _read(pid, "stat")
        if line:
            found.append(_Member(pid, line))
    return found


def _read(pid: int, name: str) -> bytes:
    """Empty if the process is gone, or the file is not for us."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def _after(text: bytes, label: bytes) -> int | None:
    _, label, rest = text.partition(label)
    return int(rest.split(None, 1)[0]) if label else None


def _kibibytes(pid: int, name: str, label: bytes) -> int | None:
    found = _after(_read(pid, name), label)
    return None if found is None else found * 1024


def _moved(pid: int) -> tuple[int, int] | None:
    text = _read(pid, "io")
    read, written = _after(text, b"\nread_bytes:"), _after(text, b"\nwrite_bytes:")
    return None if read is None or written is None else (read, written)
