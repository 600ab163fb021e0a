"""kill -9 of the manager, the worker, the guard: again and again, alternately, and all at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Client, Exit, KeeperError, SyncClient, SyncProcess, Unsupported, connect
from holdfast.client.connect import open_client
from holdfast.client.find_keeper import wait_until_gone
from holdfast.core.home import Home
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tests.conftest import Gate

Manager = Callable[[list[str]], tuple[list[str], "subprocess.Popen[bytes]"]]
Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]
KillBoth = Callable[[SyncClient], None]

CHILDREN = Path(__file__).parents[1] / "children"
# From 6.15 on the kernel tells how a process ended that was nobody's child we know.
KERNEL_TELLS = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)


def alive(pid: int | None) -> bool:
    assert pid is not None
    found = stat(pid)
    return found is not None and found.state not in "ZX"


def output(process: SyncProcess) -> str:
    return process.read_at(0, 1 << 20).text


def kill_half(hf: SyncClient, half: str) -> None:
    """kill -9 one half, and wait until the keeper is whole again: never both at one moment."""
    before = hf.keeper_status()
    os.kill(before[half], signal.SIGKILL)

    def whole() -> bool:
        now = hf.keeper_status()
        if half == "worker":
            return bool(now["guard"] == before["guard"] and now["worker"] != before["worker"])
        return bool(now["guard"] == before["worker"] and now["worker"] != before["worker"])

    wait_until(whole, what=f"a new {half}")


def exact(end: Exit, code: int) -> bool:
    """Ended with this code; on an older kernel it may be that nobody can know, which is said."""
    if not KERNEL_TELLS and end.status == "lost":
        return end.code is None
    return (end.status, end.code, end.reason) == (
        "failed" if code else "completed",
        code,
        "exited",
    )


def ended_at(process: SyncProcess) -> datetime:
    text = process.refresh().ended_at
    assert text is not None
    return datetime.fromisoformat(text)


def now() -> datetime:
    from datetime import UTC

    return datetime.now(UTC)


# -- the manager -----------------------------------------------------------------------------------


@pytest.fixture
def manager(
    home: str,
) -> Iterator[Callable[[list[str]], tuple[list[str], subprocess.Popen[bytes]]]]:
    """A real agent in a process group of its own; gives the handles of what it started."""
    started: list[subprocess.Popen[bytes]] = []

    def start(commands: list[str]) -> tuple[list[str], subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [sys.executable, str(CHILDREN / "manager.py"), json.dumps(commands)],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        handles: list[str] = json.loads(process.stdout.readline())
        assert process.stdout.readline() == b"ready\n"
        return handles, process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_a_manager_killed_with_its_whole_group_finds_everything_again(
    manager: Manager, gate: Gate
) -> None:
    """Twenty processes go on, end, and are found with exact ends, full logs and one event each."""
    signals = {4: "SEGV", 9: "KILL", 14: "TERM", 19: "ABRT"}
    lasts = [f"kill -{signals[n]} $$" if n in signals else f"exit {n}" for n in range(20)]
    handles, agent = manager(
        [
            f"ulimit -c 0; echo begin {n}; : < {gate.path}; seq 1000; echo end {n}; {last}"
            for n, last in enumerate(lasts)
        ]
    )
    kill_group(agent)
    gate.open()
    with connect(session="managed") as hf:
        wait_until(lambda: len(list(hf.events())) == 20)
        events = {event.handle: event for event in hf.events()}
        assert list(events) != []
        assert set(events) == set(handles)
        numbers = "".join(f"{n}\n" for n in range(1, 1001))
        for n, handle in enumerate(handles):
            process = hf.get(handle)
            end = process.wait(30)
            if n in signals:
                assert (end.status, end.signal) == ("failed", f"SIG{signals[n]}")
            else:
                assert (end.code, end.reason) == (n, "exited")
            assert (events[handle].exit_code, events[handle].signal) == (end.code, end.signal)
            assert output(process) == f"begin {n}\n{numbers}end {n}\n"
        assert list(hf.events()) == [], "a waiter that got the end needs no event"


def test_an_end_while_manager_and_worker_are_dead_is_known(
    manager: Manager, gate: Gate, home: str
) -> None:
    """The guard alone sees the end: real code, one completion, and the time it happened."""
    (handle,), agent = manager([f": < {gate.path}; echo last words; exit 41"])
    person = open_client(Home(home), None)
    process = person.get(handle)
    wait_until(lambda: process.refresh().pid, what="the pid on disk, an instant after the answer")
    status = person.keeper_status()
    kill_group(agent)
    os.kill(status["guard"], signal.SIGSTOP)
    try:
        os.kill(status["worker"], signal.SIGKILL)
        wait_until(lambda: not alive(status["worker"]))
        gate.open()
        wait_until(lambda: not alive(process.record.pid))
    finally:
        os.kill(status["guard"], signal.SIGCONT)
    died = now()
    person.close()
    with connect(session="managed") as hf:
        process = hf.get(handle)
        wait_until(lambda: list(hf.events()))
        (event,) = hf.events()
        assert (event.id, event.exit_code) == (f"{handle}:end", 41)
        end = process.wait(30)
        assert (end.code, end.reason, end.ended_by) == (41, "exited", "itself")
        assert abs(ended_at(process) - died) < timedelta(seconds=5)
        assert output(process) == "last words\n"
        assert process.record.cpu_seconds is not None


# -- one half --------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["worker first", "end first"])
def test_a_worker_killed_around_an_end_leaves_it_exact(hf: SyncClient, order: str) -> None:
    """Killed just before or after a process ends: a real code, told once, with all output."""
    for n in range(8):
        process = hf.spawn(f"read line; echo $line; exit {n}", stdin=True)
        worker = hf.keeper_status()["worker"]
        if order == "worker first":
            pid = process.record.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            process.send("words\n")
            os.kill(worker, signal.SIGKILL)
            os.kill(pid, signal.SIGCONT)
        else:
            process.send("words\n")
            os.kill(worker, signal.SIGKILL)
        wait_until(lambda: list(hf.events()))
        assert [event.id for event in hf.events()] == [f"{process.handle}:end"]
        end = process.wait(30)
        assert (end.code, end.reason) == (n, "exited")
        assert output(process) == "words\n"


class Killer(threading.Thread):
    """Kills the halves in turn, so many times, each when the keeper is whole again."""

    def __init__(self, home: str, halves: list[str]) -> None:
        super().__init__()
        self.home = home
        self.halves = halves
        self.error: BaseException | None = None

    def run(self) -> None:
        person = open_client(Home(self.home), None)
        try:
            for half in self.halves:
                kill_half(person, half)
        except BaseException as error:
            self.error = error
        finally:
            person.close()


def send_once(process: SyncProcess, line: str) -> None:
    """Send a line so that it arrives once, whatever happens to the keeper meanwhile."""
    try:
        assert process.send(line) == len(line)
        return
    except KeeperError as error:
        if "look at the output" not in str(error):
            raise
    # Nobody can know whether it arrived. What was sent before a mark arrives before the mark.
    mark = f"mark {os.urandom(8).hex()}\n"
    try:
        process.send(mark)
    except KeeperError:
        pass  # the next one that gets through says it for this one as well
    else:
        wait_until(lambda: mark in output(process))
    if line not in output(process):
        send_once(process, line)


@pytest.mark.long
@pytest.mark.parametrize(
    "halves",
    [["worker"] * 40, ["guard"] * 20, ["worker", "guard"] * 20],
    ids=["worker", "guard", "alternately"],
)
def test_the_keeper_killed_again_and_again_under_load(
    home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, halves: list[str]
) -> None:
    """Codes exact, logs whole, stdin goes on, deadlines hold, nothing twice, each told once."""
    monkeypatch.setenv("HOLDFAST_MAX_RUNNING", "100")
    monkeypatch.setenv("HOLDFAST_MAX_FINISHED", "100000")
    starts = tmp_path / "starts"
    with connect(session="load") as hf:
        killer = Killer(home, halves)
        killer.start()
        echo = hf.spawn("cat", stdin=True, timeout=None)
        long = hf.spawn("sleep 1000", timeout=1.0)
        begun: list[SyncProcess] = []
        lines = []
        try:
            while killer.is_alive() and len(begun) < 600:
                n = len(begun)
                begun.append(
                    hf.spawn(
                        f"echo $HOLDFAST_HANDLE >> {starts}; echo out {n}; sleep 0.0{n % 9}; "
                        f"echo end {n}; exit {n % 250}"
                    )
                )
                if n % 3 == 0:
                    lines.append(f"line {n}\n")
                    send_once(echo, lines[-1])
                if n >= 20 and n % 2 == 0:
                    assert exact(begun[n - 20].wait(30), (n - 20) % 250)
        finally:
            killer.join(60)
        assert killer.error is None
        assert not killer.is_alive()
        for n, process in enumerate(begun):
            wait_until(lambda p=process: not p.refresh().running)  # type: ignore[misc]
            assert exact(Exit.of(process.record), n % 250), process
            assert output(process) == f"out {n}\nend {n}\n"
        assert long.wait(30).status == "timed_out"
        echo.send("", eof=True)
        assert exact(echo.wait(30), 0)
        echoed = [line for line in output(echo).splitlines(True) if not line.startswith("mark")]
        assert echoed == lines
        assert sorted(starts.read_text().split()) == sorted(process.handle for process in begun)
        waited = begun[0 : max(0, len(begun) - 20) : 2]
        expected = sorted(f"{p.handle}:end" for p in begun if p not in waited)
        wait_until(lambda: len(list(hf.events())) >= len(expected))
        assert sorted(event.id for event in hf.events()) == expected


def test_the_asynchronous_client_goes_on_through_kills_too(
    home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Many requests at once on one connection: each is answered, and done once."""
    monkeypatch.setenv("HOLDFAST_MAX_RUNNING", "100")
    starts = tmp_path / "starts"
    handles = []

    async def life(hf: Client, n: int) -> None:
        command = f"echo $HOLDFAST_HANDLE >> {starts}; echo out {n}; sleep 0.0{n % 9}; exit {n}"
        process = await hf.spawn(command)
        handles.append(process.handle)
        assert exact(await process.wait(), n)
        assert (await process.tail()).text == f"out {n}\n"

    async def main() -> None:
        async with connect(session="load") as hf:
            killer = Killer(home, ["worker", "guard"] * 4)
            killer.start()
            n = 0
            while killer.is_alive() and n < 200:
                await asyncio.gather(*(life(hf, n + k) for k in range(10)))
                n += 10
            killer.join(60)
            assert killer.error is None
            assert not killer.is_alive()
            assert [event async for event in hf.events()] == []

    asyncio.run(main())
    assert sorted(starts.read_text().split()) == sorted(handles)


