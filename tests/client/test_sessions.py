"""Sessions are leases: what a session started ends with it, and not before."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import BadRequest, KeeperError, Record, SyncClient, connect
from holdfast.client import exit_hooks, link
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.linux import kernel
from holdfast.testing import wait_until

PROGRAM = Path(__file__).parents[1] / "children" / "host.py"
SLEEP = "sleep 300"


class Host:
    """A real program that holds session "held", in a process of its own."""

    def __init__(self, way: str, grace: float, then: str, *commands: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), way, "held", str(grace), then, *commands],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.handles: list[str] = []
        self.child = 0
        while (line := self.line()) != "ready":
            first, *rest = line.split() or [""]
            if first == "child":
                self.child = int(rest[0])
            elif first:
                self.handles += [first, *rest]

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"the host ended: {self.process.stderr.read()}")
        return line.rstrip("\n")

    def signal(self, number: int) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        return self.process.wait(60)

    def close(self) -> None:
        if self.child:
            try:
                os.kill(self.child, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.wait(60)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def host(home: str) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def start(*arguments: Any) -> Host:
        hosts.append(Host(*arguments))
        return hosts[-1]

    yield start
    for running in hosts:
        running.close()


@pytest.fixture
def person(home: str) -> Iterator[SyncClient]:
    """Somebody at the command line: sees everything, holds nothing."""
    client = open_client(Home(home), None)
    yield client
    client.close()


def record_of(person: SyncClient, handle: str) -> Record:
    return person.get(handle).record


def stopped(person: SyncClient, handle: str) -> Record:
    """Wait for its end, and see that it was the session's."""
    wait_until(lambda: not record_of(person, handle).running, what=f"the end of {handle}")
    record = record_of(person, handle)
    assert (record.status, record.reason, record.ended_by) == ("killed", "lease_ended", "keeper")
    return record


def is_asleep(pid: int) -> bool:
    found = kernel.stat(pid)
    return found is not None and found.state == "S"


def untouched(person: SyncClient, *handles: str) -> None:
    """See that nothing is being stopped, after the keeper has dealt with all it knows of."""
    for _ in range(2):  # what became ready before the first is done before the second
        person.keeper_status()
    for handle in handles:
        record = record_of(person, handle)
        assert record.running
        assert record.stop is None


def lease(home: str, session: str = "held") -> dict[str, Any] | None:
    try:
        data = Path(Home(home).session(session), "lease.json").read_bytes()
    except FileNotFoundError:
        return None
    found: dict[str, Any] = json.loads(data)
    return found


def lost(home: str) -> float:
    """Wait until the keeper has noticed that nobody holds the session; returns when that was."""
    clock = wait_until(lambda: (lease(home) or {}).get("lost_clock"), what="the loss of the client")
    assert isinstance(clock, float)
    return clock


def kill_worker(person: SyncClient) -> None:
    """kill -9, and wait until the next one has recovered everything and answers."""
    before = person.keeper_status()["worker"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: person.keeper_status()["worker"] != before)


# -- closing in good order -------------------------------------------------------------------------


def test_leaving_the_block_stops_the_sessions_processes(home: str, person: SyncClient) -> None:
    with connect(session="held") as hf:
        one, two = hf.spawn(SLEEP), hf.spawn(SLEEP)
        kept = hf.spawn(SLEEP, keep=True)
        done = hf.spawn("exit 3")
        done.wait(30)
    for process in (one, two):
        record = record_of(person, process.handle)
        assert (record.status, record.reason) == ("killed", "lease_ended"), "before it returns"
    untouched(person, kept.handle)
    assert record_of(person, done.handle).exit_code == 3
    assert lease(home) is None


def test_the_ends_of_a_closed_session_are_in_its_outbox(home: str) -> None:
    with connect(session="held") as hf:
        process = hf.spawn(SLEEP)
    with connect(session="held") as hf:
        assert list(hf.events()) == []  # whoever closed it knows
        (event,) = hf.events(acknowledged=True)
        assert (event.handle, event.reason) == (process.handle, "lease_ended")


def test_a_session_without_a_name_is_new_each_time(home: str) -> None:
    with connect() as one, connect() as two:
        assert one.session != two.session
        one.spawn("true").wait(30)
        assert two.list() == []


