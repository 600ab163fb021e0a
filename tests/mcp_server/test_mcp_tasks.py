"""Tasks: calls that go on after their client was answered, and are asked after until they end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

import holdfast
from holdfast import SyncClient
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.mcp import _tasks
from holdfast.mcp._tool_server import Connections, build
from tests.mcp_servers import MODERN, settings_of, web, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate

pytestmark = [pytest.mark.anyio, pytest.mark.shared_keeper]
Answer = dict[str, Any]
NAME = "io.modelcontextprotocol/tasks"
CAPABILITIES: Answer = {"elicitation": {"form": {}}, "extensions": {NAME: {}}}
METHODS: dict[str, Answer] = {
    "tasks/get": {},
    "tasks/cancel": {},
    "tasks/update": {"inputResponses": {}},
}
UNKNOWN, MISSING = -32602, -32021


def declared(capabilities: Answer, name: str = "claude-code") -> Answer:
    return {
        **MODERN,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        "io.modelcontextprotocol/clientInfo": {"name": name, "version": "1"},
    }


class Refused(Exception):
    def __init__(self, error: Answer) -> None:
        super().__init__(error["message"])
        self.code, self.data = error["code"], error.get("data")


class Talk:
    """A client of a server in memory that says in every request what it can do."""

    def __init__(self, write: Any, capabilities: Answer) -> None:
        self._write = write
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._next = 1
        self.capabilities = capabilities
        self.name = "claude-code"

    async def take(self, read: Any) -> None:
        async for each in read:
            message = each.message.model_dump(by_alias=True, exclude_unset=True)
            if "id" in message and message["id"] in self._waiting:
                self._waiting.pop(message["id"]).set_result(message)

    async def ask(self, method: str, **params: Any) -> Answer:
        number, self._next = self._next, self._next + 1
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        params["_meta"] = declared(self.capabilities, self.name)
        request = types.JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=params)
        await self._write.send(SessionMessage(request))
        with anyio.fail_after(60):
            message = await answer
        if "error" in message:
            raise Refused(message["error"])
        found: Answer = message["result"]
        return found

    async def call(self, name: str, **arguments: Any) -> Answer:
        return await self.ask("tools/call", name=name, arguments=arguments)

    async def start(self, command: str, **more: Any) -> Answer:
        return await self.call("spawn_process", command=command, tmux=False, **more)

    async def get(self, id: str) -> Answer:
        return await self.ask("tasks/get", taskId=id)

    async def until(self, id: str, status: str) -> Answer:
        """Ask until it has this status."""
        with anyio.fail_after(60):
            while (found := await self.get(id))["status"] != status:
                await anyio.sleep(0.05)
        return found

    async def news(self) -> list[str]:
        """The ids of the events that come with a result."""
        result = await self.call("process", action="list")
        return [event["id"] for event in result["structuredContent"].get("events", [])]

    async def told(self, handle: str) -> None:
        """Wait until a result tells of its end."""
        with anyio.fail_after(60):
            while f"{handle}:end" not in await self.news():
                await anyio.sleep(0.05)


@asynccontextmanager
async def talking(*options: str, capabilities: Answer = CAPABILITIES) -> AsyncIterator[Talk]:
    """As `holdfast mcp` with these options; at the end its client is lost."""
    connections = Connections(settings_of(*options))
    server = build(connections)
    to_server, read = anyio.create_memory_object_stream[Any](64)
    write, from_server = anyio.create_memory_object_stream[Any](64)
    talk = Talk(to_server, capabilities)
    serving = asyncio.create_task(server.run(read, write, server.create_initialization_options()))
    taking = asyncio.create_task(talk.take(from_server))
    try:
        yield talk
    finally:
        for task in (serving, taking):
            task.cancel()
        await asyncio.wait([serving, taking])
        for stream in (to_server, read, write, from_server):
            stream.close()
        await connections.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a while for people's sake takes none here."""
    monkeypatch.setattr(_tasks, "_SOON", 0.3)
    monkeypatch.setattr(_tasks, "_READ", 0.2)
    monkeypatch.setattr(_tasks, "_COMING", 1.0)
    monkeypatch.setattr(_tasks, "_UNNOTICED", 0.5)


