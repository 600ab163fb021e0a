"""The commands that read for people and agents: view, search, stats, wait --for."""

from __future__ import annotations

import json
import subprocess
import sys

from holdfast import SyncClient, SyncProcess
from holdfast.testing import wait_until


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments], capture_output=True, text=True, timeout=60
    )


def written(hf: SyncClient, command: str) -> SyncProcess:
    process = hf.spawn(command)
    process.wait(30)
    return process


def test_view_keeps_its_budget_and_says_what_it_left_out(hf: SyncClient) -> None:
    process = written(hf, "seq 1 5000")
    shown = holdfast("view", process.handle, "--budget", "600")
    assert shown.returncode == 0
    assert len(shown.stdout) <= 601
    assert shown.stdout.startswith("1\n2\n")
    assert shown.stdout.endswith("5000\n")
    assert "left out" in shown.stdout
    data = json.loads(holdfast("view", process.handle, "--budget", "600", "--json").stdout)
    assert data["handle"] == process.handle
    assert data["gaps"]


def test_search_prints_matches_or_fails_with_1(hf: SyncClient) -> None:
    process = written(hf, "seq 1 100; echo needle here; seq 1 5")
    found = holdfast("search", process.handle, r"ne+dle (\w+)", "-C", "1")
    assert found.returncode == 0
    assert "needle here" in found.stdout
    assert "100" in found.stdout
    assert "99" not in found.stdout
    nothing = holdfast("search", process.handle, "absent")
    assert nothing.returncode == 1
    bad = holdfast("search", process.handle, "(")
    assert bad.returncode == 125
    assert bad.stderr.count("\n") == 1
    data = json.loads(holdfast("search", process.handle, "needle", "--json").stdout)
    assert data["count"] == 1


def test_stats_shows_what_runs(hf: SyncClient) -> None:
    process = hf.spawn("sleep 1000 & sleep 1000", label="two")
    wait_until(lambda: (process.usage().processes or 0) >= 3)
    shown = holdfast("stats", "--interval", "0.05")
    assert process.handle in shown.stdout
    (used,) = json.loads(holdfast("stats", "--json", "--interval", "0").stdout)
    assert used["handle"] == process.handle
    assert used["processes"] == 3
    assert used["memory_bytes"] > 0


def test_wait_for_says_what_came_to_hold(hf: SyncClient) -> None:
    """0 when it holds, 124 when the time is up, 1 when the process ended first."""
    process = hf.spawn("echo Ready on 99; sleep 1000")
    wait_until(lambda: "Ready" in process.tail().text)
    found = holdfast("wait", process.handle, "--for", r"output=Ready on (\d+)", "--from-start")
    assert found.returncode == 0
    assert "Ready on 99" in found.stdout
    both = ("--for", "output=never", "--for", "quiet=10ms", "--timeout", "300ms")
    assert holdfast("wait", process.handle, *both).returncode == 0
    assert holdfast("wait", process.handle, *both, "--any").returncode == 0
    assert holdfast("wait", process.handle, *both, "--all").returncode == 124
    assert holdfast("wait", process.handle, *both, "--any", "--all").returncode == 125
    late = holdfast("wait", process.handle, "--for", "output=never", "--timeout", "50ms")
    assert late.returncode == 124
    assert "output=never" in late.stderr
    ended = hf.spawn("exit 3")
    ended.wait(30)
    first = holdfast("wait", ended.handle, "--for", "port=1", "--for", "output=x", "--json")
    assert first.returncode == 1
    assert json.loads(first.stdout)["ended"][ended.handle]["exit_code"] == 3
