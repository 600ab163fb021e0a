"""A person at the terminal of a process: what they see, what they type, and how they get away."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from holdfast import Screen, SyncClient, SyncProcess
from holdfast.cli._crop import frame, part
from holdfast.cli._typing import Detach
from holdfast.terminal.escape_filter import EscapeFilter
from holdfast.testing import wait_until
from tests.person import BEFORE, Person

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.shared_keeper

Shell = Callable[..., SyncProcess]
BASH = ["bash", "--norc", "--noprofile", "-i"]


@pytest.fixture
def shell(hf: SyncClient) -> Shell:
    """Start an interactive bash, and wait until it is there."""

    def start(**options: Any) -> SyncProcess:
        options.setdefault("size", "80x24")
        process = hf.spawn(BASH, tty=True, env={"PS1": "sh> ", "HISTFILE": ""}, **options)
        wait_until(lambda: "sh>" in process.screen().text, what="a prompt")
        return process

    return start


# -- seeing and typing -----------------------------------------------------------------------------


def test_what_is_typed_reaches_the_program_and_what_it_says_is_seen(shell: Shell) -> None:
    """Attaching shows the screen as it is; from then on it is a terminal like any other."""
    process = shell()
    process.send("echo earlier $((6*7))", enter=True)
    wait_until(lambda: "earlier 42" in process.screen().text)
    with Person("attach", process.handle) as person:
        person.sees("earlier 42")
        person.types("echo later $((6*8))\r")
        person.sees("later 48")
        person.types("echo go; cat\r")
        person.sees("\ngo")
        person.types("back and forth\r")
        wait_until(lambda: person.screen().count("back and forth") == 2)
        person.types("\x03")
        person.sees("^C\nsh>")
        person.types("echo $?\r")
        person.sees("130")
        wait_until(lambda: person.screen() == process.screen().text)
        assert person.terminal.cursor == process.screen().cursor
        person.types("\x1d")
        assert person.leaves_with() == 0


def test_a_full_screen_program_is_drawn_on_attach_and_the_old_screen_comes_back(
    hf: SyncClient, tmp_path: Any
) -> None:
    """Vim is there at once, colours, cursor and modes; who leaves gets their own screen back."""
    text = tmp_path / "text"
    text.write_text("one\ntwo\nthree\n")
    process = hf.spawn(["vim", "-u", "NONE", "-N", str(text)], tty=True, size="80x24")
    wait_until(lambda: "three" in process.screen().text)
    process.keys("j", "l")
    with Person("attach", process.handle) as person:
        person.sees("one\ntwo\nthree\n~")
        assert person.fullscreen
        assert BEFORE not in person.screen()
        person.types("ix\x1b")
        person.sees("one\ntxwo")
        wait_until(lambda: person.screen() == process.screen().text)
        person.types("\x1d")
        assert person.leaves_with() == 0
        assert person.is_restored()
        assert person.screen() == (
            f"{BEFORE}\n$ holdfast\n"
            f"[attached to {process.handle}; C-] lets you go, it goes on]\n"
            f"[detached from {process.handle}; it goes on]"
        )


def test_the_main_screen_is_drawn_when_the_program_leaves_the_other_one(shell: Shell) -> None:
    """Who attached while vim ran sees the shell as it was before, not their own old screen."""
    process = shell()
    process.send("echo before vim; vim -u NONE -N", enter=True)
    wait_until(lambda: process.screen().fullscreen)
    with Person("attach", process.handle) as person:
        person.sees("~")
        assert person.fullscreen
        person.types(":q\r")
        person.sees("before vim", "sh>")
        wait_until(lambda: person.screen() == process.screen().text)
        assert not person.fullscreen
        person.types("\x1d")
        assert person.leaves_with() == 0
        assert BEFORE in person.everything()
        assert "before vim" in person.screen()


def test_what_was_on_the_persons_screen_can_be_scrolled_back_to(shell: Shell) -> None:
    """Attaching to a program without a full screen takes nothing away."""
    process = shell()
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        assert BEFORE not in person.screen()
        person.types("echo something\r")
        person.sees("something")
        person.types("\x1d")
        person.leaves_with()
        assert person.everything().startswith(f"{BEFORE}\n$ holdfast\n[attached to")
        assert "something" in person.screen()
        assert person.screen().endswith(f"[detached from {process.handle}; it goes on]")


def test_the_way_out_is_seen_before_the_screen_is_drawn(shell: Shell) -> None:
    """The hint stays for a moment, or until a key is pressed, which is not lost."""
    process = shell()
    with Person("attach", process.handle) as person:
        hint = f"[attached to {process.handle}; C-] lets you go".encode()
        person.was_shown(hint)  # it may be gone by now
        person.types("echo qu''ick\r")
        person.sees("\nquick")
        assert BEFORE not in person.screen()
        assert person.output.index(hint) < person.output.index(b"sh>")


def test_a_burst_of_output_is_shown_to_its_last_line(shell: Shell) -> None:
    """However far the terminal falls behind, it shows the end."""
    process = shell()
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        person.types("seq 1000000; echo do''ne\r")
        person.sees("999999\n1000000\ndone\nsh>")


def test_who_falls_behind_sees_the_present_when_they_press_a_key(shell: Shell) -> None:
    """A flood does not have to be watched to its end: C-c is seen to work."""
    process = shell()
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        person.types("yes 'a rather long line, many times over'\r")
        person.sees("many times over\na rather long line")
        person.types("\x03")
        person.sees("^C\nsh>")
        person.types("echo al''ive\r")
        person.sees("alive")


# -- sizes -----------------------------------------------------------------------------------------


def test_the_program_gets_the_size_of_the_persons_terminal(shell: Shell) -> None:
    """At attach and at every change; the program is told with SIGWINCH."""
    process = shell(size="120x40")
    process.send("trap 'stty size' WINCH", enter=True)
    with Person("attach", process.handle, size=(70, 20)) as person:
        wait_until(lambda: process.refresh().size == (70, 20))
        person.types("stty size\r")
        person.sees("20 70")
        person.resize(90, 30)
        wait_until(lambda: process.refresh().size == (90, 30))
        person.types("echo $(stty size)\r")
        person.sees("30 90")
        wait_until(lambda: person.screen() == process.screen().text)


def test_a_full_screen_program_follows_a_change_of_size(hf: SyncClient) -> None:
    """Vim fills the new window."""
    process = hf.spawn(["vim", "-u", "NONE", "-N"], tty=True)
    wait_until(lambda: "~" in process.screen().text)
    with Person("attach", process.handle, size=(60, 15)) as person:
        wait_until(lambda: person.screen().count("~") == 13, what="15 rows")
        person.resize(50, 10)
        wait_until(lambda: person.screen().count("~") == 8, what="10 rows")
        person.resize(90, 30)
        wait_until(lambda: person.screen().count("~") == 28, what="30 rows")
        wait_until(lambda: person.screen() == process.screen().text)


def test_two_people_see_the_same_and_the_last_to_resize_decides(shell: Shell) -> None:
    """Both type, both see; whose terminal is smaller sees the part around the cursor."""
    process = shell()
    with (
        Person("attach", process.handle, size=(60, 10)) as one,
        Person("attach", process.handle, size=(60, 10)) as two,
    ):
        one.sees("sh>")
        two.sees("sh>")
        one.types("echo from one\r")
        two.sees("\nfrom one")
        two.types("echo from two\r")
        one.sees("\nfrom two")
        two.resize(100, 30)
        wait_until(lambda: process.refresh().size == (100, 30))
        two.types("for i in {1..25}; do echo line $i; done\r")
        two.sees("line 25", "from one")
        one.sees("line 25\nsh>")
        assert "from one" not in one.screen()
        assert len(one.screen().split("\n")) <= 10
        one.types("echo still\r")
        two.sees("\nstill")
        one.types("\x1d")
        assert one.leaves_with() == 0
        assert one.is_restored()
        two.types("echo alone\r")
        two.sees("\nalone")
        two.types("\x1d")
        assert two.leaves_with() == 0


def test_the_sizes_may_come_together_again(shell: Shell) -> None:
    """Who saw a part sees everything again, and live, once the sizes agree."""
    process = shell(size="80x24")
    with Person("attach", "--read-only", process.handle, size=(40, 8)) as person:
        process.send("for i in {1..20}; do echo line $i; done", enter=True)
        person.sees("line 20\nsh>")
        assert "line 1\n" not in person.screen()
        person.resize(80, 24)
        person.sees("line 1\n", "line 20\nsh>")
        process.send("echo live", enter=True)
        person.sees("\nlive")
        wait_until(lambda: person.screen() == process.screen().text)


def test_who_leaves_gives_the_size_back(shell: Shell) -> None:
    """Whether they press the key or close the window."""
    process = shell(size="120x40")
    for key in ("\x1d", None):
        with Person("attach", process.handle, size=(70, 20)) as person:
            wait_until(lambda: process.refresh().size == (70, 20))
            if key is None:
                person.hangs_up()
            else:
                person.types(key)
            person.process.wait(30)
        wait_until(lambda: process.refresh().size == (120, 40))


def test_a_size_that_somebody_else_chose_is_left_alone(shell: Shell) -> None:
    """What we gave is taken back; what came after it is not ours."""
    process = shell(size="120x40")
    with Person("attach", process.handle, size=(70, 20)) as person:
        wait_until(lambda: process.refresh().size == (70, 20))
        process.resize(90, 30)
        person.types("\x1d")
        assert person.leaves_with() == 0
    assert process.refresh().size == (90, 30)


# -- looking only ----------------------------------------------------------------------------------


def test_read_only_types_nothing_and_resizes_nothing(shell: Shell) -> None:
    """Whoever only looks cannot do any harm."""
    process = shell(size="100x30")
    with Person("attach", "--read-only", process.handle, size=(80, 24)) as person:
        person.sees("sh>")
        person.types("touch /nonexistent/x\r")
        process.send("echo typed by somebody else", enter=True)
        person.sees("\ntyped by somebody else")
        person.resize(70, 20)
        person.types("\x1d")
        assert person.leaves_with() == 0
        assert person.is_restored()
        assert person.screen() == (
            f"{BEFORE}\n$ holdfast\n"
            f"[watching {process.handle}; C-] lets you go, it goes on]\n"
            f"[detached from {process.handle}; it goes on]"
        )
    assert process.refresh().size == (100, 30)
    assert "touch" not in process.screen().text


# -- getting away ----------------------------------------------------------------------------------

MODES = r"printf '\033[?1049h\033[?1000h\033[?1006h\033[?2004h\033[?1h\033[?25l\033[>1u\033[5;9r'"


def test_every_mode_is_undone_on_detach(hf: SyncClient) -> None:
    """Mouse, paste, keyboard, cursor, scroll region and screen are as a shell expects them."""
    process = hf.spawn(f"{MODES}; printf '\\033]0;its title\\033[2;2Hhello'; cat", tty=True)
    wait_until(lambda: "hello" in process.screen().text)
    with Person("attach", process.handle) as person:
        person.sees("hello")
        assert person.mode(1000)
        assert person.mode(2004)
        assert not person.mode(25)
        assert not person.is_restored()
        person.types("\x1b[93;5u")  # the same key, on the keyboard that the program asked for
        assert person.leaves_with() == 0
        assert person.is_restored()


def test_modes_set_while_attached_are_undone_too(shell: Shell) -> None:
    """Not only what the first picture brought along."""
    process = shell()
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        person.types(f"{MODES}; cat\r")
        wait_until(lambda: person.mode(1000) and person.fullscreen)
        person.types("\x1b[93;5u")
        assert person.leaves_with() == 0
        assert person.is_restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_gives_the_terminal_back(shell: Shell, number: signal.Signals) -> None:
    """Whoever stops attach from outside leaves no raw terminal behind, and the process alone."""
    process = shell()
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        person.signal(number)
        assert person.leaves_with() == 128 + number
        assert person.is_restored()
    assert process.refresh().running


def test_a_stopped_attach_gives_the_terminal_back_until_it_goes_on(shell: Shell) -> None:
    """SIGTSTP restores the terminal; SIGCONT takes it over and draws again."""
    process = shell()
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        person.signal(signal.SIGTSTP)
        wait_until(lambda: _state(person.process.pid) == "T")
        assert person.is_restored()
        process.send("echo meanwhile", enter=True)
        person.signal(signal.SIGCONT)
        person.sees("\nmeanwhile")
        person.types("echo again\r")
        person.sees("\nagain")


def test_attach_in_the_background_waits_for_the_foreground(shell: Shell) -> None:
    """`attach &` and then `fg`: the terminal is taken only then, and given back as it was."""
    process = shell()
    outer = ["bash", "--norc", "--noprofile", "-i"]
    environment = {"PS1": "outer> ", "HISTFILE": ""}
    with Person(program=outer, env=environment) as person:
        person.sees("outer>")
        person.types(f"{sys.executable} -m holdfast attach {process.handle} &\r")
        person.sees("[attached to")
        wait_until(lambda: _stopped_child(person.process.pid))

        def noticed() -> bool:
            """By bash: before that, it would take the terminal back upon hearing of it."""
            person.types("jobs\r")
            return "Stopped" in person.screen()

        wait_until(noticed, interval=0.1)
        person.types("fg\r")
        person.sees_first("sh>")
        person.types("echo in''side\r")
        person.sees("\ninside")
        person.types("\x1d")
        person.sees("it goes on]\nouter>")
        person.types("stty -a | tr ' ;' '\\n\\n' | grep -cx -e icanon -e echo -e opost\r")
        person.sees("\n3\nouter>")


def _stopped_child(pid: int) -> bool:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return any(_state(int(child)) == "T" for child in file.read().split())


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_a_terminal_that_is_closed_ends_attach_and_not_the_process(shell: Shell) -> None:
    """Closing the window is not closing the program."""
    process = shell()
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        person.hangs_up()
        person.process.wait(30)
    assert process.refresh().running


def test_the_end_of_the_process_is_told_with_its_exit_code(shell: Shell) -> None:
    """Attach ends with it, restores the terminal, and exits as the command did."""
    process = shell()
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        person.types("exit 7\r")
        assert person.leaves_with() == 7
        assert person.is_restored()
        assert person.screen().endswith(f"exit\n[{process.handle} failed (exit code 7)]")


def test_the_end_is_told_to_somebody_who_sees_a_part(shell: Shell) -> None:
    """Also while the sizes differ."""
    process = shell()
    with Person("attach", "--read-only", process.handle, size=(40, 8)) as person:
        person.sees("sh>")
        process.kill(signal="KILL")
        assert person.leaves_with() == 128 + signal.SIGKILL
        assert person.is_restored()


def test_other_keys_can_be_chosen_or_none(shell: Shell) -> None:
    """With --detach-keys none every key is the program's; a sequence works as in docker."""
    process = shell()
    with Person("attach", "--detach-keys", "C-p,C-q", process.handle) as person:
        person.sees("sh>")
        person.types("echo go; cat -v\r")
        person.sees("\ngo")
        person.types("a\x1db\x10c\r")
        person.sees("\na^]b^Pc")
        person.types("\x10")
        person.types("\x11")
        assert person.leaves_with() == 0
    with Person("attach", "--detach-keys", "none", process.handle) as person:
        person.sees("a^]b^Pc")
        person.types("x\x1d\x10y\r")
        person.sees("\nx^]^Py\nx^]^Py")
        person.types("\x03")
        person.sees("^C\nsh>")
        person.types("exit 0\r")
        assert person.leaves_with() == 0


