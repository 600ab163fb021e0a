"""Background agents through the tools, with the keys and texts of the TypeScript module."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast import SyncClient, Toolset
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tools import Result

pytestmark = pytest.mark.shared_keeper


@pytest.fixture(params=["native", "claude-code"])
def tools(hf: SyncClient, request: pytest.FixtureRequest) -> Toolset:
    return toolset(hf, request.param)


def agent(tools: Toolset, action: str, **arguments: object) -> Result:
    return call(tools, "background_agent", action=action, **arguments)


def test_an_agent_is_registered_read_and_done(tools: Toolset, tmp_path: Path) -> None:
    """With the module's words for output that is not there, or cannot be read."""
    output = tmp_path / "out.md"
    made = agent(tools, "register", id="review-1", type="reviewer", output_file=str(output))
    assert (made["id"], made["type"], made["status"]) == ("review-1", "reviewer", "running")
    assert made["outputFile"] == str(output)
    assert agent(tools, "output", id="review-1")["output"] == "(no output yet)"
    output.write_text("fine\n")
    assert agent(tools, "output", id="review-1") == {"status": "running", "output": "fine\n"}
    output.write_text("\N{EURO SIGN}" * 5000)
    cut = agent(tools, "output", id="review-1")
    assert cut["output"] == "\N{EURO SIGN}" * 3333
    assert cut["note"] == "the first 5001 bytes are left out; they are in outputFile"
    assert cut["outputFile"] == str(output)
    output.unlink()
    output.mkdir()
    assert agent(tools, "output", id="review-1")["output"] == "(failed to read output file)"
    done = agent(tools, "done", id="review-1")
    assert done["status"] == "completed"
    (event,) = done["events"]
    assert event["type"] == "agent"
    listed = agent(tools, "list")
    assert [(each["id"], each["status"]) for each in listed["agents"]] == [
        ("review-1", "completed")
    ]
    assert "events" not in listed


def test_a_stop_reaches_whoever_runs_the_agent(tools: Toolset, hf: SyncClient) -> None:
    """Unlike in the original; and only once."""
    stopped = threading.Event()
    running = hf.register_agent("long", "worker", on_stop=stopped.set)

    def work() -> None:
        stopped.wait(60)
        running.done(success=False)

    thread = threading.Thread(target=work)
    thread.start()
    answer = agent(tools, "stop", id="long")
    thread.join(60)
    assert stopped.is_set()
    assert (answer["success"], answer["message"]) == (True, "Agent long marked as stopped")
    again = agent(tools, "stop", id="long")
    assert (again["success"], again["message"]) == (False, "Agent already killed")


def test_an_unknown_agent_is_said_to_be_unknown(tools: Toolset) -> None:
    for action in ("status", "output", "stop", "done"):
        result = agent(tools, action, id="nobody")
        assert result["error"] == "Agent not found: nobody"
        assert result.is_error
    assert "needs 'id'" in agent(tools, "status")["error"]
