"""Results and errors as the wire has them."""

from __future__ import annotations

import json

from ..core.errors import HoldfastError
from ..tools import Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Answer = dict[str, Any]

# What 2026-07-28 wants in every result; the package leaves it out for older clients.
COMPLETE: Answer = {"resultType": "complete"}


def result_answer(result: Result) -> Answer:
    """A result as clients show it to models: once, and as its dialect writes it.

    Where there is a structure besides the text, Claude Code and Codex show that, and Gemini CLI
    shows both if it is an error. So there is one only where it says what the text says, and with
    no error.
    """
    found: Answer = {
        **COMPLETE,
        "content": [{"type": "text", "text": result.text}],
        "isError": result.is_error,
    }
    if not result.is_error and not result.in_words:
        found["structuredContent"] = dict(result)
    return found


def error_answer(text: str, code: str) -> Answer:
    """The result of a tool that failed."""
    return result_answer(Result({"error": text, "code": code}, error=HoldfastError(text)))


def encodable(data: Answer) -> Answer:
    """Replace halves of characters, which file names may have and no client could read."""
    text = json.dumps(data, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        found: Answer = json.loads(text.encode("utf-8", "replace"))
        return found
    return data


def readable(text: str) -> str:
    """Replace halves of characters."""
    return text.encode("utf-8", "replace").decode()


def in_words(error: Exception) -> str:
    if isinstance(error, HoldfastError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; `holdfast doctor` may know why"
    return f"unexpected {type(error).__name__}: {error}; please report this"
