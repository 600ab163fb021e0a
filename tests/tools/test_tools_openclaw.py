"""OpenClaw's dialect: what `exec` and `process` of its release 2026.9.6 answer, word for word."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from pathlib import Path

import pytest

from holdfast import BadRequest, SyncClient, Toolset, connect
from holdfast.client.link import run
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until
from holdfast.tools.dialects.openclaw_words import duration, name
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.tools import Result
    from tests.conftest import Gate

    Child = Callable[..., list[str]]

pytestmark = pytest.mark.shared_keeper

FOLLOW_UP = (
    "Use process (list/poll/log/write/send-keys/submit/paste/kill/clear/remove) for follow-up."
)
SIDE_EFFECTS = "The command was terminated, but external side effects may already have completed."
ENDED = "Process exited with"
EXIT_KEYS = {"exitCode", "exitSignal", "exitReason", "timedOut", "noOutputTimedOut"}
INPUT_KEYS = {"stdinWritable", "waitingForInput", "idleMs", "lastOutputAt"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith(("OPENCLAW_", "PI_BASH_")):
            monkeypatch.delenv(variable)


@pytest.fixture
def tools(hf: SyncClient) -> Toolset:
    return toolset(hf, "openclaw")


def execute(tools: Toolset, command: str, **arguments: Any) -> Result:
    return call(tools, "exec", command=command, **arguments)


def start(tools: Toolset, command: str, **arguments: Any) -> str:
    answer = execute(tools, command, background=True, **arguments)
    assert answer["status"] == "running", answer
    return str(answer["sessionId"])


def act(tools: Toolset, action: str, session: str = "", **arguments: Any) -> Result:
    if session:
        arguments["sessionId"] = session
    return call(tools, "process", action=action, **arguments)


def said(answer: Result) -> str:
    """What a model reads, but for what else the session is told with it."""
    text = answer.text
    for event in reversed(answer.get("events", [])):
        text = text.removesuffix(f"\n\n{event['text']}")
    return text


def gone(pid: int) -> bool:
    """Whoever is not reaped yet runs no more."""
    found = stat(pid)
    return found is None or found.state in "ZX"


def ended(tools: Toolset, session: str) -> Result:
    """The poll that shows the end, with all the output that none has shown before."""
    wait_until(lambda: act(tools, "log", session)["status"] != "running")
    return act(tools, "poll", session)


def shows(tools: Toolset, session: str, text: str) -> None:
    """Waits for output without taking it from the next poll."""
    wait_until(lambda: text in act(tools, "log", session)["output"])


# -- exec: what ended in time ------------------------------------------------------------------


def test_exec_answers_with_the_output(tools: Toolset) -> None:
    """Trimmed, both streams as they came; the details are the host's."""
    answer = execute(tools, "echo; echo out; echo err >&2", title="say something")
    assert answer.text == "out\nerr"
    assert dict(answer) == {
        "status": "completed",
        "exitCode": 0,
        "exitSignal": None,
        "exitReason": "exit",
        "timedOut": False,
        "noOutputTimedOut": False,
        "durationMs": answer["durationMs"],
        "aggregated": "\nout\nerr\n",
        "cwd": os.getcwd(),
    }
    json.dumps(answer)


def test_exec_says_when_there_was_no_output(tools: Toolset) -> None:
    """Nothing is not an empty answer."""
    assert execute(tools, "true").text == "(no output)"


def test_exec_tells_another_exit_code_and_calls_it_completed(tools: Toolset) -> None:
    """The command ran; how it went is its own business."""
    answer = execute(tools, "echo out; exit 3")
    assert answer.text == "out\n\n(Command exited with code 3)"
    assert (answer["status"], answer["exitCode"]) == ("completed", 3)
    assert execute(tools, "exit 3").text == "(no output)\n\n(Command exited with code 3)"


def test_exec_fails_where_the_shell_could_not_start_it(tools: Toolset, tmp_path: Path) -> None:
    """Codes 127 and 126, with the shell's own words before ours."""
    answer = execute(tools, "no-such-program-here")
    assert answer.text.endswith("command not found\n\nCommand not found")
    assert (answer["status"], answer["failureKind"]) == ("failed", "shell-command-not-found")
    (tmp_path / "plain").write_text("")
    answer = execute(tools, f"{tmp_path}/plain")
    assert answer.text.endswith("\n\nCommand not executable (permission denied)")
    assert (answer["failureKind"], answer["exitCode"]) == ("shell-not-executable", 126)