def test_a_process_that_does_not_read_keeps_nobody_from_leaving(hf: SyncClient) -> None:
    """Whatever is typed into it, the detach key works."""
    process = hf.spawn("stty raw -echo; printf ready; sleep 300", tty=True)
    wait_until(lambda: "ready" in process.screen().text)
    with Person("attach", process.handle) as person:
        person.sees("ready")
        for _ in range(50):
            person.types("x" * 4000)
        person.types("\x1d")
        assert person.leaves_with() == 0
        assert person.is_restored()


# -- crashes ---------------------------------------------------------------------------------------


@pytest.mark.own_keeper
def test_attach_goes_on_when_the_worker_is_killed(hf: SyncClient, shell: Shell) -> None:
    """kill -9 of the half that works: the person notices nothing, and can type and resize."""
    process = shell()
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        for round in range(3):
            os.kill(hf.keeper_status()["worker"], signal.SIGKILL)
            person.types(f"echo round $(({round} + 10))\r")
            person.sees(f"\nround {round + 10}")
        person.resize(70, 20)
        wait_until(lambda: process.refresh().size == (70, 20))
        person.types("\x1d")
        assert person.leaves_with() == 0


def test_attach_ends_with_a_process_whose_keeper_is_gone(
    hf: SyncClient, shell: Shell, kill_both: Callable[[SyncClient], None]
) -> None:
    """Both halves at once take the terminal along; the person gets theirs back and is told."""
    process = shell()
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        kill_both(hf)
        assert person.leaves_with() != 0
        assert person.is_restored()
        assert process.handle in person.screen()


