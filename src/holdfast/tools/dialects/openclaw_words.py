"""OpenClaw's words for a command: names, durations, how it ended."""

from __future__ import annotations

import re

from ...core.completion_text import clean_tail
from ...core.quote import one_line
from .._tool import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...core.record import Event, Record

    Details = dict[str, Any]

_SIDE_EFFECTS = (
    "The command was terminated, but external side effects may already have completed. Verify the "
    "resulting state before retrying. Do not automatically rerun non-idempotent commands. Use a "
    "higher timeout only when the command is known to be safe to retry."
)
_KEEP_RUNNING = (
    "If it should keep running, start it with exec background=true or yieldMs so OpenClaw can "
    "register a pollable process session. Do not rely on shell backgrounding with a trailing &."
)
# What a shell exits with for a command that it could not start.
_NOT_STARTED = {
    126: ("shell-not-executable", "Command not executable (permission denied)"),
    127: ("shell-command-not-found", "Command not found"),
}
_TOKENS = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+|["']""")
_NOTICE_TAIL, _NOTICE_SHOWN = 400, 180


# -- how it ended ------------------------------------------------------------------------------


def status(record: Record) -> str:
    if record.running or record.status == "killed":
        return record.status
    return "completed" if _ended_by_itself(record) else "failed"


def seen_status(record: Record) -> str:
    """The same, but a stop that was asked for is no failure."""
    return "completed" if _stopped(record) else status(record).replace("killed", "failed")


def _ended_by_itself(ended: Record | Event) -> bool:
    """With any code but those that say that the shell could not start it."""
    return ended.reason == "exited" and ended.exit_code not in _NOT_STARTED


def _stopped(ended: Record | Event) -> bool:
    return ended.status == "killed" and ended.reason == "killed"


def exit_details(record: Record) -> Details:
    reasons = {"exited": "exit", "timeout": "overall-timeout", "killed": "manual-cancel"}
    return {
        "exitCode": record.exit_code,
        "exitSignal": record.signal,
        "exitReason": reasons.get(record.reason or "", "signal" if record.signal else None),
        "timedOut": record.status == "timed_out",
        "noOutputTimedOut": False,
    }


def failure(record: Record) -> tuple[str, str]:
    """The kind of a failure, and the words for it; a command's own exit code is none."""
    if record.status == "timed_out":
        after = f"Command timed out after {record.timeout:g} seconds."
        return "overall-timeout", f"{after}\n\n{_SIDE_EFFECTS}\n\n{_KEEP_RUNNING}"
    if record.reason == "exited":
        return _NOT_STARTED.get(record.exit_code or 0, ("", ""))
    if record.signal is not None:
        return "signal", f"Command aborted by signal {record.signal}"
    return "aborted", "Command aborted before exit code was captured"


def end(record: Record) -> str:
    how = _how(record)
    if _stopped(record):
        return f"Process stopped by request ({how})."
    text = f"Process exited with {how}."
    return f"{text}\n\n{_SIDE_EFFECTS}" if record.status == "timed_out" else text


def _how(ended: Record | Event) -> str:
    if ended.signal is not None:
        return f"signal {ended.signal}"
    return "unknown exit code" if ended.exit_code is None else f"code {ended.exit_code}"


def notice(event: Event) -> str:
    """The text of an end that nobody has seen yet."""
    verb = "completed" if _ended_by_itself(event) or _stopped(event) else "failed"
    text = f"Exec {verb} ({event.handle}, {_how(event)})"
    if tail := one_line(" ".join(clean_tail(event.tail, _NOTICE_TAIL).split())):
        text += f" :: {tail if len(tail) <= _NOTICE_SHOWN else tail[: _NOTICE_SHOWN - 1] + '…'}"
    return f"{text}\n\n{_SIDE_EFFECTS}" if event.status == "timed_out" else text


def bad_workdir(workdir: str) -> Details:
    text = (
        f'workdir "{one_line(workdir)}" is unavailable or not a directory: command was not '
        'executed. workdir is treated as a literal path; shell expansions such as "~" are not '
        "applied. Use an existing directory, omit an explicit workdir to use the default cwd, or "
        "update the configured default cwd."
    )
    details = {
        "status": "failed",
        "exitCode": None,
        "exitSignal": None,
        "failureKind": "runtime-error",
        "exitReason": None,
        "durationMs": 0,
        "aggregated": "",
        "timedOut": False,
        "noOutputTimedOut": False,
        "cwd": workdir,
    }
    return Reply(details, text)


# -- lists -------------------------------------------------------------------------------------


def listed(session: Details) -> str:
    """One line for people, and for models."""
    marks = " [overall-timeout]" if session.get("timedOut") else ""
    marks += " [input-wait]" if session.get("waitingForInput") else ""
    label = one_line(_middle(session["name"], 80) or _middle(session["command"], 120))
    took = duration(session["runtimeMs"])
    return f"{session['sessionId']} {session['status']:<9} {took}{marks} :: {label}"


def name(command: str) -> str:
    """The first word and what that is about: the first argument that is no option, if there is."""
    tokens = [_unquoted(token) for token in _TOKENS.findall(command)]
    if len(tokens) < 2:
        return tokens[0] if tokens else ""
    about = next((token for token in tokens[1:] if not token.startswith("-")), tokens[1])
    return f"{tokens[0]} {_middle(about, 48)}"


def _unquoted(token: str) -> str:
    return token[1:-1] if len(token) > 1 and token[0] == token[-1] and token[0] in "\"'" else token


def _middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def runtime(record: Record) -> int:
    return int((record.elapsed() or 0.0) * 1000)


def duration(milliseconds: int) -> str:
    """Two units without a space between them: ``850ms``, ``15s``, ``1m5s``, ``2h3m``."""
    if milliseconds <= 0:
        return "n/a"
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s"))
    return "".join([f"{number}{unit}" for number, unit in parts if number][:2])


def input_hint(details: Details) -> str:
    """The hint for a session that may wait for somebody to type; empty for any other."""
    if not details.get("waitingForInput"):
        return ""
    return (
        f"\n\nNo new output for {details['idleMs'] // 1000}s; this session may be waiting for "
        "input. Use process write, send-keys, submit, or paste to provide input."
    )