def test_exec_fails_with_a_signal(tools: Toolset) -> None:
    """By its name; with the output first, if there was any."""
    answer = execute(tools, "echo out; kill -9 $$")
    assert answer.text == "out\n\nCommand aborted by signal SIGKILL"
    assert (answer["failureKind"], answer["exitReason"]) == ("signal", "signal")
    assert (answer["exitCode"], answer["exitSignal"]) == (None, "SIGKILL")
    assert execute(tools, "kill -9 $$").text == "Command aborted by signal SIGKILL"


def test_exec_fails_at_its_timeout(tools: Toolset) -> None:
    """With a word about what may have been done already, and what to do about it."""
    answer = execute(tools, "echo out; sleep 1000", timeoutSeconds=0.5)
    assert answer.text.startswith(f"out\n\nCommand timed out after 0.5 seconds.\n\n{SIDE_EFFECTS}")
    assert "start it with exec background=true or yieldMs" in answer.text
    assert (answer["failureKind"], answer["exitReason"]) == ("overall-timeout", "overall-timeout")
    assert answer["timedOut"]


def test_exec_takes_the_timeout_by_its_older_name(tools: Toolset, hf: SyncClient) -> None:
    """Models that learnt it up to 2026.7 say `timeout`, in seconds; no schema shows it."""
    session = start(tools, "true", timeout=77)
    assert hf.get(session).record.timeout == 77
    assert "timeout" not in tools.definitions()[0]["input_schema"]["properties"]


def test_exec_refuses_a_directory_that_is_not_there(tools: Toolset, tmp_path: Path) -> None:
    """It is a failed result, and the directory is a literal path."""
    for workdir in ("/no/such/place", "~", "  "):
        answer = execute(tools, "true", workdir=workdir)
        assert answer.text.startswith(f'workdir "{workdir}" is unavailable or not a directory: ')
        assert answer["status"] == "failed"
    assert execute(tools, "pwd", workdir=str(tmp_path)).text == str(tmp_path)
    assert execute(tools, "pwd", workdir="").text == os.getcwd()


def test_exec_runs_with_the_environment_it_is_given(tools: Toolset) -> None:
    """Literally, and with OPENCLAW_SHELL as there."""
    answer = execute(tools, 'echo "$A $OPENCLAW_SHELL"', env={"A": "$HOME"})
    assert answer.text == "$HOME exec"


def test_exec_with_pty_has_a_terminal_of_its_size(tools: Toolset) -> None:
    """120 columns and 30 rows."""
    assert execute(tools, "stty size; test -t 0 && echo yes", pty=True).text == "30 120\nyes"


