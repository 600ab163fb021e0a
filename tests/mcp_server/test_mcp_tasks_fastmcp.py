"""Our tasks with another implementation's client: `fastmcp-tasks`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mcp_servers import PROGRAM

CLIENT = Path(__file__).with_name("fastmcp_client.py")
WANTED = "fastmcp-tasks>=4.1,<5"


@pytest.fixture
def interpreter(tmp_path: Path) -> Path:
    """An environment of its own: the package brings some fifty others along."""
    place = tmp_path / "fastmcp"
    python = place / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    install = [str(python), "-m", "pip", "install", "-q", WANTED]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode != 0:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{WANTED} cannot be installed: {done.stderr[-500:]}")
        pytest.skip(f"{WANTED} cannot be installed here")
    return python


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.weight(60)
def test_the_client_of_fastmcp_drives_our_tasks(home: str, here: Path, interpreter: Path) -> None:
    """A blocking call comes back with its result, a form is answered, a task is cancelled."""
    done = subprocess.run(
        [str(interpreter), str(CLIENT), *PROGRAM], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["failed"]["exit_code"], found["failed"]["output"]) == (3, "over\n")
    assert found["answered"]["output"].splitlines()[-1] == "got yes"
    assert [question.endswith("asks: sure?") for question in found["asked"]] == [True]
    handle, before, after = found["task"]
    assert (handle[:5], before, after) == ("proc-", "working", "cancelled")
    statuses = {each["handle"]: each["status"] for each in found["listed"]["processes"]}
    assert statuses[handle] == "killed"
    assert "events" not in found["listed"]
