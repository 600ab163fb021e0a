"""The watcher as the keeper runs it: a program that is told of processes and tells what it sees."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.core.watch import begun, checked
from holdfast.testing import wait_until
from tests.terminals import Program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

Child = Callable[..., list[str]]
Start = Callable[..., Program]

SCRIPT = str(Path(holdfast.__file__).parent / "watcher" / "__main__.py")
CANARY = "while read -p 'canary? ' line; do sleep 0.02; done"


class Watcher:
    """A watcher, what it said, and the programs that it was told of."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",
            env={},
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.programs: dict[str, Program] = {}
        self.said: list[dict[str, Any]] = []
        self._partly = b""

    def tell(self, message: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        os.write(self.process.stdin.fileno(), line + b"\n")

    def add(self, name: str, program: Program, **extra: Any) -> None:
        self.programs[name] = program
        message = {
            "add": name,
            "pid": program.pid,
            "tty": program.tty,
            "queries": program.tty is not None,
            "log": str(program.log),
            "head": f"{program.log}.head",
            "sizes": [[0, 80, 24]] if program.tty else [],
        }
        self.tell(message | extra)

    def listen(self) -> list[dict[str, Any]]:
        """All that it ever said; what it wants typed is typed."""
        for program in self.programs.values():
            program.pump()
        assert self.process.stdout is not None
        try:
            self._partly += os.read(self.process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            pass
        *lines, self._partly = self._partly.split(b"\n")
        for line in lines:
            message = json.loads(line)
            self.said.append(message)
            if "reply" in message:
                self.programs[message["reply"]].type(b64decode(message["data"]).decode("latin-1"))
        return self.said

    def prompts(self, name: str) -> list[tuple[str, str]]:
        return [
            (message["prompt"], message["kind"])
            for message in self.listen()
            if message.get("input") == name
        ]

    def replies(self, name: str) -> list[bytes]:
        return [
            b64decode(message["data"]) for message in self.listen() if message.get("reply") == name
        ]

    def says(self, name: str, *prompts: tuple[str, str]) -> None:
        """Wait until these are the prompts of a program so far."""
        wait_until(
            lambda: self.prompts(name) == list(prompts),
            what=f"{prompts} of {name}, and not {self.said}",
        )

    def shows(self, name: str, text: str) -> None:
        program = self.programs[name]
        wait_until(
            lambda: self.listen() is not None and text.encode() in program.output,
            what=f"{text!r} in {program.output[-500:]!r}, with {self.said}",
        )

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def start(no_leaks: None, tmp_path: Path) -> Iterator[Start]:
    started: list[Program] = []

    def begin(command: list[str], *, pipe: bool = False) -> Program:
        if not shutil.which(command[0]):
            pytest.skip(f"{command[0]} is not installed")
        program = Program(command, tmp_path / f"{len(started)}.log", pipe=pipe)
        started.append(program)
        return program

    yield begin
    for program in started:
        program.__exit__()


@pytest.fixture
def watcher(start: Start) -> Iterator[Watcher]:
    watcher = Watcher()
    yield watcher
    watcher.close()


@pytest.fixture
def rounds(watcher: Watcher, start: Start) -> Callable[[int], None]:
    """Let the watcher work: so many prompts of a program beside the one under test are seen."""
    canary = start(["bash", "-c", CANARY])
    seen = 0

    def canary_asked() -> bool:
        return len(watcher.prompts("canary")) == seen

    def go_on(count: int) -> None:
        nonlocal seen
        if not seen:
            watcher.add("canary", canary)
        for _ in range(count):
            seen += 1
            wait_until(canary_asked)
            canary.type("go on\n")

    return go_on


# -- prompts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipe", [False, True], ids=["pty", "pipe"])
def test_each_prompt_is_said_once(
    watcher: Watcher, start: Start, rounds: Callable[[int], None], pipe: bool
) -> None:
    """And the next one, after an answer, again; with where the log ended."""
    program = start(
        ["bash", "-c", "for x in {1..3}; do printf 'name %s? ' $x; read; done"], pipe=pipe
    )
    watcher.add("asks", program)
    watcher.says("asks", ("name 1?", "line"))
    rounds(2)
    program.type("half an")
    rounds(3)
    watcher.says("asks", ("name 1?", "line"))
    program.type(" answer\n")
    watcher.says("asks", ("name 1?", "line"), ("name 2?", "line"))
    program.type("b\n")
    watcher.says("asks", *[(f"name {n}?", "line") for n in (1, 2, 3)])
    offsets = [message["offset"] for message in watcher.said if message["input"] == "asks"]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == len(program.output)


def test_a_password_prompt_is_said_to_be_one(watcher: Watcher, start: Start, child: Child) -> None:
    """So that nobody types anything else, or shows what was typed."""
    program = start(child("asks_for_password"))
    watcher.add("asks", program)
    watcher.says("asks", ("Password:", "password"))
    program.type("no\n")
    watcher.says("asks", ("Password:", "password"), ("Password:", "password"))


def test_the_prompt_of_a_program_that_reads_keys_is_what_stands_before_the_cursor(
    watcher: Watcher, start: Start, child: Child
) -> None:
    """Such programs draw; their bytes are not their lines."""
    program = start(child("asks_in_raw_mode"))
    watcher.add("asks", program)
    watcher.says("asks", ("delete? [y/n]", "key"))
    program.type("n")
    watcher.says("asks", ("delete? [y/n]", "key"), ("delete? [y/n]", "key"))


def test_a_shell_is_said_to_wait_after_each_command(
    watcher: Watcher, start: Start, rounds: Callable[[int], None]
) -> None:
    """Not while a line is edited or redrawn, and not while a command runs."""
    program = start(["bash", "--norc"])
    watcher.add("shell", program)
    watcher.says("shell", ("shell>", "key"))
    for text in ("echo", " o", "n\b\bne"):
        program.type(text)
        rounds(2)
    assert len(watcher.prompts("shell")) == 1
    assert program.tty is not None
    fd = os.open(program.tty, os.O_RDWR | os.O_NOCTTY)
    termios.tcsetwinsize(fd, (24, 60))
    os.close(fd)
    rounds(2)
    assert len(watcher.prompts("shell")) == 1
    program.type("\r")
    watcher.says("shell", ("shell>", "key"), ("shell>", "key"))
    program.type("sleep 600\r")
    rounds(5)
    assert len(watcher.prompts("shell")) == 2
    program.type("\x03")
    watcher.says("shell", *[("shell>", "key")] * 3)
    program.type("PS2='more> '; echo '\r")
    watcher.says("shell", *[("shell>", "key")] * 3, (">", "key"))


def test_a_full_screen_program_is_said_to_wait_once(
    watcher: Watcher, start: Start, rounds: Callable[[int], None]
) -> None:
    """All it does is wait for keys; that is said again when it asks somebody else."""
    program = start(["vim", "-u", "NONE", "-N", "-c", "set updatetime=50", "/etc/services"])
    watcher.add("edits", program)
    wait_until(lambda: len(watcher.prompts("edits")) == 1)
    for keys in ("\x06", "jj", "\x06", "G", "ix\x1b", "u"):
        program.type(keys)
        rounds(2)
    assert [kind for _, kind in watcher.prompts("edits")] == ["key"]
    program.type(":!cat\r")
    wait_until(lambda: len(watcher.prompts("edits")) == 2)


def test_a_program_that_draws_while_a_thread_reads_is_said_to_wait_once(
    watcher: Watcher, start: Start, child: Child, rounds: Callable[[int], None]
) -> None:
    """It is one wait, however often the clock beside it changes."""
    program = start(child("draws_a_clock", "0.3"))
    watcher.add("clock", program)
    watcher.shows("clock", "10 press a key")
    rounds(5)
    assert len(watcher.prompts("clock")) <= 1


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "echo -n 'sure? '; sleep 600; :"],
        ["sh", "-c", "echo -n 'sure? '; while :; do :; done"],
        ["sh", "-c", "while :; do echo 'sure? '; sleep 0.01; done"],
        ["top", "-d", "0.3"],
        ["node", "-e", "process.stdin.on('data', () => {}); console.log('sure? ')"],
    ],
    ids=" ".join,
)
def test_nothing_is_said_of_programs_that_do_not_wait_or_may_not(
    watcher: Watcher, start: Start, rounds: Callable[[int], None], command: list[str]
) -> None:
    """Whatever they print."""
    program = start(command)
    watcher.add("works", program)
    wait_until(program.pump)
    rounds(8)
    assert watcher.prompts("works") == []