@pytest.fixture
def person(home: str) -> Iterator[SyncClient]:
    client = open_client(Home(home), None)
    yield client
    client.close()


def events(person: SyncClient, handle: str) -> list[str]:
    """What nobody has acknowledged of a process, claimed or not."""
    found = person.events(acknowledged=True)
    return [each.id for each in found if each.handle == handle and not each.acknowledged]


def shown(task: Answer) -> Answer:
    """The structured result of a task that is over."""
    assert task["status"] == "completed", task
    found: Answer = task["result"]["structuredContent"]
    return found


# -- a call that blocks ------------------------------------------------------------------------


async def test_a_call_that_blocks_becomes_a_task_whose_id_is_the_handle(
    home: str, here: Path, gate: Gate, person: SyncClient
) -> None:
    """Its message is the last line; its result that of the call, again and again; told once."""
    async with talking() as client:
        task = await client.start(f"echo begun; : < {gate.path}; exit 3", wait=True)
        assert (task["resultType"], task["status"]) == ("task", "working")
        id = task["taskId"]
        assert [process.handle for process in person.list()] == [id]
        assert task["pollIntervalMs"] == 1000
        now = await client.get(id)
        assert (now["resultType"], now["status"], now["statusMessage"]) == (
            "complete",
            "working",
            "begun",
        )
        assert now["createdAt"] == task["createdAt"] <= now["lastUpdatedAt"]
        gate.open()
        over = await client.until(id, "completed")
        assert (shown(over)["status"], shown(over)["exit_code"]) == ("failed", 3)
        assert shown(over)["output"] == "begun\n"
        assert over["statusMessage"] == "failed (exit code 3)"
        assert over["ttlMs"] >= 1_800_000
        assert (await client.get(id))["result"] == over["result"]
        assert await client.news() == []
        with anyio.fail_after(60):
            while events(person, id):
                await anyio.sleep(0.02)
        assert (await client.get(id))["result"] == over["result"]


async def test_what_is_over_soon_is_answered_as_ever(home: str, here: Path) -> None:
    async with talking() as client:
        result = await client.start("echo quick", wait=True)
        assert result["resultType"] == "complete"
        assert result["structuredContent"]["output"] == "quick\n"
        assert await client.news() == []


async def test_without_the_declaration_there_are_no_tasks(
    home: str, here: Path, gate: Gate
) -> None:
    """Not for a request that lacks it, whatever others said; and asking after one is refused."""
    async with talking("--patience", "1s") as client:
        task = await client.start(f": < {gate.path}", wait=True)
        client.capabilities = {"elicitation": {"form": {}}}
        result = await client.start(f": < {gate.path}", wait=True)
        assert (result["resultType"], result["structuredContent"]["status"]) == (
            "complete",
            "running",
        )
        for method, more in METHODS.items():
            with pytest.raises(Refused) as refused:
                await client.ask(method, taskId=task["taskId"], **more)
            assert refused.value.code == MISSING
            assert refused.value.data == {"requiredCapabilities": {"extensions": {NAME: {}}}}
        gate.open()


async def test_tasks_are_announced_to_clients_that_can_declare_them(home: str, here: Path) -> None:
    async with talking() as client:
        found = await client.ask("server/discover")
        assert found["capabilities"]["extensions"] == {NAME: {}}


@pytest.mark.parametrize(
    ("dialect", "tool", "arguments"),
    [
        ("claude-code", "run_command", {"command": ": < GATE; echo out; exit 3"}),
        ("duragent", "spawn_process", {"command": ": < GATE; echo out; exit 3", "wait": True}),
        ("hermes", "terminal", {"command": ": < GATE; echo out; exit 3"}),
    ],
)
async def test_foreground_calls_of_other_dialects_are_tasks_too(
    home: str, here: Path, gate: Gate, dialect: str, tool: str, arguments: Answer
) -> None:
    """With the result that the dialect has for them."""
    async with talking("--dialect", dialect) as client:
        command = arguments["command"].replace("GATE", str(gate.path))
        task = await client.call(tool, **{**arguments, "command": command})
        assert task["resultType"] == "task", task
        gate.open()
        over = await client.until(task["taskId"], "completed")
        assert "out" in over["result"]["content"][0]["text"]
        assert "3" in over["result"]["content"][0]["text"]


