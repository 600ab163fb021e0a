"""The claude-code dialect: background shells as in Claude Code, and Claude Code's own tools."""

from __future__ import annotations

import json
import os
import re
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast import BadRequest, Stream, SyncClient, SyncProcess, Toolset, connect
from holdfast.client.link import run
from holdfast.testing import wait_until
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tools import Result
    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper


@pytest.fixture
def tools(hf: SyncClient) -> Toolset:
    return toolset(hf, "claude-code")


def start(hf: SyncClient, command: str, **options: object) -> SyncProcess:
    """As run_command does, without its check."""
    return hf.spawn(command, stderr="separate", **options)  # type: ignore[arg-type]


def ended(process: SyncProcess) -> str:
    wait_until(lambda: not process.refresh().running)
    return process.handle


def written(process: SyncProcess, text: str, stream: Stream = "stdout") -> str:
    wait_until(lambda: text in process.read_at(0, stream=stream).text)
    return process.handle


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- run_command in the background -----------------------------------------------------------------


def test_a_start_shows_the_first_eight_lines_and_four_of_stderr(
    hf: SyncClient, tools: Toolset
) -> None:
    """What it writes within the check is in the message; how much more there is, is said."""
    command = "seq 1 10; seq 21 26 >&2; sleep 1000"
    result = call(tools, "run_command", command=command, run_in_background=True)
    assert list(result) == ["id", "message", "status"]
    assert result["status"] == "running"
    handle = result["id"]
    assert result["message"] == "\n".join(
        [
            "✓ Background process running",
            f" PID: {hf.get(handle).record.pid}",
            f" ID: {handle}",
            f" Command: {command}",
            " Initial output (10 lines):",
            *(f" | {number}" for number in range(1, 9)),
            " ... +2 more lines",
            " Stderr (6 lines):",
            *(f" | {number}" for number in range(21, 25)),
            f' Use bash_output("{handle}") to check output, kill_shell("{handle}") to stop.',
        ]
    )


def test_what_the_start_showed_is_still_unread(tools: Toolset) -> None:
    """The message is a look; the first bash_output has everything from the beginning."""
    result = call(tools, "run_command", command="seq 1 10", run_in_background=True)
    read = call(tools, "bash_output", bash_id=result["id"])
    assert read["newOutput"] == "\n".join(map(str, range(1, 11)))


def test_a_process_that_fails_at_once_is_told_with_its_errors(tools: Toolset) -> None:
    """The failure is in the answer, with what it wrote, and is not told a second time."""
    command = "echo trying; echo no such module >&2; echo really >&2; exit 3"
    result = call(tools, "run_command", command=command, run_in_background=True)
    assert result["status"] == "failed"
    assert result["message"] == "\n".join(
        [
            "✕ Process failed immediately",
            f" Command: {command}",
            " Error: | no such module",
            " | really",
            " Exit code: 3",
            " Initial output (1 lines):",
            " | trying",
        ]
    )
    assert "events" not in call(tools, "list_shells")


def test_an_exit_with_0_inside_the_check_is_completed(tools: Toolset) -> None:
    """It did not fail and does not run: it is done, and its output is there."""
    result = call(tools, "run_command", command="echo built", run_in_background=True)
    assert result["status"] == "completed"
    first, *rest = result["message"].split("\n")
    assert first == "✓ Background process completed"
    assert rest[-4:] == [
        " Exit code: 0",
        " Initial output (1 lines):",
        " | built",
        f' Use bash_output("{result["id"]}") to check output.',
    ]


def test_a_timeout_inside_the_check_is_a_kill(tools: Toolset) -> None:
    """The timeout is in milliseconds."""
    result = call(tools, "run_command", command="sleep 1000", run_in_background=True, timeout=1)
    assert result["status"] == "killed"
    assert result["message"] == (
        "✕ Process killed\n Command: sleep 1000\n Error: Process killed after 1ms timeout"
    )


