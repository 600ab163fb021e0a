"""Names of keys become what a terminal sends for them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from holdfast import BadRequest
from holdfast.core.errors import Unavailable
from holdfast.terminal.keys import NAMES, encode, parse


@dataclass
class Asked:
    """What a program asked its terminal for."""

    application_cursor: bool = False
    kitty_flags: int = 0


def never() -> Asked:
    raise AssertionError("these keys are the same for every program")


def code(*names: str, asked: Asked | None = None) -> bytes:
    return encode(names, lambda: asked or Asked())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Enter", b"\r"),
        ("Tab", b"\t"),
        ("BTab", b"\x1b[Z"),
        ("S-Tab", b"\x1b[Z"),
        ("Escape", b"\x1b"),
        ("Space", b" "),
        ("BSpace", b"\x7f"),
        ("Delete", b"\x1b[3~"),
        ("Insert", b"\x1b[2~"),
        ("Up", b"\x1b[A"),
        ("Down", b"\x1b[B"),
        ("Right", b"\x1b[C"),
        ("Left", b"\x1b[D"),
        ("Home", b"\x1b[H"),
        ("End", b"\x1b[F"),
        ("PageUp", b"\x1b[5~"),
        ("PageDown", b"\x1b[6~"),
        ("F1", b"\x1bOP"),
        ("F4", b"\x1bOS"),
        ("F5", b"\x1b[15~"),
        ("F6", b"\x1b[17~"),
        ("F10", b"\x1b[21~"),
        ("F11", b"\x1b[23~"),
        ("F12", b"\x1b[24~"),
        ("F13", b"\x1b[1;2P"),
        ("F17", b"\x1b[15;2~"),
        ("F20", b"\x1b[19;2~"),
        ("C-c", b"\x03"),
        ("C-C", b"\x03"),
        ("C-@", b"\0"),
        ("C-Space", b"\0"),
        ("C-[", b"\x1b"),
        ("C-\\", b"\x1c"),
        ("C-]", b"\x1d"),
        ("C-^", b"\x1e"),
        ("C-_", b"\x1f"),
        ("C-/", b"\x1f"),
        ("C-?", b"\x7f"),
        ("C-BSpace", b"\b"),
        ("M-x", b"\x1bx"),
        ("M-X", b"\x1bX"),
        ("M-S-x", b"\x1bX"),
        ("M-Enter", b"\x1b\r"),
        ("M-BSpace", b"\x1b\x7f"),
        ("C-M-x", b"\x1b\x18"),
        ("M-C-x", b"\x1b\x18"),
        ("M-é", "\x1bé".encode()),
        ("S-a", b"A"),
        ("S-Space", b" "),
        ("S-Up", b"\x1b[1;2A"),
        ("M-Up", b"\x1b[1;3A"),
        ("C-Left", b"\x1b[1;5D"),
        ("C-S-Left", b"\x1b[1;6D"),
        ("C-M-S-End", b"\x1b[1;8F"),
        ("C-PageUp", b"\x1b[5;5~"),
        ("C-Delete", b"\x1b[3;5~"),
        ("C-F1", b"\x1b[1;5P"),
        ("S-F3", b"\x1b[1;2R"),
        ("M-F5", b"\x1b[15;3~"),
        ("KPEnter", b"\r"),
        ("KP7", b"7"),
    ],
)
def test_a_key_is_what_xterm_sends_for_it(name: str, expected: bytes) -> None:
    """Every key of tmux's list, alone and with modifiers."""
    assert code(name) == expected


@pytest.mark.parametrize(
    ("spellings", "same"),
    [
        ("Return CR enter ENTER", "Enter"),
        ("Esc esc ^[", "Escape"),
        ("Backspace bs BS", "BSpace"),
        ("DC Del delete", "Delete"),
        ("IC Ins", "Insert"),
        ("PgUp PPage pageup Prior", "PageUp"),
        ("PgDn NPage PgDown Next", "PageDown"),
        ("ArrowUp up UP", "Up"),
        ("Shift+Tab shift-tab BTAB", "S-Tab"),
        ("^C ^c Ctrl+C ctrl-c Control+c CTRL-C c-c", "C-c"),
        ("Alt+x alt-x Meta-x A-x Option+x m-x", "M-x"),
        ("Ctrl+Alt+x C-Alt+x ctrl-meta-x M-^x", "C-M-x"),
        ("Ctrl+Left ctrl-left C-ArrowLeft", "C-Left"),
    ],
)
def test_the_spellings_people_use_mean_the_same(spellings: str, same: str) -> None:
    """Names of other programs and any case will do."""
    for spelling in spellings.split():
        assert code(spelling) == code(same), spelling


def test_a_single_character_is_itself() -> None:
    """Whatever it is: a letter of either case, a sign that modifiers use, one of several bytes."""
    for character in "aZ0 -+^~é漢🦀\x03":
        assert encode([character], never) == character.encode()
    assert encode(["\n"], never) == b"\r"
    assert code("C--", asked=Asked(kitty_flags=1)) == b"\x1b[45;5u"
    assert code("M--") == b"\x1b-"
    assert code("M-+") == b"\x1b+"
    assert code("^") == b"^"


