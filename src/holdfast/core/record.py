"""Plain data: what a process is, how it ended, what the session is told. No input or output here.

A record's life:

    running ──► completed   reason exited, code 0
            ──► failed      reason exited (another code), signal, out_of_memory
            ──► killed      reason killed, lease_ended, log_limit
            ──► timed_out   reason timeout
            ──► lost        reason lost: nobody can know how it ended

`Record.end` is the only way out of ``running``. It is a pure function of the record and the exit
note, so that a worker and its successor arrive at the same end.
"""

from __future__ import annotations

import signal as _signal
import time
from dataclasses import dataclass, field, fields
from operator import attrgetter, itemgetter

from .capabilities import Capabilities, capabilities_of
from .errors import BadRequest, ExitError, StoreError
from .home import check_session
from .watch import is_watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .types import EndedBy, EventType, ModeName, Reason, Status, Stream

RECORD_VERSION = 1
DEFAULT_SESSION = "default"
SIZES_KEPT = 32
_LARGEST = 1 << 62
_LONGEST = 1e12  # seconds

# The reasons a keeper can have for stopping a process: the status each leads to, and who caused it.
STOPS: dict[str, tuple[Status, Reason, EndedBy]] = {
    "killed": ("killed", "killed", "caller"),
    "timeout": ("timed_out", "timeout", "keeper"),
    "lease_ended": ("killed", "lease_ended", "keeper"),
    "log_limit": ("killed", "log_limit", "keeper"),
}

