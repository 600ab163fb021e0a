"""One process, as a client sees it: read its output, write to it, wait for it, stop it."""

from __future__ import annotations

import binascii
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from signal import SIGINT, SIGQUIT, SIGTSTP

from ..core.cursors import load_cursor, save_cursor
from ..core.errors import BadRequest, KeeperError, NotFound, StoreError, Unsupported, WaitTimeout
from ..core.outbox import new_claim
from ..core.record import Exit, Record
from ..core.units import parse_patience
from ..core.wire import SEND_PIECE
from ..linux.inotify import Watch
from ..output.log import Log, Output
from ..terminal import control
from ..terminal.tmux_pane import Pane
from .config import UNSET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any, TypeVar

    from ..core.record import Screen
    from ..core.types import Condition, Duration, Signal, Stream
    from ..linux.usage import Usage, UsageHistory
    from ..output.search import Found
    from ..output.view import View
    from .client import Client
    from .wait_for import Waited

    T = TypeVar("T")

_CHUNK = 65536
_FOLLOW_CHUNK = 1 << 20
# A follower that sees line after line rests between looks: reading at every write would slow the
# writer down. One that sees a few, such as answers to what it sent, gets each at once.
_FOLLOW_REST = 0.01
_FOLLOW_AT_ONCE = 500
_FOLLOW_REFILL = 200.0  # a second
_FOLLOW_QUIET = 0.25
_FOLLOW_ANSWER = 0.05
_POLL = 0.05
_LONGEST = 1e9  # seconds; clocks have an end
_INTERRUPTING = 0.05
_INTERRUPTED = 0.5
_WOKEN = 5.0
_KEY_SIGNALS = {0x03: SIGINT, 0x1A: SIGTSTP, 0x1C: SIGQUIT}
_ANSWER = 20.0  # seconds for the keeper's answer, beyond the time that the process itself has
CLAIM_PATIENCE = 5.0  # for a keeper that does not answer: nothing else is held up by a claim
EARLY = 4000  # characters of output that a check at the start returns
YIELDED = 10_000  # and a wait for what may be quick


@dataclass(slots=True)
class Receipt:
    """The result of a kill: the record after it, and whatever would not go."""

    record: Record
    signalled: int = 0
    forced: bool = False
    survivors: list[int] = field(default_factory=list)
    already_ended: bool = False
    processes: list[dict[str, Any]] = field(default_factory=list)  # who got which signal last

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Receipt:
        return cls(
            record=Record.from_json(answer["record"]),
            signalled=answer["signalled"],
            forced=answer["forced"],
            survivors=answer["survivors"],
            already_ended=answer["already_ended"],
            processes=answer.get("processes", []),
        )

    def public(self) -> dict[str, Any]:
        """The receipt as JSON, for tools and scripts."""
        return {
            "record": self.record.public(),
            "signalled": self.signalled,
            "forced": self.forced,
            "survivors": self.survivors,
            "already_ended": self.already_ended,
            "processes": self.processes,
        }