# -- what is left to the background --------------------------------------------------------------


async def test_a_start_in_the_background_is_a_task_at_once(
    home: str, here: Path, gate: Gate
) -> None:
    async with talking() as client:
        task = await client.start(f": < {gate.path}; echo over")
        assert task["resultType"] == "task"
        gate.open()
        found = shown(await client.until(task["taskId"], "completed"))
        assert (found["handle"], found["output"]) == (task["taskId"], "over\n")
        assert await client.news() == []


async def test_a_client_that_would_wait_for_it_gets_the_handle_of_a_start_at_once(
    home: str, here: Path, gate: Gate
) -> None:
    """Only those whose model goes on meanwhile, and is woken, are known to be served by a task."""
    async with talking() as client:
        client.name = "fastmcp"
        started = await client.start(f": < {gate.path}")
        assert started["structuredContent"]["status"] == "running"
        handle = started["structuredContent"]["handle"]
        gate.open()
        await client.told(handle)


async def test_a_wait_for_what_is_a_task_anyhow_begins_no_second_one(
    home: str, here: Path, gate: Gate
) -> None:
    """It answers that there is no need; and what a result told of, the task says briefly."""
    async with talking() as client:
        task = await client.start(f": < {gate.path}; echo over")
        waited = await client.call("wait_for", handles=[task["taskId"]])
        assert waited["structuredContent"]["timed_out"]
        assert "no need" in waited["structuredContent"]["note"]
        gate.open()
        with anyio.fail_after(60):
            while (await client.call("process", action="status", handle=task["taskId"]))[
                "structuredContent"
            ]["status"] == "running":
                await anyio.sleep(0.02)
        found = shown(await client.until(task["taskId"], "completed"))
        assert found["note"] == "an earlier result told of its end"
        assert await client.news() == []


async def test_a_wait_that_tells_of_no_end_leaves_it_to_the_task(
    home: str, here: Path, gate: Gate
) -> None:
    async with talking() as client:
        task = await client.start(f"sleep 1; echo ready; : < {gate.path}; echo over")
        wait = await client.call(
            "wait_for", handles=[task["taskId"]], conditions=["output=ready"], timeout_seconds=60
        )
        found = shown(await client.until(wait["taskId"], "completed"))
        assert (found["ok"], found["ended"]) == (True, {})
        gate.open()
        found = shown(await client.until(task["taskId"], "completed"))
        assert found["output"] == "ready\nover\n"
        assert await client.news() == []


async def test_the_end_is_told_to_others_once_nobody_asks_any_more(
    home: str, here: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tasks, "_LAPSE", 0.2)
    async with talking() as client:
        task = await client.start(f": < {gate.path}")
        gate.open()
        await client.told(task["taskId"])


# -- waits ---------------------------------------------------------------------------------------


async def begun(client: Talk, *commands: str) -> list[str]:
    """Processes that were started by requests which declare no tasks."""
    client.capabilities = {}
    found = [(await client.start(each))["structuredContent"]["handle"] for each in commands]
    client.capabilities = CAPABILITIES
    return found


async def test_a_wait_over_several_is_a_task_and_tells_of_their_ends(
    home: str, here: Path, gate: Gate
) -> None:
    async with talking() as client:
        handles = await begun(client, f": < {gate.path}; exit 1", f": < {gate.path}; exit 2")
        task = await client.call("wait_for", all=True)
        assert task["resultType"] == "task"
        assert len(task["taskId"]) <= 128  # more than that Claude Code refuses
        assert task["ttlMs"] is None
        gate.open()
        found = shown(await client.until(task["taskId"], "completed"))
        assert {handle: end["exit_code"] for handle, end in found["ended"].items()} == dict(
            zip(handles, (1, 2), strict=True)
        )
        assert await client.news() == []


