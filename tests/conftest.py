"""What every test gets: a home, a session, and a check that nothing of the test is left.

Tests marked `shared_keeper` share a home and its keeper with all others of their pytest process
that are marked so. Each has a session of its own (the fixture `session`) and finds the home as an
empty one: its processes are gone afterwards, their records too, and no event waits. What kills,
restarts or damages a keeper, or looks at a whole home's past, has a home to itself: the default,
and `own_keeper` says so inside a marked file.

Whatever the suite was started from, its tests begin alike: ignored or blocked signals are put back,
and so is the umask; the programs they start find compiled modules, and a $HOME without anybody's
profile, which a login shell may take a minute to read.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from holdfast import HoldfastError, SyncClient, SyncProcess, connect
from holdfast.client.connect import open_client
from holdfast.client.link import run
from holdfast.core.home import Home
from holdfast.core.store import Store
from holdfast.linux.kernel import all_processes, mark_of, stat
from holdfast.testing import end_keeper, wait_until
from tests import docker_engine
from tests.docker_engine import Engine

CHILDREN = Path(__file__).parent / "children"

# In CI the same examples each time: a new one that fails is found at somebody's desk.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """Begin as if a person had typed it: a background job ignores SIGINT, one of nohup SIGHUP.

    A handler that does nothing is as good as ignoring for us, but is not handed down to programs.
    """
    os.umask(0o022)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    user = os.path.expanduser("~")  # not in /tmp, of which sandboxes have their own
    os.environ["HOME"] = tempfile.mkdtemp(
        prefix=".holdfast-tests-", dir=user if os.access(user, os.W_OK) else None
    )
    config.add_cleanup(partial(shutil.rmtree, os.environ["HOME"], ignore_errors=True))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # which Python ignores
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _HANDLERS.get(number, _nothing))


def _nothing(*_: object) -> None:
    return


_HANDLERS: dict[int, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGCHLD: signal.SIG_DFL,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: a run does not end in one test that the others wait for."""
    items.sort(key=_weight, reverse=True)


def _weight(item: pytest.Item) -> float:
    marker = item.get_closest_marker("weight")
    return 0.0 if marker is None else float(marker.args[0])


@pytest.fixture
def port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """A test that leaves a descriptor or a child of its own behind has failed."""
    before = _descriptors()
    yield
    left = {fd: what for fd, what in _descriptors().items() if before.get(fd) != what}
    if left:
        gc.collect()  # a process that a caught exception's frames still hold has its log open
        left = {fd: what for fd, what in _descriptors().items() if before.get(fd) != what}
    assert not left, f"descriptors left open: {left}"
    children = []
    with suppress(ChildProcessError):
        while child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG):
            children.append(child)  # and reaped: the next test is not to suffer from this one
    assert not children, f"children were not reaped: {children}"


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
    # The lock of a Docker engine is held by the whole run.
    passed = ("/proc/", f"{docker_engine.PLACE}/{docker_engine.PREFIX}")
    return {
        fd: what
        for fd, what in found.items()
        if not what.startswith(passed) and not _is_place_of_home(fd, what)
    }


def _is_place_of_home(fd: str, what: str) -> bool:
    """A home with a long name is held by a descriptor as long as somebody knows it."""
    if not os.path.exists(f"{what}/keeper.lock"):
        return False
    with suppress(FileNotFoundError), open(f"/proc/self/fdinfo/{fd}") as file:
        flags = next(line.split()[1] for line in file if line.startswith("flags:"))
        return bool(int(flags, 8) & os.O_PATH)
    return False


_OF_A_KEEPER = {
    *("keeper.lock", "keeper.log", "keeper.log.old", "keeper.sock", "tmux.sock", "tmux.sock.lock"),
    *("processes", "active", "ended", "sessions"),
}


