"""The MCP server on stdio and HTTP, with clients of both protocol eras."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import anyio
import mcp_types as types
import pytest
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.shared.exceptions import MCPError

from holdfast import SyncClient
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.mcp._limits import patience_of
from holdfast.testing import wait_until
from holdfast.tools import DIALECTS
from tests.mcp_servers import (
    ERAS,
    EVERY_WAY,
    PROGRAM,
    WAYS,
    WAYS_TO_TELL,
    connected,
    said,
    web,
    wire,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mcp import Client

    from tests.conftest import Gate

pytestmark = [pytest.mark.anyio, pytest.mark.shared_keeper]


@pytest.fixture
def person(home: str) -> Iterator[SyncClient]:
    client = open_client(Home(home), None)
    yield client
    client.close()


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result
    return said(result)


async def spawn(client: Client, command: str, **more: Any) -> str:
    found = await call(client, "spawn_process", command=command, tmux=False, **more)
    handle: str = found["handle"]
    return handle


async def told(client: Client, handle: str) -> dict[str, Any]:
    """The event of a process, once it comes with a result."""
    with anyio.fail_after(60):
        while True:
            found = await call(client, "process", action="list")
            for event in found.get("events", []):
                if event["handle"] == handle:
                    return dict(event)
            await anyio.sleep(0.02)


def running(person: SyncClient) -> list[str]:
    return [process.handle for process in person.list() if process.record.running]


# -- calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("transport", "era"), WAYS)
async def test_a_process_is_started_and_its_end_told_with_a_later_result(
    home: str, here: Path, gate: Gate, transport: str, era: str
) -> None:
    """Results are structured, and as text the same; an end is told until the next call."""
    async with connected(transport, era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools)[:3] == ["spawn_process", "process", "wait_for"]
        assert "adopt" in tools
        hints = tools["wait_for"].annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.destructive_hint) == (True, False)
        result = await client.call_tool(
            "spawn_process", {"command": f": < {gate.path}; echo done; exit 3", "tmux": False}
        )
        assert result.structured_content is not None
        assert isinstance(result.content[0], types.TextContent)
        assert json.loads(result.content[0].text) == result.structured_content
        handle = result.structured_content["handle"]
        assert (result.structured_content["status"], result.is_error) == ("running", False)
        gate.open()
        event = await told(client, handle)
        assert (event["status"], event["exit_code"]) == ("failed", 3)
        assert "events" not in await call(client, "process", action="list")


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_wrong_is_an_answer_and_nothing_was_started(
    home: str, here: Path, person: SyncClient, era: str
) -> None:
    """A wrong argument is named in an error that models see; a tool we do not have is refused."""
    async with connected("memory", era) as client:
        result = await client.call_tool("spawn_process", {"command": "true", "colour": "red"})
        assert result.is_error
        assert isinstance(result.content[0], types.TextContent)
        assert "spawn_process has no argument 'colour'" in result.content[0].text
        result = await client.call_tool("spawn_process", {"command": "true", "workdir": "/none"})
        assert result.is_error
        with pytest.raises(MCPError, match="there is no tool 'spawn'"):
            await client.call_tool("spawn", {"command": "true"})
        assert person.list() == []


@pytest.mark.parametrize(("transport", "era"), EVERY_WAY)
async def test_a_call_that_blocks_answers_before_the_client_loses_patience(
    home: str, here: Path, gate: Gate, transport: str, era: str
) -> None:
    """It says that the process runs and to call again, and the next wait misses nothing."""
    async with connected(transport, era, "--patience", "1s") as client:
        found = await call(client, "spawn_process", command=f": < {gate.path}; exit 4", wait=True)
        assert found["status"] == "running"
        assert "still running" in found["note"]
        handles = [found["handle"]]
        waited = await call(client, "wait_for", handles=handles, timeout_seconds=600)
        assert waited["timed_out"]
        assert "call again" in waited["note"]
        gate.open()
        status = {"timed_out": True}
        while status["timed_out"]:
            status = await call(client, "wait_for", handles=handles, timeout_seconds=600)
        found = await call(client, "process", action="status", handle=handles[0])
        assert (found["status"], found["exit_code"]) == ("failed", 4)


@pytest.mark.weight(5)
@pytest.mark.parametrize(("transport", "era"), WAYS_TO_TELL)
async def test_progress_is_told_while_a_call_waits(
    home: str, here: Path, gate: Gate, transport: str, era: str
) -> None:
    """Every few seconds there is a word about what is waited for."""
    seen: list[tuple[float, str | None]] = []

    async def told(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))
        gate.open()

    async with connected(transport, era) as client:
        await spawn(client, f": < {gate.path}")
        result = await client.call_tool("wait_for", {}, progress_callback=told)
        assert result.structured_content is not None
        assert not result.structured_content["timed_out"]
        assert seen
        assert "waiting for" in str(seen[0][1])


@pytest.mark.parametrize(("transport", "era"), EVERY_WAY)
async def test_a_cancelled_call_ends_the_wait_and_not_the_process(
    home: str, here: Path, gate: Gate, person: SyncClient, transport: str, era: str
) -> None:
    """One process was started, it runs on, and its end is told: the cancelled call took nothing."""
    command = f"echo > begun; : < {gate.path}; exit 5"
    async with connected(transport, era) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "spawn_process", {"command": command, "wait": True})
            with anyio.fail_after(60):
                while not (here / "begun").exists():
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        await call(client, "process", action="list")  # after which the wait is over, too
        (handle,) = running(person)
        gate.open()
        assert (await told(client, handle))["exit_code"] == 5
        assert [process.handle for process in person.list()] == [handle]


def test_a_spawn_that_is_cancelled_at_once_is_done_or_never_begun(
    home: str, here: Path, person: SyncClient
) -> None:
    """Whenever the cancellation comes, there is one whole process for each that was begun."""
    with wire() as server:
        server.call("process", action="list")
        for number in range(20):
            request = server.begin(
                "tools/call",
                name="spawn_process",
                arguments={"command": f"echo {number} >> ran; sleep 60", "tmux": False},
            )
            server.send("notifications/cancelled", requestId=request, reason="changed my mind")
        server.call("process", action="list")

        def whole() -> bool:
            ran = (here / "ran").read_text().split() if (here / "ran").exists() else []
            return len(ran) == len(set(ran)) == len(running(person)) == len(person.list())

        wait_until(whole)


async def test_long_output_arrives_whole(home: str, here: Path) -> None:
    """Answers of many times what a pipe holds, several at once."""
    async with connected("stdio", "legacy") as client:
        text = "".join(f"line {number} of some length\\n" for number in range(2000))
        handle = await spawn(client, f"printf '{text}'")
        await call(client, "wait_for", handles=[handle])
        uri = f"holdfast://processes/{handle}/log"
        found: list[str] = []

        async def read() -> None:
            content = (await client.read_resource(uri)).contents[0]
            assert isinstance(content, types.TextResourceContents)
            found.append(content.text)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(read)
        assert len(found) == 8
        assert all(each.startswith("line 0 ") and "line 1999 " in each for each in found)


def test_whatever_is_said_at_once_is_answered_once(home: str, here: Path) -> None:
    """A client that does not wait: the first answers and the package's do not get into a muddle."""
    about = {"name": "test", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
    asked: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": "three", "method": "ping"},
        {"id": 4, "method": "resources/templates/list"},
        {"id": 5, "method": "tools/list", "params": {}},
        {"id": 6, "method": "tools/call", "params": {"name": "adopt", "arguments": {}}},
        {"id": 7, "method": "ping"},
        {"id": 8, "method": "no/such/method"},
    ]
    lines = "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in asked)
    with subprocess.Popen(
        PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(lines)
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(8)]
        server.stdin.close()
        assert server.stdout.read() == ""
    assert sorted(str(each["id"]) for each in answers) == [
        "1",
        "2",
        "4",
        "5",
        "6",
        "7",
        "8",
        "three",
    ]
    assert [each["id"] for each in answers if "error" in each] == [8]
    assert answers[0]["result"]["protocolVersion"] == "2025-06-18"


