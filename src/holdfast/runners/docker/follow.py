"""Following a container: its output goes into our log, our input to it, until it ends.

DESIGN. A batch of the connection's output is looked at, written, and taken from the connection when
all of it was written (`link`). Killed at any point, the next runner goes on exactly there:

    no batch left                   the next one begins in the second frame of the resume state
    one left, our log as it says    nothing of that batch was written
    one left, our log longer        so much of it was written; the rest is written now

Truth is the size of our log, which the keeper gives to every runner: each byte that we ever wrote
is in it, and no other. If it is less than the resume state says, some were lost with the keeper's
terminal; they are in the engine's log. While `live` is 0 there the batches only pass by
(`catch_up`), and the engine's log is what is written.

When the connection ends, that moment is written to the resume state before anything else: it is the
engine's death, or the container's end. The container's state tells which, once there is an engine.
"""

from __future__ import annotations

import os
import select
import socket
import time

from .catch_up import REMARKS, CatchUp
from .engine import EngineError
from .frames import OUT, STREAMS, deframe, nanoseconds, now
from .link import Link, from_fd_store
from .output import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .container import Container
    from .resume_state import ResumeState
    from .signal_forwarder import SignalForwarder
    from .target import State, Target

_ALL = sum(1 << stream for stream in STREAMS)
_STDIN = 0
_FEED = 1 << 16
_MARK_EVERY = 1 << 20
_MARK_QUIET = 0.3
_LAST_WORDS = 1.0
_RESTARTED, _LOST = 4, 8
_REMARKS = {
    **REMARKS,
    _LOST: "the keeper was killed: what was on its way to the log is missing",
    _RESTARTED: "the engine was away when it ended; containers outlive it with live-restore only",
}
_SHORT_LIFE, _REST = 1.0, 0.2


