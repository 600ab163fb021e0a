"""`deliver`: what happens in a session reaches its agent, once, and wakes it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import BadRequest, Client, Message, SyncClient, SyncToolset, Toolset
from holdfast.core.outbox import read_outbox
from holdfast.testing import wait_until
from tests.conftest import CHILDREN, Gate

pytestmark = pytest.mark.shared_keeper


class Agent:
    """An agent that remembers what it was told; told to fail, it does so that often first."""

    def __init__(self, fails: int = 0, gate: asyncio.Event | None = None) -> None:
        self.messages: list[Message] = []  # that reached it
        self.begun: list[Message] = []
        self._fails = fails
        self._gate = gate

    async def inject(self, message: Message) -> None:
        self.begun.append(message)
        if self._gate is not None:
            await self._gate.wait()
        if len(self.begun) <= self._fails:
            raise OSError("the model cannot be reached")
        self.messages.append(message)

    @property
    def told(self) -> list[str]:
        return [event.id for message in self.messages for event in message.events]


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Something that goes on during a block, and is cancelled at its end."""
    task = asyncio.create_task(work)
    try:
        yield task
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(condition: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(wait_until, condition)


def ends(*processes: Any) -> list[str]:
    return sorted(f"{process.handle}:end" for process in processes)


def open_events(client: Client | SyncClient) -> list[str]:
    """The events that nobody has acknowledged, claimed or not."""
    events, _ = read_outbox(client.home, str(client.session))
    return sorted(event.id for event in events if not event.acknowledged)


def claimed(client: Client | SyncClient) -> list[str]:
    _, claims = read_outbox(client.home, str(client.session))
    return sorted(each for claim in claims.by.values() for each in claim.ids)


def run(test: Callable[[Client], Awaitable[None]], session: str) -> None:
    async def within() -> None:
        async with holdfast.connect(session=session) as client:
            await test(client)
            await client.stop_all(grace=0)

    asyncio.run(within())


# -- what is told ----------------------------------------------------------------------------------


def test_many_ends_are_one_message_and_told_once(session: str) -> None:
    async def test(client: Client) -> None:
        agent = Agent()
        some = [await client.spawn(f"echo says {n}; exit {n}", label=f"n{n}") for n in range(3)]
        await until(lambda: len(open_events(client)) == 3)
        async with beside(holdfast.deliver(client, agent.inject)):
            await until(lambda: not open_events(client))
            last = await client.spawn("true")
            await until(lambda: len(agent.messages) == 2)
        first = agent.messages[0]
        assert sorted(event.id for event in first.events) == ends(*some)
        assert sorted(first.handles) == sorted(process.handle for process in some)
        assert str(first).count("[Background Process Completed]") == 3
        assert all(f"| says {n}" in str(first) for n in range(3))
        assert (first.attempt, first.more) == (1, 0)
        assert repr(first).startswith("<Message of proc-")
        assert agent.told[3:] == ends(last)

    run(test, session)


def test_a_flood_comes_in_messages_that_a_model_can_read(session: str) -> None:
    async def test(client: Client) -> None:
        agent = Agent()
        some = [await client.spawn("true") for _ in range(23)]
        await until(lambda: len(open_events(client)) == 23)
        async with beside(holdfast.deliver(client, agent.inject)):
            await until(lambda: not open_events(client))
        assert [len(message.events) for message in agent.messages] == [10, 10, 3]
        assert [message.more for message in agent.messages] == [13, 3, 0]
        assert str(agent.messages[0]).endswith(
            "[13 more background events come with the next message]"
        )
        assert sorted(agent.told) == ends(*some)

    run(test, session)


def test_events_of_other_types_are_left_to_others(session: str) -> None:
    """A prompt is there to be read by whoever deals with prompts."""

    async def test(client: Client) -> None:
        agent, other = Agent(), Agent()
        async with (
            beside(holdfast.deliver(client, agent.inject, types="end")),
            beside(holdfast.deliver(client, other.inject, types=("input", "watch"))),
        ):
            asks = await client.spawn("read -p 'Sure? ' a; exit 4", tty=True)
            await until(lambda: other.messages)
            ended = await client.spawn("true")
            await until(lambda: agent.messages)
            await asks.send("n", enter=True)
            await until(lambda: len(agent.told) == 2)
        assert sorted(agent.told) == ends(ended, asks)
        (prompt,) = [event for message in other.messages for event in message.events]
        assert (prompt.type, prompt.prompt) == ("input", "Sure?")

    run(test, session)


def test_the_text_is_in_the_words_of_the_toolset(session: str) -> None:
    async def test(client: Client) -> None:
        agent = Agent()
        toolset = Toolset(client, "hermes")
        async with beside(holdfast.deliver(client, agent.inject, toolset=toolset)):
            process = await client.spawn("exit 3")
            await until(lambda: agent.messages)
        text = str(agent.messages[0])
        assert text.startswith(f"[IMPORTANT: Background process {process.handle} ")
        assert text == toolset.notice(agent.messages[0].events[0])

    run(test, session)


# -- inject ----------------------------------------------------------------------------------------


def test_an_inject_that_fails_twice_is_called_again_and_nobody_else_is_told(session: str) -> None:
    async def test(client: Client) -> None:
        agent = Agent(fails=2)
        async with (
            holdfast.connect(session=session) as other,
            beside(holdfast.deliver(client, agent.inject)),
        ):
            process = await client.spawn("true")
            await until(lambda: agent.begun)
            assert [event async for event in other.events()] == []
            (open_one,) = [event async for event in other.events(acknowledged=True)]
            assert await other.claim(open_one) == []
            late = await client.spawn("true")  # comes along with the next attempt, or after it
            await until(lambda: len(agent.told) == 2)
            await until(lambda: not open_events(client))
        assert sorted(agent.told) == ends(process, late)
        assert [message.attempt for message in agent.begun[:3]] == [1, 2, 3]

    run(test, session)


def test_an_inject_that_fails_for_good_raises_and_leaves_the_events_to_others(session: str) -> None:
    async def test(client: Client) -> None:
        agent, next_one = Agent(fails=9), Agent()
        process = await client.spawn("true")
        with pytest.raises(OSError, match="cannot be reached"):
            await holdfast.deliver(client, agent.inject, attempts=2)
        assert len(agent.begun) == 2
        assert claimed(client) == []
        async with beside(holdfast.deliver(client, next_one.inject)):
            await until(lambda: next_one.messages)
        assert next_one.told == ends(process)

    run(test, session)


def test_what_the_host_raises_comes_through_though_it_looks_like_ours(session: str) -> None:
    async def fails(message: Message) -> None:
        raise holdfast.KeeperError("of another home")

    def asked() -> bool:
        raise holdfast.NotFound("of another home")

    async def test(client: Client) -> None:
        await client.spawn("true")
        with pytest.raises(holdfast.KeeperError, match="of another home"):
            await holdfast.deliver(client, fails, attempts=1)
        with pytest.raises(holdfast.NotFound, match="of another home"):
            await holdfast.deliver(client, fails, busy=asked)
        assert claimed(client) == []

    run(test, session)


def test_a_prompt_that_was_answered_meanwhile_is_not_told(session: str) -> None:
    async def test(client: Client) -> None:
        agent = Agent(fails=1)
        async with beside(holdfast.deliver(client, agent.inject)):
            asks = await client.spawn("read -p 'Sure? ' a; exec sleep 1000", tty=True)
            await until(lambda: agent.begun)
            await asks.send("n", enter=True)
            last = await client.spawn("true")
            await until(lambda: agent.messages)
        assert agent.begun[0].events[0].type == "input"
        assert agent.told == ends(last)

    run(test, session)


def test_a_plain_function_will_do_and_what_it_returns_is_awaited(session: str) -> None:
    async def test(client: Client) -> None:
        queue: asyncio.Queue[Message] = asyncio.Queue()
        async with beside(holdfast.deliver(client, queue.put_nowait)):
            first = await client.spawn("true")
            message = await asyncio.wait_for(queue.get(), 60)
            assert [event.id for event in message.events] == ends(first)
        agent = Agent()
        async with beside(holdfast.deliver(client, lambda message: agent.inject(message))):
            second = await client.spawn("true")
            await until(lambda: agent.messages)
            assert agent.told == ends(second)

    run(test, session)


# -- turns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_is_injected_while_a_turn_runs_and_its_results_may_tell(
    session: str, asynchronous: bool
) -> None:
    async def test(client: Client) -> None:
        agent, turn = Agent(), asyncio.Lock()
        asked = 0

        def busy() -> Any:
            nonlocal asked
            asked += 1

            async def later() -> bool:
                return turn.locked()

            return later() if asynchronous else turn.locked()

        async with beside(holdfast.deliver(client, agent.inject, busy=busy)):
            async with turn:
                first = await client.spawn("true")
                await until(lambda: asked > 3)
                assert claimed(client) == []
                tools = Toolset(client)
                result = await tools.call("process", {"action": "list"})
                assert [event["id"] for event in result["events"]] == ends(first)
                await tools.read()
                assert open_events(client) == []
                asked = 0
                second = await client.spawn("true")
                await until(lambda: asked > 3)
                assert agent.begun == []
            await until(lambda: agent.messages)
        assert agent.told == ends(second)

    run(test, session)


