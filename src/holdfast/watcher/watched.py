"""One process that is watched, and the eyes on it.

An eye looks for one thing. It says when it wants to look next (`due`) and is told when the process
has written something; what it finds it tells with `watched.say`. When it is `over` it is closed. A
new kind of watch is a new eye.
"""

from __future__ import annotations

import os
import time

from .. import _kernel
from .._input import Seen, see
from .._output import Log
from .._watches import kind_of
from .input import InputEye
from .matches import OutputEye
from .queries import QueryEye
from .watches import EveryEye, PortEye, QuietEye

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from .._container import Container
    from .._screen import Rendering
    from .._watches import Watch
    from .watches import WatchEye

    class Eye(Protocol):
        due: float | None  # when to look next, by time.monotonic; None: when there is output
        over: bool

        def grown(self, now: float) -> None: ...

        def look(self, now: float) -> None: ...

        def ended(self) -> None: ...


_YOUNG = 3.0
_EYES: dict[str, type[WatchEye]] = {
    "output": OutputEye,
    "quiet": QuietEye,
    "port": PortEye,
    "every": EveryEye,
}


class Stream:
    """One of its logs, and where that ends: `end` as last seen, `final` when the process ended."""

    __slots__ = ("end", "final", "log", "name")

    def __init__(self, name: str, path: str, head_path: str) -> None:
        self.name = name
        self.log = Log(path, head_path)
        self.end = self.log.size()
        self.final: int | None = None

    def __repr__(self) -> str:
        return f"<Stream {self.name} at {self.end}>"


class Watched:
    __slots__ = (
        "_ended",
        "_rendering",
        "docker",
        "eyes",
        "handle",
        "input",
        "pid",
        "say",
        "sizes",
        "started",
        "streams",
        "tty",
    )

    def __init__(self, told: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
        self.handle: str = told["add"]
        self.pid: int = told["pid"]
        self.tty: str | None = told.get("tty")
        self.docker: bool = told.get("docker", False)
        self.streams = [Stream("stdout", told["log"], told["head"])]
        if told.get("err_log") is not None:
            self.streams.append(Stream("stderr", told["err_log"], told["err_head"]))
        self.sizes: list[list[int]] = told.get("sizes") or []
        self.say = say
        self.started = _kernel.start_time(self.pid)
        self._rendering: Rendering | None = None
        self._ended = False
        self.input = InputEye(self) if told.get("input", True) else None
        self.eyes: list[Eye] = [self.input] if self.input is not None else []
        if told["mode"] == "pty":  # tmux answers for itself
            begin = told.get("from")
            if begin is None:
                begin = 0 if self._young() else self.end
            self.eyes.insert(0, QueryEye(self, begin))
        for watch in told.get("watches", ()):
            self.watch(watch)

    def __repr__(self) -> str:
        return f"<Watched {self.handle} pid={self.pid} at {self.end}>"

    @property
    def log(self) -> Log:
        """Of stdout; in a terminal, of all that it wrote."""
        return self.streams[0].log

    @property
    def end(self) -> int:
        return self.streams[0].end

    def container(self) -> Container | None:
        """The one that it runs in, once that has begun."""
        from .._container import Container

        return Container.of(os.path.dirname(self.log.path), self.handle)

    def see(self) -> Seen:
        """Whether it waits for input."""
        if not self.docker:
            return see(self.pid, self.tty)
        container = self.container()
        return Seen(False) if container is None else container.see(self.tty is not None)

    @property
    def paths(self) -> list[str]:
        return [stream.log.path for stream in self.streams]

    @property
    def alive(self) -> bool:
        """Whether its pid still means this process."""
        return self.started is not None and _kernel.start_time(self.pid) == self.started

    def moved(self, pid: int) -> None:
        """It goes on under another pid."""
        self.pid, self.started = pid, _kernel.start_time(pid)

    def _young(self) -> bool:
        """Whether it is so young that nobody can have answered its first questions yet."""
        ticks = self.started or 0
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return age < _YOUNG

    @property
    def due(self) -> float | None:
        return min((eye.due for eye in self.eyes if eye.due is not None), default=None)

    def watch(self, watch: Watch) -> None:
        """Look for something more, or for the same from another place on."""
        self.unwatch(watch["id"])
        self.eyes.append(_EYES[kind_of(watch)](self, watch))

    def unwatch(self, id: str) -> None:
        self.eyes = [eye for eye in self.eyes if getattr(eye, "id", None) != id]

    def ended(self, sizes: list[int | None]) -> None:
        """The process has ended: of what it wrote until then the rest is looked at."""
        self.refresh()
        self._ended = True
        for stream, size in zip(self.streams, sizes, strict=False):
            stream.final = stream.end if size is None else size
        for eye in self.eyes:
            eye.ended()
        self._close_eyes()

    @property
    def finished(self) -> bool:
        return self._ended and not self.eyes

    def _close_eyes(self) -> None:
        self.eyes = [eye for eye in self.eyes if not eye.over]

    def refresh(self) -> bool:
        """See how long the logs are; True, and the eyes have been told, if one has grown."""
        grown = False
        for stream in self.streams:
            end = stream.log.size()
            if end > stream.end:
                stream.end = end
                grown = True
        if grown:
            now = time.monotonic()
            for eye in self.eyes:
                eye.grown(now)
        return grown

    def look(self, now: float) -> None:
        for eye in self.eyes:
            if eye.due is not None and eye.due <= now:
                try:
                    eye.look(now)
                except Exception:
                    eye.due = now + 1.0  # whatever it was must not be asked for in a hurry
                    eye.over = eye.over or self._ended
                    raise
                finally:
                    self._close_eyes()

    def rendering(self, until: int) -> Rendering:
        """The terminal as it is drawn by the log up to an offset."""
        from .._screen import Rendering

        if self._rendering is None or self._rendering.offset > until:
            self.close()
            self._rendering = Rendering(self.log)
        self._rendering.update(self.sizes, until=until)
        return self._rendering

    def close(self) -> None:
        if self._rendering is not None:
            self._rendering.close()
            self._rendering = None
        for stream in self.streams:
            stream.log.close()
