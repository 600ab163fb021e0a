"""Where several parties meet: many sessions at once, clients that come and go, halves that hang.

What is told between the two halves of the keeper, and what the kernel reports in one round of its
loop, must hold however many speak at the same moment, and whoever of them has stopped listening.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast import KeeperError, SpawnError, SyncClient, SyncProcess, WaitTimeout, connect
from holdfast.core.home import Home
from holdfast.keeper.channel import Channel
from holdfast.keeper.held_fds import Held
from holdfast.keeper.loop import IN, Loop
from holdfast.linux.cgroup import own_groups
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until
from tests.proc_files import first_free_descriptor, watchers_below
from tests.stepping import Stepper

KillBoth = Callable[[SyncClient], None]


def journal(home: str) -> str:
    try:
        return Path(Home(home).keeper_log).read_text("utf-8", "replace")
    except FileNotFoundError:
        return ""


@pytest.fixture(autouse=True)
def no_traceback(home: str) -> Iterator[None]:
    """No half of the keeper fails by itself in any of this."""
    yield
    assert "Traceback" not in journal(home), journal(home)


# -- many at once ----------------------------------------------------------------------------------


def test_ten_sessions_that_gather_twenty_spawns_each_are_all_answered(home: str) -> None:
    """200 starts at one moment from one program: more than the halves' channel holds."""

    async def session(number: int) -> list[str]:
        async with holdfast.connect(session=f"s{number}") as hf:
            processes = await asyncio.gather(
                *(hf.spawn(["echo", f"{number}-{each}"]) for each in range(20))
            )
            exits = await asyncio.gather(*(process.wait() for process in processes))
            assert [exit.code for exit in exits] == [0] * 20
            return [(await process.read_at(0)).text for process in processes]

    async def everybody() -> list[list[str]]:
        async with asyncio.timeout(90):
            return await asyncio.gather(*(session(number) for number in range(10)))

    said = asyncio.run(everybody())
    assert said == [[f"{number}-{each}\n" for each in range(20)] for number in range(10)]


def test_a_crowd_of_requests_does_not_hold_up_another_client(hf: SyncClient) -> None:
    """Those of one connection are answered in turns with everybody else's."""
    worker = hf.keeper_status()["worker"]

    async def program() -> int:
        async with holdfast.connect(home=hf.home.path, session="crowd") as crowd:
            await crowd.spawn("sleep 600")
            os.kill(worker, signal.SIGSTOP)
            try:
                many = (crowd.spawn("sleep 600", max_running=201) for _ in range(200))
                starts = [asyncio.ensure_future(start) for start in many]
                asked = asyncio.ensure_future(asyncio.to_thread(hf.keeper_status))
                await asyncio.sleep(0.5)  # in which they ask
            finally:
                os.kill(worker, signal.SIGCONT)
            running: int = (await asked)["processes"]
            await asyncio.gather(*starts)
            await crowd.stop_all(grace=0)
            return running

    assert asyncio.run(program()) < 40


def test_three_hundred_processes_are_adopted_after_both_halves_were_killed(
    hf: SyncClient, kill_both: KillBoth
) -> None:
    """The next keeper hands all of them to its guard before its loop has begun."""
    for _ in range(300):
        hf.spawn(["sleep", "600"], max_running=300)
    kill_both(hf)
    assert len(hf.list()) == 300
    assert hf.keeper_status()["processes"] == 300
    hf.stop_all(grace=0)
    assert {process.record.status for process in hf.list()} == {"killed"}


def test_a_guard_killed_while_its_worker_recovers_leaves_nobody_unfound(
    hf: SyncClient, kill_both: KillBoth
) -> None:
    """The worker takes its place, and what no keeper has found yet is still looked for.

    The last process was begun by a worker that was killed before it had written down its pid.
    """
    for _ in range(100):
        hf.spawn(["sleep", "600"], max_running=200)
    ends = [hf.spawn(["sleep", "600"], max_running=200) for _ in range(10)]
    process = hf.spawn(["sleep", "600"], max_running=200)
    pid = process.record.pid
    log = Path(hf.home.keeper_log)
    for each in ends:
        kill_both(hf)
        gone = each.record.pid or 0
        os.kill(gone, signal.SIGKILL)
        wait_until(lambda gone=gone: stat(gone) is None)  # type: ignore[misc]
        os.unlink(hf.home.fifo(each.handle))  # so that all of it is over as soon as that is seen
        record = hf.store.load(process.handle)
        record.pid = record.start_time = None
        hf.store.save(record)
        log.write_bytes(b"")
        with ThreadPoolExecutor(1) as pool:
            listed = pool.submit(hf.spawn, "true", max_running=200)
            wait_until(lambda: b"adopted" in log.read_bytes(), interval=0.0)
            worker = int(log.read_text().partition("[")[2].partition("]")[0])
            os.kill(worker, signal.SIGSTOP)
            early = process.handle not in log.read_text()
            found = stat(worker)
            assert found is not None
            if early:
                os.kill(found.parent, signal.SIGKILL)
            os.kill(worker, signal.SIGCONT)
            listed.result(60)
        assert process.refresh().pid == pid
        if early:
            break
    assert early
    hf.stop_all(grace=0)


