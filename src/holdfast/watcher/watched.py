"""One process that is watched, and the eyes on it.

An eye looks for one thing. It says when it wants to look next (`due`) and is told when the process
has written something; what it finds it tells with `watched.say`. A new kind of watch is a new eye.
"""

from __future__ import annotations

import os
import time

from .. import _kernel
from .._output import Log
from .input import InputEye
from .queries import QueryEye

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from .._screen import Rendering

    class Eye(Protocol):
        due: float | None  # when to look next, by time.monotonic; None: when there is output

        def grown(self, now: float) -> None: ...

        def look(self, now: float) -> None: ...


_YOUNG = 3.0


class Watched:
    __slots__ = (
        "_rendering",
        "_started",
        "end",
        "eyes",
        "handle",
        "input",
        "log",
        "pid",
        "say",
        "sizes",
        "tty",
    )

    def __init__(self, told: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
        self.handle: str = told["add"]
        self.pid: int = told["pid"]
        self.tty: str | None = told.get("tty")
        self.log = Log(told["log"], told["head"])
        self.sizes: list[list[int]] = told.get("sizes") or []
        self.say = say
        self._started = _kernel.start_time(self.pid)
        self._rendering: Rendering | None = None
        self.end = self.log.size()
        self.input = InputEye(self)
        self.eyes: list[Eye] = [self.input]
        if told["mode"] == "pty":  # tmux answers for itself
            begin = told.get("from")
            if begin is None:
                begin = 0 if self._young() else self.end
            self.eyes.insert(0, QueryEye(self, begin))

    def __repr__(self) -> str:
        return f"<Watched {self.handle} pid={self.pid} at {self.end}>"

    @property
    def alive(self) -> bool:
        """Whether its pid still means this process."""
        return self._started is not None and _kernel.start_time(self.pid) == self._started

    def _young(self) -> bool:
        """Whether it is so young that nobody can have answered its first questions yet."""
        ticks = self._started or 0
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return age < _YOUNG

    @property
    def due(self) -> float | None:
        return min((eye.due for eye in self.eyes if eye.due is not None), default=None)

    def refresh(self) -> bool:
        """See how long the log is; True, and the eyes have been told, if it has grown."""
        end = self.log.size()
        if end <= self.end:
            return False
        self.end = end
        now = time.monotonic()
        for eye in self.eyes:
            eye.grown(now)
        return True

    def look(self, now: float) -> None:
        for eye in self.eyes:
            if eye.due is not None and eye.due <= now:
                try:
                    eye.look(now)
                except Exception:
                    eye.due = now + 1.0  # whatever it was must not be asked for in a hurry
                    raise

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
        self.log.close()
