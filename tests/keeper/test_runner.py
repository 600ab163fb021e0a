"""Processes with a runner: it may be killed at any moment, and the keeper with it.

Jobs run in a little program of its own (``children/far_away.py``), as containers do in an engine.
``children/runs_far_away.py`` is the runner.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import BadRequest, KeeperError, Stream, SyncClient, SyncProcess, Unsupported
from holdfast.client import find_keeper
from holdfast.client.link import run
from holdfast.core.home import new_handle
from holdfast.core.programs import keeper_program
from holdfast.linux.kernel import all_processes, mark_of, stat
from holdfast.testing import wait_until
from tests.stepping import killed_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Command = Callable[..., list[str]]
KillBoth = Callable[[SyncClient], None]
LINES = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); [ $((i % 40)) = 0 ] && sleep 0.02"
NUMBERED = "".join(f"line {number}\n" for number in range(3000))
GATED = "until [ -e {} ]; do sleep 0.01; done"


class FarAway:
    """The place where the jobs run, and how to have one run there."""

    def __init__(self, socket: str, runner: list[str]) -> None:
        self.socket = socket
        self.runner = runner

    def spawn(self, hf: SyncClient, command: str, trick: str = "", **more: Any) -> SyncProcess:
        """As `SyncClient.spawn`, but there."""
        handle, mode = more.pop("handle", None) or new_handle(), more.get("mode", "pipe")
        request = self.request(hf, handle, command, trick, mode)
        env = more.pop("env", {})
        stdin, stderr = more.get("stdin", mode == "pty"), more.get("stderr", "merged")
        told = json.loads(request["runner"]["env"]["HOLDFAST_RUNNER"])
        told |= {"env": env, "stdin": stdin, "separate": stderr == "separate"}
        request["runner"]["env"]["HOLDFAST_RUNNER"] = json.dumps(told)
        run(hf._client._link.call("spawn", request | more))
        return hf.get(handle)

    def request(
        self, hf: SyncClient, handle: str, command: str, trick: str, mode: str
    ) -> dict[str, Any]:
        told = {
            "handle": handle,
            "directory": hf.home.processes,
            "socket": self.socket,
            "command": command,
            "tty": mode == "pty",
            "trick": trick,
        }
        env = {"PATH": os.environ["PATH"], "HOLDFAST_RUNNER": json.dumps(told)}
        config = hf._client.config
        names = ("timeout", "grace", "log_cap", "log_limit", "retention", "max_running")
        settings = {name: config[name] for name in (*names, "max_finished", "containment", "size")}
        return settings | {
            "handle": handle,
            "mode": mode,
            "tmux": None,
            "attach": None,
            "notes": [],
            "command": command,
            "argv": [],
            "env": {},
            "cwd": os.getcwd(),
            "umask": 0o022,
            "label": "",
            "group": "",
            "stdin": False,
            "stderr": "merged",
            "keep": False,
            "docker": {"image": "far", "network": None, "user": None},
            "runner": {"kind": "docker", "argv": self.runner, "env": env},
        }

    def told(self, process: SyncProcess) -> list[str]:
        """What was done to a job."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(self.socket)
            link.sendall(json.dumps({"name": process.handle, "do": "tell"}).encode() + b"\n")
            with link.makefile() as answer:
                return list(json.loads(answer.readline()))


@pytest.fixture
def far(no_leaks: None, tmp_path: Path, child: Command) -> Iterator[FarAway]:
    path = str(tmp_path / "far.sock")
    command = child("far_away", path)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as place:
        assert place.stdout is not None
        assert place.stdout.readline() == "ready\n"
        yield FarAway(path, child("runs_far_away"))
        place.terminate()