@pytest.mark.parametrize("half", ["worker", "guard"])
def test_a_new_half_is_there_at_once(hf: SyncClient, half: str) -> None:
    """A call that meets a keeper without one half is answered by the next, and soon."""
    before = hf.keeper_status()
    begun = time.monotonic()
    os.kill(before[half], signal.SIGKILL)
    wait_until(lambda: hf.keeper_status()["worker"] != before["worker"])
    assert hf.spawn("exit 6").wait(30).code == 6
    assert time.monotonic() - begun < 60


def test_a_stop_goes_on_where_a_killed_worker_left_it(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """A kill under way when the worker dies is finished by the next, at the same moment."""
    process = ready(hf.spawn(child("ignores_term"), grace=60))
    results: list[Any] = []
    killing = threading.Thread(target=lambda: results.append(process.kill(grace=1.0)))
    killing.start()
    wait_until(lambda: hf.store.load(process.handle).stop is not None)
    kill_half(hf, "worker")
    killing.join(30)
    (receipt,) = results
    assert (receipt.record.status, receipt.record.signal) == ("killed", "SIGKILL")
    assert receipt.survivors == []
    stop = receipt.record.stop
    assert receipt.record.duration_seconds >= stop.kill_clock - receipt.record.started_clock


def test_a_keeper_restart_loses_nothing(hf: SyncClient, gate: Gate) -> None:
    """Both halves are renewed; stdin, output, deadlines and ends go on as if nothing had been."""
    echo = hf.spawn("cat; exit 4", stdin=True)
    echo.send("before\n")
    waiting = hf.spawn(f"echo begun; : < {gate.path}; echo done; exit 3")
    late = hf.spawn("sleep 1000", timeout=1.0)
    before = hf.keeper_status()
    after = hf.keeper_restart()
    assert {before["guard"], before["worker"]}.isdisjoint({after["worker"]})
    assert after["processes"] == 3
    echo.send("after\n", eof=True)
    assert exact(echo.wait(30), 4)
    assert output(echo) == "before\nafter\n"
    gate.open()
    assert exact(waiting.wait(30), 3)
    assert output(waiting) == "begun\ndone\n"
    assert late.wait(30).status == "timed_out"


# -- both halves -----------------------------------------------------------------------------------


def test_both_halves_killed_at_one_moment(
    hf: SyncClient, gate: Gate, child: Child, ready: Ready, kill_both: KillBoth
) -> None:
    """What runs is adopted; what ended in between is its real code or lost, never success."""
    going = hf.spawn(
        f"for n in $(seq 30); do echo $n; sleep 0.01; done; : < {gate.path}; echo late; exit 7"
    )
    reader = hf.spawn("cat; echo end of input; exit 8", stdin=True)
    reader.send("hello\n")
    patient = hf.spawn(f"cat; : < {gate.path}", stdin=True)
    overdue = hf.spawn("sleep 1000", timeout=0.5)
    deaf = ready(hf.spawn(child("ignores_term"), grace=0.3))
    daemon = ready(hf.spawn(child("daemonizes"), grace=0.3))
    kill_both(hf)
    wait_until(lambda: not alive(reader.record.pid), what="the reader sees the end of its input")
    due = overdue.record.deadline_clock
    assert due is not None
    wait_until(lambda: time.monotonic() > due)
    assert hf.keeper_status() == {"running": False}
    assert alive(going.record.pid)

    end = overdue.wait(30)
    assert (end.status, end.reason) == ("timed_out", "timeout")
    end = reader.wait(30)
    assert (end.status, end.code) in {("failed", 8), ("lost", None)}
    with pytest.raises(Unsupported, match="closed"):
        patient.send("x")
    gate.open()
    assert exact(patient.wait(30), 0)
    assert exact(going.wait(30), 7)
    assert output(going) == "".join(f"{n}\n" for n in range(1, 31)) + "late\n"
    for process in (deaf, daemon):
        receipt = process.kill()
        assert (receipt.record.status, receipt.survivors) == ("killed", [])
        assert not alive(process.record.pid)
    (line,) = [line for line in output(daemon).splitlines() if line.startswith("daemon")]
    assert not alive(int(line.split()[1]))


def test_an_adopted_process_survives_further_kills(
    hf: SyncClient, gate: Gate, kill_both: KillBoth
) -> None:
    """Adopted once, a process is held by both halves like any other."""
    process = hf.spawn(f"echo one; : < {gate.path}; echo two; exit 9")
    kill_both(hf)
    hf.spawn("true").wait(30)
    kill_half(hf, "worker")
    kill_half(hf, "guard")
    kill_both(hf)
    hf.spawn("true").wait(30)
    gate.open()
    assert exact(process.wait(30), 9)
    assert output(process) == "one\ntwo\n"


def test_a_keeper_that_adopted_goes_when_nothing_is_left(
    home: str, monkeypatch: pytest.MonkeyPatch, gate: Gate, kill_both: KillBoth
) -> None:
    """What it took up, ended in between or later, holds it no longer than anything else."""
    monkeypatch.setenv("HOLDFAST_KEEPER_IDLE", "0.2")
    with connect(session="test") as hf:
        between = hf.spawn("cat", stdin=True, stderr="separate")
        later = hf.spawn(f": < {gate.path}; exit 7")
        kill_both(hf)
        wait_until(lambda: not alive(between.record.pid))
        assert between.wait(30).status in {"completed", "lost"}
        gate.open()
        assert exact(later.wait(30), 7)
        kill_both(hf)
        assert hf.spawn("exit 4").wait(30).code == 4
    assert wait_until_gone(Home(home))
    assert not [name for name in os.listdir(Home(home).processes) if name.endswith(".out")]


def test_output_written_before_both_died_is_kept_even_if_nobody_read_it(
    hf: SyncClient, gate: Gate
) -> None:
    """What waits in the FIFO of a living process when the keeper dies is in the log afterwards."""
    process = hf.spawn(f": < {gate.path}; seq 5000; read forever < /dev/zero", timeout=None)
    status = hf.keeper_status()
    for pid in (status["guard"], status["worker"]):
        os.kill(pid, signal.SIGSTOP)
    gate.open()
    for pid in (status["guard"], status["worker"]):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(status["worker"]) and not alive(status["guard"]))
    assert hf.spawn("true").wait(30).ok
    whole = "".join(f"{n}\n" for n in range(1, 5001))
    wait_until(lambda: output(process) == whole)
    assert process.kill().record.status == "killed"


