"""Waiting for exactly the right thing: output, ports, answers, files, silence, prompts, ends."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast import BadRequest, NotFound, Stream, SyncClient, SyncProcess, Unsupported, connect
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper

SERVER = [sys.executable, "-IS", "-m", "http.server", "--bind", "127.0.0.1"]


def waits() -> bool:
    """Whether a wait is under way here: it knows where to look from once it hears of changes."""
    for fd in Path("/proc/self/fdinfo").iterdir():
        try:
            if "\ninotify wd:" in fd.read_text():
                return True
        except FileNotFoundError:
            continue
    return False


def in_a_moment(action: Callable[[], object]) -> threading.Thread:
    """Do something while the test waits."""

    def run() -> None:
        wait_until(waits)
        action()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


# -- output ----------------------------------------------------------------------------------------


def test_a_match_comes_back_with_its_groups(hf: SyncClient, gate: Gate) -> None:
    """As soon as the line is there: the match, its groups, the line and where it is."""
    process = hf.spawn(f"echo before; : < {gate.path}; echo 'Ready on 4711 (pid 12)'; sleep 1000")
    wait_until(lambda: "before" in process.tail().text)
    thread = in_a_moment(gate.open)
    waited = process.wait_for(r"output=Ready on (?P<port>\d+) \(pid (\d+)\)", timeout=30)
    thread.join()
    assert waited.ok
    assert not waited.timed_out
    (met,) = waited.met
    assert met.handle == process.handle
    assert met.detail["match"] == "Ready on 4711 (pid 12)"
    assert met.detail["groups"] == ["4711", "12"]
    assert met.detail["named"] == {"port": "4711"}
    assert process.read_at(met.detail["offset"]).text.startswith("Ready on")
    assert waited.tail[process.handle] == "Ready on 4711 (pid 12)\n"


def test_output_counts_from_the_start_and_each_match_once(hf: SyncClient) -> None:
    """Nobody can know what was written before they asked; `since` says otherwise."""
    process = hf.spawn("echo Ready; sleep 1000")
    wait_until(lambda: "Ready" in process.tail().text)
    assert process.wait_for({"output": "Ready", "since": "now"}, timeout=0.1).timed_out
    assert process.wait_for("output=Ready", timeout=30).ok
    assert process.wait_for("output=Ready", timeout=0.1).timed_out
    assert process.wait_for({"output": "Ready", "since": "start"}, timeout=30).ok
    assert process.wait_for({"output": "Ready", "since": "start"}, timeout=30).ok
    assert process.wait_for({"output": "Ready", "since": 3}, timeout=0.1).timed_out


def test_a_wait_that_is_repeated_misses_nothing_in_between(
    hf: SyncClient, gate: Gate, session: str
) -> None:
    """The time was up, the line came, the same call finds it; and then only what is newer."""
    process = hf.spawn(f": < {gate.path}; echo Ready; sleep 1000")
    assert process.wait_for("output=Ready", timeout=0.05).timed_out
    gate.open()
    wait_until(lambda: "Ready" in process.tail().text)
    with connect(session=session) as again:
        assert again.get(process.handle).wait_for("output=Ready", timeout=30).ok
    assert process.wait_for("output=Ready", timeout=0.05).timed_out


def test_a_prompt_without_a_newline_matches(hf: SyncClient) -> None:
    process = hf.spawn("printf 'Password: '; sleep 1000")
    assert process.wait_for({"output": "^Password: $", "since": "start"}, timeout=30).ok


def test_a_pattern_is_matched_without_terminal_codes(hf: SyncClient) -> None:
    process = hf.spawn(r"printf '\033[32mRea\033[0mdy\r\n'; sleep 1000")
    assert process.wait_for({"output": "^Ready$", "since": "start"}, timeout=30).ok


def test_a_pattern_that_takes_for_ever_is_given_up(hf: SyncClient) -> None:
    """It is refused within its time, and nobody else is held up."""
    process = hf.spawn("printf '%03000d!\\n' 0 | tr 0 a; sleep 1000")
    wait_until(lambda: "!" in process.tail().text)
    with pytest.raises(BadRequest, match="took longer"):
        process.wait_for({"output": "(a+)+$", "since": "start"}, timeout=30)
    assert hf.spawn("exit 3").wait(30).code == 3


# -- two streams -----------------------------------------------------------------------------------


def test_a_match_in_a_separate_stderr_counts(hf: SyncClient, gate: Gate) -> None:
    """It comes back with its stream; the tail has stdout first, and then stderr."""
    process = hf.spawn(
        f": < {gate.path}; echo ERROR 4 >&2; echo out; sleep 1000", stderr="separate"
    )
    thread = in_a_moment(gate.open)
    waited = process.wait_for(r"output=ERROR (\d)", "output=out", all=True, timeout=30)
    thread.join()
    assert [met.detail["stream"] for met in waited.met] == ["stderr", "stdout"]
    (error, _) = waited.met
    assert (error.detail["groups"], error.detail["offset"]) == (["4"], 0)
    assert error.public()["stream"] == "stderr"
    assert error.describe() == r"output=ERROR (\d): line ERROR 4, stream stderr"
    assert waited.tail[process.handle] == "out\nERROR 4\n"


def test_the_tail_has_room_for_both_streams(hf: SyncClient) -> None:
    """2000 characters: what one does not need is the other's, and neither has none."""
    flood = "head -c 9000 /dev/zero | tr '\\0'"
    process = hf.spawn(f"{flood} o; {flood} e >&2; exit 3", stderr="separate")
    process.wait(30)
    found = {"output": "x", "since": "start"}
    tail = process.wait_for(found, timeout=30).tail[process.handle]
    assert tail == 1000 * "o" + 1000 * "e", "its last, though it had ended before"
    for out, err, seen in [
        (9000, 9000, (1000, 1000)),
        (9000, 10, (1990, 10)),
        (5, 9000, (5, 1995)),
    ]:
        command = f"sleep 0.1; {flood} o | head -c {out}; {flood} e | head -c {err} >&2"
        process = hf.spawn(command, stderr="separate")
        tail = process.wait_for("output=never", timeout=30).tail[process.handle]
        assert tail == "o" * seen[0] + "e" * seen[1]


