"""Records on disk that are not as they should be: another's pid, torn, empty, newer, older."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import NotFound, Record, StoreError, SyncClient
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.core.record import Stop
from holdfast.linux.kernel import start_time, stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def person(home: str) -> Iterator[SyncClient]:
    """A client of the session ``"test"`` without a lease: a keeper runs only when it is asked."""
    client = open_client(Home(home).ensure(), "test")
    yield client
    client.close()


# -- a pid that is somebody else's -----------------------------------------------------------------


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with us, leader of its group as ours are."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def with_another_start_time(record: Record, pid: int) -> None:
    began = start_time(pid)
    assert began is not None
    record.start_time = began - 1


def of_another_boot(record: Record, pid: int) -> None:
    record.start_time = start_time(pid)
    record.boot_id = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize("stop", [False, True], ids=["running", "being stopped"])
@pytest.mark.parametrize("how", [with_another_start_time, of_another_boot])
def test_a_pid_that_is_somebody_elses_now_is_never_signalled(
    person: SyncClient,
    bystander: subprocess.Popen[bytes],
    how: Callable[[Record, int], None],
    stop: bool,
    kill_both: Callable[[SyncClient], None],
) -> None:
    """The process is lost; whoever has its pid now is left alone, whatever was due or is asked."""
    process = person.spawn("sleep 1000", grace=0, timeout=0.001 if stop else None)
    if not stop:
        kill_both(person)
        os.kill(process.record.pid or 0, signal.SIGKILL)
    else:
        process.wait(30)
        person.keeper_stop()
    record = person.store.load(process.handle)  # a look would start a keeper
    record.status, record.reason, record.ended_by = "running", None, None
    record.exit_code = record.signal = record.ended_at = None
    record.pid = bystander.pid
    now = time.monotonic()
    record.stop = Stop("killed", "pid 1", "SIGKILL", now, now) if stop else None
    how(record, bystander.pid)
    person.store.save(record)

    person.keeper_restart()
    assert process.refresh().status == "lost"
    assert process.refresh().reason == "lost"
    receipt = process.kill(signal="KILL")
    assert receipt.already_ended
    assert person.stop_all() == []
    process.remove()
    assert bystander.poll() is None
    state = stat(bystander.pid)
    assert state is not None
    assert state.state == "S"


# -- records that cannot be read -------------------------------------------------------------------


def spoil(path: str, data: bytes) -> None:
    Path(path).write_bytes(data)
    os.chmod(path, 0o600)


def torn(record: bytes) -> bytes:
    return record[: len(record.rstrip()) // 2]


def empty(record: bytes) -> bytes:
    return b""


def zeros(record: bytes) -> bytes:
    return bytes(4096)


def not_a_record(record: bytes) -> bytes:
    return b"[1, 2]"


def without_its_status(record: bytes) -> bytes:
    data = json.loads(record)
    del data["check"]
    data["status"] = ["running"]
    return json.dumps(data).encode()


@pytest.mark.parametrize("damage", [torn, empty, zeros, not_a_record, without_its_status])
def test_a_damaged_record_is_set_aside_and_the_others_load(
    person: SyncClient, damage: Callable[[bytes], bytes]
) -> None:
    """One unreadable record is named, kept beside, and costs nobody else anything."""
    good, bad = person.spawn("exit 1"), person.spawn("exit 2")
    good.wait(30)
    bad.wait(30)
    person.keeper_stop()
    path = person.home.meta(bad.handle)
    damaged = damage(Path(path).read_bytes())
    spoil(path, damaged)

    assert [process.handle for process in person.list()] == [good.handle]
    (problem,) = person.problems()
    assert problem.handle == bad.handle
    assert "record" in str(problem)
    with pytest.raises(StoreError):
        bad.refresh()

    assert person.spawn("exit 3").wait(30).code == 3
    assert Path(path + ".bad").read_bytes() == damaged
    assert bad.handle in Path(person.home.keeper_log).read_text()
    assert len(person.list()) == 2
    assert person.problems() == []
    with pytest.raises(NotFound):
        bad.refresh()


def test_a_record_of_a_newer_version_is_left_as_it_is(person: SyncClient) -> None:
    """It says which holdfast could read it, and is still there for that one."""
    process = person.spawn("exit 1")
    process.wait(30)
    person.keeper_stop()
    path = person.home.meta(process.handle)
    data = json.loads(Path(path).read_bytes())
    data["version"], data["from_the_future"] = 99, {"x": 1}
    del data["check"]
    newer = json.dumps(data).encode()
    spoil(path, newer)
    other = person.spawn("exit 3")
    assert other.wait(30).code == 3
    assert [process.handle for process in person.list()] == [other.handle]
    (problem,) = person.problems()
    assert "version 99" in str(problem)
    assert "upgrade" in str(problem)
    assert Path(path).read_bytes() == newer


def test_a_field_nobody_knows_is_passed_over(person: SyncClient) -> None:
    """A record of the same version with more in it than we know loads."""
    process = person.spawn("exit 6")
    process.wait(30)
    person.keeper_stop()
    path = person.home.meta(process.handle)
    data = json.loads(Path(path).read_bytes())
    del data["check"]
    spoil(path, json.dumps({**data, "colour": "green"}).encode())
    person.keeper_restart()
    assert process.refresh().exit_code == 6


def test_a_record_of_the_first_release_loads(person: SyncClient) -> None:
    """Records that released versions wrote are read for ever."""
    written = (DATA / "record-0.1.0.json").read_bytes()
    handle = json.loads(written)["handle"]
    path = person.home.meta(handle)
    spoil(path, written)
    viewer = open_client(person.home, None)
    person.keeper_restart()
    record = viewer.get(handle).record
    viewer.close()
    expected: dict[str, Any] = json.loads(written)
    del expected["check"]
    expected["log"] = person.home.log(handle)
    expected["err_log"] = person.home.log(handle, "stderr")
    found = record.to_json()
    assert {name: found[name] for name in expected} == expected
    assert record.stop is not None
    assert record.stop.reason == "killed"


def test_a_long_record_is_kept_whole(person: SyncClient) -> None:
    """A command longer than a page is in the record, through start, end and restart."""
    command = f"exit 5 # {'long ' * 5000}"
    process = person.spawn(command, label="ü" * 900)
    assert process.wait(30).code == 5
    person.keeper_restart()
    record = process.refresh()
    assert (record.command, record.exit_code, record.label) == (command, 5, "ü" * 900)
    assert oct(os.stat(person.home.meta(process.handle)).st_mode)[-3:] == "600"
