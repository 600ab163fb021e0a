"""Claims on events: asked again, because an answer was lost, they are answered as they were."""

from __future__ import annotations

import os
import resource
import signal

import pytest

from holdfast import StoreError, SyncClient, connect
from holdfast.client.link import run
from holdfast.core.home import Home
from holdfast.core.outbox import Claim, OutboxWriter, read_events
from holdfast.testing import wait_until

ENDS = 130  # twice as many lines, which is more than an outbox is left to have


def claim(hf: SyncClient, event: str, by: str) -> list[str]:
    asked = {"session": "test", "ids": [event], "by": by}
    found: list[str] = run(hf._client._link.call("claim", asked))["claimed"]
    return found


def kill_worker(hf: SyncClient) -> None:
    worker = hf.keeper_status()["worker"]
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: hf.keeper_status()["worker"] != worker)


@pytest.mark.parametrize("killed", [False, True], ids=["answered", "worker killed"])
def test_each_of_many_claims_is_answered_twice_the_same(hf: SyncClient, killed: bool) -> None:
    """Also where the outbox is written anew within it, and the worker dies before the answer."""
    for _ in range(ENDS):
        hf.spawn("exit 0", retention=3600)
    wait_until(lambda: len(list(hf.events())) == ENDS, timeout=60)
    shrunk = 0
    for number, event in enumerate(hf.events()):
        size = os.path.getsize(hf.home.outbox("test"))
        first = claim(hf, event.id, f"reader-{number}")
        if killed and number % 40 == 0:
            kill_worker(hf)
        assert first == [event.id]
        assert claim(hf, event.id, f"reader-{number}") == first
        assert claim(hf, event.id, f"other-{number}") == []
        hf.acknowledge(event)
        anew = os.path.getsize(hf.home.outbox("test")) < size
        shrunk += anew
        if killed and anew:
            kill_worker(hf)
        assert claim(hf, event.id, f"other-{number}") == []
    assert shrunk
    assert list(hf.events()) == []


def test_on_a_full_disk_an_event_is_claimed_by_nobody(hf: SyncClient) -> None:
    """Nor is anybody told that it has it: a worker that takes over would know nothing of that."""
    hf.spawn("exit 0", retention=3600)
    (event,) = wait_until(lambda: list(hf.events()))
    worker = hf.keeper_status()["worker"]
    before = resource.prlimit(worker, resource.RLIMIT_FSIZE)
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (0, before[1]))
    with pytest.raises(StoreError, match=r"no space|too large"):
        hf.claim(event)
    kill_worker(hf)
    with connect(session="test") as another:
        assert another.claim(event) == [event]
        assert hf.claim(event) == []


def test_an_outbox_that_was_claimed_from_for_long_stays_small(home: str) -> None:
    """Claims are kept while they are in force, and writing them down costs no more for it."""
    writer = OutboxWriter(Home(home).ensure(), "test")
    inode, rewritten = 0, 0
    for number in range(5000):
        entry = {"id": f"proc-{number}:end", "type": "end", "at": "2026-01-01T00:00:00.000000Z"}
        claim = Claim(f"reader-{number}", "client", 1, 1)
        assert writer.claim(claim, [entry["id"]], lambda _: True, ahead=True) == [entry["id"]]
        writer.append(entry)
        if number % 2:
            writer.acknowledge([entry["id"]], by=claim.by)
        else:
            writer.free([claim.by])
            writer.acknowledge([entry["id"]])
        found = os.stat(Home(home).outbox("test"))
        rewritten += found.st_ino != inode
        inode = found.st_ino
        assert found.st_size < 1 << 20
    assert rewritten < 150
    OutboxWriter(Home(home), "test").append(entry)  # which is remembered as told
    assert [event for event in read_events(Home(home), "test") if not event.acknowledged] == []