def test_exec_shows_the_newest_of_much_output_and_where_the_rest_is(
    tools: Toolset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 30,000 characters, or what the environment says; nothing is lost."""
    answer = execute(tools, "seq 1 20000")
    assert len(answer["aggregated"]) == 30_000
    assert answer.text.endswith("\n19999\n20000")
    assert answer.text.startswith("[earlier output is omitted; use process action=log")
    assert act(tools, "log", answer["sessionId"], offset=0, limit=2).text == "1\n2"
    for variable in ("PI_BASH_MAX_OUTPUT_CHARS", "OPENCLAW_BASH_MAX_OUTPUT_CHARS"):
        monkeypatch.setenv(variable, "10" if variable.startswith("O") else "5000")
        shown = len(execute(tools, "seq 1 20000")["aggregated"])
        assert shown == (1000 if variable.startswith("O") else 5000)


def test_exec_says_what_it_needs(tools: Toolset, hf: SyncClient) -> None:
    """A command, and only what there is here; nothing is started otherwise."""
    assert execute(tools, "  ").text == "Provide a command to start."
    assert "'command'" in call(tools, "exec").text
    sandbox = execute(tools, "true", host="sandbox")
    assert sandbox.text.startswith("exec host=sandbox requires a sandbox runtime for this session.")
    for argument in ({"host": "node"}, {"node": "n1"}, {"elevated": True}, {"ask": "always"}):
        answer = execute(tools, "true", **argument)
        assert next(iter(argument)) in answer.text
        assert dict(answer) == {"status": "failed", "error": answer.text}
    assert "'host'" in execute(tools, "true", host="moon").text
    assert "securty" in execute(tools, "true", securty="full").text
    assert hf.list() == []
    fillers = {"host": "gateway", "elevated": False, "ask": "off", "node": ""}
    assert execute(tools, "echo here", **fillers).text == "here"


# -- exec: what goes to the background ---------------------------------------------------------


def test_exec_in_the_background_is_answered_at_once(tools: Toolset, gate: Gate) -> None:
    """With the session, its pid, and what to do next."""
    answer = execute(tools, f": < {gate.path}", background=True)
    session, pid = answer["sessionId"], answer["pid"]
    assert answer.text == f"Command still running (session {session}, pid {pid}). {FOLLOW_UP}"
    assert dict(answer) == {
        "status": "running",
        "sessionId": session,
        "pid": pid,
        "startedAt": answer["startedAt"],
        "cwd": os.getcwd(),
        "tail": "",
        "followUp": FOLLOW_UP,
    }
    assert abs(answer["startedAt"] - time.time() * 1000) < 600_000


def test_exec_yields_to_the_background(tools: Toolset, gate: Gate) -> None:
    """After yieldMs, with the last of what it wrote; it is then listed, and ends by itself."""
    answer = execute(tools, f"echo begun; : < {gate.path}; echo done", yieldMs=300)
    assert answer["tail"] == "begun\n"
    session = answer["sessionId"]
    assert [each["sessionId"] for each in act(tools, "list")["sessions"]] == [session]
    gate.open()
    assert said(ended(tools, session)).endswith(f"done\n\n{ENDED} code 0.")


def test_the_yield_is_the_arguments_then_the_configurations_then_the_environments(
    hf: SyncClient, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the last word makes the call return; the others would wait for two minutes."""
    command = f": < {gate.path}"
    monkeypatch.setenv("PI_BASH_YIELD_MS", "50")
    assert execute(toolset(hf, "openclaw"), command)["status"] == "running"
    monkeypatch.setenv("PI_BASH_YIELD_MS", "120000")
    monkeypatch.setenv("OPENCLAW_BASH_YIELD_MS", "50")
    assert execute(toolset(hf, "openclaw"), command)["status"] == "running"
    monkeypatch.setenv("OPENCLAW_BASH_YIELD_MS", "120000")
    assert execute(toolset(hf, "openclaw", backgroundMs=50), command)["status"] == "running"
    configured = toolset(hf, "openclaw", backgroundMs=120_000)
    assert execute(configured, command, yieldMs=-5)["status"] == "running"


@pytest.mark.parametrize(
    ("variable", "seconds"),
    [(None, 1800), ("60001", 60.001), ("1", 60), ("99999999", 10_800), ("soon", 1800)],
)
def test_how_long_a_finished_session_is_kept(
    hf: SyncClient, monkeypatch: pytest.MonkeyPatch, variable: str | None, seconds: float
) -> None:
    """30 minutes, or what the environment says, from a minute to three hours."""
    if variable is not None:
        monkeypatch.setenv("OPENCLAW_BASH_JOB_TTL_MS", variable)
    tools = toolset(hf, "openclaw")
    assert hf.get(start(tools, "true")).record.retention == seconds
    configured = toolset(hf, "openclaw", cleanupMs=120_000)
    assert hf.get(start(configured, "true")).record.retention == 120


def test_how_long_a_session_may_run(hf: SyncClient, tools: Toolset) -> None:
    """30 minutes, or what the configuration says, or the call; 0 and less is for ever."""
    configured = toolset(hf, "openclaw", timeoutSeconds=9)
    assert hf.get(start(tools, "true")).record.timeout == 1800
    assert hf.get(start(configured, "true")).record.timeout == 9
    assert hf.get(start(configured, "true", timeoutSeconds=0)).record.timeout is None
    assert hf.get(start(configured, "true", timeoutSeconds=-1)).record.timeout is None


def test_a_configuration_that_makes_no_sense_is_refused(hf: SyncClient) -> None:
    """When the toolset is made."""
    with pytest.raises(BadRequest, match="cleanupMs"):
        toolset(hf, "openclaw", cleanupMs="soon")


def test_a_caller_that_cannot_wait_that_long_is_answered_before(tools: Toolset, gate: Gate) -> None:
    """An MCP client's limit comes before yieldMs and before a poll's timeout."""
    arguments = {"command": f": < {gate.path}", "yieldMs": 60_000}
    session = run(tools.call("exec", arguments, patience=0.7))["sessionId"]
    polling = {"action": "poll", "sessionId": session, "timeout": 30_000}
    answer = run(tools.call("process", polling, patience=0.7))
    assert said(answer) == "(no new output)\n\nProcess still running."


# -- process: list -----------------------------------------------------------------------------


def test_list_has_a_line_for_each_session_the_newest_first(tools: Toolset, gate: Gate) -> None:
    """Id, status, how long it took, and what it is; only what went to the background."""
    assert act(tools, "list").text == "No running or recent sessions."
    execute(tools, "echo foreground")
    done = start(tools, "exit 3")
    ended(tools, done)
    failed = start(tools, "kill -9 $$")
    ended(tools, failed)
    late = start(tools, "sleep 1000", timeoutSeconds=0.2)
    ended(tools, late)
    stopped = start(tools, "sleep 1000")
    act(tools, "kill", stopped)
    running = start(tools, f"cat -u {gate.path}")
    wait_until(lambda: act(tools, "list")["sessions"][0]["pid"])
    answer = act(tools, "list")
    patterns = (
        rf"{running} running   \S+ :: cat \S+",
        rf"{stopped} killed    \S+ :: sleep 1000",
        rf"{late} failed    \S+ \[overall-timeout\] :: sleep 1000",
        rf"{failed} failed    \S+ :: kill \S+",
        rf"{done} completed \S+ :: exit 3",
    )
    for line, pattern in zip(said(answer).split("\n"), patterns, strict=True):
        assert re.fullmatch(pattern, line), line
    common = {
        *("sessionId", "status", "startedAt", "runtimeMs", "cwd", "command", "name"),
        *("tail", "truncated"),
    }
    sessions = answer["sessions"]
    assert set(sessions[0]) == {*common, "pid", *INPUT_KEYS}
    assert all(set(each) == {*common, "endedAt", *EXIT_KEYS} for each in sessions[1:])
    reasons = [each["exitReason"] for each in sessions[1:]]
    assert reasons == ["manual-cancel", "overall-timeout", "signal", "exit"]


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        *((0, "n/a"), (850, "850ms"), (15_400, "15s"), (65_000, "1m5s"), (7_380_000, "2h3m")),
        *((60_000, "1m"), (90_061_000, "1d1h")),
    ],
)
def test_durations_have_two_units(milliseconds: int, text: str) -> None:
    """And no space between them."""
    assert duration(milliseconds) == text


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("make", "make"),
        ("npm run dev", "npm run"),
        ("ls -la", "ls -la"),
        ("grep -r needle .", "grep needle"),
        ("""echo "two words" 'and more'""", "echo two words"),
        ("cat /" + "x" * 60, "cat /" + "x" * 21 + "..." + "x" * 22),
        ("", ""),
    ],
)
def test_a_session_is_named_after_its_command(command: str, named: str) -> None:
    """The first word, and what it is about."""
    assert name(command) == named


