"""The client: what a caller holds of a session. `client.process` is what it holds of a process.

Starting, writing, stopping and acknowledging go through the keeper. Everything that only looks
(records, logs, events) is read straight from the home directory, and so works without a keeper.

The functions are asynchronous but await nothing except the client's `Link`; `client.sync`, which is
written from this module by a script, runs the very same ones without an event loop.
"""

from __future__ import annotations

import os
import time
from functools import partial

from ..core.errors import (
    BadRequest,
    HoldfastError,
    KeeperError,
    NotFound,
    StoreError,
    WaitTimeout,
    not_found,
)
from ..core.home import Home, check_session, is_handle
from ..core.outbox import end_event_id, new_claim, read_outbox
from ..core.programs import keeper_program
from ..core.record import DEFAULT_SESSION, Event, Record, rfc3339
from ..core.store import Store
from ..core.units import parse_patience
from ..linux import kernel
from ..linux.inotify import Spares, Watch
from ..output.log import Log
from ..terminal.control import Renderings
from ..terminal.tmux_pane import Pane
from . import find_keeper
from .config import UNSET, Config, load_config
from .labels import labelled
from .process import CLAIM_PATIENCE, EARLY, YIELDED, Process, Receipt, several
from .spawn_request import spawn_request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from builtins import list as _List
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from typing import Any, Literal, TypeVar

    from ..core.types import Condition, Duration, Progress, Signal, Size
    from .agents import Agent
    from .group import Group
    from .link import Link
    from .lost_sessions import LeftBehind
    from .wait_for import Waited

    T = TypeVar("T")

_POLL = 0.05
_LOOK = 1.0  # seconds between two looks whether somebody keeps what runs
_WRITTEN = 1.0  # at most from an event of an end to the record that says so; else a keeper died
_PATIENCE = 5.0  # for what the keeper is asked only because the disk did not say
_DELIVERED = 1000
_LOOKS = 200  # a hundredth of a second apart, for a keeper that holds the lock and does not listen