# -- deadlines -------------------------------------------------------------------------------------


def test_a_deadline_that_passes_while_the_worker_is_dead_holds(hf: SyncClient) -> None:
    """The guard is frozen and the worker dead when the deadline comes: timed out all the same."""
    process = hf.spawn("sleep 1000", timeout=0.5)
    status = hf.keeper_status()
    due = process.record.deadline_clock
    assert due is not None
    os.kill(status["guard"], signal.SIGSTOP)
    try:
        os.kill(status["worker"], signal.SIGKILL)
        wait_until(lambda: time.monotonic() > due)
    finally:
        os.kill(status["guard"], signal.SIGCONT)
    end = process.wait(30)
    assert (end.status, end.reason, end.ended_by) == ("timed_out", "timeout", "keeper")


def test_a_deadline_holds_while_workers_die_all_the_time(hf: SyncClient) -> None:
    """No worker lives long enough to see the whole wait, and the deadline is kept."""
    process = hf.spawn("sleep 1000", timeout=1.0)
    due = process.record.deadline_clock
    assert due is not None
    while time.monotonic() < due:
        kill_half(hf, "worker")
    end = process.wait(30)
    assert end.status == "timed_out"
    assert end.duration_seconds is not None
    assert 1.0 <= end.duration_seconds < 10
