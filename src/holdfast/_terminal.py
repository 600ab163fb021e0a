"""What a client does with a process's terminal: see it, type into it, change its size.

The keeper holds the terminals of pty mode, a tmux server those of tmux mode. Both kinds have all
their output in the log, so a screen can be drawn from that; tmux draws its own while it lives.
"""

from __future__ import annotations

import os
import re
from _thread import RLock

from . import _tmux, _tty
from ._errors import HoldfastError, KeeperError, NotRunning, Unsupported
from ._home import read_private
from ._model import Screen
from ._output import Log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._home import Home
    from ._model import Record
    from ._screen import Rendering

_KEPT = 16
_UNFINISHED = 256  # bytes of a line that may be left standing in tmux mode
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
        from ._screen import Rendering

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
    if record.mode == "pipe":
        raise Unsupported(
            f"{record.handle} has no terminal; start it with one (tty=True, or `run --tty`) to see "
            "its screen, press keys or attach",
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


# -- tmux ------------------------------------------------------------------------------------------


def type_into_tmux(home: Home, record: Record, raw: bytes, eof: bool) -> int:
    """Type bytes into a pane; tmux takes them all and keeps what the program has not read yet."""
    terminal = _open(record)
    try:
        data, _, left = _tty.typed(terminal, raw, eof)
        if left > _UNFINISHED:
            data += _tty.end_of_input(terminal)  # we shall not know, when we are asked for more
    finally:
        os.close(terminal)
    if data:
        buffer = f"{record.tmux_session}-{os.urandom(4).hex()}"
        try:
            _do(home, record, *_tmux.type_buffer(record, buffer), stdin=data)
        except HoldfastError:
            try:
                _tmux.run(
                    home, record, "delete-buffer", "-b", buffer
                )  # it may have been a password
            except HoldfastError:
                pass
            raise
    return len(raw)


def resize_tmux(home: Home, record: Record, columns: int, rows: int) -> None:
    _do(home, record, *_tmux.resize(record, columns, rows))


def _do(home: Home, record: Record, *command: str, stdin: bytes = b"") -> None:
    try:
        gone = _tmux.run(home, record, *command, stdin=stdin).strip() == _tmux.GONE.encode()
    except KeeperError as error:
        error.handle = record.handle
        raise
    if gone:
        raise Unsupported(f"the pane of {record.handle} is gone from tmux", handle=record.handle)


def tmux_screen(home: Home, record: Record, colours: bool) -> Screen | None:
    """The screen as tmux has it, or had it at the end; None if it left none."""
    try:
        if record.running:
            printed = _tmux.run(home, record, *_tmux.capture(record))
        else:
            printed = read_private(home.screen(record.handle))
        captured = _tmux.Captured(printed)
    except (HoldfastError, FileNotFoundError, ValueError):
        return None  # it ended just now, or its server did: the log has it all
    return _drawn(captured, colours) if captured.ours else None


_CODE = re.compile(r"\x1b\[[0-9;:]*m")
_LINES = re.compile(r"\x0e([^\x0f]*)\x0f?")  # characters that stand for lines of boxes
_LINE_OF = str.maketrans("`afgjklmnopqrstuvwxyz{|}~", "◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")
_OTHER = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")


def _drawn(captured: _tmux.Captured, colours: bool) -> Screen:
    body = _LINES.sub(_boxes, captured.body)
    styled = _OTHER.sub("", body)
    lines = [_CODE.sub("", line).replace("\x1b", "").rstrip() for line in styled.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    picture = "\n".join(styled.split("\n")[: len(lines)]) + "\x1b[0m" if colours else None
    return Screen(
        text="\n".join(lines),
        size=captured.size,
        cursor=captured.cursor,
        title=_OTHER.sub("", captured.title).replace("\x1b", ""),
        fullscreen=captured.fullscreen,
        styled=picture,
    )


def _boxes(match: re.Match[str]) -> str:
    """Draw the lines, and leave the colours between them as they are."""
    parts = re.split(r"(\x1b\[[0-9;:]*m)", match[1])
    return "".join(part if part[:1] == "\x1b" else part.translate(_LINE_OF) for part in parts)


def live_size(record: Record) -> tuple[int, int] | None:
    """The size of a running process's terminal as the kernel has it now."""
    try:
        terminal = _open(record)
    except (OSError, HoldfastError):
        return record.size
    try:
        return _tty.get_size(terminal)
    except OSError:
        return record.size
    finally:
        os.close(terminal)


def _open(record: Record) -> int:
    check_terminal(record)
    try:
        return _tty.open_terminal(record.tty or "")
    except (FileNotFoundError, NotADirectoryError):
        raise NotRunning(
            f"{record.handle} has just ended, and its terminal is gone; its log can still be read",
            handle=record.handle,
            status=record.status,
        ) from None
    except OSError as error:
        raise Unsupported(
            f"the terminal of {record.handle} cannot be opened: {error.strerror}; read its log",
            handle=record.handle,
        ) from error
