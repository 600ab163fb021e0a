"""Terminal codes are taken out of text in one way, whoever does it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.completion_text import clean_text
from holdfast.core.terminal_codes import without_codes
from holdfast.output.log import Log
from holdfast.output.plain import clean_line, shown_line
from holdfast.output.prompt import prompt_of

ALONE = [*["a", "7", "m", "é", "[", "]", "31", ";", "P"], *"\\ \x1b\x9b\x9d\x90\x9c\x07\x00\x85"]
WHOLE = ["\x1b[31m", "\x1b[?25l", "\x1b]0;title\x07", "\x1bM", "\x1b(B", "\x1b\\"]
PIECES = st.lists(st.sampled_from([*ALONE, *WHOLE]), max_size=30)


def prompt(text: str, tmp_path: Path) -> str:
    path = tmp_path / "proc.log"
    path.write_bytes(text.encode())
    log = Log(str(path), str(path) + ".head")
    try:
        return prompt_of(log, "line", None)
    finally:
        log.close()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a\x1b[31", "a"),  # cut off in the middle of a colour
        ("a\x1b", "a"),
        ("\x9b31mred", "red"),  # C1 for ESC [
        ("\x9d0;title\x07text", "text"),  # C1 for ESC ]
        ("\x9d0;title\x9ctext", "text"),
        ("\x1b]0;title\x1b\\text", "text"),
        ("\x1b[1;31mred\x1b[0m and \x1b(Bplain", "red and plain"),
        ("\x90q#0\x1b\\picture", "picture"),
        ("bell\x07 and \x00nothing", "bell and nothing"),
    ],
)
def test_all_who_take_codes_out_agree(text: str, left: str, tmp_path: Path) -> None:
    """Completions, searches, views and prompts show the same text."""
    assert without_codes(text) == left
    assert clean_text(text.encode()) == left
    assert clean_line(text) == left
    assert prompt(text, tmp_path) == left


@given(PIECES)
def test_nothing_that_a_terminal_obeys_is_left(pieces: list[str]) -> None:
    text = "".join(pieces)
    left = without_codes(text)
    assert not any(ord(each) < 32 or 127 <= ord(each) < 160 for each in left)
    assert clean_text(text.encode()) == left
    assert clean_line(text) == left


@given(st.binary(max_size=200))
def test_any_bytes_are_made_plain(data: bytes) -> None:
    left = clean_text(data)
    assert not any(
        (ord(each) < 32 and each not in "\t\n") or 127 <= ord(each) < 160 for each in left
    )


def test_what_has_no_codes_is_left_as_it_is() -> None:
    """Tabs and ends of lines stay; so does every other character."""
    text = "a\tb\nc — ü 漢 [31m 0;title" + os.linesep
    assert without_codes(text) == text
    assert shown_line(b"plain") == "plain"
