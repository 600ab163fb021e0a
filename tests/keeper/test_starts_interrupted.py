"""Starts that something comes between: nothing is left of them, or all of it is there."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import HoldfastError, SyncClient
from holdfast.core.home import new_handle, unlink
from holdfast.testing import wait_until
from tests.stepping import killed_at, killed_when
from tests.tmux_of import server_pid

KillBoth = Callable[[SyncClient], None]


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


def test_what_says_that_a_start_came_to_be_goes_when_its_record_says_so(
    hf: SyncClient, kill_both: KillBoth
) -> None:
    """A worker was killed between writing down the pid of what tmux started and deleting it."""
    process = hf.spawn("exit 3", tmux=True)
    assert process.wait(30).code == 3
    unfinished = new_handle()
    begun = [hf.home.begun(process.handle), hf.home.begun(unfinished)]
    for path in begun:
        Path(path).touch(0o600)
    kill_both(hf)
    hf.spawn("true").wait(30)
    assert [path for path in begun if os.path.exists(path)] == []


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


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
def test_a_start_that_is_taken_up_while_tmux_does_not_answer_can_be_typed_into(
    hf: SyncClient,
) -> None:
    """What stays in the pane says which terminal and which pane it is."""
    hf.spawn("sleep 1000", tmux=True)
    server = server_pid(hf)
    handle = new_handle()
    command = "read -r line; echo got $line; exit 7"
    try:
        process = killed_when(
            hf.keeper_status()["worker"],
            lambda: os.path.exists(hf.home.begun(handle)),
            lambda: os.kill(server, signal.SIGSTOP),
            lambda: hf.spawn(command, tmux=True, handle=handle),
        )
    finally:
        os.kill(server, signal.SIGCONT)
    process.send("words", enter=True)
    assert process.wait(30).code == 7
    assert "got words" in process.tail().text


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
def test_a_start_in_tmux_waits_for_a_socket_that_is_made_again(hf: SyncClient) -> None:
    """A pane asks the keeper for its command; the keeper was found before, by whoever starts it."""
    hf.spawn("exit 0", tmux=True).wait(30)
    done = threading.Event()

    def delete() -> None:
        while not done.wait(0.005):
            unlink(hf.home.socket)

    thread = threading.Thread(target=delete)
    thread.start()
    try:
        ends = [hf.spawn(f"exit {code}", tmux=True).wait(60).code for code in range(1, 6)]
    finally:
        done.set()
        thread.join(60)
    assert ends == [1, 2, 3, 4, 5]
