"""The receipt of a kill: who was signalled, how, and who would not go."""

from __future__ import annotations

import os

from ..core.record import signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..linux import kernel

_MOST_TOLD = 100


class Receipt:
    """An account of who was signalled, and who is left."""

    __slots__ = ("_done", "_seen", "forced", "signalled", "why")

    def __init__(self) -> None:
        self._done: dict[int, dict[str, Any]] = {}
        self._seen: set[tuple[int, int]] = set()
        self.signalled = 0
        self.forced = False
        self.why = ""  # somebody is left, where that is not seen by looking

    def add(self, found: kernel.Stat, number: int) -> None:
        if (found.pid, number) in self._seen:
            return  # still dying
        self._seen.add((found.pid, number))
        self.signalled += 1
        entry = {"pid": found.pid, "name": found.name, "signal": signal_name(number)}
        if found.pid in self._done or len(self._done) < _MOST_TOLD:
            self._done[found.pid] = entry

    def receipt(self, left: list[kernel.Stat], already_ended: bool) -> dict[str, Any]:
        for found in left:
            entry = self._done.setdefault(found.pid, {"pid": found.pid, "name": found.name})
            entry["survived"] = self.why or _why(found)
        return {
            "signalled": self.signalled,
            "forced": self.forced,
            "survivors": [found.pid for found in left],
            "already_ended": already_ended,
            "processes": list(self._done.values()),
        }


def _why(found: kernel.Stat) -> str:
    try:
        uid = os.stat(f"/proc/{found.pid}").st_uid
    except OSError:
        uid = os.geteuid()
    if os.geteuid() not in (0, uid):
        return f"it belongs to user {uid}, whom we may not signal"
    if found.state == "D":
        return "it is inside the kernel (state D) and ends when that lets it go"
    return "it did not end in time"
