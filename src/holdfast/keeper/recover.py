"""Taking up what is on disk and in the guard's hands, when a worker starts.

Every record that says running is one of: held by the guard (its worker died), left by a keeper of
which both halves died (to be found again by pid and start time), ended with a note that nobody has
told of yet, or one that never came to be.

Records of processes that have ended, with nothing left to be done for them, are known by their
names (`_index`). They are looked at afterwards, a few at a time while others are answered: one that
is damaged, or not what its name says, is seen to like the others then.
"""

from __future__ import annotations

import os
import signal

from .. import _cgroup, _kernel
from .._errors import NotFound, StoreError
from .._model import ExitNote, Record, signal_number
from .._watches import is_live
from . import adopt, runner
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .._index import Ended
    from .guard import Held
    from .worker import Worker


_AT_ONCE = 50
_PAUSE = 0.002
_AGAIN = 1.0


def recover(worker: Worker) -> None:
    table = worker.guard.table
    worker.store.clean_up()
    worker.delivery.gatherings.load()
    settled = worker.index.take_up(worker.store.handles())
    worker.adoptions.take_up()
    running, ended = _look_at(worker, worker.index.unsure)
    worker.shelf.take_up(settled, ended)
    for record in running:
        worker.loop.alive()
        _running(worker, record, table.get(record.handle))
    for record in ended:
        worker.loop.alive()
        _ended(worker, record, table.get(record.handle))
    worker.index.complete()
    _look_at_settled(worker, settled)
    for handle, held in table.items():
        if handle not in worker.children:
            worker.tell("forget", handle)
            for fd in held.descriptors():
                os.close(fd)
    table.clear()
    worker.delivery.gatherings.take_up(lambda handle: handle in worker.children)
    worker.agents.recover()
    worker.leases.recover()
    worker.shelf.prune()
    in_use = {child.record.session for child in worker.children.values()}
    worker.shelf.prune_sessions(in_use | worker.agents.sessions() | worker.leases.sessions())
    running = [child.record for child in worker.children.values()]
    worker.containment.clean_up(path for record in running for path in record.cgroups)
    worker.tell("recovered")


def _look_at(worker: Worker, handles: list[str]) -> tuple[list[Record], list[Record]]:
    """Their records, oldest first: of those that run, and of those that have ended."""
    running: list[Record] = []
    ended: list[Record] = []
    for handle in handles:
        worker.loop.alive()
        try:
            record = worker.store.load(handle)
        except StoreError as error:
            _unreadable(worker, handle, error)
            continue
        except NotFound:
            worker.index.drop(handle)
            continue
        worker.index.add(handle, record.session)
        worker.delivery.take_up_watches(record)
        (running if record.running else ended).append(record)
    running.sort(key=lambda record: record.started_at)
    ended.sort(key=lambda record: record.ended_at or "")
    return running, ended


def _look_at_settled(worker: Worker, settled: list[Ended]) -> None:
    """A few of them now, the others later."""
    for each in settled[:_AT_ONCE]:
        if worker.shelf.has(each.session, each.handle) and each.handle not in worker.children:
            try:
                _look_at_one(worker, each)
            except StoreError:  # out of descriptors or memory
                worker.loop.after(_AGAIN, lambda: _look_at_settled(worker, settled))
                return
    if rest := settled[_AT_ONCE:]:
        worker.loop.after(_PAUSE, lambda: _look_at_settled(worker, rest))


def _look_at_one(worker: Worker, settled: Ended) -> None:
    handle = settled.handle
    try:
        record = worker.store.load(handle)
    except StoreError as error:
        _unreadable(worker, handle, error)
        worker.shelf.take(settled.session, handle)
        return
    except NotFound:
        worker.forget(settled.session, handle)
        return
    if record.running or _is_unfinished(worker, record):
        worker.shelf.take(settled.session, handle)
        worker.index.add(handle, record.session)
        worker.delivery.take_up_watches(record)
        if record.running:
            _running(worker, record, None)
        else:
            worker.shelf.put(record)
            _ended(worker, record, None)


