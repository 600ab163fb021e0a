"""The commands that read for people and agents: view, search, ps, status, stats, wait --for."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import SyncClient, SyncProcess
from holdfast.testing import wait_until

pytestmark = pytest.mark.shared_keeper


def holdfast(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments], capture_output=True, text=True, timeout=60
    )


def printed(*arguments: str) -> Any:
    shown = holdfast(*arguments)
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def rows(*arguments: str) -> list[dict[str, str]]:
    """The rows of a table, by the names of its columns."""
    head, *lines = holdfast(*arguments).stdout.splitlines()
    names = re.split(" {2,}", head)
    return [dict(zip(names, re.split(" {2,}", line), strict=True)) for line in lines]


def written(hf: SyncClient, command: str) -> SyncProcess:
    process = hf.spawn(command)
    process.wait(30)
    return process


def test_view_keeps_its_budget_and_says_what_it_left_out(hf: SyncClient) -> None:
    process = written(hf, "seq 1 5000")
    shown = holdfast("view", process.handle, "--budget", "600")
    assert shown.returncode == 0
    assert len(shown.stdout) <= 601
    assert shown.stdout.startswith("1\n2\n")
    assert shown.stdout.endswith("5000\n")
    assert "left out" in shown.stdout
    data = json.loads(holdfast("view", process.handle, "--budget", "600", "--json").stdout)
    assert data["handle"] == process.handle
    assert data["gaps"]


def test_search_prints_matches_or_fails_with_1(hf: SyncClient) -> None:
    process = written(hf, "seq 1 100; echo needle here; seq 1 5")
    found = holdfast("search", process.handle, r"ne+dle (\w+)", "-C", "1")
    assert found.returncode == 0
    assert "needle here" in found.stdout
    assert "100" in found.stdout
    assert "99" not in found.stdout
    nothing = holdfast("search", process.handle, "absent")
    assert nothing.returncode == 1
    bad = holdfast("search", process.handle, "(")
    assert bad.returncode == 125
    assert bad.stderr.count("\n") == 1
    data = json.loads(holdfast("search", process.handle, "needle", "--json").stdout)
    assert data["count"] == 1


def test_stats_shows_what_runs(hf: SyncClient) -> None:
    process = hf.spawn("sleep 1000 & sleep 1000", label="two")
    wait_until(lambda: (process.usage().processes or 0) >= 3)
    shown = holdfast("stats", "--interval", "0.05")
    assert process.handle in shown.stdout
    (used,) = json.loads(holdfast("stats", "--json", "--interval", "0").stdout)
    assert used["handle"] == process.handle
    assert used["processes"] == 3
    assert used["memory_bytes"] > 0


Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]
HOG = "import os; block = bytearray(b'x') * (50 << 20); print('ready', flush=True); os.read(0, 1)"


def test_ps_shows_on_request_what_each_uses(hf: SyncClient, child: Child, ready: Ready) -> None:
    """The average of a processor, memory, and ports where somebody listens; else it does not."""
    busy = hf.spawn("while :; do :; done", label="busy")
    hog = ready(hf.spawn([sys.executable, "-ISc", HOG], label="hog", stdin=True))
    written(hf, "true")
    wait_until(lambda: (busy.usage().cpu_seconds or 0) > 0.2)
    assert "CPU" not in holdfast("ps").stdout
    assert all(record["usage"] for record in printed("ps", "--json"))
    shown = {row["LABEL"]: row for row in rows("ps", "--usage", "--all")}
    assert "PORTS" not in shown["busy"]
    assert 0 < float(shown["busy"]["CPU AVERAGE"].removesuffix("%")) <= 110
    assert 50 <= float(shown["hog"]["MEMORY"].removesuffix(" MiB")) < 70
    assert (shown["-"]["CPU AVERAGE"], shown["-"]["MEMORY"]) == ("-", "-")
    found = {record["handle"]: record["usage"] for record in printed("ps", "-a", "--json")}
    assert found[busy.handle]["cpu_percent"] is None
    assert found[busy.handle]["cpu_average_percent"] > 0
    assert found[hog.handle]["memory_bytes"] >= 50 << 20
    assert [used for used in found.values() if used is None] == [None]
    web = ready(hf.spawn(child("serves_tcp", "itself", "127.0.0.1"), label="web"))
    port = web.read_at(0).text.split()[1]
    assert {row["LABEL"]: row["PORTS"] for row in rows("ps", "-u")} == {
        "busy": "-",
        "hog": "-",
        "web": port,
    }


def test_ps_shows_groups_and_one_of_them(hf: SyncClient) -> None:
    """A column where there are any; a group is named exactly."""
    hf.spawn("sleep 600", label="one", group="checks")
    hf.spawn("sleep 600", label="two", group="check")
    ended = hf.spawn("true", label="three", group="checks")
    ended.wait(30)
    hf.spawn("sleep 600", label="alone")
    assert [row["GROUP"] for row in rows("ps")] == ["checks", "check", "-"]
    assert [row["LABEL"] for row in rows("ps", "--group", "checks")] == ["one"]
    assert [row["LABEL"] for row in rows("ps", "-a", "--group", "checks")] == ["one", "three"]
    (record,) = printed("ps", "--group=check", "--json")
    assert record["label"] == "two"
    assert printed("ps", "--group", "none", "--json") == []


def test_status_shows_what_a_running_process_uses(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """A line for each thing; of one that ended there is nothing, but its record has the totals."""
    web = ready(hf.spawn(child("serves_tcp", "itself", "127.0.0.1"), label="web"))
    port = web.read_at(0).text.split()[1]
    lines = dict(
        re.split(r":\s+", line, maxsplit=1)
        for line in holdfast("status", "web").stdout.splitlines()
    )
    assert lines["ports"] == port
    assert re.fullmatch(r"\d+\.\d{3} s, [\d.]+% on average", lines["cpu"])
    assert re.fullmatch(r"[\d.]+ MiB, at most [\d.]+ MiB", lines["memory"])
    assert (lines["processes"], lines["threads"]) == ("1", "1")
    assert int(lines["open files"]) >= 4
    assert re.fullmatch(r"\d.* \w*B", lines["read"])
    assert re.fullmatch(r"\d.* \w*B", lines["written"])
    used = printed("status", "web", "--json")["usage"]
    assert (used["ports"], used["processes"], used["threads"]) == ([int(port)], 1, 1)
    web.kill()
    after = printed("status", "web", "--json")
    assert after["usage"] is None
    assert after["cpu_seconds"] > 0
    assert "open files" not in holdfast("status", "web").stdout


def test_stats_follow_is_a_line_for_each_look(hf: SyncClient) -> None:
    """So many times as asked; each percentage is since the look before."""
    one, two = hf.spawn("sleep 600", label="one"), hf.spawn("while :; do :; done", label="two")
    follow = ("stats", "--follow", "--interval", "100ms", "--count", "3")
    shown = rows(*follow)
    assert [row["HANDLE"] for row in shown] == [one.handle, two.handle] * 3
    looks = [
        json.loads(line) for line in holdfast(*follow, two.handle, "--json").stdout.split("\n")[:-1]
    ]
    assert [look["handle"] for look in looks] == [two.handle] * 3
    assert all(look["cpu_percent"] > 0 for look in looks)
    assert [look["at"] for look in looks] == sorted(look["at"] for look in looks)


def test_stats_follow_ends_with_what_it_looks_at(hf: SyncClient) -> None:
    """At once, not at the next look; what else runs is of no concern to it."""
    hf.spawn("sleep 600", label="other")
    one, two = hf.spawn("sleep 600"), hf.spawn("sleep 600")
    command = ("stats", "-f", "--json", "--interval", "1h", one.handle, two.handle)
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *command], stdout=subprocess.PIPE
    ) as follower:
        assert follower.stdout is not None
        handles = [json.loads(follower.stdout.readline())["handle"] for _ in range(2)]
        assert handles == [one.handle, two.handle]
        one.kill()
        assert follower.poll() is None
        two.kill()
        assert follower.stdout.read() == b""
        assert follower.wait(30) == 0
    assert hf.list()[0].record.running
    assert len(rows("stats", "-f", one.handle)) == 1


def test_stats_follow_goes_on_until_interrupted(hf: SyncClient) -> None:
    """With what is started meanwhile, if nobody was named."""
    hf.spawn("sleep 600", label="first")
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "stats", "-f", "--interval", "100ms"],
        stdout=subprocess.PIPE,
        text=True,
    ) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline().startswith("AT ")
        assert " first " in follower.stdout.readline()
        hf.spawn("sleep 600", label="second")
        assert any(" second " in line for line in follower.stdout)
        follower.send_signal(signal.SIGINT)
        follower.stdout.read()
        assert follower.wait(30) == 130


def test_groups_and_what_is_read_are_completed(hf: SyncClient) -> None:
    """The names of groups after --group, and handles for the commands that read."""
    one = hf.spawn("sleep 600", group="checks").handle
    two = hf.spawn("sleep 600", group="checks").handle

    def offered(*words: str) -> list[str]:
        lines = holdfast("__complete", *words).stdout.splitlines()
        return [line.partition("\t")[0] for line in lines]

    assert offered("ps", "--group", "c") == ["checks"]
    assert offered("stats", one, "") == [two]
    assert offered("view", "proc") == offered("search", "proc") == [one, two]
    assert offered("search", one, "") == [""]


def test_stats_says_what_makes_no_sense(hf: SyncClient) -> None:
    """In one line, as everything else."""
    for words, told in (
        (["--count", "2"], "--follow"),
        (["-f", "--count", "0"], "at least 1"),
        (["--interval", "soon"], "duration"),
    ):
        failed = holdfast("stats", *words)
        assert failed.returncode == 125
        assert told in failed.stderr
        assert failed.stderr.count("\n") == 1
    assert holdfast("stats", "-f").stdout.count("\n") == 1, "nothing runs"


def test_wait_for_says_what_came_to_hold(hf: SyncClient) -> None:
    """0 when it holds, 124 when the time is up, 1 when the process ended first."""
    process = hf.spawn("echo Ready on 99; sleep 1000")
    wait_until(lambda: "Ready" in process.tail().text)
    found = holdfast("wait", process.handle, "--for", r"output=Ready on (\d+)", "--from-start")
    assert found.returncode == 0
    assert "Ready on 99" in found.stdout
    both = ("--for", "output=never", "--for", "quiet=10ms", "--timeout", "300ms")
    assert holdfast("wait", process.handle, *both).returncode == 0
    assert holdfast("wait", process.handle, *both, "--any").returncode == 0
    assert holdfast("wait", process.handle, *both, "--all").returncode == 124
    assert holdfast("wait", process.handle, *both, "--any", "--all").returncode == 125
    late = holdfast("wait", process.handle, "--for", "output=never", "--timeout", "50ms")
    assert late.returncode == 124
    assert "output=never" in late.stderr
    ended = hf.spawn("exit 3")
    ended.wait(30)
    first = holdfast("wait", ended.handle, "--for", "port=1", "--for", "output=x", "--json")
    assert first.returncode == 1
    assert json.loads(first.stdout)["ended"][ended.handle]["exit_code"] == 3


def test_wait_for_says_how_a_process_ended(hf: SyncClient) -> None:
    """With what was waited for, or before it; then with the last it said."""
    bad = hf.spawn("seq 1 30; echo >&2 no such thing; exit 3")
    bad.wait(30)
    shown = holdfast("wait", bad.handle, "--for", "exit")
    assert (shown.returncode, shown.stdout) == (0, "exit: failed (exit code 3)\n")
    first = holdfast("wait", bad.handle, "--for", "port=1")
    assert (first.returncode, first.stdout) == (1, "")
    told, *lines = first.stderr.splitlines()
    assert f"{bad.handle} failed (exit code 3) before that; `holdfast logs {bad.handle}`" in told
    assert lines == [*(f"  {number}" for number in range(22, 31)), "  no such thing"]


def test_wait_for_names_only_those_that_can_still_do_it(hf: SyncClient) -> None:
    """One that has ended is told of as ended; times have their unit."""
    ended, running = hf.spawn("exit 3"), hf.spawn("sleep 1000")
    ended.wait(30)
    late = holdfast("wait", running.handle, ended.handle, "--for", "output=zzz", "--timeout", "0.2")
    assert late.returncode == 124
    told, waiting = late.stderr.splitlines()
    assert told.startswith(f"holdfast: {ended.handle} failed (exit code 3) before that")
    assert waiting.endswith(f"after 0.2 s for {running.handle}: output=zzz; wait again")
    still = holdfast("wait", running.handle, "--timeout", "100ms")
    assert "still running after 100ms: " in still.stderr


def test_conditions_may_be_json(hf: SyncClient) -> None:
    """With everything that a table can say."""
    process = hf.spawn("echo Ready; sleep 1000")
    since = '{"output": "Ready", "since": "start"}'
    assert holdfast("wait", process.handle, "--for", since).returncode == 0
    bad = holdfast("wait", process.handle, "--for", '{"output": ')
    assert bad.returncode == 125
    assert '--for {"output":  is no JSON' in bad.stderr
    watch = '{"output": "x", "cooldown": 0, "most": 3}'
    started = json.loads(holdfast("run", "-d", "--json", "--watch", watch, "--", "true").stdout)
    assert [(each["cooldown"], each["most"]) for each in started["watches"]] == [(0, 3)]


def test_events_show_what_a_watch_saw(hf: SyncClient) -> None:
    """The condition and the line, not the command that everybody knows."""
    process = hf.spawn("echo an ERROR here; sleep 1000", watch="output=ERROR")
    wait_until(lambda: any(event.type == "watch" for event in hf.events()))
    (row,) = rows("events")
    assert (row["HANDLE"], row["STATUS"]) == (process.handle, "watch w1")
    assert row["COMMAND"] == "output=ERROR: an ERROR here"


def test_a_separate_stderr_is_read_too(hf: SyncClient) -> None:
    """By view and by search, unless one of them is named."""
    process = hf.spawn("echo fine; echo >&2 broken pipe", stderr="separate")
    process.wait(30)
    handle = process.handle
    assert holdfast("view", handle).stdout == "fine\n[stderr]\nbroken pipe\n"
    assert holdfast("view", handle, "--stream", "stdout").stdout == "fine\n"
    assert holdfast("view", handle, "--stream", "stderr").stdout == "broken pipe\n"
    assert process.view().complete
    shown = holdfast("search", handle, "e$|pipe")
    assert shown.stdout.splitlines() == [
        "> fine  [stdout line=0 offset=0]",
        "--",
        "> broken pipe  [stderr line=0 offset=0]",
    ]
    assert holdfast("search", handle, "pipe", "--stream", "stdout").returncode == 1
    assert [match.stream for match in process.search("pipe").matches] == ["stderr"]
    assert process.search("pipe", start=0).count == 0, "a place is one in stdout"
    both = hf.spawn("echo a; echo >&2 b", stderr="separate", yield_ms=60_000)
    assert both.early == "a\n[stderr]\nb\n"


def test_a_search_goes_on_where_it_stopped(hf: SyncClient) -> None:
    """With the words of its note."""
    process = written(hf, "seq 1 100")
    found = holdfast("search", process.handle, "7", "--first", "1", "-C", "0")
    assert found.stdout.splitlines() == [
        "> 7  [line=6 offset=12]",
        "[stopped at byte 14 of 292; go on with start=14]",
    ]
    again = holdfast("search", process.handle, "7", "--first", "1", "-C", "0", "--start", "14")
    assert again.stdout.startswith("> 17  [line=16 ")
    ranged = ("--start", "14", "--end", "50")
    assert holdfast("search", process.handle, "17", *ranged).returncode == 0
    assert holdfast("search", process.handle, "27", *ranged).returncode == 1


def test_what_is_missing_is_named(hf: SyncClient) -> None:
    """Not what was given."""
    process = hf.spawn("sleep 1000")
    assert "holdfast: PATTERN is missing" in holdfast("search", process.handle).stderr
    assert "holdfast: HANDLE PATTERN is missing" in holdfast("search").stderr
    both = holdfast("wait", process.handle, "--group", "g")
    assert both.returncode == 125
    assert "give handles or --group G, not both" in both.stderr
