"""Each end is told once: by a wait, a result or an event, whoever else is there to be told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

import holdfast
from holdfast import Client, SyncClient, Toolset, WaitTimeout
from holdfast.core.outbox import read_events
from holdfast.testing import wait_until
from tests.crowd import Crowd

FOREGROUND: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("spawn_process", {"command": "exit 3", "wait": True}),
    "duragent": ("spawn_process", {"command": "exit 3", "wait": True}),
    "claude-code": ("run_command", {"command": "exit 3"}),
    "deepchat": ("exec", {"command": "exit 3", "description": "test"}),
    "dodo": ("run_command", {"command": "exit 3"}),
    "openclaw": ("exec", {"command": "exit 3"}),
    "hermes": ("terminal", {"command": "exit 3"}),
    "codex": ("exec_command", {"cmd": "exit 3"}),
}


@contextlib.asynccontextmanager
async def follower(session: str) -> AsyncIterator[list[str]]:
    """The ids of the events that another client of the session is told of."""
    told: list[str] = []

    async def follow(client: Client) -> None:
        async for event in client.events(follow=True):
            told.append(event.id)

    async with holdfast.connect(session=session) as client:
        task = asyncio.create_task(follow(client))
        try:
            yield told
        finally:
            task.cancel()
            await asyncio.wait([task])


async def nothing_more(client: Client, told: list[str]) -> list[str]:
    """The ends that a follower was told of, once it must have seen all there was before."""
    last = await client.spawn("true")
    await asyncio.to_thread(wait_until, lambda: f"{last.handle}:end" in told)
    return [each for each in told if each.endswith(":end") and not each.startswith(last.handle)]


def run(test: Callable[[Client], Coroutine[Any, Any, None]], session: str) -> None:
    async def within() -> None:
        async with holdfast.connect(session=session) as client:
            await test(client)

    asyncio.run(within())


@pytest.mark.shared_keeper
@pytest.mark.parametrize("dialect", FOREGROUND)
def test_a_follower_is_not_told_of_what_a_call_waits_for(session: str, dialect: str) -> None:
    async def test(client: Client) -> None:
        name, arguments = FOREGROUND[dialect]
        tools = Toolset(client, dialect)  # type: ignore[arg-type]
        async with follower(session) as told:
            results = [await tools.call(name, dict(arguments)) for _ in range(20)]
            assert await nothing_more(client, told) == []
        assert not any("events" in result for result in results)

    run(test, session)


@pytest.mark.shared_keeper
@pytest.mark.parametrize("dialect", FOREGROUND)
def test_calls_at_once_tell_each_of_their_own_end_only(session: str, dialect: str) -> None:
    async def test(client: Client) -> None:
        name, arguments = FOREGROUND[dialect]
        tools = Toolset(client, dialect)  # type: ignore[arg-type]
        for _ in range(5):
            calls = [tools.call(name, dict(arguments)) for _ in range(6)]
            results = await asyncio.gather(*calls)
            assert not any("events" in result for result in results)

    run(test, session)


@pytest.mark.shared_keeper
def test_a_follower_is_not_told_of_what_others_wait_for_stop_or_see_begin(session: str) -> None:
    async def test(client: Client) -> None:
        async with follower(session) as told:
            for _ in range(5):
                some = [await client.spawn("sleep 0.1", claim=True) for _ in range(3)]
                await asyncio.gather(*(process.wait(30) for process in some))
                some = [await client.spawn("sleep 0.1", claim=True) for _ in range(3)]
                assert (await client.wait_for(some, "exit", all=True, timeout=30)).ok
                assert (await client.spawn("exit 4", check="30s")).record.exit_code == 4
                assert (await client.spawn("exit 5", yield_ms=30_000)).record.exit_code == 5
                await (await client.spawn("sleep 1000")).kill(grace=0)
                for _ in range(2):
                    await client.spawn("sleep 1000", group="g")
                await client.group("g").stop(grace=0)
                await client.spawn("sleep 1000")
                await client.stop_all(grace=0)
            assert await nothing_more(client, told) == []

    run(test, session)


@pytest.mark.shared_keeper
def test_whoever_gives_up_a_wait_leaves_the_end_to_the_others(session: str) -> None:
    """Its time was up, it was cancelled, it was let go: the event is there, once."""

    async def test(client: Client) -> None:
        async with follower(session) as told:
            late = await client.spawn("read line", stdin=True)
            with pytest.raises(WaitTimeout):
                await late.wait(0.01)
            assert (await client.wait_for(late, "output=never", timeout=0.01)).timed_out
            cancelled = await client.spawn("read line", stdin=True)
            for wait in (cancelled.wait(), client.wait_for(cancelled, "exit")):
                task = asyncio.create_task(wait)
                await asyncio.sleep(0.05)
                task.cancel()
                await asyncio.wait([task])
            let_go = await client.spawn("read line", stdin=True, claim=True)
            assert let_go.claimed
            await let_go.release()
            ends = []
            for process in (late, cancelled, let_go):
                await process.send("go", enter=True)
                ends.append(f"{process.handle}:end")
            assert sorted(await nothing_more(client, told)) == sorted(ends)

    run(test, session)


@pytest.mark.shared_keeper
def test_of_two_toolsets_of_a_session_one_tells(session: str) -> None:
    async def test(client: Client) -> None:
        async with holdfast.connect(session=session) as other:
            pair = [Toolset(client), Toolset(other), Toolset(other)]
            for _ in range(10):
                process = await client.spawn("true")
                end = f"{process.handle}:end"
                await asyncio.to_thread(
                    wait_until,
                    lambda end=end: end in [e.id for e in read_events(client.home, session)],
                )
                asked = [tools.call("process", {"action": "list"}) for tools in pair]
                results = await asyncio.gather(*asked)
                told = [e["id"] for result in results for e in result.get("events", [])]
                assert told == [end]

    run(test, session)


@pytest.mark.shared_keeper
def test_a_result_that_reached_nobody_is_told_again(session: str) -> None:
    async def test(client: Client) -> None:
        tools = Toolset(client)
        process = await client.spawn("true")
        await asyncio.to_thread(wait_until, lambda: read_events(client.home, session))
        lost = await tools.call("process", {"action": "list"})
        await tools.unread(lost)
        again = await tools.call("process", {"action": "list"})
        assert [event["id"] for event in again["events"]] == [f"{process.handle}:end"]
        assert "events" not in await tools.call("process", {"action": "list"})

    run(test, session)


@pytest.mark.shared_keeper
def test_who_sees_an_end_in_a_record_finds_its_event(hf: SyncClient) -> None:
    """There is no moment in which nothing runs and nothing is to be told."""
    for _ in range(80):
        process = hf.spawn("true")
        while hf.store.load(process.handle).running:
            pass
        assert f"{process.handle}:end" in [e.id for e in read_events(hf.home, hf.session or "")]


CLAIMS = """
import sys, holdfast
with holdfast.connect(session=sys.argv[1], lease_grace=600) as hf:
    (event,) = hf.claim(*hf.events())
    process = hf.spawn("read line", stdin=True, claim=True, keep=True)
    print(event.id, process.handle, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", ["the reader", "worker, then the reader", "reader and worker"])
def test_what_a_reader_had_claimed_when_it_was_killed_is_told_by_the_next(
    hf: SyncClient, killed: str
) -> None:
    """An event that it was about to tell of, and the end of what it meant to wait for."""
    first = hf.spawn("true")
    wait_until(lambda: list(hf.events()))
    with subprocess.Popen(
        [sys.executable, "-c", CLAIMS, hf.session or ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        event, handle = reader.stdout.readline().split()
        assert event == f"{first.handle}:end"
        assert list(hf.events()) == []
        (open_one,) = hf.events(acknowledged=True)
        assert hf.claim(open_one) == []
        worker = hf.keeper_status()["worker"]
        if killed == "worker, then the reader":
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda: hf.keeper_status()["worker"] != worker)
            assert list(hf.events()) == []
            assert hf.claim(open_one) == []
        reader.kill()
        if killed == "reader and worker":
            os.kill(worker, signal.SIGKILL)
        reader.wait()
    assert [e.id for e in hf.claim(open_one)] == [event]
    hf.acknowledge(open_one)
    hf.get(handle).send("go", enter=True)
    (end,) = wait_until(lambda: list(hf.events()))
    assert end.id == f"{handle}:end"


@pytest.mark.parametrize(
    "rounds",
    [
        40,
        pytest.param(
            1000, marks=[pytest.mark.long, pytest.mark.weight(120), pytest.mark.timeout(1200)]
        ),
    ],
)
def test_whoever_waits_follows_or_asks_and_dies_each_end_is_told_once(
    home: str, rounds: int
) -> None:
    crowd = Crowd(rounds)

    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(holdfast.connect(session="crowd")) for _ in range(4)
            ]
            tools = [Toolset(clients[1]), Toolset(clients[2])]
            readers = [
                asyncio.create_task(crowd.follow(clients[0])),
                asyncio.create_task(crowd.follow(clients[3])),
                *(asyncio.create_task(crowd.ask(each)) for each in tools),
            ]
            handles: list[str] = []
            for number in range(rounds):
                lives = [crowd.live(clients[n % 4], tools[n % 2]) for n in range(4)]
                if number % 5 == 4:
                    status = await clients[0].keeper_status()
                    os.kill(status[crowd.dice.choice(["worker", "guard"])], signal.SIGKILL)
                handles += [each for each in await asyncio.gather(*lives) if each]
            await crowd.settle(handles, readers, clients[0].home.outbox("crowd"))

    asyncio.run(test())


def test_who_is_told_of_an_end_finds_it_in_the_record(hf: SyncClient, home: str) -> None:
    """The event is written first; a follower is told when both are there."""
    for number in range(40):
        process = hf.spawn(f"exit {number}")
        event = next(iter(hf.events(follow=True)))
        assert hf.get(process.handle).record.exit_code == event.exit_code == number
        hf.acknowledge(event)