# -- process: poll -----------------------------------------------------------------------------


def test_poll_shows_what_is_new_since_the_last_poll(tools: Toolset, child: Child) -> None:
    """Each line once; the log has all of it."""
    session = start(tools, shlex.join(child("prompts")))
    shows(tools, session, "name?")
    assert said(act(tools, "poll", session)).startswith("ready\nname?\n\n")
    assert said(act(tools, "poll", session)).startswith("(no new output)\n\n")
    act(tools, "write", session, data="Ada\n")
    shows(tools, session, "hello Ada\nname?")
    assert said(act(tools, "poll", session)).startswith("hello Ada\nname?\n\n")
    assert act(tools, "log", session)["output"] == "ready\nname?\nhello Ada\nname?"


def test_poll_goes_on_where_another_toolset_stopped(tools: Toolset, hf: SyncClient) -> None:
    """What was read is known to the session, not to whoever read it."""
    session = start(tools, "echo one; cat")
    shows(tools, session, "one")
    act(tools, "poll", session)
    act(tools, "write", session, data="two\n")
    shows(tools, session, "two")
    assert said(act(toolset(hf, "openclaw"), "poll", session)).startswith("two\n\n")


def test_poll_waits_for_output_or_the_end(tools: Toolset, gate: Gate) -> None:
    """Up to its timeout, and not a moment longer than it has to."""
    session = start(tools, f"echo begun; : < {gate.path}; echo done")
    answer = act(tools, "poll", session, timeout=30_000)
    assert said(answer) == "begun\n\nProcess still running."
    assert act(tools, "poll", session, timeout=100)["status"] == "running"
    gate.open()
    polls = [act(tools, "poll", session, timeout=30_000) for _ in range(2)]
    assert "".join(map(said, polls)).endswith(f"{ENDED} code 0.")


