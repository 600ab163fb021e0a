"""A process that runs elsewhere (in a container, say), by means of a program under us: its runner.

The record's command is what runs there; pid and containment are the runner's. What the runner reads
and writes is the process's input and output, its signals are the process's, and how it ended is for
the runner to say.

DESIGN. A runner ends by exiting. One that dies by a signal, or nobody knows how, is started again:
what it runs goes on meanwhile, and only a runner can end it. So whatever may be killed here, the
output stays exact and nothing is left behind there. One that is killed is replaced at once; one
that keeps dying meets something that may pass, so the next ones come more and more slowly. If that
was in vain the process is lost, and what may still run is named. What a runner is promised:

- Descriptor 3 is the store of descriptors, a datagram socket connected to itself, which both our
  halves hold too.
  What descriptors a runner sends to itself lie there for its successor, who peeks at them.
- 1 and 2 (or the terminal, in raw mode and nobody's controlling one) are the same for all of them.
  When the next one begins, what the last one wrote is in the logs, and HOLDFAST_LOG says how much
  that is: what is missing is the next one's to write. What was sent to 0 and not read waits there.
  A runner whose terminal is gone, with both our halves, waits to be killed: the next keeper takes
  the store from it where it may (`ptrace`), and starts the next one at a new terminal.
- HOLDFAST_RUNNER of the first is the caller's, and on no disk; the next ones are told the handle,
  the directory of the files below, and that it is ``again``. HOLDFAST_STOP is the signal of a stop
  under way, 9 once the grace is over: a forced stop kills the runner, the next one what it runs.
- It is passed the signals of its `core.capabilities`, and SIGWINCH for another size. To stop and
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

from ...core.errors import BadRequest, HoldfastError, NotExecutable, Unsupported
from ...core.machine import boot_id
from ...core.programs import docker_program
from ...core.record import ExitNote, Record, signal_name, signal_number
from ...linux import kernel, tty
from .. import adopt, launch
from ..journal import say
from .base import Mode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...core.store import Store
    from ..child import Child
    from ..held_fds import Held
    from ..launch import Action, Ends
    from ..worker import Worker
    from .base import Typed

# Seconds before each start but the first; after those it is given up. Starts count for a while.
_WAITS = (0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 4.0, 8.0, 15.0)
_WITHIN = 40.0
_AGAIN = 1.0


def checked(asked: Any) -> dict[str, Any]:
    """Check what a client says of the runner of a process."""
    kind, argv, env = asked["kind"], asked["argv"], asked["env"]
    texts = [kind, *argv, *env, *env.values()]
    if not argv or not all(isinstance(text, str) for text in texts):
        raise BadRequest("a runner is a kind, the arguments of a program, and its environment")
    return {"kind": kind, "argv": argv, "env": env}


class Runner(Mode):
    """A program that stands for a process elsewhere; `inner` is how it is run itself."""

    again = True

    def __init__(self, worker: Worker, inner: Mode) -> None:
        super().__init__(worker)
        self._inner = inner
        self.terminal_here = inner.terminal_here
        self.keeps_fifos = inner.keeps_fifos

    # -- the start -----------------------------------------------------------------------------

    def describe(self, record: Record, asked: dict[str, Any]) -> None:
        if record.sandbox is not None:
            raise BadRequest(f"what runs in {_of(record)['kind']} has no sandbox here")
        self._inner.describe(record, asked)
        _of(record)["starts"] = [record.started_clock]

    def limit(self, record: Record, limits: dict[str, Any]) -> dict[str, Any]:
        """None of them is ours: it sees to them itself."""
        by = {"by": _of(record)["kind"]}
        given = {name: limit for name, limit in limits.items() if limit is not None}
        record.limits = {name: {"limit": limit, **by} for name, limit in given.items()}
        return {}

    def make_ends(self, record: Record) -> tuple[Ends, list[Action]]:
        fd_store = launch.make_fd_store()
        try:
            ends, actions = self._inner.make_ends(record)
        except BaseException:
            os.close(fd_store)
            raise
        ends.fd_store = fd_store
        return ends, actions + launch.with_fd_store(fd_store)

    def make_ends_again(self, record: Record, held: Held) -> tuple[Ends, list[Action]]:
        ends, actions = self._inner.make_ends_again(record, held)
        return ends, actions + launch.with_fd_store(held.fd_store)

    def directory(self, record: Record) -> str:
        return "/"

    # -- finding it again ----------------------------------------------------------------------

    def is_its(self, record: Record, pid: int) -> bool:
        """Compare its command line: what it runs may have its mark too."""
        return bool(adopt.words(pid) == _of(record)["argv"])

    def find_ends(self, record: Record, held: Held) -> None:
        self._inner.find_ends(record, held)
        held.fd_store = adopt.fd_store(held.pidfd)
        if self.terminal_here:  # it is at a terminal that is gone; the next one gets a new one
            adopt.end(held)

    def mend(self, record: Record, held: Held) -> None:
        """Make anew what was lost with both halves of a keeper, all but its stdin."""
        if record.boot_id != boot_id():
            return
        if held.fd_store < 0:
            held.fd_store = launch.make_fd_store()
        self._inner.mend(record, held)

    # -- while it runs -------------------------------------------------------------------------

    def typed(self, child: Child, data: bytes, eof: bool) -> Typed | None:
        """Data for the terminal that the command reads from: ours only passes on to it."""
        if not self.terminal_here or child.held.stdin < 0:
            return None
        from ...linux.container import Container

        container = Container.of_record(child.record)
        terminal = None if container is None else container.open_terminal()
        if terminal is None:
            return tty.typed_unseen(data, eof)
        try:
            return tty.typed(terminal, data, eof, child.line)
        finally:
            os.close(terminal)

    def why_no_stdin(self, record: Record) -> str:
        return self._inner.why_no_stdin(record)

    def resized(self, child: Child) -> None:
        if child.held.pidfd >= 0:
            kernel.send_signal(child.held.pidfd, signal.SIGWINCH)  # it is not of this terminal

    def check_signal(self, record: Record, number: int) -> None:
        able = record.capabilities
        if able.signals is not None and not able.takes(signal_name(number)):
            *names, last = (name.removeprefix("SIG") for name in able.signals)
            raise Unsupported(
                f"{signal_name(number)} is not passed on to what runs in {_of(record)['kind']}; "
                f"{', '.join(names)} and {last} are",
                handle=record.handle,
            )

    def signal(self, child: Child, number: int) -> None:
        self.check_signal(child.record, number)
        if number == signal.SIGKILL:  # for what it runs: its successor is told
            _of(child.record)["signal"] = int(number)
            self._worker.save(child.record)
        if child.held.pidfd >= 0:
            kernel.send_signal(child.held.pidfd, number)

    def at_terminal(self, child: Child) -> list[int]:
        """The programs that it runs, which are below an init."""
        from ...linux.container import Container

        container = Container.of_record(child.record)
        pid = None if container is None else container.pid
        return [] if pid is None else [pid, *kernel.children(pid)]

    # -- from one to the next ------------------------------------------------------------------

    def on_exit(self, child: Child, note: ExitNote) -> bool:
        """Start a runner again that did not exit."""
        record = child.record
        if note.known and note.signal is None:
            return False
        if record.boot_id != boot_id():
            why = "the machine was started anew"
        elif len(_starts(record)) > len(_WAITS):
            why = f"its runner died {len(_WAITS) + 1} times in {_WITHIN:g} s"
            if trouble := self._worker.store.said(record.handle, ".runner").get("trouble"):
                why = f"{why} ({trouble})"
        else:
            child.release_pid()
            if wait := _WAITS[max(0, len(_starts(record)) - 1)]:
                self._worker.loop.after(wait, lambda: self._start_again(child))
            else:
                self._start_again(child)
            return True
        record.notes.append(f"{why}; {what(self._worker.store, record)} may still be there")
        note.known, note.code, note.signal = False, None, None
        return False

    def _start_again(self, child: Child) -> None:
        worker, record = self._worker, child.record
        if child.note is not None or worker.children.get(record.handle) is not child:
            return
        sizes = child.written()
        if sizes is None:  # a full disk
            worker.loop.after(_AGAIN, lambda: self._start_again(child))
            return
        starts = _starts(record)
        _of(record)["starts"] = [*starts, time.monotonic()]
        _of(record)["argv"] = _program(record)
        say(f"{record.handle}: its runner died and is started again")
        try:
            worker.lives.relaunch(child, _of(record)["argv"], self._environment(record, sizes))
        except NotExecutable as error:
            say(f"{record.handle}: {error}")
            worker.loop.after(_AGAIN, child.settle_lost)
        except (HoldfastError, OSError) as error:  # it is we who lack something
            say(f"{record.handle}: {error}")
            _of(record)["starts"] = starts
            worker.loop.after(_AGAIN, lambda: self._start_again(child))

    def _environment(self, record: Record, sizes: list[int]) -> dict[str, str]:
        env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        directory = self._worker.home.processes
        told = {"handle": record.handle, "directory": directory, "again": True}
        env["HOLDFAST_RUNNER"] = json.dumps(told)
        env["HOLDFAST_LOG"] = ",".join(str(size) for size in sizes)
        number = _stop_number(record)
        if number is not None:
            env["HOLDFAST_STOP"] = str(number)
        return env

    def conclude(self, child: Child, note: ExitNote) -> ExitNote:
        return ended(self._worker.store, child.record, note)


def _of(record: Record) -> dict[str, Any]:
    assert record.runner is not None
    return record.runner


def _program(record: Record) -> list[str]:
    """The runner's program, or the one that is in its place since an upgrade."""
    argv: list[str] = _of(record)["argv"]
    moved = _of(record)["kind"] == "docker" and not os.path.exists(argv[-1])
    return docker_program() if moved else argv


def _starts(record: Record) -> list[float]:
    """The times of its latest starts."""
    now = time.monotonic()
    return [clock for clock in _of(record)["starts"] if 0 <= now - clock < _WITHIN]


def _stop_number(record: Record) -> int | None:
    if record.stop is None:
        return _of(record).get("signal")
    if record.stop.kill_clock <= time.monotonic():
        return int(signal.SIGKILL)
    return signal_number(record.stop.signal)


def ended(store: Store, record: Record, note: ExitNote) -> ExitNote:
    """The end of a process whose runner is gone for good."""
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
    container = store.said(record.handle, ".runner").get("container")
    if isinstance(container, str):
        return f"the container {container}"
    return f"what it ran in {_of(record)['kind']}"