class Client:
    """A session's view of its processes. Made by `connect`, never directly.

    async with holdfast.connect(session="release-42") as hf:
        build = await hf.spawn("make -j8", label="build")
        print((await build.wait()).describe())
    """

    session: str | None
    """The session's name; None for a person, who sees every session."""
    home: Home
    """The directory where all of it is kept."""
    store: Store
    """The records in that directory."""
    config: Config
    """The settings in force."""

    def __init__(self, home: Home, link: Link, session: str | None, config: Config) -> None:
        self.home = home
        self.store = Store(home)
        self.session = session
        self.config = config
        self.renderings = Renderings(home)
        self.spares = Spares()
        self._link = link
        self._problems: list[StoreError] = []
        self._claims: dict[tuple[str, str], str] = {}  # of events, by session and id
        self._unreleased: list[tuple[str, str]] = []  # claims given up while no keeper answered
        # Ends that a wait has shown; the keeper hears of it a moment later.
        self._delivered: dict[str, None] = {}
        # Agents whose end is that of a task, and not told yet.
        self._tasks: set[Agent] = set()

    def __repr__(self) -> str:
        return f"<holdfast.{type(self).__name__} session={self.session!r} home={self.home.path!r}>"

    # -- processes -----------------------------------------------------------------------------

    async def spawn(
        self,
        command: str | list[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        label: str = "",
        group: str = "",
        timeout: Duration | None = UNSET,
        grace: Duration = UNSET,
        tty: bool = False,
        tmux: bool = False,
        size: str | Sequence[int] = UNSET,
        stdin: bool = False,
        stderr: Literal["merged", "separate"] = "merged",
        keep: bool = False,
        log_cap: Size = UNSET,
        log_limit: Size | None = UNSET,
        memory: Size | None = UNSET,
        cpu: float | None = UNSET,
        processes: int | None = UNSET,
        files: int | None = UNSET,
        sandbox: bool | Mapping[str, Any] = False,
        docker: str | Mapping[str, Any] | None = None,
        ports: Sequence[str | int] = (),
        check: Duration | None = None,
        yield_ms: int | None = None,
        watch: Condition | Sequence[Condition] = (),
        claim: bool = False,
        retention: Duration = UNSET,
        max_running: int = UNSET,
        handle: str | None = None,
    ) -> Process:
        """Start a command in the background and return at once.

            server = await hf.spawn("npm start", label="web", timeout=None)
            report = await hf.spawn(["grep", "-r", needle, "."], cwd=project)

        A string runs in bash (sh where there is none); a list runs as it is, without a shell.
        `cwd` and environment are the caller's now; `env` adds to it. `timeout` is in seconds or
        like ``"30m"``, None for no deadline; `grace` is what it gets between the polite signal and
        the forced one. `keep` lets it outlive the session. `log_cap` bounds its log on disk (the
        oldest output goes), `log_limit` stops it once it has written that much.

        `memory`, `cpu` (how many), `processes` and `files` limit it and all it starts; its record
        says what keeps it to them. Out of memory it ends with that reason. In a `sandbox` it can
        write to its working directory only, sees no other process and has no network and no Unix
        sockets; ``{"network": True}`` and ``{"sockets": True}`` give it those, and ``{"root":
        directory}`` another place to write to.

        `docker` runs it in a container of an image, with its working directory mounted at the same
        place and with no environment but `env`; a table like ``{"image": "node:22", "pull": True}``
        says more (network, user, mounts, workdir). An empty command is the image's own. `ports` of
        the container are published on loopback, at the same number if that is free;
        `process.ports` says where. An image that is missing is pulled only with `pull`; then this
        returns while it is, and the progress is in the log.

        `tty` gives it a terminal (of `size`, like ``"120x40"``), so that interactive and
        full-screen programs work; `tmux` one in a tmux session, which also survives the keeper and
        which a person can join with plain tmux. Where tmux is missing, `tmux` means `tty`.

        With `check` it stays that long (like ``"1.5s"``) to see how it goes: `process.early` is
        what was written meanwhile, and a process that ended has its end in the record. `yield_ms`
        is for what may be quick: it waits up to so many milliseconds for the end, and
        `process.backgrounded` says whether it was left to run on in the background.

        `watch` is what the session is to be told of while it runs, one condition or a list; see
        `Process.watch`. With `claim` its end is this caller's, who means to wait for it: nobody
        else in the session is told of it, unless the caller lets go (`Process.release`) or dies.
        With `max_running` of the session's running already it is refused;
        `retention` is how long it is kept after its end and the last look.

        Raises NotExecutable, BadDirectory, LimitReached, Unavailable; nothing is left behind then.
        """
        options = self.config.options(locals())  # of the arguments, those that the spec names
        window, early = _stay_for(check, yield_ms)
        request = spawn_request(
            self,
            command,
            options,
            cwd=cwd,
            env=env,
            tty=tty,
            tmux=tmux,
            sandbox=sandbox,
            docker=docker,
            ports=ports,
            watch=watch,
            handle=handle,
        )
        by = new_claim() if claim or window is not None else None
        if by is not None:
            request["claim"] = by
        try:
            answer = await self._link.call("spawn", request)
            process = Process(self, Record.from_json(answer["record"]), by)
            if "runner" in request:
                from .docker_client import until_begun

                await until_begun(process)
            if window is not None:
                await process._stay(window, early)
                if not claim:
                    await process.release()
        except BaseException:
            if by is not None:
                await self._let_go(self.session or DEFAULT_SESSION, by)
            raise
        return process

    async def get(self, handle: str) -> Process:
        """The process with exactly this handle or label; NotFound if this session has none.

        A label means the one that runs, or the newest if none does; of several that run with it,
        BadRequest names the handles.
        """
        named = labelled(self.store, self.session, handle)
        process = Process(self, await self._kept(named or await self._find(handle)))
        self._see(process.record, drawn=False)
        self.store.look(process.handle)
        return process

    def _see(self, record: Record, *, drawn: bool = True) -> Record:
        """Add what only the kernel knows: whether it waits for input, and its terminal's size."""
        if not record.running or not record.stdin or record.pid is None:
            return record
        from ..linux.site import site_of
        from ..output.prompt import prompt_of

        seen = site_of(record).see()
        record.waiting_for_input = state = seen.answer
        if seen.waits:
            log = Log(self.home.log(record.handle), self.home.head(record.handle))
            rendering = partial(self.renderings.of, record) if drawn and record.tty else None
            try:
                prompt = prompt_of(log, str(state), rendering)
            except HoldfastError:
                prompt = ""  # the log cannot be read, which whoever reads it will be told
            finally:
                log.close()
            record.waiting_for_input = {"prompt": prompt, "kind": str(state)}
        pane = Pane.of(self.home, record)
        if pane is not None and (size := pane.size()) not in (None, record.size):
            record.resized(record.sizes[-1][0], *size)
        return record

    async def list(self, *, group: str | None = None, ended: bool = True) -> _List[Process]:
        """Every process of this session, or one group of it, oldest first; finished ones too.

        Without those that have `ended` it takes no longer for however many there are of them.
        """
        records, self._problems = self.store.scan(self.session, ended=ended)
        if await self._mended(self._problems):
            records, self._problems = self.store.scan(self.session, ended=ended)
        running = any(record.running for record in records)
        if running and not find_keeper.keeper_holds(self.home):
            await self.keeper_start()  # which sees who is still there
            records, self._problems = self.store.scan(self.session, ended=ended)
        found = [record for record in records if group in (None, record.group)]
        if running:  # to ask the kernel of each takes its time
            await self._link.run_in_thread(
                lambda: [self._see(record, drawn=False) for record in found]
            )
        return [Process(self, record) for record in found]

    def group(self, name: str) -> Group:
        """The processes started with this `group`: wait for, stop or be told of them as one."""
        from .group import Group

        return Group(self, name)

    def problems(self) -> _List[StoreError]:
        """A word about each record the last `list` could not read."""
        return self._problems

    async def wait_for(
        self,
        processes: Process | Sequence[Process],
        *conditions: Condition,
        all: bool = False,
        timeout: Duration | None = None,
        progress: Progress | None = None,
        acknowledge: bool = True,
    ) -> Waited:
        """Wait as `Process.wait_for` does, for any of several, or with `all` for every one.

        `progress` is called every few seconds, with the seconds so far and what is still waited
        for; it may be asynchronous. Without `acknowledge` nothing counts as told: ends that it
        shows are still told by events, and the same wait finds the same again.
        """
        from .wait_for import Waiting

        patience = None if timeout is None else parse_patience(timeout)
        among = several(processes, Process)
        waiting = await self._link.run_in_thread(
            lambda: Waiting(self, among, conditions, all, acknowledge)
        )
        try:
            return await waiting.run(patience, progress)
        finally:
            waiting.close()

    async def stop_all(
        self, *, signal: Signal = "TERM", grace: Duration | None = UNSET
    ) -> _List[Receipt]:
        """Stop every running process of this session, with everything they started."""
        if not self._anything_running() and not self._keeper_there():
            return []
        return await self._stop("stop_all", {"signal": signal, "grace": self._grace(grace)})

    async def _stop(self, verb: str, which: dict[str, Any]) -> _List[Receipt]:
        by = new_claim()
        try:
            answer = await self._link.call(verb, which | {"claim": by})
        except BaseException:
            await self._let_go(self.session or DEFAULT_SESSION, by)
            raise
        receipts = [Receipt.of(receipt) for receipt in answer["receipts"]]
        for receipt in receipts:
            await self.acknowledge_end(receipt.record)
        await self._let_go(self.session or DEFAULT_SESSION, by)
        return receipts

    async def lease(self, grace: Duration) -> None:
        """Change for how long the session's processes go on if this client is lost."""
        seconds = self.config.choose("lease_grace", grace)
        await self._link.call("lease", {"grace": seconds})
        self._link.greeting.grace = seconds  # said again at every new connection

    async def left_behind(self, directory: str | None = None) -> _List[LeftBehind]:
        """Sessions that worked in this directory, whose client was lost and whose time is not up.

        None that somebody holds, and none of another directory or user. Who holds no session says
        which `directory` is meant.
        """
        from .lost_sessions import LeftBehind

        where = {} if directory is None else {"directory": os.path.realpath(directory)}
        answer = await self._link.call("left_behind", where)
        return [LeftBehind.of(each) for each in answer["sessions"]]

    async def adopt(self, session: str) -> _List[Process]:
        """Take over what a session left behind: its processes and what nobody was told of them.

        One client can, and only while nobody has come back to that session.
        """
        wanted = {"session": checked_session(session), "token": os.urandom(8).hex()}
        answer = await self._link.call("adopt", wanted)
        return [await self.get(handle) for handle in answer["handles"]]

    async def _kept(self, record: Record) -> Record:
        """The record, after making sure that somebody keeps what it says is running.

        Where both halves of a keeper died, the next look is what starts another one.
        """
        if not record.running or find_keeper.keeper_holds(self.home):
            return record
        await self.keeper_start()
        try:
            return self.store.load(record.handle)
        except (NotFound, StoreError):
            return await self._find(record.handle)

    async def _find(self, handle: str) -> Record:
        """The record; where the disk has none that can be read, as the keeper knows it."""
        try:
            return self._load(handle)
        except (NotFound, StoreError) as error:
            for record in await self._held(handle, error):
                return record
            raise

    async def _held(self, handle: str, error: HoldfastError) -> _List[Record]:
        """Records that the keeper holds whatever the disk says; it writes them anew then."""
        if not is_handle(handle) or error.detail.get("newer") or not self._keeper_there():
            return []
        try:
            answer = await self._link.call("held", {"handles": [handle]}, _PATIENCE)
        except (BadRequest, KeeperError, WaitTimeout):
            return []  # it is of an earlier version, or has no time: then the disk is what we have
        return [Record.from_json(each) for each in answer["records"]]

    async def _mended(self, problems: _List[StoreError]) -> bool:
        """Have records written anew, or set aside, that a list could not read."""
        found = [each for each in problems if each.handle and not each.detail.get("newer")]
        if not found or not self._keeper_there():
            return False
        try:
            await self._link.call("held", {"handles": [each.handle for each in found]}, _PATIENCE)
        except (BadRequest, KeeperError, WaitTimeout):
            return False
        return True

    def _keeper_there(self) -> bool:
        """True if there is a keeper to be asked; none is started for it."""
        return self._link.connected or find_keeper.keeper_holds(self.home)

    async def _see_to_a_keeper(self) -> None:
        """Whoever waits for ends starts a keeper where both halves of the last one died."""
        if not find_keeper.keeper_holds(self.home) and self._anything_running():
            await self.keeper_start()

    def _anything_running(self) -> bool:
        records, _ = self.store.scan(self.session, ended=False)
        return bool(records)

    def _grace(self, grace: object) -> float | None:
        return None if grace is UNSET or grace is None else self.config.choose("grace", grace)

    def _sees(self, record: Record) -> bool:
        return self.session in (None, record.session)

    def _load(self, handle: str) -> Record:
        if not is_handle(handle):
            raise not_found(str(handle))
        record = self.store.load(handle)
        if not self._sees(record):
            raise not_found(handle)
        return record

    # -- events --------------------------------------------------------------------------------

    async def events(
        self, *, after: int = 0, follow: bool = False, acknowledged: bool = False
    ) -> AsyncIterator[Event]:
        """The events of this session, in order; each until it is acknowledged.

            async for event in hf.events(follow=True):
                inject(event.text)
                await hf.acknowledge(event)

        `after` leaves out events up to that number, `acknowledged` includes used ones, `follow`
        goes on with new ones as they come. What somebody has claimed who lives, to wait for an end
        or to tell of it, is left out: it comes if they let go. Where several follow a session, let
        each `claim` what it is about to tell.
        """
        shown: set[tuple[str, str]] = set()
        looked = time.monotonic()
        watch: Watch | None = None
        watched: list[str] | None = None
        try:
            while True:
                if watch is not None:
                    watch.drain()
                # After the drain, and again after each change: a session that comes later wakes.
                while follow and watched != (names := self._sessions()):
                    if watch is not None:
                        watch.close()
                    watch, watched = self._watch_events(names), names
                there: set[tuple[str, str]] = set()
                for event in self._pending(acknowledged, there):
                    if event.seq > after and (event.session, event.id) not in shown:
                        shown.add((event.session, event.id))
                        await self._written(event)
                        yield event
                if watch is None:
                    return
                shown &= there
                if time.monotonic() >= looked + _LOOK:
                    looked = time.monotonic()
                    await self._see_to_a_keeper()
                await self._link.readable(watch.fileno(), _POLL if watch.fileno() is None else 1.0)
        finally:
            if watch is not None:
                watch.close()

    async def _written(self, event: Event) -> None:
        """Wait until records say what an event says, which comes first: by a moment, mostly."""
        if event.type not in ("end", "group") or event.at < rfc3339(time.time() - _WRITTEN):
            return
        for handle in [member.handle for member in event.members] or [event.handle or ""]:
            until = time.monotonic() + _WRITTEN
            while time.monotonic() < until and self._still_runs(handle):
                await self._link.readable(None, _WRITTEN / 500)

    def _still_runs(self, handle: str) -> bool:
        try:
            return self.store.load(handle).running
        except HoldfastError:
            return False

    def _sessions(self) -> _List[str]:
        return [self.session] if self.session is not None else self.home.session_names()

    def _watch_events(self, names: _List[str]) -> Watch:
        self.home.ensure()
        paths = [self.home.sessions, *(self.home.outbox(name) for name in names)]
        return Watch(paths, self.spares)

    def _pending(
        self, acknowledged: bool, there: set[tuple[str, str]] | None = None
    ) -> _List[Event]:
        """Events to be told, or with `acknowledged` all; `there` gets the ids of all there are."""
        found: list[tuple[str, Event]] = []
        for name in self._sessions():
            at = ""
            events, claims = read_outbox(self.home, name)
            for event in events:
                # By time across sessions, but never against the numbers of one: an end may have
                # become known after a later one, and readers go by the last number they saw.
                at = max(at, event.at)
                if there is not None:
                    there.add((name, event.id))
                if acknowledged or not (
                    event.acknowledged
                    or self._saw(event)
                    or any(kernel.lives(each.pid, each.start_time) for each in claims.on(event.id))
                ):
                    found.append((at, event))
        found.sort(key=lambda pair: pair[0])
        return [event for _, event in found]

    def _saw(self, event: Event) -> bool:
        """True if waits have shown all of it already."""
        told_of = [end_event_id(member.handle) for member in event.members] or [event.id]
        return self._delivered.keys() >= set(told_of)

    async def claim(self, *events: Event, timeout: Duration | None = None) -> _List[Event]:
        """Claim events before telling of them; those that nobody else has claimed or used first.

            for event in await hf.claim(event):
                inject(event.text)
                await hf.acknowledge(event)

        Of several that claim the same event, one gets it. It is that one's until it acknowledges
        it, lets go of it (`release`) or is gone: then it is everybody's again. Raises WaitTimeout
        if the keeper says nothing for `timeout`; nothing is claimed then.
        """
        patience = None if timeout is None else parse_patience(timeout)
        await self._release_the_rest()
        got: list[Event] = []
        for session, some in self._by_session(events).items():
            by = new_claim()
            wanted = {"session": session, "ids": [event.id for event in some], "by": by}
            try:
                answer = await self._link.call("claim", wanted, patience)
            except BaseException:
                await self._let_go(session, by)
                raise
            mine = [event for event in some if event.id in answer["claimed"]]
            self._claims.update(((session, event.id), by) for event in mine)
            got += mine
        return [event for event in events if event in got]

    async def release(self, *events: Event) -> None:
        """Let go of claimed events without having told of them: somebody else may."""
        claims: dict[tuple[str, str], list[str]] = {}
        for event in events:
            by = self._claims.get((event.session, event.id))
            if by is not None:
                claims.setdefault((event.session, by), []).append(event.id)
        for (session, by), ids in claims.items():
            for event_id in ids:
                self._claims.pop((session, event_id), None)
            await self._release(session, by, ids)

    async def acknowledge(self, *events: Event) -> None:
        """Say that these events were used, so that nobody is told of them again."""
        for session, some in self._by_session(events).items():
            ids = [event.id for event in some]
            await self._link.call("acknowledge", {"session": session, "ids": ids})
            for event in some:
                event.acknowledged = True
                self._claims.pop((session, event.id), None)

    def _by_session(self, events: Sequence[Event]) -> dict[str, _List[Event]]:
        found: dict[str, _List[Event]] = {}
        for event in events:
            if self.session not in (None, event.session):
                raise BadRequest("an event of another session cannot be acknowledged here")
            found.setdefault(event.session, []).append(event)
        return found

    async def acknowledge_end(self, record: Record, by: str = "") -> None:
        """Count the end of a process as told: whoever saw it needs no event for it.

        Of another session's process nothing is taken.
        """
        if record.session == (self.session or DEFAULT_SESSION):
            event_id = end_event_id(record.handle)
            if len(self._delivered) >= _DELIVERED:
                del self._delivered[next(iter(self._delivered))]  # long since heard of
            self._delivered[event_id] = None
            used = {"session": record.session, "ids": [event_id], "by": by}
            await self._link.post("acknowledge", used)

    async def _release(self, session: str, by: str, ids: _List[str] | None = None) -> None:
        """Give up a claim; if a keeper answers, others can have what it was on from now on."""
        try:
            wanted = {"session": session, "by": by, "ids": ids}
            await self._link.call("release", wanted, CLAIM_PATIENCE)
        except HoldfastError:
            await self._let_go(session, by)
        except BaseException:
            await self._let_go(session, by)
            raise

    async def _let_go(self, session: str, by: str) -> None:
        """Give up a claim without waiting for it; if no keeper answers now, later."""
        try:
            await self._link.post("release", {"session": session, "by": by})
        except HoldfastError:
            self._unreleased.append((session, by))

    async def _release_the_rest(self) -> None:
        given_up, self._unreleased = self._unreleased, []
        for session, by in given_up:
            await self._let_go(session, by)

    # -- background agents ---------------------------------------------------------------------

    async def register_agent(
        self,
        id: str,
        type: str,
        output_file: str | os.PathLike[str] | None = None,
        *,
        task: Any = None,
        on_stop: Callable[[], Any] | None = None,
    ) -> Agent:
        """Keep track of work in this program that is no process: another agent, for example.

            task = asyncio.create_task(review())
            agent = await hf.register_agent("review", "reviewer", "out.md", task=task)

        `task` is a task or a future: a stop cancels it, and when it ends the session is told how.
        Without one, say `done` when it is over. `on_stop` is called when somebody asks for its
        stop, or its session ends; what it returns is awaited if it can be. If this program dies,
        the agent is `lost`.
        """
        from ..core.agent_record import AgentRecord
        from .agents import Agent

        if task is not None and not hasattr(task, "add_done_callback"):
            raise BadRequest("an agent's task is what create_task() returns, or a future")
        path = None if output_file is None else os.path.abspath(os.fsdecode(output_file))
        wanted = {"agent": id, "type": type, "output_file": path, "token": os.urandom(8).hex()}
        answer = await self._link.call("register_agent", wanted)
        agent = Agent(self, AgentRecord.from_json(answer["agent"]))
        if task is not None:
            agent._follow(task)
        if task is not None or on_stop is not None:
            self._link.beside(agent._when_stopped(on_stop))
        return agent

    async def agent(self, id: str) -> Agent:
        """The background agent of this name; NotFound if this session has none."""
        from ..core.agent_record import no_agent

        for agent in await self.agents():
            if agent.id == id:
                return agent
        raise no_agent(id)

    async def agents(self) -> _List[Agent]:
        """Every background agent of this session, over or not, oldest first."""
        from ..core.agent_record import load_agents
        from .agents import Agent

        session = self.session or DEFAULT_SESSION
        found = load_agents(self.home, session)
        if any(record.running for record in found) and not find_keeper.keeper_holds(self.home):
            await self.keeper_start()  # which sees who is still there
            found = load_agents(self.home, session)
        return [Agent(self, record) for record in found]

    # -- waiting for what is no process --------------------------------------------------------

    async def readable(self, fd: int | None, timeout: Duration) -> None:
        """Wait until a descriptor can be read (None: never), or the time is over."""
        await self._link.readable(fd, parse_patience(timeout))

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Do something that takes its time, such as reading a long log, and return its result.

        Nothing else is held up meanwhile, where there is something else: an event loop.
        """
        return await self._link.run_in_thread(work)

    # -- the keeper ----------------------------------------------------------------------------

    async def keeper_start(self) -> None:
        """See that there is a keeper; a session that this client holds is held from then on."""
        await self._link.call("status", {})

    async def keeper_status(self) -> dict[str, Any]:
        """The keeper's word on itself, or ``{"running": False}``; never starts one."""
        if not await self._keeper_runs():
            return {"running": False}
        status: dict[str, Any] = await self._link.call("status", {})
        status["memory_bytes"] = sum(_pss(status[half]) for half in ("guard", "worker"))
        return status

    async def _keeper_runs(self) -> bool:
        """True if a keeper listens; one that holds the lock is just beginning, ending, or mending.

        Somebody may have deleted its socket, which it makes again.
        """
        for _ in range(_LOOKS):
            probe = find_keeper.try_connect(self.home) if self.home.exists() else None
            if probe is not None:
                probe.close()
                return True
            if not find_keeper.keeper_holds(self.home):
                return False
            await self._link.readable(None, 0.01)
        return True  # whoever asks it something learns what is wrong

    async def keeper_stop(self, *, kill: bool = False) -> None:
        """Stop the keeper; refused while it keeps something, unless that is to be killed."""
        status = await self.keeper_status()
        if not status["running"]:
            return
        if kill:
            await self._link.call("stop_all", {"signal": "TERM", "grace": None})
        await self._link.call("quit", {})
        if not find_keeper.wait_until_gone(self.home):
            raise KeeperError("the keeper said it would stop but is still there; see keeper.log")

    async def keeper_restart(self) -> dict[str, Any]:
        """Renew both halves of the keeper with the code on disk; processes notice nothing."""
        before = await self.keeper_status()
        if not before["running"]:
            return await self._link.call("status", {})  # type: ignore[no-any-return]
        await self._link.call("restart", {"program": keeper_program()})
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            status = await self._link.call("status", {})
            if status["worker"] != before["worker"]:
                return status  # type: ignore[no-any-return]
            await self._link.readable(None, 0.01)
        raise KeeperError("the keeper did not renew itself; see keeper.log")

    async def close(self) -> None:
        """Let go of the keeper. A session that is held is closed in good order by `connect`."""
        self.renderings.close()
        self.spares.close()
        await self._link.close()

    async def end_session(self) -> _List[Receipt]:
        """Close the session in good order: its processes stop, except those with `keep`."""
        await self._settle_tasks()
        if not self._anything_running() and not await self._keeper_runs():
            return []  # nobody keeps anything of it: no reason to start a keeper
        answer = await self._link.call("close", {})
        await self._settle_tasks()
        return [Receipt.of(receipt) for receipt in answer["receipts"]]

    async def _settle_tasks(self) -> None:
        """Tell how those ended that have, and cancel those whose agents are over."""
        for agent in [*self._tasks]:
            try:
                await agent._task_over()
                if not (await agent.refresh()).running:
                    agent._cancel_task()
            except HoldfastError:
                continue


def _stay_for(check: Any, yield_ms: Any) -> tuple[float | None, int]:
    """Seconds to stay with what was started, and how much of its output to tell."""
    if yield_ms is None:
        return None if check is None else parse_patience(check, "check"), EARLY
    if check is not None:
        raise BadRequest("give check or yield_ms, not both")
    if type(yield_ms) not in (int, float):
        raise BadRequest(f"yield_ms is a number of milliseconds, not {yield_ms!r}")
    return parse_patience(yield_ms / 1000, "yield_ms"), YIELDED


def _pss(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def make_config(home: Home) -> Config:
    home.exists()  # refuses a home that is not ours before anything in it is believed
    return load_config(home)


def checked_session(session: str | None) -> str | None:
    return None if session is None else check_session(session)
