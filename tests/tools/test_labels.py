"""A label in the place of a handle: alike in the library, the tools and the command line."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast import BadRequest, NotFound, SyncClient, connect
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.shared_keeper

# Of each dialect whose processes have names: what looks at one, and the answer's key for it.
LOOKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "native": ("process", "handle", {"action": "status"}),
    "duragent": ("process", "handle", {"action": "log"}),
    "claude-code": ("bash_output", "bash_id", {}),
    "deepchat": ("process", "sessionId", {"action": "poll"}),
    "dodo": ("read_process_output", "id", {}),
    "openclaw": ("process", "sessionId", {"action": "poll"}),
    "hermes": ("process", "session_id", {"action": "poll"}),
}
STOPS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "native": ("process", "handle", {"action": "kill"}),
    "duragent": ("process", "handle", {"action": "kill"}),
    "claude-code": ("kill_shell", "shell_id", {}),
    "deepchat": ("process", "sessionId", {"action": "kill"}),
    "dodo": ("stop_process", "process_id", {}),
    "openclaw": ("process", "sessionId", {"action": "kill"}),
    "hermes": ("process", "session_id", {"action": "kill"}),
}


def cli(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


# -- the library -----------------------------------------------------------------------------------


def test_get_takes_a_label_and_the_process_says_which(hf: SyncClient) -> None:
    web = hf.spawn("sleep 1000", label="web")
    assert hf.get("web").handle == web.handle


def test_a_label_means_the_one_that_runs_or_else_the_newest(hf: SyncClient) -> None:
    first = hf.spawn("sleep 1000", label="web")
    hf.spawn("exit 3", label="web").wait(30)
    assert hf.get("web").handle == first.handle
    first.kill(grace=0)
    last = hf.spawn("exit 4", label="web")
    last.wait(30)
    assert hf.get("web").handle == last.handle


def test_a_label_of_several_that_run_is_refused_with_their_handles(hf: SyncClient) -> None:
    both = [hf.spawn("sleep 1000", label="web").handle for _ in range(2)]
    with pytest.raises(BadRequest) as error:
        hf.get("web")
    assert str(error.value) == (
        f"'web' is the label of {both[0]}, {both[1]}; give the handle of one"
    )


def test_a_part_of_a_label_or_handle_is_none(hf: SyncClient) -> None:
    """Only the command line lets people shorten, and only handles."""
    web = hf.spawn("sleep 1000", label="web-1")
    for text in ("web", "web-", "WEB-1", "web-*", "", web.handle[:-1], web.handle[5:]):
        with pytest.raises(NotFound):
            hf.get(text)


def test_another_sessions_label_is_not_found_in_the_words_for_what_never_was(
    hf: SyncClient, session: str
) -> None:
    with connect(session=f"{session}-other") as other:
        other.spawn("sleep 1000", label="theirs")
        with pytest.raises(NotFound) as theirs:
            hf.get("theirs")
        with pytest.raises(NotFound) as nobodys:
            hf.get("nobody")
    assert str(theirs.value).replace("theirs", "nobody") == str(nobodys.value)


def test_a_label_like_a_handle_never_stands_for_another_process(hf: SyncClient) -> None:
    victim = hf.spawn("sleep 1000")
    hf.spawn("sleep 1000", label=victim.handle)
    assert hf.get(victim.handle).handle == victim.handle
    victim.kill(grace=0)
    victim.remove()
    with pytest.raises(NotFound):
        hf.get(victim.handle)


# -- tools -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", LOOKS)
def test_tools_take_a_label_and_say_which_process_it_is(hf: SyncClient, dialect: str) -> None:
    tools = toolset(hf, dialect)
    web = hf.spawn("echo up; sleep 1000", label="web")
    for name, key, others in (LOOKS[dialect], STOPS[dialect]):
        result = call(tools, name, **others, **{key: "web"})
        assert not result.is_error, result
        assert f"'web' is {web.handle} (running)" in result["note"]
        assert result["note"] in result.text or f"[{result['note']}]" in result.text
        assert "web" not in [result.get(each) for each in (key, "id", "handle", "process_id")]
    assert hf.get(web.handle).record.status == "killed"


@pytest.mark.parametrize("dialect", LOOKS)
def test_a_label_of_several_is_an_answer_that_names_the_handles(
    hf: SyncClient, dialect: str
) -> None:
    tools = toolset(hf, dialect)
    both = [hf.spawn("sleep 1000", label="web") for _ in range(2)]
    name, key, others = STOPS[dialect]
    result = call(tools, name, **others, **{key: "web"})
    assert result.is_error
    assert all(process.handle in result.text for process in both)
    assert all(process.refresh().running for process in both)


@pytest.mark.parametrize("dialect", LOOKS)
def test_a_handle_makes_no_note(hf: SyncClient, dialect: str) -> None:
    web = hf.spawn("sleep 1000", label="web")
    name, key, others = LOOKS[dialect]
    assert "note" not in call(toolset(hf, dialect), name, **others, **{key: web.handle})


def test_waits_for_several_take_labels_among_handles(hf: SyncClient) -> None:
    one, two = hf.spawn("exit 3", label="one"), hf.spawn("exit 4")
    result = call(toolset(hf, "native"), "wait_for", handles=["one", two.handle], all=True)
    assert {one.handle, two.handle} <= set(result["ended"])
    assert result["note"].startswith(f"'one' is {one.handle} (")


# -- the command line ------------------------------------------------------------------------------


def test_the_command_line_says_on_stderr_which_process_it_took(hf: SyncClient) -> None:
    web = hf.spawn("echo up; sleep 1000", label="web", stdin=True)
    note = f"holdfast: 'web' is {web.handle} (running, session {web.record.session})\n"
    for command in (["status"], ["view"], ["send"], ["wait", "--timeout", "0"], ["kill"]):
        done = cli(*command, "web", *(["x"] if command == ["send"] else []))
        assert note in done.stderr, done
    done = cli("logs", "web", HOLDFAST_SESSION=web.record.session)
    assert done.stdout == "up\n"
    assert done.stderr == f"holdfast: 'web' is {web.handle} (killed)\n"
    assert cli("logs", web.handle).stderr == ""


def test_a_person_means_their_own_session_before_those_of_agents(hf: SyncClient) -> None:
    """A kill by label never reaches an agent's process while the person has one of that name."""
    theirs = hf.spawn("sleep 1000", label="web")
    assert cli("kill", "web", HOLDFAST_SESSION="nobody").returncode == 125
    mine = cli("run", "-d", "--label", "web", "--", "exit 3").stdout.strip()
    cli("wait", mine)
    assert f"'web' is {mine} (failed)" in cli("kill", "web").stderr
    assert theirs.refresh().running
