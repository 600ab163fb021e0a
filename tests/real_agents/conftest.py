"""The agents that are driven here: `.ci/setup agents` installs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parents[2] / ".tools" / "agents" / "node_modules" / ".bin"


@pytest.fixture(scope="session")
def agents() -> Path:
    """The directory of the programs claude, codex, gemini and opencode, and of their node."""
    if not (PROGRAMS.parents[1] / "installed.json").exists():
        if os.environ.get("CI") == "true":
            pytest.fail("the agents are missing: `.ci/setup agents` installs them")
        pytest.skip("the agents are not installed; `.ci/setup agents` does that")
    return PROGRAMS
