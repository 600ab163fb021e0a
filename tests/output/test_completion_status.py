"""The status of an ended process in the text that tells an agent of it."""

from __future__ import annotations

import re

import pytest

from holdfast import Event, SyncClient, connect
from holdfast.testing import wait_until
from tests.toolcalls import toolset

pytestmark = pytest.mark.shared_keeper

DIALECTS = ["native", "duragent", "claude-code", "deepchat", "dodo", "codex"]


def end_of(hf: SyncClient, handle: str) -> Event:
    def told() -> list[Event]:
        events = hf.events(acknowledged=True)
        return [event for event in events if event.type == "end" and event.handle == handle]

    (event,) = wait_until(told, what="the end")
    return event


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_status_line_follows_the_lines_that_the_text_always_had(
    hf: SyncClient, dialect: str
) -> None:
    """ "Completed" stays in the title whatever happened; the status says what did."""
    process = hf.spawn("echo 1 failed; exit 1", label="tests")
    text = toolset(hf, dialect).dialect.notice(end_of(hf, process.handle))
    assert re.fullmatch(
        r"\[Background Process Completed\]\n\n"
        rf"Handle: {process.handle}\nLabel: tests\nCommand: echo 1 failed; exit 1\n"
        r"Exit code: 1\nDuration: \d+s\nStatus: failed\n\n"
        r"Output \(last 2000 chars\):\n\| 1 failed\n",
        text,
    )


def test_the_status_tells_a_deadline_from_a_kill(hf: SyncClient) -> None:
    """Both end with a signal; only one of them was somebody's wish."""
    late, killed = hf.spawn("sleep 1000", timeout="100ms"), hf.spawn("sleep 1000")
    killed.kill()
    assert "\nExit code: signal SIGTERM\n" in end_of(hf, late.handle).text
    assert "\nStatus: timed_out\n\n" in end_of(hf, late.handle).text
    assert "\nStatus: killed\n\n" in end_of(hf, killed.handle).text


def test_the_status_gives_a_reason_that_is_said_nowhere_else(hf: SyncClient, session: str) -> None:
    """Stopped at its log limit, or with its session: nobody asked for that by name."""
    loud = hf.spawn("while :; do echo 0123456789012345678901234567890; done", log_limit="4KiB")
    assert "\nStatus: killed (it wrote more than its log limit)\n\n" in end_of(hf, loud.handle).text
    with connect(session=f"{session}-left") as other:
        left = other.spawn("sleep 1000")
        other.end_session()
        text = end_of(other, left.handle).text
    assert "\nStatus: killed (its session ended)\n\n" in text
