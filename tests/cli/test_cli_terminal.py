"""The command line and terminals: run --tty and --tmux, attach, screen, send --keys, resize."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing import wait_until
from tests.person import BEFORE, Person

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOLDFAST = [sys.executable, "-m", "holdfast"]
SHELL = ("-e", "PS1=sh> ", "-e", "HISTFILE=", "--", "bash", "--norc", "--noprofile", "-i")

pytestmark = [pytest.mark.shared_keeper, pytest.mark.usefixtures("home")]


class Done:
    """What a call of the command line gave."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code, self.out, self.err = done.returncode, done.stdout.decode(), done.stderr.decode()

    def __repr__(self) -> str:
        return f"<exit {self.code}, out {self.out!r}, err {self.err!r}>"


def cli(*arguments: str, input: bytes | None = b"") -> Done:
    """With `input` in a pipe; None: without any."""
    command = [*HOLDFAST, *arguments]
    if input is None:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    else:
        done = subprocess.run(command, input=input, capture_output=True, timeout=60)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return Done(done)


def start(*arguments: str) -> str:
    done = cli("run", "-d", *arguments)
    assert done.code == 0, done
    return done.out.strip()


def status(handle: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cli("status", handle, "--json").out)
    return found


def screen(handle: str) -> str:
    done = cli("screen", handle)
    assert done.code == 0, done
    return done.out


def shows(handle: str, text: str) -> None:
    wait_until(lambda: text in screen(handle), what=f"{text!r} on the screen of {handle}")


def one_error(done: Done) -> str:
    assert done.code == 125, done
    assert done.out == ""
    assert done.err.startswith("holdfast: ")
    assert done.err.count("\n") == 1
    return done.err


@pytest.fixture
def tmux() -> None:
    if shutil.which("tmux") is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have tmux")
        pytest.skip("tmux is not installed")


# -- run -------------------------------------------------------------------------------------------


def test_run_tty_on_a_terminal_is_like_running_it_there() -> None:
    """Its output comes where the cursor is, it has our size, and its exit code is ours."""
    with Person("run", "--tty", "--", "stty size; tty; exit 3", size=(70, 20)) as person:
        assert person.leaves_with() == 3
        lines = person.screen().split("\n")
        assert lines[:2] == [BEFORE, "$ holdfast"]
        assert lines[2].endswith("; C-] lets go of it and leaves it running]")
        assert lines[3] == "20 70"
        assert lines[4].startswith("/dev/")
        assert len(lines) == 5
        assert person.is_restored()


def test_run_tty_gives_an_interactive_shell() -> None:
    """What docker run -it does: keys go there, C-c too, a change of size as well."""
    with Person("run", "--tty", *SHELL) as person:
        person.sees("sh>")
        assert BEFORE in person.screen()
        person.types("sh -c 'echo go; exec sleep 100'\r")  # which is in the foreground then
        person.sees("\ngo")
        person.types("\x03")
        person.sees("^C\nsh>")
        person.resize(60, 15)
        wait_until(lambda: json.loads(cli("ps", "--json").out)[0]["size"] == "60x15")
        person.types("stty size\r")
        person.sees("15 60")
        person.types("exit 5\r")
        assert person.leaves_with() == 5
        assert person.is_restored()
        assert BEFORE in person.everything()


def test_a_full_screen_program_in_the_foreground_leaves_no_trace() -> None:
    """Vim comes and goes, as if it ran here; the line above it says how to let go of it."""
    with Person("run", "-t", "--label", "vim", "--", "vim", "-u", "NONE", "-N") as person:
        person.sees("~\n~")
        assert person.fullscreen
        person.types(":q\r")
        assert person.leaves_with() == 0
        assert person.is_restored()
        hint = f"[{status('vim')['handle']}; C-] lets go of it and leaves it running]"
        assert person.screen() == f"{BEFORE}\n$ holdfast\n{hint}"


def test_detaching_from_run_leaves_it_running() -> None:
    """C-] says which process it is, and attach brings one back to it."""
    with Person("run", "--tty", "--label", "mine", *SHELL) as person:
        person.sees("sh>")
        person.types("\x1d")
        assert person.leaves_with() == 0
        handle = status("mine")["handle"]
        assert person.screen().endswith(f"[detached from {handle}; it goes on]")
    with Person("attach", "mine") as person:
        person.sees("sh>")
        person.types("exit\r")
        assert person.leaves_with() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 143)])
