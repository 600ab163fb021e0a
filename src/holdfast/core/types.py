"""Types of the public API that have no class of their own: for editors and type checkers.

The package imports them for annotations alone; callers find them in `holdfast`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

Duration: TypeAlias = float | str
"""A time: a number of seconds, or a text like "10ms", "90s", "5m" or "1h30m"."""

Size: TypeAlias = int | str
"""An amount of memory or disk: a number of bytes, or a text like "64KiB" or "2G"."""

Condition: TypeAlias = str | dict[str, Any]
"""Something to wait or watch for: a text like "port=3000", or a table like {"port": 3000}."""

Signal: TypeAlias = str | int
"""A signal by its name, like "TERM" or "SIGTERM", or by its number."""

Progress: TypeAlias = Callable[[float, str], Any]
"""Called while something lasts: with the seconds so far, and a line of text. May be async."""

ModeName: TypeAlias = Literal["pipe", "pty", "tmux"]
"""The mode of a process: what it is connected to."""

Stream: TypeAlias = Literal["stdout", "stderr"]
"""A log of a process; its stderr has one where it was asked to be apart."""

Status: TypeAlias = Literal["running", "completed", "failed", "killed", "timed_out", "lost"]
"""Where a process, or an agent, is in its life. All but the first are ends."""

Reason: TypeAlias = Literal[
    "exited", "signal", "killed", "timeout", "lease_ended", "log_limit", "out_of_memory", "lost"
]
"""The reason of a process's end."""

EndedBy: TypeAlias = Literal["itself", "caller", "keeper", "kernel", "outside", "unknown"]
"""The party that brought about the end of a process."""

EventType: TypeAlias = Literal["end", "input", "watch", "group", "agent", "gap"]
"""The kind of an event; see `Event`."""

Survives: TypeAlias = Literal["a half", "the keeper"]
"""The most that can be killed of a keeper without the process noticing; see `Capabilities`."""

DialectName: TypeAlias = Literal[
    "native", "duragent", "claude-code", "deepchat", "dodo", "codex", "openclaw", "hermes"
]
"""A published vocabulary of tools that a `Toolset` can have."""

Style: TypeAlias = Literal["anthropic", "openai", "mcp"]
"""The form in which tools are described to a model's API, or to an MCP client."""
