"""What holds in both kinds of terminal: ours (pty) and tmux's."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import BadRequest, NotFound, NotRunning, SyncClient, SyncProcess, Unsupported, connect
from holdfast.core.quote import as_name
from holdfast.testing import wait_until
from tests.proc_files import proc_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.shared_keeper

Start = Callable[..., SyncProcess]
Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]

NO_ECHO = ["bash", "-c", 'stty -echo; exec "$@"', "bash"]  # before a command
PLAIN_BASH = ["bash", "--norc", "--noprofile", "-i"]


@pytest.fixture(params=["tty", "tmux"])
def terminal(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(hf: SyncClient, terminal: str) -> Start:
    def spawn(command: str | list[str], **options: Any) -> SyncProcess:
        process = hf.spawn(command, **{terminal: True, **options})
        assert process.record.mode == {"tty": "pty", "tmux": "tmux"}[terminal]
        return process

    return spawn


def output(process: SyncProcess) -> str:
    return process.read_at(0, 1 << 22).text.replace("\r\n", "\n")


def shows(process: SyncProcess, text: str) -> None:
    """Wait until this is on its screen."""
    wait_until(lambda: text in process.screen().text, what=f"{text!r} on the screen of {process}")


# -- a real terminal -------------------------------------------------------------------------------


def test_a_process_has_a_controlling_terminal_of_the_asked_size(start: Start) -> None:
    """All three descriptors are a terminal, /dev/tty opens, and its size is the one asked for."""
    process = start(
        "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && : < /dev/tty && tty && stty size", size="91x17"
    )
    assert process.wait(30).ok
    assert output(process) == f"{process.record.tty}\n17 91\n"
    public = process.refresh().public()
    assert (public["size"], public["stdin"]) == ("91x17", True)


def test_the_environment_is_one_for_a_terminal(
    start: Start, monkeypatch: pytest.MonkeyPatch, terminal: str
) -> None:
    """A colour terminal, no lies about its size, the caller's pager; all can be set by the call."""
    monkeypatch.setenv("LINES", "5")
    monkeypatch.setenv("PAGER", "less -X")
    monkeypatch.setenv("TERM", "dumb")
    show = 'echo "$TERM|$LINES|$PAGER|$COLORTERM|$HOLDFAST_HANDLE"'
    process = start(show)
    assert process.wait(30).ok
    term = {"tty": "xterm-256color", "tmux": "tmux-256color"}[terminal]
    assert output(process) == f"{term}||less -X|truecolor|{process.handle}\n"
    process = start(show, env={"TERM": "vt100", "LINES": "7"})
    assert process.wait(30).ok
    assert output(process).startswith("vt100|7|")


def test_a_process_leads_a_session_of_its_own_in_the_foreground(start: Start) -> None:
    """As the program that a terminal was opened for, with nobody to stop or continue it."""
    process = start("ps -o pid=,pgid=,sid=,tpgid= -p $$; read x")
    wait_until(lambda: len(output(process).split()) == 4)
    assert set(output(process).split()) == {str(process.record.pid)}
    process.keys("C-z", "Enter")
    assert process.wait(30).ok


def test_a_program_may_close_its_terminal_before_it_ends(start: Start) -> None:
    """It is not hung up on, and its exit code is its own."""
    process = start("echo bye; exec <&- >&- 2>&-; sleep 0.3; exit 5")
    assert process.wait(30).code == 5
    assert output(process) == "bye\n"


def test_a_resize_reaches_the_program(start: Start) -> None:
    """The program gets SIGWINCH and the new size, and record and screen say so."""
    process = start("trap 'stty size' WINCH; echo ready; while :; do read -t 1; done")
    shows(process, "ready")
    process.resize(77, 21)
    wait_until(lambda: "21 77\n" in output(process))
    assert process.refresh().size == (77, 21)
    assert process.refresh().public()["size"] == "77x21"
    assert process.screen().size == (77, 21)


@pytest.mark.parametrize("size", ["0x5", "5", "axb", "2000x10", (80,), (True, 5), "80x-1"])
def test_a_size_that_makes_no_sense_is_refused(hf: SyncClient, size: Any) -> None:
    with pytest.raises(BadRequest, match="size"):
        hf.spawn("true", tty=True, size=size)
    assert hf.list() == []


