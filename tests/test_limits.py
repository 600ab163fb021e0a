"""Limits: what a process may use, who keeps it to that, and what its record says of it."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import BadRequest, SyncClient, SyncProcess
from holdfast._cgroup import Trees
from holdfast.testing import wait_until

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]

GROUPS = Trees("nowhere").limiting("memory") is not None
Trees("nowhere").clean_up(going=True)
MODES = ("pipe", "pty", "tmux")


def mode_of(mode: str) -> dict[str, Any]:
    return {"tty": mode == "pty", "tmux": mode == "tmux"}


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
    process = hf.spawn("cat /proc/self/limits", files=77, **mode_of(mode))
    process.wait(30)
    assert limits_in(process)["Max open files"] == ["77", "77"]
    assert process.record.limits == {"files": {"limit": 77, "by": "rlimit"}}
    resource.getrlimit(resource.RLIMIT_NOFILE)


@pytest.mark.parametrize("mode", MODES)
def test_out_of_memory_is_the_reason(hf: SyncClient, child: Child, ready: Ready, mode: str) -> None:
    """More than it may have ends it, and the kernel's word is the reason; the keeper goes on."""
    if not GROUPS:
        pytest.fail("needs a memory cgroup")
    worker = hf.keeper_status()["worker"]
    ready(hf.spawn(child("eats_memory", "20"), memory="64MiB", **mode_of(mode)))
    process = hf.spawn(child("eats_memory", "200"), memory="64MiB", **mode_of(mode))
    end = process.wait(60)
    assert (end.status, end.reason, end.ended_by) == ("failed", "out_of_memory", "kernel")
    assert process.record.limits["memory"]["limit"] == 64 << 20
    assert process.record.limits["memory"]["by"].startswith("cgroup")
    assert hf.keeper_status()["worker"] == worker
    wait_until(lambda: not any(os.path.exists(path) for path in process.record.cgroups))


def test_out_of_memory_in_a_child_of_a_shell(hf: SyncClient, child: Child) -> None:
    """The one that was killed was its child; it failed for that, and says so."""
    command = " ".join(child("eats_memory", "200"))
    end = hf.spawn(f"{command} && echo never", memory="64MiB").wait(60)
    assert (end.status, end.reason) == ("failed", "out_of_memory")
    fine = hf.spawn(f"{command} || true", memory="64MiB").wait(60)
    assert fine.reason in ("exited", "out_of_memory"), "a whole group may go at once"


def test_memory_without_a_group_is_each_processs_own(
    hf: SyncClient, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CONTAINMENT", "tree")
    from holdfast import connect

    with connect(session="tree") as client:
        process = client.spawn(child("eats_memory", "200"), memory="64MiB")
        end = process.wait(60)
        assert (end.status, end.code) == ("failed", 1)
        assert "MemoryError" in process.tail().text
        assert process.record.limits == {"memory": {"limit": 64 << 20, "by": "rlimit"}}


@pytest.mark.parametrize("mode", MODES)
def test_processes_are_limited(hf: SyncClient, mode: str) -> None:
    """The one too many is refused, and the others go on."""
    command = "for n in 1 2 3 4 5 6 7 8; do sleep 1000 & done; echo tried; wait"
    process = hf.spawn(["bash", "-c", command], processes=5, **mode_of(mode))
    wait_until(lambda: "fork" in process.read_at(0).text)
    assert process.record.limits["processes"]["limit"] == 5
    assert process.kill(grace=0).survivors == []


def test_cpus_are_limited(hf: SyncClient, child: Child) -> None:
    """Two that work hard for a second with half a CPU used half a second of it."""
    command = "for n in 1 2; do (timeout 2 sh -c 'while :; do :; done') & done; wait"
    process = hf.spawn(command, cpu=0.5)
    end = process.wait(60)
    assert end.cpu_seconds is not None
    assert end.cpu_seconds < 1.5, "without a limit it is twice as much or more"
    assert process.record.limits["cpu"] == {"limit": 0.5, "by": "cgroup-v1"} or GROUPS


def test_cpus_without_a_group_are_whole_ones(
    hf: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CONTAINMENT", "tree")
    from holdfast import connect

    with connect(session="tree") as client:
        process = client.spawn(
            ["python3", "-c", "import os; print(len(os.sched_getaffinity(0)))"], cpu=0.5
        )
        process.wait(30)
        assert process.read_at(0).text == "1\n"
        assert process.record.limits == {"cpu": {"limit": 0.5, "by": "affinity"}}


def test_limits_can_be_settings(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's defaults are its settings; None at the spawn lifts one."""
    from holdfast import connect

    monkeypatch.setenv("HOLDFAST_FILES", "99")
    with connect(session="set") as client:
        assert client.spawn("true").record.limits == {"files": {"limit": 99, "by": "rlimit"}}
        assert client.spawn("true", files=None).record.limits == {}


@pytest.mark.parametrize(
    "bad", [{"memory": "1KiB"}, {"memory": "much"}, {"cpu": 0}, {"processes": -1}, {"files": "few"}]
)
def test_what_makes_no_sense_is_refused(hf: SyncClient, bad: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match=next(iter(bad))):
        hf.spawn("true", **bad)  # type: ignore[arg-type]
