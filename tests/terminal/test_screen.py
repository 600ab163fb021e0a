"""Screens: what a person would see, drawn from the bytes of a log."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast import Screen
from holdfast.core.errors import Unavailable
from holdfast.core.log_head import LogHead, write_head
from holdfast.output.log import Log
from holdfast.terminal import screen as _screen
from holdfast.terminal.ghostty import Terminal
from holdfast.terminal.screen import WINDOW, Rendering
from holdfast.testing import wait_until

RECORDED = Path(__file__).parents[1] / "data" / "screens"
SIZE = 20, 6
SIZES = [[0, *SIZE]]

# What to feed a terminal of 20 columns and 6 rows, and the rows it shows then.
DRAWN: dict[str, tuple[str | bytes, list[str]]] = {
    "lines": ("one\r\ntwo\r\nthree", ["one", "two", "three"]),
    "line feed alone keeps the column": ("one\ntwo", ["one", "   two"]),
    "wrap at the margin": ("a" * 20 + "b", ["a" * 20, "b"]),
    "no wrap before there is more": ("a" * 20 + "\r\nb", ["a" * 20, "b"]),
    "no wrap where it is switched off": ("\x1b[?7l" + "a" * 25 + "b", ["a" * 19 + "b"]),
    "scrolling": ("\r\n".join("12345678"), list("345678")),
    "tabs": ("a\tb\tc\td", ["a       b       c  d"]),
    "tab stops of its own": ("\x1b[3g\x1b[5G\x1bH\r\tx", ["    x"]),
    "backspace": ("abc\b\bX", ["aXc"]),
    "a progress bar": ("10%\r50%\r100% done", ["100% done"]),
    "a shorter line after a carriage return": ("long line\r\x1b[Kshort", ["short"]),
    "erase to the left": ("abcdef\x1b[4D\x1b[1Kx", ["  xdef"]),
    "erase below": ("a\r\nb\r\nc\x1b[2;1H\x1b[J", ["a"]),
    "erase above": ("a\r\nb\r\nc\x1b[2;1H\x1b[1J", ["", "", "c"]),
    "clear": ("junk\x1b[2J\x1b[Hx", ["x"]),
    "cursor positions": (
        "\x1b[3;5Hx\x1b[Ay\x1b[2Bz\x1b[10Gw",
        ["", "     y", "    x", "      z  w"],
    ),
    "cursor beyond the edge": (
        "\x1b[99;99Hx\x1b[99Dy",
        ["", "", "", "", "", "y                  x"],
    ),
    "save and restore": ("ab\x1b7\x1b[5;5Hx\x1b8c", ["abc", "", "", "", "    x"]),
    "insert lines": ("1\r\n2\r\n3\x1b[2;1H\x1b[2Lx", ["1", "x", "", "2", "3"]),
    "delete lines": ("1\r\n2\r\n3\r\n4\x1b[2;1H\x1b[2M", ["1", "4"]),
    "insert characters": ("abcdef\x1b[3G\x1b[2@xy", ["abxycdef"]),
    "delete characters": ("abcdef\x1b[3G\x1b[2P", ["abef"]),
    "erase characters": ("abcdef\x1b[3G\x1b[2X", ["ab  ef"]),
    "insert mode": ("def\r\x1b[4habc\x1b[4l", ["abcdef"]),
    "repeat": ("a\x1b[4b", ["aaaaa"]),
    "scroll region": (
        "1\r\n2\r\n3\r\n4\r\n5\x1b[2;4r\x1b[4;1H\n\nx",
        ["1", "4", "", "x", "5"],
    ),
    "reverse index in a region": (
        "1\r\n2\r\n3\r\n4\r\n5\x1b[2;4r\x1b[2;1H\x1bMx",
        ["1", "x", "2", "3", "5"],
    ),
    "scroll up and down": ("1\r\n2\r\n3\x1b[S\x1b[2T", ["", "", "2", "3"]),
    "origin mode": ("\x1b[3;5r\x1b[?6h\x1b[1;1Hx\x1b[9;1Hy", ["", "", "x", "", "y"]),
    "alternate screen": ("shell\x1b[?1049h\x1b[Hvi", ["vi"]),
    "alternate screen left": ("shell\x1b[?1049h\x1b[Hvi\x1b[?1049l$", ["shell$"]),
    "wide characters": ("日本語x", ["日本語x"]),
    "a wide character does not fit": ("a" * 19 + "日", ["a" * 19, "日"]),
    "half of a wide character overwritten": ("日本\x1b[2Gx", [" x本"]),
    "combining characters": ("e\u0301a\u0308o", ["e\u0301a\u0308o"]),
    "an emoji": ("😀!", ["😀!"]),
    "line drawing": ("\x1b(0lqqk\x1b(B lqqk", ["┌──┐ lqqk"]),
    "colours leave no trace": ("\x1b[1;31;48;5;17mre\x1b[38;2;1;2;3md\x1b[0m!", ["red!"]),
    "undercurl leaves no trace": ("\x1b[4:3m\x1b[58:2::255:0:0mbad\x1b[59m\x1b[4:0m!", ["bad!"]),
    "undercurl with semicolons": ("\x1b[4:3;58;2;255;0;0mbad\x1b[0m!", ["bad!"]),
    "kitty keyboard leaves no trace": ("\x1b[>5u\x1b[=1;2u\x1b[<u$", ["$"]),
    "modify other keys leaves no trace": ("\x1b[>4;2m\x1b[>4m$", ["$"]),
    "titles leave no trace": ("\x1b]0;a title\x07\x1b]2;another\x1b\\$", ["$"]),
    "a link leaves its text": ("\x1b]8;;http://e.org\x07link\x1b]8;;\x07", ["link"]),
    "shell marks leave no trace": ("\x1b]133;A\x07$ \x1b]133;B\x07ls\x1b]7;file:///\x07", ["$ ls"]),
    "synchronized update": ("\x1b[?2026hx\x1b[?2026l", ["x"]),
    "modes leave no trace": ("\x1b[?2004h\x1b[?1003;1006h\x1b[?1h\x1b=\x1b[6 q$", ["$"]),
    "an unknown sequence leaves no trace": ("\x1b[?9999h\x1b[5;5;5&z\x1bPzzz\x1b\\$", ["$"]),
    "clipboard leaves no trace": ("\x1b]52;c;aGVsbG8=\x07$", ["$"]),
    "an image leaves no trace": ("\x1b_Gf=24,s=1,v=1;AAAA\x1b\\$", ["$"]),
    "a sequence broken off by another": ("\x1b[31\x1b[1mx", ["x"]),
    "a sequence broken off by CAN": ("\x1b[31\x18x", ["x"]),
    "bell and NUL": ("a\x07b\x00c", ["abc"]),
    "DEL": ("a\x7fb", ["ab"]),
    "reset": ("junk\x1b[?1049h\x1b[4h\x1bcx", ["x"]),
    "invalid UTF-8": (b"a\xffb\xc3(c", ["a\ufffdb\ufffd(c"]),
    "unfinished UTF-8": (b"ab\xe6\x97", ["ab"]),
    "unfinished escape": ("ab\x1b[3", ["ab"]),
}

# Where tmux 3.3 does not do what terminals do, or where there is no agreed answer.
NOT_TMUX = {
    "half of a wide character overwritten",
    "line drawing",  # drawn, but captured as letters
    "reset",  # keeps the alternate screen
    "an unknown sequence leaves no trace",
    "invalid UTF-8",
    "unfinished UTF-8",
    "unfinished escape",
}


def as_bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def recorded() -> dict[str, tuple[bytes, tuple[int, int]]]:
    found = {}
    for path in sorted(RECORDED.iterdir()):
        name, _, size = path.stem.rpartition("-")
        columns, rows = size.split("x")
        found[name] = path.read_bytes(), (int(columns), int(rows))
    return found


EVERYTHING = {name: (as_bytes(data), SIZE) for name, (data, _) in DRAWN.items()} | recorded()


class Place:
    """A log that grows and loses its head."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "proc.log"
        self.head = directory / "proc.head"
        self.path.touch(0o600)
        self.log = Log(str(self.path), str(self.head))
        self.rendering = Rendering(self.log)

    def write(self, data: str | bytes) -> Place:
        with self.path.open("ab") as file:
            file.write(as_bytes(data))
        return self

    def free(self, begin: int) -> Place:
        write_head(str(self.head), LogHead(begin))
        with self.path.open("r+b") as file:
            file.write(bytes(begin))
        return self

    def look(self, sizes: list[list[int]] = SIZES, **options: Any) -> Screen:
        self.rendering.update(sizes)
        return self.rendering.screen(**options)

    def close(self) -> None:
        self.rendering.close()
        self.log.close()