def test_a_wait_may_look_at_one_stream(hf: SyncClient) -> None:
    """The other one is as if it were not there; an offset is a place in one."""
    process = hf.spawn("echo Ready >&2; echo out; sleep 1000", stderr="separate")
    wait_until(lambda: process.tail_bytes(99, stream="stderr").data and process.tail().data)
    ready = {"output": "Ready", "since": "start"}
    assert process.wait_for(ready, timeout=30).ok
    waited = process.wait_for(ready | {"stream": "stdout"}, timeout=0.05)
    assert waited.timed_out
    assert waited.waiting == ["output=Ready stream=stdout"]
    assert process.wait_for({"output": "Ready", "since": 0}, timeout=0.05).timed_out
    assert process.wait_for({"output": "Ready", "since": 0, "stream": "stderr"}, timeout=30).ok
    merged = hf.spawn("sleep 1000")
    assert process.wait_for({"quiet": 0.1, "stream": "stderr"}, timeout=30).ok
    for condition in ({"output": "x"}, {"quiet": 1}):
        with pytest.raises(Unsupported, match="stderr separate"):
            hf.wait_for([process, merged], condition | {"stream": "stderr"}, timeout=30)
        with pytest.raises(BadRequest, match="'stdout' or 'stderr'"):
            process.wait_for(condition | {"stream": "stdin"}, timeout=30)
    with pytest.raises(BadRequest, match="stream"):
        process.wait_for({"port": 1, "stream": "stdout"}, timeout=30)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_wait_that_is_repeated_misses_nothing_of_either_stream(
    hf: SyncClient, gate: Gate, stream: Stream
) -> None:
    """Its places are kept, one in each; and a match makes them new."""
    where = "&2" if stream == "stderr" else "&1"
    command = f"echo Ready; echo Ready >&2; : < {gate.path}; echo Ready >{where}; sleep 1000"
    process = hf.spawn(command, stderr="separate")
    for each in ("stdout", "stderr"):
        wait_until(lambda each=each: process.tail(stream=each).data)  # type: ignore[misc]
    for each in ("stdout", "stderr"):
        assert process.wait_for("output=Ready", timeout=30).met[0].detail["stream"] == each
    assert process.wait_for("output=Ready", timeout=0.05).timed_out
    gate.open()
    wait_until(lambda: process.tail(stream=stream).text == "Ready\nReady\n")
    waited = process.wait_for("output=Ready", timeout=30)
    assert waited.ok
    assert (waited.met[0].detail["stream"], waited.met[0].detail["offset"]) == (stream, 6)
    assert process.wait_for("output=Ready", timeout=0.05).timed_out


