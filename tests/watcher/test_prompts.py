"""Waiting for input: in the record when somebody looks, and as an event when nobody does."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Event, SyncClient, SyncProcess, connect
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.core.outbox import read_events
from holdfast.testing import wait_until
from tests.proc_files import watchers_below

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]

MODES: dict[str, dict[str, Any]] = {
    "pipe": {"stdin": True},
    "pty": {"tty": True},
    "tmux": {"tmux": True},
}


@pytest.fixture(params=MODES)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return MODES[str(request.param)]


def prompts(hf: SyncClient) -> list[Event]:
    """The open events about prompts."""
    return [event for event in hf.events() if event.type == "input"]


def all_prompts(hf: SyncClient) -> list[str]:
    events = read_events(hf.home, hf.session or "")
    return [event.prompt for event in events if event.type == "input"]


def output(process: SyncProcess) -> str:
    return process.read_at(0, 1 << 20).text.replace("\r\n", "\n")


def watcher_pids(hf: SyncClient) -> list[int]:
    return watchers_below(hf.keeper_status()["worker"])


def test_an_agent_reviews_what_a_coding_agent_wants_to_delete(
    hf: SyncClient, child: Child, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Told of each question without polling, it says no to one and yes to the other."""
    old, unused = tmp_path / "auth.py", tmp_path / "unused.py"
    old.write_text("important")
    unused.write_text("")
    agent = hf.spawn(child("coding_agent", str(old), str(unused)), label="refactor", **options)

    (event,) = wait_until(lambda: prompts(hf))
    assert (event.handle, event.label, event.status) == (agent.handle, "refactor", "running")
    assert (event.prompt, event.kind) == ("Delete auth.py? [y/n]", "line")
    assert event.text.startswith("[Background Process Waiting For Input]\n")
    assert "Prompt: Delete auth.py? [y/n]\n" in event.text
    assert "auth.py is no longer used" in event.text
    agent.send("n", enter=True)

    (event,) = wait_until(lambda: [e for e in prompts(hf) if "unused" in e.prompt])
    assert event.prompt == "Delete unused.py? [y/n]"
    agent.send("y", enter=True)
    assert agent.wait(30).ok
    assert old.read_text() == "important"
    assert not unused.exists()
    assert "kept auth.py" in output(agent)
    assert all_prompts(hf) == ["Delete auth.py? [y/n]", "Delete unused.py? [y/n]"]
    wait_until(lambda: prompts(hf) == [])


def test_the_record_says_what_it_waits_for(
    hf: SyncClient, options: dict[str, Any], tmp_path: Path
) -> None:
    """False while it works, the prompt and its kind while it waits, false when it has ended."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = hf.spawn(f": < {gate}; read -p 'name? ' x", **options)
    wait_until(lambda: process.refresh().waiting_for_input is False)
    with open(gate, "w"):
        pass
    prompt = "" if "stdin" in options else "name?"  # bash does not prompt for what is no terminal
    expected = {"prompt": prompt, "kind": "line"}
    wait_until(lambda: process.refresh().waiting_for_input == expected)
    wait_until(lambda: [found.record.waiting_for_input for found in hf.list()] == [expected])
    wait_until(lambda: hf.get(process.handle).record.public()["waiting_for_input"] == expected)
    process.send("x", enter=True)
    process.wait(30)
    assert process.refresh().public()["waiting_for_input"] is False


@pytest.mark.parametrize("mode", ["pty", "tmux"])
def test_a_password_prompt_is_told_as_one(hf: SyncClient, child: Child, mode: str) -> None:
    """A terminal that gathers a line without showing it: that is a password."""
    process = hf.spawn(child("asks_for_password"), **MODES[mode])
    (event,) = wait_until(lambda: prompts(hf))
    assert (event.prompt, event.kind) == ("Password:", "password")
    process.send("sesame", enter=True)
    assert process.wait(30).ok
    assert "right" in output(process)
    for name in [*Path(hf.home.path).rglob("*")]:
        if name.is_file():
            assert b"sesame" not in name.read_bytes(), name


def test_a_prompt_is_told_even_if_nobody_is_connected(
    home: str, child: Child, session: str
) -> None:
    """The client is gone; whoever comes back finds the event."""
    person = open_client(Home(home).ensure(), session)
    process = person.spawn("read -p 'continue? ' x", tty=True)
    person.close()
    wait_until(lambda: [e for e in read_events(person.home, session) if e.type == "input"])
    with connect(session=session) as hf:
        (event,) = prompts(hf)
        assert event.prompt == "continue?"
        hf.get(process.handle).send("", enter=True)
        assert hf.get(process.handle).wait(30).ok
        wait_until(lambda: prompts(hf) == [])


def test_an_answer_from_anybody_settles_the_prompt(hf: SyncClient) -> None:
    """A person who types the answer leaves nothing to tell the agent."""
    process = hf.spawn("read -p 'first? ' x; sleep 1000", tty=True)
    wait_until(lambda: prompts(hf))
    person = open_client(hf.home, None)
    person.get(process.handle).send("yes\n")
    person.close()
    wait_until(lambda: prompts(hf) == [])
    assert all_prompts(hf) == ["first?"]


def test_an_answer_typed_in_tmux_settles_the_prompt(hf: SyncClient) -> None:
    """A person who attached with tmux itself answers: the keeper sees it by what happens then."""
    process = hf.spawn("read -p 'first? ' x; sleep 1000", tmux=True)
    wait_until(lambda: prompts(hf))
    server = ["tmux", "-S", hf.home.tmux_socket]
    name = f"={process.record.tmux_session}:"
    subprocess.run([*server, "send-keys", "-t", name, "yes", "Enter"], check=True)
    wait_until(lambda: prompts(hf) == [])
    assert all_prompts(hf) == ["first?"]


@pytest.mark.parametrize(
    ("command", "options", "answer"),
    [
        ("read a; read b; read c", {"stdin": True}, "y\n"),
        ("stty -echo; read a; read b; read c", {"tty": True}, "y\n"),
        ("stty -echo; read -n1 a; read -n1 b; read -n1 c", {"tty": True}, "y"),
    ],
)
def test_each_question_is_told_though_nothing_is_written(
    hf: SyncClient, command: str, options: dict[str, Any], answer: str
) -> None:
    """The README's loop: be told, answer, be told again, until the end."""
    process = hf.spawn(f"{command}; exit 3", **options)
    told = 0
    for event in hf.events(follow=True):
        if event.type == "end":
            break
        told += 1
        process.send(answer)
    assert told == 3
    assert process.wait(30).code == 3


