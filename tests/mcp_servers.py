"""MCP servers for tests: spoken to with the real client of both eras, or line by line.

A server in memory is the whole of ours but for the transport, and starts in no time: what answers
say is tried with it. One test goes each way there is (`WAYS`); where a way could make a difference,
the others are tried at length (`EVERY_WAY`).
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from holdfast.cli._commands_mcp import _confinement, options_mcp
from holdfast.cli._parser import Parser, duration
from holdfast.client.client import checked_session
from holdfast.mcp._session import Settings
from holdfast.mcp._tool_server import Connections, build

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROGRAM = [sys.executable, "-m", "holdfast", "mcp"]
ERAS = ("legacy", "auto")  # "auto" finds that the server speaks the newer one
WAYS = [(transport, era) for transport in ("stdio", "http") for era in ERAS]
EVERY_WAY = [
    *(("memory", era) for era in ERAS),
    *(pytest.param(*way, marks=pytest.mark.long) for way in WAYS),
]
# In memory, a client of the newer era is told nothing but answers.
WAYS_TO_TELL = [
    ("memory", "legacy"),
    ("stdio", "auto"),
    pytest.param("stdio", "legacy", marks=pytest.mark.long),
    pytest.param("http", "auto", marks=pytest.mark.long),
]
# With a name: one without is given up on by some hosts after seconds, and no call may take longer.
ABOUT = {"client_info": Implementation(name="test", version="1")}
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


@asynccontextmanager
async def connected(transport: str, era: str, *options: str, **more: Any) -> AsyncIterator[Client]:
    """The real client on a server of its own."""
    if transport == "memory":
        async with in_memory(era, *options, **more) as client:
            yield client
        return
    if transport == "stdio":
        target = StdioServerParameters(
            command=PROGRAM[0], args=[*PROGRAM[1:], *options], env=dict(os.environ), cwd=os.getcwd()
        )
        async with Client(target, mode=era, **{**ABOUT, **more}) as client:
            yield client
        return
    with web(*options) as server:
        async with server.client(era, **more) as client:
            yield client


@asynccontextmanager
async def in_memory(era: str, *options: str, **more: Any) -> AsyncIterator[Client]:
    """As `holdfast mcp` with these options, in this process; at the end its client is lost."""
    connections = Connections(settings_of(*options))
    name = connections.settings.session
    if name is not None:
        await connections.open("", name).session.hold()
    try:
        async with Client(build(connections), mode=era, **{**ABOUT, **more}) as client:
            yield client
    finally:
        await connections.close()


def settings_of(*options: str) -> Settings:
    parser = Parser("mcp", "serve")
    options_mcp(parser)
    args = parser.parse_args(list(options))
    patience = None if args.patience is None else duration(args.patience, "--patience")
    return Settings(
        args.dialect,
        checked_session(args.session),
        args.on_exit,
        args.channel,
        patience,
        _confinement(args),
    )


def said(result: Any) -> dict[str, Any]:
    """The result of a tool that answers in JSON, as a model reads it."""
    found: dict[str, Any] = json.loads(result.content[0].text)
    return found


class Web:
    """A server over HTTP."""

    def __init__(self, *options: str, address: str = "127.0.0.1:0", token: bool = True) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "--http", address, *options], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.said: list[str] = []
        self.token = self.url = ""
        while not self.url:
            line = self.process.stderr.readline()
            assert line, f"it ended: {self.said}"
            self.said.append(line.strip())
            word, _, rest = line.strip().partition(": ")
            if word == "token":
                self.token = rest
            elif word == "holdfast mcp":
                self.url = rest

    @asynccontextmanager
    async def client(self, era: str, query: str = "", **more: Any) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(
                streamable_http_client(self.url + query, http_client=http),
                mode=era,
                **{**ABOUT, **more},
            ) as client,
        ):
            yield client

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise


@contextmanager
def web(*options: str, **more: Any) -> Iterator[Web]:
    server = Web(*options, **more)
    try:
        yield server
    finally:
        server.end()


class Wire:
    """A server on stdio, line by line, with its process at hand."""

    def __init__(
        self, *options: str, era: str = "legacy", version: str = "2025-11-25", **more: Any
    ) -> None:
        self._modern = era != "legacy"
        self.process = subprocess.Popen(
            [*PROGRAM, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )
        self._buffer = b""
        self._next = 1
        self._answers: dict[int, dict[str, Any]] = {}
        self.notes: list[dict[str, Any]] = []
        if not self._modern:
            about = {"name": "test", "version": "1"}
            hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": about}
            self.started = self.ask("initialize", **hello)
            self.send("notifications/initialized")

    def send(self, method: str, id: int | None = None, **params: Any) -> None:
        if self._modern and id is not None:
            params["_meta"] = {**MODERN, **params.get("_meta", {})}
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
        if id is not None:
            message["id"] = id
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method: str, **params: Any) -> int:
        """Ask without waiting for the answer; the number of the request."""
        number, self._next = self._next, self._next + 1
        self.send(method, number, **params)
        return number

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self.answer(self.begin(method, **params))

    def answer(self, number: int, timeout: float = 60) -> dict[str, Any]:
        while number not in self._answers:
            message = self.receive(timeout)
            if "id" in message:
                self._answers[message["id"]] = message
        message = self._answers.pop(number)
        assert "result" in message, message
        result: dict[str, Any] = message["result"]
        return result

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """The result of a tool that answers in JSON."""
        result = self.ask("tools/call", name=name, arguments=arguments)
        found: dict[str, Any] = json.loads(result["content"][0]["text"])
        return found

    def receive(self, timeout: float = 60) -> dict[str, Any]:
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self.process.stdout], [], [], left)[0], "no word from the server"
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                assert self.process.stderr is not None
                raise AssertionError(f"the server ended: {self.process.stderr.read()!r}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "id" not in message:
            self.notes.append(message)
        return message

    def close(self) -> int:
        """The end of its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self._ended()

    def signal(self, number: int) -> int:
        self.process.send_signal(number)
        return self._ended()

    def _ended(self) -> int:
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            for end in (self.process.stdin, self.process.stdout, self.process.stderr):
                assert end is not None
                end.close()


@contextmanager
def wire(*options: str, **more: Any) -> Iterator[Wire]:
    found = Wire(*options, **more)
    try:
        yield found
    finally:
        if found.process.stdin is not None and not found.process.stdin.closed:
            found.close()