async def test_to_cancel_a_wait_harms_nothing(
    home: str, here: Path, gate: Gate, person: SyncClient
) -> None:
    async with talking() as client:
        (handle,) = await begun(client, f": < {gate.path}")
        task = await client.call("wait_for", handles=[handle])
        assert await client.ask("tasks/cancel", taskId=task["taskId"])
        assert (await client.get(task["taskId"]))["status"] == "cancelled"
        assert person.get(handle).record.running
        gate.open()
        await client.told(handle)


async def test_to_cancel_a_start_kills(home: str, here: Path, person: SyncClient) -> None:
    async with talking() as client:
        task = await client.start("sleep 1000", wait=True)
        await client.ask("tasks/cancel", taskId=task["taskId"])
        await client.until(task["taskId"], "cancelled")
        assert person.get(task["taskId"]).record.status == "killed"
        assert await client.news() == []


# -- prompts -------------------------------------------------------------------------------------


async def test_a_prompt_becomes_a_form_and_the_answer_is_typed(home: str, here: Path) -> None:
    """Once for each; what answers something else, or comes again, goes nowhere."""
    async with talking() as client:
        command = "read -p 'sure? ' a; read -p 'really? ' b; echo $a $b"
        task = await client.start(command, wait=True, tty=True)
        keys: list[str] = []
        for answer, question in (("yes", "sure?"), ("of course", "really?")):
            asked = await client.until(task["taskId"], "input_required")
            ((key, form),) = asked["inputRequests"].items()
            assert form["method"] == "elicitation/create"
            assert form["params"]["mode"] == "form"
            assert question in form["params"]["message"]
            assert task["taskId"] in form["params"]["message"]
            again = await client.get(task["taskId"])
            assert again["inputRequests"] == asked["inputRequests"]
            responses = {
                name: {"action": "accept", "content": {"answer": text}}
                for name, text in (("other", "no"), *((old, "no") for old in keys), (key, answer))
            }
            await client.ask("tasks/update", taskId=task["taskId"], inputResponses=responses)
            keys.append(key)
        assert len(set(keys)) == 2
        found = shown(await client.until(task["taskId"], "completed"))
        assert found["output"].splitlines()[-1] == "yes of course"
        assert await client.news() == []


async def test_a_form_that_is_declined_leaves_the_prompt_to_the_model(
    home: str, here: Path
) -> None:
    async with talking() as client:
        task = await client.start("read -p 'sure? ' a; echo $a", wait=True, tty=True)
        (key,) = (await client.until(task["taskId"], "input_required"))["inputRequests"]
        assert await client.news() == []
        declined = {key: {"action": "decline"}}
        await client.ask("tasks/update", taskId=task["taskId"], inputResponses=declined)
        assert (await client.get(task["taskId"]))["status"] == "working"
        assert await client.news() == [key]
        await client.ask("tasks/cancel", taskId=task["taskId"])


async def test_without_forms_a_prompt_is_told_in_words(home: str, here: Path) -> None:
    async with talking(capabilities={"extensions": {NAME: {}}}) as client:
        task = await client.start("read -p 'sure? ' a; echo $a", wait=True, tty=True)
        with anyio.fail_after(60):
            while (now := await client.get(task["taskId"]))["statusMessage"] == "sure?":
                await anyio.sleep(0.05)
        assert (now["status"], now["statusMessage"]) == ("working", "waits for input: sure?")
        assert [each.split(":")[1] for each in await client.news()] == ["input"]
        await client.ask("tasks/cancel", taskId=task["taskId"])


async def test_a_password_is_never_asked_for_in_a_form(
    home: str, here: Path, child: Callable[..., list[str]]
) -> None:
    """A person is told how to type it into the terminal."""
    async with talking() as client:
        command = " ".join(child("asks_for_password"))
        task = await client.start(command, wait=True, tty=True)
        with anyio.fail_after(60):
            while "password" not in (now := await client.get(task["taskId"]))["statusMessage"]:
                await anyio.sleep(0.05)
        assert now["status"] == "working"
        assert f"attach {task['taskId']}" in now["statusMessage"]
        (event,) = await client.news()
        typed = {event: {"action": "accept", "content": {"answer": "sesame"}}}
        await client.ask("tasks/update", taskId=task["taskId"], inputResponses=typed)
        assert (await client.get(task["taskId"]))["status"] == "working"
        await client.ask("tasks/cancel", taskId=task["taskId"])