# -- resources ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("transport", "era"), EVERY_WAY)
async def test_logs_and_screens_are_resources(
    home: str, here: Path, transport: str, era: str
) -> None:
    """Each process has a log, one in a terminal a screen; anything else is not there."""
    async with connected(transport, era) as client:
        plain = await spawn(client, "echo plain output")
        shown = await spawn(client, "echo on the screen; sleep 60", tty=True)
        await call(client, "wait_for", handles=[shown], conditions=["output=screen"])
        uris = {str(each.uri) for each in (await client.list_resources()).resources}
        prefix = "holdfast://processes"
        assert uris == {
            "holdfast://events",
            f"{prefix}/{plain}/log",
            f"{prefix}/{shown}/log",
            f"{prefix}/{shown}/screen",
        }
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.name for each in templates] == ["log", "screen"]
        for uri, text in ((f"{plain}/log", "plain output"), (f"{shown}/screen", "on the screen")):
            content = (await client.read_resource(f"{prefix}/{uri}")).contents[0]
            assert isinstance(content, types.TextResourceContents)
            assert text in content.text
        for uri in (f"{plain}/screen", "proc-0123456789abcdef/log", f"{plain}", "../x/log"):
            with pytest.raises(MCPError):
                await client.read_resource(f"{prefix}/{uri}")


