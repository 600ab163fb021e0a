"""A process that runs elsewhere (in a container, say), by means of a program under us: its runner.

The record's command is what runs there; pid and containment are the runner's. What the runner reads
and writes is the process's input and output, its signals are the process's, and how it ended is for
the runner to say.

DESIGN. A runner ends by exiting. One that dies by a signal, or nobody knows how, is started again:
what it runs goes on meanwhile, and only a runner can end it. So whatever may be killed here, the
output stays exact and nothing is left behind there. One that is killed is replaced at once; one
that keeps dying meets something that may pass, so the next ones come more and more slowly. If that
was in vain the process is lost, and what may still run is named. What a runner is promised:

- Descriptor 3 is the shelf, a datagram socket connected to itself, which both our halves hold too.
  What descriptors a runner sends to itself lie there for its successor, who peeks at them.
- 1 and 2 (or the terminal, in raw mode and nobody's controlling one) are the same for all of them.
  When the next one begins, what the last one wrote is in the logs, and HOLDFAST_LOG says how much
  that is: what is missing is the next one's to write. What was sent to 0 and not read waits there.
  A runner whose terminal is gone, with both our halves, waits to be killed: the next keeper takes
  the shelf from it where it may (`ptrace`), and starts the next one at a new terminal.
- HOLDFAST_RUNNER of the first is the caller's, and on no disk; the next ones are told the handle,
  the directory of the files below, and that it is ``again``. HOLDFAST_STOP is the signal of a stop
  under way, 9 once the grace is over: a forced stop kills the runner, the next one what it runs.
- It is passed `PASSED_ON` as signals, and SIGWINCH when its terminal has another size. To stop and
  continue only a runner would say nothing to what it runs, so that is refused, as are all others.
- Beside the record it writes ``.runner`` (what it runs, or why it cannot), ``.place`` (for its
  successor) and ``.end`` (how it ended; neither code nor signal: nobody knows). Without that last
  one its own exit is the process's.
"""

from __future__ import annotations

import json
import os
import signal
import time

from .. import _kernel
from .._errors import BadRequest, HoldfastError, NotExecutable, Unsupported
from .._model import ExitNote, Record, signal_name, signal_number
from .._store import Store
from . import launch
from .guard import Held
from .journal import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .child import Child
    from .worker import Worker

PASSED_ON = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
    }
)
# Seconds before each start but the first; after those it is given up. Starts count for a while.
_WAITS = (0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 15.0)
_WITHIN = 40.0
_AGAIN = 1.0


def checked(asked: Any) -> dict[str, Any]:
    """What a client says of the runner of a process."""
    kind, argv, env = asked["kind"], asked["argv"], asked["env"]
    texts = [kind, *argv, *env, *env.values()]
    if not argv or not all(isinstance(text, str) for text in texts):
        raise BadRequest("a runner is a kind, the arguments of a program, and its environment")
    return {"kind": kind, "argv": argv, "env": env}


# -- from one to the next --------------------------------------------------------------------------


def died(worker: Worker, child: Child, note: ExitNote) -> bool:
    """Start a runner again that did not exit; False if this is the end of its process."""
    record = child.record
    if record.runner is None or (note.known and note.signal is None):
        return False
    if record.boot_id != _kernel.boot_id():
        why = "the machine was started anew"
    elif len(_starts(record)) > len(_WAITS):
        why = f"its runner died {len(_WAITS) + 1} times in {_WITHIN:g} s"
        if trouble := worker.store.said(record.handle, ".runner").get("trouble"):
            why = f"{why} ({trouble})"
    else:
        child.bury()
        if wait := _WAITS[max(0, len(_starts(record)) - 1)]:
            worker.loop.after(wait, lambda: start_again(worker, child))
        else:
            start_again(worker, child)
        return True
    record.notes.append(f"{why}; {what(worker.store, record)} may still be there")
    note.known, note.code, note.signal = False, None, None
    return False


def start_again(worker: Worker, child: Child) -> None:
    record = child.record
    assert record.runner is not None
    if child.note is not None or worker.children.get(record.handle) is not child:
        return
    sizes = child.written()
    if sizes is None:  # a full disk
        worker.loop.after(_AGAIN, lambda: start_again(worker, child))
        return
    starts = _starts(record)
    record.runner["starts"] = [*starts, time.monotonic()]
    say(f"{record.handle}: its runner died and is started again")
    try:
        worker.relaunch(child, record.runner["argv"], _environment(worker, record, sizes))
    except NotExecutable as error:
        say(f"{record.handle}: {error}")
        worker.loop.after(_AGAIN, child.settle_lost)
    except (HoldfastError, OSError) as error:  # it is we who lack something
        say(f"{record.handle}: {error}")
        record.runner["starts"] = starts
        worker.loop.after(_AGAIN, lambda: start_again(worker, child))