def test_a_turn_that_begins_during_the_claim_comes_first(session: str) -> None:
    async def test(client: Client) -> None:
        agent = Agent()
        answers = [False, True, True, False, False]  # before the claim, after it; and again

        def busy() -> bool:
            seen.append(claimed(client))
            return answers.pop(0)

        seen: list[list[str]] = []
        process = await client.spawn("true")
        async with beside(holdfast.deliver(client, agent.inject, busy=busy)):
            await until(lambda: agent.messages)
        assert agent.told == ends(process)
        assert seen == [[], ends(process), [], [], ends(process)]

    run(test, session)


# -- other readers ---------------------------------------------------------------------------------


def test_of_a_waiter_and_deliver_one_tells(session: str, gate: Gate) -> None:
    async def test(client: Client) -> None:
        agent = Agent()
        async with (
            holdfast.connect(session=session) as other,
            beside(holdfast.deliver(client, agent.inject)),
        ):
            for number in range(20):
                waits = (client, other)[number % 2]
                process = await waits.spawn("exit 3", claim=True)
                assert (await process.wait(60)).code == 3
            some = [await client.spawn(f": < {gate.path}") for _ in range(5)]
            waits_too = [asyncio.create_task(process.wait(60)) for process in some]
            await until(lambda: claimed(client) == ends(*some))
            gate.open()
            await asyncio.gather(*waits_too)
            last = await client.spawn("true")
            await until(lambda: last.handle in str(agent.messages[-1:]))
        assert agent.told == ends(last)

    run(test, session)


