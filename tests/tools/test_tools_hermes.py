"""Hermes Agent's tools: terminal and process, as the models that know them expect them."""

from __future__ import annotations

import os
import re
from datetime import datetime

import pytest

from holdfast import SyncClient, Toolset, connect
from holdfast.client.link import run
from holdfast.testing import wait_until
from holdfast.tools import Result
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper


@pytest.fixture
def tools(hf: SyncClient) -> Toolset:
    return toolset(hf, "hermes")


def start(tools: Toolset, command: str, **arguments: Any) -> str:
    """Start something in the background; its session_id."""
    result = call(tools, "terminal", command=command, background=True, **arguments)
    assert not result.is_error, result
    return str(result["session_id"])


def process(tools: Toolset, action: str, session_id: str | None = None, **arguments: Any) -> Result:
    if session_id is not None:
        arguments["session_id"] = session_id
    return call(tools, "process", action=action, **arguments)


def plain(result: Result) -> dict[str, Any]:
    """Without the events that may have come along."""
    return {key: value for key, value in result.items() if key != "events"}


def polled(tools: Toolset, session_id: str, text: str) -> str:
    """Everything that polls showed, until `text` was in it."""
    output = ""

    def has_text() -> bool:
        nonlocal output
        output += process(tools, "poll", session_id)["output_preview"]
        return text in output

    wait_until(has_text)
    return output


def noticed(tools: Toolset, kind: str = "end") -> str:
    """The text of the next event of this kind."""
    texts: list[str] = []

    def came() -> bool:
        events = process(tools, "list").get("events", [])
        texts.extend(event["text"] for event in events if event["type"] == kind)
        return bool(texts)

    wait_until(came)
    return texts[0]


# -- what a model is shown ------------------------------------------------------------------------


def test_the_tools_and_their_arguments_are_those_of_the_release(tools: Toolset) -> None:
    """Two tools, with Hermes's names, arguments, actions and required ones."""
    definitions = {each["name"]: each["input_schema"] for each in tools.definitions()}
    assert {name: list(schema["properties"]) for name, schema in definitions.items()} == {
        "terminal": [
            "command",
            "background",
            "timeout",
            "workdir",
            "pty",
            "notify_on_complete",
            "watch_patterns",
        ],
        "process": ["action", "session_id", "data", "timeout", "offset", "limit"],
    }
    assert definitions["terminal"]["required"] == ["command"]
    assert definitions["process"]["required"] == ["action"]
    actions = definitions["process"]["properties"]["action"]["enum"]
    assert actions == ["list", "poll", "log", "wait", "kill", "write", "submit", "close"]


def test_the_later_name_of_process_is_understood(tools: Toolset) -> None:
    """process_manage does the same, though no model is told of it."""
    assert call(tools, "process_manage", action="list") == {"processes": []}
    assert tools.names == ["terminal", "process"]


# -- terminal, in the foreground ------------------------------------------------------------------


def test_a_command_returns_its_output_and_code(tools: Toolset) -> None:
    """Exactly Hermes's keys; white space around the output is taken off."""
    assert call(tools, "terminal", command=r"printf '\n \033[1mhello\033[0m\n'") == {
        "output": "hello",
        "exit_code": 0,
        "error": None,
    }
    assert call(tools, "terminal", command="echo no >&2; exit 3") == {
        "output": "no",
        "exit_code": 3,
        "error": None,
    }


@pytest.mark.parametrize(
    ("command", "code", "meaning"),
    [
        ("echo x | grep y", 1, "No matches found (not an error)"),
        ("diff /dev/null /etc/passwd | head -c 0; LC_ALL=C diff /dev/null /etc/passwd", 1, "Files"),
        ("kill -9 $$", 137, "terminated by signal 9: SIGKILL"),
        ("exit 1", 1, None),
    ],
)
def test_a_code_that_needs_a_word_has_one(
    tools: Toolset, command: str, code: int, meaning: str | None
) -> None:
    """What looks like a failure and is none, or came from a signal, is explained."""
    result = call(tools, "terminal", command=command)
    assert result["exit_code"] == code
    if meaning is None:
        assert "exit_code_meaning" not in result
    else:
        assert meaning in result["exit_code_meaning"]


