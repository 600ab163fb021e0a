"""Codex's tools: exec_command and write_stdin, as the models that know them expect them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest

from holdfast import SyncClient, Toolset, connect
from holdfast.client.link import run
from holdfast.testing import wait_until
from holdfast.tools import Result
from holdfast.tools.dialects.codex import number_of
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper

_HEADER = re.compile(
    r"Chunk ID: [0-9a-f]{6}\n"
    r"Wall time: \d+\.\d{4} seconds\n"
    r"(?:Process exited with code (?P<code>-?\d+)|Process running with session ID (?P<id>\d+))\n"
    r"Original token count: (?P<tokens>\d+)\n"
    r"Output:\n(?P<output>.*)",
    re.DOTALL,
)


@pytest.fixture(autouse=True)
def no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shells are login shells: what somebody's profile does is not tested here."""
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def tools(hf: SyncClient) -> Toolset:
    return toolset(hf, "codex")


def shown(result: Result) -> re.Match[str]:
    match = _HEADER.fullmatch(result.text)
    assert match is not None, result.text
    return match


def until(tools: Toolset, result: Result, text: str) -> str:
    """All that was shown, from this result until one with `text` in it."""
    output = str(result["output"])
    while text not in output:
        result = call(tools, "write_stdin", session_id=result["session_id"])
        assert not result.is_error, result
        output += result["output"]
    return output


# -- what a model is shown ------------------------------------------------------------------------


def test_the_tools_and_their_arguments_are_those_of_codex(tools: Toolset) -> None:
    """Two tools, with Codex's names, arguments and required ones."""
    definitions = {each["name"]: each["input_schema"] for each in tools.definitions()}
    assert {name: list(schema["properties"]) for name, schema in definitions.items()} == {
        "exec_command": [
            "cmd",
            "workdir",
            "tty",
            "yield_time_ms",
            "max_output_tokens",
            "shell",
            "login",
            "sandbox_permissions",
            "justification",
            "prefix_rule",
        ],
        "write_stdin": ["session_id", "chars", "yield_time_ms", "max_output_tokens"],
    }
    assert definitions["exec_command"]["required"] == ["cmd"]
    assert definitions["write_stdin"]["required"] == ["session_id"]
    assert all(schema["additionalProperties"] is False for schema in definitions.values())


def test_a_quick_command_has_its_code_and_output_under_the_header(tools: Toolset) -> None:
    """The text is Codex's, line for line, and the data has the keys of its output schema."""
    result = call(tools, "exec_command", cmd="echo hello")
    match = shown(result)
    assert (match["code"], match["tokens"], match["output"]) == ("0", "2", "hello\n")
    assert set(result) == {
        "chunk_id",
        "wall_time_seconds",
        "exit_code",
        "original_token_count",
        "output",
    }
    assert result["output"] == "hello\n"


def test_a_result_without_output_ends_after_its_heading(tools: Toolset) -> None:
    """As in Codex: the word Output, a line end, and nothing."""
    assert call(tools, "exec_command", cmd="true").text.endswith(
        "Original token count: 0\nOutput:\n"
    )


