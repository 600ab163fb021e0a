"""Matchers for searches: what can be told of a pattern without running it, and how it is run."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from ..core.errors import BadRequest
from .pattern import compiled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LONGEST_PATTERN = 1000
_LINES_SECONDS = 0.25  # for many lines at once; one at a time then
_MOST_GROUPS = 100

_META = set(".^$*+?{}[]\\|()")
_PLAIN = re.compile(r"(?:[^.^$*+?{}\[\]\\|()]|\\[.^$*+?{}\[\]\\|()/\-:#\"'<>=!,;@%&~ ])+")
_ESCAPED = re.compile(r"\\(.)")

# Groups that change what is outside of them or are not what they look like, and escapes with more
# than one character.
_UNUSUAL = re.compile(r"\(\?[^:=!<P]|\(\*|\\[xuUNpPgkLo0-9]")
_GROUP = re.compile(r"\((?:\?:|\?P?<\w+>)?(?!\?)")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\[\]\\])*\]")
_BRACES = re.compile(r"\{[^{}]*\}")
# Flags that change nothing in a single line, and the one that is an option of ours.
_FLAGS = re.compile(r"\(\?[ims]+\)")

_REFERENCE = re.compile(r"\\[1-9]|\(\?P=")

# The parts of a pattern, as far as it is known what they are among other lines.
_PARTS = re.compile(
    r"(?P<escape>\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[pP]\{[^{}]*\}|[1-9](?!\d)|[^\W\d]|\W))"
    r"|(?P<set>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\[\]\\])*\])"
    r"|(?P<group>\((?:\?(?:-?i)?:|\?<?[=!]|\?>|\?P?<\w+>|\?P=\w+(?=\))|(?![?*])))"
    r"|(?P<count>\{(?:\d*,?\d*\}|(?![\seids\d])))"
    r"|(?P<other>[^\\\[({\n])"
)
_PLAIN_SET = re.compile(r"\[(?:\\[dwS.^$*+?{}\[\]|()/\-]|[^\x00-\x1f\[\]\\^])+\]")
_IN_A_LINE = {
    "s": r"[^\S\n]",
    "W": r"[^\w\n]",
    "D": r"[^\d\n]",
    "A": "^",
    "Z": "$",
    **{letter: f"\\{letter}" for letter in "dwSbt"},
}


def plain_text(pattern: str) -> str | None:
    """The one text that `pattern` matches, or None if it is more than a text."""
    return _ESCAPED.sub(r"\1", pattern) if _PLAIN.fullmatch(pattern) else None


def required_texts(pattern: str) -> list[str]:
    """Texts that are in everything `pattern` matches, as far as that is easily told."""
    if _UNUSUAL.search(pattern) or pattern.count("(") > _MOST_GROUPS:
        return []
    texts, end = _sequence(pattern, 0)
    return texts if end == len(pattern) else []


def _sequence(pattern: str, at: int) -> tuple[list[str], int]:
    """The texts of what begins at `at`, up to the end of the group it is in; none if it varies."""
    texts = [""]
    varies = False
    while at < len(pattern) and pattern[at] != ")":
        character, literal, width = pattern[at], "", 1
        inner: list[str] = []
        if character == "\\":
            escaped = pattern[at + 1 : at + 2]
            literal = "" if escaped.isalnum() else escaped
            width = 2
        elif character in "[{":
            skipped = (_CLASS if character == "[" else _BRACES).match(pattern, at)
            if skipped is None:
                return [], len(pattern)
            width = len(skipped[0])
        elif character == "(":
            group = _GROUP.match(pattern, at)
            inner, end = _sequence(pattern, at + (len(group[0]) if group else 1))
            inner = inner if group else []
            width = end + 1 - at
        elif character == "|":
            varies = True
        elif character not in _META:
            literal = character
        at += width
        following = pattern[at : at + 1]
        if following in {"*", "?", "{"}:
            literal, inner = "", []
        if literal:
            texts[-1] += literal
        else:
            texts += [*inner, ""]
        if following == "+":
            texts.append("")
    return [] if varies else [text for text in texts if text], at


def among_lines(pattern: str) -> str | None:
    """A pattern that does in a text of many lines (MULTILINE) what `pattern` does in each of them.

    No part of it matches a line end, so whatever it looks at is in one line, and that ends as a
    text does. None if there is something in the pattern of which this is not known.
    """
    parts = []
    at = 0
    while at < len(pattern):
        part = _PARTS.match(pattern, at)
        if part is None:
            return None
        at = part.end()
        found = part[0]
        if part["escape"]:
            letter = found[1]
            if letter in "pPxu":
                found = rf"(?:(?!\n){found})"
            elif letter.isalpha() or letter == "_":
                if letter not in _IN_A_LINE:
                    return None
                found = _IN_A_LINE[letter]
            elif letter == "\n":
                return None
        elif part["set"]:
            found = _set_in_a_line(found)
        parts.append(found)
    return "".join(parts)


def _set_in_a_line(found: str) -> str:
    if _PLAIN_SET.fullmatch(found):
        return found
    if found.startswith("[^"):
        guard = "\\" if found[2] in "]-" else ""  # which mean something else after another
        return rf"[^\n{guard}{found[2:]}"
    return rf"(?:(?!\n){found})"


class Lines:
    """Finds the lines that match among many, in a text in which each has its end.

    A match costs more than a short line, so where most lines match, those that follow upon each
    other are one. A reference to a group would then mean the line before.
    """

    __slots__ = ("_compiled", "_deadline", "_many", "_runs")

    def __init__(self, among: str, ignore_case: bool, deadline: float) -> None:
        self._compiled = compiled(rf"(?:{among}).*\n", ignore_case, lines=True)
        self._runs = None
        if _REFERENCE.search(among) is None:
            self._runs = compiled(rf"^(?:.*?(?:{among}).*\n)+", ignore_case, lines=True)
        self._deadline = deadline
        self._many = False

    def count(self, text: str) -> int:
        how = {"timeout": self._left(), "concurrent": True}
        count: int
        if self._many and self._runs is not None:
            runs = self._runs.finditer(text, **how)
            count = sum(text.count("\n", run.start(), run.end()) for run in runs)
        else:
            count = self._compiled.subn("", text, **how)[1]
        self._many = 4 * count > text.count("\n")
        return count

    def places(self, text: str) -> Iterator[int]:
        """The places in a text where lines match."""
        for match in self._compiled.finditer(text, timeout=self._left(), concurrent=True):
            yield match.start()

    def _left(self) -> float:
        return max(min(self._deadline - time.monotonic(), _LINES_SECONDS), 0.001)


@dataclass(slots=True)
class Matcher:
    """The texts that a matching line has, as far as they are known, and the test that decides.

    Without a test it is the text: there is one then. `lines` does the same for many at once.
    """

    texts: list[bytes]
    fold: bool
    test: Callable[[str], int | None] | None = None
    lines: Lines | None = None
    text: str = ""

    def place(self, line: str) -> int | None:
        """The place of the match in a line."""
        if self.test is not None:
            return self.test(line)
        at = line.lower().find(self.text.lower()) if self.fold else line.find(self.text)
        return max(at, 0)


def matcher_of(pattern: str, ignore_case: bool, literal: bool, deadline: float) -> Matcher:
    if not pattern:
        raise BadRequest("an empty pattern matches every line; read the log instead")
    if len(pattern) > _LONGEST_PATTERN:
        raise BadRequest(
            f"a pattern has at most {_LONGEST_PATTERN} characters, this one has {len(pattern)}"
        )
    given = pattern
    if not literal and (flags := _FLAGS.match(pattern)):
        pattern = pattern[flags.end() :]
        ignore_case = ignore_case or "i" in flags[0]
    text = pattern if literal else plain_text(pattern)
    if text is not None and _findable(text, ignore_case):
        if "\n" in text:
            raise BadRequest("matching is line by line, so a text with a line end is never found")
        return Matcher([_encoded(text, ignore_case)], ignore_case, text=text)
    if text is not None:
        pattern = re.escape(text)
    texts = [
        _encoded(text, ignore_case)
        for text in required_texts(pattern)
        if _findable(text, ignore_case)
        and "\n" not in text
        and not (ignore_case and _OTHER_CASES & set(text.lower()))
    ]
    try:
        expression = compiled(pattern if text is not None else given, ignore_case)
    except BadRequest as error:
        wrong = str(error)
        raise BadRequest(
            f"{wrong}, or search for it as a plain text (literal)", wrong=wrong
        ) from None

    def test(line: str) -> int | None:
        left = max(deadline - time.monotonic(), 0.001)
        match = expression.search(line, timeout=left, concurrent=True)
        return None if match is None else match.start()

    among = among_lines(pattern)
    lines = None
    if among is not None:
        lines = Lines(among, ignore_case, deadline)
    return Matcher(texts, ignore_case, test=test, lines=lines)


# Letters that characters outside of ASCII are another case of: the Kelvin sign, the long s, the
# dotless i.
_OTHER_CASES = set("ksi")


def _findable(text: str, ignore_case: bool) -> bool:
    """True if a line has this text just when its bytes have those of the text."""
    return "\N{REPLACEMENT CHARACTER}" not in text and (text.isascii() or not ignore_case)


def _encoded(text: str, ignore_case: bool) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return data.lower() if ignore_case else data
