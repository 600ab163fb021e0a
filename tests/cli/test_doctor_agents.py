"""`doctor` on what agents use: the MCP server, and the hook that wakes Claude Code."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.shared_keeper, pytest.mark.usefixtures("home")]


def doctor(name: str, cwd: Path | None = None, **env: str) -> tuple[str, str]:
    """The state and text of one row."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor", "--json", name],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        timeout=120,
        check=True,
    )
    (row,) = json.loads(done.stdout)
    assert row["name"] == name
    return row["state"], row["text"]


# -- MCP -------------------------------------------------------------------------------------------


def test_the_mcp_server_is_tried() -> None:
    """It is started, and answers as it would a client."""
    state, text = doctor("mcp")
    assert state == "ok"
    assert text.startswith("`holdfast mcp` answers: package mcp 2.")


@pytest.mark.own_keeper
def test_trying_the_mcp_server_leaves_nothing_behind(home: str) -> None:
    """Neither a home nor a keeper."""
    assert doctor("mcp")[0] == "ok"
    assert not os.path.exists(home)


def shadowed(tmp_path: Path, text: str) -> str:
    """A directory in which the package `mcp` is this instead."""
    package = tmp_path / "shadow" / "mcp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    return str(package.parent)


def test_a_server_that_does_not_answer_is_a_note_that_says_why(tmp_path: Path) -> None:
    where = shadowed(tmp_path, "raise ImportError('half of it is missing')")
    state, text = doctor("mcp", PYTHONPATH=where)
    assert state == "note"
    assert "`holdfast mcp` does not work: the package mcp is there but does not work: half" in text
    assert text.endswith("`pip install -U 'holdfast-agents[mcp]'` may mend it")


def test_without_the_extra_it_is_said_how_to_install_it(tmp_path: Path) -> None:
    """A site without the package: its metadata are not found."""
    hide = tmp_path / "hide" / "sitecustomize.py"
    hide.parent.mkdir()
    hide.write_text(
        "import importlib.metadata as m\n"
        "real = m.version\n"
        "def version(name):\n"
        "    if name == 'mcp': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
    )
    state, text = doctor("mcp", PYTHONPATH=str(hide.parent))
    assert state == "note"
    assert "`pip install 'holdfast-agents[mcp]'`" in text


# -- the hook --------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in, of a user who has no settings yet."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    path = tmp_path / "project"
    path.mkdir()
    return path


def printed() -> dict[str, list[dict[str, list[dict[str, object]]]]]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "hook", "claude", "--print-config"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    found: dict[str, list[dict[str, list[dict[str, object]]]]] = json.loads(done.stdout)["hooks"]
    return found


def configured(path: Path, **changes: object) -> Path:
    """Settings with the hook that is printed, but for the changes."""
    hooks = printed()
    hooks["PostToolUse"][0]["hooks"][0].update(changes)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"model": "any", "hooks": hooks}))
    return path


def test_the_hook_that_is_printed_names_a_program_that_is_there() -> None:
    """By its whole path: an agent's PATH is seldom that of the shell where it was installed."""
    program = shlex.split(str(printed()["PostToolUse"][0]["hooks"][0]["command"]))[0]
    assert os.path.isabs(program)
    assert os.access(program, os.X_OK)


def test_no_hook_is_a_note_with_the_way_to_one(project: Path) -> None:
    state, text = doctor("hook", project)
    assert (state, "`holdfast hook claude --print-config`" in text) == ("note", True)


@pytest.mark.parametrize("where", ["user/.claude/settings.json", "project/.claude/settings.json"])
def test_a_hook_in_the_settings_is_found(project: Path, tmp_path: Path, where: str) -> None:
    """In the user's and in the directory's."""
    path = configured(tmp_path / where)
    state, text = doctor("hook", project)
    assert (state, str(path) in text) == ("ok", True)


def test_a_hook_is_found_where_the_agent_is_told_to_look(project: Path, tmp_path: Path) -> None:
    path = configured(tmp_path / "elsewhere" / "settings.json")
    state, text = doctor("hook", project, CLAUDE_CONFIG_DIR=str(path.parent))
    assert (state, str(path) in text) == ("ok", True)


def test_a_hook_whose_program_is_not_there_is_a_note(project: Path) -> None:
    command = "HOLDFAST_HOME=/x /nowhere/holdfast hook claude"
    path = configured(project / ".claude" / "settings.local.json", command=command)
    state, text = doctor("hook", project)
    assert state == "note"
    assert text.startswith(f"{path}: /nowhere/holdfast is not found; ")


def test_a_hook_that_holds_up_every_call_is_a_note(project: Path) -> None:
    configured(project / ".claude" / "settings.json", asyncRewake=False)
    state, text = doctor("hook", project)
    assert (state, '"asyncRewake": true' in text) == ("note", True)


@pytest.mark.parametrize("event", ["PostToolUse", "Stop", "SessionStart"])
def test_a_hook_that_is_missing_where_it_is_needed_is_a_note(project: Path, event: str) -> None:
    """As in settings that were pasted when there were fewer."""
    path = configured(project / ".claude" / "settings.json")
    settings = json.loads(path.read_text())
    del settings["hooks"][event]
    path.write_text(json.dumps(settings))
    state, text = doctor("hook", project)
    assert (state, f"none for {event}, so " in text) == ("note", True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hooks": 3}', '{"hooks": {"PostToolUse": 1}}'])
def test_settings_that_make_no_sense_end_nothing(project: Path, text: str) -> None:
    path = project / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(text)
    assert doctor("hook", project)[0] == "note"


def test_a_configuration_for_a_server_that_cannot_start_is_printed_with_a_word(
    tmp_path: Path,
) -> None:
    """The agent that it is for would only say that the server does not answer."""
    hide = tmp_path / "sitecustomize.py"
    hide.write_text("import sys\nsys.modules['mcp'] = None\n")
    command = [sys.executable, "-m", "holdfast", "mcp", "--print-config", "claude"]
    for path, word in (("", ""), (str(tmp_path), "`pip install 'holdfast-agents[mcp]'`")):
        env = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done
        assert json.loads(done.stdout)["mcpServers"]
        assert word in done.stderr
        assert bool(done.stderr) == bool(word)