def test_a_process_that_reads_without_having_written_is_seen(
    watcher: Watcher, start: Start
) -> None:
    """There is no output that would tell of it."""
    program = start(["bash", "-c", "read; while [ $SECONDS -lt 1 ]; do :; done; read"])
    watcher.add("quiet", program)
    watcher.says("quiet", ("", "line"))
    late = start(["bash", "-c", "sleep 0.7; cat"])
    watcher.add("late", late)
    watcher.says("late", ("", "line"))


# -- queries ---------------------------------------------------------------------------------------


def test_queries_are_answered_as_a_terminal_would(
    watcher: Watcher, start: Start, child: Child
) -> None:
    """The cursor is where the output has put it; every query gets one answer."""
    program = start(
        child(
            "asks_the_terminal",
            r"\x1b[5;7H\x1b[6n",
            r"\x1b[3;2Habc\x1b[6n",
            r"plain \x1b[1mbold\x1b[m text",
            r"\x1b[c",
            r"\x1b[5n\x1b[?2004$p",
            r"\x1b[18t",
            r"\x1b]11;?\x1b\\",
        )
    )
    watcher.add("asks", program)
    watcher.shows("asks", "done")
    shown = [
        line.removeprefix("reply ")
        for line in program.output.decode("latin-1").split("\r\n")
        if line.startswith("reply")
    ]
    assert shown[0] == r"b'\x1b[5;7R'"
    assert shown[1] == r"b'\x1b[3;5R'"
    assert shown[2] == "none"
    assert shown[3].startswith(r"b'\x1b[?")
    assert shown[3].endswith("c'")
    assert shown[4] == r"b'\x1b[0n\x1b[?2004;2$y'"
    assert shown[5] == r"b'\x1b[8;24;80t'"
    assert shown[6].startswith(r"b'\x1b]11;rgb:")
    assert len(watcher.replies("asks")) == 6


