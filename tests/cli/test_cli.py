"""The command line, from outside: the real program, a real keeper, real processes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.home import Home
from holdfast.core.store import Store
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tests.conftest import Gate

Beside = Callable[..., "subprocess.Popen[bytes]"]
HOLDFAST = [sys.executable, "-m", "holdfast"]
PROMISED = [
    "handle",
    "session",
    "label",
    "command",
    "cwd",
    "mode",
    "pid",
    "status",
    "waiting_for_input",
    "exit_code",
    "signal",
    "reason",
    "started_at",
    "ended_at",
    "duration_seconds",
    "log",
]

pytestmark = [pytest.mark.shared_keeper, pytest.mark.usefixtures("home")]


class Done:
    """What a call of the command line gave."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.raw = code, out
        self.out, self.err = out.decode(errors="replace"), err.decode()

    def __repr__(self) -> str:
        return f"<exit {self.code}, out {self.out!r}, err {self.err!r}>"

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def cli(*arguments: str, input: bytes | None = b"", env: dict[str, str] | None = None) -> Done:
    done = subprocess.run(
        [*HOLDFAST, *arguments],
        input=input,
        capture_output=True,
        timeout=60,
        env={**os.environ, **(env or {})},
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return Done(done.returncode, done.stdout, done.stderr)


def start(*arguments: str) -> str:
    done = cli("run", "-d", *arguments)
    assert done.code == 0, done
    (handle,) = done.lines
    return handle


def record(handle: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(cli("status", handle, "--json").out)
    return found


@pytest.fixture
def beside() -> Iterator[Beside]:
    """Runs the command line beside the test, and ends what the test did not."""
    started = []

    def begin(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [*HOLDFAST, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(env or {})},
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
        process.wait()


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def one_error(done: Done) -> str:
    assert done.out == ""
    assert done.err.startswith("holdfast: ")
    assert done.err.count("\n") == 1
    return done.err


# -- run in the foreground -------------------------------------------------------------------------


def test_run_streams_bytes_and_exits_with_the_commands_code() -> None:
    """Whatever bytes the command writes come out the same, and so does its exit code."""
    done = cli("run", "--", r"printf 'a\000\377\033[1mb'; exit 3")
    assert (done.code, done.raw, done.err) == (3, b"a\0\xff\x1b[1mb", "")


def test_one_argument_is_a_shell_string_and_several_are_run_as_they_are() -> None:
    """A lone argument may be a whole script; with more, nothing in them means anything."""
    assert cli("run", "--", "echo $((6*7)) | cat").out == "42\n"
    done = cli("run", "--", "printf", "%s|", "$((6*7))", ";", "--", "a b")
    assert done.out == "$((6*7))|;|--|a b|"


def test_separate_stderr_goes_to_stderr() -> None:
    """With --stderr separate the two streams stay apart; without, they are one."""
    done = cli("run", "--stderr", "separate", "--", "echo out; echo err >&2")
    assert (done.out, done.err) == ("out\n", "err\n")
    assert cli("run", "--", "echo out; echo err >&2").out == "out\nerr\n"


@pytest.mark.parametrize(
    ("command", "code"), [("kill -SEGV $$", 139), ("kill -9 $$", 137), ("exit 255", 255)]
)
def test_a_signal_is_128_and_its_number(command: str, code: int) -> None:
    """As shells have it."""
    assert cli("run", "--", command).code == code


def test_timeout_is_124_and_says_so() -> None:
    """The deadline stops it, and the one line says how to give it longer."""
    done = cli("run", "--timeout", "200ms", "--", "sleep", "60")
    assert done.code == 124
    assert "--timeout" in one_error(done)


def test_a_missing_program_is_127_and_a_file_that_cannot_run_126(tmp_path: Path) -> None:
    """As shells have it; nothing was started."""
    plain = tmp_path / "plain"
    plain.write_text("no program")
    missing = cli("run", "--", "no-such-program-anywhere", "x")
    assert missing.code == 127
    one_error(missing)
    refused = cli("run", "--", str(plain), "x")
    assert refused.code == 126
    one_error(refused)
    assert json.loads(cli("ps", "-a", "--json").out) == []


def test_directory_and_environment(tmp_path: Path) -> None:
    """-C and -e K=V set them; -e K takes this shell's value over holdfast's own."""
    done = cli(
        *("run", "-C", str(tmp_path), "-e", "A=x=y", "-e", "TERM", "-e", "UNSET_HERE", "--"),
        'pwd; echo "$A $TERM $MINE ${UNSET_HERE-unset}"',
        env={"TERM": "weird", "MINE": "inherited"},
    )
    assert done.lines == [str(tmp_path), "x=y weird inherited unset"]
    assert cli("run", "--", "echo $TERM", env={"TERM": "weird"}).out == "dumb\n"


def test_stdin_is_forwarded_to_its_end() -> None:
    """echo hi | holdfast run --stdin -- cat"""
    assert cli("run", "--stdin", "--", "cat", input=b"hi\n").out == "hi\n"
    assert cli("run", "--", "cat", input=b"ignored").out == ""


def test_large_stdin_reaches_a_slow_reader_whole() -> None:
    """More than pipe and keeper hold between them is sent again as it is read."""
    data = bytes(range(256)) * 8192
    done = cli("run", "--stdin", "--", "sleep 0.3; sha256sum; wc -c", input=data)
    import hashlib

    assert done.lines[0].split()[0] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("command", ["exit 4", "exec <&-; sleep 0.3; exit 4"])
def test_a_process_that_does_not_read_its_stdin_ends_all_the_same(command: str) -> None:
    """Input that nobody takes is no reason to stay, and no error."""
    done = cli("run", "--stdin", "--", command, input=b"x" * 1_000_000)
    assert (done.code, done.err) == (4, "")


def test_a_closed_stdout_stops_the_process_quietly(beside: Beside) -> None:
    """holdfast run -- yes | head -1"""
    process = beside("run", "--", "yes")
    assert read_line(process) == b"y\n"
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr is not None
    with process.stderr as errors:
        assert errors.read() == b""
    (found,) = json.loads(cli("ps", "-a", "--json").out)
    assert found["status"] == "killed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_the_process_politely(beside: Beside, number: signal.Signals) -> None:
    """Its handler runs, its last words are shown, and the exit code is 128 and the signal."""
    process = beside(
        "run", "--", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    )
    assert read_line(process) == b"up\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (128 + number, b"")
    assert out.endswith(b"bye\n")
    (found,) = json.loads(cli("ps", "-a", "--json").out)
    assert found["status"] == "killed"


def test_a_second_interrupt_stops_it_by_force(beside: Beside) -> None:
    """What ignores the polite signal need not be waited for."""
    process = beside(
        "run",
        "--grace",
        "60s",
        "--",
        "trap 'echo no' TERM; echo up; sleep 60 & while :; do wait; done",
    )
    assert read_line(process) == b"up\n"
    process.send_signal(signal.SIGINT)
    assert read_line(process) == b"no\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    (found,) = json.loads(cli("ps", "-a", "--json").out)
    assert (found["status"], found["signal"]) == ("killed", "SIGKILL")


def test_a_hangup_leaves_the_process_running(beside: Beside) -> None:
    """Closing the terminal ends only what watched."""
    process = beside("run", "--", "echo up; sleep 60")
    assert read_line(process) == b"up\n"
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGHUP
    (found,) = json.loads(cli("ps", "--json").out)
    assert found["status"] == "running"


def test_run_json_prints_the_record_instead_of_the_output() -> None:
    """In the foreground at the end, with the same exit code; detached at once."""
    done = cli("run", "--json", "--label", "x", "--", "echo hidden; exit 5")
    found = json.loads(done.out)
    assert done.code == 5
    assert list(found)[: len(PROMISED)] == PROMISED
    assert (found["label"], found["exit_code"], found["reason"]) == ("x", 5, "exited")
    running = json.loads(cli("run", "-d", "--json", "--", "sleep", "60").out)
    assert (running["status"], running["command"]) == ("running", ["sleep", "60"])


def test_a_foreground_run_leaves_no_event_behind() -> None:
    """Whoever saw the end need not be told of it."""
    cli("run", "--", "true")
    assert json.loads(cli("events", "--json").out) == []


def test_run_json_tells_what_a_yield_saw(gate: Gate) -> None:
    """Whether it was left in the background, and its output so far."""
    quick = json.loads(cli("run", "--yield", "1m", "--json", "--", "echo done; exit 3").out)
    assert (quick["backgrounded"], quick["early"]) == (False, "done\n")
    slow = f"echo begun; : < {gate.path}"
    left = json.loads(cli("run", "--yield", "1s", "--json", "--", slow).out)
    assert (left["backgrounded"], left["early"], left["status"]) == (True, "begun\n", "running")
    gate.open()
    wait_until(lambda: record(left["handle"])["status"] == "completed")
    assert [each["handle"] for each in json.loads(cli("events", "--json").out)] == [left["handle"]]


def test_what_is_being_stopped_is_not_left_in_the_background(beside: Beside) -> None:
    """A signal means the process, whatever --yield says."""
    process = beside(
        *("run", "--yield", "2s", "--grace", "3s", "--"),
        "trap 'echo no' TERM; echo up; while :; do sleep 0.1; done",
    )
    assert read_line(process) == b"up\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (143, b"")
    assert b"no\n" in out
    (found,) = json.loads(cli("ps", "-a", "--json").out)
    assert found["status"] == "killed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_that_waits_for_the_keeper(
    beside: Beside, number: signal.Signals
) -> None:
    """A keeper that does not answer cannot hold anybody up."""
    cli("run", "-d", "--", "sleep 1000")
    worker = json.loads(cli("keeper", "status", "--json").out)["worker"]
    os.kill(worker, signal.SIGSTOP)
    try:
        process = beside("run", "--", "echo hi")
        wait_until(lambda: _catches(process.pid, signal.SIGTERM))
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert (process.returncode, out) == (128 + number, b"")
    assert b"the keeper does not answer" in err


def _catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"SigCgt:\s*(\w+)", status)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


# -- looking ---------------------------------------------------------------------------------------


def test_ps_shows_what_runs_and_with_a_everything() -> None:
    """A table with a header; finished ones only with -a."""
    running = start("--label", "nap", "--session", "s1", "--", "sleep", "60")
    ended = start("--", "exit 3")
    cli("wait", ended)
    lines = cli("ps").lines
    assert re.split(" {2,}", lines[0]) == [
        "HANDLE",
        "LABEL",
        "STATUS",
        "STARTED",
        "DURATION",
        "DEADLINE",
        "SESSION",
        "COMMAND",
    ]
    assert [line.split()[0] for line in lines[1:]] == [running]
    assert re.search(r"nap +running +\d\d:\d\d:\d\d +\d+s +in 29m \d+s +s1 +sleep 60$", lines[1])
    assert cli("ps", "-q").lines == [running]
    assert cli("ls").lines[1:][0].split()[0] == running
    everything = cli("ps", "-a").lines
    assert [line.split()[0] for line in everything[1:]] == [running, ended]
    assert re.search(r"- +failed 3 +[\d:]+ +0s +- +default +exit 3$", everything[2])
    assert [r["handle"] for r in json.loads(cli("ps", "--session", "s1", "--json").out)] == [
        running
    ]
    assert cli("ps", "--session", "other").lines[1:] == []
    assert cli("ps", env={"HOLDFAST_SESSION": "other"}).lines[1:] == []


@pytest.mark.parametrize(
    ("word", "instead"),
    [
        ("start", "holdfast run -d -- COMMAND"),
        ("top", "holdfast stats -f"),
        ("pause", "holdfast signal HANDLE STOP"),
        ("inspect", "holdfast status HANDLE"),
    ],
)
def test_words_of_other_programs_are_answered_with_ours(word: str, instead: str) -> None:
    answer = cli(word)
    assert answer.code == 125
    assert answer.err == f"holdfast: no command {word!r}; here it is `{instead}`\n"


def test_words_that_mean_the_same_are_understood() -> None:
    handle = start("--name", "nap", "--", "sleep", "60")
    assert cli("list").lines[1].split()[:2] == [handle, "nap"]
    assert cli("stop", "nap").out == f"{handle}\n"
    assert cli("version").out == cli("--version").out


def test_a_deadline_that_nobody_asked_for_is_told() -> None:
    """Whoever starts a server for good learns at once that it would not be."""
    told = "holdfast: it is stopped after 30m 0s; --timeout 0 lets it run on\n"
    assert cli("run", "-d", "--", "true").err == told
    assert cli("run", "-d", "--timeout", "0", "--", "true").err == ""
    assert cli("run", "-d", "--timeout", "5m", "--", "true").err == ""


def test_ps_on_a_terminal_is_coloured_cut_and_free_of_foreign_codes() -> None:
    """A command full of terminal codes moves no cursor; NO_COLOR is honoured."""
    start("--label", "label", "--", "sleep 60 # \x1b]0;title\x07\x1b[2J\n" + "y" * 500)
    for no_color in ("", "1"):
        out = on_terminal("ps", env={"NO_COLOR": no_color, "TERM": "xterm"})
        assert b"\x1b]0" not in out
        assert b"\x1b[2J" not in out
        assert b"\\x1b[2J\\n" in out or "…".encode() in out
        assert (b"\x1b[36mrunning\x1b[0m" in out) == (not no_color)
        plain = re.sub(rb"\x1b\[\d*m", b"", out).decode()
        assert all(len(line) <= 80 for line in plain.splitlines() if "sleep" in line)


def on_terminal(*arguments: str, env: dict[str, str]) -> bytes:
    """What the command line writes to a terminal of 80 columns."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(env)
        os.execv(sys.executable, [*HOLDFAST, *arguments])
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    out = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        out += data
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, out
    return out


def test_status_shows_all_that_is_known() -> None:
    """For people in lines, for programs in JSON with the promised keys first."""
    handle = start("--label", "job", "--", "kill -TERM $$")
    cli("wait", handle)
    text = cli("status", handle).out
    assert re.search(rf"^handle: +{handle}$", text, re.MULTILINE)
    assert re.search(r"^status: +failed SIGTERM$", text, re.MULTILINE)
    found = record(handle)
    assert list(found)[: len(PROMISED)] == PROMISED
    assert (found["status"], found["signal"], found["exit_code"]) == ("failed", "SIGTERM", None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", str(found["ended_at"]))


def test_people_may_shorten_a_handle_or_use_a_label() -> None:
    """Where it can mean only one; else the candidates are named."""
    one = start("--label", "web", "--", "sleep", "60")
    assert record(one[:12])["handle"] == one
    assert record(one.removeprefix("proc-")[:8])["handle"] == one
    assert record("web")["handle"] == one
    two = start("--label", "web", "--", "sleep", "60")
    error = one_error(cli("kill", "web"))
    assert one in error
    assert two in error
    assert all(r["status"] == "running" for r in json.loads(cli("ps", "--json").out))
    cli("kill", one)
    assert record("web")["handle"] == two
    cli("kill", two)
    assert record("web")["handle"] == two  # the newest, where none runs


@pytest.mark.parametrize("text", ["proc-", "proc-*", "*", "../x", "", "x" * 10_000, "%2e"])
def test_what_names_no_process_is_not_found(text: str) -> None:
    """No pattern, no path, no empty beginning ever matches."""
    start("--", "sleep", "60")
    done = cli("kill", "--", text)
    assert done.code == 125
    assert "ps -a" in one_error(done)
    assert len(json.loads(cli("ps", "--json").out)) == 1


def test_another_sessions_process_is_not_found() -> None:
    """--session narrows what there is, for short handles and labels too."""
    handle = start("--label", "mine", "--session", "a", "--", "sleep", "60")
    for name in (handle, handle[:12], "mine"):
        done = cli("status", name, "--session", "b")
        assert (done.code, "no process" in one_error(done)) == (125, True)


# -- logs ------------------------------------------------------------------------------------------


def test_logs_whole_tail_and_since() -> None:
    """All of it; the last lines; from an offset; and what is new for a reader."""
    handle = start("--", "seq 1 5")
    cli("wait", handle)
    assert cli("logs", handle).out == "1\n2\n3\n4\n5\n"
    assert cli("logs", "-n", "2", handle).out == "4\n5\n"
    assert cli("logs", handle, "-n0").out == ""
    assert cli("logs", handle, "--since", "6").out == "4\n5\n"
    assert cli("logs", handle, "--since", "me").out == "1\n2\n3\n4\n5\n"
    assert cli("logs", handle, "--since", "me").out == ""
    assert cli("logs", handle, "-n", "1", "--since", "6").code == 125


def test_logs_json_has_the_cursor_to_go_on_at() -> None:
    """One object; its cursor given to --since brings what came after."""
    handle = start("--stdin", "--", "cat")
    cli("send", handle, "first ☃", "--enter")
    wait_until(lambda: "first" in cli("logs", handle).out)
    found = json.loads(cli("logs", handle, "--json").out)
    assert found == {
        "handle": handle,
        "stream": "stdout",
        "start": 0,
        "cursor": 10,
        "gap": 0,
        "text": "first ☃\n",
    }
    cli("send", handle, "second", "--eof")
    cli("wait", handle)
    assert cli("logs", handle, "--since", str(found["cursor"])).out == "second"
    empty = json.loads(cli("logs", handle, "--json", "--since", "16").out)
    assert (empty["start"], empty["cursor"], empty["text"]) == (16, 16, "")


def test_logs_of_separate_streams() -> None:
    """Each to its own; one alone with --stream; as JSON one object each."""
    handle = start("--stderr", "separate", "--", "echo out; echo err >&2")
    cli("wait", handle)
    for follow in ([], ["-f"]):
        both = cli("logs", handle, *follow)
        assert (both.out, both.err) == ("out\n", "err\n")
        only = cli("logs", handle, "--stream", "stderr", *follow)
        assert (only.out, only.err) == ("", "err\n")
    objects = [json.loads(line) for line in cli("logs", handle, "--json").lines]
    assert [(o["stream"], o["text"]) for o in objects] == [("stdout", "out\n"), ("stderr", "err\n")]


def test_logs_follow_until_the_end(beside: Beside) -> None:
    """-n begins near the end, -f goes on until the process ended, JSON comes a line at a time."""
    handle = start("--stdin", "--", "seq 1 100; cat")
    wait_until(lambda: cli("logs", handle, "-n", "1").out == "100\n")
    process = beside("logs", "-f", "-n", "2", handle)
    assert [read_line(process), read_line(process)] == [b"99\n", b"100\n"]
    cli("send", handle, "more", "--enter", "--eof")
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, b"more\n")
    objects = [json.loads(line) for line in cli("logs", "-f", "--json", handle).lines]
    assert "".join(o["text"] for o in objects).endswith("100\nmore\n")
    named = cli("logs", "-f", "--since", "me", handle)
    assert named.out.endswith("100\nmore\n")
    assert cli("logs", "-f", "--since", "me", handle).out == ""


def test_an_interrupted_follow_is_130_and_stops_nothing(beside: Beside) -> None:
    """Ctrl-C ends the looking."""
    handle = start("--", "echo up; sleep 60")
    process = beside("logs", "-f", handle)
    assert read_line(process) == b"up\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    assert record(handle)["status"] == "running"


def test_a_gap_is_told_on_stderr() -> None:
    """After clear the offsets go on; who asks for what is gone is told so."""
    handle = start("--", "echo gone")
    cli("wait", handle)
    assert cli("clear", handle).lines == [handle]
    done = cli("logs", handle)
    assert done.out == ""
    assert re.match(r"holdfast: 5 bytes before offset 5 are gone", done.err)
    found = json.loads(cli("logs", handle, "--json").out)
    assert (found["start"], found["cursor"], found["gap"], found["text"]) == (5, 5, 5, "")


# -- acting ----------------------------------------------------------------------------------------


def test_send_text_stdin_and_eof() -> None:
    """TEXT, a newline with --enter, all of stdin with -, and the end."""
    handle = start("--stdin", "--", "cat")
    assert cli("send", handle, "--enter", "a b").code == 0
    assert cli("send", handle, "-", input=b"from\0stdin").code == 0
    assert cli("send", handle, "--eof").code == 0
    cli("wait", handle)
    assert cli("logs", handle).raw == b"a b\nfrom\0stdin"
    ended = cli("send", handle, "x")
    assert ended.code == 125
    one_error(ended)
    assert cli("send", handle).code == 125


def test_a_partial_send_says_how_much_was_taken() -> None:
    """A process that never reads takes what fits; the rest is the caller's again."""
    handle = start("--stdin", "--", "sleep", "60")
    done = cli("send", handle, "-", input=b"x" * 3_000_000)
    assert done.code == 125
    taken = re.search(r"took (\d+) bytes", one_error(done))
    assert taken is not None
    assert 0 < int(taken[1]) < 3_000_000


def test_send_to_a_closed_stdin_is_refused() -> None:
    """With the way to have it open."""
    handle = start("--", "sleep", "60")
    done = cli("send", handle, "x")
    assert done.code == 125
    one_error(done)


def test_wait_prints_exit_codes_in_the_order_given() -> None:
    """128 and the number for a signal; the exit code of wait itself is 0."""
    slow = start("--", "sleep 0.3; exit 3")
    quick = start("--", "kill -9 $$")
    done = cli("wait", slow, quick, slow)
    assert (done.code, done.lines) == (0, ["3", "137", "3"])
    records = json.loads(cli("wait", "--json", slow, quick).out)
    assert [r["handle"] for r in records] == [slow, quick]


def test_wait_is_124_when_the_time_is_up() -> None:
    """Those that ended are told all the same."""
    slow, quick = start("--", "sleep", "60"), start("--", "true")
    cli("wait", quick)
    done = cli("wait", slow, "--timeout", "100ms", quick)
    assert (done.code, done.lines) == (124, ["running", "0"])
    assert slow in done.err
    assert record(slow)["status"] == "running"


def test_wait_acknowledges_what_it_saw() -> None:
    """An end that a wait returned is not an event any more."""
    seen, unseen = start("--", "true"), start("--", "exit 2")
    cli("wait", seen)
    wait_until(lambda: record(unseen)["status"] == "failed")
    assert [e["handle"] for e in json.loads(cli("events", "--json").out)] == [unseen]


def test_kill_is_idempotent_and_prints_what_it_stopped(home: str) -> None:
    """Several at once cost one grace; stopping what has ended is fine."""
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    handles = [start("--", stubborn) for _ in range(3)]
    for handle in handles:
        wait_until(lambda h=handle: cli("logs", h).out == "up\n")  # type: ignore[misc]
    done = cli("kill", "--grace", "2s", *handles)
    assert (done.code, done.lines) == (0, handles)
    ends = [Store(Home(home)).load(handle).stop for handle in handles]
    clocks = [end.kill_clock for end in ends if end is not None]
    assert max(clocks) - min(clocks) < 2, "the last grace began before the first was over"
    assert {record(handle)["signal"] for handle in handles} == {"SIGKILL"}
    again = cli("kill", handles[0])
    assert (again.code, again.lines) == (0, [f"{handles[0]} had already ended"])


def test_kill_with_a_signal_of_choice() -> None:
    """-s begins with that one."""
    handle = start("--", "trap 'exit 9' USR1; echo up; while :; do sleep 0.05; done")
    wait_until(lambda: cli("logs", handle).out == "up\n")
    assert cli("kill", "-s", "USR1", handle).code == 0
    found = record(handle)
    assert (found["status"], found["exit_code"]) == ("killed", 9)


def test_kill_all_and_by_session() -> None:
    """--session S alone stops all of S, kept ones too; --all everything."""
    one = start("--session", "a", "--keep", "--", "sleep", "60")
    two = start("--session", "b", "--", "sleep", "60")
    three = start("--", "sleep", "60")
    assert cli("kill", "--session", "a").lines == [one]
    assert [r["handle"] for r in json.loads(cli("ps", "--json").out)] == [two, three]
    assert sorted(cli("kill", "--all").lines) == sorted([two, three])
    assert cli("kill", "--all").lines == []


@pytest.mark.parametrize("arguments", [(), ("x", "--all")])
def test_kill_needs_to_know_whom(arguments: tuple[str, ...]) -> None:
    """HOLDFAST_SESSION alone never means everything in it."""
    handle = start("--session", "s", "--", "sleep", "60")
    done = cli("kill", *arguments, env={"HOLDFAST_SESSION": "s"})
    assert done.code == 125
    one_error(done)
    assert record(handle)["status"] == "running"


def test_signal_only_signals() -> None:
    """The process decides what it means."""
    handle = start("--", "trap 'echo hup' HUP; echo up; while :; do sleep 0.05; done")
    wait_until(lambda: cli("logs", handle).out == "up\n")
    assert cli("signal", handle, "HUP").code == 0
    wait_until(lambda: cli("logs", handle).out.endswith("hup\n"))
    assert record(handle)["status"] == "running"
    done = cli("signal", handle, "NONSENSE")
    assert done.code == 125
    one_error(done)


def test_rm_deletes_all_traces(home: str) -> None:
    """A running process is stopped first; --all-finished leaves what runs."""
    running, ended = start("--", "sleep", "60"), start("--", "true")
    cli("wait", ended)
    assert cli("rm", "--all-finished").lines == [ended]
    assert cli("rm", running).lines == [running]
    assert cli("status", running).code == 125
    assert list(Path(home, "processes").glob("proc-*")) == []


# -- events ----------------------------------------------------------------------------------------


@pytest.mark.own_keeper
def test_events_are_shown_until_acknowledged() -> None:
    """As a table, as JSON, as the text for an agent."""
    handle = start("--label", "build", "--session", "s", "--", "echo done; exit 3")
    wait_until(lambda: record(handle)["status"] == "failed")
    wait_until(lambda: len(cli("events").lines) == 2)
    assert re.search(rf" s +1 +{handle} +build +failed 3 +0s +echo done", cli("events").lines[1])
    (event,) = json.loads(cli("events", "--json", "--session", "s").out)
    assert (event["id"], event["tail"]) == (f"{handle}:end", "done\n")
    text = cli("events", "--text").out
    assert text.startswith("[Background Process Completed]\n\nHandle: ")
    assert "Exit code: 3\n" in text
    assert json.loads(cli("events", "--json", "--session", "other").out) == []
    assert json.loads(cli("events", "--json", "--session", "s", "--after", "1").out) == []
    assert len(cli("events", "--ack").lines) == 2
    assert json.loads(cli("events", "--json").out) == []
    (event,) = json.loads(cli("events", "--all", "--json").out)
    assert event["acknowledged"]


def test_events_follow_as_they_come(beside: Beside) -> None:
    """A JSON object a line, acknowledged as it is shown."""
    start("--", "true")
    process = beside("events", "-f", "--json", "--ack")
    assert json.loads(read_line(process))["exit_code"] == 0
    start("--", "exit 4")
    assert json.loads(read_line(process))["exit_code"] == 4
    wait_until(lambda: json.loads(cli("events", "--json").out) == [])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


# -- the rest --------------------------------------------------------------------------------------


@pytest.mark.own_keeper
def test_keeper_status_restart_and_stop() -> None:
    """Without one it says so; a restart loses nothing; stop leaves processes, --kill does not."""
    assert cli("keeper", "status").out.startswith("no keeper runs for ")
    assert json.loads(cli("keeper", "status", "--json").out) == {"running": False}
    handle = start("--", "sleep", "60")
    before = json.loads(cli("keeper", "status", "--json").out)
    assert (before["running"], before["processes"]) == (True, 1)
    after = json.loads(cli("keeper", "restart", "--json").out)
    assert after["worker"] != before["worker"]
    assert record(handle)["status"] == "running"
    assert cli("keeper", "stop", "--kill").code == 0
    assert cli("keeper", "status").out.startswith("no keeper runs for ")
    assert record(handle)["status"] == "killed"
    assert cli("keeper", "stop").code == 0
    assert cli("keeper", "nonsense").code == 125


@pytest.mark.own_keeper
def test_config_shows_the_settings_in_force(home: str) -> None:
    """As they would be written in config.toml; the environment counts more."""
    Path(home).mkdir(mode=0o700, exist_ok=True)
    Path(home, "config.toml").write_text('timeout = "1h"\ngrace = 2.5\n')
    done = cli("config", env={"HOLDFAST_LOG_CAP": "1MiB", "HOLDFAST_TIMEOUT": "0"})
    settings = tomllib.loads(done.out)
    assert (settings["timeout"], settings["grace"], settings["log_cap"]) == ("none", 2.5, "1MiB")
    assert json.loads(cli("config", "--json").out)["timeout"] == 3600
    Path(home, "config.toml").write_text("grace = []\n")
    assert cli("ps").code == 0, "a bad setting keeps nobody from looking and stopping"
    done = cli("run", "--", "true")
    assert done.code == 125
    assert "line 1: grace" in one_error(done)


@pytest.mark.own_keeper
def test_doctor_says_what_works(home: str) -> None:
    """A line for each check; an unusable home is a problem and exit code 1."""
    start("--", "sleep", "60")
    done = cli("doctor")
    assert done.code == 0, done
    assert all(re.match(r"(ok|note) +\S", line) for line in done.lines)
    checks = {check["name"]: check for check in json.loads(cli("doctor", "--json").out)}
    assert {"python", "pidfd", "splice", "bash", "home", "keeper", "lifetime"} <= checks.keys()
    assert "1 running" in checks["keeper"]["text"]
    Path(home, "processes", "proc-aaaaaaaaaaaaaaaa.meta.json.bad").touch()
    assert "set aside" in cli("doctor", "records").out
    bad = cli("doctor", "disk", env={"HOLDFAST_HOME": "/dev/null"})
    assert bad.code == 1
    assert re.match("problem +home", bad.out), "a problem is told, whatever is asked for"


def test_doctor_looks_only_at_what_is_asked_for() -> None:
    """In its own order; a name that no check has is answered with those there are."""
    done = cli("doctor", "log caps", "python")
    assert [line[9:].split("  ")[0] for line in done.lines] == ["python", "log caps"]
    assert "no check is called 'pythn'; there are python, pidfd," in one_error(
        cli("doctor", "pythn")
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pss"], "did you mean `holdfast ps`?"),
        (["run"], "COMMAND"),
        (["run", "--timeout", "soon", "--", "true"], "timeout must be a duration"),
        (["run", "-C", "/no/such/dir", "--", "true"], "/no/such/dir"),
        (["logs", "--nope", "x"], "no option --nope"),
        (["ps", "x"], "one argument too many"),
        (["wait", "x", "--timeout", "soon"], "must be a duration"),
        (["ps", "--session", ""], "session"),
    ],
)
def test_a_mistake_is_one_line_with_a_next_step_and_125(arguments: list[str], says: str) -> None:
    """On stderr; never a traceback, never a page of usage."""
    done = cli(*arguments)
    assert done.code == 125
    assert says in one_error(done)


