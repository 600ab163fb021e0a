"""Rows of text into a budget: which are kept, and the notes about those that are not."""

from __future__ import annotations

from dataclasses import dataclass

from .plain import Row, repeat_note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Lines = Callable[[int, int], int | None]

LONGEST_LINE = 2000
_SHORTEST_LINE = 80
MARK = "…"


@dataclass(slots=True)
class Gap:
    """Bytes that do not show in a text.

    `lines` counts the line ends in them, and `characters` what they would have shown, where that is
    known. `why` is "budget" where lines were left out, "line" where one lost its middle (the bytes
    are those of the line), and "freed" where there is nothing to read any more. `stream` is
    "stdout" or "stderr" where a text is of both.
    """

    start: int
    end: int
    lines: int | None
    characters: int | None
    why: str
    unsearched: int = 0
    stream: str = ""

    def note(self) -> str:
        size = _count(self.end - self.start, "byte")
        if self.why == "freed":
            size += _of(self.stream)
            return f"[... {size} freed, the log is capped: they cannot be read any more ...]"
        if self.start == self.end:
            return f"[... {_count(self.characters or 0, 'character')} left out ...]"
        what = f"{_count(self.lines, 'line')} ({size})" if self.lines else size
        rest = f", {self.unsearched:,} of them not searched for errors" if self.unsearched else ""
        return f"[... {what} left out{rest}, from byte {self.start}{_of(self.stream)} on ...]"

    def short_note(self) -> str:
        return f"[... {_count(self.end - self.start, 'byte')} left out ...]"


@dataclass(slots=True)
class Hole:
    """Bytes that nobody looked at; some of them, or all, not even for errors."""

    start: int
    end: int
    lines: int | None = None
    freed: bool = False
    unsearched: int = 0


Entry = Row | Hole


def fit(
    entries: Sequence[Entry],
    end: int,
    budget: int,
    block: tuple[int, int] | None,
    lines: Lines,
    stream: str = "",
) -> tuple[str, list[Gap]]:
    """A text of at most `budget` characters, and what is not in it.

    The rows of `block` are the ones that matter most after the first and the last. `lines` counts
    the lines between two offsets, and `end` is where the last entry ends. Notes name the `stream`.
    """
    page = _Page(entries, end, lines, stream)
    everything = [
        (number, number + 1) for number, entry in enumerate(entries) if isinstance(entry, Row)
    ]
    everything = _joined(everything)
    for shorten in (False, True):
        if shorten:
            page.shorten(max(_SHORTEST_LINE, min(LONGEST_LINE, budget // 4)))
        text, gaps = page.render(everything)
        if len(text) <= budget:
            return text, gaps
    room = budget
    while room > 0:
        keep = page.choose(room, None)
        if block is not None and not any(a <= block[0] and block[1] <= b for a, b in keep):
            keep = page.choose(room, block)
        if not keep:
            break
        text, gaps = page.render(keep)
        if len(text) <= budget:
            return text, gaps
        room -= len(text) - budget
    text, gaps = page.render([])
    short = "\n".join(gap.short_note() for gap in gaps)
    texts = (text, short, MARK, "")
    return next(text for text in texts if len(text) <= budget), gaps


class _Page:
    def __init__(self, entries: Sequence[Entry], end: int, lines: Lines, stream: str) -> None:
        self._entries = entries
        self._lines = lines
        self._stream = stream
        self._starts = [entry.start for entry in entries] + [end]
        self._texts = [entry.text if isinstance(entry, Row) else "" for entry in entries]
        self._shown = [
            text + "\n" + repeat_note(entry.times)
            if isinstance(entry, Row) and entry.times > 1
            else text
            for text, entry in zip(self._texts, entries, strict=True)
        ]
        self._cut: dict[int, int] = {}

    def shorten(self, longest: int) -> None:
        """Take the middle out of lines that are longer than that."""
        for number, text in enumerate(self._texts):
            if len(text) <= longest:
                continue
            left_out = len(text) - longest
            while True:
                mark = (
                    f" [... {_count(left_out, 'character')} of this line left out; "
                    f"it begins at byte {self._starts[number]}{_of(self._stream)} ...] "
                )
                kept = max(longest - len(mark), 0)
                if len(text) - kept <= left_out:
                    break
                left_out = len(text) - kept
            front = kept // 2
            back = len(text) - (kept - front)
            shown = text[:front] + mark + text[back:]
            if len(shown) >= len(text):
                continue
            self._shown[number] = shown + self._shown[number][len(text) :]
            self._cut[number] = back - front

    def choose(self, room: int, block: tuple[int, int] | None) -> list[tuple[int, int]]:
        """Rows that take no more than `room`: a third for the first, a third for the block."""
        size = len(self._entries)
        keep: set[int] = set()
        begin = 1 if size and self._is_hole(0) else 0

        def take(numbers: range, room: int) -> int:
            """Take as many as there is room for, one after another, and return the room left."""
            for number in numbers:
                cost = 0 if number in keep else len(self._shown[number]) + 1
                if self._is_hole(number) or cost > room:
                    break
                keep.add(number)
                room -= cost
            return room

        left = room - room // 3 + take(range(begin, size), room // 3)
        if block is not None:
            third = room // 3
            cost = sum(len(self._shown[number]) + 1 for number in range(*block))
            front = third if cost <= third else third // 2
            rest = take(range(*block), front) + third - front
            if cost > third:
                rest = take(range(block[1] - 1, block[0], -1), rest)
            left -= third - rest
        left = take(range(size - 1, begin - 1, -1), left)
        take(range(begin, size), left)
        return _joined([(number, number + 1) for number in sorted(keep)])

    def render(self, keep: Sequence[tuple[int, int]]) -> tuple[str, list[Gap]]:
        pieces: list[str] = []
        gaps: list[Gap] = []
        position = 0
        for start, end in [*keep, (len(self._entries), len(self._entries))]:
            for gap in self._gaps(position, start):
                gaps.append(gap)
                pieces.append(gap.note())
            for number in range(start, end):
                pieces.append(self._shown[number])
                if number in self._cut:
                    low, high = self._starts[number : number + 2]
                    gaps.append(
                        Gap(low, high, None, self._cut[number], "line", stream=self._stream)
                    )
            position = end
        return "\n".join(pieces), gaps

    def _gaps(self, first: int, stop: int) -> list[Gap]:
        """The gaps that entries `first` to `stop` are, if they are left out."""
        gaps: list[Gap] = []
        if first < stop and isinstance(hole := self._entries[first], Hole) and hole.freed:
            gaps.append(Gap(hole.start, hole.end, None, None, "freed", stream=self._stream))
            first += 1
        if first < stop:
            start, end = self._starts[first], self._starts[stop]
            characters: int | None = 0
            unsearched = 0
            for number in range(first, stop):
                if isinstance(entry := self._entries[number], Hole):
                    characters = None
                    unsearched += entry.unsearched
                elif characters is not None:
                    characters += (len(self._texts[number]) + 1) * entry.times
            lines = self._lines(start, end)
            gaps.append(Gap(start, end, lines, characters, "budget", unsearched, self._stream))
        return gaps

    def _is_hole(self, number: int) -> bool:
        return isinstance(self._entries[number], Hole)


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


def _of(stream: str) -> str:
    return f" of {stream}" if stream else ""


def _count(number: int | None, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