def test_a_signal_to_run_stops_the_process(number: signal.Signals, code: int) -> None:
    """As without a terminal: who ends run means the command, politely first."""
    with Person("run", "--tty", "--label", "it", "--", "sleep", "300") as person:
        wait_until(lambda: cli("status", "it").code == 0)
        wait_until(lambda: person.mode(25) and b"22;0t" in person.output)
        person.signal(number)
        assert person.leaves_with() == code
        assert person.is_restored()
    assert status("it")["status"] == "killed"


def test_closing_the_window_leaves_the_process_running() -> None:
    """A hangup is not a wish that the command ends."""
    with Person("run", "--tty", "--label", "it", *SHELL) as person:
        person.sees("sh>")
        person.hangs_up()
        person.process.wait(30)
    assert status("it")["status"] == "running"


def test_run_tty_without_a_terminal_copies_the_output() -> None:
    """In a script, the bytes the program writes to its terminal go to stdout."""
    command = ("run", "--tty", "--size", "90x33", "--", "tty; stty size; test -t 0 && exit 4")
    done = cli(*command, input=None)
    assert done.code == 4
    lines = done.out.split("\r\n")
    assert lines[0].startswith("/dev/pts/")
    assert lines[1] == "33 90"
    assert done.err == ""


def test_input_that_is_not_passed_on_is_said_to_be() -> None:
    """Where there is some, as from a pipe; with --stdin it is passed on."""
    script = "stty -echo; echo ready; read line; echo got $line"
    done = cli("run", "--tty", "--timeout", "1s", "--", script, input=b"hi\n")
    assert done.code == 124
    first, _ = done.err.splitlines()
    assert first == "holdfast: what is typed or piped here is not passed on; --stdin passes it on"
    done = cli("run", "--tty", "--stdin", "--", script, input=b"hi\n")
    assert (done.code, done.err) == (0, "")
    assert "got hi" in done.out
    with Person("run", "--tty", "--json", "--", "true") as person:
        assert person.leaves_with() == 0
        assert "--stdin passes it on" in person.screen().replace("\n", "")
    assert cli("run", "--", "true").err == ""


def test_a_person_at_a_terminal_has_no_deadline() -> None:
    """Unless they ask for one; in a script, there is the usual."""
    for options, timeout in ((), None), (("--timeout", "5m"), 300):
        with Person("run", "--tty", "--label", "it", *options, *SHELL) as person:
            person.sees("sh>")
            assert status("it")["timeout"] == timeout
            person.types("exit\r")
            assert person.leaves_with() == 0
    assert json.loads(cli("run", "--tty", "--json", "--", "true").out)["timeout"] == 1800


def test_a_bad_size_is_refused() -> None:
    """Before anything is started; so is one without a terminal, and two kinds of terminal."""
    assert "size" in one_error(cli("run", "--tty", "--size", "big", "--", "true"))
    assert "--tty or --tmux" in one_error(cli("run", "--size", "90x30", "--", "true"))
    assert "cannot be combined" in one_error(cli("run", "-t", "--tmux", "--", "true"))
    assert cli("ps", "-a", "--json").out == "[]\n"
    handle = start("--tty", "--", "sleep", "300")
    assert "120x40" in one_error(cli("resize", handle, "0x0"))


@pytest.mark.usefixtures("tmux")
def test_run_tmux_in_the_foreground_is_inside_tmux() -> None:
    """tmux draws it; when the command ends, so does run, with its exit code."""
    with Person("run", "--tmux", *SHELL) as person:
        person.sees("sh>")
        person.types("echo in $((20+2))\r")
        person.sees("in 22\nsh>")
        person.types("exit 6\r")
        assert person.leaves_with() == 6
        assert person.is_restored()
        before, hint, *last = person.screen().split("\n")[1:]
        assert before == "$ holdfast"
        assert hint.endswith("; C-b d lets go of it and leaves it running]")
        assert last == ["sh> echo in $((20+2))", "in 22", "sh> exit 6", "exit"]