def test_a_terminal_has_one_output(start: Start) -> None:
    with pytest.raises(BadRequest, match="one output"):
        start("true", stderr="separate")


def test_a_pipe_has_no_terminal(hf: SyncClient) -> None:
    """What only a terminal can do is refused for a pipe-mode process, with the next step."""
    process = hf.spawn("cat", stdin=True)
    for refused in (
        process.screen,
        lambda: process.keys("Up"),
        lambda: process.resize(80, 24),
        lambda: process.send("x", paste=True),
    ):
        with pytest.raises(Unsupported, match=r"start it with one \(tty\)"):
            refused()
    assert process.attach_command is None
    assert process.record.public()["size"] is None


def test_an_ended_process_takes_no_keys(start: Start) -> None:
    process = start("echo bye")
    process.wait(30)
    with pytest.raises(NotRunning):
        process.keys("Up")
    with pytest.raises(NotRunning):
        process.resize(80, 24)
    with pytest.raises(NotRunning):
        process.send("x")
    assert process.refresh().public()["attach"] is None


def test_another_session_sees_no_terminal_of_ours(start: Start, session: str) -> None:
    """Screen, keys and resize of another session's process are as if it did not exist."""
    process = start(PLAIN_BASH)
    with connect(session=f"{session}-other") as other:
        with pytest.raises(NotFound):
            other.get(process.handle)
        process._process._client = other._client
        for refused in (
            process.screen,
            lambda: process.keys("Up"),
            lambda: process.send("x"),
            lambda: process.resize(80, 24),
        ):
            with pytest.raises(NotFound):
                refused()


# -- the screen ------------------------------------------------------------------------------------


def test_the_screen_is_what_a_person_would_see(start: Start) -> None:
    """Cursor movement and colours are carried out, while it runs and after it ended."""
    draw = r"printf 'one\r\n\033[31mtwo\033[m\033[5;10Hfive\033]2;a title\007'"
    process = start(f"{draw}; read x")
    shows(process, "five")
    for _ in range(2):
        screen = process.screen(colours=True)
        assert screen.text == "one\ntwo\n\n\n         five"
        assert screen.size == (120, 40)
        assert screen.title == "a title"
        assert screen.exact
        assert not screen.fullscreen
        assert screen.styled is not None
        assert "\x1b[31m" in screen.styled or "\x1b[38;5;1m" in screen.styled
        if process.record.running:
            assert screen.cursor == (13, 4)
            process.send("", enter=True)
            assert process.wait(30).ok


@pytest.mark.own_keeper
def test_the_screen_of_an_ended_process_needs_no_keeper(start: Start, hf: SyncClient) -> None:
    process = start(r"printf '\033[3;3Hhere\n'")
    process.wait(30)
    hf.keeper_stop()
    assert process.screen().text == "\n\n  here"
    assert hf.keeper_status() == {"running": False}


def test_vim_is_driven_by_keys_and_seen(start: Start, tmp_path: Path) -> None:
    """A full-screen editor: its screen, its modes, what it writes."""
    file = tmp_path / "note.txt"
    file.write_text("first line\nsecond line\n")
    process = start(["vim", "-u", "NONE", "-N", "-i", "NONE", str(file)], size="80x24")
    shows(process, "second line")
    assert process.screen().fullscreen
    process.keys("G", "o")
    process.send("typed by an agent")
    shows(process, "typed by an agent")
    process.keys("Escape")
    process.send(":wq", enter=True)
    assert process.wait(30).ok
    assert file.read_text() == "first line\nsecond line\ntyped by an agent\n"


