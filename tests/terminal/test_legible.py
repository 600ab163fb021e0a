"""What a process wrote does nothing to the terminal of a person who reads it, in any mode.

On a terminal only text and its colours arrive; anywhere else every byte does.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import SyncClient, SyncProcess
from holdfast.terminal.escape_filter import Legible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOLDFAST = [sys.executable, "-m", "holdfast"]

# What each does: the clipboard, titles, questions, modes, character sets, hidden text, eight bits.
ATTACKS = {
    "clipboard": b"\x1b]52;c;aGVsbG8=\x07",
    "clipboard, other end": b"\x1b]52;c;aGVsbG8=\x1b\\",
    "clipboard, eight bits": b"\xc2\x9d52;c;aGVsbG8=\x07",
    "title": b"\x1b]0;pwned\x07",
    "title of old": b"\x1bkpwned\x1b\\",
    "directory": b"\x1b]7;file:///pwned\x07",
    "what are you": b"\x1b[c",
    "which version": b"\x1b[>q",
    "where is the cursor": b"\x1b[6n",
    "enquiry": b"\x05",
    "which colour": b"\x1b]11;?\x07",
    "colours": b"\x1b]4;1;#000000\x07",
    "string": b"\x1bP$qm\x1b\\",
    "another screen": b"\x1b[?1049h",
    "mouse": b"\x1b[?1000h",
    "no cursor": b"\x1b[?25l",
    "elsewhere": b"\x1b[1;1H",
    "clear": b"\x1b[2J",
    "reset": b"\x1bc",
    "characters": b"\x1b(0",
    "shift out": b"\x0e",
    "next line": b"\xc2\x85",
    "raw eight bits": b"\x9b6n",
    "window": b"\x1b[8;10;10t",
    "link": b"\x1b]8;;javascript:x\x07",
}
BIDI = ["\u061c", "\u200e", "\u200f", "\u202a", "\u202d", "\u202e", "\u2066", "\u2067", "\u2069"]
PIECES = [*ATTACKS.values(), *(each.encode() for each in BIDI), b"\x1b", b"\x1b[", b"\x1b]", b"m"]
COLOURS = b"\x1b[1;31mred\x1b[0m \x1b[38;5;12mblue\x1b[m"
WORDS = "строка 構建 naïve 👩‍💻".encode()


def everything() -> bytes:
    parts = [b"begin", *ATTACKS.values(), *(each.encode() for each in BIDI), COLOURS, WORDS]
    return b"".join(b"<%b>\n" % part for part in parts) + b"end\n"


def on_terminal(*arguments: str, **more: Any) -> bytes:
    """What the command line writes to a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": more.pop("term", "xterm-256color")}
    outputs = {"stdout": theirs, "stderr": theirs, **more}
    with subprocess.Popen([*HOLDFAST, *arguments], stdin=theirs, env=env, **outputs) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # nobody has it open any more
                break
            if not data:
                break
            seen += data
        process.wait(60)
    os.close(ours)
    return seen


