"""Background agents: work that is no process, kept track of like one."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import holdfast
from holdfast import BadRequest, HoldfastError, NotFound, StoreError, SyncClient
from holdfast.client import exit_hooks
from holdfast.client.agents import NO_OUTPUT, UNREADABLE
from holdfast.client.connect import open_client
from holdfast.core.agent_record import load_agents
from holdfast.core.home import Home
from holdfast.core.outbox import read_events
from holdfast.testing import wait_until
from tests.contained import alive
from tests.proc_files import descriptors_at_rest
from tests.stepping import killed_at

pytestmark = pytest.mark.shared_keeper

REGISTRANT = """
import sys, holdfast
with holdfast.connect(session=sys.argv[1], lease_grace=float(sys.argv[2])) as hf:
    hf.register_agent("theirs", "worker", "/the/output")
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_an_agent_is_registered_marked_done_and_told_of(hf: SyncClient, tmp_path: Path) -> None:
    """Its end is an event like any other, with the end of its output file, once."""
    output = tmp_path / "review.md"
    agent = hf.register_agent("review", "reviewer", output)
    assert (agent.id, agent.status, agent.record.type) == ("review", "running", "reviewer")
    assert agent.output() == NO_OUTPUT
    output.write_text("looks good\n")
    assert [each.status for each in hf.agents()] == ["running"]
    assert hf.agent("review").output() == "looks good\n"
    assert agent.done().status == "completed"
    (event,) = hf.events()
    assert (event.type, event.agent, event.status) == ("agent", "review", "completed")
    assert "Agent: review\nType: reviewer\nStatus: completed" in event.text
    assert event.text.endswith("looks good\n")
    hf.acknowledge(event)
    assert agent.done(success=False).status == "completed"  # what is over stays as it was
    assert list(hf.events()) == []


def test_a_failure_is_told_as_one_and_the_name_can_be_used_again(hf: SyncClient) -> None:
    hf.register_agent("fix", "coder").done(success=False)
    with pytest.raises(NotFound, match="Agent not found: other"):
        hf.agent("other")
    again = hf.register_agent("fix", "coder")
    assert again.status == "running"
    with pytest.raises(BadRequest, match="registered and running"):
        hf.register_agent("fix", "coder")
    again.done()
    assert [event.status for event in hf.events()] == ["failed", "completed"]


def test_a_stop_reaches_the_registrant(hf: SyncClient) -> None:
    """The callback is called; what it ends is `killed`, and the stop answers then."""
    stopped = threading.Event()
    agent = hf.register_agent("long", "worker", on_stop=stopped.set)
    ended: list[str] = []

    def work() -> None:
        stopped.wait(60)
        agent.done(success=False)

    thread = threading.Thread(target=work)
    thread.start()
    ended.append(hf.agent("long").stop().status)
    thread.join(60)
    assert (stopped.is_set(), ended) == (True, ["killed"])
    assert hf.agent("long").stop().status == "killed"


def test_a_registrant_can_wait_for_the_stop_itself(hf: SyncClient) -> None:
    agent = hf.register_agent("long", "worker")
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(agent.stop_requested()))
    thread.start()
    other = hf.register_agent("short", "worker")
    other.done()
    assert other.stop_requested() is False
    stopper = threading.Thread(target=hf.agent("long").stop)
    stopper.start()
    thread.join(60)
    assert answers == [True]
    agent.done(success=True)
    stopper.join(60)
    assert hf.agent("long").status == "completed"  # it had finished all the same


@pytest.mark.weight(5)
def test_a_registrant_that_does_not_answer_is_not_waited_for_for_ever(hf: SyncClient) -> None:
    hf.register_agent("deaf", "worker")
    record = hf.agent("deaf").stop()
    assert (record.status, record.reason) == ("killed", "unconfirmed")


def test_a_task_is_cancelled_by_a_stop(home: str, session: str) -> None:
    """And its end is the agent's, without a word of the registrant."""

    async def main() -> tuple[bool, str, str | None]:
        async with holdfast.connect(session=session) as hf:
            task = asyncio.create_task(asyncio.sleep(1000))
            await hf.register_agent("sleep", "sleeper", task=task)
            record = await (await hf.agent("sleep")).stop()
            return task.cancelled(), record.status, record.reason

    assert asyncio.run(main()) == (True, "killed", "stopped")


