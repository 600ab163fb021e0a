"""Containers through kills: of the runner, the keeper, the engine and the agent, over real ones.

Whatever is killed, and at whatever moment: each byte is in the log once, the exit code is true, one
end is told, and nothing is left. What writes in the containers goes on by steps that the test
gives, so that a kill comes in the middle, and what it must have written does not depend on time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import HoldfastError, Stream, SyncClient, SyncProcess, Unavailable
from holdfast.client import docker_client
from holdfast.client.connect import open_client
from holdfast.core.home import Home, new_handle
from holdfast.core.programs import docker_program
from holdfast.core.store import Store
from holdfast.linux.kernel import all_processes, stat
from holdfast.testing import wait_until
from tests.contained import groups_of
from tests.docker_engine import Engine
from tests.proc_files import proc_file
from tests.stepping import Stepper
from tests.traces import Traces

pytestmark = pytest.mark.long

KillBoth = Callable[[SyncClient], None]
BOX = "hfbox"
PATIENCE = 60
MODES: dict[str, dict[str, Any]] = {
    "merged": {},
    "separate": {"stderr": "separate"},
    "tty": {"tty": True},
}
WHOM = ("worker", "guard", "both", "both and the runner")
GATED = "until [ -e gate ]; do sleep 0.01; done"
STUBBORN = "trap '' TERM; echo begun; while :; do sleep 0.1; done"


def output(process: SyncProcess, stream: Stream = "stdout") -> str:
    return process.read_at(0, 1 << 20, stream=stream).text


def written(process: SyncProcess) -> int:
    record = process.record
    return sum(os.path.getsize(path) for path in (record.log, record.err_log) if path)


def said(process: SyncProcess, words: str) -> SyncProcess:
    wait_until(lambda: words in output(process), what=f"{words!r} of {process}")
    return process


class Writer:
    """A container that writes a long piece at each step, and exits with 7 when it is told to."""

    lines = 1500
    command = (
        "exec 3<>steps; while read n <&3; do [ $n = end ] && exit 7; i=0; "
        f"while [ $i -lt {lines} ]; do "
        'echo "$n: line $i"; echo "$n: also $i" >&2; i=$((i+1)); done; printf "$n: rest; "; done'
    )

    def __init__(self, hf: SyncClient, steps: int, mode: str) -> None:
        self._steps = steps
        self._mode = mode
        self._pieces = 0
        self.hf = hf
        self.process = hf.spawn(self.command, docker=BOX, **MODES[mode])

    def begin(self, share: float = 0) -> None:
        """Let it write a piece, and wait until so much of that is in the log; not at all with 0.

        A line without an end can be seen only by who was connected when it was written.
        """
        self._pieces += 1
        os.write(self._steps, f"{self._pieces}\n".encode())
        if not share:
            return
        before = sum(map(len, self._expected(self._pieces - 1)))
        after = sum(map(len, self._expected(self._pieces)))
        wait_until(lambda: written(self.process) >= before + share * (after - before))

    def end(self) -> None:
        os.write(self._steps, b"end\n")

    def _expected(self, pieces: int) -> tuple[str, str]:
        out = err = ""
        for n in range(1, pieces + 1):
            for i in range(self.lines):
                out += f"{n}: line {i}\n"
                if self._mode == "separate":
                    err += f"{n}: also {i}\n"
                else:
                    out += f"{n}: also {i}\n"
            out += f"{n}: rest; "
        return (out.replace("\n", "\r\n"), "") if self._mode == "tty" else (out, err)

    def check(self) -> None:
        """That it ended as it should, with all that it should have written."""
        end = self.process.wait(PATIENCE)
        record = self.process.refresh()
        assert (end.status, end.code, end.reason) == ("failed", 7, "exited"), (end, record.notes)
        out, err = self._expected(self._pieces)
        assert output(self.process) == out
        if self._mode == "separate":
            assert output(self.process, "stderr") == err
        assert record.notes == []
        check_told_once(self.hf, self.process)


@pytest.fixture
def steps(no_leaks: None, here: Path) -> Iterator[int]:
    """The other end of what a `Writer` reads."""
    os.mkfifo(here / "steps")
    fd = os.open(here / "steps", os.O_RDWR)
    yield fd
    os.close(fd)


def check_told_once(hf: SyncClient, process: SyncProcess) -> None:
    def ends() -> list[str]:
        return [event.id for event in hf.events(acknowledged=True) if event.type == "end"]

    wait_until(ends)
    assert ends() == [f"{process.handle}:end"]


def pid_of(process: SyncProcess) -> int:
    """Of its runner."""
    pid = process.refresh().pid
    assert pid is not None
    return pid


def kill_runner(process: SyncProcess) -> None:
    """kill -9, and wait until the next one is there."""
    pid = pid_of(process)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: process.refresh().pid != pid, what="another runner")


def halt(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: (found := stat(pid)) is None or found.state == "T")


def kill(hf: SyncClient, process: SyncProcess, whom: str, kill_both: KillBoth) -> None:
    """kill -9 some of ours; the keeper is there again afterwards."""
    pid, status = pid_of(process), hf.keeper_status()
    if whom.startswith("both"):
        kill_both(hf)
        if whom != "both":
            os.kill(pid, signal.SIGKILL)
    else:
        os.kill(status[whom], signal.SIGKILL)
        wait_until(lambda: hf.keeper_status()[whom] != status[whom])
    process.refresh()  # who looks at what runs starts a keeper


def container_of(engine: Engine, process: SyncProcess) -> dict[str, Any]:
    (found,) = engine.containers(f"holdfast.handle={process.handle}")
    return found


# -- the runner ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_runner_killed_again_and_again_loses_nothing(
    hf: SyncClient, engine: Engine, steps: int, mode: str
) -> None:
    """In the middle of its work, before and after it: it is the same container all the time."""
    writer = Writer(hf, steps, mode)
    process = writer.process
    container = container_of(engine, process)["Id"]
    for share in (0.3, 0, 0.7, 1):
        writer.begin(share)
        kill_runner(process)
    assert container_of(engine, process)["Id"] == container
    writer.begin()
    writer.end()
    writer.check()


@pytest.mark.usefixtures("engine")
def test_a_runner_whose_program_an_upgrade_has_moved_is_the_one_in_its_place(
    hf: SyncClient, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record names the program of the version that started it."""
    *python, script = docker_program()
    old = tmp_path / "runner.py"
    old.write_text(f"import runpy; runpy.run_path({script!r}, run_name='__main__')")
    monkeypatch.setattr(docker_client, "docker_program", lambda: [*python, str(old)])
    writer = Writer(hf, steps, "merged")
    old.unlink()
    writer.begin(0.5)
    kill_runner(writer.process)
    writer.begin()
    writer.end()
    writer.check()