@pytest.mark.long
@pytest.mark.usefixtures("tmux")
def test_the_end_in_tmux_leaves_the_terminal_and_the_others_alone() -> None:
    """Time and again: who is attached gets their terminal back, and tmux itself goes on."""
    other = start("--tmux", *SHELL)
    for _ in range(8):
        handle = start("--tmux", *SHELL)
        with Person("attach", handle) as person:
            person.sees("sh>")
            person.types("exit 6\r")
            assert person.leaves_with() == 6
            assert person.is_restored()
            assert person.screen() == (
                f"{BEFORE}\n$ holdfast\n"
                f"[attached to {handle}; C-b d lets you go, it goes on]\n"
                f"[{handle} failed (exit code 6)]"
            )
    assert status(other)["status"] == "running"


@pytest.mark.usefixtures("tmux")
def test_a_tmux_that_is_killed_leaves_no_wrecked_terminal(home: str) -> None:
    """The server or only the client, kill -9: keys, screen and modes are as before."""
    handle = start("--tmux", *SHELL)
    with Person("attach", handle) as person:
        person.sees("sh>")
        (client,) = (
            Path(f"/proc/{person.process.pid}/task/{person.process.pid}/children")
            .read_text()
            .split()
        )
        os.kill(int(client), signal.SIGKILL)
        assert person.leaves_with() == 125
        assert "goes on" in person.screen()
        assert person.is_restored()
    with Person("attach", handle) as person:
        person.sees("sh>")
        asked = ["tmux", "-S", f"{home}/tmux.sock", "display-message", "-p", "#{pid}"]
        os.kill(int(subprocess.check_output(asked)), signal.SIGKILL)
        assert person.leaves_with() == 128 + signal.SIGHUP
        assert person.is_restored()


@pytest.mark.usefixtures("tmux")
@pytest.mark.parametrize("term", ["dumb", "no-such-terminal", ""])
def test_a_terminal_that_tmux_cannot_use_is_named(term: str) -> None:
    """At once, and the process goes on."""
    with Person("run", "--tmux", "--label", "it", *SHELL, env={"TERM": term}) as person:
        assert person.leaves_with() == 125
        handle = status("it")["handle"]
        assert status("it")["status"] == "running"
        said = person.screen().replace("\n", "")
        assert (f"TERM={term} (" if term else "TERM unset (") in said
        assert f"`holdfast attach {handle}`" in said
        assert "detached" not in said
    with Person("attach", handle, env={"TERM": term}) as person:
        assert person.leaves_with() == 125
        assert "detached" not in person.screen()
        assert b"\x1b[?1049" not in person.output


@pytest.mark.usefixtures("tmux")
def test_tmux_has_its_own_key_to_leave_and_the_size_is_given_back() -> None:
    """Who chose others is told; the last to leave gives the size back."""
    handle = start("--tmux", "--size", "100x30", *SHELL)
    with Person("attach", "--detach-keys", "C-q", handle) as person:
        person.sees("--detach-keys is not for tmux, whose own key is C-b d")
        person.sees("sh>")
        wait_until(lambda: status(handle)["size"] == "80x23")
        person.leaves_tmux()
        assert person.leaves_with() == 0
        person.sees(f"[detached from {handle}; it goes on]")
    assert status(handle)["size"] == "100x30"


@pytest.mark.usefixtures("tmux")
def test_leaving_tmux_leaves_the_process() -> None:
    """C-b d is tmux's own; run then says how to come back, and attach does."""
    with Person("run", "--tmux", "--label", "pane", *SHELL) as person:
        person.sees("sh>")
        person.leaves_tmux()
        assert person.leaves_with() == 0
        assert "goes on" in person.screen()
    handle = status("pane")["handle"]
    with Person("attach", handle) as one, Person("attach", "--read-only", handle) as two:
        one.sees("sh>")
        two.sees("sh>")
        two.types("echo not typed\r")
        one.types("echo ty''ped\r")
        one.sees("\ntyped")
        two.sees("\ntyped")
        assert "not typed" not in one.screen()
        one.leaves_tmux()
        assert one.leaves_with() == 0
        assert "it goes on" in one.screen()
        assert cli("kill", "--signal", "KILL", handle).code == 0
        assert two.leaves_with() == 137
        assert f"[{handle} killed (SIGKILL)]" in two.screen()
    assert status(handle)["tmux_session"] == f"holdfast-{handle}"


# -- attach, without being attached ----------------------------------------------------------------


def test_attach_needs_a_terminal() -> None:
    """In a script it says so in one line, and what to use instead."""
    handle = start("--tty", *SHELL)
    error = one_error(cli("attach", handle))
    assert "needs a terminal" in error
    assert "holdfast screen" in error


