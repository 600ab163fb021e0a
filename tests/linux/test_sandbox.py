"""A sandbox: one directory to write to, nobody else to be seen, no network unless asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import (
    BadDirectory,
    BadRequest,
    NotExecutable,
    SyncClient,
    SyncProcess,
    Unavailable,
    connect,
)
from holdfast.core.machine import machine
from holdfast.linux import sandbox
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until
from tests.contained import LIMITING, MODES, mode_of

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]
CHILDREN = Path(__file__).parents[1] / "children"
PYTHON = os.path.realpath(sys.executable)  # an environment in /tmp is not there in a sandbox


@pytest.fixture
def work(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def child(work: Path) -> Child:
    """A program of ``tests/children``, where the sandbox can see it."""

    def command(name: str, *arguments: str) -> list[str]:
        shutil.copy(CHILDREN / f"{name}.py", work)
        return [PYTHON, "-IS", f"{name}.py", *arguments]

    return command


@pytest.mark.parametrize("mode", MODES)
def test_only_the_working_directory_can_be_written_to(
    hf: SyncClient, work: Path, mode: str
) -> None:
    """Elsewhere it is refused; /tmp is its own, and the keeper's home is not there."""
    command = (
        "touch here; touch /etc/there; touch /usr/there; echo mine > /tmp/mine; cat /tmp/mine; "
        "ls $HOLDFAST_HOME | wc -l; exit 7"
    )
    process = hf.spawn(command, cwd=work, sandbox=True, **mode_of(mode))
    end = process.wait(30)
    text = process.read_at(0).text
    assert (end.status, end.code) == ("failed", 7), text
    assert (work / "here").exists()
    assert not Path("/etc/there").exists()
    assert text.count("Read-only file system") == 2
    assert "mine" in text
    assert text.split()[-1] == "0"
    assert process.record.sandbox == {"network": False, "sockets": False}


@pytest.mark.parametrize("mode", MODES)
def test_nobody_else_is_to_be_seen(hf: SyncClient, work: Path, mode: str) -> None:
    command = "ls /proc | grep -c '^[0-9]'; cat /proc/1/comm"
    process = hf.spawn(command, cwd=work, sandbox=True, **mode_of(mode))
    process.wait(30)
    count, first = process.read_at(0).text.split()
    assert int(count) < 10
    assert first == "bwrap"


def test_the_network_is_there_when_it_is_asked_for(hf: SyncClient, work: Path) -> None:
    command = "readlink /proc/self/ns/net; tail -n +3 /proc/net/dev | wc -l"
    without = hf.spawn(command, cwd=work, sandbox=True)
    within = hf.spawn(command, cwd=work, sandbox={"network": True})
    without.wait(30)
    within.wait(30)
    here = os.readlink("/proc/self/ns/net")
    assert within.read_at(0).text.split()[0] == here
    namespace, interfaces = without.read_at(0).text.split()
    assert namespace != here
    assert interfaces == "1"
    assert within.record.sandbox == {"network": True, "sockets": False}


@pytest.mark.parametrize("mode", MODES)
def test_signals_reach_the_command(
    hf: SyncClient, child: Child, ready: Ready, work: Path, mode: str
) -> None:
    """A signal is the command's to handle, and a polite kill lets it end by itself."""
    process = ready(hf.spawn(child("names_signals"), cwd=work, sandbox=True, **mode_of(mode)))
    process.signal("USR1")
    wait_until(lambda: "SIGUSR1" in process.read_at(0).text)
    assert process.refresh().running
    polite = ready(hf.spawn(child("exits_on_term", "43"), cwd=work, sandbox=True, grace=60))
    receipt = polite.kill()
    assert (receipt.forced, receipt.record.exit_code, receipt.survivors) == (False, 43, [])


@pytest.mark.parametrize("mode", MODES)
def test_a_kill_ends_all_that_is_inside(
    hf: SyncClient, child: Child, ready: Ready, work: Path, mode: str
) -> None:
    process = ready(hf.spawn(child("scrubs"), cwd=work, sandbox=True, grace=0.2, **mode_of(mode)))
    receipt = process.kill()
    assert receipt.survivors == []
    assert stat(process.record.pid or 0) is None