@pytest.mark.parametrize("terminal", [False, True])
def test_input_goes_on_through_kills_of_the_runner(
    hf: SyncClient, engine: Engine, here: Path, terminal: bool
) -> None:
    """What is sent before, meanwhile and after arrives once and in order, and so does its end."""
    command = "while read line && [ $line != end ]; do echo got $line; done; exit 7"
    process = hf.spawn(command, docker=BOX, stdin=True, tty=terminal)
    expected = ""
    for number in range(4):
        words = f"{number}-a {number}-b {number}-c".split()
        process.send(words[0], enter=True)
        expected += f"{words[0]}\n" * terminal + f"got {words[0]}\n"
        wait_until(lambda: output(process).replace("\r", "") == expected)  # noqa: B023
        pid = pid_of(process)
        halt(pid)
        process.send(words[1], enter=True)
        os.kill(pid, signal.SIGKILL)
        expected += f"{words[1]}\n" * terminal + f"got {words[1]}\n"
        wait_until(lambda: output(process).replace("\r", "") == expected)  # noqa: B023
    if terminal:
        process.send("end", enter=True)
        expected += "end\n"
    else:
        process.send("last\n", eof=True)
        expected += "got last\n"
    assert process.wait(PATIENCE).code == 7
    assert output(process).replace("\r", "") == expected


