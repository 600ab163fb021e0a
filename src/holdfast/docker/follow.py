"""From the container's output into our log, until it ends.

DESIGN. A batch goes from the connection into the tank, from there to our output, and stays in the
tank until all of it was written. Killed at any point, the next runner goes on exactly there:

    tank empty                          the place's second frame is where the next batch begins
    tank full, our log as in the place  nothing of the batch was written
    tank full, our log longer           so much of it was written; the rest is

Truth is the size of our log, which the keeper gives to every runner: each byte that we ever wrote
is in it, and no other. If it is less than the place says, some were lost with the keeper's
terminal; they are in the engine's log. While `live` is 0 in the place the batches only pass by
(`catch_up`), and the engine's log is what is written.

When the connection ends, that moment goes to the place before anything else: it is the engine's
death, or the container's end. Which of them, the container's state tells, once there is an engine.
"""

from __future__ import annotations

import os
import select
import socket
import time

from .catch_up import REMARKS, CatchUp
from .engine import EngineError
from .frames import OUT, STREAMS, deframe, nanoseconds, now
from .link import Link, from_shelf, make_tank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .container import Container
    from .desk import Desk
    from .output import Output
    from .place import Place
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
        "_desk",
        "_fed",
        "_frame",
        "_link",
        "_looked",
        "_output",
        "_place",
        "_quiet_since",
        "_stdin",
        "_target",
        "_tty",
        "_unsent",
    )

    def __init__(self, target: Target, place: Place, output: Output, desk: Desk) -> None:
        self._target = target
        self._place = place
        self._output = output
        self._desk = desk
        self._tty: bool = place.notes["tty"]
        self._stdin: bool = self._tty or place.notes["stdin"]
        self._link: Link | None = None
        self._frame = (0, 0)
        self._fed = True  # stdin may be read from
        self._unsent = b""
        self._quiet_since = 0.0
        self._looked = -1  # total at which marking was tried
        self._catch: CatchUp | None = None

    @property
    def remarks(self) -> list[str]:
        return [words for bit, words in _REMARKS.items() if self._place.remarks & bit]

    def attach(self, *, first: bool) -> None:
        """Connect; `first` before the start, when the position is known to be the begin."""
        self._drop()
        connection = self._target.attach()
        token = self._place.link[0] + 1
        self._place.set_head(self._output.total, (0, 0), (0, 0))
        self._place.set_link(token, first, _ALL if first else 0)
        self._link = Link(connection, token, make_tank())
        self._link.put_on_shelf()

    def resume(self) -> bool:
        """Take the predecessor's connection, if it is there."""
        link = from_shelf()
        if link is not None and link.token != self._place.link[0]:
            link.close()
            link = None
        self._link = link
        if self._output.total < self._place.head[0]:
            # What was written was lost on its way, with the keeper's terminal.
            if self._target.has_log:
                self._place.set_link(self._place.link[0], False, 0)
            else:
                self._place.add_remark(_LOST)
        return link is not None

    # -- a container

    def follow(self, container: Container) -> State | None:
        """Until it ended; None if it is not there any more."""
        catch = self._catch = CatchUp(
            container, self._place, self._output, self._desk, self._watched, self._pass_by
        )
        if self._link is None and not self._place.died:
            self._place.set_link(self._place.link[0], False, 0)  # it is lost
        if not self._live:
            catch.look_for_gap()
            catch.begin(0)
        complete, begun = False, 0.0
        state: State | None
        while True:
            if not self._place.died:
                if self._link is None:
                    state = self._connect(catch)
                    if state is None or not state.running:
                        break
                begun = time.monotonic()
                complete = self._pump(container)
                self._place.set_died(now())
            elif self._live:
                complete = True
            self._drop()
            self._desk.engine_was_away = False
            state = self._desk.state()
            if state is None:
                return None
            away = self._desk.engine_was_away or state.running
            if away or nanoseconds(state.finished) > nanoseconds(self._place.died):
                complete = False
                catch.bury(self._place.died)
                self._place.set_link(self._place.link[0], False, 0)
            if not state.running:
                if away:
                    self._place.add_remark(_RESTARTED)
                break
            if time.monotonic() - begun < _SHORT_LIFE:
                self._desk.pause(_REST)
        if state is not None and not (complete and self._live):
            catch.finish()
        return state

    @property
    def _live(self) -> bool:
        return bool(self._place.link[1])

    def _watched(self) -> socket.socket | None:
        return None if self._link is None or self._live else self._link.connection

    def _pass_by(self) -> bool:
        """Take something from the connection that is only watched; False at its end."""
        assert self._link is not None
        moved = self._link.fill()
        if moved:
            self._batch(self._link, moved, 0)
        return moved != 0

    def _connect(self, catch: CatchUp) -> State | None:
        """Connect anew, if it runs, and watch. How it is; None if it is not there any more."""
        while (state := self._desk.state()) is not None and state.running:
            try:
                self.attach(first=False)
            except EngineError:
                self._desk.pause(0.2)
                continue
            catch.begin(0)
            self._desk.resize()
            break
        return state

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    # -- a command inside another one

    def follow_inside(self) -> bool:
        """Until the connection ends; False if there was none to begin with."""
        if self._link is None:
            return False
        self._pump(None)
        self._drop()
        return True

    def last_words(self) -> str:
        """All that comes on the connection of what was not started."""
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
        """Until it ends; False if it does not, although the container has."""
        link = self._link
        assert link is not None
        poller = select.poll()
        poller.register(link.connection, select.POLLIN | select.POLLOUT * bool(self._unsent))
        poller.register(self._desk.woken, select.POLLIN)
        if self._stdin and self._fed and not self._unsent:
            poller.register(_STDIN, select.POLLIN)
        # A connection that was made while it ran may have come too late for its end.
        end = None
        if container is not None and not self._live:
            while (end := container.open_wait()) is None and not _readable(link.connection):
                self._desk.pause(_REST)
            if end is not None:
                poller.register(end, select.POLLIN)
        self._desk.pass_on()
        last_words = 0.0
        total, before, after = self._place.head
        held = link.held()
        self._frame = before if held else after
        skip = max(0, self._output.total - total) if held and self._live else 0
        while True:
            if not held:
                ready = dict(poller.poll(self._timeout(last_words)))
                if self._desk.woken in ready or self._desk.step is not None:
                    self._desk.pass_on()
                if self._stdin:
                    self._feed(link, poller, ready)
                self._look_around(link)
                if end is not None and end.fileno() in ready:
                    poller.unregister(end)
                    last_words = time.monotonic() + _LAST_WORDS
                moved = link.fill()
                if moved is None and not (last_words and time.monotonic() > last_words):
                    continue
                if not moved:
                    if end is not None:
                        end.close()
                    return moved == 0
                held = moved
            self._batch(link, held, skip)
            held = skip = 0

    def _timeout(self, last_words: float) -> int | None:
        """For poll: until the next thing that is to be done, in milliseconds."""
        waits = [self._desk.step]
        if self._live:
            if self._wants_mark():
                waits.append(self._quiet_since + _MARK_QUIET - time.monotonic())
        elif self._catch is not None:
            waits.append(self._catch.timeout)
        if last_words:
            waits.append(0.1)
        soonest = min((wait for wait in waits if wait is not None), default=None)
        return None if soonest is None else max(0, int(soonest * 1000) + 1)

    def _batch(self, link: Link, held: int, skip: int) -> None:
        data = link.look(held)
        if self._tty:
            pieces, after = [(OUT, data)], (0, 0)
        else:
            pieces, after = deframe(data, self._frame)
        token, live, known = self._place.link
        if live and self._catch and any(not known >> stream & 1 for stream, _ in pieces):
            # The first on a stream of which the position is not known: the log will tell.
            self._place.set_link(token, False, 0)
            self._catch.begin(known)
            live = 0
        if not skip:
            self._place.set_head(self._output.total, self._frame, after)
        for stream, piece in pieces:
            if not live:
                if self._catch is not None:
                    self._catch.saw(stream, piece)
                continue
            gone = min(skip, len(piece))
            skip -= gone
            self._output.write(stream, piece[gone:] if gone else piece)
        link.empty(held)
        self._place.set_head(self._output.total, after, after)  # what comes now is another batch
        self._frame = after
        self._quiet_since = time.monotonic()

    def _look_around(self, link: Link) -> None:
        """What is to be done between two batches."""
        if self._catch is None:
            return
        if not self._live:
            if self._catch.step():
                known = self._catch.hand_over()
                self._place.set_head(self._output.total, self._frame, self._frame)
                self._place.set_link(link.token, True, known)
        elif self._wants_mark():
            if not self._place.mark[0]:
                self._looked = self._output.total
                self._catch.mark_first()
            elif time.monotonic() - self._quiet_since >= _MARK_QUIET:
                self._looked = self._output.total
                when = now()
                out, err = self._output.counts[1:]
                if self._catch.is_logged() and not _readable(link.connection):
                    self._place.set_mark(when, out, err)

    def _wants_mark(self) -> bool:
        total = self._output.total
        mark, out, err = self._place.mark
        return (
            self._catch is not None
            and total - out - err >= _MARK_EVERY
            and total != self._looked
            and (not mark or self._output.at_line_begin())
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