# -- a channel that is full ------------------------------------------------------------------------


class Ends:
    """A channel as guard and worker have it, with nobody at the guard's end but the test."""

    def __init__(self) -> None:
        self.theirs, self._ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.nudged, self.nudge = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._guard = os.pidfd_open(os.getppid())
        self.channel = Channel(self._ours, self.nudge, self._guard)

    def hear(self) -> list[bytes]:
        """Everything that was told since the last time."""
        heard: list[bytes] = []
        self.theirs.setblocking(False)
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.theirs, 65536, 8)
            except BlockingIOError:
                return heard
            heard.append(data)
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()
        for fd in (self.nudged, self.nudge, self._guard):
            os.close(fd)


@pytest.fixture
def ends(no_leaks: None) -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.close()


def test_a_full_channel_nudges_the_guard_and_goes_on_when_it_has_listened(ends: Ends) -> None:
    """Whoever tells waits until the guard, which sleeps until it is nudged, has made room."""
    heard: list[bytes] = []

    def guard() -> None:
        poll = select.poll()
        poll.register(ends.nudged, select.POLLIN)
        while len(heard) < 2000 and poll.poll(60_000):
            os.read(ends.nudged, 4096)
            heard.extend(ends.hear())

    listener = threading.Thread(target=guard)
    listener.start()
    held = Held(1, ends.nudge, out=ends.nudge)
    for _ in range(2000):
        ends.channel.hand_over("held", "proc-x", held)
    ends.channel.nudge()
    listener.join(60)
    assert len(heard) == 2000


def test_what_was_told_stays_in_the_channel_until_somebody_listens(ends: Ends) -> None:
    """A worker that dies leaves it to the guard; nothing has to be heard at once."""
    for number in range(60):
        ends.channel.tell("sent", "proc-x", "token", number)
    assert len(ends.hear()) == 60


# -- descriptors that are used again within a round ------------------------------------------------


def test_an_event_of_a_closed_descriptor_is_not_taken_for_one_of_its_successor() -> None:
    """A number that is closed and used again in one round means something else from then on."""
    loop = Loop()
    pairs = [os.pipe(), os.pipe()]
    quiet = os.pipe()
    seen: list[int] = []

    def replace(number: int) -> None:
        """Whichever of the two comes first has the other's number mean something quiet."""
        loop.remove(number)
        os.dup2(quiet[0], number)
        loop.add(number, IN, seen.append)
        loop.after(0.05, loop.stop)

    for (reader, writer), (other, _) in (pairs, pairs[::-1]):
        loop.add(reader, IN, lambda _, other=other: replace(other))  # type: ignore[misc]
        os.write(writer, b"x")
    loop.run()
    for fd in (*pairs[0], *pairs[1], *quiet):
        os.close(fd)
    assert seen == []


CLOSES = """
import holdfast
hf = holdfast.connect(session="leaver").__enter__()
print("ready", flush=True)
input()
print("closing", flush=True)
hf.close()
"""


