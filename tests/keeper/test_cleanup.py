"""What is over leaves nothing behind: no process, control group, tmux session, socket or FIFO.

Looked for among all that the machine has: every process, every control group, every file of the
home.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SyncProcess, connect
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.linux.cgroup import V2, own_groups, remove
from holdfast.testing import wait_until
from tests.contained import BEST, MODES, groups_of, inhabited, kind, mode_of
from tests.traces import Traces

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]

__all__ = ["kind"]  # a fixture of the tests below


@pytest.fixture
def traces(home: str, tmp_path: Path) -> Traces:
    return Traces(home)


HOST = """
import os, signal, sys
import holdfast

hf = holdfast.connect(session="host", lease_grace=0.5).__enter__()
scrubs = [sys.executable, "-IS", sys.argv[1]]
for mode in ({}, {"tty": True}, {"tmux": True}):
    running = hf.spawn(scrubs, grace=0.1, **mode)
    ended = hf.spawn([*scrubs, "3"], grace=0.1, **mode)
    asks = hf.spawn("read line", stdin=True, **mode)
    while "ready" not in running.read_at(0).text + ended.read_at(0).text: pass
print("ready", flush=True)
if sys.argv[2] == "closes":
    hf.end_session()
    os._exit(0)
signal.pause()
"""


def start_host(then: str) -> subprocess.Popen[str]:
    scrubs = str(Path(__file__).parents[1] / "children" / "scrubs.py")
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, scrubs, then], stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    assert host.stdout.readline() == "ready\n"
    host.stdout.close()
    return host


def only_the_keeper_is_left(traces: Traces) -> None:
    """Nothing that runs, but the keeper and what it has for the next one."""

    def rest() -> list[str]:
        alien = [
            line
            for line in traces.new_processes()
            if "keeper/__main__" not in line and "holdfast/watcher" not in line
        ]
        files = [name for name in traces.special_files() if not name.startswith("spare")]
        return alien + [name for name in files if name not in ("keeper.sock", "tmux.sock")]

    try:
        wait_until(lambda: not rest())
    except AssertionError:
        assert rest() == []


@pytest.mark.parametrize("then", ["closes", "is killed"])
def test_a_session_that_is_over_leaves_nothing_that_runs(
    traces: Traces, kind: str, then: str
) -> None:
    """Closed in good order, or its agent killed with -9 and the grace over: in every mode."""
    host = start_host(then)
    if then == "is killed":
        host.kill()
    host.wait()
    only_the_keeper_is_left(traces)
    person = open_client(Home(traces.home), None)
    records, _ = person.store.scan()
    assert len(records) == 9
    assert not any(record.running for record in records)
    person.keeper_stop()
    person.close()
    wait_until(lambda: not traces.new_processes(), what="the watcher goes after the keeper")
    assert traces.special_files() == []
    assert groups_of(traces.home) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_removed_process_leaves_nothing_at_all(
    traces: Traces, kind: str, child: Child, ready: Ready, mode: str
) -> None:
    with connect(session="test") as hf:
        running = ready(hf.spawn(child("scrubs"), grace=0.1, **mode_of(mode)))
        ended = ready(hf.spawn(child("scrubs", "3"), grace=0.1, **mode_of(mode)))
        assert ended.wait(30).code == 3
        handles = [running.handle, ended.handle]
        assert traces.of(handles)
        running.remove()
        ended.remove()
        assert traces.of(handles) == []
        only_the_keeper_is_left(traces)
        hf.keeper_stop()
    assert groups_of(traces.home) == []


def test_a_keeper_that_goes_by_itself_leaves_nothing(
    traces: Traces, kind: str, child: Child, ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has nothing to keep any more, and nobody is connected."""
    monkeypatch.setenv("HOLDFAST_KEEPER_IDLE", "100ms")
    with connect(session="test") as hf:
        for mode in MODES:
            ready(hf.spawn(child("scrubs"), grace=0.1, **mode_of(mode)))
        for mode in MODES:
            assert hf.spawn("exit 3", memory="64MiB", **mode_of(mode)).wait(30).code == 3
    wait_until(lambda: not traces.new_processes(), what="the keeper goes")
    assert traces.special_files() == []
    assert groups_of(traces.home) == []


def test_a_forgotten_process_leaves_no_group(
    traces: Traces, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if somebody was still in it when the process itself ended."""
    monkeypatch.setenv("HOLDFAST_MAX_FINISHED", "2")
    with connect(session="test") as hf:
        for _ in range(20):
            assert hf.spawn("sleep 0.2 > /dev/null 2>&1 &").wait(30).ok
        wait_until(lambda: not inhabited(traces.home))
        for _ in range(2):
            assert hf.spawn("true").wait(30).ok
        # One that is ready, and what it is in, in each tree.
        wait_until(lambda: len(groups_of(traces.home)) <= 8)


def start_keeper(home: str, before: str) -> None:
    """A keeper for this home, started after these commands of a shell."""
    code = f"import holdfast\nwith holdfast.connect(home={home!r}): pass"
    command = f"{before}\nexec {shlex.join([sys.executable, '-c', code])}"
    subprocess.run(["unshare", "-m", "sh", "-ec", command], check=True, timeout=60)


if os.geteuid() == 0:

    def test_a_keeper_does_with_a_proc_that_it_cannot_write_to(home: str) -> None:
        """As in a container: then the kernel does not prefer what it keeps to others."""
        start_keeper(home, "mount --bind -o ro /proc /proc")
        with connect(session="test") as hf:
            for mode in MODES:
                assert hf.spawn("exit 3", **mode_of(mode)).wait(30).code == 3


if os.geteuid() == 0 and BEST == "cgroup":

    def test_a_keeper_stays_within_a_group_that_has_a_name_like_ours(home: str) -> None:
        """Whoever limited it there meant it so."""
        unit = f"{own_groups()[V2]}/holdfast-agent-{os.getpid()}.service"
        os.mkdir(unit)
        try:
            start_keeper(home, f"echo 0 > {unit}/cgroup.procs")
            with connect(session="test") as hf:
                (group,) = hf.spawn("sleep 1000").record.cgroups
                assert group.startswith(f"{unit}/")
                hf.stop_all(grace=0)
                hf.keeper_stop()
        finally:
            wait_until(lambda: remove([unit]))


@pytest.mark.weight(5)
@pytest.mark.parametrize("half", ["guard", "worker", "both"])
def test_a_killed_keeper_leaves_nothing_that_the_next_one_does_not_remove(
    traces: Traces,
    kind: str,
    child: Child,
    ready: Ready,
    kill_both: Callable[..., None],
    half: str,
) -> None:
    """Spare groups, sockets and FIFOs of a keeper that was killed with -9 go with its successor."""
    with connect(session="test") as hf:
        for mode in MODES:
            ready(hf.spawn(child("scrubs"), grace=0.1, memory="64MiB", **mode_of(mode)))
            assert hf.spawn("exit 3", **mode_of(mode)).wait(30).code == 3
        if half == "both":
            kill_both(hf)
        else:
            os.kill(hf.keeper_status()[half], signal.SIGKILL)
    only_the_keeper_is_left(traces)
    person = open_client(Home(traces.home), None)
    person.keeper_stop()
    person.close()
    wait_until(lambda: not traces.new_processes(), what="the watcher goes after the keeper")
    assert traces.special_files() == []
    assert groups_of(traces.home) == []