@pytest.fixture
def place(tmp_path: Path, no_leaks: None) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def terminal(data: bytes, size: tuple[int, int] = SIZE) -> Terminal:
    made = Terminal(*size)
    made.feed(data)
    return made


def state(terminal: Terminal) -> dict[str, Any]:
    """All that can be told of a terminal."""
    return {
        "text": terminal.plain(),
        "styled": _screen._tidy(terminal.styled().decode().split("\r\n")),
        "cursor": terminal.cursor,
        "visible": terminal.cursor_visible,
        "pending wrap": terminal.pending_wrap,
        "shape": terminal.cursor_shape(),
        "alternate": terminal.alternate,
        "title": _screen._one_line(terminal.title),
        "modes": terminal.modes(),
        "region": terminal.region(),
        "tab stops": terminal.tab_stops(),
        "pen": terminal.pen(),
        "unfinished": terminal.unfinished(),
    }


# -- what is drawn -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_bytes_become_the_rows_a_person_sees(place: Place, name: str) -> None:
    """The text is what a terminal shows, row by row, without blanks at the end."""
    data, rows = DRAWN[name]
    assert place.write(data).look().text.split("\n") == rows
    assert place.rendering.offset == len(as_bytes(data))


@pytest.mark.parametrize("name", EVERYTHING)
def test_where_the_bytes_are_cut_makes_no_difference(name: str) -> None:
    """Fed byte by byte or cut in two at any place, the terminal ends the same."""
    data, size = EVERYTHING[name]
    whole = state(terminal(data, size))
    single = Terminal(*size)
    for byte in data:
        single.feed(bytes([byte]))
    assert state(single) == whole
    for cut in range(1, len(data), 1 + len(data) // 100):
        parted = terminal(data[:cut], size)
        parted.feed(data[cut:])
        assert state(parted) == whole


def test_looks_in_between_do_not_change_the_picture(place: Place) -> None:
    """Somebody who looks after every byte sees the same in the end."""
    data, size = EVERYTHING["vim-split"]
    for at in range(0, len(data), 7):
        place.write(data[at : at + 7]).look([[0, *size]], colours=True)
        place.rendering.redraw()
    assert place.rendering.screen().text == _screen._tidy(
        terminal(data, size).plain().decode().split("\n")
    )


def test_a_family_of_emoji_leaves_its_people_and_no_junk(place: Place) -> None:
    """Joined emoji have no agreed width, but nothing besides them may be there."""
    place.write("[👩\u200d👧]\r\nnext")
    first, second = place.look().text.split("\n")
    assert re.sub("[\u200d ]", "", first) == "[👩👧]"
    assert second == "next"


def test_cursor_title_and_screen_are_told(place: Place) -> None:
    """The cursor counts from 0 and is None while hidden; the title is the last one set."""
    screen = place.write("\x1b]0;one\x07ab\r\ncd").look()
    assert (screen.cursor, screen.title, screen.fullscreen) == ((2, 1), "one", False)
    screen = place.write("\x1b]2;two\x1b\\\x1b[?1049h\x1b[?25l").look()
    assert (screen.cursor, screen.title, screen.fullscreen) == (None, "two", True)
    assert screen.size == SIZE
    assert str(screen) == screen.text == ""
    assert place.rendering.fullscreen


def test_a_screen_as_json(place: Place) -> None:
    """The public form has plain values, and colours only where they were asked for."""
    place.write("\x1b[31mhi")
    assert place.look().public() == {
        "text": "hi",
        "size": "20x6",
        "cursor": [2, 0],
        "title": "",
        "fullscreen": False,
        "exact": True,
        "note": "",
    }
    assert place.look(colours=True).public()["styled"] == "\x1b[0m\x1b[38;5;1mhi\x1b[0m"


def test_styled_rows_have_colours_and_end_reset(place: Place) -> None:
    """Styled text has the SGR codes of every row, and no other code."""
    place.write(
        "plain \x1b[38;5;208mpalette\x1b[m\r\n"
        "\x1b[38;2;1;2;3mtrue\r\n\x1b[4:3;58;2;9;8;7mcurl\x1b]8;;http://e.org\x07 link\x1b]8;;\x07"
        "\x1b[0m\r\n\x1b[44m \x1b[K\x1b[m\x1b]2;title\x07"
    )
    screen = place.look(colours=True)
    assert screen.styled is not None
    rows = screen.styled.split("\n")
    assert "\x1b[38;5;208mpalette\x1b[0m" in rows[0]
    assert "\x1b[38;2;1;2;3mtrue\x1b[0m" in rows[1]
    assert "\x1b[4:3m" in rows[2]
    assert "58;2;9;8;7" in rows[2]
    assert "\x1b[48;5;4m" in rows[3]
    assert all(row.endswith("\x1b[0m") for row in rows)
    bare = re.sub(r"\x1b\[[\d;:]*m", "", screen.styled)
    assert "\x1b" not in bare
    assert _screen._tidy(bare.split("\n")) == screen.text
    assert place.look().styled is None


def test_modes_that_keys_depend_on(place: Place) -> None:
    """Bracketed paste, application cursor keys and kitty's flags are told."""
    place.look()
    rendering = place.rendering
    modes = rendering.bracketed_paste, rendering.application_cursor, rendering.kitty_flags
    assert modes == (False, False, 0)
    place.write("\x1b[?2004h\x1b[?1h\x1b[>5u").look()
    assert rendering.bracketed_paste
    assert rendering.application_cursor
    assert rendering.kitty_flags == 5
    place.write("\x1b[<u\x1b[?2004l\x1b[?1l").look()
    modes = rendering.bracketed_paste, rendering.application_cursor, rendering.kitty_flags
    assert modes == (False, False, 0)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ("", ""),
        ("out\r\nDelete it? [y/n] ", "Delete it? [y/n]"),
        ("\x1b[3;2H\x1b[1mName: \x1b[mafter\x1b[5D", "Name:"),
        ("名前: ", "名前:"),
        ("x" * 20, "x" * 20),
        ("x" * 20 + "\r", ""),
    ],
)
def test_the_line_before_the_cursor(place: Place, data: str, line: str) -> None:
    """A prompt is the text before the cursor in its row, whatever stands behind it."""
    place.write(data).look()
    assert place.rendering.cursor_line() == line


