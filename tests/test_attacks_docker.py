"""Attacks by a command in a container on what it is confined by: none of them gets out.

As in `test_attacks`, commands run one after the other; each is in a container of its own, which is
given the same directory again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import BadDirectory, SyncClient, connect
from holdfast.testing import end_keeper
from tests.mcp_servers import wire
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = [pytest.mark.usefixtures("engine"), pytest.mark.long]
BOX = "hfbox"


@pytest.fixture
def user(engine: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A person's directory, where the agent works, with the usual home two levels inside."""
    with tempfile.TemporaryDirectory(prefix="hfa") as place:
        path = Path(os.path.realpath(place)) / "user"
        path.mkdir()
        monkeypatch.setenv("HOME", str(path))
        for name in list(os.environ):
            if name.startswith(("HOLDFAST_", "XDG_")):
                monkeypatch.delenv(name)
        monkeypatch.chdir(path)
        yield path


@pytest.fixture
def usual(user: Path) -> Iterator[str]:
    path = str(user / ".local/state/holdfast")
    yield path
    end_keeper(path)


def output(hf: SyncClient, command: str, **docker: Any) -> str:
    process = hf.spawn(command, docker={"image": BOX, **docker})
    process.wait(60)
    return process.read_at(0).text


@pytest.mark.parametrize("dialect", ["dodo", "deepchat", "mcp"])
def test_no_directory_on_the_way_to_the_home_can_be_moved(
    user: Path, usual: str, dialect: str
) -> None:
    """Not from the first container for the second, though root is in it."""
    moves = (
        "mv .local .l2; mv .local/state .local/s2; mv .local/state/holdfast h2; mkdir bait; "
        "rm -rf .local; mv bait .local; ln -s /etc .local/state/link; echo tried"
    )
    look = f"ls -A {usual}; find . -name '*.sock' -o -name '*.meta.json' | wc -l > seen"
    with connect(session="test") as hf:
        if dialect == "mcp":
            with wire("--session", "test", "--docker", BOX) as server:
                for command in (moves, look):
                    server.call("spawn_process", command=command, wait=True)
        else:
            tools = toolset(hf, dialect, docker=BOX)
            for command in (moves, look):
                if dialect == "dodo":
                    call(tools, "run_background", cmd=command)
                else:
                    call(tools, "execute_command", command=command, description="try it")
                for process in hf.list():
                    process.wait(60)
        assert (user / "seen").read_text().strip() == "0"
        assert os.path.exists(f"{usual}/keeper.sock")
        assert output(hf, "mv .local .l2").count("busy") == 1


def test_another_home_is_out_of_reach_too(hf: SyncClient, user: Path, usual: str) -> None:
    """The usual one, whoever uses it, and before anybody does: nobody inside makes it."""
    text = output(hf, f"mkdir -p {usual}/processes; mv .local x; ls {usual}")
    assert "busy" in text
    assert text.split()[-1] == "processes"
    assert os.listdir(usual) == []
    with connect(home=usual, session="test") as theirs:
        theirs.spawn("true").wait(30)
        assert output(hf, f"ls -A {usual}") == ""


def test_what_the_next_container_is_given_cannot_be_exchanged(
    hf: SyncClient, user: Path, tmp_path: Path
) -> None:
    """A mount in the directory that is written to: the engine would follow a link put there."""
    (user / "data" / "deep").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").touch()
    mounts = [f"{user}/data/deep:/deep"]
    text = output(
        hf, f"mv data old; rmdir data/deep; ln -s {tmp_path}/secret data/deep2", mounts=mounts
    )
    assert text.count("busy") == 2
    assert output(hf, "ls /deep", mounts=mounts) == ""
    (user / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(BadDirectory, match=f"goes through the link {user}/link"):
        hf.spawn("ls /deep", docker={"image": BOX, "mounts": [f"{user}/link:/deep"]})


def test_a_home_behind_a_link_that_a_command_could_turn_is_refused(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir()
    (user / "link").symlink_to(tmp_path / "state")
    home = str(user / "link" / "home")
    monkeypatch.setenv("HOLDFAST_HOME", home)
    try:
        with connect(session="test") as hf:
            with pytest.raises(BadDirectory, match=f"name it {tmp_path}/state/home"):
                hf.spawn("true", docker=BOX)
            assert hf.list() == []
    finally:
        end_keeper(home)


def test_our_own_program_cannot_be_changed(home: str, tmp_path: Path) -> None:
    """Installed where the agent works, it is read-only there: it makes the next container."""
    work = tmp_path / "work"
    compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(os.path.dirname(holdfast.__file__), work / "lib/holdfast", ignore=compiled)
    program = (
        "import holdfast, sys\n"
        "with holdfast.connect(session='test') as hf:\n"
        "    process = hf.spawn(sys.argv[1], cwd=sys.argv[2], docker='hfbox')\n"
        "    process.wait(60)\n"
        "    print(process.read_at(0).text)\n"
    )
    command = "touch mine; echo x >> lib/holdfast/testing.py; mv lib lib2; rmdir lib/holdfast"
    done = subprocess.run(
        [sys.executable, "-c", program, command, str(work)],
        env={**os.environ, "PYTHONPATH": str(work / "lib")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.count("Read-only file system") == 1, done
    assert done.stdout.count("busy") == 2, done
    assert (work / "mine").exists()
