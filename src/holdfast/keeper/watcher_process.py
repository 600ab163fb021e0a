"""The watcher, as the worker sees it: started while there is something to see, told of it, heard.

The keeper never interprets output, so whether a process waits for input, what a terminal would
reply to a program's question, and what there is for the session's watches, is found out by the
watcher, a program of its own that may use what the keeper may not. It is told over a pipe that only
the worker holds, so it ends with the worker; the next worker starts another. What it says may be
said again after that: a prompt is one event however often it is told, for its id is its place in
the log, and a watch goes on from the place that the record says (`core.watch`).

When a process ends, the watcher may not have seen the last of its output. Its end is told at once;
its watches stay as they are until the watcher says that it has looked at the rest, however often
that takes another watcher or worker.
"""

from __future__ import annotations

import binascii
import json
import os
import signal
import time

from ..core.errors import BadRequest, LimitReached
from ..core.programs import watcher_program
from ..core.watch import MOST_WATCHES, begun, checked, is_live, is_same, is_step
from . import run_program
from .journal import say
from .loop import IN, OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.record import Record
    from ..core.watch import Watch
    from .child import Child
    from .loop import Timer
    from .worker import Worker

_BEGIN = 0.2  # most processes have ended by then
_BEGIN_PTY = 0.02  # but a program that asks its terminal something does so when it starts
_IDLE = 10.0
_AGAIN = 0.1
_AGAIN_AT_MOST = 60.0
_LIVED_LONG = 60.0
_TELL_AGAIN = 1.0
_LONGEST_LINE = 1 << 20
_MOST_UNTOLD = 4 << 20
_ENDS = (b"\r", b"\n", b"\x03", b"\x04", b"\x1a")  # Enter, C-c, C-d, C-z


