"""A process's pane of tmux, as a client uses it: typed into, resized, its screen taken.

While tmux lives it has the terminal, and clients go to it directly; the keeper is not asked.
"""

from __future__ import annotations

import os
import re

from ..core import tmux_server
from ..core.errors import HoldfastError, KeeperError, NotRunning, Unsupported
from ..core.home import read_private
from ..core.record import Screen
from ..linux import kernel, tty
from .control import check_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.home import Home
    from ..core.record import Record

_UNFINISHED = 256  # bytes of a line that may be left standing


class Pane:
    __slots__ = ("_home", "_record")

    def __init__(self, home: Home, record: Record) -> None:
        self._home = home
        self._record = record

    @classmethod
    def of(cls, home: Home, record: Record) -> Pane | None:
        """The pane of a process; None where its terminal is not tmux's."""
        return None if record.tmux_session is None else cls(home, record)

    def type(self, raw: bytes, eof: bool) -> int:
        """Type bytes into it; tmux takes them all and keeps what the program has not read yet."""
        record = self._record
        terminal = self._open()
        try:
            data, _, left = tty.typed(terminal, raw, eof)
            if left > _UNFINISHED:
                data += tty.end_of_input(terminal)  # we shall not know, when we are asked for more
        finally:
            os.close(terminal)
        if data:
            buffer = f"{record.tmux_session}-{os.urandom(4).hex()}"
            try:
                self._do(*tmux_server.type_buffer(record, buffer), stdin=data)
            except HoldfastError:
                try:  # it may have been a password
                    tmux_server.run(self._home, record, "delete-buffer", "-b", buffer)
                except HoldfastError:
                    pass
                raise
        return len(raw)

    def resize(self, columns: int, rows: int) -> None:
        self._do(*tmux_server.resize(self._record, columns, rows))

    def screen(self, colours: bool) -> Screen | None:
        """The screen as tmux has it, or had it at the end; None if it left none."""
        home, record = self._home, self._record
        try:
            if record.running:
                printed = tmux_server.run(home, record, *tmux_server.capture(record))
            else:
                printed = read_private(home.screen(record.handle))
            captured = tmux_server.Captured(printed)
        except (HoldfastError, FileNotFoundError, ValueError):
            return None  # it ended just now, or its server did: the log has it all
        return _drawn(captured, colours) if captured.ours else None

    def size(self) -> tuple[int, int] | None:
        """The size of its terminal as the kernel has it now: people who attach change it."""
        record = self._record
        try:
            terminal = self._open()
        except (OSError, HoldfastError):
            return record.size
        try:
            return tty.get_size(terminal)
        except OSError:
            return record.size
        finally:
            os.close(terminal)

    def _do(self, *command: str, stdin: bytes = b"") -> None:
        record = self._record
        try:
            said = tmux_server.run(self._home, record, *command, stdin=stdin)
        except KeeperError as error:
            # Its session, perhaps tmux itself, is gone with it; its terminal's name may be
            # somebody else's by now.
            begun = record.start_time or kernel.start_time(record.pid or 0) or 0
            if not kernel.lives(record.pid or 0, begun):
                raise self._has_ended() from None
            error.handle = record.handle
            raise
        if said.strip() == tmux_server.DEAD.encode():
            raise self._has_ended()
        if said.strip() == tmux_server.GONE.encode():
            raise Unsupported(
                f"the pane of {record.handle} is gone from tmux", handle=record.handle
            )

    def _has_ended(self) -> NotRunning:
        record = self._record
        return NotRunning(
            f"{record.handle} has just ended, and its terminal is gone; its log can still be read",
            handle=record.handle,
            status=record.status,
        )

    def _open(self) -> int:
        record = self._record
        check_terminal(record)
        try:
            return tty.open_terminal(record.tty or "")
        except (FileNotFoundError, NotADirectoryError):
            raise self._has_ended() from None
        except OSError as error:
            raise Unsupported(
                f"the terminal of {record.handle} cannot be opened: {error.strerror}; read its log",
                handle=record.handle,
            ) from error


_CODE = re.compile(r"\x1b\[[0-9;:]*m")
_LINES = re.compile(r"\x0e([^\x0f]*)\x0f?")  # characters that stand for lines of boxes
_LINE_OF = str.maketrans("`afgjklmnopqrstuvwxyz{|}~", "◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")
_OTHER = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]")


def _drawn(captured: tmux_server.Captured, colours: bool) -> Screen:
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
