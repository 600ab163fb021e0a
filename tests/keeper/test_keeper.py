"""The keeper itself: one per home, found by all, small, gone when there is nothing to keep."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import holdfast
from holdfast import KeeperError, SyncClient, connect
from holdfast.client.connect import open_client
from holdfast.client.find_keeper import try_connect
from holdfast.client.link import Greeting
from holdfast.client.link_asyncio import AsyncioLink
from holdfast.core.home import Home, open_private
from holdfast.core.machine import machine
from holdfast.core.programs import keeper_program
from holdfast.core.wire import PROTOCOL
from holdfast.linux.kernel import all_processes
from holdfast.testing import end_keeper, wait_until
from tests.proc_files import proc_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tests.conftest import Gate

FAKETIME = [
    f"/usr/lib/{machine}/faketime/libfaketime.so.1"
    for machine in ("x86_64-linux-gnu", "aarch64-linux-gnu")
] + ["/usr/lib/faketime/libfaketime.so.1", "/usr/lib64/faketime/libfaketime.so.1"]
PACKAGE = str(Path(holdfast.__file__).parent)
NOBODY = 65534


def keepers(home: str) -> list[int]:
    """The pids of every keeper process of a home."""
    found = []
    for process in all_processes():
        arguments = proc_file(process.pid, "cmdline").split(b"\0")
        if home.encode() in arguments and process.state not in "ZX":
            found.append(process.pid)
    return found


def gone(home: str) -> bool:
    """True when nobody holds the home's lock."""
    try:
        lock = os.open(Home(home).lock, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(lock)


# -- one keeper ------------------------------------------------------------------------------------


def test_eight_clients_that_start_at_once_share_one_keeper(home: str) -> None:
    """Whoever comes first starts it; the others find it."""
    program = (
        "import holdfast, sys\n"
        "sys.stdin.readline()\n"
        "with holdfast.connect() as hf:\n"
        "    code = hf.spawn('exit 4').wait(60).code\n"
        "    print(hf.keeper_status()['guard'], code, flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for _ in range(8)
    ]
    answers = set()
    try:
        for client in clients:
            assert client.stdin is not None
            client.stdin.write("go\n")
        for client in clients:
            assert client.stdout is not None
            answers.add(client.stdout.readline())
        assert len(keepers(home)) == 2, "a guard and a worker"
    finally:
        for client in clients:
            client.communicate("done\n", timeout=60)
    assert len(answers) == 1
    guard, code = answers.pop().split()
    assert code == "4"
    assert int(guard) in keepers(home)


def test_a_socket_left_by_a_dead_keeper_is_no_obstacle(
    hf: SyncClient, home: str, kill_both: Callable[[SyncClient], None]
) -> None:
    """After both halves died their socket is still there; the next call starts a keeper anew."""
    status = hf.keeper_status()
    kill_both(hf)
    assert os.path.exists(Home(home).socket)
    assert hf.spawn("exit 4").wait(30).code == 4
    assert hf.keeper_status()["guard"] != status["guard"]


def test_a_deep_home_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 108 bytes of a socket's address are no limit for the home."""
    deep = tmp_path / ("d" * 100) / ("e" * 100) / "home"
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    try:
        for _ in range(3):
            with connect(home=deep, session="deep") as hf:
                assert hf.spawn("echo here; exit 4").wait(30).code == 4
                assert hf.keeper_status()["running"]
                assert hf.list()[-1].tail().text == "here\n"
    finally:
        end_keeper(str(deep))


def test_a_keeper_with_nothing_to_keep_goes(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody connected and nothing running for the idle time: no keeper, no socket."""
    monkeypatch.setenv("HOLDFAST_KEEPER_IDLE", "0.2")
    with connect(session="test") as hf:
        hf.spawn("exit 4").wait(30)
        assert len(keepers(home)) == 2
    wait_until(lambda: gone(home) and not keepers(home))
    assert not os.path.exists(Home(home).socket)
    person = open_client(Home(home), None)
    assert person.keeper_status() == {"running": False}
    assert [process.record.exit_code for process in person.list()] == [4]
    assert person.spawn("exit 5").wait(30).code == 5, "the next call starts the next"
    person.close()


def test_a_keeper_with_something_to_keep_stays(
    home: str, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    """A running process holds the keeper past its idle time; its end is exact, and then it goes."""
    monkeypatch.setenv("HOLDFAST_KEEPER_IDLE", "0.1")
    with connect(session="test") as hf:
        process = hf.spawn(f"sleep 0.5; : < {gate.path}; exit 5", keep=True)
        guard = hf.keeper_status()["guard"]
    record = process.record
    wait_until(lambda: (record.elapsed() or 0) > 0.5)
    gate.open()
    wait_until(lambda: gone(home))
    person = open_client(Home(home), None)
    assert person.get(process.handle).record.exit_code == 5
    person.close()
    assert guard not in keepers(home)


def test_stop_is_refused_while_something_runs_unless_it_is_to_be_killed(hf: SyncClient) -> None:
    """A keeper is not taken from under running processes by accident."""
    process = hf.spawn("sleep 1000")
    with pytest.raises(KeeperError, match="running processes"):
        hf.keeper_stop()
    assert process.refresh().running
    hf.keeper_stop(kill=True)
    assert process.refresh().status == "killed"
    assert hf.keeper_status() == {"running": False}
    hf.keeper_stop()


# -- small and clean -------------------------------------------------------------------------------


def test_the_keeper_loads_nothing_but_the_standard_library() -> None:
    """Importing every module of the keeper brings in no third-party module."""
    program = (
        "import json, os, runpy, sys\n"
        "before = set(sys.modules)\n"
        "package = sys.argv[1]\n"
        "runpy.run_path(package + '/keeper/__main__.py', run_name='imported')\n"
        "import importlib\n"
        "for name in sorted(os.listdir(package + '/keeper')):\n"
        "    if name.endswith('.py') and name != '__main__.py':\n"
        "        importlib.import_module('holdfast.keeper.' + name[:-3])\n"
        "print(json.dumps(sorted({n.partition('.')[0] for n in set(sys.modules) - before})))\n"
    )
    # With site-packages at hand, so that an import of something third-party would succeed.
    done = subprocess.run(
        [sys.executable, "-c", program, PACKAGE], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert "holdfast" in loaded
    assert loaded - {"holdfast"} <= sys.stdlib_module_names
    assert "-I" in keeper_program()
    assert "-S" in keeper_program()


def test_guard_and_worker_stay_small(hf: SyncClient) -> None:
    """Both halves together need less than 30 MiB, after they have worked for a while too."""
    assert 1 << 20 < hf.keeper_status()["memory_bytes"] < 30 << 20
    for n in range(40):
        hf.spawn(f"seq 10000; exit {n}").wait(30)
    os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
    hf.spawn("true").wait(30)
    assert hf.keeper_status()["memory_bytes"] < 30 << 20


def test_many_processes_leave_no_zombie_and_no_descriptor(
    hf: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a hundred starts and ends, half with orphans, the keeper is as it was before."""
    hf.spawn("true", stdin=True, stderr="separate").wait(30)

    def held() -> list[int]:
        status = hf.keeper_status()
        return [len(os.listdir(f"/proc/{status[half]}/fd")) for half in ("guard", "worker")]

    def zombies() -> list[int]:
        status = hf.keeper_status()
        parents = {status["guard"], status["worker"]}
        return [
            process.pid
            for process in all_processes()
            if process.parent in parents and process.state == "Z"
        ]

    before = wait_until(lambda: held())
    for n in range(100):
        command = "(sleep 0.01 &) ; exit 1" if n % 2 else "exit 1"
        assert hf.spawn(command, stdin=n % 3 == 0, stderr="separate").wait(30).code == 1
    wait_until(lambda: held() <= before, what="the descriptors are let go")
    wait_until(lambda: not zombies(), what="every orphan is reaped")


def test_the_keeper_keeps_nothing_of_who_started_it(home: str, tmp_path: Path) -> None:
    """Directory, environment, terminal, signals and umask of the first caller stay its own."""
    program = (
        "import holdfast, os, signal\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])\n"
        "os.umask(0)\n"
        "from holdfast.client.connect import open_client\n"
        "from holdfast.core.home import Home\n"
        "print(open_client(Home.locate(), None).keeper_restart()['guard'])\n"
    )
    secret = {**os.environ, "SECRET_TOKEN": "hush", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=secret, cwd=tmp_path, capture_output=True, check=True
    )
    guard = int(done.stdout)
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{guard}/status").read_text().splitlines()
    )
    assert os.readlink(f"/proc/{guard}/cwd") == "/"
    assert b"hush" not in Path(f"/proc/{guard}/environ").read_bytes()
    assert int(status["Umask"], 8) == 0o077
    assert int(status["SigBlk"], 16) == 0
    assert not int(status["SigIgn"], 16) & 1 << signal.SIGHUP - 1
    assert os.getsid(guard) == guard
    assert Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[4] == "0", "no tty"
    with connect(session="test") as hf:
        process = hf.spawn(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
        process.wait(30)
        blocked, ignored = (int(line.split()[1], 16) for line in process.tail().text.splitlines())
        assert (blocked, ignored & ~(0b11 << 31)) == (0, 0)


# -- who may speak to it ---------------------------------------------------------------------------


class Raw:
    """A connection that speaks the protocol by hand."""

    def __init__(self, home: str) -> None:
        end = try_connect(Home(home))
        assert end is not None
        self._socket = end
        self._socket.settimeout(30)
        self._file = end.makefile("rb")

    def send(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        line = self._file.readline()
        answer: dict[str, Any] = json.loads(line) if line else {}
        return answer

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def raw(hf: SyncClient, home: str) -> Iterator[Raw]:
    connection = Raw(home)
    yield connection
    connection.close()


def test_another_protocol_is_told_the_way_out(raw: Raw, hf: SyncClient) -> None:
    """A client of another version hears what both are and what to do, and can do just that."""
    raw.send(hello=99, version="9.9.9", client="x", session=None, lease=None, machine=machine())
    error = raw.receive()["error"]
    assert error["code"] == "keeper"
    for word in ("9.9.9", holdfast.__version__, "holdfast keeper restart", "99"):
        assert word in error["message"]
    raw.send(id=1, verb="status")
    assert raw.receive()["ok"]["running"]
    raw.send(id=2, verb="stop_all", grace=None)
    assert raw.receive()["error"]["code"] == "keeper", "nothing else may be asked"
    before = hf.keeper_status()
    raw.send(id=3, verb="restart", program=keeper_program())
    assert raw.receive()["ok"] == {}
    wait_until(lambda: hf.keeper_status()["worker"] != before["worker"])


def test_a_keeper_of_another_version_is_an_error_with_the_way_out(home: str) -> None:
    """A client that meets such a keeper raises, naming both versions and the command to run."""
    place = Home(home).ensure()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(place.socket)
    listener.listen()
    pid = os.fork()
    if pid == 0:
        try:
            for _ in range(2):
                end, _ = listener.accept()
                end.recv(65536)
                end.sendall(b'{"hello": 7, "version": "7.0.0", "guard": 1, "worker": 1}\n')
                end.recv(65536)
        finally:
            os._exit(0)
    listener.close()
    try:
        with pytest.raises(KeeperError, match="holdfast keeper restart") as raised:
            open_client(place, "test").spawn("true")
        assert "7.0.0" in str(raised.value)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.unlink(place.socket)


def test_a_keeper_of_another_version_can_be_restarted_and_stopped(
    hf: SyncClient, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of another protocol gets no more than status, restart and stop; but these."""
    process = hf.spawn("sleep 1000")
    monkeypatch.setattr("holdfast.core.wire.PROTOCOL", 99)
    newer = open_client(Home(home), None)
    before = newer.keeper_status()
    assert before["processes"] == 1
    with pytest.raises(KeeperError, match="holdfast keeper restart"):
        newer.spawn("true")
    assert newer.keeper_restart()["worker"] != before["worker"]
    with pytest.raises(KeeperError, match="holdfast keeper restart"):
        newer.get(process.handle).kill()
    newer.close()
    monkeypatch.setattr("holdfast.core.wire.PROTOCOL", PROTOCOL)
    assert process.refresh().running
    process.kill()


@pytest.mark.anyio
async def test_so_it_can_from_asyncio(hf: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same over the other kind of connection, whatever is asked for first."""
    hf.spawn("true").wait(30)
    before = hf.keeper_status()
    monkeypatch.setattr("holdfast.core.wire.PROTOCOL", 99)
    link = AsyncioLink(hf.home, Greeting(None, None), 60.0)
    with pytest.raises(KeeperError, match="holdfast keeper restart"):
        await link.call("stop_all", {"signal": "TERM", "grace": None})
    assert (await link.call("status", {}))["worker"] == before["worker"]
    await link.call("restart", {"program": keeper_program()})
    while (await link.call("status", {}))["worker"] == before["worker"]:
        await asyncio.sleep(0.01)
    with pytest.raises(KeeperError, match="holdfast keeper restart"):
        await link.call("stop_all", {"signal": "TERM", "grace": None})
    await link.close()
    monkeypatch.setattr("holdfast.core.wire.PROTOCOL", PROTOCOL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_refused(hf: SyncClient, home: str) -> None:
    """Even if directory and socket were open to all, only the owner is spoken to."""
    os.chmod(home, 0o711)
    os.chmod(Home(home).socket, 0o666)
    program = (
        "import json, os, socket, sys\n"
        "os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"
        "end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)\n"
        "end.settimeout(30)\n"
        "end.connect('keeper.sock')\n"
        "try:\n"
        "    end.sendall(sys.argv[2].encode() + b'\\n')\n"
        "    print('answer', end.recv(100))\n"
        "except (ConnectionResetError, BrokenPipeError):\n"
        "    print('answer', b'')\n"
    )
    hello = json.dumps(
        {
            "hello": 1,
            "version": holdfast.__version__,
            "client": "x",
            "session": None,
            "lease": None,
            "machine": machine(),
        }
    )
    done = subprocess.run(
        [sys.executable, "-IS", "-c", program, str(NOBODY), hello],
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "answer b''\n"
    wait_until(lambda: f"uid {NOBODY}" in Path(Home(home).keeper_log).read_text())
    assert hf.spawn("exit 4").wait(30).code == 4


# -- the wall clock --------------------------------------------------------------------------------


@pytest.fixture
def moved(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A keeper whose wall clock is what the file says, in the words of libfaketime."""
    library = next((path for path in FAKETIME if os.path.exists(path)), None)
    if library is None:
        if os.environ.get("CI") == "true":
            pytest.fail("libfaketime is missing; install the package faketime")
        pytest.skip("libfaketime is missing; install the package faketime")
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    place = Home(home).ensure()
    lock = open_private(place.lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    subprocess.run(
        [*keeper_program(), "start", place.path, str(lock), "60"],
        env={
            "PATH": os.environ["PATH"],
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        },
        pass_fds=[lock],
        check=True,
    )
    os.close(lock)
    monkeypatch.setenv("HOLDFAST_RETENTION", "7d")
    return clock


@pytest.mark.parametrize("jump", [1, -1], ids=["forward", "back"])
def test_a_wall_clock_that_jumps_a_day_moves_no_deadline_and_no_duration(
    moved: Path, gate: Gate, home: str, jump: int
) -> None:
    """Deadlines and durations are counted on a clock that nobody can set."""
    with connect(session="test") as hf:
        late = hf.spawn("sleep 1000", timeout=1.0)
        waiting = hf.spawn(f": < {gate.path}; exit 5", timeout=60)
        moved.write_text(f"{jump:+d}d\n")
        end = late.wait(30)
        assert end.status == "timed_out"
        assert end.duration_seconds is not None
        assert 1.0 <= end.duration_seconds < 15
        assert waiting.refresh().running
        gate.open()
        end = waiting.wait(30)
        assert (end.status, end.code) == ("failed", 5)
        assert end.duration_seconds is not None
        assert 0.0 < end.duration_seconds < 30
        record = waiting.refresh()
        assert record.ended_at is not None
        began = datetime.fromisoformat(record.started_at)
        moved_by = datetime.fromisoformat(record.ended_at) - began
        assert abs(moved_by - timedelta(days=jump)) < timedelta(minutes=1), "the clock did jump"
        assert hf.spawn("sleep 1000", timeout=0.2).wait(30).status == "timed_out"