IMPATIENT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("main", sys.argv.pop(1))
main = importlib.util.module_from_spec(spec)
spec.loader.exec_module(main)
from holdfast.keeper import stop
from holdfast.keeper.modes import runner
runner._WAITS = tuple(wait / 20 for wait in runner._WAITS)
stop._RUNNER_PATIENCE /= 20
sys.exit(main.main(sys.argv[1:]))
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper of the test is as it always is, but waits for runners a twentieth of the time."""
    python, *options, main = keeper_program()
    program = [python, *options, "-c", IMPATIENT, main]
    monkeypatch.setattr(find_keeper, "keeper_program", lambda: program)


def output(process: SyncProcess, stream: Stream = "stdout") -> str:
    return process.read_at(0, 1 << 20, stream=stream).text


def begun(process: SyncProcess) -> int:
    """The pid of its runner, once that has begun."""
    wait_until(lambda: process.refresh().ports, what=f"{process} begun")
    assert process.record.pid is not None
    return process.record.pid


def kill_runner(process: SyncProcess) -> None:
    """kill -9, and wait until the next one is there."""
    pid = process.refresh().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: process.refresh().pid != pid)


def kill_half(hf: SyncClient, half: str) -> None:
    os.kill(hf.keeper_status()[half], signal.SIGKILL)


# -- a life ----------------------------------------------------------------------------------------


def test_a_process_with_a_runner_is_one_like_any_other(hf: SyncClient, far: FarAway) -> None:
    """Output, exit code and record are those of what the runner runs."""
    process = far.spawn(hf, "echo out; echo err >&2; exit 7", stderr="separate", limits={"cpu": 2})
    end = process.wait(30)
    assert (end.status, end.code, end.reason, end.ended_by) == ("failed", 7, "exited", "itself")
    assert (output(process), output(process, "stderr")) == ("out\n", "err\n")
    record = process.refresh()
    assert record.command == "echo out; echo err >&2; exit 7"
    assert record.limits == {"cpu": {"limit": 2, "by": "docker"}}
    assert record.public()["ports"] == {"3000": 49153}
    assert record.public()["docker"]["container"] == f"far-{process.handle}"
    (event,) = wait_until(lambda: list(hf.events(acknowledged=True)))
    assert (event.status, event.exit_code) == ("failed", 7)
    assert far.told(process) == ["start", "remove"]


def test_a_runner_has_four_descriptors(hf: SyncClient, far: FarAway) -> None:
    """Its three and the store of descriptors; no log, no socket and nobody's stdin."""
    for mode in ("pipe", "pty"):
        process = far.spawn(hf, GATED.format("/nonexistent"), mode=mode, grace=1)
        begun(process)
        said = json.loads(Path(f"{hf.home.processes}/{process.handle}.runner").read_text())
        assert [fd for fd in said["descriptors"] if fd < 4] == [0, 1, 2, 3]
        found = Path(f"/proc/{process.record.pid}/fd")
        others = {os.readlink(path) for path in found.iterdir() if int(path.name) > 3}
        assert all(link.startswith(("socket:", f"{hf.home.processes}/")) for link in others)
        kill_runner(process)


def test_a_runner_starts_only_what_can_be_started(hf: SyncClient, far: FarAway) -> None:
    """A runner that makes no sense is refused, and nothing is left of it."""
    request = far.request(hf, new_handle(), "true", "", "pipe")
    wrong: list[dict[str, Any]] = [{"argv": []}, {"argv": ["/bin/true", 3]}, {"env": {"A": 1}}]
    for broken in wrong:
        with pytest.raises(BadRequest):
            run(hf._client._link.call("spawn", request | {"runner": request["runner"] | broken}))
    assert hf.list() == []


@pytest.mark.parametrize("code", [0, 3])
def test_how_it_ended_is_what_its_runner_says(hf: SyncClient, far: FarAway, code: int) -> None:
    """Signals and memory that ran out are shown as those of a plain process."""
    process = far.spawn(hf, f"exit {code}")
    assert process.wait(30).code == code
    process = far.spawn(hf, "kill -SEGV $$")
    end = process.wait(30)
    assert (end.status, end.code, end.signal, end.ended_by) == (
        "failed",
        None,
        "SIGSEGV",
        "itself",
    )
    process = far.spawn(hf, "exit 99")
    end = process.wait(30)
    assert (end.status, end.code, end.reason) == ("failed", 99, "out_of_memory")


def test_a_removed_process_leaves_no_file(hf: SyncClient, far: FarAway) -> None:
    """What its runner wrote goes with the record."""
    process = far.spawn(hf, "echo words")
    process.wait(30)
    files = {name for name in os.listdir(hf.home.processes) if process.handle in name}
    assert {f"{process.handle}{suffix}" for suffix in (".runner", ".place", ".end")} <= files
    process.remove()
    assert [name for name in os.listdir(hf.home.processes) if process.handle in name] == []


