"""Claude Code, Codex, Gemini CLI and opencode with our MCP server, as people configure it."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from holdfast import connect
from holdfast.testing import wait_until
from tests.conftest import Gate
from tests.real_agents.drivers import DRIVERS, Driver, driven
from tests.scripted_model import Reply, Request, ScriptedModel, Step, Use

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
HANDLE = re.compile(r"proc-[a-z0-9]{16}(?![a-z0-9])")


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


def handle_in(request: Request) -> str:
    found = HANDLE.search("\n".join(request.results))
    assert found is not None, request.results
    return found[0]


class UntilTold:
    """Look at the list until these ends were told, and twice more, for one that comes again."""

    def __init__(self, handles: list[str], most: int = 300) -> None:
        self._handles = handles
        self._looks = iter(range(1, most))
        self._more = 2

    def __call__(self, request: Request) -> Use | None:
        if all(f"{handle}:end" in request.said for handle in self._handles):
            self._more -= 1
        if self._more < 0:
            return None
        # Not twice the same: agents stop what they take for a loop.
        return Use("process", action="list", group=f"look-{next(self._looks)}")


@pytest.mark.weight(30)
def test_it_starts_a_process_and_waits_for_it(
    home: str, agents: Path, driver: Driver, tmp_path: Path
) -> None:
    """The wait has the end and the output, so no event is told."""
    handles: list[str] = []

    def wait(request: Request) -> Reply:
        handles.append(handle_in(request))
        return Use("wait_for", handles=handles, timeout_seconds=60)

    steps: list[Step] = [
        Use("spawn_process", command="echo it is done; exit 3"),
        wait,
        lambda request: Use("process", action="log", handle=handles[0]),
        Use("process", action="list"),
        "well done",
    ]
    with (
        ScriptedModel(steps) as model,
        driven(driver, agents, tmp_path, model.url, "start and wait") as agent,
    ):
        assert "well done" in agent.finish()
    waited, log, listed = ("\n".join(model.requests[i].results) for i in (2, 3, 4))
    assert re.search(r'"exit_code": ?3', waited), waited
    assert "it is done" in log
    assert handles[0] in listed
    assert model.told(f"{handles[0]}:end") == 0


@pytest.mark.weight(30)
def test_an_end_that_nobody_waits_for_is_told_once(
    home: str, agents: Path, driver: Driver, tmp_path: Path
) -> None:
    handles: list[str] = []
    looks: list[UntilTold] = []

    def script(request: Request) -> Reply:
        if not request.results:
            return Use("spawn_process", command="exit 4")
        if not handles:
            handles.append(handle_in(request))
            looks.append(UntilTold(handles))
        return looks[0](request) or "told"

    with (
        ScriptedModel(script) as model,
        driven(driver, agents, tmp_path, model.url, "start something") as agent,
    ):
        assert "told" in agent.finish()
    assert model.told(f"{handles[0]}:end") == 1


@pytest.mark.weight(30)
def test_a_dialect_of_words_is_shown_as_words(
    home: str, agents: Path, driver: Driver, tmp_path: Path
) -> None:
    """Its models read what they know, errors too, and no JSON."""
    steps: list[Step] = [
        Use("exec", command="echo plain words"),
        Use("process", action="poll", sessionId="nobody"),
        "read",
    ]
    seen = {"ENABLE_TOOL_SEARCH": "false"}  # else Claude Code hides the tools of most servers
    options = ("--dialect", "openclaw")
    with (
        ScriptedModel(steps) as model,
        driven(driver, agents, tmp_path, model.url, "read", *options, **seen) as agent,
    ):
        assert "read" in agent.finish()
    words, error = ("\n".join(model.requests[i].results) for i in (1, 2))
    assert "plain words" in words
    assert "nobody" in error
    assert not re.search(r'\\*"status\\*":|structuredContent', words + error)


@pytest.mark.weight(60)
def test_the_next_agent_adopts_what_a_killed_one_left(
    home: str, agents: Path, driver: Driver, tmp_path: Path, gate: Gate
) -> None:
    """kill -9 with a process under way: the next one in the directory is told, and takes it."""
    asked = threading.Event()
    killed = threading.Event()
    handles: list[str] = []

    def first(request: Request) -> Reply:
        if not request.results:
            return Use("spawn_process", command=f": < {gate.path}; exit 5", label="build")
        handles.append(handle_in(request))
        asked.set()
        killed.wait(120)
        return "nobody reads this"

    with ScriptedModel(first) as model:
        with driven(driver, agents, tmp_path, model.url, "start something") as agent:
            assert asked.wait(120), agent.said
            agent.kill()
        killed.set()

    looks = UntilTold(handles)

    def second(request: Request) -> Reply:
        if not request.results:
            return Use("process", action="list")
        if "left_behind" in request.results[0]:
            found = re.search(r"session-[a-z0-9]+", request.results[0])
            assert found is not None
            return Use("adopt", session=found[0])
        gate.open()
        return looks(request) or "taken over"

    with (
        ScriptedModel(second) as model,
        driven(driver, agents, tmp_path, model.url, "go on") as agent,
    ):
        assert "taken over" in agent.finish()
    assert model.told(f"{handles[0]}:end") == 1
    assert re.search(r'"exit_code": ?5', model.last.said)


@pytest.mark.weight(200)
@pytest.mark.parametrize("killed", [False, True], ids=["in peace", "the keeper killed twice"])
def test_a_hundred_ends_are_told_once_each(
    home: str, agents: Path, driver: Driver, tmp_path: Path, killed: bool
) -> None:
    count, at_once = 100, 5
    handles: list[str] = []
    looks: list[UntilTold] = []
    kills = [30, 70] if killed else []

    def script(request: Request) -> Reply:
        for result in request.results:
            found = re.search(rf'"handle": ?"({HANDLE.pattern})"', result)
            if found and len(handles) < count:
                handles.append(found[1])
        if kills and len(handles) >= kills[0]:
            kills.pop(0)
            kill_keeper()
        if len(handles) < count:
            number = len(handles)
            few = range(number, min(count, number + at_once))
            return [Use("spawn_process", command=f"exit {i}", tmux=False) for i in few]
        if not looks:
            looks.append(UntilTold(handles))
        return looks[0](request) or "all told"

    with (
        ScriptedModel(script) as model,
        driven(driver, agents, tmp_path, model.url, "start a hundred") as agent,
    ):
        assert "all told" in agent.finish(700)
    assert len(set(handles)) == count
    told = {handle: model.told(f"{handle}:end") for handle in handles}
    assert {handle: times for handle, times in told.items() if times != 1} == {}


def kill_keeper() -> None:
    """kill -9 both halves."""
    with connect(session="onlooker") as client:
        status = client.keeper_status()
    pids = [status["guard"], status["worker"]]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
