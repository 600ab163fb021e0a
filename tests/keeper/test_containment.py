"""Stopped means stopped: nothing that a process started survives it, whatever that did to itself.

Each test runs with every containment that can be had here.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import SyncClient, SyncProcess, connect
from holdfast.client.connect import open_client
from holdfast.core.home import Home, new_handle
from holdfast.linux.cgroup import V2, own_groups
from holdfast.testing import end_keeper, wait_until
from tests.contained import BEST, MODES, alive, carriers, daemon_of, hf, kind, mode_of

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]

__all__ = ["hf", "kind"]  # fixtures of the tests below


def test_the_record_says_how_it_is_contained(hf: SyncClient, kind: str) -> None:
    """What was chosen is in the record, in what front ends show, and true."""
    process = hf.spawn("cat /proc/self/cgroup; sleep 1000")
    record = process.record
    assert (record.containment, record.public()["containment"]) == (kind, kind)
    assert len(record.cgroups) == (kind != "tree")
    wait_until(lambda: process.read_at(0).text.count("\n") > 0)
    groups = [os.path.basename(path) for path in record.cgroups]
    assert all(f"/{name}\n" in process.read_at(0).text for name in groups)
    assert hf.keeper_status()["containment"] == BEST
    process.kill()
    assert not any(os.path.exists(path) for path in record.cgroups)


@pytest.mark.parametrize("mode", MODES)
def test_a_daemon_that_kept_nothing_of_its_origin_is_found(
    hf: SyncClient, child: Child, ready: Ready, mode: str
) -> None:
    """Forked twice, own session, empty environment, deaf to TERM: the kill ends it too."""
    process = ready(hf.spawn(child("scrubs"), grace=0.2, **mode_of(mode)))
    daemon = daemon_of(process)
    assert alive(daemon)
    receipt = process.kill()
    assert (receipt.survivors, receipt.forced) == ([], True)
    assert not alive(daemon)
    told = {entry["pid"]: entry for entry in receipt.processes}
    assert told[daemon]["signal"] == "SIGKILL"
    assert told[daemon]["name"].startswith("python")
    assert "survived" not in told[daemon]
    assert not any(os.path.exists(path) for path in receipt.record.cgroups)


@pytest.mark.parametrize("mode", MODES)
def test_what_changes_its_pid_all_the_time_is_caught(
    hf: SyncClient, child: Child, ready: Ready, tmp_path: Path, mode: str
) -> None:
    """A new pid, session and group every millisecond do not help."""
    place = tmp_path / "pid"
    process = ready(hf.spawn(child("hops", str(place)), grace=0.1, **mode_of(mode)))
    seen = place.read_text()
    wait_until(lambda: place.read_text() != seen)
    receipt = process.kill()
    assert receipt.survivors == []
    last = place.read_text()
    assert carriers(process.handle) == []
    assert place.read_text() == last


@pytest.mark.parametrize("mode", MODES)
def test_a_deadline_ends_it_too(hf: SyncClient, child: Child, ready: Ready, mode: str) -> None:
    process = ready(hf.spawn(child("scrubs"), grace=0.1, timeout=1.5, **mode_of(mode)))
    daemon = daemon_of(process)
    assert process.wait(30).status == "timed_out"
    wait_until(lambda: not alive(daemon))


@pytest.mark.parametrize("mode", MODES)
def test_a_closed_session_leaves_nothing(
    home: str, kind: str, child: Child, ready: Ready, mode: str
) -> None:
    """Of what runs and of what has ended; what was to be kept stays."""
    with connect(session="closing") as client:
        running = ready(client.spawn(child("scrubs"), grace=0.2, **mode_of(mode)))
        ended = ready(client.spawn(child("scrubs", "0"), grace=0.2))
        kept = ready(client.spawn(child("scrubs", "0"), grace=0.2, keep=True))
        assert ended.wait(30).ok
        assert kept.wait(30).ok
        daemons = [daemon_of(process) for process in (running, ended, kept)]
    assert [alive(daemon) for daemon in daemons] == [False, False, True]
    with connect(session="closing") as client:
        assert client.get(kept.handle).kill(signal="KILL").survivors == []
    assert not alive(daemons[2])


def test_a_lost_client_leaves_nothing_after_the_grace(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """The agent was killed with -9; when its time is up, all of it is gone."""
    running, ended = new_handle(), new_handle()
    pid = os.fork()
    if pid == 0:
        try:
            client = connect(session="lost", lease_grace=0.5).__enter__()
            ready(client.spawn(child("scrubs"), grace=0.1, handle=running))
            ready(client.spawn(child("scrubs", "0"), grace=0.1, handle=ended))
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    wait_until(lambda: not carriers(running) + carriers(ended))


def test_killing_what_has_ended_ends_what_it_left(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """Its own end stands; the receipt says what else was done."""
    process = ready(hf.spawn(child("scrubs", "3"), grace=0.1))
    daemon = daemon_of(process)
    assert process.wait(30).code == 3
    assert alive(daemon), "an end by itself ends nobody else"
    receipt = process.kill()
    assert (receipt.already_ended, receipt.forced, receipt.survivors) == (True, True, [])
    assert [entry["pid"] for entry in receipt.processes] == [daemon]
    assert (receipt.record.status, receipt.record.exit_code) == ("failed", 3)
    assert not alive(daemon)
    again = process.kill()
    assert (again.already_ended, again.signalled, again.processes) == (True, 0, [])


@pytest.mark.parametrize("mode", MODES)
def test_removing_what_runs_ends_all_of_it(
    hf: SyncClient, child: Child, ready: Ready, mode: str
) -> None:
    process = ready(hf.spawn(child("scrubs"), grace=0.1, **mode_of(mode)))
    daemon = daemon_of(process)
    process.remove()
    assert not alive(daemon)
    assert carriers(process.handle) == []
    assert not any(os.path.exists(path) for path in process.record.cgroups)


def test_removing_what_has_ended_ends_what_it_left(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    process = ready(hf.spawn(child("scrubs", "0"), grace=0.1))
    daemon = daemon_of(process)
    assert process.wait(30).ok
    process.remove()
    assert not alive(daemon)


def test_what_left_something_behind_is_not_forgotten(
    home: str, child: Child, ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a daemon of it runs, its handle is there to end it by, if its group tells that."""
    monkeypatch.setenv("HOLDFAST_MAX_FINISHED", "2")
    with connect(session="small") as client:
        process = ready(client.spawn(child("scrubs", "0"), grace=0.1))
        assert process.wait(30).ok
        daemon = daemon_of(process)
        first = client.spawn("true")
        first.wait(30)
        for _ in range(3):
            client.spawn("true").wait(30)
        handles = [each.handle for each in client.list()]
        assert first.handle not in handles
        assert (process.handle in handles) is (BEST != "tree")
        if process.handle in handles:
            process.kill()
        else:
            os.kill(daemon, signal.SIGKILL)
        wait_until(lambda: not alive(daemon))


