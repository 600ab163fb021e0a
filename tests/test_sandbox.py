"""A sandbox: one directory to write to, nobody else to be seen, no network unless asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import (
    BadDirectory,
    BadRequest,
    NotExecutable,
    SyncClient,
    SyncProcess,
    Unavailable,
    _sandbox,
)
from holdfast._kernel import stat
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.contained import LIMITING, MODES, mode_of
else:
    from contained import LIMITING, MODES, mode_of

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]
CHILDREN = Path(__file__).parent / "children"


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
        return [sys.executable, "-IS", f"{name}.py", *arguments]

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
    assert process.record.sandbox == {"network": False}


@pytest.mark.parametrize("mode", MODES)
def test_nobody_else_is_to_be_seen(hf: SyncClient, work: Path, mode: str) -> None:
    command = "ls /proc | grep -c '^[0-9]'; cat /proc/1/comm"
    process = hf.spawn(command, cwd=work, sandbox=True, **mode_of(mode))
    process.wait(30)
    count, first = process.read_at(0).text.split()
    assert int(count) < 10
    assert first == "bwrap"


def test_the_network_is_there_when_it_is_asked_for(hf: SyncClient, work: Path) -> None:
    command = "tail -n +3 /proc/net/dev | wc -l"
    without = hf.spawn(command, cwd=work, sandbox=True)
    within = hf.spawn(command, cwd=work, sandbox={"network": True})
    without.wait(30)
    within.wait(30)
    with open("/proc/net/dev") as file:
        here = len(file.readlines()) - 2
    assert without.read_at(0).text == "1\n"
    assert within.read_at(0).text == f"{here}\n"
    assert within.record.sandbox == {"network": True}


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
    hf: SyncClient, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not installed, or one that can make no sandbox: nothing is started."""
    monkeypatch.setattr(_sandbox, "_works", set())
    monkeypatch.setenv("PATH", str(work))
    with pytest.raises(Unavailable, match="install it"):
        hf.spawn("true", cwd=work, sandbox=True)
    refuses = work / "bwrap"
    refuses.write_text("#!/bin/sh\necho bwrap: no permission for a new namespace >&2\nexit 1\n")
    refuses.chmod(0o755)
    with pytest.raises(Unavailable, match=r"new namespace\); allow user namespaces"):
        hf.spawn("true", cwd=work, sandbox=True)
    assert hf.list() == []


if os.geteuid() == 0:
    FIND = "from holdfast import _sandbox; print(_sandbox.problem())"

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
    process = hf.spawn(
        [sys.executable, "-c", "import os; print(os.getcwd())"], cwd=work, sandbox=True
    )
    process.wait(30)
    assert process.read_at(0).text == f"{os.path.realpath(work)}\n"
