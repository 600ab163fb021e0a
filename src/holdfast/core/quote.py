"""Quoting: words of others inside ours, told apart whatever they say.

A process may print anything, our own notices too. So each line of output that we quote begins with
a mark, and no output can have a line without it. What has one line to be on (a label, a command, a
prompt) stays on it: its control characters are shown escaped. Neither needs to be taken back; what
is exact is in the log and in the fields of records and events.
"""

from __future__ import annotations

import re

from .errors import BadRequest

MARK = "| "
# In brackets of a pattern: what turns the direction of writing; and all control characters, with
# C0, DEL, C1 and the separators of lines and paragraphs.
DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROLS = f"\\x00-\\x1f\\x7f-\\x9f\u2028\u2029{DIRECTIONS}"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_WORDS = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escaped(character: str) -> str:
    """Escape as in a string of Python's: ``\\n``, ``\\x1b``, ``\\u2028``."""
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        number -= 0xDC00  # a byte that was not UTF-8
    if character in _WORDS:
        return _WORDS[character]
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def one_line(text: str) -> str:
    """The same on one line, with its control characters escaped."""
    return _CONTROL.sub(lambda found: escaped(found[0]), text)


def quoted(text: str) -> str:
    """Output inside a text of ours: each of its lines begins with the mark."""
    lines = [MARK + _line(line) if line else MARK.rstrip() for line in text.splitlines()]
    return "\n".join(lines) + ("\n" if text.endswith("\n") else "")


def _line(line: str) -> str:
    return "\t".join(map(one_line, line.split("\t")))


def legible(text: str) -> str:
    """The same lines, with all other control characters escaped."""
    return "\n".join(map(_line, text.split("\n")))


def inside(tag: str, text: str) -> str:
    """The same without an end of a tag that others will put it in."""
    return re.sub(f"<(?=\\s*/\\s*{tag})", r"<\\", text, flags=re.IGNORECASE)


def json_line(text: str) -> str:
    """JSON on one line, whatever ends lines elsewhere: what is beyond ASCII there escaped too."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def check_name(what: str, text: str) -> None:
    """BadRequest for a name that would not stay on its line, or show in another order."""
    found = _CONTROL.search(text)
    if found is not None:
        raise BadRequest(
            f"a {what} takes no control characters, and this one has {escaped(found[0])}; leave "
            "them out"
        )


def as_name(text: str) -> str:
    """Anything as a name: what is between words a space, other control characters escaped."""
    return one_line(" ".join(text.split()))
