"""The outbox: every end is told, in order, under one id, until somebody says that it was used."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from holdfast import BadRequest, Event, NotFound, SyncClient, WaitTimeout, connect
from holdfast.client.connect import open_client
from holdfast.client.find_keeper import keeper_holds
from holdfast.client.link import BlockingLink, run
from holdfast.core.home import Home
from holdfast.core.outbox import LIMIT, OutboxWriter, read_events
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper

Follow = Callable[[str | None, int], "queue.Queue[Event]"]


@pytest.fixture
def person(home: str) -> Iterator[SyncClient]:
    """Somebody who sees every session and holds none."""
    client = open_client(Home(home), None)
    yield client
    client.close()


@pytest.fixture
def follow(home: str) -> Iterator[Follow]:
    """Follow a session's events (None: everybody's) in a thread with a client of its own."""
    threads: list[threading.Thread] = []

    def start(session: str | None, count: int) -> queue.Queue[Event]:
        told: queue.Queue[Event] = queue.Queue()

        def run() -> None:
            client = open_client(Home(home), session)
            events = client.events(follow=True)
            for event in islice(events, count):
                told.put(event)
            events.close()  # type: ignore[attr-defined]
            client.close()

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return told

    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def told(client: SyncClient, count: int) -> list[Event]:
    """The events, once there are that many."""
    wait_until(lambda: len(list(client.events())) >= count, what=f"{count} events")
    return list(client.events())


def kill_worker(client: SyncClient) -> None:
    before = client.keeper_status()["worker"]
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: client.keeper_status()["worker"] != before, what="a new worker")


def outbox(client: SyncClient, session: str | None = None) -> bytes:
    return Path(client.home.outbox(session or client.session or "")).read_bytes()


# -- reading ---------------------------------------------------------------------------------------


def test_an_event_tells_how_it_ended_and_what_it_said_last(hf: SyncClient) -> None:
    """All an agent needs is in the event, as fields and as a text to put before it."""
    process = hf.spawn("echo first; echo last words; exit 3", label="the build")
    (event,) = told(hf, 1)
    assert (event.seq, event.id, event.type) == (1, f"{process.handle}:end", "end")
    assert (event.session, event.handle, event.label) == (hf.session, process.handle, "the build")
    assert (event.status, event.exit_code, event.reason) == ("failed", 3, "exited")
    assert (event.signal, event.acknowledged, event.dropped) == (None, False, 0)
    assert event.tail == b"first\nlast words\n"
    assert event.at == process.refresh().ended_at
    assert event.text == (
        "[Background Process Completed]\n\n"
        f"Handle: {process.handle}\nLabel: the build\n"
        "Command: echo first; echo last words; exit 3\nExit code: 3\nDuration: 0s\n"
        "Status: failed\n\n"
        "Output (last 2000 chars):\n| first\n| last words\n"
    )


def test_events_are_numbered_and_read_in_order(hf: SyncClient, gate: Gate) -> None:
    """Twenty ends at one moment get the numbers 1 to 20, in the order they are given out."""
    processes = [hf.spawn(f": < {gate.path}; exit {n}") for n in range(20)]
    gate.open()
    events = told(hf, 20)
    assert [event.seq for event in events] == list(range(1, 21))
    codes = {event.handle: event.exit_code for event in events}
    assert codes == {process.handle: n for n, process in enumerate(processes)}


def test_events_are_read_after_a_number(hf: SyncClient) -> None:
    """A reader that knows how far it was leaves out what it has seen."""
    for n in range(4):
        hf.spawn(f"exit {n}")
        told(hf, n + 1)
    assert [event.seq for event in hf.events(after=0)] == [1, 2, 3, 4]
    assert [event.exit_code for event in hf.events(after=2)] == [2, 3]
    assert list(hf.events(after=4)) == []
    assert list(hf.events(after=1000)) == []


def test_numbers_of_sessions_are_their_own(
    hf: SyncClient, person: SyncClient, session: str
) -> None:
    """Each session counts from 1; a person sees all of them, in the order of time."""
    with connect(session=f"{session}-other") as other:
        for n, client in enumerate([hf, other, other, hf]):
            client.spawn(f"exit {n}")
            told(person, n + 1)
        assert [event.exit_code for event in hf.events()] == [0, 3]
        assert [event.exit_code for event in other.events()] == [1, 2]
        events = list(person.events())
        assert [event.exit_code for event in events] == [0, 1, 2, 3]
        assert [event.seq for event in events] == [1, 1, 2, 2]


# -- following -------------------------------------------------------------------------------------


def test_follow_gives_what_is_there_and_then_what_comes(hf: SyncClient, gate: Gate) -> None:
    """An event that is not acknowledged is given once by one reader, and again by the next."""
    hf.spawn("exit 1")
    told(hf, 1)
    hf.spawn(f": < {gate.path}; exit 2")
    events = hf.events(follow=True)
    assert next(events).exit_code == 1
    gate.open()
    assert next(events).exit_code == 2
    hf.spawn("exit 3")
    assert next(events).exit_code == 3
    events.close()  # type: ignore[attr-defined]
    assert [event.exit_code for event in hf.events()] == [1, 2, 3]


def test_follow_goes_on_after_a_number(hf: SyncClient) -> None:
    """What a reader had before it came back is not told again."""
    for n in (1, 2):
        hf.spawn(f"exit {n}")
        told(hf, n)
    events = hf.events(after=1, follow=True)
    assert next(events).exit_code == 2
    events.close()  # type: ignore[attr-defined]


@pytest.mark.own_keeper
def test_a_thread_follows_while_others_work(hf: SyncClient, follow: Follow, session: str) -> None:
    """Ends reach the follower one after another, through a kill of the worker too."""
    ends = follow(session, 3)
    for n in range(3):
        process = hf.spawn(f"echo {n}; exit {n}")
        event = ends.get(timeout=30)
        assert (event.seq, event.handle, event.exit_code) == (n + 1, process.handle, n)
        if n == 1:
            kill_worker(hf)


def test_follow_begins_before_there_is_anything(home: str, follow: Follow, session: str) -> None:
    """Neither session nor keeper nor home need be there for somebody to follow."""
    ends = follow(session, 1)
    with connect(session=session) as hf:
        process = hf.spawn("exit 9")
        assert ends.get(timeout=30).handle == process.handle


def test_a_person_follows_every_session_also_one_that_comes_later(
    hf: SyncClient, follow: Follow
) -> None:
    """Who sees all sessions is told of a session that did not exist when it began."""
    ends = follow(None, 4)
    hf.spawn("exit 1")
    assert ends.get(timeout=30).session == hf.session
    for n, name in enumerate([f"{hf.session}-later", f"{hf.session}-latest"]):
        with connect(session=name) as other:
            other.spawn(f"exit {n}")
            event = ends.get(timeout=30)
            assert (event.session, event.seq, event.exit_code) == (name, 1, n)
    hf.spawn("exit 2")
    event = ends.get(timeout=30)
    assert (event.session, event.seq, event.exit_code) == (hf.session, 2, 2)


def test_a_session_that_came_while_an_event_was_handled_is_followed_too(
    hf: SyncClient, person: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its events wake the follower as they happen, and are not merely found now and then."""
    readable = BlockingLink.readable

    async def only_woken(link: BlockingLink, fd: int | None, timeout: float) -> None:
        await readable(link, fd, 3600.0)

    monkeypatch.setattr(BlockingLink, "readable", only_woken)
    events = person.events(follow=True)
    hf.spawn("exit 1")
    assert next(events).session == hf.session
    with connect(session=f"{hf.session}-later") as later:
        for n in range(4):
            later.spawn(f"sleep 0.1; exit {n}")
            assert next(events).exit_code == n
    events.close()  # type: ignore[attr-defined]