def elsewhere(*arguments: str) -> bytes:
    return subprocess.run(
        [*HOLDFAST, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    ).stdout


def check(seen: bytes, *, colours: bool = True) -> None:
    assert b"begin" in seen
    assert b"end" in seen
    for name, attack in ATTACKS.items():
        assert attack not in seen, name
    for each in BIDI:
        assert each.encode() not in seen, ascii(each)
    assert WORDS in seen
    if colours:
        assert COLOURS in seen
        assert b"pwned" not in seen  # as plain text these would do no harm
        assert b"aGVsbG8=" not in seen


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "attacks"
    path.write_bytes(everything())
    return path


@pytest.fixture(params=["pipe", "pty"])
def process(request: pytest.FixtureRequest, hf: SyncClient, file: Path) -> SyncProcess:
    found = hf.spawn(f"cat {shlex.quote(str(file))}", tty=request.param == "pty")
    found.wait()
    return found


@pytest.mark.parametrize("options", [[], ["-f"], ["-n", "100"], ["--since", "name"]], ids=str)
def test_logs_on_a_terminal_are_text_and_colours(
    options: list[str], hf: SyncClient, file: Path
) -> None:
    found = hf.spawn(f"cat {shlex.quote(str(file))}")
    found.wait()
    seen = on_terminal("logs", *options, "--session", "test", found.handle)
    check(seen)
    rest = seen.replace(b"\x1b[", b"", 8)
    assert b"\x1b" not in rest
    assert b"<\\u202e>" in seen


def test_logs_of_a_terminal_neither(process: SyncProcess) -> None:
    """Nor do they leave a title behind; what draws on the screen they may have."""
    seen = on_terminal("logs", "--session", "test", process.handle)
    for name in ("clipboard", "clipboard, other end", "title", "what are you", "which colour"):
        assert ATTACKS[name] not in seen
    assert b"pwned" not in seen
    for each in BIDI:
        assert each.encode() not in seen
    assert WORDS in seen


def test_a_terminal_that_cannot_draw_gets_text(process: SyncProcess) -> None:
    check(on_terminal("logs", "--session", "test", process.handle, term="dumb"))


@pytest.mark.parametrize(
    "options", [["logs", "--plain"], ["view"], ["search", "-F", "-C", "99"]], ids=str
)
def test_plain_output_on_a_terminal_is_plain(options: list[str], process: SyncProcess) -> None:
    pattern = ["begin"] if options[0] == "search" else []
    seen = on_terminal(*options, "--session", "test", process.handle, *pattern)
    check(seen, colours=False)
    assert b"\x1b" not in seen
    assert b"\\u202e" in seen


def test_a_command_in_the_foreground_is_shown_likewise(hf: SyncClient, file: Path) -> None:
    check(on_terminal("run", "--session", "test", "--", f"cat {shlex.quote(str(file))}"))


def test_errors_that_go_to_a_terminal_alone_are_looked_at_too(hf: SyncClient, file: Path) -> None:
    command = f"cat {shlex.quote(str(file))} >&2"
    arguments = ("run", "--stderr", "separate", "--session", "test", "--", command)
    check(on_terminal(*arguments, stdout=subprocess.DEVNULL))


def test_elsewhere_every_byte_is_as_it_was(hf: SyncClient, file: Path) -> None:
    command = f"cat {shlex.quote(str(file))}"
    process = hf.spawn(command)
    process.wait()
    assert elsewhere("logs", "--session", "test", process.handle) == everything()
    assert elsewhere("run", "--session", "test", "--", command) == everything()


def test_lists_and_events_name_nothing_that_a_terminal_obeys(hf: SyncClient, file: Path) -> None:
    command = f"cat {shlex.quote(str(file))} # {everything().decode(errors='replace')}"
    process = hf.spawn(command.replace("\n", " "), cwd=str(file.parent))
    process.wait()
    for arguments in (
        ["ps", "-a"],
        ["status", process.handle],
        ["events", "-a"],
        ["events", "-a", "--text"],
    ):
        seen = on_terminal(*arguments, "--session", "test")
        for name, attack in ATTACKS.items():
            assert attack not in seen, (arguments, name)
        for each in BIDI:
            assert each.encode() not in seen, (arguments, ascii(each))


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_it_is_the_same_wherever_the_output_is_cut(size: int) -> None:
    data = everything()
    whole, pieces = Legible(), Legible()
    expected = whole.feed(data) + whole.rest()
    found = b"".join(pieces.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert found + pieces.rest() == expected


def test_colours_that_were_left_on_are_taken_back() -> None:
    screen = Legible()
    assert screen.feed(b"\x1b[31mred") + screen.rest() == b"\x1b[31mred\x1b[0m"
    screen = Legible()
    assert screen.feed(b"plain\r\n\ttext\b") + screen.rest() == b"plain\r\n\ttext\b"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([*PIECES, *(bytes([n]) for n in range(256))]), max_size=40), st.data()
)
def test_nothing_but_colours_ever_passes(parts: list[bytes], data: st.DataObject) -> None:
    """Whatever is put together of escapes and their parts, and wherever it is cut."""
    text = b"".join(parts)
    at = data.draw(st.integers(0, len(text)))
    screen = Legible()
    shown = (screen.feed(text[:at]) + screen.feed(text[at:]) + screen.rest()).decode()
    left = re.sub(r"\x1b\[[0-9;:]*[mK]", "", shown)
    assert not re.search("[\x00-\x06\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", left)
