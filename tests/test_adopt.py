"""Taking over what a session left behind when its client was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import BadRequest, NotFound, SyncClient, connect
from holdfast._home import Home
from holdfast._sync import open_client
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate
    from tests.test_crashes import killed_at
else:
    from test_crashes import killed_at

AGENT = """
import sys, holdfast
with holdfast.connect(session=sys.argv[1], lease_grace="30m") as hf:
    for command in sys.argv[2:]:
        print(hf.spawn(command, group="g").handle, flush=True)
    print("ready", flush=True)
    sys.stdin.read()
"""


class Lost:
    """An agent in a directory that starts processes and is killed with -9."""

    def __init__(self, directory: Path, session: str, *commands: str) -> None:
        self._agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, session, *commands],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._agent.stdout is not None
        self.handles = [self._agent.stdout.readline().strip() for _ in commands]
        assert self._agent.stdout.readline() == "ready\n"

    def kill(self) -> Lost:
        self._agent.kill()
        self._agent.communicate()
        return self


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return project


def left(hf: SyncClient) -> list[str]:
    return [each.session for each in hf.left_behind()]


def test_what_a_killed_agent_left_is_found_and_taken_over(
    home: str, here: Path, gate: Gate
) -> None:
    """Processes, their output and place in it, and what nobody was told of, all once."""
    lost = Lost(here, "old", "echo before; exit 7", f"echo begun; : < {gate.path}; exit 3").kill()
    with connect(session="new") as hf:
        (found,) = wait_until(hf.left_behind)
        assert (found.session, found.events) == ("old", 1)
        assert [record.handle for record in found.records] == lost.handles
        assert 0 < found.stops_in_seconds <= 1800
        assert hf.list() == []
        processes = hf.adopt("old")
        assert [process.handle for process in processes] == lost.handles
        assert [process.handle for process in hf.list()] == lost.handles
        assert [event.handle for event in hf.events()] == lost.handles[:1]
        assert hf.left_behind() == []
        gate.open()
        assert processes[1].wait(60).code == 3
        assert processes[1].read().text == "begun\n"
        assert [event.handle for event in hf.events()] == lost.handles[:1]
        assert not os.path.exists(hf.home.session("old"))


def test_a_session_that_is_held_is_neither_shown_nor_given_away(home: str, here: Path) -> None:
    agent = Lost(here, "old", "exec sleep 1000")
    with connect(session="new") as hf:
        assert hf.left_behind() == []
        with pytest.raises(NotFound, match="'old'"):
            hf.adopt("old")
        agent.kill()
        wait_until(lambda: left(hf) == ["old"])
        with connect(session="old") as back:
            assert hf.left_behind() == []
            with pytest.raises(NotFound):
                hf.adopt("old")
            assert [each.handle for each in back.list()] == agent.handles


def test_other_directories_are_other_peoples_business(
    home: str, here: Path, tmp_path: Path
) -> None:
    """By the real directory: a symlink to it is the same one."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(here)
    other = Lost(elsewhere, "other", "exec sleep 1000").kill()
    same = Lost(tmp_path / "link", "same", "exec sleep 1000").kill()
    with connect(session="new") as hf:
        wait_until(lambda: left(hf) == ["same"])
        with pytest.raises(NotFound):
            hf.adopt("other")
        assert [each.handle for each in hf.adopt("same")] == same.handles
    with connect(session="other") as hf:
        assert [each.handle for each in hf.list()] == other.handles


def test_one_adopter(home: str, here: Path) -> None:
    Lost(here, "old", "exec sleep 1000").kill()
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(session=f"new-{n}")) for n in range(3)]
        wait_until(lambda: left(clients[0]) == ["old"])
        adopters = 0
        for hf in clients:
            try:
                hf.adopt("old")
            except NotFound:
                continue
            adopters += 1
        assert adopters == 1
        assert sum(len(hf.list()) for hf in clients) == 1


def test_a_group_that_was_gathered_is_told_to_the_adopter(
    home: str, here: Path, gate: Gate
) -> None:
    lost = Lost(here, "old", f": < {gate.path}", f": < {gate.path}; exit 2")
    beside = open_client(Home(home), "old")
    beside.group("g").gather()
    beside.close()
    lost.kill()
    with connect(session="new") as hf:
        wait_until(lambda: left(hf) == ["old"])
        hf.adopt("old")
        gate.open()
        (event,) = wait_until(lambda: list(hf.events()))
        assert (event.type, len(event.members)) == ("group", 2)


def test_a_person_and_nobody_can_adopt(home: str, here: Path) -> None:
    """Whoever holds no session has nowhere to take things to."""
    Lost(here, "old", "exec sleep 1000").kill()
    person = open_client(Home(home), None)
    try:
        for act in (person.left_behind, lambda: person.adopt("old")):
            with pytest.raises(BadRequest, match="holds a session"):
                act()
    finally:
        person.close()


@pytest.mark.parametrize("offset", [0, 9])
def test_a_worker_killed_at_each_step_of_an_adoption(home: str, here: Path, offset: int) -> None:
    """Taken over once and whole, whenever the worker is killed with -9."""
    step, reached, number = offset, True, 0
    with connect(session="new") as hf:
        while reached:
            number += 1
            name = f"old-{number}"
            lost = Lost(here, name, "exit 5", "exec sleep 1000").kill()
            wait_until(lambda name=name: [e.events for e in hf.left_behind()] == [1])  # type: ignore[misc]
            worker = hf.keeper_status()["worker"]
            _, reached = killed_at(worker, step, lambda name=name: hf.adopt(name))  # type: ignore[misc]
            assert hf.left_behind() == []
            mine = [process.handle for process in hf.list()]
            assert set(lost.handles) <= set(mine)
            assert [event.handle for event in hf.events()] == lost.handles[:1]
            hf.acknowledge(*hf.events())
            hf.get(lost.handles[1]).kill(signal="KILL")
            wait_until(lambda: list(hf.events()) == [])
            step += 18