# -- the start -------------------------------------------------------------------------------------


class Start:
    """A start whose runner is killed on the way, at the n-th moment after it made its place."""

    command = f"echo once >> starts; echo begun; {GATED}; echo words; exit 7"

    def __init__(self, hf: SyncClient, moment: int) -> None:
        self.result: SyncProcess | HoldfastError | None = None
        self.reached = False
        self._hf = hf
        self._handle = new_handle()
        worker = hf.keeper_status()["worker"]
        thread = threading.Thread(target=self._start)
        thread.start()
        try:
            pid = wait_until(lambda: runner_below(worker), interval=0.0005)
            stepper = _stepper(pid)
            passed, lately = 0, ["", ""]
            while not self.reached and stepper.step(30.0 if thread.is_alive() else 0.05):
                now = Path(f"/proc/{pid}/syscall").read_text().split()[0]
                if now not in lately and self._has_place():  # and it is not waiting in a loop
                    lately = [lately[1], now]
                    passed += 1
                self.reached = passed > moment
                if not self.reached:
                    stepper.go_on()
            stepper.kill()
        finally:
            thread.join(PATIENCE)
        assert not thread.is_alive()

    def _start(self) -> None:
        try:
            self.result = self._hf.spawn(self.command, docker=BOX, handle=self._handle)
        except HoldfastError as error:
            self.result = error

    def _has_place(self) -> bool:
        """Before that no container can have been made."""
        place = f"{self._hf.home.processes}/{self._handle}.place"
        return os.path.exists(place) or os.path.exists(f"{place}.new")


def _stepper(pid: int) -> Stepper:
    try:
        return Stepper(pid)
    except PermissionError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip("ptrace is not allowed here")


def runner_below(worker: int) -> int:
    """The pid of a runner that is a child of the keeper's worker, or 0."""
    for word in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
        if b"docker/runner.py" in proc_file(int(word), "cmdline"):
            return int(word)
    return 0


@pytest.mark.parametrize("first", range(0, 24, 4))
def test_a_runner_killed_at_many_moments_of_a_start(
    hf: SyncClient, engine: Engine, here: Path, first: int
) -> None:
    """The start succeeds, once and with all that was written; or it fails, and nothing is left."""
    gate, starts = here / "gate", here / "starts"
    for moment in (first, first + 24, first + 48):
        begun = Start(hf, moment)
        assert begun.reached or moment > 30, "a start has more moments than that"
        gate.touch()
        if isinstance(begun.result, SyncProcess):
            assert begun.result.wait(PATIENCE).code == 7, moment
            assert output(begun.result) == "begun\nwords\n", moment
            assert starts.read_text() == "once\n", moment
            starts.unlink()
            begun.result.remove()
        else:
            assert isinstance(begun.result, Unavailable), moment
            assert moment < 48, "it had been started by then"
            assert "start it again" in str(begun.result), moment
            assert not starts.exists(), moment
        gate.unlink()
        assert hf.list() == [], moment
        assert engine.containers(f"holdfast.home={hf.home.path}") == [], moment