def test_a_command_that_takes_too_long_is_killed(hf: SyncClient, tools: Toolset) -> None:
    """Code 124, with what it had written, and the words of Hermes at the end."""
    result = call(tools, "terminal", command="echo begun; exec sleep 600", timeout=1)
    assert result == {
        "output": "begun\n[Command timed out after 1s]",
        "exit_code": 124,
        "error": None,
    }
    assert hf.list()[0].record.status == "timed_out"


def test_long_output_is_cut_and_can_be_read_in_whole(tools: Toolset) -> None:
    """It says what was left out, where all of it is, and how to page through it."""
    result = call(tools, "terminal", command="seq 100000")
    assert len(result["output"]) <= 50_000
    assert result["output"].startswith("1\n2\n")
    assert result["output"].endswith("\n100000")
    with open(result["full_output_path"]) as file:
        assert file.read().count("\n") == 100_000
    found = re.search(r"session_id='(proc-\w+)'", result["truncation_note"])
    assert found is not None
    assert process(tools, "log", found[1], offset=50_000, limit=2)["output"] == "50001\n50002\n"


def test_a_timeout_above_the_maximum_starts_in_the_background(tools: Toolset, gate: Gate) -> None:
    """Instead of a refusal; the answer says that it is not to be run again."""
    result = call(tools, "terminal", command=f": < {gate.path}", timeout=601)
    assert result["output"] == "Background process started"
    assert "600s" in result["promoted_from_foreground"]
    assert process(tools, "poll", result["session_id"])["status"] == "running"


def test_a_command_goes_on_when_its_caller_loses_patience(tools: Toolset, gate: Gate) -> None:
    """Where a client cuts calls short, the answer has the id to go on with, and no code."""
    arguments = {"command": f"echo begun; : < {gate.path}; echo over"}
    result = run(tools.call("terminal", arguments, patience=1.5))
    assert (result["status"], result["exit_code"]) == ("yielded_to_background", None)
    gate.open()
    ended = process(tools, "wait", result["session_id"])
    assert (ended["status"], ended["output"]) == ("exited", "begun\nover\n")


def test_a_command_runs_where_it_is_told_to(tools: Toolset, tmp_path: Path) -> None:
    """In workdir, whatever characters are in it: no shell reads it."""
    place = tmp_path / "a; b"
    place.mkdir()
    result = call(tools, "terminal", command="pwd", workdir=str(place))
    assert result["output"] == str(place)


def test_options_of_the_background_are_refused_in_the_foreground(
    hf: SyncClient, tools: Toolset
) -> None:
    """They would do nothing: the message names them and says what to call instead."""
    for options in (
        {"pty": True},
        {"notify_on_complete": True},
        {"watch_patterns": ["x"]},
        {"heartbeat": 60},
        {"persist_on_release": True},
    ):
        result = call(tools, "terminal", command="true", **options)
        assert result.is_error
        assert set(result) == {"error"}
        assert result["error"].startswith(next(iter(options)))
        assert "background=true" in result["error"]
    assert hf.list() == []
    assert call(tools, "terminal", command="true", pty=False, watch_patterns=[])["exit_code"] == 0


# -- terminal, in the background ------------------------------------------------------------------


def test_a_background_process_returns_at_once(hf: SyncClient, tools: Toolset, gate: Gate) -> None:
    """With the id, which is the handle, the pid, and no code: it has none yet."""
    result = call(tools, "terminal", command=f": < {gate.path}", background=True)
    wait_until(lambda: hf.list()[0].record.pid is not None)
    record = hf.list()[0].record
    assert result == {
        "output": "Background process started",
        "session_id": record.handle,
        "pid": record.pid,
        "exit_code": None,
        "error": None,
        "notify_on_complete": True,
    }
    assert record.timeout is None