class Watching:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._loop = worker.loop
        self._watched: dict[str, Child] = {}
        # Ended, with the sizes of their logs then; their watches may have missed the last of it.
        self._ended_with: dict[str, tuple[Record, list[int] | None]] = {}
        self._untellable: set[str] = set()  # handles with something that the disk had no room for
        self._since: dict[str, int] = {}  # what an earlier watcher has seen of a log
        self._prompted: dict[str, str] = {}  # handles that may have an open prompt, and its kind
        self._answered: set[str] = set()  # those that were answered since they were last told of
        self._pid = 0
        self._pidfd = self._to = self._from = -1
        self._heard = b""
        self._untold = bytearray()
        self._timer: Timer | None = None
        self._failures = 0
        self._started = 0.0

    # -- what to look at -----------------------------------------------------------------------

    def add(self, child: Child) -> None:
        """Look at a process that somebody can type to, or that is watched."""
        if child.record.pid is None or not _worth_a_look(child.record):
            return
        self._watched[child.record.handle] = child
        if self._pid:
            self._tell_of(child.record)
            self._cancel()
        else:
            self._start_in(_BEGIN_PTY if child.mode.terminal_here else _BEGIN)

    def take_up(self, child: Child) -> None:
        """Add a process of an earlier worker, which may have been told to wait."""
        self._prompted[child.record.handle] = ""
        self._since[child.record.handle] = self._ends(child)[0]
        self.add(child)

    def resized(self, child: Child) -> None:
        if self._pid and child.record.handle in self._watched:
            self._tell({"sizes": child.record.handle, "to": child.record.sizes})

    def moved(self, child: Child) -> None:
        """Tell the watcher that a process has another pid."""
        if self._pid and child.record.handle in self._watched:
            self._tell({"moved": child.record.handle, "to": child.record.pid})

    def drop(self, child: Child) -> None:
        """Tell the watcher that a process has ended."""
        handle = child.record.handle
        self.answered(child)
        self._answered.discard(handle)
        self._since.pop(handle, None)
        watched = self._watched.pop(handle, None) is not None
        ends = self._ends(child) if child.writers else None
        if self._keep_for_the_rest(child.record, ends):
            if watched and self._pid:
                self._tell_end(handle, ends)
            else:
                self._look_at_the_rest(child.record, ends)
        elif watched:
            self._let_go(handle)

    def take_up_ended(self, record: Record) -> None:
        """Have the last output of an earlier worker's process looked at, if nobody has."""
        if self._keep_for_the_rest(record, None):
            self._look_at_the_rest(record, None)

    def _ends(self, child: Child) -> list[int]:
        """The sizes of its logs, stdout's first."""
        sizes = {writer.path: writer.size for writer in child.writers}
        streams = child.record.streams
        home, handle = self._worker.home, child.record.handle
        return [sizes.get(home.log(handle, stream), 0) for stream in streams]

    def _keep_for_the_rest(self, record: Record, ends: list[int] | None) -> bool:
        """True if something may be found in the rest of its output; the other watches end here."""
        live = [watch for watch in record.watches if is_live(watch)]
        if any("output" in watch for watch in live):
            self._ended_with[record.handle] = record, ends
            return True
        for watch in live:
            watch["done"] = True
        return False

    def _look_at_the_rest(self, record: Record, ends: list[int] | None) -> None:
        if self._pid:
            self._tell_of(record)
            self._tell_end(record.handle, ends)
            self._cancel()
        else:
            self._start_in(0.0)

    def _let_go(self, handle: str) -> None:
        """There is nothing more to see of it."""
        if self._pid:
            self._tell({"drop": handle})
            if self._idle and self._timer is None:
                self._timer = self._loop.after(_IDLE, self._end)

    @property
    def _idle(self) -> bool:
        return not self._watched and not self._ended_with

    def typed(self, child: Child, data: bytes, eof: bool, by_person: bool) -> None:
        """Something was typed; if that is an answer, the next prompt is another one.

        A line is answered by its end. A program that reads keys may have been answered by any, but
        a person's keys come one by one, and half a command in a shell is no answer.
        """
        kind = self._prompted.get(child.record.handle)
        if kind is None:
            return
        whole = eof or any(end in data for end in _ENDS)
        if whole or (kind == "key" and not by_person):
            self.answered(child)

    def answered(self, child: Child) -> None:
        """Forget a prompt that was answered."""
        handle = child.record.handle
        if self._prompted.pop(handle, None) is not None:
            self._answered.add(handle)
            self._worker.delivery.acknowledge_prompts(child.record)
            if handle in self._watched and self._pid:
                self._tell({"answered": handle})

    # -- watches -------------------------------------------------------------------------------

    def watch(self, child: Child, asked: object) -> Watch:
        """Look for something more of a process that runs; the same again is the same watch."""
        record = child.record
        spec = checked(asked)
        for known in record.watches:
            if is_same(known, spec):
                return known
        if len(record.watches) >= MOST_WATCHES:
            over = next((watch for watch in record.watches if not is_live(watch)), None)
            if over is None:
                raise LimitReached(
                    f"{record.handle} has {MOST_WATCHES} watches already, which is the most; end "
                    "one of them first",
                    handle=record.handle,
                )
            record.watches.remove(over)
        watch = begun(spec, record.watches_made + 1, self._ends(child), time.monotonic())
        record.watches.append(watch)
        record.watches_made += 1
        try:
            self._worker.store.save(record)
        except OSError:
            record.watches.remove(watch)
            raise
        if self._watched.get(record.handle) is not child:
            self.add(child)
        elif self._pid:
            self._tell({"watch": record.handle, "of": watch})
        return watch

    def unwatch(self, child: Child, id: object) -> None:
        record = child.record
        watch = next((watch for watch in record.watches if watch["id"] == id), None)
        if watch is None:
            if id in [f"w{number + 1}" for number in range(record.watches_made)]:
                return  # asked before, and the answer was lost
            names = ", ".join(watch["id"] for watch in record.watches) or "none"
            raise BadRequest(
                f"{record.handle} has no watch {str(id)[:60]!r}; it has {names}",
                handle=record.handle,
            )
        record.watches.remove(watch)
        try:
            self._worker.store.save(record)
        except OSError:
            record.watches.append(watch)
            raise
        if self._pid:
            self._tell({"unwatch": record.handle, "id": id})
        self._let_go_if_over(record)

    def _let_go_if_over(self, record: Record) -> None:
        if not _worth_a_look(record) and self._watched.pop(record.handle, None) is not None:
            self._let_go(record.handle)

    def _moved(self, message: dict[str, Any]) -> None:
        """A watch has come further, and mostly it has seen something."""
        handle = message["watch"]
        record = self._record(handle)
        if record is None:
            return
        watch = next((watch for watch in record.watches if watch["id"] == message["id"]), None)
        if watch is None or not is_live(watch) or not is_step(watch, message):
            return  # ended since, or looked for from another place by now
        try:
            self._worker.delivery.watch(record, watch, message)
        except OSError as error:
            if handle not in self._untellable:
                say(f"{handle}: what its watch saw cannot be told yet: {error}")
                self._untellable.add(handle)
                self._loop.after(_TELL_AGAIN, lambda: self._look_again(handle))
            return
        if handle not in self._ended_with:
            self._let_go_if_over(record)

    def _look_again(self, handle: str) -> None:
        """From the place at which something was seen that could not be told."""
        self._untellable.discard(handle)
        record = self._record(handle)
        if record is None or not self._pid:
            return
        if handle in self._ended_with:
            self._look_at_the_rest(*self._ended_with[handle])
        else:
            for watch in record.watches:
                if is_live(watch):
                    self._tell({"watch": handle, "of": watch})

    def _record(self, handle: str) -> Record | None:
        if handle in self._ended_with:
            if os.path.exists(self._worker.home.meta(handle)):
                return self._ended_with[handle][0]
            del self._ended_with[handle]  # removed meanwhile
            self._let_go(handle)
        child = self._watched.get(handle)
        return None if child is None else child.record

    def _done(self, handle: str) -> None:
        """Called when all that an ended process wrote was looked at."""
        if handle in self._ended_with and handle not in self._untellable:
            record, _ = self._ended_with.pop(handle)
            self._worker.delivery.watches_done(record)
            self._let_go(handle)
            self._worker.settle(record)

    # -- the program ---------------------------------------------------------------------------

    @property
    def pids(self) -> set[int]:
        return {self._pid} if self._pid else set()

    def _start_in(self, seconds: float) -> None:
        if self._timer is not None and self._timer.clock > time.monotonic() + seconds:
            self._cancel()
        if self._timer is None:
            self._timer = self._loop.after(seconds, self._start)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self) -> None:
        self._timer = None
        if self._idle or self._pid:
            return
        argv = watcher_program()
        pipes: list[int] = []
        try:
            for _ in range(2):
                pipes += os.pipe2(os.O_CLOEXEC)
            theirs_in, to, heard, theirs_out = pipes
            nofile = self._worker.guard.nofile
            self._pid, self._pidfd = run_program.start(
                argv, argv[0], "/", nofile, theirs_in, theirs_out, errors=2
            )
        except OSError as error:
            say(f"the watcher cannot be started: {error}")
            for fd in pipes:
                os.close(fd)
            self._start_again()
            return
        os.close(theirs_in)
        os.close(theirs_out)
        os.set_blocking(to, False)
        os.set_blocking(heard, False)
        self._started = time.monotonic()
        self._to, self._from = to, heard
        self._heard = b""
        self._loop.add(self._pidfd, IN, lambda _: self._ended())
        self._loop.add(self._from, IN, lambda _: self._hear())
        for child in list(self._watched.values()):
            self._tell_of(child.record)
        for record, ends in list(self._ended_with.values()):
            self._look_at_the_rest(record, ends)

    def _start_again(self) -> None:
        delay = min(_AGAIN * 2 ** min(self._failures, 10), _AGAIN_AT_MOST)
        self._failures += 1
        self._cancel()
        self._timer = self._loop.after(delay, self._start)

    def _end(self) -> None:
        """Nothing is left to look at: it ends when its input does."""
        self._timer = None
        if self._idle and self._to >= 0:
            self._close_to()

    def _close_to(self) -> None:
        self._loop.remove(self._to)
        os.close(self._to)
        self._to = -1
        self._untold.clear()

    def _ended(self) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        asked = self._to < 0
        for fd in (self._pidfd, self._from):
            self._loop.remove(fd)
            os.close(fd)
        if self._to >= 0:
            self._close_to()
        self._pid, self._pidfd, self._from = 0, -1, -1
        for handle, child in self._watched.items():
            self._since[handle] = self._ends(child)[0]
        if asked or time.monotonic() - self._started > _LIVED_LONG:
            self._failures = 0
        if asked:
            self._start()
        else:
            if code not in (0, -signal.SIGKILL):
                say(f"the watcher ended with {code}")
            self._start_again()

    # -- talking -------------------------------------------------------------------------------

    def _tell_of(self, record: Record) -> None:
        home = self._worker.home
        self._tell(
            {
                "add": record.handle,
                "pid": record.pid,
                "tty": record.tty,
                "cgroups": record.cgroups,
                "runner": record.runner,
                "queries": self._worker.modes.of(record).terminal_here,
                "log": record.log,
                "head": home.head(record.handle),
                "err_log": record.err_log,
                "err_head": home.head(record.handle, "stderr"),
                "sizes": record.sizes,
                "from": self._since.get(record.handle, 0),
                "input": record.stdin and record.running,
                "watches": [watch for watch in record.watches if is_live(watch)],
            }
        )

    def _tell_end(self, handle: str, ends: list[int] | None) -> None:
        out, *err = ends or (None,)
        self._tell({"ended": handle, "size": out, "err_size": err[0] if err else None})

    def _tell(self, message: dict[str, Any]) -> None:
        if self._to < 0:
            return
        waiting = bool(self._untold)
        self._untold += json.dumps(message).encode() + b"\n"
        if not waiting:
            self._write()
            if self._untold:
                self._loop.add(self._to, OUT, lambda _: self._write())
        elif len(self._untold) > _MOST_UNTOLD:
            say("the watcher does not listen; starting another")
            self._untold.clear()
            self._loop.remove(self._to)
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _write(self) -> None:
        try:
            del self._untold[: os.write(self._to, self._untold)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._untold.clear()  # it is dead, which the loop will say next
        if not self._untold:
            self._loop.remove(self._to)

    def _hear(self) -> None:
        try:
            data = os.read(self._from, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove(self._from)
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        if len(self._heard) > _LONGEST_LINE:
            self._heard = b""
        for line in lines:
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                say(f"the watcher said something odd: {error}")

    def _take(self, message: dict[str, Any]) -> None:
        what, handle = next(iter(message.items()))
        if what == "watch":
            self._moved(message)
            return
        if what == "done":
            self._done(handle)
            return
        child = self._watched.get(handle)
        if child is None or child.note is not None:
            return
        if what == "reply":
            child.type(binascii.a2b_base64(message["data"]))
        elif what == "settled":
            self.answered(child)
        elif what == "input":
            again = handle in self._answered
            self._answered.discard(handle)
            self._prompted[handle] = str(message["kind"])
            self._worker.delivery.prompt(child, message, again=again)


def _worth_a_look(record: Record) -> bool:
    return record.stdin or any(is_live(watch) for watch in record.watches)
