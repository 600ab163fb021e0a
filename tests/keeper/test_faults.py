"""Faults that must be survived, in every mode and with every containment that can be had here.

Halves of the keeper killed, pids used again, a full disk, no descriptors left, deaf processes,
kills that race the end, and many of everything: no process and no control group is left over.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from holdfast import HoldfastError, SpawnError, StoreError, SyncClient, SyncProcess, connect
from holdfast.client.connect import open_client
from holdfast.core.home import Home, new_handle
from holdfast.linux.kernel import all_processes, stat
from holdfast.testing import wait_until
from tests.contained import MODES, alive, carriers, groups_of, hf, inhabited, kind, mode_of
from tests.proc_files import descriptors_at_rest, first_free_descriptor, turns
from tests.stepping import killed_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]
KillBoth = Callable[[SyncClient], None]

__all__ = ["hf", "kind"]  # fixtures of the tests below

MOST_SPARES = 8  # a group that is ready for the next one, and what each tree has for them
LAST_PID = "/proc/sys/kernel/ns_last_pid"


def kill_half(hf: SyncClient, half: str) -> None:
    old = hf.keeper_status()[half]
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: hf.keeper_status()[half] != old)


def nothing_left(hf: SyncClient, *processes: SyncProcess) -> None:
    """No process of these, nobody in a group of the home's, and not more groups than spare ones."""
    assert carriers(*(process.handle for process in processes)) == []
    wait_until(lambda: not inhabited(hf.home.path))
    wait_until(lambda: len(groups_of(hf.home.path)) <= MOST_SPARES)


# -- 3: halves of the keeper -----------------------------------------------------------------------


@pytest.mark.long
def test_halves_killed_again_and_again_change_no_code(hf: SyncClient, child: Child) -> None:
    """In all modes at once: every code exact, who reads goes on, a deadline holds."""
    echoes = [hf.spawn("cat; exit 9", stdin=True, **mode_of(mode)) for mode in MODES]
    late = hf.spawn(child("ignores_term", "HUP"), timeout=2.0, grace=0.2, tty=True)
    ends: list[SyncProcess] = []
    for n in range(12):
        kill_half(hf, "guard" if n % 3 == 2 else "worker")
        ends += [hf.spawn(f"sleep 0.0{n % 5}; exit {n}", **mode_of(mode)) for mode in MODES]
        for echo in echoes:
            line = f"line {n}"
            echo.send(line, enter=True)
            wait_until(lambda e=echo, line=line: line in e.read_at(0).text)  # type: ignore[misc]
    assert [each.wait(30).code for each in ends] == [n // 3 for n in range(len(ends))]
    assert late.wait(30).status == "timed_out"
    for echo in echoes:
        echo.send("", eof=True)
        assert echo.wait(30).code == 9
    nothing_left(hf, late, *echoes, *ends)


@pytest.mark.parametrize("mode", MODES)
def test_both_halves_killed_leave_nothing_that_cannot_be_killed(
    hf: SyncClient, child: Child, ready: Ready, kill_both: KillBoth, mode: str
) -> None:
    """A terminal's process may be hung up; what it started is found and ended all the same."""
    process = ready(hf.spawn(child("scrubs"), grace=0.2, **mode_of(mode)))
    ended = hf.spawn("sleep 0.05; exit 3", **mode_of(mode))
    kill_both(hf)
    wait_until(lambda: not alive(ended.record.pid))
    receipt = process.kill()
    assert receipt.survivors == []
    assert ended.wait(30).status in ("failed", "lost")
    nothing_left(hf, process, ended)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "stride"), [("pipe", 5), ("pty", 9), ("tmux", 23)])
def test_a_worker_killed_at_each_step_of_a_start_leaves_nobody_unaccounted_for(
    hf: SyncClient, kind: str, mode: str, stride: int
) -> None:
    """It runs, in the group that its record names, or it never was; and there is no other group."""
    step, reached = 0, True
    while reached:
        handle = new_handle()
        worker = hf.keeper_status()["worker"]
        command = partial(hf.spawn, "exec sleep 1000", handle=handle, **mode_of(mode))
        result, reached = killed_at(worker, step, command)
        assert isinstance(result, SyncProcess), (step, result)
        record = result.refresh()
        assert record.running, step
        assert carriers(handle) == [record.pid], step
        assert inhabited(hf.home.path) == sorted(record.cgroups), step
        assert len(record.cgroups) == (kind != "tree")
        assert result.kill(grace=0).survivors == []
        nothing_left(hf, result)
        step += stride
    assert step > 60