@contextlib.contextmanager
def held_up(engine: Engine) -> Iterator[None]:
    """An engine that takes requests and answers none."""
    (pid,) = engine._processes("dockerd")
    halt(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def is_waiting(pid: int) -> bool:
    """Whether it sits in one system call."""
    try:
        calls = [Path(f"/proc/{pid}/syscall").read_text()]
        time.sleep(0.05)
        calls.append(Path(f"/proc/{pid}/syscall").read_text())
    except OSError:
        return False
    return calls[0] == calls[1] != "running\n"


@pytest.mark.parametrize("then", ["goes on", "is stopped"])
def test_a_runner_killed_while_the_engine_makes_the_container(
    hf: SyncClient, own_engine: Engine, here: Path, then: str
) -> None:
    """The engine goes on making it, so the next runner has to wait for it, or it would be left."""
    worker = hf.keeper_status()["worker"]
    results: list[SyncProcess] = []
    handle = new_handle()
    thread = threading.Thread(
        target=lambda: results.append(
            hf.spawn(f"{GATED}; exit 7", docker=BOX, handle=handle, grace=0.1)
        )
    )
    other = open_client(hf.home, "test")
    stop = threading.Thread(target=lambda: other.get(handle).kill(grace=0))
    with held_up(own_engine):
        thread.start()
        wait_until(Path(f"{hf.home.processes}/{handle}.place").exists)
        pid = wait_until(lambda: runner_below(worker))
        wait_until(lambda: is_waiting(pid))
        if then == "is stopped":
            stop.start()
        else:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: runner_below(worker) not in (0, pid))
        wait_until(lambda: is_waiting(runner_below(worker)))
    thread.join(PATIENCE)
    (process,) = results
    if then == "is stopped":
        stop.join(PATIENCE)
        assert process.wait(PATIENCE).status == "killed"
    else:
        (here / "gate").touch()
        assert process.wait(PATIENCE).code == 7
    other.close()
    assert own_engine.containers(f"holdfast.home={hf.home.path}") == []


