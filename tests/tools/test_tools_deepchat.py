"""DeepChat's dialect: each user story, limit, error and setting of its specification and plan."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from pathlib import Path

import pytest

from holdfast import BadRequest, Client, SyncClient, Toolset, connect
from holdfast.client.link import run
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.tools import Result
    from tests.conftest import Gate

    Child = Callable[..., list[str]]

pytestmark = pytest.mark.shared_keeper

VARIABLES = (
    "PI_BASH_YIELD_MS",
    "PI_BASH_MAX_OUTPUT_CHARS",
    "OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS",
    "PI_BASH_JOB_TTL_MS",
)
SESSION_META = {
    *("sessionId", "command", "status", "createdAt", "lastAccessedAt"),
    *("pid", "outputLength", "offloaded"),
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def tools(hf: SyncClient) -> Toolset:
    return toolset(hf, "deepchat")


def execute(tools: Toolset, command: str, **arguments: Any) -> Result:
    return call(tools, "execute_command", command=command, description="for the test", **arguments)


def start(tools: Toolset, command: str, **arguments: Any) -> str:
    answer = execute(tools, command, background=True, **arguments)
    assert answer["status"] == "running", answer
    return str(answer["sessionId"])


def act(tools: Toolset, action: str, session: str = "", **arguments: Any) -> Result:
    if session:
        arguments["sessionId"] = session
    return call(tools, "process", action=action, **arguments)


def said(answer: Result) -> dict[str, Any]:
    """The answer itself: a program that waits for input is told of with any of them."""
    return {key: value for key, value in answer.items() if key != "events"}


def polled(tools: Toolset, session: str, condition: Callable[[Result], bool]) -> Result:
    """The first poll that is as it should be."""
    answers: list[Result] = []

    def poll() -> bool:
        answers.append(act(tools, "poll", session))
        return condition(answers[-1])

    wait_until(poll)
    return answers[-1]


def gone(pid: int) -> bool:
    """Whoever is not reaped yet runs no more."""
    found = stat(pid)
    return found is None or found.state in "ZX"


def ended(tools: Toolset, session: str) -> Result:
    return polled(tools, session, lambda answer: answer["status"] != "running")


def says(tools: Toolset, session: str, text: str) -> Result:
    return polled(tools, session, lambda answer: text in answer["output"])


def sessions(tools: Toolset) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = act(tools, "list")["sessions"]
    return found


def quoted(command: list[str]) -> str:
    return " ".join(command)


# -- US-1: start a background command ----------------------------------------------------------


def test_us1_a_background_command_returns_at_once_and_runs_on(tools: Toolset, gate: Gate) -> None:
    """The answer is a session that runs; it is still running afterwards, and ends by itself."""
    answer = execute(tools, f"echo begun; : < {gate.path}; echo done", background=True)
    assert said(answer) == {"status": "running", "sessionId": answer["sessionId"]}
    assert says(tools, answer["sessionId"], "begun")["status"] == "running"
    gate.open()
    assert ended(tools, answer["sessionId"])["output"] == "begun\ndone\n"


def test_us1_a_command_in_the_foreground_is_answered_with_its_output(tools: Toolset) -> None:
    """What ends in time comes back whole, as the text DeepChat's models know, and is not listed."""
    answer = execute(tools, "echo out; echo err >&2; exit 3")
    assert said(answer) == {
        "status": "error",
        "exitCode": 3,
        "output": "out\nerr\n",
        "offloaded": False,
    }
    assert answer.text == "out\nerr\nExit Code: 3"
    assert sessions(tools) == []


def test_us1_a_foreground_command_that_takes_longer_goes_to_the_background(
    tools: Toolset, gate: Gate
) -> None:
    """After yieldMs the answer says that it goes on, and under which session."""
    answer = execute(tools, f"echo begun; : < {gate.path}; echo done", yieldMs=300)
    assert answer["status"] == "running"
    assert "goes on in the background" in answer["note"]
    session = answer["sessionId"]
    assert [each["sessionId"] for each in sessions(tools)] == [session]
    gate.open()
    assert ended(tools, session)["output"] == "begun\ndone\n"


