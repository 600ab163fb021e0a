"""Many records: lists, starts and restarts cost what they show, and the index is always right."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import KeeperError, SyncClient, connect
from holdfast.client.connect import open_client
from holdfast.core.home import Home, new_handle
from holdfast.core.index import Ended, is_whole, seconds_of, tag_of
from holdfast.core.record import Record, rfc3339
from holdfast.core.store import Store
from holdfast.testing import wait_until

MANY = 3000


def finish(home: Home, number: int, session: str = "busy", **fields: object) -> list[str]:
    """Records of processes that ended a minute ago, as a keeper of an earlier version left them."""
    store, now = Store(home), time.time()
    handles = []
    for n in range(number):
        handle, at = new_handle(), rfc3339(now - 60 + n / 1000)
        record = Record(
            handle,
            session,
            "true",
            "/",
            status="completed",
            exit_code=0,
            reason="exited",
            ended_by="itself",
            started_at=at,
            ended_at=at,
            duration_seconds=0.0,
            log=home.log(handle),
            max_finished=2 * MANY,
        )
        for name, value in fields.items():
            setattr(record, name, value)
        store.create(record)
        handles.append(handle)
    return handles


def entries(home: Home) -> dict[str, list[str]]:
    """Where each handle is in the index."""
    found: dict[str, list[str]] = {}
    for name in os.listdir(home.active):
        found.setdefault(name.partition(".")[0], []).append("active")
    for directory in os.listdir(home.ended):
        for name in os.listdir(f"{home.ended}/{directory}"):
            entry = Ended.parse(directory, name)
            assert entry is not None, name
            found.setdefault(entry.handle, []).append(directory)
    return found


def agrees(home: Home) -> bool:
    """Every record has one entry, in the place that is right for it, and every entry a record."""
    store = Store(home)
    expected = {}
    for handle in store.handles():
        record = store.load(handle)
        expected[handle] = ["active" if record.running else record.session]
    return entries(home) == expected


@pytest.fixture
def old_home(home: str) -> Home:
    return Home(home).ensure()


@pytest.fixture
def crowded(old_home: Home) -> Iterator[SyncClient]:
    """The session ``"test"``, in a home where another one has very many finished processes."""
    finish(old_home, MANY)
    with connect(session="test") as client:
        client.spawn("true").wait(60)
        yield client


def cost(work: Callable[[], object]) -> float:
    """The processor time it takes, at best."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def test_a_list_costs_what_it_shows(crowded: SyncClient) -> None:
    """Thousands of finished processes of another session are not even opened."""
    everything = cost(lambda: crowded.store.scan())
    assert cost(crowded.list) < everything / 10
    assert cost(lambda: crowded.list(ended=False)) < everything / 10
    assert len(crowded.list()) == 1
    assert crowded.list(ended=False) == []
    with connect(session="busy") as busy:
        assert cost(lambda: busy.list(ended=False)) < everything / 10
        assert len(busy.list()) == MANY


def test_one_look_at_the_keeper_serves_a_whole_list(hf: SyncClient) -> None:
    """However many run, the lock is asked once: one descriptor is opened for each record."""
    processes = [hf.spawn(["sleep", "1000"], max_running=100) for _ in range(40)]
    assert [each.handle for each in hf.list()] == [each.handle for each in processes]
    many = cost(hf.list)
    alone = cost(lambda: [hf.store.load(each.handle) for each in processes])
    assert many < 3 * alone + 0.01


@pytest.mark.weight(8)
def test_a_worker_that_starts_among_many_finished_processes_keeps_them_all(
    crowded: SyncClient,
) -> None:
    """They are known by their names at once, and looked at bit by bit while others are answered."""
    running = crowded.spawn("sleep 1000")
    wait_until(lambda: agrees(crowded.home))
    for _ in range(3):
        before = crowded.keeper_status()["worker"]
        os.kill(before, signal.SIGKILL)
        while crowded.keeper_status()["worker"] == before:
            time.sleep(0.001)
        assert running.refresh().running
        assert len(crowded.list()) == 2
    with connect(session="busy") as busy:
        handles = [each.handle for each in busy.list()]
        assert len(handles) == MANY
        busy.list()[0].remove()
        assert [each.handle for each in busy.list()] == handles[1:]
        last = busy.spawn("true")  # of which 100 are kept: the oldest go, bit by bit
        last.wait(30)
        wait_until(lambda: len(busy.store.handles("busy")) == 100)
        assert [each.handle for each in busy.list()] == [*handles[-99:], last.handle]
    wait_until(lambda: agrees(crowded.home))


