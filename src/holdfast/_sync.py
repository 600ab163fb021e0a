"""The same client without asyncio, for plain scripts and the command line.

Every method runs the asynchronous one of the same name over a blocking link.
"""

from __future__ import annotations

from ._agents import Agent
from ._client import Client, checked_session
from ._config import UNSET, load_config_later
from ._group import Group
from ._link import BlockingLink, Greeting, run
from ._process import Process, Receipt, several

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from builtins import list as _List
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from typing import Any, Literal, TypeVar

    from ._agents import AgentRecord
    from ._config import Config
    from ._errors import StoreError
    from ._home import Home
    from ._left_behind import LeftBehind
    from ._model import Event, Exit, Record, Screen
    from ._output import Output
    from ._search import Found
    from ._store import Store
    from ._usage import Usage, UsageHistory
    from ._view import View
    from ._wait_for import Waited

    T = TypeVar("T")


def _iterate(items: AsyncIterator[T]) -> Iterator[T]:
    async def following() -> T:
        return await items.__anext__()

    try:
        while True:
            try:
                yield run(following())
            except StopAsyncIteration:
                return
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            run(close())


class SyncClient:
    """`Client` for plain scripts: the same methods, without await.

    with holdfast.connect(session="release-42") as hf:
        build = hf.spawn("make -j8", label="build")
        print(build.wait().describe())
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def __repr__(self) -> str:
        return f"<holdfast.SyncClient session={self.session!r} home={self.home.path!r}>"

    @property
    def session(self) -> str | None:
        return self._client.session

    @property
    def home(self) -> Home:
        return self._client.home

    @property
    def store(self) -> Store:
        return self._client.store

    @property
    def config(self) -> Config:
        return self._client.config

    def spawn(
        self,
        command: str | list[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        label: str = "",
        group: str = "",
        timeout: Any = UNSET,
        grace: Any = UNSET,
        tty: bool = False,
        tmux: bool = False,
        size: Any = UNSET,
        stdin: bool = False,
        stderr: Literal["merged", "separate"] = "merged",
        keep: bool = False,
        log_cap: Any = UNSET,
        log_limit: Any = UNSET,
        memory: Any = UNSET,
        cpu: Any = UNSET,
        processes: Any = UNSET,
        files: Any = UNSET,
        sandbox: bool | Mapping[str, Any] = False,
        docker: Any = None,
        ports: Sequence[str | int] = (),
        check: Any = None,
        yield_ms: int | None = None,
        watch: Any = (),
        retention: Any = UNSET,
        max_running: Any = UNSET,
        handle: str | None = None,
    ) -> SyncProcess:
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
                    retention=retention,
                    max_running=max_running,
                    handle=handle,
                )
            )
        )

    def get(self, handle: str) -> SyncProcess:
        return SyncProcess(run(self._client.get(handle)))

    def list(self, *, group: str | None = None, ended: bool = True) -> _List[SyncProcess]:
        found = run(self._client.list(group=group, ended=ended))
        return [SyncProcess(process) for process in found]

    def group(self, name: str) -> SyncGroup:
        return SyncGroup(self._client.group(name))

    def problems(self) -> _List[StoreError]:
        return self._client.problems()

    def wait_for(
        self,
        processes: SyncProcess | Sequence[SyncProcess],
        *conditions: Any,
        all: bool = False,
        timeout: Any = None,
    ) -> Waited:
        asynchronous = [process._process for process in several(processes, SyncProcess)]
        return run(self._client.wait_for(asynchronous, *conditions, all=all, timeout=timeout))

    def lease(self, grace: Any) -> None:
        run(self._client.lease(grace))

    def left_behind(self) -> _List[LeftBehind]:
        return run(self._client.left_behind())

    def adopt(self, session: str) -> _List[SyncProcess]:
        return [SyncProcess(process) for process in run(self._client.adopt(session))]

    def stop_all(self, *, signal: str | int = "TERM", grace: Any = UNSET) -> _List[Receipt]:
        return run(self._client.stop_all(signal=signal, grace=grace))

    def events(
        self, *, after: int = 0, follow: bool = False, acknowledged: bool = False
    ) -> Iterator[Event]:
        return _iterate(self._client.events(after=after, follow=follow, acknowledged=acknowledged))

    def acknowledge(self, *events: Event) -> None:
        run(self._client.acknowledge(*events))

    def claim(self, *events: Event) -> _List[Event]:
        return run(self._client.claim(*events))

    def register_agent(
        self,
        id: str,
        type: str,
        output_file: str | os.PathLike[str] | None = None,
        *,
        task: Any = None,
        on_stop: Callable[[], Any] | None = None,
    ) -> SyncAgent:
        return SyncAgent(
            run(self._client.register_agent(id, type, output_file, task=task, on_stop=on_stop))
        )

    def agent(self, id: str) -> SyncAgent:
        return SyncAgent(run(self._client.agent(id)))

    def agents(self) -> _List[SyncAgent]:
        return [SyncAgent(agent) for agent in run(self._client.agents())]

    def keeper_status(self) -> dict[str, Any]:
        return run(self._client.keeper_status())

    def keeper_stop(self, *, kill: bool = False) -> None:
        run(self._client.keeper_stop(kill=kill))

    def keeper_restart(self) -> dict[str, Any]:
        return run(self._client.keeper_restart())

    def end_session(self) -> _List[Receipt]:
        return run(self._client.end_session())

    def close(self) -> None:
        run(self._client.close())


class SyncProcess:
    """`Process` for plain scripts: the same methods, without await."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def handle(self) -> str:
        return self._process.handle

    @property
    def record(self) -> Record:
        return self._process.record

    def __repr__(self) -> str:
        return repr(self._process)

    @property
    def ports(self) -> dict[str, int]:
        return self._process.ports

    def exec(
        self,
        command: str | list[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        user: str | None = None,
        **options: Any,
    ) -> SyncProcess:
        return SyncProcess(run(self._process.exec(command, cwd=cwd, user=user, **options)))

    def refresh(self) -> Record:
        return run(self._process.refresh())

    def read(
        self, *, reader: str = "default", limit: int = 65536, stream: str = "stdout"
    ) -> Output:
        return run(self._process.read(reader=reader, limit=limit, stream=stream))

    def read_at(self, offset: int, limit: int = 65536, *, stream: str = "stdout") -> Output:
        return run(self._process.read_at(offset, limit, stream=stream))

    def lines(self, first: int, count: int, *, stream: str = "stdout") -> Output:
        return run(self._process.lines(first, count, stream=stream))

    def tail(self, n: int = 50, *, stream: str = "stdout") -> Output:
        return run(self._process.tail(n, stream=stream))

    def tail_bytes(self, n: int, *, stream: str = "stdout") -> Output:
        return run(self._process.tail_bytes(n, stream=stream))

    def view(
        self,
        *,
        budget: int = 10_000,
        start: int | None = None,
        end: int | None = None,
        stream: str | None = None,
    ) -> View:
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
        timeout: float = 2.0,
        budget: int = 10_000,
        stream: str | None = None,
    ) -> Found:
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

    def usage(self, *, interval: float = 0.0) -> Usage:
        return run(self._process.usage(interval=interval))

    def usage_history(self) -> UsageHistory:
        return self._process.usage_history()

    def follow(self, *, offset: int | None = None, stream: str = "stdout") -> Iterator[Output]:
        return _iterate(self._process.follow(offset=offset, stream=stream))

    @property
    def early(self) -> str:
        return self._process.early

    @property
    def backgrounded(self) -> bool:
        return self._process.backgrounded

    @property
    def attach_command(self) -> str | None:
        return self._process.attach_command

    def send(
        self,
        data: str | bytes,
        *,
        enter: bool = False,
        paste: bool = False,
        eof: bool = False,
        timeout: float = 5.0,
    ) -> int:
        return run(self._process.send(data, enter=enter, paste=paste, eof=eof, timeout=timeout))

    def watch(self, condition: Any) -> str:
        return run(self._process.watch(condition))

    def unwatch(self, name: str) -> None:
        run(self._process.unwatch(name))

    def keys(self, *names: str) -> None:
        run(self._process.keys(*names))

    def screen(self, *, colours: bool = False) -> Screen:
        return run(self._process.screen(colours=colours))

    def resize(self, columns: int, rows: int) -> None:
        run(self._process.resize(columns, rows))

    def wait(self, timeout: float | None = None) -> Exit:
        return run(self._process.wait(timeout))

    def wait_for(self, *conditions: Any, all: bool = False, timeout: Any = None) -> Waited:
        return run(self._process.wait_for(*conditions, all=all, timeout=timeout))

    def kill(self, *, signal: str | int = "TERM", grace: Any = UNSET) -> Receipt:
        return run(self._process.kill(signal=signal, grace=grace))

    def signal(self, name: str | int) -> None:
        run(self._process.signal(name))

    def clear(self) -> None:
        run(self._process.clear())

    def remove(self) -> None:
        run(self._process.remove())


