"""Settings on the command line: where each comes from, and how long what has ended is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast import SyncClient
from holdfast.core.home import Home
from holdfast.core.store import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.usefixtures("home")

DAY = 86400.0


def cli(*arguments: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done
    return done.stdout


def settings(home: str, text: str) -> str:
    Path(home).mkdir(mode=0o700, exist_ok=True)
    path = Path(home, "config.toml")
    path.write_text(text)
    return str(path)


def commented(text: str) -> dict[str, str]:
    """The comment behind each setting."""
    lines = [line.partition("  # ") for line in text.splitlines() if " = " in line]
    return {line.partition(" = ")[0].removeprefix("# "): comment for line, _, comment in lines}


def test_config_says_where_each_value_comes_from(home: str) -> None:
    """A default, the file, or the variable that counts more than it; in JSON as well."""
    path = settings(home, 'timeout = "1h"\ngrace = 2.5\n')
    text = cli("config", HOLDFAST_TIMEOUT="2h")
    found = commented(text)
    assert (found["timeout"], found["grace"]) == ("HOLDFAST_TIMEOUT", path)
    assert (found["log_cap"], found["size"]) == ("default", "default")
    sources = json.loads(cli("config", "--json", HOLDFAST_TIMEOUT="2h"))["sources"]
    assert (sources["timeout"], sources["grace"]) == ("HOLDFAST_TIMEOUT", path)
    assert (sources["log_cap"], sources["size"]) == ("default", "default")


def test_config_can_be_pasted_into_the_file(home: str) -> None:
    """What it prints, put into config.toml, gives the same settings, and sets no default."""
    settings(home, 'grace = "3s"\nsize = "100x30"\n')
    before = json.loads(cli("config", "--json"))
    assert before["sources"]["retention"] == "default"
    settings(home, cli("config"))
    after = json.loads(cli("config", "--json"))
    sources: dict[str, Any] = after.pop("sources")
    assert before.keys() - {"sources"} == after.keys()
    assert after == {key: before[key] for key in after}
    assert tomllib.loads(cli("config")).keys() == {"grace", "size"}
    assert {sources["grace"], sources["size"]} == {f"{home}/config.toml"}
    assert sources["retention"] == "default"


def test_config_says_which_home_and_session(home: str, tmp_path: Path) -> None:
    """An option before a variable, and where nobody said anything, the default."""
    assert cli("config").splitlines()[:2] == [
        f"# home: {home} (HOLDFAST_HOME)",
        "# session: default (default)",
    ]
    named = json.loads(cli("config", "--json", HOLDFAST_SESSION="s"))
    assert (named["session"], named["sources"]["session"]) == ("s", "HOLDFAST_SESSION")
    named = json.loads(cli("config", "--json", "--session", "t", HOLDFAST_SESSION="s"))
    assert (named["session"], named["sources"]["session"]) == ("t", "--session")
    usual = json.loads(cli("config", "--json", HOLDFAST_HOME="", XDG_STATE_HOME=str(tmp_path)))
    assert usual["home"] == f"{tmp_path}/holdfast"
    assert usual["sources"]["home"] == "XDG_STATE_HOME"


def retention(home: str, handle: str) -> float:
    return Store(Home(home)).load(handle).retention


def test_the_command_line_keeps_what_has_ended_for_a_day(home: str, hf: SyncClient) -> None:
    """A person comes back tomorrow. The library keeps its own, and a setting counts for both."""
    handle = cli("run", "-d", "--", "true").strip()
    assert retention(home, handle) == DAY
    assert retention(home, hf.spawn("true").handle) == 1800.0
    handle = cli("run", "-d", "--", "true", HOLDFAST_RETENTION="5m").strip()
    assert retention(home, handle) == 300.0
    settings(home, 'retention = "10m"\n')
    handle = cli("run", "-d", "--", "true").strip()
    assert retention(home, handle) == 600.0
    assert "retention = " in cli("config")


def test_config_tells_of_the_day(home: str) -> None:
    assert commented(cli("config"))["retention"] == "default; 1d for what `holdfast run` starts"
    settings(home, 'retention = "10m"\n')
    assert commented(cli("config"))["retention"] == f"{home}/config.toml"