@pytest.mark.parametrize(
    ("query", "reply"),
    [
        (r"\e[6n", b"\x1b[1;1R"),
        (r"\e[?2004$p", b"\x1b[?2004;2$y"),
        (r"\eP$qm\e\\", b"\x1bP1$r0m\x1b\\"),
    ],
)
def test_a_query_is_answered_when_it_is_whole(
    watcher: Watcher, start: Start, query: str, reply: bytes
) -> None:
    """Also where it comes in pieces, and then once."""
    pieces = query.replace(r"\e", "\x1b").replace(r"\\", "\\")
    command = "stty raw -echo; while IFS= read -r -n1 -d '' x; do printf %s \"$x\"; done"
    program = start(["bash", "-c", command])
    watcher.add("asks", program)
    wait_until(lambda: len(watcher.prompts("asks")) == 1)
    for number, piece in enumerate(pieces):
        assert watcher.replies("asks") == []
        program.type(piece)
        wait_until(lambda: len(program.pump()) == number + 1)  # noqa: B023
        time.sleep(0.03)  # so that they are not seen as one
    wait_until(lambda: watcher.replies("asks"))
    assert watcher.replies("asks") == [reply]


def test_only_a_terminal_of_ours_is_answered_for(
    watcher: Watcher, start: Start, rounds: Callable[[int], None]
) -> None:
    """A pipe has nobody to ask, and tmux answers for itself: the keeper says whose it is."""
    program = start(["sh", "-c", r"printf '\033[6n\033[c'; sleep 600"])
    watcher.add("asks", program, queries=False)
    program.shows("\x1b[c")
    rounds(3)
    assert watcher.replies("asks") == []


def test_old_queries_are_not_answered_again(watcher: Watcher, start: Start, child: Child) -> None:
    """A watcher that is told of a process that is at work begins where it is told to."""
    program = start(["bash", "-c", r"printf 'old\e[6n'; read; printf 'new\e[5n'; cat"])
    program.shows("\x1b[6n")
    watcher.add("asks", program, **{"from": len(program.output)})
    program.type("\n")
    wait_until(lambda: watcher.replies("asks") == [b"\x1b[0n"])
    young = start(["bash", "-c", r"printf '\e[5n'; cat"])
    young.shows("\x1b[5n")
    watcher.add("young", young)
    wait_until(lambda: watcher.replies("young") == [b"\x1b[0n"])


def test_a_change_of_size_is_heeded(watcher: Watcher, start: Start) -> None:
    """The answer is by the size in force where the query stands."""
    program = start(["bash", "-c", r"printf '\e[18t'; read; printf '\e[18t'; cat"])
    watcher.add("asks", program)
    wait_until(lambda: watcher.replies("asks") == [b"\x1b[8;24;80t"])
    watcher.tell({"sizes": "asks", "to": [[0, 80, 24], [len(program.output), 100, 30]]})
    program.type("\n")
    wait_until(lambda: watcher.replies("asks")[1:] == [b"\x1b[8;30;100t"])