def test_keys_are_sent_in_their_order() -> None:
    """Several names are several keys, one after the other."""
    assert code("C-c", "Up", "Enter", "q") == b"\x03\x1b[A\rq"
    assert code() == b""


def test_arrows_follow_the_programs_cursor_mode() -> None:
    """A program that asked for application cursor keys gets them; modifiers look the same."""
    asked = Asked(application_cursor=True)
    assert code("Up", "Home", asked=asked) == b"\x1bOA\x1bOH"
    assert code("C-Up", "PageUp", "F1", asked=asked) == b"\x1b[1;5A\x1b[5~\x1bOP"


def test_a_program_with_the_kitty_keyboard_gets_its_codes() -> None:
    """Escape, and whatever has Ctrl or Alt, is told apart; plain typing stays as it is."""
    asked = Asked(kitty_flags=1)
    assert code("Escape", "C-c", "M-x", "M-X", asked=asked) == (
        b"\x1b[27u\x1b[99;5u\x1b[120;3u\x1b[120;4u"
    )
    assert code("S-Enter", "C-Tab", "S-Tab", "C-Space", "C-1", asked=asked) == (
        b"\x1b[13;2u\x1b[9;5u\x1b[9;2u\x1b[32;5u\x1b[49;5u"
    )
    assert code("C-S-a", "S-F3", asked=asked) == b"\x1b[97;6u\x1b[13;2~"
    assert code("Enter", "Tab", "BSpace", "a", "Up", "C-Up", asked=asked) == (
        b"\r\t\x7fa\x1b[A\x1b[1;5A"
    )


def test_the_program_is_only_asked_about_keys_that_depend_on_it() -> None:
    """Text, Enter and most others cost no look at the screen; the rest cost one."""
    names = ["Enter", "Tab", "BSpace", "Space", "a", "PageUp", "C-Left", "S-Up", "F1", "F5", "S-a"]
    assert encode(names, never).startswith(b"\r\t\x7f a")
    looks = []

    def look() -> Asked:
        looks.append(1)
        return Asked()

    assert encode(["Up", "C-c", "Escape", "Up"], look) == b"\x1b[A\x03\x1b\x1b[A"
    assert len(looks) == 1


def test_without_a_screen_keys_still_work() -> None:
    """Where nothing can draw screens, keys are what most programs understand."""

    def missing() -> Asked:
        raise Unavailable("no pyghostty")

    assert encode(["C-c", "Up"], missing) == b"\x03\x1b[A"


@pytest.mark.parametrize("name", ["S-Enter", "C-Enter", "C-Tab", "C-1", "C-S-a", "S-1", "C-é"])
def test_what_a_terminal_cannot_say_is_refused(name: str) -> None:
    """Better no key than another one than was meant: S-Enter must not submit."""
    with pytest.raises(BadRequest, match=re.escape(name)):
        code(name)


def test_an_unknown_key_is_refused_with_the_nearest_names() -> None:
    """The error names the key, what may have been meant, and how to send text."""
    with pytest.raises(BadRequest, match=r"no key 'Entr', perhaps Enter.*send"):
        encode(["a", "Entr"], never)
    with pytest.raises(BadRequest, match=r"no key 'C-Lefft', perhaps C-Left"):
        code("C-Lefft")
    with pytest.raises(
        BadRequest, match=r"no key 'ls -l'; keys are like .*; longer text is for send"
    ):
        code("ls -l")
    for nothing in ("", "C-", "Ctrl+", "M-S-", "F21", "S-F13", "\ud800"):
        with pytest.raises(BadRequest):
            code(nothing)
    with pytest.raises(BadRequest, match="one by one"):
        encode("abc", never)


def test_every_name_has_a_code_and_completes_itself() -> None:
    """The list of names is the list of keys there are."""
    codes = [code(name) for name in NAMES]
    assert all(codes)
    assert len(set(codes)) == len(NAMES)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("C-]", b"\x1d"),
        ("C-]", b"\x1b[93;5u"),
        ("C-]", b"\x1b[93;133u"),
        ("C-]", b"\x1b[93:125;5:1u"),
        ("C-]", b"\x1b[27;5;93~"),
        ("Escape", b"\x1b[27;1u"),
        ("Up", b"\x1bOA"),
        ("Up", b"\x1b[A"),
        ("F5", b"\x1b[15~"),
        ("q", b"q"),
        ("C-S-q", b"\x1b[113;6u"),
    ],
)
def test_a_key_is_recognised_however_a_terminal_sends_it(name: str, sent: bytes) -> None:
    """A person's terminal may be in any keyboard mode when they press the key that detaches."""
    assert re.fullmatch(parse(name).pattern(), sent)


def test_other_keys_are_not_taken_for_it() -> None:
    """A release, another modifier or another key is not the one."""
    pattern = parse("C-]").pattern()
    for sent in (b"]", b"\x1b[93;5:3u", b"\x1b[93;6u", b"\x1b[91;5u", b"\x1b[93u"):
        assert not re.fullmatch(pattern, sent)
