"""The peak of a process's memory is its own and never the keeper's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from holdfast import SyncClient
from holdfast.testing import wait_until
from tests.contained import LIMITING

Child = Callable[..., list[str]]
MIB = 1 << 20


@pytest.mark.parametrize("tty", [False, True])
def test_what_may_have_been_the_keepers_is_unknown(hf: SyncClient, tty: bool) -> None:
    """`true` has less than the keeper that made it, and nobody can know how much."""
    process = hf.spawn("true", tty=tty)
    assert process.wait(30).peak_memory_bytes is None
    assert process.refresh().peak_memory_bytes is None
    assert process.record.cpu_seconds is not None


def test_what_is_more_than_the_keepers_is_known(hf: SyncClient, child: Child) -> None:
    process = hf.spawn(child("works_hard", "60", "0.01"))
    peak = process.wait(60).peak_memory_bytes
    assert peak is not None
    assert 60 * MIB < peak < 600 * MIB


def test_it_is_so_when_another_worker_or_the_guard_sees_the_end(hf: SyncClient) -> None:
    """A worker that was larger than its successor leaves no peak of its own behind."""
    hf.spawn(["true", *["x" * 100_000] * 18]).wait(30)  # which it has to hold
    process = hf.spawn("sleep 1000")
    worker = hf.keeper_status()["worker"]
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: hf.keeper_status()["worker"] != worker)
    process.signal("KILL")
    assert process.wait(30).signal == "SIGKILL"
    assert process.record.peak_memory_bytes is None


@pytest.mark.skipif("memory" not in LIMITING, reason="no control group limits memory here")
@pytest.mark.parametrize("mode", ["pipe", "pty", "tmux"])
def test_a_control_group_tells_it_of_the_smallest(hf: SyncClient, mode: str) -> None:
    """With a limit of memory by a group its own peak is known, also in tmux."""
    process = hf.spawn("true", memory="1GiB", tty=mode == "pty", tmux=mode == "tmux")
    assert process.record.limits["memory"]["by"].startswith("cgroup")
    peak = process.wait(30).peak_memory_bytes
    assert peak is not None
    assert 0 < peak < 12 * MIB or mode == "tmux"  # where a pane runs a Python first
