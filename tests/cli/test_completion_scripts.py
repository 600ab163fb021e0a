"""The completion scripts, in the shells they are for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.shared_keeper

BASH = """
eval "$(holdfast completion bash)"
complete -p holdfast >/dev/null || exit 9
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_holdfast "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
((${#COMPREPLY[@]})) && printf '%s\\n' "${COMPREPLY[@]}"
exit 0
"""
# The completion system needs a terminal; the one function of it that matters here is stood in for.
ZSH = """
compdef() { registered=$2 }
_describe() { print -l -- ${described%%:*} }
eval "$(holdfast completion zsh)"
[[ $registered == holdfast ]] || exit 9
words=("$@") CURRENT=$#
_holdfast
exit 0
"""
FISH = """
holdfast completion fish | source
complete -C "$argv" | string split -f 1 \\t
true
"""


@pytest.fixture
def environment(home: str, tmp_path: Path) -> dict[str, str]:
    """An environment in which `holdfast` is the one under test."""
    program = tmp_path / "bin" / "holdfast"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOLDFAST_HOME": home, "HOME": str(tmp_path)}


def complete(shell: str, environment: dict[str, str], *words: str) -> list[str]:
    if shutil.which(shell) is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {shell}")
        pytest.skip(f"{shell} is not installed")
    command = {
        "bash": ["bash", "--norc", "-c", BASH, "bash", *words],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh", *words],
        "fish": ["fish", "--no-config", "-c", FISH, " ".join(words)],
    }[shell]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def start(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "-d", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_options_values_and_handles_are_completed(
    shell: str, environment: dict[str, str]
) -> None:
    """The first word is a command, then come its options, their values, and handles."""
    assert complete(shell, environment, "holdfast", "ke") == ["keeper"]
    assert complete(shell, environment, "holdfast", "logs", "--fo") == ["--follow"]
    assert complete(shell, environment, "holdfast", "run", "--stderr", "s") == ["separate"]
    handle = start(environment, "--label", "nap", "--", "sleep", "60")
    offered = complete(shell, environment, "holdfast", "kill", "")
    assert sorted(offered) == sorted([handle, "nap"])
    assert complete(shell, environment, "holdfast", "kill", handle[:8]) == [handle]
    assert complete(shell, environment, "holdfast", "wait", handle, "pro") == []


def test_bash_completes_a_value_after_an_equals_sign(environment: dict[str, str]) -> None:
    """Bash makes three words of --stderr=s."""
    words = ("holdfast", "run", "--stderr", "=", "s")
    assert complete("bash", environment, *words) == ["separate"]


def test_bash_completes_the_command_to_run(environment: dict[str, str]) -> None:
    """What comes after the options of run are the machine's commands."""
    assert "sleep" in complete("bash", environment, "holdfast", "run", "-d", "--", "slee")


def test_hostile_labels_are_never_offered(environment: dict[str, str]) -> None:
    """A shell would have to quote them, and some do not."""
    handle = start(environment, "--label", "$(touch x);`y`", "--", "sleep", "60")
    assert complete("bash", environment, "holdfast", "kill", "") == [handle]


def test_completing_nonsense_offers_nothing(environment: dict[str, str]) -> None:
    """No error ever reaches the command line that is being typed."""
    for words in (["nonsense", ""], ["run", "--nope", ""], ["keeper", "status", ""]):
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "__complete", *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_terminals_and_keys_are_completed(shell: str, environment: dict[str, str]) -> None:
    """Only what has a terminal is offered to attach, and the names of keys after --keys."""
    start(environment, "--", "sleep", "60")
    handle = start(environment, "--tty", "--", "sleep", "60")
    assert complete(shell, environment, "holdfast", "att") == ["attach"]
    assert complete(shell, environment, "holdfast", "attach", "") == [handle]
    assert complete(shell, environment, "holdfast", "screen", handle[:7]) == [handle]
    assert complete(shell, environment, "holdfast", "attach", "--read") == ["--read-only"]
    assert complete(shell, environment, "holdfast", "send", handle, "--keys", "Ent") == ["Enter"]
    keys = complete(shell, environment, "holdfast", "send", handle, "--keys", "Up", "Page")
    assert sorted(keys) == ["PageDown", "PageUp"]
    assert "80x24" in complete(shell, environment, "holdfast", "resize", handle, "8")
    assert complete(shell, environment, "holdfast", "run", "--tt") == ["--tty"]
