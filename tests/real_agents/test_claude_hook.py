"""The hook in the real Claude Code, with the settings that are printed: idle agents are woken."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import SyncClient
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.linux.kernel import all_processes
from holdfast.testing import wait_until
from tests.real_agents.claude_code import PATIENCE, ClaudeCode
from tests.scripted_model import Reply, Request, ScriptedModel, Use

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def hooks() -> dict[str, Any]:
    """The settings, as people paste them."""
    command = [sys.executable, "-m", "holdfast", "hook", "claude", "--print-config"]
    done = subprocess.run(command, capture_output=True, check=True)
    settings: dict[str, Any] = json.loads(done.stdout)
    return settings


def follow_orders(request: Request) -> Reply:
    """A model that starts what its user says, and answers in words to all else."""
    orders = re.findall(r"please start: (.*)", "\n".join(p.text for p in request.parts))
    begun = any("command" in part.text for part in request.parts if part.role == "assistant")
    if orders and not begun:
        if not any(tool.endswith("spawn_process") for tool in request.tools):
            return Use("ToolSearch", query="select:mcp__holdfast__spawn_process")  # which waits
        return [Use("spawn_process", command=each) for each in orders[0].split(" AND ")]
    woken = "Background Process" in request.text
    return "I see that it ended" if woken else "all right"


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(follow_orders) as found:
        yield found
    assert found.failures == []


# With the older protocol there are no tasks, whose ends Claude Code would ask after by itself.
WITHOUT_TASKS = {"MCP_PROTOCOL_NEGOTIATION": "legacy"}


@pytest.fixture
def claude(home: str, agents: Path, tmp_path: Path, model: ScriptedModel) -> Iterator[ClaudeCode]:
    env = WITHOUT_TASKS
    with ClaudeCode(agents, tmp_path, model.url, settings=hooks(), env=env) as found:
        yield found


@pytest.fixture
def person(home: str) -> Iterator[SyncClient]:
    """Somebody who sees every session."""
    client = open_client(Home.locate(), None)
    yield client
    client.close()


def started(person: SyncClient, number: int) -> list[str]:
    """The handles, once all of them are there."""
    wait_until(lambda: len(person.list()) == number, what="they were started", timeout=PATIENCE)
    return [process.handle for process in person.list()]


def told(model: ScriptedModel, handle: str) -> int:
    """How often the models were told of this end."""
    return model.told(f"Handle: {handle}")


def was_told(person: SyncClient, event: str) -> bool:
    """True once an event whose id begins so was acknowledged."""
    events = person.events(acknowledged=True)
    return any(each.id.startswith(event) and each.acknowledged for each in events)


def hooks_of(claude: ClaudeCode) -> list[int]:
    """The hooks that run for it."""
    found = []
    for process in all_processes():
        try:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            theirs = Path(f"/proc/{process.pid}/environ").read_bytes()
        except OSError:
            continue
        if words[-3:-1] == [b"hook", b"claude"] and str(claude.around.home).encode() in theirs:
            found.append(process.pid)
    return found


def test_an_idle_session_is_woken_once_by_an_end(
    claude: ClaudeCode, model: ScriptedModel, person: SyncClient, gate: Gate
) -> None:
    claude.type(f"please start: : < {gate.path}; exit 7")
    (handle,) = started(person, 1)
    claude.wait_for("all right")
    before = len(model.requests)
    gate.open()
    claude.wait_for("I see that it ended")
    assert told(model, handle) == 1
    assert len(model.requests) == before + 1
    news = model.last.text
    assert "News of what you started with holdfast:" in news
    assert "Stop hook" not in news
    assert "Exit code: 7" in news
    wait_until(lambda: not hooks_of(claude), what="nothing is left to wait for", timeout=PATIENCE)
    assert len(model.requests) == before + 1


def test_after_a_prompt_that_was_answered_in_words_a_later_end_wakes_too(
    claude: ClaudeCode, model: ScriptedModel, person: SyncClient, gate: Gate
) -> None:
    """One hook at a time, though there were three calls."""
    asks = "sleep 3; printf 'name? '; read name; exit 3"
    claude.type(f"please start: {asks} AND : < {gate.path} AND : < {gate.path}; exit 5")
    handles = started(person, 3)
    wait_until(lambda: was_told(person, f"{handles[0]}:input:"), timeout=PATIENCE)
    wait_until(lambda: len(hooks_of(claude)) == 1, what="one hook waits", timeout=PATIENCE)
    gate.open()
    wait_until(lambda: told(model, handles[1]) == told(model, handles[2]) == 1, timeout=PATIENCE)
    wait_until(lambda: len(hooks_of(claude)) == 1, what="one hook waits", timeout=PATIENCE)
    person.get(handles[0]).send("me", enter=True)
    wait_until(lambda: told(model, handles[0]) == 1, timeout=PATIENCE)


def test_each_of_many_ends_is_told_once(
    claude: ClaudeCode, model: ScriptedModel, person: SyncClient, gate: Gate
) -> None:
    commands = [f": < {gate.path}; sleep 0.{n % 10}; exit {n}" for n in range(20)]
    claude.type(f"please start: {' AND '.join(commands)}")
    handles = started(person, 20)
    claude.wait_for("all right")
    gate.open()
    wait_until(lambda: all(told(model, each) for each in handles), timeout=PATIENCE)
    wait_until(lambda: not hooks_of(claude), timeout=PATIENCE)
    assert [told(model, each) for each in handles] == [1] * 20


def test_what_ended_while_it_was_killed_is_told_once_to_the_next(
    claude: ClaudeCode, model: ScriptedModel, person: SyncClient, gate: Gate
) -> None:
    """And what still runs then wakes it, though nobody has typed anything."""
    claude.type(f"please start: : < {gate.path}; exit 7 AND exec sleep 1000")
    first, second = started(person, 2)
    claude.wait_for("all right")
    claude.kill()
    wait_until(lambda: not hooks_of(claude), what="its hook ended", timeout=PATIENCE)
    gate.open()
    wait_until(lambda: not person.get(first).record.running)
    claude.start("--continue")
    claude.type("what is new?")
    wait_until(lambda: told(model, first), timeout=PATIENCE)
    assert second in model.last.said
    before = len(model.requests)
    person.get(second).signal("KILL")
    wait_until(lambda: told(model, second), timeout=PATIENCE)
    wait_until(lambda: not hooks_of(claude), timeout=PATIENCE)
    assert (told(model, first), told(model, second)) == (1, 1)
    assert len(model.requests) == before + 1


def ends_told(model: ScriptedModel, code: int) -> int:
    """How often the model was told of an end with this code, outside of results."""
    found = re.compile(rf'Exit code: {code}\b|"exit_code": ?{code}\b')
    told_by = ("user", "system")
    said = ["\n".join(p.text for p in r.parts if p.role in told_by) for r in model.requests]
    return max(len(found.findall(each)) for each in said)


def test_whoever_tells_of_ends_each_is_told_once_through_a_kill(
    home: str, agents: Path, tmp_path: Path, model: ScriptedModel, person: SyncClient, gate: Gate
) -> None:
    """The hook, or Claude Code itself, where the server's calls are tasks."""
    with ClaudeCode(agents, tmp_path, model.url, settings=hooks()) as claude:
        stops = "trap 'exit 73' TERM; while :; do sleep 0.1; done"
        claude.type(f"please start: exit 71 AND : < {gate.path}; exit 72 AND {stops}")
        last = started(person, 3)[2]
        wait_until(lambda: ends_told(model, 71) or was_told(person, ""), timeout=PATIENCE)
        claude.wait_for("all right")
        claude.kill()
        wait_until(lambda: not hooks_of(claude), what="its hook ended", timeout=PATIENCE)
        gate.open()
        claude.start("--continue")
        claude.type("what is new?")
        wait_until(lambda: ends_told(model, 72), timeout=PATIENCE)
        person.get(last).signal("TERM")
        wait_until(lambda: ends_told(model, 73), timeout=PATIENCE)
        wait_until(lambda: not hooks_of(claude), what="all was told", timeout=PATIENCE)
        assert [ends_told(model, code) for code in (72, 73)] == [1, 1]
        assert ends_told(model, 71) <= 1  # or it was in a result


def test_print_mode_is_not_held_up(
    claude: ClaudeCode, model: ScriptedModel, person: SyncClient
) -> None:
    """What it started runs on, and the conversation that goes on hears of its end."""
    claude.leave()
    conversation = str(uuid.uuid4())
    done = subprocess.run(
        ["claude", "-p", "--session-id", conversation, "please start: sleep 1000"],
        cwd=claude.around.project,
        env=claude.around.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "all right"), done
    (process,) = person.list()
    assert process.record.running
    assert hooks_of(claude) == []
    process.signal("KILL")
    wait_until(lambda: list(person.events()))
    claude.start("--resume", conversation)
    claude.type("what is new?")
    wait_until(lambda: told(model, process.handle) == 1, timeout=PATIENCE)
