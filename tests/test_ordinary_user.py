"""The same without the rights of root: whole files of tests, run again as an ordinary user.

Once with no control group to be had, and once with one that was given to the user. Who is no root
already runs them so.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.linux.cgroup import V2, own_groups, remove
from holdfast.testing import wait_until
from tests.contained import BEST

pytestmark = pytest.mark.long

TESTS = Path(__file__).parent
NOBODY = 65534
ALONE = (
    "attacks",
    "cleanup",
    "clone",
    "containment",
    "faults",
    "hoppers",
    "kill",
    "limits",
    "sandbox",
)
GIVEN = ("cleanup", "clone", "containment", "limits")
DELEGATED = ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")


def closed(path: Path) -> Path | None:
    """The outermost directory on the way to a file that others may not go through."""
    for directory in reversed(path.parents):
        if not directory.stat().st_mode & 0o001:
            return directory
    return None


def opened(path: Path, stage: Path) -> list[str]:
    """Shell commands that make a file reachable for others, in a mount namespace of their own."""
    directory = closed(path)
    if directory is None:
        return []
    inner = stage / path.relative_to(directory)
    commands = [
        ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(stage)],
        ["mkdir", "-p", str(inner)],
        ["mount", "--bind", str(path), str(inner)],
        ["mount", "--rbind", str(stage), str(directory)],
    ]
    return [shlex.join(command) for command in commands]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory of the user's, with a short name: sockets are made in it."""
    path = Path("/tmp") / f"holdfast-nobody-{os.getpid()}"
    path.mkdir(mode=0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group that is the user's, as systemd delegates one."""
    path = Path(own_groups()[V2]) / f"test-{os.getpid()}"
    path.mkdir()
    for each in (path, *(path / name for name in DELEGATED)):
        os.chown(each, NOBODY, NOBODY)
    yield path
    wait_until(lambda: remove([str(path)]), what="the group can be removed")


def run_as_nobody(place: Path, name: str, group: Path | None) -> str:
    user, stage = place / "user", place / "stage"
    stage.mkdir()
    user.mkdir(mode=0o700)
    os.chown(user, NOBODY, NOBODY)
    commands = ["set -e", *opened(Path(sys.base_prefix).resolve(), stage)]
    if group is not None:
        commands.append(f"echo 0 > {shlex.quote(str(group))}/cgroup.procs")
    who = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all"]
    pytest_options = [
        "-q",
        "-m",
        "long or not long",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        f"--basetemp={user}/t",
    ]
    file = next(TESTS.rglob(f"test_{name}.py"))
    tests = [sys.executable, "-m", "pytest", *pytest_options, str(file)]
    commands.append(f"exec {shlex.join([*who, *tests])}")
    done = subprocess.run(
        ["unshare", "--mount", "--propagation=private", "sh", "-c", "\n".join(commands)],
        cwd=TESTS.parent,
        env={
            **os.environ,
            "HOME": str(user),
            "TMPDIR": str(user),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(user / "hypothesis"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout


if os.geteuid() == 0:

    @pytest.mark.weight(60)
    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize("name", ALONE)
    def test_it_holds_for_an_ordinary_user(place: Path, name: str) -> None:
        """With no control group: the marks that everything inherits, and limits of each process."""
        assert " passed" in run_as_nobody(place, name, None)


if os.geteuid() == 0 and BEST == "cgroup":

    @pytest.mark.weight(60)
    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize("name", GIVEN)
    def test_it_holds_for_a_user_with_a_control_group(place: Path, name: str, group: Path) -> None:
        assert " passed" in run_as_nobody(place, name, group)
