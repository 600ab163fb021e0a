"""What every dialect gets from the toolset: checked arguments, typed errors, unread events."""

from __future__ import annotations

import asyncio
import json

import pytest

import holdfast
from holdfast import BadRequest, NotFound, Style, SyncClient, Toolset
from holdfast.client.link import run
from holdfast.testing import wait_until
from holdfast.tools import DIALECTS
from holdfast.tools._schema import check, object_schema
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_describes_its_tools_in_every_style(hf: SyncClient, dialect: str) -> None:
    """JSON, with a schema that is closed, and a description for each tool."""
    tools = toolset(hf, dialect)
    shapes: dict[Style, Callable[[Any], tuple[str, str, dict[str, Any]]]] = {
        "anthropic": lambda tool: (tool["name"], tool["description"], tool["input_schema"]),
        "openai": lambda tool: (
            tool["function"]["name"],
            tool["function"]["description"],
            tool["function"]["parameters"],
        ),
        "mcp": lambda tool: (tool["name"], tool["description"], tool["inputSchema"]),
    }
    described = {}
    for style, shape in shapes.items():
        definitions = json.loads(json.dumps(tools.definitions(style)))
        described[style] = [shape(tool) for tool in definitions]
        for name, description, schema in described[style]:
            assert name
            assert len(description) > 20
            assert schema["type"] == "object"
            assert schema["additionalProperties"] is False
            assert set(schema.get("required", ())) <= set(schema["properties"])
    assert described["anthropic"] == described["openai"] == described["mcp"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_dialect_lets_a_model_name_a_session(hf: SyncClient, dialect: str) -> None:
    """Which session it is in is the client's, never an argument."""
    for tool in toolset(hf, dialect).definitions("anthropic"):
        assert not {"session", "conversation_id", "home"} & set(tool["input_schema"]["properties"])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_unknown_and_wrong_arguments_start_nothing(hf: SyncClient, dialect: str) -> None:
    tools = toolset(hf, dialect)
    for tool in tools.definitions("anthropic"):
        result = call(tools, tool["name"], no_such_argument=1)
        assert result.is_error
        assert "no_such_argument" in result.text
    assert "no_such_tool" in call(tools, "no_such_tool").text
    assert hf.list() == []


def test_a_dialect_or_style_that_does_not_exist_is_named(hf: SyncClient) -> None:
    with pytest.raises(BadRequest, match="no dialect 'klingon'; there are native"):
        toolset(hf, "klingon")
    with pytest.raises(BadRequest, match="not 'gemini'"):
        toolset(hf, "native").definitions("gemini")  # type: ignore[arg-type]


SCHEMA = object_schema(
    {
        "text": {"type": "string", "minLength": 2, "maxLength": 5},
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "ratio": {"type": "number", "minimum": 0},
        "flag": {"type": "boolean"},
        "kind": {"type": "string", "enum": ["fast", "slow"]},
        "names": {"type": "array", "items": {"type": "string"}},
        "either": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        "nested": object_schema({"port": {"type": "integer"}}, ("port",)),
    },
    ("text",),
)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "t needs 'text'"),
        ({"text": None}, "'text' of t is text, not None"),
        ({"text": 7}, "'text' of t is text, not 7"),
        ({"text": "x"}, "'text' of t has at least 2 characters"),
        ({"text": "xxxxxx"}, "'text' of t has at most 5 characters, not 6"),
        ({"text": "ok", "count": 0}, "'count' of t is at least 1, not 0"),
        ({"text": "ok", "count": 10}, "'count' of t is at most 9, not 10"),
        ({"text": "ok", "count": 1.5}, "'count' of t is a whole number, not 1.5"),
        ({"text": "ok", "count": True}, "'count' of t is a whole number, not True"),
        ({"text": "ok", "count": "3"}, "'count' of t is a whole number, not '3'"),
        ({"text": "ok", "ratio": float("nan")}, "'ratio' of t is a number, not nan"),
        ({"text": "ok", "flag": "yes"}, "'flag' of t is true or false, not 'yes'"),
        ({"text": "ok", "kind": "fst"}, "one of fast, slow, not 'fst' .did you mean 'fast'"),
        ({"text": "ok", "names": "a"}, "'names' of t is a list, not 'a'"),
        ({"text": "ok", "names": ["a", 1]}, r"'names\[1\]' of t is text, not 1"),
        ({"text": "ok", "either": 1}, "'either' of t is text or a list, not 1"),
        ({"text": "ok", "nested": {}}, "t needs 'port'"),
        ({"text": "ok", "nested": {"prot": 1}}, "no argument 'prot' in 'nested' .did you mean"),
        ({"text": "ok", "txet": 1}, "no argument 'txet' .did you mean 'text'"),
        ([], r"the arguments of t are an object, not \[\]"),
    ],
)
def test_what_is_wrong_with_an_argument_is_said(arguments: Any, complaint: str) -> None:
    with pytest.raises(BadRequest, match=complaint):
        check(arguments, SCHEMA, "t")