def test_output_is_whole_of_a_process_that_starts_in_the_round_in_which_a_client_ends(
    home: str,
) -> None:
    """What watched the client and what reads the new process's output may have the same number."""
    with connect(session="steady") as steady:
        worker = steady.keeper_status()["worker"]
        for _ in range(10):
            leaver = subprocess.Popen(
                [sys.executable, "-c", CLOSES],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            assert leaver.stdin is not None
            assert leaver.stdout is not None
            assert leaver.stdout.readline() == "ready\n"
            asked = threading.Event()
            started: list[SyncProcess] = []

            def spawn(asked: threading.Event = asked, to: list[SyncProcess] = started) -> None:
                asked.set()
                to.append(steady.spawn(["head", "-c", "200000", "/dev/zero"]))

            os.kill(worker, signal.SIGSTOP)
            asking = threading.Thread(target=spawn)
            try:
                # All of this waits for the worker, which finds it in one round.
                leaver.stdin.write("close\n")
                assert leaver.stdout.readline() == "closing\n"
                time.sleep(0.05)  # until its request is there; without it there is nothing to see
                asking.start()
                asked.wait()
                time.sleep(0.05)
                leaver.kill()
                leaver.wait()
            finally:
                os.kill(worker, signal.SIGCONT)
            asking.join(60)
            leaver.stdin.close()
            leaver.stdout.close()
            assert started[0].wait(60).code == 0
            assert os.stat(started[0].record.log).st_size == 200_000
        assert steady.keeper_status()["worker"] == worker, journal(home)


COMES_AND_GOES = """
import os, sys
import holdfast
for number in range(20):
    pid = os.fork()
    if pid == 0:
        hf = holdfast.connect(session=f"goer-{sys.argv[1]}-{number}", lease_grace=0).__enter__()
        hf.spawn(["sleep", "600"])
        if number % 2:
            hf.close()
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_clients_that_come_and_go_cost_nobody_any_output(home: str) -> None:
    """Connections close and their holders die at any moment while others start processes."""
    with connect(session="steady") as steady:
        worker = steady.keeper_status()["worker"]
        goers = [
            subprocess.Popen([sys.executable, "-c", COMES_AND_GOES, str(each)]) for each in range(3)
        ]
        while None in [goer.poll() for goer in goers]:
            process = steady.spawn("echo begin; echo end")
            assert process.wait(60).code == 0
            assert process.read_at(0).text == "begin\nend\n"
        assert [goer.returncode for goer in goers] == [0, 0, 0]
        assert steady.keeper_status()["worker"] == worker, journal(home)


# -- halves that hang ------------------------------------------------------------------------------


def gone(pid: int) -> bool:
    found = stat(pid)
    return found is None or found.state in "ZX"


@pytest.mark.weight(10)
def test_a_stopped_worker_is_replaced_and_the_call_is_answered(hf: SyncClient, home: str) -> None:
    process = hf.spawn("echo before; exec sleep 600")
    hf.spawn("true")
    (event,) = wait_until(lambda: list(hf.events()))
    worker = hf.keeper_status()["worker"]
    os.kill(worker, signal.SIGSTOP)
    with pytest.raises(WaitTimeout):
        hf.claim(event, timeout=0.1)
    assert hf.claim(event) == [event]
    assert hf.spawn(["echo", "after"]).wait(60).code == 0
    assert hf.keeper_status()["worker"] != worker
    assert "the worker is stopped" in journal(home)
    assert process.kill(grace=0).record.status == "killed"


def test_a_worker_that_is_stopped_for_a_moment_goes_on(hf: SyncClient) -> None:
    worker = hf.keeper_status()["worker"]
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: (found := stat(worker)) is not None and found.state == "T")
    os.kill(worker, signal.SIGCONT)
    assert hf.keeper_status()["worker"] == worker


@pytest.mark.long
def test_a_stopped_guard_is_replaced_once_there_is_something_to_tell_it(
    hf: SyncClient, home: str
) -> None:
    guard = hf.keeper_status()["guard"]
    os.kill(guard, signal.SIGSTOP)
    process = hf.spawn("read line; echo got $line", stdin=True)
    wait_until(lambda: gone(guard), timeout=60)
    wait_until(lambda: hf.keeper_status()["guard"] != guard, timeout=60)
    process.send("it\n")
    assert process.wait(60).code == 0
    assert process.read_at(0).text == "got it\n"
    assert "the guard does not answer" in journal(home)


@pytest.mark.weight(12)
def test_a_stopped_guard_and_more_to_tell_than_the_channel_holds(hf: SyncClient) -> None:
    """The worker waits for room, until somebody wakes the guard or it takes the guard's place."""
    os.kill(hf.keeper_status()["guard"], signal.SIGSTOP)

    def spawn() -> SyncProcess:
        return hf.spawn("echo begun; read line", stdin=True, max_running=300)

    processes = [spawn() for _ in range(300)]
    for process in processes:
        process.send("go on\n")
        assert process.wait(60).code == 0
        assert process.read_at(0).text == "begun\n"


@pytest.mark.long
@pytest.mark.parametrize("killed", [False, True], ids=["worker stopped", "worker killed"])
def test_a_stopped_guard_is_woken_by_whoever_waits_for_an_answer(
    hf: SyncClient, killed: bool
) -> None:
    """Nobody else is there to see it."""
    process = hf.spawn("sleep 1; exit 3")
    status = hf.keeper_status()
    os.kill(status["guard"], signal.SIGSTOP)
    os.kill(status["worker"], signal.SIGKILL if killed else signal.SIGSTOP)
    assert process.wait(90).code == 3
    assert hf.keeper_status()["guard"] == status["guard"]
    assert hf.keeper_status()["worker"] != status["worker"]


def test_a_stopped_guard_whose_socket_is_gone_is_woken_by_whoever_wants_to_connect(
    hf: SyncClient,
) -> None:
    """Its worker is dead, so nobody listens, and it holds the lock: nobody can start another."""
    process = hf.spawn("sleep 1; exit 3")
    status = hf.keeper_status()
    os.kill(status["guard"], signal.SIGSTOP)
    os.kill(status["worker"], signal.SIGKILL)
    os.unlink(hf.home.socket)
    with connect(session="test") as another:
        assert another.spawn("exit 4").wait(60).code == 4
        assert another.keeper_status()["guard"] == status["guard"]
    assert process.wait(60).code == 3


@pytest.mark.long
def test_a_stopped_worker_without_a_guard_is_woken_too(hf: SyncClient) -> None:
    """It would take the guard's place, could it but see that the guard is gone."""
    process = hf.spawn("sleep 1; exit 3")
    status = hf.keeper_status()
    os.kill(status["worker"], signal.SIGSTOP)
    os.kill(status["guard"], signal.SIGKILL)
    assert process.wait(60).code == 3
    assert hf.keeper_status()["guard"] == status["worker"]


@pytest.mark.long
def test_the_same_from_asyncio(home: str) -> None:
    async def program() -> None:
        async with holdfast.connect(session="test") as hf:
            status = await hf.keeper_status()
            for half in ("guard", "worker"):
                os.kill(status[half], signal.SIGSTOP)
            async with asyncio.timeout(90):
                process = await hf.spawn(["true"])
                assert (await process.wait()).code == 0

    asyncio.run(program())


class Hung:
    """A file system that never answers: whoever looks at it hangs until killed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0"
        mounted = ctypes.CDLL(None, use_errno=True).mount(
            b"hung", os.fsencode(path), b"fuse", 0, options.encode()
        )
        assert mounted == 0, os.strerror(ctypes.get_errno())

    def close(self) -> None:
        os.close(self._device)
        ctypes.CDLL(None).umount2(os.fsencode(self.path), 2)


@pytest.fixture
def hung(no_leaks: None, tmp_path: Path) -> Iterator[Hung]:
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("only root can mount a file system here")  # the others need no such thing
    place = tmp_path / "hung"
    place.mkdir()
    hung = Hung(place)
    yield hung
    hung.close()


@pytest.mark.long
def test_a_worker_that_hangs_is_replaced_and_what_hung_it_is_not_tried_again(
    hf: SyncClient, home: str, hung: Hung
) -> None:
    """A directory that never answers costs its caller an error, and the others some seconds."""
    process = hf.spawn(["sleep", "600"])
    worker = hf.keeper_status()["worker"]
    refused: list[KeeperError] = []

    def ask() -> None:
        with pytest.raises(KeeperError, match=r"hung over this request \(spawn\)") as caught:
            hf.spawn(["true"], cwd=str(hung.path))
        refused.append(caught.value)

    # A moment after something else was done: the guard has just seen the worker wait.
    time.sleep(1.2)
    hf.keeper_status()
    time.sleep(0.3)
    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: hf.keeper_status()["worker"] != worker, timeout=100)
    asking.join(100)
    assert len(refused) == 1
    assert hf.spawn(["echo", "after"]).wait(60).code == 0
    assert "the worker hangs, at spawn proc-" in journal(home)
    assert process.kill(grace=0).record.status == "killed"


@pytest.mark.long
def test_a_send_says_in_time_that_nobody_answers(hf: SyncClient) -> None:
    """Also while a debugger holds the worker, which nobody takes for a worker that hangs."""
    process = hf.spawn("cat", stdin=True)
    worker = hf.keeper_status()["worker"]
    stepper = Stepper(worker)
    wait_until(lambda: stepper.step(1.0), timeout=60)  # and there it stays
    try:
        with pytest.raises(KeeperError, match="look at the output"):
            process.send("text\n", timeout=0.1)
    finally:
        stepper.kill()
    assert process.kill(grace=0).record.status == "killed"


@contextlib.contextmanager
def no_forks(pid: int) -> Iterator[None]:
    """No process more for `pid`: by a limit of its user's, or of its group, as root has none."""
    if os.geteuid() != 0:
        limit = resource.prlimit(pid, resource.RLIMIT_NPROC)
        resource.prlimit(pid, resource.RLIMIT_NPROC, (0, limit[1]))
        yield
        resource.prlimit(pid, resource.RLIMIT_NPROC, limit)
        return
    before = own_groups().get("pids")
    if before is None:
        pytest.skip("no control group that limits processes")
    group = Path(before, f"no-forks-{pid}")
    group.mkdir()
    try:
        (group / "pids.max").write_text("1")
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        Path(before, "cgroup.procs").write_text(str(pid))
        group.rmdir()


def test_a_guard_that_cannot_fork_leaks_nothing_and_goes_on_when_it_can(hf: SyncClient) -> None:
    process = hf.spawn("sleep 1; exit 3")
    status = hf.keeper_status()
    guard = status["guard"]
    descriptors = Path(f"/proc/{guard}/fd")
    with no_forks(guard):
        os.kill(status["worker"], signal.SIGKILL)
        wait_until(lambda: gone(status["worker"]))
        counts = []
        for _ in range(5):  # it tries twice a second
            counts.append(len(list(descriptors.iterdir())))
            time.sleep(0.6)
        assert max(counts) <= counts[0] + 2, counts
    assert process.wait(60).code == 3
    assert hf.keeper_status()["guard"] == guard


def test_without_a_descriptor_to_look_with_nobody_is_taken_for_one_that_hangs(
    hf: SyncClient, home: str
) -> None:
    """Each half looks at the other with one that it may not have: then it looks again later."""
    status = hf.keeper_status()
    pids = [status["guard"], status["worker"]]
    limits = [resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids]
    for pid, (_, hard) in zip(pids, limits, strict=True):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        for half, other in (pids, pids[::-1]):
            os.kill(half, signal.SIGSTOP)
            if half == status["guard"]:
                hf.keeper_status()  # has the worker nudge the guard, and look whether it listens
            time.sleep(2.5)  # two looks
            assert not gone(other)
            os.kill(half, signal.SIGCONT)
        assert hf.keeper_status()["worker"] == status["worker"], journal(home)
        assert hf.keeper_status()["guard"] == status["guard"], journal(home)
    finally:
        for pid, limit in zip(pids, limits, strict=True):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


@contextlib.contextmanager
def descriptors(pid: int, most: int) -> Iterator[None]:
    """At most this many for a process; it keeps those that it has."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def held_for(watcher: int, worker: int) -> set[int]:
    """The descriptors of the worker by which it holds its watcher: two pipes and a pidfd."""
    pipes = {os.readlink(f"/proc/{watcher}/fd/{number}") for number in (0, 1)}
    place = Path(f"/proc/{worker}")
    return {
        int(fd.name)
        for fd in (place / "fd").iterdir()
        if os.readlink(fd) in pipes
        or f"Pid:\t{watcher}\n" in (place / "fdinfo" / fd.name).read_text()
    }


@pytest.mark.parametrize("free", range(2, 6))
def test_whichever_descriptor_the_watcher_lacks_it_is_started_later(
    hf: SyncClient, home: str, free: int
) -> None:
    """It takes two pipes and a pidfd; the worker itself may let go of one or two meanwhile."""
    process = hf.spawn("cat", tty=True)
    worker = hf.keeper_status()["worker"]
    (watcher,) = wait_until(lambda: watchers_below(worker))
    hf.keeper_status()  # the round in which it was started is over
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: (found := stat(worker)) is not None and found.state == "T")
    used = {int(name) for name in os.listdir(f"/proc/{worker}/fd")} - held_for(watcher, worker)
    most = [number for number in range(256) if number not in used][free]
    with descriptors(worker, most):
        os.kill(watcher, signal.SIGKILL)
        os.kill(worker, signal.SIGCONT)
        wait_until(
            lambda: (
                "the watcher cannot be started" in journal(home)
                or watchers_below(worker) not in ([], [watcher])
            )
        )
    wait_until(lambda: watchers_below(worker) not in ([], [watcher]))
    assert hf.keeper_status()["worker"] == worker, journal(home)
    assert process.kill(grace=0).record.status == "killed"


def test_a_client_that_cannot_be_looked_at_is_told_that_descriptors_are_missing(
    hf: SyncClient, home: str
) -> None:
    """One for its connection, none for a look at who it is: it is not taken for a stranger."""
    worker = hf.keeper_status()["worker"]
    with (
        descriptors(worker, first_free_descriptor(worker) + 1),
        pytest.raises(SpawnError, match="out of descriptors"),
        connect(session="another"),
    ):
        pass
    with connect(session="another") as another:
        assert another.keeper_status()["worker"] == worker