class SyncGroup:
    """`Group` for plain scripts: the same methods, without await."""

    def __init__(self, group: Group) -> None:
        self._group = group

    @property
    def name(self) -> str:
        return self._group.name

    def __repr__(self) -> str:
        return repr(self._group)

    def spawn(self, command: str | _List[str], **options: Any) -> SyncProcess:
        return SyncProcess(run(self._group.spawn(command, **options)))

    def list(self) -> _List[SyncProcess]:
        return [SyncProcess(process) for process in run(self._group.list())]

    def wait(self, timeout: float | None = None) -> _List[Exit]:
        return run(self._group.wait(timeout))

    def wait_for(self, *conditions: Any, all: bool = False, timeout: Any = None) -> Waited:
        return run(self._group.wait_for(*conditions, all=all, timeout=timeout))

    def stop(self, *, signal: str | int = "TERM", grace: Any = UNSET) -> _List[Receipt]:
        return run(self._group.stop(signal=signal, grace=grace))

    def gather(self) -> _List[str]:
        return run(self._group.gather())


class SyncAgent:
    """`Agent` for plain scripts: the same methods, without await."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @property
    def record(self) -> AgentRecord:
        return self._agent.record

    @property
    def id(self) -> str:
        return self._agent.id

    @property
    def status(self) -> str:
        return self._agent.status

    def __repr__(self) -> str:
        return repr(self._agent)

    def refresh(self) -> AgentRecord:
        return run(self._agent.refresh())

    def done(self, success: bool = True) -> AgentRecord:
        return run(self._agent.done(success))

    def stop(self) -> AgentRecord:
        return run(self._agent.stop())

    def stop_requested(self) -> bool:
        return run(self._agent.stop_requested())

    def output(self, limit: int = 1 << 20) -> str:
        return run(self._agent.output(limit))


def open_client(home: Home, session: str | None) -> SyncClient:
    """A client that holds no lease. Without a session it is a person, who sees every session."""
    home.exists()  # refuses a home that is not ours before anything in it is believed
    config = load_config_later(home)
    link = BlockingLink(home, Greeting(checked_session(session), None), config.keeper_idle)
    return SyncClient(Client(home, link, session, config))


def _borrow_docs(ours: type, theirs: type) -> None:
    for name, method in vars(ours).items():
        text = getattr(getattr(theirs, name, None), "__doc__", None)
        if callable(method) and not method.__doc__ and text:
            method.__doc__ = text.replace("await ", "").replace("async for", "for")


_borrow_docs(SyncClient, Client)
_borrow_docs(SyncProcess, Process)
_borrow_docs(SyncGroup, Group)
_borrow_docs(SyncAgent, Agent)
