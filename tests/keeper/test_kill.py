"""Stopping: politely, then by force, with everything a process started."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import BadRequest, NotRunning, SyncClient, SyncProcess, connect
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]


def alive(pid: int | None) -> bool:
    assert pid is not None
    found = stat(pid)
    return found is not None and found.state not in "ZX"


def numbers(process: SyncProcess, word: str) -> list[int]:
    """The pids a child printed after a word."""
    lines = process.read_at(0).text.splitlines()
    return [int(part) for line in lines if line.startswith(word) for part in line.split()[1:]]


def test_a_polite_kill_and_its_receipt(hf: SyncClient) -> None:
    """TERM is enough for most; the receipt says what was done and holds the ended record."""
    process = hf.spawn("sleep 1000", grace=60)
    receipt = process.kill()
    assert (receipt.signalled, receipt.forced, receipt.survivors) == (1, False, [])
    assert not receipt.already_ended
    record = receipt.record
    assert record == process.refresh()
    assert (record.status, record.signal, record.reason) == ("killed", "SIGTERM", "killed")
    assert (record.ended_by, record.exit_code) == ("caller", None)
    assert record.stop is not None
    assert (record.stop.by, record.stop.signal) == (f"pid {os.getpid()}", "SIGTERM")
    assert not alive(record.pid)


def test_who_ignores_term_is_killed_at_the_end_of_its_grace(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """Force comes when the grace is over and not before."""
    process = ready(hf.spawn(child("ignores_term"), grace=60))
    begun = time.monotonic()
    receipt = process.kill(grace=0.5)
    took = time.monotonic() - begun
    assert 0.5 <= took < 50
    assert (receipt.forced, receipt.survivors, receipt.signalled) == (True, [], 2)
    assert (receipt.record.status, receipt.record.signal) == ("killed", "SIGKILL")


def test_a_handler_that_ends_at_once_is_not_waited_for(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """The grace is a limit, not a pause; the handler's own code is in the record."""
    process = ready(hf.spawn(child("exits_on_term", "43"), grace=100))
    begun = time.monotonic()
    receipt = process.kill()
    assert time.monotonic() - begun < 30
    assert not receipt.forced
    record = receipt.record
    assert (record.status, record.exit_code, record.signal) == ("killed", 43, None)


def test_kill_with_kill_is_at_once(hf: SyncClient, child: Child, ready: Ready) -> None:
    """`signal="KILL"` waits for no grace."""
    process = ready(hf.spawn(child("ignores_term"), grace=100))
    receipt = process.kill(signal="KILL")
    assert (receipt.forced, receipt.record.signal) == (True, "SIGKILL")
    assert receipt.record.status == "killed"


def test_the_polite_signal_can_be_another_one(hf: SyncClient, child: Child, ready: Ready) -> None:
    """A process that minds INT and not TERM is stopped by INT."""
    process = ready(hf.spawn(child("names_signals"), grace=0.3))
    receipt = process.kill(signal="HUP")
    assert "SIGHUP\n" in process.read_at(0).text
    assert receipt.forced, "it went on after HUP, and the grace was over"
    assert hf.spawn("sleep 1000", grace=60).kill(signal="SIGINT").record.signal == "SIGINT"


def test_a_second_kill_does_nothing_and_says_so(hf: SyncClient) -> None:
    """Killing what has ended is no error and changes nothing."""
    process = hf.spawn("sleep 1000")
    first = process.kill()
    again = process.kill(signal="KILL")
    assert again.already_ended
    assert (again.signalled, again.forced) == (0, False)
    assert again.record == first.record
    natural = hf.spawn("exit 5")
    natural.wait(30)
    receipt = natural.kill()
    assert receipt.already_ended
    assert (receipt.record.status, receipt.record.exit_code) == ("failed", 5)