def test_what_a_runner_is_told_is_on_no_disk(hf: SyncClient, far: FarAway) -> None:
    """Its environment may hold secrets of what it runs: they are in no file of the home."""
    process = far.spawn(
        hf, "sleep 0.3; test ${#KEY} = 11 && echo right", env={"KEY": "open-sesame"}
    )
    begun(process)
    kill_runner(process)
    kill_half(hf, "worker")
    assert process.wait(30).ok
    assert output(process) == "right\n"
    for directory, _, names in os.walk(hf.home.path):
        for name in names:
            path = Path(directory, name)
            if path.is_file():
                assert b"sesame" not in path.read_bytes(), path


# -- killed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))]
)
@pytest.mark.parametrize("how", ["merged", "separate", "pty"])
def test_a_runner_killed_at_many_moments_loses_nothing(
    hf: SyncClient, far: FarAway, how: str, seed: int
) -> None:
    """Every line once and in order, the exit code, and one job that was begun once."""
    chance = random.Random(seed)
    options = {"mode": "pty"} if how == "pty" else {"stderr": how}
    command = f"{LINES}; echo also $i >&2; done; exit 7"
    process = far.spawn(hf, command, **options)
    pids = {begun(process)}
    for _ in range(4):
        time.sleep(chance.random() * 0.4)
        kill_runner(process)
        assert process.record.pid is not None
        pids.add(process.record.pid)
    assert len(pids) == 5
    assert process.wait(60).code == 7
    also = "".join(f"also {number + 1}\n" for number in range(3000))
    if how == "separate":
        assert (output(process), output(process, "stderr")) == (NUMBERED, also)
    else:
        lines = re.findall("^line .*\n", output(process), flags=re.M)
        assert ("".join(lines), len(output(process))) == (NUMBERED, len(NUMBERED + also))
    assert [word for word in far.told(process) if word != "input"] == ["start", "remove"]


@pytest.mark.parametrize("whom", ["worker", "guard", "both", "both and the runner"])
@pytest.mark.parametrize("mode", ["pipe", pytest.param("pty", marks=pytest.mark.long)])
def test_whoever_is_killed_the_output_is_exact(
    hf: SyncClient, far: FarAway, kill_both: KillBoth, whom: str, mode: str, tmp_path: Path
) -> None:
    """The halves of the keeper and the runner, again and again."""
    gate = tmp_path / "gate"  # it does not end while there is no keeper
    command = f"{LINES}; [ $i = 2900 ] && {GATED.format(gate)}; done; exit 7"
    process = far.spawn(hf, command, mode=mode)
    begun(process)
    for _ in range(2):
        pid = process.refresh().pid
        assert pid is not None
        if whom.startswith("both"):
            kill_both(hf)
            if whom != "both":
                os.kill(pid, signal.SIGKILL)
        else:
            kill_half(hf, whom)
        assert hf.spawn("true").wait(60).code == 0
        if whom == "guard":
            kill_runner(process)
    gate.touch()
    assert process.wait(60).code == 7
    assert output(process) == NUMBERED
    assert [word for word in far.told(process) if word != "input"] == ["start", "remove"]


@pytest.mark.parametrize("first", ["worker", "runner"])
def test_worker_and_runner_killed_together(hf: SyncClient, far: FarAway, first: str) -> None:
    """The guard sees the runner's end then; the next worker starts the next runner."""
    process = far.spawn(hf, f"{LINES}; done; exit 7")
    pid = begun(process)
    for _ in range(3):
        halves = hf.keeper_status()
        both = [halves["worker"], pid]
        for victim in both if first == "worker" else both[::-1]:
            os.kill(victim, signal.SIGKILL)
        wait_until(lambda pid=pid: process.refresh().pid != pid)  # type: ignore[misc]
        assert process.record.pid is not None
        pid = process.record.pid
    assert process.wait(60).code == 7
    assert output(process) == NUMBERED
    assert far.told(process) == ["start", "remove"]


