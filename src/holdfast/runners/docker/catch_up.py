"""Going on from the engine's own log where the connection to the container was lost.

DESIGN. The log has whole lines only; what has no line end yet comes when it has one. So the log is
for missing nothing, and the connection for following. The log is read from the mark of the resume
state on, and each stream counted: what our log has already is skipped by count, the rest written. A
mark is a time with the counts of what was logged before. It moves on with what is read here and,
while output comes from the connection, in a quiet moment (`is_logged`), so that the engine may
forget what is older.

A new connection begins somewhere in the output, we do not know where. It is only watched at first.
Once nothing has come for a moment and the log does not grow either, all lines that were seen on it
are in the log. Then the end of the last line seen is the end of the log, if both are that same
line, and what was seen after it is not in the log yet: so we know the position, may write that, and
live from the connection again. Of a stream on which nothing has come the position stays unknown;
when something comes on it later, this begins anew. Nothing but the log is written until then, so it
does no harm to be killed here.

An engine that dies takes with it what it had read and not logged; its successor's log goes on after
that. We have that from the connection, or nobody has. So its log is read up to its death, what was
seen on the connection is added, and the mark set to that moment (`on_engine_death`).
"""

from __future__ import annotations

import select
import time

from .engine import EngineError
from .frames import OUT, PART, STREAMS, Messages, nanoseconds, now, stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from .container import Container
    from .output import Output
    from .resume_state import ResumeState
    from .signal_forwarder import SignalForwarder

_ALWAYS = "~"  # later than any time
_QUIET = 0.1
_NEWS = 0.03
_ENGINE_SHARE = 4  # reading a long log may take at most a fifth of the engine's time
_MARK_STEP = 256 << 10
# Two streams are logged by two threads of the engine: times may be out of order by that much.
_DISORDER = 200 * 10**6
_SEEN = 4 * PART
_PATIENCE = 60.0
GAP, LOSS = 1, 2
REMARKS = {
    GAP: "the engine had forgotten output before it was read: some is missing, or there twice",
    LOSS: "the engine died and with it a part of a line: some output may be missing",
}


