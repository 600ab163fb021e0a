"""The common ground of the shell tools of OpenClaw, and of DeepChat after it.

Both start a command in the foreground and leave it to the background when it takes longer, count
output in characters, and take their numbers from the same family of environment variables.
"""

from __future__ import annotations

import codecs
import os
import re

from ..core.completion_text import TAIL_BYTES, clean_tail

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..client.client import Client
    from ..client.process import Process
    from ..output.log import Log
    from ._tool import Call

_WHOLE = re.compile(r"[+-]?\d{1,15}")
_PIECE = 1 << 20
_NEVER = 1 << 62
_LONGEST = 1e9  # seconds; thirty years, and no more than a socket can be told to wait


def from_environment(*names: str, least: int = 0, most: int = _NEVER) -> int | None:
    """The whole number in the first of these variables that has one, brought within the bounds.

    Anything else is passed over, as OpenClaw does: the variables are other programs' too.
    """
    for name in names:
        text = os.environ.get(name, "").strip()
        if _WHOLE.fullmatch(text):
            return min(max(int(text), least), most)
    return None


def milliseconds(moment: str) -> int:
    """A record's time, since 1970."""
    from datetime import datetime

    return int(datetime.fromisoformat(moment).timestamp() * 1000)


class Foreground:
    """Commands that the call which started them waits for, or has told all about.

    Nobody has to look after those, so lists of what is in the background leave them out.
    """

    def __init__(self) -> None:
        self._handles: set[str] = set()

    async def ends(self, call: Call, process: Process, seconds: float) -> bool:
        """True if it ends in time; if not, or if the call is given up, it is in the background."""
        self._handles.add(process.handle)
        ended = False
        try:
            ended = await call.wait(process, min(seconds, _LONGEST)) is not None
        finally:
            if not ended:
                self._handles.discard(process.handle)
        return ended

    def others(self, processes: list[Process]) -> list[Process]:
        self._handles &= {process.handle for process in processes}
        return [process for process in processes if process.handle not in self._handles]


# -- characters --------------------------------------------------------------------------------


def logs_of(process: Process) -> list[Log]:
    """The log, and where stderr is separate (which these tools never ask for) that one too."""
    streams = process.record.streams
    return [process.log(stream) for stream in streams]


async def last_output(client: Client, process: Process, count: int) -> tuple[str, bool]:
    """The last characters of its output, and whether there is more before them."""
    logs = logs_of(process)
    found = await client.run_in_thread(
        lambda: [last_characters(log, count, log.begin(), log.size()) for log in logs]
    )
    text = "".join(part for part, _ in found)
    return text[-count:], len(text) > count or any(more for _, more in found)


def last_characters(log: Log, count: int, start: int, end: int) -> tuple[str, bool]:
    """The last characters between two offsets, without terminal codes, and whether there are more.

    A read of many bytes may give few characters, where they are mostly codes.
    """
    from ..output.view import read_range

    low = max(start, end - max(TAIL_BYTES, 4 * count))
    at, data = read_range(log, low, end)
    text = clean_tail(data, count + 1)
    return text[-count:], len(text) > count or at > start


class Characters:
    """Logs by their characters, from 0 at the beginning of what is kept of them.

    What was counted is not read again while the log begins where it did.
    """

    def __init__(self) -> None:
        # By path: where the log began, an offset in it, and the characters up to there.
        self._counted: dict[str, tuple[int, int, int]] = {}

    def total(self, log: Log, *, ended: bool) -> int:
        begin, offset, count = self._place(log, _NEVER)
        for text, end in _texts(log, offset, ended):
            offset = end
            count += len(text)
        self._counted[log.path] = begin, offset, count
        return count

    def part(self, log: Log, first: int, count: int, *, ended: bool) -> str:
        _, at, seen = self._place(log, first)
        parts: list[str] = []
        for text, _ in _texts(log, at, ended):
            if seen + len(text) > first:
                parts.append(text[max(0, first - seen) : first + count - seen])
            seen += len(text)
            if seen >= first + count:
                break
        return "".join(parts)

    def _place(self, log: Log, first: int) -> tuple[int, int, int]:
        """The place to begin counting at, for what is from character `first` on."""
        begin = log.begin()
        known = self._counted.get(log.path)
        if known is not None and known[0] == begin and known[2] <= first:
            return known
        return begin, begin, 0


def _texts(log: Log, at: int, ended: bool) -> Iterator[tuple[str, int]]:
    """Read from an offset on, in pieces, with the offset after each.

    Half a character waits for its other half, unless the process has `ended`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    end = log.size()
    while at < end:
        output = log.read(at, min(_PIECE, end - at))
        if not output.data:
            break
        at = output.end
        text = decoder.decode(output.data, ended and at >= end)
        yield text, at - len(decoder.getstate()[0])