def test_help_and_version() -> None:
    """On stdout, exit 0."""
    from holdfast.core.version import __version__

    assert cli("--version").out == f"holdfast {__version__}\n"
    assert cli().out == cli("--help").out
    assert cli("help", "run").out.startswith("usage: holdfast run")


def test_a_reader_that_goes_away_is_no_error() -> None:
    """holdfast --help | true"""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.Popen([*HOLDFAST, "--help"], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (141, b"")


def mentioning(text: str) -> list[int]:
    """The processes with this in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.weight(4)
def test_demo_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Every claim it makes is checked by itself; its home is gone afterwards."""
    place = tmp_path / "demo"
    place.mkdir()
    done = cli("demo", env={"TMPDIR": str(place)})
    assert done.code == 0, done.out
    assert "WRONG" not in done.out
    assert "\x1b" not in done.out
    assert "[Background Process Completed]" in done.out
    assert list(place.iterdir()) == []
    assert not mentioning(str(place))


def test_an_interrupted_demo_leaves_nothing_behind(beside: Beside, tmp_path: Path) -> None:
    """Ctrl-C in the middle stops its processes and its keeper and removes its home."""
    place = tmp_path / "demo"
    place.mkdir()
    process = beside("demo", env={"TMPDIR": str(place)})
    while b"compiled part 2" not in read_line(process):
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    assert list(place.iterdir()) == []
    assert not mentioning(str(place))


@pytest.mark.parametrize("words", ["ps", "run -- echo hi", "run -d --timeout 0 -- true"])
def test_a_closed_stdout_is_no_error(home: str, words: str) -> None:
    """Whoever closes it wants to see nothing, and that is what they get."""
    command = [sys.executable, "-m", "holdfast", *words.split()]
    done = subprocess.run(
        ["bash", "-c", '"$@" >&-', "-", *command], stderr=subprocess.PIPE, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.own_keeper
def test_keeper_stop_says_whether_there_was_one(home: str) -> None:
    cli("run", "--", "true")
    assert cli("keeper", "stop").out.startswith("stopped")
    assert cli("keeper", "stop").out.startswith("no keeper runs")