# Signals a program brings on itself; any other one came from somebody else.
_OWN_FAULT = frozenset(
    {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGPIPE"}
)


def signal_name(number: int) -> str:
    try:
        return _signal.Signals(number).name
    except ValueError:
        # Real-time signals between the two that Python names.
        return f"SIGRTMIN+{number - _signal.SIGRTMIN}" if number > 31 else f"SIG{number}"


def signal_number(name: str | int) -> int | None:
    """``"TERM"``, ``"SIGTERM"``, ``"15"`` or ``15``; None for what is no signal."""
    if isinstance(name, str):
        upper = name.upper()
        if upper.startswith("SIGRTMIN+") and upper[9:].isdigit():
            name = int(_signal.SIGRTMIN) + int(upper[9:])
        elif upper.isdigit():
            name = int(upper)
        else:
            known = _signal.Signals.__members__.get(
                upper if upper.startswith("SIG") else f"SIG{upper}"
            )
            return None if known is None else int(known)
    return name if 0 < name < _signal.NSIG else None


def size_text(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _is_size(entry: object) -> bool:
    match entry:
        case [int(offset), int(columns), int(rows)]:
            return 0 <= offset < _LARGEST and 0 < columns < 1 << 16 and 0 < rows < 1 << 16
    return False


def _is_session(name: str) -> bool:
    try:
        return check_session(name) == name
    except BadRequest:
        return False


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_runner(runner: dict[str, Any]) -> bool:
    kind, argv, starts = (runner.get(name) for name in ("kind", "argv", "starts"))
    number = runner.get("signal")
    return (
        isinstance(kind, str)
        and bool(argv)
        and _are_texts(argv)
        and isinstance(starts, list)
        and all(_is_time(clock) for clock in starts)
        and (number is None or (type(number) is int and 0 < number < _signal.NSIG))
    )


def _is_time(value: object) -> bool:
    """A duration or a clock that can be counted with."""
    return type(value) in (int, float) and 0 <= value < _LONGEST  # type: ignore[operator]


def _public_watch(watch: dict[str, Any]) -> dict[str, Any]:
    shown = ("id", "output", "quiet", "port", "every", "stream", "cooldown", "most", "told", "over")
    return {name: watch[name] for name in shown if name in watch}


def rfc3339(seconds: float) -> str:
    whole = int(seconds)
    micro = int((seconds - whole) * 1_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{micro:06d}Z"


def duration_text(seconds: float | None) -> str:
    """``142.7`` reads ``2m 22s``."""
    if seconds is None:
        return "unknown"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    return f"{whole // 3600}h {whole % 3600 // 60}m"


@dataclass(slots=True)
class ExitNote:
    """The kernel's word on how a process ended, written before the process is reaped."""

    code: int | None
    signal: str | None
    at: float
    clock: float
    known: bool = True
    by_itself: bool = False  # before a stop could have any part in it
    out_of_memory: bool = False
    peak_memory_bytes: int | None = None
    cpu_seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NOTE_FIELDS}

    @classmethod
    def from_json(cls, data: Any) -> ExitNote:
        """A ValueError for what is none."""
        if not isinstance(data, dict):
            raise ValueError("an exit note is an object")
        try:
            note = cls(**{name: data[name] for name in _NOTE_FIELDS if name in data})
        except TypeError as error:
            raise ValueError(f"the exit note is incomplete: {error}") from error
        bad = _unlike(note, _NOTE_KINDS)
        if bad or not (_is_time(note.at) and _is_time(note.clock)):
            raise ValueError("the exit note makes no sense")
        return note


@dataclass(slots=True)
class Stop:
    """A stop that was asked for, on disk before the first signal goes out."""

    reason: str
    by: str
    signal: str
    clock: float
    kill_clock: float


@dataclass(slots=True)
class Record:
    """One background command and all that is known of it. Never its environment."""

    handle: str
    session: str
    command: str | list[str]
    cwd: str
    label: str = ""
    group: str = ""
    mode: ModeName = "pipe"
    pid: int | None = None
    status: Status = "running"
    exit_code: int | None = None
    signal: str | None = None
    reason: Reason | None = None
    ended_by: EndedBy | None = None
    started_at: str = ""
    ended_at: str | None = None
    duration_seconds: float | None = None
    log: str = ""
    err_log: str | None = None
    stdin: bool = False
    tty: str | None = None  # the terminal it runs in
    tmux_session: str | None = None
    pane: str | None = None  # its id at the tmux server
    attach: str | None = None  # what a person types to watch it and take over
    sizes: list[list[int]] = field(default_factory=list)  # [log offset, columns, rows], ascending
    keep: bool = False
    timeout: float | None = None
    grace: float = 5.0
    log_cap: int = 0
    log_limit: int | None = None
    retention: float = 1800.0
    max_finished: int = 100
    peak_memory_bytes: int | None = None
    cpu_seconds: float | None = None
    containment: str = ""  # "cgroup", "cgroup-v1", "tree"; see `keeper/containment.py`
    limits: dict[str, Any] = field(default_factory=dict)  # name -> {"limit": ..., "by": ...}
    sandbox: dict[str, Any] | None = None  # {"network", "sockets": bool, "root"?: path}
    runner: dict[str, Any] | None = (
        None  # the program that runs it elsewhere; `keeper/modes/runner.py`
    )
    docker: dict[str, Any] | None = None  # {"image", "network", "user", "mounts", "container"}
    ports: dict[str, Any] = field(default_factory=dict)  # of its container -> of this machine
    cgroups: list[str] = field(default_factory=list)  # the directories of its control groups
    ends_with: str | None = None  # what would take it along, besides the machine
    notes: list[str] = field(default_factory=list)
    watches: list[dict[str, Any]] = field(default_factory=list)  # see `core.watch`
    watches_made: int = 0  # so far; their ids are not used again
    # For recovery: a recycled pid has another start time, a rebooted machine another boot id.
    start_time: int | None = None
    boot_id: str = ""
    started_clock: float = 0.0
    memory_floor: int = 0  # what the keeper had itself when it made the process
    stop: Stop | None = None
    told: bool = True  # False from the end until the session's outbox has it
    version: int = RECORD_VERSION
    # Not written down: what the kernel said when a client last looked.
    waiting_for_input: bool | str | dict[str, str] = False

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The logs it has: its stdout, and its stderr where that is apart."""
        return ("stdout",) if self.err_log is None else ("stdout", "stderr")

    @property
    def elsewhere(self) -> bool:
        """True if a runner stands for it, and `pid` is the runner's."""
        return self.runner is not None

    @property
    def site(self) -> str:
        """The kind of place that it runs in; see `linux.site`."""
        return "machine" if self.runner is None else str(self.runner["kind"])

    @property
    def capabilities(self) -> Capabilities:
        return capabilities_of(self)

    @property
    def size(self) -> tuple[int, int] | None:
        """Columns and rows of its terminal, as far as the keeper knows."""
        return (self.sizes[-1][1], self.sizes[-1][2]) if self.sizes else None

    def resized(self, offset: int, columns: int, rows: int) -> None:
        """From `offset` in its log on, its terminal is of this size."""
        if self.sizes and self.sizes[-1][0] == offset:
            self.sizes.pop()
        self.sizes.append([offset, columns, rows])
        del self.sizes[:-SIZES_KEPT]

    @property
    def deadline_clock(self) -> float | None:
        return None if self.timeout is None else self.started_clock + self.timeout

    @property
    def deadline_at(self) -> str | None:
        """The time at which it will be stopped, by the wall clock as that is now."""
        clock = self.deadline_clock
        if clock is None or not self.running:
            return None
        return rfc3339(time.time() + clock - time.monotonic())

    @property
    def command_text(self) -> str:
        if isinstance(self.command, str):
            return self.command
        import shlex

        return shlex.join(self.command)

    def elapsed(self) -> float | None:
        """Seconds it ran, or has run so far; from the monotonic clock, so wall time may jump."""
        if self.running:
            return max(0.0, time.monotonic() - self.started_clock)
        return self.duration_seconds

    def end(self, note: ExitNote) -> None:
        """Leave ``running`` for the end that `note` (and a stop, if one was begun) describes."""
        if not self.running:
            return
        self.told = False
        self.exit_code, self.signal = note.code, note.signal
        self.ended_at = rfc3339(note.at)
        self.duration_seconds = round(max(0.0, note.clock - self.started_clock), 6)
        self.peak_memory_bytes, self.cpu_seconds = note.peak_memory_bytes, note.cpu_seconds
        if not note.known:
            self.status, self.reason, self.ended_by = "lost", "lost", "unknown"
        elif self.stop is not None and not note.by_itself:
            self.status, self.reason, self.ended_by = STOPS[self.stop.reason]
        elif note.out_of_memory:
            self.status, self.reason, self.ended_by = "failed", "out_of_memory", "kernel"
        elif note.signal is not None:
            self.status, self.reason = "failed", "signal"
            self.ended_by = "itself" if note.signal in _OWN_FAULT else "outside"
        else:
            self.status = "completed" if note.code == 0 else "failed"
            self.reason, self.ended_by = "exited", "itself"

    def ending(self) -> dict[str, Any]:
        """The fields that an end sets, for whoever has the rest."""
        return {name: getattr(self, name) for name in _END_FIELDS}

    def apply(self, ending: dict[str, Any]) -> None:
        for name in _END_FIELDS:
            setattr(self, name, ending[name])

    def to_json(self) -> dict[str, Any]:
        data = dict(zip(RECORD_FIELDS, _fields_of(self), strict=True))
        if self.stop is not None:
            data["stop"] = {f.name: getattr(self.stop, f.name) for f in fields(Stop)}
        return data

    @classmethod
    def from_json(cls, data: Any) -> Record:
        if not isinstance(data, dict):
            raise StoreError("the record is not a JSON object")
        version = data.get("version")
        if not isinstance(version, int):
            raise StoreError("the record has no version")
        if version > RECORD_VERSION:
            raise StoreError(
                f"the record is of version {version}, this holdfast reads up to {RECORD_VERSION}; "
                "upgrade holdfast to see it",
                newer=True,
            )
        try:
            try:
                record = cls(*_all_of(data))  # with every field that we know, as nearly all are
            except KeyError:
                record = cls(**{name: data[name] for name in RECORD_FIELDS if name in data})
            if record.stop is not None:
                record.stop = Stop(**record.stop)  # type: ignore[arg-type]
        except TypeError as error:
            raise StoreError(f"the record is incomplete: {error}") from error
        record.check()
        return record

    def check(self) -> None:
        """Raise unless every field is of its kind: one damaged record must not stop a keeper."""
        bad = ""
        kinds = tuple(map(type, _fields_of(self)))
        if kinds not in _seen_kinds:
            bad = _unlike(self, _RECORD_KINDS)
            if not bad and len(_seen_kinds) < _MOST_SEEN:
                _seen_kinds.add(kinds)
        bad = bad or self._odd()
        stop = self.stop
        if not bad and stop is not None:
            bad = _unlike(stop, _STOP_KINDS)
            if stop.reason not in STOPS or not (_is_time(stop.clock) and _is_time(stop.kill_clock)):
                bad = "stop"
        if bad:
            raise StoreError(f"the record is damaged: its {bad} makes no sense")

    def _odd(self) -> str:
        """The name of a field that is of its kind, but cannot be what was written."""
        times = ("started_clock", "grace", "retention", "timeout", "duration_seconds")
        sound = {
            "status": self.status in STATUSES,
            "session": _is_session(self.session),
            "mode": self.mode in MODES,
            "pid": self.pid is None or 0 < self.pid < 1 << 31,
            "command": isinstance(self.command, str) or _are_texts(self.command),
            "sizes": all(_is_size(entry) for entry in self.sizes),
            "watches": all(is_watch(entry) for entry in self.watches),
            "notes": _are_texts(self.notes),
            "cgroups": _are_texts(self.cgroups) and not any("\0" in path for path in self.cgroups),
            "runner": self.runner is None or _is_runner(self.runner),
            "limits": all(isinstance(each, dict) for each in self.limits.values()),
            "ended_at": self.running or bool(self.ended_at and self.reason and self.ended_by),
            "tty": "\0" not in (self.tty or ""),
            "number": all(abs(value or 0) < _LARGEST for value in _numbers_of(self)),
            **{
                name: value is None or _is_time(value)
                for name in times
                for value in [getattr(self, name)]
            },
        }
        return next((name for name, is_sound in sound.items() if not is_sound), "")

    def public(self) -> dict[str, Any]:
        """The record as front ends show it: the promised keys first, then the rest."""
        data = {name: getattr(self, name) for name in _PUBLIC_FIELDS}
        elapsed = self.elapsed()
        data["duration_seconds"] = None if elapsed is None else round(elapsed, 3)
        data["watches"] = [_public_watch(watch) for watch in self.watches]
        data["capabilities"] = self.capabilities.public()
        data["attach"] = self.attach if self.running else None
        data["size"] = None if self.size is None else size_text(self.size)
        return data

    def __repr__(self) -> str:
        how: str = self.status
        if self.signal is not None:
            how += f" {self.signal}"
        elif self.exit_code is not None:
            how += f" {self.exit_code}"
        label = f" {self.label!r}" if self.label else ""
        return f"<{self.handle}{label} {how} pid={self.pid} session={self.session!r}>"


_NOTE_FIELDS = tuple(f.name for f in fields(ExitNote))
RECORD_FIELDS = tuple(f.name for f in fields(Record) if f.name != "waiting_for_input")
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "None": (type(None),),
    "list[str]": (list,),
    "list[list[int]]": (list,),
    "list[dict[str, Any]]": (list,),
    "dict[str, Any]": (dict,),
    "Stop": (Stop,),
    "ModeName": (str,),
    "Status": (str,),
    "Reason": (str,),
    "EndedBy": (str,),
}


def _kinds(cls: type[Record] | type[Stop] | type[ExitNote]) -> dict[str, tuple[type, ...]]:
    """The types each field may have, from its annotation."""
    return {
        f.name: tuple(kind for part in str(f.type).split(" | ") for kind in _KINDS[part])
        for f in fields(cls)
        if f.name != "waiting_for_input"
    }


def _unlike(found: object, kinds: dict[str, tuple[type, ...]]) -> str:
    """The first field that is not of its kind, or a number that is too large for one."""
    for name, kind in kinds.items():
        value = getattr(found, name)
        # Not by isinstance: to Python true and false are numbers.
        if type(value) not in kind:
            return name
        if type(value) in (int, float) and not abs(value) < _LARGEST:
            return name
    return ""


_RECORD_KINDS = _kinds(Record)
_numbers_of = attrgetter(
    *(name for name, kinds in _RECORD_KINDS.items() if int in kinds and float not in kinds)
)
_all_of, _fields_of = itemgetter(*RECORD_FIELDS), attrgetter(*RECORD_FIELDS)
# The kinds that were found to be right, of all fields at once: most records look alike.
_seen_kinds: set[tuple[type, ...]] = set()
_MOST_SEEN = 1000
_STOP_KINDS = _kinds(Stop)
_NOTE_KINDS = _kinds(ExitNote)
_END_FIELDS = (
    "status",
    "exit_code",
    "signal",
    "reason",
    "ended_by",
    "ended_at",
    "duration_seconds",
    "peak_memory_bytes",
    "cpu_seconds",
    "notes",
)
_PUBLIC_FIELDS = (
    "handle",
    "session",
    "label",
    "command",
    "cwd",
    "mode",
    "pid",
    "status",
    "waiting_for_input",
    "exit_code",
    "signal",
    "reason",
    "started_at",
    "ended_at",
    "duration_seconds",
    "log",
    "err_log",
    "capabilities",
    "ended_by",
    "group",
    "stdin",
    "tmux_session",
    "attach",
    "size",
    "watches",
    "keep",
    "timeout",
    "deadline_at",
    "grace",
    "peak_memory_bytes",
    "cpu_seconds",
    "containment",
    "limits",
    "sandbox",
    "docker",
    "ports",
    "ends_with",
    "notes",
)
STATUSES = frozenset({"running", "completed", "failed", "killed", "timed_out", "lost"})
MODES = frozenset({"pipe", "pty", "tmux"})


@dataclass(slots=True)
class Exit:
    """The end of a process. A failing command is data: `wait` returns this, only `check` raises."""

    handle: str
    status: Status
    code: int | None
    signal: str | None
    reason: Reason
    ended_by: EndedBy
    duration_seconds: float | None
    peak_memory_bytes: int | None = None
    cpu_seconds: float | None = None

    @classmethod
    def of(cls, record: Record) -> Exit:
        assert record.reason is not None
        assert record.ended_by is not None
        return cls(
            handle=record.handle,
            status=record.status,
            code=record.exit_code,
            signal=record.signal,
            reason=record.reason,
            ended_by=record.ended_by,
            duration_seconds=record.duration_seconds,
            peak_memory_bytes=record.peak_memory_bytes,
            cpu_seconds=record.cpu_seconds,
        )

    @property
    def ok(self) -> bool:
        return self.status == "completed"

    @property
    def shell_code(self) -> int | None:
        """The exit code as a shell would put it: 128+n for a signal; None when nobody can know."""
        if self.signal is not None:
            number = signal_number(self.signal)
            return None if number is None else 128 + number
        return self.code

    def check(self) -> Exit:
        """Return self, or raise `ExitError` unless the process completed with 0."""
        if not self.ok:
            raise ExitError(f"{self.handle} {self.describe()}", handle=self.handle)
        return self

    def describe(self) -> str:
        how = self.status.replace("_", " ")
        if self.signal is not None:
            return f"{how} ({self.signal})"
        return how if self.code is None else f"{how} (exit code {self.code})"


@dataclass(slots=True)
class Member:
    """The end of one process of a group, in the event of the group."""

    handle: str
    label: str
    command: str | list[str]
    status: Status
    exit_code: int | None = None
    signal: str | None = None
    reason: str | None = None
    duration_seconds: float | None = None
    tail: bytes = b""

    def public(self) -> dict[str, Any]:
        from .completion_text import clean_tail

        data = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "tail"}
        data["tail"] = clean_tail(self.tail)
        return data