async def test_a_new_client_that_listens_is_told_what_changes(home: str, here: Path) -> None:
    """A log that grows, and a process that comes: resources it asked to be told of."""
    async with connected("memory", "auto") as client:
        handle = await spawn(client, "read line; echo $line; sleep 60")
        uri = f"holdfast://processes/{handle}/log"
        heard: set[str] = set()
        async with client.listen(
            resource_subscriptions=[uri, "holdfast://events"], resources_list_changed=True
        ) as listening:
            await call(client, "process", action="write", handle=handle, data="hello\n")
            await spawn(client, "exit 1")
            with anyio.fail_after(60):
                async for change in listening:
                    heard.add(getattr(change, "uri", "list"))
                    if heard == {uri, "holdfast://events", "list"}:
                        break


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_an_old_client_that_subscribed_is_told_what_changes(home: str, here: Path) -> None:
    """The same over the connection, until it unsubscribes."""
    heard: list[str] = []

    async def note(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            heard.append(str(message.params.uri))

    async with connected("memory", "legacy", message_handler=note) as client:
        handle = await spawn(client, "while read line; do echo $line; done")
        uri = f"holdfast://processes/{handle}/log"
        await client.session.subscribe_resource(uri)
        await call(client, "process", action="write", handle=handle, data="hello\n")
        with anyio.fail_after(60):
            while uri not in heard:
                await anyio.sleep(0.02)
        await client.session.unsubscribe_resource(uri)


class ChannelText(types.NotificationParams):
    content: str


class Channel(ClientExtension):
    """What Claude Code's channel would show."""

    identifier = "io.holdfast/test"

    def __init__(self) -> None:
        self.said: list[str] = []

    def notifications(self) -> list[NotificationBinding[Any]]:
        async def take(params: ChannelText) -> None:
            self.said.append(params.content)

        method = "notifications/claude/channel"
        return [NotificationBinding(method=method, params_type=ChannelText, handler=take)]


@pytest.mark.parametrize(("transport", "era"), WAYS_TO_TELL[:3])
async def test_events_are_pushed_to_the_channel_if_it_was_asked_for(
    home: str, here: Path, gate: Gate, transport: str, era: str
) -> None:
    """An agent that does nothing hears of an end; and still gets it with its next result."""
    channel = Channel()
    async with connected(transport, era, "--channel", extensions=[channel]) as client:
        await client.list_tools()
        capabilities = client.server_capabilities
        assert capabilities is not None
        assert "claude/channel" in (capabilities.experimental or {})
        handle = await spawn(client, f": < {gate.path}; exit 6")
        gate.open()
        with anyio.fail_after(60):
            while not channel.said:
                await anyio.sleep(0.02)
        assert handle in channel.said[0]
        assert (await told(client, handle))["exit_code"] == 6


# -- sessions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "era"),
    [
        ("eof", "auto"),
        ("SIGKILL", "legacy"),
        pytest.param("eof", "legacy", marks=pytest.mark.long),
        pytest.param("SIGTERM", "auto", marks=pytest.mark.long),
        pytest.param("SIGINT", "legacy", marks=pytest.mark.long),
        pytest.param("SIGHUP", "auto", marks=pytest.mark.long),
        pytest.param("SIGTERM", "legacy", marks=pytest.mark.long),
        pytest.param("SIGINT", "auto", marks=pytest.mark.long),
        pytest.param("SIGHUP", "legacy", marks=pytest.mark.long),
        pytest.param("SIGKILL", "auto", marks=pytest.mark.long),
    ],
)
async def test_a_client_that_goes_is_lost_and_the_next_one_adopts_what_it_left(
    home: str, here: Path, gate: Gate, person: SyncClient, how: str, era: str
) -> None:
    """The first result tells of it, `adopt` takes it over, and nothing that happened is lost."""
    with wire(era=era) as server:
        first = server.call("spawn_process", command=f": < {gate.path}", tmux=False)["handle"]
        until = "while [ ! -e go ]; do sleep 0.01; done; exit 7"
        second = server.call("spawn_process", command=until, tmux=False)["handle"]
        (here / "go").touch()
        wait_until(lambda: person.get(second).record.exit_code == 7)
        waiting = server.begin("tools/call", name="wait_for", arguments={"handles": [first]})
        code = server.close() if how == "eof" else server.signal(getattr(signal, how))
        assert code == (-signal.SIGKILL if how == "SIGKILL" else 0)
        assert waiting
    assert running(person) == [first]
    async with connected("memory", era) as client:
        answer = await client.call_tool("process", {"action": "list"})
        found = answer.structured_content
        assert found["processes"] == []
        (left,) = found["left_behind"]
        assert [each["handle"] for each in left["processes"]] == [first, second]
        assert isinstance(answer.content[0], types.TextContent)
        assert "call adopt" in answer.content[0].text
        adopted = await call(client, "adopt", session=left["session"])
        assert [each["handle"] for each in adopted["processes"]] == [first, second]
        assert [event["exit_code"] for event in adopted["events"]] == [7]
        gate.open()
        await call(client, "wait_for", handles=[first])
        listed = await call(client, "process", action="list")
        assert "left_behind" not in listed
        assert [each["status"] for each in listed["processes"]] == ["completed", "failed"]