def test_attach_says_why_it_cannot() -> None:
    """A process without a terminal, one that has ended, a key that does not exist, itself."""
    plain = start("--", "sleep", "300")
    error = one_error(cli("attach", plain))
    assert "no terminal" in error
    assert f"holdfast logs -f {plain}" in error
    ended = start("--tty", "--", "exit 3")
    assert cli("wait", ended).out == "3\n"
    error = one_error(cli("attach", ended))
    assert "failed (exit code 3)" in error
    assert f"holdfast screen {ended}" in error
    running = start("--tty", *SHELL)
    with Person("attach", "--detach-keys", "Foo", running) as person:
        assert person.leaves_with() == 125
        assert "--detach-keys is like" in person.screen().replace("\n", "")
    for term in ("dumb", ""):
        with Person("attach", running, env={"TERM": term}) as person:
            assert person.leaves_with() == 125
            assert "TERM" in person.screen()
            assert b"\x1b" not in person.output
    itself = start("--tty", "--", "read x; " + " ".join(HOLDFAST) + " attach $HOLDFAST_HANDLE; cat")
    assert cli("send", itself, "", "--enter").code == 0
    shows(itself, "attach to it from another one")


# -- screen ----------------------------------------------------------------------------------------


def test_screen_shows_what_a_person_would_see() -> None:
    """Plain, coloured, and as JSON with the rest; also after the end."""
    handle = start(
        "--tty",
        "--size",
        "60x10",
        "--",
        r"printf 'gone\r\033[31mred\033[0m one\033]0;a title\007'; read x",
    )
    shows(handle, "red")
    assert screen(handle) == "rede one\n".replace("rede", "red")
    coloured = cli("screen", "--colours", handle).out
    assert "\x1b[" in coloured
    assert coloured.endswith("\x1b[0m\n")
    found = json.loads(cli("screen", "--json", handle).out)
    assert found["handle"] == handle
    assert found["text"] == "red one"
    assert found["size"] == "60x10"
    assert found["cursor"] == [7, 0]
    assert found["title"] == "a title"
    assert found["exact"] is True
    cli("send", handle, "", "--enter")
    assert cli("wait", handle).out == "0\n"
    assert screen(handle) == "red one\n"
    plain = start("--", "echo hi; sleep 300")
    assert "no terminal" in one_error(cli("screen", plain))


# -- logs ------------------------------------------------------------------------------------------

# It asks last: a watcher that is there already answers at once, and the terminal echoes that.
NASTY = r"printf '\033[?1049h\033[?1000h\033[?25lhel'; printf 'lo\n\033[c\033[6n'; sleep 300"


@pytest.mark.parametrize("options", [(), ("-f",)])
def test_logs_on_a_terminal_leave_it_as_it_was(options: tuple[str, ...]) -> None:
    """The output of a full-screen program is shown, asks nothing, and is undone; also after C-c."""
    handle = start("--tty", "--", NASTY)
    shows(handle, "hello")
    with Person("logs", *options, handle) as person:
        if options:
            person.sees("hello")
            assert person.fullscreen
            person.types("\x03")
        assert person.leaves_with() == (130 if options else 0)
        assert b"hello" in person.output
        assert person.is_restored()
        assert person.screen().startswith(f"{BEFORE}\n$ holdfast")
        assert person.replies == b""
    assert b"\x1b[6n" in cli("logs", handle).out.encode()


def test_plain_logs_have_no_codes() -> None:
    """Whole lines, as text and as JSON, of any process."""
    script = r"printf 'one\033[31m red\033[0m\n10%%\r100%%\n\033]0;title\007tail'"
    for mode in ("--tty", "--stdin"):
        handle = start(mode, "--", script)
        cli("wait", handle)
        assert cli("logs", "--plain", handle).out == "one red\n100%\ntail"
        assert cli("logs", "--plain", "-f", handle).out == "one red\n100%\ntail"
        assert json.loads(cli("logs", "--plain", "--json", handle).out)["text"] == (
            "one red\n100%\ntail"
        )
        lines = cli("logs", "--plain", "--json", "-f", handle).out.splitlines()
        assert "".join(json.loads(line)["text"] for line in lines) == "one red\n100%\ntail"


# -- send ------------------------------------------------------------------------------------------


