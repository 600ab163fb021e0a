"""A person at the terminal of a process: what it shows is drawn here, what they type goes there.

DESIGN. One thread looks at everything: the keys, the log and the record (through inotify), signals
(through a pipe). It reads the log itself, so showing needs no keeper and goes on while one is
replaced. What has to be asked of the keeper, typing and resizing, is done by a second thread in the
order it was asked for; so neither a process that does not read nor a keeper that does not answer
keeps the detach key from working.

While the person's terminal has the size of the process's, the log's bytes are shown as they come.
They begin with a redraw of the whole picture, and so does everything after a change of size, after
a jump, and after the program left an alternate screen that we had not seen it enter. While the
sizes differ, the picture is drawn again and again, as much of it as fits.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import time

from holdfast.core.errors import NotFound
from holdfast.linux.inotify import Watch
from holdfast.output.log import Log

from ..terminal.escape_filter import EscapeFilter
from ._crop import frame
from ._own_terminal import LEAVE_ALTERNATE, Person
from ._typing import Typist

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from holdfast.client.sync import SyncClient, SyncProcess
    from holdfast.terminal.screen import Rendering

    from ._typing import Detach

_CHUNK = 32 << 10
_QUIET = 1.0
_POLL = 0.05
_FRAME = 0.05
# How long the picture waits for a resize that was asked for.
_RESIZING = 1.0
# Whoever is this far behind is shown the present: after a while, or at once when they press a key.
_BEHIND = 256 << 10
_BEHIND_FOR = 1.0
_BELL = b"\a"
_LEAVING = re.compile(rb"\x1b\[\?(?:[0-9;]*;)?(?:47|1047|1049)(?:;[0-9;]*)?l")
_SIGNALS = (
    signal.SIGWINCH,
    signal.SIGTSTP,
    signal.SIGCONT,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
)


class Left(Exception):
    """The end of being attached."""

    def __init__(self, how: str, number: int = 0) -> None:
        super().__init__(how)
        self.how = how  # "detached", "ended", "removed", "signal"
        self.number = number


class Attachment:
    """From taking over the person's terminal to giving it back."""

    def __init__(
        self,
        args: Namespace,
        client: SyncClient,
        process: SyncProcess,
        *,
        detach: Detach,
        read_only: bool = False,
        from_start: bool = False,
        on_signal: Callable[[int], bool] | None = None,
    ) -> None:
        self._args = args
        self._handle = process.handle
        self._store, self._home = client.store, client.home
        self._detach, self._read_only, self._on_signal = detach, read_only, on_signal
        self.record = process.record
        self._person = Person()
        self._size = self._person.size()
        self._log, self._picture = self._new_log(), self._new_picture()
        self._filter = EscapeFilter()
        self._position = 0
        # The size for which bytes are passed on as they are, as the record has it; None: not now.
        self._passing = self._entry() if from_start else None
        self._from_start = from_start
        self._main_is_ours = False  # nothing of the person's is left on their main screen
        self._main_is_right = from_start  # it has what the program's has
        self._frame: list[str] = []
        self._frame_at: tuple[int, object] = (-1, None)
        self._frame_due = 0.0
        self._frame_modes = b""
        self._resizing_until = 0.0
        self._found = None if from_start else self.record.size  # to be given back, ...
        self._given: tuple[int, int] | None = None  # ... if it still is as we made it
        self._behind_since = 0.0
        self._typed = False
        self._more = False
        self.trouble = ""

    def _new_log(self) -> Log:
        return Log(self._home.log(self._handle), self._home.head(self._handle))

    def _new_picture(self) -> Rendering:
        from holdfast.terminal.screen import Rendering

        return Rendering(self._new_log())

    # -- the loop ------------------------------------------------------------------------------

    def stay(self, hint: float = 0.0) -> Left:
        """Show and type until the person goes or the process ends; says which.

        What is on the screen stays for `hint` seconds, or until they press a key.
        """
        if not self._from_start:
            self._picture.update(self.record.sizes)  # may fail, and then before we take anything
        paths = [self._home.log(self._handle), self._home.meta(self._handle)]
        typist = Typist(self._args, self._handle)
        try:
            with Watch(paths) as watch, _signals() as signals:
                self._person.take()
                try:
                    self._resize(typist)
                    if hint:
                        select.select([0, signals], [], [], hint)
                    while True:
                        self._turn(watch, signals, typist)
                finally:
                    self._person.give_back()
        except Left as left:
            if left.how in ("detached", "signal"):
                self._give_size_back(typist)
            return left
        finally:
            typist.close()
            self.trouble = typist.trouble
            self._picture.close()
            self._log.close()

    def _turn(self, watch: Watch, signals: int, typist: Typist) -> None:
        watch.drain()
        self._load()
        try:
            self._show()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise Left("signal", signal.SIGHUP) from None  # their terminal is gone
        fd = watch.fileno()
        fds = [0, signals] if fd is None else [0, signals, fd]
        ready, _, _ = select.select(fds, [], [], self._patience(polled=fd is None))
        # Also without a sign of one: what came with a key, such as a size, comes before the key.
        try:
            for number in os.read(signals, 64):
                self._signal(number, typist)
        except BlockingIOError:
            pass
        if 0 in ready:
            self._keys(typist)

    def _patience(self, polled: bool) -> float:
        if self._more:
            return 0.0
        now = time.monotonic()
        due = [t - now for t in (self._frame_due, self._resizing_until) if t > now]
        return max(0.0, min([_POLL if polled else _QUIET, *due]))

    def _load(self) -> None:
        try:
            self.record = self._store.load(self._handle)
        except NotFound:
            raise Left("removed") from None

    def _signal(self, number: int, typist: Typist) -> None:
        if number == signal.SIGWINCH:
            self._size = self._person.size()
            self._passing = None
            self._frame_due = 0.0
            self._frame = []
            self._resize(typist)
        elif number == signal.SIGTSTP:
            self._person.give_back()
            self._main_is_ours = self._main_is_right = False
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number == signal.SIGCONT:
            self._person.take(again=True)
            self._passing = None
            self._frame = []
        elif self._on_signal is None or not self._on_signal(number):
            raise Left("signal", number)

    def _keys(self, typist: Typist) -> None:
        try:
            data = os.read(0, _CHUNK)
        except OSError:
            data = b""
        if not data:
            raise Left("signal", signal.SIGHUP)
        typed, leaving = self._detach.feed(data)
        if typed and not self._read_only:
            self._typed = True
            if not typist.type(typed):
                self._person.command(_BELL)
        if leaving:
            raise Left("detached")

    def _resize(self, typist: Typist) -> None:
        if self._read_only or self._size is None or self._size == self.record.size:
            return
        columns, rows = (min(number, 1000) for number in self._size)
        self._resizing_until = time.monotonic() + _RESIZING
        self._given = columns, rows
        typist.do(lambda process: process.resize(columns, rows))

    def _give_size_back(self, typist: Typist) -> None:
        found, given = self._found, self._given
        if found is None or given in (None, found):
            return

        def give_back(process: SyncProcess) -> None:
            if process.refresh().size == given:  # else somebody else has decided since
                process.resize(*found)

        typist.do(give_back)

    def _entry(self) -> list[int]:
        return self.record.sizes[-1] if self.record.sizes else []

    # -- showing -------------------------------------------------------------------------------

    def _show(self) -> None:
        self._more = False
        record = self.record
        if self._size is None or record.size in (None, self._size):
            self._resizing_until = 0.0
            if self._passing != self._entry():
                self._redraw()
            self._pass_on()
        elif record.running and time.monotonic() < self._resizing_until:
            return
        else:
            self._draw_part()

    def _redraw(self) -> None:
        """The whole picture, where the sizes agree."""
        person, picture = self._person, self._picture
        picture.update(self.record.sizes)
        person.command(person.plain())
        if not picture.fullscreen:
            if person.alternate:
                person.command(LEAVE_ALTERNATE)
            if not self._main_is_ours:
                person.command(self._scrolled_away())
                self._main_is_ours = True
        person.command(b"\x1b[?2026h")
        if person.alternate == picture.fullscreen:
            person.command(b"\x1b[H\x1b[2J")
        self._main_is_right = not picture.fullscreen
        self._filter = EscapeFilter()
        person.show(self._filter.feed(picture.redraw()))
        person.command(b"\x1b[?2026l")
        self._position = picture.offset
        self._passing = self._entry()
        self._behind_since, self._typed = 0.0, False

    def _scrolled_away(self) -> bytes:
        """Scroll what the person has above the cursor to where they can find it again."""
        rows = (self._size or self.record.size or (80, 24))[1]
        return b"\r\n" * (rows - self._person.line_start) + b"\x1b[H"

    def _pass_on(self) -> None:
        """The next bytes of the log, as they are."""
        output = self._log.read(self._position, _CHUNK)
        if output.gap or (output.more and self._left_behind(output.end)):
            self._redraw()
            self._more = True
            return
        self._position = output.end
        data = self._filter.feed(output.data)
        if not self._main_is_right and self._person.alternate and (at := _LEAVING.search(data)):
            self._person.show(data[: at.start()])
            self._redraw()
            self._more = True
            return
        self._person.show(data)
        if not output.more:
            self._behind_since = 0.0
            if not self.record.running and not output.data:
                self._person.show(self._filter.rest())
                raise Left("ended")
        self._more = output.more or not self.record.running

    def _left_behind(self, at: int) -> bool:
        now = time.monotonic()
        if not self._behind_since:
            self._behind_since, self._typed = now, False
        if not self._typed and now - self._behind_since < _BEHIND_FOR:
            return False
        return self._log.size() - at > _BEHIND

    def _draw_part(self) -> None:
        """Draw as much of the picture as fits, now and then; only rows that changed."""
        now = time.monotonic()
        if self._frame and now < self._frame_due and self.record.running:
            return
        assert self._size is not None
        picture, person = self._picture, self._person
        picture.update(self.record.sizes)
        ended = not self.record.running
        state = (picture.offset, self._entry())
        if not self._frame or state != self._frame_at:
            columns, rows = self._size
            parts = [*self._begin_frames(), b"\x1b[?2026h\x1b[?25l"]
            shown, cursor = frame(picture.screen(colours=True), columns, rows)
            parts += self._frame_keys()
            for number, row in enumerate(shown):
                if not self._frame or row != self._frame[number]:
                    text = row.encode("utf-8", "replace")
                    parts.append(b"\x1b[%d;1H%b\x1b[m\x1b[K" % (number + 1, text))
            if cursor is not None:
                parts.append(b"\x1b[%d;%dH\x1b[?25h" % (cursor[1] + 1, cursor[0] + 1))
            person.command(b"".join(parts) + b"\x1b[?2026l")
            self._frame, self._frame_at = shown, state
            self._frame_due = now + _FRAME
        if ended:
            raise Left("ended")

    def _begin_frames(self) -> Iterator[bytes]:
        """Frames are drawn on the alternate screen, so that nothing of the person's is lost."""
        if self._frame and self._passing is None:
            return
        self._passing, self._frame, self._frame_modes = None, [], b""
        self._main_is_right = False
        yield self._person.plain()
        yield b"" if self._person.alternate else b"\x1b[?1049h"
        yield b"\x1b[?7l\x1b[2J"

    def _frame_keys(self) -> Iterator[bytes]:
        """The keyboard as the program wants it, for those who type into a part of it."""
        picture = self._picture
        modes = b"\x1b[?1%b\x1b[?2004%b" % (
            b"h" if picture.application_cursor else b"l",
            b"h" if picture.bracketed_paste else b"l",
        )
        if picture.kitty_flags:
            modes += b"\x1b[=%d;1u" % picture.kitty_flags
        if modes != self._frame_modes:
            self._frame_modes = modes
            yield modes


class _signals:
    """Signals as bytes in a pipe, while inside."""

    def __enter__(self) -> int:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, _nothing)
        return self._read

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)


def _nothing(number: int, frame: object) -> None:
    pass
