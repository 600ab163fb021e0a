"""The lines of a log that match a pattern, with the lines around them, in bounded time."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

from ..core.errors import BadRequest
from .matcher import matcher_of
from .plain import clean_line, shown_line
from .scan import Scan
from .view import read_range

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .log import Log
    from .scan import Hit

_LONGEST_SHOWN = 500
_AROUND = 16 << 10
_NUMBERED = 8 << 20


@dataclass(slots=True)
class Match:
    """A line that matches, its offset in the log, and the lines around it.

    `line` is its number, as `Log.lines` takes it, where there is not too much to count. Lines that
    stand between two matches are told with one of them only. `stream` is "stdout" or "stderr" where
    both were searched.
    """

    offset: int
    text: str
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    line: int | None = None
    stream: str = ""

    def __str__(self) -> str:
        place = f"{self.stream} " if self.stream else ""
        if self.line is not None:
            place += f"line={self.line} "
        return "\n".join(
            [
                *(f"  {line}" for line in self.before),
                f"> {self.text}  [{place}offset={self.offset}]",
                *(f"  {line}" for line in self.after),
            ]
        )


@dataclass(slots=True)
class Found:
    """The result of a search: matches in the order of the log, and how many lines matched.

    `complete` is false where not all of what was asked for was searched; `searched` says what was,
    and `note` what to do about it. Of two streams stdout's matches come first, `searched` is what
    was of stdout, and `streams` has for each what was found in it.
    """

    matches: list[Match]
    count: int
    searched: tuple[int, int]
    complete: bool = True
    note: str = ""
    streams: dict[str, Found] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The matches for reading, never longer than the budget of the search."""
        shown = "\n--\n".join(map(str, self.matches))
        return "\n".join(part for part in (shown, self.note and f"[{self.note}]") if part)

    def public(self) -> dict[str, Any]:
        told = {"matches": [asdict(match) for match in self.matches], **self._facts()}
        if self.streams:
            told["streams"] = {name: each._facts() for name, each in self.streams.items()}
        return told

    def _facts(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "searched": list(self.searched),
            "complete": self.complete,
            "note": self.note,
        }


def search(
    logs: dict[str, Log],
    pattern: str,
    *,
    context: int = 2,
    first: int | None = None,
    last: int | None = 20,
    ignore_case: bool = False,
    literal: bool = False,
    start: int | None = None,
    end: int | None = None,
    timeout: float = 2.0,
    budget: int = 10_000,
) -> Found:
    """The lines between two offsets of each log that match `pattern`, with `context` lines around.

        found = search({"stdout": log}, r"listening on (\\d+)", first=1)

    `first` asks for the first so many and stops there; otherwise it is the `last` so many, and all
    that match are counted. `literal` takes the pattern as a text. Letters outside of ASCII are
    matched in either case only by regular expressions. Lines of more than a mebibyte are searched
    in pieces. `Found.text` is no longer than `budget`; time limit and budget are for all logs.
    """
    began = time.monotonic()
    for number in (context, first or 0, last or 0, start or 0, end or 0, budget):
        if number < 0:
            raise BadRequest(f"numbers and offsets count from 0, and {number} is less")
    if start is not None and end is not None and end < start:
        raise BadRequest(f"a range from {start} to {end} ends before it begins; swap them")
    want = (0 if last is None else last) if first is None else first
    parts: dict[str, tuple[Found, Scan]] = {}
    for number, (name, log) in enumerate(logs.items(), 1):
        deadline = began + timeout * number / len(logs)
        matcher = matcher_of(pattern, ignore_case, literal, deadline)
        size = log.size()
        high = size if end is None else min(end, size)
        low = min(max(start or 0, log.begin()), high)
        scan = Scan(log, matcher, low, high, want, backwards=first is None, deadline=deadline)
        scan.run()
        found = Found(_matches(log, scan.hits, context, size, name), scan.count, scan.searched)
        found.complete = scan.searched == (scan.low, scan.high) and not scan.long_lines
        parts[name] = found, scan
    return _within(budget, parts)


