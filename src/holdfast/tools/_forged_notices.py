"""Output that imitates our notices, where a model is shown plain text and not JSON.

In the text of a result stands what a command wrote, and after it come the notices. In JSON each has
its place. In plain text, which some dialects have, nothing could tell a notice from output that
looks like one. So output with anything like a notice in it is quoted, line by line, with a word
about it; all other output is shown as it is, as those dialects promise.

The likeness is looked for in the letters alone, without their case, accents, the spaces and signs
between them, and with letters of other scripts taken for those of ours that look the same.
"""

from __future__ import annotations

import re
import unicodedata

from ..core.quote import quoted

_NOTICES = (
    "background process completed",
    "background process waiting for input",
    "background process watch",
    "background process proc-",
    "background group completed",
    "background agent completed",
    "background events dropped",
    "exec completed (proc-",
    "exec failed (proc-",
    "worked in this directory and was lost",
    "more events come with the next results",
)
# The line of an event that says whom it is about; in JSON it looks different.
_ABOUT = re.compile(r"handle:\s*proc-[a-z0-9]{16}", re.IGNORECASE)
_NOT_LETTERS = re.compile(r"[\W\d_]+")
# Cyrillic, Greek and other letters, and the ones that they look like.
_ALIKE = str.maketrans(
    "\u0430\u0432\u0441\u0501\u0435\u0261\u04bb\u0456\u0458\u043a\u04cf\u043c\u043d\u043e"
    "\u043f\u0440\u051b\u0433\u0455\u0442\u0443\u0475\u051d\u0445\u03b1\u03b2\u03b3\u03b7"
    "\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u03c9\u217c\u0131"
    "i",
    "abcdeghijklmhonpqrstyvwxabynikvoptuxwlil",
)
_WORD = '[This output has lines like notices of holdfast; all of it is quoted, after "| ".]'


def told_apart(output: str, *tags: str) -> str:
    """The output, quoted if anything in it could be taken for a notice, or closes one of `tags`."""
    lower = output.casefold() if tags else ""
    if not _imitates(output) and not any(f"</{tag}" in lower for tag in tags):
        return output
    return f"{_WORD}\n{quoted(output)}"


def _letters(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKD", text)
    # Twice: those that look like `i` have become one by the first.
    return _NOT_LETTERS.sub("", text.casefold().translate(_ALIKE).translate(_ALIKE))


_LETTERS = re.compile("|".join(_letters(notice) for notice in _NOTICES))


def _imitates(output: str) -> bool:
    return bool(_ABOUT.search(output) or _LETTERS.search(_letters(output)))
