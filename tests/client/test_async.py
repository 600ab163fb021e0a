"""The asyncio client: all that the plain one does, any number of requests at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing

import pytest

from holdfast import (
    Client,
    Event,
    NotFound,
    NotRunning,
    Output,
    Process,
    SyncClient,
    WaitTimeout,
    connect,
)
from holdfast.client.connect import open_client
from holdfast.core.home import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from tests.conftest import Gate

    T = TypeVar("T")

Child = Callable[..., list[str]]

pytestmark = [pytest.mark.shared_keeper, pytest.mark.anyio]


@pytest.fixture
async def hf(home: str, monkeypatch: pytest.MonkeyPatch, session: str) -> AsyncIterator[Client]:
    """A client that holds the session ``"test"`` and may run a hundred processes."""
    monkeypatch.setenv("HOLDFAST_MAX_RUNNING", "100")
    async with connect(session=session) as client:
        yield client


@pytest.fixture
def person(home: str) -> Iterator[SyncClient]:
    client = open_client(Home(home), None)
    yield client
    client.close()


async def until(condition: Callable[[], Awaitable[T]]) -> T:
    """Wait for a condition that has to be awaited; the ceiling is generous."""
    async with asyncio.timeout(30):
        while not (result := await condition()):
            await asyncio.sleep(0.005)
    return result


async def says(process: Process, text: str) -> None:
    async def said() -> bool:
        return text in (await process.read_at(0)).text

    await until(said)


async def events(hf: Client, **which: Any) -> list[Event]:
    return [event async for event in hf.events(**which)]


async def status(hf: Client) -> dict[str, Any]:
    """Ask over the client's own connection, where requests are answered in their order."""
    answer: dict[str, Any] = await hf._link.call("status", {})
    return answer


async def waiting(hf: Client, processes: list[Process]) -> list[asyncio.Task[int | None]]:
    """Waits that the keeper has got, one for each process."""

    async def code(process: Process) -> int | None:
        return (await process.wait(60)).code

    tasks = [asyncio.create_task(code(process)) for process in processes]
    await asyncio.sleep(0)  # each runs as far as its request
    await status(hf)
    assert not any(task.done() for task in tasks)
    return tasks


async def gated(hf: Client, gate: Gate, count: int) -> list[Process]:
    """Processes that end with their number once the gate is open."""
    starts = (hf.spawn(f": < {gate.path}; exit {n}") for n in range(count))
    return await asyncio.gather(*starts)


# -- the same as without asyncio -------------------------------------------------------------------


async def test_output_is_read_in_every_way(hf: Client, gate: Gate) -> None:
    """By cursor, offset, line and from the end, of both streams, and followed to the end."""
    command = f"echo one; echo two; echo oops >&2; : < {gate.path}; echo three; exit 3"
    process = await hf.spawn(command, label="talker", stderr="separate", env={"A": "b"})
    await says(process, "two\n")
    assert (await process.read()).text == "one\ntwo\n"
    assert (await process.read()).data == b""
    pieces: list[Output] = []

    async def follow() -> None:
        pieces.extend([piece async for piece in process.follow()])

    following = asyncio.create_task(follow())
    gate.open()
    end = await process.wait(30)
    assert (end.code, end.status, end.reason) == (3, "failed", "exited")
    await asyncio.wait_for(following, 30)
    assert b"".join(piece.data for piece in pieces) == b"one\ntwo\nthree\n"
    assert (await process.read()).text == "three\n"
    assert (await process.read(reader="another")).text == "one\ntwo\nthree\n"
    assert (await process.read_at(4, 3)).text == "two"
    assert (await process.lines(1, 1)).text == "two\n"
    assert (await process.tail(1)).text == "three\n"
    assert (await process.tail_bytes(4)).text == "ree\n"
    assert (await process.tail(stream="stderr")).text == "oops\n"
    assert [piece.text async for piece in process.follow(offset=8)] == ["three\n"]


async def test_processes_are_listed_and_found(hf: Client, gate: Gate) -> None:
    """Oldest first, by exact handle, as they stand now."""
    first = await hf.spawn("exit 1", label="first")
    second = await hf.spawn(f": < {gate.path}", label="second", group="g")
    await first.wait(30)
    assert [process.record.label for process in await hf.list()] == ["first", "second"]
    assert hf.problems() == []
    found = await hf.get(second.handle)
    assert (found.record.running, found.record.group) == (True, "g")
    gate.open()
    await second.wait(30)
    assert (await found.refresh()).status == "completed"
    with pytest.raises(NotFound):
        await hf.get(second.handle[:-1])
    with pytest.raises(NotFound):
        await hf.get("proc-0123456789abcdef")


async def test_stdin_is_written_to_and_closed(hf: Client, child: Child) -> None:
    """What is sent arrives, and after its end nothing can be sent."""
    process = await hf.spawn(child("prompts"), stdin=True)
    assert await process.send("Ada\n") == 4
    await says(process, "hello Ada\n")
    assert await process.send(b"Bob\n", eof=True) == 4
    assert (await process.wait(30)).code == 3
    assert "hello Bob\n" in (await process.tail()).text
    with pytest.raises(NotRunning):
        await process.send("Eve\n")


