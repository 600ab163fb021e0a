"""The guide's table of what differs between command line, library and tools: each cell is so."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import NotFound, Record, SyncClient, Toolset, connect
from holdfast.core.home import Home
from holdfast.core.store import Store
from holdfast.testing import wait_until
from tests.person import Person
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.shared_keeper

GUIDE = Path(__file__).parent.parent / "docs" / "guide.md"
CLI, LIBRARY, TOOLS = range(3)
SLEEP = "exec sleep 1000"
MINUTES_30, DAY = 1800.0, 86400.0


def cells(row: str) -> list[str]:
    for line in GUIDE.read_text().splitlines():
        name, *found = [cell.strip() for cell in line.strip("|").split("|")]
        if name == row:
            return found
    raise AssertionError(f"the table has no row {row!r}")


def cli(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def of(home: str, handle: str) -> Record:
    return Store(Home(home)).load(handle)


def by_cli(home: str, *options: str) -> Record:
    return of(home, cli("run", "-d", *options, "--", SLEEP).stdout.strip())


def by_tool(home: str, tools: Toolset, command: str = SLEEP, **options: Any) -> Record:
    result = call(tools, "spawn_process", command=command, **options)
    assert not result.is_error, result
    return of(home, result["handle"])


@pytest.fixture
def tools(hf: SyncClient) -> Toolset:
    return toolset(hf, "native")


def test_every_row_is_tried() -> None:
    table = GUIDE.read_text().partition("| | command line: `run` |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    tried = set(re.findall(r'cells\("([^"]+)"\)', Path(__file__).read_text()))
    assert len(rows) == 12
    assert set(rows) == tried


def test_who_stays(hf: SyncClient, tools: Toolset, home: str) -> None:
    cell = cells("stays until the end")
    assert "yes; `-d` not at all, `--yield 10s` so long" in cell[CLI]
    assert cli("run", "--", "exit 3").returncode == 3
    assert by_cli(home).running
    yielded = cli("run", "--yield", "100ms", "--json", "--", SLEEP)
    assert json.loads(yielded.stdout)["backgrounded"]
    assert "no; `check` and `yield_ms` so long" in cell[LIBRARY]
    assert hf.spawn(SLEEP).record.running
    assert not hf.spawn("exit 3", yield_ms=30_000).backgrounded
    assert hf.spawn("exit 3", check="30s").record.exit_code == 3
    assert "no; `wait` yes, `yield_ms` so long" in cell[TOOLS]
    assert call(tools, "spawn_process", command=SLEEP)["status"] == "running"
    assert call(tools, "spawn_process", command="exit 3", wait=True)["exit_code"] == 3
    assert call(tools, "spawn_process", command="exit 3", yield_ms=30_000)["exit_code"] == 3


def test_modes(
    hf: SyncClient, tools: Toolset, home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    cell = cells("mode")
    assert cell[CLI] == "`pipe`; `--tty` a `pty`, `--tmux` `tmux`"
    modes = [by_cli(home, *options).mode for options in ((), ("--tty",), ("--tmux",))]
    assert modes == ["pipe", "pty", "tmux"]
    assert cell[LIBRARY] == "`pipe`; `tty` a `pty`, `tmux` `tmux`"
    spawned = [hf.spawn(SLEEP), hf.spawn(SLEEP, tty=True), hf.spawn(SLEEP, tmux=True)]
    assert [process.record.mode for process in spawned] == ["pipe", "pty", "tmux"]
    assert cell[TOOLS] == "`tmux` where it is installed, else `pipe`; with `wait` `pipe`"
    assert by_tool(home, tools).mode == "tmux"
    assert by_tool(home, tools, "true", wait=True).mode == "pipe"
    for name in ("bash", "sh", "sleep"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert by_tool(home, tools).mode == "pipe"


def test_stdin(hf: SyncClient, tools: Toolset, home: str) -> None:
    cell = cells("stdin")
    assert cell == [
        "closed; `--stdin` opens it",
        "closed; `stdin` opens it",
        "open; with `wait` closed",
    ]
    assert [by_cli(home).stdin, by_cli(home, "--stdin").stdin] == [False, True]
    assert [hf.spawn(SLEEP).record.stdin, hf.spawn(SLEEP, stdin=True).record.stdin] == [False, True]
    for tmux in (False, True):
        assert by_tool(home, tools, tmux=tmux).stdin
    assert not by_tool(home, tools, "true", wait=True).stdin


def test_deadlines(hf: SyncClient, tools: Toolset, home: str) -> None:
    cell = cells("deadline")
    assert all(text.startswith("30 minutes") for text in cell)
    assert by_cli(home).timeout == MINUTES_30
    assert "30m 0s" in cli("run", "-d", "--", "true").stderr
    assert by_cli(home, "--timeout", "0").timeout is None
    with Person("run", "--tty", "--", "echo up; read line") as person:
        person.sees("up")
        (attached,) = [each for each in Store(Home(home)).scan(ended=False)[0] if each.tty]
        assert attached.timeout is None
        person.types("\r")
        assert person.leaves_with() == 0
    assert hf.spawn(SLEEP).record.timeout == MINUTES_30
    assert hf.spawn(SLEEP, timeout=None).record.timeout is None
    assert by_tool(home, tools).timeout == MINUTES_30
    assert by_tool(home, tools, timeout_seconds=0).timeout is None


def test_waits(tools: Toolset) -> None:
    """How long the first two wait cannot be seen by waiting; the tool's limit is in its schema."""
    cell = cells("a wait ends after")
    assert cell[CLI] == "nothing, or `--timeout`"
    assert "default" not in next(
        line for line in cli("wait", "--help").stdout.splitlines() if "--timeout" in line
    )
    assert cell[LIBRARY] == "nothing, or `timeout`"
    assert inspect.signature(SyncClient.wait_for).parameters["timeout"].default is None
    assert cell[TOOLS].startswith("60 s, or `timeout_seconds`; ")
    (wait_for,) = [each for each in tools.definitions() if each["name"] == "wait_for"]
    said = wait_for["input_schema"]["properties"]["timeout_seconds"]["description"]
    assert said == "default 60"