def test_the_detach_key_works_while_the_keeper_does_not_answer(
    hf: SyncClient, shell: Shell
) -> None:
    """A keeper that hangs keeps nobody at its terminal."""
    process = shell()
    worker = hf.keeper_status()["worker"]
    with Person("attach", process.handle) as person:
        person.sees("sh>")
        os.kill(worker, signal.SIGSTOP)
        try:
            person.types("echo one\r")
            person.types("\x1d")
            assert person.leaves_with() == 0
            assert person.is_restored()
        finally:
            os.kill(worker, signal.SIGCONT)


# -- questions and answers -------------------------------------------------------------------------

ASKED = [
    b"\x1b[c",
    b"\x1b[0c",
    b"\x1b[>c",
    b"\x1b[>0c",
    b"\x1b[=c",
    b"\x1bZ",
    b"\x05",
    b"\x1b[5n",
    b"\x1b[6n",
    b"\x1b[?6n",
    b"\x1b[?996n",
    b"\x1b[?2026$p",
    b"\x1b[4$p",
    b"\x1b[>q",
    b"\x1b[>0q",
    b"\x1b[?u",
    b"\x1b[?4m",
    b"\x1b[x",
    b"\x1b[14t",
    b"\x1b[16t",
    b"\x1b[18t",
    b"\x1b[21t",
    b"\x1b[8;50;100t",
    b"\x1b]4;1;?\x07",
    b"\x1b]10;?\x1b\\",
    b"\x1b]11;?\x07",
    b"\x1b]12;?\x07",
    b"\x1b]52;c;aGVsbG8=\x07",
    b"\x1b]52;c;?\x1b\\",
    b"\x1bP+q544e\x1b\\",
    b"\x1bP$qm\x1b\\",
    b"\x1b_Gi=1,a=q;AAAA\x1b\\",
    b"\xc2\x9b6n",
    b"\xc2\x9d11;?\xc2\x9c",
]
SHOWN = [
    b"\x1b[0m",
    b"\x1b[4:3m",
    b"\x1b[?1049h",
    b"\x1b[?2004h",
    b"\x1b[2 q",
    b"\x1b[22;0t",
    b"\x1b[23;0t",
    b"\x1b[u",
    b"\x1b[>1u",
    b"\x1b[<u",
    b"\x1b[=1;1u",
    b"\x1b[>4;2m",
    b"\x1b[>4n",
    b"\x1b7\x1b8\x1b(B\x1b)0",
    b"\x1b]0;what?\x07",
    b"\x1b]8;;http://a?b\x1b\\x\x1b]8;;\x1b\\",
    b"\x1b]4;1;rgb:ff/00/00\x07",
    b"\x1b]11;#ffffff\x07",
    b"\x1b]133;A\x07",
    "é©漢🦀".encode(),
]


