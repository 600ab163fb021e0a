"""Groups: what belongs together is listed, waited for, stopped and told of as one."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from holdfast import (
    BadRequest,
    Event,
    KeeperError,
    NotFound,
    NotRunning,
    StoreError,
    SyncClient,
    SyncGroup,
    WaitTimeout,
    connect,
)
from holdfast.core.outbox import read_events
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until
from tests.stepping import killed_at
from tests.tmux_of import server_pid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper


def told(hf: SyncClient) -> list[Event]:
    """All that the session was ever told, acknowledged or not."""
    return read_events(hf.home, hf.session or "")


def one_event(hf: SyncClient) -> Event:
    """The group's event, once it is there."""
    (event,) = wait_until(lambda: [e for e in hf.events() if e.type == "group"])
    return event


def test_a_group_has_its_own_and_no_others(hf: SyncClient, session: str) -> None:
    group = hf.group("web")
    server = group.spawn("exec sleep 1000", label="server")
    hf.spawn("exec sleep 1000")
    hf.spawn("exec sleep 1000", group="website")
    with connect(session=f"{session}-other") as other:
        other.group("web").spawn("exec sleep 1000")
        assert [process.handle for process in group.list()] == [server.handle]
    assert [process.handle for process in hf.list(group="web")] == [server.handle]


def test_a_group_is_stopped_together_and_nothing_else_is(hf: SyncClient) -> None:
    """Side by side: two that ignore TERM take one grace; what is beside them runs on."""
    group = hf.group("web")
    first, second = (group.spawn("trap '' TERM; sleep 1000 & wait; wait") for _ in range(2))
    beside = hf.spawn("exec sleep 1000")
    receipts = group.stop(grace=0.2)
    assert {receipt.record.handle for receipt in receipts} == {first.handle, second.handle}
    assert all(receipt.record.status == "killed" for receipt in receipts)
    assert beside.refresh().running
    assert group.stop() == []
    wait_until(lambda: list(hf.events()) == [])


def test_waiting_for_all_of_a_group_or_any(hf: SyncClient, gate: Gate) -> None:
    group = hf.group("work")
    slow = group.spawn(f": < {gate.path}; exit 4")
    quick = group.spawn("exit 3")
    first = group.wait_for("exit", timeout=60)
    assert list(first.ended) == [quick.handle]
    with pytest.raises(WaitTimeout, match=slow.handle):
        group.wait(0.05)
    gate.open()
    assert [end.code for end in group.wait(60)] == [4, 3]
    with pytest.raises(NotFound, match="no process in group 'nothing'"):
        hf.group("nothing").wait()
    with pytest.raises(BadRequest):
        hf.group("")


def test_a_gathered_group_is_told_of_once(hf: SyncClient, gate: Gate, session: str) -> None:
    """One event, with how each ended and the output of those that failed."""
    group = hf.group("checks")
    early = group.spawn("true", label="early")
    wait_until(lambda: len(list(hf.events())) == 1)
    tests = group.spawn(f": < {gate.path}; echo 1 failed; exit 1", label="tests")
    lint = group.spawn(f": < {gate.path}; echo fine", label="lint")
    assert group.gather() == [early.handle, tests.handle, lint.handle]
    assert list(hf.events()) == []
    gate.open()
    event = one_event(hf)
    assert (event.group, event.status, event.handle) == ("checks", "failed", None)
    assert [(m.handle, m.status, m.exit_code) for m in event.members] == [
        (early.handle, "completed", 0),
        (tests.handle, "failed", 1),
        (lint.handle, "completed", 0),
    ]
    assert "Group: checks" in event.text
    assert f"{tests.handle} tests: failed, exit code 1" in event.text
    assert "1 failed" in event.text
    assert "Processes: 3 (2 completed, 1 failed)\n" in event.text
    assert "fine" not in event.text
    assert event.public()["members"][1]["tail"] == "1 failed\n"
    assert [e.id for e in hf.events()] == [event.id]
    hf.acknowledge(event)
    assert list(hf.events()) == []
    assert os.listdir(hf.home.gathered(session)) == []