def test_how_long_they_are_kept(hf: SyncClient, tools: Toolset, home: str) -> None:
    cell = cells("kept after the end")
    assert cell == ["1 day from the last look", *["30 minutes from the last look"] * 2]
    assert by_cli(home).retention == DAY
    assert hf.spawn(SLEEP).record.retention == MINUTES_30
    assert by_tool(home, tools).retention == MINUTES_30


def test_sessions(hf: SyncClient, tools: Toolset, home: str) -> None:
    """The MCP server's are tried where it is: test_mcp.py."""
    cell = cells("session")
    assert cell[CLI] == "`default`, or `--session`, `HOLDFAST_SESSION`"
    assert by_cli(home).session == "default"
    assert by_cli(home, "--session", "s1").session == "s1"
    handle = cli("run", "-d", "--", "true", HOLDFAST_SESSION="s2").stdout.strip()
    assert of(home, handle).session == "s2"
    assert cell[LIBRARY] == "a new one, or `session=`"
    with connect() as one, connect() as two:
        assert one.session != two.session
    assert cell[TOOLS].startswith("that of the client; ")
    assert by_tool(home, tools).session == hf.session


def test_who_sees_what(hf: SyncClient, tools: Toolset, home: str) -> None:
    cell = cells("sees")
    assert cell == ["every session, or the one that is named", "its own", "its own"]
    mine, theirs = hf.spawn(SLEEP).handle, by_cli(home).handle
    assert {mine, theirs} <= set(cli("ps", "-q").stdout.split())
    assert cli("ps", "-q", "--session", hf.session or "").stdout.split() == [mine]
    assert [process.handle for process in hf.list()] == [mine]
    with pytest.raises(NotFound):
        hf.get(theirs)
    listed = call(tools, "process", action="list")["processes"]
    assert [each["handle"] for each in listed] == [mine]
    assert call(tools, "process", action="status", handle=theirs).is_error


def test_what_becomes_of_them(home: str, session: str) -> None:
    done, killed = cells("when whoever started it is done"), cells("when they are killed")
    assert done[CLI] == killed[CLI] == "goes on"
    left = by_cli(home)
    with connect(session=f"{session}-done") as client:
        stopped, kept = client.spawn(SLEEP), client.spawn(SLEEP, keep=True)
        tool = by_tool(home, toolset(client, "native"))
    assert all("is stopped" in text and "unless `keep`" in text for text in done[LIBRARY:])
    statuses = [of(home, each.handle).status for each in (left, stopped, tool, kept)]
    assert statuses == ["running", "killed", "killed", "running"]
    cli("kill", kept.handle)
    assert all(text == "goes on for 30 minutes (the lease)" for text in killed[LIBRARY:])
    program = (
        "import holdfast, os, signal, sys\n"
        "client = holdfast.connect(session=sys.argv[1]).__enter__()\n"
        "tools = holdfast.SyncToolset(client)\n"
        f"print(client.spawn({SLEEP!r}).handle)\n"
        f"print(tools.call('spawn_process', {{'command': {SLEEP!r}}})['handle'], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    lost = f"{session}-lost"
    died = subprocess.run(
        [sys.executable, "-c", program, lost], capture_output=True, text=True, timeout=60
    )
    handles = died.stdout.split()
    assert len(handles) == 2, died
    lease = Path(home, "sessions", lost, "lease.json")
    wait_until(lambda: json.loads(lease.read_text()).get("lost_clock"), what="the loss")
    assert [of(home, handle).status for handle in handles] == ["running"] * 2
    assert json.loads(lease.read_text())["grace"] == MINUTES_30
    cli("kill", *handles)


def test_how_an_end_is_told(hf: SyncClient, tools: Toolset) -> None:
    cell = cells("its end is told")
    assert cell[CLI] == "by `run` and `wait` itself, else in `events`"
    cli("run", "--", "true")
    handle = cli("run", "-d", "--", "true").stdout.strip()
    cli("wait", handle)
    told = cli("run", "-d", "--", "true").stdout.strip()

    def untold() -> list[str]:
        return [each["handle"] for each in json.loads(cli("events", "--json").stdout)]

    assert wait_until(untold) == [told]
    assert cell[LIBRARY] == "by `wait` itself, else in `events()`"
    hf.spawn("true").wait(30)
    assert list(hf.events()) == []
    alone = hf.spawn("true")
    wait_until(lambda: [event.handle for event in hf.events()] == [alone.handle])
    assert cell[TOOLS] == "by the result that shows it, else in `events` of the next one"
    result = call(tools, "process", action="list")
    assert [event["handle"] for event in result["events"]] == [alone.handle]
    assert "events" not in call(tools, "spawn_process", command="true", wait=True)
    assert "events" not in call(tools, "process", action="list")


def test_what_they_go_by(hf: SyncClient, tools: Toolset) -> None:
    cell = cells("goes by")
    assert cell == ["handle, its beginning, label", "handle, label", "handle, label"]
    handle = hf.spawn(SLEEP, label="web").handle
    for name, known in ((handle, True), ("web", True), (handle[:12], False)):
        assert cli("status", name).returncode == 0
        looked = call(tools, "process", action="status", handle=name)
        assert looked.is_error != known
        if known:
            assert hf.get(name).handle == handle
        else:
            with pytest.raises(NotFound):
                hf.get(name)
