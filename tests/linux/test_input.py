"""Whether a program waits for input: real programs, at real terminals and pipes, by the kernel."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.linux import input_evidence
from holdfast.linux.input_evidence import look, see
from holdfast.linux.kernel import all_processes
from holdfast.output.log import Log
from holdfast.output.prompt import prompt_of
from holdfast.testing import wait_until
from tests.proc_files import proc_file
from tests.terminals import ENVIRONMENT, Program

Child = Callable[..., list[str]]
Start = Callable[..., Program]

PYTHON = [sys.executable, "-I"]


@pytest.fixture
def start(no_leaks: None, tmp_path: Path) -> Iterator[Start]:
    """Start a program at a terminal of its own, or with a pipe."""
    started: list[Program] = []

    def begin(command: list[str], *, pipe: bool = False) -> Program:
        if not shutil.which(command[0]):
            if os.environ.get("CI"):
                pytest.fail(f"CI must have {command[0]}")
            pytest.skip(f"{command[0]} is not installed")
        program = Program(command, tmp_path / f"{len(started)}.log", pipe=pipe)
        started.append(program)
        return program

    yield begin
    for program in started:
        program.__exit__()


def becomes(program: Program, answer: object) -> None:
    """Wait until looking gives this answer, and gives it twice."""

    def twice() -> bool:
        program.pump()
        return all(look(program.pid, program.tty) == answer for _ in range(2))

    wait_until(twice, what=f"{answer!r}, not {see(program.pid, program.tty)}")


def stays(program: Program, answer: object) -> None:
    """It goes on giving this answer, at every one of many looks."""
    becomes(program, answer)
    for _ in range(30):
        program.pump()
        assert look(program.pid, program.tty) == answer
        time.sleep(0.003)


# -- programs that wait ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "shown", "kind"),
    [
        (["cat"], "", "line"),
        (["bash", "--norc"], "shell> ", "key"),
        (["bash", "-c", "read -p 'name? ' name"], "name? ", "line"),
        (["bash", "-c", "read -s -p 'secret? ' name"], "secret? ", "password"),
        (["dash"], "shell> ", "line"),
        (["zsh", "-f"], "shell> ", "key"),
        ([*PYTHON, "-c", "input('name? ')"], "name? ", "line"),
        ([*PYTHON, "-c", "import sys; sys.stdin.read(1)"], "", "line"),
        ([sys.executable, "-E", "-q"], ">>> ", "key"),
        (["less", "/etc/services"], "/etc/services", "key"),
        (["vim", "-u", "NONE", "-N", "/etc/services"], "services", "key"),
        (["sqlite3"], "sqlite> ", "key"),
        (["bash", "-c", "cat | cat; :"], "", "line"),
        (["bash", "-c", "head -c 10 < /dev/tty; :"], "", "line"),
        (["bash", "--norc", "-ic", "sleep 600 & cat"], "", "line"),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else "",
)
def test_a_program_that_asks_is_seen_to_wait(
    start: Start, command: list[str], shown: str, kind: str
) -> None:
    """Shells, interpreters, pagers and editors at their prompts, each in its own way."""
    program = start(command)
    program.shows(shown)
    becomes(program, kind)


@pytest.mark.parametrize(
    "way", ["epoll", "poll", "select_alone", "thread", "readv", "high_descriptor"]
)
def test_every_way_to_wait_for_the_terminal_alone_is_seen(
    start: Start, child: Child, way: str
) -> None:
    """It does not matter by which call, in which thread and by which descriptor."""
    program = start(child("waits_in", way))
    program.shows("ready")
    becomes(program, "line")


def test_a_password_prompt_is_known_by_its_terminal(start: Start, child: Child) -> None:
    """getpass opens /dev/tty by itself and turns the echo off."""
    program = start(child("asks_for_password"))
    for answer, reply in (("no", "wrong"), ("sesame", "right")):
        program.shows("Password: ")
        becomes(program, "password")
        program.type(answer + "\n")
        program.shows(reply)


def test_the_thread_that_waits_is_named(start: Start, child: Child) -> None:
    """Who looks twice can tell whether it is the same wait."""
    program = start(child("waits_in", "thread"))
    program.shows("ready")
    becomes(program, "line")
    seen = see(program.pid, program.tty)
    assert seen.pid == program.pid
    assert seen.tid != program.pid
    assert str(seen.tid) in os.listdir(f"/proc/{program.pid}/task")


def test_a_pane_of_tmux_is_a_terminal_like_any_other(tmp_path: Path) -> None:
    """tmux holds the other end; who reads, and how, is told by the same files."""
    if not shutil.which("tmux"):
        pytest.skip("tmux is not installed")
    tmux = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null"]
    ask = ["new-session", "-d", "-P", "-F", "#{pane_pid}:#{pane_tty}"]
    made = subprocess.run(
        [*tmux, *ask, "bash -c 'read -s; sleep 600'"],
        capture_output=True,
        env=ENVIRONMENT,
        check=True,
    )
    try:
        pid, _, tty = made.stdout.decode().strip().partition(":")
        wait_until(lambda: look(int(pid), tty) == "password")
        subprocess.run([*tmux, "send-keys", "Enter"], env=ENVIRONMENT, check=True)
        wait_until(lambda: look(int(pid), tty) is False)
    finally:
        subprocess.run([*tmux, "kill-server"], env=ENVIRONMENT, check=True)


# -- programs that do not --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "echo ready; sleep 600; :"],
        ["sh", "-c", "echo ready; while :; do :; done"],
        ["bash", "-c", "echo ready; sleep 600 | cat; :"],
        ["bash", "--norc", "-ic", "echo ready; cat & sleep 600"],
    ],
    ids=" ".join,
)
def test_a_program_that_works_is_not_said_to_wait(start: Start, command: list[str]) -> None:
    """Sleeping, computing, reading a pipe, or reading in the background is not waiting for us."""
    program = start(command)
    program.shows("ready")
    stays(program, False)


@pytest.mark.parametrize("way", ["epoll_elsewhere", "select_elsewhere", "pipe", "sleep", "busy"])
def test_waiting_for_something_else_is_not_waiting_for_input(
    start: Start, child: Child, way: str
) -> None:
    """The terminal is not what it waits for."""
    program = start(child("waits_in", way))
    program.shows("ready")
    stays(program, False)


def stopped(pid: int) -> bool:
    """Every thread of it: they stop one after the other."""
    tasks = Path(f"/proc/{pid}/task")
    return all(
        (task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir()
    )


def test_a_stopped_program_does_not_wait(start: Start, child: Child) -> None:
    """SIGSTOP in the middle of a read: nobody would take what is typed; SIGCONT brings it back."""
    for way in ("readv", "poll", "thread"):
        program = start(child("waits_in", way))
        program.shows("ready")
        becomes(program, "line")
        os.kill(program.pid, signal.SIGSTOP)
        wait_until(lambda pid=program.pid: stopped(pid))  # type: ignore[misc]
        stays(program, False)
        os.kill(program.pid, signal.SIGCONT)
        becomes(program, "line")


def test_only_the_foreground_counts(start: Start) -> None:
    """While bash runs a command it is the command that is asked, and bash again when it stops."""
    program = start(["bash", "--norc"])

    def in_front() -> list[bytes]:
        session = [process for process in all_processes() if process.session == program.pid]
        return [
            proc_file(process.pid, "comm").strip()
            for process in session
            if process.state not in "ZXT"
        ]

    program.shows("shell> ")
    becomes(program, "key")
    program.type("sleep 600\r")
    wait_until(lambda: b"sleep" in in_front())
    becomes(program, False)
    program.type("\x1a")
    program.shows("Stopped")
    becomes(program, "key")
    program.type("fg\r")
    wait_until(lambda: b"sleep" in in_front())
    becomes(program, False)
    program.type("\x03")
    becomes(program, "key")
    program.type("cat\r")
    becomes(program, "line")


def test_a_program_that_is_gone_does_not_wait(start: Start) -> None:
    """Neither a zombie nor a pid that nobody has, nor a terminal that was closed."""
    program = start(["true"])
    wait_until(lambda: os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    assert look(program.pid, program.tty) is False
    assert look(program.pid, None) is False
    program.end()
    assert look(program.pid, program.tty) is False
    assert look(program.pid, "/dev/pts/999999") is False


def test_looking_at_programs_that_come_and_go_never_fails(start: Start) -> None:
    """Processes that vanish between two of the files that are read are no error."""
    busy = "for i in {1..400}; do /bin/true; (exit 0) & done; wait; echo finished"
    program = start(["bash", "-c", busy])
    while b"finished" not in program.pump():
        assert look(program.pid, program.tty) in (False, "unknown")


# -- programs of which nobody can know -------------------------------------------------------------


@pytest.mark.parametrize(
    "way",
    [
        "epoll_beside_a_pipe",
        "poll_beside_a_pipe",
        "poll_for_a_while",
        "select_for_a_while",
        "timed_reads",
    ],
)
def test_what_the_kernel_does_not_tell_is_unknown(start: Start, child: Child, way: str) -> None:
    """A time limit, or another descriptor beside the terminal: it may be about to do anything."""
    program = start(child("waits_in", way))
    program.shows("ready")
    stays(program, "unknown")


@pytest.mark.parametrize("command", [["node"], ["fish", "--no-config"], ["top"]], ids=" ".join)
def test_programs_with_loops_of_their_own_are_unknown(start: Start, command: list[str]) -> None:
    """node, fish and top wait for more than their terminal, or only for a while."""
    program = start(command)
    wait_until(program.pump)
    becomes(program, "unknown")


def test_a_machine_whose_calls_are_not_known_says_unknown(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers of calls differ between machines, so a guess could mean anything."""
    program = start(["cat"])
    becomes(program, "line")
    monkeypatch.setattr(input_evidence, "_CALLS", None)
    assert look(program.pid, program.tty) == "unknown"