def test_the_outcome_of_a_task_is_its_agents(hf: SyncClient, tmp_path: Path, session: str) -> None:
    """Also of one that ends as the block is left; what was raised is told."""

    async def work(error: Exception | None = None) -> None:
        if error is not None:
            raise error

    async def main() -> None:
        async with holdfast.connect(session=session) as client:
            for name, error in (("good", None), ("bad", OSError("no such luck"))):
                task = asyncio.create_task(work(error))
                await client.register_agent(name, "worker", tmp_path / "out", task=task)
                await asyncio.wait([task])
            with pytest.raises(BadRequest, match="create_task"):
                await client.register_agent("no", "worker", task=7)

    (tmp_path / "out").write_text("so far\n")
    asyncio.run(main())
    assert sorted((event.agent, event.status, event.tail) for event in hf.events()) == [
        ("bad", "failed", b"so far\n\nOSError: no such luck"),
        ("good", "completed", b"so far\n"),
    ]


def test_leaving_the_session_cancels_its_tasks(home: str, session: str) -> None:
    async def main() -> bool:
        async with holdfast.connect(session=session) as hf:
            task = asyncio.create_task(asyncio.sleep(1000))
            await hf.register_agent("sleep", "sleeper", task=task)
        await asyncio.wait([task], timeout=60)
        return task.cancelled()

    assert asyncio.run(main())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_future_of_a_thread_is_followed_too(
    hf: SyncClient, asynchronous: bool, session: str
) -> None:
    """It cannot be cancelled once it runs: `on_stop` is for that."""
    stopped = threading.Event()

    def work() -> None:
        stopped.wait(60)
        raise RuntimeError("stopped")

    async def main(future: Future[None]) -> str:
        async with holdfast.connect(session=session) as client:
            agent = await client.register_agent("job", "t", task=future, on_stop=stopped.set)
            return (await agent.stop()).status

    with ThreadPoolExecutor() as threads:
        future = threads.submit(work)
        if asynchronous:
            assert asyncio.run(main(future)) == "killed"
        else:
            agent = hf.register_agent("job", "t", task=future, on_stop=stopped.set)
            assert agent.stop().status == "killed"


