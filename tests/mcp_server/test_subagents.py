"""Subagents that share a client's connection have sessions of their own, by a name in the call."""

from __future__ import annotations

from pathlib import Path

import pytest
from mcp import Client

from holdfast import SyncClient, connect
from holdfast.testing import wait_until
from tests.mcp_servers import ERAS, connected, said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = [pytest.mark.anyio, pytest.mark.shared_keeper]


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    return said(await client.call_tool(name, arguments))


async def start(client: Client, code: int, **named: str) -> str:
    found = await call(client, "spawn_process", command=f"exit {code}", tmux=False, **named)
    handle: str = found["handle"]
    return handle


def wait_for_end(hf: SyncClient, session: str, handle: str) -> None:
    with connect(session=session) as client:
        wait_until(lambda: not client.get(handle).record.running)


@pytest.mark.parametrize("era", ERAS)
async def test_an_end_is_told_to_the_subagent_that_started_it(
    home: str, here: Path, session: str, hf: SyncClient, era: str
) -> None:
    """Not to its sibling and not to the client itself, who do not see the process either."""
    async with connected("memory", era, "--session", session) as client:
        handles = {name: await start(client, 3, agent=name) for name in ("one", "two")}
        handles[""] = await start(client, 4)
        for name, handle in handles.items():
            wait_for_end(hf, f"{session}.{name}" if name else session, handle)
        told: dict[str, list[str]] = {}
        for name in [*handles, *handles]:
            named = {"agent": name} if name else {}
            found = await call(client, "process", action="list", **named)
            assert [each["handle"] for each in found["processes"]] == [handles[name]]
            told.setdefault(name, []).extend(each["handle"] for each in found.get("events", []))
        # Those that ended before the answer to their start were told there.
        assert all(set(each) <= {handles[name]} for name, each in told.items())
        refused = await call(client, "process", action="status", handle=handles["one"], agent="two")
        assert refused["code"] == "not_found"


async def test_a_subagents_processes_stop_with_the_client(
    home: str, here: Path, session: str, hf: SyncClient
) -> None:
    options = ("--session", session, "--on-exit", "stop")
    async with connected("memory", "legacy", *options) as client:
        found = await call(client, "spawn_process", command="sleep 600", tmux=False, agent="one")
    with connect(session=f"{session}.one") as other:
        wait_until(lambda: not other.get(found["handle"]).record.running)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "x" * 65, 7])
async def test_a_name_that_is_none_is_refused(home: str, here: Path, name: object) -> None:
    async with connected("memory", "legacy") as client:
        found = await client.call_tool("process", {"action": "list", "agent": name})
        assert found.is_error
        assert "agent" in found.content[0].text  # type: ignore[union-attr]


async def test_only_our_own_tools_take_a_name(home: str, here: Path) -> None:
    """What another dialect offers is what is published of it."""
    for dialect, takes in (("native", True), ("codex", False)):
        async with connected("memory", "legacy", "--dialect", dialect) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            named = {
                name for name, tool in tools.items() if "agent" in tool.input_schema["properties"]
            }
            assert named == (tools.keys() - {"adopt"} if takes else set())
