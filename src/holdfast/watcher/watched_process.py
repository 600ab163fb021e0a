"""One process that is watched, and the reporters on it.

A reporter looks for one thing. It says when it wants to look next (`due`) and is told when the
process has written something; what it finds it tells with `watched.say`. When it is `over` it is
closed. A new kind of watch is a new reporter.
"""

from __future__ import annotations

import os
import time

from ..core.record import Record
from ..core.watch import kind_of
from ..linux import kernel
from ..linux.site import Site, site_of
from ..output.log import Log
from .input import InputReporter
from .matches import OutputReporter
from .queries import QueryResponder
from .watches import EveryReporter, PortReporter, QuietReporter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ..core.watch import Watch
    from ..terminal.screen import Rendering
    from .watches import WatchReporter

    class Reporter(Protocol):
        due: float | None  # when to look next, by time.monotonic; None: when there is output
        over: bool

        def grown(self, now: float) -> None: ...

        def look(self, now: float) -> None: ...

        def ended(self) -> None: ...


_YOUNG = 3.0
_REPORTERS: dict[str, type[WatchReporter]] = {
    "output": OutputReporter,
    "quiet": QuietReporter,
    "port": PortReporter,
    "every": EveryReporter,
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
        "input",
        "record",
        "reporters",
        "say",
        "site",
        "streams",
    )

    def __init__(self, told: dict[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
        # Of the record only what the keeper tells.
        self.record = Record(
            told["add"],
            session="",
            command="",
            cwd="",
            pid=told["pid"],
            start_time=kernel.start_time(told["pid"]),
            tty=told.get("tty"),
            log=told["log"],
            err_log=told.get("err_log"),
            sizes=told.get("sizes") or [],
            cgroups=told.get("cgroups") or [],
            runner=told.get("runner"),
        )
        self.site: Site = site_of(self.record)
        self.streams = [Stream("stdout", told["log"], told["head"])]
        if told.get("err_log") is not None:
            self.streams.append(Stream("stderr", told["err_log"], told["err_head"]))
        self.say = say
        self._rendering: Rendering | None = None
        self._ended = False
        self.input = InputReporter(self) if told.get("input", True) else None
        self.reporters: list[Reporter] = [self.input] if self.input is not None else []
        if told.get("queries"):
            begin = told.get("from")
            if begin is None:
                begin = 0 if self._young() else self.end
            self.reporters.insert(0, QueryResponder(self, begin))
        for watch in told.get("watches", ()):
            self.watch(watch)

    def __repr__(self) -> str:
        return f"<Watched {self.handle} pid={self.record.pid} at {self.end}>"

    @property
    def handle(self) -> str:
        return self.record.handle

    @property
    def log(self) -> Log:
        """The log of stdout; in a terminal, of all that it wrote."""
        return self.streams[0].log

    @property
    def end(self) -> int:
        return self.streams[0].end

    @property
    def paths(self) -> list[str]:
        return [stream.log.path for stream in self.streams]

    @property
    def alive(self) -> bool:
        """True if its pid still means this process."""
        pid, started = self.record.pid, self.record.start_time
        return pid is not None and started is not None and kernel.start_time(pid) == started

    def moved(self, pid: int) -> None:
        """Go on under another pid."""
        self.record.pid, self.record.start_time = pid, kernel.start_time(pid)

    def _young(self) -> bool:
        """True if it is so young that nobody can have answered its first questions yet."""
        ticks = self.record.start_time or 0
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return age < _YOUNG

    @property
    def due(self) -> float | None:
        return min(
            (reporter.due for reporter in self.reporters if reporter.due is not None), default=None
        )

    def watch(self, watch: Watch) -> None:
        """Look for something more, or for the same from another place on."""
        self.unwatch(watch["id"])
        self.reporters.append(_REPORTERS[kind_of(watch)](self, watch))

    def unwatch(self, id: str) -> None:
        self.reporters = [
            reporter for reporter in self.reporters if getattr(reporter, "id", None) != id
        ]

    def ended(self, sizes: list[int | None]) -> None:
        """The process has ended: of what it wrote until then the rest is looked at."""
        self.refresh()
        self._ended = True
        for stream, size in zip(self.streams, sizes, strict=False):
            stream.final = stream.end if size is None else size
        for reporter in self.reporters:
            reporter.ended()
        self._dismiss()

    @property
    def finished(self) -> bool:
        return self._ended and not self.reporters

    def _dismiss(self) -> None:
        self.reporters = [reporter for reporter in self.reporters if not reporter.over]

    def refresh(self) -> bool:
        """See how long the logs are; True, and the reporters have been told, if one has grown."""
        grown = False
        for stream in self.streams:
            end = stream.log.size()
            if end > stream.end:
                stream.end = end
                grown = True
        if grown:
            now = time.monotonic()
            for reporter in self.reporters:
                reporter.grown(now)
        return grown

    def look(self, now: float) -> None:
        for reporter in self.reporters:
            if reporter.due is not None and reporter.due <= now:
                try:
                    reporter.look(now)
                except Exception:
                    reporter.due = now + 1.0  # whatever it was must not be asked for in a hurry
                    reporter.over = reporter.over or self._ended
                    raise
                finally:
                    self._dismiss()

    def rendering(self, until: int) -> Rendering:
        """The terminal as it is drawn by the log up to an offset."""
        from ..terminal.screen import Rendering

        if self._rendering is None or self._rendering.offset > until:
            self.close()
            self._rendering = Rendering(self.log)
        self._rendering.update(self.record.sizes, until=until)
        return self._rendering

    def close(self) -> None:
        if self._rendering is not None:
            self._rendering.close()
            self._rendering = None
        for stream in self.streams:
            stream.log.close()