def test_a_start_without_a_timeout_has_ten_minutes(hf: SyncClient, tools: Toolset) -> None:
    """Also where the model says 0."""
    for arguments in ({}, {"timeout": 0}, {"timeout": 90_500}):
        call(tools, "run_command", command="true", run_in_background=True, **arguments)
    assert [process.record.timeout for process in hf.list()] == [600, 600, 90.5]


def test_a_command_runs_where_it_is_told_to_and_is_described(
    hf: SyncClient, tools: Toolset, tmp_path: Path
) -> None:
    result = call(
        tools,
        "run_command",
        command="pwd",
        cwd=str(tmp_path),
        description="say where we are",
        run_in_background=True,
    )
    assert f" {tmp_path}\n" in result["message"]
    assert hf.get(result["id"]).record.label == "say where we are"


def test_what_cannot_be_started_says_so(hf: SyncClient, tools: Toolset) -> None:
    result = call(tools, "run_command", command="true", cwd="/no/such/directory")
    assert result.is_error
    assert (result["id"], result["status"]) == (None, "failed")
    assert result["message"].startswith("Failed to spawn: ")
    assert "/no/such/directory" in result["message"]
    assert hf.list() == []


def test_twenty_run_at_once_and_those_that_ended_make_room(hf: SyncClient, tools: Toolset) -> None:
    """The twenty-first is refused with a word on what to do; one that is killed lets it in."""
    shells = [start(hf, "sleep 1000") for _ in range(20)]
    refused = call(tools, "run_command", command="echo in", run_in_background=True)
    assert refused.is_error
    assert refused["message"].startswith("Failed to spawn: ")
    assert "kill one or wait for one" in refused["message"]
    assert call(tools, "kill_shell", shell_id=shells[0].handle)["success"]
    let_in = call(tools, "run_command", command="echo in", run_in_background=True)
    assert let_in["status"] == "completed"
    assert len(call(tools, "list_shells")["shells"]) == 21


def test_wrong_arguments_start_nothing(hf: SyncClient, tools: Toolset) -> None:
    """The message names the argument."""
    wrong = call(tools, "run_command", command="true", background=True)
    assert "'background'" in wrong["error"]
    assert "run_in_background" in wrong["error"]
    assert "'timeout'" in call(tools, "run_command", command="true", timeout="soon")["error"]
    assert "'command'" in call(tools, "run_command")["error"]
    assert "'shell_id'" in call(tools, "kill_shell")["message"]
    assert hf.list() == []


# -- run_command in the foreground -----------------------------------------------------------------


def test_in_the_foreground_the_output_and_exit_code_come_back(tools: Toolset) -> None:
    result = call(tools, "run_command", command="echo out; echo err >&2; exit 4")
    handle = result.pop("id")
    assert result == {"status": "failed", "newOutput": "out", "newErrors": "err", "exitCode": 4}
    again = call(tools, "bash_output", bash_id=handle)
    assert (again["newOutput"], again["newErrors"], again["exitCode"]) == ("", "", 4)
    assert "events" not in again


def test_in_the_foreground_a_timeout_kills(tools: Toolset) -> None:
    result = call(tools, "run_command", command="echo begun; sleep 1000", timeout=2000)
    assert (result["status"], result["exitCode"]) == ("killed", None)
    assert (result["newOutput"], result["newErrors"]) == (
        "begun",
        "Process killed after 2000ms timeout",
    )


def test_a_caller_who_cannot_wait_that_long_is_told_that_it_goes_on(tools: Toolset) -> None:
    """Nothing is lost: it is a background process from then on."""
    command = {"command": "echo begun; sleep 1000"}
    result = run(tools.call("run_command", command, patience=3))
    assert result["status"] == "running"
    assert "it goes on in the background" in result["message"]
    assert " Initial output (1 lines):\n | begun\n" in result["message"]
    assert call(tools, "bash_output", bash_id=result["id"])["newOutput"] == "begun"
    assert call(tools, "kill_shell", shell_id=result["id"])["success"]


# -- bash_output -----------------------------------------------------------------------------------