async def test_what_the_model_has_read_of_the_background_asks_no_person(
    home: str, here: Path
) -> None:
    """A prompt that nobody has noticed for a while does."""
    async with talking() as client:
        seen = await client.start("read -p 'sure? ' a; echo $a", tty=True)
        with anyio.fail_after(60):
            while not await client.news():
                await anyio.sleep(0.02)
        unseen = await client.start("read -p 'really? ' a; echo $a", tty=True)
        await client.until(unseen["taskId"], "input_required")
        assert (await client.get(seen["taskId"]))["status"] == "working"
        for task in (seen, unseen):
            await client.ask("tasks/cancel", taskId=task["taskId"])


# -- other servers, other sessions ---------------------------------------------------------------


async def test_the_next_server_of_the_directory_takes_a_task_up(
    home: str, here: Path, gate: Gate
) -> None:
    """With the session that had it; the end is told once, by the task."""
    async with talking() as client:
        task = await client.start(f": < {gate.path}; echo over", wait=True)
        other = await client.start(f": < {gate.path}")
    async with talking() as client:
        assert (await client.get(task["taskId"]))["status"] == "working"
        gate.open()
        found = shown(await client.until(task["taskId"], "completed"))
        assert (found["status"], found["output"]) == ("completed", "over\n")
        shown(await client.until(other["taskId"], "completed"))
        assert await client.news() == []


async def test_a_wait_goes_on_in_the_next_server(home: str, here: Path, gate: Gate) -> None:
    """And finds what was found before, if nobody was told of it."""
    async with talking() as client:
        handles = await begun(client, f": < {gate.path}; echo ready; sleep 1000", "sleep 1000")
        task = await client.call("wait_for", handles=handles, conditions=["output=ready"])
        assert (await client.get(task["taskId"]))["status"] == "working"
        gate.open()
        with anyio.fail_after(60):
            while (
                "ready"
                not in (await client.call("process", action="log", handle=handles[0]))[
                    "structuredContent"
                ]["output"]
            ):
                await anyio.sleep(0.02)
    async with talking() as client:
        found = shown(await client.until(task["taskId"], "completed"))
        assert [met["handle"] for met in found["met"]] == [handles[0]]
        for handle in handles:
            await client.call("process", action="kill", handle=handle)


