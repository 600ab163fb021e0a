"""One live child: its record, its output, its stdin, who waits for it, and its end."""

from __future__ import annotations

import os
import select
import time

from ..core.errors import HoldfastError, KeeperError, NotFound, StoreError, Unsupported, why
from ..core.home import unusable
from ..core.log_head import Tally
from ..core.record import ExitNote, Record, signal_name
from ..linux import kernel, tty
from .damaged_files import is_for_now, put_aside
from .held_fds import Held, note_of
from .journal import say
from .launch import open_writer
from .log_writer import LogWriter
from .loop import HUP, IN, OUT
from .pump import Pump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.home import Home
    from ..core.store import Store
    from .loop import Loop, Timer
    from .modes.base import Mode
    from .stop import Stopping


_HELD_BACK = "output is held back: "
_LOST = "its log was deleted while it ran, and only the end of it could be kept"
_NOTE_DELAY = 0.02
_LINGER = 0.0003
_SELECTABLE = 1024  # what select can wait for; poll counts in milliseconds


class Sending:
    """One send on its way into a stdin that may not take it all."""

    __slots__ = ("data", "inserted", "written", "token", "eof", "done", "timer")

    def __init__(
        self, data: bytes, token: str, eof: bool, done: Callable[[int, HoldfastError | None], None]
    ) -> None:
        self.data = memoryview(data)
        self.inserted: list[int] = []
        self.written = 0
        self.token = token
        self.eof = eof
        self.done = done
        self.timer: Timer | None = None


