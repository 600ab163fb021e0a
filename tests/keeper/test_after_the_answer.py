"""A start that was answered is kept, whatever fails in the keeper afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast import SpawnError, SyncClient
from holdfast.testing import wait_until


@pytest.fixture
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("strace is missing; install it")
        pytest.skip("strace is missing")
    return found


@contextmanager
def failing(strace: str, pid: int, call: str, error: str, when: str) -> Iterator[None]:
    """Have some of a process's next system calls of one kind fail."""
    tracer = subprocess.Popen(
        [
            *(strace, "-q", "-p", str(pid), "-e", f"trace={call}", "-e", "signal=none"),
            *("-e", f"inject={call}:error={error}:when={when}"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: _tracer_of(pid) == tracer.pid, what="strace is attached")
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def _tracer_of(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("TracerPid:"))


@pytest.mark.parametrize("when", ["1..2", "2..3", "1..5"])
@pytest.mark.parametrize("how", ["pipe", "separate", "pty"])
def test_the_end_is_noticed_though_it_could_not_be_watched_at_first(
    hf: SyncClient, strace: str, when: str, how: str
) -> None:
    """The kernel refuses to watch descriptors for a while: code and output come all the same."""
    worker = hf.keeper_status()["worker"]
    with failing(strace, worker, "epoll_ctl", "ENOMEM", when):
        process = hf.spawn(
            "echo one; sleep 0.3; echo two; exit 7",
            tty=how == "pty",
            stderr="separate" if how == "separate" else "merged",
            timeout="1h",
        )
        assert process.wait(60).code == 7
    assert process.read_at(0).text.split() == ["one", "two"]
    assert hf.keeper_status()["processes"] == 0
    assert [event.exit_code for event in hf.events(acknowledged=True)] == [7]


def test_what_cannot_be_watched_while_it_runs_is_logged_at_its_end(
    hf: SyncClient, strace: str
) -> None:
    """A process that ends before its output could be watched has it in its log."""
    worker = hf.keeper_status()["worker"]
    with failing(strace, worker, "epoll_ctl", "ENOMEM", "2"):
        process = hf.spawn("echo here; exit 3")
        assert process.wait(60).code == 3
    wait_until(lambda: process.read_at(0).text == "here\n")


def test_a_process_that_cannot_be_held_is_ended_and_the_caller_told(
    hf: SyncClient, strace: str
) -> None:
    """Without a pidfd nobody would know of its end: it is no process, and the next one is."""
    worker = hf.keeper_status()["worker"]
    with failing(strace, worker, "pidfd_open", "EMFILE", "1"), pytest.raises(SpawnError):
        hf.spawn("sleep 1000")
    assert hf.list() == []
    assert hf.spawn("true").wait(60).ok
    assert hf.keeper_status()["worker"] == worker
