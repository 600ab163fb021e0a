"""Duragent's tools: its scenarios and acceptance criteria, through the tools."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import holdfast
from holdfast import SyncClient
from holdfast.testing import wait_until
from tests.person import Person
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Toolset
    from holdfast.tools import Result
    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper


@pytest.fixture(params=["duragent", "native"])
def tools(hf: SyncClient, request: pytest.FixtureRequest) -> Toolset:
    """What holds for Duragent's tools holds for ours."""
    return toolset(hf, request.param)


def events(tools: Toolset) -> list[dict[str, object]]:
    """What the next result brings along, whatever is asked."""
    found: list[dict[str, object]] = call(tools, "process", action="list").get("events", [])
    return found


def screen(tools: Toolset, handle: str) -> Result:
    return call(tools, "process", action="capture", handle=handle)


# -- scenarios -------------------------------------------------------------------------------------


def test_scenario_1_simple_delegation(tools: Toolset, tmp_path: Path) -> None:
    """Blocks to the end; status, exit code, output and duration come back."""
    result = call(
        tools,
        "spawn_process",
        command="pwd; echo oops >&2; exit 0",
        workdir=str(tmp_path),
        wait=True,
    )
    assert (result["status"], result["exit_code"]) == ("completed", 0)
    assert result["output"] == f"{tmp_path}\noops\n"
    assert result["duration_seconds"] >= 0
    assert events(tools) == []  # it was handled inline


def test_scenario_2_fire_and_forget(tools: Toolset, gate: Gate) -> None:
    """A handle at once; later a completion, in Duragent's own words, once."""
    started = call(
        tools,
        "spawn_process",
        command=f": < {gate.path}; echo 2 failed; exit 1",
        label="tests",
        wait=False,
    )
    assert started["status"] == "running"
    assert started["handle"].startswith("proc-")
    assert started["pid"] > 0
    gate.open()
    (event,) = wait_until(lambda: events(tools))
    text = str(event["text"])
    assert text.startswith("[Background Process Completed]\n\nHandle: " + started["handle"])
    assert "\nLabel: tests\nCommand: : < " in text
    assert "\nExit code: 1\nDuration: " in text
    assert "\n\nOutput (last 2000 chars):\n" in text
    assert "2 failed" in text
    assert events(tools) == []


def test_scenario_3_parallel_agents(tools: Toolset) -> None:
    """Three at once; each end is told, with its own code."""
    started = [
        call(tools, "spawn_process", command=f"exit {code}", label=f"issue-{code}")
        for code in (12, 13, 14)
    ]
    handles = [each["handle"] for each in started]
    early = [event for each in started for event in each.get("events", [])]
    seen: dict[object, object] = {event["handle"]: event["exit_code"] for event in early}

    def all_told() -> bool:
        seen.update({event["handle"]: event["exit_code"] for event in events(tools)})
        return len(seen) == 3

    wait_until(all_told)
    assert seen == dict(zip(handles, (12, 13, 14), strict=True))


def test_scenario_4_active_monitoring_with_intervention(tools: Toolset) -> None:
    """An interactive program in tmux asks; the agent reads the screen and says no."""
    command = "read -p 'Delete auth.py? [y/n] ' a; echo answered $a; exec sleep 1000"
    started = call(tools, "spawn_process", command=command, tmux=True)
    handle = started["handle"]
    wait_until(lambda: "Delete auth.py?" in screen(tools, handle)["screen"])
    assert not call(tools, "process", action="send_keys", handle=handle, keys="n").is_error
    wait_until(lambda: "answered n" in screen(tools, handle)["screen"])
    call(tools, "process", action="send_keys", handle=handle, keys="C-c")
    wait_until(
        lambda: call(tools, "process", action="status", handle=handle)["status"] != "running"
    )


def test_scenario_5_human_observation(tools: Toolset) -> None:
    """The answer has the very command with which a person attaches, types and leaves."""
    started = call(tools, "spawn_process", command="cat", tmux=True)
    assert started["tmux_session"] == f"holdfast-{started['handle']}"
    assert started["tmux_session"] in started["attach"]
    with Person(program=shlex.split(started["attach"])) as person:
        person.types("hello from a person\r")
        person.sees("hello from a person\nhello from a person")
        person.leaves_tmux()
    captured = screen(tools, started["handle"])
    assert captured["screen"].startswith("hello from a person\nhello from a person")
    assert captured["status"] == "running"


# -- acceptance criteria ---------------------------------------------------------------------------


def test_criterion_list_status_log_and_kill(tools: Toolset) -> None:
    command = "for i in 0 1 2 3 4 5; do echo line $i; done; exec sleep 1000"
    handle = call(tools, "spawn_process", command=command, label="six", tmux=False)["handle"]
    (listed,) = call(tools, "process", action="list")["processes"]
    assert (listed["handle"], listed["label"], listed["status"]) == (handle, "six", "running")
    wait_until(lambda: "line 5" in call(tools, "process", action="log", handle=handle)["output"])
    page = call(tools, "process", action="log", handle=handle, offset=2, limit=2)
    assert (page["output"], page["offset"], page["next_offset"]) == ("line 2\nline 3\n", 2, 4)
    assert page["more"]
    last = call(tools, "process", action="log", handle=handle, offset=-1)
    assert last["output"] == "line 5\n"
    killed = call(tools, "process", action="kill", handle=handle)
    assert (killed["status"], killed["signal"]) == ("killed", "SIGTERM")
    again = call(tools, "process", action="kill", handle=handle)
    assert (again["status"], again["note"]) == ("killed", "it had already ended")
    assert call(tools, "process", action="status", handle=handle)["status"] == "killed"


