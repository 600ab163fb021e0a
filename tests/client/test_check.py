"""Staying a moment at the start: early output, or the failure, in the same answer."""

from __future__ import annotations

import pytest

from holdfast import BadRequest, SyncClient
from holdfast.testing import wait_until

pytestmark = pytest.mark.shared_keeper


def test_a_failure_in_the_window_is_in_the_answer(hf: SyncClient) -> None:
    """It ended: the record says how, the output says why, and no event comes on top."""
    process = hf.spawn("echo no such module >&2; exit 3", check=60)
    assert (process.record.status, process.record.exit_code) == ("failed", 3)
    assert process.early == "no such module\n"
    wait_until(lambda: list(hf.events()) == [])


def test_a_process_that_runs_on_has_shown_its_first_output(hf: SyncClient) -> None:
    process = hf.spawn(r"printf '\033[1mstarting\033[m\n'; sleep 1000", check="300ms")
    assert process.record.running
    assert process.early == "starting\n"


def test_without_a_window_it_returns_at_once(hf: SyncClient) -> None:
    process = hf.spawn("sleep 1000")
    assert process.early == ""
    with pytest.raises(BadRequest, match="check"):
        hf.spawn("true", check="soon")
    assert len(hf.list()) == 1


def test_watches_are_asked_for_in_plain_words(hf: SyncClient) -> None:
    """At the start or later, as a text or a table; they are in the record, and can be stopped."""
    process = hf.spawn("echo an ERROR; exec sleep 1000", watch=["output=ERROR (.*)?|ERROR"])
    (event,) = wait_until(lambda: [e for e in hf.events() if e.type == "watch"])
    assert (event.handle, event.condition) == (process.handle, "output=ERROR (.*)?|ERROR")
    assert event.line == "an ERROR"
    name = process.watch({"quiet": "10m", "most": 3})
    shown = process.refresh().public()["watches"]
    assert [watch["id"] for watch in shown] == ["w1", name]
    assert shown[1]["quiet"] == 600.0
    process.unwatch(name)
    assert [watch["id"] for watch in process.refresh().public()["watches"]] == ["w1"]
    for bad in ("nonsense", "output=(", "port=x", {"quiet": "soon"}, {"output": "x", "every": 1}):
        with pytest.raises(BadRequest):
            process.watch(bad)