def test_of_several_that_deliver_one_tells_of_each_event(session: str) -> None:
    async def test(client: Client) -> None:
        agents = [Agent() for _ in range(3)]
        async with (
            holdfast.connect(session=session) as other,
            beside(holdfast.deliver(client, agents[0].inject)),
            beside(holdfast.deliver(client, agents[1].inject)),
            beside(holdfast.deliver(other, agents[2].inject)),
        ):
            some = []
            for number in range(40):
                some.append(await client.spawn("true"))
                if number % 4 == 3:
                    await until(lambda: not open_events(client))
        assert sorted(id for agent in agents for id in agent.told) == ends(*some)

    run(test, session)


def test_a_slow_agent_holds_up_no_other_session(session: str) -> None:
    async def test(client: Client) -> None:
        opened = asyncio.Event()
        slow, quick = Agent(gate=opened), Agent()
        async with (
            holdfast.connect(session=f"{session}-other") as other,
            beside(holdfast.deliver(client, slow.inject)),
            beside(holdfast.deliver(other, quick.inject)),
        ):
            first = await client.spawn("true")
            await until(lambda: slow.begun)
            second = await other.spawn("true")
            await until(lambda: quick.messages)
            meanwhile = [await client.spawn("true") for _ in range(3)]
            await until(lambda: len(open_events(client)) == 4)
            assert slow.messages == []
            opened.set()
            await until(lambda: len(slow.messages) == 2)
        assert quick.told == ends(second)
        assert slow.told[:1] == ends(first)
        assert sorted(slow.told[1:]) == ends(*meanwhile)

    run(test, session)