def test_less_is_paged_and_searched(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "long.txt"
    file.write_text("".join(f"line {n}\n" for n in range(1000)))
    process = start(["less", str(file)], size="80x24", env={"LESS": "", "LESSHISTFILE": "-"})
    shows(process, "line 22")
    process.keys("PageDown")
    shows(process, "line 45")
    process.send("/line 700", enter=True)
    shows(process, "line 700")
    process.keys("q")
    assert process.wait(30).ok


def test_a_python_repl_remembers(start: Start) -> None:
    """Line editing with history: Up brings the last line back."""
    process = start(["python3", "-q", "-i"], env={"PYTHONSTARTUP": "", "HOME": "/dev/null"})
    shows(process, ">>>")
    process.send("6 * 7", enter=True)
    shows(process, "42")
    process.keys("Up", "BSpace", "8", "Enter")
    shows(process, "48")
    process.keys("C-d")
    assert process.wait(30).ok


def test_a_shell_in_a_terminal_has_job_control(start: Start) -> None:
    """C-c ends what is in the foreground and not the shell; C-z stops it."""
    process = start(PLAIN_BASH, env={"PS1": "shell> "})
    shows(process, "shell>")
    process.send("sleep 1000", enter=True)
    wait_until(lambda: b"sleep" in foreground(process))
    process.keys("C-c")
    wait_until(lambda: process.screen().text.count("shell>") == 2)
    process.send("sleep 1001", enter=True)
    wait_until(lambda: b"1001" in foreground(process))
    process.keys("C-z")
    shows(process, "Stopped")
    wait_until(lambda: process.screen().text.count("shell>") == 3)
    process.send("fg", enter=True)
    wait_until(lambda: b"1001" in foreground(process))
    process.keys("C-c")
    wait_until(lambda: process.screen().text.count("shell>") == 4)
    process.send("exit 3", enter=True)
    assert process.wait(30).code == 3


def foreground(process: SyncProcess) -> bytes:
    """The command line of the foreground of its terminal."""
    with open(f"/proc/{process.record.pid}/stat", "rb") as file:
        group = file.read().rsplit(b")", 1)[1].split()[5]
    return proc_file(int(group), "cmdline")


# -- keys and text ---------------------------------------------------------------------------------

KEYS = [
    (("a", "Enter", "Tab", "Escape", "Space", "BSpace"), "61 0d 09 1b 20 7f"),
    (("Up", "F5", "PageDown", "Delete"), "1b5b41 1b5b31357e 1b5b367e 1b5b337e"),
    (("C-c", "C-d", "M-x", "C-Left", "S-Tab"), "03 04 1b78 1b5b313b3544 1b5b5a"),
    (("ä", ";", "-", "#", "$"), "c3a4 3b 2d 23 24"),
]


@pytest.mark.parametrize(("names", "expected"), KEYS)
def test_keys_arrive_as_a_terminal_sends_them(
    start: Start, child: Child, ready: Ready, names: tuple[str, ...], expected: str
) -> None:
    """The same names give the same bytes in both kinds of terminal."""
    process = ready(start(child("shows_keys")))
    process.keys(*names, "q")
    assert process.wait(30).ok
    assert "".join(output(process).split()[1:-1]) == expected.replace(" ", "")


def test_arrows_follow_the_mode_that_the_program_set(
    start: Start, child: Child, ready: Ready
) -> None:
    process = ready(start(child("shows_keys", r"\x1b[?1h")))
    process.keys("Up", "q")
    assert process.wait(30).ok
    assert output(process).split()[-4:] == ["1b", "4f", "41", "71"]


def test_an_unknown_key_is_refused_and_nothing_is_typed(
    start: Start, child: Child, ready: Ready
) -> None:
    process = ready(start(child("shows_keys")))
    with pytest.raises(BadRequest, match=r"Entr.*Enter"):
        process.keys("a", "Entr")
    with pytest.raises(BadRequest, match="send"):
        process.keys("some text")
    process.keys("q")
    assert process.wait(30).ok
    assert output(process) == "ready\n71\n"


def test_newlines_of_text_are_enter_and_bytes_are_bytes(
    start: Start, child: Child, ready: Ready
) -> None:
    process = ready(start(child("shows_keys")))
    assert process.send("a\nb\r\n") == 4
    assert process.send(b"\n\xff\x00") == 3
    assert process.send("c;", enter=True) == 3
    process.keys("q")
    assert process.wait(30).ok
    assert "".join(output(process).split()[1:]) == "610d620d0aff00633b0d71"


def test_a_paste_is_bracketed_where_the_program_asked_for_it(
    start: Start, child: Child, ready: Ready
) -> None:
    """Lines of a paste do not submit one by one, and a paste cannot end its own bracket."""
    process = ready(start(child("shows_keys", r"\x1b[?2004h")))
    process.send("x\ny\x1b[201~z", paste=True, enter=True)
    process.keys("q")
    assert process.wait(30).ok
    typed = bytes.fromhex("".join(output(process).split("ready\n")[1].split()))
    assert typed == b"\x1b[200~x\ryz\x1b[201~\rq"


def test_a_paste_is_plain_where_nobody_asked(start: Start, child: Child, ready: Ready) -> None:
    process = ready(start(child("shows_keys")))
    process.send("x\ny", paste=True)
    process.keys("q")
    assert process.wait(30).ok
    assert bytes.fromhex("".join(output(process).split()[1:])) == b"x\ryq"


@pytest.mark.parametrize("length", [4094, 4095, 4096, 10_000, 70_000])
def test_a_long_line_arrives_whole(start: Start, child: Child, ready: Ready, length: int) -> None:
    """A terminal in canonical mode drops what exceeds its buffer; what we type is not dropped."""
    process = ready(start([*NO_ECHO, *child("reads_a_line")]))
    line = b"x" * (length - 1) + b"y"
    assert process.send(line.decode(), enter=True, timeout=30) == length + 1
    assert process.wait(30).ok
    digest = hashlib.sha256(line + b"\n").hexdigest()
    assert f"{length + 1} {digest}" in output(process)


def test_a_long_line_in_several_sends_arrives_whole(
    start: Start, child: Child, ready: Ready
) -> None:
    """How much of a line was typed before counts too."""
    process = ready(start([*NO_ECHO, *child("reads_a_line")]))
    pieces = [b"a" * 3000, b"b" * 3000, b"c" * 3000, b"\n"]
    assert [process.send(piece) for piece in pieces] == [3000, 3000, 3000, 1]
    assert process.wait(30).ok
    line = b"".join(pieces)
    assert f"{len(line)} {hashlib.sha256(line).hexdigest()}" in output(process)


def test_the_end_of_file_after_an_unfinished_line_is_one(hf: SyncClient) -> None:
    """The first only hands the line over, so it takes two; and one where the line is finished."""
    for text in ("abc", "abc\n"):
        process = hf.spawn("stty -echo; echo ready; cat > /dev/null; exit 5", tty=True)
        wait_until(lambda p=process: "ready" in output(p))  # type: ignore[misc]
        process.send(text)
        process.send("", eof=True)
        assert process.wait(30).code == 5


def test_a_process_that_never_reads_takes_what_fits(hf: SyncClient, child: Child) -> None:
    """The answer is partial and comes in time; other calls are not held up."""
    process = hf.spawn("stty raw -echo; echo ready; sleep 1000", tty=True)
    wait_until(lambda: "ready" in output(process))
    taken = process.send(b"x" * (1 << 20), timeout=0.2)
    assert 0 < taken < 1 << 20
    assert hf.spawn("exit 5", tty=True).wait(30).code == 5


# -- bytes -----------------------------------------------------------------------------------------


def test_every_byte_a_program_writes_is_in_the_log(start: Start, tmp_path: Path) -> None:
    """Raw output is logged as it is: all byte values, invalid text, escapes, a very long line."""
    data = bytes(range(256)) * 64 + b"\xc3\x28\xff" + b"\x1b]0;t\x07" + b"L" * 3_000_000 + b"\x1b["
    file = tmp_path / "bytes"
    file.write_bytes(data)
    process = start(f"stty raw -echo; cat {file}; head -c 1")
    wait_until(lambda: process.tail_bytes(0).end >= len(data), timeout=60)
    process.send("", enter=True)
    assert process.wait(60).ok
    logged = Path(process.record.log).read_bytes()[: len(data)]
    assert hashlib.sha256(logged).digest() == hashlib.sha256(data).digest()
    assert process.screen().text


ODD = [
    '"; touch {x}; "',
    "$(touch {x})",
    "`touch {x}`",
    "#(touch {x})",
    "#{{e:x}} %H",
    "-rf",
    "two\nlines",
    "ends with ;",
    ";",
    "'\\;",
]


@pytest.mark.parametrize("odd", ODD)
def test_nothing_from_outside_is_interpreted_on_the_way(
    start: Start, child: Child, tmp_path: Path, odd: str
) -> None:
    """Arguments, directory, label (of one line) and text pass through, and are never run."""
    witness = tmp_path / "made"
    odd = odd.format(x=witness)
    place = tmp_path / odd.replace("/", "_")
    place.mkdir()
    process = start(child("tells_all", odd), cwd=place, label=as_name(odd), env={"ODD": odd})
    assert process.wait(30).ok, output(process)
    said = json.loads(output(process))
    assert bytes.fromhex(said["argv"][0]) == odd.encode()
    assert bytes.fromhex(said["cwd"]) == os.fsencode(place)
    assert bytes.fromhex(said["env"][b"ODD".hex()]) == odd.encode()
    assert process.refresh().label == as_name(odd)
    process = start(child("shows_keys"))
    wait_until(lambda: "ready" in output(process))
    process.send(odd.encode())
    process.keys("q")
    assert process.wait(30).ok
    assert (
        bytes.fromhex("".join(output(process).split("ready\n")[1].split())) == odd.encode() + b"q"
    )
    assert not witness.exists()


def test_a_long_command_and_environment_arrive_whole(start: Start) -> None:
    """Longer than tmux's messages are."""
    long = "x" * 100_000
    process = start(f"echo ${{#LONG}} ${{#1}} # {long}", env={"LONG": long})
    assert process.wait(30).ok
    assert output(process) == "100000 0\n"


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.own_keeper
@pytest.mark.parametrize("half", ["worker", "guard"])
def test_a_terminal_survives_the_death_of_either_half(
    start: Start, hf: SyncClient, half: str
) -> None:
    """Again and again: what is typed arrives, the screen is whole, the exit code is exact."""
    process = start(PLAIN_BASH, env={"PS1": "shell> "})
    shows(process, "shell>")
    for n in range(3):
        os.kill(hf.keeper_status()[half], signal.SIGKILL)
        process.send(f"echo round $(({n} + 100))", enter=True)
        shows(process, f"round {n + 100}")
    process.resize(90, 20)
    process.send("stty size; exit 9", enter=True)
    end = process.wait(30)
    assert (end.code, end.status) == (9, "failed")
    assert "20 90" in output(process)
    assert [f"round {n + 100}" in output(process) for n in range(3)] == [True] * 3


@pytest.mark.own_keeper
def test_a_process_that_ends_while_the_worker_is_dead_keeps_its_output(
    start: Start, hf: SyncClient, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = start(f": < {gate}; printf 'last words'; exit 4")
    status = hf.keeper_status()
    os.kill(status["worker"], signal.SIGKILL)
    with open(gate, "w"):
        pass
    assert process.wait(30).code == 4
    assert output(process) == "last words"


# -- stopping --------------------------------------------------------------------------------------


def test_kill_ends_an_interactive_shell_and_its_jobs_politely(start: Start) -> None:
    """bash ignores SIGTERM at its prompt; it is hung up on, and need not be forced."""
    process = start(PLAIN_BASH, env={"PS1": "shell> "})
    shows(process, "shell>")
    process.send("sleep 1234 & echo job $!", enter=True)
    wait_until(lambda: "job " in output(process).replace("echo job", ""))
    receipt = process.kill(grace=60)
    assert not receipt.forced
    assert receipt.survivors == []
    assert process.refresh().status == "killed"


def test_keys_after_an_interrupt_are_not_lost(start: Start) -> None:
    """What the issue of a shell's C-c throws away is typed when the shell is back at its prompt."""
    process = start(PLAIN_BASH, env={"PS1": "shell> "})
    shows(process, "shell>")
    process.send("echo once $((1 + 1))", enter=True)
    shows(process, "once 2")
    process.send("half a line")
    process.keys("C-c", "Up", "Enter")
    wait_until(lambda: output(process).count("once 2\n") == 2)
