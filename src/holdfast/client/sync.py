# Written by .ci/sync_client from the classes with asyncio: edit those, then `make format`.
"""`Client`, `Process`, `Group`, `Agent` for plain scripts: the same methods, without await."""

from __future__ import annotations

from .config import UNSET
from .link import iterate, run
from .process import several

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from builtins import list as _List
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, Literal

    from ..core.agent_record import AgentRecord
    from ..core.errors import StoreError
    from ..core.home import Home
    from ..core.record import Event, Exit, Record, Screen
    from ..core.store import Store
    from ..core.types import Condition, Duration, Progress, Signal, Size, Status, Stream
    from ..linux.usage import Usage, UsageHistory
    from ..output.log import Log, Output
    from ..output.search import Found
    from ..output.view import View
    from .agents import Agent
    from .client import Client, T
    from .config import Config
    from .group import Group
    from .lost_sessions import LeftBehind
    from .process import Process, Receipt
    from .wait_for import Waited


class SyncClient:
    """`Client` for plain scripts: the same methods, without await.

    A session's view of its processes. Made by `connect`, never directly.

    with holdfast.connect(session="release-42") as hf:
        build = hf.spawn("make -j8", label="build")
        print(build.wait().describe())
    """

    @property
    def session(self) -> str | None:
        """The session's name; None for a person, who sees every session."""
        return self._client.session

    @property
    def home(self) -> Home:
        """The directory where all of it is kept."""
        return self._client.home

    @property
    def store(self) -> Store:
        """The records in that directory."""
        return self._client.store

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self._client.config

    def __init__(self, client: Client) -> None:
        self._client = client

    def __repr__(self) -> str:
        return repr(self._client).replace(".", ".Sync", 1)

    def spawn(
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
    ) -> SyncProcess:
        """Start a command in the background and return at once.

            server = hf.spawn("npm start", label="web", timeout=None)
            report = hf.spawn(["grep", "-r", needle, "."], cwd=project)

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
        return SyncProcess(
            run(
                self._client.spawn(
                    command,
                    cwd=cwd,
                    env=env,
                    label=label,
                    group=group,
                    timeout=timeout,
                    grace=grace,
                    tty=tty,
                    tmux=tmux,
                    size=size,
                    stdin=stdin,
                    stderr=stderr,
                    keep=keep,
                    log_cap=log_cap,
                    log_limit=log_limit,
                    memory=memory,
                    cpu=cpu,
                    processes=processes,
                    files=files,
                    sandbox=sandbox,
                    docker=docker,
                    ports=ports,
                    check=check,
                    yield_ms=yield_ms,
                    watch=watch,
                    claim=claim,
                    retention=retention,
                    max_running=max_running,
                    handle=handle,
                )
            )
        )

    def get(self, handle: str) -> SyncProcess:
        """The process with exactly this handle or label; NotFound if this session has none.

        A label means the one that runs, or the newest if none does; of several that run with it,
        BadRequest names the handles.
        """
        return SyncProcess(run(self._client.get(handle)))

    def list(self, *, group: str | None = None, ended: bool = True) -> _List[SyncProcess]:
        """Every process of this session, or one group of it, oldest first; finished ones too.

        Without those that have `ended` it takes no longer for however many there are of them.
        """
        return [SyncProcess(each) for each in run(self._client.list(group=group, ended=ended))]

    def group(self, name: str) -> SyncGroup:
        """The processes started with this `group`: wait for, stop or be told of them as one."""
        return SyncGroup(self._client.group(name))

    def problems(self) -> _List[StoreError]:
        """A word about each record the last `list` could not read."""
        return self._client.problems()

    def wait_for(
        self,
        processes: SyncProcess | Sequence[SyncProcess],
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
        return run(
            self._client.wait_for(
                [each._process for each in several(processes, SyncProcess)],
                *conditions,
                all=all,
                timeout=timeout,
                progress=progress,
                acknowledge=acknowledge,
            )
        )

    def stop_all(
        self, *, signal: Signal = "TERM", grace: Duration | None = UNSET
    ) -> _List[Receipt]:
        """Stop every running process of this session, with everything they started."""
        return run(self._client.stop_all(signal=signal, grace=grace))

    def lease(self, grace: Duration) -> None:
        """Change for how long the session's processes go on if this client is lost."""
        run(self._client.lease(grace))

    def left_behind(self, directory: str | None = None) -> _List[LeftBehind]:
        """Sessions that worked in this directory, whose client was lost and whose time is not up.

        None that somebody holds, and none of another directory or user. Who holds no session says
        which `directory` is meant.
        """
        return run(self._client.left_behind(directory))

    def adopt(self, session: str) -> _List[SyncProcess]:
        """Take over what a session left behind: its processes and what nobody was told of them.

        One client can, and only while nobody has come back to that session.
        """
        return [SyncProcess(each) for each in run(self._client.adopt(session))]

    def events(
        self, *, after: int = 0, follow: bool = False, acknowledged: bool = False
    ) -> Iterator[Event]:
        """The events of this session, in order; each until it is acknowledged.

            for event in hf.events(follow=True):
                inject(event.text)
                hf.acknowledge(event)

        `after` leaves out events up to that number, `acknowledged` includes used ones, `follow`
        goes on with new ones as they come. What somebody has claimed who lives, to wait for an end
        or to tell of it, is left out: it comes if they let go. Where several follow a session, let
        each `claim` what it is about to tell.
        """
        return iterate(self._client.events(after=after, follow=follow, acknowledged=acknowledged))

    def claim(self, *events: Event, timeout: Duration | None = None) -> _List[Event]:
        """Claim events before telling of them; those that nobody else has claimed or used first.

            for event in hf.claim(event):
                inject(event.text)
                hf.acknowledge(event)

        Of several that claim the same event, one gets it. It is that one's until it acknowledges
        it, lets go of it (`release`) or is gone: then it is everybody's again. Raises WaitTimeout
        if the keeper says nothing for `timeout`; nothing is claimed then.
        """
        return run(self._client.claim(*events, timeout=timeout))

    def release(self, *events: Event) -> None:
        """Let go of claimed events without having told of them: somebody else may."""
        run(self._client.release(*events))

    def acknowledge(self, *events: Event) -> None:
        """Say that these events were used, so that nobody is told of them again."""
        run(self._client.acknowledge(*events))

    def acknowledge_end(self, record: Record, by: str = "") -> None:
        """Count the end of a process as told: whoever saw it needs no event for it.

        Of another session's process nothing is taken.
        """
        run(self._client.acknowledge_end(record, by))

    def register_agent(
        self,
        id: str,
        type: str,
        output_file: str | os.PathLike[str] | None = None,
        *,
        task: Any = None,
        on_stop: Callable[[], Any] | None = None,
    ) -> SyncAgent:
        """Keep track of work in this program that is no process: another agent, for example.

            task = asyncio.create_task(review())
            agent = hf.register_agent("review", "reviewer", "out.md", task=task)

        `task` is a task or a future: a stop cancels it, and when it ends the session is told how.
        Without one, say `done` when it is over. `on_stop` is called when somebody asks for its
        stop, or its session ends; what it returns is awaited if it can be. If this program dies,
        the agent is `lost`.
        """
        return SyncAgent(
            run(self._client.register_agent(id, type, output_file, task=task, on_stop=on_stop))
        )

    def agent(self, id: str) -> SyncAgent:
        """The background agent of this name; NotFound if this session has none."""
        return SyncAgent(run(self._client.agent(id)))

    def agents(self) -> _List[SyncAgent]:
        """Every background agent of this session, over or not, oldest first."""
        return [SyncAgent(each) for each in run(self._client.agents())]

    def readable(self, fd: int | None, timeout: Duration) -> None:
        """Wait until a descriptor can be read (None: never), or the time is over."""
        run(self._client.readable(fd, timeout))

    def run_in_thread(self, work: Callable[[], T]) -> T:
        """Do something that takes its time, such as reading a long log, and return its result.

        Nothing else is held up meanwhile, where there is something else: an event loop.
        """
        return run(self._client.run_in_thread(work))

    def keeper_start(self) -> None:
        """See that there is a keeper; a session that this client holds is held from then on."""
        run(self._client.keeper_start())

    def keeper_status(self) -> dict[str, Any]:
        """The keeper's word on itself, or ``{"running": False}``; never starts one."""
        return run(self._client.keeper_status())

    def keeper_stop(self, *, kill: bool = False) -> None:
        """Stop the keeper; refused while it keeps something, unless that is to be killed."""
        run(self._client.keeper_stop(kill=kill))

    def keeper_restart(self) -> dict[str, Any]:
        """Renew both halves of the keeper with the code on disk; processes notice nothing."""
        return run(self._client.keeper_restart())

    def close(self) -> None:
        """Let go of the keeper. A session that is held is closed in good order by `connect`."""
        run(self._client.close())

    def end_session(self) -> _List[Receipt]:
        """Close the session in good order: its processes stop, except those with `keep`."""
        return run(self._client.end_session())


