"""What forks and exits all the time, on a machine that is busy: a kill ends it all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import SyncClient, SyncProcess
from holdfast.testing import wait_until
from tests.contained import carriers, hf, kind

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]

__all__ = ["hf", "kind"]  # fixtures of the tests below

HOG = "import time\nuntil = time.monotonic() + 120\nwhile time.monotonic() < until: pass"


@pytest.fixture
def busy() -> Iterator[None]:
    """Four that want each processor, as much as the keeper does."""
    count = 4 * len(os.sched_getaffinity(0))
    hogs = [subprocess.Popen([sys.executable, "-IS", "-c", HOG]) for _ in range(count)]
    yield
    for hog in hogs:
        hog.kill()
        hog.wait()


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", ["pipe", "pty"])
def test_hoppers_are_caught_on_a_busy_machine(
    hf: SyncClient, child: Child, ready: Ready, tmp_path: Path, busy: None, mode: str
) -> None:
    """Each has another pid, session and group every millisecond; the receipt names no survivor."""
    for n in range(3):
        places = [tmp_path / f"pid{n}.{m}" for m in range(2)]
        processes = [
            ready(hf.spawn(child("hops", str(place)), grace=0.1, tty=mode == "pty"))
            for place in places
        ]
        for place in places:
            seen = place.read_text()
            wait_until(lambda place=place, seen=seen: place.read_text() != seen)  # type: ignore[misc]
        receipts = hf.stop_all(grace=0.1)
        last = [place.read_text() for place in places]
        assert [receipt.survivors for receipt in receipts] == [[], []]
        assert carriers(*(process.handle for process in processes)) == []
        assert [place.read_text() for place in places] == last
