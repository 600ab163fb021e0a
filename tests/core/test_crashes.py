"""A kill -9 between any two steps: each is built by hand, or made by killing at each system call.

A worker goes from one system call to the next under ptrace and is killed at the first, the second,
the third, and so on, until the work is done before the kill comes. Whatever it was doing, the next
worker finishes it: nothing is started twice, every end is exact and is told once.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import KeeperError, Record, SyncClient, SyncProcess
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.core.outbox import OutboxWriter, read_events
from holdfast.core.record import ExitNote
from holdfast.core.store import Store
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until
from tests.stepping import killed_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KillBoth = Callable[[SyncClient], None]
KERNEL_TELLS = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15)


def alive(pid: int | None) -> bool:
    found = stat(pid or 0)
    return found is not None and found.state not in "ZX"


def output(process: SyncProcess) -> str:
    return process.read_at(0, 1 << 20).text


# -- what each crash leaves behind, built by hand --------------------------------------------------


class Left:
    """The files of a process that ended with 7 and of its session, to be set back to a crash."""

    def __init__(self, home: Home, record: Record) -> None:
        self.home = home
        self.store = Store(home)
        self.record = record
        self.outbox = Path(home.outbox(record.session))
        self.event = self.outbox.read_bytes()

    def running(self) -> Record:
        """As if it were still running, and nobody had been told anything."""
        record = self.store.load(self.record.handle)
        record.status, record.reason, record.ended_by = "running", None, None
        record.exit_code = record.signal = record.ended_at = record.duration_seconds = None
        record.peak_memory_bytes = record.cpu_seconds = None
        record.told = True
        self.outbox.unlink()
        return record

    def note(self) -> None:
        """What a guard wrote down when it had to reap."""
        at, clock = time.time(), self.record.started_clock + 0.5
        self.store.write_exit(self.record.handle, ExitNote(7, None, at, clock))

    def ended(self, *, told: bool, outbox: bytes) -> None:
        self.record.told = told
        self.store.save(self.record)
        self.outbox.write_bytes(outbox)

    # Each method is a crash; its name says what had been done by then.

    def nothing_written(self) -> None:
        self.store.save(self.running())

    def half_a_note(self) -> None:
        self.store.save(self.running())
        self.note()
        path = Path(self.home.exit(self.record.handle))
        path.write_bytes(path.read_bytes()[:20])

    def a_note(self) -> None:
        self.store.save(self.running())
        self.note()

    def the_record_and_a_note(self) -> None:
        self.note()
        self.ended(told=False, outbox=b"")

    def the_record(self) -> None:
        self.ended(told=False, outbox=b"")

    def half_an_event(self) -> None:
        self.ended(told=False, outbox=self.event[: len(self.event) // 2])

    def an_event_without_its_newline(self) -> None:
        self.ended(told=False, outbox=self.event[:-1])

    def the_event(self) -> None:
        self.ended(told=False, outbox=self.event)

    def the_event_and_half_a_new_record(self) -> None:
        self.ended(told=False, outbox=self.event)
        meta = Path(self.home.meta(self.record.handle))
        meta.with_name(meta.name + ".1.2.tmp").write_bytes(meta.read_bytes()[:50])

    def the_event_and_its_acknowledgement(self) -> None:
        ack = json.dumps({"ack": [f"{self.record.handle}:end"]}).encode() + b"\n"
        self.ended(told=False, outbox=self.event + ack)

    def everything(self) -> None:
        self.ended(told=True, outbox=self.event)


LOST = {"nothing_written", "half_a_note"}


@pytest.fixture
def person(home: str) -> Iterator[SyncClient]:
    """A client of the session ``"test"`` without a lease: a keeper runs only when it is asked."""
    client = open_client(Home(home).ensure(), "test")
    yield client
    client.close()


@pytest.mark.parametrize(
    "crash", [name for name, value in vars(Left).items() if callable(value) and name[0] != "_"][3:]
)
def test_after_a_crash_at_an_end_there_is_one_event_and_the_right_record(
    person: SyncClient, crash: str, kill_both: KillBoth
) -> None:
    """Whatever had been written down when both halves died, the end is told once, and truly."""
    process = person.spawn("echo words; exit 7")
    wait_until(lambda: list(person.events()))
    wait_until(lambda: process.refresh().told)
    person.keeper_stop()
    left = Left(person.home, person.store.load(process.handle))
    getattr(left, crash)()

    for again in range(3):
        person.keeper_restart()  # which starts one at first
        record = process.refresh()
        how = (record.status, record.exit_code, record.reason, record.ended_by)
        if crash in LOST:
            assert how == ("lost", None, "lost", "unknown")
        else:
            assert how == ("failed", 7, "exited", "itself")
        assert record.told
        assert record.ended_at is not None
        assert output(process) == "words\n"
        (event,) = read_events(person.home, "test")
        assert (event.id, event.status) == (f"{process.handle}:end", record.status)
        acknowledged = crash == "the_event_and_its_acknowledgement"
        assert event.acknowledged is acknowledged
        assert OutboxWriter(person.home, "test").pending == int(not acknowledged)
        assert not [name for name in os.listdir(person.home.processes) if "tmp" in name]
        if again == 1:
            kill_both(person)


def test_a_crash_just_before_the_start_is_a_process_that_was_lost(person: SyncClient) -> None:
    """A record without a pid, and no such process: it cannot be known, and is not started again."""
    process = person.spawn("exit 7")
    wait_until(lambda: list(person.events()))
    wait_until(lambda: process.refresh().told)
    person.keeper_stop()
    left = Left(person.home, person.store.load(process.handle))
    record = left.running()
    record.pid = record.start_time = None
    left.store.save(record)
    again = person.spawn("exit 7", handle=process.handle)
    assert again.wait(30).status == "lost"
    assert [event.id for event in read_events(person.home, "test")] == [f"{process.handle}:end"]


def test_a_crash_just_after_the_start_finds_the_process_by_its_mark(
    person: SyncClient, kill_both: KillBoth
) -> None:
    """A record without a pid, and a process that carries its handle: it is that one."""
    process = person.spawn("echo begun; exec sleep 1000", grace=1)
    wait_until(lambda: output(process) == "begun\n")
    kill_both(person)
    record = person.store.load(process.handle)  # a look would start a keeper
    pid = record.pid
    record.pid = record.start_time = None
    person.store.save(record)
    again = person.spawn("exit 7", handle=process.handle)
    assert again.record.pid == pid
    assert process.refresh().pid == pid
    receipt = process.kill()
    assert (receipt.record.status, receipt.survivors) == ("killed", [])
    assert not alive(pid)


def test_an_event_is_seen_until_it_is_acknowledged_and_has_one_id(
    person: SyncClient, kill_both: KillBoth
) -> None:
    """A consumer that dies before it acknowledges sees the event again; after, never more."""
    process = person.spawn("exit 7")
    wait_until(lambda: list(person.events()))
    for kill in (False, True):
        consumer = open_client(person.home, "test")
        (event,) = consumer.events()
        assert event.id == f"{process.handle}:end"
        consumer.close()
        if kill:
            kill_both(person)
    consumer = open_client(person.home, "test")
    consumer.acknowledge(*consumer.events())
    kill_both(person)
    assert list(consumer.events()) == []
    consumer.close()
    person.keeper_restart()
    assert list(person.events()) == []
    assert [event.acknowledged for event in person.events(acknowledged=True)] == [True]


# -- killed at each system call --------------------------------------------------------------------


@pytest.mark.weight(10)
@pytest.mark.long
@pytest.mark.parametrize(("mode", "stride"), [("pipe", 2), ("tty", 5), ("tmux", 7)])
def test_a_worker_killed_at_each_step_of_a_life(
    hf: SyncClient, tmp_path: Path, mode: str, stride: int
) -> None:
    """From the request to the told end: started once, exact code, whole output, told once."""
    options: dict[str, Any] = {} if mode == "pipe" else {mode: True}
    starts = tmp_path / "starts"
    step, reached, handles = 0, True, []

    def life() -> SyncProcess:
        process = hf.spawn(f"echo $HOLDFAST_HANDLE >> {starts}; echo words; exit 7", **options)
        process.wait(30)
        return process

    while reached:
        worker = hf.keeper_status()["worker"]
        process, reached = killed_at(worker, step, life)
        end = process.wait(30)
        assert (end.status, end.code, end.reason) == ("failed", 7, "exited"), step
        assert output(process).replace("\r", "") == "words\n", step
        handles.append(process.handle)
        step += stride
    assert step > 100, "a life has more steps than that"
    assert starts.read_text().split() == handles
    assert_told_once(hf, handles)


def assert_told_once(hf: SyncClient, handles: list[str]) -> None:
    """Every end that a waiter got is acknowledged, and none is there twice."""
    reader = open_client(hf.home, "test")
    wait_until(lambda: list(reader.events()) == [])
    ids = [event.id for event in reader.events(acknowledged=True)]
    assert len(ids) == len(set(ids))
    reader.close()
    assert {f"{handle}:end" for handle in handles}.issuperset(ids)


@pytest.mark.long
def test_a_worker_killed_at_each_step_of_a_start_leaves_its_stdin_open(hf: SyncClient) -> None:
    """From the moment a process is there, the guard holds what it is written to through."""
    step, reached = 0, True
    while reached:
        worker = hf.keeper_status()["worker"]
        process, reached = killed_at(worker, step, lambda: hf.spawn("cat; exit 7", stdin=True))
        process.send("words\n", eof=True)
        assert process.wait(30).code == 7, step
        assert output(process) == "words\n", step
        step += 2
    assert step > 50


@pytest.mark.long
def test_a_worker_killed_at_many_steps_of_a_kill(hf: SyncClient) -> None:
    """The next worker goes on with the stop; the caller gets its receipt, and one end is told."""
    step, reached = 0, True
    while reached:
        process = hf.spawn("sleep 1000 & wait", grace=30)
        worker = hf.keeper_status()["worker"]
        receipt, reached = killed_at(worker, step, process.kill)
        assert (receipt.record.status, receipt.survivors) == ("killed", []), step
        assert process.refresh() == receipt.record
        step += 1 + step // 4  # it looks at every process of the machine, in a thousand steps
    assert_told_once(hf, [process.handle for process in hf.list()])


@pytest.mark.long
def test_a_worker_killed_at_each_step_of_a_removal_leaves_nothing(hf: SyncClient) -> None:
    """Removed is removed: no file and no event is left over, and the caller hears of no error."""
    step, reached = 0, True
    while reached:
        process = hf.spawn("echo out; echo err >&2", stderr="separate")
        wait_until(lambda: list(hf.events()))
        process.read()
        worker = hf.keeper_status()["worker"]
        _, reached = killed_at(worker, step, process.remove)
        found = [
            name
            for _, _, names in os.walk(hf.home.path)
            for name in names
            if process.handle in name
        ]
        assert found == [], step
        assert list(hf.events()) == [], step
        step += 2
    assert step > 20
    left = os.listdir(hf.home.processes)
    assert [name for name in left if not name.startswith("spare")] == []


@pytest.mark.long
def test_a_worker_killed_at_each_step_of_a_send(hf: SyncClient) -> None:
    """A line arrives once, or the caller is told that nobody can know, and to look."""
    echo = hf.spawn("cat", stdin=True, timeout=None)
    step, reached, lines, unknown = 0, True, [], 0
    while reached:
        line = f"line {step}\n"
        worker = hf.keeper_status()["worker"]
        result, reached = killed_at(worker, step, lambda line=line: echo.send(line))  # type: ignore[misc]
        if isinstance(result, KeeperError):
            assert "look at the output" in str(result)
            unknown += 1
            mark = f"mark {step}\n"
            echo.send(mark)
            wait_until(lambda mark=mark: mark in output(echo))  # type: ignore[misc]
            if line not in output(echo):
                echo.send(line)
        else:
            assert result == len(line)
        lines.append(line)
        step += 1
    assert step > 10
    echo.send("", eof=True)
    assert echo.wait(30).ok
    echoed = [line for line in output(echo).splitlines(True) if not line.startswith("mark")]
    assert echoed == lines
    assert 0 < unknown < 10, "only a kill in the very write leaves it open"


@pytest.mark.long
def test_a_worker_killed_at_each_step_of_an_acknowledgement(hf: SyncClient) -> None:
    """When an acknowledgement was answered it holds, whatever was killed meanwhile."""
    step, reached = 0, True
    while reached:
        hf.spawn("exit 7")
        wait_until(lambda: list(hf.events()))
        events = list(hf.events())
        worker = hf.keeper_status()["worker"]
        _, reached = killed_at(worker, step, lambda events=events: hf.acknowledge(*events))  # type: ignore[misc]
        assert list(hf.events()) == []
        step += 2
    assert step > 10


@pytest.mark.long
def test_a_guard_killed_at_each_step_of_an_end_it_has_to_see(hf: SyncClient) -> None:
    """A process that became the guard's child ends, and the guard dies as it writes that down."""
    step, reached = 0, True
    while reached:
        process = hf.spawn("read line; echo $line; exit 7", stdin=True)
        before = hf.keeper_status()
        os.kill(before["worker"], signal.SIGKILL)
        wait_until(lambda old=before["worker"]: hf.keeper_status()["worker"] != old)  # type: ignore[misc]
        guard = hf.keeper_status()["guard"]
        pid = process.record.pid
        assert pid is not None
        found = stat(pid)
        assert found is not None
        assert found.parent == guard

        def end(process: SyncProcess = process) -> None:
            process.send("words\n")
            process.wait(30)

        _, reached = killed_at(guard, step, end)
        ended = process.wait(30)
        allowed = {("failed", 7)} if KERNEL_TELLS else {("failed", 7), ("lost", None)}
        assert (ended.status, ended.code) in allowed, step
        assert output(process) == "words\n"
        wait_until(lambda old=guard: hf.keeper_status()["guard"] != old)  # type: ignore[misc]
        step += 2
    assert step > 4
    assert_told_once(hf, [process.handle for process in hf.list()])