# -- acknowledging ---------------------------------------------------------------------------------


def test_acknowledging_is_final_and_may_be_repeated(hf: SyncClient, person: SyncClient) -> None:
    """A used event is told to nobody again; saying so twice changes nothing."""
    for n in range(2):
        hf.spawn(f"exit {n}")
        told(hf, n + 1)
    first, second = hf.events()
    hf.acknowledge(first)
    assert first.acknowledged
    assert [event.id for event in hf.events()] == [second.id]
    assert [event.id for event in person.events()] == [second.id]
    before = outbox(hf)
    hf.acknowledge(first)
    hf.acknowledge(first, first)
    person.acknowledge(first)
    hf.acknowledge()
    assert outbox(hf) == before
    marked = [(event.id, event.acknowledged) for event in hf.events(acknowledged=True)]
    assert marked == [(first.id, True), (second.id, False)]
    hf.acknowledge(first, second)
    assert list(hf.events()) == []


def test_an_unknown_event_can_be_acknowledged_and_nothing_happens(
    hf: SyncClient, session: str
) -> None:
    """What was compacted away long ago is no error to whoever acknowledges it late."""
    late = Event(seq=7, id="proc-0123456789abcdef:end", type="end", at="", session=session)
    hf.acknowledge(late)
    hf.spawn("exit 1")
    told(hf, 1)
    hf.acknowledge(late)
    assert [event.exit_code for event in hf.events()] == [1]