# -- hostile and odd output --------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x1b]0;a\x01b\x1b[31mc\x07",
        b"\x1b]2;\xc2\x9b31m\xc2\x85x\xff\x7f\x07",
        b"\x1b]2;two\nlines\x07",
        b"\xc2\x80\xc2\x9b31m\xc2\x9d0;x\xc2\x9c",
        bytes(range(256)) * 20,
        b"\x1bP" + bytes(range(256)) * 20 + b"\x1b\\",
        b"\x1b_" + bytes(range(256)) * 20 + b"\x1b\\",
    ],
)
def test_no_control_character_leaves_the_screen(place: Place, data: bytes) -> None:
    """Text and title have no control characters, so that printing them does nothing else."""
    screen = place.write(data + b"\x1b\\").look(colours=True)
    assert screen.styled is not None
    bare = re.sub(r"\x1b\[[\d;:]*m", "", screen.styled)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", screen.title)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", screen.text + bare)


def test_a_very_long_title_is_cut(place: Place) -> None:
    """A title is for one line of a list, not a way to fill it."""
    assert len(place.write(b"\x1b]2;" + b"t" * 900_000 + b"\x07").look().title) <= 1000


def test_endless_strings_and_images_take_no_memory(place: Place) -> None:
    """What a program sends to be kept by its terminal is not kept by us."""
    block = b"A" * (1 << 20)
    image = b"\x1b_Gf=32,s=512,v=512,i=%d,a=T;" + block + b"\x1b\\"
    place.write("\x1b[H").look()
    before = resident()
    for number in range(12):
        place.write(image % number).look()
        place.write(b"\x1b]1337;File=:" + block + b"\x07").look()
        place.write(b"\x1b]52;c;" + block + b"\x07").look()
        place.write(b"\x1bPq" + block + b"\x1b\\").look()
    place.write(b"\x1b]2;" + block * 8).look()
    assert resident() - before < 24 << 20, "of 56 MiB that it was sent"
    assert place.write(b"\x07\x1b[2J\x1b[Hend").look().text == "end"


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_line_without_an_end(place: Place) -> None:
    """A very long line is as long as the screen, in a bounded amount of memory."""
    for _ in range(8):
        place.write(b"x" * (1 << 20))
    tracemalloc.start()
    screen = place.look()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(screen.text) == {"x", "\n"}
    assert not screen.exact  # nobody knows in which column it began
    assert peak < 8 << 20
    assert not place.write("\r\nshort\r\n").look().exact
    assert place.write("line\r\n" * 20).look().exact