# -- 6: pids that are used again -------------------------------------------------------------------


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("mode", ["pipe", "pty"])
def test_a_recorded_pid_of_somebody_elses_is_not_signalled(
    hf: SyncClient,
    child: Child,
    ready: Ready,
    kill_both: KillBoth,
    bystander: subprocess.Popen[bytes],
    mode: str,
) -> None:
    """The record is lost, the daemon it left is ended, and whoever has the pid now goes on.

    In tmux the number is not free before a keeper has seen the end: its parent holds it.
    """
    process = ready(hf.spawn(child("scrubs"), grace=0.1, **mode_of(mode)))
    kill_both(hf)
    os.kill(process.record.pid or 0, signal.SIGKILL)
    wait_until(lambda: not alive(process.record.pid))
    record = hf.store.load(process.handle)  # a look would start a keeper
    record.pid = bystander.pid
    record.start_time = (record.start_time or 0) + 1  # a tick, should they be of the same one
    hf.store.save(record)
    wait_until(lambda: not process.refresh().running)
    assert (process.record.status, process.record.pid) == ("lost", bystander.pid)
    receipt = process.kill(signal="KILL")
    assert receipt.already_ended
    assert bystander.pid not in [entry["pid"] for entry in receipt.processes]
    process.remove()
    assert bystander.poll() is None
    nothing_left(hf, process)


if os.geteuid() == 0 and os.path.exists(LAST_PID):

    def use_again(pid: int) -> subprocess.Popen[bytes]:
        """Start somebody who has a pid that was another's."""
        for _ in range(1000):
            with open(LAST_PID, "w") as file:
                file.write(str(pid - 1))
            other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            if other.pid == pid:
                return other
            other.kill()
            other.wait()
        raise AssertionError("somebody else always had it first")

    def test_who_gets_the_pid_of_a_dead_process_is_left_alone(
        hf: SyncClient, child: Child, ready: Ready
    ) -> None:
        """With the very number, as leader of its own group: a kill of what was left spares it."""
        process = ready(hf.spawn(child("scrubs", "3"), grace=0.5))
        assert process.wait(30).code == 3
        other = use_again(process.record.pid or 0)
        try:
            assert process.kill().survivors == []
            process.remove()
            assert other.poll() is None
        finally:
            other.kill()
            other.wait()
        nothing_left(hf, process)

    def test_who_gets_the_pid_while_the_rest_is_stopped_is_left_alone(
        hf: SyncClient, child: Child, ready: Ready
    ) -> None:
        """It ends at once, what it left has a grace, and meanwhile its number is another's."""
        process = ready(hf.spawn(child("scrubs"), grace=2.0))
        with ThreadPoolExecutor(1) as threads:
            kill = threads.submit(process.kill)
            wait_until(lambda: stat(process.record.pid or 0) is None)
            other = use_again(process.record.pid or 0)
            try:
                receipt = kill.result(30)
                assert (receipt.survivors, receipt.forced) == ([], True)
                assert other.poll() is None
            finally:
                other.kill()
                other.wait()
        nothing_left(hf, process)


# -- 15: no room, no descriptors -------------------------------------------------------------------


@contextmanager
def limited(hf: SyncClient, number: int, value: int) -> Iterator[None]:
    status = hf.keeper_status()
    pids = [status["guard"], status["worker"]]
    before = [resource.prlimit(pid, number) for pid in pids]
    for pid, (_, hard) in zip(pids, before, strict=True):
        resource.prlimit(pid, number, (value, hard))
    try:
        yield
    finally:
        for pid, limits in zip(pids, before, strict=True):
            resource.prlimit(pid, number, limits)


@pytest.mark.parametrize("mode", MODES)
def test_on_a_full_disk_nothing_is_started_and_no_group_made(hf: SyncClient, mode: str) -> None:
    """The error says so; what runs ends with its own code; with room again all goes on."""
    running = hf.spawn("read line; exit 6", stdin=True, **mode_of(mode))
    before = groups_of(hf.home.path)
    with limited(hf, resource.RLIMIT_FSIZE, 0):
        refused = new_handle()
        with pytest.raises((StoreError, SpawnError)):
            hf.spawn("sleep 1000", handle=refused, **mode_of(mode))
        assert carriers(refused) == []
        running.send("x", enter=True)
        wait_until(lambda: not alive(running.record.pid))
    assert running.wait(30).code == 6
    after = hf.spawn("exit 4", **mode_of(mode))
    assert after.wait(30).code == 4
    nothing_left(hf, running, after)
    assert len(groups_of(hf.home.path)) <= len(before) + 2, "one more is spare, and one ready"