def test_an_end_settles_the_prompt(hf: SyncClient) -> None:
    process = hf.spawn("read -p 'well? ' x", tty=True)
    wait_until(lambda: prompts(hf))
    process.kill()
    wait_until(lambda: list(hf.events()) == [])


def test_an_acknowledged_prompt_is_not_told_again(hf: SyncClient) -> None:
    process = hf.spawn("read -p 'one? ' x; read -p 'two? ' x", tty=True)
    (event,) = wait_until(lambda: prompts(hf))
    hf.acknowledge(event)
    assert prompts(hf) == []
    process.send("", enter=True)
    (event,) = wait_until(lambda: prompts(hf))
    assert event.prompt == "two?"


@pytest.mark.own_keeper
def test_a_killed_watcher_is_replaced_and_repeats_nothing(hf: SyncClient) -> None:
    """kill -9 of the watcher: the prompt it told of is told once, the next one is told too."""
    process = hf.spawn("read -p 'one? ' x; read -p 'two? ' x; read -p 'three? ' x", tty=True)
    wait_until(lambda: all_prompts(hf) == ["one?"])
    (pid,) = watcher_pids(hf)
    os.kill(pid, signal.SIGKILL)
    process.send("", enter=True)
    wait_until(lambda: all_prompts(hf) == ["one?", "two?"])
    os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
    process.send("", enter=True)
    wait_until(lambda: all_prompts(hf) == ["one?", "two?", "three?"])
    process.kill()
    assert all_prompts(hf) == ["one?", "two?", "three?"]


@pytest.mark.own_keeper
def test_there_is_no_watcher_where_there_is_nothing_to_watch(hf: SyncClient) -> None:
    """A process that nobody can type to needs none; one that can has one, which ends with it."""
    hf.spawn("sleep 1000")
    assert hf.spawn("exit 3", stdin=True).wait(30).code == 3
    assert watcher_pids(hf) == []
    hf.spawn("read x", stdin=True)
    wait_until(lambda: watcher_pids(hf))
    pid = watcher_pids(hf)[0]
    hf.stop_all()
    hf.keeper_stop()
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_a_programs_question_to_its_terminal_is_answered(hf: SyncClient, child: Child) -> None:
    """With nobody attached: where the cursor is, and what the terminal is."""
    questions = [r"\x1b[3;5H\x1b[6n", r"\x1b[c", r"\x1b]11;?\x07"]
    process = hf.spawn(child("asks_the_terminal", *questions), tty=True)
    wait_until(lambda: "done" in output(process))
    position, kind, colour = [line for line in output(process).split("\n") if "reply" in line]
    assert position == r"reply b'\x1b[3;5R'"
    assert kind.startswith(r"reply b'\x1b[?")
    assert "rgb:" in colour
