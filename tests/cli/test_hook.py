"""``holdfast hook claude``: an idle agent is woken by what it started, once for each event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

import holdfast
from holdfast import SyncClient
from holdfast.client.find_keeper import keeper_holds
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper

HOOK = [sys.executable, "-m", "holdfast", "hook", "claude", "--settle", "50ms"]


def told(handle: str, conversation: str = "5f1c") -> str:
    """What Claude Code gives a hook after a call of a tool."""
    return json.dumps(
        {
            "session_id": conversation,
            "hook_event_name": "PostToolUse",
            "tool_name": "mcp__holdfast__spawn_process",
            "tool_input": {"command": "make"},
            "tool_response": [{"type": "text", "text": json.dumps({"handle": handle})}],
        }
    )


def start(handle: str, *more: str, conversation: str = "5f1c") -> subprocess.Popen[str]:
    hook = subprocess.Popen(
        [*HOOK, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert hook.stdin is not None
    hook.stdin.write(told(handle, conversation))
    hook.stdin.close()
    hook.stdin = None
    return hook


def end(hook: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = hook.communicate(timeout=60)
    assert out == ""
    return hook.returncode, err


def test_the_end_of_a_process_wakes_the_agent(hf: SyncClient, gate: Gate) -> None:
    process = hf.spawn(f": < {gate.path}; echo built; exit 3", label="build")
    hook = start(process.handle)
    gate.open()
    code, text = end(hook)
    assert code == 2
    assert "[Background Process Completed]" in text
    assert f"Handle: {process.handle}" in text
    assert "Exit code: 3" in text
    assert "built" in text
    assert list(hf.events()) == []


def test_of_any_number_of_hooks_one_tells_of_each_event(hf: SyncClient, gate: Gate) -> None:
    """Of several agents' on one session: the others wait on, and end when nothing is left."""
    processes = [hf.spawn(f": < {gate.path}; exit {n}") for n in range(3)]
    hooks = [start(processes[n % 3].handle, conversation=f"agent-{n}") for n in range(6)]
    gate.open()
    answers = [end(hook) for hook in hooks]
    text = "".join(text for _, text in answers)
    for process in processes:
        assert text.count(f"Handle: {process.handle}") == 1
    assert {code for code, text in answers if text} == {2}
    assert {code for code, text in answers if not text} <= {0}
    assert list(hf.events()) == []


def test_who_waits_for_the_end_itself_is_not_woken_for_it(hf: SyncClient, gate: Gate) -> None:
    process = hf.spawn(f": < {gate.path}")
    hook = start(process.handle, "--settle", "2s")
    gate.open()
    process.wait(60)
    assert end(hook) == (0, "")


def test_nothing_to_wait_for_ends_at_once(hf: SyncClient) -> None:
    """Everything was told; a call about no process; a handle that is not ours; no JSON at all."""
    process = hf.spawn("true")
    process.wait(60)
    wait_until(lambda: list(hf.events()) == [])
    assert end(start(process.handle)) == (0, "")
    assert end(start("proc-" + "a" * 16)) == (0, "")
    for text in ("", "not json", "proc-../../etc/passwd", "\0" * 100):
        done = subprocess.run(HOOK, input=text, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_hook_is_told_of_its_own_session_only(hf: SyncClient, gate: Gate, session: str) -> None:
    mine = hf.spawn(f": < {gate.path}")
    with holdfast.connect(session=f"{session}-other") as other:
        other.spawn("exit 9")
        wait_until(lambda: len(list(other.events())) == 1)
        hook = start(mine.handle)
        gate.open()
        code, text = end(hook)
        assert (code, text.count("Handle:")) == (2, 1)
        assert mine.handle in text
        assert len(list(other.events())) == 1


def test_a_hook_gives_up_at_its_timeout(hf: SyncClient) -> None:
    process = hf.spawn("exec sleep 1000")
    assert end(start(process.handle, "--timeout", "200ms")) == (0, "")


def test_a_background_agent_wakes_it_too(hf: SyncClient) -> None:
    process = hf.spawn("true")
    process.wait(60)
    agent = hf.register_agent("review", "reviewer")
    hook = start(process.handle)
    agent.done()
    code, text = end(hook)
    assert (code, "Agent: review" in text) == (2, True)


def test_what_it_prints_cannot_play_tricks_on_a_terminal(hf: SyncClient, gate: Gate) -> None:
    process = hf.spawn(rf"printf '\033]52;c;eA==\007\033[2J'; : < {gate.path}; exit 1")
    hook = start(process.handle)
    gate.open()
    _, text = end(hook)
    assert "\033" not in text


def test_the_settings_to_paste_are_json() -> None:
    done = subprocess.run(
        [*HOOK, "--print-config"], capture_output=True, text=True, timeout=60, check=True
    )
    hooks = json.loads(done.stdout)["hooks"]
    for event in ("PostToolUse", "Stop", "SessionStart"):
        waits = hooks[event][0]["hooks"][-1]
        assert (waits["async"], waits["asyncRewake"]) == (True, True)
        assert "Stop hook" not in waits["rewakeMessage"]
    tells = hooks["SessionStart"][0]["hooks"][0]
    assert tells["command"] == waits["command"] + " --left-behind"
    assert not tells.keys() & {"async", "asyncRewake"}  # what it prints is there at the beginning
    wrong = [*HOOK[:-3], "codex"]
    done = subprocess.run(wrong, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "a hook for claude" in done.stderr) == (125, True)


def test_output_that_names_somebody_elses_process_changes_nothing(
    hf: SyncClient, gate: Gate, session: str
) -> None:
    """Whose session it is, is said by the call, never by what a process printed."""
    with holdfast.connect(session=f"{session}-other") as other:
        theirs = other.spawn("exit 9")
        wait_until(lambda: len(list(other.events())) == 1)
        mine = hf.spawn(f": < {gate.path}")
        answer = {"handle": mine.handle, "output": f"{theirs.handle}\n" * 3}
        given = {
            "tool_input": {"command": f"grep {theirs.handle} log"},
            "tool_response": {"content": [{"type": "text", "text": json.dumps(answer)}]},
        }
        hook = subprocess.Popen(
            HOOK, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        gate.open()
        _, text = hook.communicate(json.dumps(given), timeout=60)
        assert (hook.returncode, mine.handle in text, theirs.handle in text) == (2, True, False)
        assert len(list(other.events())) == 1


def test_what_the_answer_showed_is_not_told_again(hf: SyncClient, gate: Gate) -> None:
    shown, later = hf.spawn("true"), hf.spawn(f": < {gate.path}")
    (event,) = wait_until(lambda: list(hf.events()))
    answer = {"handle": later.handle, "events": [{"id": event.id, "text": event.text}]}
    given = {"tool_response": [{"type": "text", "text": json.dumps(answer)}]}
    hook = subprocess.Popen(
        HOOK, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    gate.open()
    _, text = hook.communicate(json.dumps(given), timeout=60)
    assert (shown.handle in text, later.handle in text) == (False, True)


def test_a_hook_sees_to_a_keeper_when_both_halves_died(
    hf: SyncClient, gate: Gate, kill_both: Callable[[SyncClient], None]
) -> None:
    process = hf.spawn(f": < {gate.path}; exit 5")
    hook = start(process.handle)
    wait_until(lambda: os.path.exists(hf.home.hooks + "/conversation-5f1c.lock"))
    kill_both(hf)
    wait_until(lambda: keeper_holds(hf.home))
    wait_until(lambda: hf.keeper_status().get("processes") == 1, what="it was adopted")
    gate.open()
    code, text = end(hook)
    assert (code, "Exit code: 5" in text) == (2, True)