@pytest.mark.weight(8)
@pytest.mark.long
@pytest.mark.parametrize(("mode", "stride"), [("pipe", 7), ("pty", 11)])
def test_a_worker_killed_at_each_step_of_a_restart(
    hf: SyncClient, far: FarAway, tmp_path: Path, mode: str, stride: int
) -> None:
    """There is never more than one runner, and never none."""
    step, reached = 0, True
    while reached:
        gate = tmp_path / f"gate-{step}"
        command = f"echo begun; {GATED.format(gate)}; echo words; exit 7"
        process = far.spawn(hf, command, mode=mode)
        pid = begun(process)
        worker = hf.keeper_status()["worker"]

        def work(process: SyncProcess = process, pid: int = pid, gate: Path = gate) -> None:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: process.refresh().pid != pid)
            gate.touch()
            process.wait(30)

        _, reached = killed_at(worker, step, work)
        assert process.wait(30).code == 7, step
        assert output(process) == "begun\nwords\n", step
        assert [word for word in far.told(process) if word != "input"] == ["start", "remove"], step
        step += stride
    assert step > 50


@pytest.mark.long
def test_a_worker_killed_at_many_steps_of_a_forced_stop(hf: SyncClient, far: FarAway) -> None:
    """The next one goes on with it: the caller gets its receipt, and what runs is gone."""
    step, reached = 0, True
    while reached:
        process = far.spawn(hf, "trap '' TERM; echo begun; while :; do sleep 0.1; done")
        wait_until(lambda process=process: output(process))  # type: ignore[misc]
        worker = hf.keeper_status()["worker"]
        receipt, reached = killed_at(worker, step, lambda process=process: process.kill(grace=0))  # type: ignore[misc]
        assert (receipt.record.status, receipt.survivors) == ("killed", []), step
        assert far.told(process)[-1] == "remove", step
        step += 5 + step // 4


def test_a_runner_that_died_before_it_had_begun_has_failed(hf: SyncClient, far: FarAway) -> None:
    """The next one has nothing to go by, and says so."""
    process = far.spawn(hf, "echo words", trick="dies first")
    end = process.wait(30)
    assert (end.status, end.code) == ("failed", 125)
    assert process.refresh().notes == ["its runner was killed before it had begun"]


@pytest.mark.weight(4)
@pytest.mark.usefixtures("impatient")
def test_a_runner_that_keeps_dying_is_given_up(far: FarAway, hf: SyncClient) -> None:
    """Ten times, ever more slowly, is enough: what it ran may still be there, and is named."""
    process = far.spawn(hf, GATED.format("/nonexistent"), trick="dies")
    end = process.wait(90)
    assert (end.status, end.code, end.signal) == ("lost", None, None)
    (note,) = process.refresh().notes
    assert note == (
        f"its runner died 10 times in 40 s; the container far-{process.handle} may still be there"
    )
    assert far.told(process) == ["start"]


@pytest.mark.usefixtures("impatient")
def test_a_runner_that_can_live_again_goes_on(far: FarAway, hf: SyncClient) -> None:
    """What it dies of may pass: by then it has died more often than one that is just killed."""
    process = far.spawn(hf, "echo words; exit 7", trick="dies")
    wait_until(lambda: len((process.refresh().runner or {})["starts"]) > 6, timeout=60)
    place = Path(f"{hf.home.processes}/{process.handle}.place")
    place.write_text(place.read_text().replace("dies", ""))
    assert process.wait(60).code == 7
    assert output(process) == "words\n"
    assert far.told(process) == ["start", "remove"]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["pipe", "pty"])
def test_out_of_descriptors_there_is_one_runner_or_none(
    hf: SyncClient, far: FarAway, mode: str
) -> None:
    """Whichever is the one too many, the next runner comes when there are some, and alone."""
    worker = hf.keeper_status()["worker"]
    for _ in range(12):  # which hold some, so that the limit below is none for the runner itself
        hf.spawn("sleep 1000")
    for spare in range(6):
        command = GATED.format("/nonexistent")
        process = far.spawn(hf, command, mode=mode, grace=0.2, containment="tree")
        pid = begun(process)
        limits = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        lowest = lowest_descriptor(worker, pid)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (lowest + spare, limits[1]))
        try:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: stat(pid) is None)  # type: ignore[misc]
        finally:
            resource.prlimit(worker, resource.RLIMIT_NOFILE, limits)
        wait_until(lambda process=process: runners(process))  # type: ignore[misc]
        assert process.kill(grace=0).record.status == "killed", spare
        done = [word for word in far.told(process) if word != "input"]
        assert done == ["start", "SIGKILL", "remove"], spare  # and no word of two runners
    assert hf.keeper_status()["worker"] == worker