def _is_unfinished(worker: Worker, record: Record) -> bool:
    left = any(is_live(watch) for watch in record.watches)
    return left or not record.told or os.path.exists(worker.home.fifo(record.handle))


def _unreadable(worker: Worker, handle: str, error: StoreError) -> None:
    guard = worker.guard
    if not guard.fresh and handle not in guard.table and worker.store.is_empty(handle):
        worker.store.delete(handle)  # a worker died as it began to write it: it never was
        return
    if error.detail.get("for_now"):
        raise error  # out of descriptors or memory: the guard will try again with another worker
    say(str(error))
    if error.detail.get("newer"):
        worker.index.add(handle, None)
    else:
        say(f"set aside as {worker.store.set_aside(handle)}")


def _running(worker: Worker, record: Record, held: Held | None) -> None:
    handle = record.handle
    note = worker.store.read_exit(handle)
    nameless = record.pid is None
    if held is None:
        if nameless and not worker.guard.fresh and record.mode != "tmux":
            # A worker died before it made the process, else the guard would hold it: it never was.
            worker.store.delete(handle)
            _cgroup.remove(record.cgroups)
            return
        if nameless and record.mode == "tmux" and not worker.tmux.begun(record):
            worker.store.delete(handle)
            _cgroup.remove(record.cgroups)
            return
        held = adopt.find(worker.home, record) if note is None else None
        adopted = held is not None
        if held is None:
            held = adopt.readers_only(worker.home, record)
        if record.runner is not None and record.boot_id == _kernel.boot_id():
            runner.mend(worker.store, record, held)
        if adopted and held.pidfd >= 0:
            worker.hold(handle, held)
            say(f"adopted {handle}, pid {held.pid}")
            if record.mode == "pty":
                record.notes.append("its terminal was lost when the keeper was killed")
                record.attach = None
                worker.save(record)
    if held.pid not in (0, record.pid):
        # A worker died between making the process and writing down its pid.
        record.pid, record.start_time = held.pid, _kernel.start_time(held.pid)
        worker.save(record)
    found = _kernel.stat(held.pid)
    guarded = found is not None and found.parent == os.getppid()
    child = worker.add_child(record, held, guarded=guarded)
    child.watch_output()
    in_tmux = record.mode == "tmux" and record.boot_id == _kernel.boot_id()
    if in_tmux:
        worker.tmux.take_up(child)
    # Of a process that cannot be found nothing is looked for: its pid may be anybody's by now.
    known = note is not None or record.runner is not None
    found_again = held.pidfd >= 0 or (known and record.boot_id == _kernel.boot_id())
    alive = held.pidfd >= 0 and note is None
    stopping = worker.stopping(child) if record.stop is not None and found_again else None
    if in_tmux and (note is not None or held.pidfd < 0):
        worker.tmux.take_up_dead(child)  # whose pane may know more
        return
    if alive:
        child.watch_end()
    elif note is not None:
        child.settle_strange()
    else:
        child.settle_lost()
    if child.note is None:  # alive, or a runner that was started again
        worker.set_deadline(child)
        worker.watching.take_up(child)
        if alive and stopping is not None and record.stop is not None:
            stopping.begin(signal_number(record.stop.signal) or signal.SIGTERM)


def _ended(worker: Worker, record: Record, held: Held | None) -> None:
    """It may not have been told of yet, and something it started may still hold its output."""
    worker.watching.take_up_ended(record)
    if held is None:
        if record.told and not os.path.exists(worker.home.fifo(record.handle)):
            worker.settle(record)
            return
        held = adopt.readers_only(worker.home, record)
    child = worker.add_child(record, held)
    child.note = ExitNote(record.exit_code, record.signal, 0.0, 0.0)
    child.watch_output()
    worker.release_terminal(child)
    if not record.told:
        worker.delivery.end(child)
    worker.let_go_if_quiet(child)
