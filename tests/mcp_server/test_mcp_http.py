"""The MCP server over HTTP: who may ask, who may see what, and clients that go without a word."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from holdfast import SyncClient
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.testing import wait_until
from tests.mcp_servers import ERAS, MODERN, Web, connected, said, web, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mcp import Client

pytestmark = [pytest.mark.anyio, pytest.mark.shared_keeper]

OURS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.fixture
def server(home: str, here: Path, no_leaks: None) -> Iterator[Web]:
    with web() as found:
        yield found


@pytest.fixture
def person(home: str) -> Iterator[SyncClient]:
    client = open_client(Home(home), None)
    yield client
    client.close()


async def call(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    return said(result)


def running(person: SyncClient) -> list[str]:
    return [process.handle for process in person.list() if process.record.running]


def spawn_request(modern: bool) -> tuple[dict[str, str], dict[str, Any]]:
    """Headers and body of a call that would start something."""
    params: dict[str, Any] = {
        "name": "spawn_process",
        "arguments": {"command": "touch happened", "tmux": False},
    }
    headers = {}
    if modern:
        params["_meta"] = MODERN
        headers = {
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": "spawn_process",
        }
    return headers, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


# -- who may ask (fault 8) ---------------------------------------------------------------------

EVIL = {
    "host": ({"Host": "evil.example"}, 421),
    "host and port": ({"Host": "evil.example:80"}, 421),
    "host with our port": ({"Host": "evil.example:{port}"}, 421),
    "origin": ({"Origin": "http://evil.example"}, 403),
    "origin with our port": ({"Origin": "http://evil.example:{port}"}, 403),
    "no origin at all": ({"Origin": "null"}, 403),
    "no token": ({"Authorization": ""}, 401),
    "another token": ({"Authorization": "Bearer 0123456789"}, 401),
    "part of the token": ({"Authorization": "Bearer {part}"}, 401),
    "another scheme": ({"Authorization": "Basic {token}"}, 401),
    "a form": ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    "plain text": ({"Content-Type": "text/plain"}, 415),
    "several parts": ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
    "no kind": ({"Content-Type": ""}, 415),
}


@pytest.mark.parametrize("era", ERAS)
def test_what_does_not_come_from_our_client_is_refused_and_does_nothing(
    server: Web, here: Path, person: SyncClient, era: str
) -> None:
    """Fault 8: another host or origin, no or a wrong token, or a post that a page could make."""
    port = server.url.split(":")[2].split("/")[0]
    fill = {"port": port, "token": server.token, "part": server.token[:-1]}
    headers, body = spawn_request(era == "auto")
    with httpx2.Client() as http:
        right = {**OURS, **headers, "Authorization": f"Bearer {server.token}"}
        if era == "legacy":
            right["Mcp-Session-Id"] = begin(server, http)
        for what, (wrong, status) in EVIL.items():
            given = {**right, **{name: text.format(**fill) for name, text in wrong.items()}}
            given = {name: text for name, text in given.items() if text}
            answer = http.post(server.url, headers=given, content=json.dumps(body))
            assert answer.status_code == status, (what, answer.text)
            if status == 415:
                continue
            for method in ("GET", "DELETE", "PUT", "OPTIONS", "HEAD"):
                answer = http.request(method, server.url, headers=given)
                assert answer.status_code == status, (what, method)
        assert person.list() == []
        # And the session is as it was.
        answer = http.post(server.url, headers=right, content=json.dumps(body))
        assert answer.status_code == 200, answer.text
    wait_until((here / "happened").exists)


def begin(server: Web, http: httpx2.Client) -> str:
    """Initialize as an older client does; the id it is given."""
    about = {"name": "test", "version": "1"}
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
    headers = {**OURS, "Authorization": f"Bearer {server.token}"}
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
    id: str = http.post(server.url, headers=headers, json=body).headers["mcp-session-id"]
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    http.post(server.url, headers={**headers, "Mcp-Session-Id": id}, json=done)
    return id


@pytest.mark.long
def test_a_websocket_is_refused(server: Web) -> None:
    """There is none; asking for one with a foreign host gets nowhere."""
    port = int(server.url.split(":")[2].split("/")[0])
    for host in ("evil.example", f"127.0.0.1:{port}"):
        with socket.create_connection(("127.0.0.1", port)) as end:
            asked = (
                f"GET /mcp HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            end.sendall(asked.encode())
            status = end.recv(1000).split()[1]
            assert status == (b"421" if host == "evil.example" else b"401")


@pytest.mark.long
def test_the_token_is_printed_once_or_given(home: str, here: Path, tmp_path: Path) -> None:
    """From the environment or a file it is not printed at all."""
    with web() as found:
        assert len(found.token) >= 32
        assert len(found.said) == 2
    file = tmp_path / "token"
    file.write_text("out-of-a-file\n")
    with web("--token-file", str(file)) as found:
        assert not found.token
        assert "out-of-a-file" not in " ".join(found.said)
        with httpx2.Client() as http:
            headers = {**OURS, "Authorization": "Bearer out-of-a-file"}
            assert http.post(found.url, headers=headers, json={}).status_code == 400
            headers["Authorization"] = "Bearer another"
            assert http.post(found.url, headers=headers, json={}).status_code == 401


VERSIONS = ["2024-11-05", "2025-06-18", "2025-11-25", "1999-01-01"]


@pytest.mark.parametrize(
    ("options", "versions"),
    [
        pytest.param([], VERSIONS, id="plain", marks=pytest.mark.long),
        pytest.param(["--channel", "--dialect", "codex"], VERSIONS[-2:], id="with options"),
    ],
)
def test_the_first_answers_on_stdio_are_those_of_the_package(
    home: str, here: Path, options: list[str], versions: list[str]
) -> None:
    """They are given before it is there, and must not be others, whatever version is asked for."""
    with web("--no-token", *options) as server:
        for version in versions:
            with wire(*options, version=version) as early:
                later = Later(server)
                about = {"name": "test", "version": "1"}
                hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": about}
                assert early.started == later.ask("initialize", hello), version
                later.say("notifications/initialized")
                for method in ("tools/list", "ping"):
                    assert early.ask(method) == later.ask(method, {}), version
                later.close()


class Later:
    """An older client over HTTP, message by message."""

    def __init__(self, server: Web) -> None:
        self._http = httpx2.Client(headers=OURS)
        self._url = server.url

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = self._http.post(self._url, json=body)
        self._http.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
        found: dict[str, Any] = json.loads(lines[-1].removeprefix("data: "))["result"]
        return found

    def say(self, method: str) -> None:
        self._http.post(self._url, json={"jsonrpc": "2.0", "method": method})

    def close(self) -> None:
        self._http.close()


# -- who sees what (faults 9 and 12) -----------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("era", ERAS)
async def test_another_sessions_process_is_not_found_as_a_random_one_is(
    server: Web, person: SyncClient, session: str, era: str
) -> None:
    """Fault 9: to list, read, write, kill or adopt it, by tool or as a resource."""
    async with (
        server.client(era, f"?session={session}") as a,
        server.client(era, f"?session={session}-b") as b,
    ):
        theirs = (await call(a, "spawn_process", command="sleep 60", tmux=False))["handle"]
        assert (await call(b, "process", action="list"))["processes"] == []
        random = "proc-0123456789abcdef"
        for action, more in (
            ("status", {}),
            ("log", {}),
            ("poll", {}),
            ("write", {"data": "x"}),
            ("send_keys", {"keys": "x"}),
            ("capture", {}),
            ("search", {"pattern": "x"}),
            ("kill", {}),
            ("remove", {}),
        ):
            mine, other = [
                (await call(b, "process", action=action, handle=handle, **more))
                for handle in (theirs, random)
            ]
            assert mine["code"] == "not_found", action
            assert mine["error"].replace(theirs, random) == other["error"]
        refusals = []
        for handle in (theirs, random):
            with pytest.raises(MCPError) as refusal:
                await b.read_resource(f"holdfast://processes/{handle}/log")
            refusals.append(str(refusal.value).replace(theirs, random))
        assert refusals[0] == refusals[1]
        assert (await call(b, "adopt", session=session))["code"] == "not_found"
        assert running(person) == [theirs]


@pytest.mark.long
async def test_only_a_whole_handle_finds_a_process(server: Web, person: SyncClient) -> None:
    """Fault 12: parts of one, patterns, paths and monsters are not found, and do nothing."""
    async with server.client("auto") as client:
        handle = (await call(client, "spawn_process", command="sleep 60", tmux=False))["handle"]
        before = sorted(Path(person.home.path).rglob("*"))
        for wrong in (handle[:-3], "proc-*", "../x", "proc-\0", "p" * 10_000, handle + "\n", ""):
            for action in ("kill", "log", "remove"):
                found = await call(client, "process", action=action, handle=wrong)
                assert found["code"] in ("not_found", "bad_request"), (wrong, found)
        for wrong in (handle[:-3], "proc-*", "..%2Fx", "p" * 10_000):
            with pytest.raises(MCPError):
                await client.read_resource(f"holdfast://processes/{wrong}/log")
        assert running(person) == [handle]
        assert sorted(Path(person.home.path).rglob("*")) == before


async def test_clients_have_sessions_of_their_own(server: Web, person: SyncClient) -> None:
    """Older clients one each; newer ones, who have no connection, the address's or the server's."""
    async with server.client("legacy") as one, server.client("legacy") as two:
        await call(one, "spawn_process", command="sleep 60", tmux=False)
        assert (await call(two, "process", action="list"))["processes"] == []
    async with server.client("auto") as one:
        await call(one, "spawn_process", command="sleep 60", tmux=False)
    async with server.client("auto") as two:
        assert len((await call(two, "process", action="list"))["processes"]) == 1


# -- clients that go ---------------------------------------------------------------------------

KILLED = """
import sys, anyio
sys.path.insert(0, sys.argv[1])
from tests.mcp_servers import Web
async def main():
    server = Web.__new__(Web)
    server.url, server.token = sys.argv[2], sys.argv[3]
    async with server.client("legacy") as client:
        await client.call_tool("spawn_process", {"command": "sleep 60", "tmux": False})
        print("ready", flush=True)
        await anyio.sleep(600)
