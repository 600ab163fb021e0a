"""What is forgotten first when there are too many finished processes: what ended first."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from holdfast import SyncClient, connect
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate

KillBoth = Callable[[SyncClient], None]


def ended(hf: SyncClient, code: int) -> str:
    process = hf.spawn(f"exit {code}")
    process.wait(30)
    return process.handle


def kept(hf: SyncClient) -> set[str]:
    return {process.handle for process in hf.list()}


def gone(pid: int | None) -> bool:
    found = stat(pid or 0)
    return found is None or found.state == "Z"


@pytest.mark.parametrize("which", ["worker", "both"])
def test_an_end_that_a_new_worker_finds_is_the_newest(
    home: str, monkeypatch: pytest.MonkeyPatch, gate: Gate, kill_both: KillBoth, which: str
) -> None:
    """It ended after the others, so it is the last of them to be forgotten."""
    monkeypatch.setenv("HOLDFAST_MAX_FINISHED", "3")
    with connect(session="test") as hf:
        old = [ended(hf, code) for code in (1, 2, 3)]
        late = [hf.spawn(f": < {gate.path}; exit {code}") for code in (5, 6)]
        status = hf.keeper_status()
        if which == "worker":
            os.kill(status["guard"], signal.SIGSTOP)
            os.kill(status["worker"], signal.SIGSTOP)
        else:
            kill_both(hf)
        gate.open()
        wait_until(lambda: all(gone(process.record.pid) for process in late))
        if which == "worker":
            os.kill(status["worker"], signal.SIGKILL)
            os.kill(status["guard"], signal.SIGCONT)
        hf.keeper_restart()
        found = {process.handle for process in late}
        wait_until(lambda: kept(hf) == {old[2], *found})
        new = {ended(hf, code) for code in (7, 8)}
        wait_until(lambda: len(kept(hf)) == 3)
        assert kept(hf) - found == new