def test_an_old_home_gets_its_index_from_the_next_keeper(old_home: Home) -> None:
    """Until then all records are looked at; nothing of them changes."""
    handles = finish(old_home, 3, "test")
    before = {handle: Path(old_home.meta(handle)).read_bytes() for handle in handles}
    assert not is_whole(old_home)
    reader = open_client(old_home, "test")
    assert [each.handle for each in reader.list()] == handles
    reader.close()
    assert not is_whole(old_home)  # a list starts no keeper
    with connect(session="test") as client:
        wait_until(lambda: agrees(old_home))
        assert is_whole(old_home)
        assert [each.handle for each in client.list()] == handles
        assert {name: Path(old_home.meta(name)).read_bytes() for name in handles} == before


@pytest.mark.parametrize("gone", ["active", "ended", "both"])
def test_a_list_without_an_index_is_the_same(hf: SyncClient, gone: str) -> None:
    """Deleted under a running keeper: what runs and what has ended is listed all the same."""
    over, running = hf.spawn("true"), hf.spawn("sleep 1000")
    over.wait(30)
    wait_until(lambda: agrees(hf.home))
    for name in ("active", "ended") if gone == "both" else (gone,):
        os.rename(f"{hf.home.path}/{name}", f"{hf.home.path}/was-{name}")
    assert [each.handle for each in hf.list()] == [over.handle, running.handle]
    if gone != "ended":
        assert [each.handle for each in hf.list(ended=False)] == [running.handle]
    after = hf.spawn("true")
    after.wait(30)
    shown = [over.handle, running.handle, after.handle]
    assert [each.handle for each in hf.list()] == shown
    os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
    wait_until(lambda: is_whole(hf.home) and agrees(hf.home))
    assert [each.handle for each in hf.list()] == shown
    running.kill()