def test_poll_of_a_running_session_says_what_is_known_of_it(tools: Toolset, gate: Gate) -> None:
    """The keys of the details, and that it can be written to."""
    session = start(tools, f"echo begun; : < {gate.path}")
    shows(tools, session, "begun")
    answer = act(tools, "poll", session)
    keys = {"status", "sessionId", "aggregated", "name", *INPUT_KEYS, "retryInMs"}
    assert set(answer) - {"events"} == keys
    assert (answer["stdinWritable"], answer["waitingForInput"]) == (True, False)
    assert answer["aggregated"] == "begun\n"
    now = time.time() * 1000
    assert answer["lastOutputAt"] <= now
    assert 0 <= answer["idleMs"] <= now - answer["lastOutputAt"] + 5


def test_poll_asks_to_be_asked_less_and_less_often(tools: Toolset, gate: Gate) -> None:
    """5, 10, 30, 60 seconds while nothing comes; from the beginning after output."""
    session = start(tools, f"echo begun; : < {gate.path}; echo more; sleep 1000")
    shows(tools, session, "begun")
    hints = [act(tools, "poll", session)["retryInMs"] for _ in range(6)]
    assert hints == [5000, 5000, 10_000, 30_000, 60_000, 60_000]
    gate.open()
    shows(tools, session, "more")
    assert act(tools, "poll", session)["retryInMs"] == 5000
    act(tools, "kill", session)


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        ("echo out", "completed", f"out\n\n{ENDED} code 0."),
        ("exit 3", "completed", f"(no new output)\n\n{ENDED} code 3."),
        ("exit 127", "failed", f"(no new output)\n\n{ENDED} code 127."),
        ("kill -TERM $$", "failed", f"(no new output)\n\n{ENDED} signal SIGTERM."),
    ],
)
def test_poll_shows_the_end(tools: Toolset, command: str, status: str, text: str) -> None:
    """How it ended, by code or by signal; again when asked again, and no event besides."""
    session = start(tools, f"sleep 0.2; {command}")
    answer = ended(tools, session)
    assert (answer["status"], answer.text) == (status, text)
    assert set(answer) == {"status", "sessionId", "name", "aggregated", *EXIT_KEYS}
    again = act(tools, "poll", session)
    assert again.text == f"(no new output)\n\n{text.partition(chr(10) * 2)[2]}"
    assert "events" not in again


def test_poll_shows_the_timeout(tools: Toolset) -> None:
    """With the warning about what may have been done already."""
    answer = ended(tools, start(tools, "sleep 1000", timeoutSeconds=0.2))
    assert f"{ENDED} signal SIGTERM.\n\n{SIDE_EFFECTS}" in answer.text
    assert (answer["status"], answer["timedOut"]) == ("failed", True)