def test_what_is_right_passes_as_it_is() -> None:
    """Nulls are as if they were left out, whole floats are the integers they stand for."""
    given = {"text": "ok", "count": 3.0, "flag": None, "either": ["a"], "nested": {"port": 1}}
    assert check(given, SCHEMA, "t") == {
        "text": "ok",
        "count": 3,
        "either": ["a"],
        "nested": {"port": 1},
    }


def test_arguments_may_be_json_text(hf: SyncClient) -> None:
    """As some APIs give them; what is no JSON is the model's to hear."""
    tools = holdfast.SyncToolset(hf)
    assert tools.call("process", '{"action": "list"}')["processes"] == []
    assert tools.call("process", "{oops").is_error
    assert tools.call("process", "").is_error


def test_unread_events_come_with_the_next_result_and_are_acknowledged_by_the_one_after(
    hf: SyncClient,
) -> None:
    tools = toolset(hf, "native")
    process = hf.spawn("echo done; exit 3", label="build")
    wait_until(lambda: len(list(hf.events())) == 1)
    first = call(tools, "process", action="usage", handle="proc-" + "x" * 16)
    assert first.is_error  # errors carry them too
    (event,) = first["events"]
    assert (event["id"], event["type"], event["exit_code"]) == (f"{process.handle}:end", "end", 3)
    assert "[Background Process Completed]" in event["text"]
    assert not list(hf.events()), "it is claimed: nobody else tells of it"
    (kept,) = hf.events(acknowledged=True)
    assert (kept.id, kept.acknowledged) == (event["id"], False), "before it was read"
    second = call(tools, "process", action="list")
    assert "events" not in second
    assert list(hf.events()) == []


def test_an_end_that_a_result_shows_is_no_event_too(hf: SyncClient) -> None:
    tools = toolset(hf, "native")
    for show in ("status", "poll", "log"):
        process = hf.spawn("exit 3")
        wait_until(lambda: len(list(hf.events())) == 1)
        result = call(tools, "process", action=show, handle=process.handle)
        assert "events" not in result
    waited = call(tools, "spawn_process", command="exit 4", wait=True)
    assert (waited["exit_code"], "events" in waited) == (4, False)


def test_calls_end_with_their_callers_patience(home: str, gate: Gate, session: str) -> None:
    """With a word about how it goes meanwhile; the process goes on, and its end is told."""

    async def main() -> None:
        async with holdfast.connect(session=session) as hf:
            tools = Toolset(hf)
            result = await tools.call(
                "spawn_process",
                {"command": f"echo begun; : < {gate.path}; exit 5", "wait": True},
                patience=1.0,
            )
            assert (result["status"], result.is_error) == ("running", False)
            assert "still running" in result["note"]
            said: list[str] = []

            async def progress(seconds: float, text: str) -> None:
                said.append(text)
                gate.open()

            waited = await tools.call(
                "wait_for", {"handles": [result["handle"]]}, patience=60, progress=progress
            )
            assert waited["ok"]
            assert said[0] == "waiting for exit"

    asyncio.run(main())