def test_a_caller_that_cannot_wait_that_long_is_answered_before(tools: Toolset, gate: Gate) -> None:
    """An MCP client's limit comes before yieldMs, and the command goes on all the same."""
    arguments = {"command": f": < {gate.path}", "description": "for the test", "yieldMs": 60_000}
    answer = run(tools.call("execute_command", arguments, patience=0.7))
    assert answer["status"] == "running"
    gate.open()
    assert ended(tools, answer["sessionId"])["status"] == "done"


async def listed(tools: Toolset) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await tools.call("process", {"action": "list"}))["sessions"]
    return found


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_call_that_is_given_up_leaves_its_command_in_the_list(
    home: str, gate: Gate, anyio_backend: str, session: str
) -> None:
    """Cancelling the call kills nothing, and the session can be found and stopped."""
    async with connect(session=session) as hf:
        assert isinstance(hf, Client)
        tools = Toolset(hf, "deepchat")
        arguments = {"command": f": < {gate.path}", "description": "for the test"}
        calling = asyncio.create_task(tools.call("execute_command", arguments))
        async with asyncio.timeout(30):
            while not await hf.list() or await listed(tools):
                await asyncio.sleep(0.005)  # on its way, and then waited for: not in the background
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        (left,) = await listed(tools)
        assert left["status"] == "running"
        await tools.call("process", {"action": "kill", "sessionId": left["sessionId"]})


# -- US-2: monitor its output ------------------------------------------------------------------


def test_us2_poll_shows_the_last_500_characters(tools: Toolset) -> None:
    """Recent output, counted in characters and not in bytes."""
    session = start(tools, "printf 'ä%.0s' {1..900}; printf 'z%.0s' {1..100}")
    answer = ended(tools, session)
    assert answer["output"] == "ä" * 400 + "z" * 100
    assert said(answer) == {
        "status": "done",
        "exitCode": 0,
        "output": answer["output"],
        "offloaded": False,
    }


def test_us2_how_much_poll_shows_is_configurable(hf: SyncClient) -> None:
    """By the option maxOutputChars."""
    tools = toolset(hf, "deepchat", maxOutputChars=3)
    assert ended(tools, start(tools, "echo 123456"))["output"] == "56\n"


def test_us2_the_four_statuses(tools: Toolset, gate: Gate) -> None:
    """running, done, error and killed; a running one has no exit code, and a killed one none."""
    running = start(tools, f": < {gate.path}")
    assert "exitCode" not in act(tools, "poll", running)
    assert act(tools, "poll", running)["status"] == "running"
    act(tools, "kill", running)
    assert said(act(tools, "poll", running)) == {
        "status": "killed",
        "output": "",
        "offloaded": False,
    }
    done, error = ended(tools, start(tools, "true")), ended(tools, start(tools, "exit 7"))
    assert (done["status"], done["exitCode"]) == ("done", 0)
    assert (error["status"], error["exitCode"]) == ("error", 7)


def test_a_session_that_others_stopped_is_killed_and_one_that_crashed_an_error(
    tools: Toolset,
) -> None:
    """SIGTERM from outside is a kill; a signal of its own making is a failure."""
    assert ended(tools, start(tools, "kill -TERM $$"))["status"] == "killed"
    assert ended(tools, start(tools, "kill -SEGV $$"))["status"] == "error"


def test_poll_shows_no_terminal_codes(tools: Toolset) -> None:
    """Colours are gone, and of a progress bar the last state is left."""
    session = start(tools, r"printf '\033[31mred\033[0m\n10%%\r50%%\r100%%\n'")
    assert ended(tools, session)["output"] == "red\n100%\n"


# -- US-3: read the full output ----------------------------------------------------------------


def test_us3_log_pages_by_characters(tools: Toolset) -> None:
    """Offset and limit count characters, wherever the bytes are; the default is the first 1000."""
    session = start(tools, "printf 'äöü%.0s' {1..500}; echo")
    ended(tools, session)
    text = "äöü" * 500 + "\n"
    first = act(tools, "log", session)
    assert (first["output"], first["totalLength"]) == (text[:1000], 1501)
    pages = [
        act(tools, "log", session, offset=offset, limit=400)["output"]
        for offset in range(0, 1501, 400)
    ]
    assert pages == [text[offset : offset + 400] for offset in range(0, 1501, 400)]
    assert act(tools, "log", session, offset=5000)["output"] == ""
    assert first["status"] == "done"
    assert first["exitCode"] == 0