class SharedKeeper:
    """The home that the tests of this process share, with its keeper."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._homes: list[Home] = []
        self._numbers = itertools.count(1)
        self._halves: tuple[int, int] | None = None
        self._said = 0
        self._move()

    def _move(self) -> None:
        self._homes.append(Home(str(self._place / f"shared-{len(self._homes)}")).ensure())

    @property
    def home(self) -> Home:
        return self._homes[-1]

    def next_session(self) -> str:
        return f"test-{next(self._numbers)}"

    def begin(self) -> None:
        """Have a keeper, and remember which; one that had nothing to do for long has gone."""
        with self._client() as client:
            self._halves = _halves(client)
        self._said = os.stat(self.home.keeper_log).st_size

    def settle(self) -> None:
        """End what a test left, forget it, and see that the next test finds what this one found."""
        try:
            handles = set(Store(self.home).handles())
            with self._client() as client:
                assert _halves(client) == self._halves, "the keeper was replaced: own_keeper"
                if handles:
                    run(client._client._link.call("stop_all", {"signal": "KILL", "grace": 0}))
                for process in client.list():
                    process.remove()
                client.acknowledge(*client.events())
            shutil.rmtree(self.home.hooks, ignore_errors=True)
            _no_survivors(handles)
            docker_engine.no_containers(self.home.path)
            left = [name for name in os.listdir(self.home.processes) if "spare." not in name]
            left += set(os.listdir(self.home.path)) - _OF_A_KEEPER
            left += os.listdir(self.home.active) + os.listdir(self.home.ended)
            assert not left, f"the test left something in the home it shares: {left}"
            self._check_journal()
        except BaseException:
            self._move()  # the next test is not to suffer from this one
            raise

    def end(self) -> None:
        for home in self._homes:
            end_keeper(home.path)

    @contextmanager
    def _client(self) -> Iterator[SyncClient]:
        os.environ["HOLDFAST_KEEPER_IDLE"] = "10m"  # of a keeper that has to be started for it
        try:
            client = open_client(self.home, None)
        finally:
            del os.environ["HOLDFAST_KEEPER_IDLE"]
        try:
            yield client
        finally:
            client.close()

    def _check_journal(self) -> None:
        """A keeper that fails has failed, though nobody may have noticed."""
        with open(self.home.keeper_log, "rb") as file:
            file.seek(self._said)
            said = file.read().decode(errors="replace")
        assert "Traceback" not in said, said


def _halves(client: SyncClient) -> tuple[int, int]:
    status = run(client._client._link.call("status", {}))
    return status["guard"], status["worker"]


@pytest.fixture(scope="session")
def shared_keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedKeeper]:
    shared = SharedKeeper(tmp_path_factory.getbasetemp())
    yield shared
    shared.end()


def _shares(request: pytest.FixtureRequest) -> bool:
    node = request.node
    if node.get_closest_marker("own_keeper") or "kill_both" in request.fixturenames:
        return False
    return node.get_closest_marker("shared_keeper") is not None


@pytest.fixture
def home(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A home with nothing in it, in HOLDFAST_HOME; afterwards its processes must be gone.

    It is a fresh one, whose keeper must be gone too, unless the test is marked `shared_keeper`.
    """
    for name in list(os.environ):
        if name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)
    if _shares(request):
        shared: SharedKeeper = request.getfixturevalue("shared_keeper")
        monkeypatch.setenv("HOLDFAST_HOME", shared.home.path)
        shared.begin()
        yield shared.home.path
        shared.settle()
        return
    path = str(tmp_path / "home")
    monkeypatch.setenv("HOLDFAST_HOME", path)
    yield path
    handles = set(Store(Home(path)).handles())
    end_keeper(path)
    _no_survivors(handles)
    docker_engine.no_containers(path)


@pytest.fixture
def session(request: pytest.FixtureRequest, home: str) -> str:
    """The name of the test's own session."""
    if not _shares(request):
        return "test"
    shared: SharedKeeper = request.getfixturevalue("shared_keeper")
    return shared.next_session()


def _no_survivors(handles: set[str]) -> None:
    def survivors() -> list[int]:
        return [
            process.pid
            for process in all_processes()
            if process.state not in "ZX" and mark_of(process.pid) in handles
        ]

    if not handles:
        return
    try:
        wait_until(lambda: not survivors())
    except AssertionError:
        left = survivors()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"processes of the test survived it: {left}") from None


@pytest.fixture(scope="session")
def shared_engine(testrun_uid: str) -> Iterator[Engine]:
    """The Docker engine of this test run, in all of its workers."""
    with docker_engine.use_or_skip(docker_engine.key_of(testrun_uid)) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A Docker engine, in DOCKER_HOST. Other tests use it meanwhile: leave it running."""
    monkeypatch.setenv("DOCKER_HOST", shared_engine.host)
    return shared_engine


@pytest.fixture(scope="module")
def module_engine() -> Iterator[Engine]:
    with docker_engine.use_or_skip(docker_engine.new_key()) as engine:
        yield engine
    docker_engine.sweep()


@pytest.fixture
def own_engine(module_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A Docker engine that a test may stop and start, in DOCKER_HOST; it outlives the home."""
    monkeypatch.setenv("DOCKER_HOST", module_engine.host)
    module_engine.start()
    yield module_engine
    module_engine.start()


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # all workers have ended
        docker_engine.sweep()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory to work in, which is the working directory meanwhile."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def hf(session: str) -> Iterator[SyncClient]:
    """A client that holds the test's own session."""
    with connect(session=session) as client:
        yield client
        end_at_once(client)


def end_at_once(client: SyncClient) -> None:
    """Spare what a test left running its grace: closing a session would wait for it."""
    with suppress(HoldfastError):
        client.stop_all(grace=0)


@pytest.fixture
def child() -> Callable[..., list[str]]:
    """The command line of a program in ``tests/children``."""

    def command(name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-IS", str(CHILDREN / f"{name}.py"), *arguments]

    return command


class Gate:
    """A FIFO that processes wait at (``: < path``) until the test opens it, for good."""

    def __init__(self, path: str) -> None:
        os.mkfifo(path)
        self.path = path
        self._fd = -1

    def open(self) -> None:
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_RDWR)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


@pytest.fixture
def gate(no_leaks: None, tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(str(tmp_path / "gate"))
    yield gate
    gate.close()


@pytest.fixture
def ready() -> Callable[[SyncProcess], SyncProcess]:
    """Wait until one of the children says that it is ready."""

    def wait(process: SyncProcess) -> SyncProcess:
        wait_until(
            lambda: "ready\n" in process.read_at(0).text.replace("\r", ""), what=f"{process} ready"
        )
        return process

    return wait


@pytest.fixture
def kill_both() -> Callable[[SyncClient], None]:
    """kill -9 both halves of the keeper at one moment: stopped first, neither sees the other go."""

    def kill(hf: SyncClient) -> None:
        status = hf.keeper_status()
        pids = [status["guard"], status["worker"]]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
        wait_until(lambda: not any(_alive(pid) for pid in pids))

    return kill


def _alive(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found.state not in "ZX"