def test_a_query_at_the_end_of_a_flood_is_answered(watcher: Watcher, start: Start) -> None:
    """What came long before is passed over; whoever waits for an answer has stopped writing."""
    program = start(["bash", "-c", r"yes | head -c 1000000; printf '\e[5;9H\e[6n'; cat"])
    watcher.add("floods", program)
    wait_until(lambda: watcher.replies("floods") == [b"\x1b[5;9R"])


# -- watches ---------------------------------------------------------------------------------------


def a_watch(**spec: Any) -> dict[str, Any]:
    return begun(checked(spec), 1, [0], time.monotonic())


def test_what_a_watch_sees_is_said_with_the_step_from_place_to_place(
    watcher: Watcher, start: Start
) -> None:
    """So that the keeper can tell what it knows already."""
    program = start(["bash", "-c", "echo one; echo two; read; echo three; cat"], pipe=True)
    watcher.add("works", program, watches=[a_watch(output="t|o", cooldown=0)], input=False)
    wait_until(lambda: len(watcher.listen()) == 2)
    program.type("\n")
    wait_until(lambda: len(watcher.listen()) == 3)
    steps = [(said["from"], said["place"], said["event"]["line"]) for said in watcher.said]
    assert steps == [(0, 4, "one"), (4, 8, "two"), (8, 14, "three")]
    assert {said["watch"] for said in watcher.said} == {"works"}


def test_a_step_in_one_of_two_logs_is_said_with_the_place_in_the_other(
    watcher: Watcher, start: Start, tmp_path: Path
) -> None:
    """Of what was held back both are moved on at once; a watch on one has one place."""
    first_in_stdout = ([4, 0], [8, 0], "stdout", 0)
    for cooldown in (1, 4, 16):
        steps = steps_in_two_logs(watcher, start, tmp_path / f"errors-{cooldown}.log", cooldown)
        if steps["w1"][1] != first_in_stdout:
            break  # else it was over before there was something in both
    assert steps["w2"] == [(0, 10, "stderr", 0)]
    assert steps["w1"] == [
        ([0, 0], [4, 0], "stdout", 0),
        ([4, 0], [8, 10], "stderr", 1),
        ([8, 10], [14, 10], "stdout", 0),
    ]


def steps_in_two_logs(
    watcher: Watcher, start: Start, errors: Path, cooldown: int
) -> dict[str, list[Any]]:
    program = start(["bash", "-c", "echo one; read; echo two; read; echo three; cat"], pipe=True)
    errors.touch(0o600)
    name, logs = errors.name, {"err_log": str(errors), "err_head": f"{errors}.head"}
    watch = begun(checked({"output": "one|two|three", "cooldown": cooldown}), 1, [0, 0], 0.0)
    only = begun(checked({"output": "three", "stream": "stderr"}), 2, [0, 0], 0.0)
    watcher.add(name, program, watches=[watch, only], input=False, **logs)

    def seen() -> dict[str, list[Any]]:
        steps: dict[str, list[Any]] = {"w1": [], "w2": []}
        for said in watcher.listen():
            if said.get("watch") == name:
                event = said["event"]
                step = (said["from"], said["place"], event["stream"], event["missed"])
                steps[said["id"]].append(step)
        return steps

    wait_until(lambda: seen()["w1"])
    program.type("\n")
    program.shows("two")
    with errors.open("a") as log:
        log.write("err three\n")
    wait_until(lambda: seen()["w2"] and seen()["w1"][-1][1] == [8, 10], timeout=60)
    program.type("\n")
    wait_until(lambda: seen()["w1"][-1][1] == [14, 10], timeout=60)
    watcher.tell({"ended": name, "size": 14, "err_size": 10})
    wait_until(lambda: {"done": name} in watcher.listen())
    return seen()


def test_a_process_that_nobody_can_type_to_is_not_said_to_wait(
    watcher: Watcher, start: Start, rounds: Callable[[int], None]
) -> None:
    """It is looked at for its watches only."""
    watcher.add("works", start(["cat"]), watches=[a_watch(output="x")], input=False)
    watcher.tell({"answered": "works"})
    rounds(5)
    assert watcher.prompts("works") == []