def test_quiet_means_both_streams(hf: SyncClient, tmp_path: Path) -> None:
    """A process that complains is not quiet."""
    command = "echo out; until [ -e stop ]; do echo err >&2; sleep 0.05; done; sleep 1000"
    process = hf.spawn(command, stderr="separate", cwd=tmp_path)
    assert process.wait_for({"quiet": 2, "stream": "stdout"}, timeout=30).ok
    assert process.wait_for("quiet=2s", timeout=0.5).timed_out
    (tmp_path / "stop").touch()
    assert process.wait_for("quiet=2s", timeout=30).ok


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("output=(", "is wrong"),
        ("output=", "not empty"),
        ("port=http", "65535"),
        ("port=0", "65535"),
        ("http=ftp://x", "URL"),
        ("http=nonsense", "URL"),
        ("quiet=soon", "duration"),
        ("nothing", "condition"),
        ("exit=1", "no value"),
        (5, "condition"),
        ({"port": 1, "exit": True}, "one of"),
        ({"port": 1, "colour": "red"}, "knows no 'colour'; it knows host"),
        ({"output": "x", "sinse": "now"}, "did you mean 'since'"),
        ({"output": "x", "since": -5}, "since is .*, not -5"),
        ({"output": "x", "since": "yesterday"}, "since"),
        ({"http": "http://127.0.0.1/", "status": 7}, "status"),
    ],
)
def test_what_cannot_be_waited_for_is_refused_at_once(hf: SyncClient, bad: Any, why: str) -> None:
    process = hf.spawn("sleep 1000")
    with pytest.raises(BadRequest, match=why):
        process.wait_for(bad)
    with pytest.raises(BadRequest, match="say what"):
        process.wait_for()
    with pytest.raises(BadRequest, match="timeout"):
        process.wait_for("exit", timeout="soon")


def test_what_is_no_process_cannot_be_waited_for(hf: SyncClient) -> None:
    """One by itself is as good as a list of one; a handle is not a process."""
    process = hf.spawn("true")
    assert hf.wait_for(process, "exit", timeout="30s").ok
    for bad in (["proc-x"], "proc-x", 5, [process, None]):
        with pytest.raises(BadRequest, match="wait_for takes a SyncProcess"):
            hf.wait_for(bad, "exit")  # type: ignore[arg-type]
    for first, count in (("a", 2), (0, None), (1.5, 2)):
        with pytest.raises(BadRequest, match="number of lines"):
            process.lines(first, count)  # type: ignore[arg-type]


# -- the end ---------------------------------------------------------------------------------------


def test_an_end_that_comes_first_is_told_at_once(hf: SyncClient) -> None:
    """With how it ended and its last words, not at the timeout; and it counts as delivered."""
    process = hf.spawn("sleep 0.1; echo last words; exit 3")
    waited = process.wait_for("output=never", "port=1", timeout=1000)
    assert (waited.ok, waited.timed_out, waited.met) == (False, False, [])
    assert waited.ended[process.handle].code == 3
    assert waited.tail[process.handle] == "last words\n"
    assert waited.waiting == ["output=never", "port=1"]
    wait_until(lambda: list(hf.events()) == [])


def test_a_match_in_the_last_output_counts(hf: SyncClient) -> None:
    process = hf.spawn("sleep 0.1; echo done; exit 3")
    waited = process.wait_for("output=done", "exit", all=True, timeout=30)
    assert waited.ok
    assert [met.condition for met in waited.met] == ["output=done", "exit"]
    assert hf.spawn("exit 0").wait_for("exit", timeout=30).ok


def test_any_and_all_over_several_processes(hf: SyncClient, gate: Gate) -> None:
    """Any returns with the first, naming it; all returns with the last."""
    slow = hf.spawn(f": < {gate.path}; echo ready; sleep 1000")
    fast = hf.spawn("echo ready; sleep 1000")
    ready = {"output": "ready", "since": "start"}
    waited = hf.wait_for([slow, fast], ready, timeout=30)
    assert waited.ok
    assert [met.handle for met in waited.met] == [fast.handle]
    thread = in_a_moment(gate.open)
    waited = hf.wait_for([slow, fast], ready, all=True, timeout=30)
    thread.join()
    assert waited.ok
    assert {met.handle for met in waited.met} == {slow.handle, fast.handle}


def test_any_goes_on_while_one_of_them_can_still_do_it(hf: SyncClient, gate: Gate) -> None:
    """One ends without it: the other may yet. With all, that is the end of waiting."""
    ending = hf.spawn("exit 1")
    ending.wait(30)
    other = hf.spawn(f": < {gate.path}; echo ready; sleep 1000")
    thread = in_a_moment(gate.open)
    waited = hf.wait_for([ending, other], "output=ready", timeout=30)
    thread.join()
    assert waited.ok
    assert list(waited.ended) == [ending.handle]
    waited = hf.wait_for([ending, other], "output=ready", all=True, timeout=1000)
    assert not waited.ok
    assert not waited.timed_out


# -- ports and answers -----------------------------------------------------------------------------


