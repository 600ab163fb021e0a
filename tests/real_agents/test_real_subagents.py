"""Claude Code's subagents, each with a session of its own in the one server they share."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.real_agents.drivers import DRIVERS, driven
from tests.real_agents.test_real_agents import HANDLE, UntilTold
from tests.scripted_model import Reply, Request, ScriptedModel, Use

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
NAMES = ("one", "two")


@pytest.mark.weight(40)
def test_an_end_reaches_the_subagent_that_started_it_and_no_sibling(
    home: str, agents: Path, tmp_path: Path
) -> None:
    """Two of a kind at work at once; each gives its name with its calls."""
    handles: dict[str, str] = {}
    looks: dict[str, UntilTold] = {}

    def script(request: Request) -> Reply:
        found = re.search(r"you are subagent (\w+)", request.conversation)
        if found is None:
            if request.results:
                return "both are back"
            return [
                Use("Agent", description=name, prompt=f"you are subagent {name}", **_KIND)
                for name in NAMES
            ]
        name = found[1]
        if not request.results:
            return Use("spawn_process", command="exit 3", tmux=False, agent=name)
        if name not in handles:
            handles[name] = HANDLE.findall(request.results[0])[0]
            looks[name] = UntilTold([handles[name]])
        look = looks[name](request)
        return "back" if look is None else Use(look.tool, **look.arguments, agent=name)

    with (
        ScriptedModel(script) as model,
        driven(DRIVERS["claude"], agents, tmp_path, model.url, "use two subagents") as agent,
    ):
        assert "both are back" in agent.finish()
    told = {
        (name, handle): max(
            request.said.count(f"{handle}:end")
            for request in model.requests
            if request.conversation.endswith(f"subagent {name}")
        )
        for name in NAMES
        for handle in handles.values()
    }
    assert told == {
        (name, handle): int(handles[name] == handle)
        for name in NAMES
        for handle in handles.values()
    }
    assert all(model.told(f"{handle}:end") == 1 for handle in handles.values())


_KIND = {"subagent_type": "claude", "run_in_background": False}