def test_watches_come_and_go(watcher: Watcher, start: Start, rounds: Callable[[int], None]) -> None:
    """And one that is told of again begins where it is told to."""
    program = start(["bash", "-c", "echo one; read; echo two; cat"], pipe=True)
    watcher.add("works", program, input=False)
    watch = a_watch(output="one|two", cooldown=0)
    watcher.tell({"watch": "works", "of": watch})

    def seen() -> list[str]:
        return [said["event"]["line"] for said in watcher.listen() if "watch" in said]

    wait_until(lambda: seen() == ["one"])
    watcher.tell({"watch": "works", "of": watch})
    wait_until(lambda: seen() == ["one", "one"])
    watcher.tell({"unwatch": "works", "id": "w1"})
    watcher.tell({"unwatch": "works", "id": "w2"})
    program.type("\n")
    rounds(3)
    assert seen() == ["one", "one"]


def test_after_an_end_the_rest_is_said_and_then_that_it_is_done(
    watcher: Watcher, start: Start
) -> None:
    """Up to where the log ended with the process; what others write there is not its own."""
    program = start(["bash", "-c", "echo one; printf two; printf more; cat"], pipe=True)
    program.shows("more")
    watches = [a_watch(output="one|two|more", cooldown=100), a_watch(quiet=100) | {"id": "w2"}]
    watcher.add("works", program, watches=watches, input=False)
    watcher.tell({"ended": "works", "size": 7})
    wait_until(lambda: {"done": "works"} in watcher.listen())
    steps = [(said["from"], said["place"], said["partly"]) for said in watcher.said[:-1]]
    assert steps == [(0, 4, False), (4, 7, True)]
    watcher.tell(
        {"add": "gone", "pid": 2**22 - 1, "log": "/nonexistent/log"}
        | {"head": "/nonexistent/head", "watches": [watches[0]], "input": False}
    )
    watcher.tell({"ended": "gone", "size": None})
    wait_until(lambda: {"done": "gone"} in watcher.listen())


def test_watches_that_see_nothing_do_not_wake_it(watcher: Watcher, start: Start) -> None:
    """A long silence, an interval without output, a pattern that does not match."""
    program = start(["bash", "-c", "echo one; cat"])
    program.shows("one")
    specs: list[dict[str, Any]] = [
        {"output": "nothing"},
        {"quiet": 0.1},
        {"every": 0.1},
        {"quiet": 1000},
    ]
    watches = [a_watch(**spec) | {"id": f"w{n}"} for n, spec in enumerate(specs)]
    watcher.add("works", program, watches=watches, input=False)
    wait_until(lambda: {said["id"] for said in watcher.listen()} == {"w1", "w2"})
    wait_until(lambda: rests(watcher))


# -- its own life ----------------------------------------------------------------------------------


def test_it_ends_when_its_input_does(watcher: Watcher, start: Start) -> None:
    """The keeper's end is its own, also in the middle of something."""
    watcher.add("asks", start(["cat"]))
    watcher.says("asks", ("", "line"))
    assert watcher.process.stdin is not None
    watcher.process.stdin.close()
    assert watcher.process.wait(30) == 0


def test_it_ends_when_nobody_listens(watcher: Watcher, start: Start) -> None:
    """Whoever started it is gone."""
    assert watcher.process.stdout is not None
    watcher.process.stdout.close()
    watcher.add("asks", start(["cat"]))
    assert watcher.process.wait(30) == 0


def test_what_it_does_not_understand_is_passed_over(watcher: Watcher, start: Start) -> None:
    """Neither garbage nor a process that is not there ends it."""
    for line in (b"", b"{", b"\xff\xfe\x00", b"[1, 2]", b"null", b'"add"', b'{"add": 3}', b"{}"):
        watcher.tell(line)
    watcher.tell({"add": "no-pid", "queries": True})
    watcher.tell({"drop": "nobody"})
    watcher.tell({"sizes": "nobody", "to": []})
    gone = start(["true"])
    gone.pump()
    watcher.add("gone", gone, pid=2**22 - 1)
    watcher.add("no-log", gone, log="/nonexistent/log", head="/nonexistent/head")
    watcher.add("a-directory", gone, log="/", head="/")
    watcher.add("odd", gone, sizes="what?", tty=5)
    watcher.add("asks", start(["cat"]))
    watcher.says("asks", ("", "line"))
    assert {message["input"] for message in watcher.said} == {"asks"}


def test_a_log_that_vanishes_and_a_process_that_ends_are_no_trouble(
    watcher: Watcher, start: Start, rounds: Callable[[int], None]
) -> None:
    """Nothing more is said of them, and the others are looked at as before."""
    vanishing = start(["bash", "-c", "while printf 'more? '; do read; done"])
    ending = start(["bash", "-c", "printf 'last? '; read; sleep 600"])
    watcher.add("vanishing", vanishing)
    watcher.add("ending", ending)
    watcher.says("vanishing", ("more?", "line"))
    watcher.says("ending", ("last?", "line"))
    vanishing.log.unlink()
    vanishing.type("\n")
    ending.end()
    rounds(5)
    watcher.says("vanishing", ("more?", "line"))
    watcher.says("ending", ("last?", "line"))