@pytest.mark.parametrize("by", ["file", "symlink"])
@pytest.mark.parametrize("name", ["active", "ended"])
def test_what_stands_in_the_way_of_the_index_harms_nobody(
    hf: SyncClient, tmp_path: Path, name: str, by: str
) -> None:
    """Something in the place of its directory: it is set aside, and nothing is made through it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    over, running = hf.spawn("true"), hf.spawn("sleep 1000")
    over.wait(30)
    wait_until(lambda: agrees(hf.home))
    path = Path(f"{hf.home.path}/{name}")
    os.rename(path, f"{hf.home.path}/was-{name}")
    with contextlib.suppress(FileExistsError):  # the keeper may have made it again already
        if by == "file":
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        else:
            path.symlink_to(elsewhere)
    for _ in range(2):
        os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
        after = hf.spawn("true")
        assert after.wait(30).ok
        shown = [over.handle, running.handle, after.handle]
        assert [each.handle for each in hf.list()] == shown
        assert [each.handle for each in hf.list(ended=False)] == [running.handle]
        after.remove()
    assert list(elsewhere.iterdir()) == []
    wait_until(lambda: is_whole(hf.home) and agrees_but(hf.home))
    assert path.is_dir()
    assert not path.is_symlink()
    running.kill()


def test_an_index_that_a_keeper_without_one_passed_over_is_not_relied_on(
    old_home: Home,
) -> None:
    """Its lock does not speak of an index, so all records are looked at."""
    with connect(session="test") as client:
        first = client.spawn("true")
        first.wait(30)
        wait_until(lambda: agrees(old_home))
        client.keeper_stop()
        said = json.loads(Path(old_home.lock).read_text())
        assert said.pop("index") is True
        Path(old_home.lock).write_text(json.dumps(said))
        (late,) = finish(old_home, 1, "test")
        assert {each.handle for each in client.list()} == {first.handle, late}
        client.spawn("true").wait(30)
        wait_until(lambda: agrees(old_home))
        assert len(client.list()) == 3


def test_an_index_of_another_boot_is_not_relied_on(old_home: Home) -> None:
    """The machine may have lost what was written last."""
    with connect(session="test") as client:
        client.spawn("true").wait(30)
        client.keeper_stop()
        assert is_whole(old_home)
        said = json.loads(Path(old_home.lock).read_text())
        said["machine"][0] = "another boot"
        Path(old_home.lock).write_text(json.dumps(said))
        assert not is_whole(old_home)
        assert len(client.list()) == 1


def test_entries_of_nothing_and_second_ones_go(hf: SyncClient) -> None:
    """What a crash between two steps leaves is put right by the next worker."""
    over, running = hf.spawn("true"), hf.spawn("sleep 1000")
    over.wait(30)
    wait_until(lambda: agrees(hf.home))
    nothing, other = new_handle(), new_handle()
    Path(f"{hf.home.active}/{nothing}.{tag_of('test')}").touch()
    Path(f"{hf.home.active}/{over.handle}.{tag_of('test')}").touch()
    os.makedirs(f"{hf.home.ended}/test/{other}")  # not even a file, nor a name of ours
    os.mkdir(f"{hf.home.ended}/nobody")
    for name in os.listdir(hf.home.active):
        if name.startswith(running.handle):
            os.unlink(f"{hf.home.active}/{name}")
    os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
    wait_until(lambda: hf.keeper_status()["running"] and agrees_but(hf.home))
    assert [each.handle for each in hf.list()] == [over.handle, running.handle]
    assert not os.path.exists(f"{hf.home.ended}/nobody")
    running.kill()


def agrees_but(home: Home) -> bool:
    try:
        return agrees(home)
    except AssertionError:
        return False


def test_a_settled_record_that_is_damaged_is_set_aside(hf: SyncClient) -> None:
    """Though it is looked at late, and the others are listed meanwhile."""
    bad, good = hf.spawn("true"), hf.spawn("true")
    for process in (bad, good):
        process.wait(30)
    wait_until(lambda: agrees(hf.home))
    Path(hf.home.meta(bad.handle)).write_bytes(b"{")
    os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
    wait_until(lambda: os.path.exists(hf.home.meta(bad.handle) + ".bad"))
    assert [each.handle for each in hf.list()] == [good.handle]
    assert hf.problems() == []
    wait_until(lambda: agrees_but(hf.home))


def test_a_list_has_the_keeper_set_aside_what_nobody_can_read(hf: SyncClient) -> None:
    """Of what has ended as of what runs; no keeper has to be started anew for it."""
    bad, good = hf.spawn("true"), hf.spawn("true")
    for process in (bad, good):
        process.wait(30)
    wait_until(lambda: agrees(hf.home))
    Path(hf.home.meta(bad.handle)).write_bytes(b"{")
    assert [each.handle for each in hf.list()] == [good.handle]
    wait_until(lambda: os.path.exists(hf.home.meta(bad.handle) + ".bad"))


def test_what_a_session_takes_over_is_listed_there(old_home: Home, here: Path) -> None:
    """Its entries go along, of what runs and of what has ended."""
    with connect(session="new") as client:
        lost = connect(session="old", lease_grace="1h").__enter__()
        over, running = lost.spawn("true"), lost.spawn("sleep 1000")
        over.wait(30)
        lost.close()
        wait_until(lambda: [each.session for each in client.left_behind()] == ["old"])
        client.adopt("old")
        assert [each.handle for each in client.list()] == [over.handle, running.handle]
        wait_until(lambda: agrees(old_home))
        assert not os.path.exists(old_home.ended_of("old"))


def test_the_index_holds_through_kills(hf: SyncClient) -> None:
    """Workers killed at random while processes come, go and are removed: at last all agrees."""
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.03):
            try:
                os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
            except (KeyError, KeeperError, ProcessLookupError):
                continue

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for n in range(40):
            process = hf.spawn("true" if n % 2 else ["sleep", "0.02"])
            seen = [each.handle for each in hf.list()]
            assert process.handle in seen
            process.wait(60)
            assert process.handle in [each.handle for each in hf.list()]
            if n % 4 == 0:
                process.remove()
    finally:
        over.set()
        killer.join()
    wait_until(lambda: hf.keeper_status()["running"] and agrees(hf.home))
    assert is_whole(hf.home)
    assert len(hf.list()) == 30


def test_nothing_is_missed_while_it_ends(hf: SyncClient) -> None:
    """A list that is made while processes end shows every one of them, each once."""
    handles: list[str] = []
    for _ in range(60):
        handles.append(hf.spawn("true", max_running=100).handle)
        shown = [each.handle for each in hf.list()]
        assert sorted(shown) == sorted(handles)


def test_times_are_read_as_they_are_written() -> None:
    """The seconds of a time in a record are those it was made from."""
    for at in (0.0, 951782400.5, 1709164799.25, 4102444800.125):
        assert seconds_of(rfc3339(at)) == at
    assert seconds_of(None) == seconds_of("yesterday") == 0.0
