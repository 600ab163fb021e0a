"""Names of keys, and what a terminal sends for them.

Names are tmux's (``Enter``, ``C-c``, ``M-x``, ``S-Up``, ``PageDown``, ``F5``), with the spellings
that people use elsewhere (``Ctrl+C``, ``^C``, ``Alt-x``, ``Esc``, ``Backspace``). A single
character is itself.

The codes are xterm's. Some depend on what the program asked its terminal for: arrows differ in
application cursor mode, and with the kitty keyboard protocol Escape and everything with Ctrl or Alt
is told apart by codes of its own. What no terminal could send is refused, for the program would see
another key than was meant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..core.errors import BadRequest, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    class Modes(Protocol):
        @property
        def application_cursor(self) -> bool: ...
        @property
        def kitty_flags(self) -> int: ...


_SHIFT, _ALT, _CTRL = 1, 2, 4
_MODIFIERS = {
    "c": _CTRL,
    "ctrl": _CTRL,
    "control": _CTRL,
    "m": _ALT,
    "a": _ALT,
    "alt": _ALT,
    "meta": _ALT,
    "option": _ALT,
    "s": _SHIFT,
    "shift": _SHIFT,
}
_MODIFIER = re.compile(rf"({'|'.join(_MODIFIERS)})[-+](?=.)", re.IGNORECASE | re.DOTALL)
# Modifiers that are locks, which kitty reports as well and which change nothing.
_LOCKS = (0, 64, 128, 192)

# Keys with a character of their own, those with a letter (CSI A, in application mode SS3 A) and
# those with a number (CSI 5 ~).
_CHARACTERS = {"Enter": "\r", "Tab": "\t", "Escape": "\x1b", "Space": " ", "BSpace": "\x7f"}
_CURSOR = {"Up": "A", "Down": "B", "Right": "C", "Left": "D", "End": "F", "Home": "H"}
_FUNCTION = {"F1": "P", "F2": "Q", "F3": "R", "F4": "S"}
_NUMBERS = {"Insert": 2, "Delete": 3, "PageUp": 5, "PageDown": 6} | {
    f"F{n}": number for n, number in enumerate((15, 17, 18, 19, 20, 21, 23, 24), 5)
}
_ALIASES = {
    "Enter": "Return CR KPEnter",
    "Escape": "Esc",
    "BSpace": "Backspace BS",
    "Space": "SPC",
    "Delete": "DC Del",
    "Insert": "IC Ins",
    "PageUp": "PgUp PPage Prior",
    "PageDown": "PgDn PgDown NPage Next",
    **{name: f"Arrow{name}" for name in ("Up", "Down", "Left", "Right")},
}
_SHIFTED_F = {f"F{12 + n}": f"F{n}" for n in range(1, 9)}
NAMES = (*_CHARACTERS, "BTab", *_CURSOR, *_NUMBERS, *_FUNCTION, *_SHIFTED_F)
_BY_NAME = {
    alias.lower(): name for name in NAMES for alias in (name, *_ALIASES.get(name, "").split())
}
# Control characters that are not a letter's, by the keys that xterm has them on.
_CONTROLS = {c: chr(ord(c) & 0x1F) for c in "@[\\]^_"} | dict(
    zip(" 2345678/?", "\0\0\x1b\x1c\x1d\x1e\x1f\x7f\x1f\x7f", strict=True)
)


@dataclass(slots=True, frozen=True)
class Key:
    """One key with its modifiers: a character, or the name of a key that has none."""

    base: str
    modifiers: int
    shown: str

    @property
    def depends(self) -> bool:
        """True if what it sends depends on what the program asked for."""
        if self.base in _CURSOR:
            return not self.modifiers
        if len(self.base) == 1:
            return self.base == "\x1b" or bool(self.modifiers)
        return self.base == "F3" and bool(self.modifiers)

    def code(self, application_cursor: bool = False, kitty: bool = False) -> bytes:
        """The bytes a terminal sends for a key; BadRequest if there are none that would mean it."""
        modifier = f";{1 + self.modifiers}" if self.modifiers else ""
        if len(self.base) == 1:
            if kitty and self.depends:
                return f"\x1b[{ord(self.base)}{modifier}u".encode()
            return self._character()
        if self.base in _NUMBERS:
            return f"\x1b[{_NUMBERS[self.base]}{modifier}~".encode()
        if self.base == "F3" and modifier and kitty:
            return f"\x1b[13{modifier}~".encode()  # its other code is also an answer's
        letter = _CURSOR.get(self.base) or _FUNCTION[self.base]
        if modifier:
            return f"\x1b[1{modifier}{letter}".encode()
        introducer = "O" if application_cursor or self.base in _FUNCTION else "["
        return f"\x1b{introducer}{letter}".encode()

    def _character(self) -> bytes:
        character, shift, ctrl = self.base, self.modifiers & _SHIFT, self.modifiers & _CTRL
        if shift and ctrl:
            raise self._refusal()
        if shift and character == "\t":
            character = "\x1b[Z"
        elif shift and character.isalpha():
            character = character.upper()
        elif shift and character not in " \x7f\x1b":
            raise self._refusal()
        if ctrl:
            character = self._control()
        raw = character.encode("utf-8", "surrogateescape")
        return b"\x1b" + raw if self.modifiers & _ALT else raw

    def _control(self) -> str:
        if "a" <= self.base <= "z":
            return chr(ord(self.base) & 0x1F)
        if self.base == "\x7f":
            return "\b"
        if self.base not in _CONTROLS:
            raise self._refusal()
        return _CONTROLS[self.base]

    def _refusal(self) -> BadRequest:
        plain = next((name for name, c in _CHARACTERS.items() if c == self.base), self.base)
        return BadRequest(
            f"a terminal has no code for {self.shown!r}, and this program did not ask for a "
            f"keyboard that has; it would see {plain!r}, so send that if it will do"
        )

    def pattern(self) -> bytes:
        """A regular expression for all that a person's terminal may send when they press it."""
        ways = []
        for application in (False, True):
            try:
                ways.append(re.escape(self.code(application)))
            except BadRequest:
                break
        if len(self.base) == 1 and (self.modifiers or self.base == "\x1b"):
            number = ord(self.base)
            values = "|".join(str(1 + self.modifiers + lock) for lock in _LOCKS)
            kitty = rf"\x1b\[{number}(?::\d*)*;(?:{values})(?::[12]?)?(?:;[\d:]*)?u"
            other = rf"\x1b\[27;{1 + self.modifiers};{number}~"  # xterm's modifyOtherKeys
            ways += [kitty.encode(), other.encode()]
        return b"(?:" + b"|".join(dict.fromkeys(ways)) + b")"


