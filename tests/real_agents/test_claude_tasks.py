"""Claude Code with our tasks: it goes on meanwhile, wakes at the end, and finds them again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import SyncClient
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.testing import wait_until
from tests.conftest import Gate
from tests.real_agents.claude_code import PATIENCE, ClaudeCode
from tests.scripted_model import Reply, Request, ScriptedModel, Use

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
LOOK = "list-them-now"
NOTE = "<task-notification>"
TASK = re.compile(r"server-side task (\S+)\. .* TaskStop with task_id \"(\w+)\"", re.DOTALL)


class Script:
    """A model that uses some tools, one after the other, when it is told to begin."""

    def __init__(self, *uses: Callable[[Request], Use] | Use) -> None:
        self._uses = uses

    def __call__(self, request: Request) -> Reply:
        if NOTE in request.text:
            return "I was woken"
        done = sum(part.role == "tool" for part in request.parts)
        if "begin" not in request.said or done >= len(self._uses):
            return "nothing more to do"
        use = self._uses[done]
        return use if isinstance(use, Use) else use(request)


def task_in(request: Request) -> tuple[str, str]:
    """The task as we named it, and as Claude Code does."""
    found = TASK.search(request.said)
    assert found is not None, request.said
    return found[1], found[2]


def notes(model: ScriptedModel, text: str) -> int:
    """How many notifications the model was shown that have this text."""
    found = {part.text for request in model.requests for part in request.parts if NOTE in part.text}
    return sum(text in each for each in found)


def accept(claude: ClaudeCode) -> None:
    """Press the button that is chosen; a key that comes too soon after the last one is ignored."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        claude.press("Enter")
        with suppress(AssertionError):
            claude.wait_for("I was woken", timeout=5)
            return


def looks(claude: ClaudeCode, model: ScriptedModel) -> str:
    """The results of a turn in which the model looks at the list, as an event would come."""
    claude.type(LOOK)
    claude.wait_for("it is there")
    return "\n".join(model.last.results)


@pytest.fixture
def kept(home: str) -> Callable[[], SyncClient]:
    return lambda: open_client(Home(home), None)


@pytest.mark.weight(60)
@pytest.mark.parametrize("wait", [True, False], ids=["blocking", "background"])
def test_the_end_of_a_task_wakes_an_idle_session_once(
    home: str, agents: Path, tmp_path: Path, gate: Gate, wait: bool
) -> None:
    """Its turn ends meanwhile; the notification has the result; no later result tells again."""
    script = Script(
        Use("spawn_process", command=f": < {gate.path}; echo it is done; exit 3", wait=wait)
    )

    def model_says(request: Request) -> Reply:
        if LOOK in request.said:
            return "it is there" if request.results else Use("process", action="list")
        return script(request)

    with (
        ScriptedModel(model_says) as model,
        ClaudeCode(agents, tmp_path, model.url) as claude,
    ):
        claude.type("begin")
        claude.wait_for("nothing more to do")
        id, _ = task_in(model.last)
        assert id.startswith("proc-")
        gate.open()
        claude.wait_for("I was woken")
        assert notes(model, '"exit_code":3') == notes(model, id) == 1
        assert notes(model, "it is done") == 1
        looked = looks(claude, model)
        assert id in looked
        assert f"{id}:end" not in looked


@pytest.mark.weight(60)
def test_a_prompt_is_a_form_for_the_person(home: str, agents: Path, tmp_path: Path) -> None:
    command = "read -p 'remove old.py? ' answer; echo they said $answer"
    script = Script(Use("spawn_process", command=command, wait=True, tty=True))
    with ScriptedModel(script) as model, ClaudeCode(agents, tmp_path, model.url) as claude:
        claude.type("begin")
        claude.wait_for("asks: remove old.py?")
        claude.wait_for("Decline")
        claude.press("n")
        claude.wait_for("Answer: n")
        claude.press("Enter")  # to the buttons
        claude.wait_for("\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT} Accept")
        accept(claude)
        claude.wait_for("I was woken")
        assert notes(model, "they said n") == 1


@pytest.mark.weight(60)
@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended meanwhile"])
def test_after_a_kill_and_continue_the_task_is_found_and_wakes(
    home: str,
    agents: Path,
    tmp_path: Path,
    gate: Gate,
    kept: Callable[[], SyncClient],
    ended: bool,
) -> None:
    script = Script(Use("spawn_process", command=f": < {gate.path}; echo it is done; exit 3"))
    with ScriptedModel(script) as model, ClaudeCode(agents, tmp_path, model.url) as claude:
        claude.type("begin")
        claude.wait_for("nothing more to do")
        id, _ = task_in(model.last)
        claude.kill()
        if ended:
            gate.open()
            client = kept()
            wait_until(lambda: not client.get(id).record.running, timeout=PATIENCE)
            client.close()
        claude.start("--continue")
        gate.open()
        claude.wait_for("I was woken")
        assert notes(model, '"exit_code":3') == notes(model, id) == 1


@pytest.mark.weight(60)
def test_to_stop_the_task_kills_the_process(
    home: str, agents: Path, tmp_path: Path, kept: Callable[[], SyncClient]
) -> None:
    script = Script(
        Use("spawn_process", command="sleep 1000"),
        Use("ToolSearch", query="select:TaskStop"),
        lambda request: Use("TaskStop", task_id=task_in(request)[1]),
    )
    with ScriptedModel(script) as model, ClaudeCode(agents, tmp_path, model.url) as claude:
        claude.type("begin")
        claude.wait_for("nothing more to do")
        id, _ = task_in(model.last)
        client = kept()
        wait_until(lambda: client.get(id).record.status == "killed", timeout=PATIENCE)
        client.close()