class SyncProcess:
    """`Process` for plain scripts: the same methods, without await.

    One background process, as one client sees it. From `spawn`, `get` or `list`."""

    @property
    def record(self) -> Record:
        """All that was known of it at the last look; `refresh` looks again."""
        return self._process.record

    @property
    def early(self) -> str:
        """The output while `spawn` stayed to check."""
        return self._process.early

    @property
    def backgrounded(self) -> bool:
        """True if it was still running then."""
        return self._process.backgrounded

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def handle(self) -> str:
        """The name of the process, which nothing else ever has."""
        return self._process.handle

    def __repr__(self) -> str:
        return repr(self._process).replace(".", ".Sync", 1)

    @property
    def attach_command(self) -> str | None:
        """The command a person types to see its terminal and take over; None if it has none."""
        return self._process.attach_command

    @property
    def ports(self) -> dict[str, int]:
        """The ports of its container, and where they are at this machine: ``{"3000": 49153}``."""
        return self._process.ports

    def exec(
        self,
        command: str | list[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        user: str | None = None,
        **options: Any,
    ) -> SyncProcess:
        """Start a command in its container, as a process of its own.

            shell = server.exec("sh", tty=True)

        `cwd` is a directory in the container, by default the one it works in. Other options are
        those of `spawn`, but for those that are the container's. It ends with the container.
        """
        return SyncProcess(run(self._process.exec(command, cwd=cwd, user=user, **options)))

    def refresh(self) -> Record:
        """Look again: the record as it stands now."""
        return run(self._process.refresh())

    def log(self, stream: Stream = "stdout") -> Log:
        """The log, to be read by offsets; what is done with it counts as no look."""
        return self._process.log(stream)

    def read(
        self, *, reader: str = "default", limit: int = 65536, stream: Stream = "stdout"
    ) -> Output:
        """Read what is new since this reader last read; the place is kept for the session.

        Never ends inside a character or an escape code while the process may still finish it.
        """
        return run(self._process.read(reader=reader, limit=limit, stream=stream))

    def read_at(self, offset: int, limit: int = 65536, *, stream: Stream = "stdout") -> Output:
        """Up to `limit` bytes from a byte offset."""
        return run(self._process.read_at(offset, limit, stream=stream))

    def lines(self, first: int, count: int, *, stream: Stream = "stdout") -> Output:
        """Lines by number; a line keeps its number, whatever is written, cleared or freed.

        Line 0 is the first it ever wrote; a negative `first` counts from the end. `first_line`,
        `gone` and `next_line` of the output say what came and where to go on.
        """
        return run(self._process.lines(first, count, stream=stream))

    def tail(self, n: int = 50, *, stream: Stream = "stdout") -> Output:
        """The last `n` lines."""
        return run(self._process.tail(n, stream=stream))

    def tail_bytes(self, n: int, *, stream: Stream = "stdout") -> Output:
        """The last `n` bytes."""
        return run(self._process.tail_bytes(n, stream=stream))

    def view(
        self,
        *,
        budget: int = 10000,
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
        return run(self._process.view(budget=budget, start=start, end=end, stream=stream))

    def search(
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
        budget: int = 10000,
        stream: Stream | None = None,
    ) -> Found:
        """Lines of the output that match a pattern, with lines around them: the last, or `first`.

        Takes no longer than `timeout`, whatever the pattern; `note` says where to go on.
        Of a separate stderr both are searched, unless a `stream` is named; `start` and `end` are
        places in one of them, stdout if none is named.
        """
        return run(
            self._process.search(
                pattern,
                context=context,
                first=first,
                last=last,
                ignore_case=ignore_case,
                literal=literal,
                start=start,
                end=end,
                timeout=timeout,
                budget=budget,
                stream=stream,
            )
        )

    def usage(self, *, interval: Duration = 0.0) -> Usage:
        """Measure what it uses with everything it started: processor, memory, files, ports.

        `cpu_percent` is over the `interval`; without one it is since this object was last
        asked, and None the first time. `cpu_average_percent` is since the start.
        """
        return run(self._process.usage(interval=interval))

    def usage_history(self) -> UsageHistory:
        """The last 120 answers of `usage` from this object, oldest first; nobody else looks."""
        return self._process.usage_history()

    def follow(self, *, offset: int | None = None, stream: Stream = "stdout") -> Iterator[Output]:
        """Output as it comes, until the process has ended and all of it was read.

        From `offset`, or from the beginning of what is kept.
        """
        return iterate(self._process.follow(offset=offset, stream=stream))

    def send(
        self,
        data: str | bytes,
        *,
        enter: bool = False,
        paste: bool = False,
        eof: bool = False,
        timeout: Duration = 5.0,
    ) -> int:
        """Write to its stdin, or type into its terminal; returns how many bytes it took.

            process.send("yes", enter=True)

        Fewer than given means that it did not read within `timeout`; what was not taken was
        not written. `enter` presses Enter afterwards. In a terminal the newlines of a text are
        Enter too, while bytes go as they are; `paste` brackets it as a paste if the program asked
        for that. `eof` closes stdin afterwards, or types the terminal's end-of-file character.
        """
        return run(self._process.send(data, enter=enter, paste=paste, eof=eof, timeout=timeout))

    def keys(self, *names: str) -> None:
        """Press keys, by name: ``process.keys("C-c", "Up", "Enter")``.

        Names are tmux's: Enter, Tab, Escape, Space, BSpace, Up, Down, Left, Right, Home, End,
        PageUp, PageDown, Insert, Delete, F1 to F12, and C-, M- and S- before them. A single
        character is itself; longer text is for `send`.
        """
        run(self._process.keys(*names))

    def watch(self, condition: Condition) -> str:
        """Have the session told, by an event, when something happens; returns the watch's name.

            server.watch("output=ERROR|panic")
            build.watch({"quiet": "2m", "cooldown": "10m", "most": 5})

        Conditions are ``output=PATTERN`` (each matching line), ``quiet=30s``, ``port=3000`` and
        ``every=60s`` (with what is new). Between two events there are `cooldown` seconds (10), and
        there are at most `most` of them (20). A separate stderr is looked at too, unless the table
        has a `stream`. It holds with no client connected.
        """
        return run(self._process.watch(condition))

    def unwatch(self, name: str) -> None:
        """Stop a watch, by the name that `watch` returned."""
        run(self._process.unwatch(name))

    def screen(self, *, colours: bool = False) -> Screen:
        """The screen a person would see in its terminal now, or saw last if it has ended."""
        return run(self._process.screen(colours=colours))

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of its terminal."""
        run(self._process.resize(columns, rows))

    def wait(self, timeout: Duration | None = None, *, acknowledge: bool = True) -> Exit:
        """Wait until it has ended, and say how. The completion then counts as delivered.

        Without `acknowledge` it does not: the session is still told of it by an event.
        Raises WaitTimeout after `timeout` (seconds, or like ``"10ms"``); the process is untouched.
        """
        return run(self._process.wait(timeout, acknowledge=acknowledge))

    def claim(self) -> None:
        """Claim its end, before it can be seen: nobody else in the session is told of it.

        Until a wait has shown it, the claim is let go of, or this program is gone.
        """
        run(self._process.claim())

    def release(self) -> None:
        """Let go of its end: the session is told of it by an event, if no wait has shown it."""
        run(self._process.release())

    @property
    def claimed(self) -> bool:
        """True while its end is this object's to show, as far as that is known here."""
        return self._process.claimed

    def wait_for(
        self, *conditions: Condition, all: bool = False, timeout: Duration | None = None
    ) -> Waited:
        """Wait until something holds: an open port, a line of output, an answer, silence, the end.

            ready = server.wait_for("port=3000", r"output=Ready on (\\d+)", timeout="60s")

        Conditions are ``exit``, ``input``, ``output=PATTERN``, ``port=3000``, ``http=URL``,
        ``file=PATH``, ``quiet=5s``, or tables like ``{"output": "Ready", "since": "start"}``. One
        is enough, unless `all`. Output counts from its start, and each match once: the same
        condition again goes on after it (with ``"since": "now"``, only what comes counts). Returns
        at once when the process ends first.
        """
        return run(self._process.wait_for(*conditions, all=all, timeout=timeout))

    def kill(self, *, signal: Signal = "TERM", grace: Duration | None = UNSET) -> Receipt:
        """Stop it with everything it started: politely, then, after the grace, by force.

        ``signal="KILL"`` is at once. On a process that has ended it does nothing, and says so. The
        receipt tells of the end, so the completion counts as delivered.
        """
        return run(self._process.kill(signal=signal, grace=grace))

    def signal(self, name: Signal) -> None:
        """Send just this signal to the process group."""
        run(self._process.signal(name))

    def clear(self) -> None:
        """Empty its log; offsets and line numbers go on from where they were."""
        run(self._process.clear())

    def remove(self) -> None:
        """Delete all traces of it; a running process is stopped first."""
        run(self._process.remove())


class SyncGroup:
    """`Group` for plain scripts: the same methods, without await.

    The processes of a session that were started with the same `group`. From `Client.group`.

    checks = hf.group("checks")
    for command in ("pytest -q", "ruff check .", "mypy src"):
        checks.spawn(command)
    checks.gather()  # one event, when the last of them has ended
    """

    @property
    def name(self) -> str:
        return self._group.name

    def __init__(self, group: Group) -> None:
        self._group = group

    def __repr__(self) -> str:
        return repr(self._group).replace(".", ".Sync", 1)

    def spawn(self, command: str | _List[str], **options: Any) -> SyncProcess:
        """`Client.spawn`, into this group."""
        return SyncProcess(run(self._group.spawn(command, **options)))

    def list(self) -> _List[SyncProcess]:
        """The processes of the group, running or finished, oldest first."""
        return [SyncProcess(each) for each in run(self._group.list())]

    def wait(self, timeout: Duration | None = None) -> _List[Exit]:
        """Wait until every one has ended, and see how; WaitTimeout leaves them running."""
        return run(self._group.wait(timeout))

    def wait_for(
        self, *conditions: Condition, all: bool = False, timeout: Duration | None = None
    ) -> Waited:
        """Wait as `Process.wait_for` does, for any of its processes or, with `all`, for each."""
        return run(self._group.wait_for(*conditions, all=all, timeout=timeout))

    def stop(self, *, signal: Signal = "TERM", grace: Duration | None = UNSET) -> _List[Receipt]:
        """Stop those that run, side by side, with everything they started."""
        return run(self._group.stop(signal=signal, grace=grace))

    def gather(self) -> _List[str]:
        """Be told of it as one: a single event when the last of those that now run has ended.

        Returns their handles. Ends of this group that nobody was told of yet are taken back, and
        told with the others. What is started later is told of by itself, unless gathered again.
        """
        return run(self._group.gather())


class SyncAgent:
    """`Agent` for plain scripts: the same methods, without await.

    One background agent, as one client sees it. From `register_agent`, `agent` or `agents`."""

    @property
    def record(self) -> AgentRecord:
        """All that was known of it at the last look; `refresh` looks again."""
        return self._agent.record

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __repr__(self) -> str:
        return repr(self._agent).replace(".", ".Sync", 1)

    @property
    def id(self) -> str:
        """The agent's name in the session."""
        return self._agent.id

    @property
    def status(self) -> Status:
        """The status at the last look: running, completed, failed, killed or lost."""
        return self._agent.status

    def refresh(self) -> AgentRecord:
        """Look again: the record as it stands now."""
        return run(self._agent.refresh())

    def done(self, success: bool = True) -> AgentRecord:
        """Say that the work is over; the session is told, with the end of its output file."""
        return run(self._agent.done(success))

    def stop(self) -> AgentRecord:
        """Ask whoever does the work to stop it, and wait until it has.

        A registrant that does not say so within a few seconds is not waited for: the agent is
        `killed` then, with the reason ``unconfirmed``.
        """
        return run(self._agent.stop())

    def stop_requested(self) -> bool:
        """Wait until somebody asks for its stop (True), or until it is over (False)."""
        return run(self._agent.stop_requested())

    def output(self, limit: int = 1 << 20) -> str:
        """Read its output file, at most the last `limit` bytes of it."""
        return run(self._agent.output(limit))
