"""Limits: what a process may use, who keeps it to that, and what its record says of it.

Each test runs with every containment that can be had here: by control group where one can limit,
else for each process by itself.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from holdfast import BadRequest, SpawnError, SyncClient, SyncProcess, connect
from holdfast.linux.cgroup import members, own_groups
from holdfast.testing import wait_until
from tests.contained import LIMITING, MODES, alive, groups_of, hf, kind, mode_of

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]

__all__ = ["hf", "kind"]  # fixtures of the tests below


def by_group(process: SyncProcess, name: str, kind: str) -> bool:
    """Whether a control group keeps it to a limit; the record must say what is so here."""
    controller = {"memory": "memory", "cpu": "cpu", "processes": "pids"}[name]
    expected = kind != "tree" and controller in LIMITING
    said = str(process.record.limits.get(name, {}).get("by", ""))
    assert said.startswith("cgroup") is expected, process.record.limits
    return expected


def limits_in(process: SyncProcess) -> dict[str, list[str]]:
    """What a process prints of its own limits: name, soft, hard."""
    text = process.read_at(0).text.replace("\r", "")
    return {line[:26].strip(): line[26:].split()[:2] for line in text.split("\n")}


@pytest.mark.parametrize("mode", MODES)
def test_without_any_there_are_no_core_dumps_and_the_kernel_prefers_it(
    hf: SyncClient, mode: str
) -> None:
    """Defaults: no core file; when memory is short it goes before the keeper."""
    process = hf.spawn("cat /proc/self/limits /proc/self/oom_score_adj", **mode_of(mode))
    process.wait(30)
    assert limits_in(process)["Max core file size"][0] == "0"
    preferred = int(process.read_at(0).text.split()[-1])
    worker = hf.keeper_status()["worker"]
    with open(f"/proc/{worker}/oom_score_adj") as file:
        own = int(file.read())
    assert preferred > own
    assert process.record.limits == {}


@pytest.mark.parametrize("mode", MODES)
def test_open_files_are_limited_in_each_process(hf: SyncClient, mode: str) -> None:
    """And cannot be raised again, but by root."""
    command = (
        "cat /proc/self/limits" if os.geteuid() == 0 else "ulimit -n 500; cat /proc/self/limits"
    )
    process = hf.spawn(["bash", "-c", command], files=77, **mode_of(mode))
    process.wait(30)
    assert limits_in(process)["Max open files"] == ["77", "77"]
    assert process.record.limits == {"files": {"limit": 77, "by": "rlimit"}}


@pytest.mark.parametrize("mode", MODES)
def test_more_memory_than_it_may_have_ends_it(
    hf: SyncClient, child: Child, ready: Ready, kind: str, mode: str
) -> None:
    """By group: the kernel's word is the reason. Else it is refused more, and a note says that."""
    worker = hf.keeper_status()["worker"]
    within = ready(hf.spawn(child("eats_memory", "20"), memory="64MiB", **mode_of(mode)))
    process = hf.spawn(child("eats_memory", "200"), memory="64MiB", **mode_of(mode))
    end = process.wait(60)
    assert process.record.limits["memory"]["limit"] == 64 << 20
    if by_group(process, "memory", kind):
        assert (end.status, end.reason, end.ended_by) == ("failed", "out_of_memory", "kernel")
        assert process.record.notes == []
    else:
        assert (end.status, end.reason, end.code) == ("failed", "exited", 1)
        assert "MemoryError" in process.read_at(0).text
        assert process.record.limits["memory"]["by"] == "rlimit"
        (note,) = process.record.notes
        assert "rlimit" in note
    assert hf.keeper_status()["worker"] == worker
    assert within.refresh().running
    wait_until(lambda: not any(os.path.exists(path) for path in process.record.cgroups))


