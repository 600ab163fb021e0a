"""Watches: the session is told what happens to a process while no client looks."""

from __future__ import annotations

import os
import random
import resource
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import (
    BadRequest,
    Event,
    LimitReached,
    NotRunning,
    Stream,
    SyncClient,
    SyncProcess,
    Unsupported,
)
from holdfast.client.connect import open_client
from holdfast.client.link import run
from holdfast.core.home import Home
from holdfast.core.outbox import read_events
from holdfast.core.store import Store
from holdfast.testing import wait_until
from tests.proc_files import watchers_below
from tests.stepping import killed_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]
KillBoth = Callable[[SyncClient], None]


def ask(hf: SyncClient, verb: str, **fields: Any) -> Any:
    return run(hf._client._link.call(verb, fields))


def watch(hf: SyncClient, process: SyncProcess, **spec: Any) -> str:
    """Begin a watch; its id."""
    watch_id: str = ask(hf, "watch", handle=process.handle, watch=spec)["watch"]["id"]
    return watch_id


def spawn(hf: SyncClient, command: str | list[str], *specs: dict[str, Any], **more: Any) -> Any:
    """Start a process that is watched from its first byte on."""
    link = hf._client._link
    call = link.call

    async def with_watches(verb: str, fields: dict[str, Any], *rest: Any) -> Any:
        return await call(verb, fields | {"watches": list(specs)}, *rest)

    link.call = with_watches  # type: ignore[method-assign,assignment]
    try:
        return hf.spawn(command, **more)
    finally:
        link.call = call  # type: ignore[method-assign]


def seen(hf: SyncClient) -> list[Event]:
    """All that watches ever told, acknowledged or not."""
    return [event for event in read_events(hf.home, hf.session or "") if event.type == "watch"]


def lines(hf: SyncClient) -> list[str]:
    return [event.line for event in seen(hf)]


def wait_for_lines(hf: SyncClient, *expected: str, timeout: float = 30.0) -> None:
    wait_until(
        lambda: lines(hf) == list(expected),
        what=f"{expected}, and not {lines(hf)}",
        timeout=timeout,
    )


def is_done(process: SyncProcess) -> bool:
    """Whether all that an ended process wrote was looked at."""
    return all(watch.get("done") for watch in process.refresh().watches)


def watcher_pids(hf: SyncClient) -> list[int]:
    return watchers_below(hf.keeper_status()["worker"])


