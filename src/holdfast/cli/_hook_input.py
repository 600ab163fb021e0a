"""The JSON that Claude Code gives a hook: which call it was about, or which conversation."""

from __future__ import annotations

import json
import os
import re
import sys

_HANDLE = re.compile(r"proc-[a-z0-9]{16,64}")
# Where our tools, in their dialects, say which process they speak of; and what holds answers.
_NAMES = frozenset(
    {"handle", "handles", "id", "sessionId", "session_id", "process_id", "job_id", "members"}
    | {"bash_id", "shell_id", "task_id", "backgroundTaskId"}
)
_WITHIN = frozenset(("content", "structuredContent", "structured_content", "result", "processes"))
_MOST_INPUT = 16 << 20
_DEPTH = 8
_HEAD = 300
# In Claude Code's words: the result of a call that our server answered with a task.
_TASK = re.compile(r"started server-side task \S*?(proc-[a-z0-9]{16,64})")
_CONVERSATION = 200


def read_input() -> HookInput:
    text = os.fsdecode(sys.stdin.buffer.read(_MOST_INPUT)) if sys.stdin is not None else ""
    return HookInput(text)


class HookInput:
    """A conversation, and of a call the handles it was about and the events it showed.

    Handles are taken from where our tools put them, never from output: what a process prints may
    name anybody's. `printed` are those that were all a shell printed, as `holdfast run -d` does;
    `tasks` those that Claude Code asks after by itself.
    """

    def __init__(self, text: str) -> None:
        self.handles: list[str] = []
        self.printed: list[str] = []
        self.tasks: list[str] = []
        self.events: set[str] = set()
        self.conversation: str | None = None
        self.directory: str | None = None
        self.transcript: str | None = None
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(data, dict):
            self.conversation = _name(data.get("session_id"))
            self.directory = _path(data.get("cwd"))
            self.transcript = _path(data.get("transcript_path"))
            for key in ("tool_input", "tool_response"):
                self._look(data.get(key), 0)

    def _look(self, value: object, depth: int) -> None:
        if depth > _DEPTH:
            return
        if isinstance(value, list):
            for each in value:
                self._look(each, depth + 1)
        elif isinstance(value, dict):
            for key, each in value.items():
                if key in _NAMES:
                    self._take(each)
                elif key == "events" and isinstance(each, list):
                    self.events.update(str(e.get("id")) for e in each if isinstance(e, dict))
                elif key == "text" and isinstance(each, str):
                    self._look_at_text(each, depth)
                elif key in _WITHIN:
                    self._look(each, depth + 1)
                elif key == "stdout" and _HANDLE.fullmatch(str(each).strip()):
                    self.printed.append(str(each).strip())
        elif isinstance(value, str):
            self._look_at_text(value, depth)

    def _look_at_text(self, text: str, depth: int) -> None:
        """An answer: JSON, or the words of a dialect, which begin with whom they speak of."""
        try:
            self._look(json.loads(text), depth + 1)
        except (ValueError, RecursionError):
            self.handles += _HANDLE.findall(text[:_HEAD])
            self.tasks += _TASK.findall(text[:_HEAD])

    def _take(self, value: object) -> None:
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str) and _HANDLE.fullmatch(each):
                self.handles.append(each)


def _name(value: object) -> str | None:
    if isinstance(value, str) and 0 < len(value) <= _CONVERSATION and value.isprintable():
        return value
    return None


def _path(value: object) -> str | None:
    if isinstance(value, str) and os.path.isabs(value) and "\0" not in value:
        return value
    return None