@pytest.mark.parametrize("mode", MODES)
def test_out_of_descriptors_nothing_is_started_and_nothing_leaks(hf: SyncClient, mode: str) -> None:
    """A clear error each time, whichever descriptor is the one too many; kills need only a few."""
    first = hf.spawn("exit 1", **mode_of(mode))
    assert first.wait(30).code == 1
    running = hf.spawn("sleep 1000 & sleep 1000", grace=0.2, **mode_of(mode))
    worker = hf.keeper_status()["worker"]
    used = max(descriptors_at_rest(worker)) + 1
    handles, refusals = [], []
    for spare in range(0, 60, 4):
        handles.append(new_handle())
        with limited(hf, resource.RLIMIT_NOFILE, used + spare):
            try:
                process = hf.spawn(f"exit {spare}", handle=handles[-1], **mode_of(mode))
            except HoldfastError as error:
                refusals.append(str(error))
                continue
        assert process.wait(30).code == spare
    with limited(hf, resource.RLIMIT_NOFILE, used + 8):
        assert running.kill().survivors == []
    assert refusals
    assert [text for text in refusals if "descriptors" not in text and "files" not in text] == []
    assert hf.keeper_status()["worker"] == worker
    assert carriers(*handles) == []
    assert hf.spawn("exit 5", **mode_of(mode)).wait(30).code == 5
    nothing_left(hf, first, running)


def test_a_session_for_which_there_is_no_descriptor_leaves_none_behind(hf: SyncClient) -> None:
    """Whichever is the one too many: the connection, the pidfd of the holder, or a look at it."""
    hf.spawn("exit 0").wait(30)
    worker = hf.keeper_status()["worker"]
    descriptors = Path(f"/proc/{worker}/fd")
    open_ones = descriptors_at_rest(worker)
    before, used = len(open_ones), max(open_ones) + 1
    refused = 0
    for spare in range(1, 5):
        for _ in range(3):
            with limited(hf, resource.RLIMIT_NOFILE, used + spare):
                try:
                    with connect(home=hf.home.path, session="another") as other:
                        other.spawn("true")
                except HoldfastError:
                    refused += 1
    assert refused
    wait_until(lambda: len(os.listdir(descriptors)) <= before, what="no more than before")
    assert hf.keeper_status()["worker"] == worker


@pytest.mark.parametrize("mode", MODES)
def test_an_end_without_a_descriptor_to_look_with_is_found_out_later(
    hf: SyncClient, mode: str
) -> None:
    """The worker asks the group of a process for its end; it goes on when it cannot."""
    process = hf.spawn("sleep 1000", **mode_of(mode))
    worker, pid = hf.keeper_status()["worker"], process.record.pid or 0
    with limited(hf, resource.RLIMIT_NOFILE, first_free_descriptor(worker)):
        os.kill(pid, signal.SIGKILL)
        before = turns(worker)
        wait_until(lambda: not alive(pid) and turns(worker) > before + 3)
    assert process.wait(60).signal == "SIGKILL"
    assert hf.keeper_status()["worker"] == worker


def test_the_end_of_what_an_earlier_worker_began_is_found_out_later_too(hf: SyncClient) -> None:
    """The guard reaps it, and the worker looks for its note; with no descriptor, once more."""
    process = hf.spawn("sleep 1000 & exec sleep 1000")  # one has its output open after its end
    first, pid = hf.keeper_status()["worker"], process.record.pid or 0
    os.kill(first, signal.SIGKILL)
    worker = wait_until(lambda: (now := hf.keeper_status()["worker"]) != first and now)
    guard = hf.keeper_status()["guard"]
    free = first_free_descriptor(worker)
    soft, hard = resource.prlimit(worker, resource.RLIMIT_NOFILE)

    def looks() -> None:
        before = turns(worker)
        wait_until(lambda: not alive(pid) and turns(worker) > before + 3)

    os.kill(guard, signal.SIGSTOP)  # so that there is no note for a while
    try:
        os.kill(pid, signal.SIGKILL)
        looks()
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (free, hard))
        looks()
    finally:
        os.kill(guard, signal.SIGCONT)
    resource.prlimit(worker, resource.RLIMIT_NOFILE, (soft, hard))
    assert process.wait(60).signal == "SIGKILL"
    assert hf.keeper_status()["worker"] == worker
    assert "Traceback" not in Path(hf.home.keeper_log).read_text()
    process.kill(grace=0)