class Feed:
    """A FIFO; what is written into it a process writes out (`command`), and so into its log."""

    def __init__(self, path: str) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.command = ["cat", path]

    def write(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def feed(no_leaks: None, tmp_path: Path) -> Iterator[Feed]:
    feed = Feed(str(tmp_path / "feed"))
    yield feed
    feed.close()


@pytest.fixture
def errors(no_leaks: None, tmp_path: Path) -> Iterator[Feed]:
    feed = Feed(str(tmp_path / "errors"))
    yield feed
    feed.close()


def both(feed: Feed, errors: Feed) -> str:
    """A command that writes what comes from each to a stream of its own."""
    return f"{shlex.join(errors.command)} >&2 & {shlex.join(feed.command)}; wait"


def wrote(process: SyncProcess, text: str, stream: Stream = "stdout") -> None:
    wait_until(lambda: text in process.read_at(0, 1 << 20, stream=stream).text)


# -- output ----------------------------------------------------------------------------------------


def test_lines_that_match_are_told_with_what_matched(hf: SyncClient, feed: Feed) -> None:
    """Each with the match, its groups, and where it is in the log."""
    process = hf.spawn(feed.command, label="web")
    watch(hf, process, output=r"ERROR (\d+)(x)?", cooldown=0)
    feed.write("fine\nan \x1b[31mERROR\x1b[0m 404\n")
    wait_for_lines(hf, "an ERROR 404")
    feed.write("ok\nERROR 500 and ERROR 501\nERROR 502x\nERROR\n")
    wait_for_lines(hf, "an ERROR 404", "ERROR 500 and ERROR 501", "ERROR 502x")
    first, second, third = seen(hf)
    assert (first.handle, first.label, first.status) == (process.handle, "web", "running")
    assert (first.watch, first.condition) == ("w1", r"output=ERROR (\d+)(x)?")
    assert (first.match, first.groups, first.offset) == ("ERROR 404", ["404", None], 5)
    assert (second.match, third.groups) == ("ERROR 500", ["502", "x"])
    assert [event.nth for event in (first, second, third)] == [1, 2, 3]
    assert (first.most, first.missed, first.last, first.prompt) == (20, 0, False, "")
    assert process.read_at(second.offset or 0, 9).data == b"ERROR 500"
    assert first.text == (
        "[Background Process Watch]\n\n"
        f"Handle: {process.handle}\nLabel: web\nCommand: {' '.join(feed.command)}\n"
        "Watch: output=ERROR (\\d+)(x)? (1 of 20)\nMatch: an ERROR 404\n\n"
        "Output (last 2000 chars):\n| fine\n| an ERROR 404\n"
    )
    assert first.public()["groups"] == ["404", None]
    assert first.public()["crashed"] is False


def test_a_watch_begins_where_it_is_told_to(hf: SyncClient, feed: Feed) -> None:
    """At the log's end, unless it is given a place, as its beginning."""
    process = hf.spawn(feed.command)
    feed.write("ERROR 1\nERROR 2\n")
    wrote(process, "ERROR 2\n")
    watch(hf, process, output="ERROR", cooldown=0)
    feed.write("ERROR 3\n")
    wait_for_lines(hf, "ERROR 3")
    watch(hf, process, output="ERROR", cooldown=0, since=8)
    wait_for_lines(hf, "ERROR 3", "ERROR 2", "ERROR 3")
    assert [event.watch for event in seen(hf)] == ["w1", "w2", "w2"]


def test_a_line_that_nobody_finishes_is_told_of_once(hf: SyncClient, feed: Feed) -> None:
    """As it is, when nothing more comes; its rest is no other line."""
    process = hf.spawn(feed.command)
    watch(hf, process, output="ready|other", cooldown=0)
    watch(hf, process, output="not yet", most=1)
    feed.write("not yet ")
    wait_for_lines(hf, "not yet ")  # of the second watch: the first has looked at it, too
    feed.write("ready> ")
    wait_for_lines(hf, "not yet ", "not yet ready> ")
    feed.write("ready ready\nthe other\n")
    wait_for_lines(hf, "not yet ", "not yet ready> ", "the other")
    assert [(event.watch, event.offset) for event in seen(hf)] == [("w2", 0), ("w1", 0), ("w1", 27)]


def test_lines_of_any_length_and_bytes_of_any_kind_are_looked_at(
    hf: SyncClient, feed: Feed
) -> None:
    """A line that never ends, in pieces; what is no text, as well as it can be read."""
    process = hf.spawn(
        f"head -c 200000 /dev/zero | tr '\\0' x; echo; exec {shlex.join(feed.command)}"
    )
    watch(hf, process, output="needle", since=0, cooldown=0)
    feed.write(b"\xff\x00\xc3needle\r\n\xe2\x82needle\xac\n" + b"x" * 100_000 + b"needle\n")
    wait_until(lambda: len(seen(hf)) == 3)
    assert [event.match for event in seen(hf)] == ["needle"] * 3
    assert process.read_at(seen(hf)[0].offset or 0, 9).data == b"\xff\x00\xc3needle"


def test_what_matches_within_the_cooldown_is_counted_and_told_after_it(
    hf: SyncClient, feed: Feed
) -> None:
    """The first at once; of the others the last, with how many there were before it."""
    process = hf.spawn(feed.command)
    watch(hf, process, output="ERROR", cooldown=1.5)
    feed.write("ERROR 1\nfine\n")
    wait_for_lines(hf, "ERROR 1")
    for number in range(2, 6):
        feed.write(f"ERROR {number}\nfine\n")
    wait_for_lines(hf, "ERROR 1", "ERROR 5")
    first, second = seen(hf)
    assert (first.missed, second.missed) == (0, 3)
    assert "\nHeld back: 3 before it, by the cooldown\n" in second.text
    assert "ERROR 2" in second.text, "what was held back is shown as output"


def test_there_are_at_most_so_many_and_then_only_the_end(
    hf: SyncClient, feed: Feed, session: str
) -> None:
    """The last one says that no more will come; nothing is looked at any more."""
    process = hf.spawn(feed.command)
    watch(hf, process, output="ERROR", cooldown=0, most=3)
    for number in range(10):
        feed.write(f"ERROR {number}\n")
    wait_for_lines(hf, "ERROR 0", "ERROR 1", "ERROR 2")
    assert [event.last for event in seen(hf)] == [False, False, True]
    assert "(3 of 3)" in seen(hf)[-1].text
    assert "\nLast: no more will be told" in seen(hf)[-1].text
    wait_until(lambda: process.refresh().watches[0]["over"])
    feed.write("ERROR 10\n")
    wrote(process, "ERROR 10\n")
    process.kill()
    assert lines(hf) == ["ERROR 0", "ERROR 1", "ERROR 2"]
    assert [event.type for event in read_events(hf.home, session)] == ["watch"] * 3 + ["end"]


def test_a_pattern_that_takes_too_long_ends_its_watch_and_disturbs_no_other(
    hf: SyncClient, feed: Feed
) -> None:
    """It is told that nothing more is looked for; the watch beside it goes on."""
    process = hf.spawn(feed.command)
    watch(hf, process, output=r"(a|aa)+$", cooldown=0)
    watch(hf, process, output=r"b$", cooldown=0)
    feed.write("a" * 80 + "b\n")
    wait_until(lambda: len(seen(hf)) == 2)
    slow, other = sorted(seen(hf), key=lambda event: event.watch)
    assert (slow.watch, slow.reason, slow.last) == ("w1", "given_up", True)
    assert "took longer" in slow.line
    assert "\nGiven up: " in slow.text
    assert other.match == "b"
    feed.write("a" * 80 + "b\n")
    wait_until(lambda: len(seen(hf)) == 3)
    assert seen(hf)[-1].watch == "w2"


def test_a_pattern_that_makes_no_sense_is_told_so(hf: SyncClient, feed: Feed) -> None:
    """The keeper does not know patterns; whoever looks for it says what is wrong."""
    process = hf.spawn(feed.command)
    watch(hf, process, output="(")
    (event,) = wait_until(lambda: seen(hf))
    assert (event.reason, event.last) == ("given_up", True)
    assert "the pattern '(' is wrong" in event.line


# -- two streams -----------------------------------------------------------------------------------


def test_a_separate_stderr_is_watched_too(hf: SyncClient, feed: Feed, errors: Feed) -> None:
    """What matches is told with its stream, and where it is in that stream's log."""
    process = hf.spawn(both(feed, errors), stderr="separate")
    watch(hf, process, output="ERROR", cooldown=0)
    feed.write("fine\nERROR 1\n")
    wait_for_lines(hf, "ERROR 1")
    errors.write("ERROR 2\n")
    wait_for_lines(hf, "ERROR 1", "ERROR 2")
    feed.write("ERROR 3\n")
    wait_for_lines(hf, "ERROR 1", "ERROR 2", "ERROR 3")
    assert [event.stream for event in seen(hf)] == ["stdout", "stderr", "stdout"]
    assert [event.offset for event in seen(hf)] == [5, 0, 13]
    keys = [event.id.rpartition(":")[2] for event in seen(hf)]
    assert keys == ["13.0", "13.8", "21.8"]
    second = seen(hf)[1]
    assert second.public()["stream"] == "stderr"
    assert "\nMatch in stderr: ERROR 2\n" in second.text
    assert second.text.endswith("\n| ERROR 2\n"), "the output around it is of its stream"
    assert "fine" not in second.text


def test_a_watch_may_look_at_one_stream(hf: SyncClient, feed: Feed, errors: Feed) -> None:
    """The other one is as if it were not there."""
    process = hf.spawn(both(feed, errors), stderr="separate")
    names = [
        process.watch({"output": "ERROR", "stream": stream, "cooldown": 0})
        for stream in ("stdout", "stderr")
    ]
    assert names == ["w1", "w2"]
    silence = process.watch({"quiet": 1, "stream": "stdout", "cooldown": 0})
    assert silence == "w3"
    wait_for_lines(hf, "1s")
    errors.write("ERROR 2\n")
    wait_for_lines(hf, "1s", "ERROR 2")
    assert process.watch({"quiet": 2, "stream": "stderr"}) == "w4"
    wait_for_lines(hf, "1s", "ERROR 2", "2s")  # and for stdout nothing that is new
    feed.write("ERROR 1\n")
    wait_for_lines(hf, "1s", "ERROR 2", "2s", "ERROR 1", "1s")
    told = {event.line: event for event in seen(hf)}
    assert (told["ERROR 1"].watch, told["ERROR 2"].watch) == ("w1", "w2")
    assert told["ERROR 2"].condition == "output=ERROR stream=stderr"
    assert told["ERROR 2"].id.endswith(":8")
    assert [shown.get("stream") for shown in process.refresh().public()["watches"]] == [
        *("stdout", "stderr", "stdout", "stderr")
    ]


def test_a_stream_that_is_not_there_cannot_be_watched(hf: SyncClient, feed: Feed) -> None:
    """Neither at a start nor later, by a client or by what a client sends."""
    process = hf.spawn(feed.command)
    spec = {"output": "x", "stream": "stderr"}
    with pytest.raises(Unsupported, match="stderr separate"):
        process.watch(spec)
    with pytest.raises(Unsupported, match="stderr separate"):
        hf.spawn("exit 0", watch=[spec])
    for asked in (spec, {"quiet": 5, "stream": "stderr"}, {"output": "x", "since": [0, 0]}):
        with pytest.raises(Unsupported, match="stderr separate"):
            ask(hf, "watch", handle=process.handle, watch=asked)
        with pytest.raises(Unsupported, match="stderr separate"):
            spawn(hf, "exit 0", asked)
    assert process.refresh().watches == []
    assert watch(hf, process, output="x", stream="stdout", cooldown=0) == "w1"
    feed.write("x\n")
    wait_for_lines(hf, "x")
    assert seen(hf)[0].stream == ""


def test_an_offset_is_a_place_in_one_stream(hf: SyncClient, feed: Feed, errors: Feed) -> None:
    """From the start and from now mean both."""
    process = hf.spawn(both(feed, errors), stderr="separate", watch=["output=1"])
    feed.write("out 1\n")
    wait_for_lines(hf, "out 1")
    errors.write("err 1\n")
    wrote(process, "err 1\n", "stderr")
    process.watch({"output": "out|err", "since": "start", "cooldown": 0})
    wait_until(lambda: len(seen(hf)) == 3)
    process.watch({"output": "out|err", "since": 3, "cooldown": 0, "most": 2})
    process.watch({"output": "out|err", "since": 2, "stream": "stderr", "cooldown": 0})
    process.watch({"output": "out|err", "since": "now", "cooldown": 0, "most": 3})
    feed.write("out 2\n")
    wait_until(lambda: len(seen(hf)) == 6)
    errors.write("err 2\n")
    wait_until(lambda: len(seen(hf)) == 9)
    told: dict[str, list[str]] = {}
    for event in seen(hf):
        told.setdefault(event.watch, []).append(event.line)
    assert told == {
        "w1": ["out 1"],
        "w2": ["out 1", "err 1", "out 2", "err 2"],
        "w3": ["out 2"],
        "w4": ["err 2"],
        "w5": ["out 2", "err 2"],
    }


def test_silence_is_that_of_both_streams(hf: SyncClient, feed: Feed, errors: Feed) -> None:
    """Whatever comes on one of them ends it."""
    process = hf.spawn(both(feed, errors), stderr="separate")
    watch(hf, process, quiet=0.4, cooldown=0)
    wait_until(lambda: len(seen(hf)) == 1)
    errors.write("err\n")
    wait_until(lambda: len(seen(hf)) == 2)
    feed.write("out\n")
    wait_until(lambda: len(seen(hf)) == 3)
    assert [event.id.rpartition(":")[2] for event in seen(hf)] == ["0.0", "0.4", "4.4"]
    assert seen(hf)[-1].tail == b"out\nerr\n"


def test_an_interval_tells_what_is_new_in_both_streams(
    hf: SyncClient, feed: Feed, errors: Feed
) -> None:
    """In one event: first of stdout, then of stderr."""
    process = hf.spawn(both(feed, errors), stderr="separate")
    feed.write("old\n")
    wrote(process, "old\n")
    watch(hf, process, every=1)
    errors.write("errors\n")
    wait_for_lines(hf, "7 bytes")
    (watcher,) = watcher_pids(hf)
    os.kill(watcher, signal.SIGSTOP)  # so that it sees both at once
    feed.write("new\n")
    errors.write("more errors\n")
    wrote(process, "new\n")
    wrote(process, "more errors\n", "stderr")
    os.kill(watcher, signal.SIGCONT)
    wait_for_lines(hf, "7 bytes", "16 bytes, 12 of them in stderr")
    first, second = seen(hf)
    assert (first.stream, first.offset, first.tail) == ("stderr", 0, b"errors\n")
    assert "\nNew output in stderr: 7 bytes\n" in first.text
    assert (second.stream, second.offset, second.tail) == ("", 4, b"new\nmore errors\n")


@pytest.mark.long
def test_a_cooldown_is_one_for_both_streams(hf: SyncClient, feed: Feed, errors: Feed) -> None:
    """What one held back is counted with the other's, and not found again by the next watcher."""
    process = hf.spawn(both(feed, errors), stderr="separate")
    watch(hf, process, output="ERROR", cooldown=4, most=5)
    feed.write("ERROR 1\n")
    wait_for_lines(hf, "ERROR 1")
    feed.write("ERROR 2\n")
    wrote(process, "ERROR 2\n")
    errors.write("ERROR 3\n")
    wait_until(lambda: len(seen(hf)) == 2)
    assert seen(hf)[1].missed == 1
    wait_until(lambda: process.refresh().watches[0]["place"] == [16, 8])
    (pid,) = watcher_pids(hf)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: watcher_pids(hf) not in ([], [pid]))
    errors.write("ERROR 4\n")
    wait_until(lambda: len(seen(hf)) == 3)
    assert (seen(hf)[2].line, seen(hf)[2].missed) == ("ERROR 4", 0)


