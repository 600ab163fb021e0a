"""The options of a start, each named once: how it is written, its default, who may say it.

The settings, the client's request, the options of the command line, and what the keeper takes and
writes into the record are made from this table. An option that is also a field of `Record` is kept
there. What a client must first make something of (a directory, an environment, a container) is not
among them; see `client.spawn_request`.

People write ``"30m"`` or ``"64MiB"``; what travels is what that means, and an option means itself
then. So the keeper checks with the same functions, and takes nothing that would still change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from .errors import BadRequest
from .quote import check_name
from .record import RECORD_FIELDS
from .units import parse_duration, parse_screen_size, parse_size, parse_timeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_LONGEST_NAME = 1000  # characters
_FEWEST_FILES, _MOST_PROCESSES = 8, 1 << 22  # the kernel takes no more pids than that
_MOST = 1 << 62
STDERR = ("merged", "separate")


@dataclass(slots=True, eq=False, repr=False, match_args=False)  # which spares a keeper 0.5 ms
class Option:
    """One option: `parse` says what a value means, or raises the end of "NAME must be ...".

    `unit` and `help` are for the command line, which has no option without help. A client that
    does not know an `added` one, which came after the protocol, means its default.
    """

    name: str
    parse: Callable[[object], Any]
    default: Any
    unit: str = ""
    help: str = ""
    setting: bool = True
    added: bool = False
    choices: tuple[str, ...] = ()
    alias: str = ""

    def meaning(self, value: object) -> Any:
        if value == self.default:  # as most are
            return self.default
        try:
            return self.parse(value)
        except BadRequest:
            raise
        except ValueError as error:
            raise BadRequest(f"{self.name} {error}, not {value!r:.200}") from None

    @property
    def flags(self) -> list[str]:
        return [each for each in (f"--{self.name.replace('_', '-')}", self.alias) if each]


def _optional(parse: Callable[[object], Any], value: object) -> Any:
    """None, ``"none"`` or 0 for no limit."""
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return parse(value) or None


def _log_cap(value: object) -> int:
    size = parse_size(value)
    if size < 1 << 20:
        raise ValueError("must be at least 1MiB")
    return size


def _memory(value: object) -> int:
    size = parse_size(value)
    if 0 < size < 4 << 20:
        raise ValueError("must be at least 4MiB")
    return size


def _count(value: object) -> int:
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 30:
        value = int(value)
    if type(value) is int and 0 < value < _MOST:
        return value
    raise ValueError("must be a whole number above 0")


def _processes(value: object) -> int:
    if _count(value) > _MOST_PROCESSES:
        raise ValueError(f"must be at most {_MOST_PROCESSES}")
    return _count(value)


def _files(value: object) -> int:
    if _count(value) < _FEWEST_FILES:
        raise ValueError(f"must be at least {_FEWEST_FILES}: a program needs some to start")
    return _count(value)


def _cpus(value: object) -> float:
    try:
        cpus = float(value) if isinstance(value, (str, int, float)) else 0.0
    except (ValueError, OverflowError):
        cpus = 0.0
    if 0.01 <= cpus <= 1 << 16:
        return cpus
    raise ValueError("must be a number of CPUs like 0.5 or 2, at least 0.01")


def _containment(value: object) -> str:
    if value in ("auto", "cgroup-v1", "tree"):
        return str(value)
    raise ValueError("must be auto, cgroup-v1 or tree")


def _stderr(value: object) -> str:
    if value in STDERR:
        return str(value)
    raise ValueError("is 'merged' or 'separate'")


def _name(what: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise BadRequest(f"a {what} is text of at most {_LONGEST_NAME} characters")
    check_name(what, value)
    return value


def _limit(name: str, parse: Callable[[object], Any], unit: str, help: str) -> Option:
    return Option(name, partial(_optional, parse), None, unit, help, added=True)


_own = partial(Option, setting=False)  # of one start, and not for all of them
_label, _group = partial(_name, "label"), partial(_name, "group")
_any_size = partial(_optional, parse_size)
_TABLE = (
    _own("label", _label, "", "TEXT", "a name for people", alias="--name"),
    _own("group", _group, "", "G", "a word shared by what belongs together"),
    Option("timeout", parse_timeout, 1800.0, "TIME", "stop it after this long (30m; 0: never)"),
    Option("grace", parse_duration, 5.0, "TIME", "from polite to forced when stopped (5s)"),
    Option("retention", parse_duration, 1800.0, "TIME"),
    Option("max_running", _count, 20, "NUMBER"),
    Option("max_finished", _count, 100, "NUMBER"),
    _own("keep", bool, False, "", "let it outlive its session"),
    _own("stdin", bool, False, "", "open its stdin (for `send`, or from here)"),
    _own("stderr", _stderr, "merged", "", "in the log of stdout, or in its own", choices=STDERR),
    Option("size", parse_screen_size, [120, 40], "CxR", "its terminal's columns and rows (120x40)"),
    Option("log_cap", _log_cap, 256 << 20, "SIZE", "keep this much of the end of its log (256MiB)"),
    Option("log_limit", _any_size, None, "SIZE", "stop it when it wrote more than this"),
    _limit("memory", _memory, "SIZE", "it ends when it and its children have more"),
    _limit("cpu", _cpus, "NUMBER", "so many CPUs, like 0.5 or 2, for all of it"),
    _limit("processes", _processes, "NUMBER", "so many processes at one time"),
    _limit("files", _files, "NUMBER", "so many open files in each process"),
    Option("containment", _containment, "auto", added=True),
)
SPAWN_SPEC = {option.name: option for option in _TABLE}
# Those that travel, and stand in the record, as one table, `limits`.
LIMITS = ("memory", "cpu", "processes", "files")
_RECORDED = [name for name in SPAWN_SPEC if name in RECORD_FIELDS]


def to_wire(values: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request to spawn that says these options."""
    message = dict(values)
    message["limits"] = {name: message.pop(name) for name in LIMITS}
    return message


def from_wire(message: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request to spawn, checked."""
    limits = message.get("limits") or {}
    for name in limits:
        if name not in LIMITS:
            known = ", ".join(LIMITS)
            raise BadRequest(f"no limit {str(name)[:60]!r}; there are {known}")
    given = {**message, **limits}
    values = {}
    for name, option in SPAWN_SPEC.items():
        value = given.get(name, option.default) if option.added else given[name]
        values[name] = meaning = option.meaning(value)
        if meaning != value:
            raise BadRequest(f"{name} is to travel as {meaning!r:.80}, not {value!r:.80}")
    return values


def recorded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that a record keeps."""
    return {name: values[name] for name in _RECORDED}
