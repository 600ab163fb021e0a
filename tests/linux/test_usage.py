"""What processes use, as far as the kernel tells: real ones that use it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SyncClient, SyncProcess, connect
from holdfast.core.record import Record
from holdfast.linux import usage as _usage
from holdfast.linux.ports import Snapshot
from holdfast.linux.usage import Usage, UsageHistory, usage, usages
from holdfast.testing import wait_until

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]
Start = Callable[[], SyncProcess]
Ready = Callable[[SyncProcess], SyncProcess]

MIB = 1 << 20


@pytest.fixture
def start_busy(hf: SyncClient, child: Child, ready: Ready, tmp_path: Path) -> Start:
    command = child("serves_busily", str(tmp_path / "written"), "64")
    return lambda: ready(hf.spawn(command))


def test_everything_of_a_tree_is_counted(start_busy: Start) -> None:
    """Processes, threads, ports, files, time and what was written, of the children too."""
    busy = start_busy()
    found = usage(busy.record)
    assert (found.processes, found.threads) == (3, 4)
    assert found.ports == [int(busy.read_at(0).text.split()[1])]
    assert found.open_files is not None
    assert found.open_files >= 3 * 4
    assert found.written_bytes is not None
    assert found.written_bytes >= MIB
    assert found.read_bytes is not None
    assert found.hidden == 0
    assert found.cpu_percent is None
    first = found.cpu_seconds
    assert first is not None
    wait_until(lambda: (usage(busy.record).cpu_seconds or 0.0) > first + 0.1)


def test_what_processes_share_is_counted_once(start_busy: Start) -> None:
    """Three processes with 64 MiB in common have 64 MiB, not 192."""
    busy = start_busy()
    found = usage(busy.record)
    assert found.memory_kind == "pss"
    assert found.memory_bytes is not None
    assert 64 * MIB <= found.memory_bytes < 120 * MIB


def test_a_lot_of_memory_is_summed_plainly(
    start_busy: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where counting shares would take long; the answer says so, and later ones stay with it."""
    busy = start_busy()
    monkeypatch.setattr(_usage, "_CHEAP_MEMORY", 100 * MIB)
    found = usage(busy.record)
    assert found.memory_kind == "rss"
    assert found.memory_bytes is not None
    assert found.memory_bytes >= 3 * 64 * MIB
    monkeypatch.undo()
    assert usage(busy.record, since=found).memory_kind == "rss"


def test_the_peak_outlasts_what_was_used(hf: SyncClient, child: Child) -> None:
    """Memory that was given back is in the peak, and so is what a look saw of all together."""
    script = (
        "import os; block = bytearray(b'x') * (80 << 20); del block; "
        "print('ready', flush=True); os.read(0, 1)"
    )
    process = hf.spawn([sys.executable, "-ISc", script], stdin=True)
    wait_until(lambda: "ready" in process.read_at(0).text)
    found = usage(process.record)
    assert found.memory_bytes is not None
    assert found.peak_memory_bytes is not None
    assert found.memory_bytes < 60 * MIB
    assert found.peak_memory_bytes >= 80 * MIB
    before = Usage(0.0, peak_memory_bytes=500 * MIB)
    assert usage(process.record, since=before).peak_memory_bytes == 500 * MIB


def test_the_percentage_is_of_the_time_between_two_looks(start_busy: Start, hf: SyncClient) -> None:
    """Since the last look, or over an interval; the same as what the kernel counted."""
    busy = start_busy()
    idle = hf.spawn("sleep 600")
    first = usage(busy.record)
    assert first.cpu_percent is None

    def second() -> Usage | None:
        found = usage(busy.record, since=first)
        return found if (found.cpu_seconds or 0) - (first.cpu_seconds or 0) > 0.2 else None

    found = wait_until(second)
    assert found is not None
    assert found.cpu_percent is not None
    assert 0 < found.cpu_percent <= 110
    both = usages([busy.record, idle.record], interval=0.2)
    worked, slept = both[busy.handle].cpu_percent, both[idle.handle].cpu_percent
    assert worked is not None
    assert slept is not None
    assert worked > slept
    assert usage(idle.record, interval=0.01).cpu_percent is not None