@pytest.mark.parametrize(("cmd", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_a_code_is_as_a_shell_would_have_it(tools: Toolset, cmd: str, code: int) -> None:
    """The exit code, or 128 and the signal."""
    result = call(tools, "exec_command", cmd=cmd)
    assert result["exit_code"] == code
    assert shown(result)["code"] == str(code)


def test_both_streams_are_shown_without_terminal_codes(tools: Toolset) -> None:
    """Stderr comes with stdout, in the order of writing, and colours are taken out."""
    result = call(tools, "exec_command", cmd=r"printf '\033[31mred\033[0m\n' >&2; echo two")
    assert result["output"] == "red\ntwo\n"


def test_the_environment_is_that_of_a_quiet_terminal(tools: Toolset) -> None:
    """No colours, no pagers, a UTF-8 locale; with a terminal too."""
    cmd = "echo $NO_COLOR $TERM $LC_ALL $PAGER $GIT_PAGER"
    for tty in (False, True):
        result = call(tools, "exec_command", cmd=cmd, tty=tty, login=False)
        assert result["output"].split() == ["1", "dumb", "C.UTF-8", "cat", "cat"]


def test_a_command_runs_in_a_login_shell_unless_that_is_refused(tools: Toolset) -> None:
    """Login is the default; false turns it off; the shell can be chosen."""
    cmd = "shopt -q login_shell && echo login || echo plain"
    assert call(tools, "exec_command", cmd=cmd)["output"] == "login\n"
    assert call(tools, "exec_command", cmd=cmd, login=False)["output"] == "plain\n"
    result = call(tools, "exec_command", cmd="echo $0", shell="sh", login=False)
    assert result["output"] == "sh\n"


def test_a_working_directory_may_be_relative_or_empty(
    tools: Toolset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative to the agent's; an empty one is none at all."""
    monkeypatch.chdir(tmp_path)
    call(tools, "exec_command", cmd="mkdir inside")
    for workdir, name in (("inside", "inside"), ("", tmp_path.name)):
        result = call(tools, "exec_command", cmd="basename $PWD", workdir=workdir)
        assert result["output"] == f"{name}\n"


# -- what goes on ---------------------------------------------------------------------------------


def test_what_runs_on_has_a_session_id_and_is_polled_to_its_end(tools: Toolset, gate: Gate) -> None:
    """After the yield time there is an id; each result has only what is new, the last the code."""
    result = call(
        tools, "exec_command", cmd=f"echo one; : < {gate.path}; echo two; exit 3", yield_time_ms=0
    )
    number = result["session_id"]
    assert 1000 <= number <= 99999
    assert shown(result)["id"] == str(number)
    assert "exit_code" not in result
    gate.open()
    output = result["output"]
    while "exit_code" not in result:
        result = call(tools, "write_stdin", session_id=number)
        output += result["output"]
    assert output == "one\ntwo\n"
    assert result["exit_code"] == 3
    assert "session_id" not in result


def test_a_result_that_was_lost_can_be_asked_for_again(tools: Toolset, gate: Gate) -> None:
    """An id stays good after the end was shown, with the code and nothing new."""
    number = call(tools, "exec_command", cmd=f": < {gate.path}; exit 5", yield_time_ms=250)[
        "session_id"
    ]
    gate.open()
    for _ in range(2):
        again = call(tools, "write_stdin", session_id=number, yield_time_ms=30_000)
        assert (again["exit_code"], again["output"]) == (5, "")
    assert call(tools, "write_stdin", session_id=number, chars="y\n")["exit_code"] == 5


def test_an_empty_poll_waits_longer_than_it_was_told(tools: Toolset) -> None:
    """Five seconds at least, unless the end comes first: nobody can poll in a busy loop."""
    result = call(tools, "exec_command", cmd="sleep 3", yield_time_ms=250)
    assert (
        call(tools, "write_stdin", session_id=result["session_id"], yield_time_ms=1)["exit_code"]
        == 0
    )


def test_the_longest_poll_is_a_setting(hf: SyncClient, gate: Gate) -> None:
    """The upper bound of an empty poll is the toolset's, and never below five seconds."""
    tools = toolset(hf, "codex", background_terminal_max_timeout=1)
    number = call(tools, "exec_command", cmd=f": < {gate.path}", yield_time_ms=250)["session_id"]
    result = call(tools, "write_stdin", session_id=number, yield_time_ms=300_000)
    assert result["session_id"] == number
    assert result["wall_time_seconds"] >= 5


def test_a_call_answers_before_its_caller_loses_patience(tools: Toolset, gate: Gate) -> None:
    """Where a client cuts calls short, the process goes on and the answer has its id."""
    arguments = {"cmd": f": < {gate.path}", "yield_time_ms": 30_000}
    result = run(tools.call("exec_command", arguments, patience=1.0))
    assert result["session_id"]
    assert result["wall_time_seconds"] < 30


def test_a_session_id_is_found_by_another_client_of_the_session(
    home: str, gate: Gate, session: str
) -> None:
    """It follows from the handle, so an agent that was restarted goes on with it."""
    with connect(session=session) as first:
        began = call(
            toolset(first, "codex"),
            "exec_command",
            cmd=f"echo one; : < {gate.path}; echo two",
            yield_time_ms=250,
        )
        assert number_of(first.list()[0].handle) == began["session_id"]
        with connect(session=session) as second:
            tools = toolset(second, "codex")
            gate.open()
            result = call(
                tools, "write_stdin", session_id=began["session_id"], yield_time_ms=60_000
            )
            assert began["output"] + result["output"] == "one\ntwo\n"
            assert result["exit_code"] == 0


def test_an_id_of_nobody_or_of_another_session_is_unknown(
    tools: Toolset, home: str, gate: Gate, session: str
) -> None:
    """Both read the same, in Codex's words."""
    with connect(session=f"{session}-other") as other:
        theirs = call(
            toolset(other, "codex"), "exec_command", cmd=f": < {gate.path}", yield_time_ms=250
        )["session_id"]
        for number in (theirs, 7):
            result = call(tools, "write_stdin", session_id=number)
            assert result.is_error
            assert result.text == f"write_stdin failed: Unknown process id {number}"


def test_the_end_of_what_runs_on_is_told_with_a_later_result(tools: Toolset, gate: Gate) -> None:
    """Codex tells only who polls; here the next result has it, with the id, and only once."""
    number = call(tools, "exec_command", cmd=f": < {gate.path}; echo made", yield_time_ms=250)[
        "session_id"
    ]
    gate.open()
    told: list[Result] = []

    def is_told() -> bool:
        told.append(call(tools, "exec_command", cmd="true"))
        return "events" in told[-1]

    wait_until(is_told)
    assert f"Label: session {number}" in told[-1].text
    assert "made" in told[-1].text
    assert "events" not in call(tools, "exec_command", cmd="true")


def test_the_end_that_a_result_has_shown_is_not_told_again(tools: Toolset, gate: Gate) -> None:
    """A poll that returned the code is all there is to know."""
    number = call(tools, "exec_command", cmd=f": < {gate.path}", yield_time_ms=250)["session_id"]
    gate.open()
    result = call(tools, "write_stdin", session_id=number, yield_time_ms=60_000)
    assert result["exit_code"] == 0
    assert "events" not in result
    assert "events" not in call(tools, "exec_command", cmd="true")


def test_an_end_that_nobody_can_know_is_code_minus_one(
    hf: SyncClient, tools: Toolset, gate: Gate, kill_both: Callable[[SyncClient], None]
) -> None:
    """It ended while both halves of the keeper were dead; the result says so."""
    number = call(tools, "exec_command", cmd=f": < {gate.path}", yield_time_ms=250)["session_id"]
    pid = wait_until(lambda: hf.list()[0].record.pid)
    kill_both(hf)
    gate.open()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
    result = call(tools, "write_stdin", session_id=number, yield_time_ms=60_000)
    assert result["exit_code"] == -1
    assert "nobody can know" in result.text


# -- input ----------------------------------------------------------------------------------------


def test_control_c_interrupts_what_has_no_terminal(tools: Toolset, gate: Gate) -> None:
    """The one thing that can be written there: it is a signal to the process group."""
    number = call(tools, "exec_command", cmd=f": < {gate.path}", yield_time_ms=250)["session_id"]
    result = call(tools, "write_stdin", session_id=number, chars="\x03", yield_time_ms=30_000)
    assert result["exit_code"] == 130


def test_without_a_terminal_stdin_is_closed(tools: Toolset, gate: Gate) -> None:
    """What reads it sees its end, so that nothing hangs; writing is refused in Codex's words."""
    assert call(tools, "exec_command", cmd="cat; echo read")["output"] == "read\n"
    number = call(tools, "exec_command", cmd=f": < {gate.path}", yield_time_ms=250)["session_id"]
    result = call(tools, "write_stdin", session_id=number, chars="y\n")
    assert result.is_error
    assert result.text == (
        "write_stdin failed: stdin is closed for this session; rerun exec_command with tty=true to "
        "keep stdin open"
    )


def test_stdin_without_a_terminal_can_be_left_open(hf: SyncClient) -> None:
    """With the toolset's option stdin, write_stdin works over a pipe, and Ctrl-D ends it."""
    tools = toolset(hf, "codex", stdin=True)
    number = call(tools, "exec_command", cmd="cat; echo over", yield_time_ms=250)["session_id"]
    result = call(tools, "write_stdin", session_id=number, chars="one\n")
    output = until(tools, result, "one\n")
    result = call(tools, "write_stdin", session_id=number, chars="\x04", yield_time_ms=30_000)
    assert (output + result["output"], result["exit_code"]) == ("one\nover\n", 0)


def test_a_terminal_is_one_and_takes_what_is_written(tools: Toolset) -> None:
    """With tty there is a terminal of 80 columns and 24 rows, and the answer to a question."""
    cmd = 'stty size; read -p "name? " name; echo "hello $name"; exit 4'
    result = call(tools, "exec_command", cmd=cmd, tty=True, yield_time_ms=30_000)
    assert until(tools, result, "name? ") == "24 80\nname? "
    result = call(
        tools,
        "write_stdin",
        session_id=result["session_id"],
        chars="Ada\n",
        yield_time_ms=30_000,
    )
    assert (result["output"], result["exit_code"]) == ("Ada\nhello Ada\n", 4)


def test_a_result_comes_as_soon_as_somebody_must_type(tools: Toolset) -> None:
    """A program that waits for input has nothing more to say: the yield time is not waited for."""
    result = call(tools, "exec_command", cmd="read -p 'sure? ' x", tty=True, yield_time_ms=30_000)
    assert result["wall_time_seconds"] < 30
    assert result["output"] == "sure? "
    end = call(tools, "write_stdin", session_id=result["session_id"], chars="y\n")
    assert end.get("exit_code", 0) == 0


def test_a_prompt_that_a_result_has_shown_is_not_told_again(hf: SyncClient, tools: Toolset) -> None:
    """Its event counts as delivered, like the end of a process that was shown."""
    result = call(tools, "exec_command", cmd="read -p 'sure? ' x", tty=True, yield_time_ms=250)
    wait_until(lambda: any(event.type == "input" for event in hf.events(acknowledged=True)))
    result = call(tools, "write_stdin", session_id=result["session_id"])
    assert "session_id" in result
    assert "events" not in result


def test_control_c_and_control_d_are_keys_of_a_terminal(tools: Toolset) -> None:
    """They go to the terminal as they are: the one interrupts, the other ends the input."""
    for key, code in (("\x03", 130), ("\x04", 0)):
        number = call(tools, "exec_command", cmd="exec cat", tty=True, yield_time_ms=30_000)[
            "session_id"
        ]
        result = call(tools, "write_stdin", session_id=number, chars=key, yield_time_ms=30_000)
        assert result["exit_code"] == code


# -- limits ---------------------------------------------------------------------------------------


def test_long_output_keeps_its_beginning_and_its_end(tools: Toolset) -> None:
    """Cut to the budget of tokens, with Codex's warning, line count and marker."""
    whole = "".join(f"{number}\n" for number in range(1, 5001))
    result = call(
        tools, "exec_command", cmd="seq 5000", max_output_tokens=100, yield_time_ms=30_000
    )
    tokens = -(-len(whole) // 4)
    left_out = -(-(len(whole) - 400) // 4)
    assert shown(result)["tokens"] == str(tokens)
    assert result["output"] == (
        f"Warning: truncated output (original token count: {tokens})\n"
        "Total output lines: 5000\n\n"
        f"{whole[:200]}…{left_out} tokens truncated…{whole[-200:]}"
    )


def test_no_more_than_ten_thousand_tokens_are_shown(tools: Toolset) -> None:
    """A larger budget is taken as that, and none at all leaves only the marker."""
    result = call(
        tools, "exec_command", cmd="seq 20000", max_output_tokens=10**9, yield_time_ms=30_000
    )
    body = result["output"].partition("\n\n")[2]
    assert len(re.sub("…[0-9]+ tokens truncated…", "", body)) == 40_000
    result = call(tools, "exec_command", cmd="echo 12345678", max_output_tokens=0)
    assert result["output"].endswith("\n\n…3 tokens truncated…")


def test_of_a_flood_the_middle_is_never_read(tools: Toolset) -> None:
    """More than a mebibyte since the last result: both ends of it, and how much is between."""
    cmd = "echo first; yes 0123456789abcde | head -c 4194304; echo last"
    result = call(tools, "exec_command", cmd=cmd, yield_time_ms=30_000)
    assert "exit_code" in result, result
    omitted = 4194304 + len("first\nlast\n") - (1 << 20)
    header, _, body = result["output"].partition("\n\n")
    tokens = -(-(4194304 + 11) // 4)
    assert header == (
        f"Warning: truncated output (original token count: {tokens})\n"
        f"... {omitted} bytes omitted ..."
    )
    assert body.startswith("first\n012345")
    assert body.endswith("cde\nlast\n")
    assert result["original_token_count"] == tokens


def test_a_cut_never_splits_a_character(tools: Toolset) -> None:
    """Of a text that is not ASCII, whole characters are left on both sides."""
    cmd = "for i in $(seq 100); do printf 'äöü€'; done"
    result = call(tools, "exec_command", cmd=cmd, max_output_tokens=11, login=False)
    body = result["output"].partition("\n\n")[2]
    before, _, after = body.partition("…")
    assert set(before + after.partition("…")[2]) <= set("äöü€")


def test_one_too_many_is_refused_and_nothing_is_killed(hf: SyncClient, gate: Gate) -> None:
    """Codex kills the one least used; here the model is told which ones run, and chooses."""
    tools = toolset(hf, "codex", max_running=2)
    ids = [
        call(tools, "exec_command", cmd=f": < {gate.path}", yield_time_ms=250)["session_id"]
        for _ in range(2)
    ]
    result = call(tools, "exec_command", cmd="true")
    assert result.is_error
    assert result.text.startswith("exec_command failed: 2 processes are running")
    assert all(str(number) in result.text for number in ids)
    assert [process.record.status for process in hf.list()] == ["running", "running"]


# -- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("exec_command", {}, "cmd"),
        ("exec_command", {"cmd": "true", "command": "x"}, "command"),
        ("exec_command", {"cmd": "true", "yield_time_ms": -1}, "yield_time_ms"),
        ("exec_command", {"cmd": "true", "max_output_tokens": 1.5}, "max_output_tokens"),
        ("write_stdin", {"session_id": "1"}, "session_id"),
    ],
)
def test_wrong_arguments_start_nothing(
    hf: SyncClient, tools: Toolset, name: str, arguments: dict[str, object], word: str
) -> None:
    """They are told in Codex's form, with the name of the argument."""
    result = call(tools, name, **arguments)
    assert result.is_error
    assert result.text.startswith("failed to parse function arguments: ")
    assert repr(word) in result.text
    assert hf.list() == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"cmd": "  "}, "missing command line for unified exec request"),
        ({"cmd": "true", "shell": "no-such-shell"}, "no-such-shell"),
        ({"cmd": "true", "workdir": "/no/such/place"}, "/no/such/place"),
    ],
)
def test_what_cannot_start_is_an_error_and_leaves_nothing(
    hf: SyncClient, tools: Toolset, arguments: dict[str, str], word: str
) -> None:
    """A missing shell or directory is said at once; there is no other shell in its place."""
    result = call(tools, "exec_command", **arguments)
    assert result.is_error
    assert result.text.startswith("exec_command failed: ")
    assert word in result.text
    assert hf.list() == []


def test_a_tool_that_is_none_is_told_what_there_is(tools: Toolset) -> None:
    """Its name is the mistake, not its arguments."""
    result = call(tools, "shell")
    assert result.is_error
    assert "exec_command, write_stdin" in result.text