def test_a_port_that_is_stolen_before_the_start_is_replaced(
    hf: SyncClient, own_engine: Engine, here: Path
) -> None:
    """It was free when it was chosen, and taken when the container was started."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    results: list[SyncProcess] = []
    handle = new_handle()
    serve = f"mkdir www; echo served > www/index.html; exec httpd -f -h www -p {port}"
    thread = threading.Thread(
        target=lambda: results.append(hf.spawn(serve, docker=BOX, ports=[port], handle=handle))
    )
    with contextlib.ExitStack() as stack:
        with held_up(own_engine):
            thread.start()
            # Ports are chosen before that, and it cannot be started before the engine goes on.
            wait_until(Path(f"{hf.home.processes}/{handle}.place").exists)
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        thread.join(PATIENCE)
        (process,) = results
        other = process.ports[str(port)]
        assert other != port
        assert process.wait_for(f"port={port}", timeout=PATIENCE).ok
        with urllib.request.urlopen(f"http://127.0.0.1:{other}/", timeout=PATIENCE) as answer:
            assert answer.read() == b"served\n"


# -- the keeper ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("whom", WHOM)
def test_whoever_is_killed_the_output_is_exact(
    hf: SyncClient, engine: Engine, steps: int, kill_both: KillBoth, whom: str, mode: str
) -> None:
    """In the middle of the output, again and again; the container does not notice."""
    writer = Writer(hf, steps, mode)
    for share in (0.3, 0):
        writer.begin(share)
        kill(hf, writer.process, whom, kill_both)
    writer.begin()
    writer.end()
    writer.check()


@pytest.mark.parametrize("whom", WHOM)
def test_a_prompt_is_answered_whoever_is_killed(
    hf: SyncClient, engine: Engine, here: Path, kill_both: KillBoth, whom: str
) -> None:
    """The terminal goes on: what was on it is there once, and what is typed arrives."""
    command = "for n in 1 2 3; do printf 'name? '; read name; echo hello $name; done; exit 7"
    process = hf.spawn(command, docker=BOX, tty=True)
    expected = "name? "
    for name in ("ann", "bob", "eve"):
        wait_until(lambda: output(process).replace("\r", "") == expected)  # noqa: B023
        kill(hf, process, whom, kill_both)
        process.send(name, enter=True)
        expected += f"{name}\nhello {name}\n" + "name? " * (name != "eve")
    assert process.wait(PATIENCE).code == 7
    assert output(process).replace("\r", "") == expected
    check_told_once(hf, process)


@pytest.mark.parametrize("mode", MODES)
def test_what_ended_while_all_of_ours_was_dead_is_told_as_it_was(
    hf: SyncClient, engine: Engine, steps: int, kill_both: KillBoth, mode: str
) -> None:
    """Its code and the rest of its output are at the engine, and the next keeper asks for them."""
    writer = Writer(hf, steps, mode)
    writer.begin(1)
    pid = pid_of(writer.process)
    kill_both(hf)
    os.kill(pid, signal.SIGKILL)
    writer.begin()
    writer.end()
    wait_until(lambda: container_of(engine, writer.process)["State"] == "exited")
    writer.check()
    assert engine.containers(f"holdfast.handle={writer.process.handle}") == []


# -- the engine ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("mode", MODES)
def test_a_container_outlives_its_engine(
    hf: SyncClient, own_engine: Engine, steps: int, mode: str, number: int
) -> None:
    """What it wrote before, meanwhile and after is there once, and its code is true."""
    writer = Writer(hf, steps, mode)
    writer.begin(1)  # what an engine has read and not passed on dies with it
    own_engine.stop(number)
    writer.begin()
    own_engine.start()
    writer.begin(0.5)  # an end before the engine is seen again would be remarked on
    writer.end()
    writer.check()


@pytest.mark.parametrize("grace", [0, 30])
def test_a_stop_without_an_engine_is_carried_out_when_it_is_back(
    hf: SyncClient, own_engine: Engine, here: Path, grace: int
) -> None:
    """Who asked for it is not told that it is over before it is."""
    process = said(hf.spawn("echo begun; exec sleep 1000", docker=BOX), "begun")
    own_engine.stop(signal.SIGKILL)
    receipts = []
    thread = threading.Thread(target=lambda: receipts.append(process.kill(grace=grace)))
    thread.start()
    wait_until(lambda: hf.store.load(process.handle).stop is not None)
    assert hf.store.load(process.handle).running
    own_engine.start()
    thread.join(PATIENCE)
    (receipt,) = receipts
    end = process.wait(PATIENCE)
    assert (end.status, end.signal) == ("killed", "SIGTERM" if grace else "SIGKILL")
    assert receipt.record.running or not receipt.survivors
    assert own_engine.containers(f"holdfast.handle={process.handle}") == []


# -- by force --------------------------------------------------------------------------------------


@pytest.mark.parametrize("runner", ["there", "dead"])
def test_a_container_removed_by_somebody_else_is_lost_with_a_note(
    hf: SyncClient, engine: Engine, here: Path, runner: str
) -> None:
    """What it had written stays; nobody waits for an end that cannot come."""
    process = said(hf.spawn("echo begun; exec sleep 1000", docker=BOX), "begun")
    pid = pid_of(process)
    if runner == "dead":
        halt(pid)
    engine.remove(f"holdfast-{process.handle}")
    if runner == "dead":
        os.kill(pid, signal.SIGKILL)
    end = process.wait(PATIENCE)
    assert (end.status, end.code, end.signal) == ("lost", None, None)
    (note,) = process.refresh().notes
    assert "somebody removed the container" in note
    assert output(process) == "begun\n"
    check_told_once(hf, process)


@pytest.mark.parametrize("runner", ["there", "dead"])
def test_what_ignores_a_polite_signal_is_ended_by_force(
    hf: SyncClient, engine: Engine, here: Path, runner: str
) -> None:
    """After the grace, through the engine, by a kill or a deadline; a dead runner changes nothing.

    The deadline is far enough for the start, and passes while the container runs.
    """
    killed, late = [
        said(hf.spawn(STUBBORN, docker=BOX, grace=0.3, timeout=timeout), "begun")
        for timeout in (None, 5)
    ]
    if runner == "dead":
        for process in (killed, late):
            os.kill(pid_of(process), signal.SIGKILL)
    receipt = killed.kill()
    assert (receipt.record.status, receipt.record.signal) == ("killed", "SIGKILL")
    assert (receipt.forced, receipt.survivors) == (True, [])
    end = late.wait(PATIENCE)
    assert (end.status, end.reason, end.signal) == ("timed_out", "timeout", "SIGKILL")
    assert engine.containers(f"holdfast.home={hf.home.path}") == []


def test_who_runs_out_of_memory_harms_nobody_else(
    hf: SyncClient, engine: Engine, here: Path
) -> None:
    """The reason says so; the keeper and a container beside it go on."""
    beside = hf.spawn(["cat"], docker=BOX, stdin=True, memory="16MiB")
    keeper = hf.keeper_status()
    hungry = hf.spawn(f"echo begun; {GATED}; tail /dev/zero", docker=BOX, memory="16MiB")
    said(hungry, "begun")
    kill_runner(hungry)
    (here / "gate").touch()
    end = hungry.wait(PATIENCE)
    assert (end.status, end.reason) == ("failed", "out_of_memory")
    assert output(hungry) == "begun\n"
    halves = ("guard", "worker")
    assert [hf.keeper_status()[half] for half in halves] == [keeper[half] for half in halves]
    beside.send("still here\n", eof=True)
    assert beside.wait(PATIENCE).code == 0
    assert output(beside) == "still here\n"


# -- the agent -------------------------------------------------------------------------------------

AGENT = """
import signal, sys
import holdfast

