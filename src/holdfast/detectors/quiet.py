"""Silence: nothing was written to some logs for so long."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..output.log import Log


class QuietDetector:
    """`sizes` is what the logs had at the last look, `since` when they came to have it."""

    __slots__ = ("_logs", "_seconds", "since", "sizes")

    def __init__(self, seconds: float, logs: Sequence[Log], began: float = 0.0) -> None:
        self._seconds = seconds
        self._logs = logs
        self.since = began  # of the process
        self.sizes: list[int] = []

    def look(self, now: float, sizes: list[int] | None = None) -> bool:
        """True if it is quiet; `sizes` are those of the logs, where they are known already."""
        sizes = [log.size() for log in self._logs] if sizes is None else sizes
        if not self.sizes:
            self.since = max(self.since, *(_last_output(log, now) for log in self._logs))
        elif sizes != self.sizes:
            self.since = now
        self.sizes = sizes
        return now >= self.due

    @property
    def due(self) -> float:
        """The time when it will have been quiet for so long, if nothing is written."""
        return self.since + self._seconds


def _last_output(log: Log, now: float) -> float:
    """The time something was last written, by the monotonic clock."""
    try:
        return now - max(0.0, time.time() - os.stat(log.path).st_mtime)
    except OSError:
        return now