def test_each_read_has_what_is_new_of_both_streams(
    hf: SyncClient, tools: Toolset, gate: Gate
) -> None:
    """Output and errors are read side by side; what was read does not come again."""
    process = start(hf, f"echo one; echo bad >&2; : < {gate.path}; echo two; echo worse >&2")
    written(process, "one\n")
    written(process, "bad\n", "stderr")
    first = call(tools, "bash_output", bash_id=process.handle)
    assert first == {
        "id": process.handle,
        "status": "running",
        "newOutput": "one",
        "newErrors": "bad",
        "exitCode": None,
    }
    nothing = call(tools, "bash_output", bash_id=process.handle)
    assert (nothing["newOutput"], nothing["newErrors"]) == ("", "")
    gate.open()
    second = call(tools, "bash_output", bash_id=ended(process))
    assert second == {
        "id": process.handle,
        "status": "completed",
        "newOutput": "two",
        "newErrors": "worse",
        "exitCode": 0,
    }


def test_an_agent_that_starts_again_goes_on_where_it_was(
    hf: SyncClient, tools: Toolset, gate: Gate, session: str
) -> None:
    """What was read is known to the session, not to the agent's process."""
    process = start(hf, f"echo one; : < {gate.path}; echo two")
    call(tools, "bash_output", bash_id=written(process, "one\n"))
    with connect(session=session) as other:
        gate.open()
        ended(process)
        again = call(toolset(other, "claude-code"), "bash_output", bash_id=process.handle)
    assert again["newOutput"] == "two"


def test_no_line_is_split_where_a_write_ended(hf: SyncClient, tools: Toolset, gate: Gate) -> None:
    """Half a line of a running process waits for its end."""
    process = start(hf, f"echo whole; printf 'half a '; : < {gate.path}; echo line")
    written(process, "half a ")
    assert call(tools, "bash_output", bash_id=process.handle)["newOutput"] == "whole"
    assert call(tools, "bash_output", bash_id=process.handle)["newOutput"] == ""
    gate.open()
    assert call(tools, "bash_output", bash_id=ended(process))["newOutput"] == "half a line"


def test_a_last_line_without_an_end_comes_with_the_end(hf: SyncClient, tools: Toolset) -> None:
    process = start(hf, "printf 'no newline'")
    assert call(tools, "bash_output", bash_id=ended(process))["newOutput"] == "no newline"


def test_blank_lines_and_terminal_codes_are_left_out(hf: SyncClient, tools: Toolset) -> None:
    process = start(hf, r"printf 'a\n\n  \n\033[31mb\033[m\r\n\033[m\n'")
    assert call(tools, "bash_output", bash_id=ended(process))["newOutput"] == "a\nb"
    (shell,) = call(tools, "list_shells")["shells"]
    assert shell["outputLines"] == 2


def test_a_filter_keeps_lines_that_match_in_any_case(hf: SyncClient, tools: Toolset) -> None:
    """Of both streams; the lines it drops count as read."""
    process = start(hf, "echo An ERROR; echo fine; echo errors: 0; echo no Error here >&2")
    read = call(tools, "bash_output", bash_id=ended(process), filter="^.*error")
    assert read["newOutput"] == "An ERROR\nerrors: 0"
    assert read["newErrors"] == "no Error here"
    assert call(tools, "bash_output", bash_id=process.handle)["newOutput"] == ""


def test_a_filter_looks_at_each_line_by_itself(hf: SyncClient, tools: Toolset) -> None:
    """Nothing matches across a line end."""
    process = start(hf, "echo ab; echo ba; echo abba")
    assert (
        call(tools, "bash_output", bash_id=ended(process), filter=r"b\s*b")["newOutput"] == "abba"
    )


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "*"])
def test_a_bad_filter_is_reported_and_reads_nothing(
    hf: SyncClient, tools: Toolset, pattern: str
) -> None:
    process = start(hf, "echo kept; echo too >&2")
    bad = call(tools, "bash_output", bash_id=ended(process), filter=pattern)
    assert bad.is_error
    assert bad["error"].startswith(f'Invalid regex pattern "{pattern}": ')
    good = call(tools, "bash_output", bash_id=process.handle)
    assert (good["newOutput"], good["newErrors"]) == ("kept", "too")