# -- what is shown ---------------------------------------------------------------------------------


def _matches(log: Log, hits: list[Hit], context: int, high: int, stream: str) -> list[Match]:
    matches = []
    shown_to = 0
    for number, hit in enumerate(hits):
        following = hits[number + 1].offset if number + 1 < len(hits) else high
        _, data = read_range(log, max(hit.offset - _AROUND, shown_to), hit.offset)
        before = data.split(b"\n")[:-1][-context:] if context else []
        begin = min(hit.end + 1, following)
        _, data = read_range(log, begin, min(begin + _AROUND, following))
        after = data.removesuffix(b"\n").split(b"\n")[:context] if data else []
        shown_to = begin + sum(len(line) + 1 for line in after)
        matches.append(
            Match(
                hit.offset,
                _shown(hit.line, hit.place),
                [_shown(shown_line(line)) for line in before],
                [_shown(shown_line(line)) for line in after],
                stream=stream,
            )
        )
    _number(log, matches)
    return matches


def _shown(line: str, place: int = 0) -> str:
    """A line, or the part of a long one that has the place in it."""
    if len(line) <= _LONGEST_SHOWN:
        return clean_line(line)
    start = max(min(place - _LONGEST_SHOWN // 3, len(line) - _LONGEST_SHOWN), 0)
    end = start + _LONGEST_SHOWN
    part = clean_line(line[start:end])
    return ("…" if start else "") + part + ("…" if end < len(line) else "")


def _number(log: Log, matches: list[Match]) -> None:
    """Count the lines before each match, if they are not too far from a line that is known."""
    numbers = log.numbers([match.offset for match in matches], _NUMBERED) if matches else None
    for match, number in zip(matches, numbers or (), strict=False):
        match.line = number


def _within(budget: int, parts: dict[str, tuple[Found, Scan]]) -> Found:
    """Choose as many matches as there is room for, and say what is left out."""
    while True:
        for found, scan in parts.values():
            found.note = "; ".join(_remarks(found, scan))
        whole = _joined({name: found for name, (found, _) in parts.items()})
        surplus = len(whole.text) - budget
        if not whole.matches or surplus <= 0:
            break
        while surplus > 0:
            found, scan = max(parts.values(), key=lambda part: len(part[0].matches))
            if not found.matches:
                break
            dropped = found.matches.pop(0 if scan.backwards else -1)
            surplus -= len(str(dropped)) + 4
    if len(whole.text) > budget:
        whole.note = whole.note[: max(budget - 2, 0)] if budget > 2 else ""
    return whole


def _joined(founds: dict[str, Found]) -> Found:
    if len(founds) == 1:
        return next(iter(founds.values()))
    parts = list(founds.values())
    notes = [f"{name}: {found.note}" for name, found in founds.items() if found.note]
    return Found(
        [match for found in parts for match in found.matches],
        sum(found.count for found in parts),
        parts[0].searched,
        all(found.complete for found in parts),
        "; ".join(notes) if any(found.count for found in parts) else parts[0].note,
        founds,
    )


def _remarks(found: Found, scan: Scan) -> Iterator[str]:
    low, high = scan.searched
    if scan.late:
        rest = f"end={low}" if scan.backwards else f"start={high}"
        yield f"the time ran out: only bytes {low} to {high} were searched; go on with {rest}"
    elif scan.enough and high < scan.high:
        yield f"stopped at byte {high} of {scan.high}; go on with start={high}"
    if scan.long_lines:
        yield "lines of more than 1 MiB were searched in pieces"
    if len(found.matches) < found.count:
        which = "last" if scan.backwards else "first"
        yield f"the {which} {len(found.matches):,} of {found.count:,} matching lines are shown"
    elif not found.count:
        yield "no line matches"
