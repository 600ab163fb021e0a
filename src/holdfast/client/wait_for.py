"""Waiting for conditions: one call, over one or several processes, any or all of them.

DESIGN. One wait on one inotify descriptor for everything that has a file (logs, records, the files
that are waited for), and a timer for the rest (see `client.conditions`). A condition on output
remembers how far it has come in each stream: these places are kept on disk under the condition's
own name, so that the same call made again goes on there. Nothing in between is missed, each match
is found once.

Whatever may take its time, which is to compile and run patterns, to look up names and to walk
``/proc``, is done in a thread: a caller's event loop goes on meanwhile.
"""

from __future__ import annotations

import binascii
import os
import time
from dataclasses import dataclass, field
from functools import partial

from ..core.cursors import load_cursor, save_cursor
from ..core.errors import BadRequest, HoldfastError, NotFound
from ..core.outbox import new_claim
from ..core.record import DEFAULT_SESSION, Exit, Record
from ..linux.inotify import Watch
from ..output.log import Log
from . import conditions
from .conditions import Met, Situation
from .find_keeper import keeper_holds
from .process import CLAIM_PATIENCE, Patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..core.types import Progress
    from .client import Client
    from .conditions import Condition
    from .process import Process


_REST = 0.01  # between two looks at output that keeps coming
_QUIET = 1.0  # how long without news before the record and its keeper are looked after
_POLL = 0.05
_WORD = 5.0  # between two words to whoever waits
_TAIL = 2000


def _nothing() -> None:
    return


@dataclass(slots=True)
class Waited:
    """The result of a wait: what holds, what does not yet, and who ended meanwhile.

    `ok` if what was waited for holds: one condition, or with ``all`` every one. `timed_out` if the
    time was up first; the same call again goes on where this one stopped. Otherwise a process
    ended, and what was waited for cannot happen any more. After a wait that acknowledges nothing,
    `keep_places` lets the next one go on after this.
    """

    ok: bool
    met: list[Met] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    ended: dict[str, Exit] = field(default_factory=dict)
    timed_out: bool = False
    tail: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    _keep: Callable[[], None] = field(default=_nothing, repr=False, compare=False)

    def keep_places(self) -> None:
        """Let the same wait go on after what this one found, which did not acknowledge it."""
        self._keep()

    @property
    def first(self) -> Met | None:
        return self.met[0] if self.met else None

    def public(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "met": [met.public() for met in self.met],
            "waiting": self.waiting,
            "timed_out": self.timed_out,
            "ended": {
                handle: {"status": end.status, "exit_code": end.code, "signal": end.signal}
                for handle, end in self.ended.items()
            },
            "tail": self.tail,
            "seconds": round(self.seconds, 3),
        }


class _Pending:
    """One condition on one process."""

    __slots__ = ("condition", "met", "paths", "resumes", "situation")

    def __init__(self, situation: Situation, condition: Condition, resumes: bool) -> None:
        self.situation = situation
        self.resumes = resumes  # goes on where the same condition was before
        self.condition = condition
        # As a `Watch` tells of them.
        self.paths = frozenset(map(os.path.abspath, condition.paths(situation)))
        self.met: Met | None = None

    @property
    def handle(self) -> str:
        return self.situation.record.handle

    @property
    def hopeless(self) -> bool:
        ended = not self.situation.record.running
        return self.met is None and ended and not self.condition.behind

    def look(self) -> None:
        detail = self.condition.look(self.situation)
        if detail is None:
            self.condition.later(self.situation)
        else:
            self.met = Met(self.condition.text, self.handle, detail)

    def cursor(self) -> str:
        """The name under which its places are kept."""
        return f"wait-{binascii.crc32(self.condition.text.encode('utf-8', 'surrogatepass')):08x}"