# -- incremental -------------------------------------------------------------------------------


def test_another_look_reads_only_what_is_new(place: Place) -> None:
    """A second look goes on where the first ended, even if what came before is not there now."""
    place.write("one\r\n" * 3).look()
    assert place.rendering.offset == 15
    size = place.path.stat().st_size
    with place.path.open("r+b") as file:
        file.write(b"#" * size)  # nobody who looks again would miss this
    assert place.write("two").look().text == "one\none\none\ntwo"
    assert place.rendering.offset == 18
    place.look()
    assert place.rendering.offset == 18


def test_a_look_at_a_time_that_is_past(place: Place) -> None:
    """The picture can be brought to an offset before the end of the log."""
    place.write("one\r\ntwo")
    place.rendering.update(SIZES, until=4)
    assert place.rendering.offset == 4
    assert place.rendering.screen().text == "one"
    assert place.look().text == "one\ntwo"


def test_a_closed_rendering_starts_from_the_beginning(place: Place) -> None:
    """Closing gives the memory back; another look draws all of it again."""
    place.write("one").look()
    place.rendering.close()
    assert place.rendering.offset == 0
    assert place.look().text == "one"


def test_sizes_are_applied_where_they_changed(place: Place) -> None:
    """Output is drawn at the size that its terminal had when it was written."""
    place.write("a" * 30 + "\r\n")
    place.write("\x1b[2J\x1b[H" + "b" * 30)
    screen = place.look([[0, 20, 6], [32, 40, 4]])
    assert screen.size == (40, 4)
    assert screen.text == "b" * 30
    assert place.look([[0, 20, 6], [32, 40, 4], [69, 10, 4]]).size == (10, 4)
    assert place.look([[0, 20, 6], [32, 40, 4], [69, 10, 4]]).text == "b" * 10 + "\n" + "\n".join(
        ["b" * 10] * 2
    )