@pytest.fixture
def for_all() -> Iterator[str]:
    """A directory that every user may look into."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o755)
        yield path


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_of_another_users_program_only_a_password_prompt_is_known(
    start: Start, child: Child, for_all: str
) -> None:
    """sudo's own process cannot be looked into, but its terminal has the echo off."""
    package = Path(for_all) / "copied"  # nobody may not read ours
    package.mkdir()
    for name in ("kernel.py", "input_evidence.py"):
        shutil.copy(Path(input_evidence.__file__).parent / name, package)
    for place in (package, *package.iterdir()):
        place.chmod(0o755)
    source = f"import sys\nsys.path.insert(0, {for_all!r})\n"
    source += "from copied.input_evidence import look\n"

    def as_nobody(program: Program) -> str:
        assert program.tty is not None
        os.chown(program.tty, 65534, -1)
        looks = f"print(look({program.pid}, {program.tty!r}))"
        done = subprocess.run(
            ["python3", "-IS", "-"],
            input=(source + looks).encode(),
            user=65534,
            group=65534,
            extra_groups=[],
            cwd="/",
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    program = start(child("asks_for_password"))
    program.shows("Password: ")
    becomes(program, "password")
    assert as_nobody(program) == "password"
    plain = start(["cat"])
    becomes(plain, "line")
    assert as_nobody(plain) == "unknown"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (["cat"], "line"),
        (["sh", "-c", "sleep 600; :"], False),
        (["bash", "--norc"], "unknown"),
        ([*PYTHON, "-c", "import socket; s = socket.socket(); input()"], "unknown"),
    ],
    ids=lambda value: " ".join(value)[-30:] if isinstance(value, list) else "",
)
def test_with_calls_hidden_by_yama_a_read_is_still_seen(
    start: Start, monkeypatch: pytest.MonkeyPatch, command: list[str], answer: object
) -> None:
    """The function that it sleeps in may be known where the call is not."""
    program = start(command)

    def refuse(pid: int, tid: str) -> bytes:
        raise PermissionError

    monkeypatch.setattr(input_evidence, "_call_of", refuse)
    becomes(program, answer)


