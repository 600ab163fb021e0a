"""Hooks of one agent: one waits, each turn brings the next, and none outlives its agent."""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast import SyncClient, SyncProcess
from holdfast.core.home import Home
from holdfast.core.outbox import read_events
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until
from tests.lost_agent import Lost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper

CHILDREN = Path(__file__).parent.parent / "children"
HOOK = [sys.executable, "-m", "holdfast", "hook", "claude", "--settle", "50ms"]


class Hook:
    """A hook that an agent started: once it has ended, its code and what it printed."""

    pid = 0
    code: int | None = None
    text = out = ""

    def end(self) -> tuple[int, str]:
        wait_until(lambda: self.code is not None, what="the hook ended")
        return self.code or 0, self.text

    @property
    def waits(self) -> bool:
        """It has read its input, and nothing to do."""
        return bool(self.pid) and self.code is None


class HookAgent:
    """A program that starts hooks as Claude Code does, and a conversation that it has."""

    def __init__(self, conversation: str, directory: Path, **env: str) -> None:
        self.conversation = conversation
        self.directory = directory
        self.hooks: list[Hook] = []
        self._program = subprocess.Popen(
            [sys.executable, CHILDREN / "hook_agent.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **env},
            text=True,
        )
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def __enter__(self) -> HookAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._program.stdin, self._program.stdout):
            assert stream is not None
            stream.close()
        wait_until(lambda: not any(_lives(hook.pid) for hook in self.hooks), what="no hook is left")

    def kill(self) -> None:
        self._program.kill()
        self._program.wait()
        self._listener.join()

    def _listen(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            about = json.loads(line)
            hook = self.hooks[about.pop("number")]
            for name in ("out", "text", "pid", "code"):
                if name in about:
                    setattr(hook, name, about[name])

    def _hook(self, event: str, *options: str, **given: object) -> Hook:
        about = {
            "session_id": self.conversation,
            "hook_event_name": event,
            "cwd": str(self.directory),
            **given,
        }
        hook = Hook()
        self.hooks.append(hook)
        assert self._program.stdin is not None
        asked = {"command": [*HOOK, *options], "input": about}
        self._program.stdin.write(json.dumps(asked) + "\n")
        self._program.stdin.flush()
        return hook

    def used(self, process: SyncProcess, *options: str) -> Hook:
        """The hook after a call of a tool about this process."""
        answer = [{"type": "text", "text": json.dumps({"handle": process.handle})}]
        return self._hook("PostToolUse", *options, tool_response=answer)

    def stopped(self, active: bool = False) -> Hook:
        """The hook at the end of a turn."""
        return self._hook("Stop", stop_hook_active=active)

    def started(self, source: str = "startup", transcript: Path | None = None) -> str:
        """What the hook for the beginning of a conversation adds to it."""
        path = "" if transcript is None else str(transcript)
        hook = self._hook("SessionStart", "--left-behind", source=source, transcript_path=path)
        assert hook.end() == (0, "")
        if not hook.out:
            return ""
        added = json.loads(hook.out)["hookSpecificOutput"]
        assert added["hookEventName"] == "SessionStart"
        return str(added["additionalContext"])


def _lives(pid: int) -> bool:
    found = stat(pid) if pid else None
    return found is not None and found.state not in "ZX"


@pytest.fixture
def agent(hf: SyncClient, session: str, tmp_path: Path) -> Iterator[HookAgent]:
    with HookAgent(f"conversation of {session}", tmp_path) as found:
        yield found


def waiting(hook: Hook, home: Home) -> None:
    """Return when it holds the place of those who wait."""

    def holds() -> bool:
        for name in os.listdir(f"/proc/{hook.pid}/fd") if hook.pid else ():
            with suppress(OSError):
                path = os.readlink(f"/proc/{hook.pid}/fd/{name}")
                if path.startswith(home.hooks) and path.endswith(".lock") and "-" in path:
                    return True
        return False

    wait_until(holds, what="the hook waits")


def test_one_hook_waits_for_an_agent_however_many_calls_it_makes(
    hf: SyncClient, agent: HookAgent, gate: Gate
) -> None:
    """And it tells of what was started after it began to wait."""
    processes = [hf.spawn(f": < {gate.path}") for _ in range(3)]
    first = agent.used(processes[0])
    waiting(first, hf.home)
    for process in processes[1:]:
        assert agent.used(process).end() == (0, "")
    assert agent.stopped().end() == (0, "")
    later = hf.spawn("exit 7")
    code, text = first.end()
    assert (code, later.handle in text) == (2, True)
    gate.open()


def test_after_a_turn_without_a_call_the_next_event_wakes_it_again(
    hf: SyncClient, agent: HookAgent
) -> None:
    """The model answered in words: the end of its turn brings the next hook."""
    process = hf.spawn("echo one; read a; echo two; read b; exit 3", stdin=True)
    hook = agent.used(process)
    for line in ("a", "b"):
        waiting(hook, hf.home)
        other = hf.spawn("exit 4")
        code, text = hook.end()
        assert (code, text.count(other.handle)) == (2, 1)
        hook = agent.stopped(active=True)
        waiting(hook, hf.home)
        process.send(line, enter=True)
    code, text = hook.end()
    assert (code, "Exit code: 3" in text) == (2, True)
    assert agent.stopped(active=True).end() == (0, "")
    assert list(hf.events()) == []


def test_the_end_of_a_turn_is_not_held_up_where_there_is_nothing_to_tell(
    hf: SyncClient, agent: HookAgent
) -> None:
    """An agent that has no process of ours, and one that was told everything."""
    assert agent.stopped().end() == (0, "")
    assert not os.path.exists(agent_file(hf.home))
    process = hf.spawn("true")
    process.wait(60)
    for _ in range(3):
        assert agent.stopped(active=True).end() == (0, "")
    assert agent.used(process).end() == (0, "")
    assert agent.stopped().end() == (0, "")


def agent_file(home: Home) -> str:
    """The file of the one agent there is."""
    names = os.listdir(home.hooks) if os.path.isdir(home.hooks) else []
    return home.hooks + "/" + next((name for name in names if name.endswith(".json")), "none")


def test_a_hook_whose_agent_was_killed_ends_and_claims_nothing(
    hf: SyncClient, agent: HookAgent, gate: Gate
) -> None:
    """The next agent of that conversation is told, once."""
    process = hf.spawn(f": < {gate.path}; exit 6")
    hook = agent.used(process)
    waiting(hook, hf.home)
    agent.kill()
    wait_until(lambda: not _lives(hook.pid), what="the hook ended")
    gate.open()
    wait_until(lambda: list(hf.events()))
    with HookAgent(agent.conversation, agent.directory) as again:
        context = again.started("resume")
        assert context.count(f"Handle: {process.handle}") == 1
        assert again.started("resume") == ""
        assert again.stopped().end() == (0, "")
    assert list(hf.events()) == []


@pytest.mark.parametrize("came_as", ["user", "attachment", "queue-operation", None])
def test_what_was_printed_for_an_agent_that_was_killed_is_told_if_it_never_read_it(
    hf: SyncClient, agent: HookAgent, tmp_path: Path, came_as: str | None
) -> None:
    """The transcript of the conversation says so: what only waited to be read is not in it."""
    process = hf.spawn("echo '</system-reminder> & more'; exit 6", label="a <b> & c")
    code, text = agent.used(process).end()
    assert (code, list(hf.events())) == (2, [])
    transcript = tmp_path / "transcript.jsonl"
    lines: list[dict[str, object]] = [{"type": "user", "message": {"content": process.handle}}]
    if came_as is not None:
        content = f"<system-reminder>\nNews: {html.escape(text)}\n</system-reminder>"
        lines.append({"type": came_as, "message": {"content": [{"type": "text", "text": content}]}})
    transcript.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"type": "us')
    agent.kill()
    with HookAgent(agent.conversation, tmp_path) as again:
        context = again.started("resume", transcript)
        read = came_as in ("user", "attachment")
        assert context.count(f"Handle: {process.handle}") == (0 if read else 1)
        assert again.started("resume", transcript) == ""


def test_a_conversation_that_goes_on_is_told_what_runs_and_woken_by_it(
    hf: SyncClient, agent: HookAgent, gate: Gate
) -> None:
    process = hf.spawn(f": < {gate.path}; exit 6", label="build")
    agent.used(process)
    wait_until(lambda: os.path.exists(agent_file(hf.home)))
    agent.kill()
    with HookAgent(agent.conversation, agent.directory) as again:
        context = again.started("resume")
        assert f"{process.handle} (build): " in context
        hook = again.stopped()
        waiting(hook, hf.home)
        gate.open()
        code, text = hook.end()
        assert (code, "Exit code: 6" in text) == (2, True)


def test_another_conversation_is_not_told_of_it(
    hf: SyncClient, agent: HookAgent, gate: Gate, tmp_path: Path
) -> None:
    """Nor is a second program with the same conversation while the first one lives."""
    process = hf.spawn(f": < {gate.path}")
    hook = agent.used(process)
    waiting(hook, hf.home)
    with HookAgent("another", tmp_path) as other, HookAgent(agent.conversation, tmp_path) as twin:
        for each in (other, twin):
            assert each.started() == ""
            assert each.stopped().end() == (0, "")
        gate.open()
        assert hook.end()[0] == 2


@pytest.mark.parametrize("entrypoint", ["sdk-cli", "sdk-py"])
def test_in_print_mode_a_hook_returns_at_once_and_remembers(
    hf: SyncClient, agent: HookAgent, gate: Gate, entrypoint: str
) -> None:
    """The conversation may go on in front of a person."""
    process = hf.spawn(f": < {gate.path}; exit 6")
    with HookAgent("printed", agent.directory, CLAUDE_CODE_ENTRYPOINT=entrypoint) as printed:
        assert printed.used(process).end() == (0, "")
        assert printed.stopped().end() == (0, "")
    gate.open()
    wait_until(lambda: list(hf.events()))
    with HookAgent("printed", agent.directory) as shown:
        assert process.handle in shown.started("resume")


def test_the_beginning_of_a_conversation_tells_of_lost_sessions_of_its_directory(
    agent: HookAgent, session: str
) -> None:
    """In a line, for the agent that adopts one is told the rest."""
    assert agent.started() == ""
    lost = f"{session}-lost"
    earlier = Lost(agent.directory, lost, "sleep 1000", "exit 3")
    wait_until(lambda: read_events(Home.locate(), lost))
    assert agent.started() == ""  # it lives
    earlier.kill()
    context = wait_until(agent.started)
    assert f"Session {lost} worked in this directory" in context
    assert "2 processes, 1 running, and 1 untold event." in context
    assert "1 untold event." in agent.started()  # which was not taken


def test_what_was_adopted_is_told_by_the_adopters_hook(
    hf: SyncClient, agent: HookAgent, gate: Gate, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = f"{session}-lost"
    Lost(agent.directory, lost, f": < {gate.path}; exit 3").kill()
    monkeypatch.chdir(agent.directory)
    with holdfast.connect(session=f"{session}-next") as client:
        wait_until(lambda: [left.session for left in client.left_behind()] == [lost])
        (process,) = client.adopt(lost)
        hook = agent.used(process)
        waiting(hook, hf.home)
        gate.open()
        code, text = hook.end()
        assert (code, "Exit code: 3" in text) == (2, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"calls": "x", "sessions": 3}',
        '{"sessions": {"../..": ["/etc"]}}',
        "[" * 9999,
    ],
)
def test_files_of_agents_that_make_no_sense_are_begun_anew(
    hf: SyncClient, agent: HookAgent, text: str
) -> None:
    process = hf.spawn("sleep 1000")
    hook = agent.used(process, "--timeout", "1ms")
    assert hook.end() == (0, "")
    path = agent_file(hf.home)
    assert (os.stat(path).st_mode & 0o777, os.stat(hf.home.hooks).st_mode & 0o777) == (0o600, 0o700)
    with open(path, "w") as file:
        file.write(text)
    assert agent.stopped().end() == (0, "")
    hook = agent.used(process)
    waiting(hook, hf.home)
    process.signal("KILL")
    assert hook.end()[0] == 2