async def test_a_dialect_that_answers_in_words_tells_of_it_in_words(
    home: str, here: Path, session: str
) -> None:
    """What its model reads is no JSON; the next session to adopt is named in the text."""
    options = ("--session", session, "--dialect", "codex")
    async with connected("memory", "legacy", *options) as client:
        await client.call_tool("exec_command", {"cmd": "sleep 60", "yield_time_ms": 250})
    async with connected("memory", "legacy", "--dialect", "codex") as client:
        result = await client.call_tool("exec_command", {"cmd": "echo hello"})
        assert isinstance(result.content[0], types.TextContent)
        text = result.content[0].text
        assert "hello" in text
        assert f"Session {session} worked in this directory" in text
        assert "call adopt" in text
        assert result.structured_content is None  # which clients would show instead of the words


async def test_an_error_is_said_once(home: str, here: Path) -> None:
    """Some clients show a model text and structure of an error, with the events in both."""
    async with connected("memory", "legacy") as client:
        result = await client.call_tool("process", {"action": "list", "limit": 3})
        assert result.is_error
        assert said(result)["code"] == "bad_request"
        assert result.structured_content is None


async def test_a_live_session_is_never_shown(home: str, here: Path, session: str) -> None:
    """What somebody holds is not left behind, and cannot be had by its name either."""
    async with (
        connected("memory", "legacy", "--session", session) as one,
        connected("memory", "legacy") as other,
    ):
        await spawn(one, "sleep 60")
        assert "left_behind" not in await call(other, "process", action="list")
        assert await call(other, "adopt") == {"left_behind": []}
        assert (await other.call_tool("adopt", {"session": session})).is_error


@pytest.mark.parametrize("era", ERAS)
async def test_a_named_session_is_the_same_after_a_restart(
    home: str, here: Path, session: str, era: str
) -> None:
    """Processes and unread events are there again, and are not left behind."""
    with wire("--session", session, era=era) as server:
        long = server.call("spawn_process", command="sleep 60", tmux=False)["handle"]
        quick = server.call("spawn_process", command="exit 2", tmux=False)["handle"]
    async with connected("memory", era, "--session", session) as client:
        listed = await call(client, "process", action="list")
        assert [each["handle"] for each in listed["processes"]] == [long, quick]
        assert [event["handle"] for event in listed["events"]] == [quick]
        assert "left_behind" not in listed


@pytest.mark.parametrize("how", ["eof", "SIGTERM"])
def test_with_on_exit_stop_nothing_outlives_the_client(
    home: str, here: Path, person: SyncClient, how: str
) -> None:
    """Whoever wants no grace says so."""
    with wire("--on-exit", "stop") as server:
        server.call("spawn_process", command="sleep 60", tmux=False)
        if how == "SIGTERM":
            server.signal(signal.SIGTERM)
    wait_until(lambda: not running(person))


