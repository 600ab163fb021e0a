"""The lines of a log that match a pattern, with the lines around them, in bounded time."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

from ._errors import BadRequest
from ._pattern import needle_of
from ._plain import clean_line
from ._scan import Scan
from ._view import read_range

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ._output import Log
    from ._scan import Hit

_LONGEST_SHOWN = 500
_AROUND = 16 << 10
_NUMBERED = 8 << 20


@dataclass(slots=True)
class Match:
    """A line that matches, its offset in the log, and the lines around it.

    `line` is its number, as `Log.lines` takes it, where there is not too much to count. Lines that
    stand between two matches are told with one of them only.
    """

    offset: int
    text: str
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    line: int | None = None

    def __str__(self) -> str:
        return "\n".join(
            [
                *(f"  {line}" for line in self.before),
                f"> {self.text}  [offset={self.offset}]",
                *(f"  {line}" for line in self.after),
            ]
        )


@dataclass(slots=True)
class Found:
    """What a search found: matches in the order of the log, and how many lines matched in all.

    `complete` is false where not all of what was asked for was searched; `searched` says what was,
    and `note` what to do about it.
    """

    matches: list[Match]
    count: int
    searched: tuple[int, int]
    complete: bool = True
    note: str = ""

    @property
    def text(self) -> str:
        """All of it for reading, never longer than the budget of the search."""
        shown = "\n--\n".join(map(str, self.matches))
        return "\n".join(part for part in (shown, self.note and f"[{self.note}]") if part)

    def public(self) -> dict[str, Any]:
        return {
            "matches": [asdict(match) for match in self.matches],
            "count": self.count,
            "searched": list(self.searched),
            "complete": self.complete,
            "note": self.note,
        }


def search(
    log: Log,
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
    """The lines of `log` between two offsets that match `pattern`, with `context` lines around.

        found = search(log, r"listening on (\\d+)", first=1)

    `first` asks for the first so many and stops there; otherwise it is the `last` so many, and all
    that match are counted. `literal` takes the pattern as a text. Letters outside of ASCII are
    matched in either case only by regular expressions. Lines of more than a mebibyte are searched
    in pieces. `Found.text` is no longer than `budget`.
    """
    deadline = time.monotonic() + timeout
    for number in (context, first or 0, last or 0, start or 0, end or 0, budget):
        if number < 0:
            raise BadRequest(f"numbers and offsets count from 0, and {number} is less")
    needle = needle_of(pattern, ignore_case, literal, deadline)
    size = log.size()
    high = size if end is None else min(end, size)
    low = min(max(start or 0, log.begin()), high)
    want = (0 if last is None else last) if first is None else first
    scan = Scan(log, needle, low, high, want, backwards=first is None, deadline=deadline)
    scan.run()
    matches = _matches(log, scan.hits, context, size)
    return _within(budget, matches, scan)


# -- what is shown ---------------------------------------------------------------------------------


def _matches(log: Log, hits: list[Hit], context: int, high: int) -> list[Match]:
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
                [_shown(line.decode("utf-8", "replace")) for line in before],
                [_shown(line.decode("utf-8", "replace")) for line in after],
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


def _within(budget: int, matches: list[Match], scan: Scan) -> Found:
    """As many of the matches as there is room for, and what has to be said about the rest."""
    found = Found(matches, scan.count, scan.searched)
    low, high = scan.searched
    found.complete = (low, high) == (scan.low, scan.high) and not scan.long_lines
    while True:
        found.note = "; ".join(_remarks(found, scan))
        if not found.matches or len(found.text) <= budget:
            break
        surplus = len(found.text) - budget
        while found.matches and surplus > 0:
            dropped = found.matches.pop(0 if scan.backwards else -1)
            surplus -= len(str(dropped)) + 4
    if len(found.text) > budget:
        found.note = found.note[: max(budget - 2, 0)] if budget > 2 else ""
    return found


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