def test_a_cancelled_call_leaves_the_process_alone(home: str, gate: Gate, session: str) -> None:
    async def main() -> None:
        async with holdfast.connect(session=session) as hf:
            tools = Toolset(hf)
            waiting = asyncio.create_task(
                tools.call("spawn_process", {"command": f": < {gate.path}; exit 6", "wait": True})
            )
            while not (running := await hf.list()):
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await running[0].refresh()).running
            gate.open()
            assert (await running[0].wait(60)).code == 6

    asyncio.run(main())


def test_results_are_json_and_say_what_went_wrong(hf: SyncClient) -> None:
    tools = toolset(hf, "native")
    missing = call(tools, "process", action="status", handle="proc-" + "x" * 16)
    said = json.loads(missing.text)
    assert (said["code"], "action list shows" in said["error"]) == ("not_found", True)
    assert isinstance(missing.error, NotFound)
    nowhere = call(tools, "spawn_process", command="true", workdir="/no/such/place")
    assert nowhere["code"] == "bad_directory"
    assert hf.list() == []


@pytest.mark.parametrize("handle", ["proc-abc", "proc-*", "../x", "a\0b", "x" * 10_000, ""])
def test_odd_handles_are_not_found_whatever_the_action(hf: SyncClient, handle: str) -> None:
    """Fault 12: nothing is killed, and nothing is written."""
    running = hf.spawn("exec sleep 1000")
    tools = toolset(hf, "native")
    for action in ("status", "log", "poll", "kill", "remove", "clear", "write", "usage"):
        result = call(tools, "process", action=action, handle=handle)
        assert result["code"] == "not_found"
        assert len(result["error"]) < 300
    assert running.refresh().running


def test_another_sessions_process_is_not_found_by_tools(hf: SyncClient, session: str) -> None:
    """Fault 9: with the very words for one that does not exist."""
    running = hf.spawn("exec sleep 1000")
    with holdfast.connect(session=f"{session}-other") as other:
        tools = toolset(other, "native")
        for action in ("status", "log", "poll", "kill", "remove", "clear", "write", "usage"):
            theirs = call(tools, "process", action=action, handle=running.handle)
            random = call(tools, "process", action=action, handle="proc-" + "x" * 16)
            assert theirs["error"].replace(running.handle, "") == random["error"].replace(
                "proc-" + "x" * 16, ""
            )
        assert call(tools, "process", action="list")["processes"] == []
    assert running.refresh().running


def test_a_pattern_that_never_ends_is_given_up(hf: SyncClient) -> None:
    """Fault 21: search and wait answer, and say so."""
    process = hf.spawn("printf '%080d' 0 | tr 0 a; echo '!'; exec sleep 1000")
    wait_until(lambda: "!" in process.tail(1).text)
    tools = toolset(hf, "native")
    found = call(tools, "process", action="search", handle=process.handle, pattern="(a|aa)+$")
    assert "note" in found
    waited = call(tools, "wait_for", handles=[process.handle], conditions=["output=(a|aa)+$"])
    assert waited.is_error
    assert "pattern" in waited["error"]


def test_secrets_in_the_environment_are_in_no_result(hf: SyncClient) -> None:
    """Fault 22: nor in what the toolset shows of itself."""
    tools = toolset(hf, "native")
    secret = "hunter2-" + "z" * 8
    started = call(
        tools, "spawn_process", command="exec sleep 1000", env={"TOKEN": secret}, tmux=False
    )
    shown = started.text + repr(tools)
    for action in ("list", "status", "log", "usage"):
        more = {} if action == "list" else {"handle": started["handle"]}
        shown += call(tools, "process", action=action, **more).text
    assert secret not in shown