def lowest_descriptor(worker: int, pid: int) -> int:
    """The lowest that the worker has free, or that is its pidfd of a process."""
    for number in range(1 << 16):
        try:
            if f"Pid:\t{pid}\n" in Path(f"/proc/{worker}/fdinfo/{number}").read_text():
                return number
        except FileNotFoundError:
            return number
    raise AssertionError("all are taken")


def runners(process: SyncProcess) -> list[int]:
    return [each.pid for each in all_processes() if mark_of(each.pid) == process.handle]


def test_after_a_restart_of_the_machine_it_is_lost(
    hf: SyncClient, far: FarAway, kill_both: KillBoth
) -> None:
    """Another boot: nothing is started again, and what may be left is named."""
    process = far.spawn(hf, GATED.format("/nonexistent"))
    pid = begun(process)
    kill_both(hf)
    os.kill(pid, signal.SIGKILL)
    record = hf.store.load(process.handle)
    record.boot_id = "another"
    hf.store.save(record)
    assert process.wait(30).status == "lost"
    (note,) = process.refresh().notes
    assert note.startswith("the machine was started anew; the container far-")


# -- input -----------------------------------------------------------------------------------------


def test_input_goes_on_through_every_kill(hf: SyncClient, far: FarAway) -> None:
    """Each line arrives once; what was sent before an end of input arrives before it."""
    process = far.spawn(hf, "while read line; do echo got $line; done; echo end", stdin=True)
    begun(process)
    sent = []
    for number in range(10):
        if number % 4 == 1:
            pid = process.refresh().pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        if number % 4 == 3:
            before = hf.keeper_status()["worker"]
            kill_half(hf, "worker")
            wait_until(lambda old=before: hf.keeper_status()["worker"] != old)  # type: ignore[misc]
        process.send(f"line {number}\n")
        sent.append(f"got line {number}\n")
    wait_until(lambda: sent[-1] in output(process))
    pid = process.refresh().pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    process.send("last\n", eof=True)
    os.kill(pid, signal.SIGKILL)
    assert process.wait(30).code == 0
    assert output(process) == "".join([*sent, "got last\n", "end\n"])
    assert far.told(process) == ["start", "input", "remove"]


def test_a_terminal_goes_on_through_every_kill(
    hf: SyncClient, far: FarAway, kill_both: KillBoth
) -> None:
    """It echoes nothing by itself, is typed into, has a size, and is made anew if it is lost."""
    command = 'while read line; do echo "got $line"; done'
    process = far.spawn(hf, command, mode="pty", size=[80, 24])
    pid = begun(process)
    expected = [""]
    for kill in (None, "runner", "worker", "both"):
        if kill == "runner":
            kill_runner(process)
        elif kill == "worker":
            kill_half(hf, "worker")
        elif kill == "both":
            pid = process.refresh().pid or 0
            kill_both(hf)
            hf.keeper_status()
            wait_until(lambda pid=pid: process.refresh().pid != pid)  # type: ignore[misc]
        process.send(f"after {kill}\n")
        expected[0] += f"got after {kill}\n"
        wait_until(lambda: output(process) == expected[0])
    assert process.record.notes == []
    process.resize(100, 30)
    wait_until(lambda: output(process) == expected[0] + "size 100x30\n")
    process.kill(signal="INT")
    assert process.refresh().status == "killed"


# -- stopped ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_a_stop_is_passed_on(hf: SyncClient, far: FarAway, name: str) -> None:
    """The polite signal reaches what runs, and its end is the process's."""
    process = far.spawn(hf, "echo begun; exec sleep 1000")
    wait_until(lambda: output(process))
    receipt = process.kill(signal=name, grace=30)
    assert (receipt.record.status, receipt.record.signal) == ("killed", f"SIG{name}")
    assert (receipt.forced, receipt.survivors) == (False, [])
    assert far.told(process) == ["start", f"SIG{name}", "remove"]


@pytest.mark.parametrize("grace", [0, 0.3])
def test_a_forced_stop_ends_what_runs(hf: SyncClient, far: FarAway, grace: float) -> None:
    """Its runner is killed, and the next one kills what it runs."""
    process = far.spawn(hf, "trap '' TERM; echo begun; while :; do sleep 0.1; done")
    wait_until(lambda: output(process))
    receipt = process.kill(grace=grace)
    assert (receipt.record.status, receipt.record.signal) == ("killed", "SIGKILL")
    assert (receipt.forced, receipt.survivors) == (True, [])
    assert far.told(process)[-2:] == ["SIGKILL", "remove"]


