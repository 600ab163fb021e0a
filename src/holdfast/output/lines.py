"""An index of a log's lines, as far as somebody has counted, so that the next one need not.

A line keeps its number and its offset for good, so what was once counted stays right. Threads may
share an index: it is never changed, only replaced, and what two of them found at the same time is
lost to one of them at worst.
"""

from __future__ import annotations

from bisect import bisect_right

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.log_head import Tally


class LineIndex:
    __slots__ = ("_last", "_marks")

    def __init__(self) -> None:
        self._marks: list[Tally] = []  # in their order, a mebibyte apart
        self._last: Tally | None = None  # where somebody is likely to go on

    def before_line(self, line: int, first: Tally) -> Tally:
        """The last place known that is not after the beginning of `line`; `first` if there is none.

        It may be inside the line.
        """
        return self._before(line, first, lambda mark: mark.lines)

    def before_offset(self, offset: int, first: Tally) -> Tally:
        return self._before(offset, first, lambda mark: mark.offset)

    def _before(self, value: int, first: Tally, key: Callable[[Tally], int]) -> Tally:
        marks, last = self._marks, self._last
        found = first
        at = bisect_right(marks, value, key=key)
        for mark in (marks[at - 1] if at else None, last):
            if mark is not None and mark.offset > found.offset and key(mark) <= value:
                found = mark
        return found

    def remember(self, begin: int, marks: list[Tally], last: Tally) -> None:
        """Keep what was found in a log that now begins at `begin`."""
        self._last = last
        if marks:
            known = {mark.offset: mark for mark in (*self._marks, *marks) if mark.offset >= begin}
            self._marks = [known[offset] for offset in sorted(known)]