def test_parallel_calls_show_an_event_once(home: str, session: str) -> None:
    """While one call acknowledges what was shown, another must not show it again."""

    async def main() -> None:
        async with holdfast.connect(session=session) as hf:
            tools = Toolset(hf)
            for _ in range(10):
                process = await hf.spawn("true")
                while not [event async for event in hf.events() if event.type == "end"]:
                    await asyncio.sleep(0.005)
                shown: list[str] = []
                for _ in range(3):
                    results = await asyncio.gather(
                        *(tools.call("process", {"action": "list"}) for _ in range(6))
                    )
                    shown += [e["id"] for each in results for e in each.get("events", [])]
                assert shown == [f"{process.handle}:end"]

    asyncio.run(main())


def test_a_flood_of_events_comes_in_parts(hf: SyncClient) -> None:
    """Each once, a few with each result, and a word about how many are left."""
    for _ in range(25):
        hf.spawn("seq 1000", max_running=100)
    wait_until(lambda: len(list(hf.events())) == 25)
    tools = toolset(hf, "native")
    seen: list[str] = []
    for _ in range(10):
        result = call(tools, "process", action="usage", handle="proc-" + "x" * 16)
        assert len(result.text) < 30_000
        told = result.get("events", [])
        seen += [event["id"] for event in told if event["type"] == "end"]
        if told and told[-1]["type"] == "more":
            assert "more events" in told[-1]["text"]
    assert len(seen) == len(set(seen)) == 25


def test_absurd_arguments_are_answered(hf: SyncClient) -> None:
    tools = toolset(hf, "native")
    for name, arguments in (
        ("process", "[" * 100_000),
        ("spawn_process", {"command": "true", "yield_ms": 10**400}),
        ("spawn_process", {"command": "true", "timeout_seconds": 1e300}),
        ("wait_for", {"timeout_seconds": float("inf")}),
    ):
        assert run(tools.call(name, arguments)).is_error
    assert hf.list() == []
    handle = call(tools, "spawn_process", command="sleep 0.1")["handle"]
    odd = call(tools, "wait_for", handles=[handle], conditions=["file=\ud800", "output=\ud800"])
    assert odd.is_error


def test_options_and_clients_that_do_not_fit_are_named(hf: SyncClient) -> None:
    with pytest.raises(BadRequest, match="dialect native has no option 'stdin'; it takes none"):
        toolset(hf, "native", stdin=True)
    with pytest.raises(BadRequest, match=r"no option 'timeoutSec'; it takes .*max_running"):
        toolset(hf, "codex", timeoutSec=1)
    with pytest.raises(BadRequest, match="SyncToolset takes a SyncClient"):
        Toolset(hf)  # type: ignore[arg-type]


async def test_news_wait_for_a_result_that_somebody_waits_for(
    home: str, session: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that calls again has given up on what came before, and would not read it."""
    monkeypatch.setattr("holdfast.tools._OVERTAKEN", 0.0)
    async with holdfast.connect(session=session) as client:
        tools = Toolset(client)
        slow = (await tools.call("spawn_process", {"command": f": < {gate.path}"}))["handle"]
        waiting = asyncio.create_task(tools.call("wait_for", {"handles": [slow]}))
        await asyncio.sleep(0)  # it has begun
        await tools.call("process", {"action": "list"})
        other = await client.spawn("exit 3")
        await other.release()
        while (await other.refresh()).running:
            await asyncio.sleep(0.01)
        gate.open()
        assert "events" not in await waiting
        told = await tools.call("process", {"action": "list"})
        assert [event["handle"] for event in told["events"]] == [other.handle]


async def test_news_do_not_go_with_a_result_that_is_late(
    home: str, session: str, gate: Gate
) -> None:
    """A result beyond its caller's patience is one that nobody may read."""
    async with holdfast.connect(session=session) as client:
        tools = Toolset(client)
        other = await client.spawn("exit 3")
        while (await other.refresh()).running:
            await asyncio.sleep(0.01)
        late = await tools.call("process", {"action": "list"}, patience=0)
        assert "events" not in late
        told = await tools.call("process", {"action": "list"})
        assert [event["handle"] for event in told["events"]] == [other.handle]
