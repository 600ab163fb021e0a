"""The first answers on stdio are given before the package `mcp` is there: as it would give them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from holdfast.core.types import DialectName
from holdfast.mcp._advertised import handshake_versions
from holdfast.mcp._handshake import SIGNALS, Handshake
from holdfast.mcp._session import Settings
from holdfast.mcp._tool_server import Connections, build
from holdfast.tools import DIALECTS
from tests.mcp_servers import MODERN

Message = dict[str, Any]

INITIALIZED: Message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
UNKNOWN = ("1999-01-01", "2099-12-31", "", "draft", *MODERN_PROTOCOL_VERSIONS)


def asked(id: int | str, method: str, **params: Any) -> Message:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def initialize(version: str) -> Message:
    about = {"name": "test", "version": "1"}
    return asked("first", "initialize", protocolVersion=version, capabilities={}, clientInfo=about)


def conversation(version: str) -> list[Message]:
    return [initialize(version), INITIALIZED, asked(1, "tools/list"), asked("p", "ping")]


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def answered_before(settings: Settings, messages: list[Message], answers: int) -> list[Message]:
    """The answers that there are while the package is still being imported."""
    theirs, ours = os.pipe(), os.pipe()
    found: list[Message] = []
    may_end = threading.Event()

    def talk() -> None:
        try:
            with open(theirs[1], "wb") as out, open(ours[0], "rb") as into:
                out.write(b"".join(json.dumps(each).encode() + b"\n" for each in messages))
                out.flush()
                found.extend(json.loads(into.readline()) for _ in range(answers))
        finally:
            may_end.set()

    def load() -> None:
        may_end.wait(60)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        Handshake((theirs[0], ours[1]), settings).run(load)
    finally:
        os.close(ours[1])
        thread.join()
        os.close(theirs[0])
    return found


async def answered_by_package(
    settings: Settings, messages: list[Message], answers: int
) -> list[Message]:
    connections = Connections(settings)
    server = build(connections)
    to_server, read = anyio.create_memory_object_stream[SessionMessage | Exception](10)
    write, from_server = anyio.create_memory_object_stream[SessionMessage](10)
    found: list[Message] = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group, to_server, from_server:
            group.start_soon(server.run, read, write, server.create_initialization_options())
            for message in messages:
                line = json.dumps(message)
                parsed = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                await to_server.send(SessionMessage(parsed))
            while len(found) < answers:
                answer = (await from_server.receive()).message
                found.append(json.loads(answer.model_dump_json(by_alias=True, exclude_unset=True)))
            group.cancel_scope.cancel()
    await connections.close()
    return found


@pytest.mark.parametrize("version", [*HANDSHAKE_PROTOCOL_VERSIONS, *UNKNOWN])
async def test_every_version_is_answered_as_the_package_answers_it(home: str, version: str) -> None:
    """initialize, tools/list and ping, field for field, also of a version that nobody knows."""
    ours = answered_before(Settings(), conversation(version), 3)
    assert ours == await answered_by_package(Settings(), conversation(version), 3)
    assert [each["id"] for each in ours] == ["first", 1, "p"]


@pytest.mark.parametrize("dialect", sorted(DIALECTS))
async def test_every_dialect_is_answered_as_the_package_answers_it(
    home: str, dialect: DialectName
) -> None:
    """With its instructions, if it has any, and its own tools."""
    settings, version = Settings(dialect), HANDSHAKE_PROTOCOL_VERSIONS[-1]
    ours = answered_before(settings, conversation(version), 3)
    assert ours == await answered_by_package(settings, conversation(version), 3)


@pytest.mark.parametrize("settings", [Settings(), Settings("codex"), Settings(channel=True)])
async def test_discovery_is_answered_as_the_package_answers_it(
    home: str, settings: Settings
) -> None:
    """A client that asks what we speak does not wait for the package, nor loses `initialize`."""
    about = {"io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"}}
    asked = {"method": "server/discover", "params": {"_meta": {**MODERN, **about}}}
    discover: Message = {"jsonrpc": "2.0", "id": 1, **asked}
    ours = answered_before(settings, [discover], 1)
    assert ours == await answered_by_package(settings, [discover], 1)
    greeting = initialize(HANDSHAKE_PROTOCOL_VERSIONS[-1])
    assert "protocolVersion" in answered_before(settings, [discover, greeting], 2)[1]["result"]


async def test_the_channel_is_announced_as_the_package_announces_it(home: str) -> None:
    settings, messages = Settings(channel=True), [initialize(HANDSHAKE_PROTOCOL_VERSIONS[-1])]
    ours = answered_before(settings, messages, 1)
    assert ours == await answered_by_package(settings, messages, 1)
    assert "claude/channel" in ours[0]["result"]["capabilities"]["experimental"]


def test_the_versions_are_the_packages_and_cost_no_import() -> None:
    """They are read from the installed package without loading it."""
    assert handshake_versions() == HANDSHAKE_PROTOCOL_VERSIONS
    code = (
        "import sys; from holdfast.mcp import _handshake, _advertised; "
        "_advertised.handshake_versions(); "
        "print([name for name in ('mcp', 'mcp_types', 'pydantic') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"


def test_of_a_package_that_hides_its_versions_nothing_is_guessed(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the package answers the handshake itself, however late."""
    monkeypatch.setattr("holdfast.mcp._handshake.handshake_versions", lambda: ())
    line = json.dumps(initialize(HANDSHAKE_PROTOCOL_VERSIONS[-1])).encode() + b"\n"
    theirs, ours = os.pipe(), os.pipe()
    os.write(theirs[1], line)
    handshake = Handshake((theirs[0], ours[1]), Settings())
    handshake.run(lambda: None)
    for fd in (*theirs, *ours[1:]):
        os.close(fd)
    with open(ours[0], "rb") as file:
        assert file.read() == b""
    assert (handshake.input, handshake.answered) == (line, set())
