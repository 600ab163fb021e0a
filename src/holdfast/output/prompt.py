"""The prompt of a program that waits for input: the line that it waits at."""

from __future__ import annotations

import re

from ..core.terminal_codes import without_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from .log import Log

    class Drawn(Protocol):
        def cursor_line(self) -> str: ...


_PROMPT_TAIL = 4096
_PROMPT_LENGTH = 200


def prompt_of(log: Log, kind: str, rendering: Callable[[], Drawn] | None, since: int = 0) -> str:
    """The line that the process waits at: the last one that shows anything, after `since`.

    A program that reads keys draws its line in ways that only a terminal understands: `rendering`
    gives one that is up to date.
    """
    if kind == "key" and rendering is not None:
        try:
            return rendering().cursor_line().strip()[-_PROMPT_LENGTH:]
        except Exception:
            pass  # without a terminal to draw it on, the bytes have to do
    tail = log.tail_bytes(_PROMPT_TAIL)
    text = tail.data[max(since - tail.start, 0) :].decode("utf-8", "replace")
    lines = re.split(r"[\r\n]+", without_codes(text))
    for line in reversed(lines):
        if shown := line.strip():
            return shown[-_PROMPT_LENGTH:]
    return ""