def test_an_event_of_another_session_cannot_be_acknowledged(
    hf: SyncClient, person: SyncClient, session: str
) -> None:
    """A session uses up its own events only; a person may do it for any."""
    with connect(session=f"{session}-other") as other:
        other.spawn("exit 1")
        (event,) = told(other, 1)
        with pytest.raises(BadRequest):
            hf.acknowledge(event)
        assert [seen.id for seen in other.events()] == [event.id]
        person.acknowledge(event)
        assert list(other.events()) == []


@pytest.mark.own_keeper
def test_ids_and_numbers_outlive_every_keeper(hf: SyncClient, gate: Gate) -> None:
    """Restarted, killed, stopped: the same events under the same ids, and the count goes on."""
    first = hf.spawn("echo first; exit 1")
    used = told(hf, 1)[0]
    hf.acknowledge(used)
    second = hf.spawn("echo second; exit 2")
    before = told(hf, 1)
    third = hf.spawn(f": < {gate.path}; exit 3")
    hf.keeper_restart()
    assert list(hf.events()) == before
    kill_worker(hf)
    assert list(hf.events()) == before
    hf.acknowledge(used)
    gate.open()
    events = told(hf, 2)
    assert events[:1] == before
    assert [event.id for event in events] == [f"{second.handle}:end", f"{third.handle}:end"]
    assert [event.seq for event in events] == [2, 3]
    hf.keeper_stop()
    assert list(hf.events()) == events, "read from the disk, without a keeper"
    assert hf.keeper_status() == {"running": False}
    fourth = hf.spawn("exit 4")
    assert [(e.seq, e.id) for e in told(hf, 3)][2:] == [(4, f"{fourth.handle}:end")]
    every = [event.id for event in hf.events(acknowledged=True)]
    assert every == [f"{process.handle}:end" for process in (first, second, third, fourth)]


# -- who was told otherwise ------------------------------------------------------------------------


def test_a_wait_that_shows_the_end_uses_the_event_up(hf: SyncClient, person: SyncClient) -> None:
    """The waiter needs no event; it stays in the outbox as one that was used."""
    process = hf.spawn("exit 4")
    assert process.wait(30).code == 4
    assert list(hf.events()) == []
    hf.keeper_status()  # answered in order: the end is written down, and that it was seen
    assert list(person.events()) == []
    (event,) = hf.events(acknowledged=True)
    assert (event.id, event.acknowledged) == (f"{process.handle}:end", True)