def test_us3_log_is_exact_across_the_pieces_it_is_read_in(tools: Toolset) -> None:
    """A character that two reads of the file share is one character."""
    command = "import sys; sys.stdout.write('x' + '€' * 700_000)"
    session = start(tools, f'python3 -c "{command}"')
    ended(tools, session)
    middle = act(tools, "log", session, offset=349_520, limit=20)
    assert middle["output"] == "€" * 20
    assert middle["totalLength"] == 700_001
    assert act(tools, "log", session, offset=700_000, limit=20)["output"] == "€"
    assert act(tools, "log", session, limit=2)["output"] == "x€"


def test_us3_large_output_is_offloaded_to_a_file(tools: Toolset) -> None:
    """Above 10 KB every answer says so and where it is, and the file has all of it."""
    session = start(tools, "printf 'a%.0s' {1..10000}; echo end")
    answer = ended(tools, session)
    assert answer["offloaded"]
    path = Path(answer["outputFilePath"])
    assert path.read_text() == "a" * 10_000 + "end\n"
    assert answer["output"] == "a" * 496 + "end\n"
    page = act(tools, "log", session, offset=9_999, limit=4)
    assert (page["output"], page["outputFilePath"]) == ("aend", str(path))
    assert sessions(tools)[0]["offloaded"]


def test_us3_output_of_10_kb_is_not_offloaded(tools: Toolset) -> None:
    """The threshold itself is not above the threshold."""
    session = start(tools, "printf 'a%.0s' {1..10000}")
    answer = ended(tools, session)
    assert not answer["offloaded"]
    assert "outputFilePath" not in answer


def test_us3_large_output_in_the_foreground_says_where_it_is(tools: Toolset) -> None:
    """The last of it comes with the answer, the rest is in a file that the answer names."""
    answer = execute(tools, "seq 1 20000")
    assert answer["offloaded"]
    assert answer["output"].endswith("\n19999\n20000\n")
    assert len(answer["output"]) <= 10_000
    assert answer.text.endswith(f"Exit Code: 0\nOutput offloaded: {answer['outputFilePath']}")
    assert act(tools, "log", answer["sessionId"], limit=4)["output"] == "1\n2\n"


def test_a_page_is_bounded_and_says_where_to_go_on(tools: Toolset) -> None:
    """However large the limit."""
    session = start(tools, "head -c 200000 /dev/zero | tr '\\0' x")
    ended(tools, session)
    answer = act(tools, "log", session, limit=1_000_000)
    assert len(answer["output"]) == 100_000
    assert "go on at 100000" in answer["note"]


# -- US-4: send input --------------------------------------------------------------------------


def test_us4_write_reaches_its_stdin(tools: Toolset, child: Child) -> None:
    """A program that asks gets its answer, and asks again."""
    session = start(tools, quoted(child("prompts")))
    says(tools, session, "name?")
    answer = act(tools, "write", session, data="Ada\n")
    assert said(answer) == {"status": "ok", "sessionId": session}
    says(tools, session, "hello Ada\nname?")


def test_us4_eof_closes_its_stdin(tools: Toolset) -> None:
    """After the data the program sees the end of its input."""
    session = start(tools, "cat; echo over")
    act(tools, "write", session, data="last words", eof=True)
    assert ended(tools, session)["output"] == "last wordsover\n"


def test_us4_a_command_that_went_to_the_background_can_be_written_to(tools: Toolset) -> None:
    """Its stdin is open though it began in the foreground."""
    session = execute(tools, "read line; echo got $line", yieldMs=200)["sessionId"]
    act(tools, "write", session, data="it\n")
    assert ended(tools, session)["output"] == "got it\n"


# -- US-5: manage sessions ---------------------------------------------------------------------


