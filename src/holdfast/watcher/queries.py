"""Answers what programs ask of their terminal, as the terminal would if somebody sat at it.

fish, IPython, neovim and others ask where the cursor is, or what the terminal can do, and wait for
the answer. Output without a query is only searched, never drawn; of a flood only the end is.
"""

from __future__ import annotations

import re
from base64 import b64encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .watched_process import Watched

QUERY = re.compile(
    rb"\x1b(?:"
    rb"\[(?:[>=]?0?c"  # DA1, DA2, DA3: what are you
    rb"|\??\d+n"  # DSR: how are you, where is the cursor, light or dark
    rb"|\??\d+\$p"  # DECRQM: is this mode set
    rb"|>0?q"  # XTVERSION
    rb"|\?u"  # the kitty keyboard's flags
    rb"|1[468](?:;2)?t)"  # sizes
    rb"|\](?:4;\d+|1\d);\?(?:\x07|\x1b\\)"  # colours
    rb"|P[+$]q[^\x07\x1b]*\x1b\\)"  # XTGETTCAP, DECRQSS
)
_BEGUN = re.compile(rb"\x1b(?:\[[\d;?>=]*\$?|\][\d;?]*\x1b?|P[+$]?q?[^\x07\x1b]*\x1b?)?\Z")
_LONGEST = 1 << 10

_BEHIND = 256 << 10
_END = 16 << 10
_MUCH = 64 << 10
_MOST = 100  # at once; a program that asks more does not wait for answers
_REST, _REST_AFTER_MUCH = 0.01, 0.05


class QueryResponder:
    __slots__ = ("_at", "_rested", "_watched", "due", "over")

    def __init__(self, watched: Watched, at: int) -> None:
        self._watched = watched
        self._at = at
        self._rested = 0.0
        self.due: float | None = 0.0 if at < watched.end else None
        self.over = False

    def ended(self) -> None:
        self.over = True

    def grown(self, now: float) -> None:
        self.due = max(now, self._rested)

    def look(self, now: float) -> None:
        watched = self._watched
        self.due = None
        floods = watched.end - self._at > _MUCH
        if watched.end - self._at > _BEHIND:
            self._at = watched.end - _END
        output = watched.log.read(self._at, max(watched.end - self._at, 0))
        data = output.data
        self._at = output.end
        self._rested = now + (_REST_AFTER_MUCH if floods else _REST)
        if b"\x1b" not in data:
            return
        # A query that has not been written to its end is left for the next time.
        if begun := _BEGUN.search(data, max(0, len(data) - _LONGEST)):
            self._at = output.start + begun.start()
        replies = [
            watched.rendering(output.start + query.start()).answer(query[0])
            for query in list(QUERY.finditer(data))[-_MOST:]
        ]
        if reply := b"".join(replies):
            watched.say({"reply": watched.handle, "data": b64encode(reply).decode()})