def test_what_ended_children_used_stays_in_the_time(hf: SyncClient, child: Child) -> None:
    """In their parent's, who waited for them."""
    work = " ".join(child("works_hard", "1", "0.3"))
    process = hf.spawn(f"{work}; echo worked; sleep 600; :")
    wait_until(lambda: "worked" in process.read_at(0).text)
    found = usage(process.record)
    assert found.cpu_seconds is not None
    assert found.cpu_seconds >= 0.25


def test_of_an_ended_process_the_record_knows(hf: SyncClient, child: Child) -> None:
    """And nothing of it is running."""
    process = hf.spawn(child("works_hard", "30", "0.1"))
    process.wait(timeout=30)
    found = usage(process.record, interval=0.01)
    assert found.cpu_seconds == process.record.cpu_seconds
    assert found.peak_memory_bytes == process.record.peak_memory_bytes
    assert (found.processes, found.threads, found.ports) == (0, 0, [])
    assert found.memory_bytes is None
    assert found.cpu_percent is None
    assert found.cpu_average_percent is not None
    assert found.cpu_average_percent > 0


def test_what_an_ended_process_left_is_still_counted(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """A daemon that holds a port after its parent ended is worth knowing."""
    process = ready(hf.spawn(child("serves_tcp", "daemon", "127.0.0.1")))
    _, port, holder = process.read_at(0).text.split()[:3]
    assert process.record.pid is not None
    try:
        os.kill(process.record.pid, signal.SIGKILL)
        process.wait(timeout=30)
        found = usage(process.record)
        assert (found.processes, found.ports) == (1, [int(port)])
        assert found.cpu_seconds == process.record.cpu_seconds
    finally:
        os.kill(int(holder), signal.SIGKILL)


def test_of_another_users_process_some_is_known(hf: SyncClient) -> None:
    """Its time and memory are open to all; its files are not, and that is said."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    process = hf.spawn("sleep 600")
    record = json.dumps(process.record.to_json())
    script = (
        "import json, os, sys; sys.path.insert(0, sys.argv[1]); "
        "from holdfast.linux.usage import usage; from holdfast.core.record import Record; "
        "record = Record.from_json(json.loads(sys.argv[2])); "
        "os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3); "
        "print(json.dumps(usage(record).public()))"
    )
    source = str(Path(_usage.__file__).parents[2])
    told = subprocess.run(
        [sys.executable, "-Ic", script, source, record], capture_output=True, check=True
    )
    found = json.loads(told.stdout)
    assert (found["processes"], found["hidden"]) == (1, 1)
    assert found["memory_kind"] == "rss"
    assert found["memory_bytes"] > 0
    assert found["cpu_seconds"] is not None
    assert found["open_files"] is found["read_bytes"] is None


def test_one_look_serves_many(hf: SyncClient) -> None:
    """Each has its own, from one list of the machine's processes."""
    processes = [hf.spawn("sleep 600") for _ in range(5)]
    found = usages(process.record for process in processes)
    assert list(found) == [process.handle for process in processes]
    assert {each.processes for each in found.values()} == {1}
    look = Snapshot()
    assert {usage(process.record, look=look).processes for process in processes} == {1}


def test_a_history_keeps_the_last_looks(start_busy: Start) -> None:
    """As many as it was told, and the percentages are of the times between them."""
    busy = start_busy()
    history = UsageHistory(limit=3)
    for _ in range(5):
        history.look(busy.record)
    assert len(history) == 3
    assert repr(history).startswith("<holdfast.UsageHistory of 3 looks Usage(")
    assert all(each.cpu_percent is not None for each in history)
    public = history.public()
    assert {len(values) for values in public.values()} == {3}
    assert public["at"] == sorted(public["at"])
    json.dumps(public)


def test_a_process_keeps_what_it_was_asked(start_busy: Start, hf: SyncClient) -> None:
    """Each answer is since the one before; nobody looks between them, or before the first."""
    busy = start_busy()
    assert len(busy.usage_history()) == 0
    first, second = busy.usage(), busy.usage(interval=0.05)
    third = busy.usage()
    assert first.cpu_percent is None
    assert second.cpu_percent is not None
    assert third.cpu_percent is not None
    assert list(busy.usage_history()) == [first, second, third]
    assert len(hf.get(busy.handle).usage_history()) == 0


def test_a_history_is_bounded_and_outlasts_the_process(hf: SyncClient) -> None:
    """It holds 120 looks at most, and looks at what has ended push none of them out."""
    process = hf.spawn("sleep 600")
    for _ in range(125):
        process.usage()
    history = process.usage_history()
    kept = list(history)
    assert len(kept) == 120
    process.kill()
    assert process.usage().processes == 0
    assert list(history) == kept
    assert all(value for value in history.public()["memory_bytes"])


def test_a_history_works_in_a_loop(home: str, session: str) -> None:
    """The asynchronous process has the same one."""

    async def looked() -> list[float | None]:
        async with connect(session=session) as client:
            process = await client.spawn("sleep 600")
            await process.usage()
            await asyncio.gather(*(process.usage() for _ in range(5)))
            return process.usage_history().public()["cpu_percent"]

    found = asyncio.run(looked())
    assert len(found) == 6
    assert found[0] is None


def test_the_average_is_since_the_start(start_busy: Start, hf: SyncClient) -> None:
    """Which takes a single look: processor time by the time it has run."""
    busy, idle = start_busy(), hf.spawn("sleep 600")
    wait_until(lambda: (usage(busy.record).cpu_seconds or 0.0) > 0.3)
    found = usage(busy.record)
    assert found.cpu_percent is None
    elapsed = busy.record.elapsed()
    assert elapsed is not None
    assert found.cpu_seconds is not None
    assert found.cpu_average_percent is not None
    assert found.cpu_average_percent >= 100 * found.cpu_seconds / elapsed - 0.1
    slept = usage(idle.record).cpu_average_percent
    assert slept is not None
    assert slept < found.cpu_average_percent


def test_an_interval_keeps_what_earlier_looks_knew(start_busy: Start) -> None:
    """The peak, and how memory is counted."""
    busy = start_busy()
    before = Usage(0.0, peak_memory_bytes=500 * MIB, memory_kind="rss")
    found = usage(busy.record, interval=0.01, since=before)
    assert (found.peak_memory_bytes, found.memory_kind) == (500 * MIB, "rss")


def test_a_usage_is_plain_json(start_busy: Start) -> None:
    """Nothing in it is only for us."""
    busy = start_busy()
    public = json.loads(json.dumps(usage(busy.record).public()))
    assert list(public) == [
        "at",
        "cpu_percent",
        "cpu_average_percent",
        "cpu_seconds",
        "memory_bytes",
        "memory_kind",
        "peak_memory_bytes",
        "processes",
        "threads",
        "open_files",
        "read_bytes",
        "written_bytes",
        "ports",
        "hidden",
    ]


def test_a_record_of_nothing_uses_nothing() -> None:
    """One without a pid, and one of another boot."""
    for record in (
        Record("proc-none", "test", "true", "/"),
        Record("proc-none", "test", "true", "/", pid=os.getpid(), boot_id="another"),
    ):
        found = usage(record)
        assert (found.processes, found.memory_bytes, found.ports) == (0, None, [])


def test_a_measurement_that_is_given_up_leaves_no_thread_behind(home: str, session: str) -> None:
    """An hour's, cancelled after a moment: the program ends at once."""

    async def give_up() -> None:
        async with connect(session=session) as hf:
            process = await hf.spawn("sleep 1000")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await process.usage(interval="1h")
            await process.kill(grace=0)

    asyncio.run(give_up())
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("holdfast")])