def test_the_last_output_of_both_streams_is_looked_at(hf: SyncClient) -> None:
    """Whatever of it there is, before the watch is done."""
    command = "seq -f 'ERROR %g' 30; seq -f 'ERROR %g' 31 60 >&2; printf 'ERROR last' >&2; exit 3"
    spec = {"output": "ERROR", "cooldown": 0, "most": 100}
    process = spawn(hf, command, spec, stderr="separate")
    assert process.wait(30).code == 3
    wait_until(lambda: is_done(process))
    told = {
        stream: [event.line for event in seen(hf) if event.stream == stream]
        for stream in ("stdout", "stderr")
    }
    assert told["stdout"] == [f"ERROR {number}" for number in range(1, 31)]
    assert told["stderr"] == [*(f"ERROR {number}" for number in range(31, 61)), "ERROR last"]


# -- the end ---------------------------------------------------------------------------------------


def test_what_matches_in_the_last_output_is_told_though_the_process_has_ended(
    hf: SyncClient, session: str
) -> None:
    """A process may be gone before anybody can look at what it wrote; its end does not wait."""
    command = "seq -f 'ERROR %g' 50; printf 'ERROR without an end'; exit 3"
    spec = {"output": "ERROR", "cooldown": 0, "most": 100}
    process = spawn(hf, command, spec)
    assert process.wait(30).code == 3
    expected = [*(f"ERROR {number}" for number in range(1, 51)), "ERROR without an end"]
    wait_for_lines(hf, *expected)
    wait_until(lambda: is_done(process))
    assert seen(hf)[-1].status == "failed"
    types = [event.type for event in read_events(hf.home, session)]
    assert types.count("end") == 1


