"""Taking up what is on disk and in the guard's hands, when a worker starts.

Every record that says running is one of: held by the guard (its worker died), left by a keeper of
which both halves died (to be found again by pid and start time), ended with a note that nobody has
told of yet, or one that never came to be.

DESIGN. No file may keep a worker from its work. A record that cannot be read is set aside. If its
process lives, in the guard's hands or by the mark in its environment, it is kept all the same, with
a record written anew: from what the guard was told when it began, or from what can still be read of
the old one. So is a process whose record was deleted, or says that it has ended.

Records of processes that have ended, with nothing left to be done for them, are known by their
names (`core.index`). They are looked at afterwards, a few at a time while others are answered: one
that is damaged, or not what its name says, is seen to like the others then.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time

from ..core.errors import NotFound, StoreError
from ..core.home import read_private
from ..core.machine import boot_id
from ..core.record import DEFAULT_SESSION, ExitNote, Record, rfc3339, signal_number
from ..core.watch import is_live
from ..linux import cgroup, kernel
from . import adopt
from .damaged_files import is_for_now
from .held_fds import brief
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.index import Ended
    from .held_fds import Held
    from .worker import Worker

_AT_ONCE = 50
_PAUSE = 0.002
_AGAIN = 1.0
_RESTORED = "its record was damaged or deleted, and written anew"


def recover(worker: Worker) -> None:
    table = worker.guard.table
    worker.store.clean_up()
    worker.delivery.gatherings.load()
    settled = worker.index.take_up(worker.store.handles())
    # What the guard holds may be settled by its name alone.
    unsure = [*worker.index.unsure, *(each.handle for each in settled if each.handle in table)]
    settled = [each for each in settled if each.handle not in table]
    worker.adoptions.take_up()
    running, ended = _look_at(worker, unsure)
    known = {record.handle for record in (*running, *ended)}
    for handle, held in table.items():
        if handle not in known and _lives(held):
            record = _remembered(worker, handle, held)
            if record is not None and _write_anew(worker, record):
                running.append(record)
    # First those that had ended: what ends now is newer than they are, and forgotten after them.
    worker.retention.take_up(settled, ended)
    for record in ended:
        worker.loop.alive()
        _carefully(worker, record, table.get(record.handle), _ended)
    for record in running:
        worker.loop.alive()
        _carefully(worker, record, table.get(record.handle), _running)
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
    worker.retention.prune()
    in_use = {child.record.session for child in worker.children.values()}
    worker.retention.prune_sessions(in_use | worker.agents.sessions() | worker.leases.sessions())
    kept = [child.record for child in worker.children.values()]
    worker.containment.clean_up(path for record in kept for path in record.cgroups)
    worker.guard.fresh = False  # also for whoever takes the guard's place: that is we
    worker.tell("recovered")
    worker.modes.tmux.recovered()


def _look_at(worker: Worker, handles: list[str]) -> tuple[list[Record], list[Record]]:
    """Load records, oldest first: of those that run, and of those that have ended."""
    running: list[Record] = []
    ended: list[Record] = []
    for handle in handles:
        worker.loop.alive()
        record = _loaded(worker, handle, worker.guard.table.get(handle))
        if record is None:
            continue
        worker.index.add(handle, record.session)
        (running if record.running else ended).append(record)
    running.sort(key=lambda record: record.started_at)
    ended.sort(key=lambda record: record.ended_at or "")
    return running, ended


def _look_at_settled(worker: Worker, settled: list[Ended]) -> None:
    """A few of them now, the others later."""
    for each in settled[:_AT_ONCE]:
        if worker.retention.has(each.session, each.handle) and each.handle not in worker.children:
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
        _unreadable(worker, handle, None, error)
        worker.retention.take(settled.session, handle)
        return
    except NotFound:
        worker.forget(settled.session, handle)
        return
    if record.running or _is_unfinished(worker, record):
        worker.retention.take(settled.session, handle)
        worker.index.add(handle, record.session)
        worker.delivery.take_up_watches(record)
        if record.running:
            _carefully(worker, record, None, _running)
        else:
            worker.retention.put(record)
            _carefully(worker, record, None, _ended)


def _is_unfinished(worker: Worker, record: Record) -> bool:
    left = any(is_live(watch) for watch in record.watches)
    return left or not record.told or os.path.exists(worker.home.fifo(record.handle))


def _carefully(
    worker: Worker,
    record: Record,
    held: Held | None,
    take_up: Callable[[Worker, Record, Held | None], None],
) -> None:
    """Take up one process; whatever may be wrong with it, the others are taken up too."""
    try:
        take_up(worker, record, held)
    except Exception as error:
        if is_for_now(error):
            raise  # the guard will try again with another worker
        say(f"{record.handle}: it is taken up in part: {type(error).__name__}: {error}"[:500])
        if record.handle not in worker.children and held is not None and _lives(held):
            worker.lives.add(record, held).watch_end()  # it can be stopped, at least


def _loaded(worker: Worker, handle: str, held: Held | None) -> Record | None:
    """A record as it is on disk, or as it must have been; None if there is nothing to be kept."""
    try:
        record = worker.store.load(handle)
    except StoreError as error:
        return _unreadable(worker, handle, held, error)
    except NotFound:
        worker.index.drop(handle)
        return None
    if not record.running and held is not None and _lives(held):
        say(f"{handle}: its record says that it has ended, and it has not")
        told = _remembered(worker, handle, held)
        if told is not None and _write_anew(worker, told):
            return told
    worker.delivery.take_up_watches(record)
    return record


def _unreadable(worker: Worker, handle: str, held: Held | None, error: StoreError) -> Record | None:
    guard = worker.guard
    if not guard.fresh and held is None and worker.store.is_empty(handle):
        worker.store.delete(handle)  # a worker died as it began to write it: it never was
        return None
    if error.detail.get("for_now"):
        raise error  # out of descriptors or memory: the guard will try again with another worker
    say(str(error))
    if error.detail.get("newer"):
        worker.index.add(handle, None)
        return None
    record = None
    if held is not None and _lives(held):
        record = _remembered(worker, handle, held)
    elif held is None:
        record = _salvaged(worker, handle)
    try:
        say(f"set aside as {worker.store.set_aside(handle)}")
    except OSError as refusal:
        say(f"it stays where it is: {refusal}")
    if record is None or not _write_anew(worker, record):
        return None
    return record


# -- what was known of a process -------------------------------------------------------------------


def _remembered(worker: Worker, handle: str, held: Held) -> Record | None:
    """The record of a process that the guard holds, as it was told when that began."""
    try:
        record = Record.from_json(json.loads(held.record))
    except (StoreError, ValueError, RecursionError):
        record = Record(handle=handle, session=DEFAULT_SESSION, command="", cwd="/")
        record.mode = worker.modes.guess(held)
        record.err_log = "" if held.err >= 0 else None
    return _alive_as(record, held.pid, kernel.start_time(held.pid))


def _salvaged(worker: Worker, handle: str) -> Record | None:
    """Salvage a damaged record whose process lives, though nobody holds it."""
    found = adopt.leader(handle)
    if found is None:
        return None
    record = Record(handle=handle, session=DEFAULT_SESSION, command="", cwd="/")
    try:
        data = read_private(worker.home.meta(handle))
    except OSError:
        data = b""
    told, known = _leading(data), record.to_json()
    for name in known.keys() & told.keys() - {"handle", "stop"}:
        before = getattr(record, name)
        setattr(record, name, told[name])
        try:
            record.check()
        except StoreError:
            setattr(record, name, before)
    return _alive_as(record, found.pid, found.start_time)


def _leading(data: bytes) -> dict[str, Any]:
    """The fields of a record that was cut off, or of which one does not make sense."""
    text = data.decode("utf-8", "replace").rstrip(" \n\0")
    end = len(text)
    for _ in range(100):
        try:
            found = json.loads(text[:end] + ("" if end == len(text) else "}"))
            return found if isinstance(found, dict) else {}
        except (ValueError, RecursionError):
            end = text.rfind(',"', 0, end)
            if end < 0:
                break
    return {}


def _alive_as(record: Record, pid: int, start_time: int | None) -> Record:
    record.pid, record.start_time, record.boot_id = pid, start_time, boot_id()
    record.status, record.reason, record.ended_by = "running", None, None
    record.exit_code = record.signal = record.ended_at = record.duration_seconds = None
    record.stop, record.told = None, True
    if record.started_clock == 0.0:  # which its deadline counts from
        age = kernel.age(start_time)
        record.started_at, record.started_clock = rfc3339(time.time() - age), time.monotonic() - age
    if _RESTORED not in record.notes:
        record.notes.append(_RESTORED)
    return record


def _write_anew(worker: Worker, record: Record) -> bool:
    """False if this is no record after all. One that cannot be written is kept in memory."""
    record.log = worker.home.log(record.handle)
    if "stderr" in record.streams:
        record.err_log = worker.home.log(record.handle, "stderr")
    try:
        record.check()
        worker.store.restore(record)
    except StoreError as error:
        if not isinstance(error, OSError):
            say(f"{record.handle}: {error}")
            return False
        say(f"{record.handle}: its record cannot be written anew: {error}")
    except OSError as error:
        if is_for_now(error):
            raise
        say(f"{record.handle}: its record cannot be written anew: {error}")
    say(f"{record.handle}: it lives, and its record is written anew")
    return True


def _lives(held: Held) -> bool:
    if held.pidfd < 0:
        return False
    poll = select.poll()
    poll.register(held.pidfd, select.POLLIN)
    return not poll.poll(0)


# -- taking up -------------------------------------------------------------------------------------


def _running(worker: Worker, record: Record, held: Held | None) -> None:
    handle = record.handle
    note = worker.store.read_exit(handle)
    mode, here = worker.modes.of(record), record.boot_id == boot_id()
    if held is None:
        if record.pid is None and not mode.may_have_begun(record):
            worker.store.delete(handle)  # it never was
            cgroup.remove(record.cgroups)
            return
        held = adopt.find(worker.home, record, mode) if note is None else None
        if held is None and note is None and not worker.store.is_sound(handle):
            held = _by_mark(worker, record)
        adopted = held is not None
        if held is None:
            held = adopt.readers_only(worker.home, record)
        if mode.again:
            mode.mend(record, held)
        if adopted and held.pidfd >= 0:
            held.record = brief(record)
            worker.hold(handle, held)
            say(f"adopted {handle}, pid {held.pid}")
            mode.adopted(record)
    if held.pid not in (0, record.pid):
        # A worker died between making the process and writing down its pid.
        record.pid, record.start_time = held.pid, kernel.start_time(held.pid)
        worker.save(record)
    found = kernel.stat(held.pid)
    guarded = found is not None and found.parent == os.getppid()
    child = worker.lives.add(record, held, guarded=guarded)
    child.watch_output()
    mode.take_up(child)
    # Of a process that cannot be found nothing is looked for: its pid may be anybody's by now.
    found_again = held.pidfd >= 0 or ((note is not None or mode.again) and here)
    alive = held.pidfd >= 0 and note is None
    stopping = worker.stopping(child) if record.stop is not None and found_again else None
    if not alive and mode.take_up_dead(child):
        return
    if alive:
        child.watch_end()
    elif note is not None:
        child.settle_foreign()
    else:
        child.settle_lost()
    if child.note is None:  # alive, or a runner that was started again
        worker.lives.set_deadline(child)
        worker.watching.take_up(child)
        if alive and stopping is not None and record.stop is not None:
            stopping.begin(signal_number(record.stop.signal) or signal.SIGTERM)


def _by_mark(worker: Worker, record: Record) -> Held | None:
    """A process that is not where its record says, which somebody has edited since."""
    mode = worker.modes.of(record)
    found = adopt.marked(record, mode)
    if found is None:
        return None
    record.pid, record.start_time, record.boot_id = found.pid, found.start_time, boot_id()
    worker.save(record)
    return adopt.find(worker.home, record, mode)


def _ended(worker: Worker, record: Record, held: Held | None) -> None:
    """Take up an ended one: it may not be told yet, and something may still hold its output."""
    worker.watching.take_up_ended(record)
    if held is None:
        if record.told and not os.path.exists(worker.home.fifo(record.handle)):
            worker.settle(record)
            return
        held = adopt.readers_only(worker.home, record)
    child = worker.lives.add(record, held)
    child.note = ExitNote(record.exit_code, record.signal, 0.0, 0.0)
    child.watch_output()
    child.mode.take_up_ended(child)
    if not record.told:
        worker.delivery.end(child)
    worker.let_go_if_quiet(child)