class Follower:
    __slots__ = (
        "_catch",
        "_signals",
        "_fed",
        "_frame",
        "_left",
        "_link",
        "_looked",
        "output",
        "saved",
        "_quiet_since",
        "_stdin",
        "_target",
        "_tty",
        "_unsent",
    )

    def __init__(
        self, target: Target, saved: ResumeState, sizes: tuple[int, int], signals: SignalForwarder
    ) -> None:
        self._target = target
        self.saved = saved
        self.output = Output(saved, sizes)
        self._signals = signals
        self._tty: bool = saved.request["tty"]
        self._stdin: bool = self._tty or saved.request["stdin"]
        self._link: Link | None = None
        self._frame = (0, 0)
        self._left = b""  # a predecessor's batch, which comes before all others
        self._fed = True  # stdin may be read from
        self._unsent = b""
        self._quiet_since = 0.0
        self._looked = -1  # total at which marking was tried
        self._catch: CatchUp | None = None

    @property
    def remarks(self) -> list[str]:
        return [words for bit, words in _REMARKS.items() if self.saved.remarks & bit]

    def attach(self, *, first: bool) -> None:
        """Connect; `first` before the start, when the position is known to be the begin."""
        self._drop()
        connection = self._target.attach()
        token = self.saved.link[0] + 1
        self.saved.set_head(self.output.total, (0, 0), (0, 0))
        self.saved.set_link(token, first, _ALL if first else 0)
        self._frame, self._left = (0, 0), b""
        self._link = Link(connection, token)
        self._link.begin()
        self._link.store()

    def resume(self) -> bool:
        """Take the predecessor's connection, if it is there."""
        link = from_fd_store()
        if link is not None and link.token != self.saved.link[0]:
            link.close()
            link = None
        self._link = link
        if link is not None:
            self._find_batch(link)
        if self.output.total < self.saved.head[0]:
            # What was written was lost on its way, with the keeper's terminal.
            if self._target.has_log:
                self.saved.set_link(self.saved.link[0], False, 0)
            else:
                self.saved.add_remark(_LOST)
        return link is not None

    def _find_batch(self, link: Link) -> None:
        total, before, after, size = self.saved.head
        looked_at = link.looked_at()
        left = size if looked_at is None else looked_at
        self._frame = before if left else after
        if left:
            self.saved.set_head(total, before, after, left)
            self._left = link.look_again(left)
        else:
            link.begin()

    # -- a container

    def follow(self, container: Container) -> State | None:
        """Pass output and input on until it has ended; None if it is not there any more."""
        catch = self._catch = CatchUp(
            container, self.saved, self.output, self._signals, self._watched, self._pass_by
        )
        if self._link is None and not self.saved.died:
            self.saved.set_link(self.saved.link[0], False, 0)  # it is lost
        if not self._live:
            catch.look_for_gap()
            catch.begin(0)
        complete, begun = False, 0.0
        state: State | None
        while True:
            if not self.saved.died:
                if self._link is None:
                    state = self._connect(catch)
                    if state is None or not state.running:
                        break
                begun = time.monotonic()
                complete = self._pump(container)
                self.saved.set_died(now())
            elif self._live:
                complete = True
            self._drop()
            self._signals.engine_was_away = False
            state = self._signals.state()
            if state is None:
                return None
            away = self._signals.engine_was_away or state.running
            if away or nanoseconds(state.finished) > nanoseconds(self.saved.died):
                complete = False
                catch.on_engine_death(self.saved.died)
                self.saved.set_link(self.saved.link[0], False, 0)
            if not state.running:
                if away:
                    self.saved.add_remark(_RESTARTED)
                break
            if time.monotonic() - begun < _SHORT_LIFE:
                self._signals.pause(_REST)
        if state is not None and not (complete and self._live):
            catch.finish()
        return state

    @property
    def _live(self) -> bool:
        return bool(self.saved.link[1])

    def _watched(self) -> socket.socket | None:
        return None if self._link is None or self._live else self._link.connection

    def _pass_by(self) -> bool:
        """Take something from the connection that is only watched; False at its end."""
        assert self._link is not None
        return self._pass_batch(self._link) is not False

    def _connect(self, catch: CatchUp) -> State | None:
        """Connect anew, if it runs, and watch. How it is; None if it is not there any more."""
        while (state := self._signals.state()) is not None and state.running:
            try:
                self.attach(first=False)
            except EngineError:
                self._signals.pause(0.2)
                continue
            catch.begin(0)
            self._signals.resize()
            break
        return state

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    # -- a command inside another one

    def follow_inside(self) -> bool:
        """Pass output and input on until the connection ends; False if there was none."""
        if self._link is None:
            return False
        self._pump(None)
        self._drop()
        return True

    def last_words(self) -> str:
        """The engine's words, on the connection, about a command that was not started."""
        assert self._link is not None
        connection, words = self._link.connection, b""
        connection.settimeout(_LAST_WORDS)
        try:
            while piece := connection.recv(4096):
                words += piece
        except OSError:
            pass
        if not self._tty:
            words = b"".join(piece for _, piece in deframe(words, (0, 0))[0])
        return words.decode(errors="replace").strip()

    # -- the connection

    def _pump(self, container: Container | None) -> bool:
        """Serve the connection until it ends; False if it does not, although the container has."""
        link = self._link
        assert link is not None
        poller = select.poll()
        poller.register(link.connection, select.POLLIN | select.POLLOUT * bool(self._unsent))
        poller.register(self._signals.woken, select.POLLIN)
        if self._stdin and self._fed and not self._unsent:
            poller.register(_STDIN, select.POLLIN)
        # A connection that was made while it ran may have come too late for its end.
        end = None
        if container is not None and not self._live:
            while (end := container.open_wait()) is None and not _readable(link.connection):
                self._signals.pause(_REST)
            if end is not None:
                poller.register(end, select.POLLIN)
        self._signals.pass_on()
        last_words = 0.0
        while True:
            if not self._left:
                ready = dict(poller.poll(self._timeout(last_words)))
                if self._signals.woken in ready or self._signals.step is not None:
                    self._signals.pass_on()
                if self._stdin:
                    self._feed(link, poller, ready)
                self._look_around(link)
                if end is not None and end.fileno() in ready:
                    poller.unregister(end)
                    last_words = time.monotonic() + _LAST_WORDS
            passed = self._pass_batch(link)
            if passed or (passed is None and not 0 < last_words < time.monotonic()):
                continue
            if end is not None:
                end.close()
            return passed is False

    def _timeout(self, last_words: float) -> int | None:
        """The milliseconds until the next thing that is to be done, for poll."""
        waits = [self._signals.step]
        if self._live:
            if self._wants_mark():
                waits.append(self._quiet_since + _MARK_QUIET - time.monotonic())
        elif self._catch is not None:
            waits.append(self._catch.timeout)
        if last_words:
            waits.append(0.1)
        soonest = min((wait for wait in waits if wait is not None), default=None)
        return None if soonest is None else max(0, int(soonest * 1000) + 1)

    def _pass_batch(self, link: Link) -> bool | None:
        """Write the next batch, or only note it: False at the end, None if nothing has come."""
        data = self._left or link.look()
        if not data:
            return None if data is None else False
        if self._tty:
            pieces, after = [(OUT, data)], (0, 0)
        else:
            pieces, after = deframe(data, self._frame)
        token, live, known = self.saved.link
        if live and self._catch and any(not known >> stream & 1 for stream, _ in pieces):
            # The first on a stream of which the position is not known: the log will tell.
            self.saved.set_link(token, False, 0)
            self._catch.begin(known)
            live = 0
        skip = 0
        if self._left and live:
            skip = max(0, self.output.total - self.saved.head[0])
        self._left = b""
        if not skip:
            self.saved.set_head(self.output.total, self._frame, after, len(data))
        for stream, piece in pieces:
            if not live:
                if self._catch is not None:
                    self._catch.saw(stream, piece)
                continue
            gone = min(skip, len(piece))
            skip -= gone
            self.output.write(stream, piece[gone:] if gone else piece)
        link.take(len(data))
        self.saved.set_head(self.output.total, after, after)  # what comes now is another batch
        self._frame = after
        self._quiet_since = time.monotonic()
        return True

    def _look_around(self, link: Link) -> None:
        """Do what is due between two batches: read the engine's log, or set a mark."""
        if self._catch is None:
            return
        if not self._live:
            if self._catch.step():
                known = self._catch.hand_over()
                self.saved.set_head(self.output.total, self._frame, self._frame)
                self.saved.set_link(link.token, True, known)
        elif self._wants_mark():
            if not self.saved.mark[0]:
                self._looked = self.output.total
                self._catch.mark_first()
            elif time.monotonic() - self._quiet_since >= _MARK_QUIET:
                self._looked = self.output.total
                when = now()
                out, err = self.output.counts[1:]
                if self._catch.is_logged() and not _readable(link.connection):
                    self.saved.set_mark(when, out, err)

    def _wants_mark(self) -> bool:
        total = self.output.total
        mark, out, err = self.saved.mark
        return (
            self._catch is not None
            and total - out - err >= _MARK_EVERY
            and total != self._looked
            and (not mark or self.output.at_line_begin())
        )

    # -- stdin

    def _feed(self, link: Link, poller: select.poll, ready: dict[int, int]) -> None:
        """Pass input on as far as the container takes it, never waiting for it."""
        connection = link.connection
        blocked = ready.get(connection.fileno(), 0) & select.POLLOUT
        if not self._fed or not (_STDIN in ready or blocked):
            return
        try:
            if self._tty:  # from a terminal nothing can be spliced
                self._unsent = self._unsent or os.read(_STDIN, 4096)
                moved = connection.send(self._unsent) if self._unsent else 0
                self._unsent = self._unsent[moved:]
            else:
                flags = os.SPLICE_F_NONBLOCK
                moved = os.splice(_STDIN, connection.fileno(), _FEED, flags=flags)
        except BlockingIOError:
            moved = -1
        except OSError:
            self._stop_feeding(poller, ready)
            return
        if moved == 0:
            self._fed = False
            poller.unregister(_STDIN)
            poller.modify(connection, select.POLLIN)
            if not self._tty:
                try:
                    connection.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
        elif moved < 0 or self._unsent:
            if not blocked:
                poller.unregister(_STDIN)
                poller.modify(connection, select.POLLIN | select.POLLOUT)
        elif blocked:
            poller.modify(connection, select.POLLIN)
            poller.register(_STDIN, select.POLLIN)

    def _stop_feeding(self, poller: select.poll, ready: dict[int, int]) -> None:
        """This connection takes nothing any more; the next one may."""
        if _STDIN in ready:
            poller.unregister(_STDIN)
        assert self._link is not None
        poller.modify(self._link.connection, select.POLLIN)


def _readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])
