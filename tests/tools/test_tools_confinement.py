"""What whoever embeds the tools decides for every command holds, whatever a model says."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from holdfast import BadRequest, SyncClient, Toolset, connect
from holdfast.testing import wait_until
from holdfast.tools import DIALECTS
from holdfast.tools.dialects.codex import number_of
from tests.lost_agent import Lost
from tests.mcp_servers import PROGRAM, wire
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.shared_keeper

# Of every dialect the tools that start a command: their name, what the command and the directory
# are called, and what they need besides.
STARTS: list[tuple[str, str, str, str | None, dict[str, Any]]] = [
    ("native", "spawn_process", "command", "workdir", {"wait": True}),
    ("native", "spawn_process", "command", "workdir", {"tty": True}),
    ("native", "spawn_process", "command", "workdir", {"tmux": True}),
    ("duragent", "spawn_process", "command", "workdir", {"wait": True}),
    ("duragent", "spawn_process", "command", "workdir", {}),
    ("claude-code", "run_command", "command", "cwd", {}),
    ("claude-code", "Bash", "command", None, {"dangerouslyDisableSandbox": True}),
    ("deepchat", "execute_command", "command", None, {"description": "try it out"}),
    ("dodo", "run_background", "cmd", "cwd", {}),
    ("dodo", "start_process", "cmd", "cwd", {}),
    ("dodo", "run_test", "cmd", "cwd", {}),
    ("dodo", "run_build", "cmd", "cwd", {}),
    ("codex", "exec_command", "cmd", "workdir", {}),
    ("openclaw", "exec", "command", "workdir", {"host": "sandbox"}),
    ("hermes", "terminal", "command", "workdir", {}),
    ("hermes", "terminal", "command", "workdir", {"background": True}),
]
IDS = ["-".join([start[0], start[1], *start[4]]) for start in STARTS]

OUT = "touch ../outside"
# Of every dialect the ways to type into a process: the tool, and what it takes besides the process.
TYPING: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (dialect, "process", {"action": action, **more})
        for dialect in ("native", "duragent")
        for action, more in (
            ("write", {"data": f"{OUT}\n"}),
            ("write", {"eof": True}),
            ("send_keys", {"keys": OUT}),
            ("send_keys", {"keys": ["Up", "Enter"]}),
        )
    ),
    ("deepchat", "process", {"action": "write", "data": f"{OUT}\n"}),
    ("deepchat", "process", {"action": "write", "eof": True}),
    ("codex", "write_stdin", {"chars": f"{OUT}\n"}),
    ("codex", "write_stdin", {"chars": "\x04"}),
    ("openclaw", "process", {"action": "write", "data": f"{OUT}\n"}),
    ("openclaw", "process", {"action": "send-keys", "literal": OUT, "keys": ["Enter"]}),
    ("openclaw", "process", {"action": "submit"}),
    ("openclaw", "process", {"action": "paste", "text": f"{OUT}\n"}),
    ("hermes", "process", {"action": "write", "data": f"{OUT}\n"}),
    ("hermes", "process", {"action": "submit", "data": OUT}),
    ("hermes", "process", {"action": "close"}),
]
TYPING_IDS = [
    "-".join([dialect, more.get("action", tool), *(word for word in more if word != "action")])
    for dialect, tool, more in TYPING
]
# Looking at it, and stopping it.
LOOKS: list[tuple[str, str, dict[str, Any]]] = [
    ("native", "process", {"action": "poll"}),
    ("native", "process", {"action": "capture"}),
    ("native", "process", {"action": "kill"}),
    ("duragent", "process", {"action": "log"}),
    ("duragent", "process", {"action": "kill"}),
    ("deepchat", "process", {"action": "poll"}),
    ("deepchat", "process", {"action": "kill"}),
    ("codex", "write_stdin", {"chars": "\x03", "yield_time_ms": 250}),
    ("openclaw", "process", {"action": "log"}),
    ("openclaw", "process", {"action": "kill"}),
    ("hermes", "process", {"action": "poll"}),
    ("hermes", "process", {"action": "kill"}),
    ("dodo", "read_process_output", {}),
    ("dodo", "stop_process", {}),
    ("claude-code", "BashOutput", {}),
    ("claude-code", "KillShell", {}),
]


def named(dialect: str, tool: str, handle: str) -> dict[str, Any]:
    """A process, as this tool has it named."""
    if dialect == "codex":
        return {"session_id": number_of(handle)}
    if dialect == "dodo":
        return {"process_id" if tool == "stop_process" else "id": handle}
    if dialect == "claude-code":
        return {"bash_id" if tool == "BashOutput" else "shell_id": handle}
    words = {"deepchat": "sessionId", "openclaw": "sessionId", "hermes": "session_id"}
    return {words.get(dialect, "handle"): handle}


def only_process(hf: SyncClient) -> Any:
    (process,) = hf.list()
    process.wait(60)
    return process


def test_every_dialect_is_tried_here() -> None:
    assert {start[0] for start in STARTS} == set(DIALECTS)


@pytest.mark.parametrize(("dialect", "tool", "word", "where", "more"), STARTS, ids=IDS)
def test_in_a_sandbox_every_command_can_write_to_one_directory(
    hf: SyncClient,
    here: Path,
    dialect: str,
    tool: str,
    word: str,
    where: str | None,
    more: dict[str, Any],
) -> None:
    """The agent's; a directory that a model names is where it begins, and no more writable."""
    (here / "below").mkdir()
    tools = toolset(hf, dialect, sandbox=True)
    elsewhere = {} if where is None else {where: "/usr"}
    command = f"touch here {here}/there"
    call(tools, tool, **{word: command, **elsewhere, **more})
    process = only_process(hf)
    assert process.record.sandbox == {"network": False, "sockets": False, "root": str(here)}
    assert (here / "there").exists()
    assert (here / "here").exists() is (where is None)
    assert not Path("/usr/here").exists()
    if where is None:
        return
    process.remove()
    call(tools, tool, **{word: "touch found", where: "below", **more})
    only_process(hf)
    assert (here / "below" / "found").exists()


