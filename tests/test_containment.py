"""Stopped means stopped: nothing that a process started survives it, whatever that did to itself.

Each test runs with every containment that can be had here. The last one runs all of them again as
an ordinary user.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import SyncClient, SyncProcess, connect
from holdfast._cgroup import V2, Trees, own_groups, remove
from holdfast._home import Home, new_handle
from holdfast._kernel import all_processes, mark_number, marked_number, stat
from holdfast._sync import open_client
from holdfast.keeper import clone
from holdfast.testing import end_keeper, wait_until

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]

GIVEN = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")
MODES = ("pipe", "pty", "tmux")
_BEST = Trees("nowhere").kind()
KINDS = ["tree"] if _BEST == "tree" else [_BEST, "tree"]
if Trees("nowhere").usable("freezer") and _BEST == "cgroup":
    KINDS.insert(1, "cgroup-v1")
Trees("nowhere").clean_up(going=True)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, home: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What contains the processes of the test."""
    wanted: str = request.param
    if wanted != _BEST:
        monkeypatch.setenv("HOLDFAST_CONTAINMENT", wanted)
    return wanted


@pytest.fixture
def hf(home: str, kind: str) -> Iterator[SyncClient]:
    with connect(session="test") as client:
        yield client


def alive(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found.state not in "ZX"


def carriers(handle: str) -> list[int]:
    """Who carries the mark of a process that cannot be washed off."""
    number = mark_number(handle)
    return [
        found.pid
        for found in all_processes()
        if found.state not in "ZX" and marked_number(found.pid) == number
    ]


def daemon_of(process: SyncProcess) -> int:
    line = next(line for line in process.read_at(0).text.split("\n") if line.startswith("daemon"))
    return int(line.split()[1])


def mode_of(mode: str) -> dict[str, Any]:
    return {"tty": mode == "pty", "tmux": mode == "tmux"}


def test_the_record_says_how_it_is_contained(hf: SyncClient, kind: str) -> None:
    """What was chosen is in the record, in what front ends show, and true."""
    process = hf.spawn("cat /proc/self/cgroup; sleep 1000")
    record = process.record
    assert (record.containment, record.public()["containment"]) == (kind, kind)
    assert len(record.cgroups) == (kind != "tree")
    wait_until(lambda: process.read_at(0).text.count("\n") > 0)
    groups = [os.path.basename(path) for path in record.cgroups]
    assert all(f"/{name}\n" in process.read_at(0).text for name in groups)
    assert hf.keeper_status()["containment"] == _BEST
    process.kill()
    assert not any(os.path.exists(path) for path in record.cgroups)


@pytest.mark.parametrize("mode", MODES)
def test_a_daemon_that_kept_nothing_of_its_origin_is_found(
    hf: SyncClient, child: Child, ready: Ready, mode: str
) -> None:
    """Forked twice, own session, empty environment, deaf to TERM: the kill ends it too."""
    process = ready(hf.spawn(child("scrubs"), grace=0.2, **mode_of(mode)))
    daemon = daemon_of(process)
    assert alive(daemon)
    receipt = process.kill()
    assert (receipt.survivors, receipt.forced) == ([], True)
    assert not alive(daemon)
    told = {entry["pid"]: entry for entry in receipt.processes}
    assert told[daemon]["signal"] == "SIGKILL"
    assert told[daemon]["name"].startswith("python")
    assert "survived" not in told[daemon]
    assert not any(os.path.exists(path) for path in receipt.record.cgroups)


@pytest.mark.parametrize("mode", MODES)
def test_what_changes_its_pid_all_the_time_is_caught(
    hf: SyncClient, child: Child, ready: Ready, tmp_path: Path, mode: str
) -> None:
    """A new pid, session and group every millisecond do not help."""
    place = tmp_path / "pid"
    process = ready(hf.spawn(child("hops", str(place)), grace=0.1, **mode_of(mode)))
    seen = place.read_text()
    wait_until(lambda: place.read_text() != seen)
    receipt = process.kill()
    assert receipt.survivors == []
    last = place.read_text()
    assert carriers(process.handle) == []
    assert place.read_text() == last


def test_a_deadline_ends_it_too(hf: SyncClient, child: Child, ready: Ready) -> None:
    process = ready(hf.spawn(child("scrubs"), grace=0.1, timeout=1.5))
    daemon = daemon_of(process)
    assert process.wait(30).status == "timed_out"
    wait_until(lambda: not alive(daemon))


def test_a_closed_session_leaves_nothing(home: str, kind: str, child: Child, ready: Ready) -> None:
    """Of what runs and of what has ended; what was to be kept stays."""
    with connect(session="closing") as client:
        running = ready(client.spawn(child("scrubs"), grace=0.2))
        ended = ready(client.spawn(child("scrubs", "0"), grace=0.2))
        kept = ready(client.spawn(child("scrubs", "0"), grace=0.2, keep=True))
        assert ended.wait(30).ok
        assert kept.wait(30).ok
        daemons = [daemon_of(process) for process in (running, ended, kept)]
    assert [alive(daemon) for daemon in daemons] == [False, False, True]
    with connect(session="closing") as client:
        assert client.get(kept.handle).kill(signal="KILL").survivors == []
    assert not alive(daemons[2])


def test_a_lost_client_leaves_nothing_after_the_grace(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """The agent was killed with -9; when its time is up, all of it is gone."""
    running, ended = new_handle(), new_handle()
    pid = os.fork()
    if pid == 0:
        try:
            client = connect(session="lost", lease_grace=0.5).__enter__()
            ready(client.spawn(child("scrubs"), grace=0.1, handle=running))
            ready(client.spawn(child("scrubs", "0"), grace=0.1, handle=ended))
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    wait_until(lambda: not carriers(running) + carriers(ended))


def test_killing_what_has_ended_ends_what_it_left(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """Its own end stands; the receipt says what else was done."""
    process = ready(hf.spawn(child("scrubs", "3"), grace=0.1))
    daemon = daemon_of(process)
    assert process.wait(30).code == 3
    assert alive(daemon), "an end by itself ends nobody else"
    receipt = process.kill()
    assert (receipt.already_ended, receipt.forced, receipt.survivors) == (True, True, [])
    assert [entry["pid"] for entry in receipt.processes] == [daemon]
    assert (receipt.record.status, receipt.record.exit_code) == ("failed", 3)
    assert not alive(daemon)
    again = process.kill()
    assert (again.already_ended, again.signalled, again.processes) == (True, 0, [])


def test_removing_what_has_ended_ends_what_it_left(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    process = ready(hf.spawn(child("scrubs", "0"), grace=0.1))
    daemon = daemon_of(process)
    assert process.wait(30).ok
    process.remove()
    assert not alive(daemon)


def test_what_left_something_behind_is_not_forgotten(
    home: str, child: Child, ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a daemon of it runs, its handle is there to end it by, if its group tells that."""
    monkeypatch.setenv("HOLDFAST_MAX_FINISHED", "2")
    with connect(session="small") as client:
        process = ready(client.spawn(child("scrubs", "0"), grace=0.1))
        assert process.wait(30).ok
        daemon = daemon_of(process)
        first = client.spawn("true")
        first.wait(30)
        for _ in range(3):
            client.spawn("true").wait(30)
        handles = [each.handle for each in client.list()]
        assert first.handle not in handles
        assert (process.handle in handles) is (_BEST != "tree")
        if process.handle in handles:
            process.kill()
        else:
            os.kill(daemon, signal.SIGKILL)
        wait_until(lambda: not alive(daemon))


@pytest.mark.parametrize("copy", [False, True])
def test_a_list_of_system_calls_starts_a_program(copy: bool) -> None:
    """With our memory shared or copied: its own session, descriptors, limits; exec's own error."""
    reader, writer = os.pipe()
    command = (
        "import os, resource as r; print(os.getsid(0) == os.getpid(), r.getrlimit(7), *os.environ)"
    )
    argv = ["python", "-ISc", command]
    actions: list[Any] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)]
    actions.append((os.POSIX_SPAWN_DUP2, writer, 1))
    pid = clone.start(sys.executable, argv, {"A": "1"}, actions, [], -1, [(7, 50)], copy=copy)
    os.close(writer)
    with open(reader) as file:
        assert file.read().split()[:4] == ["True", "(50,", "50)", "A"]
    assert os.waitpid(pid, 0)[1] == 0
    with pytest.raises(PermissionError):
        clone.start(os.devnull, ["x"], {}, [], [], -1, copy=copy)
    with pytest.raises(ValueError, match="null"):
        clone.start(sys.executable, ["a\0b"], {}, [], [], -1, copy=copy)


def test_nobody_else_is_touched(hf: SyncClient, child: Child, ready: Ready) -> None:
    """Another process with children of its own, and its daemon, go on."""
    other = ready(hf.spawn(child("scrubs")))
    process = ready(hf.spawn(child("scrubs"), grace=0.1))
    assert process.kill().survivors == []
    assert alive(daemon_of(other))
    assert other.refresh().running
    assert other.kill(grace=0).survivors == []


@pytest.mark.parametrize("half", ["guard", "worker"])
def test_what_a_dead_half_began_is_finished(
    hf: SyncClient, child: Child, ready: Ready, half: str
) -> None:
    """After a kill -9 of a half of the keeper the next one finds everything again."""
    process = ready(hf.spawn(child("scrubs"), grace=0.2))
    daemon = daemon_of(process)
    old = hf.keeper_status()[half]
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: hf.keeper_status()[half] != old)
    assert process.kill().survivors == []
    assert not alive(daemon)
    assert not any(os.path.exists(path) for path in process.record.cgroups)


def test_both_halves_dead_leave_nothing_that_cannot_be_killed(
    hf: SyncClient, child: Child, ready: Ready, kill_both: Callable[[SyncClient], None]
) -> None:
    process = ready(hf.spawn(child("scrubs"), grace=0.2))
    daemon = daemon_of(process)
    kill_both(hf)
    assert process.kill().survivors == []
    assert not alive(daemon)


def test_a_keeper_is_in_nobodys_group(
    hf: SyncClient, child: Child, ready: Ready, tmp_path: Path
) -> None:
    """A keeper that a contained process starts does not end with that process."""
    inner = str(tmp_path / "inner")
    code = f"""
import holdfast, signal
with holdfast.connect(home={inner!r}) as hf:
    hf.spawn("sleep 1000", keep=True)
print("ready", flush=True)
signal.pause()
"""
    process = ready(hf.spawn([sys.executable, "-c", code]))
    process.kill(grace=0)
    client = open_client(Home(inner), None)
    (record,), _ = client.store.scan()
    assert alive(record.pid or 0)
    assert client.keeper_status()["processes"] == 1
    client.close()
    end_keeper(inner)


def test_a_fork_bomb_is_cleared_by_one_kill(hf: SyncClient, child: Child, ready: Ready) -> None:
    """At its limit of processes, forking as fast as it can: one kill, and nothing is left."""
    process = ready(hf.spawn(child("forks_wildly", "120"), processes=60))
    begun = time.monotonic()
    receipt = process.kill(signal="KILL")
    assert time.monotonic() - begun < 30
    assert receipt.survivors == []
    assert carriers(process.handle) == []


@pytest.mark.parametrize("place", ["alone", "delegated"] if _BEST == "cgroup" else ["alone"])
def test_all_of_this_holds_for_an_ordinary_user(tmp_path: Path, place: str) -> None:
    """The same tests without the rights of root: with no group, and with one given to the user."""
    if os.geteuid() != 0:
        print(f"kinds: {KINDS[0]}")  # they just ran
        return
    setpriv = shutil.which("setpriv")
    assert setpriv, "setpriv (util-linux) is needed to become an ordinary user"
    home = Path("/tmp") / f"holdfast-nobody-{os.getpid()}"
    home.mkdir(mode=0o700)
    os.chown(home, 65534, 65534)
    # May read what root may, for an interpreter in root's home, and nothing else.
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    user = [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", *reads]
    user += ["--securebits=+no_setuid_fixup", sys.executable, "-m", "pytest", "-q"]
    group = Path(own_groups()[V2]) / f"test-{os.getpid()}" if place == "delegated" else None
    if group is not None:
        group.mkdir()
        for path in (group, *(group / name for name in GIVEN)):
            os.chown(path, 65534, 65534)
        join = f'echo 0 > {group}/cgroup.procs && exec "$@"'
        user = ["sh", "-c", join, "sh", *user]
    try:
        done = subprocess.run(
            [
                *user,
                "-s",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                f"--basetemp={home}/t",
                __file__,
            ],
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "HOME": str(home), "TMPDIR": str(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
        if group is not None:
            wait_until(lambda: remove([str(group)]), what="the group can be removed")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert f"kinds: {'cgroup' if group else 'tree'}" in done.stdout
