"""What every test gets: a home of its own, and a check that nothing of the test is left."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from holdfast import SyncClient, SyncProcess, connect
from holdfast._home import Home
from holdfast._kernel import all_processes, mark_of, stat
from holdfast._store import Store
from holdfast.testing import end_keeper, wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests import docker_engine
    from tests.docker_engine import Engine
else:
    import docker_engine
    from docker_engine import Engine

CHILDREN = Path(__file__).parent / "children"

# In CI the same examples each time: a new one that fails is found at somebody's desk.
settings.register_profile("ci", derandomize=True, deadline=None)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")


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
    try:
        child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    assert child is None, f"a child was not reaped: {child}"


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
    # The lock of a Docker engine is held by the whole run.
    passed = ("/proc/", f"{docker_engine.PLACE}/{docker_engine.PREFIX}")
    return {fd: what for fd, what in found.items() if not what.startswith(passed)}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A fresh home, in HOLDFAST_HOME; afterwards its processes and its keeper must be gone."""
    path = str(tmp_path / "home")
    for name in list(os.environ):
        if name.startswith("HOLDFAST_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOLDFAST_HOME", path)
    yield path
    handles = set(Store(Home(path)).handles())
    end_keeper(path)
    _no_survivors(handles)
    docker_engine.no_containers(path)


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
        wait_until(lambda: not survivors(), timeout=5)
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
def hf(home: str) -> Iterator[SyncClient]:
    """A client that holds the session ``"test"``."""
    with connect(session="test") as client:
        yield client


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