WAYS = ["plain", "asyncio"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("then", "number", "code"),
    [
        ("inside", signal.SIGTERM, -signal.SIGTERM),
        ("waiting", signal.SIGTERM, -signal.SIGTERM),
        ("inside", signal.SIGINT, -signal.SIGINT),
        ("waiting", signal.SIGINT, -signal.SIGINT),
        ("leaves", None, 0),
        ("fails", None, 1),
        ("ends", None, 0),
        ("dies", None, 1),
    ],
)
def test_a_host_that_ends_in_any_orderly_way_closes_its_session(
    host: Callable[..., Host],
    person: SyncClient,
    way: str,
    then: str,
    number: signal.Signals | None,
    code: int,
) -> None:
    """SIGTERM, SIGINT, a normal end, an exception; inside the block or without leaving it."""
    running = host(way, 1800, then, SLEEP, "keep:sleep 300")
    ended, kept = running.handles
    if number is not None:
        running.process.send_signal(number)
    assert running.ended() == code
    stopped(person, ended)
    untouched(person, kept)


@pytest.mark.parametrize("way", WAYS)
def test_a_hosts_own_handler_is_left_alone(
    host: Callable[..., Host], person: SyncClient, way: str
) -> None:
    running = host(way, 1800, "handles", SLEEP)
    running.process.send_signal(signal.SIGTERM)
    assert running.line() == "mine"
    assert running.process.poll() is None
    untouched(person, running.handles[0])
    assert running.signal(signal.SIGINT) == -signal.SIGINT
    stopped(person, running.handles[0])


def test_an_interrupt_that_is_caught_costs_nothing(
    host: Callable[..., Host], person: SyncClient, home: str
) -> None:
    """Ctrl-C in the middle of a wait, caught inside the block: the session is still held."""
    running = host("plain", 0, "stubborn", SLEEP)
    wait_until(lambda: is_asleep(running.process.pid), what="the wait")
    running.process.send_signal(signal.SIGINT)
    assert running.line() == "interrupted running"
    untouched(person, running.handles[0])
    found = lease(home)
    assert found is not None
    assert found["lost_clock"] is None
    assert running.signal(signal.SIGTERM) == -signal.SIGTERM
    stopped(person, running.handles[0])


# -- losing the client -----------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_client_can_come_back_and_finds_everything(
    host: Callable[..., Host], person: SyncClient, home: str, way: str
) -> None:
    running = host(way, 1800, "inside", SLEEP, "echo early; exit 3")
    sleeper, early = running.handles
    assert running.signal(signal.SIGKILL) == -signal.SIGKILL
    lost(home)
    wait_until(lambda: not record_of(person, early).running)
    untouched(person, sleeper)
    with connect(session="held") as hf:
        found = lease(home)
        assert found is not None
        assert found["lost_clock"] is None, "held again, and no clock runs"
        assert [process.handle for process in hf.list()] == running.handles
        (event,) = wait_until(lambda: list(hf.events()))
        assert (event.handle, event.exit_code) == (early, 3)
        assert hf.get(sleeper).record.running
    stopped(person, sleeper)


def test_without_a_grace_a_lost_client_ends_the_session_at_once(
    host: Callable[..., Host], person: SyncClient, home: str
) -> None:
    running = host("plain", 0, "inside", SLEEP, "keep:sleep 300")
    ended, kept = running.handles
    running.signal(signal.SIGKILL)
    stopped(person, ended)
    untouched(person, kept)
    assert lease(home) is None


def test_after_the_grace_the_session_ends(
    host: Callable[..., Host], person: SyncClient, home: str
) -> None:
    running = host("plain", 0.5, "inside", SLEEP)
    running.signal(signal.SIGKILL)
    since = lost(home)
    record = stopped(person, running.handles[0])
    assert record.stop is not None
    assert since + 0.5 <= record.stop.clock < since + 20