def test_keys_reach_the_foreground(hf: SyncClient, work: Path) -> None:
    """Ctrl-C in its terminal interrupts the command and not the sandbox around it."""
    command = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    process = hf.spawn(command, cwd=work, sandbox=True, tty=True)
    wait_until(lambda: "ready" in process.read_at(0).text)
    process.keys("C-c")
    end = process.wait(30)
    assert (end.code, "caught" in process.read_at(0).text) == (5, True)


def test_a_missing_program_is_still_an_error(hf: SyncClient, work: Path) -> None:
    with pytest.raises(NotExecutable):
        hf.spawn(["no-such-program-here"], cwd=work, sandbox=True)


def test_limits_hold_inside(hf: SyncClient, child: Child, work: Path) -> None:
    process = hf.spawn(child("eats_memory", "200"), cwd=work, sandbox=True, memory="64MiB")
    end = process.wait(60)
    by_group = process.record.limits["memory"]["by"] != "rlimit"
    assert (end.status, end.reason) == ("failed", "out_of_memory" if by_group else "exited")
    assert by_group is ("memory" in LIMITING)


def test_where_bubblewrap_refuses_the_error_says_what_to_do(
    hf: SyncClient, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not installed, or one that can make no sandbox: nothing is started."""
    monkeypatch.setattr(sandbox, "_works", set())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="install it"):
        hf.spawn("true", cwd=work, sandbox=True)
    refuses = tmp_path / "bwrap"
    refuses.write_text("#!/bin/sh\necho bwrap: no permission for a new namespace >&2\nexit 1\n")
    refuses.chmod(0o755)
    with pytest.raises(Unavailable, match=r"new namespace\); allow user namespaces"):
        hf.spawn("true", cwd=work, sandbox=True)
    with pytest.raises(Unavailable, match=f"one outside of {tmp_path}"):
        hf.spawn("true", cwd=tmp_path, sandbox=True)
    assert hf.list() == []


if os.geteuid() == 0:
    FIND = "from holdfast.linux import sandbox; print(sandbox.problem())"

    def problem_of(*who: str) -> str:
        """What an ordinary user is told, who can read all that root can."""
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        user += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        user += ["--securebits=+no_setuid_fixup"]
        found = subprocess.run(
            [*who, *user, sys.executable, "-c", FIND],
            capture_output=True,
            text=True,
            timeout=30,
        )
        return found.stdout.strip()

    def test_who_has_ambient_capabilities_is_told_to_drop_them() -> None:
        """As bubblewrap refuses them; in one line."""
        said = problem_of()
        assert "\n" not in said
        assert said.endswith("(`setpriv --ambient-caps=-all ...`)")


def test_the_whole_machine_is_no_sandbox(hf: SyncClient) -> None:
    with pytest.raises(BadDirectory, match="sandbox"):
        hf.spawn("true", cwd="/", sandbox=True)


def test_options_that_make_no_sense_are_refused(hf: SyncClient) -> None:
    with pytest.raises(BadRequest, match="sandbox"):
        hf.spawn("true", sandbox={"internet": True})


def test_the_interpreter_runs_inside(hf: SyncClient, work: Path) -> None:
    process = hf.spawn([PYTHON, "-c", "import os; print(os.getcwd())"], cwd=work, sandbox=True)
    process.wait(30)
    assert process.read_at(0).text == f"{os.path.realpath(work)}\n"


def test_root_cannot_undo_it(hf: SyncClient, work: Path) -> None:
    """Whoever runs it: what is read-only stays so, and there is no way to another control group."""
    command = (
        "mount -o remount,bind,rw / && echo undone; "
        "for tree in /sys/fs/cgroup /sys/fs/cgroup/*/; do "
        "mount -o remount,bind,rw $tree && echo undone; mkdir $tree/escaped && echo undone; done; "
        "mknod disk b 8 0 && echo undone; : > /proc/sysrq-trigger && echo undone; "
        "cat /proc/sys/kernel/core_pattern > was && "
        "cat was > /proc/sys/kernel/core_pattern && echo undone; echo tried"
    )
    process = hf.spawn(command, cwd=work, sandbox=True)
    assert process.wait(30).ok
    text = process.read_at(0).text
    assert "undone" not in text
    assert text.endswith("tried\n")


def test_what_belongs_to_somebody_else_can_be_written_to_by_root(
    hf: SyncClient, work: Path
) -> None:
    """In its own directory root is root."""
    if os.geteuid() != 0:
        return
    os.chown(work, 65534, 65534)
    work.chmod(0o700)
    assert hf.spawn("touch made; chown 65534 made", cwd=work, sandbox=True).wait(30).ok
    assert (work / "made").stat().st_uid == 65534


def test_another_keeper_and_an_engine_are_no_way_out(
    hf: SyncClient, work: Path, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    """Sockets need no network; the usual ones are not there, though their directory is."""
    user = work / "user"
    usual = user / ".local" / "state" / "holdfast"
    (user / ".docker" / "run" / "docker.sock").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{work}/docker.sock")
    engine = socket.socket(socket.AF_UNIX)
    with contextlib.closing(engine), connect(home=usual, session=session) as other:
        engine.bind(f"{work}/docker.sock")
        other.spawn("true").wait(30)
        command = (
            f"[ -S {work}/docker.sock ] && echo engine; ls {usual} | wc -l; "
            f"ls {user}/.docker/run | wc -l"
        )
        process = hf.spawn(command, cwd=work, sandbox={"network": True})
        assert process.wait(30).ok
        assert process.read_at(0).text == "0\n0\n"


def test_a_keeper_sees_that_a_client_is_in_a_sandbox(
    hf: SyncClient, work: Path, session: str
) -> None:
    """What a client says of its machine is not believed: pids would not mean the same to both."""
    home, gate = work / "home", work / "gate"
    os.mkfifo(gate)
    compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(os.path.dirname(holdfast.__file__), work / "holdfast", ignore=compiled)
    program = (
        "import holdfast, holdfast.linux.kernel as kernel\n"
        f"kernel.machine = lambda: {machine()!r}\n"
        "from holdfast.core.home import Home\n"
        "from holdfast.client.connect import open_client\n"
        f"open({str(gate)!r}).read()\n"
        f"try: open_client(Home({str(home)!r}), None).spawn('true')\n"
        "except holdfast.KeeperError as error: print(error)\n"
    )
    process = hf.spawn(
        [PYTHON, "-c", program],
        cwd=work,
        sandbox={"sockets": True},
        env={"PYTHONPATH": str(work)},
    )
    with connect(home=home, session=session) as other:  # later: it would not be seen otherwise
        other.spawn("true").wait(30)
        gate.write_text("")
        process.wait(60)
    assert "another container" in process.read_at(0).text


def test_a_program_whose_path_looks_like_a_variable(hf: SyncClient, work: Path) -> None:
    place = work / "a=b"
    place.mkdir()
    tool = place / "tool"
    tool.write_text('#!/bin/sh\necho right "$@"\n')
    tool.chmod(0o700)
    process = hf.spawn([str(tool), "echo", "wrong"], cwd=work, sandbox=True)
    process.wait(30)
    assert process.read_at(0).text == "right echo wrong\n"


def test_a_program_that_is_hidden_is_an_error(hf: SyncClient, home: str, work: Path) -> None:
    """It would not be found inside; and the home itself is no place for a sandbox."""
    with tempfile.TemporaryDirectory(dir="/tmp") as hidden:
        tool = Path(hidden) / "tool"
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o700)
        with pytest.raises(NotExecutable, match="not to be seen in the sandbox"):
            hf.spawn([str(tool)], cwd=work, sandbox=True)
    hf.spawn("true").wait(30)
    with pytest.raises(BadDirectory, match="own home"):
        hf.spawn("true", cwd=home, sandbox=True)