def test_us5_list_shows_every_session_with_the_keys_of_session_meta(
    tools: Toolset, gate: Gate
) -> None:
    """Running and ended ones, times in milliseconds, no exit code before the end."""
    before = int(time.time() * 1000)
    first = start(tools, "printf ä; exit 4")
    ended(tools, first)
    second = start(tools, f": < {gate.path}")
    wait_until(lambda: "pid" in sessions(tools)[1])  # it is answered before that is written down
    answer = act(tools, "list")
    assert answer["status"] == "ok"
    one, two = answer["sessions"]
    assert set(one) == {*SESSION_META, "exitCode"}
    assert set(two) == SESSION_META
    assert [one["sessionId"], two["sessionId"]] == [first, second]
    assert (one["status"], one["exitCode"], one["outputLength"]) == ("error", 4, 1)
    assert one["command"] == "printf ä; exit 4"
    assert (two["status"], two["outputLength"], two["offloaded"]) == ("running", 0, False)
    for each in (one, two):
        assert before - 1 <= each["createdAt"] <= each["lastAccessedAt"] <= time.time() * 1000 + 1
    assert os.path.exists(f"/proc/{two['pid']}")
    json.dumps(answer)


def test_us5_looking_at_a_session_is_what_moves_its_last_access(
    tools: Toolset, hf: SyncClient, gate: Gate
) -> None:
    """A poll does, the list does not."""
    session = start(tools, f": < {gate.path}")
    wait_until(lambda: hf.store.load(session).pid)
    os.utime(hf.home.meta(session), (1, 1))
    created = sessions(tools)[0]["createdAt"]
    assert sessions(tools)[0]["lastAccessedAt"] == created
    act(tools, "poll", session)
    assert sessions(tools)[0]["lastAccessedAt"] > created


def test_us5_kill_terminates_a_session(tools: Toolset) -> None:
    """With everything it started."""
    session = start(tools, "sleep 1000 & echo $!; wait")
    pid = says(tools, session, "\n")["output"]
    assert said(act(tools, "kill", session)) == {"status": "ok", "sessionId": session}
    assert act(tools, "poll", session)["status"] == "killed"
    assert gone(int(pid))


def test_us5_kill_is_polite_for_two_seconds_and_then_forced(
    tools: Toolset, hf: SyncClient, child: Child
) -> None:
    """A program that ignores SIGTERM gets SIGKILL when the grace is over."""
    session = start(tools, "exec " + quoted(child("ignores_term")))
    says(tools, session, "ready")
    act(tools, "kill", session)
    record = hf.get(session).record
    assert record.signal == "SIGKILL"
    assert record.grace == 2.0
    assert record.stop is not None
    assert record.stop.kill_clock - record.stop.clock == pytest.approx(2.0)


def test_us5_clear_empties_the_output(tools: Toolset, child: Child) -> None:
    """Offsets begin anew with what is written afterwards."""
    session = start(tools, quoted(child("prompts")))
    says(tools, session, "name?")
    assert said(act(tools, "clear", session)) == {"status": "ok", "sessionId": session}
    log = act(tools, "log", session)
    assert (log["output"], log["totalLength"]) == ("", 0)
    act(tools, "write", session, data="Ada\n")
    says(tools, session, "hello Ada\nname?\n")
    assert act(tools, "log", session, offset=6, limit=3)["output"] == "Ada"


def test_us5_clear_ends_the_offloading(tools: Toolset) -> None:
    """What is no longer there is not large."""
    session = start(tools, "seq 1 5000")
    assert ended(tools, session)["offloaded"]
    act(tools, "clear", session)
    answer = act(tools, "poll", session)
    assert (answer["output"], answer["offloaded"]) == ("", False)


def test_us5_remove_leaves_nothing(tools: Toolset, hf: SyncClient) -> None:
    """A running session is stopped first; it is gone from the list, and its file from the disk."""
    session = start(tools, "seq 1 5000; sleep 1000")
    path = says(tools, session, "5000\n")["outputFilePath"]
    pid = sessions(tools)[0]["pid"]
    assert not gone(pid)
    assert said(act(tools, "remove", session)) == {"status": "ok", "sessionId": session}
    assert sessions(tools) == []
    assert not os.path.exists(path)
    assert gone(int(pid))


# -- constraints -------------------------------------------------------------------------------


def test_sessions_of_another_conversation_do_not_exist(
    tools: Toolset, gate: Gate, session: str
) -> None:
    """Another agent neither sees nor reaches them, by any action."""
    session = start(tools, f": < {gate.path}")
    with connect(session=f"{session}-another") as other:
        theirs = toolset(other, "deepchat")
        assert sessions(theirs) == []
        for action in ("poll", "log", "write", "kill", "clear", "remove"):
            assert act(theirs, action, session)["error"] == f"Session {session} not found"
    assert act(tools, "poll", session)["status"] == "running"