def parse(name: str) -> Key:
    """The key of that name; BadRequest if there is none."""
    if not isinstance(name, str) or not name:
        raise BadRequest(f"a key is a name like Enter or C-c, not {name!r}")
    rest, modifiers = name, 0
    while match := _MODIFIER.match(rest):
        modifiers |= _MODIFIERS[match[1].lower()]
        rest = rest[match.end() :]
    if len(rest) == 2 and rest[0] == "^":
        modifiers |= _CTRL
        rest = rest[1]
    if len(rest) == 3 and rest[:2].lower() == "kp" and rest[2] in "0123456789/*-+.":
        rest = rest[2]
    if len(rest) == 1:
        return _character(rest, modifiers, name)
    known = _BY_NAME.get(rest.lower())
    if known is None:
        raise _no_key(name, rest)
    if known == "BTab":
        known, modifiers = "Tab", modifiers | _SHIFT
    elif known in _SHIFTED_F:
        if modifiers & _SHIFT:
            raise BadRequest(f"no terminal has {name!r}; the last function key is F20")
        known, modifiers = _SHIFTED_F[known], modifiers | _SHIFT
    return Key(_CHARACTERS.get(known, known), modifiers, name)


def _character(character: str, modifiers: int, name: str) -> Key:
    try:
        character.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadRequest(f"{name!r} is not a character") from None
    if character == "\n":
        character = "\r"
    lower, upper = character.lower(), character.upper()
    if modifiers and lower != upper and len(lower) == len(upper) == 1:
        if character == upper and not modifiers & _CTRL:  # but C-C is C-c, as everybody writes it
            modifiers |= _SHIFT
        character = lower
        if modifiers == _SHIFT:
            character, modifiers = upper, 0
    return Key(character, modifiers, name)


def _no_key(name: str, rest: str) -> BadRequest:
    import difflib

    near = [_BY_NAME[found] for found in difflib.get_close_matches(rest.lower(), _BY_NAME, 3)]
    start = name[: len(name) - len(rest)]
    hint = " or ".join(dict.fromkeys(start + found for found in near))
    shown = name if len(name) <= 40 else name[:37] + "..."
    return BadRequest(
        f"there is no key {shown!r}"
        + (f", perhaps {hint}" if hint else "; keys are like Enter, C-c, M-x, Up, F5, PageDown")
        + "; longer text is for send"
    )


def encode(names: Sequence[str], modes: Callable[[], Modes]) -> bytes:
    """The bytes a terminal sends when these keys are pressed, one after the other.

    `modes` is asked once, and only if a key depends on it. BadRequest before anything is sent.
    """
    if isinstance(names, str):
        raise BadRequest("keys are given one by one, as in keys('C-c', 'Up', 'Enter')")
    keys = [parse(name) for name in names]
    application, kitty = False, False
    if any(key.depends for key in keys):
        try:
            asked = modes()
            application, kitty = asked.application_cursor, bool(asked.kitty_flags & 0b1001)
        except Unavailable:
            pass  # nothing here can tell; what nearly every program understands will have to do
    return b"".join(key.code(application, kitty) for key in keys)