def test_the_text_of_a_group_names_each_by_its_label_or_command(hf: SyncClient) -> None:
    group = hf.group("checks")
    words = ["echo", "two words", "x" * 100]
    killed = group.spawn("exec sleep 1000", label="server")
    plain = group.spawn("true \\\n  && exit 3")
    long = group.spawn(words)
    group.gather()
    os.kill(killed.record.pid or 0, signal.SIGTERM)
    text = one_event(hf).text
    assert "Processes: 3 (1 completed, 2 failed)\n" in text
    assert f"{killed.handle} server: failed (SIGTERM), " in text
    assert f"{plain.handle} true \\ && exit 3: failed, exit code 3, " in text
    assert f"{long.handle} echo 'two words' {'x' * 42}…: completed, exit code 0, " in text


def test_a_wait_that_showed_every_end_has_told_of_the_group(hf: SyncClient) -> None:
    """Before the keeper has heard of the wait, too."""
    group = hf.group("checks")
    for code in range(3):
        group.spawn(f"exit {code}")
    group.gather()
    event = one_event(hf)
    worker = hf.keeper_status()["worker"]
    os.kill(worker, signal.SIGSTOP)
    try:
        assert [end.code for end in group.wait(60)] == [0, 1, 2]
        assert list(hf.events()) == []
    finally:
        os.kill(worker, signal.SIGCONT)
    wait_until(lambda: event.id in [e.id for e in told(hf) if e.acknowledged])


def test_who_saw_every_end_need_not_be_told_of_the_group(hf: SyncClient, session: str) -> None:
    group = hf.group("checks")
    for code in range(3):
        group.spawn(f"exit {code}")
    group.gather()
    assert [end.code for end in group.wait(60)] == [0, 1, 2]
    wait_until(lambda: list(hf.events()) == [])
    wait_until(lambda: [e.acknowledged for e in told(hf) if e.type == "group"] == [True])
    assert os.listdir(hf.home.gathered(session)) == []


def test_seeing_the_end_of_one_leaves_the_group_to_be_told(hf: SyncClient, gate: Gate) -> None:
    group = hf.group("checks")
    seen, unseen = group.spawn("exit 1"), group.spawn(f": < {gate.path}; exit 2")
    group.gather()
    seen.wait(60)
    gate.open()
    assert [m.exit_code for m in one_event(hf).members] == [1, 2]
    unseen.wait(60)
    wait_until(lambda: list(hf.events()) == [])


def test_gathering_again_takes_in_what_was_started_since(hf: SyncClient, gate: Gate) -> None:
    group = hf.group("checks")
    first = group.spawn(f": < {gate.path}")
    group.gather()
    second = group.spawn(f": < {gate.path}")
    assert group.gather() == [first.handle, second.handle]
    gate.open()
    assert [m.handle for m in one_event(hf).members] == [first.handle, second.handle]
    assert [e.type for e in told(hf)] == ["group"]


def test_nothing_to_gather_is_an_error(hf: SyncClient) -> None:
    """Also when all of it has been heard of already."""
    group = hf.group("checks")
    with pytest.raises(NotFound, match="nothing runs in group 'checks'"):
        group.gather()
    group.spawn("true").wait(60)
    wait_until(lambda: [e.acknowledged for e in told(hf)] == [True])
    with pytest.raises(NotFound):
        group.gather()


def test_a_removed_member_is_told_of_as_killed(hf: SyncClient, gate: Gate) -> None:
    group = hf.group("checks")
    gone, stays = group.spawn("exec sleep 1000"), group.spawn(f": < {gate.path}")
    group.gather()
    gone.remove()
    gate.open()
    members = {m.handle: m.status for m in one_event(hf).members}
    assert members == {gone.handle: "killed", stays.handle: "completed"}


