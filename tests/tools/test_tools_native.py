"""Our own tools: what they have beyond Duragent's."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SyncClient, Toolset
from holdfast.core.outbox import read_events
from holdfast.testing import wait_until
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tools import Result
    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper


@pytest.fixture
def tools(hf: SyncClient) -> Toolset:
    return toolset(hf, "native")


def act(tools: Toolset, action: str, handle: str | None = None, **arguments: object) -> Result:
    if handle is not None:
        arguments["handle"] = handle
    return call(tools, "process", action=action, **arguments)


def spawn(tools: Toolset, command: str, **arguments: object) -> str:
    started = call(tools, "spawn_process", command=command, **{"tmux": False, **arguments})
    assert not started.is_error, started
    handle: str = started["handle"]
    return handle


def events(tools: Toolset) -> list[dict[str, object]]:
    """What the next result brings along."""
    found: list[dict[str, object]] = act(tools, "list").get("events", [])
    return found


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_the_whole_schema_is_small(tools: Toolset) -> None:
    """2,500 tokens of four characters, at most, in the style that needs the most."""
    size = max(len(json.dumps(tools.definitions(style))) for style in ("anthropic", "openai"))
    assert size < 4 * 2500


def test_claude_code_does_not_hide_them_behind_a_search(tools: Toolset) -> None:
    """Where tools are many, a client loads them when they are asked for; these are few."""
    for tool in tools.definitions("mcp"):
        assert tool["_meta"] == {"anthropic/alwaysLoad": True}
    assert not any("_meta" in tool for tool in tools.definitions("anthropic"))


def test_poll_has_what_is_new_however_much_it_is(tools: Toolset, gate: Gate) -> None:
    """Each part once; the middle of a flood is left out, and that is said."""
    handle = spawn(tools, f"echo first; : < {gate.path}; seq 500000; echo last")
    wait_until(lambda: act(tools, "log", handle)["output"] == "first\n")
    assert act(tools, "poll", handle)["output"] == "first\n"
    assert act(tools, "poll", handle)["output"] == ""
    gate.open()
    call(tools, "wait_for", handles=[handle])
    flood = act(tools, "poll", handle)
    assert flood["output"].startswith("1\n2\n")
    assert flood["output"].endswith("\nlast\n")
    assert "left out, from byte" in flood["output"]
    assert (flood["status"], flood["exit_code"]) == ("completed", 0)
    assert act(tools, "poll", handle)["output"] == ""


def test_what_was_left_out_can_be_read(tools: Toolset) -> None:
    handle = spawn(tools, "seq 100000", wait=True)
    text = act(tools, "log", handle, offset=0, limit=100_000)["output"]
    byte = int(text.split("left out, from byte ")[1].split()[0])
    more = act(tools, "log", handle, byte=byte)["output"]
    before = text.split("[...")[0].split()[-1]
    assert int(more.split()[0]) == int(before) + 1


def test_yield_waits_for_what_is_quick_and_leaves_the_rest(tools: Toolset, gate: Gate) -> None:
    quick = call(tools, "spawn_process", command="echo hi; exit 3", yield_ms=60_000)
    assert (quick["status"], quick["exit_code"], quick["output"]) == ("failed", 3, "hi\n")
    slow = call(tools, "spawn_process", command=f"echo hi; : < {gate.path}", yield_ms=300)
    assert (slow["status"], slow["output"]) == ("running", "hi\n")
    assert "goes on in the background" in slow["note"]
    both = call(tools, "spawn_process", command="true", yield_ms=1, wait=True)
    assert "not both" in both["error"]


def test_wait_for_finds_what_was_printed_before_and_each_match_once(tools: Toolset) -> None:
    """A model cannot know what was printed before it asked, and asks again for the next."""
    handle = spawn(tools, "echo ready 1; read x; echo ready 2; exec sleep 1000")
    wait_until(lambda: act(tools, "log", handle)["output"] != "")
    conditions = [r"output=ready (\d)"]
    first = call(tools, "wait_for", handles=[handle], conditions=conditions)
    assert first["met"][0]["groups"] == ["1"]
    none = call(tools, "wait_for", handles=[handle], conditions=conditions, timeout_seconds=0.2)
    assert (none["ok"], none["timed_out"]) == (False, True)
    act(tools, "write", handle, data="\n")
    second = call(tools, "wait_for", handles=[handle], conditions=conditions)
    assert second["met"][0]["groups"] == ["2"]


def test_wait_for_a_port_and_who_has_it(tools: Toolset) -> None:
    port = free_port()
    command = f"exec python3 -um http.server --bind 127.0.0.1 {port}"
    handle = spawn(tools, command)
    ready = call(
        tools,
        "wait_for",
        handles=[handle],
        conditions=[f"port={port}", f"http=http://127.0.0.1:{port}/"],
        all=True,
    )
    assert ready["ok"]
    assert act(tools, "usage", handle)["ports"] == [port]
    other = spawn(tools, "exec sleep 1000")
    taken = call(tools, "wait_for", handles=[other], conditions=[f"port={port}"])
    assert taken.is_error
    assert str(port) in taken["error"]


def test_without_handles_everything_that_runs_is_waited_for(tools: Toolset, gate: Gate) -> None:
    nothing = call(tools, "wait_for")
    assert "nothing runs in this session" in nothing["error"]
    first, second = spawn(tools, "exit 3"), spawn(tools, f": < {gate.path}")
    gate.open()
    done = call(tools, "wait_for", handles=[first, second], all=True)
    assert done["ok"]
    assert {handle: end["exit_code"] for handle, end in done["ended"].items()} == {
        first: 3,
        second: 0,
    }


def test_groups_are_listed_gathered_and_killed_together(tools: Toolset, gate: Gate) -> None:
    quick = [spawn(tools, f": < {gate.path}; exit {n}", group="checks") for n in range(2)]
    web = spawn(tools, "exec sleep 1000", group="web")
    assert act(tools, "gather", group="checks")["members"] == quick
    listed = act(tools, "list", group="checks")["processes"]
    assert [each["handle"] for each in listed] == quick
    gate.open()
    seen = wait_until(lambda: events(tools))
    assert [(event["type"], event["group"]) for event in seen] == [("group", "checks")]
    killed = act(tools, "kill", group="web")["killed"]
    assert [(each["handle"], each["status"]) for each in killed] == [(web, "killed")]
    assert "needs 'handle' or 'group'" in act(tools, "kill")["error"]


def test_a_group_whose_ends_were_shown_is_not_told_of_again(
    tools: Toolset, hf: SyncClient, gate: Gate, session: str
) -> None:
    """Neither by the wait for all of it nor by the kill, though the keeper hears of it later."""
    quick = [spawn(tools, f": < {gate.path}; exit {n}", group="checks") for n in range(2)]
    act(tools, "gather", group="checks")
    gate.open()
    wait_until(lambda: "group" in [event.type for event in read_events(hf.home, session)])
    worker = hf.keeper_status()["worker"]
    os.kill(worker, signal.SIGSTOP)
    try:
        waited = call(tools, "wait_for", group="checks", all=True)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert sorted(waited["ended"]) == sorted(quick)
    assert "events" not in waited
    for _ in range(3):
        spawn(tools, "exec sleep 1000", group="web")
    act(tools, "gather", group="web")
    killed = act(tools, "kill", group="web")
    assert [each["status"] for each in killed["killed"]] == ["killed"] * 3
    assert "events" not in killed
    assert events(tools) == []


def test_watches_are_told_of_in_events(tools: Toolset) -> None:
    """In whichever result comes next, each once."""
    told: list[str] = []

    def do(action: str, **arguments: object) -> Result:
        result = act(tools, action, handle, **arguments)
        told.extend(e["text"] for e in result.get("events", []) if e["type"] == "watch")
        return result

    handle = spawn(
        tools,
        "read x; echo an ERROR; read x; echo WARNING; exec sleep 1000",
        watch=["output=ERROR"],
    )
    do("write", data="\n")
    wait_until(lambda: do("status") and told)
    name = do("watch", condition="output=WARNING")["watch"]
    do("write", data="\n")
    wait_until(lambda: do("status") and len(told) > 1)
    assert ["Match: an ERROR" in text for text in told] == [True, False]
    assert "Match: WARNING" in told[1]
    assert not do("unwatch", condition=name).is_error
    assert do("watch", condition="nonsense").is_error


def test_search_finds_lines_with_those_around_them(tools: Toolset) -> None:
    handle = spawn(tools, "seq 1000", wait=True)
    found = act(tools, "search", handle, pattern="^5.5$", limit=2)
    assert found["count"] == 10
    assert "595" in found["output"]
    assert "needs 'pattern'" in act(tools, "search", handle)["error"]
    first = act(tools, "search", handle, pattern="^5.5$", limit=1, byte=0)
    stopped = re.search(r"go on with byte=(\d+)", first["note"])
    assert stopped is not None
    assert stopped[0] in first["output"]
    following = act(tools, "search", handle, pattern="^5.5$", limit=1, byte=int(stopped[1]))
    assert "> 515 " in following["output"]
    assert act(tools, "search", handle, pattern="(").is_error


def test_terminals_are_resized_and_captured(tools: Toolset) -> None:
    handle = spawn(tools, "trap 'stty size' WINCH; echo go; while :; do sleep 0.1; done", tty=True)
    wait_until(lambda: "go" in act(tools, "capture", handle)["screen"])
    act(tools, "resize", handle, size="90x20")
    wait_until(lambda: "20 90" in act(tools, "capture", handle)["screen"])
    assert act(tools, "resize", handle, size="huge").is_error


def test_clear_and_remove(tools: Toolset) -> None:
    handle = spawn(tools, "echo hi; exec sleep 1000")
    wait_until(lambda: act(tools, "log", handle)["output"] == "hi\n")
    act(tools, "clear", handle)
    assert act(tools, "log", handle)["output"] == ""
    assert act(tools, "remove", handle)["removed"]
    assert act(tools, "status", handle)["code"] == "not_found"


def test_a_command_is_limited_as_the_model_asks(
    tools: Toolset, hf: SyncClient, child: Callable[..., list[str]]
) -> None:
    """The reason of the end says so; what is no limit is named, and nothing is started."""
    command = shlex.join(child("eats_memory", "200"))
    eaten = call(tools, "spawn_process", command=command, wait=True, limits={"memory": "64M"})
    assert (eaten["status"], eaten["reason"]) == ("failed", "out_of_memory")
    few = call(tools, "spawn_process", command="ulimit -n", wait=True, limits={"files": 77})
    assert few["output"] == "77\n"
    assert hf.get(few["handle"]).record.limits["files"]["limit"] == 77
    for limits, says in (
        ({"ram": "1G"}, "no argument 'ram' in 'limits'"),
        ({"memory": "much"}, "memory must be a size"),
        ({"cpu": 0}, "cpu must be a number of CPUs"),
    ):
        refused = call(tools, "spawn_process", command="true", limits=limits)
        assert says in refused["error"]
    assert len(hf.list()) == 2


def test_a_command_runs_in_a_sandbox_if_the_model_asks(
    tools: Toolset, hf: SyncClient, here: Path
) -> None:
    """It can write to its own directory; the network is another word."""
    (here / "own").mkdir()
    command = "touch here; touch /usr/there; tail -n +3 /proc/net/dev | wc -l"
    closed = call(
        tools, "spawn_process", command=command, workdir="own", sandbox="closed", wait=True
    )
    assert "Read-only file system" in closed["output"]
    assert closed["output"].endswith("\n1\n")
    assert (here / "own" / "here").exists()
    network = call(tools, "spawn_process", command="true", sandbox="network", wait=True)
    assert hf.get(network["handle"]).record.sandbox == {"network": True, "sockets": False}
    refused = call(tools, "spawn_process", command="true", sandbox="wide")
    assert "is one of closed, network" in refused["error"]


def test_ports_without_an_image_are_an_error_that_says_so(tools: Toolset, hf: SyncClient) -> None:
    refused = call(tools, "spawn_process", command="true", ports=[3000])
    assert "published by Docker only" in refused["error"]
    assert hf.list() == []


def test_mounts_are_nothing_that_a_model_can_ask_for(tools: Toolset, hf: SyncClient) -> None:
    """A container's root could write to any file of the machine by them."""
    docker = {"image": "hfbox", "mounts": ["/etc:/etc"]}
    refused = call(tools, "spawn_process", command="true", docker=docker)
    assert "no argument 'mounts' in 'docker'" in refused["error"]
    assert hf.list() == []


def test_limits_and_environment(tools: Toolset) -> None:
    flood = call(tools, "spawn_process", command="yes", wait=True, max_output_bytes=100_000)
    assert (flood["status"], flood["reason"]) == ("killed", "log_limit")
    told = call(
        tools,
        "spawn_process",
        command="echo $A $B $C",
        wait=True,
        env={"A": "x", "B": 7, "C": True},
    )
    assert told["output"] == "x 7 true\n"
    odd = call(tools, "spawn_process", command="true", env={"A": ["x"]})
    assert "'A' in 'env'" in odd["error"]