CLAIMS = """
import fcntl, os, resource, sys
from holdfast.core.home import Home
from holdfast.keeper.guard import Guard
from holdfast.keeper.held_fds import Held
from holdfast.keeper.presence import bind
from holdfast.linux.kernel import RLIMIT_MARK, mark_number

def ended(mark):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if mark:
            resource.setrlimit(RLIMIT_MARK, (mark_number(mark), resource.RLIM_INFINITY))
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

home, handle, other = Home(sys.argv[1]).ensure(), sys.argv[2], sys.argv[3]
lock = os.open(home.lock, os.O_RDWR | os.O_CREAT, 0o600)
guard = Guard(home, lock, bind(home), {}, 60.0, 1024, fresh=False)
guard._worker, guard._launched_clock = 0, 0
for children in ([None, other], [None, handle, other]):
    pids = {mark: ended(mark) for mark in children}
    guard._launching, guard._coming = handle, Held(0, -1)
    guard._claim(handle)
    held = guard.table.get(handle)
    print(held is not None and held.pid == pids[handle])
"""


def test_only_what_was_being_launched_is_taken_for_it(tmp_path: Path) -> None:
    """A worker that is killed leaves helpers that ended with it, and daemons that nobody reaped."""
    script = [sys.executable, "-c", CLAIMS, str(tmp_path / "home"), new_handle(), new_handle()]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["False", "True"], "")


FAILING = """
import fcntl, os, sys, time
from holdfast.core.home import Home
from holdfast.keeper import worker
from holdfast.keeper.channel import Ends
from holdfast.keeper.guard import Guard
from holdfast.keeper.presence import bind

def fail(*given):
    raise OSError(24, "no descriptors")

home = Home(sys.argv[1])
lock = os.open(home.lock, os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(lock, fcntl.LOCK_EX)
guard = Guard(home, lock, bind(home), {}, 60.0, 1024, fresh=False)
ends = Ends()
ends.make()
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:  # with all its descriptors
    time.sleep(0.001)
print(os.getpid(), flush=True)
worker.Worker = fail
worker.run_worker(guard, ends.for_worker())
"""


def test_a_worker_that_fails_when_its_guard_is_gone_takes_its_place(hf: SyncClient) -> None:
    """Nobody else would start another, and what it holds would be lost."""
    hf.keeper_stop()
    told = subprocess.run(
        [sys.executable, "-c", FAILING, hf.home.path],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    wait_until(lambda: hf.keeper_status().get("guard") == int(told.stdout))
    assert hf.spawn("exit 6").wait(30).code == 6


# -- 17: the deaf, the quick, and races ------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_deaf_are_killed_at_the_end_of_their_grace(
    hf: SyncClient, child: Child, ready: Ready, mode: str
) -> None:
    process = ready(hf.spawn(child("ignores_term", "HUP"), grace=60, **mode_of(mode)))
    begun = time.monotonic()
    receipt = process.kill(grace=0.5)
    assert 0.5 <= time.monotonic() - begun < 50
    assert (receipt.forced, receipt.survivors) == (True, [])
    assert (receipt.record.status, receipt.record.signal) == ("killed", "SIGKILL")
    nothing_left(hf, process)


@pytest.mark.parametrize("mode", MODES)
def test_who_ends_at_once_is_not_waited_for(
    hf: SyncClient, child: Child, ready: Ready, mode: str
) -> None:
    process = ready(hf.spawn(child("exits_on_term", "43"), grace=100, **mode_of(mode)))
    begun = time.monotonic()
    receipt = process.kill()
    assert time.monotonic() - begun < 30
    assert (receipt.forced, receipt.record.status, receipt.record.exit_code) == (
        False,
        "killed",
        43,
    )
    again = process.kill(signal="KILL")
    assert (again.already_ended, again.signalled, again.record) == (True, 0, receipt.record)