# -- pipes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["cat"],
        [*PYTHON, "-c", "input('name? ')"],
        ["bash", "-c", "read name"],
        ["bash", "-c", "cat; :"],
        ["bash", "-c", "(cat; :) | sort; :"],
        ["bash"],
    ],
    ids=" ".join,
)
def test_whoever_reads_the_stdin_we_gave_waits(start: Start, command: list[str]) -> None:
    """The process itself, or whoever it passed its stdin on to."""
    program = start(command, pipe=True)
    becomes(program, "line")


@pytest.mark.parametrize("way", ["epoll", "poll", "select_alone", "thread", "high_descriptor"])
def test_every_way_to_wait_for_stdin_alone_is_seen(start: Start, child: Child, way: str) -> None:
    """As at a terminal."""
    program = start(child("waits_in", way), pipe=True)
    program.shows("ready")
    becomes(program, "line")


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", "echo ready; sleep 600; :"],
        ["bash", "-c", "echo ready; sleep 600 | cat; :"],
        ["bash", "-c", "echo ready; sleep 600 < /dev/null & wait"],
        ["bash", "-c", "exec < /dev/null; echo ready; sleep 600 | cat; :"],
    ],
    ids=" ".join,
)
def test_a_program_that_does_not_read_its_stdin_does_not_wait(
    start: Start, command: list[str]
) -> None:
    """Other pipes are its own affair."""
    program = start(command, pipe=True)
    program.shows("ready")
    stays(program, False)