def test_a_filter_that_takes_for_ever_is_given_up_and_reads_nothing(
    hf: SyncClient, tools: Toolset
) -> None:
    """A pattern cannot hold up the agent."""
    process = start(hf, "printf 'a%.0s' $(seq 1 60); echo '!'")
    slow = call(tools, "bash_output", bash_id=ended(process), filter=r"(a|aa)+(a|aa)+$")
    assert "make it simpler" in slow["error"]
    assert call(tools, "bash_output", bash_id=process.handle)["newOutput"] == "a" * 60 + "!"


def test_a_flood_is_bounded_and_says_what_is_missing(hf: SyncClient, tools: Toolset) -> None:
    """The first and the last lines are there, and where to find the rest."""
    process = start(hf, "seq 1 200000")
    read = call(tools, "bash_output", bash_id=ended(process))
    assert read["newOutput"].startswith("1\n2\n")
    assert read["newOutput"].endswith("\n200000")
    assert len(read["newOutput"]) <= 30_000
    assert process.record.log in read["note"]
    assert call(tools, "bash_output", bash_id=process.handle)["newOutput"] == ""


def test_a_filter_over_a_flood_is_bounded_too(hf: SyncClient, tools: Toolset) -> None:
    process = start(hf, "seq 1 40000")
    read = call(tools, "bash_output", bash_id=ended(process), filter="[1-9]")
    lines = read["newOutput"].split("\n")
    assert (lines[0], lines[-1]) == ("1", "40000")
    assert len(read["newOutput"]) <= 30_100
    (more,) = [line for line in lines if line.startswith("...")]
    assert more == f"... +{40_000 - (len(lines) - 1)} more lines"
    assert process.record.log in read["note"]


def test_what_a_filter_did_not_get_to_is_for_the_next_read(hf: SyncClient, tools: Toolset) -> None:
    """One read looks at so much and no more; nothing in between is left out."""
    process = start(hf, "seq -f %050.0f 1 60000")
    ended(process)
    reads = [call(tools, "bash_output", bash_id=process.handle, filter="0")]
    while "read again" in reads[-1].get("note", ""):
        reads.append(call(tools, "bash_output", bash_id=process.handle, filter="0"))
    assert len(reads) > 1
    shown = [re.findall(r"^\d+$", read["newOutput"], re.MULTILINE) for read in reads]
    assert (int(shown[0][0]), int(shown[-1][-1])) == (1, 60_000)
    for before, after in pairwise(shown):
        assert int(before[-1]) + 1 == int(after[0])