class Waiting:
    """One call of `wait_for`, while it lasts."""

    def __init__(
        self,
        client: Client,
        processes: Sequence[Process],
        given: Sequence[object],
        every: bool,
        acknowledge: bool = True,
    ) -> None:
        if not processes:
            raise BadRequest("there is no process to wait for")
        if not given:
            raise BadRequest("say what to wait for, like port=3000 or output=PATTERN")
        self._client = client
        self._all = every
        self._acknowledge = acknowledge
        self._logs: list[Log] = []
        self._began = time.monotonic()
        self._starts: dict[str, dict[str, int]] = {}
        self._situations: dict[str, Situation] = {}
        self._versions: dict[str, tuple[int, ...] | None] = {}  # of the records that were read
        self._pending: list[_Pending] = []
        self._claim = new_claim()  # on the ends
        self._claimed: str | None = None  # in which session
        try:
            for process in processes:
                self._add(client._load(process.handle), given)
        except BaseException:
            self.close()
            raise

    def _add(self, record: Record, given: Sequence[object]) -> None:
        client = self._client
        if record.handle in self._situations:
            return
        handle, home = record.handle, client.home
        streams = record.streams
        logs: dict[str, Log] = {
            stream: Log(home.log(handle, stream), home.head(handle, stream)) for stream in streams
        }
        self._logs += logs.values()
        draw = partial(client.renderings.of, record) if record.tty else None
        situation = self._situations[handle] = Situation(record, logs, draw)
        now = self._starts[handle] = {stream: log.size() for stream, log in logs.items()}
        for each in given:
            resumes = not (isinstance(each, dict) and "since" in each)
            pending = _Pending(situation, conditions.parse(each, now), resumes)
            if resumes and pending.condition.places():
                pending.condition = conditions.parse(each, now | self._places(pending))
            self._pending.append(pending)

    def _places(self, pending: _Pending) -> dict[str, int]:
        """After what this condition was met by, or had looked at, before; or the start."""
        record, home, cursor = pending.situation.record, self._client.home, pending.cursor()
        kept = {
            stream: load_cursor(home, record.session, cursor, record.handle, stream)
            for stream in pending.condition.places()
        }
        return {stream: max(0, place - 1) for stream, place in kept.items()}  # 0: there is none

    def close(self) -> None:
        for log in self._logs:
            log.close()

    # -- the loop ------------------------------------------------------------------------------

    async def run(self, timeout: float | None, progress: Progress | None = None) -> Waited:
        """Wait; `progress` is called now and then with what is still waited for."""
        try:
            await self._claim_ends(timeout)
            return await self._until_decided(timeout, progress)
        except BaseException:
            await self._let_go()
            raise

    async def _claim_ends(self, timeout: float | None) -> None:
        """Whoever ends meanwhile is told of by this wait alone."""
        client, running = self._client, self._running()
        mine = client.session or DEFAULT_SESSION
        handles = [each.record.handle for each in running if each.record.session == mine]
        if handles:
            wanted = {"session": mine, "handles": handles, "by": self._claim}
            patience = CLAIM_PATIENCE if timeout is None else min(timeout, CLAIM_PATIENCE)
            self._claimed = mine
            try:
                await client._link.call("claim", wanted, patience)
            except HoldfastError:
                return  # what can be seen can be waited for all the same

    async def _let_go(self) -> None:
        if self._claimed is not None:
            await self._client._let_go(self._claimed, self._claim)

    def _running(self) -> list[Situation]:
        return [each for each in self._situations.values() if each.record.running]

    async def _until_decided(self, timeout: float | None, progress: Progress | None) -> Waited:
        word = self._began + _WORD if progress is not None else float("inf")
        deadline = None if timeout is None else self._began + timeout
        client = self._client
        metas = [client.home.meta(handle) for handle in self._situations]
        paths = {path for pending in self._pending for path in pending.paths}
        with Watch([*metas, *sorted(paths)], client.spares) as watch:
            quiet_until = 0.0
            patience = Patience()
            while True:
                news = watch.drain()
                now = time.monotonic()
                unsure = now >= quiet_until or watch.fileno() is None
                if unsure or not news.isdisjoint(metas):
                    await self._reload(unsure)
                if unsure:
                    quiet_until = now + _QUIET
                due = self._due(news, now, everything=watch.fileno() is None)
                if due:
                    await client._link.run_in_thread(partial(self._look, due))
                if self._decided():
                    return await self._result(timed_out=False)
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    return await self._result(timed_out=True)
                if progress is not None and now >= word:
                    word = now + _WORD
                    waiting = [each for each in self._unmet() if not each.hopeless]
                    text = "; ".join(map(self._waiting_text, waiting))
                    said = progress(now - self._began, text)
                    if hasattr(said, "__await__"):
                        await said
                until = [quiet_until, word, *self._dues()]
                if deadline is not None:
                    until.append(deadline)
                if watch.fileno() is None:
                    until.append(now + _POLL)
                if news & paths and not patience.use():
                    await client._link.readable(None, _REST)  # more of it is on its way
                await client._link.readable(watch.fileno(), max(0.0, min(until) - now))

    async def _reload(self, unsure: bool) -> None:
        """Read the records that were written anew; `unsure`: see that somebody keeps them."""
        client = self._client
        running = self._running()
        for situation in running:
            handle = situation.record.handle
            version = client.store.version(handle)  # first, or another one could be taken for it
            if version is None or version != self._versions.get(handle):
                self._versions[handle] = version
                situation.record = client._load(handle)
        if unsure and running and not keeper_holds(client.home):
            for situation in running:
                situation.record = await client._kept(situation.record)

    def _due(self, news: set[str], now: float, *, everything: bool) -> list[_Pending]:
        return [
            pending
            for pending in self._unmet()
            if everything
            or pending.hopeless
            or ((due := pending.condition.due) is not None and due <= now)
            or not pending.paths.isdisjoint(news)
        ]

    def _look(self, due: list[_Pending]) -> None:
        from ..linux.ports import Snapshot

        look = Snapshot()  # asks the kernel only when somebody asks it
        for situation in self._situations.values():
            situation.begin(situation.record, look)
        for pending in due:
            pending.look()

    def _dues(self) -> list[float]:
        return [
            pending.condition.due
            for pending in self._pending
            if pending.met is None and pending.condition.due is not None
        ]

    def _decided(self) -> bool:
        """True if it holds, or cannot hold any more."""
        met = [pending.met is not None for pending in self._pending]
        hopeless = [pending.hopeless for pending in self._pending]
        if self._all:
            return all(met) or any(hopeless)
        return any(met) or all(hopeless)

    # -- what came of it -----------------------------------------------------------------------

    async def _result(self, *, timed_out: bool) -> Waited:
        met = [pending.met for pending in self._pending if pending.met is not None]
        waited = Waited(
            ok=len(met) == len(self._pending) if self._all else bool(met),
            met=met,
            waiting=[
                self._waiting_text(pending)
                for pending in self._unmet()
                if not (timed_out and pending.hopeless)
            ],
            timed_out=timed_out,
            seconds=time.monotonic() - self._began,
        )
        if self._acknowledge:
            self._keep_all_places()
        else:
            waited._keep = self._keep_all_places
        for handle, situation in self._situations.items():
            waited.tail[handle] = self._tail(situation, self._starts[handle])
            if not situation.record.running:
                waited.ended[handle] = Exit.of(situation.record)
                if self._acknowledge:
                    await self._client.acknowledge_end(situation.record)
        if len(waited.ended) < len(self._situations) or not self._acknowledge:
            await self._let_go()
        return waited

    def _unmet(self) -> list[_Pending]:
        return [pending for pending in self._pending if pending.met is None]

    def _waiting_text(self, pending: _Pending) -> str:
        seen = getattr(pending.condition, "seen", "")
        text = pending.condition.text + (f" ({seen})" if seen else "")
        return text if len(self._situations) == 1 else f"{pending.handle}: {text}"

    def _keep_all_places(self) -> None:
        for pending in self._pending:
            self._keep_places(pending)

    def _keep_places(self, pending: _Pending) -> None:
        record, client = pending.situation.record, self._client
        if not pending.resumes:
            return
        for stream, place in pending.condition.places().items():
            where = (client.home, record.session, pending.cursor(), record.handle, stream)
            try:
                save_cursor(*where, place + 1)
            except NotFound:
                return

    def _tail(self, situation: Situation, starts: dict[str, int]) -> str:
        """The end of what it wrote since the wait began, or before its end: stderr after stdout."""
        from ..core.completion_text import clean_tail

        text = ""
        for stream, log in situation.logs.items():
            since = starts[stream] if situation.record.running else 0
            begin = max(since, log.size() - 4 * _TAIL)
            tail = clean_tail(log.read(begin, 4 * _TAIL).data, _TAIL)
            room = max(_TAIL // 2, _TAIL - len(text))
            tail = tail[-room:]
            text = text[max(0, len(text) + len(tail) - _TAIL) :] + tail
        return text
