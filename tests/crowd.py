"""Readers of one session, each in its way, and how often each end was told."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast import Client, WaitTimeout
from holdfast.tools import Toolset


class Crowd:
    """Waiters, followers and toolsets of one session, and how often each end was told."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.told: Counter[str] = Counter()
        self.unsure: set[str] = set()  # told to a reader that was killed before it could say so

    async def follow(self, client: Client) -> None:
        async for event in client.events(follow=True):
            for mine in await client.claim(event):
                if self.dice.random() < 0.2:
                    await client.release(mine)  # and somebody else tells
                    await asyncio.sleep(0.01)
                    if not await client.claim(mine):
                        continue
                self.told[mine.handle or ""] += 1
                await client.acknowledge(mine)

    async def ask(self, tools: Toolset) -> None:
        while True:
            result = await tools.call("process", {"action": "list"})
            if result.get("events") and self.dice.random() < 0.2:
                await tools.unread(result)
            else:
                self.read(result)
            await asyncio.sleep(self.dice.random() * 0.05)

    def read(self, result: dict[str, Any]) -> None:
        for event in result.get("events", []):
            self.told[event.get("handle", "")] += 1

    async def live(self, client: Client, tools: Toolset) -> str | None:
        """Start one, and wait for it in one way or another, or not; its handle if none told."""
        length = f"sleep 0.0{self.dice.randrange(10)}"
        way = self.dice.choice(["wait", "late", "for", "kill", "cancel", "call", "leave"])
        if way == "call":
            result = await tools.call("spawn_process", {"command": length, "wait": True})
            self.told[result["handle"]] += 1
            self.read(result)
            return str(result["handle"])
        process = await client.spawn(length, claim=way != "leave")
        if way == "wait":
            await process.wait()
            self.told[process.handle] += 1
        elif way == "for":
            await client.wait_for(process, "exit")
            self.told[process.handle] += 1
        elif way == "kill":
            await process.kill(grace=0)
            self.told[process.handle] += 1
        elif way == "late":
            with contextlib.suppress(WaitTimeout):
                await process.wait(0.03)
                self.told[process.handle] += 1
            await process.release()
        elif way == "cancel":
            await process.release()
            task = asyncio.create_task(process.wait())
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        return process.handle

    async def settle(
        self, handles: list[str], readers: Sequence[asyncio.Task[Any]], outbox: str
    ) -> None:
        """See that each of these ends is told, and once, and send the readers home."""
        for _ in range(3000):
            if all(self.told[handle] for handle in handles):
                break
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        for reader in readers:
            assert not reader.done(), reader
            reader.cancel()
        await asyncio.wait(readers)
        wrong = {
            handle: self.told[handle]
            for handle in handles
            if not 1 <= self.told[handle] <= 1 + (handle in self.unsure)
        }
        with open(outbox) as lines:
            about = [line for line in lines if any(handle in line for handle in wrong)]
        assert wrong == {}, "".join(about)