def test_what_is_held_back_is_told_at_the_end(hf: SyncClient) -> None:
    """Nothing comes after the cooldown of a process that has ended."""
    process = spawn(hf, "seq -f 'ERROR %g' 50", {"output": "ERROR", "cooldown": 1000})
    wait_for_lines(hf, "ERROR 1", "ERROR 50")
    assert [event.missed for event in seen(hf)] == [0, 48]
    wait_until(lambda: is_done(process))


@pytest.mark.parametrize("killed", ["watcher", "worker", "both"])
def test_the_last_output_is_looked_at_by_whoever_comes_next(
    hf: SyncClient, feed: Feed, killed: str, kill_both: KillBoth
) -> None:
    """Also if nobody was there to look when the process ended."""
    process = spawn(hf, feed.command, {"output": "ERROR", "cooldown": 0})
    feed.write("ERROR 1\n")
    wait_for_lines(hf, "ERROR 1")
    (watcher,) = watcher_pids(hf)
    os.kill(watcher, signal.SIGSTOP)
    feed.write("ERROR 2\n")
    wrote(process, "ERROR 2\n")
    process.kill()
    if killed == "watcher":
        os.kill(watcher, signal.SIGKILL)
    elif killed == "worker":
        os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
        os.kill(watcher, signal.SIGKILL)
    else:
        kill_both(hf)
        os.kill(watcher, signal.SIGKILL)
        hf.spawn("exit 0")
    wait_for_lines(hf, "ERROR 1", "ERROR 2")
    wait_until(lambda: is_done(process))


