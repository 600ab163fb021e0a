"""The lives of processes: how each begins, goes on with another pid, and is seen to.

Whatever the mode, and whoever begins it (a request, a runner that died, recovery), these are the
steps, and this is their order: the record is on disk; the guard holds the descriptors; the process
is made; the caller is told; then its end, its record, its output, its deadline and its prompts are
seen to, each until that has succeeded.
"""

from __future__ import annotations

import os

from ..core.programs import keeper_program
from ..linux import kernel
from . import clone, launch
from .child import Child
from .held_fds import Held, brief
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.record import Record
    from .channel import Channel
    from .modes.base import Order
    from .worker import Worker

_SEE_AGAIN, _SEE_AGAIN_AT_MOST = 0.05, 5.0


class Lives:
    __slots__ = ("_channel", "_memory_kills", "_worker")

    def __init__(self, worker: Worker, channel: Channel) -> None:
        self._worker = worker
        self._channel = channel
        self._memory_kills = kernel.MemoryKills()

    def add(
        self, record: Record, held: Held, *, mine: bool = False, guarded: bool = False
    ) -> Child:
        worker = self._worker
        child = Child(
            worker.loop,
            worker.store,
            record,
            held,
            worker.modes.of(record),
            mine=mine,
            guarded=guarded,
            memory_kills=self._memory_kills,
            on_over=worker.delivery.first_end,
            on_end=worker.ended_now,
            on_quiet=worker.let_go_if_quiet,
            on_limit=lambda child: worker.stop(child, "log_limit", "keeper"),
            on_sent=lambda child, token, n: worker.tell("sent", child.record.handle, token, n),
        )
        worker.children[record.handle] = child
        return child

    def launch(self, order: Order) -> Child:
        """Start a process whose record is on disk; if that fails, nothing is left of it."""
        worker, record, plan = self._worker, order.record, order.plan
        handle, mode = record.handle, worker.modes.of(record)
        try:
            plan.make()
            ends, actions = mode.make_ends(record)
        except BaseException:
            plan.give_up()
            worker.store.delete(handle)
            raise
        held = ends.held(brief(record))
        told = False
        try:
            self._channel.hand_over("launching", handle, held)
            told = True
            directory = mode.directory(record)
            pid = launch.start(
                order.program, order.argv, order.env, handle, directory, actions, order.umask, plan
            )
            ends.close_theirs()  # which leaves room for the pidfd
            pidfd = clone.pidfd_of(pid)
        except BaseException:
            plan.give_up()
            ends.close_all()
            worker.store.delete(handle)
            if not told:  # the guard is gone; the caller will ask again, and find our successor
                worker.become_guard(keeper_program())
            worker.tell("failed", handle)
            raise
        held.pid, held.pidfd = pid, pidfd
        record.pid, record.memory_floor = pid, kernel.own_peak_memory()
        child = self.add(record, held, mine=True)
        worker.hold(handle, Held(pid, held.pidfd))  # the rest of it went ahead
        return child

    def relaunch(self, child: Child, argv: list[str], env: dict[str, str]) -> None:
        """Start who takes over from one that is dead and let go of."""
        worker, record, held = self._worker, child.record, child.held
        room = os.dup(0)  # for its pidfd, without which nobody would know of it
        plan = worker.containment.again(record)
        told = False
        try:
            worker.save(record)
            plan.make()
            try:
                self._channel.hand_over("relaunching", record.handle, held)
            except OSError:
                worker.become_guard(keeper_program())
            told = True
            ends, actions = child.mode.make_ends_again(record, held)
            try:
                program = launch.find_program(argv, env, "/")
                directory = child.mode.directory(record)
                pid = launch.start(
                    program, argv, env, record.handle, directory, actions, 0o077, plan
                )
            finally:
                ends.close_theirs()
            os.close(room)
            room = -1
            begun, pidfd = _hold_of(pid)
        except BaseException:
            if room >= 0:
                os.close(room)
            plan.give_up()
            if told:
                worker.tell("failed", record.handle)
            raise
        held.pid, held.pidfd = pid, pidfd
        child.mine = True
        worker.hold(record.handle, Held(pid, held.pidfd))
        record.pid, record.start_time = pid, begun
        worker.save(record)
        self._see_to(child, child.watch_end)
        worker.watching.moved(child)
        if child.stopping is not None:
            child.stopping.runner_begun()

    def launched(self, child: Child) -> None:
        """The caller has its handle, the guard the descriptors; now the rest, its end first.

        It runs, and its caller was told so: what fails here is tried until it succeeds.
        """
        self._see_to(child, child.watch_end)
        self._see_to(child, lambda: self._write_down(child))
        if child.mine:  # what starts in tmux needs nothing to be ready
            self._see_to(child, self._worker.store.prepare)
            self._see_to(child, self._worker.containment.prepare)
        self._see_to(child, lambda: child.watch_output(new=True))
        self._see_to(child, lambda: self.set_deadline(child))
        self._see_to(child, lambda: self._watch_input(child))

    def _see_to(self, child: Child, step: Callable[[], None], again: float = _SEE_AGAIN) -> None:
        if self._worker.children.get(child.record.handle) is not child:
            return  # it has ended, and was let go of
        try:
            step()
        except Exception as error:
            say(f"{child.record.handle}: {error!r}; it is tried again")
            later = min(2 * again, _SEE_AGAIN_AT_MOST)
            self._worker.loop.after(again, lambda: self._see_to(child, step, later))

    def _write_down(self, child: Child) -> None:
        if child.record.running:
            child.record.start_time = kernel.start_time(child.held.pid)
            self._worker.save(child.record)

    def _watch_input(self, child: Child) -> None:
        if child.note is None:
            self._worker.watching.add(child)

    def set_deadline(self, child: Child) -> None:
        clock = child.record.deadline_clock
        if clock is not None and child.note is None:
            child.deadline = self._worker.loop.at(
                clock, lambda: self._worker.stop(child, "timeout", "keeper")
            )


def _hold_of(pid: int) -> tuple[int | None, int]:
    """The start time of a child of ours, and its pidfd; it is ended if we cannot have them."""
    try:
        begun = kernel.start_time(pid)  # first: it needs a descriptor only for a moment
    except OSError:
        clone.end(pid)
        raise
    return begun, clone.pidfd_of(pid)
