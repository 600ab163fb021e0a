"""Tools: what they cost over the client, what a model has to read, how soon a server answers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import holdfast
from holdfast.tools import Toolset

from ._measure import Row, interleave, median, now, percentile, ratio_row, value_row

if TYPE_CHECKING:
    from ._stage import Stage

EMPTY = 'from mcp.server import MCPServer; MCPServer("empty").run("stdio")'
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
TOKENS = 2500
CHARACTERS = 4  # in a token


def server_start(stage: Stage) -> list[Row]:
    """From the start of a server to its first answer, against one that has nothing to offer."""
    ours = [sys.executable, "-m", "holdfast", "mcp"]
    empty = [sys.executable, "-c", EMPTY]
    mine, floor = interleave(
        stage.pick(15, 5), lambda: _answered(ours), lambda: _answered(empty), settle=0.05
    )
    return [
        ratio_row(
            "MCP server, to its first answer",
            mine,
            floor,
            at_most=1.2,
            note="the floor is an empty server of the mcp package",
        )
    ]


def tool_calls(stage: Stage) -> list[Row]:
    """What a call costs more than the client's own, in this process and over MCP."""
    rows = [asyncio.run(_overhead(stage)), _over_mcp(stage)]
    with stage.client() as client:
        tools = Toolset(client._client, adoption=True)
        sizes = {
            style: len(json.dumps(tools.definitions(style), separators=(",", ":")))
            for style in ("mcp", "anthropic", "openai")
        }
    largest = max(sizes.values())
    rows.append(
        value_row(
            "the native tools, as a model is told of them",
            "B",
            largest,
            at_most=TOKENS * CHARACTERS,
            note=f"{largest // CHARACTERS} tokens of {CHARACTERS} characters",
            **sizes,
        )
    )
    return rows


async def _overhead(stage: Stage) -> Row:
    async with holdfast.connect(home=stage.home) as client:
        process = await client.spawn("exec sleep 1000")
        tools = Toolset(client, adoption=True)
        arguments = {"action": "status", "handle": process.handle}
        mine: list[float] = []
        bare: list[float] = []
        for number in range(stage.pick(1000, 200) + 10):
            started = now()
            await (await client.get(process.handle)).refresh()
            between = now()
            await tools.call("process", arguments)
            ended = now()
            if number >= 10:
                bare.append(between - started)
                mine.append(ended - between)
        await process.kill(signal="KILL")
    return value_row(
        "a tool call more than the client's own",
        "s",
        median(mine) - median(bare),
        measured_p90=percentile(mine, 0.9) - median(bare),
        at_most=0.001,
        samples=len(mine),
        note="the status of a process",
    )


def _over_mcp(stage: Stage) -> Row:
    with _Server([sys.executable, "-m", "holdfast", "mcp"]) as server:
        server.ask("initialize", HELLO)
        server.tell("notifications/initialized")
        arguments: dict[str, Any] = {"name": "process", "arguments": {"action": "list"}}
        took = []
        for number in range(stage.pick(500, 100) + 10):
            started = now()
            server.ask("tools/call", arguments)
            if number >= 10:
                took.append(now() - started)
    return value_row(
        "a tool call over MCP, there and back",
        "s",
        median(took),
        measured_p90=percentile(took, 0.9),
        at_most=None,
        samples=len(took),
        note="stdio, an empty list of processes",
    )


def _answered(command: list[str]) -> float:
    started = now()
    with _Server(command) as server:
        server.ask("initialize", HELLO)
        return now() - started


class _Server:
    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ),
        )

    def __enter__(self) -> _Server:
        return self

    def tell(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}, **more}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def ask(self, method: str, params: dict[str, Any]) -> None:
        self.tell(method, params, id=1)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if b'"result"' not in line:
            raise RuntimeError(f"no answer to {method}: {line[:200]!r}")

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
