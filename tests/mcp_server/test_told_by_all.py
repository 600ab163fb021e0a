"""Every kind of reader at one session: waits, followers, results, `deliver`, hooks, MCP, tasks.

Whoever is quicker, and whatever is killed meanwhile, each end is told, and once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterable
from typing import Any

import pytest

import holdfast
from holdfast import Message
from holdfast.mcp import _tasks
from holdfast.tools import Toolset
from tests.crowd import Crowd
from tests.mcp_server.test_mcp_tasks import CAPABILITIES, Talk, talking

SESSION = "crowd"
HOOK = [sys.executable, "-m", "holdfast", "hook", "claude", "--session", SESSION, "--settle", "0"]
ABOUT = re.compile(r"^Handle: (proc-[a-z0-9]+)$", re.MULTILINE)


class LargeCrowd(Crowd):
    def tell(self, handles: Iterable[str]) -> None:
        self.told.update(handles)

    def heard(self, result: dict[str, Any]) -> None:
        """An answer over MCP: its events, and the end it is about."""
        found = result.get("structuredContent", {})
        self.read(found)
        if found.get("status") not in (None, "running") and "note" not in found:
            self.tell([found["handle"]])

    async def wake(self) -> None:
        """Hooks, one after another, as an agent's turns bring them; one in five is killed."""
        while True:
            hook = await asyncio.create_subprocess_exec(
                *HOOK, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
            )
            assert hook.stderr is not None
            try:
                killed = self.dice.random() < 0.2
                if killed:
                    await asyncio.sleep(self.dice.random())
                    with contextlib.suppress(ProcessLookupError):
                        hook.kill()
                printed = ABOUT.findall((await hook.stderr.read()).decode())
                code = await hook.wait()
                self.tell(printed)
                if code < 0:
                    self.unsure.update(printed)
                elif not printed:
                    await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                with contextlib.suppress(ProcessLookupError):
                    hook.kill()
                await hook.wait()
                raise

    async def look(self, talk: Talk) -> None:
        while True:
            self.heard(await talk.call("process", action="list"))
            await asyncio.sleep(self.dice.random() * 0.3)

    async def start(self, talk: Talk, *, wait: bool) -> str:
        """Start one over MCP, and ask after it if it became a task."""
        answer = await talk.start(f"sleep 0.{self.dice.randrange(6)}", wait=wait)
        if answer["resultType"] != "task":
            self.heard(answer)
            return str(answer["structuredContent"]["handle"])
        handle = str(answer["taskId"])
        asked = await talk.until(handle, "completed")
        self.heard(asked["result"])
        return handle


LONG = [pytest.mark.long, pytest.mark.weight(200), pytest.mark.timeout(1800)]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("rounds", "seed"), [(8, 0), *(pytest.param(250, seed, marks=LONG) for seed in (1, 2, 3, 4))]
)
async def test_each_end_is_told_once_whoever_reads(
    home: str, rounds: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tasks, "_SOON", 0.2)
    monkeypatch.setattr(_tasks, "_READ", 0.2)
    crowd = LargeCrowd(seed)

    def inject(message: Message) -> None:
        crowd.tell(message.handles)

    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(holdfast.connect(session=SESSION)) for _ in range(3)
        ]
        options = ("--session", SESSION)
        woken = await stack.enter_async_context(talking(*options, capabilities=CAPABILITIES))
        plain = await stack.enter_async_context(talking(*options, capabilities={}))
        tools = [Toolset(clients[1]), Toolset(clients[2])]
        readers = [
            asyncio.create_task(crowd.follow(clients[0])),
            asyncio.create_task(holdfast.deliver(clients[1], inject)),
            asyncio.create_task(crowd.ask(tools[0])),
            asyncio.create_task(crowd.look(woken)),
            asyncio.create_task(crowd.look(plain)),
            asyncio.create_task(crowd.wake()),
        ]
        handles: list[str] = []
        for number in range(rounds):
            lives = [crowd.live(clients[n], tools[n % 2]) for n in range(3)]
            over = [
                crowd.start(woken, wait=crowd.dice.random() < 0.5),
                crowd.start(plain, wait=crowd.dice.random() < 0.5),
            ]
            if number % 5 == 4:
                status = await clients[0].keeper_status()
                os.kill(status[crowd.dice.choice(["worker", "guard"])], signal.SIGKILL)
            handles += [each for each in await asyncio.gather(*lives, *over) if each]
        await crowd.settle(handles, readers, clients[0].home.outbox(SESSION))