class Child:
    __slots__ = (
        "loop",
        "record",
        "held",
        "mode",
        "line",
        "mine",
        "guarded",
        "memory_kills",
        "writers",
        "pumps",
        "waiters",
        "deadline",
        "stopping",
        "note",
        "groups",
        "when_hung_up",
        "on_over",
        "on_end",
        "on_quiet",
        "on_limit",
        "on_sent",
        "_sends",
        "_store",
        "_full",
        "_held_back",
        "_death",
        "_died",
        "_fifo_writers",
        "_settling",
        "_unwatched",
    )

    def __init__(
        self,
        loop: Loop,
        store: Store,
        record: Record,
        held: Held,
        mode: Mode,
        *,
        mine: bool,
        guarded: bool,
        memory_kills: kernel.MemoryKills,
        on_over: Callable[[Child], None],
        on_end: Callable[[Child], None],
        on_quiet: Callable[[Child], None],
        on_limit: Callable[[Child], None],
        on_sent: Callable[[Child, str, int], None],
    ) -> None:
        self.loop = loop
        self.record = record
        self.held = held
        self.mode = mode
        self.mine = mine  # ours to reap
        self.guarded = guarded  # the guard's to reap
        self.memory_kills = memory_kills
        self.waiters: list[Callable[[Record], None]] = []
        self.deadline: Timer | None = None
        self.stopping: Stopping | None = None
        self.note: ExitNote | None = None
        self.when_hung_up: Callable[[], None] | None = None
        self.on_over = on_over  # it has ended: to be written down before anybody is told
        self.on_end = on_end
        self.on_quiet = on_quiet
        self.on_limit = on_limit
        self.on_sent = on_sent
        self._sends: list[Sending] = []
        self.line = 0  # how much of a line was typed into its terminal and not finished
        self._store = store
        self._full = False  # the disk was, at some time
        self._held_back = ""  # the note that says so while it is
        self._death: kernel.Death | None = None
        self._died = (0.0, 0.0)
        self._fifo_writers: list[int] = []  # so that no FIFO hangs up between two runners
        self._settling = False
        self._unwatched = False  # its output is to be watched, and is not yet
        self.writers: list[LogWriter] = []
        self.pumps: list[Pump] = []

    def watch_output(self, *, new: bool = False) -> None:
        """Begin to, or go on where that failed half-way."""
        record = self.record
        if not new and record.running:
            self._look_again()
        self._unwatched = new
        if not self._fifo_writers:
            self._open_fifo_writers()
        streams = [(self.held.out, "stdout")]
        if "stderr" in record.streams:
            streams.append((self.held.err, "stderr"))
        for fd, stream in streams:
            path = self._store.home.log(record.handle, stream)
            writer = next((each for each in self.writers if each.path == path), None)
            try:
                if writer is None:
                    writer = log_writer(self._store.home, record, stream, new=new)
                    self.writers.append(writer)
            except (OSError, StoreError) as error:
                # Somebody put something else in its place. The process goes on, and waits if it
                # writes more than its FIFO holds; everything but its output is as ever.
                say(f"{record.handle}: its log cannot be written: {error}")
                record.notes.append(f"its {stream} is not logged: {error}")
                continue
            if fd >= 0 and not any(pump.fd == fd for pump in self.pumps):
                pump = Pump(
                    self.loop,
                    fd,
                    writer,
                    record.log_limit,
                    lambda: self.on_limit(self),
                    self._hung_up,
                    self._disk_full,
                    self._room_again,
                    splice_pipe=self.held.splice_pipe,
                )
                self.pumps.append(pump)
        self._unwatched = False

    def restore(self, *, damaged: bool = False) -> None:
        """Make again what was deleted of its files while it runs, or replaced by something else.

        With `damaged` its record is read too, to see whether it can be.
        """
        home, handle = self._store.home, self.record.handle
        path = home.meta(handle)
        try:
            if not os.path.lexists(path) or unusable(path) or (damaged and self._is_damaged()):
                moved = self._store.restore(self.record)
                say(f"{handle}: its record is written anew" + (f"; see {moved}" if moved else ""))
            for writer in self.writers:
                if os.path.lexists(writer.path):
                    continue
                say(f"{handle}: its log was deleted, and is made again")
                if not writer.restore() and _LOST not in self.record.notes:
                    self.record.notes.append(_LOST)
                    self._save()
        except OSError as error:
            say(f"{handle}: its files cannot be made again: {error}")

    def _is_damaged(self) -> bool:
        try:
            self._store.load(self.record.handle)
        except StoreError as error:
            if not error.detail.get("for_now"):
                put_aside(self._store.home.meta(self.record.handle), error)
                return True
        except NotFound:
            return True
        return False

    def _look_again(self) -> None:
        """Drop the note that output is held back: an earlier worker's disk says nothing of now."""
        stale = [note for note in self.record.notes if note.startswith(_HELD_BACK)]
        if stale:
            self.record.notes = [note for note in self.record.notes if note not in stale]
            self._full = True
            self._save()

    def _open_fifo_writers(self) -> None:
        record, home = self.record, self._store.home
        if not self.mode.keeps_fifos or not record.running:
            return
        streams = {"stdout": self.held.out}
        if "stderr" in record.streams:
            streams["stderr"] = self.held.err
        for stream, reader in streams.items():
            try:
                self._fifo_writers.append(open_writer(home.fifo(record.handle, stream), reader))
            except OSError as error:
                say(f"{record.handle}: its {stream} cannot be kept open: {error}")

    def _close_fifo_writers(self) -> None:
        for fd in self._fifo_writers:
            os.close(fd)
        self._fifo_writers.clear()

    def written(self) -> list[int] | None:
        """The bytes a dead runner wrote to each log; None if that cannot be known yet."""
        self._drain()
        behind = {pump.writer: pump.behind for pump in self.pumps}
        sizes = [0, 0]
        for writer in self.writers:
            rest = behind.get(writer, 0)
            if rest is None:
                return None
            sizes[writer.path == self.record.err_log] = writer.size + rest
        return sizes

    def watch_end(self) -> None:
        if self.note is None and self.held.pidfd >= 0:
            self.loop.add(self.held.pidfd, IN, self._ended)

    # -- the end -------------------------------------------------------------------------------

    def exited(self) -> bool:
        """True once the kernel says so, reaped or not."""
        if self.note is not None:
            return True
        if self.held.pidfd < 0:
            return not self.mode.again
        poll = select.poll()
        poll.register(self.held.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def settle_if_exited(self) -> None:
        """Do not wait for the loop to say so, where it can be known now."""
        if self.mine and self.note is None and self.exited():
            self._settle_own()

    def _ended(self, events: int) -> None:
        try:
            self._settle(events)
        except OSError as error:
            if not is_for_now(error):
                raise
            # No descriptor to find out with how it ended, which its group may know: ask later.
            self.loop.change(self.held.pidfd, 0)
            self.loop.after(_NOTE_DELAY, lambda: self._ended_again(events))

    def _ended_again(self, events: int) -> None:
        if self.note is None and self.held.pidfd >= 0:
            self._ended(events)

    def _settle(self, events: int) -> None:
        if self.mine:
            self._settle_own()
            return
        if self._death is None:
            self._death = kernel.exit_of_stranger(self.held.pid, self.held.pidfd)
            self._died = time.time(), time.monotonic()
        if self.mode.on_death(self):
            self.loop.remove(self.held.pidfd)
        elif events & HUP or not (self.guarded or self._death is None):
            self.settle_foreign()
        else:
            # The guard writes the exit note before it reaps, and nobody else can tell before that.
            # Kernels before 6.9 do not say when that is done.
            self.loop.change(self.held.pidfd, 0)
            self.loop.after(_NOTE_DELAY, self._look_for_note)

    def _look_for_note(self) -> None:
        if self.note is not None:
            return
        try:
            noted = self._store.read_exit(self.record.handle) is not None
            if noted or not kernel.send_signal(self.held.pidfd, 0):
                self.settle_foreign()
                return
        except OSError as error:  # no descriptor to look with
            if not is_for_now(error):
                raise
        self.loop.after(_NOTE_DELAY, self._look_for_note)

    def _settle_own(self) -> None:
        if self._settling:
            return  # a last piece of output was one too many, and it is to be stopped
        self._settling = True
        self._drain()
        self._settling = False
        note = note_of(self.held.pid)
        if self.mode.on_exit(self, note):
            return
        self._end(note)
        os.waitpid(self.held.pid, 0)  # only now: until it is on disk, the zombie knows it
        self._settled()

    def settle_foreign(self) -> None:
        """Settle the end of what was not our child, by the guard's note or the kernel's word."""
        self._drain()
        note = self._store.read_exit(self.record.handle) or self.death_note()
        if note is None:
            at, clock = self._died if self._died[0] else (time.time(), time.monotonic())
            note = ExitNote(None, None, at, clock, known=False)
        if self.mode.on_exit(self, note):
            return
        self._end(note)
        self._store.drop_exit(self.record.handle)
        self._settled()

    @property
    def death_known(self) -> bool:
        """True if the kernel said how it ended, or an exit note does."""
        return self._death is not None or self._store.read_exit(self.record.handle) is not None

    def death_note(self) -> ExitNote | None:
        """The end, as the kernel told it of a process that is not our child."""
        how = self._death
        if how is None:
            return None
        return ExitNote(
            code=how.code,
            signal=None if how.signal is None else signal_name(how.signal),
            at=self._died[0],
            clock=self._died[1],
            cpu_seconds=how.cpu_seconds,
        )

    def settle_lost(self) -> None:
        self._died = time.time(), time.monotonic()
        self.settle_foreign()

    def release_pid(self) -> None:
        """Let go of a dead runner; the next one is this process too."""
        if self.held.pidfd >= 0:
            self.loop.remove(self.held.pidfd)
            if self.mine:
                os.waitpid(self.held.pid, 0)
            os.close(self.held.pidfd)
        self._store.drop_exit(self.record.handle)
        self.held.pid, self.held.pidfd = 0, -1
        self.guarded, self._death, self._died = False, None, (0.0, 0.0)

    def _end(self, note: ExitNote) -> None:
        note = self.mode.conclude(self, note)
        if self._full:
            self.record.notes.append("the disk was full while it ran: its output came late")
        self.note = note
        self.record.end(note)
        self.on_over(self)

    def _settled(self) -> None:
        if self.held.pidfd >= 0:
            self.loop.remove(self.held.pidfd)
        self._close_fifo_writers()
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
        for sending in list(self._sends):
            self._finish_send(sending, None)
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter(self.record)
        if waiters:
            os.sched_yield()  # they wait for this processor: what is left to do can wait
        self.on_end(self)

    def stop_waiting(self, waiter: Callable[[Record], None]) -> None:
        if waiter in self.waiters:
            self.waiters.remove(waiter)

    def _drain(self) -> None:
        if self._unwatched:
            try:
                self.watch_output(new=True)
            except OSError as error:
                say(f"{self.record.handle}: what it wrote is lost: {error}")
        for pump in list(self.pumps):
            pump.drain()

    # -- output --------------------------------------------------------------------------------

    def _hung_up(self, pump: Pump) -> None:
        """Nobody holds the FIFO any more; after the process's end that is the end of the log."""
        self.pumps.remove(pump)
        pump.close()
        if pump.fd == self.held.out:
            self.held.out = -1
        else:
            self.held.err = -1
        if self.when_hung_up is not None:
            self.when_hung_up()
        self.on_quiet(self)

    def _disk_full(self, error: OSError) -> None:
        if not self._held_back:
            self._full = True
            self._held_back = f"{_HELD_BACK}{why(error)} in the home"
            self.record.notes.append(self._held_back)
            self._save()  # a record that is there is written to without any room

    def _room_again(self) -> None:
        if self._held_back and not any(pump.blocked for pump in self.pumps):
            if self._held_back in self.record.notes:
                self.record.notes.remove(self._held_back)
            self._held_back = ""
            self._save()

    def _save(self) -> None:
        if self.note is None:  # else its end is written, with this
            try:
                self._store.save(self.record)
            except OSError as error:
                say(f"{self.record.handle}: {error}")

    def clear(self, counted: object) -> None:
        self._drain()
        for writer in self.writers:
            clear_log(writer, counted)

    # -- stdin ---------------------------------------------------------------------------------

    def send(
        self,
        data: bytes,
        token: str,
        eof: bool,
        timeout: float,
        done: Callable[[int, HoldfastError | None], None],
    ) -> None:
        """Write to stdin; `done` gets how many bytes were taken within the time."""
        held = self.held
        typed = self.mode.typed(self, data, eof)
        if typed is not None:
            keys, inserted, self.line = typed
            sending = Sending(keys, token, False, done)
            sending.inserted = inserted
        else:
            sending = Sending(data, token, eof, done)
        if token and held.token == token:
            if held.sent < 0:
                raise KeeperError(
                    f"the keeper was killed while it wrote to {self.record.handle}; look at the "
                    "output to see whether the text arrived before you send it again",
                    handle=self.record.handle,
                )
            sending.written = held.sent  # repeated after a crash: written then, so not again
        if held.stdin < 0:
            if data and sending.written >= len(data):
                done(len(data), None)
                return
            raise Unsupported(self.mode.why_no_stdin(self.record), handle=self.record.handle)
        self._sends.append(sending)
        for pump in self.pumps:
            pump.hurry()
        if len(self._sends) == 1:
            self._write()
            if self._sends:
                self.loop.add(held.stdin, OUT, lambda _: self._write())
        if sending in self._sends:
            sending.timer = self.loop.after(timeout, lambda: self._finish_send(sending, None))

    def _write(self) -> None:
        """One send after the other, until the pipe is full."""
        while self._sends:
            sending = self._sends[0]
            if self.held.stdin < 0:
                error = Unsupported(self.mode.why_no_stdin(self.record), handle=self.record.handle)
                self._finish_send(sending, error)
                continue
            if sending.written < len(sending.data):
                # Told before it is true: if telling shows the guard is gone, nothing was written.
                self.on_sent(self, sending.token, -1)
            try:
                while sending.written < len(sending.data):
                    sending.written += os.write(self.held.stdin, sending.data[sending.written :])
            except BlockingIOError:
                pass
            except BrokenPipeError:
                error = Unsupported(
                    f"{self.record.handle} has closed its stdin; nothing more can be written to it",
                    handle=self.record.handle,
                )
                self._finish_send(sending, error)
                continue
            self.held.token, self.held.sent = sending.token, sending.written
            self.on_sent(self, sending.token, sending.written)
            if sending.written < len(sending.data):
                return
            if sending.eof:
                self.close_stdin()
            self._linger()
            self._finish_send(sending, None)

    def _linger(self) -> None:
        """Give it a moment to answer: then whoever sent this need be woken only once for both."""
        fds = [pump.fd for pump in self.pumps if pump.fd < _SELECTABLE]
        ready, _, _ = select.select(fds, [], [], _LINGER)
        for pump in list(self.pumps):
            if pump.fd in ready:
                pump.drain()

    def _finish_send(self, sending: Sending, error: HoldfastError | None) -> None:
        if sending not in self._sends:
            return
        self._sends.remove(sending)
        if sending.timer is not None:
            sending.timer.cancel()
        if not self._sends and self.held.stdin >= 0:
            self.loop.remove(self.held.stdin)
        sending.done(tty.taken(sending.written, sending.inserted), error)

    def close_stdin(self) -> None:
        if self.held.stdin >= 0:
            self.loop.remove(self.held.stdin)
            os.close(self.held.stdin)
            self.held.stdin = -1

    # -- the terminal --------------------------------------------------------------------------

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal, as seen from here on in its log."""
        self._drain()  # written for the old size, as far as anybody can know
        self.record.resized(self.writers[0].size if self.writers else 0, columns, rows)
        tty.set_size(self.held.out, columns, rows)
        self.mode.resized(self)

    def type(self, data: bytes) -> None:
        """Type what a terminal itself would say, if there is room for it."""
        if self.mode.terminal_here and self.held.stdin >= 0 and not self._sends:
            try:
                os.write(self.held.stdin, data)
            except OSError:
                return

    def release_ends(self) -> list[str]:
        """Let go of the process's side of its terminal, and of its runner's; those that we held."""
        names = [name for name in ("tty", "fd_store", "input") if getattr(self.held, name) >= 0]
        for name in names:
            os.close(getattr(self.held, name))
            setattr(self.held, name, -1)
        return names

    # -- signals -------------------------------------------------------------------------------

    def signal_group(self, number: int) -> None:
        """Signal the process and its group, if the process is still the one we started."""
        if self.held.pidfd < 0:
            return  # between two runners
        if kernel.send_group_signal(self.held.pidfd, number):
            return
        # Until it is reaped its pid, and so its group's id, cannot be anybody else's. A child of
        # ours is reaped by us; another's is checked through its pidfd in the moment before.
        if not self.mine and not kernel.send_signal(self.held.pidfd, 0):
            return
        try:
            os.killpg(self.held.pid, number)
        except (ProcessLookupError, PermissionError):
            # Not a group leader (any more), or one that changed its user: try the process alone.
            try:
                kernel.send_signal(self.held.pidfd, number)
            except PermissionError:
                return

    # -- letting go ----------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """True when nothing is left to do for it: ended, and nobody can write to its log."""
        return self.note is not None and not self.pumps

    def close(self) -> None:
        for pump in self.pumps:
            pump.close()
        self.pumps.clear()
        for writer in self.writers:
            writer.close()
        self.writers.clear()
        self._close_fifo_writers()
        self.close_stdin()
        self.release_ends()
        if self.held.splice_pipe >= 0:
            os.close(self.held.splice_pipe)
            self.held.splice_pipe = -1
        if self.held.pidfd >= 0:
            self.loop.remove(self.held.pidfd)
            os.close(self.held.pidfd)
            self.held.pidfd = -1
        self.held.out = self.held.err = -1


def log_writer(home: Home, record: Record, stream: str, *, new: bool = False) -> LogWriter:
    handle = record.handle
    return LogWriter(home.log(handle, stream), home.head(handle, stream), record.log_cap, new=new)


def clear_log(writer: LogWriter, counted: object) -> None:
    """Empty a log; a client may have `counted` the lines, of each log by its file's name."""
    name = os.path.basename(writer.path)
    writer.clear(Tally.of(counted.get(name)) if isinstance(counted, dict) else None)
