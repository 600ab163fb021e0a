"""A conversation's transcript, as evidence of what a wake has told.

A hook acknowledges what it has printed. Its agent may be killed just then, before the news is in
the conversation; whoever goes on with that knows by the file that Claude Code keeps of it.
"""

from __future__ import annotations

import html
import json
import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = 1000
_OUTPUT = re.compile(r"\n\nOutput \(last ")
_WAITS = "queue-operation"  # what is noted of messages that are not in the conversation yet


def untold(texts: dict[str, str], transcript: str | None) -> dict[str, str]:
    """Those of these texts, by event, that are in no message of the conversation."""
    left = {event: _plain(_OUTPUT.split(text)[0][:_HEAD]) for event, text in texts.items()}
    for said in _messages(transcript) if left else ():
        left = {event: head for event, head in left.items() if head not in said}
    return {event: texts[event] for event in left}


def _messages(transcript: str | None) -> Iterator[str]:
    try:
        with open(transcript or "", "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return
            for line in file:
                if b"Background " not in line:
                    continue
                try:
                    entry = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # it was killed while it wrote
                if isinstance(entry, dict) and entry.get("type") != _WAITS:
                    yield _plain("\n".join(_strings(entry)))
    except OSError:
        return


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _plain(text: str) -> str:
    """Words alone: on its way into a conversation a text is escaped in more than one way."""
    return " ".join(re.findall(r"\w+", html.unescape(text)))
