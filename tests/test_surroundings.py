"""The suite itself: it comes to the same wherever it is started.

Some of its files are run again in each of the surroundings: those whose tests interrupt programs,
take terminals and look at who may read what.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).parent
FILES = ("attach", "cli", "security", "sessions")
TOUCHY = "interrupt or hangup or signal or orderly or handler or umask"
SURROUNDINGS = {
    "a background job under nohup": "trap '' HUP INT QUIT; exec {}",
    "no terminal": "exec setsid {}",
    "nobody may read what it makes": "umask 0777; exec {}",
    "everybody may write what it makes": "umask 0; exec {}",
}


@pytest.mark.weight(30)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", SURROUNDINGS)
def test_it_comes_to_the_same(tmp_path: Path, where: str) -> None:
    """Signals, umask and terminal are the tests' own, and a place may have a space in its name."""
    options = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", TOUCHY]
    files = [str(next(TESTS.rglob(f"test_{name}.py"))) for name in FILES]
    command = [sys.executable, "-m", "pytest", *options, f"--basetemp={tmp_path}/a place", *files]
    done = subprocess.run(
        ["sh", "-c", SURROUNDINGS[where].format('"$@"'), "sh", *command],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=850,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