def test_a_member_removed_as_it_ended_is_told_of(hf: SyncClient, gate: Gate) -> None:
    """Also where its end is known only a moment later: tmux, which does not answer just then."""
    group = hf.group("checks")
    gone, stays = group.spawn("exec sleep 1000", tmux=True), group.spawn(f": < {gate.path}")
    group.gather()
    server = server_pid(hf)
    os.kill(server, signal.SIGSTOP)
    try:
        os.kill(gone.record.pid or 0, signal.SIGKILL)
        wait_until(lambda: (found := stat(gone.record.pid or 0)) is None or found.state in "ZX")
        gone.remove()
    finally:
        os.kill(server, signal.SIGCONT)
    gate.open()
    members = {m.handle: m.status for m in one_event(hf).members}
    assert members == {gone.handle: "failed", stays.handle: "completed"}
    assert [process.handle for process in hf.list()] == [stays.handle]


@pytest.mark.own_keeper
def test_a_member_removed_on_a_full_disk_is_refused_and_told_of_later(hf: SyncClient) -> None:
    """The keeper goes on, and what could not be written is not forgotten."""
    group = hf.group("checks")
    early = group.spawn("head -c 8192 /dev/zero | tr '\\0' x")
    wait_until(lambda: len(list(hf.events())) == 1)
    gone = group.spawn("exec sleep 1000")
    group.gather()  # which has a file of more than 5000 bytes
    worker = hf.keeper_status()["worker"]
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
    with pytest.raises(StoreError):
        gone.remove()
    assert hf.keeper_status()["worker"] == worker
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    gone.remove()
    members = {m.handle: m.status for m in one_event(hf).members}
    assert members == {early.handle: "completed", gone.handle: "killed"}
    assert [process.handle for process in hf.list()] == [early.handle]


def test_a_stop_that_makes_no_sense_stops_nothing(hf: SyncClient) -> None:
    """Not even what is on its way into tmux."""
    hf.spawn("exec sleep 1000", tmux=True)
    group, started = hf.group("web"), []
    server = server_pid(hf)
    os.kill(server, signal.SIGSTOP)
    try:
        starting = threading.Thread(
            target=lambda: started.append(group.spawn("exec sleep 1000", tmux=True))
        )
        starting.start()
        wait_until(lambda: len(hf.list()) == 2)
        for stop in (group.stop, hf.stop_all):
            with pytest.raises(BadRequest, match="no signal"):
                stop(signal="SIGNOTHING")
    finally:
        os.kill(server, signal.SIGCONT)
    starting.join()
    assert started[0].refresh().running


def test_a_group_is_told_of_once_though_both_halves_died(
    hf: SyncClient, gate: Gate, kill_both: Callable[[SyncClient], None]
) -> None:
    """One that ended while nobody was there is part of it too."""
    group = hf.group("checks")
    first = group.spawn("exec sleep 1000")
    second = group.spawn(f": < {gate.path}; exit 5")
    group.gather()
    first_pid = first.record.pid
    assert first_pid is not None
    kill_both(hf)
    os.kill(first_pid, signal.SIGKILL)
    gate.open()
    assert len(group.list()) == 2  # a look, which starts the next keeper
    members = {m.handle: m.status for m in one_event(hf).members}
    assert set(members) == {first.handle, second.handle}
    assert "completed" not in members.values()
    assert len([e for e in told(hf) if e.type == "group"]) == 1


def life(group: SyncGroup) -> None:
    first = group.spawn("read x; exit 3", stdin=True)
    group.spawn("exit 4")
    group.gather()
    with suppress(NotRunning):  # sent, and ended by it, before the answer was lost
        try:
            first.send("", enter=True)
        except KeeperError:  # killed in the middle of it: nobody can know whether it was written
            first.send("", enter=True)