def test_session_ids_are_random_and_matched_exactly(tools: Toolset, gate: Gate) -> None:
    """A part of an id is not one."""
    session = start(tools, f": < {gate.path}")
    assert re.fullmatch(r"proc-[a-z0-9]{16}", session)
    for wrong in (session[:-1], session.upper(), session + "a", "../" + session):
        assert act(tools, "kill", wrong)["error"] == f"Session {wrong} not found"


def test_a_session_is_forgotten_after_its_time_to_live(hf: SyncClient) -> None:
    """cleanupMs after its end and the last look at it."""
    tools = toolset(hf, "deepchat", cleanupMs=1)
    session = start(tools, "true")
    hf.get(session).wait(30)
    wait_until(lambda: sessions(tools) == [])
    assert act(tools, "poll", session)["error"] == f"Session {session} not found"


def test_the_times_to_live_and_to_run_are_thirty_minutes(tools: Toolset, hf: SyncClient) -> None:
    """Unless something else is said."""
    record = hf.get(start(tools, "true")).record
    assert (record.retention, record.timeout) == (1800.0, 1800.0)


def test_a_session_that_runs_too_long_is_killed(tools: Toolset) -> None:
    """At its timeout in milliseconds, in the background and in the foreground."""
    answer = ended(tools, start(tools, "echo begun; sleep 1000", timeout=300))
    assert (answer["status"], answer["timedOut"], answer["output"]) == ("killed", True, "begun\n")
    answer = execute(tools, "sleep 1000", timeout=100)
    assert answer["status"] == "killed"
    assert answer.text == "Exit Code: null\nSignal: SIGTERM\nTimed out"


def test_the_longest_runtime_is_configurable(hf: SyncClient) -> None:
    """By timeoutSec; 0 is for ever; what the call says comes first."""
    tools = toolset(hf, "deepchat", timeoutSec=77)
    assert hf.get(start(tools, "true")).record.timeout == 77
    assert hf.get(start(tools, "true", timeout=5000)).record.timeout == 5
    assert hf.get(start(toolset(hf, "deepchat", timeoutSec=0), "true")).record.timeout is None


def test_a_new_toolset_finds_the_sessions_again(tools: Toolset, hf: SyncClient, gate: Gate) -> None:
    """Sessions outlive whoever started them: nothing of them is in memory only."""
    session = start(tools, f"echo begun; : < {gate.path}")
    says(tools, session, "begun")
    again = toolset(hf, "deepchat")
    assert [each["sessionId"] for each in sessions(again)] == [session]
    assert act(again, "poll", session)["output"] == "begun\n"


# -- settings ----------------------------------------------------------------------------------