def test_who_comes_back_in_time_stops_the_clock(
    host: Callable[..., Host], person: SyncClient, home: str
) -> None:
    """And brings its own grace, which counts from then on."""
    running = host("plain", 1.0, "inside", SLEEP)
    running.signal(signal.SIGKILL)
    since = lost(home)
    with connect(session="held", lease_grace=1800) as hf:
        wait_until(lambda: time.monotonic() > since + 1.1, what="the old grace to be over")
        assert hf.get(running.handles[0]).record.running
    stopped(person, running.handles[0])


def test_a_forked_child_that_holds_the_socket_does_not_hold_the_session(
    host: Callable[..., Host], person: SyncClient
) -> None:
    running = host("plain", 0, "forks", SLEEP)
    running.signal(signal.SIGKILL)
    stopped(person, running.handles[0])
    os.kill(running.child, 0)  # and there it is still


def test_a_forked_child_that_leaves_the_block_does_not_end_the_session(
    host: Callable[..., Host], person: SyncClient, home: str
) -> None:
    running = host("plain", 1800, "strays", SLEEP)
    untouched(person, running.handles[0])
    assert running.process.pid in holding(home)
    assert running.signal(signal.SIGTERM) == -signal.SIGTERM
    stopped(person, running.handles[0])


def test_a_host_that_goes_on_in_a_forked_child_still_holds_its_session(
    host: Callable[..., Host], person: SyncClient, home: str
) -> None:
    """It became a daemon after it connected: the child that uses the client holds the lease."""
    running = host("plain", 0, "daemon", SLEEP)
    assert running.ended() == 0
    before, after = running.handles
    assert running.child in holding(home)
    untouched(person, before, after)
    os.kill(running.child, signal.SIGKILL)
    stopped(person, before)
    stopped(person, after)


def holding(home: str) -> set[int]:
    return {holder[1] for holder in (lease(home) or {}).get("holders", [])}


# -- several clients -------------------------------------------------------------------------------


def test_of_two_clients_on_one_session_the_last_decides(home: str, person: SyncClient) -> None:
    with connect(session="held") as second:
        with connect(session="held") as first:
            process = first.spawn(SLEEP)
            assert second.get(process.handle).record.running
        untouched(person, process.handle)
        second.get(process.handle).signal("CONT")
    stopped(person, process.handle)


def test_a_lost_client_beside_a_living_one_changes_nothing(
    host: Callable[..., Host], home: str, person: SyncClient
) -> None:
    with connect(session="held", lease_grace=0):
        running = host("plain", 0, "inside", SLEEP)
        running.signal(signal.SIGKILL)
        wait_until(lambda: person.keeper_status()["connections"] == 2)
        untouched(person, running.handles[0])
    stopped(person, running.handles[0])


def test_a_lost_client_is_waited_for_even_if_another_closed_before(
    host: Callable[..., Host], home: str, person: SyncClient
) -> None:
    """One closes in good order while the other holds on; the other's loss starts the grace."""
    running = host("plain", 1800, "inside", SLEEP)
    with connect(session="held"):
        pass
    running.signal(signal.SIGKILL)
    lost(home)
    untouched(person, running.handles[0])


def test_sessions_end_one_by_one(home: str, person: SyncClient) -> None:
    with connect(session="held") as hf:
        process = hf.spawn(SLEEP)
        with connect(session="other") as other:
            others = other.spawn(SLEEP)
        stopped(person, others.handle)
        untouched(person, process.handle)
    stopped(person, process.handle)


# -- clients without a lease -----------------------------------------------------------------------


def test_a_client_without_a_lease_neither_holds_nor_ends_a_session(
    home: str, person: SyncClient
) -> None:
    """As the command line does: with a session or without one."""
    visitor = open_client(Home(home), "held")
    process = visitor.spawn(SLEEP)
    assert lease(home) is None
    assert visitor.end_session() == []
    visitor.close()
    untouched(person, process.handle)
    own = person.spawn(SLEEP)
    assert own.record.session == "default"
    with connect(session="held") as hf:
        visitor = open_client(Home(home), "held")
        assert len(visitor.list()) == 1
        visitor.close()
        person.keeper_status()
        assert hf.get(process.handle).record.running
    stopped(person, process.handle)
    untouched(person, own.handle)