def test_text_and_keys_are_typed_into_a_terminal() -> None:
    """Text first, Enter, then keys by their names; newlines in a text are Enter."""
    handle = start("--tty", *SHELL)
    shows(handle, "sh>")
    assert cli("send", handle, "echo one $((1+1))", "--enter").code == 0
    shows(handle, "one 2")
    assert cli("send", handle, "echo tw\necho three\n").code == 0
    shows(handle, "\nthree")
    assert cli("send", handle, "--keys", "Up", "Up", "o", "Enter").code == 0
    shows(handle, "\ntwo")
    assert cli("send", handle, "sh -c 'echo go; exec sleep 100'", "--enter").code == 0
    shows(handle, "\ngo")
    assert cli("send", handle, "--keys", "C-c").code == 0
    shows(handle, "^C")
    assert cli("send", handle, "echo a", "--keys", "-", "-", "b", "Enter").code == 0
    shows(handle, "\na--b")
    assert cli("send", handle, "exit 9", "--keys=Enter").code == 0
    assert cli("wait", handle).out == "9\n"


def test_stdin_is_sent_as_it_is_and_eof_is_typed() -> None:
    """`send H -` still copies our stdin; --eof is the terminal's own character for it."""
    handle = start("--tty", "--", "stty -echo; echo ready; cat; echo the end; exit 2")
    shows(handle, "ready")
    assert cli("send", handle, "-", input=b"from stdin\nwithout end").code == 0
    shows(handle, "from stdin")
    assert cli("send", handle, "--enter", "--eof").code == 0
    shows(handle, "without end\nthe end")
    assert cli("wait", handle).out == "2\n"


def test_a_paste_is_bracketed_if_the_program_asked_for_it() -> None:
    """With --paste, and only where mode 2004 is on."""
    handle = start("--tty", "--", r"stty raw -echo; printf 'ready\033[?2004h'; cat -v")
    shows(handle, "ready")
    assert cli("send", handle, "--paste", "two\nlines", "--enter").code == 0
    shows(handle, "^[[200~two^Mlines^[[201~^M")


def test_keys_that_do_not_exist_send_nothing() -> None:
    """One wrong name, and neither the text nor the other keys are typed."""
    handle = start("--tty", "--", "stty raw -echo; printf ready; cat -v")
    shows(handle, "ready")
    error = one_error(cli("send", handle, "text", "--keys", "a", "Entre", "Enter"))
    assert "'Entre', perhaps Enter" in error
    assert cli("send", handle, "--keys", "F5").code == 0
    shows(handle, "ready^[[15~")
    plain = start("--stdin", "--", "cat")
    assert "no terminal" in one_error(cli("send", plain, "--keys", "Enter"))
    assert "--keys" in one_error(cli("send", plain))


# -- looking ---------------------------------------------------------------------------------------


def test_resize_changes_the_size() -> None:
    """The program sees it, and so does the record."""
    handle = start("--tty", *SHELL)
    shows(handle, "sh>")
    assert status(handle)["size"] == "120x40"
    assert cli("resize", handle, "100x30").code == 0
    assert status(handle)["size"] == "100x30"
    cli("send", handle, "stty size", "--enter")
    shows(handle, "\n30 100")


def test_status_and_ps_say_what_it_waits_for(tmp_path: Path) -> None:
    """The prompt, the kind, the size, and how to attach."""
    handle = start("--tty", "--", "read -p 'Delete it? [y/n] ' answer; read")
    shows(handle, "Delete it?")
    wait_until(lambda: isinstance(status(handle)["waiting_for_input"], dict))
    text = cli("status", handle).out
    assert "for a line: Delete it? [y/n]" in text
    assert "120x40" in text
    assert f"holdfast attach {handle}" in text
    row = cli("ps").out.splitlines()[1]
    assert "running, waits" in row
    assert "pty" in row
    wait_until(lambda: len(cli("events").out.splitlines()) == 2)
    row = cli("events").out.splitlines()[1]
    assert "  waits line  " in row
    assert row.endswith("read -p 'Delete it? [y/n] ' a… asks: Delete it? [y/n]")


def test_doctor_looks_at_what_terminals_need() -> None:
    """tmux, screens, and whether the kernel tells what a process waits in."""
    told = json.loads(cli("doctor", "--json", "tmux", "screens", "waiting").out)
    checks = {check["name"]: check for check in told}
    assert checks["screens"]["state"] == "ok"
    assert {"tmux", "waiting"} <= checks.keys()