@pytest.mark.long
@pytest.mark.own_keeper
@pytest.mark.parametrize("offset", [0, 17])
def test_a_worker_killed_at_each_step_tells_of_a_group_once(hf: SyncClient, offset: int) -> None:
    """Gathered and ended, with kill -9 at every 34th system call, and those between."""
    step, reached, number = offset, True, 0
    while reached:
        number += 1
        group = hf.group(f"g{number}")
        _, reached = killed_at(hf.keeper_status()["worker"], step, partial(life, group))
        event = one_event(hf)
        assert event.group == group.name
        assert sorted(member.exit_code or 0 for member in event.members) == [3, 4]
        hf.acknowledge(event)
        assert list(hf.events()) == []
        step += 34
    groups = [event.group for event in told(hf) if event.type == "group"]
    assert len(set(groups)) == len(groups)


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_groups_on_the_command_line(home: str, gate: Gate) -> None:
    start = ("run", "-d", "--group", "ci", "--")
    first = holdfast(*start, f": < {gate.path}; exit 1").stdout.strip()
    second = holdfast(*start, f": < {gate.path}").stdout.strip()
    other = holdfast("run", "-d", "--group", "other", "--", "sleep 1000").stdout.strip()
    assert holdfast("gather", "ci").stdout.split() == [first, second]
    late = holdfast("wait", "--group", "ci", "--timeout", "10ms")
    assert (late.returncode, late.stdout) == (124, "running\nrunning\n")
    gate.open()
    assert holdfast("wait", "--group", "ci").stdout == "1\n0\n"
    shown = holdfast("events", "--all", "--text").stdout
    assert "Group: ci\nProcesses: 2 (1 completed, 1 failed)\n" in shown
    assert holdfast("kill", "--group", "other").stdout.strip() == other
    unknown = holdfast("kill", "--group", "nothing")
    assert (unknown.returncode, unknown.stdout) == (125, "")
    assert "no process in group 'nothing'" in unknown.stderr
    assert "give handles or --group" in holdfast("wait").stderr
    for command in ("wait", "kill"):
        nameless = holdfast(command, "--group", "")
        assert (nameless.returncode, nameless.stdout) == (125, "")
        assert "needs the name of a group" in nameless.stderr


def test_a_group_of_several_sessions_is_killed_in_one(home: str) -> None:
    """Whoever does not say in which is asked."""
    handles = {
        name: holdfast("run", "-d", "--session", name, "--group", "web", "--", "sleep 1000").stdout
        for name in ("one", "two")
    }
    refused = holdfast("kill", "--group", "web")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "in several sessions, one, two; say which with --session" in refused.stderr
    assert len(holdfast("ps", "--group", "web").stdout.splitlines()) == 3
    assert holdfast("kill", "--group", "web", "--session", "one").stdout == handles["one"]
    assert holdfast("kill", "--group", "web").stdout == handles["two"]


def test_run_can_leave_what_takes_longer_in_the_background(home: str, gate: Gate) -> None:
    """The output so far, a word about where it went on, and what is quick as without."""
    slow = holdfast("run", "--yield", "1s", "--", f"echo begun; : < {gate.path}; exit 6")
    handle = slow.stderr.split()[1]
    assert (slow.returncode, slow.stdout) == (0, "begun\n")
    assert "goes on in the background" in slow.stderr
    gate.open()
    assert holdfast("wait", handle).stdout == "6\n"
    quick = holdfast("run", "--yield", "1m", "--", "echo done; exit 3")
    assert (quick.returncode, quick.stdout, quick.stderr) == (3, "done\n", "")
    assert holdfast("run", "-d", "--yield", "1s", "--", "true").returncode == 125


def test_spawn_yields_to_the_background(hf: SyncClient, gate: Gate) -> None:
    """Within the time it is its end, told here; after it, a process that goes on."""
    quick = hf.spawn("echo done; exit 3", yield_ms=60_000)
    assert (quick.backgrounded, quick.record.exit_code, quick.early) == (False, 3, "done\n")
    slow = hf.spawn(f"echo begun; : < {gate.path}", yield_ms=300)
    assert (slow.backgrounded, slow.record.running) == (True, True)
    for bad in ({"yield_ms": "soon"}, {"yield_ms": -1}, {"yield_ms": 5, "check": 5}):
        with pytest.raises(BadRequest):
            hf.spawn("true", **bad)
    assert len(hf.list()) == 2