with holdfast.connect(session="agent", lease_grace=0.5) as hf:
    for options in ({}, {"tty": True}, {"stdin": True}):
        process = hf.spawn(sys.argv[1], docker="hfbox", grace=0.2, ports=["3000"], **options)
        while "begun" not in process.read_at(0).text: pass
    print("ready", flush=True)
    if sys.argv[2] == "is killed":
        signal.pause()
"""


@pytest.mark.parametrize("then", ["is killed", "closes"])
def test_an_agent_that_is_gone_leaves_nothing(
    home: str, engine: Engine, here: Path, then: str
) -> None:
    """No container, nothing of one at the engine, no process, control group, socket or FIFO."""
    traces = Traces(home)
    command = [sys.executable, "-c", AGENT, STUBBORN, then]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "ready\n"
        if then == "is killed":
            ids = [each["Id"] for each in engine.containers(f"holdfast.home={home}")]
            assert len(ids) == 3
            assert remains(ids)
            agent.kill()
        else:
            ids = []

    def states() -> list[str]:
        return [record.status for record in Store(Home(home)).scan()[0]]

    wait_until(lambda: "running" not in states(), what="all have ended")
    assert states() == ["killed"] * 3
    assert engine.containers(f"holdfast.home={home}") == []
    wait_until(lambda: not remains(ids), what="the engine has cleaned up")
    person = open_client(Home(home), None)
    person.keeper_stop()
    person.close()
    wait_until(lambda: not traces.new_processes(), what="nothing of it runs")
    assert [name for name in traces.special_files() if not name.startswith("spare")] == []
    assert groups_of(home) == []


def remains(containers: list[str]) -> list[str]:
    """What the machine has of them: processes that look after them, and control groups."""
    found = []
    for process in all_processes():
        command = os.fsdecode(proc_file(process.pid, "cmdline"))
        if any(container in command for container in containers):
            found.append(f"{process.pid} {command}")
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{directory}/{name}" for name in names if name in containers]
    return found


def test_a_secret_is_in_no_file_and_no_command_line(
    hf: SyncClient, engine: Engine, home: str, here: Path, kill_both: KillBoth
) -> None:
    """Neither at the start nor with the runners and keepers that come after; the container has it.

    It is in the environment of the first runner, which is its user's alone, and in no other's.
    """
    secret = "open-" + new_handle()
    process = hf.spawn(
        f"echo begun; {GATED}; [ ${{#KEY}} = {len(secret)} ] && echo right",
        docker=BOX,
        env={"KEY": secret},
    )

    def check() -> None:
        wait_until(lambda: "container" in (process.refresh().docker or {}))
        for path in Path(home).rglob("*"):
            if path.is_file():
                assert secret.encode() not in path.read_bytes(), path
        for each in all_processes():
            assert secret.encode() not in proc_file(each.pid, "cmdline")

    check()
    kill_runner(process)
    check()
    kill(hf, process, "both and the runner", kill_both)
    check()
    assert secret.encode() not in Path(f"/proc/{pid_of(process)}/environ").read_bytes()
    (here / "gate").touch()
    assert process.wait(PATIENCE).code == 0
    assert output(process) == "begun\nright\n"
    check()
