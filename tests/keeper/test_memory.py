"""A process that the kernel killed for want of memory says so."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SyncClient
from holdfast.testing import wait_until

pytestmark = pytest.mark.shared_keeper

LIMIT = 64 << 20
EAT = "held = []\nwhile True: held.append(b'x' * (1 << 20))"


def _make_group(name: str) -> Path | None:
    """A memory cgroup with a small limit, of either version; None where none can be made."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / name
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT))
        except OSError:
            group.rmdir()
            continue
        return group
    return None


@pytest.fixture
def small_memory() -> Iterator[Path]:
    group = _make_group(f"holdfast-test-{os.getpid()}")
    readable = os.access("/dev/kmsg", os.R_OK)
    if group is None or not readable:
        if group is not None:
            group.rmdir()
        if os.environ.get("CI"):
            pytest.fail("CI must be able to limit memory and to read the kernel's log")
        pytest.skip("needs a memory cgroup and the kernel's log")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), what="the group is empty")
    group.rmdir()


def test_a_process_killed_for_memory_says_so(hf: SyncClient, small_memory: Path) -> None:
    """The kernel's word turns a SIGKILL from nowhere into a reason."""
    process = hf.spawn(
        f'echo $$ > "$GROUP/cgroup.procs" && exec "{sys.executable}" -IS -c "$EAT"',
        env={"GROUP": str(small_memory), "EAT": EAT},
    )
    end = process.wait(60)
    assert (end.status, end.reason, end.ended_by, end.signal) == (
        "failed",
        "out_of_memory",
        "kernel",
        "SIGKILL",
    )


def test_a_process_killed_by_somebody_else_is_not_taken_for_it(hf: SyncClient) -> None:
    end = hf.spawn("kill -KILL $$").wait(30)
    assert (end.status, end.reason, end.ended_by) == ("failed", "signal", "outside")