def test_a_log_that_is_rotated_is_followed(watcher: Watcher, start: Start) -> None:
    """The name means another file now; the process asks on."""
    from holdfast.core.log_head import LogHead, write_head

    program = start(["bash", "-c", "for x in 1 2 3; do printf 'name %s? ' $x; read; done"])
    watcher.add("asks", program)
    watcher.says("asks", ("name 1?", "line"))
    base = len(program.output)
    program.rotate()
    write_head(f"{program.log}.head", LogHead(0, base, 0))
    program.type("\n")
    watcher.says("asks", ("name 1?", "line"), ("name 2?", "line"))
    assert watcher.said[-1]["offset"] == len(program.output)


def test_a_dropped_process_is_not_looked_at(
    watcher: Watcher, start: Start, rounds: Callable[[int], None]
) -> None:
    """Until it is added again."""
    program = start(["bash", "-c", "while printf 'more? '; do read; done"])
    watcher.add("asks", program)
    watcher.says("asks", ("more?", "line"))
    watcher.tell({"drop": "asks"})
    rounds(1)
    program.type("\n")
    rounds(4)
    watcher.says("asks", ("more?", "line"))
    watcher.add("asks", program)
    watcher.says("asks", ("more?", "line"), ("more?", "line"))


def test_a_killed_watcher_is_replaced_without_loss(watcher: Watcher, start: Start) -> None:
    """Its successor says what it finds, with the same offset: the keeper knows it by that."""
    program = start(["bash", "-c", "printf 'more? '; read"])
    watcher.add("asks", program)
    watcher.says("asks", ("more?", "line"))
    watcher.process.send_signal(signal.SIGKILL)
    successor = Watcher()
    try:
        successor.add("asks", program)
        successor.says("asks", ("more?", "line"))
        assert successor.said == watcher.said
    finally:
        successor.close()


def test_without_inotify_it_looks_by_itself(start: Start) -> None:
    """Where the kernel allows no more of it, looking takes a little longer."""
    from holdfast.watcher.loop import Watcher as Loop

    their_in, tell = os.pipe()
    hear, their_out = os.pipe()
    os.set_blocking(hear, False)
    loop = Loop(their_in, their_out)
    assert loop._changes.fd is not None
    os.close(loop._changes.fd)
    loop._changes.fd = None
    thread = threading.Thread(target=loop.run)
    thread.start()
    program = start(["bash", "-c", r"printf 'more? '; read; printf '\e[5n'; cat"])
    heard = b""

    def said(text: bytes) -> bool:
        nonlocal heard
        program.pump()
        try:
            heard += os.read(hear, 1 << 16)
        except BlockingIOError:
            pass
        return text in heard

    try:
        told = {"add": "asks", "pid": program.pid, "queries": True, "tty": program.tty}
        told |= {"log": str(program.log), "head": f"{program.log}.head", "sizes": []}
        os.write(tell, json.dumps(told).encode() + b"\n")
        wait_until(lambda: said(b'"more?"'))
        program.type("\n")
        wait_until(lambda: said(b'"reply"'))
    finally:
        os.close(tell)
        thread.join(30)
        for watched in loop._watched.values():
            watched.close()
        for fd in (their_in, hear, their_out):
            os.close(fd)


def test_idle_it_sleeps(watcher: Watcher, start: Start) -> None:
    """With every process at a prompt that was said, nothing wakes it."""
    for number in range(3):
        watcher.add(f"asks-{number}", start(["cat"]))
    for number in range(3):
        watcher.says(f"asks-{number}", ("", "line"))
    wait_until(lambda: rests(watcher))


def rests(watcher: Watcher) -> bool:
    """Whether it sleeps, in a poll that nothing but a change ends within a minute."""
    if platform.machine() != "x86_64":
        pytest.skip("how long a program sleeps is read off its registers")
    try:
        words = Path(f"/proc/{watcher.process.pid}/syscall").read_text().split()
    except PermissionError:
        pytest.skip("the kernel does not show what a program waits in")
    return words[0] == "7" and int(words[3], 16) & 0xFFFFFFFF >= 60_000  # -1 is without an end
