"""The time for which a call may block before its client gives up on it.

A wait that is longer ends before that and says so, and the model calls again. What clients allow is
from their documentation and public sources; those that are not known get the least.
"""

from __future__ import annotations

USUAL = 50.0  # most clients give up after a minute
# By the beginning of the name a client gives itself, in small letters. The longer ones count only
# for calls that ask for progress: a client that sees some does not take the server for dead.
_SHORT = {"opencode": 25.0}
# The Python package's client where its host gives it no other name. One such host, openai-agents,
# gives up after 5 s, without a word: what came later would be lost.
_UNNAMED = {"mcp": 4.0}
_LONG = {
    # It has no limit for stdio, but moves a call to the background after two minutes, and may then
    # lose its result.
    "claude-code": 100.0,
    "gemini-cli": 240.0,  # ten minutes
}


# Clients that show their model a task at once and wake it at the end. Others wait for the end of a
# task inside the call: to them a start in the background must not be one.
_WOKEN = ("claude-code",)


def wakes_its_model(client: str | None) -> bool:
    """True if a model goes on while a task of its lasts, and is woken when that ends."""
    return _named(client).startswith(_WOKEN)


def patience_of(client: str | None, progress: bool) -> float:
    """The seconds that a call of this client may take."""
    name = _named(client)
    if name in _UNNAMED:
        return _UNNAMED[name]
    for table in (_SHORT, _LONG if progress else {}):
        for prefix, seconds in table.items():
            if name.startswith(prefix):
                return seconds
    return USUAL


def _named(client: str | None) -> str:
    return (client or "").lower().replace(" ", "-")