@pytest.mark.parametrize("asked", ASKED)
def test_questions_and_clipboards_do_not_pass(asked: bytes) -> None:
    """In one piece, byte by byte, and next to what passes."""
    data = b"a\x1b[1m" + asked + b"b"
    assert EscapeFilter().feed(data) == b"a\x1b[1mb"
    escape_filter = EscapeFilter()
    assert b"".join(escape_filter.feed(bytes([byte])) for byte in data) == b"a\x1b[1mb"


@pytest.mark.parametrize("shown", SHOWN)
def test_everything_else_passes_as_it_is(shown: bytes) -> None:
    """Colours, titles, links, images, modes and text, in one piece and byte by byte."""
    data = b"a" + shown + b"b"
    assert EscapeFilter().feed(data) == data
    escape_filter = EscapeFilter()
    assert b"".join(escape_filter.feed(bytes([byte])) for byte in data) == data


def test_a_long_clipboard_is_dropped_without_being_gathered() -> None:
    """Strings of any length are dropped, and what follows is seen."""
    escape_filter = EscapeFilter()
    shown = escape_filter.feed(b"a\x1b]52;c;")
    for _ in range(100):
        shown += escape_filter.feed(b"QUFB" * 10000)
    shown += escape_filter.feed(b"\x1b")
    shown += escape_filter.feed(b"\\b")
    assert shown == b"ab"