@pytest.mark.parametrize("options", [{}, {"notify_on_complete": True}, {"notify": True}])
def test_its_end_is_told_with_a_later_result(
    tools: Toolset, gate: Gate, options: dict[str, bool]
) -> None:
    """In the words of Hermes, asked for or not, and once."""
    command = f": < {gate.path}; echo made; exit 3"
    session_id = start(tools, command, **options)
    gate.open()
    assert noticed(tools) == (
        f"[IMPORTANT: Background process {session_id} exited (exit code 3).\n"
        f"Command: {command}\n"
        "Output:\n"
        "| made]"
    )
    assert "events" not in process(tools, "list")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("true", "completed normally (exit code 0)"),
        ("kill -9 $$", "exited (exit code -9, SIGKILL)"),
    ],
)
def test_a_notice_says_how_it_ended(tools: Toolset, gate: Gate, command: str, words: str) -> None:
    """With the code, and the signal where there was one."""
    session_id = start(tools, f": < {gate.path}; {command}")
    gate.open()
    assert noticed(tools).startswith(f"[IMPORTANT: Background process {session_id} {words}.")


def test_lines_with_a_watched_text_are_told(tools: Toolset, gate: Gate) -> None:
    """Plain text, not a pattern; a line that comes in two pieces counts too."""
    command = f"echo a.c; printf 'server re'; sleep 0.1; echo 'ady (1)'; : < {gate.path}"
    result = call(
        tools, "terminal", command=command, background=True, watch_patterns=["ready (1)", "abc"]
    )
    assert result["watch_patterns"] == ["ready (1)", "abc"]
    assert noticed(tools, "watch") == (
        f"[IMPORTANT: Background process {result['session_id']} matched watch pattern "
        '"ready (1)".\n'
        f"Command: {command}\n"
        "Matched output:\n"
        "| server ready (1)]"
    )


def test_patterns_of_one_process_share_their_limits(hf: SyncClient, tools: Toolset) -> None:
    """One notice in 15 seconds and 8 in all, however many patterns there are."""
    start(tools, "true", notify=["one", "t.o", ""])
    (watch,) = hf.list()[0].record.watches
    assert (watch["output"], watch["cooldown"], watch["most"]) == (r"one|t\.o", 15, 8)


def test_the_last_notice_of_a_watch_says_so(hf: SyncClient, tools: Toolset) -> None:
    """And that the end will still be told."""
    hf.spawn("echo match", watch=[{"output": "match", "most": 1}])
    text = noticed(tools, "watch")
    assert "reached the lifetime cap of 1 delivered matches" in text


def test_a_heartbeat_is_told_at_most_every_minute(hf: SyncClient, tools: Toolset) -> None:
    """The later argument: shorter ones are taken as a minute, and the answer says so."""
    result = call(tools, "terminal", command="true", background=True, heartbeat=5)
    assert result["heartbeat_seconds"] == 60
    (watch,) = hf.list()[0].record.watches
    assert watch["every"] == 60


def test_a_heartbeat_has_what_is_new(hf: SyncClient, tools: Toolset, gate: Gate) -> None:
    """In the words of Hermes."""
    watched = hf.spawn(f"echo one; : < {gate.path}", watch=["every=1s"])
    text = noticed(tools, "watch")
    assert text.startswith(f"[Background process {watched.handle} heartbeat #1 — still running")
    assert text.endswith("\nOutput since last heartbeat:\n| one]")


def test_what_persists_outlives_its_session(home: str, gate: Gate, session: str) -> None:
    """persist_on_release keeps it when the session is closed in good order; others are stopped."""
    with connect(session=session) as hf:
        tools = toolset(hf, "hermes")
        kept = start(tools, f": < {gate.path}", persist_on_release=True)
        other = start(tools, f": < {gate.path}")
    with connect(session=session) as hf:
        tools = toolset(hf, "hermes")
        assert process(tools, "poll", kept)["status"] == "running"
        assert process(tools, "poll", other)["completion_reason"] == "killed"