def test_the_yield_is_the_arguments_then_the_environments_then_the_configurations(
    hf: SyncClient, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the last word makes the call return; the others would wait for minutes."""
    long = 600_000
    command = f": < {gate.path}"
    configured = toolset(hf, "deepchat", backgroundMs=150)
    assert execute(configured, command)["status"] == "running"
    monkeypatch.setenv("PI_BASH_YIELD_MS", "150")
    assert execute(toolset(hf, "deepchat", backgroundMs=long), command)["status"] == "running"
    monkeypatch.setenv("PI_BASH_YIELD_MS", str(long))
    assert execute(configured, command, yieldMs=150)["status"] == "running"


def test_the_default_yield_is_ten_seconds(tools: Toolset, gate: Gate) -> None:
    """Long enough for what takes a second, and not for ever."""
    assert tools.dialect._yield_ms == 10_000  # type: ignore[attr-defined]
    assert execute(tools, "sleep 1; echo done")["status"] == "done"


def test_poll_takes_its_length_from_pi_then_openclaw_then_the_configuration(
    hf: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PI_BASH_MAX_OUTPUT_CHARS, OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS, maxOutputChars."""
    tools = toolset(hf, "deepchat", maxOutputChars=4)
    session = start(tools, "printf 0123456789")
    assert ended(tools, session)["output"] == "6789"
    monkeypatch.setenv("OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS", "3")
    assert act(tools, "poll", session)["output"] == "789"
    monkeypatch.setenv("PI_BASH_MAX_OUTPUT_CHARS", "2")
    assert act(tools, "poll", session)["output"] == "89"


def test_the_time_to_live_is_the_environments_then_the_configurations(
    hf: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PI_BASH_JOB_TTL_MS, cleanupMs."""
    tools = toolset(hf, "deepchat", cleanupMs=60_000)
    assert hf.get(start(tools, "true")).record.retention == 60
    monkeypatch.setenv("PI_BASH_JOB_TTL_MS", "90000")
    assert hf.get(start(tools, "true")).record.retention == 90


@pytest.mark.parametrize("nonsense", ["", "soon", "1e3", "10s", "1_000", "٣"])
def test_variables_that_are_no_numbers_are_passed_over(
    hf: SyncClient, monkeypatch: pytest.MonkeyPatch, nonsense: str
) -> None:
    """The next in order decides: the variables are other programs' too."""
    monkeypatch.setenv("PI_BASH_MAX_OUTPUT_CHARS", nonsense)
    monkeypatch.setenv("OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS", "3")
    tools = toolset(hf, "deepchat")
    assert ended(tools, start(tools, "printf 0123456789"))["output"] == "789"


@pytest.mark.parametrize(
    "option",
    [{"backgroundMs": 99}, {"timeoutSec": -1}, {"cleanupMs": "1"}, {"maxOutputChars": 0}],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    hf: SyncClient, option: dict[str, Any]
) -> None:
    """When the toolset is made, with the name of the setting."""
    with pytest.raises(BadRequest, match=next(iter(option))):
        toolset(hf, "deepchat", **option)


# -- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"command": ""}, "command"),
        ({"timeout": 99}, "timeout"),
        ({"yieldMs": 99}, "yieldMs"),
        ({"yieldMs": float("inf")}, "yieldMs"),
        ({"description": "four"}, "description"),
        ({"description": "x" * 101}, "description"),
        ({"description": None}, "description"),
        ({"background": "yes"}, "background"),
        ({"cwd": "/"}, "cwd"),
    ],
)
def test_arguments_out_of_bounds_start_nothing(
    tools: Toolset, hf: SyncClient, wrong: dict[str, Any], word: str
) -> None:
    """The message names the argument."""
    right = {"command": "true", "description": "for the test"}
    answer = call(tools, "execute_command", **{**right, **wrong})
    assert word in answer["error"]
    assert hf.list() == []


@pytest.mark.parametrize(
    "wrong",
    [{"offset": -1}, {"limit": 0}, {"limit": 1.5}, {"data": 1}, {"eof": 1}, {"bash_id": "x"}],
)
def test_arguments_of_process_have_bounds_too(tools: Toolset, wrong: dict[str, Any]) -> None:
    """The same for the other tool."""
    assert next(iter(wrong)) in act(tools, "log", "proc-0123456789abcdef", **wrong)["error"]


def test_the_bounds_of_the_arguments_are_accepted(tools: Toolset) -> None:
    """100 milliseconds, 5 characters and one are enough, and no yield is too long."""
    assert execute(tools, "true", yieldMs=1e12)["status"] == "done"
    answer = call(tools, "execute_command", command="true", description="12345", timeout=100.5)
    assert answer["status"] == "done" or answer["timedOut"]
    session = start(tools, "printf ab", yieldMs=100)
    ended(tools, session)
    assert act(tools, "log", session, offset=0, limit=1)["output"] == "a"


def test_both_tools_are_described_as_the_plan_has_them(tools: Toolset) -> None:
    """Names, arguments and what is required, in every style; the process tool is always there."""
    execute_command, process = tools.definitions("anthropic")
    assert execute_command["name"] == "execute_command"
    schema = execute_command["input_schema"]
    assert list(schema["properties"]) == [
        *("command", "timeout", "description", "background", "yieldMs")
    ]
    assert schema["required"] == ["command", "description"]
    assert process["name"] == "process"
    schema = process["input_schema"]
    assert list(schema["properties"]) == ["action", "sessionId", "offset", "limit", "data", "eof"]
    assert schema["properties"]["action"]["enum"] == [
        *("list", "poll", "log", "write", "kill", "clear", "remove")
    ]
    assert schema["required"] == ["action"]