class Process:
    """One background process, as one client sees it. From `spawn`, `get` or `list`."""

    record: Record
    """All that was known of it at the last look; `refresh` looks again."""
    early: str
    """The output while `spawn` stayed to check."""
    backgrounded: bool
    """True if it was still running then."""

    def __init__(self, client: Client, record: Record, claim: str | None = None) -> None:
        self._client = client
        self.record = record
        self._claim = claim  # on its end
        self._logs: dict[str, Log] = {}
        self._last_look = 0.0
        self._last_send = 0.0
        self._usages: UsageHistory | None = None
        self.early = ""
        self.backgrounded = False

    @property
    def handle(self) -> str:
        """The name of the process, which nothing else ever has."""
        return self.record.handle

    def __repr__(self) -> str:
        return f"<holdfast.Process {repr(self.record)[1:]}"

    @property
    def attach_command(self) -> str | None:
        """The command a person types to see its terminal and take over; None if it has none."""
        return self.record.attach if self.record.running else None

    @property
    def ports(self) -> dict[str, int]:
        """The ports of its container, and where they are at this machine: ``{"3000": 49153}``."""
        return dict(self.record.ports)

    async def exec(
        self,
        command: str | list[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        user: str | None = None,
        **options: Any,
    ) -> Process:
        """Start a command in its container, as a process of its own.

            shell = await server.exec("sh", tty=True)

        `cwd` is a directory in the container, by default the one it works in. Other options are
        those of `spawn`, but for those that are the container's. It ends with the container.
        """
        from .docker_client import check_inside, inside

        check_inside(options)
        await self._reload()
        place: Any = inside(self.record, cwd, user)
        return await self._client.spawn(command, docker=place, cwd=self.record.cwd, **options)

    async def refresh(self) -> Record:
        """Look again: the record as it stands now."""
        await self._reload()
        self._client._see(self.record)
        self._client.store.look(self.handle)
        return self.record

    async def _reload(self) -> None:
        record = await self._client._kept(await self._client._find(self.handle))
        if record.pid is None:
            record.pid = self.record.pid  # the spawn was answered before it was written down
        self.record = record

    # -- output --------------------------------------------------------------------------------

    def log(self, stream: Stream = "stdout") -> Log:
        """The log, to be read by offsets; what is done with it counts as no look."""
        if stream not in ("stdout", "stderr"):
            raise BadRequest(f"a stream is 'stdout' or 'stderr', not {stream!r}")
        if stream not in self.record.streams:
            raise Unsupported(
                f"{self.handle} has its stderr in stdout's log; start it with stderr separate",
                handle=self.handle,
            )
        log = self._logs.get(stream)
        if log is None:
            home = self._client.home
            log = Log(home.log(self.handle, stream), home.head(self.handle, stream))
            self._logs[stream] = log
        return log

    def _streams(self, stream: Stream | None, *offsets: int | None) -> dict[str, Log]:
        """The log of a stream, or of both where there are two; an offset is a place in one."""
        if stream is None and len(self.record.streams) > 1 and offsets == (None, None):
            return {name: self.log(name) for name in self.record.streams}
        return {"": self.log(stream or "stdout")}

    async def _looked(self, output: Output) -> Output:
        if not output.data and output.start == output.end:
            self._client._load(self.handle)  # nothing there: perhaps because it was removed
        await self._look()
        return output

    async def _look(self) -> None:
        """Note a look, and see that the process is kept, but not more than once a second."""
        now = time.monotonic()
        if now - self._last_look >= 1.0:
            self._last_look = now
            self._client.store.look(self.handle)
            if self.record.running:
                await self._reload()

    async def read(
        self, *, reader: str = "default", limit: int = _CHUNK, stream: Stream = "stdout"
    ) -> Output:
        """Read what is new since this reader last read; the place is kept for the session.

        Never ends inside a character or an escape code while the process may still finish it.
        """
        client, session = self._client, self.record.session
        offset = load_cursor(client.home, session, reader, self.handle, stream)
        record = client._load(self.handle)
        output = self.log(stream).read(offset, limit, whole_characters=record.running)
        if output.end != offset:
            save_cursor(client.home, session, reader, self.handle, stream, output.end)
        return await self._looked(output)

    async def read_at(
        self, offset: int, limit: int = _CHUNK, *, stream: Stream = "stdout"
    ) -> Output:
        """Up to `limit` bytes from a byte offset."""
        return await self._looked(self.log(stream).read(offset, limit))

    async def lines(self, first: int, count: int, *, stream: Stream = "stdout") -> Output:
        """Lines by number; a line keeps its number, whatever is written, cleared or freed.

        Line 0 is the first it ever wrote; a negative `first` counts from the end. `first_line`,
        `gone` and `next_line` of the output say what came and where to go on.
        """
        log = self.log(stream)
        for name, number in (("first", first), ("count", count)):
            if type(number) is not int:
                raise BadRequest(f"{name} is a number of lines, not {number!r:.80}")
        return await self._looked(
            await self._client._link.run_in_thread(lambda: log.lines(first, count))
        )

    async def tail(self, n: int = 50, *, stream: Stream = "stdout") -> Output:
        """The last `n` lines."""
        return await self._looked(self.log(stream).tail_lines(n))

    async def tail_bytes(self, n: int, *, stream: Stream = "stdout") -> Output:
        """The last `n` bytes."""
        return await self._looked(self.log(stream).tail_bytes(n))

    async def view(
        self,
        *,
        budget: int = 10_000,
        start: int | None = None,
        end: int | None = None,
        stream: Stream | None = None,
    ) -> View:
        """The output as a model should read it, in at most `budget` characters.

        Without terminal codes, progress bars as they were last, repeated lines counted, the first
        and the last part and the first error kept, and notes that say exactly what was left out.
        Of a separate stderr both are shown, stderr under a mark, unless a `stream` is named;
        `start` and `end` are places in one of them, stdout if none is named.
        """
        from ..output.view import view, view_both

        logs = self._streams(stream, start, end)
        if len(logs) == 2:
            both = logs["stdout"], logs["stderr"]
            seen = await self._client._link.run_in_thread(lambda: view_both(*both, budget=budget))
        else:
            (log,) = logs.values()
            seen = await self._client._link.run_in_thread(
                lambda: view(log, budget=budget, start=start, end=end)
            )
        await self._look()
        return seen

    async def search(
        self,
        pattern: str,
        *,
        context: int = 2,
        first: int | None = None,
        last: int | None = 20,
        ignore_case: bool = False,
        literal: bool = False,
        start: int | None = None,
        end: int | None = None,
        timeout: Duration = 2.0,
        budget: int = 10_000,
        stream: Stream | None = None,
    ) -> Found:
        """Lines of the output that match a pattern, with lines around them: the last, or `first`.

        Takes no longer than `timeout`, whatever the pattern; `note` says where to go on.
        Of a separate stderr both are searched, unless a `stream` is named; `start` and `end` are
        places in one of them, stdout if none is named.
        """
        from ..output.search import search

        logs, seconds = self._streams(stream, start, end), parse_patience(timeout)
        found = await self._client._link.run_in_thread(
            lambda: search(
                logs,
                pattern,
                context=context,
                first=first,
                last=last,
                ignore_case=ignore_case,
                literal=literal,
                start=start,
                end=end,
                timeout=seconds,
                budget=budget,
            )
        )
        await self._look()
        return found

    async def usage(self, *, interval: Duration = 0.0) -> Usage:
        """Measure what it uses with everything it started: processor, memory, files, ports.

        `cpu_percent` is over the `interval`; without one it is since this object was last
        asked, and None the first time. `cpu_average_percent` is since the start.
        """
        seconds = parse_patience(interval, "interval")
        record, history = self._client._load(self.handle), self.usage_history()
        if record.pid is None:
            record.pid = self.record.pid  # the spawn was answered before it was written down
        link, begun = self._client._link, None
        if seconds:
            begun = await link.run_in_thread(lambda: history.begin(record))
            await link.readable(None, seconds)
        used = await link.run_in_thread(lambda: history.look(record, since=begun))
        await self._look()
        return used

    def usage_history(self) -> UsageHistory:
        """The last 120 answers of `usage` from this object, oldest first; nobody else looks."""
        if self._usages is None:
            from ..linux.usage import UsageHistory

            self._usages = UsageHistory()
        return self._usages

    async def follow(
        self, *, offset: int | None = None, stream: Stream = "stdout"
    ) -> AsyncIterator[Output]:
        """Output as it comes, until the process has ended and all of it was read.

        From `offset`, or from the beginning of what is kept.
        """
        client = self._client
        log = self.log(stream)
        position = log.begin() if offset is None else offset
        home = client.home
        paths = [log.path, home.meta(self.handle)]
        patience = Patience()
        with Watch(paths, client.spares) as watch:
            unsure = True  # whether it still runs: after news of its record, or a while without any
            while True:
                news = watch.drain()
                unsure |= not news or paths[1] in news
                output = log.read(position, _FOLLOW_CHUNK, whole_characters=True)
                if output.data or output.gap:
                    position = output.end
                    await self._look()
                    yield output
                    if not output.more and not patience.use() and not self._waits_for_answer():
                        await client._link.readable(None, _FOLLOW_REST)
                    continue
                if unsure:
                    if not self._still_running():
                        break
                    await client._kept(self.record)
                    unsure = False
                quiet = _POLL if watch.fileno() is None else _FOLLOW_QUIET
                await client._link.readable(watch.fileno(), quiet)
        # It has ended, so what it wrote is all there, even where it breaks off in a character.
        while (output := log.read(position, _FOLLOW_CHUNK)).data or output.gap:
            position = output.end
            yield output

    def _waits_for_answer(self) -> bool:
        """True just after something was sent: what comes now is what somebody waits for."""
        return time.monotonic() - self._last_send < _FOLLOW_ANSWER

    def _still_running(self) -> bool:
        try:
            self.record = self._client._load(self.handle)
        except NotFound:
            return False
        return self.record.running

    # -- input ---------------------------------------------------------------------------------

    async def send(
        self,
        data: str | bytes,
        *,
        enter: bool = False,
        paste: bool = False,
        eof: bool = False,
        timeout: Duration = 5.0,
    ) -> int:
        """Write to its stdin, or type into its terminal; returns how many bytes it took.

            await process.send("yes", enter=True)

        Fewer than given means that it did not read within `timeout`; what was not taken was
        not written. `enter` presses Enter afterwards. In a terminal the newlines of a text are
        Enter too, while bytes go as they are; `paste` brackets it as a paste if the program asked
        for that. `eof` closes stdin afterwards, or types the terminal's end-of-file character.
        """
        seconds = parse_patience(timeout)
        record = self.record  # that it runs, and is ours, the keeper says
        terminal = record.capabilities.terminal
        raw = control.typed(data, _raw(data), terminal=terminal, enter=enter and not paste)
        if paste:
            control.check_terminal(record)
            record = self._client._load(self.handle)
            link, renderings = self._client._link, self._client.renderings
            raw = await link.run_in_thread(lambda: control.pasted(raw, renderings.of(record)))
            raw += b"\r" if enter else b""
        return await self._type(record, raw, eof, seconds)

    async def keys(self, *names: str) -> None:
        """Press keys, by name: ``await process.keys("C-c", "Up", "Enter")``.

        Names are tmux's: Enter, Tab, Escape, Space, BSpace, Up, Down, Left, Right, Home, End,
        PageUp, PageDown, Insert, Delete, F1 to F12, and C-, M- and S- before them. A single
        character is itself; longer text is for `send`.
        """
        from ..linux.input_evidence import sleeps_of
        from ..linux.site import site_of
        from ..terminal.keys import encode

        record = self._client._load(self.handle)
        control.check_terminal(record)
        control.check_running(record)
        renderings = self._client.renderings
        raw = await self._client._link.run_in_thread(
            lambda: encode(names, lambda: renderings.of(record))
        )
        site = site_of(record)
        interrupts = 0
        asleep = None
        for part in control.after_signals(raw):
            if interrupts:
                await self._until_it_reads(record, interrupts, asleep)
            interrupts = _KEY_SIGNALS.get(part[-1], 0)
            if interrupts:
                seen = await self._client._link.run_in_thread(site.see)
                asleep = sleeps_of(seen, interrupts)
            if await self._type(record, part, False, 5.0) < len(part):
                raise Unsupported(
                    f"{self.handle} does not read its terminal, and no more keys fit into it; try "
                    "again when it does, or kill it",
                    handle=self.handle,
                )

    async def _until_it_reads(
        self, record: Record, number: int, asleep: tuple[int, int] | None
    ) -> None:
        """After a key that interrupts: a shell throws away what is typed before it is back.

        Whoever waited before the key has to wake up first, which on a busy machine takes a while:
        until then it looks as if it were back.
        """
        from ..linux.input_evidence import sleeps_of
        from ..linux.site import site_of

        begun = time.monotonic()
        while True:
            await self._client._link.readable(None, _INTERRUPTING)
            seen = await self._client._link.run_in_thread(site_of(record).see)
            waited = time.monotonic() - begun
            if asleep is not None and asleep == sleeps_of(seen, number):
                if waited > _WOKEN:
                    return
            elif seen.waits or waited > _INTERRUPTED:
                return

    async def _type(self, record: Record, raw: bytes, eof: bool, timeout: float) -> int:
        client = self._client
        self._last_send = time.monotonic()
        pane = Pane.of(client.home, record)
        if pane is not None and client._load(self.handle).running:
            taken = await client._link.run_in_thread(lambda: pane.type(raw, eof))
            await client._link.post("answered", {"handle": self.handle})
            return taken
        total = 0
        until = time.monotonic() + timeout
        for start in range(0, max(len(raw), 1), SEND_PIECE):
            piece = raw[start : start + SEND_PIECE]
            last = start + SEND_PIECE >= len(raw)
            left = timeout if start == 0 else max(0.0, until - time.monotonic())
            request = {
                "handle": self.handle,
                "data": binascii.b2a_base64(piece, newline=False).decode(),
                "token": os.urandom(8).hex(),
                "eof": eof and last,
                "timeout": left,
            }
            try:
                answer = await client._link.call("send", request, left + _ANSWER)
            except WaitTimeout:
                raise KeeperError(
                    f"the keeper did not say within {left + _ANSWER:g} s what became of this; "
                    f"look at the output of {self.handle} to see whether the text arrived before "
                    "you send it again",
                    handle=self.handle,
                ) from None
            total += answer["written"]
            if answer["written"] < len(piece):
                break
        return total

    # -- watches -------------------------------------------------------------------------------

    async def watch(self, condition: Condition) -> str:
        """Have the session told, by an event, when something happens; returns the watch's name.

            await server.watch("output=ERROR|panic")
            await build.watch({"quiet": "2m", "cooldown": "10m", "most": 5})

        Conditions are ``output=PATTERN`` (each matching line), ``quiet=30s``, ``port=3000`` and
        ``every=60s`` (with what is new). Between two events there are `cooldown` seconds (10), and
        there are at most `most` of them (20). A separate stderr is looked at too, unless the table
        has a `stream`. It holds with no client connected.
        """
        from .watch_request import parse

        record = self._client._load(self.handle)
        streams = record.streams
        spec = parse(condition, [self.log(stream).size() for stream in streams])
        if "port" in spec:
            from ..linux.site import site_of

            site_of(record).check_port(spec["port"])
        answer = await self._client._link.call("watch", {"handle": self.handle, "watch": spec})
        return str(answer["watch"]["id"])

    async def unwatch(self, name: str) -> None:
        """Stop a watch, by the name that `watch` returned."""
        self._client._load(self.handle)
        await self._client._link.call("unwatch", {"handle": self.handle, "watch": name})

    # -- the terminal --------------------------------------------------------------------------

    async def screen(self, *, colours: bool = False) -> Screen:
        """The screen a person would see in its terminal now, or saw last if it has ended."""
        client = self._client
        record = client._load(self.handle)
        control.check_terminal(record)

        def look() -> Screen:
            pane = Pane.of(client.home, record)
            found = None if pane is None else pane.screen(colours)
            return found or client.renderings.screen(record, colours)

        screen = await client._link.run_in_thread(look)
        await self._look()
        return screen

    async def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal."""
        client = self._client
        columns, rows = client.config.choose("size", (columns, rows))
        record = client._load(self.handle)
        control.check_terminal(record)
        control.check_running(record)
        pane = Pane.of(client.home, record)
        if pane is not None:
            await client._link.run_in_thread(lambda: pane.resize(columns, rows))
        else:
            await client._link.call("resize", {"handle": self.handle, "size": [columns, rows]})
        self.record = client._see(client._load(self.handle))

    # -- the end -------------------------------------------------------------------------------

    async def wait(self, timeout: Duration | None = None, *, acknowledge: bool = True) -> Exit:
        """Wait until it has ended, and say how. The completion then counts as delivered.

        Without `acknowledge` it does not: the session is still told of it by an event.
        Raises WaitTimeout after `timeout` (seconds, or like ``"10ms"``); the process is untouched.
        """
        client = self._client
        patience = None if timeout is None else min(parse_patience(timeout), _LONGEST)
        record = self.record if self.record.running else client._load(self.handle)
        by = self._claim if self._claim is not None or not acknowledge else new_claim()
        if record.running:
            try:
                wanted = {"handle": self.handle, "claim": by if acknowledge else None}
                record.apply(await client._link.call("wait", wanted, patience))
            except BaseException as error:
                if isinstance(error, WaitTimeout):
                    record = client._load(self.handle)  # too short to be answered, perhaps
                if record.running:
                    if by is not None and by is not self._claim:
                        await client._let_go(record.session, by)
                    if isinstance(error, WaitTimeout):
                        raise WaitTimeout(
                            f"{self.handle} is still running after {patience:g} s; wait again, "
                            "read its output, or kill it",
                            handle=self.handle,
                        ) from None
                    raise
        self.record = record
        client.store.look(self.handle)  # first: a keeper that starts forgets what is due
        if acknowledge:
            await client.acknowledge_end(record, by or "")
            self._claim = None
        return Exit.of(record)

    async def claim(self) -> None:
        """Claim its end, before it can be seen: nobody else in the session is told of it.

        Until a wait has shown it, the claim is let go of, or this program is gone.
        """
        if self._claim is None:
            by = new_claim()
            wanted = {"session": self.record.session, "handles": [self.handle], "by": by}
            try:
                await self._client._link.call("claim", wanted, CLAIM_PATIENCE)
            except BaseException:
                await self._client._let_go(self.record.session, by)
                raise
            self._claim = by

    async def release(self) -> None:
        """Let go of its end: the session is told of it by an event, if no wait has shown it."""
        by, self._claim = self._claim, None
        if by is not None:
            await self._client._release(self.record.session, by)

    @property
    def claimed(self) -> bool:
        """True while its end is this object's to show, as far as that is known here."""
        return self._claim is not None

    async def wait_for(
        self, *conditions: Condition, all: bool = False, timeout: Duration | None = None
    ) -> Waited:
        """Wait until something holds: an open port, a line of output, an answer, silence, the end.

            ready = await server.wait_for("port=3000", r"output=Ready on (\\d+)", timeout="60s")

        Conditions are ``exit``, ``input``, ``output=PATTERN``, ``port=3000``, ``http=URL``,
        ``file=PATH``, ``quiet=5s``, or tables like ``{"output": "Ready", "since": "start"}``. One
        is enough, unless `all`. Output counts from its start, and each match once: the same
        condition again goes on after it (with ``"since": "now"``, only what comes counts). Returns
        at once when the process ends first.
        """
        return await self._client.wait_for([self], *conditions, all=all, timeout=timeout)

    async def _stay(self, seconds: float, budget: int) -> None:
        """See how it begins: until it ends, or for so long."""
        try:
            await self.wait(seconds)
        except WaitTimeout:
            self.backgrounded = True
        self.early = (await self.view(budget=budget)).text

    async def kill(self, *, signal: Signal = "TERM", grace: Duration | None = UNSET) -> Receipt:
        """Stop it with everything it started: politely, then, after the grace, by force.

        ``signal="KILL"`` is at once. On a process that has ended it does nothing, and says so. The
        receipt tells of the end, so the completion counts as delivered.
        """
        await self._known()
        client, by = self._client, self._claim or new_claim()
        wanted = {"handle": self.handle, "signal": signal, "grace": client._grace(grace)}
        try:
            answer = await client._link.call("kill", wanted | {"claim": by})
        except BaseException:
            if by is not self._claim:
                await client._let_go(self.record.session, by)
            raise
        receipt = Receipt.of(answer)
        self.record, self._claim = receipt.record, None
        await client.acknowledge_end(receipt.record, by)
        return receipt

    async def _known(self) -> None:
        """NotFound if there is no such process. One whose record is damaged the keeper may know."""
        try:
            await self._client._find(self.handle)
        except StoreError:
            pass  # it is for the keeper to say

    async def signal(self, name: Signal) -> None:
        """Send just this signal to the process group."""
        await self._known()
        await self._client._link.call("signal", {"handle": self.handle, "signal": name})

    async def clear(self) -> None:
        """Empty its log; offsets and line numbers go on from where they were."""
        self._client._load(self.handle)
        streams = self.record.streams
        logs = [self.log(stream) for stream in streams]
        # The keeper counts the lines that it frees; of a long log it is better done here.
        counted = await self._client._link.run_in_thread(
            lambda: {os.path.basename(log.path): log.tally().to_json() for log in logs}
        )
        await self._client._link.call("clear", {"handle": self.handle, "counted": counted})

    async def remove(self) -> None:
        """Delete all traces of it; a running process is stopped first."""
        await self._known()
        for log in self._logs.values():
            log.close()
        try:
            await self._client._link.call("remove", {"handle": self.handle})
        except NotFound:
            pass  # it was here just now: removed, but the keeper died before it could say so


class Patience:
    """The looks that may still follow upon each other without a rest."""

    __slots__ = ("_clock", "_left")

    def __init__(self) -> None:
        self._left = float(_FOLLOW_AT_ONCE)
        self._clock = time.monotonic()

    def use(self) -> bool:
        now = time.monotonic()
        gained = (now - self._clock) * _FOLLOW_REFILL
        self._left = min(self._left + gained, _FOLLOW_AT_ONCE)
        self._clock = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def several(given: object, kind: type[T]) -> list[T]:
    """The processes that were given, as a list or one by itself."""
    if isinstance(given, kind):
        return [given]
    listed = isinstance(given, Iterable) and not isinstance(given, str)
    found: list[T] = list(given) if listed else [given]  # type: ignore[call-overload, list-item]
    for each in found:
        if not isinstance(each, kind):
            name = kind.__name__
            raise BadRequest(
                f"wait_for takes a {name} or a list of them, not {each!r:.80}; get() finds one"
            )
    return found


def _raw(data: str | bytes) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise BadRequest(f"this text is no UTF-8: {error.reason}; send bytes") from None
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise BadRequest(f"what is sent is text or bytes, not {type(data).__name__}")
