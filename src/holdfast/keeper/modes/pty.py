"""Pty mode: a terminal of which both halves of the keeper hold both ends.

It dies with them: a process that is found again after both were killed has lost it.
"""

from __future__ import annotations

import os
import termios
import tty as tty_modes

from ...linux import tty
from ...linux.kernel import make_splice_pipe
from .. import launch
from .base import Mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...core.record import Record
    from ..child import Child
    from ..held_fds import Held
    from ..launch import Action, Ends
    from ..worker import Worker
    from .base import Typed


class Pty(Mode):
    name = "pty"
    terminal_here = True

    def __init__(self, worker: Worker, *, raw: bool = False) -> None:
        super().__init__(worker)
        self._raw = raw  # for somebody who passes on to a terminal elsewhere

    def describe(self, record: Record, asked: dict[str, Any]) -> None:
        record.stdin = True
        record.sizes = [[0, *asked["size"]]]

    def make_ends(self, record: Record) -> tuple[Ends, list[Action]]:
        ends = launch.Ends()
        try:
            self._make_terminal(ends, record)
        except BaseException:
            ends.close_all()
            raise
        return ends, self._at_terminal(record)

    def make_ends_again(self, record: Record, held: Held) -> tuple[Ends, list[Action]]:
        return launch.Ends(), self._at_terminal(record)

    def _make_terminal(self, ends: Ends, record: Record) -> None:
        ends.out, ends.tty = os.openpty()  # neither is inherited
        ends.stdin = os.dup(ends.out)
        os.set_blocking(ends.out, False)
        ends.splice_pipe = make_splice_pipe()
        record.tty = os.ttyname(ends.tty)
        tty.set_size(ends.tty, *record.size or (80, 24))
        tty.set_utf8(ends.tty)
        if self._raw:
            tty_modes.setraw(ends.tty, termios.TCSANOW)

    def _at_terminal(self, record: Record) -> list[Action]:
        # A session leader without a terminal that opens one gets it as its controlling terminal.
        # Not so one that passes on: what it runs has a terminal of its own, which must not hang up
        # when this one does.
        flags = os.O_RDWR | (os.O_NOCTTY if self._raw else 0)
        opened = (os.POSIX_SPAWN_OPEN, 0, record.tty or "", flags, 0)
        return [opened, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]

    def holds(self, held: Held) -> bool:
        return held.splice_pipe >= 0

    def mend(self, record: Record, held: Held) -> None:
        if held.out < 0:
            ends = launch.Ends()
            self._make_terminal(ends, record)
            held.out, held.stdin, held.tty = ends.out, ends.stdin, ends.tty
            held.splice_pipe = ends.splice_pipe

    def adopted(self, record: Record) -> None:
        record.notes.append("its terminal was lost when the keeper was killed")
        record.attach = None
        self._worker.save(record)

    def typed(self, child: Child, data: bytes, eof: bool) -> Typed | None:
        if child.held.stdin < 0:
            return None
        return tty.typed(child.held.stdin, data, eof, child.line)

    def why_no_stdin(self, record: Record) -> str:
        return f"the terminal of {record.handle} is gone; start the process again to type into it"
