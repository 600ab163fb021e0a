"""The parts of the client that front ends are made of."""

from __future__ import annotations

import os
import threading

import pytest

import holdfast
from holdfast import BadRequest, SyncClient, Unsupported
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.testing import wait_until

pytestmark = pytest.mark.shared_keeper


def test_a_log_is_read_by_offsets(hf: SyncClient) -> None:
    process = hf.spawn("printf 0123456789")
    process.wait(30)
    log = process.log()
    assert isinstance(log, holdfast.Log)
    assert (log.begin(), log.size(), log.read(3, 4).data) == (0, 10, b"3456")
    assert process.log("stdout") is log
    with pytest.raises(Unsupported, match="start it with stderr separate"):
        process.log("stderr")
    with pytest.raises(BadRequest, match="'stdout' or 'stderr'"):
        process.log("stdin")  # type: ignore[arg-type]


def test_a_wait_may_leave_the_end_to_be_told(hf: SyncClient) -> None:
    """By default whoever waited was told; without `acknowledge` the event is still there."""
    process = hf.spawn("exit 3")
    assert process.wait(30, acknowledge=False).code == 3
    wait_until(lambda: [event.handle for event in hf.events()] == [process.handle])
    hf.acknowledge_end(process.record)
    assert list(hf.events()) == []
    assert hf.spawn("true").wait(30).ok
    assert list(hf.events()) == []


def test_the_end_of_another_sessions_process_is_not_taken_from_it(
    hf: SyncClient, session: str
) -> None:
    process = hf.spawn("true")
    process.wait(30, acknowledge=False)
    with holdfast.connect(session=f"{session}-other") as other:
        other.acknowledge_end(process.record)
    wait_until(lambda: [event.handle for event in hf.events()] == [process.handle])


@pytest.mark.own_keeper
def test_a_keeper_is_started_by_asking_for_one(home: str) -> None:
    client = open_client(Home(home).ensure(), None)
    assert client.keeper_status() == {"running": False}
    client.keeper_start()
    assert client.keeper_status()["running"]
    client.close()


def test_a_descriptor_is_waited_for(hf: SyncClient) -> None:
    """Until it can be read, or the time is over."""
    there, back = os.pipe()
    try:
        hf.readable(there, "10ms")
        hf.readable(None, "10ms")
        threading.Timer(0.05, os.write, (back, b"x")).start()
        hf.readable(there, "1h")
        assert os.read(there, 1) == b"x"
    finally:
        os.close(there)
        os.close(back)


def test_work_is_done_without_a_loop_too(hf: SyncClient) -> None:
    assert hf.run_in_thread(lambda: 6 * 7) == 42


async def test_work_does_not_hold_up_a_loop(home: str) -> None:
    async with holdfast.connect() as hf:
        loop = threading.get_ident()
        assert await hf.run_in_thread(threading.get_ident) != loop


@pytest.mark.weight(6)
def test_a_long_wait_says_what_it_waits_for(hf: SyncClient) -> None:
    """To a plain function where there is no event loop."""
    said: list[tuple[float, str]] = []
    process = hf.spawn("sleep 1000")
    waited = hf.wait_for(
        process,
        "output=never",
        timeout="6s",
        progress=lambda seconds, text: said.append((seconds, text)),
    )
    assert waited.timed_out
    assert [text for _, text in said] == ["output=never"]
    assert said[0][0] >= 5
