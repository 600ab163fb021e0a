"""Words that hands know from elsewhere, and what the command line answers in."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from holdfast import SyncClient
from holdfast.cli._parser import _ALIASES, _INSTEAD, COMMANDS, Usage, command

pytestmark = [pytest.mark.shared_keeper, pytest.mark.usefixtures("home")]


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        env=dict(os.environ),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
    )


def test_every_word_leads_to_a_command_that_there_is() -> None:
    """And none of them hides one."""
    assert not (_ALIASES.keys() | _INSTEAD.keys()) & COMMANDS.keys()
    assert set(_ALIASES.values()) <= COMMANDS.keys()
    for instead in _INSTEAD.values():
        name, *arguments = instead.split()
        parser, _ = command(name)
        flags = [argument for argument in arguments if re.match("--?[a-z]", argument)]
        assert all(flag in parser.actions for flag in flags), instead


@pytest.mark.parametrize(
    ("arguments", "instead"),
    [
        (("kill", "-9", "x"), "-s KILL"),
        (("kill", "-KILL", "x"), "-s KILL"),
        (("run", "-it", "--", "true"), "--stdin"),
        (("run", "--rm", "--", "true"), "nothing: what has ended goes by itself"),
        (("run", "-p", "3000", "--", "true"), "--publish PORT"),
        (("attach", "-t", "web"), "the handle or label alone"),
        (("ps", "--format", "json"), "--json"),
    ],
)
def test_options_of_other_programs_are_answered_with_ours(
    arguments: tuple[str, ...], instead: str
) -> None:
    with pytest.raises(Usage, match=re.escape(f"; here it is {instead}; see `holdfast ")):
        command(arguments[0])[0].parse(arguments[1:])


def test_a_guess_is_a_question_and_the_help_another_sentence() -> None:
    done = cli("logs", "--stderr", "x")
    assert done.stderr == (
        "holdfast: no option --stderr; did you mean --stream? See `holdfast logs --help`\n"
    )


def test_errors_speak_of_the_command_line_and_not_of_the_library(hf: SyncClient) -> None:
    """No call, no keyword argument, whatever was asked of a process that cannot do it."""
    plain = hf.spawn("sleep 1000").handle
    ended = hf.spawn("true")
    ended.wait(30)
    for arguments in (
        *(("status", "nobody"), ("kill", "nobody"), ("wait", "--group", "none"), ("gather", "x")),
        *(("send", plain, "x"), ("send", plain, "--keys", "Up"), ("screen", plain)),
        *(("attach", plain), ("resize", plain, "80x24"), ("logs", plain, "--stream", "stderr")),
        *(
            ("view", plain, "--stream", "stderr"),
            ("search", plain, "("),
            ("exec", plain, "--", "x"),
        ),
        *(("search", plain, ""), ("signal", plain, "NONE"), ("wait", plain, "--for", "port=x")),
        *(("wait", plain, "--for", "output=x", "--stream", "stderr"), ("send", ended.handle, "x")),
        *(("signal", ended.handle, "TERM"), ("view", plain, "--start", "-1")),
        *(("wait", "--for", '{"output": "x", "stream": "stderr"}', plain), ("logs", "*")),
        *(
            ("run", "--", ""),
            ("run", "-C", "/nowhere", "--", "true"),
            ("run", "--", "no-such", "x"),
        ),
        *(("run", "--timeout", "x", "--", "true"), ("run", "--watch", "x", "--", "true")),
        *(("run", "--docker", "x y", "--", "true"), ("run", "--size", "x", "--tty", "--", "true")),
    ):
        done = cli(*arguments)
        assert done.returncode != 0, arguments
        (line,) = done.stderr.splitlines()
        assert line.startswith("holdfast: "), arguments
        assert not re.search(r"\w\(\)|\b\w+=(True|False|None|['\"\[])|\bUNSET\b", line), line