def test_output_that_was_let_go_unread_is_told(
    home: str, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    """A capped log does not move what is new: the rest is read, and the gap is said."""
    monkeypatch.setenv("HOLDFAST_LOG_CAP", "1MiB")
    with connect(session=session) as hf:
        tools = toolset(hf, "claude-code")
        process = start(hf, "seq -f %050.0f 1 100000")
        read = call(tools, "bash_output", bash_id=ended(process), filter="^0+100000$|^0+1$")
    assert read["newOutput"] == f"{100_000:050}"
    assert "bytes were let go unread" in read["note"]


def test_a_timeout_is_a_kill_that_its_errors_explain_once(hf: SyncClient, tools: Toolset) -> None:
    """Also to somebody who filters, for it is no output."""
    process = start(hf, "echo late >&2; sleep 1000", timeout=0.25)
    read = call(tools, "bash_output", bash_id=ended(process), filter="nothing")
    assert (read["status"], read["exitCode"]) == ("killed", None)
    assert read["newErrors"] == "Process killed after 250ms timeout"
    again = call(tools, "bash_output", bash_id=process.handle)
    assert (again["status"], again["newErrors"]) == ("killed", "")


def test_an_end_by_a_signal_is_explained(hf: SyncClient, tools: Toolset) -> None:
    read = call(tools, "bash_output", bash_id=ended(start(hf, "kill -SEGV $$")))
    assert (read["status"], read["newErrors"]) == ("failed", "Process error: SIGSEGV")


def test_a_process_with_one_log_can_be_read_too(hf: SyncClient, tools: Toolset) -> None:
    """Somebody else started it, with stderr among its output."""
    process = hf.spawn("echo out; echo err >&2; kill -KILL $$")
    read = call(tools, "bash_output", bash_id=ended(process))
    assert (read["newOutput"], read["newErrors"]) == ("out\nerr", "Process error: SIGKILL")
    assert call(tools, "bash_output", bash_id=process.handle)["newErrors"] == ""


def test_ids_match_exactly(hf: SyncClient, tools: Toolset, session: str) -> None:
    """A part of an id is no id, and another session's process does not exist."""
    process = start(hf, "sleep 1000")
    with connect(session=f"{session}-other") as other:
        theirs = other.spawn("sleep 1000").handle
        for wrong in (process.handle[:-1], process.handle[5:], "", "proc-", theirs):
            result = call(tools, "bash_output", bash_id=wrong)
            assert result.is_error
            assert dict(result) == {
                "error": f"Process not found: {wrong}. Use list_shells to see available processes."
            }
            assert call(tools, "kill_shell", shell_id=wrong) == {
                "success": False,
                "message": f"Process not found: {wrong}",
            }
        assert other.get(theirs).record.running
    assert process.refresh().running


# -- kill_shell ------------------------------------------------------------------------------------


def test_a_kill_reaches_everything_it_started(hf: SyncClient, tools: Toolset) -> None:
    process = start(hf, "setsid sleep 1000 & echo $!; sleep 1000 & echo $!; wait")
    wait_until(lambda: process.read_at(0).data.count(b"\n") == 2)
    pids = [int(line) for line in process.read_at(0).text.split()]
    assert call(tools, "kill_shell", shell_id=process.handle) == {
        "success": True,
        "message": f"Process {process.handle} killed",
    }
    wait_until(lambda: not any(map(alive, pids)))


def test_killed_stays_killed(hf: SyncClient, tools: Toolset) -> None:
    """Also when it catches the signal and exits with 0, and when it is killed again."""
    command = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    handle = written(start(hf, command), "ready\n")
    assert call(tools, "kill_shell", shell_id=handle)["success"]
    read = call(tools, "bash_output", bash_id=handle)
    assert (read["status"], read["exitCode"]) == ("killed", 0)
    (shell,) = call(tools, "list_shells")["shells"]
    assert shell["status"] == "killed"
    assert call(tools, "kill_shell", shell_id=handle) == {
        "success": False,
        "message": "Process already killed",
    }


def test_what_ended_by_itself_cannot_be_killed(hf: SyncClient, tools: Toolset) -> None:
    for command, status in (("true", "completed"), ("false", "failed")):
        handle = ended(start(hf, command))
        assert call(tools, "kill_shell", shell_id=handle) == {
            "success": False,
            "message": f"Process already {status}",
        }


# -- list_shells and events ------------------------------------------------------------------------


def test_the_list_has_each_shell_with_its_counts(hf: SyncClient, tools: Toolset) -> None:
    """Running and ended; a command of more than fifty characters is cut."""
    long = start(hf, f"seq 1 3; echo bad >&2; exec sleep 1000 #{'x' * 60}")
    written(long, "3\n")
    written(long, "bad\n", "stderr")
    short = start(hf, "exit 2")
    ended(short)
    first, second = call(tools, "list_shells")["shells"]
    assert list(first) == [
        "id",
        "pid",
        "command",
        "status",
        "startedAt",
        "runtime",
        "outputLines",
        "errorLines",
    ]
    assert (first["id"], first["pid"]) == (long.handle, long.record.pid)
    assert first["command"] == f"seq 1 3; echo bad >&2; exec sleep 1000 #{'x' * 7}..."
    assert len(first["command"]) == 50
    assert (first["status"], first["outputLines"], first["errorLines"]) == ("running", 3, 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["startedAt"])
    assert re.fullmatch(r"\d+s|\d+m \d+s", first["runtime"])
    assert (second["id"], second["pid"], second["status"]) == (short.handle, None, "failed")
    assert (second["command"], second["outputLines"]) == ("exit 2", 0)


def test_lines_are_counted_on_as_they_come(hf: SyncClient, tools: Toolset, gate: Gate) -> None:
    """A line that was not finished when it was counted is still one."""
    process = start(hf, f"echo one; printf two; : < {gate.path}; echo; echo three")
    written(process, "two")
    assert call(tools, "list_shells")["shells"][0]["outputLines"] == 2
    gate.open()
    ended(process)
    assert call(tools, "list_shells")["shells"][0]["outputLines"] == 3


def test_an_end_is_told_with_a_later_result_and_only_once(hf: SyncClient, tools: Toolset) -> None:
    """Whoever read the end with bash_output is not told of it again."""
    told, read = start(hf, "echo bye; exit 5"), start(hf, "exit 6")
    for process in (told, read):
        ended(process)
    wait_until(lambda: len(list(hf.events())) == 2)
    result = call(tools, "bash_output", bash_id=read.handle)
    (event,) = result["events"]
    assert (event["handle"], event["exit_code"]) == (told.handle, 5)
    assert "bye" in event["text"]
    assert "events" not in call(tools, "list_shells")


# -- which tools are shown -------------------------------------------------------------------------


def test_the_shell_tools_are_shown_and_all_can_be_called(tools: Toolset) -> None:
    shown = ["run_command", "bash_output", "kill_shell", "list_shells", "background_agent"]
    assert tools.names == shown
    assert [each["name"] for each in tools.definitions()] == shown
    assert call(tools, "Bash", command="echo hello").text == "hello"


def test_claude_codes_names_can_be_shown_instead(hf: SyncClient) -> None:
    """The others can still be called."""
    tools = toolset(hf, "claude-code", names="claude")
    assert tools.names == ["Bash", "TaskOutput", "TaskStop"]
    assert "dangerouslyDisableSandbox" not in json.dumps(tools.definitions())
    assert call(tools, "run_command", command="echo hello")["newOutput"] == "hello"
    with pytest.raises(BadRequest, match="'shell' or 'claude'"):
        toolset(hf, "claude-code", names="codex")


# -- Bash ------------------------------------------------------------------------------------------


def test_bash_returns_what_the_command_wrote(tools: Toolset) -> None:
    result = call(tools, "Bash", command="echo out; echo err >&2", dangerouslyDisableSandbox=True)
    assert result.text == "out\nerr"
    assert dict(result) == {"stdout": "out\nerr", "stderr": "", "interrupted": False}


def test_a_command_that_fails_is_an_error_with_its_exit_code_in_front(tools: Toolset) -> None:
    result = call(tools, "Bash", command="echo why; exit 3")
    assert result.is_error
    assert result.text == "Exit code 3\nwhy"
    assert (result["stdout"], result["exitCode"]) == ("why", 3)
    killed = call(tools, "Bash", command="kill -KILL $$")
    assert killed.text == "Exit code 137\nProcess error: SIGKILL"


def test_bash_in_the_background_says_where_its_output_goes(hf: SyncClient, tools: Toolset) -> None:
    """At once, with its limit: 30 minutes, or what was asked for up to two hours."""
    result = call(tools, "Bash", command="echo hi; exec sleep 1000", run_in_background=True)
    process = hf.get(result["backgroundTaskId"])
    assert result.text == (
        f"Command running in background with ID: {process.handle}. Output is being written to: "
        f"{process.record.log}. You will be notified when it completes. If it is still running "
        "after 30m in the background, it will be stopped and you will be notified. To check "
        "interim output, use Read on that file path."
    )
    written(process, "hi\n")
    assert Path(process.record.log).read_text() == "hi\n"
    for asked, limit in ((90_000, 90), (9e9, 7200)):
        result = call(tools, "Bash", command="true", run_in_background=True, timeout=asked)
        assert hf.get(result["backgroundTaskId"]).record.timeout == limit


def test_bash_that_takes_longer_than_its_timeout_goes_on_in_the_background(
    hf: SyncClient, tools: Toolset
) -> None:
    result = call(tools, "Bash", command="echo so far; exec sleep 1000", timeout=2500)
    process = hf.get(result["backgroundTaskId"])
    assert result.text.startswith(
        "so far\nCommand did not complete within its 2.5s timeout and was moved to the background "
        f"(ID: {process.handle}). Output is being written to: {process.record.log}. You will"
    )
    assert result["timedOutAfterMs"] == 2500
    assert process.record.running
    assert process.record.timeout == 1802.5


def test_bash_for_a_caller_who_cannot_wait_goes_on_in_the_background(tools: Toolset) -> None:
    result = run(tools.call("Bash", {"command": "sleep 1000"}, patience=1.5))
    assert re.match(r"Command did not complete within the \ds that this call can wait", result.text)
    assert "timedOutAfterMs" not in result


def test_long_output_of_bash_names_its_file(hf: SyncClient, tools: Toolset) -> None:
    result = call(tools, "Bash", command="seq 1 100000")
    assert result.text.startswith("1\n2\n")
    assert result.text.endswith(f"\n100000\n[Full output: {result['persistedOutputPath']}]")
    assert result["persistedOutputSize"] == os.path.getsize(result["persistedOutputPath"])


# -- TaskOutput and TaskStop -----------------------------------------------------------------------


def task(tools: Toolset, command: str) -> str:
    return str(call(tools, "Bash", command=command, run_in_background=True)["backgroundTaskId"])


def test_task_output_waits_for_the_end_and_has_all_output_each_time(tools: Toolset) -> None:
    handle = task(tools, "echo out; echo err >&2; exit 2")
    for _ in range(2):
        result = call(tools, "TaskOutput", task_id=handle, block=True, timeout=600_000)
        assert result.text == (
            "<retrieval_status>success</retrieval_status>\n\n"
            f"<task_id>{handle}</task_id>\n\n"
            "<task_type>local_bash</task_type>\n\n"
            "<status>failed</status>\n\n"
            "<exit_code>2</exit_code>\n\n"
            "<output>\nout\nerr\n</output>"
        )
        assert "events" not in result


def test_task_output_of_what_still_runs_says_why_it_is_not_there(tools: Toolset) -> None:
    handle = task(tools, "sleep 1000")
    rest = (
        f"<task_id>{handle}</task_id>\n\n<task_type>local_bash</task_type>\n\n"
        "<status>running</status>"
    )
    look = call(tools, "TaskOutput", task_id=handle, block=False)
    assert look.text == f"<retrieval_status>not_ready</retrieval_status>\n\n{rest}"
    wait = call(tools, "TaskOutput", task_id=handle, timeout=10)
    assert wait.text == f"<retrieval_status>timeout</retrieval_status>\n\n{rest}"
    assert "at most 600000" in call(tools, "TaskOutput", task_id=handle, timeout=600_001).text


def test_long_output_of_a_task_is_its_end_and_where_all_of_it_is(
    hf: SyncClient, tools: Toolset
) -> None:
    handle = task(tools, "seq 1 100000")
    result = call(tools, "TaskOutput", task_id=handle)
    log = hf.get(handle).record.log
    assert f"<output>\n[Truncated. Full output: {log}]\n\n" in result.text
    assert result.text.endswith("\n99999\n100000\n</output>")
    assert len(result["output"]) < 30_500


@pytest.mark.parametrize("argument", ["task_id", "shell_id"])
def test_task_stop_stops_a_task_once(hf: SyncClient, tools: Toolset, argument: str) -> None:
    handle = task(tools, "sleep 1000")
    result = call(tools, "TaskStop", **{argument: handle})
    assert json.loads(result.text) == {
        "message": f"Successfully stopped task: {handle} (sleep 1000)",
        "task_id": handle,
        "task_type": "local_bash",
        "command": "sleep 1000",
    }
    again = call(tools, "TaskStop", task_id=handle)
    assert again.is_error
    assert again.text == (
        f"<tool_use_error>Task {handle} is not running (status: killed)</tool_use_error>"
    )


def test_tasks_that_do_not_exist_are_not_found(tools: Toolset) -> None:
    for name in ("TaskOutput", "TaskStop"):
        result = call(tools, name, task_id="bxh4fokic")
        assert result.text == "<tool_use_error>No task found with ID: bxh4fokic</tool_use_error>"
    assert "'task_id'" in call(tools, "TaskStop").text


# -- BashOutput and KillShell ----------------------------------------------------------------------


def without_time(result: Result) -> str:
    return re.sub(r"<timestamp>[-\d]+T[\d:]+\.\d{3}Z</timestamp>", "<timestamp/>", result.text)


def test_bash_output_of_old_has_what_is_new(hf: SyncClient, tools: Toolset, gate: Gate) -> None:
    """By lines, blank ones too; the reading is the same as that of bash_output."""
    process = start(hf, f"printf 'a\\n\\nb\\n'; echo bad >&2; : < {gate.path}; exit 1")
    written(process, "b\n")
    written(process, "bad\n", "stderr")
    assert without_time(call(tools, "BashOutput", bash_id=process.handle)) == (
        "<status>running</status>\n\n<stdout>\na\n\nb\n</stdout>\n\n<stderr>\nbad\n</stderr>\n\n"
        "<timestamp/>"
    )
    assert call(tools, "bash_output", bash_id=process.handle)["newOutput"] == ""
    gate.open()
    assert without_time(call(tools, "BashOutput", bash_id=ended(process))) == (
        "<status>failed</status>\n\n<exit_code>1</exit_code>\n\n<timestamp/>"
    )


def test_bash_output_of_old_filters_and_says_what_is_wrong(hf: SyncClient, tools: Toolset) -> None:
    process = start(hf, "echo one; echo two")
    bad = call(tools, "BashOutput", bash_id=ended(process), filter="(")
    assert bad.text.startswith('<tool_use_error>Invalid regex pattern "(": ')
    assert call(tools, "BashOutput", bash_id=process.handle, filter="TWO")["stdout"] == "two"
    missing = call(tools, "BashOutput", bash_id="dcd1a0")
    assert missing.text == "<tool_use_error>No shell found with ID: dcd1a0</tool_use_error>"


@pytest.mark.parametrize("name", ["KillShell", "KillBash"])
def test_kill_shell_of_old_kills_once(hf: SyncClient, tools: Toolset, name: str) -> None:
    handle = start(hf, "sleep 1000").handle
    assert json.loads(call(tools, name, shell_id=handle).text) == {
        "message": f"Successfully killed shell: {handle} (sleep 1000)",
        "shell_id": handle,
    }
    assert call(tools, name, shell_id=handle)["error"] == (
        f"Shell {handle} is not running, so cannot be killed (status: killed)"
    )
    assert call(tools, name, shell_id="x")["error"] == "No shell found with ID: x"


# -- over asyncio ----------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_same_tools_work_in_an_event_loop(
    home: str, anyio_backend: str, session: str
) -> None:
    """Reading and counting happen beside the loop."""
    async with connect(session=session) as client:
        tools = Toolset(client, "claude-code")
        result = await tools.call("run_command", {"command": "echo a; echo b >&2"})
        assert (result["newOutput"], result["newErrors"], result["exitCode"]) == ("a", "b", 0)
        (shell,) = (await tools.call("list_shells"))["shells"]
        assert (shell["outputLines"], shell["errorLines"]) == (1, 1)
