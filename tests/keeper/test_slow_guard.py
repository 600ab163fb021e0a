"""A guard that is slow, as on a busy machine, is not one that hangs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast import SyncClient
from holdfast.keeper.watchdog import LOOK, STOPPED_LOOKS
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Stopped, but for a moment every few seconds in which it does what there is to do."""
    over = threading.Event()

    def asleep() -> bool:
        found = stat(pid)
        return found is None or found.state == "S"

    def slow() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(3)
            os.kill(pid, signal.SIGCONT)
            wait_until(asleep)

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.long
@pytest.mark.weight(20)
def test_a_guard_that_is_late_with_everything_is_left_in_its_place(hf: SyncClient) -> None:
    """Whenever the worker looks, something waits for it; it takes that in all the same."""
    before = hf.keeper_status()
    with slowed(before["guard"]):
        looked = threading.Event()
        timer = threading.Timer(LOOK * (STOPPED_LOOKS + 4), looked.set)
        timer.start()
        while not looked.is_set():
            assert hf.spawn("true").wait(60).ok
        timer.join()
    after = hf.keeper_status()
    assert (after["guard"], after["worker"]) == (before["guard"], before["worker"])