def test_nobody_else_is_touched(hf: SyncClient, child: Child, ready: Ready) -> None:
    """Another process with children of its own, and its daemon, go on."""
    other = ready(hf.spawn(child("scrubs")))
    process = ready(hf.spawn(child("scrubs"), grace=0.1))
    assert process.kill().survivors == []
    assert alive(daemon_of(other))
    assert other.refresh().running
    assert other.kill(grace=0).survivors == []


@pytest.mark.own_keeper
@pytest.mark.parametrize("half", ["guard", "worker"])
def test_what_a_dead_half_began_is_finished(
    hf: SyncClient, child: Child, ready: Ready, half: str
) -> None:
    """After a kill -9 of a half of the keeper the next one finds everything again."""
    process = ready(hf.spawn(child("scrubs"), grace=0.2))
    daemon = daemon_of(process)
    old = hf.keeper_status()[half]
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: hf.keeper_status()[half] != old)
    assert process.kill().survivors == []
    assert not alive(daemon)
    assert not any(os.path.exists(path) for path in process.record.cgroups)


def test_both_halves_dead_leave_nothing_that_cannot_be_killed(
    hf: SyncClient, child: Child, ready: Ready, kill_both: Callable[[SyncClient], None]
) -> None:
    process = ready(hf.spawn(child("scrubs"), grace=0.2))
    daemon = daemon_of(process)
    kill_both(hf)
    assert process.kill().survivors == []
    assert not alive(daemon)


def test_a_keeper_is_in_nobodys_group(
    hf: SyncClient, child: Child, ready: Ready, tmp_path: Path
) -> None:
    """A keeper that a contained process starts does not end with that process."""
    inner = str(tmp_path / "inner")
    code = f"""
import holdfast, signal
with holdfast.connect(home={inner!r}) as hf:
    hf.spawn("sleep 1000", keep=True)
print("ready", flush=True)
signal.pause()
"""
    process = ready(hf.spawn([sys.executable, "-c", code]))
    process.kill(grace=0)
    client = open_client(Home(inner), None)
    (record,), _ = client.store.scan()
    assert alive(record.pid or 0)
    assert client.keeper_status()["processes"] == 1
    client.close()
    end_keeper(inner)


@pytest.mark.parametrize("mode", MODES)
def test_a_fork_bomb_is_cleared_by_one_kill(
    hf: SyncClient, child: Child, ready: Ready, mode: str
) -> None:
    """At its limit of processes, forking as fast as it can: one kill, and nothing is left."""
    process = ready(hf.spawn(child("forks_wildly", "120"), processes=60, **mode_of(mode)))
    begun = time.monotonic()
    receipt = process.kill(signal="KILL")
    assert time.monotonic() - begun < 30
    assert receipt.survivors == []
    assert carriers(process.handle) == []
    assert len(receipt.processes) > 20