def test_a_stop_goes_on_whoever_is_killed(hf: SyncClient, far: FarAway) -> None:
    """A runner that dies during the grace is told of the stop, and the force comes in time."""
    command = "trap '' TERM; echo begun; while :; do sleep 0.1; done"
    process = far.spawn(hf, command, timeout=0.7, grace=1.5)
    wait_until(lambda: "SIGTERM" in far.told(process))
    kill_runner(process)
    kill_half(hf, "worker")
    end = process.wait(30)
    assert (end.status, end.signal) == ("timed_out", "SIGKILL")
    assert far.told(process)[-2:] == ["SIGKILL", "remove"]


def test_a_deadline_passes_while_the_runner_is_dead(hf: SyncClient, far: FarAway) -> None:
    """The next one is started to end what runs."""
    process = far.spawn(hf, "echo begun; exec sleep 1000", timeout=2)
    pid = begun(process)
    wait_until(lambda: output(process))
    worker = hf.keeper_status()["worker"]
    os.kill(worker, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    deadline = process.record.deadline_clock
    assert deadline is not None
    wait_until(lambda: time.monotonic() > deadline)
    os.kill(worker, signal.SIGCONT)
    end = process.wait(30)
    assert (end.status, end.reason, end.signal) == ("timed_out", "timeout", "SIGTERM")
    assert far.told(process) == ["start", "SIGTERM", "remove"]


def test_what_ended_before_a_stop_ended_by_itself(hf: SyncClient, far: FarAway) -> None:
    """Its runner may need a moment after that; a kill in it changes nothing."""
    process = far.spawn(hf, "exit 7", trick="lingers")
    wait_until(Path(f"{hf.home.processes}/{process.handle}.end").exists)
    receipt = process.kill(grace=0)
    assert (receipt.record.status, receipt.record.exit_code) == ("failed", 7)
    assert far.told(process) == ["start", "remove"]


@pytest.mark.usefixtures("impatient")
def test_a_runner_that_cannot_end_what_runs_is_named(far: FarAway, hf: SyncClient) -> None:
    """The receipt does not take for ever: it says who is still at it, and why."""
    command = f"trap '' TERM; {GATED.format('/nonexistent')}"
    process = far.spawn(hf, command, trick="stuck", grace=0.2)
    begun(process)
    with pytest.raises(KeeperError, match="in time"):
        process.remove()
    receipt = process.kill(grace=0)
    assert receipt.record.running
    assert receipt.survivors == [receipt.record.pid]
    (last,) = [entry for entry in receipt.processes if entry["pid"] == receipt.record.pid]
    assert "has not ended what it runs" in last["survived"]
    place = Path(f"{hf.home.processes}/{process.handle}.place")
    place.write_text(place.read_text().replace("stuck", ""))
    assert process.kill(grace=0).record.status == "killed"


def test_signals_are_passed_on_or_refused(hf: SyncClient, far: FarAway) -> None:
    """What a runner cannot pass on would only hit itself."""
    process = far.spawn(hf, "trap 'echo heard' USR1; echo begun; while :; do sleep 0.05; done")
    wait_until(lambda: output(process))
    process.signal("USR1")
    wait_until(lambda: output(process) == "begun\nheard\n")
    for name in ("STOP", "CONT", "TSTP", "ALRM"):
        with pytest.raises(Unsupported, match="not passed on"):
            process.signal(name)
    with pytest.raises(Unsupported, match="not passed on"):
        process.kill(signal="STOP")
    assert process.refresh().running
    process.signal("KILL")
    end = process.wait(30)
    assert (end.status, end.reason, end.signal) == ("failed", "signal", "SIGKILL")


def test_a_session_that_ends_takes_what_runs_elsewhere_along(hf: SyncClient, far: FarAway) -> None:
    """Everything of a session is stopped: plain processes, and those with a runner."""
    process = far.spawn(hf, "echo begun; exec sleep 1000")
    wait_until(lambda: output(process))
    hf.spawn("sleep 1000")
    receipts = hf.stop_all(signal="ALRM", grace=5)
    assert [receipt.record.status for receipt in receipts] == ["killed", "killed"]
    assert far.told(process) == ["start", "SIGTERM", "remove"]