@pytest.mark.parametrize(("dialect", "tool", "word", "where", "more"), STARTS, ids=IDS)
def test_limits_are_those_of_every_command(
    hf: SyncClient,
    dialect: str,
    tool: str,
    word: str,
    where: str | None,
    more: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # a login shell reads nobody's profile
    tools = toolset(hf, dialect, memory="512MiB", cpu=1, processes=64, files=99)
    started = call(tools, tool, **{word: "ulimit -n", **more})
    if "host" in more:
        assert "requires a sandbox runtime" in started.text
        call(tools, tool, **{word: "ulimit -n"})
    process = only_process(hf)
    assert process.read_at(0).text.split() == ["99"]
    limits = {name: limit["limit"] for name, limit in process.record.limits.items()}
    assert limits == {"memory": 512 << 20, "cpu": 1, "processes": 64, "files": 99}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_model_is_told_where_its_commands_run(hf: SyncClient, dialect: str) -> None:
    """By the tools that start something, and by no others."""
    plain, confined = toolset(hf, dialect), toolset(hf, dialect, sandbox=True)
    assert plain.names == confined.names
    told = {
        tool["name"]
        for tool in confined.definitions()
        if tool["description"].endswith(
            "Commands run in a sandbox and can write to the agent's directory only; they have no "
            "network and no Unix sockets."
        )
    }
    assert told == {start[1] for start in STARTS if start[0] == dialect} - {"Bash"}
    wide = toolset(hf, dialect, sandbox={"network": True, "sockets": True}).definitions()
    assert any(tool["description"].endswith("agent's directory only.") for tool in wide)


def test_what_was_decided_is_no_argument_any_more(hf: SyncClient, here: Path) -> None:
    """A model that gives one anyway is told that there is none, and nothing is started."""

    def arguments(**decisions: Any) -> set[str]:
        (spawn, *_) = toolset(hf, "native", **decisions).definitions()
        return set(spawn["input_schema"]["properties"])

    every = arguments()
    assert {"docker", "ports", "inside", "sandbox", "limits"} <= every
    assert every - arguments(sandbox=True) == {"docker", "ports", "inside", "sandbox"}
    assert every - arguments(docker="hfbox") == {"docker", "sandbox"}
    tools = toolset(hf, "native", sandbox=True)
    for name, value in (("sandbox", "network"), ("docker", "hfbox"), ("ports", [80])):
        refused = call(tools, "spawn_process", command="true", **{name: value})
        assert f"no argument {name!r}" in refused["error"]
    assert hf.list() == []


def test_a_model_may_have_less_but_not_more(
    home: str, here: Path, monkeypatch: pytest.MonkeyPatch, session: str
) -> None:
    """Than the toolset allows, or where it says nothing the user's settings."""
    monkeypatch.setenv("HOLDFAST_FILES", "100")
    with connect(session=session) as hf:
        tools = toolset(hf, "native", memory="1G")

        def limited(**limits: Any) -> Any:
            return call(tools, "spawn_process", command="true", wait=True, limits=limits)

        assert "memory is at most 1073741824 here, not '2G'" in limited(memory="2G")["error"]
        assert "memory is at most" in limited(memory="none")["error"]
        assert "files is at most 100 here" in limited(files=101)["error"]
        assert "memory must be a size" in limited(memory="much")["error"]
        assert hf.list() == []
        less = hf.get(limited(memory="64M", files=50, cpu=1)["handle"]).record.limits
        assert less["memory"]["limit"] == 64 << 20
        assert less["files"]["limit"] == 50
        nothing = hf.get(limited()["handle"]).record.limits
        assert (nothing["memory"]["limit"], nothing["files"]["limit"]) == (1 << 30, 100)


@pytest.mark.parametrize(("dialect", "tool"), [("native", "spawn_process"), ("openclaw", "exec")])
def test_what_a_model_puts_into_the_environment_works_inside_only(
    hf: SyncClient, here: Path, tmp_path: Path, dialect: str, tool: str
) -> None:
    """What makes programs load or write something is for the command, not for the sandbox itself.

    The traces are of the dynamic loader: one for each program that was started with the variable.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    tools = toolset(hf, dialect, sandbox=True)
    for place in (outside, here):
        env = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": f"{place}/trace", "MINE": "my own"}
        call(tools, tool, command="echo $MINE; /bin/true", env=env)
    for process in hf.list():
        process.wait(60)
        assert "my own" in process.read_at(0).text
    assert list(outside.iterdir()) == []
    traces = "".join(trace.read_text() for trace in here.glob("trace*"))
    assert "/bin/true" in traces
    assert "bwrap" not in traces


# -- what is there already -------------------------------------------------------------------------


@pytest.mark.parametrize(("dialect", "tool", "more"), TYPING, ids=TYPING_IDS)
def test_nothing_is_typed_into_what_is_not_confined(
    hf: SyncClient, here: Path, dialect: str, tool: str, more: dict[str, Any]
) -> None:
    """A shell from before, or of the program around the tools, would be the way out."""
    shell = hf.spawn("sh", tty=True)
    tools = toolset(hf, dialect, sandbox=True)
    refused = call(tools, tool, **named(dialect, tool, shell.handle), **more)
    assert refused.is_error
    assert "not confined as their commands are: it can be looked at and stopped" in refused.text
    shell.send("echo $((40 + 2))\n")
    assert hf.wait_for(shell, {"output": "42", "since": "start"}, timeout=60).ok
    assert not (here.parent / "outside").exists()
    plain = call(toolset(hf, dialect), tool, **named(dialect, tool, shell.handle), **more)
    assert not plain.is_error, "without a decision there is nothing to be kept in"


@pytest.mark.parametrize(
    ("dialect", "tool", "more"),
    [typing for typing in TYPING if OUT in str(typing)],
    ids=[name for name, typing in zip(TYPING_IDS, TYPING, strict=True) if OUT in str(typing)],
)
def test_what_is_confined_alike_is_typed_into(
    hf: SyncClient, here: Path, dialect: str, tool: str, more: dict[str, Any]
) -> None:
    """By whomever it was started, also an earlier run of the same tools; it gets no further."""
    shell = hf.spawn("sh", tty=True, sandbox=True)
    tools = toolset(hf, dialect, sandbox=True)
    done = call(tools, tool, **named(dialect, tool, shell.handle), **more)
    assert not done.is_error, done
    shell.send("echo $((40 + 2))\n")
    assert hf.wait_for(shell, {"output": "42", "since": "start"}, timeout=60).ok
    assert not (here.parent / "outside").exists()


@pytest.mark.parametrize(("dialect", "tool", "more"), LOOKS)
def test_what_is_not_confined_can_be_looked_at_and_stopped(
    hf: SyncClient, here: Path, dialect: str, tool: str, more: dict[str, Any]
) -> None:
    process = hf.spawn("echo begun; exec sleep 1000", tty=True)
    tools = toolset(hf, dialect, sandbox=True)
    done = call(tools, tool, **named(dialect, tool, process.handle), **more)
    assert not done.is_error, done
    if more.get("action") == "kill" or "chars" in more or tool in ("stop_process", "KillShell"):
        assert process.wait(60).status in ("killed", "failed")


def test_a_sandbox_that_is_wider_is_none(hf: SyncClient, here: Path) -> None:
    """What has a network, or another directory to write to, is typed into where tools have it."""
    (here / "below").mkdir()
    online = hf.spawn("cat", stdin=True, sandbox={"network": True})
    elsewhere = hf.spawn("cat", stdin=True, sandbox=True, cwd=here.parent)
    below = hf.spawn("cat", stdin=True, sandbox=True, cwd=here / "below")
    closed = toolset(hf, "native", sandbox=True)
    networked = toolset(hf, "native", sandbox={"network": True})

    def taken(tools: Toolset) -> list[bool]:
        return [
            not call(tools, "process", action="write", handle=each.handle, data="x").is_error
            for each in (online, elsewhere, below)
        ]

    assert taken(closed) == [False, False, True]
    assert taken(networked) == [True, False, True]


def test_what_the_tools_started_stays_theirs(
    hf: SyncClient, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the program around them goes to another directory."""
    tools = toolset(hf, "native", sandbox=True)
    handle = call(tools, "spawn_process", command="cat", tmux=False)["handle"]
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert not call(tools, "process", action="write", handle=handle, data="x").is_error
    others = toolset(hf, "native", sandbox=True)
    assert call(others, "process", action="write", handle=handle, data="x").is_error


# -- what is looked at for a model -----------------------------------------------------------------


def test_files_are_waited_for_in_the_agents_directory_only(
    hf: SyncClient, here: Path, tmp_path: Path
) -> None:
    """Wherever links lead, and also where one is made while the wait goes on."""
    (tmp_path / "outside").touch()
    (here / "link").symlink_to(tmp_path)
    (here / "inside").touch()
    tools = toolset(hf, "native", sandbox=True)
    handle = call(tools, "spawn_process", command="sleep 1000", tmux=False)["handle"]

    def wait(path: str) -> Any:
        seen = {"conditions": [f"file={path}"], "timeout_seconds": 0}
        return call(tools, "wait_for", handles=[handle], **seen)

    for path in ("/etc/shadow", "~/x", "../outside", "link/outside", "link/none", "link/../home"):
        assert "only files in the agent's directory" in wait(path)["error"]
    assert wait("inside")["ok"]
    assert wait(f"{here}/inside")["ok"]
    assert wait("later")["timed_out"]
    assert wait("later/outside")["timed_out"]
    begun = {"file": "link/outside", "within": [str(here)]}  # as if the link came afterwards
    assert hf.wait_for(hf.get(handle), begun, timeout=0).timed_out
    assert hf.wait_for(hf.get(handle), {"file": "link/outside"}, timeout=60).ok
    with pytest.raises(BadRequest, match="within is a list of directories"):
        hf.wait_for(hf.get(handle), {"file": "x", "within": "/"})
    assert "needs a path" in wait("a\0b")["error"]
    unconfined = call(
        toolset(hf, "native"), "wait_for", handles=[handle], conditions=["file=/etc/passwd"]
    )
    assert unconfined["ok"]


def test_with_the_network_of_the_machine_anything_is_asked(hf: SyncClient, here: Path) -> None:
    """A command could do so itself."""
    tools = toolset(hf, "native", sandbox={"network": True})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        handle = call(tools, "spawn_process", command="sleep 1000", tmux=False)["handle"]
        asked = [f"http=http://127.0.0.1:{port}/"]
        waited = call(tools, "wait_for", handles=[handle], conditions=asked, timeout_seconds=0.5)
        assert waited["timed_out"]
        server.accept()[0].close()


def test_nothing_outside_is_asked_on_behalf_of_what_has_no_network(
    hf: SyncClient, here: Path
) -> None:
    """A URL would be asked for by us, with whatever is in it."""
    tools = toolset(hf, "native", sandbox=True)
    handle = call(tools, "spawn_process", command="sleep 1000", tmux=False)["handle"]
    for condition in ("http=http://127.0.0.1:1/", "port=example.com:80"):
        refused = call(tools, "wait_for", handles=[handle], conditions=[condition])
        assert "commands have no network here" in refused["error"]
    local = call(tools, "wait_for", handles=[handle], conditions=["port=1"], timeout_seconds=0)
    assert local["timed_out"]


def test_escalation_is_refused_in_the_words_of_each_dialect(hf: SyncClient, here: Path) -> None:
    codex = toolset(hf, "codex", sandbox=True)
    escalated = call(codex, "exec_command", cmd="true", sandbox_permissions="require_escalated")
    assert "cannot be left here; run it without sandbox_permissions" in escalated.text
    assert "cannot be left" in str(codex.definitions())
    openclaw = toolset(hf, "openclaw", sandbox=True)
    assert "leave host out" in call(openclaw, "exec", command="true", host="gateway").text
    assert "not available here" in call(openclaw, "exec", command="true", elevated=True).text
    assert hf.list() == []


def test_what_runs_unconfined_is_not_taken_over(home: str, here: Path, session: str) -> None:
    """A shell that an earlier session left would be a way out; one like ours is none."""
    Lost(here, "free", "exec sleep 1000").kill()
    then = "hf.spawn('exec sleep 1000', sandbox=True)"
    Lost(here, "confined", then=then).kill()
    with connect(session=f"{session}-new") as hf:
        wait_until(lambda: len(hf.left_behind()) == 2)
        tools = Toolset(hf._client, "native", adoption=True, sandbox=True)
        shown = call(tools, "adopt")["left_behind"]
        assert [each["session"] for each in shown] == ["confined"]
        refused = call(tools, "adopt", session="free")
        assert "not confined as commands are here" in refused["error"]
        assert hf.list() == []
        assert len(call(tools, "adopt", session="confined")["processes"]) == 1
        with_network = Toolset(hf._client, "native", adoption=True)
        assert len(call(with_network, "adopt", session="free")["processes"]) == 1


@pytest.mark.parametrize(
    ("decisions", "says"),
    [
        ({"docker": "hfbox", "sandbox": True}, "give docker or sandbox"),
        ({"docker": {}}, "needs an image"),
        ({"docker": {"image": "hfbox", "privileged": True}}, "privileged"),
        ({"sandbox": {"internet": True}}, "sandbox is True or"),
        ({"memory": "much"}, "memory must be a size"),
    ],
)
def test_decisions_that_make_no_sense_are_refused_at_once(
    hf: SyncClient, decisions: dict[str, Any], says: str
) -> None:
    with pytest.raises(BadRequest, match=says):
        toolset(hf, "native", **decisions)


# -- the MCP server --------------------------------------------------------------------------------


def test_the_server_confines_by_its_options(home: str, here: Path) -> None:
    options = ("--sandbox", "--memory", "512M", "--cpu", "1", "--processes", "50", "--files", "99")
    with wire(*options) as server:
        (spawn, *_) = server.ask("tools/list")["tools"]
        assert "sandbox" not in spawn["inputSchema"]["properties"]
        assert "Commands run in a sandbox" in spawn["description"]
        command = "touch here; touch /usr/here; ulimit -n"
        done = server.call("spawn_process", command=command, wait=True)
    assert "Read-only file system" in done["output"]
    assert done["output"].endswith("99\n")
    assert (here / "here").exists()


def test_a_server_that_is_begun_again_with_a_sandbox_does_not_control_what_was_free(
    home: str, here: Path, session: str
) -> None:
    """The session is the same, and its shells are still there."""
    with connect(session=f"{session}-conv") as hf:
        shell = hf.spawn("sh", stdin=True)
        with wire("--session", f"{session}-conv", "--sandbox") as server:
            write = {"action": "write", "handle": shell.handle, "data": f"{OUT}\n"}
            assert "not confined" in server.call("process", **write)["error"]
            server.call("process", action="kill", handle=shell.handle)
        shell.wait(60)
    assert not (here.parent / "outside").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["--sandbox", "--memory", "2G"],
        ["--sandbox=network"],
        ["--sandbox=network,sockets"],
        [
            "--docker",
            "hfbox",
            "--network",
            "none",
            "--user",
            "1000",
            "--mount",
            "a:/b:ro",
            "--pull",
        ],
    ],
)
def test_the_printed_configuration_confines_too(home: str, options: list[str]) -> None:
    command = [*PROGRAM, "--print-config", "claude", *options]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for option in options:
        assert f'"{option}"' in printed


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--docker", "hfbox", "--sandbox"], "give --docker or --sandbox"),
        (["--network", "none"], "are for --docker"),
        (["--docker", "two words"], "needs an image"),
        (["--memory", "much"], "--memory must be a size"),
        (["--sandbox=wide"], "--sandbox"),
    ],
)
def test_options_that_make_no_sense_are_said_in_one_line(
    home: str, options: list[str], says: str
) -> None:
    """Nothing is served then."""
    done = subprocess.run([*PROGRAM, *options], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