def test_a_removed_process_is_not_told_of_any_more(hf: SyncClient, feed: Feed) -> None:
    """Neither what was told nor what is found later is left."""
    process = spawn(hf, feed.command, {"output": "ERROR", "cooldown": 0})
    feed.write("ERROR 1\n")
    wait_for_lines(hf, "ERROR 1")
    (watcher,) = watcher_pids(hf)
    os.kill(watcher, signal.SIGSTOP)
    feed.write("ERROR 2\n")
    wrote(process, "ERROR 2\n")
    process.remove()
    assert list(hf.events()) == []
    os.kill(watcher, signal.SIGCONT)
    other = spawn(hf, "echo fine", {"output": "fine"})
    wait_until(lambda: is_done(other))
    assert [event.line for event in hf.events() if event.type == "watch"] == ["fine"]
    assert not os.path.exists(hf.home.meta(process.handle))


def test_crashes_are_marked(hf: SyncClient, session: str) -> None:
    """Another code than 0 or a signal is a crash; an end in good order, or a kill, is not."""
    crashes = {
        hf.spawn("exit 0").handle: False,
        hf.spawn("exit 3").handle: True,
        hf.spawn("kill -SEGV $$").handle: True,
    }
    killed = hf.spawn("sleep 1000")
    crashes[killed.handle] = False
    wait_until(lambda: len(list(hf.events())) == 3)
    killed.kill()
    events = {event.handle: event for event in read_events(hf.home, session)}
    assert {handle: event.crashed for handle, event in events.items()} == crashes
    assert {handle: event.public()["crashed"] for handle, event in events.items()} == crashes
    assert all(event.text.startswith("[Background Process Completed]") for event in events.values())


# -- silence, ports, intervals ---------------------------------------------------------------------


def test_silence_is_told_once_until_there_is_output_again(hf: SyncClient, feed: Feed) -> None:
    """Of a process that has written nothing yet, too."""
    process = hf.spawn(feed.command)
    watch(hf, process, quiet=0.4, cooldown=0)
    watch(hf, process, quiet=1.5, cooldown=0)
    wait_for_lines(hf, "0.4s", "1.5s")  # and not again after 0.8 s
    feed.write("0\n1\n2\n")
    wait_for_lines(hf, "0.4s", "1.5s", "0.4s", "1.5s")
    first, _, second, _ = seen(hf)
    assert (first.condition, first.line, first.nth, second.nth) == ("quiet=0.4s", "0.4s", 1, 2)
    assert "\nQuiet for: 0.4s\n" in second.text
    assert second.text.endswith("\n| 2\n")
    assert [event.id.rpartition(":")[2] for event in (first, second)] == ["0", "6"]


def test_an_interval_tells_what_is_new_if_anything_is(hf: SyncClient, feed: Feed) -> None:
    """Each byte once, and of many the last."""
    process = hf.spawn(feed.command)
    watch(hf, process, every=0.3)
    feed.write("one\n")
    wait_for_lines(hf, "4 bytes")
    silence = watch(hf, process, quiet=1.2)
    wait_for_lines(hf, "4 bytes", "1.2s")  # of several intervals nothing was told
    ask(hf, "unwatch", handle=process.handle, watch=silence)
    feed.write("two\n" + "x" * 10_000)

    def told() -> list[Event]:
        return [event for event in seen(hf) if event.watch == "w1"]

    wait_until(lambda: sum(int(event.line.split()[0]) for event in told()) == 10_008)
    first, *rest = told()
    assert (first.line, first.tail, first.offset) == ("4 bytes", b"one\n", 0)
    assert "\nNew output: 4 bytes\n" in first.text
    assert b"one" not in b"".join(event.tail for event in rest)
    assert rest[-1].text.endswith("x" * 2000)
    assert rest[0].offset == 4


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_port_is_told_when_it_opens(hf: SyncClient, child: Child) -> None:
    """By the process or what it started; once, and then nothing looks for it any more."""
    port = free_port()
    server = child("serves_tcp", "child", "127.0.0.1", str(port))
    process = spawn(hf, server, {"port": port})
    (event,) = wait_until(lambda: seen(hf))
    _, served, pid = process.read_at(0).text.split()[:3]
    assert (event.condition, event.line) == (f"port={port}", f"{served}, pid {pid}")
    assert f"\nPort: {port}, pid {pid}\n" in event.text
    assert (event.last, event.reason) == (True, None)
    wait_until(lambda: process.refresh().watches[0]["over"])


