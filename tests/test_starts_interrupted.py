"""Starts that something comes between: nothing is left of them, or all of it is there."""

from __future__ import annotations

import os
import resource
import shutil
from typing import TYPE_CHECKING

import pytest

from holdfast import HoldfastError, SyncClient
from holdfast._home import new_handle, unlink
from holdfast.testing import wait_until

if TYPE_CHECKING:
    from tests.stepping import killed_at
else:
    from stepping import killed_at


def test_a_record_that_finds_no_room_leaves_nothing(hf: SyncClient) -> None:
    """The start is refused, and no empty record stays behind to be set aside by somebody."""
    assert hf.spawn("exit 3").wait(30).code == 3
    worker = hf.keeper_status()["worker"]
    refused = new_handle()
    before = resource.prlimit(worker, resource.RLIMIT_FSIZE)
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        unlink(hf.home.spare_record)  # which would be overwritten, and not made
        with pytest.raises(HoldfastError, match=r"space|large"):
            hf.spawn("sleep 1000", handle=refused)
    finally:
        resource.prlimit(worker, resource.RLIMIT_FSIZE, before)
    assert [name for name in os.listdir(hf.home.processes) if name.startswith(refused)] == []
    hf.list()
    assert hf.problems() == []


@pytest.mark.long
@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
def test_a_start_in_tmux_that_another_worker_takes_up_can_be_typed_into(hf: SyncClient) -> None:
    """Its terminal and its pane are in the record as soon as anybody can have its handle."""
    step, reached = 120, True  # before that there is no pane
    hf.spawn("exit 0", tmux=True).wait(30)
    while reached:
        worker = hf.keeper_status()["worker"]
        process, reached = killed_at(
            worker, step, lambda: hf.spawn("read -r line; echo got $line; exit 7", tmux=True)
        )
        record = process.refresh()
        assert record.pane, step
        assert record.tty, step
        process.send("words", enter=True)
        assert process.wait(30).code == 7, step
        assert "got words" in process.tail().text, step
        begun = hf.home.begun(process.handle)
        wait_until(lambda begun=begun: not os.path.exists(begun), what=f"{begun} gone")  # type: ignore[misc]
        step += 4
    assert step > 160, "a start has more steps than that"