def test_what_waits_is_given_out_at_the_end() -> None:
    """Half a sequence is held back, and not lost."""
    escape_filter = EscapeFilter()
    assert escape_filter.feed(b"text\x1b[12") == b"text"
    assert escape_filter.rest() == b"\x1b[12"
    assert escape_filter.rest() == b""


@pytest.mark.parametrize(
    "nasty",
    [
        b"\x1b]4;",
        b"\xc2\x9d4;",
        b"\x1b]4;?",
        b"\x1b[1;",
        b"\xc2\x9b1;",
        b"\xc2",
        b"\x1b",
        b"\x1bP+q",
    ],
)
def test_no_output_takes_long_to_look_through(nasty: bytes) -> None:
    """What a program writes cannot make attach hang."""
    escape_filter = EscapeFilter()
    began = time.process_time()
    for _ in range(4):
        escape_filter.feed(nasty * (65536 // len(nasty)))
        escape_filter.feed(nasty[:-1] + b"?" * 65536)
    assert time.process_time() - began < 30


def test_the_persons_terminal_answers_nothing(hf: SyncClient) -> None:
    """A question is answered once, by holdfast; not again by whoever is attached."""
    asked = "".join(f"\\{byte:03o}" for byte in b"".join(ASKED))
    script = f"stty raw -echo; printf ready; read -n 1; printf 'a{asked}b'; sleep 300"
    process = hf.spawn(script, tty=True, size="80x24")
    with Person("attach", process.handle) as person:
        person.sees("ready")
        person.types("x")
        person.sees("readyab")
        assert person.replies == b""


# -- the pure parts --------------------------------------------------------------------------------


def test_a_part_of_a_line_keeps_its_colours_and_columns() -> None:
    """Wide characters that are cut in two become blanks, and marks stay with their letters."""
    assert part("hello world", 6, 3) == "wor"
    assert part("\x1b[31mred\x1b[0m plain", 2, 4) == "\x1b[31md\x1b[0m pl\x1b[m"
    assert part("漢字kanji", 0, 3) == "漢 \x1b[m"
    assert part("漢字kanji", 1, 4) == " 字k\x1b[m"
    assert part("e\u0301a\u0300", 1, 1) == "a\u0300\x1b[m"


def test_the_part_that_is_shown_has_the_cursor() -> None:
    """Of a larger screen one sees where the cursor is; of a smaller one, everything."""
    text = "\n".join(f"row {n}" for n in range(10))
    rows, cursor = frame(Screen(text, (20, 10), (2, 9)), 10, 4)
    assert rows == ["row 6", "row 7", "row 8", "row 9"]
    assert cursor == (2, 3)
    rows, cursor = frame(Screen(text, (20, 10), (0, 1)), 3, 4)
    assert rows == ["row"] * 4
    assert cursor == (0, 1)
    rows, cursor = frame(Screen("x" * 20, (20, 10), (19, 0)), 5, 2)
    assert (rows, cursor) == (["xxxxx", ""], (4, 0))
    rows, cursor = frame(Screen("a\nb", (20, 10), None), 40, 3)
    assert (rows, cursor) == (["a", "b", ""], None)


def test_the_detach_keys_are_found_in_what_is_typed() -> None:
    """What was typed before them still reaches the process."""
    detach = Detach("C-]")
    assert detach.feed(b"abc") == (b"abc", False)
    assert detach.feed(b"de\x1dfg") == (b"de", True)
    assert Detach("C-]").feed(b"x\x1b[93;5u") == (b"x", True)
    sequence = Detach("C-p,C-q")
    assert sequence.feed(b"a\x10") == (b"a", False)
    assert sequence.feed(b"b\x10") == (b"\x10b", False)
    assert sequence.feed(b"\x11") == (b"", True)
    assert Detach("none").feed(b"\x1d\x10\x11") == (b"\x1d\x10\x11", False)