def test_dodos_processes_end_with_their_client(home: str, here: Path, person: SyncClient) -> None:
    """Its dialect has no grace."""
    with wire("--dialect", "dodo") as server:
        server.call("run_background", cmd="sleep", args=["60"])
        assert running(person)
    wait_until(lambda: not running(person))


async def test_delete_ends_a_session_in_good_order(
    home: str, here: Path, person: SyncClient
) -> None:
    """An older client says so when it closes: its processes stop, another client's go on."""
    with web() as server:
        async with server.client("legacy") as stays:
            kept = await spawn(stays, "sleep 60")
            async with server.client("legacy") as goes:
                await spawn(goes, "sleep 60")
                assert len(running(person)) == 2
            wait_until(lambda: running(person) == [kept])
            assert len((await call(stays, "process", action="list"))["processes"]) == 1


async def test_with_on_exit_grace_even_delete_leaves_them_running(
    home: str, here: Path, person: SyncClient
) -> None:
    """And the next client of the server is told."""
    with web("--on-exit", "grace") as server:
        async with server.client("legacy") as client:
            handle = await spawn(client, "sleep 60")
        async with server.client("legacy") as client:
            found = await call(client, "process", action="list")
            assert found["left_behind"][0]["processes"][0]["handle"] == handle


async def test_a_server_that_stops_answers_whoever_waits(
    home: str, here: Path, person: SyncClient
) -> None:
    """It says that nothing was undone, and what was waited for goes on."""
    with web() as server:
        async with server.client("auto") as client:
            handle = await spawn(client, "sleep 60")
            found: list[Any] = []

            async def wait() -> None:
                result = await client.call_tool("wait_for", {"handles": [handle]})
                found.append(said(result))

            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                for _ in range(3):  # each there and back, by when the wait has long begun
                    await call(client, "process", action="list")
                await anyio.to_thread.run_sync(server.end)
        assert found[0]["code"] == "stopping"
        assert running(person) == [handle]


# -- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "progress", "seconds"),
    [
        (None, True, 50),
        ("some-agent", True, 50),
        ("codex-mcp-client", True, 50),
        ("claude-code", True, 100),
        ("claude-code", False, 50),
        ("gemini-cli-mcp-client-holdfast", True, 240),
        ("opencode", True, 25),
        ("mcp", True, 4),  # openai-agents gives up after 5 s
        ("mcp-inspector", True, 50),
    ],
)
def test_how_long_a_call_may_take_depends_on_the_client(
    name: str | None, progress: bool, seconds: float
) -> None:
    """Longer only where it is known, and only if the client sees that something goes on."""
    assert patience_of(name, progress) == seconds


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_every_dialect_is_served_with_adopt(home: str, here: Path, dialect: str) -> None:
    """The tools of the dialect, and the one to take over what was left."""
    async with connected("memory", "legacy", "--dialect", dialect) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names[-1] == "adopt"
        assert len(names) > 2
        assert await call(client, "adopt") == {"left_behind": []}


CLIENTS = ["claude", "codex", "cursor", "vscode", "gemini", "opencode"]


def test_the_printed_configuration_starts_a_server(home: str, here: Path) -> None:
    """What is printed is what each client's file wants; its command is the same, and works."""
    commands = {client: printed_server(client)[0] for client in CLIENTS}
    command = commands["claude"]
    assert command[-4:] == ["--dialect", "codex", "--session", "mine"]
    assert commands.pop("codex") == [*command, "--patience", "280s"]
    assert set(map(tuple, commands.values())) == {tuple(command)}
    done = subprocess.run(command, input=hello(), capture_output=True, timeout=60)
    answer = json.loads(done.stdout.splitlines()[0])
    assert answer["result"]["serverInfo"]["name"] == "holdfast"


def test_codex_waits_longer_than_the_server(home: str) -> None:
    """Its limit for a call and our patience are printed together, and it asks nobody."""
    for given, limit in (((), 300), (("--patience", "2m"), 140)):
        command, server = printed_server("codex", *given)
        assert server["tool_timeout_sec"] == limit
        assert command[-1] == (given or ("280s",))[-1]
        assert (server["default_tools_approval_mode"], server["required"]) == ("approve", True)