def test_a_wait_long_after_the_end_uses_the_event_up_too(
    hf: SyncClient, person: SyncClient
) -> None:
    """Whoever asks how it ended has been told, whenever that is."""
    process = hf.spawn("exit 4")
    told(hf, 1)
    assert hf.get(process.handle).wait(30).code == 4
    assert list(hf.events()) == []
    hf.keeper_status()
    assert list(person.events()) == []


def test_a_wait_without_patience_tells_an_end_that_is_there(hf: SyncClient, gate: Gate) -> None:
    """Zero seconds is a look: how it ended, or that it has not."""
    process = hf.spawn(f": < {gate.path}; exit 4")
    with pytest.raises(WaitTimeout):
        process.wait(0)
    gate.open()
    told(hf, 1)
    assert process.record.running, "as of the last look"
    assert process.wait(0).code == 4
    assert list(hf.events()) == []


def test_a_wait_that_was_too_short_uses_nothing_up(hf: SyncClient, gate: Gate) -> None:
    """Who gave up waiting hears of the end by its event."""
    process = hf.spawn(f": < {gate.path}; exit 4")
    with pytest.raises(WaitTimeout):
        process.wait(0.01)
    gate.open()
    assert [event.exit_code for event in told(hf, 1)] == [4]


def test_a_person_who_waits_takes_nothing_from_the_agent(
    hf: SyncClient, person: SyncClient, gate: Gate
) -> None:
    """Somebody else's wait shows the end to somebody else; the session is still told."""
    process = hf.spawn(f": < {gate.path}; exit 5")
    gate.open()
    assert person.get(process.handle).wait(30).code == 5
    told(hf, 1)
    assert person.get(process.handle).wait(30).code == 5
    person.keeper_status()
    assert [event.exit_code for event in hf.events()] == [5]
    assert [event.exit_code for event in person.events()] == [5]


def test_a_person_who_waits_for_its_own_process_was_told(person: SyncClient) -> None:
    """What a person starts belongs to the default session, whose waiter it then is."""
    process = person.spawn("exit 6")
    assert process.record.session == "default"
    assert process.wait(30).code == 6
    assert list(person.events()) == []
    person.keeper_status()
    events = list(read_events(person.home, "default"))
    assert [event.acknowledged for event in events if event.handle == process.handle] == [True]


def test_the_receipt_of_a_kill_uses_the_event_up(hf: SyncClient, person: SyncClient) -> None:
    """Who killed it, or all of them, has seen the end; so has who kills what has ended."""
    hf.spawn("sleep 600").kill()
    assert list(hf.events()) == []
    hf.spawn("sleep 600")
    assert len(hf.stop_all()) == 1
    assert list(hf.events()) == []
    ended = hf.spawn("exit 1")
    told(hf, 1)
    assert ended.kill().already_ended
    assert list(hf.events()) == []
    hf.keeper_status()
    assert list(person.events()) == []
    assert [event.acknowledged for event in hf.events(acknowledged=True)] == [True] * 3


def test_a_person_who_kills_takes_nothing_from_the_agent(
    hf: SyncClient, person: SyncClient
) -> None:
    """An agent whose process was killed by somebody else is told so."""
    first, second = hf.spawn("sleep 600"), hf.spawn("sleep 600")
    person.get(first.handle).kill()
    assert [receipt.record.handle for receipt in person.stop_all()] == [second.handle]
    events = told(hf, 2)
    person.keeper_status()
    assert list(hf.events()) == events
    assert [(event.handle, event.status, event.reason) for event in events] == [
        (first.handle, "killed", "killed"),
        (second.handle, "killed", "killed"),
    ]


def test_removing_a_process_takes_its_event_along(hf: SyncClient, person: SyncClient) -> None:
    """What was deleted with all its traces is not told of either."""
    ended, running = hf.spawn("exit 1"), hf.spawn("sleep 600")
    told(hf, 1)
    ended.remove()
    running.remove()
    assert list(hf.events()) == list(person.events()) == []


# -- longer than the process -----------------------------------------------------------------------