def _starts(record: Record) -> list[float]:
    """When it was started lately."""
    assert record.runner is not None
    now = time.monotonic()
    return [clock for clock in record.runner["starts"] if 0 <= now - clock < _WITHIN]


def _environment(worker: Worker, record: Record, sizes: list[int]) -> dict[str, str]:
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    told = {"handle": record.handle, "directory": worker.home.processes, "again": True}
    env["HOLDFAST_RUNNER"] = json.dumps(told)
    env["HOLDFAST_LOG"] = ",".join(str(size) for size in sizes)
    number = _stop_number(record)
    if number is not None:
        env["HOLDFAST_STOP"] = str(number)
    return env


def _stop_number(record: Record) -> int | None:
    assert record.runner is not None
    if record.stop is None:
        return record.runner.get("signal")
    if record.stop.kill_clock <= time.monotonic():
        return int(signal.SIGKILL)
    return signal_number(record.stop.signal)


def mend(store: Store, record: Record, held: Held) -> None:
    """Make anew what was lost with both halves of a keeper, all but its stdin."""
    if held.shelf < 0:
        held.shelf = launch.make_shelf()
    if record.mode == "pty" and held.out < 0:
        ends = launch.Ends()
        launch.make_terminal(ends, record)
        held.out, held.stdin, held.tty, held.tank = ends.out, ends.stdin, ends.tty, ends.tank
    elif record.mode == "pipe" and held.out < 0:
        held.out = launch.make_reader(store, store.home.fifo(record.handle))
        if record.err_log is not None:
            held.err = launch.make_reader(store, store.home.fifo(record.handle, "stderr"))


# -- signals and the end ---------------------------------------------------------------------------


def send_signal(worker: Worker, child: Child, number: int) -> None:
    check_signal(child.record, number)
    assert child.record.runner is not None
    if number == signal.SIGKILL:  # for what it runs: its successor is told
        child.record.runner["signal"] = int(number)
        worker.save(child.record)
    if child.held.pidfd >= 0:
        _kernel.send_signal(child.held.pidfd, number)


def check_signal(record: Record, number: int) -> None:
    if record.runner is not None and number not in PASSED_ON and number != signal.SIGKILL:
        names = ", ".join(sorted(signal_name(passed)[3:] for passed in PASSED_ON))
        raise Unsupported(
            f"{signal_name(number)} is not passed on to what runs in {record.runner['kind']}; "
            f"{names} and KILL are",
            handle=record.handle,
        )


def ended(store: Store, record: Record, note: ExitNote) -> ExitNote:
    """How the process of a runner ended that is gone for good."""
    told = store.said(record.handle, ".end")
    remarks = told.get("notes")
    said = [told.get("error") or store.said(record.handle, ".runner").get("error")]
    for text in said + (remarks if isinstance(remarks, list) else []):
        if text and str(text) not in record.notes:
            record.notes.append(str(text))
    store.add_runner(record)
    code, number = told.get("code"), told.get("signal")
    if not told:
        return note
    code, number = _small(code), _small(number)
    said_at = told.get("at")
    at = note.at
    if isinstance(said_at, (int, float)) and 0 <= said_at <= at:
        at = float(said_at)
    clock = note.clock - max(0.0, note.at - at)
    return ExitNote(
        code=code,
        signal=None if number is None else signal_name(number),
        at=at,
        clock=clock,
        known=code is not None or number is not None,
        by_itself=record.stop is not None and clock < record.stop.clock,
        out_of_memory=bool(told.get("out_of_memory")),
    )


def _small(number: object) -> int | None:
    """A code or a signal; a runner's file may have been damaged."""
    return number if type(number) is int and 0 <= number < 1 << 16 else None


def what(store: Store, record: Record) -> str:
    """A name for what a runner runs."""
    assert record.runner is not None
    container = store.said(record.handle, ".runner").get("container")
    if isinstance(container, str):
        return f"the container {container}"
    return f"what it ran in {record.runner['kind']}"