def test_one_too_many_is_refused(hf: SyncClient, gate: Gate) -> None:
    """The message says which ones run; nothing is killed to make room."""
    tools = toolset(hf, "hermes", max_running=1)
    running = start(tools, f": < {gate.path}")
    result = call(tools, "terminal", command="true", background=True)
    assert result.is_error
    assert result["status"] == "error"
    assert result["error"].startswith("Failed to start background process: ")
    assert running in result["error"]


# -- process --------------------------------------------------------------------------------------


def test_the_list_has_what_runs_before_what_has_ended(tools: Toolset, gate: Gate) -> None:
    """With Hermes's keys; what was run in the foreground is not in it."""
    call(tools, "terminal", command="echo foreground")
    ended = start(tools, "echo over; exit 2")
    assert process(tools, "wait", ended)["exit_code"] == 2
    running = start(tools, f"echo one; : < {gate.path}")
    polled(tools, running, "one\n")
    first, second = process(tools, "list")["processes"]
    assert set(first) == {
        "session_id",
        "command",
        "cwd",
        "pid",
        "started_at",
        "uptime_seconds",
        "status",
        "output_preview",
    }
    assert (first["session_id"], first["status"], first["output_preview"]) == (
        running,
        "running",
        "one\n",
    )
    datetime.strptime(first["started_at"], "%Y-%m-%dT%H:%M:%S")
    assert (second["session_id"], second["status"], second["exit_code"]) == (ended, "exited", 2)


def test_a_poll_has_what_is_new_since_the_last(home: str, gate: Gate, session: str) -> None:
    """As its description says; also for another client of the session."""
    with connect(session=session) as hf:
        tools = toolset(hf, "hermes")
        session_id = start(tools, f"echo one; : < {gate.path}; echo two; exit 4")
        assert polled(tools, session_id, "one\n") == "one\n"
        result = process(tools, "poll", session_id)
        assert (result["status"], result["output_preview"]) == ("running", "")
        assert "exit_code" not in result
        with connect(session=session) as again:
            tools = toolset(again, "hermes")
            gate.open()
            assert polled(tools, session_id, "two\n") == "two\n"
            wait_until(lambda: process(tools, "poll", session_id)["status"] == "exited")
            result = process(tools, "poll", session_id)
            assert (result["exit_code"], result["completion_reason"]) == (4, "exited")
            assert result["termination_source"] == ""
            assert "events" not in process(tools, "list")


def test_a_poll_of_much_new_output_is_short_and_says_so(tools: Toolset) -> None:
    """A thousand characters, with a note of what is left out, and nothing twice."""
    session_id = start(tools, "seq 1000000")
    process(tools, "wait", session_id)
    text = process(tools, "poll", session_id)["output_preview"]
    assert len(text) <= 1000
    assert text.startswith("1\n")
    assert text.endswith("1000000\n")
    assert "left out" in text
    assert process(tools, "poll", session_id)["output_preview"] == ""


def test_a_log_is_read_by_lines(tools: Toolset) -> None:
    """The last 200 without an offset; 0 is the first line, not the tail."""
    session_id = start(tools, "seq 1000")
    process(tools, "wait", session_id)
    result = process(tools, "log", session_id)
    assert result["output"] == "".join(f"{n}\n" for n in range(801, 1001))
    assert (result["total_lines"], result["showing"]) == (1000, "200 lines")
    assert set(result) == {
        "session_id",
        "command",
        "status",
        "output",
        "total_lines",
        "showing",
    }
    assert process(tools, "log", session_id, offset=0, limit=2)["output"] == "1\n2\n"
    assert process(tools, "log", session_id, limit=1)["output"] == "1000\n"


