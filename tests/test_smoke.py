"""The main job, in one test."""

from __future__ import annotations

from holdfast import SyncClient


def test_a_process_is_started_read_waited_for_and_told_of(hf: SyncClient) -> None:
    process = hf.spawn("echo hello; exit 3", label="greeter")
    end = process.wait(30)
    assert (end.status, end.code, end.reason, end.ended_by) == ("failed", 3, "exited", "itself")
    assert process.tail().text == "hello\n"
    assert list(hf.events()) == [], "a waiter that got the end needs no event"