def test_poll_shows_the_newest_of_much_output(
    tools: Toolset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says that there is more and how to get it; the next poll does not show it again."""
    monkeypatch.setenv("OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS", "1200")
    session = start(tools, "seq 1 300000; cat")
    shows(tools, session, "300000")
    answer = said(act(tools, "poll", session))
    notice, _, rest = answer.partition("]\n\n")
    assert notice == (
        "[earlier output is omitted from this poll; use action=log with offset and limit to "
        "inspect retained output"
    )
    assert "299900\n299901\n" in rest
    assert len(rest) < 1500
    assert said(act(tools, "poll", session)).startswith("(no new output)")


# -- process: waiting for input ----------------------------------------------------------------


def test_a_session_that_waits_for_input_is_known_by_the_kernel(tools: Toolset) -> None:
    """In the list, the log and the poll, with what to do; not by guessing from its silence."""
    session = start(tools, "read -p 'name? ' name; echo $name")
    wait_until(lambda: act(tools, "poll", session)["waitingForInput"])
    hint = (
        r"\n\nNo new output for \d+s; this session may be waiting for input\. "
        r"Use process write, send-keys, submit, or paste to provide input\."
    )
    assert re.fullmatch(r"\(no new output\)" + hint, said(act(tools, "poll", session)))
    assert re.fullmatch(r"\(no output yet\)" + hint, said(act(tools, "log", session)))
    assert " [input-wait] :: " in said(act(tools, "list"))
    act(tools, "write", session, data="Ada\n")
    assert said(ended(tools, session)) == f"Ada\n\n{ENDED} code 0."


def test_a_silent_session_that_does_not_read_is_not_waiting(
    tools: Toolset, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is silent."""
    monkeypatch.setenv("OPENCLAW_PROCESS_INPUT_WAIT_IDLE_MS", "1")
    session = start(tools, f": < {gate.path}")
    wait_until(lambda: act(tools, "poll", session)["idleMs"] > 1100)
    assert not act(tools, "poll", session)["waitingForInput"]


# -- process: log ------------------------------------------------------------------------------


def test_log_shows_the_last_200_lines(tools: Toolset) -> None:
    """And says how many there are."""
    session = start(tools, "seq 1 1234")
    ended(tools, session)
    answer = act(tools, "log", session)
    expected = "\n".join(map(str, range(1035, 1235)))
    assert answer["output"] == expected
    assert answer.text == (
        f"{expected}\n\n[showing last 200 of 1234 lines; pass offset/limit to page]"
    )
    assert (answer["total"], answer["totalLines"], answer["truncated"]) == (1234, 1234, False)
    assert answer["totalChars"] == sum(len(str(number)) + 1 for number in range(1, 1235))
    keys = {"status", "sessionId", "name", "output", "total", "totalLines", "totalChars"}
    assert set(answer) == {*keys, "truncated", *EXIT_KEYS}


def test_log_pages_by_lines(tools: Toolset) -> None:
    """limit: the last ones; offset: from there on; both: a window. Reading takes nothing away."""
    session = start(tools, "seq 1 300; printf end")
    ended(tools, session)
    assert act(tools, "log", session, limit=2).text == "300\nend"
    assert act(tools, "log", session, offset=298).text == "299\n300\nend"
    assert act(tools, "log", session, offset=9, limit=3).text == "10\n11\n12"
    assert act(tools, "log", session, offset=1000).text == "(no output recorded)"
    assert act(tools, "log", session, offset=0, limit=1).text == "1"


def test_log_of_nothing(tools: Toolset, gate: Gate) -> None:
    """Not yet, or never."""
    session = start(tools, f": < {gate.path}")
    assert said(act(tools, "log", session)) == "(no output yet)"
    gate.open()
    ended(tools, session)
    assert act(tools, "log", session).text == "(no output recorded)"


def test_log_is_bounded_and_says_where_to_go_on(tools: Toolset) -> None:
    """Few lines can be long."""
    session = start(tools, "for i in 1 2 3 4; do printf 'x%.0s' {1..12000}; echo; done")
    ended(tools, session)
    answer = act(tools, "log", session, offset=0)
    assert answer.text.endswith("\n\n[showing lines 0 to 1 of 4; go on with offset 2]")
    assert len(answer["output"]) == 24_001
    answer = act(tools, "log", session)
    assert answer.text.endswith("\n\n[showing last 2 of 4 lines; pass offset/limit to page]")


def test_log_says_when_lines_are_gone(tools: Toolset, hf: SyncClient) -> None:
    """Whoever asks for them is told that nobody has them; the others keep their numbers."""
    session = start(tools, "seq 1 3; cat")
    shows(tools, session, "3")
    hf.get(session).clear()
    act(tools, "write", session, data="4\n5\n")
    shows(tools, session, "5")
    gone = "[earlier output was discarded at the retention cap and cannot be recovered]"
    answer = act(tools, "log", session, offset=1, limit=1)
    assert said(answer).startswith(f"{gone}\n\n4")
    assert (answer["totalLines"], answer["truncated"]) == (5, True)
    assert said(act(tools, "log", session, offset=4)).startswith("5")


# -- process: input ----------------------------------------------------------------------------


def test_write_works_without_pty(tools: Toolset) -> None:
    """Its stdin is open, unlike there; eof closes it, and the session then says so."""
    session = start(tools, "cat; echo over; sleep 1000")
    answer = act(tools, "write", session, data="häh\n")
    assert said(answer) == f"Wrote 5 bytes to session {session}."
    assert answer["status"] == "running"
    assert answer["name"] == "cat; echo"
    answer = act(tools, "write", session, data="x", eof=True)
    assert said(answer) == f"Wrote 1 bytes to session {session} (stdin closed)."
    shows(tools, session, "häh\nxover")
    assert not act(tools, "poll", session)["stdinWritable"]
    for action in ("write", "submit"):
        answer = act(tools, action, session)
        assert said(answer) == f"Session {session} stdin is not writable."
    act(tools, "kill", session)


def test_submit_presses_enter(tools: Toolset) -> None:
    """CR in a terminal; with pipes, where nobody would take that for the end of a line, LF."""
    session = start(tools, "read line; echo got $line")
    act(tools, "send-keys", session, literal="it")
    assert said(act(tools, "submit", session)) == f"Submitted session {session} (sent LF)."
    assert "got it" in ended(tools, session)["aggregated"]
    session = start(tools, "read line; echo got $line", pty=True)
    act(tools, "write", session, data="it")
    assert said(act(tools, "submit", session)) == f"Submitted session {session} (sent CR)."
    assert "got it" in ended(tools, session)["aggregated"]


def test_send_keys_types_text_then_bytes_then_keys(tools: Toolset, child: Child) -> None:
    """By tmux's names; what is no key is typed, with a word if it was meant to be one."""
    session = start(tools, "exec " + shlex.join(child("shows_keys")), pty=True)
    shows(tools, session, "ready")
    answer = act(
        tools,
        "send-keys",
        session,
        keys=["Up", "C-c", "^d", "hello", "C-nothing"],
        hex=["1b", "0x7", "zz"],
        literal="a",
    )
    assert said(answer) == (
        f"Sent 20 bytes to session {session}.\nWarnings:\n- Invalid hex byte: zz\n"
        '- Unknown key "nothing" for modifiers; sending literal.'
    )
    typed = b"a\x1b\x07\x1b[A\x03\x04hellonothing"
    assert len(typed) == 20
    shows(tools, session, "\n".join(f"{byte:02x}" for byte in typed))
    act(tools, "send-keys", session, keys=["q"])
    ended(tools, session)


def test_send_keys_needs_keys_and_a_terminal(tools: Toolset) -> None:
    """And says what to do without one."""
    session = start(tools, "cat")
    assert said(act(tools, "send-keys", session)) == "No key data provided."
    assert "exec pty=true" in said(act(tools, "send-keys", session, keys=["Up"]))


def test_paste_brackets_if_the_program_asked_for_it(tools: Toolset, child: Child) -> None:
    """Otherwise it would see the brackets; with bracketed false never."""
    begin, end = "1b\n5b\n32\n30\n30\n7e", "1b\n5b\n32\n30\n31\n7e"
    asks = "exec " + shlex.join(child("shows_keys", r"\x1b[?2004h"))
    session = start(tools, asks, pty=True)
    shows(tools, session, "ready")
    answer = act(tools, "paste", session, text="ab")
    assert said(answer) == f"Pasted 2 chars to session {session}."
    shows(tools, session, f"ready\n{begin}\n61\n62\n{end}")
    act(tools, "paste", session, text="c", bracketed=False)
    shows(tools, session, f"{end}\n63")
    act(tools, "paste", session, text="q", bracketed=False)
    ended(tools, session)
    session = start(tools, "exec " + shlex.join(child("shows_keys")), pty=True)
    shows(tools, session, "ready")
    act(tools, "paste", session, text="abq")
    assert "ready\n61\n62\n71" in ended(tools, session)["aggregated"]
    session = start(tools, "cat")
    assert said(act(tools, "paste", session, text="")) == "No paste text provided."
    act(tools, "paste", session, text="piped\n")
    shows(tools, session, "piped")


# -- process: the end --------------------------------------------------------------------------


def test_kill_stops_a_session_with_everything_it_started(tools: Toolset) -> None:
    """And returns when it is gone; a stop that was asked for is no failure."""
    session = start(tools, "sleep 1000 & echo $!; wait")
    wait_until(lambda: act(tools, "log", session)["output"])
    pid = act(tools, "log", session)["output"]
    answer = act(tools, "kill", session)
    assert said(answer) == f"Termination requested for session {session}."
    assert dict(answer) == {"status": "completed", "name": "sleep 1000"}
    assert gone(int(pid))
    answer = act(tools, "poll", session)
    assert answer.text.endswith("\n\nProcess stopped by request (signal SIGTERM).")
    assert answer["status"] == "completed"
    assert answer["exitReason"] == "manual-cancel"


def test_kill_is_polite_for_five_seconds(tools: Toolset, hf: SyncClient, gate: Gate) -> None:
    """Then it is by force."""
    session = start(tools, f": < {gate.path}")
    act(tools, "kill", session)
    record = hf.get(session).record
    assert record.stop is not None
    assert record.stop.kill_clock - record.stop.clock == pytest.approx(5.0)


def test_clear_forgets_a_finished_session(tools: Toolset, gate: Gate) -> None:
    """And no other."""
    session = start(tools, f": < {gate.path}")
    assert said(act(tools, "clear", session)) == f"No finished session found for {session}"
    gate.open()
    ended(tools, session)
    answer = act(tools, "clear", session)
    assert (answer.text, dict(answer)) == (f"Cleared session {session}.", {"status": "completed"})
    assert act(tools, "list")["sessions"] == []


def test_remove_forgets_any_session(tools: Toolset, hf: SyncClient) -> None:
    """A running one is stopped first."""
    session = start(tools, "sleep 1000")
    answer = act(tools, "remove", session)
    assert answer.text == f"Removed session {session} (termination requested)."
    assert hf.list() == []
    session = start(tools, "true")
    ended(tools, session)
    assert act(tools, "remove", session).text == f"Removed session {session}."
    assert hf.list() == []


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "lacking"),
    [
        *((action, "session") for action in ("poll", "log", "remove")),
        *((action, "active session") for action in ("write", "send-keys", "submit", "paste")),
        *(("kill", "active session"), ("clear", "finished session")),
    ],
)
def test_a_session_that_is_not_there(
    tools: Toolset, action: str, lacking: str, session: str
) -> None:
    """In the words of each action; another conversation's is not there either."""
    with connect(session=f"{session}-another") as other:
        theirs = start(toolset(other, "openclaw"), "true" if action == "clear" else "sleep 1000")
        for session in ("proc-0123456789abcdef", "brisk-reef", theirs):
            answer = act(tools, action, session)
            assert answer.text == f"No {lacking} found for {session}"
            assert dict(answer) == {"status": "failed", "error": answer.text}
            assert answer.is_error
    assert act(tools, action).text == "sessionId is required for this action."