def test_a_visitor_does_not_stop_the_clock_of_a_lost_client(
    host: Callable[..., Host], person: SyncClient, home: str
) -> None:
    running = host("plain", 0.5, "inside", SLEEP)
    running.signal(signal.SIGKILL)
    since = lost(home)
    visitor = open_client(Home(home), "held")
    assert visitor.keeper_status()["running"]
    record = stopped(person, running.handles[0])
    visitor.close()
    assert record.stop is not None
    assert record.stop.clock < since + 20


# -- the keeper dies -------------------------------------------------------------------------------


def test_a_holder_that_says_nothing_keeps_its_session_through_new_workers(
    home: str, person: SyncClient
) -> None:
    """It has not noticed that its connection is gone, and its grace is none at all."""
    with connect(session="held", lease_grace=0) as hf:
        process = hf.spawn(SLEEP)
        for _ in range(3):
            kill_worker(person)
            untouched(person, process.handle)
            assert holding(home) == {os.getpid()}
        process.signal("CONT")  # and now it has connected again
        assert person.keeper_status()["leases"] == 1
    stopped(person, process.handle)


def test_a_holder_that_dies_after_the_worker_did_is_noticed(
    host: Callable[..., Host], home: str, person: SyncClient
) -> None:
    running = host("plain", 0, "inside", SLEEP)
    kill_worker(person)
    untouched(person, running.handles[0])
    running.signal(signal.SIGKILL)
    stopped(person, running.handles[0])


def test_a_holder_that_died_together_with_the_worker_is_noticed(
    host: Callable[..., Host], home: str, person: SyncClient
) -> None:
    running = host("plain", 0, "inside", SLEEP)
    guard = person.keeper_status()["guard"]
    os.kill(guard, signal.SIGSTOP)
    os.kill(person.keeper_status()["worker"], signal.SIGKILL)
    running.signal(signal.SIGKILL)
    os.kill(guard, signal.SIGCONT)
    stopped(person, running.handles[0])


def test_a_grace_that_was_running_goes_on_with_the_next_worker(
    host: Callable[..., Host], home: str, person: SyncClient
) -> None:
    running = host("plain", 1.0, "inside", SLEEP)
    running.signal(signal.SIGKILL)
    since = lost(home)
    kill_worker(person)
    assert lost(home) == since, "the clock was not set back"
    record = stopped(person, running.handles[0])
    assert record.stop is not None
    assert since + 1.0 <= record.stop.clock < since + 20


def test_a_session_is_closed_even_if_the_worker_died_before(home: str, person: SyncClient) -> None:
    with connect(session="held") as hf:
        process = hf.spawn(SLEEP)
        os.kill(person.keeper_status()["worker"], signal.SIGKILL)
    stopped(person, process.handle)


def test_a_host_that_is_terminated_just_after_the_worker_died_closes_its_session(
    host: Callable[..., Host], person: SyncClient
) -> None:
    running = host("plain", 1800, "inside", SLEEP)
    os.kill(person.keeper_status()["worker"], signal.SIGKILL)
    assert running.signal(signal.SIGTERM) == -signal.SIGTERM
    stopped(person, running.handles[0])


def test_a_restarted_keeper_knows_who_holds_what(home: str, person: SyncClient) -> None:
    with connect(session="held", lease_grace=0) as hf:
        process = hf.spawn(SLEEP)
        person.keeper_restart()
        untouched(person, process.handle)
        assert holding(home) == {os.getpid()}
    stopped(person, process.handle)


def test_a_client_is_of_no_use_after_its_block(home: str) -> None:
    """Else it would take the session again, and nobody would close it."""
    with connect("over") as client:
        pass
    with pytest.raises(BadRequest, match="closed"):
        client.spawn("sleep 300")
    assert client.list() == []


def test_an_entry_that_fails_leaves_nothing_open(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No connection, and nothing for the end of the program to close."""
    monkeypatch.setattr(link, "SILENCE", 0.05)
    monkeypatch.setattr(link, "LONGEST_SILENCE", 0.1)
    before = dict(exit_hooks._open)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(Home(home).ensure().socket)
        silent.listen()
        with pytest.raises(KeeperError, match="said nothing"), connect("never"):
            pass
    os.unlink(Home(home).socket)
    assert exit_hooks._open == before
