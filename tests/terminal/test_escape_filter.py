"""What a program writes and what of it reaches the terminal of a person who is attached."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast import SyncClient
from holdfast.terminal.escape_filter import EscapeFilter
from holdfast.terminal.ghostty import Terminal
from holdfast.testing import wait_until
from holdfast.watcher.queries import QUERY

pytestmark = pytest.mark.shared_keeper

RECORDED = Path(__file__).parents[1] / "data" / "screens"
CLIPBOARD = b"52;c;aGVsbG8="

# Clipboards and questions in disguise, and what is left of each of them.
DISGUISED: dict[bytes, bytes] = {
    b"\x1b\x1b[6n]%b\x07" % CLIPBOARD: b"]%b\x07" % CLIPBOARD,
    b"\x1b\x1b[6n[6n": b"[6n",
    b"\x1b\x1b]52;;\x07[6n": b"[6n",
    b"\x1b\x05]%b\x07" % CLIPBOARD: b"",
    b"\x1b\x05[6n": b"",
    b"\x1b\x00]%b\x07" % CLIPBOARD: b"",
    b"\x1b]5\x002;c;aGVsbG8=\x07": b"",
    b"\x1b]\x7f52;c;aGVsbG8=\x07": b"",
    b"\x1b]5\n2;c;aGVsbG8=\x1b\\": b"",
    b"\x1b]0%b\x07" % CLIPBOARD: b"",
    b"\x1b]0000%b\x07" % CLIPBOARD: b"",
    b"\x1b]%b\xc2\x9c" % CLIPBOARD: b"",
    b"\xc2\x9d%b\x07" % CLIPBOARD: b"",
    b"\x1b]%b\x18" % CLIPBOARD: b"\x18",
    b"\x1b]%b\x1b[1m" % CLIPBOARD: b"\x1b[1m",
    b"\x1b]0;\x1b]%b\x07" % CLIPBOARD: b"",
    b"\x1b[1\x1b]%b\x07" % CLIPBOARD: b"",
    b"\x1bP\x1b]%b\x07" % CLIPBOARD: b"",
    b"\x1bPtmux;\x1b\x1b]%b\x07\x1b\\" % CLIPBOARD: b"\x1b\\",
    b"\x1b]52\x07": b"",
    b"\x1b]1337;Copy=;aGVsbG8=\x07": b"",
    b"\x1b]1337;CopyToClipboard=\x07": b"",
    b"\x1b]1337;EndCopy\x07": b"",
    b"\x1b]01337;Copy=:aGVsbG8=\x07": b"",
    b"\x1b]1337;ReportCellSize\x07": b"",
    b"\x1b]5522;type=read;Lg==\x1b\\": b"",
    b"\x1b[?5522h": b"",
    b"\x1b_Ga=q,i=1;AAAA\x1b\\": b"",
    b"\x1b\x00_Ga=q,i=1;AAAA\x1b\\": b"",
    b"\x1b[6\x00n": b"",
    b"\x1b[\x056n": b"",
    b"\x1b[\x01c": b"",
    b"\x1b[\n6n": b"\n",
    b"\x1b[\x7f6n": b"",
    b"\x1b[006n": b"",
    b"\x1b[?0006n": b"",
    b"\x1b[0;0c": b"",
    b"\x1b[>00c": b"",
    b"\x1b[014t": b"",
    b"\x1b[6\x186n": b"\x186n",
    b"\x1b[6\x1b[6n": b"",
    b"\x1b[\xc2\x9b6n": b"",
    b"\x1b\xc2\x9b6n": b"",
    b"\x1b\x9b6n": b"\x9b6n",
    b"\xc2\x1b[6n\x9b6n": "\N{REPLACEMENT CHARACTER}".encode() + b"\x9b6n",
    b"\xc2\x05\x9b6n": "\N{REPLACEMENT CHARACTER}".encode() + b"\x9b6n",
    b"\xc2\xc2\x9bc\x9b6n": "\N{REPLACEMENT CHARACTER}".encode() + b"\x9b6n",
    b"\xc2\x9a": b"",
    b"\x1b\x00Z": b"",
    b"\x05": b"",
    b"\x1b[?2048h": b"",
    b"\x1b[?25;02048;7h": b"\x1b[?25;7h",
    b"\x1b[?67584h": b"",
    b"\x1b[?2l\x1bZ": b"",
    b"\x1b%@\x9b6n": b"\x9b6n",
    b"\x1b[#R": b"",
    b"\x1b[1;2#|": b"",
    b"\x1b[#S": b"",
    b"\x1b[?1;1;0S": b"",
    b"\x1b[1$w": b"",
    b"\x1b[1$u": b"",
    b"\x1b[&u": b"",
    b"\x1b[1;1;1;1;1;1*y": b"",
    b"\x1b['|": b"",
    b'\x1b["v': b"",
    b"\x1b[+x": b"",
    b"\x1b[5i": b"",
    b"\x1b]\x3011;?\x07": b"",
    b"\x1b]10;red;?\x07": b"",
    b"\x1b]4;1;red;2;?\x07": b"",
    b"\x1b]21;foreground=?\x07": b"",
    b"\x1b]99;i=1:p=?;\x1b\\": b"",
    b"\x1b]8;;javascript:alert(1)\x07": b"",
    b"\x1b]8;; https://a\x07": b"",
    b"\x1b]8;;x-man-page://a\x07": b"",
    b"\x1b]0;a\xc2\x9b6n": b"",
    b"\x1b]0;a\xc2\x85b\x07": b"",
    b"\x1b]0;a\xe2\x82\x1b\\": b"",
    b"\x1b]lname\x1b\\": b"",
    b"\x1bkname\x1b\\": b"",
    b"\x1bP0;1q#0~~\x1b\\": b"",
    b"\x1b^private\x1b\\": b"",
    b"\x1bXstring\x07more\x1b\\": b"",
    b"\xc2\x98string\xc2\x9c": b"",
}

# What passes, and in which form where that is another.
REWRITTEN: dict[bytes, bytes] = {
    b"\x1b[1\n;3\x002m": b"\n\x1b[1;32m",
    b"\x1b\r[\t1m": b"\r\t\x1b[1m",
    b"\x1b(\x010": b"\x1b(0",
    b"\x1b]0;ti\x00t\nle\x07": b"\x1b]0;title\x07",
    b"\x1b]002;title\x07": b"\x1b]2;title\x07",
    b"\x1b[?01049h": b"\x1b[?1049h",
    b"\xc2\x9b1m": b"\x1b[1m",
    b"\xc2\x9d0;title\xc2\x9c": b"\x1b]0;title\x1b\\",
}
CLEAN = [
    b"text",
    b"\r\n",
    b"\t",
    b"\b",
    b"\a",
    "é©漢🦀 ✛✜ «»\u00a0".encode(),
    b"\x1b[m",
    b"\x1b[1;38;2;1;2;3m",
    b"\x1b[4:3m",
    b"\x1b[58:2::1:2:3m",
    b"\x1b[2J",
    b"\x1b[3;4H",
    b"\x1b[A",
    b"\x1b[2K",
    b"\x1b[2;5r",
    b"\x1b[s\x1b[5;5Hx\x1b[u",
    b"\x1b[3@\x1b[2P\x1b[2X\x1b[L\x1b[M",
    b"\x1b[4h",
    b"\x1b[4l",
    b"\x1b[2S\x1b[T",
    b"x\x1b[3b",
    b"\x1b[?1049h",
    b"\x1b[?1049l",
    b"\x1b[?25l",
    b"\x1b[?7;25h",
    b"\x1b[?2026h\x1b[?2026l",
    b"\x1b[?1000;1006h",
    b"\x1b[2 q",
    b"\x1b[!p",
    b"\x1b[3'}",
    b"\x1b[42;1;1;3;3$x",
    b"\x1b[>1u\x1b[=1;1u\x1b[<u",
    b"\x1b[>4;2m",
    b"\x1b[22;0t\x1b[23;0t",
    b"\x1b7",
    b"\x1b8",
    b"\x1bM",
    b"\x1bD",
    b"\x1bE",
    b"\x1bH",
    b"\x1b=\x1b>",
    b"\x1bc",
    b"\x1b#8",
    b"\x1b(0qqq\x1b(B",
    b"\x1b)0\x0eq\x0f",
    b"\x1b%G",
    b"\x1b]0;what? \xe2\x9c\xb3\x07",
    b"\x1b]2;title\x1b\\",
    b"\x1b]4;1;rgb:ff/00/00;2;#00ff00\x07",
    b"\x1b]11;#ffffff\x1b\\",
    b"\x1b]104\x07\x1b]104;1\x07\x1b]110\x07\x1b]111\x1b\\\x1b]112\x07",
    b"\x1b]7;file://host/a%20b\x1b\\",
    b"\x1b]8;id=1;https://example.org/?a=b;c\x1b\\link\x1b]8;;\x1b\\",
    b"\x1b]8;;file:///etc/hosts\x07link\x1b]8;;\x07",
    b"\x1b]8;;MAILTO:a@example.org\x07link\x1b]8;;\x07",
    b"\x1b]133;A\x07$ \x1b]133;B\x07",
    b"\x1b]633;E;ls;1\x07",
]

WHOLE = [*DISGUISED, *REWRITTEN, *CLEAN]
PARTS = [
    *(bytes((byte,)) for byte in b"\x00\x05\x07\x08\n\r\x18\x1a\x1b\x7f\x80\x90\x9a\x9b\x9c\x9d"),
    *(b"\xc2", b"\xc2\x90", b"\xc2\x9b", b"\xc2\x9c", b"\xc2\x9d", b"\xc2\xa9", b"\xe2\x9c"),
    *(b"\x1b[", b"\x1b]", b"\x1bP", b"\x1b_", b"\x1b\\", b"]", b"[", b"\\", b"?", b">", b"=", b"$"),
    *(b"0", b"5", b"6", b"52", b"11", b"14", b"2048", b"2026", b";", b":", b"?;", b"c;", b"+q"),
    *(b"n", b"c", b"q", b"p", b"u", b"t", b"x", b"Z", b"m", b"h", b"G", b" ", b"k", b"%", b"@"),
]
ANYTHING = st.lists(
    st.sampled_from(WHOLE) | st.sampled_from(PARTS) | st.binary(max_size=3), max_size=30
).map(b"".join)


def sieved(data: bytes) -> bytes:
    return EscapeFilter().feed(data)


def byte_by_byte(data: bytes) -> bytes:
    escape_filter = EscapeFilter()
    return b"".join(escape_filter.feed(data[at : at + 1]) for at in range(len(data)))


def ascii_c1(data: bytes) -> bytes:
    """As a terminal reads it that knows the control characters of eight bits."""
    return re.sub(rb"\xc2([\x80-\x9f])", lambda c1: bytes((0x1B, c1[1][0] - 0x40)), data)


@pytest.mark.parametrize(("written", "left"), [*DISGUISED.items(), *REWRITTEN.items()])
def test_a_disguise_does_not_help(written: bytes, left: bytes) -> None:
    """What controls, zeros and neighbours hide is found; in one piece, byte by byte, cut in two."""
    data, shown = b"a\x1b[1m" + written + b"b", b"a\x1b[1m" + left + b"b"
    assert sieved(data) == shown
    assert byte_by_byte(data) == shown
    for cut in range(len(data)):
        escape_filter = EscapeFilter()
        assert escape_filter.feed(data[:cut]) + escape_filter.feed(data[cut:]) == shown


@pytest.mark.parametrize("written", CLEAN)
def test_what_is_harmless_passes_as_it_is(written: bytes) -> None:
    """Text, colours, cursor, modes, titles, links and marks are not changed by a byte."""
    data = b"a" + written + b"b"
    assert sieved(data) == data
    assert byte_by_byte(data) == data
    for cut in range(len(data)):
        escape_filter = EscapeFilter()
        assert escape_filter.feed(data[:cut]) + escape_filter.feed(data[cut:]) == data


@given(pieces=st.lists(st.sampled_from(CLEAN), max_size=40))
@settings(deadline=None)
def test_clean_output_is_not_changed(pieces: list[bytes]) -> None:
    """In whatever order it comes."""
    data = b"".join(pieces)
    assert sieved(data) == data


@given(data=ANYTHING, cuts=st.lists(st.integers(0, 200), max_size=8))
@settings(deadline=None, max_examples=150)
def test_where_output_is_cut_does_not_matter(data: bytes, cuts: list[int]) -> None:
    """Pieces of any size give what the whole gives, and leave the same waiting."""
    whole = EscapeFilter()
    shown = whole.feed(data)
    rest = whole.rest()
    cut = EscapeFilter()
    edges = [0, *sorted(min(at, len(data)) for at in cuts), len(data)]
    assert b"".join(cut.feed(data[a:b]) for a, b in pairwise(edges)) == shown
    assert cut.rest() == rest
    assert byte_by_byte(data) == shown


@given(data=ANYTHING)
@settings(deadline=None, max_examples=200)
@example(data=b"".join(DISGUISED))
def test_no_terminal_answers_to_what_passed(data: bytes) -> None:
    """Nor one that reads eight bits, nor one that overlooks controls; not even cut off."""
    escape_filter = EscapeFilter()
    shown = escape_filter.feed(data)
    for reading in (shown, ascii_c1(shown), re.sub(rb"[\x00-\x06\x08-\x17\x7f]", b"", shown)):
        assert Terminal(40, 10).ask(reading) == b""
        assert QUERY.search(reading) is None
    assert Terminal(40, 10).ask(shown + escape_filter.rest() + b"\x18") == b""


# Each sequence in one piece, of a kind that may pass, and nothing of one outside.
GRAMMAR = re.compile(
    rb"(?:[^\x05\x1b\xc2]|\xc2[\x80-\x8f\x91-\x97\x99\x9c\xa0-\xbf]"
    rb"|\x1b[ -/]*[0-JL-OQ-WY\\`-jl-~]|\x1b\[[ -?]*[@-~]"
    rb"|\x1b\](?:[012478]|1[01279]|104|11[012]|133|633)(?:;[^\x00-\x1f\x7f]*)?(?:\x07|\x1b\\))*+"
)


@given(data=ANYTHING)
@settings(deadline=None, max_examples=200)
@example(data=b"".join(DISGUISED))
@example(data=b"".join(REWRITTEN) + b"".join(CLEAN))
def test_only_whole_sequences_pass(data: bytes) -> None:
    """So that nothing is left which could be completed; and a second sieve finds nothing more."""
    shown = sieved(data)
    assert GRAMMAR.fullmatch(shown)
    assert sieved(shown) == shown


CODES = st.builds(
    b"\x1b[%b%b%b".__mod__,
    st.tuples(
        st.sampled_from([b"", b"", b"?"]),
        st.lists(st.integers(0, 60), max_size=3).map(lambda n: b";".join(b"%d" % x for x in n)),
        st.sampled_from([bytes((byte,)) for byte in b"@ABCDEFGHIJKLMPSTXZ`abdefgmrsu"]),
    ),
).filter(lambda code: not re.fullmatch(rb"\x1b\[\?[0-9;]*[muS]", code))


@st.composite
def interrupted(draw: st.DrawFn) -> bytes:
    """A sequence with something in the middle."""
    code = draw(CODES | st.sampled_from([b"\x1b7", b"\x1b8", b"\x1bM", b"\x1b(0", b"\x1b(B"]))
    at = draw(st.integers(1, len(code) - 1))
    control = draw(st.sampled_from([bytes((byte,)) for byte in range(0x20)] + [b"\x7f", b""]))
    return code[:at] + control + code[at:]


@given(pieces=st.lists(interrupted() | CODES | st.text("ab漢é \n\r", max_size=9).map(str.encode)))
@settings(deadline=None, max_examples=150)
def test_the_screen_is_the_same_as_without(pieces: list[bytes]) -> None:
    """Controls inside of sequences do what they do in a terminal, before the sequence does."""
    data = b"".join(pieces)
    without, escape_filter = Terminal(40, 10), EscapeFilter()
    without.feed(data)
    through = Terminal(40, 10)
    through.feed(escape_filter.feed(data) + escape_filter.rest())
    assert (through.styled(), through.cursor) == (without.styled(), without.cursor)
    assert (through.pen(), through.region()) == (without.pen(), without.region())


@pytest.mark.parametrize("path", sorted(RECORDED.iterdir()), ids=lambda path: path.stem)
def test_recorded_programs_look_the_same(path: Path) -> None:
    """What editors, pagers and shells draw is drawn, questions or not."""
    columns, rows = (int(number) for number in path.stem.rpartition("-")[2].split("x"))
    data = path.read_bytes()
    without, through = Terminal(columns, rows), Terminal(columns, rows)
    without.feed(data)
    assert through.ask(sieved(data)) == b""
    assert (through.styled(), through.cursor) == (without.styled(), without.cursor)


@pytest.mark.parametrize(
    "begin", [b"\x1b]0;", b"\x1b]52;c;", b"\x1bP", b"\x1b_G", b"\x1b[", b"\x1b[?", b"\xc2\x9d0;"]
)
def test_what_is_too_long_is_dropped_without_being_kept(begin: bytes) -> None:
    """To its end, and no further; a program cannot make us hold its output."""
    end = b"m" if b"[" in begin else b"\x1b\\"
    piece = b"1" * (1 << 20)
    escape_filter = EscapeFilter()
    shown = escape_filter.feed(b"a" + begin)
    tracemalloc.start()
    try:
        for _ in range(8):
            shown += escape_filter.feed(piece)
        assert tracemalloc.get_traced_memory()[0] < 64 << 10
    finally:
        tracemalloc.stop()
    assert shown + escape_filter.feed(end + b"b") == b"ab"
    assert sieved(b"a" + begin + piece + end + b"b") == b"ab"
    escape_filter = EscapeFilter()
    assert escape_filter.feed(b"a" + begin + piece) == b"a"
    assert escape_filter.rest() == b""


@pytest.mark.parametrize("length", [0, 250, 254, 260, 2040, 2050, 4080, 4090, 4100, 5000])
@pytest.mark.parametrize("form", [b"\x1b[%bm", b"\x1b]0;%b\x07", b"\x1b[?%bh"])
def test_how_long_it_may_be_does_not_depend_on_the_pieces(form: bytes, length: int) -> None:
    """The short way through the sieve and the long way agree."""
    for more in range(8):
        data = b"a" + form % (b"1" * (length + more)) + b"b"
        assert sieved(data) == byte_by_byte(data)


def test_half_a_string_is_not_given_out_at_the_end() -> None:
    """Half a code is, but some terminals obey a string that was cut off."""
    for begun in (b"\x1b]0;title", b"\x1b]%b" % CLIPBOARD, b"\x1b]0;title\x1b", b"\x1bPq", b"\xc2"):
        escape_filter = EscapeFilter()
        assert escape_filter.feed(b"text" + begun) == b"text"
        assert escape_filter.rest() == b""
        assert escape_filter.feed(b"more") == b"more"
    escape_filter = EscapeFilter()
    assert escape_filter.feed(b"text\x1b[1\x002") == b"text"
    assert escape_filter.rest() == b"\x1b[12"
    assert escape_filter.feed(b"n") == b"n"


@pytest.mark.parametrize("nasty", [*DISGUISED, *PARTS, b"\x1b]4;", b"\x1b[1;", b"\x1b]0;\xc2"])
def test_nothing_takes_long_to_look_through(nasty: bytes) -> None:
    """What a program writes cannot make attach hang."""
    began = time.process_time()
    escape_filter = EscapeFilter()
    escape_filter.feed(nasty * ((32 << 10) // len(nasty)))
    escape_filter.feed(nasty + b"?" * (32 << 10))
    assert time.process_time() - began < 30


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
def test_the_clipboard_of_a_person_in_tmux_is_not_set(hf: SyncClient, tmp_path: Path) -> None:
    """A real terminal that takes clipboards from programs gets none through attach."""

    def tmux(*arguments: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "socket"), "-f", "/dev/null", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        return done.stdout + done.stderr

    def seen() -> str:
        return tmux("capture-pane", "-p", "-t", "person")

    (tmp_path / "written").write_bytes(b"".join(DISGUISED) + b"\x1b[m\r\nthe end")
    (tmp_path / "control").write_bytes(b"\x1b\x05]%b\x07the control" % CLIPBOARD)
    written, control = (shlex.quote(str(tmp_path / name)) for name in ("written", "control"))
    process = hf.spawn(f"printf ready; read -n 1; cat {written}; sleep 300", tty=True, size="80x24")
    attach = shlex.join([sys.executable, "-m", "holdfast", "attach", process.handle])
    tmux("new-session", "-d", "-s", "first", "-x", "80", "-y", "24", "cat")
    try:
        tmux("set-option", "-s", "set-clipboard", "on")
        tmux("new-session", "-d", "-s", "person", "-x", "80", "-y", "24", attach)
        wait_until(lambda: "ready" in seen(), what="the process is seen")
        tmux("send-keys", "-t", "person", "x")
        wait_until(lambda: "the end" in seen(), what="everything is seen")
        assert tmux("show-buffer").strip() == "no buffers"
        tmux("new-session", "-d", "-s", "control", f"cat {control}; cat")
        wait_until(lambda: tmux("show-buffer") == "hello", what="a clipboard without attach")
    finally:
        tmux("kill-server")