@pytest.mark.parametrize("action", ["write", "send-keys", "submit", "paste", "kill"])
def test_a_session_that_has_ended_is_not_active(tools: Toolset, action: str) -> None:
    """There is nothing to type into, or to stop."""
    session = start(tools, "true")
    ended(tools, session)
    assert act(tools, action, session).text == f"No active session found for {session}"


def test_wrong_arguments_are_named(tools: Toolset, hf: SyncClient) -> None:
    """And nothing is started."""
    assert "'yieldMs'" in execute(tools, "true", yieldMs="soon").text
    assert "'title'" in execute(tools, "true", title="x" * 121).text
    assert "'env'" in execute(tools, "true", env=["A=1"]).text
    assert "text" in execute(tools, "true", env={"A": 1}).text
    assert "did you mean 'poll'" in act(tools, "pol", "x").text
    assert "'timeout'" in act(tools, "poll", "x", timeout=-1).text
    assert "'offset'" in act(tools, "log", "x", offset=float("inf")).text
    assert hf.list() == []


def test_both_tools_are_described_as_there(tools: Toolset) -> None:
    """Names, arguments and what is required."""
    execute_tool, process = tools.definitions("anthropic")
    schema = execute_tool["input_schema"]
    assert (execute_tool["name"], schema["required"]) == ("exec", ["command"])
    assert list(schema["properties"]) == [
        *("title", "command", "workdir", "env", "yieldMs", "background", "timeoutSeconds"),
        *("pty", "elevated", "host", "ask", "node"),
    ]
    schema = process["input_schema"]
    assert (process["name"], schema["required"]) == ("process", ["action"])
    assert list(schema["properties"]) == [
        *("action", "sessionId", "data", "keys", "hex", "literal", "text", "bracketed"),
        *("eof", "offset", "limit", "timeout"),
    ]