@dataclass(slots=True)
class Event:
    """One numbered entry in a session's outbox; `id` stays the same however often it is delivered.

    ``type`` is ``"end"`` for a process that ended, ``"input"`` for one that waits for somebody to
    type something, ``"watch"`` for what a watch saw, ``"group"`` for a group that was gathered and
    of which the last has ended (`members` says how each did), ``"agent"`` for a background agent
    that is over, or ``"gap"`` where the outbox overflowed and `dropped` entries before this one
    were let go.

    An event of a watch is the `nth` of at most `most`; the `last` one says that no more will come.
    `condition` is what was asked for, `line` what was seen: the line that matched, from `offset` in
    the log on, how long it was quiet, who has the port, or how much is new. `stream` says in which
    log, where stderr has one of its own. `missed` were held back by the cooldown before it.
    `reason` is ``"taken"`` for a port that somebody else has, and ``"given_up"`` for a pattern that
    cannot be looked for.
    """

    seq: int
    id: str
    type: EventType
    at: str
    session: str
    handle: str | None = None
    label: str = ""
    command: str | list[str] = ""
    status: Status | None = None
    exit_code: int | None = None
    signal: str | None = None
    reason: str | None = None
    duration_seconds: float | None = None
    tail: bytes = b""
    prompt: str = ""
    kind: str = ""
    watch: str = ""
    condition: str = ""
    match: str = ""
    groups: list[str | None] = field(default_factory=list)
    line: str = ""
    stream: str = ""
    offset: int | None = None
    nth: int = 0
    most: int = 0
    missed: int = 0
    last: bool = False
    dropped: int = 0
    agent: str = ""
    group: str = ""
    members: list[Member] = field(default_factory=list)
    acknowledged: bool = False

    @property
    def crashed(self) -> bool:
        """A process that ended with another code than 0, by a signal, or for lack of memory."""
        return self.type == "end" and self.status == "failed"

    @property
    def text(self) -> str:
        """The message to inject into the agent's conversation."""
        from .completion_text import completion_text

        return completion_text(self)

    def public(self) -> dict[str, Any]:
        from .completion_text import clean_tail

        data = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "tail"}
        data["members"] = [member.public() for member in self.members]
        data["crashed"] = self.crashed
        data["tail"] = clean_tail(self.tail)
        data["text"] = self.text
        return data

    def __repr__(self) -> str:
        what = self.status or self.type
        return f"<Event {self.seq} {self.id} {what} session={self.session!r}>"


@dataclass(slots=True)
class Screen:
    """A terminal as a person would see it.

    `text` has the rows without blanks at their ends and without the empty ones at the bottom. The
    cursor is (column, row), counted from 0, or None while it is hidden. `exact` is false when
    something that was drawn earlier may be missing, and `note` says why.
    """

    text: str
    size: tuple[int, int]
    cursor: tuple[int, int] | None = None
    title: str = ""
    fullscreen: bool = False
    exact: bool = True
    note: str = ""
    styled: str | None = None

    def __str__(self) -> str:
        return self.text

    def public(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "text": self.text,
            "size": size_text(self.size),
            "cursor": self.cursor and list(self.cursor),
            "title": self.title,
            "fullscreen": self.fullscreen,
            "exact": self.exact,
            "note": self.note,
        }
        return shown if self.styled is None else shown | {"styled": self.styled}