@pytest.mark.parametrize("mode", MODES)
def test_a_kill_that_races_the_end_tells_one_story(hf: SyncClient, mode: str) -> None:
    """Two kills at once, and an end that may have come first: all agree, and one event is told."""
    processes = []
    for n in range(8):
        process = hf.spawn(f"sleep 0.00{n}; exit 5", grace=30, **mode_of(mode))
        with ThreadPoolExecutor(1) as threads:
            person = open_client(Home(hf.home.path), None)
            other = threads.submit(person.get(process.handle).kill)
            receipt, theirs = process.kill(), other.result(30)
            assert theirs.record == receipt.record
            person.close()
        end = process.wait(30)
        if receipt.already_ended and theirs.already_ended:
            assert (end.status, end.code) == ("failed", 5)
        else:
            assert end.status == "killed"
        assert process.refresh() == receipt.record
        processes.append(process)
    events = list(hf.events(acknowledged=True))
    assert len({event.id for event in events}) == len(events) == 8
    nothing_left(hf, *processes)


# -- 23: many --------------------------------------------------------------------------------------


def held(hf: SyncClient) -> list[int]:
    status = hf.keeper_status()
    return [len(os.listdir(f"/proc/{status[half]}/fd")) for half in ("guard", "worker")]


def zombies(hf: SyncClient) -> list[int]:
    status = hf.keeper_status()
    parents = {status["guard"], status["worker"]}
    return [each.pid for each in all_processes() if each.parent in parents and each.state == "Z"]


@pytest.mark.weight(8)
@pytest.mark.long
def test_a_thousand_starts_and_ends_leave_the_keeper_as_it_was(hf: SyncClient) -> None:
    """No descriptor, zombie or group more, and no memory to speak of."""
    for _ in range(50):
        hf.spawn(["true"]).wait(30)
    wait_until(lambda: not zombies(hf))
    before, memory = held(hf), hf.keeper_status()["memory_bytes"]
    processes = []
    for n in range(1000):
        processes.append(hf.spawn(["sh", "-c", f"exit {n % 250}"]))
        if n >= 4:
            assert processes[n - 4].wait(30).code == (n - 4) % 250
    assert [each.wait(30).code for each in processes[-4:]] == [n % 250 for n in range(996, 1000)]
    wait_until(lambda: not zombies(hf))
    wait_until(lambda: held(hf) <= before, what="the descriptors are let go")
    assert hf.keeper_status()["memory_bytes"] < memory + (4 << 20)
    nothing_left(hf, *processes[-50:])


@pytest.mark.weight(8)
@pytest.mark.long
def test_a_thousand_at_once_have_their_own_codes(
    home: str, kind: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All run at the same time, and end in the same moment; or are killed with one call."""
    monkeypatch.setenv("HOLDFAST_MAX_RUNNING", "1000")
    monkeypatch.setenv("HOLDFAST_MAX_FINISHED", "1000")
    with connect(session="many") as client:
        command = f": < {gate.path}; exit "
        processes = [client.spawn(["sh", "-c", f"{command}{n % 250}"]) for n in range(1000)]
        assert client.keeper_status()["processes"] == 1000
        assert len(inhabited(home)) == (0 if kind == "tree" else 1000)
        gate.open()
        assert [each.wait(60).code for each in processes] == [n % 250 for n in range(1000)]
        nothing_left(client, *processes[::100])


CONNECT = """
import resource, sys, holdfast
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
with holdfast.connect(home=sys.argv[1]): pass
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
def test_a_low_limit_of_descriptors_is_the_processes_not_the_keepers(
    home: str, kind: str, mode: str
) -> None:
    """A hundred run where each has 64 descriptors, as whoever started the keeper had."""
    subprocess.run([sys.executable, "-c", CONNECT, home], check=True, timeout=60)
    with connect(session="many") as client:
        crowd = [client.spawn(["sleep", "1000"], max_running=200) for _ in range(99)]
        process = client.spawn("ulimit -Sn", max_running=200, **mode_of(mode))
        assert process.wait(30).ok
        assert process.read_at(0).text.split() == ["64"]
        client.stop_all(grace=10)
        nothing_left(client, process, *crowd)


def test_a_hundred_are_killed_at_once(hf: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call, a receipt for each, and nobody is left."""
    processes = [hf.spawn(["sleep", "1000"], max_running=200) for _ in range(100)]
    receipts = hf.stop_all(grace=10)
    assert len(receipts) == 100
    assert all(receipt.survivors == [] for receipt in receipts)
    nothing_left(hf, *processes)