def test_two_clients_that_kill_at_once_are_told_the_same(
    hf: SyncClient, child: Child, ready: Ready, home: str
) -> None:
    """Two kills of one process are one stop, and both callers wait for its end."""
    process = ready(hf.spawn(child("ignores_term"), grace=0.5))
    person = open_client(Home(home), None)
    with ThreadPoolExecutor(2) as threads:
        kills = [
            threads.submit(process.kill),
            threads.submit(person.get(process.handle).kill),
        ]
        receipts = [kill.result(30) for kill in kills]
    person.close()
    assert receipts[0].record == receipts[1].record
    assert [receipt.record.status for receipt in receipts] == ["killed", "killed"]
    assert list(hf.events()) == [], "the receipts told of the end"


def test_an_impatient_kill_hurries_a_patient_one(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """A later kill may shorten the grace of one that is under way; both are answered then."""
    process = ready(hf.spawn(child("ignores_term"), grace=300))
    with ThreadPoolExecutor(1) as threads:
        patient = threads.submit(process.kill)
        wait_until(lambda: hf.store.load(process.handle).stop is not None)
        other = hf.get(process.handle)
        receipt = other.kill(grace=0)
        assert patient.result(30).record == receipt.record
    assert receipt.forced


def test_a_kill_that_comes_after_the_end_leaves_the_true_outcome(
    hf: SyncClient, gate: Gate
) -> None:
    """It had ended and the keeper had not looked yet: the kill finds the real code."""
    process = hf.spawn(f": < {gate.path}; exit 5")
    worker = hf.keeper_status()["worker"]
    os.kill(worker, signal.SIGSTOP)
    try:
        gate.open()
        wait_until(lambda: not alive(process.record.pid))
        with ThreadPoolExecutor(1) as threads:
            kill = threads.submit(process.kill)
            os.kill(worker, signal.SIGCONT)
            receipt = kill.result(30)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert (receipt.already_ended, receipt.signalled) == (True, 0)
    assert (receipt.record.status, receipt.record.exit_code) == ("failed", 5)
    assert process.refresh() == receipt.record


def test_a_kill_that_races_the_end_tells_one_story(hf: SyncClient) -> None:
    """Whoever was first, receipt, record and event agree, and there is one event."""
    for n in range(20):
        process = hf.spawn(f"sleep 0.00{n % 10}; exit 5")
        receipt = process.kill()
        end = process.wait(30)
        found = (end.status, end.code, end.signal)
        assert found in {("failed", 5, None), ("killed", None, "SIGTERM"), ("killed", 5, None)}
        assert receipt.already_ended is (end.status == "failed")
        assert process.refresh() == receipt.record
    events = list(hf.events(acknowledged=True))
    assert len({event.id for event in events}) == len(events) == 20


def test_children_in_the_group_go_with_it(hf: SyncClient, child: Child, ready: Ready) -> None:
    """What a process leaves in its group gets the rest of the grace, and then force."""
    process = ready(hf.spawn(child("grows_a_family"), grace=0.5))
    family = numbers(process, "family")
    assert len(family) == 2
    assert all(alive(pid) for pid in family)
    receipt = process.kill()
    assert (receipt.survivors, receipt.forced) == ([], True)
    assert receipt.record.signal == "SIGTERM", "it went politely itself"
    assert not any(alive(pid) for pid in [*family, process.record.pid])


def test_a_pipeline_goes_as_a_whole(hf: SyncClient) -> None:
    """Every command of a shell pipeline is gone after the kill."""
    process = hf.spawn("sleep 1000 | cat | cat; echo never", grace=60)
    group = process.record.pid
    wait_until(lambda: len(members(group)) == 4)
    receipt = process.kill()
    assert (receipt.survivors, receipt.forced) == ([], False)
    assert members(group) == []
    assert process.tail().text == ""


def members(group: int | None) -> list[int]:
    found = (stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [
        process.pid
        for process in found
        if process is not None and process.group == group and process.state not in "ZX"
    ]


def test_a_daemon_that_left_the_group_is_found_by_its_mark(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """Forked twice, in a session of its own, deaf to TERM: nothing survives the kill."""
    process = ready(hf.spawn(child("daemonizes"), grace=0.3))
    (daemon,) = numbers(process, "daemon")
    assert alive(daemon)
    receipt = process.kill()
    assert (receipt.survivors, receipt.forced) == ([], True)
    assert not alive(daemon)


def test_a_deadline_takes_the_daemon_along(hf: SyncClient, child: Child, ready: Ready) -> None:
    """A deadline stops everything a process started, as a kill does."""
    process = ready(hf.spawn(child("daemonizes"), grace=0.1, timeout=1.5))
    (daemon,) = numbers(process, "daemon")
    assert process.wait(30).status == "timed_out"
    wait_until(lambda: not alive(daemon))


def test_a_stopped_process_can_be_killed_politely(hf: SyncClient) -> None:
    """A process under SIGSTOP is woken to see its TERM, and needs no force."""
    process = hf.spawn("sleep 1000", grace=60)
    process.signal("STOP")
    pid = process.record.pid
    assert pid is not None
    wait_until(lambda: getattr(stat(pid), "state", "") == "T")
    receipt = process.kill()
    assert (receipt.forced, receipt.record.signal) == (False, "SIGTERM")


def test_signal_sends_just_that(hf: SyncClient, child: Child, ready: Ready) -> None:
    """A signal goes to the process, which does with it what it likes and goes on."""
    process = ready(hf.spawn(child("names_signals")))
    for name, printed in (("USR1", "SIGUSR1"), ("SIGHUP", "SIGHUP"), (2, "SIGINT")):
        process.signal(name)
        wait_until(lambda printed=printed: f"{printed}\n" in process.tail().text)  # type: ignore[misc]
    assert process.refresh().running
    assert process.record.stop is None
    with pytest.raises(BadRequest, match="no signal"):
        process.signal("NONSENSE")
    with pytest.raises(BadRequest, match="no signal"):
        process.kill(signal="NONSENSE")
    process.signal("TERM")
    end = process.wait(30)
    assert (end.status, end.code) == ("completed", 0), "a signal by request is no kill"
    with pytest.raises(NotRunning):
        process.signal("USR1")


def test_a_signal_reaches_the_whole_group(hf: SyncClient, child: Child, ready: Ready) -> None:
    """Signals go to the group: children of the process get them too."""
    process = ready(hf.spawn(child("grows_a_family")))
    family = numbers(process, "family")
    process.signal("KILL")
    assert process.wait(30).signal == "SIGKILL"
    assert process.record.status == "failed", "nobody asked us to stop it"
    wait_until(lambda: not any(alive(pid) for pid in family))


def test_stop_all_stops_the_session_and_nothing_else(
    hf: SyncClient, child: Child, ready: Ready, home: str, session: str
) -> None:
    """Everything of a session is stopped at once, and there is a receipt for each."""
    deaf = [ready(hf.spawn(child("ignores_term"), grace=60)) for _ in range(3)]
    mild = [hf.spawn("sleep 1000", keep=n == 0) for n in range(3)]
    hf.spawn("exit 3").wait(30)
    with connect(session=f"{session}-other") as other:
        theirs = other.spawn("sleep 1000")
        begun = time.monotonic()
        receipts = hf.stop_all(grace=0.3)
        assert time.monotonic() - begun < 30
        assert {receipt.record.handle for receipt in receipts} == {
            process.handle for process in deaf + mild
        }
        assert sum(receipt.forced for receipt in receipts) == 3
        assert all(receipt.record.status == "killed" for receipt in receipts)
        assert not any(alive(process.record.pid) for process in deaf + mild)
        assert theirs.refresh().running
        assert hf.stop_all() == []
        person = open_client(Home(home), None)
        (receipt,) = person.stop_all()
        assert receipt.record.handle == theirs.handle
        person.close()


def test_a_kill_goes_on_when_its_caller_is_gone(
    hf: SyncClient, child: Child, ready: Ready, home: str
) -> None:
    """Force comes at the end of the grace even if the one who asked has left."""
    process = ready(hf.spawn(child("ignores_term"), grace=60))
    pid = os.fork()
    if pid == 0:
        try:
            hf.get(process.handle).kill(grace=1.0)
        finally:
            os._exit(0)
    try:
        wait_until(lambda: hf.store.load(process.handle).stop is not None)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    end = process.wait(30)
    assert (end.status, end.signal) == ("killed", "SIGKILL")
