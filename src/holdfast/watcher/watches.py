"""Tells what a session asked to be told of: silence, a port, what is new. (Output is in `matches`.)

What a watch is, and what is kept of it, is in `holdfast.core.watch`; what sees that it holds is in
`holdfast.detectors`. The keeper holds its place; a reporter begins there and says each step from
one place to the next, with what was seen.
"""

from __future__ import annotations

import math
import time
from base64 import b64encode

from ..core.completion_text import TAIL_BYTES, joined_tail
from ..core.errors import StoreError
from ..core.watch import OPEN, TAKEN, listed, packed, streams_of
from ..detectors.port import PortDetector
from ..detectors.quiet import QuietDetector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from ..core.watch import Watch
    from ..linux.ports import Snapshot
    from .watched_process import Stream, Watched

_FIRST_LOOK, _SLOWEST_LOOK = 0.05, 1.0
_SHARE = 50  # of the time, one part at most goes into looking for one port
_SAME_LOOK = 0.02


class WatchReporter:
    def __init__(self, watched: Watched, watch: Watch) -> None:
        self.id: str = watch["id"]
        self.over = False
        self.due: float | None = 0.0
        self._watched = watched
        names = streams_of(watch)
        self._streams = [stream for stream in watched.streams if stream.name in names]
        self._place: list[int] = listed(watch["place"])  # in each of them
        self._left: int = watch["most"] - watch["told"]
        self._cooldown: float = watch["cooldown"]
        self._cooled: float = watch["clock"] + self._cooldown if watch["told"] else 0.0

    def grown(self, now: float) -> None:
        """Called when its process has written something."""

    def look(self, now: float) -> None:
        raise NotImplementedError

    def ended(self) -> None:
        """Called when its process has ended: what there is to say of that."""
        self.over = True

    def _ends(self) -> list[int]:
        return [stream.end for stream in self._streams]

    def _tell(
        self,
        now: float,
        place: list[int],
        line: str,
        tail: bytes,
        *,
        partly: list[bool] | None = None,
        over: bool = False,
        **facts: Any,
    ) -> None:
        """Say what was seen, and with it that the watch has come to `place`."""
        self._left -= 1
        self.over = over or self._left <= 0
        event = {"line": line, "tail": b64encode(tail).decode(), **facts}
        self._say(place, partly or [False] * len(place), event=event, over=self.over)
        self._cooled = now + self._cooldown

    def _say(self, place: list[int], partly: list[bool], **more: Any) -> None:
        before, self._place = self._place, place
        watched = self._watched
        said = {"from": packed(before), "place": packed(place), "partly": packed(partly)}
        watched.say({"watch": watched.handle, "id": self.id, **said, **more})

    def _name(self, stream: Stream) -> str:
        """The stream something was seen in, where there are two."""
        return stream.name if len(self._watched.streams) > 1 else ""


def tail_of(stream: Stream, end: int, begin: int = 0) -> bytes:
    """The last of a log before `end`."""
    start = max(begin, end - TAIL_BYTES)
    try:
        return stream.log.read(start, end - start).data
    except StoreError:
        return b""


def last_of(streams: list[Stream], begins: list[int] | None = None) -> bytes:
    """The last of all of them, or what is new in them since."""
    pairs = zip(streams, begins or [0] * len(streams), strict=True)
    out, *rest = [tail_of(stream, stream.end, begin) for stream, begin in pairs]
    return joined_tail(out, *rest) if rest else out


class QuietReporter(WatchReporter):
    """Nothing was written for so long; said again only after new output."""

    def __init__(self, watched: Watched, watch: Watch) -> None:
        super().__init__(watched, watch)
        self._seconds: float = watch["quiet"]
        self._detector = QuietDetector(self._seconds, [stream.log for stream in self._streams])
        self.grown(time.monotonic())

    def grown(self, now: float) -> None:
        before, ends = self._detector.sizes, self._ends()
        if ends != before:
            self._detector.look(now, ends)
            self.due = max(self._detector.due, self._cooled)

    def look(self, now: float) -> None:
        watched = self._watched
        if watched.refresh() and not self._detector.look(now, self._ends()):
            return
        self.due = None
        ends = self._detector.sizes
        if watched.alive and ends != self._place:
            self._tell(now, ends, f"{self._seconds:g}s", last_of(self._streams))


