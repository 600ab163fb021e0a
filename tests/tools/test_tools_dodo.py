"""Dodo's tools: servers in the background, waiting until they are ready, tests and builds."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Record, SyncClient, Toolset, connect
from holdfast.client.connect import open_client
from holdfast.client.link import run
from holdfast.core.home import Home
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until
from holdfast.tools import _listening
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.tools import Result
    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]
Serve = Callable[[int], str]

NAMES = [
    "run_background",
    "start_process",
    "stop_process",
    "list_processes",
    "read_process_output",
    "wait_for_port",
    "wait_for_service",
    "run_test",
    "run_build",
]


@pytest.fixture
def tools(hf: SyncClient) -> Toolset:
    return toolset(hf, "dodo")


@pytest.fixture
def taken(no_leaks: None) -> Iterator[int]:
    """A port on which the test itself listens."""
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        yield mine.getsockname()[1]


@pytest.fixture
def server(child: Child) -> Serve:
    """The command line of a server on a port."""
    return lambda port: shlex.join(child("serves_tcp", "itself", "127.0.0.1", str(port)))


@pytest.fixture
def person(home: str) -> Iterator[SyncClient]:
    client = open_client(Home(home), None)
    yield client
    client.close()


def start(tools: Toolset, cmd: str, **options: Any) -> str:
    result = call(tools, "run_background", cmd=cmd, **options)
    assert not result.is_error, result
    return str(result["process_id"])


def ended(hf: SyncClient, handle: str) -> Record:
    process = hf.get(handle)
    wait_until(lambda: not process.refresh().running, what=f"{process} ended")
    return process.record


def with_patience(tools: Toolset, seconds: float, name: str, **arguments: Any) -> Result:
    return run(tools.call(name, arguments, patience=seconds))


# -- the vocabulary --------------------------------------------------------------------------------


def test_the_tools_have_the_names_of_the_plan(tools: Toolset) -> None:
    """In every style; the name that Dodo's own test tool has today works too."""
    assert tools.names == NAMES
    for style in ("anthropic", "mcp"):
        assert [each["name"] for each in tools.definitions(style)] == NAMES
    assert [each["function"]["name"] for each in tools.definitions("openai")] == NAMES
    assert call(tools, "run_tests", cmd="true")["passed"] is True


def test_the_arguments_have_the_names_of_the_plan(tools: Toolset) -> None:
    schemas = {each["name"]: each["input_schema"] for each in tools.definitions()}
    named = {name: list(schema["properties"]) for name, schema in schemas.items()}
    assert named["run_background"] == ["cmd", "args", "ports", "cwd", "options"]
    assert schemas["start_process"] == schemas["run_background"]
    assert named["stop_process"] == ["process_id"]
    assert named["list_processes"] == []
    assert named["read_process_output"] == ["id", "lines"]
    assert named["wait_for_port"] == ["port", "timeout", "id"]
    assert named["wait_for_service"] == ["port", "output_regex", "timeout", "id"]
    assert "background" in named["run_test"]
    assert schemas["run_build"] == schemas["run_test"]


def test_an_unknown_argument_is_named_and_nothing_is_started(tools: Toolset) -> None:
    result = call(tools, "run_background", cmd="sleep 1000", dir="/")
    assert "'dir'" in result["error"]
    nested = call(tools, "run_background", cmd="sleep 1000", options={"port": 1})
    assert "'port' in 'options' (did you mean 'ports'?)" in nested["error"]
    assert call(tools, "list_processes")["processes"] == []


# -- run_background, start_process -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["run_background", "start_process"])
def test_a_server_does_not_block_the_agent(
    hf: SyncClient, tools: Toolset, server: Serve, port: int, name: str
) -> None:
    """Goal 1: it is started, and while it runs it is observed and tested against."""
    result = call(tools, name, cmd=server(port))
    assert result["status"] == "running"
    assert result["process_id"].startswith("proc-")
    assert call(tools, "wait_for_port", port=port)["ready"]
    connects = f"import socket; socket.create_connection(('127.0.0.1', {port})).close(); print(1)"
    tested = call(tools, "run_test", cmd=sys.executable, args=["-IS", "-c", connects])
    assert (tested["passed"], tested["output"]) == (True, "1\n")
    assert hf.get(result["process_id"]).record.running