@pytest.mark.weight(4)
def test_a_keeper_that_comes_late_kills_all_the_same(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """It was held up for longer than the grace and all patience together."""
    process = ready(hf.spawn(child("scrubs"), grace=1))
    daemon, worker = daemon_of(process), hf.keeper_status()["worker"]
    with ThreadPoolExecutor(1) as threads:
        kill = threads.submit(process.kill)
        wait_until(lambda: not alive(process.record.pid))
        os.kill(worker, signal.SIGSTOP)
        until = time.monotonic() + 4
        wait_until(lambda: time.monotonic() > until)
        os.kill(worker, signal.SIGCONT)
        assert kill.result(30).survivors == []
    assert not alive(daemon)


def test_many_that_are_deaf_are_all_ended_when_their_grace_is_over(
    hf: SyncClient, ready: Ready
) -> None:
    """One look serves all of them; what that costs is measured by `make bench`."""
    command = "(trap '' TERM; exec setsid sleep 1000) & echo ready; exec sleep 1000"
    processes = [ready(hf.spawn(command, grace=0.5, max_running=100)) for _ in range(30)]
    assert not any(receipt.survivors for receipt in hf.stop_all())
    assert carriers(*(process.handle for process in processes)) == []


if BEST != "tree":

    def test_no_group_is_used_twice(hf: SyncClient, kind: str) -> None:
        """What happened in one, a memory that ran out or a kill, says nothing of another."""
        seen: set[str] = set()
        for _ in range(5):
            process = hf.spawn("true")
            assert process.wait(30).ok
            assert not seen & set(process.record.cgroups)
            seen |= set(process.record.cgroups)
        wait_until(lambda: not any(os.path.exists(path) for path in seen))

    def test_who_kills_his_own_group_kills_nobody_else(hf: SyncClient, kind: str) -> None:
        """Also not those that come after him."""
        (group,) = hf.spawn("true").record.cgroups or [""]
        own = os.path.dirname(group)
        files = f"{own}/$(tail -1 /proc/self/cgroup | grep -o '[^/]*$')/cgroup.kill"
        process = hf.spawn(f"echo 1 > {files}; kill -9 $$")
        assert process.wait(30).signal == "SIGKILL"
        assert [hf.spawn(f"exit {n}").wait(30).code for n in range(5)] == list(range(5))

    def test_who_froze_a_group_of_his_own_is_killed(
        hf: SyncClient, ready: Ready, kind: str
    ) -> None:
        process = hf.spawn(
            "read line; sleep 1000 & echo $!; read line; echo ready; wait", stdin=True
        )
        for group in process.record.cgroups:
            os.mkdir(f"{group}/inner")
        process.send("go", enter=True)
        wait_until(lambda: process.read_at(0).text.endswith("\n"))
        frozen = int(process.read_at(0).text)
        for group in process.record.cgroups:
            inner = Path(group, "inner")
            (inner / "cgroup.procs").write_text(str(frozen))
            state = inner / "freezer.state"
            new = state.exists()
            (state if new else inner / "cgroup.freeze").write_text("FROZEN" if new else "1")
        process.send("go", enter=True)
        assert ready(process).kill(grace=0.1).survivors == []
        assert not alive(frozen)
        assert not any(os.path.exists(path) for path in process.record.cgroups)

    @pytest.mark.own_keeper
    def test_a_group_that_the_living_made_is_left_alone(
        hf: SyncClient, child: Child, ready: Ready, kind: str
    ) -> None:
        """When a keeper looks for what is over, as long as somebody is in there it is not."""
        process = ready(hf.spawn(child("scrubs", "0"), grace=0.1))
        assert process.wait(30).ok
        inner = [f"{group}/inner" for group in process.record.cgroups]
        for path in inner:
            os.mkdir(path)
        old = hf.keeper_status()["worker"]
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: hf.keeper_status()["worker"] != old)
        hf.spawn("true").wait(30)
        assert all(os.path.exists(path) for path in inner)
        assert process.kill().survivors == []
        assert not any(os.path.exists(path) for path in process.record.cgroups)

    def test_what_moves_to_another_group_is_found_by_its_mark(
        hf: SyncClient, child: Child, ready: Ready, kind: str
    ) -> None:
        """Whoever may make groups may leave one; that alone does not help."""
        trees = {"cgroup": [V2], "cgroup-v1": ["freezer"], "tree": []}[kind]
        doors = [f"{own_groups()[tree]}/cgroup.procs" for tree in trees]
        process = ready(hf.spawn(child("moves_out", *doors), grace=0.1))
        daemon = daemon_of(process)
        receipt = process.kill()
        assert receipt.survivors == []
        assert not alive(daemon)
        assert daemon in [entry["pid"] for entry in receipt.processes]