# -- ending it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["idle", "in a turn", "in inject", "in a pause"])
def test_whoever_is_cancelled_leaves_nothing_claimed(session: str, when: str) -> None:
    async def test(client: Client) -> None:
        agent = Agent(fails=9, gate=asyncio.Event() if when == "in inject" else None)
        asked: list[bool] = []

        def busy() -> bool:
            asked.append(True)
            return when == "in a turn"

        task = asyncio.create_task(holdfast.deliver(client, agent.inject, busy=busy))
        if when == "idle":
            await asyncio.sleep(0.05)
        else:
            await client.spawn("true")
            await until(lambda: asked if when == "in a turn" else agent.begun)
        if when == "in a pause":
            await asyncio.sleep(0.05)  # before or after it has begun, which is all the same
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert claimed(client) == []
        left = [event async for event in client.events()]
        assert len(left) == (when != "idle")

    run(test, session)


def test_it_ends_when_its_client_is_closed(session: str) -> None:
    async def test() -> None:
        async with holdfast.connect(session=session) as client:
            task = asyncio.create_task(holdfast.deliver(client, Agent().inject))
            await asyncio.sleep(0.05)
        await asyncio.wait_for(task, 60)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"client": "release-42"}, "takes the client of a connect"),
        ({"inject": None}, "inject is a function"),
        ({"busy": True}, "busy is one without arguments"),
        ({"types": "exit"}, "no events of type 'exit': end, input"),
        ({"types": [3]}, "no events of type 3"),
        ({"types": 3}, "no events of type 3"),
        ({"attempts": 0}, "attempts is a number from 1 on, or None, not 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    hf: SyncClient, arguments: dict[str, Any], says: str
) -> None:
    given: dict[str, Any] = {"client": hf, "inject": print, **arguments}
    with pytest.raises(BadRequest, match=says) as caught:
        holdfast.deliver(given.pop("client"), given.pop("inject"), **given)
    assert "\n" not in str(caught.value)


# -- without asyncio -------------------------------------------------------------------------------