def start_registrant(session: str, lease_grace: float = 1800.0) -> subprocess.Popen[str]:
    registrant = subprocess.Popen(
        [sys.executable, "-c", REGISTRANT, session, str(lease_grace)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert registrant.stdout is not None
    assert registrant.stdout.readline() == "ready\n"
    return registrant


def test_an_agent_whose_registrant_died_is_lost(hf: SyncClient, session: str) -> None:
    registrant = start_registrant(session)
    assert hf.agent("theirs").status == "running"
    registrant.kill()
    registrant.communicate()
    (event,) = wait_until(lambda: list(hf.events()))
    assert (event.agent, event.status) == ("theirs", "lost")
    assert event.tail == b"(its output is in /the/output)"
    assert hf.agent("theirs").status == "lost"


def test_an_agent_survives_both_halves_of_the_keeper(
    hf: SyncClient, session: str, kill_both: Callable[[SyncClient], None]
) -> None:
    """Ours lives on; one whose registrant died meanwhile is lost, and told of once."""
    mine = hf.register_agent("mine", "worker")
    registrant = start_registrant(session)
    kill_both(hf)
    registrant.kill()
    registrant.communicate()
    assert {agent.id: agent.status for agent in hf.agents()} == {
        "mine": "running",
        "theirs": "lost",
    }
    mine.done()
    assert [event.agent for event in hf.events()] == ["theirs", "mine"]


def test_the_end_of_a_session_ends_its_agents(home: str, session: str) -> None:
    with holdfast.connect(session=session) as hf:
        hf.register_agent("mine", "worker", on_stop=lambda: None)
    with holdfast.connect(session=session) as hf:
        assert [(a.status, a.record.reason) for a in hf.agents()] == [("killed", "lease_ended")]


def test_sessions_do_not_see_each_others_agents(hf: SyncClient, session: str) -> None:
    hf.register_agent("mine", "worker")
    with holdfast.connect(session=f"{session}-other") as other:
        assert other.agents() == []
        with pytest.raises(NotFound, match="Agent not found: mine"):
            other.agent("mine")
        theirs = other.register_agent("mine", "worker")
        theirs.done()
        assert hf.agent("mine").status == "running"


@pytest.mark.parametrize("bad", ["", "x" * 81, "a\nb", "a\0b", 7])
def test_odd_names_are_refused(hf: SyncClient, bad: str) -> None:
    with pytest.raises(BadRequest, match="id is printable text"):
        hf.register_agent(bad, "worker")
    assert hf.agents() == []


@pytest.mark.parametrize("name", ["../../x", ".", "a/b", "%2e", "proc-*", "Übung"])
def test_names_are_never_paths(hf: SyncClient, name: str, session: str) -> None:
    hf.register_agent(name, "worker")
    assert [agent.id for agent in hf.agents()] == [name]
    (file,) = os.listdir(hf.home.agents(session))
    assert os.path.dirname(hf.home.agent(session, name)) == hf.home.agents(session)
    assert file.endswith(".json")


def test_output_that_cannot_be_read_says_so(hf: SyncClient, tmp_path: Path) -> None:
    """A directory, a FIFO: never waited for, and never an error that hides the status."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for n, path in enumerate((tmp_path, fifo)):
        agent = hf.register_agent(f"a{n}", "worker", path)
        assert agent.output() == UNREADABLE
        agent.done()
    assert [event.tail for event in hf.events()] == [b"", b""]


# -- names and records that are not what they should be --------------------------------------------


@pytest.mark.parametrize("path", ["/tmp/\ud800", "/tmp/\0", "/" + "x" * 5000])
def test_an_output_file_that_cannot_be_one_is_refused(hf: SyncClient, path: str) -> None:
    with pytest.raises(BadRequest, match="output file is a path"):
        hf.register_agent("odd", "worker", path)
    assert hf.agents() == []


@pytest.mark.own_keeper
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("output_file", "/tmp/\ud800"),
        ("output_file", 7),
        ("started_clock", "now"),
        ("started_clock", float("nan")),
        ("pid", 1 << 40),
        ("pid", 1 << 80),
        ("pid", None),
        ("start_time", "x"),
        ("tail", 7),
        ("tail", "not base64"),
        ("token", None),
        ("ended_at", 7),
        ("told", "no"),
    ],
)
@pytest.mark.parametrize("status", ["running", "failed"])
def test_a_damaged_record_does_not_keep_a_worker_from_its_work(
    hf: SyncClient, name: str, value: object, status: str, session: str
) -> None:
    """Whatever is in it, the next keeper begins, and keeps the others."""
    hf.register_agent("damaged", "worker")
    sound = hf.register_agent("sound", "worker")
    path = Path(hf.home.agent(session, "damaged"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": status, name: value}))
    hf.keeper_restart()
    with suppress(HoldfastError):
        hf.agent("damaged").done()
    assert sound.done().status == "completed"
    assert "sound" in [event.agent for event in hf.events()]


def descriptors(hf: SyncClient) -> int:
    return len(descriptors_at_rest(hf.keeper_status()["worker"]))


def test_a_refused_registration_leaves_nothing_behind(hf: SyncClient) -> None:
    """A name too long for a file, or no room: the worker has no more descriptors than before."""
    hf.register_agent("\N{LATIN SMALL LETTER E WITH ACUTE}" * 30, "worker").done()
    before = descriptors(hf)
    for _ in range(10):
        with pytest.raises(BadRequest, match="too long to be a file's name"):
            hf.register_agent("\N{LATIN SMALL LETTER E WITH ACUTE}" * 80, "worker")
    with full_disk(hf):
        for _ in range(10):
            with pytest.raises(StoreError):
                hf.register_agent("mine", "worker")
    # Our own connections come and go; each of the twenty would have left one.
    wait_until(lambda: descriptors(hf) < before + 5)
    assert hf.register_agent("mine", "worker").status == "running"


def test_a_record_is_shown_without_its_token(hf: SyncClient) -> None:
    record = hf.register_agent("mine", "worker").record
    assert record.token not in repr(record)


# -- a full disk -----------------------------------------------------------------------------------


@contextmanager
def full_disk(hf: SyncClient) -> Iterator[None]:
    """As far as the worker is concerned: it cannot write to any file."""
    worker = hf.keeper_status()["worker"]
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)


def test_an_end_on_a_full_disk_is_told_when_there_is_room(hf: SyncClient) -> None:
    """By the worker that knows of it; meanwhile it is over for whoever asks."""
    mine = hf.register_agent("mine", "worker")
    with full_disk(hf):
        assert mine.done(success=False).status == "failed"
        assert hf.agent("mine").stop().status == "failed"
        with pytest.raises(StoreError):
            hf.register_agent("mine", "worker")
        assert list(hf.events()) == []
    (event,) = wait_until(lambda: list(hf.events()))
    assert (event.agent, event.status) == ("mine", "failed")
    wait_until(lambda: hf.agent("mine").status == "failed")
    hf.register_agent("mine", "worker").done()
    assert [event.status for event in hf.events()] == ["failed", "completed"]


def test_a_stop_on_a_full_disk_reaches_the_registrant(hf: SyncClient) -> None:
    stopped = threading.Event()
    agent = hf.register_agent("long", "worker", on_stop=stopped.set)

    def work() -> None:
        stopped.wait(60)
        agent.done(success=False)

    thread = threading.Thread(target=work)
    thread.start()
    with full_disk(hf):
        record = hf.agent("long").stop()
    thread.join(60)
    assert (stopped.is_set(), record.status, record.reason) == (True, "killed", "stopped")
    (event,) = wait_until(lambda: list(hf.events()))
    assert (event.agent, event.status) == ("long", "killed")


# -- one name, several registrations ---------------------------------------------------------------


@pytest.mark.weight(5)
def test_a_late_word_is_of_its_own_registration(hf: SyncClient) -> None:
    """One that was given up says that it is done: another of its name runs on."""
    calls: list[str] = []
    first = hf.register_agent("job", "worker")
    assert hf.agent("job").stop().reason == "unconfirmed"
    second = hf.register_agent("job", "worker", on_stop=lambda: calls.append("second"))
    assert first.stop_requested() is False
    assert first.done(success=False).status == "killed"  # as it was
    assert first.stop().status == "killed"
    assert first.refresh().status == "killed"
    assert second.refresh().status == "running"
    assert calls == []
    second.done()
    assert [event.status for event in hf.events()] == ["killed", "completed"]


@pytest.mark.own_keeper
def test_an_adopted_agent_does_not_replace_one_of_the_same_name(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets another name; ours goes on under its own."""
    monkeypatch.chdir(tmp_path)
    with holdfast.connect(session="new") as hf:
        mine = hf.register_agent("theirs", "worker")
        registrant = start_registrant("old")
        old = open_client(hf.home, "old")
        living = old.register_agent("living", "worker")
        registrant.kill()
        registrant.communicate()
        wait_until(hf.left_behind)
        hf.adopt("old")
        statuses = {agent.id: agent.status for agent in hf.agents()}
        assert statuses == {"theirs": "running", "theirs-2": "lost", "living": "running"}
        hf.keeper_restart()
        assert living.done().session == "new"  # its registrant knows nothing of all this
        assert mine.done().status == "completed"
        assert {agent.id: agent.status for agent in hf.agents()} == {
            "theirs": "completed",
            "theirs-2": "lost",
            "living": "completed",
        }
        old.close()


@pytest.mark.own_keeper
def test_agents_of_a_half_finished_adoption_are_moved_once(hf: SyncClient, session: str) -> None:
    """Killed after the copy, before the original was removed."""
    hf.register_agent("job", "worker").done()
    with holdfast.connect(session="old") as old:
        old.register_agent("job", "worker").done()
        (record,) = load_agents(hf.home, "old")
        moved = {**record.to_json(), "session": session, "id": "job-2"}
        Path(hf.home.agent(session, "job-2")).write_text(json.dumps(moved))
        Path(hf.home.session(session), "adopted.json").write_text(
            json.dumps({"old": {"token": "x", "handles": [], "done": False}})
        )
        hf.keeper_restart()
    assert sorted(agent.id for agent in hf.agents()) == ["job", "job-2"]


# -- sessions that end, registrants that wait ------------------------------------------------------


def test_a_session_to_which_nobody_comes_back_ends_its_agents(home: str) -> None:
    registrant = start_registrant("lost", lease_grace=0.1)
    stopped = threading.Event()
    client = open_client(Home(home), "lost")
    agent = client.register_agent("beside", "worker", on_stop=stopped.set)
    registrant.kill()
    registrant.communicate()
    assert stopped.wait(60)
    assert (agent.refresh().status, agent.record.reason) == ("killed", "lease_ended")
    client.close()


@pytest.mark.own_keeper
def test_a_session_with_an_agent_or_a_holder_is_not_forgotten(hf: SyncClient, session: str) -> None:
    """However long nothing else has happened in it."""
    person = open_client(hf.home, "agents")
    agent = person.register_agent("slow", "worker")
    long_ago = time.time() - 30 * 86400
    for each in (session, "agents"):
        os.utime(hf.home.session(each), (long_ago, long_ago))
    hf.keeper_restart()
    assert [each.id for each in person.agents()] == ["slow"]
    assert os.path.exists(hf.home.session(session) + "/lease.json")
    assert agent.done().status == "completed"
    person.close()


@pytest.mark.weight(5)
@pytest.mark.own_keeper
def test_waiting_for_a_stop_goes_on_though_no_keeper_can_be_reached(hf: SyncClient) -> None:
    """For a while: the stop of later reaches the registrant."""
    stopped = threading.Event()
    hf.register_agent("long", "worker", on_stop=stopped.set)
    status, path = hf.keeper_status(), hf.home.path
    os.rename(path, path + ".away")
    os.symlink(path + ".away", path)  # which no client uses
    for half in ("guard", "worker"):
        os.kill(status[half], signal.SIGKILL)
    wait_until(lambda: not alive(status["guard"]) and not alive(status["worker"]))
    for _ in range(20):
        with pytest.raises(StoreError, match="symlink"):
            hf.lease(1800)
        time.sleep(0.01)
    os.unlink(path)
    os.rename(path + ".away", path)
    hf.agent("long").stop()
    assert stopped.wait(60)


def test_closing_gives_up_what_waits_beside(home: str, session: str) -> None:
    """No thread and no connection stay behind."""
    before = threading.active_count()
    with holdfast.connect(session=f"{session}-other") as other:
        person = open_client(other.home, session)
        person.register_agent("long", "worker", on_stop=lambda: None)
        wait_until(lambda: other.keeper_status()["connections"] > 2)
        assert threading.active_count() > before
        person.close()
        wait_until(lambda: threading.active_count() == before)
        wait_until(lambda: other.keeper_status()["connections"] <= 2)


@pytest.mark.weight(5)
def test_a_stop_may_close_the_client(home: str, session: str) -> None:
    async def main() -> None:
        closed = asyncio.Event()
        async with (
            holdfast.connect(session=session) as hf,
            holdfast.connect(session=f"{session}-x") as other,
        ):

            async def on_stop() -> None:
                await other.close()
                closed.set()

            await other.register_agent("long", "worker", on_stop=on_stop)
            person = open_client(hf.home, f"{session}-x")
            await asyncio.get_running_loop().run_in_executor(None, person.agent("long").stop)
            await closed.wait()
            person.close()

    before = dict(exit_hooks._open)
    with pytest.raises(BadRequest, match="closed"):  # by leaving the other's block
        asyncio.run(asyncio.wait_for(main(), 60))
    assert exit_hooks._open == before


# -- a worker killed at each step ------------------------------------------------------------------


def told(hf: SyncClient) -> dict[str, tuple[str | None, str | None, bytes]]:
    """What was told of each agent; never twice."""
    events = [event for event in read_events(hf.home, hf.session or "") if event.type == "agent"]
    found: dict[str, tuple[str | None, str | None, bytes]]
    found = {event.agent: (event.status, event.reason, event.tail) for event in events}
    assert len(found) == len(events)
    return found


def done_at_once(hf: SyncClient, name: str, output: Path) -> None:
    hf.register_agent(name, "worker", output).done()


def stopped_at_once(hf: SyncClient, name: str, output: Path) -> None:
    wanted = threading.Event()
    agent = hf.register_agent(name, "worker", output, on_stop=wanted.set)

    def work() -> None:
        wanted.wait(60)
        agent.done(success=False)

    thread = threading.Thread(target=work)
    thread.start()
    hf.agent(name).stop()
    thread.join(60)


@pytest.mark.long
@pytest.mark.own_keeper
@pytest.mark.parametrize(
    ("life", "how", "stride"),
    [
        (done_at_once, ("completed", "done"), 17),
        (stopped_at_once, ("killed", "stopped"), 23),
    ],
)
def test_a_worker_killed_at_each_step_tells_of_an_agent_once(
    hf: SyncClient,
    tmp_path: Path,
    life: Callable[[SyncClient, str, Path], None],
    how: tuple[str, str],
    stride: int,
    session: str,
) -> None:
    """Registered, stopped and done, with kill -9 at every so many system calls."""
    output = tmp_path / "out"
    output.write_text("what it did\n")
    step, reached, names = 0, True, []
    while reached:
        names.append(f"job-{step}")
        work = partial(life, hf, names[-1], output)
        _, reached = killed_at(hf.keeper_status()["worker"], step, work)
        wait_until(lambda: names[-1] in told(hf))
        assert hf.agent(names[-1]).status == how[0]
        step += stride
    assert told(hf) == dict.fromkeys(names, (*how, b"what it did\n"))
    assert all(record.told and record.tail is None for record in load_agents(hf.home, session))


@pytest.mark.long
@pytest.mark.own_keeper
def test_a_worker_killed_at_each_step_tells_of_a_lost_agent_once(
    hf: SyncClient, session: str
) -> None:
    """Its registrant dies under a worker that dies."""
    step, reached, count = 0, True, 0
    while reached:
        registrant = start_registrant(session)
        _, reached = killed_at(hf.keeper_status()["worker"], step, registrant.kill)
        registrant.communicate()
        count += 1
        wait_until(lambda n=count: len(read_events(hf.home, session)) == n)  # type: ignore[misc]
        assert [event.status for event in read_events(hf.home, session)] == ["lost"] * count
        assert hf.agent("theirs").status == "lost"
        step += 5
