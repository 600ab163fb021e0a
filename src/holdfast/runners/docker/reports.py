"""Reports of a runner: files that it leaves beside the record, whole or not at all, by rename.

On a full disk it waits for room, since what it follows runs on; signals are passed on meanwhile.
"""

from __future__ import annotations

import errno
import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_RUNNER, _PLACE, _END = ".runner", ".place", ".end"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FIRST_STEP, _LAST_STEP = 0.05, 1.0


class Reports:
    __slots__ = ("_base", "pause")

    def __init__(self, directory: str, handle: str) -> None:
        self._base = os.path.join(directory, handle)
        self.pause: Callable[[float], None] = time.sleep

    @property
    def resume_path(self) -> str:
        return self._base + _PLACE

    def _write(self, suffix: str, what: dict[str, Any]) -> None:
        path = self._base + suffix
        fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(what, file)
        os.rename(f"{path}.new", path)

    def when_there_is_room(self, write: Callable[[], None]) -> None:
        step = _FIRST_STEP
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in _FULL:
                    raise
            self.pause(step)
            step = min(step * 1.5, _LAST_STEP)

    def say(self, **what: Any) -> None:
        self.when_there_is_room(lambda: self._write(_RUNNER, what))

    def end(
        self,
        code: int | None = None,
        number: int | None = None,
        *,
        out_of_memory: bool = False,
        error: str | None = None,
        remarks: list[str] | None = None,
    ) -> dict[str, Any]:
        what = {
            "code": code,
            "signal": number,
            "out_of_memory": out_of_memory,
            "error": error,
            "notes": remarks or [],
            "at": time.time(),
        }
        self.when_there_is_room(lambda: self._write(_END, what))
        return what

    def ended(self) -> dict[str, Any] | None:
        return self._read(_END) or None

    def said(self) -> dict[str, Any]:
        return self._read(_RUNNER)

    def _read(self, suffix: str) -> dict[str, Any]:
        try:
            with open(self._base + suffix, encoding="utf-8") as file:
                found: dict[str, Any] = json.load(file)
        except FileNotFoundError:
            return {}
        return found

    def trouble(self, error: Exception) -> None:
        """Leave word of what should not have happened, for who looks into it."""
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        line = f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}" if at else ""
        try:
            said = self.said() | {"trouble": f"{type(error).__name__}: {error} ({line})"}
            self._write(_RUNNER, said)
        except OSError:
            pass
