"""The protocol's own conformance suite against the MCP server, over HTTP, in both eras."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SUITE = TESTS.parent / ".tools" / "conformance" / "node_modules"
# The suite for each era, how it is asked for everything it has, and the least that has to pass.
ERAS = {
    "handshake": (["--suite", "all"], 20),
    "stateless": (["--suite", "all", "--spec-version", "2026-07-28"], 20),
}


@pytest.fixture
def url(
    home: str, no_leaks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A server with the suite's tools added; without a token, which the suite cannot show."""
    monkeypatch.chdir(tmp_path)
    server = subprocess.Popen(
        [sys.executable, str(TESTS / "mcp_fixtures.py")], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    yield server.stderr.readline().strip().removeprefix("holdfast mcp: ")
    server.send_signal(signal.SIGTERM)
    server.communicate(timeout=30)


@pytest.mark.long
@pytest.mark.parametrize("era", ERAS)
def test_the_conformance_suite_finds_only_what_we_do_not_offer(
    url: str, tmp_path: Path, era: str
) -> None:
    """Every scenario passes but those listed in `tests/data/conformance`, and those do fail."""
    if not (SUITE / ".bin" / "node").exists():
        if os.environ.get("CI") == "true":
            pytest.fail("the conformance suite is missing: `.ci/setup tools` installs it")
        pytest.skip("the conformance suite is not installed; `.ci/setup tools` does that")
    options, least = ERAS[era]
    expected = TESTS / "data" / "conformance" / f"{era}.yml"
    done = subprocess.run(
        [
            str(SUITE / ".bin" / "node"),
            str(SUITE / era / "dist" / "index.js"),
            *("server", "--url", url, *options),
            *("--expected-failures", str(expected), "-o", str(tmp_path / "results")),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.findall(r"^✓ ", re.sub(r"\x1b\[[0-9;]*m", "", done.stdout), re.MULTILINE)
    assert len(passed) >= least, done.stdout[-4000:]