async def test_processes_are_signalled_killed_and_stopped(hf: Client, child: Child) -> None:
    """One signal, one process, all of them: each receipt says what was done."""
    process = await hf.spawn(child("names_signals"))
    await says(process, "ready\n")
    await process.signal("USR1")
    await says(process, "SIGUSR1\n")
    receipt = await process.kill()
    assert (receipt.record.status, receipt.forced, receipt.survivors) == ("killed", False, [])
    assert process.record.status == "killed"
    assert (await process.kill()).already_ended
    others = await asyncio.gather(*(hf.spawn("sleep 600") for _ in range(3)))
    receipts = await hf.stop_all()
    assert {each.record.handle for each in receipts} == {other.handle for other in others}
    assert await hf.stop_all() == []
    assert await events(hf) == []


async def test_logs_are_cleared_and_processes_removed(hf: Client) -> None:
    """An emptied log goes on at its offset; what was removed is not found any more."""
    process = await hf.spawn("echo gone; read line; echo $line", stdin=True)
    await says(process, "gone\n")
    await process.clear()
    assert await process.send("kept\n") == 5
    await process.wait(30)
    output = await process.tail()
    assert (output.text, output.start) == ("kept\n", 5)
    await process.remove()
    with pytest.raises(NotFound):
        await process.refresh()
    assert await hf.list() == []


async def test_events_are_followed_and_acknowledged(hf: Client, gate: Gate) -> None:
    """Ends come to a follower as they happen, while others use the same connection."""
    seen: list[Event] = []

    async def agent() -> None:
        async with aclosing(hf.events(follow=True)) as told:  # type: ignore[type-var]
            async for event in told:
                await hf.acknowledge(event)
                seen.append(event)
                if len(seen) == 5:
                    return

    following = asyncio.create_task(agent())
    processes = await gated(hf, gate, 5)
    assert seen == []
    gate.open()
    await asyncio.wait_for(following, 30)
    assert [event.seq for event in seen] == [1, 2, 3, 4, 5]
    codes = {event.handle: event.exit_code for event in seen}
    assert codes == {process.handle: n for n, process in enumerate(processes)}
    assert await events(hf) == []
    assert [event.seq for event in await events(hf, after=3, acknowledged=True)] == [4, 5]


async def test_following_events_can_be_cancelled(hf: Client) -> None:
    """A follower that is cancelled lets go of its descriptors, and the next one sees all."""

    async def forever() -> None:
        async for _ in hf.events(follow=True):
            begun.set()

    begun = asyncio.Event()
    following = asyncio.create_task(forever())
    process = await hf.spawn("exit 1")
    await asyncio.wait_for(begun.wait(), 30)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert [event.handle for event in await events(hf)] == [process.handle]


@pytest.mark.own_keeper
async def test_the_keeper_is_asked_restarted_and_stopped(hf: Client, gate: Gate) -> None:
    """A restart renews both halves under a running process; a stop leaves none."""
    (process,) = await gated(hf, gate, 1)
    before = await hf.keeper_status()
    assert before["running"]
    assert before["processes"] == 1
    after = await hf.keeper_restart()
    assert not {before["guard"], before["worker"]} & {after["worker"]}
    assert after["processes"] == 1
    gate.open()
    assert (await process.wait(30)).code == 0
    await hf.keeper_stop()
    assert await hf.keeper_status() == {"running": False}
    assert (await (await hf.spawn("exit 5")).wait(30)).code == 5


# -- at once, on one connection --------------------------------------------------------------------


async def test_fifty_waits_share_one_connection(hf: Client, gate: Gate) -> None:
    """Each gets the end of its own process, and other requests are answered meanwhile."""
    processes = await gated(hf, gate, 50)
    tasks = await waiting(hf, processes)
    assert (await status(hf))["connections"] == 1
    assert (await (await hf.spawn("exit 77")).wait(30)).code == 77
    assert not any(task.done() for task in tasks)
    gate.open()
    assert await asyncio.gather(*tasks) == list(range(50))
    assert (await status(hf))["connections"] == 1


async def test_fifty_may_wait_for_one_process(hf: Client, gate: Gate) -> None:
    """All of them get its end, and it is told as one."""
    process = await hf.spawn(f": < {gate.path}; exit 9")
    tasks = await waiting(hf, [process] * 50)
    gate.open()
    assert await asyncio.gather(*tasks) == [9] * 50
    await status(hf)
    assert len(await events(hf, acknowledged=True)) == 1
    assert await events(hf) == []


