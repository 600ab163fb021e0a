"""The MCP server and clients that send nonsense, or half of it: it answers, and goes on."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests import mcp_servers
from tests.mcp_servers import PROGRAM, Web, web

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": "hello",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
PING = {"jsonrpc": "2.0", "id": "ping", "method": "ping"}


class Lines:
    """A server on stdio that is told and tells bytes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._buffer = b""

    def tell(self, line: bytes | dict[str, Any]) -> None:
        data = line if isinstance(line, bytes) else json.dumps(line).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(data + b"\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        until = time.monotonic() + 60
        while b"\n" not in self._buffer:
            assert select.select([fd], [], [], until - time.monotonic())[0], "no answer"
            data = os.read(fd, 1 << 16)
            assert data, "it ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def end(self) -> None:
        self._process.communicate(timeout=60)


@pytest.fixture
def lines(home: str, here: Path, no_leaks: None) -> Iterator[Lines]:
    found = Lines()
    yield found
    found.end()


def nested(levels: int, **more: Any) -> bytes:
    """A request whose arguments have so many levels."""
    inner = b'{"a":' * levels + b"1" + b"}" * levels
    head = json.dumps({"jsonrpc": "2.0", **more, "method": "tools/call"}).encode()
    return head[:-1] + b', "params": {"name": "process", "arguments": ' + inner + b"}}"


NONSENSE: dict[str, tuple[bytes, int, object]] = {
    "300 levels": (nested(300, id=7), -32600, 7),
    "900 levels": (nested(900, id="seven"), -32600, "seven"),
    "100,000 levels": (nested(100_000, id=7), -32600, 7),
    "100,000 levels, no id": (nested(100_000), -32600, None),
    "id behind 300 levels": (
        b'{"params": {"id": 3, "x": ' + b"[" * 300 + b"]" * 300 + b'}, "jsonrpc": "2.0", "id": 9}',
        -32600,
        9,
    ),
    "brackets without end": (b"[" * 100_000, -32700, None),
    "no JSON": (b"{nonsense", -32700, None),
    "no JSON, with an id": (b'{"jsonrpc": "2.0", "id": 5, "method": "ping"', -32700, None),
    "no UTF-8": (b'{"jsonrpc": "2.0", "id": 5, "method": "\xff"}', -32700, None),
    "a number": (b"5", -32600, None),
    "a list": (b"[]", -32600, None),
    "no method": (b'{"jsonrpc": "2.0", "id": 11}', -32600, 11),
    "a method that is no text": (b'{"jsonrpc": "2.0", "id": 12, "method": 5}', -32600, 12),
    "no version": (b'{"id": 13, "method": "ping"}', -32600, 13),
}


@pytest.mark.parametrize("greeted", [True, False], ids=["greeted", "first"])
def test_nonsense_on_stdio_is_answered_and_the_next_request_too(
    greeted: bool, lines: Lines
) -> None:
    """With an error that has its id, where it has one."""
    if greeted:
        lines.tell(HELLO)
        assert lines.hear()["id"] == "hello"
        lines.tell({"jsonrpc": "2.0", "method": "notifications/initialized"})
    for what, (line, code, id) in NONSENSE.items():
        lines.tell(line)
        answer = lines.hear()
        assert (answer["error"]["code"], answer["id"]) == (code, id), what
        assert answer["error"]["message"]
    if not greeted:
        lines.tell(HELLO)
        assert lines.hear()["result"]["serverInfo"]["name"] == "holdfast"
    lines.tell(PING)
    assert lines.hear() == {"jsonrpc": "2.0", "id": "ping", "result": {}}


@pytest.mark.long
def test_an_answer_that_makes_no_sense_is_not_answered(lines: Lines) -> None:
    """It is to us: an error about it would be taken for the answer to a request of theirs."""
    lines.tell(HELLO)
    assert lines.hear()["id"] == "hello"
    lines.tell(b'{"jsonrpc": "2.0", "id": 3, "result": ' + b"[" * 300 + b"]" * 300 + b"}")
    lines.tell(PING)
    assert lines.hear()["id"] == "ping"


# -- HTTP ------------------------------------------------------------------------------------------


@pytest.fixture
def server(home: str, here: Path, no_leaks: None) -> Iterator[Web]:
    with web() as found:
        yield found


def greeted(server: Web, **headers: str) -> httpx2.Response:
    return httpx2.post(
        server.url,
        json=HELLO,
        headers={
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {server.token}",
            **headers,
        },
        timeout=60,
    )


@pytest.mark.parametrize("body", [nested(300, id=7), b"{nonsense"], ids=["levels", "no JSON"])
def test_nonsense_over_http_is_answered(body: bytes, server: Web) -> None:
    answer = httpx2.post(
        server.url,
        content=body,
        headers={
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "Authorization": f"Bearer {server.token}",
        },
        timeout=60,
    )
    assert answer.status_code == 400
    assert greeted(server).status_code == 200


HALVES = {
    "nothing": b"",
    "half a line": b"POST /mc",
    "half a head": b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX-Long: ",
    "half a body": b"POST /mcp HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer TOKEN\r\n"
    b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
}


def half_sent(server: Web, what: str) -> socket.socket:
    place = urlsplit(server.url)
    assert place.port is not None
    end = socket.create_connection(("127.0.0.1", place.port), timeout=60)
    data = HALVES[what].replace(b"HOST", place.netloc.encode())
    end.sendall(data.replace(b"TOKEN", server.token.encode()))
    return end


@pytest.fixture
def hasty(home: str, here: Path, no_leaks: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server that gives a request a second to arrive."""
    program = (
        "import sys; from holdfast.mcp import _timeouts; from holdfast.cli import main; "
        "_timeouts.HEAD = _timeouts.BODY = 1.0; sys.exit(main())"
    )
    monkeypatch.setattr(mcp_servers, "PROGRAM", [sys.executable, "-c", program, "mcp"])
    with web() as found:
        yield found


@pytest.mark.long
@pytest.mark.parametrize("what", HALVES)
def test_a_request_that_is_half_sent_is_given_up(what: str, hasty: Web) -> None:
    """The server hangs up; whoever sends a byte now and then gets no longer."""
    with half_sent(hasty, what) as end:
        until = time.monotonic() + 100
        while not select.select([end], [], [], 0.3)[0]:
            assert time.monotonic() < until, "it waits for ever"
            if what != "nothing":
                with contextlib.suppress(OSError):
                    end.sendall(b"x")
        with contextlib.suppress(ConnectionResetError):
            said = end.recv(1 << 16)
            assert said == b"" or said.startswith(b"HTTP/1.1 408 ")
    assert greeted(hasty).status_code == 200


def test_half_sent_requests_keep_nobody_out(
    home: str, here: Path, no_leaks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than it has descriptors for: the oldest go, and whoever comes is served at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        server = Web()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ends: list[socket.socket] = []
    try:
        for _ in range(400):
            ends.append(half_sent(server, "half a head"))
        assert greeted(server).status_code == 200
        descriptors = f"/proc/{server.process.pid}/fd"
        assert len(os.listdir(descriptors)) < 200
        assert greeted(server).status_code == 200
    finally:
        for end in ends:
            end.close()
        server.end()


@pytest.mark.long
def test_calls_take_as_long_as_they_take(hasty: Web) -> None:
    """The limits are for what is sent; an answer that is waited for is not cut off."""
    place = urlsplit(hasty.url)
    assert place.port is not None
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-11-25",
    }
    headers["Authorization"] = f"Bearer {hasty.token}"
    with httpx2.Client(headers=headers, timeout=60) as client:
        hello = client.post(hasty.url, json=HELLO)
        client.headers["mcp-session-id"] = hello.headers["mcp-session-id"]
        call = {
            "name": "spawn_process",
            "arguments": {"command": "sleep 3; echo done", "wait": True},
        }
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        answer = client.post(hasty.url, json=request)
        assert "done" in answer.text


@pytest.mark.long
@pytest.mark.parametrize("allowed", ["My-Host.Example", "my-host.example"])
def test_names_of_hosts_are_the_same_in_any_case(
    allowed: str, home: str, here: Path, no_leaks: None
) -> None:
    with web("--allow-host", allowed) as server:
        port = urlsplit(server.url).port
        for host in (
            *("my-host.example", f"my-host.example:{port}"),
            *("MY-Host.example", f"MY-Host.example:{port}"),
        ):
            assert greeted(server, Host=host).status_code == 200
            assert greeted(server, Host=host, Origin=f"http://{host}").status_code == 200
        assert greeted(server, Host="other.example").status_code == 421


@pytest.mark.long
def test_many_clients_that_stay_are_all_served(server: Web) -> None:
    """A connection that is kept open between requests costs nobody else his."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(httpx2.Client(timeout=60)) for _ in range(50)]
        headers = {
            "Accept": "application/json, text/event-stream",
            "Authorization": f"Bearer {server.token}",
        }
        for _ in range(2):
            for client in clients:
                assert client.post(server.url, json=HELLO, headers=headers).status_code == 200