def test_stdin_beside_something_else_is_unknown(start: Start, child: Child) -> None:
    """As at a terminal."""
    program = start(child("waits_in", "poll_beside_a_pipe"), pipe=True)
    program.shows("ready")
    stays(program, "unknown")


# -- prompts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "prompt"),
    [
        (b"", ""),
        (b"\r\n\n  ", ""),
        (b"building...\r\nDelete it? [y/N] ", "Delete it? [y/N]"),
        (b"a question in a line of its own?\n", "a question in a line of its own?"),
        (b"10%\r50%\r100%\rcontinue? ", "continue?"),
        (b"\x1b[1;31mReally\x1b[0m \x1b]0;title\x07delete?\x1b[K\x1b[?25h ", "Really delete?"),
        (b"\x1b]8;;http://x/\x1b\\here\x1b]8;;\x1b\\: ", "here:"),
        (b"\x1b(B\x1b)0\x1b=ok\x07\x00 > ", "ok >"),
        ("\u00fcber \U0001f980? ".encode(), "\u00fcber \U0001f980?"),
        (b"\xff\xfe? ", "\ufffd\ufffd?"),
        (b"x" * 5000 + b"? ", "x" * 199 + "?"),
        (b"old\n" * 5000 + b"new? ", "new?"),
    ],
)
def test_the_prompt_is_the_last_line_that_shows_anything(
    tmp_path: Path, output: bytes, prompt: str
) -> None:
    """Without codes, without what was overwritten, and of bounded length."""
    (tmp_path / "log").write_bytes(output)
    log = Log(str(tmp_path / "log"), str(tmp_path / "head"))
    assert prompt_of(log, "line", None) == prompt
    assert prompt_of(log, "password", None) == prompt
    assert prompt_of(log, "key", None) == prompt
    log.close()


def test_looking_leaves_nothing_behind(start: Start) -> None:
    """No descriptor, no controlling terminal, and the terminal as it was."""
    program = start(["cat"])
    becomes(program, "line")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(100):
        look(program.pid, program.tty)
    assert set(os.listdir("/proc/self/fd")) == before
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[3]); os.setsid()\n"
        "from holdfast.linux.input_evidence import look\n"
        "print(look(int(sys.argv[1]), sys.argv[2]))\n"
        "print(open('/proc/self/stat').read().rpartition(')')[2].split()[4])"
    )
    source = str(Path(input_evidence.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code, str(program.pid), program.tty or "", source],
        capture_output=True,
        env=ENVIRONMENT,
        start_new_session=False,
    )
    assert done.stdout.split() == [b"line", b"0"], done.stderr
    assert any(process.pid == program.pid for process in all_processes())
