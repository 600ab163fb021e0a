"""Background agents: work that is no process, kept track of like one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import BadRequest, NotFound, SyncClient
from holdfast._agents import NO_OUTPUT, UNREADABLE
from holdfast.testing import wait_until

REGISTRANT = """
import sys, holdfast
with holdfast.connect(session=sys.argv[1]) as hf:
    hf.register_agent("theirs", "worker")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_an_agent_is_registered_marked_done_and_told_of(hf: SyncClient, tmp_path: Path) -> None:
    """Its end is an event like any other, with the end of its output file, once."""
    output = tmp_path / "review.md"
    agent = hf.register_agent("review", "reviewer", output)
    assert (agent.id, agent.status, agent.record.type) == ("review", "running", "reviewer")
    assert agent.output() == NO_OUTPUT
    output.write_text("looks good\n")
    assert [each.status for each in hf.agents()] == ["running"]
    assert hf.agent("review").output() == "looks good\n"
    assert agent.done().status == "completed"
    (event,) = hf.events()
    assert (event.type, event.agent, event.status) == ("agent", "review", "completed")
    assert "Agent: review\nType: reviewer\nStatus: completed" in event.text
    assert event.text.endswith("looks good\n")
    hf.acknowledge(event)
    assert agent.done(success=False).status == "completed"  # what is over stays as it was
    assert list(hf.events()) == []


def test_a_failure_is_told_as_one_and_the_name_can_be_used_again(hf: SyncClient) -> None:
    hf.register_agent("fix", "coder").done(success=False)
    with pytest.raises(NotFound, match="Agent not found: other"):
        hf.agent("other")
    again = hf.register_agent("fix", "coder")
    assert again.status == "running"
    with pytest.raises(BadRequest, match="registered and running"):
        hf.register_agent("fix", "coder")
    again.done()
    assert [event.status for event in hf.events()] == ["failed", "completed"]


def test_a_stop_reaches_the_registrant(hf: SyncClient) -> None:
    """The callback is called; what it ends is `killed`, and the stop answers then."""
    stopped = threading.Event()
    agent = hf.register_agent("long", "worker", on_stop=stopped.set)
    ended: list[str] = []

    def work() -> None:
        stopped.wait(60)
        agent.done(success=False)

    thread = threading.Thread(target=work)
    thread.start()
    ended.append(hf.agent("long").stop().status)
    thread.join(60)
    assert (stopped.is_set(), ended) == (True, ["killed"])
    assert hf.agent("long").stop().status == "killed"


def test_a_registrant_can_wait_for_the_stop_itself(hf: SyncClient) -> None:
    agent = hf.register_agent("long", "worker")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(agent.stop_requested()))
    thread.start()
    other = hf.register_agent("short", "worker")
    other.done()
    assert other.stop_requested() is False
    stopper = threading.Thread(target=hf.agent("long").stop)
    stopper.start()
    thread.join(60)
    assert answers == [True]
    agent.done(success=True)
    stopper.join(60)
    assert hf.agent("long").status == "completed"  # it had finished all the same


def test_a_registrant_that_does_not_answer_is_not_waited_for_for_ever(hf: SyncClient) -> None:
    hf.register_agent("deaf", "worker")
    record = hf.agent("deaf").stop()
    assert (record.status, record.reason) == ("killed", "unconfirmed")


def test_asyncio_tasks_are_cancelled_by_a_stop(home: str) -> None:
    """The token is the task itself."""

    async def main() -> tuple[bool, str]:
        async with holdfast.connect(session="test") as hf:
            task = asyncio.create_task(asyncio.sleep(1000))
            agent = await hf.register_agent("sleep", "sleeper", on_stop=task.cancel)

            async def finish() -> None:
                try:
                    await task
                except asyncio.CancelledError:
                    await agent.done(success=False)

            finishing = asyncio.create_task(finish())
            record = await (await hf.agent("sleep")).stop()
            await finishing
            return task.cancelled(), record.status

    assert asyncio.run(main()) == (True, "killed")


def start_registrant(session: str) -> subprocess.Popen[str]:
    registrant = subprocess.Popen(
        [sys.executable, "-c", REGISTRANT, session],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert registrant.stdout is not None
    assert registrant.stdout.readline() == "ready\n"
    return registrant


def test_an_agent_whose_registrant_died_is_lost(hf: SyncClient) -> None:
    registrant = start_registrant("test")
    assert hf.agent("theirs").status == "running"
    registrant.kill()
    registrant.communicate()
    (event,) = wait_until(lambda: list(hf.events()))
    assert (event.agent, event.status) == ("theirs", "lost")
    assert hf.agent("theirs").status == "lost"


def test_an_agent_survives_both_halves_of_the_keeper(
    hf: SyncClient, kill_both: Callable[[SyncClient], None]
) -> None:
    """Ours lives on; one whose registrant died meanwhile is lost, and told of once."""
    mine = hf.register_agent("mine", "worker")
    registrant = start_registrant("test")
    kill_both(hf)
    registrant.kill()
    registrant.communicate()
    assert {agent.id: agent.status for agent in hf.agents()} == {
        "mine": "running",
        "theirs": "lost",
    }
    mine.done()
    assert [event.agent for event in hf.events()] == ["theirs", "mine"]


def test_the_end_of_a_session_ends_its_agents(home: str) -> None:
    with holdfast.connect(session="test") as hf:
        hf.register_agent("mine", "worker", on_stop=lambda: None)
    with holdfast.connect(session="test") as hf:
        assert [(a.status, a.record.reason) for a in hf.agents()] == [("killed", "lease_ended")]


def test_sessions_do_not_see_each_others_agents(hf: SyncClient) -> None:
    hf.register_agent("mine", "worker")
    with holdfast.connect(session="other") as other:
        assert other.agents() == []
        with pytest.raises(NotFound, match="Agent not found: mine"):
            other.agent("mine")
        theirs = other.register_agent("mine", "worker")
        theirs.done()
        assert hf.agent("mine").status == "running"


@pytest.mark.parametrize("bad", ["", "x" * 81, "a\nb", "a\0b", 7])
def test_odd_names_are_refused(hf: SyncClient, bad: str) -> None:
    with pytest.raises(BadRequest, match="id is printable text"):
        hf.register_agent(bad, "worker")
    assert hf.agents() == []


@pytest.mark.parametrize("name", ["../../x", ".", "a/b", "%2e", "proc-*", "Übung"])
def test_names_are_never_paths(hf: SyncClient, name: str) -> None:
    hf.register_agent(name, "worker")
    assert [agent.id for agent in hf.agents()] == [name]
    (file,) = os.listdir(hf.home.agents("test"))
    assert os.path.dirname(hf.home.agent("test", name)) == hf.home.agents("test")
    assert file.endswith(".json")


def test_output_that_cannot_be_read_says_so(hf: SyncClient, tmp_path: Path) -> None:
    """A directory, a FIFO: never waited for, and never an error that hides the status."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for n, path in enumerate((tmp_path, fifo)):
        agent = hf.register_agent(f"a{n}", "worker", path)
        assert agent.output() == UNREADABLE
        agent.done()
    assert [event.tail for event in hf.events()] == [b"", b""]