async def test_what_the_client_may_not_have_read_is_told_again(
    session: str, here: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that goes just after its answer leaves the end to the next; asked, or not."""
    monkeypatch.setattr(_tasks, "_READ", 1000)
    async with talking("--session", session) as client:
        task = await client.start(f": < {gate.path}; echo over", wait=True)
        gate.open()
        first = await client.until(task["taskId"], "completed")
    async with talking("--session", session) as client:
        assert await client.news() == [f"{task['taskId']}:end"]
    async with talking("--session", session) as client:
        assert (await client.get(task["taskId"]))["result"] == first["result"]


async def test_nobody_else_in_the_session_is_told_of_the_end_of_a_task(
    session: str, here: Path, gate: Gate
) -> None:
    """Neither a follower nor another server of the session, before and after it was read."""
    told: list[str] = []
    async with talking("--session", session) as client, talking("--session", session) as other:
        async with holdfast.connect(session=session) as follower:

            async def follow() -> None:
                async for event in follower.events(follow=True):
                    told.append(event.id)

            following = asyncio.create_task(follow())
            task = await client.start(f": < {gate.path}")
            gate.open()
            await client.until(task["taskId"], "completed")
            assert await other.news() == []
            last = await follower.spawn("true")
            with anyio.fail_after(60):
                while f"{last.handle}:end" not in told:
                    await anyio.sleep(0.02)
            following.cancel()
            await asyncio.wait([following])
        assert told == [f"{last.handle}:end"]


async def test_ids_that_are_not_there_and_those_of_other_sessions_look_the_same(
    home: str, here: Path
) -> None:
    async with talking() as client, talking() as other:
        task = await client.start("sleep 1000")
        (handle,) = await begun(client, "sleep 1000")
        wait = await client.call("wait_for", handles=[handle], conditions=["output=x"])
        texts = set()
        ids = (task["taskId"], wait["taskId"], "proc-0123456789abcdef", "../x", "wait-x", "")
        for id in ids:
            for method, more in METHODS.items():
                with pytest.raises(Refused) as refused:
                    await other.ask(method, taskId=id, **more)
                assert refused.value.code == UNKNOWN
                texts.add(str(refused.value).replace(repr(id), "ID"))
        assert len(texts) == 1
        assert "ID" in texts.pop()
        await client.ask("tasks/cancel", taskId=task["taskId"])
        await client.call("process", action="kill", handle=handle)


# -- kills ---------------------------------------------------------------------------------------


@pytest.mark.own_keeper
@pytest.mark.parametrize("half", ["worker", "guard", "both"])
async def test_a_task_outlives_its_keeper(
    home: str, here: Path, gate: Gate, person: SyncClient, half: str
) -> None:
    async with talking() as client:
        task = await client.start(f": < {gate.path}; echo over", wait=True)
        status = person.keeper_status()
        for each in ("worker", "guard") if half == "both" else (half,):
            os.kill(status[each], signal.SIGKILL)
        assert (await client.get(task["taskId"]))["status"] == "working"
        with anyio.fail_after(60):  # what is written with nobody there to keep it may be lost
            while not person.keeper_status()["running"]:
                await anyio.sleep(0.02)
        gate.open()
        found = shown(await client.until(task["taskId"], "completed"))
        assert found["output"] == "over\n"
        assert await client.news() == []


async def test_a_client_killed_with_its_server_finds_the_task_again(
    home: str, here: Path, gate: Gate
) -> None:
    """On stdio, as Claude Code does it with --continue."""
    meta = declared(CAPABILITIES)

    def ask(server: Any, method: str, **params: Any) -> Answer:
        found: Answer = server.ask(method, _meta=meta, **params)
        return found

    with wire(era="auto") as server:
        arguments = {"command": f": < {gate.path}; echo over", "tmux": False}
        task = ask(server, "tools/call", name="spawn_process", arguments=arguments)
        server.signal(signal.SIGKILL)
    with wire(era="auto") as server:
        assert ask(server, "tasks/get", taskId=task["taskId"])["status"] == "working"
        gate.open()
        with anyio.fail_after(60):
            while (now := ask(server, "tasks/get", taskId=task["taskId"]))["status"] == "working":
                await anyio.sleep(0.05)
        assert shown(now)["output"] == "over\n"
        arguments = {"action": "list"}
        listed = ask(server, "tools/call", name="process", arguments=arguments)
        assert "events" not in listed["structuredContent"]


# -- HTTP ----------------------------------------------------------------------------------------


async def test_over_http_each_session_has_its_own_tasks(home: str, here: Path, gate: Gate) -> None:
    with web() as server:
        headers = {
            "Authorization": f"Bearer {server.token}",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
        }
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:

            async def ask(session: str, method: str, **params: Any) -> Answer:
                params["_meta"] = declared(CAPABILITIES)
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                named = {
                    "Mcp-Method": method,
                    "Mcp-Name": str(params.get("name", params.get("taskId"))),
                }
                url = f"{server.url}?session={session}"
                found = (await http.post(url, json=body, headers=named)).json()
                if "error" in found:
                    raise Refused(found["error"])
                result: Answer = found["result"]
                return result

            arguments = {"command": f": < {gate.path}; echo over", "tmux": False}
            task = await ask("one", "tools/call", name="spawn_process", arguments=arguments)
            id = task["taskId"]
            assert (await ask("one", "tasks/get", taskId=id))["status"] == "working"
            with pytest.raises(Refused) as refused:
                await ask("two", "tasks/get", taskId=id)
            assert refused.value.code == UNKNOWN
            gate.open()
            with anyio.fail_after(60):
                while (now := await ask("one", "tasks/get", taskId=id))["status"] == "working":
                    await anyio.sleep(0.05)
            assert shown(now)["output"] == "over\n"