# -- errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["poll", "log", "write", "kill", "clear", "remove"])
def test_error_session_not_found(tools: Toolset, action: str) -> None:
    """The table's first row, and i18n's sessionNotFound."""
    answer = act(tools, action, "proc-0123456789abcdef")
    assert answer["error"] == "Session proc-0123456789abcdef not found"
    assert answer.is_error


@pytest.mark.parametrize("action", ["poll", "log", "write", "kill", "clear", "remove"])
def test_error_no_session_named(tools: Toolset, action: str) -> None:
    """Only list needs none."""
    assert act(tools, action)["error"] == f"sessionId is required for {action} action"


def test_error_write_to_a_session_that_is_not_running(tools: Toolset) -> None:
    """The table's second row, and i18n's sessionNotRunning."""
    session = start(tools, "true")
    ended(tools, session)
    answer = act(tools, "write", session, data="x")
    assert answer["error"] == f"Session {session} is not running"


def test_error_stdin_not_available(tools: Toolset) -> None:
    """i18n's stdinNotAvailable: after its stdin was closed there is nothing to write to."""
    session = start(tools, "sleep 1000")
    act(tools, "write", session, eof=True)
    answer = act(tools, "write", session, data="x")
    assert answer["error"] == f"Session {session} stdin is not available"
    act(tools, "kill", session)


def test_error_kill_of_a_dead_session_does_nothing(tools: Toolset) -> None:
    """The table's third row: it stays as it ended, however often."""
    session = start(tools, "exit 5")
    ended(tools, session)
    for _ in range(2):
        assert said(act(tools, "kill", session)) == {"status": "ok", "sessionId": session}
    answer = act(tools, "poll", session)
    assert (answer["status"], answer["exitCode"]) == ("error", 5)


def test_error_remove_goes_on_without_the_file(tools: Toolset) -> None:
    """The table's fourth row: what is to be deleted may be gone already."""
    session = start(tools, "seq 1 5000")
    os.unlink(ended(tools, session)["outputFilePath"])
    assert act(tools, "remove", session)["status"] == "ok"
    assert sessions(tools) == []


def test_error_a_file_that_cannot_be_read_is_an_error_and_no_empty_answer(tools: Toolset) -> None:
    """The table's fifth row, but said: nobody may take it for a command without output."""
    session = start(tools, "seq 1 5000")
    path = Path(ended(tools, session)["outputFilePath"])
    path.unlink()
    path.symlink_to("/dev/null")
    for action in ("poll", "log"):
        answer = act(tools, action, session)
        assert str(path) in answer["error"]
        assert "output" not in answer
    assert str(path) in sessions(tools)[0]["error"]
    path.unlink()


# -- what the session is told ------------------------------------------------------------------


def test_the_end_of_a_background_command_is_told_once(
    tools: Toolset, hf: SyncClient, gate: Gate
) -> None:
    """In events of the next answer, whatever was asked."""
    session = start(tools, f": < {gate.path}; echo done")
    gate.open()
    wait_until(lambda: list(hf.events()))
    (event,) = act(tools, "list")["events"]
    assert (event["type"], event["handle"]) == ("end", session)
    assert "events" not in act(tools, "list")


def test_a_poll_that_shows_the_end_is_all_that_is_told_of_it(
    tools: Toolset, hf: SyncClient, gate: Gate
) -> None:
    """The model has seen it."""
    session = start(tools, f": < {gate.path}; echo done")
    gate.open()
    wait_until(lambda: list(hf.events()))
    assert "events" not in act(tools, "poll", session)
    assert "events" not in act(tools, "list")


# -- the plan's integration tests --------------------------------------------------------------


def test_end_to_end_execute_poll_kill(tools: Toolset) -> None:
    """A server's life: begun, watched, stopped, removed."""
    session = start(tools, "i=0; while :; do echo tick $((i++)); sleep 0.05; done")
    says(tools, session, "tick 3")
    act(tools, "kill", session)
    answer = act(tools, "poll", session)
    assert answer["status"] == "killed"
    assert "tick 3" in answer["output"]
    act(tools, "remove", session)
    assert sessions(tools) == []
