"""A process's terminal in a client's hands: seen, typed into, given another size.

A terminal is held by the keeper, or by a tmux server (`terminal.tmux_pane`). Both kinds have all
their output in the log, so a screen can be drawn from that; tmux draws its own while it lives.
"""

from __future__ import annotations

import re
from _thread import RLock

from ..core.errors import NotRunning, Unsupported
from ..core.record import Screen
from ..output.log import Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.home import Home
    from ..core.record import Record
    from .screen import Rendering

_KEPT = 16
_PASTE = (b"\x1b[200~", b"\x1b[201~")


class Renderings:
    """Pictures of the terminals a client looked at last, so that another look costs little."""

    __slots__ = ("_home", "_kept", "_lock")

    def __init__(self, home: Home) -> None:
        self._home = home
        self._kept: dict[str, Rendering] = {}  # the one seen last at the end
        self._lock = RLock()

    def screen(self, record: Record, colours: bool) -> Screen:
        with self._lock:
            return self.of(record).screen(colours=colours)

    def of(self, record: Record) -> Rendering:
        """The picture of a terminal as its log has it now."""
        from .screen import Rendering

        with self._lock:
            rendering = self._kept.pop(record.handle, None)
            if rendering is None:
                handle = record.handle
                rendering = Rendering(Log(self._home.log(handle), self._home.head(handle)))
            self._kept[record.handle] = rendering
            while len(self._kept) > _KEPT:
                self._kept.pop(next(iter(self._kept))).close()
            rendering.update(record.sizes)
            return rendering

    def close(self) -> None:
        with self._lock:
            for rendering in self._kept.values():
                rendering.close()
            self._kept.clear()


def check_terminal(record: Record) -> None:
    if not record.capabilities.terminal:
        raise Unsupported(
            f"{record.handle} has no terminal; start it with one (tty) to see its screen, press "
            "keys or attach",
            handle=record.handle,
            needs="terminal",
        )


def check_running(record: Record) -> None:
    if not record.running:
        raise NotRunning(
            f"{record.handle} is not running any more ({record.status}); its screen and its log "
            "can still be read",
            handle=record.handle,
            status=record.status,
        )


def after_signals(raw: bytes) -> list[bytes]:
    """Typed bytes, cut after each that makes a terminal send a signal: C-c, C-z and C-backslash."""
    return re.findall(rb"[^\x03\x1a\x1c]*[\x03\x1a\x1c]|[^\x03\x1a\x1c]+$", raw)


def typed(data: str | bytes, raw: bytes, *, terminal: bool, enter: bool) -> bytes:
    """The bytes to send: in a terminal, text has the Enter key where it has newlines."""
    if terminal and isinstance(data, str):
        raw = raw.replace(b"\r\n", b"\r").replace(b"\n", b"\r")
    if enter:
        raw += b"\r" if terminal else b"\n"
    return raw


def pasted(raw: bytes, rendering: Rendering) -> bytes:
    """Bracketed as a paste, if the program asked for that; nothing in it can end the bracket."""
    if not rendering.bracketed_paste:
        return raw
    begin, end = _PASTE
    while end in raw:
        raw = raw.replace(end, b"")
    return begin + raw + end