@contextlib.contextmanager
def in_a_thread(
    client: SyncClient, inject: Callable[[Message], Any], **options: Any
) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(
        target=holdfast.deliver, args=(client, inject), kwargs={"stop": stop, **options}
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def test_without_asyncio_it_is_a_function_for_a_thread(hf: SyncClient) -> None:
    """The client may be used meanwhile; a stop ends it, and what comes then is left unread."""
    messages: list[Message] = []
    turn = threading.Lock()

    def inject(message: Message) -> None:
        with turn:
            messages.append(message)

    with in_a_thread(hf, inject, busy=turn.locked, toolset=SyncToolset(hf)):
        with turn:
            some = [hf.spawn("true") for _ in range(3)]
            wait_until(lambda: len(open_events(hf)) == 3)
            assert messages == []
        wait_until(lambda: not open_events(hf))
        for _ in range(10):
            assert hf.spawn("exit 3", claim=True).wait(60).code == 3
    assert sorted(event.id for message in messages for event in message.events) == ends(*some)
    left = hf.spawn("true")
    assert [event.id for event in wait_until(lambda: list(hf.events()))] == ends(left)


def test_without_asyncio_a_stop_ends_a_pause_and_lets_go(hf: SyncClient) -> None:
    begun = []

    def inject(message: Message) -> None:
        begun.append(message)
        raise OSError

    process = hf.spawn("true")
    with in_a_thread(hf, inject):
        wait_until(lambda: begun)
    assert claimed(hf) == []
    assert [event.id for event in hf.events()] == ends(process)


def test_without_asyncio_it_ends_with_its_client(session: str) -> None:
    with holdfast.connect(session=session) as client:
        thread = threading.Thread(target=holdfast.deliver, args=(client, print))
        thread.start()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("which", ["inject", "busy"])
def test_without_asyncio_nothing_can_be_asynchronous(hf: SyncClient, which: str) -> None:
    async def never(*_: Message) -> None:
        raise AssertionError

    given: dict[str, Any] = {"inject": print, which: never}
    hf.spawn("true")
    with pytest.raises(BadRequest, match=f"{which} is asynchronous: use the client of"):
        holdfast.deliver(hf, **given)
    assert claimed(hf) == []


def test_stop_is_for_threads(session: str) -> None:
    async def test(client: Client) -> None:
        with pytest.raises(BadRequest, match="cancel the task instead"):
            await holdfast.deliver(client, print, stop=threading.Event())  # type: ignore[call-overload]

    run(test, session)


# -- deaths ----------------------------------------------------------------------------------------


@pytest.mark.own_keeper
@pytest.mark.parametrize("killed", ["worker", "guard", "both"])
@pytest.mark.parametrize("when", ["while it is idle", "in inject", "in a pause"])
def test_halves_of_the_keeper_may_die_at_any_time(session: str, killed: str, when: str) -> None:
    async def test(client: Client) -> None:
        opened = asyncio.Event()
        agent = Agent(fails=when == "in a pause", gate=opened)
        gone = await client.spawn("true") if when != "while it is idle" else None
        async with beside(holdfast.deliver(client, agent.inject)):
            if gone is not None:
                await until(lambda: agent.begun)
            if when == "in a pause":
                opened.set()
            else:
                await asyncio.sleep(0.05)
            await kill(client, killed)
            process = await client.spawn("true")
            opened.set()
            await until(lambda: len(agent.told) == (2 if gone else 1))
            await until(lambda: not open_events(client))
        assert sorted(agent.told) == ends(*(each for each in (gone, process) if each))

    run(test, session)


async def kill(client: Client, which: str) -> None:
    """kill -9 a half of the keeper; or both at one moment, so that neither sees the other go."""
    kill_halves(await client.keeper_status(), which)


def kill_halves(status: dict[str, Any], which: str) -> None:
    pids = [status[half] for half in ("guard", "worker") if which in (half, "both")]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, number)


@pytest.mark.own_keeper
@pytest.mark.parametrize("then", [signal.SIGCONT, signal.SIGKILL])
def test_whoever_is_cancelled_after_inject_has_returned_has_told(
    session: str, then: signal.Signals
) -> None:
    """The keeper does not answer just then; it hears of it all the same, or the next one does."""

    async def test() -> None:
        async with holdfast.connect(session=session) as client:
            agent = Agent()
            status = await client.keeper_status()
            halves = [status["guard"], status["worker"]]

            async def inject(message: Message) -> None:
                await agent.inject(message)
                for pid in halves:
                    os.kill(pid, signal.SIGSTOP)

            task = asyncio.create_task(holdfast.deliver(client, inject))
            await client.spawn("true")
            await until(lambda: agent.messages)
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait([task])
            for pid in halves:
                os.kill(pid, then)
            await until(lambda: not open_events(client))
            assert claimed(client) == []

    asyncio.run(test())


@pytest.mark.own_keeper
def test_whoever_is_cancelled_while_no_keeper_can_be_had_has_told(session: str, home: str) -> None:
    """The acknowledgement is on its way when there can be one again."""

    async def test() -> None:
        async with holdfast.connect(session=session) as client:
            agent = Agent()
            status = await client.keeper_status()

            async def inject(message: Message) -> None:
                await agent.inject(message)
                os.rename(home, f"{home}.away")
                Path(home).touch()
                kill_halves(status, "both")

            task = asyncio.create_task(holdfast.deliver(client, inject))
            await client.spawn("true")
            await until(lambda: agent.messages)
            await asyncio.sleep(0.1)  # so that it was tried in vain, most likely
            os.unlink(home)
            os.rename(f"{home}.away", home)
            task.cancel()
            await asyncio.wait([task])
            await until(lambda: not open_events(client))
            assert len(agent.messages) == 1

    asyncio.run(test())