class EveryReporter(WatchReporter):
    """A watch at an interval; nothing wakes us up for an interval without output."""

    def __init__(self, watched: Watched, watch: Watch) -> None:
        super().__init__(watched, watch)
        self._seconds = max(watch["every"], self._cooldown)
        self._begin: float = watch["clock"]
        self.due = None
        if self._new():
            self.due = self._begin + self._seconds

    def grown(self, now: float) -> None:
        if self.due is None and self._new():
            intervals = max(1, math.ceil((now - self._begin) / self._seconds))
            self.due = self._begin + intervals * self._seconds

    def look(self, now: float) -> None:
        self._watched.refresh()
        self.due = None
        new = self._new()
        if not new:
            return
        (stream, offset), *rest = new
        line = f"{sum(stream.end - at for stream, at in new)} bytes"
        for other, at in rest:
            line += f", {other.end - at} of them in {other.name}"
        name = "" if rest else self._name(stream)
        tail = last_of(self._streams, self._place)
        self._tell(now, self._ends(), line, tail, offset=offset, stream=name)
        self._begin = now

    def _new(self) -> list[tuple[Stream, int]]:
        """The streams that have grown, and from where on."""
        places = zip(self._streams, self._place, strict=True)
        return [(stream, at) for stream, at in places if stream.end > at]


class PortReporter(WatchReporter):
    """A port: said when the process, or something it started, listens there; and if others do.

    It is looked for up to once a second. One look at the kernel's tables serves all who want to
    look at that moment.
    """

    _last: ClassVar[tuple[float, Snapshot | None]] = (0.0, None)

    def __init__(self, watched: Watched, watch: Watch) -> None:
        super().__init__(watched, watch)
        self._detector = PortDetector(watch["port"])
        self._step = _FIRST_LOOK

    def grown(self, now: float) -> None:
        # A server mostly says so when it listens.
        self._step = min(self._step, _SLOWEST_LOOK / 4)
        if self.due is not None:
            self.due = min(self.due, max(now + self._step, self._cooled))

    def look(self, now: float) -> None:
        watched = self._watched
        if not watched.alive:
            self.due = None
            return
        began = time.monotonic()
        self._look(now)
        cost = time.monotonic() - began
        self.due = max(now + max(self._step, cost * _SHARE), self._cooled)
        self._step = min(self._step * 1.5, _SLOWEST_LOOK)
        if self._step == _SLOWEST_LOOK:
            self.due = math.ceil(self.due * 4) / 4  # with others, to wake up less often

    def _look(self, now: float) -> None:
        found = self._detector.look(self._watched.site, self._snapshot(now))
        if found is None:
            return
        if found.facts is not None:
            line = str(found.facts["port"])
            for name, word in (("host_port", " at"), ("pid", ", pid")):
                line += f"{word} {found.facts[name]}" if name in found.facts else ""
            self._see(now, OPEN, line, over=True)
        elif self._place[0] < TAKEN:
            line = f"{self._detector.port}, taken by {found.stranger}"
            self._see(now, TAKEN, line, reason="taken")

    def _snapshot(self, now: float) -> Snapshot:
        from ..linux.ports import Snapshot

        at, look = PortReporter._last
        if look is None or now - at > _SAME_LOOK:
            look = Snapshot()
            PortReporter._last = now, look
        return look

    def _see(self, now: float, place: int, line: str, **more: Any) -> None:
        self._tell(now, [place], line, last_of(self._watched.streams), **more)