class CatchUp:
    __slots__ = (
        "_at",
        "_calm",
        "_container",
        "_signals",
        "_due",
        "_ends",
        "_framed",
        "_last",
        "_lines",
        "_news",
        "_open_ended",
        "_output",
        "_pass_by",
        "_saved",
        "_seen",
        "_watched",
    )

    def __init__(
        self,
        container: Container,
        saved: ResumeState,
        output: Output,
        signals: SignalForwarder,
        watched: Callable[[], socket.socket | None],
        pass_by: Callable[[], bool],
    ) -> None:
        self._container = container
        self._watched = watched  # the connection, while it is only watched
        self._pass_by = pass_by  # takes something from it; False if nothing comes any more
        self._saved = saved
        self._output = output
        self._signals = signals
        self._framed = not saved.request["tty"]
        self._seen = {stream: bytearray() for stream in STREAMS}  # last on the connection
        self._at: dict[int, int | None] = dict.fromkeys(STREAMS)  # position of the connection
        self._ends = list(self._output.counts)  # of the log
        self._last: dict[int, bytes] = {}  # messages of it
        self._lines: dict[int, tuple[int, bytes]] = {}  # its last ones that end a line, and where
        self._open_ended: set[int] = set()
        self._calm = 0
        self._due: float | None = None
        self._news = 0.0

    # -- watching a connection

    def begin(self, known: int) -> None:
        """Watch from here; `known` are the streams (bits) of which our counts are its position."""
        for stream in STREAMS:
            self._seen[stream].clear()
            self._at[stream] = self._output.counts[stream] if known >> stream & 1 else None
        self._calm = 0
        self._due = self._news = time.monotonic()

    def saw(self, stream: int, data: bytes) -> None:
        seen = self._seen[stream]
        seen += data
        if len(seen) > 2 * _SEEN:
            del seen[:-_SEEN]
        at = self._at[stream]
        if at is not None:
            self._at[stream] = at + len(data)
        self._calm = 0
        self._news = time.monotonic()
        if self._due is None:
            self._due = self._news + _NEWS

    @property
    def timeout(self) -> float | None:
        return None if self._due is None else max(0.0, self._due - time.monotonic())

    def step(self) -> bool:
        """Read the log when that is due; True once the connection's position is known."""
        begun = time.monotonic()
        if self._due is None or begun < self._due:
            return False
        ends = list(self._ends)
        if not self.read():
            self._due = time.monotonic() + 1.0
            return False
        done = time.monotonic()
        self._due = done + max(_QUIET, _ENGINE_SHARE * (done - begun))
        if begun - self._news < _QUIET:
            return False
        self._calm = self._calm + 1 if ends == self._ends else 1
        if self._calm < 2:
            return False
        self._due = None  # until something comes
        located = [self._locate(stream) for stream in STREAMS if self._seen[stream]]
        return bool(located) and all(located)

    def _locate(self, stream: int) -> bool:
        """Find where the connection is in a stream on which something came."""
        at, seen = self._at[stream], self._seen[stream]
        if at is None:
            after = len(seen) - 1 - seen.rfind(b"\n")
            lines = bytes(seen[: len(seen) - after])
            end, line = self._lines.get(stream, (0, b""))
            if not lines or not line or not (lines.endswith(line) or line.endswith(lines)):
                return False
            at = end + after
        if not 0 <= at - self._output.counts[stream] <= len(seen):
            return False
        self._at[stream] = at
        return True

    def hand_over(self) -> int:
        """Write what was seen and not logged yet; returns of which streams the position is known.

        Whoever is killed in the middle of this has only written what the log will have as well.
        """
        known = 0
        for stream, at in self._at.items():
            if at is not None:
                missing = at - self._output.counts[stream]
                if missing > 0:
                    self._output.write(stream, bytes(self._seen[stream][-missing:]))
                known |= 1 << stream
            self._at[stream] = None
            self._seen[stream].clear()
        return known

    # -- the log

    def read(self, until: str = _ALWAYS) -> bool:
        """Write what the log has and ours has not. False if the engine did not let us."""
        mark, out, err = self._saved.mark
        if mark > now():  # the clock was set back
            mark, out, err = "", 0, 0
        try:
            end, rest = self._container.open_log(_since(mark))
        except EngineError:
            return False
        counts = self._output.counts
        position = [0, out, err]
        begin = out + err
        newest = settled = ""
        candidate: tuple[str, list[int]] | None = None
        going_on: dict[int, str] = {}  # the time of a long line that has not ended
        last: dict[int, bytes] = {}
        lines: dict[int, tuple[int, bytes]] = {}
        batch = _Batch(self._output)
        messages = Messages(self._pieces(end, rest), framed=self._framed)
        for stream, when, text in messages:
            if when > until:
                continue
            size = len(text)
            if candidate is not None:
                if when < candidate[0]:
                    candidate[1][stream] += size
                elif when > settled and all(begun >= candidate[0] for begun in going_on.values()):
                    batch.flush()
                    self._saved.set_mark(candidate[0], candidate[1][1], candidate[1][2])
                    begin, candidate = position[1] + position[2], None
            elif position[1] + position[2] - begin >= _MARK_STEP and when > newest and not going_on:
                candidate = when, list(position)
                settled = stamp(nanoseconds(when) + _DISORDER)
            if when > newest:
                newest = when
            have = counts[stream] + batch.counts[stream] - position[stream]
            position[stream] += size
            last[stream] = text
            if text.endswith(b"\n"):
                lines[stream] = position[stream], text
                if going_on:
                    going_on.pop(stream, None)
            else:
                going_on[stream] = when
            if have < size:
                batch.add(stream, text[have:] if have > 0 else text)
        batch.flush()
        for stream in messages.open_ended:  # it runs, so this was a line, and its end is forgotten
            lines[stream] = position[stream] + 1, last[stream] + b"\n"
        self._ends, self._last, self._lines = position, last, lines
        self._open_ended = messages.open_ended
        return True

    def _pieces(self, end: socket.socket, rest: bytes) -> Iterator[bytes]:
        """Read the log; and the connection too, or the container would wait for us."""
        connection = self._watched()
        with end:
            if rest:
                yield rest
            while True:
                every = [end.fileno(), self._signals.woken]
                every += [] if connection is None else [connection.fileno()]
                ready, _, _ = select.select(every, [], [], _PATIENCE)
                if self._signals.woken in ready:
                    self._signals.pass_on()
                if every[2:] and every[2] in ready and not self._pass_by():
                    connection = None
                if every[0] in ready:
                    try:
                        piece = end.recv(1 << 18)
                    except OSError:
                        return
                    if not piece:
                        return
                    yield piece
                elif not ready:
                    return

    def finish(self) -> None:
        """After the end: the log is complete, and also has what had no line end."""
        while not self.read():
            self._signals.pause(0.2)
            if self._signals.state() is None:
                return
        for stream in self._open_ended:
            if self._seen[stream].endswith(self._last[stream][-64:] + b"\n"):
                self._output.write(stream, b"\n")

    def on_engine_death(self, died: str) -> None:
        """The engine died then, and another one is there now."""
        while not self.read(until=died):
            self._signals.pause(0.2)
            if self._signals.state() is None:
                return
        for stream in STREAMS:
            if self._seen[stream] and not self._locate(stream):
                self._saved.add_remark(LOSS)
        self.hand_over()
        is_first = not self._last and (not self._saved.mark[0] or self._saved.mark_is_first)
        _, out, err = self._output.counts
        self._saved.set_mark(died, out, err, is_first=is_first)
        self.begin(0)

    # -- marks

    def look_for_gap(self) -> None:
        """Find out if the engine has forgotten what we have not read yet.

        If so, go on with what was logged after we last wrote.
        """
        mark = self._saved.mark[0]
        if not mark or mark > now() or self._saved.mark_is_first:
            return
        first = self._first("")
        if first is not None and first[1] > mark:
            self._saved.add_remark(GAP)
            counts = self._output.counts
            self._saved.set_mark(stamp(self._saved.touched_ns), counts[1], counts[2])

    def mark_first(self) -> None:
        """Mark the begin of all output, to tell later if that is still there."""
        first = self._first("")
        if first is not None:
            self._saved.set_mark(first[1], 0, 0)

    def is_logged(self) -> bool:
        """True if the log has all that we wrote, in a moment in which nothing comes.

        It has if its last line is our last one. Then that moment can be marked.
        """
        last = self._first("&tail=1")
        if last is None:
            return False
        stream, _, text = last
        tail = self._output.tails[stream]
        return text[-1:] == b"\n" and len(tail) > 1 and tail.endswith(text[-len(tail) :])

    def _first(self, query: str) -> tuple[int, str, bytes] | None:
        try:
            end, rest = self._container.open_log(query)
        except EngineError:
            return None
        with end:
            return next(iter(Messages(self._pieces(end, rest), framed=self._framed)), None)


class _Batch:
    """Neighbouring lines of one stream, written together."""

    __slots__ = ("_output", "_parts", "_stream", "counts")

    def __init__(self, output: Output) -> None:
        self._output = output
        self._parts: list[bytes] = []
        self._stream = OUT
        self.counts = [0, 0, 0]  # of what is not written yet

    def add(self, stream: int, text: bytes) -> None:
        if stream != self._stream or self.counts[stream] > PART:
            self.flush()
            self._stream = stream
        self._parts.append(text)
        self.counts[stream] += len(text)

    def flush(self) -> None:
        if self._parts:
            data, self._parts = b"".join(self._parts), []
            self.counts[self._stream] = 0
            self._output.write(self._stream, data)


def _since(mark: str) -> str:
    if not mark:
        return ""
    seconds, rest = divmod(nanoseconds(mark), 10**9)
    return f"&since={seconds}.{rest:09d}"