def test_a_wait_returns_with_the_end(tools: Toolset, gate: Gate) -> None:
    """How it ended, and its output; it is not told again."""
    session_id = start(tools, f": < {gate.path}; echo made; exit 6")
    gate.open()
    result = process(tools, "wait", session_id)
    assert result == {
        "status": "exited",
        "command": f": < {gate.path}; echo made; exit 6",
        "exit_code": 6,
        "completion_reason": "exited",
        "termination_source": "",
        "output": "made\n",
    }
    assert "events" not in process(tools, "list")


def test_a_wait_that_is_too_short_is_no_error(tools: Toolset, gate: Gate) -> None:
    """It says that the process goes on, and shows what there is."""
    session_id = start(tools, f"echo one; : < {gate.path}")
    polled(tools, session_id, "one")
    result = process(tools, "wait", session_id, timeout=1)
    assert not result.is_error
    assert (result["status"], result["process_running"]) == ("timeout", True)
    assert result["output"] == "one\n"
    assert "process still running" in result["timeout_note"]


def test_a_wait_is_no_longer_than_the_setting(hf: SyncClient, gate: Gate) -> None:
    """What was asked for beyond it is said to have been clamped."""
    tools = toolset(hf, "hermes", timeout=1)
    session_id = start(tools, f": < {gate.path}")
    note = process(tools, "wait", session_id, timeout=600)["timeout_note"]
    assert note.startswith("Requested wait of 600s was clamped to configured limit of 1s. Waited")


def test_a_wait_shows_that_somebody_must_type(tools: Toolset) -> None:
    """Where a prompt is why it does not end, the answer has it."""
    session_id = start(tools, "read -p 'sure? ' x", pty=True)
    polled(tools, session_id, "sure? ")
    waited: list[Result] = []

    def asks() -> bool:
        waited.append(process(tools, "wait", session_id, timeout=1))
        return "waiting_for_input" in waited[-1]

    wait_until(asks)
    assert waited[-1]["waiting_for_input"]["prompt"] == "sure?"


def test_a_kill_takes_everything_with_it(tools: Toolset) -> None:
    """Killed, with the output; a second one says that it was over, and how it had ended."""
    session_id = start(tools, "echo begun; sleep 600 & sleep 600")
    polled(tools, session_id, "begun")
    assert process(tools, "kill", session_id) == {
        "status": "killed",
        "session_id": session_id,
        "completion_reason": "killed",
        "termination_source": "process.kill",
        "output": "begun\n",
    }
    again = process(tools, "kill", session_id)
    assert not again.is_error
    assert (again["status"], again["exit_code"]) == ("already_exited", -15)
    assert (again["completion_reason"], again["termination_source"]) == ("killed", "process.kill")
    assert "events" not in again


def test_the_code_after_a_kill_is_the_one_it_ended_with(tools: Toolset) -> None:
    """Not what the signal should have led to: it may have ended in its own way."""
    session_id = start(tools, "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done")
    polled(tools, session_id, "ready")
    assert process(tools, "kill", session_id)["status"] == "killed"
    assert process(tools, "poll", session_id)["exit_code"] == 9


def test_input_goes_to_a_process_without_a_terminal(tools: Toolset) -> None:
    """write as it is, submit with a line end, close as the end; counted in bytes."""
    session_id = start(tools, "cat")
    for action, data, answer in (
        ("write", "grün ", {"status": "ok", "bytes_written": 6}),
        ("submit", "tea", {"status": "ok", "bytes_written": 4}),
        ("close", "", {"status": "ok", "message": "stdin closed"}),
    ):
        assert plain(process(tools, action, session_id, data=data)) == answer
    result = process(tools, "wait", session_id)
    assert (result["output"], result["exit_code"]) == ("grün tea\n", 0)