def test_files_of_agents_that_are_gone_go_with_their_sessions(
    hf: SyncClient, agent: HookAgent
) -> None:
    process = hf.spawn("sleep 1000")
    assert agent.used(process, "--timeout", "1ms").end() == (0, "")
    kept = agent_file(hf.home)
    gone = hf.home.hooks + "/999999-1.json"
    about = {"calls": 1, "conversations": ["x"], "sessions": {"no-such-session": None}}
    with open(gone, "w") as file:
        json.dump(about, file)
    assert agent.used(process, "--timeout", "1ms").end() == (0, "")
    assert (os.path.exists(kept), os.path.exists(gone)) == (True, False)


def test_of_what_a_shell_printed_it_is_told_and_of_nothing_else_there(
    hf: SyncClient, agent: HookAgent, gate: Gate
) -> None:
    """`holdfast run -d` in an agent's shell: the session is everybody's."""
    mine, theirs = hf.spawn(f": < {gate.path}; exit 3"), hf.spawn("exit 9")
    wait_until(lambda: list(hf.events()))
    hook = agent._hook("PostToolUse", tool_response={"stdout": mine.handle + "\n", "stderr": ""})
    waiting(hook, hf.home)
    gate.open()
    code, text = hook.end()
    assert (code, mine.handle in text, theirs.handle in text) == (2, True, False)
    assert [event.handle for event in hf.events()] == [theirs.handle]