def test_a_port_of_its_own_and_of_what_it_started(hf: SyncClient, port: int) -> None:
    """Open, and owned by the process or a descendant of it."""
    process = hf.spawn(f"(exec {' '.join(SERVER)} {port}) & wait")
    waited = process.wait_for(f"port={port}", timeout=30)
    assert waited.ok
    (met,) = waited.met
    assert met.detail["port"] == port
    assert met.detail["pid"] != process.record.pid
    assert process.wait_for({"port": port, "host": "127.0.0.1"}, timeout=30).ok
    assert process.wait_for(f"port=[::1]:{port}", timeout=0.1).timed_out


def test_somebody_elses_port_is_told_at_once(hf: SyncClient, port: int) -> None:
    """Who holds it, so that nobody waits for what cannot happen."""
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", port))
        mine.listen()
        process = hf.spawn("sleep 1000")
        with pytest.raises(BadRequest, match=rf"port {port} is held by .*\(pid {os.getpid()}\)"):
            process.wait_for(f"port={port}", timeout=1000)


class Handler(BaseHTTPRequestHandler):
    answers: ClassVar[list[tuple[int, bytes]]] = []

    def do_GET(self) -> None:
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/health"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_url_answers_with_the_right_status_and_body(hf: SyncClient, site: str) -> None:
    """Not yet with an error, nor with another body; the match comes back."""
    process = hf.spawn("sleep 1000")
    Handler.answers = [(503, b"starting"), (200, b"starting"), (200, b"version 1.2.3")]
    waited = process.wait_for({"http": site, "body": r"version (\S+)"}, timeout=30)
    assert waited.ok
    assert waited.met[0].detail["groups"] == ["1.2.3"]
    Handler.answers = [(404, b"")]
    assert process.wait_for(f"http={site} status=404", timeout=30).ok
    late = process.wait_for(f"http={site}", timeout=0.2)
    assert late.timed_out
    assert "status 404" in late.waiting[0]


def test_a_server_that_never_answers_holds_nothing_up(hf: SyncClient, port: int) -> None:
    """The end of the process is told though a request hangs."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", port))
        deaf.listen()
        process = hf.spawn("sleep 0.2; exit 4")
        waited = process.wait_for(f"http=http://127.0.0.1:{port}/", timeout=1000)
    assert waited.ended[process.handle].code == 4
    assert waited.seconds < 4


# -- the rest --------------------------------------------------------------------------------------


def test_a_file_appears(hf: SyncClient, tmp_path: Path) -> None:
    """Relative to the process's own directory; also one in a directory that is not there yet."""
    process = hf.spawn(
        "sleep 0.1; mkdir -p new/deep; touch new/deep/file; sleep 1000", cwd=tmp_path
    )
    waited = process.wait_for("file=new/deep/file", timeout=30)
    assert waited.ok
    assert waited.met[0].detail["path"] == str(tmp_path / "new/deep/file")


def test_output_falls_silent(hf: SyncClient) -> None:
    """Counted from the last thing it wrote."""
    process = hf.spawn("for i in 1 2 3 4 5; do echo $i; sleep 0.1; done; sleep 1000")
    waited = process.wait_for("quiet=0.4s", timeout=30)
    assert waited.ok
    assert process.tail(1).text == "5\n"


def test_it_waits_for_input(hf: SyncClient) -> None:
    process = hf.spawn("sleep 0.1; read -p 'go on? ' x", tty=True)
    waited = process.wait_for("input", timeout=30)
    assert waited.ok
    assert (waited.met[0].detail["prompt"], waited.met[0].detail["kind"]) == ("go on?", "line")


def test_a_wait_survives_the_keeper(
    hf: SyncClient, gate: Gate, kill_both: Callable[[SyncClient], None]
) -> None:
    """Both halves die while somebody waits: the process is adopted and the wait goes on."""
    process = hf.spawn(f": < {gate.path}; echo ready; sleep 1000")

    def happen() -> None:
        kill_both(hf)
        gate.open()

    thread = in_a_moment(happen)
    waited = process.wait_for("output=ready", timeout=60)
    thread.join()
    assert waited.ok


def test_another_sessions_process_cannot_be_waited_for(hf: SyncClient, session: str) -> None:
    process = hf.spawn("sleep 1000")
    with connect(session=f"{session}-other") as other:
        stolen = SyncProcess(process._process)
        with pytest.raises(NotFound):
            other.wait_for([stolen], "exit", timeout=1)


def test_it_works_the_same_with_asyncio(home: str, session: str) -> None:
    """Several waits at once, in one loop that goes on meanwhile."""

    async def main() -> list[bool]:
        async with connect(session=session) as hf:
            processes = [await hf.spawn(f"sleep 0.{n}; echo ready {n}; sleep 1000") for n in (1, 2)]
            waits = [process.wait_for(r"output=ready \d", timeout=30) for process in processes]
            return [waited.ok for waited in await asyncio.gather(*waits)]

    assert asyncio.run(main()) == [True, True]