def printed_server(client: str, *options: str) -> tuple[list[str], dict[str, Any]]:
    """The command of a printed configuration, and all that it says of the server."""
    printed = subprocess.run(
        [*PROGRAM, "--print-config", client, "--dialect", "codex", "--session", "mine", *options],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if client == "codex":
        server = tomllib.loads(printed)["mcp_servers"]["holdfast"]
    else:
        data = json.loads(printed)
        where = {"vscode": "servers", "opencode": "mcp"}.get(client, "mcpServers")
        server = data[where]["holdfast"]
    command = server["command"]
    return (command if isinstance(command, list) else [command, *server["args"]]), server


def test_without_the_package_one_line_says_what_to_install(home: str) -> None:
    """The rest of holdfast works without it."""
    program = "import sys; sys.modules['mcp'] = None; import holdfast.cli as c; sys.exit(c.main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "mcp"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 125
    assert "pip install 'holdfast-agents[mcp]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--dialect", "klingon"], "there is no dialect 'klingon'"),
        (["--http", "8765x"], "--http is HOST:PORT"),
        (["--http", "0.0.0.0:0"], "--allow-host"),
        (["--http", "0.0.0.0:0", "--allow-host", "box", "--no-token"], "loopback"),
        (["--no-token"], "for --http"),
        (["--on-exit", "explode"], "--on-exit"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(home: str, options: list[str], says: str) -> None:
    """Nothing is served then."""
    done = subprocess.run([*PROGRAM, *options], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_client_that_does_not_read_cannot_keep_the_server(home: str, here: Path) -> None:
    """Answers pile up in the pipe; a signal still ends it."""
    with wire() as server:
        for _ in range(200):
            server.begin("tools/list")
        assert server.signal(signal.SIGTERM) == 0


def test_what_is_started_gets_nothing_of_the_servers(
    home: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor of the wire, and not the token that the environment had."""
    monkeypatch.setenv("HOLDFAST_MCP_TOKEN", "very-secret")
    with wire() as server:
        found = server.call("spawn_process", command="env; ls -l /proc/self/fd", wait=True)
        assert "very-secret" not in json.dumps(found)
        assert "PATH=" in found["output"]
        assert [line for line in found["output"].splitlines() if "socket:" in line] == []
    assert os.environ["HOLDFAST_MCP_TOKEN"] == "very-secret"


# -- faults 21 and 22 --------------------------------------------------------------------------


@pytest.mark.weight(5)
@pytest.mark.parametrize("era", ["legacy", pytest.param("auto", marks=pytest.mark.long)])
def test_a_pattern_that_never_ends_holds_up_nobody_else(home: str, here: Path, era: str) -> None:
    """Fault 21: it is given up and said so; other calls are answered meanwhile."""
    with wire(era=era) as server:
        command = "head -c 5000 /dev/zero | tr '\\0' a; echo '!'; sleep 60"
        handle = server.call("spawn_process", command=command, tmux=False)["handle"]
        server.call("wait_for", handles=[handle], conditions=["output=!"])
        search = {"action": "search", "handle": handle, "pattern": "(a+)+$"}
        slow = [
            server.begin("tools/call", name="process", arguments=search),
            server.begin(
                "tools/call",
                name="wait_for",
                arguments={
                    "handles": [handle],
                    "conditions": ["output=(a+)+$"],
                    "timeout_seconds": 5,
                },
            ),
        ]
        assert server.call("process", action="list")["processes"]
        answers = [server.answer(number)["content"][0]["text"] for number in slow]
        searched, waited = map(json.loads, answers)
        assert "note" in searched or "error" in searched
        assert not waited.get("ok")


def test_a_home_that_is_a_symlink_is_refused(
    home: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 22: nothing is started or written there."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "link"))
    done = subprocess.run(PROGRAM, input="", capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert "symlink" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_the_server_makes_is_private_and_shows_no_secret(
    home: str, here: Path, tmp_path: Path
) -> None:
    """Fault 22: whatever the umask; and an environment is in no answer, resource or file."""
    with wire(umask=0) as server:
        found = [
            server.call("spawn_process", command="sleep 60", tmux=False, env={"API_KEY": "s3cr3t"})
        ]
        handle = found[0]["handle"]
        found += [server.call("process", action="list")]
        found += [server.call("process", action="status", handle=handle)]
        found += [server.ask("resources/list")]
        found += [server.ask("resources/read", uri=f"holdfast://processes/{handle}/log")]
        assert "s3cr3t" not in json.dumps(found)
        paths = [Path(home), *Path(home).rglob("*")]
        assert len(paths) > 5
        for path in paths:
            if path.is_symlink() or path.is_socket():
                continue
            assert path.stat().st_mode & 0o077 == 0, path
            if path.is_file():
                assert b"s3cr3t" not in path.read_bytes(), path


# -- what must not silence it ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transport", "era"),
    [
        ("stdio", "legacy"),
        ("http", "auto"),
        pytest.param("stdio", "auto", marks=pytest.mark.long),
        pytest.param("http", "legacy", marks=pytest.mark.long),
    ],
)
async def test_names_that_are_no_text_do_not_silence_the_server(
    home: str, here: Path, session: str, transport: str, era: str
) -> None:
    """A command with bytes that are no UTF-8 is listed, and everything after it is answered."""
    beside = open_client(Home(home), session)
    beside.spawn(["sh", "-c", "exec sleep 1000", "\udcff"], label="\udcff")
    async with connected(transport, era, "--session", session) as client:
        listed = (await client.list_resources()).resources
        assert len(listed) == 2
        assert (await call(client, "process", action="list"))["processes"][0]["status"] == "running"
    beside.stop_all()
    beside.close()


def hello() -> bytes:
    about = {"name": "test", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
    return (
        request_of(1, "initialize", params)
        + b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    )


def request_of(id: int, method: str, params: dict[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    return json.dumps(message).encode() + b"\n"


def test_what_was_asked_before_the_end_of_input_is_done(home: str, here: Path) -> None:
    """Even the last line, without its end: ``printf ... | holdfast mcp`` works."""
    arguments = {"command": "echo hi > made", "wait": True}
    request = request_of(2, "tools/call", {"name": "spawn_process", "arguments": arguments})
    done = subprocess.run(
        PROGRAM, input=hello() + request.rstrip(b"\n"), capture_output=True, timeout=60
    )
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    answers = [message for message in messages if "id" in message]
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["structuredContent"]["status"] == "completed"
    assert (here / "made").read_text() == "hi\n"


def test_absurdly_nested_json_is_survived(home: str, here: Path) -> None:
    nested = b"[" * 200_000 + b"\n" + b'{"a":' * 50_000 + b"\n"
    done = subprocess.run(
        PROGRAM, input=nested + hello() + request_of(2, "ping", {}), capture_output=True, timeout=60
    )
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [None, None, 1, 2]
    assert done.returncode == 0


def test_a_client_that_reads_no_more_is_lost(home: str, here: Path) -> None:
    """Though it keeps its end of our input open."""
    server = subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(
        hello() + request_of(2, "tools/call", {"name": "process", "arguments": {"action": "list"}})
    )
    server.stdin.flush()
    assert json.loads(server.stdout.readline())["id"] == 1
    assert json.loads(server.stdout.readline())["id"] == 2
    server.stdout.close()
    server.stdin.write(request_of(3, "resources/list", {}) * 3)
    server.stdin.flush()
    server.wait(30)
    server.stdin.close()


async def test_stop_on_exit_holds_for_a_server_that_was_killed(
    home: str, here: Path, person: SyncClient
) -> None:
    with wire("--on-exit", "stop") as server:
        arguments = {"command": "exec sleep 1000", "tmux": False}
        server.ask("tools/call", name="spawn_process", arguments=arguments)
        wait_until(lambda: running(person))
        server.process.kill()
        wait_until(lambda: not running(person))


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_only_what_is_there_can_be_subscribed_to(home: str, here: Path) -> None:
    async with connected("memory", "legacy") as client:
        for uri in ("holdfast://processes/proc-" + "x" * 16 + "/log", "junk://x", "holdfast://"):
            with pytest.raises(MCPError):
                await client.subscribe_resource(uri)
        await client.subscribe_resource("holdfast://events")


async def test_sessions_that_left_nothing_to_take_over_are_not_told_of(
    home: str, here: Path
) -> None:
    """An end that was told, in a session that was lost, is nobody's work."""
    for _ in range(3):
        async with connected("memory", "auto") as client:
            await call(client, "spawn_process", command="true", wait=True)
    async with connected("memory", "auto") as client:
        assert "left_behind" not in await call(client, "process", action="list")


def test_configurations_are_for_stdio() -> None:
    done = subprocess.run(
        [*PROGRAM, "--print-config", "claude", "--http", "127.0.0.1:1"],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 125
    assert b"--print-config is for stdio" in done.stderr