def test_options_are_given_flat_or_nested(hf: SyncClient, tools: Toolset, tmp_path: Path) -> None:
    """Both mean the same; given twice and differently nothing is started."""
    for options in ({"cwd": str(tmp_path)}, {"options": {"cwd": str(tmp_path), "ports": []}}):
        handle = start(tools, "pwd", **options)
        ended(hf, handle)
        assert call(tools, "read_process_output", id=handle)["output"] == f"{tmp_path}\n"
    twice = call(tools, "start_process", cmd="pwd", cwd="/", options={"cwd": str(tmp_path)})
    assert "'cwd' is given twice" in twice["error"]
    assert len(hf.list()) == 2


def test_arguments_are_words_and_a_command_alone_is_a_line(hf: SyncClient, tools: Toolset) -> None:
    """A list or string of arguments reaches the program as it is; without them a shell reads it."""
    starts: list[tuple[dict[str, Any], str]] = [
        ({"cmd": "printf", "args": ["%s.", "a b", "$HOME"]}, "a b.$HOME."),
        ({"cmd": "printf", "args": "%s. 'a b' $HOME"}, "a b.$HOME."),
        ({"cmd": "printf %s. $((2 + 3)) | cat"}, "5."),
        ({"cmd": "printf %s. $((2 + 3)) | cat", "args": []}, "5."),
    ]
    for arguments, output in starts:
        handle = call(tools, "run_background", **arguments)["process_id"]
        ended(hf, handle)
        assert call(tools, "read_process_output", id=handle)["output"].strip() == output


def test_a_command_line_with_arguments_is_told_how_to_be_given(tools: Toolset) -> None:
    for name in ("run_background", "run_test"):
        result = call(tools, name, cmd="npm run", args=["dev"])
        assert result["code"] == "not_executable"
        assert "give the whole command line as 'cmd'" in result["error"]
    assert "cannot be taken apart" in call(tools, "run_background", cmd="a", args="'")["error"]


@pytest.mark.parametrize("options", [{"ports": ["3000"]}, {"options": {"ports": [3000]}}])
def test_ports_without_docker_are_an_error_that_says_so(
    hf: SyncClient, tools: Toolset, options: dict[str, Any]
) -> None:
    """Nothing is started, and it says that ports are reachable as they are."""
    result = call(tools, "run_background", cmd="sleep 1000", **options)
    assert result["code"] == "unavailable"
    assert "published only for processes in Docker" in result["error"]
    assert "reachable as they are" in result["error"]
    assert hf.list() == []


def test_three_may_run_and_the_next_is_refused(hf: SyncClient, tools: Toolset) -> None:
    """The risk of too many heavy processes: the error names those that run, and one can go."""
    handles = [start(tools, f"sleep {1000 + n}") for n in range(2)]
    handles.append(call(tools, "run_test", cmd="sleep 1002", background=True)["job_id"])
    for name, more in (("run_background", {}), ("run_build", {"background": True})):
        refused = call(tools, name, cmd="sleep 2000", **more)
        assert refused["code"] == "limit_reached"
        assert "no more than 3 may run at a time; stop_process" in refused["error"]
        for n, handle in enumerate(handles):
            assert f"{handle} (sleep {1000 + n})" in refused["error"]
    assert len(hf.list()) == 3
    call(tools, "stop_process", process_id=handles[0])
    start(tools, "sleep 2000")


def test_a_test_that_is_waited_for_needs_no_place_among_the_three(tools: Toolset) -> None:
    """Otherwise nothing could be tested against three servers."""
    for _ in range(3):
        start(tools, "sleep 1000")
    assert call(tools, "run_test", cmd="echo fine")["output"] == "fine\n"