def test_out_of_memory_in_a_child_of_a_shell(hf: SyncClient, child: Child, kind: str) -> None:
    """The one that was killed was its child; it failed for that, and says so."""
    command = " ".join(child("eats_memory", "200"))
    process = hf.spawn(f"{command} && echo never", memory="64MiB")
    end = process.wait(60)
    by = by_group(process, "memory", kind)
    assert (end.status, end.reason) == ("failed", "out_of_memory" if by else "exited")
    if not by:
        assert hf.spawn(f"{command} || true", memory="64MiB").wait(60).ok
    elif process.record.limits["memory"]["by"] == "cgroup":  # of which all goes at once
        fine = hf.spawn(f"{command} || true", memory="64MiB").wait(60)
        assert fine.reason == "out_of_memory"
    else:
        assert hf.spawn(f"{command} || true", memory="64MiB").wait(60).ok


@pytest.mark.parametrize("mode", MODES)
def test_memory_runs_out_for_all_of_its_processes_together(
    hf: SyncClient, child: Child, kind: str, mode: str
) -> None:
    """A group has one limit; by itself, each process has its own."""
    eats = " ".join(child("eats_memory", "40"))
    command = f"for n in 1 2 3 4; do {eats} & done; wait -n; exit $?"
    process = hf.spawn(["bash", "-c", command], memory="96MiB", **mode_of(mode))
    if by_group(process, "memory", kind):
        assert process.wait(30).reason == "out_of_memory"
    else:
        wait_until(lambda: process.read_at(0).text.count("ready") == 4)
        assert process.refresh().running
    assert process.kill(grace=0).survivors == []


@pytest.mark.parametrize("mode", MODES)
def test_processes_are_limited(hf: SyncClient, kind: str, mode: str) -> None:
    """The one too many is refused, and the others go on; where nobody can limit, a note says so."""
    # Without a group the limit is of all that a user has, of which others may end meanwhile.
    many = 8 if os.geteuid() == 0 else 200
    command = f"for n in $(seq {many}); do sleep 1000 & done; echo tried; wait"
    process = hf.spawn(["bash", "-c", command], processes=5, **mode_of(mode))
    if not by_group(process, "processes", kind) and os.geteuid() == 0:
        assert "processes" not in process.record.limits
        (note,) = process.record.notes
        assert note.startswith("processes is not limited")
        wait_until(lambda: "tried" in process.read_at(0).text)
    else:
        wait_until(lambda: "fork" in process.read_at(0).text)
        assert process.record.limits["processes"]["limit"] == 5
    assert process.kill(grace=0).survivors == []


def quotas(process: SyncProcess) -> list[tuple[str, str]]:
    """How many of 100000 microseconds the groups of a process may use, and which they are."""
    return [
        (Path(group, name).read_text().split()[0], group)
        for group in process.record.cgroups
        for name in ("cpu.max", "cpu.cfs_quota_us")
        if os.path.exists(f"{group}/{name}")
    ]


@pytest.mark.parametrize("mode", MODES)
def test_cpus_are_limited(hf: SyncClient, kind: str, mode: str) -> None:
    """By group to a part of one; else to whole ones."""
    process = hf.spawn("sleep 1000", cpu=0.5, **mode_of(mode))
    cpus = len(os.sched_getaffinity(process.record.pid or 0))
    if by_group(process, "cpu", kind):
        assert cpus == len(os.sched_getaffinity(0))
        (limit, group), *_ = quotas(process)
        assert limit == "50000"
        assert process.record.pid in members([group])
    else:
        assert cpus == 1
        assert process.record.limits == {"cpu": {"limit": 0.5, "by": "affinity"}}
    process.kill(grace=0)