async def test_a_cancelled_wait_leaves_process_and_connection_alone(hf: Client, gate: Gate) -> None:
    """Who stops waiting stops nothing else, uses no event up, and can wait again."""
    processes = await gated(hf, gate, 10)
    tasks = await waiting(hf, processes)
    for task in tasks[:5]:
        task.cancel()
    ends = await asyncio.gather(*tasks[:5], return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * 5
    assert (await status(hf))["processes"] == 10
    assert all([(await process.refresh()).running for process in processes])
    gate.open()
    assert await asyncio.gather(*tasks[5:]) == [5, 6, 7, 8, 9]

    async def five() -> bool:
        return len(await events(hf)) == 5

    await until(five)
    assert {event.exit_code for event in await events(hf)} == {0, 1, 2, 3, 4}
    again = await asyncio.gather(*(process.wait(30) for process in processes))
    assert [end.code for end in again] == list(range(10))


async def test_a_wait_that_is_too_short_leaves_the_process_alone(hf: Client, gate: Gate) -> None:
    """It is a WaitTimeout, which is a TimeoutError; an outer deadline is just as harmless."""
    (process,) = await gated(hf, gate, 1)
    with pytest.raises(WaitTimeout) as raised:
        await process.wait(0.01)
    assert isinstance(raised.value, TimeoutError)
    assert (raised.value.code, raised.value.handle) == ("wait_timeout", process.handle)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await process.wait(60)
    assert (await process.refresh()).running
    gate.open()
    assert (await process.wait(30)).code == 0


async def test_a_wait_without_patience_tells_an_end_that_is_there(hf: Client, gate: Gate) -> None:
    """Zero seconds is a look: how it ended, or that it has not."""
    (process,) = await gated(hf, gate, 1)
    with pytest.raises(WaitTimeout):
        await process.wait(0)
    gate.open()

    async def told() -> list[Event]:
        return await events(hf)

    await until(told)
    assert process.record.running, "as of the last look"
    assert (await process.wait(0)).code == 0
    assert await events(hf) == []


@pytest.mark.own_keeper
@pytest.mark.parametrize("ending", ["while the worker is dead", "under the next worker"])
async def test_fifty_waits_outlive_the_worker(hf: Client, gate: Gate, ending: str) -> None:
    """kill -9 breaks the connection; every wait goes on at the next one to the right code."""
    processes = await gated(hf, gate, 50)
    tasks = await waiting(hf, processes)
    worker = (await status(hf))["worker"]
    os.kill(worker, signal.SIGKILL)
    if ending == "under the next worker":

        async def renewed() -> bool:
            return bool((await status(hf))["worker"] != worker)

        await until(renewed)
        assert not any(task.done() for task in tasks)
    gate.open()
    assert await asyncio.gather(*tasks) == list(range(50))
    assert (await status(hf))["connections"] == 1
    assert await events(hf) == []


# -- the session -----------------------------------------------------------------------------------


class Trouble(Exception):
    pass


async def test_an_exception_closes_the_session_too(person: SyncClient) -> None:
    """Leaving the block stops what the session runs, except what is to be kept."""
    handles: list[str] = []

    async def agent() -> None:
        async with connect(session="trouble") as hf:
            for keep in (False, True):
                handles.append((await hf.spawn("sleep 600", keep=keep)).handle)
            raise Trouble

    with pytest.raises(Trouble):
        await agent()
    stopped, kept = (person.get(handle).record for handle in handles)
    assert (stopped.status, stopped.reason) == ("killed", "lease_ended")
    assert kept.running


async def test_a_cancelled_block_closes_the_session_too(person: SyncClient) -> None:
    """A program that is told to stop while it waits leaves nothing running."""
    handles: list[str] = []
    begun = asyncio.Event()

    async def agent() -> None:
        async with connect(session="trouble") as hf:
            process = await hf.spawn("sleep 600")
            handles.append(process.handle)
            begun.set()
            await process.wait()

    task = asyncio.create_task(agent())
    await asyncio.wait_for(begun.wait(), 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    record = person.get(handles[0]).record
    assert (record.status, record.reason) == ("killed", "lease_ended")


async def test_two_sessions_in_one_event_loop_are_strangers(home: str, gate: Gate) -> None:
    """Each sees its own processes and events, and closing one leaves the other alone."""
    async with connect(session="one") as one:
        mine = await one.spawn(f": < {gate.path}; exit 1")
        async with connect(session="two") as two:
            theirs = await two.spawn(f": < {gate.path}; exit 2")
            with pytest.raises(NotFound):
                await two.get(mine.handle)
            (task,) = await waiting(one, [mine])
            (other,) = await waiting(two, [theirs])
            assert (await theirs.kill()).record.status == "killed"
            assert await other is None
            assert [process.handle for process in await two.list()] == [theirs.handle]
        assert [process.handle for process in await one.list()] == [mine.handle]
        assert not task.done()
        gate.open()
        assert await task == 1


async def test_two_clients_of_one_session_hold_it_together(home: str, gate: Gate) -> None:
    """What one starts the other sees and waits for; the last to leave closes the session."""
    async with connect(session="shared") as one:
        async with connect(session="shared") as two:
            process = await two.spawn(f": < {gate.path}; exit 4")
            tasks = await waiting(one, [await one.get(process.handle)])
        assert (await one.get(process.handle)).record.running
        gate.open()
        assert await asyncio.gather(*tasks) == [4]


async def test_each_client_without_a_name_has_a_session_of_its_own(home: str) -> None:
    """Two unnamed clients never see each other's processes."""
    async with connect() as one, connect() as two:
        assert one.session != two.session
        process = await one.spawn("exit 0")
        assert await two.list() == []
        assert (await process.wait(30)).ok
