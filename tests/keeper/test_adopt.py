"""Taking over what a session left behind when its client was killed."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import BadRequest, NotFound, StoreError, SyncClient, connect
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.testing import wait_until
from tests.lost_agent import Lost
from tests.stepping import killed_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate


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


def told(hf: SyncClient) -> list[str]:
    """What this session is to be told, in words."""
    return sorted(f"{event.type} {event.agent or event.group}".strip() for event in hf.events())


def test_a_session_that_is_used_again_is_another_one(home: str, here: Path) -> None:
    """What it has after it was adopted stays its own, though the keeper starts anew."""
    first = Lost(here, "old", "exec sleep 1000").kill()
    with connect(session="new") as hf:
        wait_until(lambda: left(hf) == ["old"])
        hf.adopt("old")
        with connect(session="old") as back:
            mine = back.spawn("echo mine; exit 4")
            agent = back.register_agent("review", "reviewer")
            wait_until(lambda: told(back) == ["end"])
            hf.keeper_restart()
            os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
            assert agent.done().status == "completed"
            assert told(back) == ["agent review", "end"]
            assert [each.handle for each in back.list()] == [mine.handle]
            assert [each.id for each in back.agents()] == ["review"]
            assert [each.handle for each in hf.list()] == first.handles
            assert list(hf.events()) == []


def test_a_session_can_be_adopted_again(home: str, here: Path) -> None:
    """The second time it is what it left then."""
    with connect(session="new") as hf:
        lost = []
        for _ in range(2):
            lost += Lost(here, "old", "exec sleep 1000").kill().handles
            wait_until(lambda: left(hf) == ["old"])
            assert [each.handle for each in hf.adopt("old")] == lost[-1:]
            assert hf.left_behind() == []
            assert [each.handle for each in hf.list()] == lost
        with pytest.raises(NotFound, match="'old'"):
            hf.adopt("old")


LONG = "head -c 8192 /dev/zero | tr '\\0' x; exit 5"
GATHER = "hf.group('g').gather()"


def fill(hf: SyncClient, size: int) -> None:
    """Nobody of the keeper can write a file that is longer than this, as if the disk were full."""
    status = hf.keeper_status()
    for pid in (status["guard"], status["worker"]):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize(
    ("size", "then", "begun"), [(16, "", False), (8192, "", True), (5000, GATHER, True)]
)
def test_an_adoption_on_a_full_disk_is_finished_when_it_is_asked_for_again(
    home: str, here: Path, size: int, then: str, begun: bool
) -> None:
    """Nothing happened (it could not be noted), or the rest is done: events, or a gathering."""
    lost = Lost(here, "old", LONG, "exec sleep 1000")
    beside = open_client(Home(home), "old")
    wait_until(lambda: told(beside) == ["end g"])
    if then:
        assert beside.group("g").gather() == lost.handles
    beside.close()
    lost.kill()
    with connect(session="new") as hf:
        wait_until(lambda: left(hf) == ["old"])
        fill(hf, size)
        with pytest.raises(StoreError):
            hf.adopt("old")
        assert left(hf) == ([] if begun else ["old"])
        fill(hf, resource.RLIM_INFINITY)
        assert [each.handle for each in hf.adopt("old")] == lost.handles
        assert [each.handle for each in hf.list()] == lost.handles
        if then:
            hf.get(lost.handles[1]).kill(signal="KILL")
        assert wait_until(lambda: told(hf)) == ["group g" if then else "end g"]
        assert not os.path.exists(hf.home.session("old"))


def test_a_keeper_starts_on_a_full_disk_and_finishes_the_adoption_later(
    home: str, here: Path
) -> None:
    """By itself, as soon as there is room; until then nobody gets into the old session."""
    lost = Lost(here, "old", LONG, "exec sleep 1000")
    beside = open_client(Home(home), "old")
    wait_until(lambda: told(beside) == ["end g"])
    beside.close()
    lost.kill()
    with connect(session="new") as hf:
        wait_until(lambda: left(hf) == ["old"])
        fill(hf, 8192)
        with pytest.raises(StoreError):
            hf.adopt("old")
        os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
        assert [each.handle for each in hf.list()] == lost.handles
        with pytest.raises(StoreError, match="taken over by another"):
            open_client(Home(home), "old").keeper_restart()
        assert list(hf.events()) == []
        fill(hf, resource.RLIM_INFINITY)
        assert wait_until(lambda: told(hf)) == ["end g"]
        wait_until(lambda: not os.path.exists(hf.home.session("old")))
        assert [each.handle for each in hf.adopt("old")] == lost.handles
        with pytest.raises(NotFound, match="'old'"):
            hf.adopt("old")
        with connect(session="old") as back:
            assert back.list() == []


@pytest.mark.long
@pytest.mark.parametrize("offset", [0, 9])
def test_a_worker_killed_at_each_step_of_an_adoption(home: str, here: Path, offset: int) -> None:
    """Taken over once and whole, whenever the worker is killed with -9: a group, an agent too."""
    step, reached, number = offset, True, 0
    with connect(session="new") as hf:
        while reached:
            number += 1
            name = f"old-{number}"
            then = f"hf.group('g').gather(); hf.register_agent({name!r}, 'reviewer')"
            lost = Lost(here, name, "exit 5", "exec sleep 1000", then=then).kill()
            wait_until(lambda name=name: [e.events for e in hf.left_behind()] == [1])  # type: ignore[misc]
            worker = hf.keeper_status()["worker"]
            _, reached = killed_at(worker, step, lambda name=name: hf.adopt(name))  # type: ignore[misc]
            assert hf.left_behind() == []
            mine = [process.handle for process in hf.list()]
            assert set(lost.handles) <= set(mine)
            assert told(hf) == [f"agent {name}"]
            assert {agent.id: agent.status for agent in hf.agents()}[name] == "lost"
            hf.get(lost.handles[1]).kill(signal="KILL")
            assert wait_until(lambda: told(hf)[1:]) == ["group g"]
            (event,) = [event for event in hf.events() if event.type == "group"]
            assert [member.handle for member in event.members] == lost.handles
            hf.acknowledge(*hf.events())
            assert list(hf.events()) == []
            step += 38
