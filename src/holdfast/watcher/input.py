"""Tells that a process waits for input, once for each prompt; and when it does so no more.

When output has gone quiet it looks, and looks again a moment later: two looks that agree, with no
output between them, are a prompt. A process that does something else is looked at less and less
often, up to once a second; after a prompt was said, only when there is output again.

Output does not make a prompt a new one. Not said again:

- the same thread in the same wait, while another draws a clock, or the terminal echoes what is
  typed: it has read nothing in between;
- a line that is being edited: keys were read, but no new line was begun;
- a full-screen program that was said to wait: all it does is wait for keys.
"""

from __future__ import annotations

import math
import re
import time

from ..detectors.input import InputDetector
from ..linux.input_evidence import read_proc
from ..output.prompt import prompt_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..linux.input_evidence import Seen
    from .watched_process import Watched

_QUIET = 0.08
_AGREE = 0.06
_SLOWEST = 1.0
_SHARE = 50  # of the time, one part at most goes into looking at one process
_LINE_SEARCH = 64 << 10

_READ_SO_FAR = re.compile(rb"rchar: (\d+)")
_SLEPT = re.compile(rb"\nvoluntary_ctxt_switches:\s*(\d+)")


class _Said:
    """A prompt that was said, and what tells whether the next one is another."""

    __slots__ = ("fullscreen", "kind", "offset", "prompt", "read", "screen", "slept", "tid")

    def __init__(self, watched: Watched, seen: Seen, before: _Said | None) -> None:
        self.offset = watched.end
        self.kind = str(seen.answer)
        self.tid = seen.tid
        task = f"/proc/{seen.pid}/task/{seen.tid}"
        self.read = _number(_READ_SO_FAR, f"{task}/io")
        self.slept = _number(_SLEPT, f"{task}/status")
        self.fullscreen = False
        self.screen = ""
        draws = self.kind == "key" and watched.record.tty is not None
        if draws:
            try:
                picture = watched.rendering(self.offset)
                self.fullscreen = picture.fullscreen
                self.screen = picture.screen().text
            except Exception:
                draws = False  # nothing to draw it with
        self.prompt = prompt_of(
            watched.log,
            self.kind,
            (lambda: watched.rendering(self.offset)) if draws else None,
            # Nothing shows in a pipe's output that the prompt before this one was answered.
            since=before.offset if before is not None and watched.record.tty is None else 0,
        )

    def repeats(self, before: _Said, watched: Watched) -> bool:
        if self.tid != before.tid or self.kind != before.kind:
            return False
        if self.read is not None and self.read == before.read:
            return self.slept == before.slept or self.prompt == before.prompt
        if self.kind != "key":
            return False
        if self.fullscreen or before.fullscreen:
            return self.fullscreen and before.fullscreen
        output = watched.log.read(before.offset, _LINE_SEARCH)
        return not (output.gap or output.more or b"\n" in output.data)


class InputReporter:
    __slots__ = ("_detector", "_open", "_said", "_step", "_watched", "due", "over")

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._detector = InputDetector(twice=True)
        self._said: _Said | None = None
        self._open = False  # whether what was said last still holds, for all we know
        self._step = _QUIET
        self.due: float | None = time.monotonic() + _QUIET
        self.over = False

    def ended(self) -> None:
        self.over = True

    def answered(self, now: float) -> None:
        """Somebody typed an answer: if it waits again, that is another prompt."""
        self._said = None
        self.grown(now)

    def grown(self, now: float) -> None:
        self._detector.forget()
        self._step = _QUIET
        self.due = now + _QUIET

    def look(self, now: float) -> None:
        watched = self._watched
        if watched.refresh():
            return
        if not watched.alive:
            self.due = None
            return
        sure = self._detector.look(watched.site, watched.end)
        seen = self._detector.seen
        if not seen.waits:
            cost = time.monotonic() - now
            if seen.answer is False and self._open and self._said is not None:
                # Somebody has answered, perhaps a person in tmux, of whom the keeper knows nothing.
                self._open = False
                watched.say({"settled": watched.handle, "offset": self._said.offset})
            self.due = now + max(self._step, cost * _SHARE)
            self._step = min(self._step * 2, _SLOWEST)
            if self._step == _SLOWEST:
                self.due = math.ceil(self.due * 4) / 4  # with others, to wake up less often
        elif sure is None:
            self.due = now + _AGREE
        elif not watched.refresh():
            self.due = None
            self._say(_Said(watched, seen, self._said))

    def _say(self, said: _Said) -> None:
        watched = self._watched
        if watched.refresh():
            return
        before, self._said = self._said, said
        if before is not None and said.repeats(before, watched):
            said.offset = before.offset
            return
        self._open = True
        watched.say(
            {
                "input": watched.handle,
                "offset": said.offset,
                "prompt": said.prompt,
                "kind": said.kind,
                "screen": said.screen,
            }
        )


def _number(pattern: re.Pattern[bytes], path: str) -> int | None:
    match = pattern.search(read_proc(path))
    return None if match is None else int(match[1])
