"""The distribution is called holdfast-agents: on PyPI, holdfast is somebody else's."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAME = "holdfast-agents"
TEXTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".toml", ".json")),
        *(ROOT / "bench").rglob("*.py"),
        ROOT / ".ci" / "setup",
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
    ]
)
CLIENTS = ("claude", "codex", "cursor", "vscode", "gemini", "opencode")

# An extra is always the distribution's. What an installer installs is any word that is no option.
_EXTRA = re.compile(r"(?<![\w.-])holdfast\s*\[\s*[a-z]")
_INSTALLER = re.compile(
    r"\b(?:pip3?|pipx|uv|uv pip|uv tool|poetry|pdm|rye|conda)\s+"
    r"(?:install|add|upgrade|run|inject|download)\b((?:[^\S\n]+\S+)*)"
)
_FROM = re.compile(r"--(?:from|with|spec)\b[\s\"',=]+([^\s\"',]+)")
_UVX = re.compile(r"\buvx\s+((?:--\S+\s+)*)([^\s\"',`]+)")
_BARE = re.compile(r"holdfast(?:[\[=<>~!@].*)?")


def bare_names(text: str) -> list[str]:
    """What in a text would install or run the distribution of the bare name."""
    found = [match[0] for match in _EXTRA.finditer(text)]
    for match in _INSTALLER.finditer(text):
        words = re.split(r"[\s\"'`|;)]+", match[1].partition("`")[0])
        found += [match[0] for word in words if _BARE.fullmatch(word.strip(".,"))]
    found += [match[0] for match in _FROM.finditer(text) if _BARE.fullmatch(match[1])]
    found += [
        match[0]
        for match in _UVX.finditer(text)
        if "--from" not in match[1] and _BARE.fullmatch(match[2])
    ]
    return found


@pytest.mark.parametrize(
    "line",
    [
        "$ pip install holdfast",
        "`pip install -U 'holdfast[mcp]'`",
        "pip install 'holdfast>=1'",
        "pipx install holdfast",
        "uv tool install holdfast",
        "uvx holdfast mcp",
        "uvx --from 'holdfast[mcp]' holdfast mcp",
        "uvx --from holdfast holdfast mcp",
        '"args":["--from","holdfast[mcp]","holdfast","mcp"]',
        '"args": ["--from", "holdfast", "holdfast"]',
    ],
)
def test_the_search_finds_a_bare_name(line: str) -> None:
    assert bare_names(line)


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'holdfast-agents[mcp]' brings `holdfast mcp`",
        "uvx --from 'holdfast-agents[mcp]' holdfast mcp",
        '"args":["--from","holdfast-agents[mcp]","holdfast","mcp"]',
        "pip install .",
        "holdfast run --from here",
    ],
)
def test_the_search_passes_over_the_right_name(line: str) -> None:
    assert not bare_names(line)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_install_command_names_the_other_project(path: Path) -> None:
    assert bare_names(path.read_text()) == []


@pytest.mark.parametrize("uv", ["", "uv"], ids=["installed", "uvx"])
@pytest.mark.parametrize("client", CLIENTS)
def test_no_printed_configuration_names_the_other_project(
    client: str, uv: str, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if uv:
        monkeypatch.setenv("UV", "/usr/bin/uv")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "mcp", "--print-config", client],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert bare_names(done.stdout) == []
    if uv:
        words = re.findall(r'"([^"]*)"', done.stdout)
        at = words.index("--from")
        assert words[at + 1 : at + 4] == [f"{NAME}[mcp]", "holdfast", "mcp"]


def test_the_distribution_has_the_command_and_the_package_of_the_short_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == NAME
    assert list(project["scripts"]) == ["holdfast"]
    found = importlib.metadata.distribution(NAME)
    assert [each.value for each in found.entry_points if each.name == "holdfast"] == [
        "holdfast.cli:main"
    ]


def test_the_readme_says_that_the_bare_name_is_another_project() -> None:
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"pip install {NAME}" in text
    assert re.search(r"`holdfast` on PyPI is another project", text)