def test_a_size_that_is_learnt_late_is_applied(place: Place) -> None:
    """The record may say of a new size after the bytes behind it were read."""
    place.write("\x1b[2J\x1b[Habc").look()
    assert place.look([[0, 20, 6], [3, 30, 8]]).size == (30, 8)


def test_without_sizes_there_is_a_default(place: Place) -> None:
    """A record without sizes gives a screen of the default size."""
    assert place.write("x").look([]).size == (120, 40)


# -- where not everything is replayed ----------------------------------------------------------

NOISE = b"\x1b[3;1Hnoise\x1b[K" * (1 + (WINDOW + (1 << 20)) // 15)


def test_a_large_log_is_replayed_from_near_its_end(place: Place) -> None:
    """Of lines that scrolled by nothing is missing, and no more is read than needed."""
    lines = b"".join(b"line %d\r\n" % number for number in range(400_000))
    screen = place.write(lines).look()
    assert screen.text == "\n".join(f"line {number}" for number in range(399_995, 400_000))
    assert (screen.exact, screen.note) == (True, "")
    assert place.rendering.offset == len(lines)


def test_what_was_drawn_too_long_ago_makes_a_screen_inexact(place: Place) -> None:
    """A screen that may lack something says so, and no longer once it was drawn anew."""
    screen = place.write(b"\x1b[1;1Htop\x1b[6;1Hbottom").write(NOISE).look()
    assert screen.text == "\n\nnoise"
    assert not screen.exact
    assert "2 MiB" in screen.note
    screen = place.write("\x1b[H\x1b[2Jnew").look()
    assert (screen.text, screen.exact, screen.note) == ("new", True, "")


@pytest.mark.parametrize(
    "clear",
    ["\x1b[H\x1b[J", "\x1b[2J", "\x1bc", "\x1b[?1049h", "\r\n" * 12, "\x1b[H" + "\x1b[K\r\n" * 6],
)
def test_any_way_to_clear_makes_a_screen_exact(place: Place, clear: str) -> None:
    """It does not matter by which sequence a program drew all of its screen."""
    assert not place.write(NOISE).look().exact
    assert place.write(clear).look().exact


def test_full_screen_programs_are_exact_after_they_drew_every_cell(place: Place) -> None:
    """A program that never clears but draws every cell leaves nothing unknown."""
    assert not place.write(NOISE).look().exact
    place.write("".join(f"\x1b[{row};1H{'x' * 20}" for row in range(1, 7)))
    assert place.look().exact


def test_what_the_alternate_screen_hid_is_still_unknown_behind_it(place: Place) -> None:
    """Leaving the alternate screen shows what was there before, if that is known."""
    place.write("\x1b[Hshell").write(NOISE).write("\x1b[?1049h\x1b[Hvi")
    screen = place.look()
    assert (screen.text, screen.exact) == ("vi", True)
    screen = place.write("\x1b[?1049l").look()
    assert not screen.exact
    assert "shell" not in screen.text


def test_a_program_that_entered_the_alternate_screen_long_ago_is_in_it(place: Place) -> None:
    """Screen, modes, title and keyboard flags are found in what is not replayed."""
    place.write("\x1b[?1049h\x1b[?2004;1h\x1b[>5u\x1b]0;old\x07\x1b]0;long ago\x07").write(NOISE)
    screen = place.look()
    assert screen.fullscreen
    assert screen.title == "long ago"
    assert place.rendering.bracketed_paste
    assert place.rendering.application_cursor
    assert place.rendering.kitty_flags == 5
    assert not place.write("\x1b[?1049l").look().fullscreen


def test_modes_set_long_ago_and_then_reset(place: Place) -> None:
    """The last word about a mode counts."""
    place.write(NOISE).write("\x1b[?2004h\x1b[?25l\x1b[?2004l").write(NOISE)
    screen = place.look()
    assert screen.cursor is None
    assert not place.rendering.bracketed_paste


def test_a_look_after_a_flood_skips_most_of_it(place: Place) -> None:
    """Where much was written since, the replay starts over, and what was known of modes stays."""
    place.write("\x1b[?2004h\x1b]2;title\x07\x1b[1;1Htop").look()
    place.write(NOISE).write(NOISE)
    screen = place.look()
    assert (screen.text, screen.title, screen.exact) == ("\n\nnoise", "title", False)
    assert place.rendering.bracketed_paste
    assert place.rendering.offset == place.path.stat().st_size


def test_a_log_whose_head_was_freed(place: Place) -> None:
    """A first look at a log without its beginning says that something may be missing."""
    place.write("\x1b[1;1Htop\r\n" + "x" * 100 + "\r\nlast\r\n").free(60)
    screen = place.look()
    assert "top" not in screen.text
    assert "last" in screen.text
    assert not screen.exact
    assert "freed" in screen.note
    assert place.write("\x1b[2J\x1b[Hnew").look().exact


def test_a_head_freed_between_two_looks(place: Place) -> None:
    """Bytes that went before they were seen make the picture unknown, not wrong."""
    place.write("\x1b[?2004hfirst\r\n").look()
    place.write("lost\r\n" * 20 + "kept\r\n").free(130)
    screen = place.look()
    assert not screen.exact
    assert "first" not in screen.text
    assert "kept" in screen.text
    assert place.rendering.bracketed_paste
    assert place.write("line\r\n" * 20).look().exact


def test_a_log_cleared_when_all_of_it_was_seen(place: Place) -> None:
    """Clearing a log takes nothing from the picture of somebody who saw it."""
    place.write("prompt$ ").look()
    place.free(8)
    screen = place.write("ls\r\n").look()
    assert (screen.text, screen.exact) == ("prompt$ ls", True)


def test_a_log_cleared_before_anybody_looked(place: Place) -> None:
    """Nothing is known of an empty log whose terminal was written to, not even its emptiness."""
    place.write("prompt$ ").free(8)
    screen = place.look()
    assert (screen.text, screen.exact) == ("", False)
    assert place.write("ls").look().text.strip() == "ls"


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_replay_does_not_begin_inside_a_sequence(place: Place, cut: int) -> None:
    """Wherever the head was cut, no part of a sequence is shown as text."""
    data = b"\x1b[38;5;12mtext\x1b[0m\r\nnext\r\n"
    place.write(data).free(cut)
    assert set(place.look().text.split()) <= {"text", "next"}


# -- drawing it elsewhere ----------------------------------------------------------------------

STATES: dict[str, str | bytes] = {
    "pending wrap": "x" * 20,
    "pending wrap in colour": "\x1b[31mab\r\n" + "y" * 20,
    "pending wrap in a region": "\x1b[2;4r\x1b[?6h\x1b[2;1H" + "z" * 20,
    "pen": "\x1b[1;3;4:3;9;53;38;5;99;48;2;1;2;3;58;5;3m",
    "modes": "\x1b[?2004h\x1b[?1h\x1b=\x1b[?1003;1006h\x1b[?1004h\x1b[?25l\x1b[?7l\x1b[4h\x1b[20h",
    "kitty keyboard": "\x1b[>1u\x1b[>13u",
    "modify other keys": "\x1b[>4;2m",
    "title": "\x1b]2;a title; with ünïcode\x07",
    "region and origin": "\x1b[2;4r\x1b[?6h\x1b[2;7Hx",
    "margins": "\x1b[?69h\x1b[3;9s\x1b[2;5r\x1b[?6h\x1b[2;2Hx",
    "charset": "\x1b(0lqk",
    "shifted charset": "\x1b)0\x0elqk",
    "tab stops": "\x1b[3g\x1b[5G\x1bH\x1b[11G\x1bH\r",
    "protected": '\x1b[1"qprotected',
    "in an escape": "abc\x1b[38;5;1",
    "in a character": b"abc\xe6\x97",
    "in a title": "abc\x1b]2;half a ti",
    "alternate with region": "below\x1b[?1049h\x1b[31mtext\x1b[3;5r",
    **{f"cursor shape {number}": f"\x1b[{number} q" for number in range(7)},
}

# What a program may do next, in the light of the state it has.
NEXT = [
    b"\x1b[0mab\r\ncd",
    b"2mword\x07\r\n\ttab\xa5x" + b"y" * 30,
    b"tle\x07lqqk\x1b[2;3Hz\x1b[L",
    b"\n\n\n\n\nend\x1bMup",
]


@pytest.mark.parametrize("name", [*EVERYTHING, *STATES])
def test_a_redraw_brings_another_terminal_to_the_same_state(tmp_path: Path, name: str) -> None:
    """A fresh terminal shows the same after a redraw, and goes on in the same way."""
    data, size = EVERYTHING[name] if name in EVERYTHING else (as_bytes(STATES[name]), SIZE)
    place = Place(tmp_path)
    place.write(data).look([[0, *size]])
    drawn = place.rendering.redraw()
    place.close()
    assert state(terminal(drawn, size)) == state(terminal(data, size))
    for more in NEXT:
        assert state(terminal(drawn + more, size)) == state(terminal(data + more, size))


PIECES = st.sampled_from(
    [as_bytes(data) for data, _ in DRAWN.values()]
    + [as_bytes(data) for name, data in STATES.items() if name != "margins"]
    + [b"\r\n", b"text ", b"\x1b[m", b"\x1b[H", b"\x1b[2J", b"\x1b[3B", b"\x1b[?6l", b"\x1b[r"]
)


@given(pieces=st.lists(PIECES, max_size=12))
@settings(deadline=None, max_examples=150)
def test_a_redraw_of_anything(pieces: list[bytes]) -> None:
    """Whatever was written, a redraw shows the same screen, cursor, modes and pen.

    But for a wide character where line drawing is on: that is a blank of two columns then, which
    the text of its row does not tell from a narrow one.
    """
    written = b"".join(pieces)
    _, _, lines = re.sub(rb"\x1b\(0|\x0e", b"\0", written).partition(b"\0")
    assume(not any(east_asian_width(each) in "WF" for each in lines.decode("utf-8", "replace")))
    original = terminal(written)
    rows = original.styled(trim=False).split(b"\r\n")
    drawn = _screen._drawing(original, rows) + original.unfinished()
    assert state(terminal(drawn)) == state(original)


def test_a_redraw_shows_what_is_unknown_as_blank(place: Place) -> None:
    """The mark of unknown cells never leaves."""
    place.write(NOISE)
    screen = place.look(colours=True)
    drawn = place.rendering.redraw().decode()
    for text in (screen.text, screen.styled, drawn, place.rendering.cursor_line()):
        assert text is not None
        assert _screen._UNKNOWN not in text


# -- answering queries -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "reply"),
    [
        ("\x1b[c", r"\x1b\[\?62;22c"),
        ("\x1b[0c", r"\x1b\[\?62;22c"),
        ("\x1b[>c", r"\x1b\[>1;\d+;0c"),
        ("\x1b[=c", r"\x1bP!\|[0-9A-F]{8}\x1b\\"),
        ("\x1b[5n", r"\x1b\[0n"),
        ("ab\r\n\x1b[6n", r"\x1b\[2;1R"),
        ("ab\x1b[?6ncd\x1b[?6n", r"\x1b\[\?1;3;1R\x1b\[\?1;5;1R"),
        ("\x1b[?2004h\x1b[?2004$p\x1b[?2026$p", r"\x1b\[\?2004;1\$y\x1b\[\?2026;2\$y"),
        ("\x1b[?7777$p", r"\x1b\[\?7777;0\$y"),
        ("\x1b[>q", r"\x1bP>\|holdfast\x1b\\"),
        ("\x1b]4;1;?\x07", r"\x1b\]4;1;rgb:[\da-f/]{14}\x07"),
        ("\x1b]10;?\x1b\\", r"\x1b\]10;rgb:e5e5/e5e5/e5e5\x1b\\"),
        ("\x1b]11;?\x07", r"\x1b\]11;rgb:0000/0000/0000\x07"),
        ("\x1b]12;?\x07", r"\x1b\]12;rgb:e5e5/e5e5/e5e5\x07"),
        ("\x1b[?u\x1b[>5u\x1b[?u", r"\x1b\[\?0u\x1b\[\?5u"),
        ("\x1bP+q544e\x1b\\", r"\x1bP1\+r544E=787465726D2D323536636F6C6F72\x1b\\"),
        ("\x1bP+q436f\x1b\\", r"\x1bP1\+r436F=323536\x1b\\"),
        ("\x1b[31m\x1bP$qm\x1b\\", r"\x1bP1\$r0;31m\x1b\\"),
        ("\x1bP$qr\x1b\\", r"\x1bP1\$r1;6r\x1b\\"),
        ("\x1b[14t", r"\x1b\[4;96;160t"),
        ("\x1b[16t", r"\x1b\[6;16;8t"),
        ("\x1b[18t", r"\x1b\[8;6;20t"),
        ("\x1b[?996n", r"\x1b\[\?997;1n"),
        ("no query at all", ""),
        ("\x1b]52;c;?\x07", ""),
        ("\x1b[21t\x05", ""),
        ("\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\", ""),
    ],
)
def test_queries_are_answered_as_a_terminal_does(place: Place, query: str, reply: str) -> None:
    """Programs that ask their terminal before they start get an answer with nobody attached."""
    place.look()
    answer = place.rendering.answer(query.encode()).decode()
    assert re.fullmatch(reply, answer), repr(answer)
    assert place.rendering.offset == len(query.encode())


def test_queries_that_were_only_drawn_are_not_answered(place: Place) -> None:
    """Answers are given once, for the bytes that were given to be answered."""
    place.write("\x1b[6n").look()
    assert place.rendering.answer(b"x") == b""
    place.write("x\x1b[c").look()
    assert place.rendering.answer(b"\x1b[5") == b""
    assert place.rendering.answer(b"n") == b"\x1b[0n"


# -- the library it is drawn with --------------------------------------------------------------


def test_importing_holdfast_does_not_load_it() -> None:
    """The package, which takes a while to load, is not loaded before a screen is asked for."""
    code = "import sys, holdfast, holdfast.terminal.screen; print('pyghostty' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


def test_without_pyghostty_the_error_says_what_to_install(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing library is named with the command that brings it."""
    monkeypatch.delitem(sys.modules, "holdfast.terminal.ghostty")
    monkeypatch.setitem(sys.modules, "pyghostty", None)
    with pytest.raises(Unavailable, match="pip install pyghostty"):
        place.look()


# -- agreement with tmux -----------------------------------------------------------------------


class Tmux:
    """A tmux server with one pane, which can be made to show any bytes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pid = 0
        self._size = SIZE
        self("new-session", "-d", "-x", str(SIZE[0]), "-y", str(SIZE[1]), "exec cat")
        self.pid = int(self("display", "-p", "#{pid}"))
        self("set", "-g", "status", "off")

    def __call__(self, *arguments: str) -> str:
        environ = {name: value for name, value in os.environ.items() if name != "TMUX"}
        command = ["tmux", "-S", str(self.directory / "s"), "-f", "/dev/null", "-u", *arguments]
        result = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=True, timeout=30
        )
        return result.stdout

    def show(self, data: bytes, size: tuple[int, int]) -> tuple[str, tuple[int, int], bool]:
        """The text, the cursor, and whether it is the alternate screen."""
        if size != self._size:
            self("resize-window", "-x", str(size[0]), "-y", str(size[1]))
            self._size = size
        (self.directory / "data").write_bytes(data)
        done = self.directory / "done"
        done.unlink(missing_ok=True)
        # tmux answers the last query after it has taken all that stands before it.
        script = (
            "stty raw -echo; printf '\\033c'; cat data; printf '\\033[5n'; "
            'until [ "$(head -c 1)" = n ]; do :; done; : >done; exec cat >/dev/null'
        )
        self("respawn-pane", "-k", "-c", str(self.directory), script)
        wait_until(done.exists, timeout=20, what="tmux to have drawn it")
        told = self("display", "-p", "#{cursor_x} #{cursor_y} #{alternate_on}")
        column, row, alternate = map(int, told.split())
        text = _screen._tidy(self("capture-pane", "-p").split("\n"))
        return text, (min(column, size[0] - 1), row), bool(alternate)

    def end(self) -> None:
        self("kill-server")
        wait_until(lambda: not Path(f"/proc/{self.pid}").exists(), what="the tmux server to end")


@pytest.fixture(scope="module")
def tmux(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("tmux is not installed")
        pytest.skip("tmux is not installed")
    server = Tmux(tmp_path_factory.mktemp("tmux"))
    yield server
    server.end()


@pytest.mark.parametrize("name", [name for name in EVERYTHING if name not in NOT_TMUX])
def test_tmux_shows_the_same(tmux: Tmux, name: str) -> None:
    """The same bytes give the same text, cursor and screen in a pane of the same size."""
    data, size = EVERYTHING[name]
    ours = terminal(data, size)
    text = _screen._tidy(ours.plain().decode().split("\n"))
    assert (text, ours.cursor, ours.alternate) == tmux.show(data, size)