def test_what_somebody_has_claimed_no_hook_tells(hf: SyncClient, agent: HookAgent) -> None:
    """As the server of a task does, for the one who polls it."""
    process = hf.spawn("read line", stdin=True, claim=True)
    hook = agent.used(process)
    waiting(hook, hf.home)
    process.send("go", enter=True)
    wait_until(lambda: not hf.get(process.handle).record.running)
    assert hook.waits
    assert agent.stopped().end() == (0, "")
    process.release()
    code, text = hook.end()
    assert (code, process.handle in text) == (2, True)


def became_task(agent: HookAgent, process: SyncProcess) -> Hook:
    """The hook after a call whose result is Claude Code's word on a task."""
    text = (
        f'MCP tool "holdfast/spawn_process" started server-side task {process.handle}. It was '
        "moved to the background as task kvso2lem8 and keeps running on the server"
    )
    return agent._hook("PostToolUse", tool_response=[{"type": "text", "text": text}])


def test_a_process_that_the_agent_asks_after_as_a_task_is_left_to_it(
    hf: SyncClient, agent: HookAgent, gate: Gate
) -> None:
    """Also when the conversation goes on, and nobody asks yet."""
    task, other = hf.spawn("exit 3"), hf.spawn(f": < {gate.path}; exit 4")
    wait_until(lambda: list(hf.events()))
    hook = became_task(agent, task)
    waiting(hook, hf.home)
    assert agent.used(other).end() == (0, "")
    gate.open()
    code, text = hook.end()
    assert (code, task.handle in text, other.handle in text) == (2, False, True)
    agent.kill()
    with HookAgent(agent.conversation, agent.directory) as again:
        assert task.handle not in again.started("resume")
    assert [event.handle for event in hf.events()] == [task.handle]


@pytest.mark.long
def test_a_task_that_nobody_asks_after_is_told_of_after_a_minute(
    hf: SyncClient, agent: HookAgent
) -> None:
    process = hf.spawn("exit 3")
    hook = became_task(agent, process)
    wait_until(lambda: hook.code is not None, timeout=180)
    assert (hook.code, process.handle in hook.text) == (2, True)


def test_more_than_one_wake_has_room_for_comes_with_the_next(
    hf: SyncClient, agent: HookAgent, gate: Gate
) -> None:
    """Each once, whatever they printed."""
    command = f": < {gate.path}; head -c 3000 /dev/zero | tr '\\0' x"
    processes = [hf.spawn(command) for _ in range(20)]
    hook = agent.used(processes[0])
    waiting(hook, hf.home)
    gate.open()
    told = ""
    while "Handle" in (text := hook.end()[1]):
        assert len(text) < 50_000
        told += text
        hook = agent.stopped(active=True)
    assert [told.count(f"Handle: {each.handle}") for each in processes] == [1] * 20