def test_limits_can_be_settings(home: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all sessions: by the environment; None at the spawn lifts one."""
    monkeypatch.setenv("HOLDFAST_FILES", "99")
    with connect(session="set") as client:
        assert client.spawn("true").record.limits == {"files": {"limit": 99, "by": "rlimit"}}
        assert client.spawn("true", files=None).record.limits == {}


def test_a_session_has_limits_of_its_own(
    home: str, kind: str, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    """They count more than the settings, and what is said at the spawn counts most."""
    monkeypatch.setenv("HOLDFAST_FILES", "99")
    monkeypatch.setenv("HOLDFAST_LOG_LIMIT", "1GiB")
    limited = connect(
        session="limited", memory="128MiB", cpu=1, files=88, log_cap="2MiB", log_limit="1MiB"
    )
    with limited as client, connect(session=f"{session}-other") as other:
        record = client.spawn("true").record
        limits = {name: value["limit"] for name, value in record.limits.items()}
        assert limits == {"memory": 128 << 20, "cpu": 1, "files": 88}
        assert (record.log_cap, record.log_limit) == (2 << 20, 1 << 20)
        record = client.spawn("true", memory="none", cpu=None, files=77, log_limit=None).record
        assert record.limits == {"files": {"limit": 77, "by": "rlimit"}}
        assert record.log_limit is None
        record = other.spawn("true").record
        assert record.limits == {"files": {"limit": 99, "by": "rlimit"}}
        assert record.log_limit == 1 << 30
    with connect(session="limited", files="none") as client:  # type: ignore[arg-type]
        assert client.spawn("true").record.limits == {}
    with pytest.raises(BadRequest, match="memory"), connect(memory="much"):
        pass


def test_a_sessions_log_limit_stops_who_writes_too_much(home: str, kind: str) -> None:
    with connect(session="quiet", log_limit="64KiB") as client:
        process = client.spawn("yes & yes", grace=0.2)
        assert process.wait(30).reason == "log_limit"
        assert not alive(process.record.pid)


@pytest.mark.anyio
async def test_the_asynchronous_client_has_the_same(home: str) -> None:
    async with connect(session="limited", files=88) as client:
        process = await client.spawn("true")
        assert process.record.limits == {"files": {"limit": 88, "by": "rlimit"}}


@pytest.mark.parametrize("mode", MODES)
def test_a_limit_is_never_the_keepers_own(hf: SyncClient, mode: str) -> None:
    """Less memory than the start itself needs, and fewer descriptors than the keeper has."""
    worker = hf.keeper_status()["worker"]
    crowd = [hf.spawn(["sleep", "1000"]) for _ in range(12)]
    assert len(os.listdir(f"/proc/{worker}/fd")) > 40
    few = hf.spawn("ulimit -n", files=20, **mode_of(mode))
    assert few.wait(30).ok
    assert few.read_at(0).text.split() == ["20"]
    env = {f"V{n}": "x" * 1000 for n in range(1500)}
    small = partial(hf.spawn, ["true"], memory="4MiB", env=env, **mode_of(mode))
    if mode == "tmux":  # where a program of ours becomes it, which may need more than that
        with contextlib.suppress(SpawnError):
            small()
    else:
        small().wait(30)
    assert hf.keeper_status()["worker"] == worker
    assert all(each.refresh().running for each in crowd)


if "cpu" in LIMITING and "cpu" in own_groups():  # which version 2 would just accept

    @pytest.mark.own_keeper
    @pytest.mark.parametrize("mode", MODES)
    def test_what_cannot_be_limited_is_not_started(
        home: str, session: str, tmp_path: Path, mode: str
    ) -> None:
        """Because the keeper has less itself: nothing is left of it, no record and no group."""
        with connect(session=session) as client:
            first = client.spawn("sleep 1000", cpu=1)
            ((_, group),) = quotas(first)
            Path(group).parent.joinpath("cpu.cfs_quota_us").write_text("150000")
            before = groups_of(home)
            with pytest.raises(SpawnError, match="limit of cpu"):
                client.spawn(f"touch {tmp_path}/ran", cpu=2, **mode_of(mode))
            assert not (tmp_path / "ran").exists()
            assert [each.handle for each in client.list()] == [first.handle]
            assert set(groups_of(home)) <= set(before), "which has a spare one"


@pytest.mark.parametrize(
    "bad",
    [
        {"memory": "1KiB"},
        {"memory": "much"},
        {"cpu": 0},
        {"processes": -1},
        {"files": "few"},
        {"processes": 5_000_000},
    ],
)
def test_what_makes_no_sense_is_refused(home: str, bad: dict[str, object], session: str) -> None:
    with connect(session=session) as client, pytest.raises(BadRequest, match=next(iter(bad))):
        client.spawn("true", **bad)  # type: ignore[arg-type]
