"""Patterns from outside: what can be told of one without running it, and how it is run safely."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from ._errors import BadRequest, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LONGEST_PATTERN = 1000

_META = set(".^$*+?{}[]\\|()")
_PLAIN = re.compile(r"(?:[^.^$*+?{}\[\]\\|()]|\\[.^$*+?{}\[\]\\|()/\-:#\"'<>=!,;@%&~ ])+")
_ESCAPED = re.compile(r"\\(.)")

# Groups that change what is outside of them, or are not what they look like.
_UNUSUAL = re.compile(r"\(\?[^:=!<P]|\\[xuUNpPgkLo0-9]")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\[\]\\])*\]")
_BRACES = re.compile(r"\{[^{}]*\}")


def plain_text(pattern: str) -> str | None:
    """The one text that `pattern` matches, or None if it is more than a text."""
    return _ESCAPED.sub(r"\1", pattern) if _PLAIN.fullmatch(pattern) else None


def required_texts(pattern: str) -> list[str]:
    """Texts that are in everything `pattern` matches, as far as that is easily told.

    Only what stands outside of groups is looked at, and nothing where there are alternatives.
    """
    if _UNUSUAL.search(pattern):
        return []
    texts = [""]
    depth = at = 0
    while at < len(pattern):
        character = pattern[at]
        literal = ""
        width = 1
        if character == "\\":
            escaped = pattern[at + 1 : at + 2]
            literal = "" if escaped.isalnum() else escaped
            width = 2
        elif character in "[{":
            skipped = (_CLASS if character == "[" else _BRACES).match(pattern, at)
            if skipped is None:
                return []
            width = len(skipped[0])
        elif character == "|" and depth == 0:
            return []
        elif character not in _META:
            literal = character
        depth += {"(": 1, ")": -1}.get(character, 0)
        at += width
        following = pattern[at : at + 1]
        if depth == 0 and literal and following not in {"*", "?", "{"}:
            texts[-1] += literal
            if following == "+":
                texts.append("")
        else:
            texts.append("")
    return [text for text in texts if text]


@dataclass(slots=True)
class Needle:
    """The texts that a matching line has, as far as they are known, and the test that decides.

    Without a test it is the text: there is one then.
    """

    texts: list[bytes]
    fold: bool
    test: Callable[[str], int | None] | None = None
    text: str = ""

    def place(self, line: str) -> int | None:
        """Where in a line the match is."""
        if self.test is not None:
            return self.test(line)
        at = line.lower().find(self.text.lower()) if self.fold else line.find(self.text)
        return max(at, 0)


def needle_of(pattern: str, ignore_case: bool, literal: bool, deadline: float) -> Needle:
    if not pattern:
        raise BadRequest("an empty pattern matches every line; read the log instead")
    if len(pattern) > _LONGEST_PATTERN:
        raise BadRequest(
            f"a pattern has at most {_LONGEST_PATTERN} characters, this one has {len(pattern)}"
        )
    text = pattern if literal else plain_text(pattern)
    if text is not None and _findable(text, ignore_case):
        if "\n" in text:
            raise BadRequest("matching is line by line, so a text with a line end is never found")
        return Needle([_encoded(text, ignore_case)], ignore_case, text=text)
    if text is not None:
        pattern = re.escape(text)
    texts = [
        _encoded(text, ignore_case)
        for text in required_texts(pattern)
        if _findable(text, ignore_case)
        and "\n" not in text
        and not (ignore_case and _OTHER_CASES & set(text.lower()))
    ]
    compiled = _compiled(pattern, ignore_case)

    def test(line: str) -> int | None:
        left = max(deadline - time.monotonic(), 0.001)
        match = compiled.search(line, timeout=left, concurrent=True)
        return None if match is None else match.start()

    return Needle(texts, ignore_case, test=test)


# Letters that characters outside of ASCII are another case of: the Kelvin sign, the long s, the
# dotless i.
_OTHER_CASES = set("ksi")


def _findable(text: str, ignore_case: bool) -> bool:
    """True if a line has this text just when its bytes have those of the text."""
    return "\N{REPLACEMENT CHARACTER}" not in text and (text.isascii() or not ignore_case)


def _encoded(text: str, ignore_case: bool) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return data.lower() if ignore_case else data


def _compiled(pattern: str, ignore_case: bool) -> Any:
    try:
        import regex
    except ImportError as error:
        raise Unavailable("patterns need the package `regex`: pip install regex") from error
    try:
        return regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except regex.error as error:
        wrong: Any = error
        place = "" if wrong.pos is None else f" at character {wrong.pos + 1}"
        raise BadRequest(
            f"the pattern {pattern!r} is wrong{place}: {wrong.msg}; mend it, or search for it as a "
            "plain text with literal=True"
        ) from error
    except (RecursionError, OverflowError, MemoryError, ValueError) as error:
        raise BadRequest(f"the pattern is too much: {error}; use a simpler one") from error
