"""The watcher's loop: what the keeper says, files that change, and when to look next."""

from __future__ import annotations

import json
import os
import select
import sys
import time

from .changes import Changes
from .watched_process import Watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_REST = 0.02  # between two looks at what changed: taking every event would slow the writers
_POLL = 0.05  # where there is no inotify
_POLL_MISSING = 1.0  # for a log that is not there
_LONGEST_LINE = 4 << 20


class Watcher:
    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._unread = b""
        self._watched: dict[str, Watched] = {}
        self._by_log: dict[str, Watched] = {}
        self._unseen: set[str] = set()  # handles of those whose logs inotify does not tell of
        self._poll_at = 0.0
        self._rested = 0.0
        self._complaints: set[str] = set()
        self._changes = Changes()

    def run(self) -> None:
        """Until the keeper has nothing more to say, or does not listen."""
        poll = select.poll()
        poll.register(self._requests, select.POLLIN)
        listening = False
        try:
            while True:
                now = time.monotonic()
                wake = self._next()
                rests = now < self._rested
                if self._changes.fd is not None and listening is rests:
                    listening = not rests
                    if listening:
                        poll.register(self._changes.fd, select.POLLIN)
                    else:
                        poll.unregister(self._changes.fd)
                if rests:
                    wake = self._rested if wake is None else min(wake, self._rested)
                timeout = None if wake is None else max(0.0, wake - now) * 1000
                ready = [fd for fd, _ in poll.poll(timeout)]
                if self._requests in ready and not self._hear():
                    return
                if self._changes.fd in ready:
                    self._rested = time.monotonic() + _REST
                    self._see_changes()
                self._look()
        except BrokenPipeError:
            return

    def _next(self) -> float | None:
        times = [due for watched in self._watched.values() if (due := watched.due) is not None]
        if self._unseen:
            times.append(self._poll_at)
        return min(times, default=None)

    # -- what the keeper says ------------------------------------------------------------------

    def _hear(self) -> bool:
        data = os.read(self._requests, 1 << 16)
        if not data:
            return False
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > _LONGEST_LINE:
            self._unread = b""
        for line in lines:
            try:
                told = json.loads(line)
                _, handle = next(iter(told.items()))
                if isinstance(handle, str):
                    self._heed(handle, told)
            except Exception as error:
                self._complain("what it was told", error)
        return True

    def _heed(self, handle: str, told: dict[str, Any]) -> None:
        if "add" in told:
            self._drop(handle)
            watched = self._watched[handle] = Watched(told, self._say)
            for path in watched.paths:
                self._by_log[path] = watched
            self._follow(watched)
        elif "drop" in told:
            self._drop(handle)
        elif handle not in self._watched:
            return
        elif "answered" in told:
            if (reporter := self._watched[handle].input) is not None:
                reporter.answered(time.monotonic())
        elif "moved" in told:
            self._watched[handle].moved(told["to"])
        elif "sizes" in told:
            self._watched[handle].record.sizes = told["to"]
        elif "watch" in told:
            self._watched[handle].watch(told["of"])
        elif "unwatch" in told:
            self._watched[handle].unwatch(told["id"])
        elif "ended" in told:
            self._watched[handle].ended([told.get("size"), told.get("err_size")])
            self._finish(self._watched[handle])

    def _finish(self, watched: Watched) -> None:
        """Nothing is left to say of a process that has ended."""
        if watched.finished:
            self._drop(watched.handle)
            self._say({"done": watched.handle})

    def _drop(self, handle: str) -> None:
        watched = self._watched.pop(handle, None)
        if watched is not None:
            for path in watched.paths:
                self._by_log.pop(path, None)
                self._changes.remove(path)
            self._unseen.discard(handle)
            watched.close()

    def _say(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]

    # -- what changed, and what is due ---------------------------------------------------------

    def _follow(self, watched: Watched) -> None:
        unseen = [path for path in watched.paths if not self._changes.add(path)]
        if unseen:
            self._unseen.add(watched.handle)
            missing = not any(map(os.path.exists, unseen))
            self._poll_at = time.monotonic() + (_POLL_MISSING if missing else _POLL)
        else:
            self._unseen.discard(watched.handle)
        # What was written before its logs were watched is told by no event.
        self._guarded(watched, watched.refresh)

    def _see_changes(self) -> None:
        paths = self._changes.take()
        for path in self._by_log if paths is None else paths:
            if (watched := self._by_log.get(path)) is not None:
                self._follow(watched)

    def _look(self) -> None:
        now = time.monotonic()
        if self._unseen and self._poll_at <= now:
            self._poll_at = now + _POLL
            for handle in list(self._unseen):
                self._follow(self._watched[handle])
            now = time.monotonic()
        for watched in list(self._watched.values()):
            due = watched.due
            if due is not None and due <= now:
                self._guarded(watched, lambda watched=watched: watched.look(now))
                self._finish(watched)

    def _guarded(self, watched: Watched, action: Any) -> None:
        """Whatever happens with one process must not keep us from the others."""
        try:
            action()
        except BrokenPipeError:
            raise
        except Exception as error:
            self._complain(watched.handle, error)

    def _complain(self, about: str, error: Exception) -> None:
        text = f"watcher: {about}: {type(error).__name__}: {error}"
        if text not in self._complaints:
            if len(self._complaints) > 100:
                self._complaints.clear()
            self._complaints.add(text)
            print(text[:1000], file=sys.stderr, flush=True)