@pytest.mark.own_keeper
def test_events_outlive_records_that_were_let_go_by_number(
    home: str, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    """With room for one finished process, the others are still told of, last words and all."""
    monkeypatch.setenv("HOLDFAST_MAX_FINISHED", "1")
    with connect(session=session) as hf:
        processes = []
        for n in range(3):
            processes.append(hf.spawn(f"echo words {n}; exit {n}"))
            told(hf, n + 1)
        wait_until(lambda: list(hf.store.handles()) == [processes[2].handle])
        with pytest.raises(NotFound):
            hf.get(processes[0].handle)
        assert not os.path.exists(processes[0].record.log)
        kill_worker(hf)
        events = list(hf.events())
        assert [event.handle for event in events] == [process.handle for process in processes]
        for n, event in enumerate(events):
            assert event.text.endswith(f"Output (last 2000 chars):\n| words {n}\n")
        hf.acknowledge(*events)
        assert list(hf.events()) == []


def test_events_outlive_records_that_nobody_looked_at(
    home: str, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    """Forgotten after its retention, record and log, but not what the session has to be told."""
    monkeypatch.setenv("HOLDFAST_RETENTION", "100ms")
    with connect(session=session) as hf:
        process = hf.spawn("seq 5000; exit 8")
        wait_until(lambda: not list(hf.store.handles()), what="the record is forgotten")
        assert not os.path.exists(process.record.log)
        (event,) = hf.events()
        assert (event.handle, event.exit_code) == (process.handle, 8)
        assert event.text.endswith("\n| 4998\n| 4999\n| 5000\n")
        hf.acknowledge(event)
        assert list(hf.events()) == []


# -- the file --------------------------------------------------------------------------------------


@pytest.fixture
def quiet(tmp_path: Path) -> Home:
    """A home without a keeper, where a test writes the outbox itself."""
    home = Home(str(tmp_path / "quiet"))
    home.ensure()
    return home


def entry(n: int, at: str = "2026-01-01T00:00:00.000000Z") -> dict[str, Any]:
    return {"id": f"proc-{n:016d}:end", "type": "end", "at": at, "exit_code": n}


def numbers(home: Home, *, acknowledged: bool = False) -> list[int]:
    events = read_events(home, "test")
    return [event.seq for event in events if acknowledged or not event.acknowledged]


def test_too_many_events_become_a_mark_that_says_how_many(quiet: Home) -> None:
    """The oldest are let go, and every one of them is counted; the newest stay."""
    writer = OutboxWriter(quiet, "test")
    for n in range(1, LIMIT + 1):
        assert writer.append(entry(n)) == n
    assert numbers(quiet) == list(range(1, LIMIT + 1))
    writer.append(entry(LIMIT + 1))
    mark, *kept = read_events(quiet, "test")
    assert (mark.type, mark.dropped, mark.handle) == ("gap", 101, None)
    assert mark.seq == 101, "the number of the last that was let go"
    assert [event.seq for event in kept] == list(range(102, LIMIT + 2))
    assert "101 older events" in mark.text
    assert writer.pending == 901


def test_a_mark_that_is_let_go_is_counted_with_what_it_stood_for(quiet: Home) -> None:
    """However often it overflows, also with another writer, dropped and kept are all there were."""
    total = 1500
    for first in range(1, total, 500):
        writer = OutboxWriter(quiet, "test")
        for n in range(first, first + 500):
            assert writer.append(entry(n)) == n
    mark, *kept = read_events(quiet, "test")
    assert mark.type == "gap"
    assert mark.dropped + len(kept) == total
    assert [event.type for event in kept] == ["end"] * len(kept)
    assert [event.seq for event in kept] == list(range(total - len(kept) + 1, total + 1))


def test_a_mark_is_acknowledged_like_any_event(quiet: Home) -> None:
    """Who was told of a gap is told next of what was dropped after it, and of no more."""
    writer = OutboxWriter(quiet, "test")
    for n in range(1, LIMIT + 2):
        writer.append(entry(n))
    mark = read_events(quiet, "test")[0]
    assert writer.acknowledge([mark.id]) == [mark.id]
    assert numbers(quiet)[0] == 102
    for n in range(LIMIT + 2, LIMIT + 103):
        writer.append(entry(n))
    again, *kept = read_events(quiet, "test")
    assert (again.type, again.dropped, again.seq) == ("gap", 101, 202)
    assert kept[0].seq == 203
    assert again.id != mark.id


def test_a_reader_that_is_past_the_gap_is_not_told_of_it(quiet: Home) -> None:
    """It has seen all that was dropped; one that had not gets the mark in their place."""
    writer = OutboxWriter(quiet, "test")
    for n in range(1, LIMIT + 2):
        writer.append(entry(n))
    client = open_client(quiet, "test")
    assert next(client.events(after=100)).type == "gap"
    past = next(client.events(after=101))
    assert (past.type, past.seq) == ("end", 102)
    client.close()


def test_what_was_used_is_cut_out_and_numbers_go_on(quiet: Home) -> None:
    """The file does not grow with what nobody needs, and no number is given twice."""
    writer = OutboxWriter(quiet, "test")
    for n in range(1, 1001):
        assert writer.append(entry(n)) == n
        if n not in (3, 500):
            writer.acknowledge([entry(n)["id"]])
    lines = Path(quiet.outbox("test")).read_bytes().count(b"\n")
    assert lines < 250
    assert numbers(quiet) == [3, 500]
    writer.acknowledge([entry(3)["id"], entry(500)["id"]])
    while numbers(quiet, acknowledged=True):  # on, until the file is rewritten with nothing in it
        n = writer.append(entry(n + 1))
        writer.acknowledge([entry(n)["id"]])
    assert writer.append(entry(5000)) == n + 1
    successor = OutboxWriter(quiet, "test")
    assert entry(5000)["id"] in successor
    assert successor.append(entry(5001)) == n + 2
    assert numbers(quiet) == [n + 1, n + 2]


def test_an_empty_outbox_still_knows_its_next_number(quiet: Home) -> None:
    """After a rewrite that left no event at all, a new writer does not begin at 1."""
    writer = OutboxWriter(quiet, "test")
    n = 0
    while not n or numbers(quiet, acknowledged=True):
        n = writer.append(entry(n + 1))
        writer.acknowledge([entry(n)["id"]])
    assert OutboxWriter(quiet, "test").append(entry(5000)) == n + 1


def test_a_torn_last_line_is_skipped_and_a_new_one_begun(quiet: Home) -> None:
    """Cut anywhere, the line costs no other event, and what it was to be can be told again."""
    path = Path(quiet.outbox("test"))
    writer = OutboxWriter(quiet, "test")
    for n in (1, 2):
        writer.append(entry(n))
    whole = path.read_bytes()
    writer.append(entry(3))
    line = path.read_bytes()[len(whole) :]
    for cut in range(len(line)):
        path.write_bytes(whole + line[:cut])
        there = [1, 2, 3] if cut == len(line) - 1 else [1, 2]
        assert numbers(quiet) == there
        successor = OutboxWriter(quiet, "test")
        assert numbers(quiet) == there
        assert successor.append(entry(3)) == 3
        assert successor.append(entry(4)) == 4
        assert numbers(quiet) == [1, 2, 3, 4]


def test_a_torn_acknowledgement_is_none(quiet: Home) -> None:
    """Its event is told once more, and can be acknowledged once more."""
    path = Path(quiet.outbox("test"))
    writer = OutboxWriter(quiet, "test")
    writer.append(entry(1))
    writer.append(entry(2))
    writer.acknowledge([entry(1)["id"]])
    path.write_bytes(path.read_bytes()[:-4])
    assert numbers(quiet) == [1, 2]
    successor = OutboxWriter(quiet, "test")
    assert successor.acknowledge([entry(1)["id"]]) == [entry(1)["id"]]
    assert numbers(quiet) == [2]


def test_lines_that_make_no_sense_are_skipped(quiet: Home) -> None:
    """Damage in the middle of the file costs what it hit, and nothing else."""
    path = Path(quiet.outbox("test"))
    writer = OutboxWriter(quiet, "test")
    writer.append(entry(1))
    with path.open("ab") as file:
        file.write(b'\0\0\0\0\n[1, 2]\n"text"\n\n\xff\xfe\n')
    successor = OutboxWriter(quiet, "test")
    assert successor.append(entry(2)) == 2
    assert numbers(quiet) == [1, 2]


def test_an_event_that_is_in_the_file_twice_is_told_once(quiet: Home) -> None:
    """The id decides: the first stands, and one acknowledgement is for both."""
    path = Path(quiet.outbox("test"))
    writer = OutboxWriter(quiet, "test")
    for n in (1, 2):
        writer.append(entry(n))
    with path.open("ab") as file:
        file.write(json.dumps({"seq": 3, **entry(1)}).encode() + b"\n")
    client = open_client(quiet, "test")
    assert [(event.seq, event.exit_code) for event in client.events()] == [(1, 1), (2, 2)]
    client.close()
    successor = OutboxWriter(quiet, "test")
    assert successor.append(entry(3)) == 4
    assert successor.acknowledge([entry(1)["id"]]) == [entry(1)["id"]]
    assert numbers(quiet) == [2, 4]


def test_an_event_is_appended_once(quiet: Home) -> None:
    """A second telling gets the first one's number, also after it was acknowledged."""
    writer = OutboxWriter(quiet, "test")
    assert writer.append(entry(1)) == 1
    assert writer.append(entry(1)) == 1
    writer.acknowledge([entry(1)["id"]])
    assert writer.append(entry(1)) == 1
    assert OutboxWriter(quiet, "test").append(entry(1)) == 1
    assert numbers(quiet, acknowledged=True) == [1]
    assert numbers(quiet) == []


def test_ends_that_were_written_down_late_are_all_told(quiet: Home) -> None:
    """An end that became known after a later one, or a clock set back, hides no event."""
    at = "2026-01-01T00:00:{:02d}.000000Z"
    writer = OutboxWriter(quiet, "test")
    for n, second in ((1, 20), (2, 10), (3, 30)):
        writer.append(entry(n, at.format(second)))
    OutboxWriter(quiet, "other").append(entry(4, at.format(25)))
    for session, codes in (("test", [1, 2, 3]), (None, [1, 2, 4, 3])):
        client = open_client(quiet, session)
        assert [event.exit_code for event in client.events()] == codes
        client.close()


def test_a_follower_sees_to_a_keeper_when_both_halves_died(
    hf: SyncClient, gate: Gate, kill_both: Callable[[SyncClient], None]
) -> None:
    """Whoever waits for ends is told of them, with the exit code."""
    process = hf.spawn(f": < {gate.path}; exit 5")
    kill_both(hf)
    seen: list[Event] = []
    thread = threading.Thread(target=lambda: seen.extend(islice(hf.events(follow=True), 1)))
    thread.start()
    wait_until(lambda: keeper_holds(hf.home))
    wait_until(lambda: hf.keeper_status().get("processes") == 1, what="it was adopted")
    gate.open()
    thread.join(60)
    assert [(event.handle, event.exit_code) for event in seen] == [(process.handle, 5)]


@pytest.mark.own_keeper
def test_a_claim_that_is_asked_again_gets_the_same_answer(hf: SyncClient) -> None:
    """The keeper died before it could answer: the one that was first is still the first."""
    hf.spawn("true")
    (event,) = wait_until(lambda: list(hf.events()))
    wanted = {"session": hf.session, "ids": [event.id], "by": "me"}
    link = hf._client._link
    assert run(link.call("claim", wanted)) == {"claimed": [event.id]}
    os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
    assert run(link.call("claim", wanted)) == {"claimed": [event.id]}
    assert run(link.call("claim", {**wanted, "by": "you"})) == {"claimed": []}