def test_input_goes_to_a_terminal(tools: Toolset) -> None:
    """Of 120 columns and 30 rows; submit presses Enter, close types the end of file."""
    session_id = start(tools, "stty size; read name; echo hello $name; cat; echo over", pty=True)
    assert "30 120\n" in polled(tools, session_id, "30 120")
    process(tools, "submit", session_id, data="Ada")
    assert "hello Ada" in polled(tools, session_id, "hello Ada")
    result = process(tools, "close", session_id)
    assert plain(result) == {"status": "ok", "message": "EOF sent"}
    assert process(tools, "wait", session_id)["output"].endswith("over\n")


# -- mistakes -------------------------------------------------------------------------------------


def test_input_for_what_has_ended_or_does_not_listen_is_an_error(tools: Toolset) -> None:
    """In the words of Hermes."""
    session_id = start(tools, "true")
    process(tools, "wait", session_id)
    for action in ("write", "submit", "close"):
        result = process(tools, action, session_id, data="x")
        assert result.is_error
        assert result == {
            "status": "already_exited",
            "error": "Process has already finished",
        }
    session_id = start(tools, "cat > /dev/null; sleep 600")
    process(tools, "close", session_id)
    result = process(tools, "write", session_id, data="x")
    assert result.is_error
    assert plain(result) == {
        "status": "error",
        "error": "Process stdin not available (non-local backend or stdin closed)",
    }


def test_an_id_is_matched_exactly_and_only_in_its_session(
    tools: Toolset, home: str, gate: Gate, session: str
) -> None:
    """A beginning of one, another session's and nobody's are all not found."""
    session_id = start(tools, f": < {gate.path}")
    with connect(session=f"{session}-other") as other:
        theirs = start(toolset(other, "hermes"), f": < {gate.path}")
        for wrong in (session_id[:-1], theirs, "proc_4dae56ca81f6"):
            result = process(tools, "poll", wrong)
            assert result.is_error
            assert result == {"status": "not_found", "error": f"No process with ID {wrong}"}


def test_an_action_without_its_process_is_refused(tools: Toolset) -> None:
    """In the words of Hermes."""
    result = process(tools, "poll")
    assert result.is_error
    assert result == {"error": "session_id is required for poll"}


@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("terminal", {}, "command"),
        ("terminal", {"command": "true", "timeout": 0}, "timeout"),
        ("terminal", {"command": "true", "cwd": "/"}, "cwd"),
        ("terminal", {"command": "true", "background": True, "notify": 1}, "notify"),
        ("process", {"action": "stop"}, "action"),
    ],
)
def test_wrong_arguments_start_nothing(
    hf: SyncClient, tools: Toolset, name: str, arguments: dict[str, object], word: str
) -> None:
    """The error, alone in its answer, names the argument."""
    result = call(tools, name, **arguments)
    assert result.is_error
    assert set(result) == {"error"}
    assert repr(word) in result["error"]
    assert hf.list() == []


def test_what_cannot_start_is_an_error_and_leaves_nothing(hf: SyncClient, tools: Toolset) -> None:
    """In the envelope of Hermes, in the foreground and in the background."""
    for background, words in ((False, "execute command"), (True, "start background process")):
        result = call(
            tools, "terminal", command="true", workdir="/no/such/place", background=background
        )
        assert result.is_error
        assert (result["output"], result["exit_code"], result["status"]) == ("", -1, "error")
        assert result["error"].startswith(f"Failed to {words}: ")
        assert "/no/such/place" in result["error"]
    assert hf.list() == []


def test_an_end_that_nobody_can_know_is_lost(
    hf: SyncClient, tools: Toolset, gate: Gate, kill_both: Callable[[SyncClient], None]
) -> None:
    """It ended while both halves of the keeper were dead, and a poll says so."""
    result = call(tools, "terminal", command=f": < {gate.path}", background=True)
    kill_both(hf)
    gate.open()
    wait_until(lambda: not os.path.exists(f"/proc/{result['pid']}"))
    polled_now = process(tools, "poll", result["session_id"])
    assert (polled_now["exit_code"], polled_now["completion_reason"]) == (None, "lost")
    assert polled_now["termination_source"] == "backend_lost"