# -- what the session is told ------------------------------------------------------------------


def test_an_end_that_nobody_saw_is_told_in_openclaws_words(
    tools: Toolset, hf: SyncClient, gate: Gate
) -> None:
    """Once, with the whole id and the last of the output in one line."""
    session = start(tools, f": < {gate.path}; seq 1 200")
    gate.open()
    wait_until(lambda: list(hf.events()))
    answer = act(tools, "list")
    (event,) = answer["events"]
    assert event["text"].startswith(f"Exec completed ({session}, code 0) :: ")
    shown = event["text"].partition(" :: ")[2]
    assert len(shown) == 180
    assert shown.endswith("…")
    assert answer.text.endswith("\n\n" + event["text"])
    assert "events" not in act(tools, "list")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("exit 127", "Exec failed ({}, code 127)"),
        ("kill -9 $$", "Exec failed ({}, signal SIGKILL)"),
    ],
)
def test_a_failure_that_nobody_saw_is_told(
    tools: Toolset, hf: SyncClient, gate: Gate, command: str, text: str
) -> None:
    """By code or signal; without output there is nothing after it."""
    session = start(tools, f": < {gate.path}; {command}")
    gate.open()
    wait_until(lambda: list(hf.events()))
    (event,) = act(tools, "list")["events"]
    assert event["text"] == text.format(session)


def test_a_poll_that_shows_the_end_withdraws_the_event(
    tools: Toolset, hf: SyncClient, gate: Gate
) -> None:
    """The model has read it."""
    session = start(tools, f": < {gate.path}")
    gate.open()
    wait_until(lambda: list(hf.events()))
    assert "events" not in act(tools, "poll", session)
    assert "events" not in act(tools, "list")
