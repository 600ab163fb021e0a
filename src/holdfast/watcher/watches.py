"""Sees what a session asked to be told of: silence, a port, what is new. (Output is in `matches`.)

What a watch is, and what is kept of it, is in `holdfast._watches`. The keeper holds its place; an
eye begins there and says each step from one place to the next, with what was seen.
"""

from __future__ import annotations

import math
import os
import time
from base64 import b64encode

from .._completion import TAIL_BYTES, joined_tail
from .._errors import StoreError
from .._watches import OPEN, TAKEN, listed, packed, streams_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from .._container import Container
    from .._ports import Listener, Look
    from .._watches import Watch
    from .watched import Stream, Watched

_FIRST_LOOK, _SLOWEST_LOOK = 0.05, 1.0
_SHARE = 50  # of the time, one part at most goes into looking for one port
_SAME_LOOK = 0.02


class WatchEye:
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
        """Its process has written something."""

    def look(self, now: float) -> None:
        raise NotImplementedError

    def ended(self) -> None:
        """Its process has ended: what there is to say of that."""
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
        """Which stream something was seen in, where there are two."""
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


class QuietEye(WatchEye):
    """Nothing was written for so long; said again only after new output."""

    def __init__(self, watched: Watched, watch: Watch) -> None:
        super().__init__(watched, watch)
        self._seconds: float = watch["quiet"]
        self._seen: list[int] = []
        self.grown(max(map(_last_output, self._streams)))

    def grown(self, now: float) -> None:
        ends = self._ends()
        if ends != self._seen:
            self._seen = ends
            self.due = max(now + self._seconds, self._cooled)

    def look(self, now: float) -> None:
        watched = self._watched
        before = self._seen
        watched.refresh()
        if self._seen != before:
            return
        self.due = None
        if watched.alive and before != self._place:
            self._tell(now, before, f"{self._seconds:g}s", last_of(self._streams))


def _last_output(stream: Stream) -> float:
    now = time.monotonic()
    try:
        return now - max(0.0, time.time() - os.stat(stream.log.path).st_mtime)
    except OSError:
        return now


class EveryEye(WatchEye):
    """At an interval, what is new; nothing wakes us up for an interval without output."""

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


class PortEye(WatchEye):
    """A port: said when the process, or something it started, listens there; and if others do.

    The kernel tells nobody of that, so it is asked again and again, up to once a second. One look
    at its tables serves all who want to look at that moment.
    """

    _last: ClassVar[tuple[float, Look | None]] = (0.0, None)

    def __init__(self, watched: Watched, watch: Watch) -> None:
        super().__init__(watched, watch)
        self._port: int = watch["port"]
        self._step = _FIRST_LOOK
        self._stranger = 0
        self._inner = 0  # the first process in a container

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
        if self._watched.docker:
            container = self._watched.container()
            if container is None:
                return  # it has not begun
            if not container.on_this_machine or container.pid is None:
                self._look_into(container, now)
                return
            self._inner = container.pid
        listener, ours = self._listener(now)
        if listener is None:
            self._stranger = 0
        elif ours:
            self._see(now, OPEN, f"{self._port}, pid {listener.pid}", over=True)
        elif self._place[0] < TAKEN:
            # Seen twice: a server that is just being forked looks like a stranger for a moment.
            if self._stranger == listener.inode:
                line = f"{self._port}, taken by {listener}"
                self._see(now, TAKEN, line, reason="taken")
            self._stranger = listener.inode

    def _look_into(self, container: Container, now: float) -> None:
        from .._container import stays_open

        ports = container.published(self._port)
        if ports is None:
            return
        inner, outer = ports
        listener, _ = container.listener(inner, self._kernel(now))
        if listener is not None or (container.pid is None and stays_open(outer)):
            who = f", pid {listener.pid}" if listener and listener.pid else ""
            self._see(now, OPEN, f"{inner} at {outer}{who}", over=True)

    def _kernel(self, now: float) -> Look:
        from .._ports import Look

        at, look = PortEye._last
        if look is None or now - at > _SAME_LOOK:
            look = Look()
            PortEye._last = now, look
        return look

    def _listener(self, now: float) -> tuple[Listener | None, bool]:
        """Who would answer there, and whether it is ours."""
        from .._ports import addresses

        look = self._kernel(now)
        where = addresses("localhost")
        if not look.serving(self._port, where):
            return None, False
        watched = self._watched
        if watched.docker:
            ours = look.descendants(self._inner)
        else:
            ours = look.family(watched.pid, watched.handle, watched.started)
        listener = look.owner(self._port, where, ours)
        return listener, listener is not None and listener.pid in ours

    def _see(self, now: float, place: int, line: str, **more: Any) -> None:
        self._tell(now, [place], line, last_of(self._watched.streams), **more)