def test_a_smaller_limit_of_the_user_holds(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MAX_RUNNING", "1")
    with connect() as hf:
        tools = toolset(hf, "dodo")
        start(tools, "sleep 1000")
        refused = call(tools, "run_background", cmd="sleep 1000")
        assert "no more than 1 may run" in refused["error"]


def test_a_server_has_no_deadline(hf: SyncClient, tools: Toolset) -> None:
    """Only what is waited for has one; a server lives as long as its session."""
    assert hf.get(start(tools, "sleep 1000")).record.timeout is None
    job = call(tools, "run_test", cmd="sleep 1000", background=True)["job_id"]
    assert hf.get(job).record.timeout is None
    assert hf.get(call(tools, "run_test", cmd="true")["job_id"]).record.timeout == 1800


def test_nobody_can_type_so_input_is_at_its_end(hf: SyncClient, tools: Toolset) -> None:
    """Non-goal: no input; what reads some anyway does not hang."""
    assert ended(hf, start(tools, "cat")).status == "completed"


# -- stop_process ----------------------------------------------------------------------------------


def test_stopping_ends_everything_that_was_started(
    hf: SyncClient, tools: Toolset, child: Child
) -> None:
    """Requirement 1: a specific process, with children that do not want to go."""
    handle = start(tools, shlex.join(child("grows_a_family")))
    ready = call(tools, "wait_for_service", output_regex=r"family (\d+) (\d+)")
    pids = [int(pid) for pid in ready["groups"]]
    other = start(tools, "sleep 1000")
    stopped = call(tools, "stop_process", process_id=handle)
    assert stopped["status"] == "killed"
    assert stopped["message"] == "stopped, with everything it started"
    found = [stat(pid) for pid in pids]
    assert all(each is None or each.state in "ZX" for each in found)
    assert hf.get(other).record.running
    assert "events" not in call(tools, "list_processes")


def test_stopping_what_has_ended_says_how_it_did(hf: SyncClient, tools: Toolset) -> None:
    handle = start(tools, "exit 7")
    ended(hf, handle)
    stopped = call(tools, "stop_process", id=handle)
    assert (stopped["status"], stopped["exit_code"]) == ("failed", 7)
    assert stopped["message"] == "it had already ended"


def test_a_process_of_another_session_does_not_exist(
    tools: Toolset, person: SyncClient, session: str
) -> None:
    """No tool shows, reads, stops or waits for it, and part of an id is no id."""
    with connect(session=f"{session}-other") as other:
        handle = other.spawn("sleep 1000").handle
        for name, key in (
            ("stop_process", "process_id"),
            ("read_process_output", "id"),
            ("wait_for_port", "id"),
        ):
            more = {"port": 80} if name == "wait_for_port" else {}
            assert call(tools, name, **{key: handle}, **more)["code"] == "not_found"
            assert call(tools, name, **{key: handle[:9]}, **more)["code"] == "not_found"
        assert call(tools, "list_processes")["processes"] == []
        assert person.get(handle).record.running


# -- list_processes --------------------------------------------------------------------------------


def test_the_list_has_status_exit_code_and_usage(
    hf: SyncClient, tools: Toolset, child: Child, server: Serve, port: int
) -> None:
    """Requirement 1: what runs with processor, memory and ports, what has ended with its end."""
    busy = start(tools, shlex.join(child("works_hard", "30", "1000")))
    serving = start(tools, server(port))
    call(tools, "wait_for_port", port=port, id=serving)
    failed = call(tools, "run_build", cmd="exit 9")["job_id"]
    mebibytes = 1 << 20

    def used() -> bool:
        found = call(tools, "list_processes")["processes"][0]["usage"]
        return bool(found["memory_bytes"] > 30 * mebibytes)

    wait_until(used, what="memory in use")
    answer = call(tools, "list_processes")
    by_id = {each["process_id"]: each for each in answer["processes"]}
    assert list(by_id) == [busy, serving, failed]
    assert by_id[busy]["status"] == "running"
    assert by_id[busy]["usage"]["cpu_percent"] is not None
    assert by_id[busy]["usage"]["cpu_seconds"] > 0
    assert by_id[busy]["usage"]["peak_memory_bytes"] > 30 * mebibytes
    assert by_id[serving]["listens_on"] == [port]
    assert by_id[serving]["usage"]["processes"] == 1
    assert (by_id[failed]["status"], by_id[failed]["exit_code"]) == ("failed", 9)
    assert by_id[failed]["label"] == "build"
    assert by_id[failed]["usage"]["cpu_seconds"] is not None
    assert (answer["running"], answer["most"]) == (2, 3)


def test_a_long_list_has_the_last_ends_and_says_how_many_more(tools: Toolset) -> None:
    handles = [call(tools, "run_test", cmd=f"exit {n}")["job_id"] for n in range(12)]
    running = start(tools, "sleep 1000")
    answer = call(tools, "list_processes")
    assert [each["process_id"] for each in answer["processes"]] == [running, *handles[2:]]
    assert answer["note"] == "2 that ended before these are not shown"


# -- read_process_output ---------------------------------------------------------------------------


def test_the_last_fifty_lines_are_read_without_saying_so(hf: SyncClient, tools: Toolset) -> None:
    """Log peeking: 50 by default, any number if given, and nothing is used up by it."""
    handle = start(tools, "seq 200; exit 4")
    ended(hf, handle)
    for _ in range(2):
        result = call(tools, "read_process_output", id=handle)
        assert result["output"].split() == [str(n) for n in range(151, 201)]
        assert (result["status"], result["exit_code"]) == ("failed", 4)
    few = call(tools, "read_process_output", id=handle, lines=2)
    assert few["output"] == "199\n200\n"
    assert call(tools, "read_process_output", id=handle, lines=1000)["output"].startswith("1\n2\n")
    assert "at least 1" in call(tools, "read_process_output", id=handle, lines=0)["error"]


def test_output_is_read_while_it_runs(tools: Toolset, gate: Gate) -> None:
    """stdout and stderr, without colours, as far as it has come."""
    handle = start(tools, f"printf '\\033[31mone\\033[0m\\n'; echo two >&2; : < {gate.path}")
    call(tools, "wait_for_service", output_regex="two")
    result = call(tools, "read_process_output", id=handle)
    assert (result["status"], result["exit_code"]) == ("running", None)
    assert result["output"] == "one\ntwo\n"


def test_a_flood_is_read_within_bounds(hf: SyncClient, tools: Toolset) -> None:
    """However many lines are asked for, and it says what is left out."""
    handle = start(tools, "seq 100000")
    ended(hf, handle)
    output = call(tools, "read_process_output", id=handle, lines=50000)["output"]
    assert len(output) <= 10_000
    assert output.startswith("50001\n")
    assert output.rstrip().endswith("100000")
    assert "left out" in output


@pytest.mark.parametrize("key", ["id", "process_id", "job_id"])
def test_an_id_is_good_under_each_of_its_names(hf: SyncClient, tools: Toolset, key: str) -> None:
    """Results say process_id or job_id, the plan's tools ask for an id: all are the same handle."""
    handle = call(tools, "run_test", cmd="echo hello", background=True)["job_id"]
    ended(hf, handle)
    assert call(tools, "read_process_output", **{key: handle})["output"] == "hello\n"
    assert call(tools, "stop_process", **{key: handle})["status"] == "completed"
    assert call(tools, "wait_for_service", output_regex="hel+o", **{key: handle})["ready"]


# -- wait_for_port ---------------------------------------------------------------------------------


def test_a_port_is_waited_for_until_the_server_listens(
    tools: Toolset, server: Serve, port: int
) -> None:
    """Port wait: it returns when the server listens, and names it; nobody sleeps and hopes."""
    handle = start(tools, f"sleep 0.3; exec {server(port)}")
    result = call(tools, "wait_for_port", port=port, timeout=60)
    assert result["ready"] is True
    assert result["owner"]["process_id"] == handle
    assert result["owner"]["host"] == "127.0.0.1"
    assert f"of {handle} listens there" in result["message"]


def test_a_port_of_a_grandchild_is_the_processes(tools: Toolset, child: Child, port: int) -> None:
    """npm starts node: whoever holds the socket, the process is what was started."""
    command = child("serves_tcp", "grandchild", "127.0.0.1", str(port))
    handle = start(tools, shlex.join(command))
    for more in ({}, {"id": handle}):
        result = call(tools, "wait_for_port", port=port, timeout=60, **more)
        assert result["ready"] is True
        assert result["owner"]["process_id"] == handle


def test_a_port_that_is_passed_on_while_it_is_looked_at_is_the_processes(
    tools: Toolset, hf: SyncClient, child: Child, port: int
) -> None:
    """Who has the socket was not there yet when the processes were counted: no stranger."""
    command = child("serves_tcp", "passed_on", "127.0.0.1", str(port))
    process = hf.spawn(command, stdin=True)
    for _ in range(20):
        process.send("x")
        result = call(tools, "wait_for_port", port=port, timeout=60)
        assert result["owner"]["process_id"] == process.handle
        assert process.wait_for("output=passed on", timeout=60).ok


def test_without_an_id_any_listener_will_do_and_is_named(tools: Toolset, taken: int) -> None:
    """It is open, and it is said that none of this session's processes holds it."""
    start(tools, "sleep 1000")
    result = call(tools, "wait_for_port", port=taken)
    assert result["ready"] is True
    assert result["owner"]["process_id"] is None
    assert result["owner"]["pid"] == os.getpid()
    assert (
        f"(pid {os.getpid()}) listens there, which is no process of this session"
        in (result["message"])
    )


def test_the_server_of_another_session_is_just_a_pid(
    tools: Toolset, server: Serve, port: int, session: str
) -> None:
    """Ports are everybody's, handles are not."""
    with connect(session=f"{session}-other") as other:
        process = other.spawn(f"exec {server(port)}")
        result = call(tools, "wait_for_port", port=port, timeout=60)
        assert result["owner"]["process_id"] is None
        assert result["owner"]["pid"] == process.record.pid
        assert process.handle not in result.text


def test_a_listener_that_may_not_be_looked_at_is_still_told() -> None:
    hidden = _listening.Owner(None, None, "", "127.0.0.1")
    assert str(hidden).startswith("a process of another user, which cannot be looked at, listens")


def test_with_an_id_somebody_elses_port_is_told_at_once(tools: Toolset, taken: int) -> None:
    """It will never be this process's, so the wait says who has it instead of going on."""
    handle = start(tools, "sleep 1000")
    result = call(tools, "wait_for_port", port=taken, id=handle, timeout=600)
    assert result["ready"] is False
    assert (result["process_id"], result["status"]) == (handle, "running")
    assert result["owner"]["pid"] == os.getpid()
    assert f"port {taken} is held by" in result["message"]
    assert f"(pid {os.getpid()})" in result["message"]


def test_a_port_that_nobody_opens_is_told_when_the_time_is_up(tools: Toolset, port: int) -> None:
    """With or without an id; the process goes on."""
    handle = start(tools, "echo alive; sleep 1000")
    call(tools, "wait_for_service", output_regex="alive")
    alone = call(tools, "wait_for_port", port=port, timeout=0.1)
    assert (alone["ready"], alone["timed_out"]) == (False, True)
    assert f"nobody listens on port {port}" in alone["message"]
    assert "call again with the same arguments" in alone["message"]
    of_it = call(tools, "wait_for_port", port=port, timeout=0.1, id=handle)
    assert (of_it["ready"], of_it["timed_out"], of_it["status"]) == (False, True, "running")
    assert of_it["waiting_for"] == [f"port={port}"]
    assert of_it["output"] == "alive\n"


@pytest.mark.parametrize("late", ["", "sleep 0.2; "])
def test_a_server_that_crashes_ends_the_wait_for_its_port(
    hf: SyncClient, tools: Toolset, port: int, late: str
) -> None:
    """Before the wait or in it, which is told once: the answer has its end and its output."""
    handle = start(tools, f"{late}echo 'no such module'; exit 3")
    if not late:
        ended(hf, handle)
    result = call(tools, "wait_for_port", port=port, timeout=600)
    assert (result["ready"], result["process_id"]) == (False, handle)
    assert (result["status"], result["exit_code"]) == ("failed", 3)
    assert result["output"] == "no such module\n"
    assert f"{handle} has ended (failed, exit code 3)" in result["message"]
    assert "events" not in result
    # That end is known now, so the next wait is for somebody outside.
    assert call(tools, "wait_for_port", port=port, timeout=0.1)["timed_out"]


def test_a_command_that_leaves_a_daemon_behind_does_not_end_the_wait(
    hf: SyncClient, tools: Toolset, server: Serve, port: int
) -> None:
    """It has ended well, and what it left is about to listen."""
    handle = start(tools, f"(sleep 0.5; exec setsid {server(port)}) > /dev/null 2>&1 & exit 0")
    ended(hf, handle)
    result = call(tools, "wait_for_port", port=port, timeout=60)
    assert result["ready"] is True
    assert result["owner"]["process_id"] == handle
    os.kill(result["owner"]["pid"], signal.SIGKILL)


def test_the_wait_for_a_port_tells_how_it_goes(
    tools: Toolset, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_listening, "_SAY", 0.0)
    told: list[str] = []

    async def progress(seconds: float, text: str) -> None:
        told.append(text)

    run(tools.call("wait_for_port", {"port": port, "timeout": 0.1}, progress=progress))
    assert told
    assert told[0] == f"waiting for port {port}"


# -- wait_for_service ------------------------------------------------------------------------------


def test_with_both_conditions_both_must_hold(
    tools: Toolset, server: Serve, port: int, gate: Gate
) -> None:
    """The port alone is not enough, and the answer says what is missing; then it has the match."""
    command = f"{server(port)} & : < {gate.path}; echo 'Ready on {port}'; wait"
    handle = start(tools, command)
    assert call(tools, "wait_for_service", port=port)["ready"] is True
    both = {"port": port, "output_regex": r"Ready on (\d+)"}
    result = call(tools, "wait_for_service", **both, timeout=0.1)
    assert (result["ready"], result["timed_out"]) == (False, True)
    assert result["waiting_for"] == [r"output=Ready on (\d+)"]
    gate.open()
    result = call(tools, "wait_for_service", **both, timeout=60)
    assert (result["ready"], result["process_id"]) == (True, handle)
    assert (result["match"], result["groups"]) == (f"Ready on {port}", [str(port)])
    assert result["owner"]["process_id"] == handle


def test_output_without_the_port_is_not_enough_either(tools: Toolset, port: int) -> None:
    start(tools, "echo Ready on it; sleep 1000")
    assert call(tools, "wait_for_service", output_regex="Ready on")["ready"] is True
    result = call(tools, "wait_for_service", port=port, output_regex="Ready on", timeout=0.1)
    assert result["ready"] is False
    assert result["waiting_for"] == [f"port={port}"]
    assert result["match"] == "Ready on it"


def test_what_was_said_before_the_wait_counts(tools: Toolset, gate: Gate) -> None:
    """A server may be ready before anybody can ask; each time it is asked."""
    handle = start(tools, f"echo 'Ready on 1234'; echo more; : < {gate.path}")
    call(tools, "wait_for_service", output_regex="more")
    for _ in range(2):
        result = call(tools, "wait_for_service", output_regex="^Ready on", id=handle)
        assert (result["ready"], result["match"]) == (True, "Ready on 1234")


def test_of_several_processes_one_must_be_named(tools: Toolset) -> None:
    """The error lists them with their commands."""
    handles = [start(tools, f"echo up; sleep {1000 + n}") for n in range(2)]
    result = call(tools, "wait_for_service", output_regex="up")
    assert result.is_error
    for n, handle in enumerate(handles):
        assert f"{handle} (echo up; sleep {1000 + n})" in result["error"]
    assert "'id'" in result["error"]
    named = call(tools, "wait_for_service", output_regex="up", id=handles[1])
    assert (named["ready"], named["process_id"]) == (True, handles[1])


def test_if_nothing_runs_the_error_says_what_ran(hf: SyncClient, tools: Toolset) -> None:
    nothing = call(tools, "wait_for_service", port=80)
    assert nothing["error"] == "no process runs; run_background starts one"
    handle = start(tools, "exit 5")
    ended(hf, handle)
    result = call(tools, "wait_for_service", port=80)
    assert f"these have ended: {handle} (exit 5: failed, exit code 5)" in result["error"]


def test_something_must_be_waited_for(tools: Toolset) -> None:
    start(tools, "sleep 1000")
    result = call(tools, "wait_for_service", timeout=5)
    assert "needs 'port' or 'output_regex'" in result["error"]
    bad = call(tools, "wait_for_service", output_regex="(")
    assert bad["code"] == "bad_request"
    assert "'('" in bad["error"]
    assert "at most 65535" in call(tools, "wait_for_service", port=65536)["error"]


def test_a_process_that_ends_first_ends_the_wait(tools: Toolset) -> None:
    """With its exit code and its last output, and without a second word in the events."""
    handle = start(tools, "echo starting; echo 'SyntaxError: oops' >&2; exit 1")
    arguments = {"output_regex": "Ready", "timeout": 600, "id": handle}
    result = call(tools, "wait_for_service", **arguments)
    assert (result["ready"], result["status"], result["exit_code"]) == (False, "failed", 1)
    assert result["output"] == "starting\nSyntaxError: oops\n"
    assert result["message"] == "it has ended (failed, exit code 1) without output=Ready"
    assert "events" not in result


def test_a_server_that_crashed_after_it_was_ready_is_not_ready(
    hf: SyncClient, tools: Toolset
) -> None:
    handle = start(tools, "echo Ready; exit 1")
    ended(hf, handle)
    result = call(tools, "wait_for_service", output_regex="Ready", id=handle)
    assert (result["ready"], result["match"]) == (False, "Ready")
    assert "has ended since (failed, exit code 1)" in result["message"]


def test_who_holds_the_port_of_a_server_that_could_not_start_is_told(
    tools: Toolset, server: Serve, taken: int
) -> None:
    """Address in use: the answer says whose, though the server itself is gone."""
    handle = start(tools, f"sleep 0.2; exec {server(taken)}")
    result = call(tools, "wait_for_service", port=taken, id=handle, timeout=600)
    assert result["ready"] is False
    assert result["owner"]["pid"] == os.getpid()
    assert f"(pid {os.getpid()})" in result["message"]


# -- run_test, run_build ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run_test", "run_build"])
def test_a_job_in_the_background_returns_its_id(
    hf: SyncClient, tools: Toolset, gate: Gate, name: str
) -> None:
    """Goal 2: the agent goes on, looks at it by its id, and is told of its end."""
    job = call(tools, name, cmd=f"echo watching; : < {gate.path}; exit 6", background=True)
    assert job["status"] == "running"
    assert "process_id" not in job
    call(tools, "wait_for_service", output_regex="watching")
    assert call(tools, "read_process_output", id=job["job_id"])["output"] == "watching\n"
    gate.open()
    wait_until(lambda: list(hf.events()))
    told = call(tools, name, cmd="true")
    assert [event["exit_code"] for event in told["events"]] == [6]
    assert told["events"][0]["handle"] == job["job_id"]


def test_a_job_that_is_waited_for_returns_output_and_exit_code(tools: Toolset) -> None:
    """As before the plan: run_test is still synchronous unless asked otherwise."""
    result = call(tools, "run_test", cmd="echo out; echo err >&2; exit 2")
    assert result["job_id"].startswith("proc-")
    assert (result["status"], result["exit_code"], result["passed"]) == ("failed", 2, False)
    assert result["output"] == "out\nerr\n"
    assert "events" not in result
    built = call(tools, "run_build", cmd="true", background=False)
    assert (built["status"], built["exit_code"]) == ("completed", 0)
    assert "passed" not in built


def test_a_job_stops_at_its_timeout(tools: Toolset) -> None:
    result = call(tools, "run_test", cmd="sleep 1000", timeout=0.2)
    assert (result["status"], result["passed"]) == ("timed_out", False)


def test_a_job_that_outlasts_the_callers_patience_goes_on(
    hf: SyncClient, tools: Toolset, gate: Gate
) -> None:
    """The answer comes before the client's limit, with the id; the end is told later."""
    result = with_patience(
        tools, 2.5, "run_test", cmd=f"echo so far; : < {gate.path}; echo 9 passed"
    )
    assert (result["status"], result["output"]) == ("running", "so far\n")
    assert "passed" not in result
    assert "it goes on in the background" in result["message"]
    assert hf.get(result["job_id"]).record.running
    gate.open()
    wait_until(lambda: list(hf.events()))
    told = call(tools, "run_build", cmd="true")["events"]
    assert [event["handle"] for event in told] == [result["job_id"]]
    assert "9 passed" in told[0]["text"]


def test_a_wait_that_outlasts_the_callers_patience_can_be_repeated(
    tools: Toolset, port: int, gate: Gate
) -> None:
    """It says that it may not take longer, and the same call again goes on."""
    handle = start(tools, f": < {gate.path}; echo Ready; sleep 1000")
    for arguments in ({"output_regex": "Ready", "id": handle}, {"port": port, "id": handle}):
        result = with_patience(tools, 0.6, "wait_for_service", **arguments, timeout=600)
        assert (result["ready"], result["timed_out"]) == (False, True)
        assert "this call may not take longer; call again" in result["message"]
    result = with_patience(tools, 0.6, "wait_for_port", port=port, timeout=600)
    assert "this call may not take longer; call again" in result["message"]
    gate.open()
    assert with_patience(tools, 30, "wait_for_service", output_regex="Ready")["ready"] is True


# -- events ----------------------------------------------------------------------------------------


def test_a_crash_comes_into_the_conversation_by_itself(
    hf: SyncClient, tools: Toolset, gate: Gate
) -> None:
    """Event stream: with the result of whatever is called next, once."""
    server = start(tools, "sleep 1000")
    crashed = start(tools, f": < {gate.path}; echo 'panic: nil map'; exit 2")
    gate.open()
    wait_until(lambda: list(hf.events()))
    result = call(tools, "read_process_output", id=server)
    assert [event["handle"] for event in result["events"]] == [crashed]
    assert "panic: nil map" in result["events"][0]["text"]
    assert "events" not in call(tools, "read_process_output", id=server)


@pytest.mark.parametrize(
    ("name", "key"),
    [("read_process_output", "id"), ("stop_process", "process_id"), ("list_processes", None)],
)
def test_an_end_that_was_shown_is_not_told_again(
    hf: SyncClient, tools: Toolset, gate: Gate, name: str, key: str | None
) -> None:
    handle = start(tools, f": < {gate.path}; exit 1")
    gate.open()
    wait_until(lambda: list(hf.events()))
    assert "events" not in call(tools, name, **({key: handle} if key else {}))
    assert list(hf.events()) == []


# -- the end of the session ------------------------------------------------------------------------

HOST = """
import sys, time, holdfast
from holdfast.client.link import run
with holdfast.connect(session="dodo") as hf:
    tools = holdfast.Toolset(hf._client, "dodo")
    print(run(tools.call("run_background", {"cmd": "sleep 1000"}))["process_id"], flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("way", ["leaves", "is killed"])
def test_everything_ends_with_the_session(person: SyncClient, way: str) -> None:
    """Cleanup: at once, also where the agent is killed and can close nothing."""
    command = [sys.executable, "-c", HOST]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        handle = host.stdout.readline().decode().strip()
        process = person.get(handle)
        assert process.record.running
        if way == "leaves":
            host.communicate(timeout=60)
        else:
            host.kill()
            host.wait()
    wait_until(lambda: not process.refresh().running)
    assert (process.record.status, process.record.reason) == ("killed", "lease_ended")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_same_tools_work_with_asyncio(
    home: str, server: Serve, port: int, session: str
) -> None:
    async with connect(session=session) as hf:
        tools = Toolset(hf, "dodo")
        started = await tools.call("run_background", {"cmd": f"sleep 0.2; exec {server(port)}"})
        ready = await tools.call("wait_for_port", {"port": port})
        assert ready["owner"]["process_id"] == started["process_id"]
        both = {"port": port, "output_regex": "ready"}
        assert (await tools.call("wait_for_service", both))["ready"]
        assert (await tools.call("list_processes"))["processes"][0]["listens_on"] == [port]
        assert (await tools.call("run_test", {"cmd": "exit 1"}))["passed"] is False
        stopped = await tools.call("stop_process", {"process_id": started["process_id"]})
        assert stopped["status"] == "killed"