def test_criterion_tmux_is_the_default_for_what_runs_in_the_background(tools: Toolset) -> None:
    background = call(tools, "spawn_process", command="exec sleep 1000")
    assert background["tmux_session"] == f"holdfast-{background['handle']}"
    waited = call(tools, "spawn_process", command="test -t 1", wait=True)
    assert waited["exit_code"] == 1


def test_criterion_everything_works_without_tmux(
    tools: Toolset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Degraded, as its document says: no capture, no keys, and an error that says what to do."""
    for name in ("sh", "bash", "cat", "sleep"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    started = call(tools, "spawn_process", command="cat")
    assert started["tmux_session"] is None
    handle = started["handle"]
    written = call(tools, "process", action="write", handle=handle, data="hello\n")
    assert written["written"] == 6
    wait_until(lambda: call(tools, "process", action="log", handle=handle)["output"] == "hello\n")
    for action, more in (("capture", {}), ("send_keys", {"keys": "x"})):
        refused = call(tools, "process", action=action, handle=handle, **more)
        assert refused["code"] == "unsupported"
    assert not call(tools, "process", action="write", handle=handle, eof=True).is_error
    wait_until(
        lambda: call(tools, "process", action="status", handle=handle)["status"] == "completed"
    )


def test_criterion_configurable_timeouts_with_graceful_shutdown(tools: Toolset) -> None:
    """TERM first, then force; a status of its own."""
    polite = call(
        tools,
        "spawn_process",
        command="trap 'echo bye; exit 3' TERM; sleep 1000 & wait",
        timeout_seconds=0.3,
        wait=True,
    )
    assert (polite["status"], polite["exit_code"], polite["output"]) == ("timed_out", 3, "bye\n")
    assert polite["reason"] == "timeout"


def test_criterion_recovers_after_a_restart_of_the_agent(
    home: str, gate: Gate, kill_both: Callable[[SyncClient], None], session: str
) -> None:
    """Even of the keeper: those in tmux and those without are found again, and told of."""
    with holdfast.connect(session=session) as hf:
        tools = toolset(hf, "duragent")
        handles = [
            call(tools, "spawn_process", command=f": < {gate.path}; exit 3", tmux=tmux)["handle"]
            for tmux in (True, False)
        ]
        kill_both(hf)
        again = toolset(hf, "duragent")
        listed = call(again, "process", action="list")["processes"]
        assert [each["status"] for each in listed] == ["running", "running"]
        gate.open()
        codes: dict[object, object] = {}

        def all_told() -> bool:
            codes.update({event["handle"]: event["exit_code"] for event in events(again)})
            return len(codes) == 2

        wait_until(all_told)
        assert codes == dict.fromkeys(handles, 3)


def test_keys_are_told_from_text(tools: Toolset) -> None:
    """A word is typed and entered; a key by its name is pressed alone; a list is either."""
    handle = call(tools, "spawn_process", command="cat -v", tmux=True)["handle"]
    call(tools, "process", action="send_keys", handle=handle, keys="next")
    wait_until(lambda: screen(tools, handle)["screen"] == "next\nnext")
    call(tools, "process", action="send_keys", handle=handle, keys=["a", "b", "Tab", "c"])
    wait_until(lambda: screen(tools, handle)["screen"].split() == ["next"] * 2 + ["ab", "c"] * 2)
    call(tools, "process", action="send_keys", handle=handle, keys="x", enter=False)
    call(tools, "process", action="send_keys", handle=handle, keys="C-d")
    call(tools, "process", action="send_keys", handle=handle, keys="C-d")
    wait_until(
        lambda: call(tools, "process", action="status", handle=handle)["status"] == "completed"
    )


def test_output_is_bounded_and_says_what_it_left_out(tools: Toolset) -> None:
    result = call(tools, "spawn_process", command="seq 100000", wait=True)
    assert len(result["output"]) <= 10_000
    assert "left out" in result["output"]
    assert result["output"].startswith("1\n2\n")
    assert result["output"].endswith("99999\n100000\n")


def test_arguments_of_other_actions_are_refused(tools: Toolset) -> None:
    handle = call(tools, "spawn_process", command="exec sleep 1000")["handle"]
    for arguments, complaint in (
        ({"action": "status"}, "needs 'handle'"),
        ({"action": "status", "handle": handle, "keys": "x"}, "'keys' is not for action status"),
        ({"action": "explode", "handle": handle}, "'action' of process is one of list"),
        ({"action": "log", "handle": handle, "limit": 0}, "'limit' of process is at least 1"),
    ):
        result = call(tools, "process", **arguments)
        assert complaint in result["error"]