anyio.run(main)
"""


@pytest.mark.long
async def test_a_client_that_was_killed_is_lost_and_the_next_one_is_told(
    server: Web, person: SyncClient
) -> None:
    """Its stream ends with it; a moment later its session is in its grace and can be adopted."""
    client = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(Path(__file__).parents[2]), server.url, server.token],
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    client.kill()
    client.communicate()
    (handle,) = running(person)
    async with server.client("legacy") as other:
        left: list[dict[str, Any]] = []
        while not left:
            left = (await call(other, "adopt"))["left_behind"]
            await anyio.sleep(0.02)
        assert [each["handle"] for each in left[0]["processes"]] == [handle]
        await call(other, "adopt", session=left[0]["session"])
        listed = (await call(other, "process", action="list"))["processes"]
        assert [each["handle"] for each in listed] == [handle]
    assert server.process.poll() is None


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_server_that_ends_leaves_everything_running(
    home: str, here: Path, person: SyncClient, number: int
) -> None:
    """Whoever was connected is lost; the next server of the directory can adopt it."""
    with web() as server:
        async with server.client("auto") as client:
            await call(client, "spawn_process", command="sleep 60", tmux=False)
        server.end(number)
    (handle,) = running(person)
    async with connected("memory", "auto") as client:
        found = await call(client, "process", action="list")
        assert found["left_behind"][0]["processes"][0]["handle"] == handle
