"""The text that tells an agent that a process has ended, or what else there is to know of it.

What it quotes of output is marked line by line, and everything else from outside stays on its line:
see `core.quote`.
"""

from __future__ import annotations

import re

from .quote import one_line, quoted
from .record import duration_text
from .terminal_codes import without_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .record import Event, Member

# Of the events to be told, so many at a time: a model's context is not for floods.
MOST_EVENTS = 10
MOST_CHARACTERS = 20_000
TAIL_CHARACTERS = 2000
# Bytes of log kept in the outbox for the tail: 2000 characters of up to four bytes each.
TAIL_BYTES = 8192
_NAME = 60

# Where it is safe to begin in bytes that were cut: a line, or the beginning of another code.
_SAFE = re.compile(rb"(?<=\n)|(?=\x1b)")
_LONGEST_CODE = 40
_CONTINUATION = bytes(range(0x80, 0xC0))
_LINE_END = re.compile(r"\r+\n")
_WRITTEN_OVER = re.compile(r"[^\r\n]*\r(?=[^\r\n])")


def clean_text(data: bytes) -> str:
    """Decode output and take the terminal's codes out of it."""
    text = without_codes(data.decode("utf-8", "replace"))
    if "\r" in text:
        # What is written over, as progress bars are, is not there any more.
        text = _WRITTEN_OVER.sub("", _LINE_END.sub("\n", text)).replace("\r", "")
    return text


def clean_tail(data: bytes, characters: int = TAIL_CHARACTERS) -> str:
    """The last `characters` of cleaned output."""
    text = clean_text(data)
    if len(data) >= TAIL_BYTES and len(text) <= characters + _LONGEST_CODE:
        # The bytes were cut where they begin, perhaps inside a character or a code.
        safe = _SAFE.search(data, 0, 256)
        text = clean_text(data[safe.start() :] if safe else data.lstrip(_CONTINUATION))
    return text[-characters:]


def joined_tail(out: bytes, err: bytes) -> bytes:
    """The last of stdout, and after it of stderr; what room one leaves is the other's."""
    room = max(TAIL_BYTES // 2, TAIL_BYTES - len(out))
    if len(err) > room:
        err = err[-room:].lstrip(_CONTINUATION)  # begin with a whole character
    return out[len(err) - TAIL_BYTES :] + err


def exit_code_text(event: Event) -> str:
    if event.status == "lost":
        return "unknown (lost)"
    code = str(event.exit_code) if event.signal is None else f"signal {event.signal}"
    return f"{code} (out of memory)" if event.reason == "out_of_memory" else code


# Reasons that neither the status nor the exit code tells.
_WHY = {"lease_ended": "its session ended", "log_limit": "it wrote more than its log limit"}


def _status_text(event: Event) -> str:
    """``failed``; ``killed (its session ended)``."""
    why = _WHY.get(event.reason or "")
    return f"{event.status} ({why})" if why else str(event.status)


_SEEN = {"output": "Match", "quiet": "Quiet for", "port": "Port", "every": "New output"}


def _watch_facts(event: Event) -> str:
    kind = event.condition.partition("=")[0]
    label = "Given up" if event.reason == "given_up" else _SEEN.get(kind, "Seen")
    if event.stream and kind in ("output", "every"):
        label += f" in {event.stream}"
    watch, seen = one_line(event.condition), one_line(event.line)
    facts = f"Watch: {watch} ({event.nth} of {event.most})\n{label}: {seen}\n"
    if event.missed:
        facts += f"Held back: {event.missed} before it, by the cooldown\n"
    if event.last:
        facts += "Last: no more will be told of this watch, only the end\n"
    return facts


def _agent_text(event: Event) -> str:
    return (
        "[Background Agent Completed]\n"
        "\n"
        f"Agent: {one_line(event.agent)}\n"
        f"Type: {one_line(event.label) or '-'}\n"
        f"Status: {event.status}\n"
        f"Duration: {duration_text(event.duration_seconds)}\n"
        "\n"
        f"Output (last {TAIL_CHARACTERS} chars):\n"
        f"{quoted(clean_tail(event.tail))}"
    )


def _member_name(member: Member) -> str:
    """A label, or else the beginning of a command."""
    if member.label:
        return one_line(member.label)
    line = one_line(" ".join(_command_text(member.command).split()))
    return (line if len(line) <= _NAME else line[: _NAME - 1] + "…") or "-"


def _how(member: Member) -> str:
    """``failed, exit code 1``, ``killed (SIGTERM)``."""
    if member.signal is not None:
        return f"{member.status} ({member.signal})"
    if member.exit_code is None:
        return member.status
    return f"{member.status}, exit code {member.exit_code}"


def _command_text(command: str | list[str]) -> str:
    if isinstance(command, str):
        return command
    import shlex

    return shlex.join(command)


def _group_text(event: Event) -> str:
    """A line for each, then the output of those that did not complete: that is what is needed."""
    failed = [member for member in event.members if member.status != "completed"]
    statuses = [member.status for member in event.members]
    counts = ", ".join(
        f"{statuses.count(status)} {status}"
        for status in sorted(set(statuses), key=lambda status: (status != "completed", status))
    )
    facts = "".join(
        f"{member.handle} {_member_name(member)}: {_how(member)}, "
        f"{duration_text(member.duration_seconds)}\n"
        for member in event.members
    )
    text = (
        "[Background Group Completed]\n"
        "\n"
        f"Group: {one_line(event.group)}\n"
        f"Processes: {len(event.members)} ({counts})\n"
        f"Duration: {duration_text(event.duration_seconds)}\n"
        "\n"
        f"{facts}"
    )
    room = TAIL_CHARACTERS // max(1, len(failed))
    for member in failed:
        if tail := clean_tail(member.tail, room):
            text += f"\nOutput of {member.handle} (last {room} chars):\n{quoted(tail.rstrip())}\n"
    return text.rstrip("\n")


def completion_text(event: Event) -> str:
    if event.type == "gap":
        return (
            f"[Background Events Dropped]\n\n{event.dropped} older events of this session were "
            "dropped because nobody read them; list the processes to see where they stand."
        )
    if event.type == "group":
        return _group_text(event)
    if event.type == "agent":
        return _agent_text(event)
    if event.type == "input":
        title = "Background Process Waiting For Input"
        facts = f"Prompt: {one_line(event.prompt)}\nKind: {one_line(event.kind)}\n"
    elif event.type == "watch":
        title = "Background Process Watch"
        facts = _watch_facts(event)
    else:
        title = "Background Process Completed"
        facts = (
            f"Exit code: {exit_code_text(event)}\n"
            f"Duration: {duration_text(event.duration_seconds)}\n"
            f"Status: {_status_text(event)}\n"
        )
    return (
        f"[{title}]\n"
        "\n"
        f"Handle: {event.handle}\n"
        f"Label: {one_line(event.label) or '-'}\n"
        f"Command: {one_line(_command_text(event.command))}\n"
        f"{facts}"
        "\n"
        f"Output (last {TAIL_CHARACTERS} chars):\n"
        f"{quoted(clean_tail(event.tail))}"
    )


def as_many_as_fit(events: Iterable[Event], text_of: Callable[[Event], str]) -> dict[str, str]:
    """The texts, by their ids, of the first events: as many as are told at a time, at least one."""
    texts: dict[str, str] = {}
    room = MOST_CHARACTERS
    for event in events:
        text = text_of(event)
        room -= len(text)
        if texts and (room < 0 or len(texts) == MOST_EVENTS):
            break
        texts[event.id] = text
    return texts