@contextlib.contextmanager
def host(
    way: str, session: str, journal: Path, seconds: float
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(CHILDREN / "delivers.py"), way, session, str(journal)]
    with subprocess.Popen([*command, str(seconds)]) as process:
        try:
            yield process
        finally:
            process.kill()


def journal_of(path: Path) -> list[tuple[str, int, list[str]]]:
    """What hosts have written: begin or end, the pid, and the ids of the events."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(line.split()[0], int(line.split()[1]), line.split()[2:]) for line in lines]


@pytest.mark.parametrize("way", ["asyncio", "thread"])
def test_a_host_that_is_killed_inside_inject_leaves_it_to_the_next(
    hf: SyncClient, tmp_path: Path, way: str
) -> None:
    """Told again, with the same id; what was acknowledged before is not."""
    journal = tmp_path / "journal"
    session = str(hf.session)
    with host(way, session, journal, 0) as first:
        told = hf.spawn("true")
        wait_until(lambda: ("end", first.pid, ends(told)) in journal_of(journal))
        wait_until(lambda: not open_events(hf))
    with host(way, session, journal, 1000) as second:
        process = hf.spawn("true")
        wait_until(lambda: ("begin", second.pid, ends(process)) in journal_of(journal))
        assert list(hf.events()) == []
    with host(way, session, journal, 0) as third:
        wait_until(lambda: not open_events(hf))
    assert journal_of(journal) == [
        ("begin", first.pid, ends(told)),
        ("end", first.pid, ends(told)),
        ("begin", second.pid, ends(process)),
        ("begin", third.pid, ends(process)),
        ("end", third.pid, ends(process)),
    ]


@pytest.mark.own_keeper
@pytest.mark.long
@pytest.mark.weight(60)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["asyncio", "thread"])
def test_of_a_hundred_ends_each_is_told_once_through_deaths_of_hosts_and_keepers(
    hf: SyncClient, tmp_path: Path, way: str
) -> None:
    """Twice only what a host was told of that was killed before it had acknowledged that."""
    dice = random.Random(100)
    journal = tmp_path / "journal"
    handles: list[Any] = []
    pids: list[int] = []
    while len(handles) < 100:
        with host(way, str(hf.session), journal, 0.02) as process:
            pids.append(process.pid)
            for _ in range(dice.randrange(4, 12)):
                handles.append(hf.spawn(f"sleep 0.{dice.randrange(10)}"))
                if dice.random() < 0.3:
                    kill_halves(hf.keeper_status(), dice.choice(["worker", "guard", "both"]))
            enough = dice.randrange(len(handles) - 3, len(handles))
            wait_until(partial(has_finished, journal, enough))
            time.sleep(dice.random() * 0.1)  # and wherever it is then, it is killed
    with host(way, str(hf.session), journal, 0.02) as process:
        pids.append(process.pid)
        wait_until(lambda: not hf.list(ended=False))
        wait_until(lambda: not open_events(hf))
    assert sorted(finished(journal)) == ends(*handles)
    for number, pid in enumerate(pids):
        begun = [ids for word, of, ids in journal_of(journal) if (word, of) == ("begin", pid)]
        later = {
            each
            for word, of, ids in journal_of(journal)
            if word == "begin" and of in pids[number + 1 :]
            for each in ids
        }
        assert not later.intersection(each for ids in begun[:-1] for each in ids)
        told = [each for ids in begun for each in ids]
        assert len(told) == len(set(told))


def has_finished(journal: Path, enough: int) -> bool:
    return len(finished(journal)) >= enough


def finished(journal: Path) -> set[str]:
    return {each for word, _, ids in journal_of(journal) if word == "end" for each in ids}
