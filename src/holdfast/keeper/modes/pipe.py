"""Pipe mode: output into FIFOs of the home, and stdin, if it is to have one, from a pipe."""

from __future__ import annotations

import os

from .. import adopt, launch
from .base import Mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...core.record import Record
    from ..held_fds import Held
    from ..launch import Action, Ends
    from ..worker import Worker


class Pipe(Mode):
    name = "pipe"

    def __init__(self, worker: Worker, *, shared: bool = False) -> None:
        super().__init__(worker)
        # One after the other reads and writes them: nothing in them is lost in between.
        self.keeps_fifos = self._keeps_input = shared

    def make_ends(self, record: Record) -> tuple[Ends, list[Action]]:
        store = self._worker.store
        ends = launch.Ends()
        try:
            ends.out, theirs = launch.fifo(store, store.home.fifo(record.handle))
            actions: list[Action] = [(os.POSIX_SPAWN_DUP2, ends.give(theirs), 1)]
            if "stderr" in record.streams:
                ends.err, theirs = launch.fifo(store, store.home.fifo(record.handle, "stderr"))
                ends.give(theirs)
            actions.append((os.POSIX_SPAWN_DUP2, theirs, 2))
            if record.stdin:
                theirs, ends.stdin = os.pipe2(os.O_CLOEXEC)
                os.set_blocking(ends.stdin, False)
                actions.append((os.POSIX_SPAWN_DUP2, theirs, 0))
                if self._keeps_input:
                    ends.input = theirs  # for the next one too
                else:
                    ends.give(theirs)
            else:
                actions.append((os.POSIX_SPAWN_DUP2, 0, 0))  # our own stdin is /dev/null
        except BaseException:
            ends.close_all()
            raise
        return ends, actions

    def make_ends_again(self, record: Record, held: Held) -> tuple[Ends, list[Action]]:
        home = self._worker.home
        ends = launch.Ends()
        try:
            out = ends.give(launch.open_writer(home.fifo(record.handle), held.out))
            err = out
            if "stderr" in record.streams:
                err = ends.give(launch.open_writer(home.fifo(record.handle, "stderr"), held.err))
        except BaseException:
            ends.close_all()
            raise
        if held.input >= 0:
            os.set_blocking(held.input, True)  # as the first one found it
        actions: list[Action] = [(os.POSIX_SPAWN_DUP2, max(0, held.input), 0)]
        actions += [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
        return ends, actions

    def find_ends(self, record: Record, held: Held) -> None:
        home = self._worker.home
        if held.out < 0:
            held.out = adopt.theirs(held.pid, 1, home.fifo(record.handle))
        if held.err < 0 and "stderr" in record.streams:
            held.err = adopt.theirs(held.pid, 2, home.fifo(record.handle, "stderr"))

    def mend(self, record: Record, held: Held) -> None:
        store = self._worker.store
        if held.out < 0:
            held.out = launch.make_reader(store, store.home.fifo(record.handle))
            if "stderr" in record.streams:
                held.err = launch.make_reader(store, store.home.fifo(record.handle, "stderr"))
