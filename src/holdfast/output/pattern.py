"""Regular expressions from outside: checked when they are given, bounded when they are used.

Python's own `re` can take hours over ``(a+)+$``, and nothing can interrupt it. The `regex` package
takes a time limit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..core.completion_text import clean_text
from ..core.errors import BadRequest, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

_LONGEST = 10_000
_SHOWN = 2_000
_TIME = 1.0


def compiled(pattern: str, ignore_case: bool, *, lines: bool = False) -> Any:
    """A regular expression whose methods take a `timeout`; with `lines`, ``^`` is of lines."""
    try:
        import regex
    except ImportError as error:
        raise Unavailable("patterns need the package `regex`: pip install regex") from error
    try:
        flags = (regex.IGNORECASE if ignore_case else 0) | (regex.MULTILINE if lines else 0)
        return regex.compile(pattern, flags)
    except regex.error as error:
        wrong: Any = error
        place = "" if wrong.pos is None else f" at character {wrong.pos + 1}"
        shown = f"{pattern[:200]!r}"
        raise BadRequest(f"the pattern {shown} is wrong{place}: {wrong.msg}; mend it") from error
    except (RecursionError, OverflowError, MemoryError, ValueError) as error:
        raise BadRequest(f"the pattern is too much: {error}; use a simpler one") from error


class Pattern:
    __slots__ = ("_compiled", "text")

    def __init__(self, text: str, *, ignore_case: bool = False) -> None:
        if not isinstance(text, str) or not text:
            raise BadRequest("a pattern is text, and not empty")
        if len(text) > _LONGEST:
            raise BadRequest(f"a pattern has at most {_LONGEST} characters")
        self.text = text
        self._compiled = compiled(text, ignore_case, lines=True)

    def search(self, data: bytes, timeout: float = _TIME) -> Found | None:
        """The first match in output, read without terminal codes; ``^`` and ``$`` are of lines."""
        return next(self._matches(clean_text(data), timeout), None)

    def lines(self, data: bytes, timeout: float = _TIME) -> Iterator[Found]:
        """Every line of output that matches, once; `timeout` is for all of them."""
        return self._matches(clean_text(data), timeout)

    def keep(self, lines: Iterable[str], timeout: float = _TIME) -> list[str]:
        """The lines that match, each looked at by itself; `timeout` is for all of them."""
        kept: list[str] = []
        began = time.thread_time()
        for line in lines:
            left = timeout - (time.thread_time() - began)
            try:
                if self._compiled.search(line, timeout=max(left, 0.001)) is not None:
                    kept.append(line)
            except TimeoutError:
                raise self._too_slow(timeout) from None
        return kept

    def _too_slow(self, timeout: float) -> BadRequest:
        return BadRequest(
            f"the pattern {self.text[:200]!r} took longer than {timeout:g} s; make it simpler"
        )

    def _matches(self, text: str, timeout: float) -> Iterator[Found]:
        left = timeout
        at = number = 0  # a line's beginning, and its number
        while True:
            began = time.thread_time()
            try:
                found = self._compiled.search(text, at, timeout=max(left, 0.001))
            except TimeoutError:
                raise self._too_slow(timeout) from None
            left -= time.thread_time() - began
            if found is None or (found.start() == len(text) and text.endswith("\n")):
                return  # after the last line's end there is no other line
            begin = text.rfind("\n", 0, found.start()) + 1
            # A line end that belongs to the match ends its last line.
            last = max(found.start(), found.end() - 1)
            end = text.find("\n", last)
            number += text.count("\n", at, begin)
            more = text.count("\n", begin, last)
            yield Found(
                match=found[0][:_SHOWN],
                groups=[_cut(group) for group in found.groups()],
                named={name: _cut(group) for name, group in found.groupdict().items()},
                line=text[begin : end if end >= 0 else None][:_SHOWN],
                first_line=number,
                last_line=number + more,
            )
            if end < 0:
                return
            at = end + 1
            number += more + 1


@dataclass(slots=True)
class Found:
    """A match, and in which lines of what was searched it lies."""

    match: str
    groups: list[str | None]
    named: dict[str, str | None]
    line: str
    first_line: int
    last_line: int

    def public(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("match", "groups", "named", "line")}


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:_SHOWN]
