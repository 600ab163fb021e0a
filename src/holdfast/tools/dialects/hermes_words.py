"""Hermes's words for a process, and the notices by which a model is told of one."""

from __future__ import annotations

import os
import re

from ...core.completion_text import clean_tail
from ...core.quote import one_line, quoted
from ...core.record import duration_text, signal_name, signal_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...core.record import Event, Record

    Answer = dict[str, Any]

_MEANINGS = {
    **dict.fromkeys(
        [(name, 1) for name in ("grep", "egrep", "fgrep", "rg", "ag", "ack")],
        "No matches found (not an error)",
    ),
    ("diff", 1): "Files differ (expected, not an error)",
    ("test", 1): "Condition evaluated to false (expected, not an error)",
    ("[", 1): "Condition evaluated to false (expected, not an error)",
}
_SOURCES = {
    "killed": "process.kill",
    "timeout": "timeout",
    "lease_ended": "session_end",
    "log_limit": "output_limit",
    "lost": "backend_lost",
}


def status(record: Record) -> str:
    return "running" if record.running else "exited"


def uptime(record: Record) -> int:
    return int(record.elapsed() or 0)


def local(time: str) -> str:
    from datetime import datetime

    return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%dT%H:%M:%S")


def _code(record: Record | Event) -> int | None:
    """An exit code as Python has it: negative for a signal."""
    if record.signal is not None:
        number = signal_number(record.signal)
        return None if number is None else -number
    return record.exit_code


def ended(record: Record) -> Answer:
    if record.running:
        return {}
    reason = {"lost": "lost", "killed": "killed", "timed_out": "killed"}
    return {
        "exit_code": _code(record),
        "completion_reason": reason.get(record.status, "exited"),
        "termination_source": _SOURCES.get(record.reason or "", ""),
    }


def _how(event: Event) -> str:
    if event.status == "lost":
        return "marked lost because the process backend disappeared"
    code = _code(event)
    signal = "" if event.signal is None else f", {event.signal}"
    how = "completed normally" if event.status == "completed" else "exited"
    if event.status in ("killed", "timed_out"):
        how = f"terminated by {_SOURCES[event.reason or 'killed']}"
    return f"{how} (exit code {code}{signal})"


def waiting(record: Record) -> Answer:
    return {"waiting_for_input": record.waiting_for_input} if record.waiting_for_input else {}


def written(taken: int, asked: int) -> Answer:
    answer: Answer = {"status": "ok", "bytes_written": taken}
    if taken < asked:
        answer["note"] = "it did not read all of it; write the rest when it does"
    return answer


def meaning(command: str, code: int) -> str | None:
    """The meaning of a code that looks like a failure and is none, or comes from a signal."""
    last = re.split(r"\|\||&&|[|;\n]", command.strip())[-1].split()
    while last and re.match(r"\w+=", last[0]):
        last.pop(0)
    name = os.path.basename(last[0]) if last else ""
    if (name, code) in _MEANINGS:
        return _MEANINGS[name, code]
    if 128 < code < 193:
        number = code - 128
        return (
            f"Exit code {code} usually means the command was terminated by signal {number}: "
            f"{signal_name(number)}"
        )
    return None


def notice(event: Event) -> str:
    """The text of an event for a model."""
    kind = event.condition.partition("=")[0]
    if event.type == "end":
        head, body = f"[IMPORTANT: Background process {event.handle} {_how(event)}.", "Output"
    elif event.type == "watch" and kind == "output" and event.reason is None:
        match = one_line(event.match)
        head = f'[IMPORTANT: Background process {event.handle} matched watch pattern "{match}".'
        body = "Matched output"
    elif event.type == "watch" and kind == "every":
        head = (
            f"[Background process {event.handle} heartbeat #{event.nth} — still running after "
            f"{duration_text(event.duration_seconds)} (next in "
            f"{one_line(event.condition.removeprefix('every='))} when there is new output; you "
            "will also be told when it exits)."
        )
        body = "Output since last heartbeat"
    else:
        return event.text
    command = event.command if isinstance(event.command, str) else " ".join(event.command)
    text = event.line if body == "Matched output" else clean_tail(event.tail)
    notes = ""
    if event.missed:
        notes += f"\n({event.missed} earlier matches were suppressed by rate limit)"
    if event.last:
        notes += (
            f"\n(Watch patterns disabled: reached the lifetime cap of {event.most} delivered "
            "matches. You will be told when the process exits.)"
        )
    return f"{head}\nCommand: {one_line(command)}\n{body}:\n{quoted(text.rstrip())}{notes}]"