def test_a_port_that_somebody_else_has_is_told_so(hf: SyncClient, child: Child) -> None:
    """Once; and when it is free and the process has it, that is told too."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        server = child("serves_tcp", "itself", "127.0.0.1", str(port))
        command = f"until {' '.join(server)} 2>/dev/null; do sleep 0.1; done"
        process = spawn(hf, command, {"port": port, "cooldown": 0})
        (event,) = wait_until(lambda: seen(hf))
        assert (event.reason, event.last) == ("taken", False)
        assert event.line.startswith(f"{port}, taken by ")
        assert f"(pid {os.getpid()})" in event.line
        for most in (1, 2):  # others find it so again, and with them the first one
            watch(hf, process, port=port, most=most)
            wait_until(lambda most=most: len(seen(hf)) == 1 + most)  # type: ignore[misc]
    wait_until(lambda: len(seen(hf)) >= 4)
    assert [event.reason for event in seen(hf)[:3]] == ["taken"] * 3
    first, second = [event for event in seen(hf) if event.watch == "w1"]
    assert (first.nth, second.nth, second.last) == (1, 2, True)
    assert second.line.startswith(f"{port}, pid ")


# -- asking for them -------------------------------------------------------------------------------


def test_a_watch_holds_with_no_client_connected(home: str, session: str) -> None:
    """Whoever comes back finds what was seen."""
    person = open_client(Home(home).ensure(), session)
    spawn(person, "sleep 0.5; echo ERROR; sleep 1000", {"output": "ERROR"})
    person.close()
    wait_until(lambda: lines(person) == ["ERROR"])


def test_a_watch_can_be_ended(hf: SyncClient, feed: Feed) -> None:
    """Then it is not told of; its name is not used again; to end it twice is fine."""
    process = hf.spawn(feed.command)
    first = watch(hf, process, output="ERROR", cooldown=0)
    feed.write("ERROR 1\n")
    wait_for_lines(hf, "ERROR 1")
    for _ in range(2):
        assert ask(hf, "unwatch", handle=process.handle, watch=first) == {}
    assert process.refresh().watches == []
    feed.write("ERROR 2\n")
    wrote(process, "ERROR 2\n")
    second = watch(hf, process, output="ERROR", cooldown=0)
    feed.write("ERROR 3\n")
    wait_for_lines(hf, "ERROR 1", "ERROR 3")
    assert (first, second) == ("w1", "w2")
    for nothing in ("w3", "w0", "", None, 1, ["w1"]):
        with pytest.raises(BadRequest, match=r"has no watch .*it has w2"):
            ask(hf, "unwatch", handle=process.handle, watch=nothing)


def test_the_same_watch_twice_is_one(hf: SyncClient, feed: Feed) -> None:
    """Whoever did not hear the answer asks again."""
    process = hf.spawn(feed.command)
    spec = {"output": "ERROR", "since": 0, "cooldown": 0}
    assert [watch(hf, process, **spec) for _ in range(3)] == ["w1"] * 3
    assert watch(hf, process, **spec | {"since": 1}) == "w2"
    assert watch(hf, process, quiet=1000) == "w3"
    assert watch(hf, process, quiet=1000.0) == "w3"
    assert watch(hf, process, quiet=1000, most=3) == "w4"


@pytest.mark.own_keeper
def test_there_are_at_most_twenty_of_them(hf: SyncClient, feed: Feed) -> None:
    """One that is over makes room; records of any length are read again."""
    process = hf.spawn(feed.command)
    patterns = ["over", *(f"{number:03d}" * 500 for number in range(19))]
    for pattern in patterns:
        watch(hf, process, output=pattern, most=1)
    with pytest.raises(LimitReached, match="20 watches"):
        watch(hf, process, output="one more")
    feed.write("over\n")
    wait_until(lambda: process.refresh().watches[0]["over"])
    assert watch(hf, process, output="one more", cooldown=0) == "w21"
    assert len(process.refresh().watches) == 20
    hf.keeper_restart()
    feed.write("one more\n")
    wait_for_lines(hf, "over", "one more")
    for number in range(2, 21):
        ask(hf, "unwatch", handle=process.handle, watch=f"w{number}")
    assert [watch["id"] for watch in Store(hf.home).load(process.handle).watches] == ["w21"]
    hf.keeper_restart()
    assert process.refresh().running


@pytest.mark.parametrize(
    "spec",
    [
        None,
        "output=ERROR",
        [],
        {},
        {"output": ""},
        {"output": 5},
        {"output": "x" * 10_001},
        {"output": "x", "since": -1},
        {"output": "x", "since": "start"},
        {"output": "x", "port": 80},
        {"output": "x", "place": 7},
        {"quiet": 0},
        {"quiet": "5s"},
        {"quiet": 1, "since": 0},
        {"quiet": float("nan")},
        {"every": -1},
        {"every": 1e300},
        {"every": True},
        {"port": 0},
        {"port": 65536},
        {"port": "80"},
        {"port": True},
        {"output": "x", "cooldown": -1},
        {"output": "x", "cooldown": None},
        {"output": "x", "stream": "stdin"},
        {"output": "x", "stream": None},
        {"output": "x", "since": []},
        {"output": "x", "since": [0, 0, 0]},
        {"output": "x", "since": [0, -1]},
        {"output": "x", "since": [0, 0], "stream": "stdout"},
        {"port": 80, "stream": "stdout"},
        {"output": "x", "most": 0},
        {"output": "x", "most": 1.5},
        {"http": "http://127.0.0.1/"},
    ],
)
def test_what_makes_no_sense_is_refused(hf: SyncClient, spec: Any) -> None:
    """At a start as later; nothing is started, and nothing is changed."""
    process = hf.spawn("sleep 1000")
    with pytest.raises(BadRequest):
        ask(hf, "watch", handle=process.handle, watch=spec)
    with pytest.raises(BadRequest):
        spawn(hf, "sleep 1000", spec)
    assert [found.handle for found in hf.list()] == [process.handle]
    assert process.refresh().watches == []


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("every=0", "every takes a number of seconds above 0, not 0"),
        ({"output": "x", "colldown": 1}, r"knows no 'colldown' \(did you mean 'cooldown'\?\)"),
        ({"output": "x", "colldown": 1}, "it knows cooldown, most, since, stream"),
        ({"output": "x", "since": "garbage"}, "since is .*, not 'garbage'"),
        ({"output": "x", "since": -5}, "since is .*, not -5"),
        (5, "watch is like output=PATTERN"),
    ],
)
def test_what_is_wrong_with_a_watch_is_named(hf: SyncClient, condition: Any, why: str) -> None:
    """With what it could be instead."""
    with pytest.raises(BadRequest, match=why):
        hf.spawn("true", watch=condition)


def test_one_watch_need_not_be_in_a_list(hf: SyncClient) -> None:
    """A text, or a table."""
    for one in ("output=x", {"output": "x"}):
        (kept,) = hf.spawn("sleep 1000", watch=one).record.watches
        assert kept["output"] == "x"


def test_an_ended_process_cannot_be_watched(hf: SyncClient) -> None:
    process = hf.spawn("exit 0")
    process.wait(30)
    for verb, more in (("watch", {"watch": {"output": "x"}}), ("unwatch", {"watch": "w1"})):
        with pytest.raises(NotRunning):
            ask(hf, verb, handle=process.handle, **more)


@pytest.mark.long
@pytest.mark.own_keeper
def test_there_is_a_watcher_while_something_is_watched(hf: SyncClient, feed: Feed) -> None:
    """A process that nobody can type to has one while it has a watch that is not over."""
    process = hf.spawn(feed.command)
    assert watcher_pids(hf) == []
    watch(hf, process, output="ERROR", most=1)
    (pid,) = wait_until(lambda: watcher_pids(hf))
    feed.write("ERROR\n")
    wait_for_lines(hf, "ERROR")
    wait_until(lambda: watcher_pids(hf) == [])
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
    os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
    wait_until(lambda: hf.keeper_status()["worker"])
    hf.spawn("sleep 0.5").wait(30)  # by then it would have started one
    assert watcher_pids(hf) == []


# -- accidents -------------------------------------------------------------------------------------


def test_an_event_that_the_record_does_not_know_of_is_not_told_again(
    hf: SyncClient, feed: Feed, kill_both: KillBoth
) -> None:
    """A worker was killed between telling it and writing that down; its successor sees that."""
    process = hf.spawn(feed.command)
    watch(hf, process, output="ERROR", cooldown=0, most=5)
    watch(hf, process, quiet=0.3, cooldown=0)
    before = process.refresh()
    feed.write("ERROR 1\nfine\nERROR 2\nERROR")
    wait_until(lambda: len(seen(hf)) == 4)
    hf.acknowledge(*list(hf.events())[:2])
    kill_both(hf)
    Store(hf.home).save(before)
    hf.keeper_status()
    wait_until(lambda: [watch["told"] for watch in process.refresh().watches] == [3, 1])
    feed.write(" 3, and another ERROR in its rest\nERROR 4\n")
    wait_until(lambda: len(seen(hf)) == 6)
    told = [event.line for event in seen(hf) if event.watch == "w1"]
    assert told == ["ERROR 1", "ERROR 2", "ERROR", "ERROR 4"]
    assert [event.nth for event in seen(hf) if event.watch == "w1"] == [1, 2, 3, 4]


def test_events_of_two_streams_that_the_record_does_not_know_of_are_not_told_again(
    hf: SyncClient, feed: Feed, errors: Feed, kill_both: KillBoth
) -> None:
    """By their ids it is known how far each stream was looked at."""
    process = hf.spawn(both(feed, errors), stderr="separate")
    watch(hf, process, output="ERROR", cooldown=0, most=9)
    watch(hf, process, quiet=0.3, cooldown=0)
    before = process.refresh()
    feed.write("ERROR 1\n")
    wait_until(lambda: "ERROR 1" in lines(hf))
    errors.write("ERROR 2\nERROR")
    wait_until(lambda: lines(hf)[-1] == "0.3s" and "ERROR" in lines(hf))
    (place, _) = [watch["place"] for watch in process.refresh().watches]
    hf.acknowledge(*list(hf.events())[:2])
    kill_both(hf)
    Store(hf.home).save(before)
    hf.keeper_status()
    wait_until(lambda: process.refresh().watches[0]["place"] == place)
    assert process.refresh().watches[0]["partly"] == [False, True]
    feed.write("ERROR 3\n")
    errors.write(" and its rest with an ERROR\nERROR 4\n")
    wait_until(lambda: {"ERROR 3", "ERROR 4"} < set(lines(hf)))
    told = [event for event in seen(hf) if event.watch == "w1"]
    assert sorted(event.line for event in told) == sorted(
        ["ERROR 1", "ERROR 2", "ERROR", "ERROR 3", "ERROR 4"]
    )
    assert [event.nth for event in told] == [1, 2, 3, 4, 5]


def test_a_watch_from_before_there_were_two_streams_goes_on(
    hf: SyncClient, feed: Feed, errors: Feed, kill_both: KillBoth
) -> None:
    """Its record has one place: that of stdout, which is all that it looks at."""
    process = hf.spawn(both(feed, errors), stderr="separate")
    watch(hf, process, output="ERROR", cooldown=0)
    kill_both(hf)
    old = Store(hf.home).load(process.handle)
    old.watches[0] |= {"place": 0, "partly": False, "since": 0}
    Store(hf.home).save(old)
    process.refresh()  # which starts another keeper
    errors.write("ERROR 1\n")
    wrote(process, "ERROR 1\n", "stderr")
    feed.write("ERROR 2\nERROR 3\n")
    wait_for_lines(hf, "ERROR 2", "ERROR 3")
    assert [event.id.rpartition(":")[2] for event in seen(hf)] == ["8", "16"]
    kill_both(hf)
    Store(hf.home).save(old)
    process.refresh()  # which starts another keeper
    feed.write("ERROR 4\n")
    wait_for_lines(hf, "ERROR 2", "ERROR 3", "ERROR 4")
    wait_until(lambda: process.refresh().watches[0]["place"] == 24)
    assert {event.stream for event in seen(hf)} == {"stdout"}


@pytest.mark.long
@pytest.mark.own_keeper
@pytest.mark.parametrize("separate", [False, True], ids=["merged", "separate"])
def test_a_worker_killed_at_each_step_of_telling_what_was_seen(
    hf: SyncClient, feed: Feed, errors: Feed, separate: bool
) -> None:
    """The next one goes on: each line is told once, and they are in order."""
    command = both(feed, errors) if separate else feed.command
    process = hf.spawn(command, timeout=None, stderr="separate" if separate else "merged")
    watch(hf, process, output="ERROR", cooldown=0, most=1000)
    expected: list[str] = []

    def tell(line: str) -> None:
        expected.append(line)
        (errors if separate and len(expected) % 3 else feed).write(f"{line}\n")
        wait_until(lambda: line in lines(hf))

    reached = []
    for step in range(40):
        tell(f"ERROR before {step}")  # so the watcher is there, and looks
        worker = hf.keeper_status()["worker"]
        _, there = killed_at(worker, step, lambda step=step: tell(f"ERROR {step}"))  # type: ignore[misc]
        reached.append(there)
        assert lines(hf) == expected
    assert sum(reached) > 5
    assert len({event.id for event in seen(hf)}) == len(expected)


@pytest.mark.long
@pytest.mark.parametrize("separate", [False, True], ids=["merged", "separate"])
def test_nothing_is_missed_or_repeated_whatever_is_killed(
    hf: SyncClient, kill_both: KillBoth, separate: bool
) -> None:
    """300 lines, while watcher, worker and both halves of the keeper are killed again and again."""
    numbers = random.Random(7)
    command = (
        "for i in {1..150}; do echo line $((2*i-1)) ERROR; echo fine >&2; echo fine; sleep 0.03; "
        "echo line $((2*i)) ERROR >&2; sleep 0.03; done"
    )
    process = spawn(
        hf,
        command,
        {"output": "ERROR", "cooldown": 0, "most": 1000},
        keep=True,
        stderr="separate" if separate else "merged",
    )
    kills = 0
    while process.refresh().running:
        time.sleep(numbers.uniform(0.05, 0.6))
        status = hf.keeper_status()
        what = numbers.choice(["watcher", "watcher", "worker", "worker", "both"])
        if what == "both":
            if "line 201 ERROR" in process.read_at(0, 1 << 20).text:
                continue  # of what ends while there is no keeper the last output is lost to all
            kill_both(hf)
            hf.keeper_status()
        else:
            for pid in watcher_pids(hf) if what == "watcher" else [status["worker"]]:
                os.kill(pid, signal.SIGKILL)
        kills += 1
    assert kills > 10
    wait_until(lambda: is_done(process), timeout=60)
    for stream, first, step in [("stdout", 1, 2), ("stderr", 2, 2)] if separate else [("", 1, 1)]:
        told = [event.line for event in seen(hf) if event.stream == stream]
        assert told == [f"line {number} ERROR" for number in range(first, 301, step)]
    assert len({event.id for event in seen(hf)}) == 300
    assert [event.nth for event in seen(hf)] == list(range(1, 301))


@pytest.mark.weight(5)
@pytest.mark.own_keeper
def test_cooldowns_and_caps_hold_across_kills(hf: SyncClient, feed: Feed) -> None:
    """Nobody is flooded because the watcher was killed."""
    process = hf.spawn(feed.command)
    watch(hf, process, output="ERROR", cooldown=4, most=2)
    feed.write("ERROR 1\n")
    wait_for_lines(hf, "ERROR 1")
    began = time.monotonic()
    for number in range(2, 5):
        (pid,) = wait_until(lambda: watcher_pids(hf))
        feed.write(f"ERROR {number}\n")
        os.kill(pid if number % 2 else hf.keeper_status()["worker"], signal.SIGKILL)
        wait_until(lambda pid=pid: watcher_pids(hf) not in ([], [pid]))  # type: ignore[misc]
    wait_for_lines(hf, "ERROR 1", "ERROR 4")
    assert time.monotonic() - began > 3.5
    assert [(event.missed, event.last) for event in seen(hf)] == [(0, False), (2, True)]


@pytest.mark.own_keeper
def test_what_cannot_be_written_now_is_told_later(hf: SyncClient, feed: Feed, session: str) -> None:
    """A full disk: the watch stays where it was, and looks again."""
    process = hf.spawn(feed.command)
    watch(hf, process, output="ERROR", cooldown=0)
    for number in range(8):
        feed.write(f"ERROR {number} " + "x" * 300 + "\n")
        wait_until(lambda number=number: len(seen(hf)) == number + 1)  # type: ignore[misc]
    assert os.path.getsize(hf.home.outbox(session)) > 8192
    worker = hf.keeper_status()["worker"]
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
    feed.write("ERROR 8\nERROR 9\n")
    wait_until(lambda: "cannot be told yet" in Path(hf.home.path, "keeper.log").read_text())
    assert len(seen(hf)) == 8
    resource.prlimit(worker, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    wait_until(lambda: lines(hf)[8:] == ["ERROR 8", "ERROR 9"])
    feed.write("ERROR 10\n")
    wait_until(lambda: lines(hf)[8:] == ["ERROR 8", "ERROR 9", "ERROR 10"])


def test_a_flood_is_looked_at_without_holding_up_anything(hf: SyncClient, feed: Feed) -> None:
    """While one process floods, what another one says is told."""
    flooding = spawn(hf, "yes a line of an endless flood", {"output": "no such line"})
    process = spawn(hf, feed.command, {"output": "ERROR", "cooldown": 0})
    for number in range(3):
        feed.write(f"ERROR {number}\n")
        wait_until(lambda number=number: lines(hf)[-1:] == [f"ERROR {number}"])  # type: ignore[misc]
    assert process.refresh().running
    flooding.kill()
