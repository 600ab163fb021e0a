"""Hermes Agent's tools: `terminal` and `process`.

Follows the release hermes-agent 0.19.0 (2026-07-20): names, arguments, defaults, result keys, error
texts, and the notices, which are the text of `events`. What its later source has is taken too, but
not shown: the tool name `process_manage`, and of `terminal` the arguments `notify`, `heartbeat` and
`persist_on_release`. From there are also an offset of 0 that means the first line, survivors in the
answer to a kill, and a timeout above the maximum that starts in the background.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from ...core.completion_text import clean_tail
from ...core.cursors import load_cursor, save_cursor
from ...core.errors import BadRequest, NotFound, NotRunning, SpawnError, Unsupported
from .._dialect import Dialect
from .._tool import Tool
from .hermes_words import ended, local, meaning, notice, status, uptime, waiting, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from ...client.client import Client
    from ...client.process import Process
    from ...core.errors import HoldfastError
    from ...core.record import Event
    from .._schema import Schema
    from .._tool import Call

    Answer = dict[str, Any]

_READER = "hermes"
_FOREGROUND = "foreground"  # the label of what was waited for, which is not listed afterwards
_OUTPUT = 50_000  # characters of output of a command, or of a log
_PREVIEW, _LISTED, _ENDED = 1000, 200, 2000  # of a poll, in a list, of what has ended
_LINES = 200
_GRACE = 2.0
_UNREAD = 64 << 10  # bytes at the end of much new output that are read to see where it stops
_COOLDOWN, _MOST = 15, 8  # seconds between two notices of one process's patterns, and how many
_HEARTBEAT, _HEARTBEATS = 60, 10_000

_TERMINAL: dict[str, Schema] = {
    "command": {"type": "string", "description": "A shell command line"},
    "background": {
        "type": "boolean",
        "description": "Return a session_id at once and go on; its end is told in `events` of a "
        "later result. Default false",
    },
    "timeout": {
        "type": "integer",
        "minimum": 1,
        "description": "Max seconds to wait (default: 180, foreground max: 600), then it is "
        "killed. Not for background",
    },
    "workdir": {
        "type": "string",
        "description": "Directory to run in. Defaults to the agent's; a cd is not carried over",
    },
    "pty": {
        "type": "boolean",
        "description": "With background: in a terminal, for interactive programs. Default false",
    },
    "notify_on_complete": {
        "type": "boolean",
        "description": "With background: be told of its end, as is always done",
    },
    "watch_patterns": {
        "type": "array",
        "items": {"type": "string"},
        "description": "With background: also be told of output lines that contain one of these "
        "texts; at most every 15 s, 8 times. For rare lines such as errors or readiness",
    },
    "notify": {
        "anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}],
        "hidden": True,
    },
    "heartbeat": {"type": "integer", "minimum": 0, "hidden": True},
    "persist_on_release": {"type": "boolean", "hidden": True},
}
_PROCESS: dict[str, Schema] = {
    "session_id": {
        "type": "string",
        "description": "From terminal with background; all actions but list need it",
    },
    "data": {"type": "string", "description": "write, submit: text for its stdin"},
    "timeout": {
        "type": "integer",
        "minimum": 1,
        "description": "wait: max seconds, default and most 180",
    },
    "offset": {
        "type": "integer",
        "description": f"log: first line, from 0; default: the last {_LINES} lines",
    },
    "limit": {"type": "integer", "minimum": 1, "description": f"log: lines, default {_LINES}"},
}


class Hermes(Dialect):
    """`timeout` is Hermes's TERMINAL_TIMEOUT, `max_foreground_timeout` the variable of that name.

    The end of what runs on is told, asked for or not: no process is a silent one.
    """

    name = "hermes"
    instructions = (
        "Run what may take long with terminal(background=true) and go on: its end is told in "
        "`events` of a later result. Do not sleep and poll."
    )

    def __init__(
        self,
        client: Client,
        *,
        timeout: int = 180,
        max_foreground_timeout: int = 600,
        max_running: int = 64,
    ) -> None:
        super().__init__(client)
        self._timeout = timeout
        self._longest = max_foreground_timeout
        self._max_running = max_running

    def tools(self) -> list[Tool]:
        about = (
            "Manage background processes started with terminal(background=true). Actions: 'list' "
            "(show all), 'poll' (check status + new output), 'log' (full output with pagination), "
            "'wait' (block until done or timeout), 'kill' (terminate, with everything it started), "
            "'write' (send raw stdin data without newline), 'submit' (send data + Enter, for "
            "answering prompts), 'close' (close stdin/send EOF)."
        )
        properties: dict[str, Schema] = {
            "action": {"type": "string", "enum": ["list", *self.actions()]},
            **_PROCESS,
        }
        process = Tool(
            "process",
            about,
            self.process,
            properties,
            ("action",),
            title="Manage background processes",
            destroys=True,
            handles=("session_id",),
        )
        return [
            Tool(
                "terminal",
                "Run a shell command and return its output and exit code. For servers and what "
                "takes more than a few minutes use background=true, then process to look at it.",
                self.terminal,
                _TERMINAL,
                ("command",),
                title="Run a command",
                starts=True,
                destroys=True,
            ),
            process,
            replace(process, name="process_manage", hidden=True),
        ]

    def failure(self, error: HoldfastError, tool: str, arguments: Answer) -> Answer:
        text = str(error)
        if isinstance(error, BadRequest):
            return {"error": text}
        if tool == "terminal":
            start = isinstance(error, SpawnError) and arguments.get("background")
            what = "start background process" if start else "execute command"
            failed = f"Failed to {what}: {text}"
            return {"output": "", "exit_code": -1, "error": failed, "status": "error"}
        if isinstance(error, NotFound):
            text = f"No process with ID {str(arguments.get('session_id'))[:80]}"
            return {"status": "not_found", "error": text}
        if isinstance(error, NotRunning):
            return {"status": "already_exited", "error": "Process has already finished"}
        if isinstance(error, Unsupported):
            text = "Process stdin not available (non-local backend or stdin closed)"
        return {"status": "error", "error": text}

    # -- terminal ------------------------------------------------------------------------------

    async def terminal(
        self,
        call: Call,
        command: str,
        background: bool = False,
        timeout: int | None = None,
        workdir: str = "",
        pty: bool = False,
        notify_on_complete: bool = False,
        watch_patterns: list[str] | None = None,
        notify: bool | list[str] | None = None,
        heartbeat: int = 0,
        persist_on_release: bool = False,
    ) -> Answer:
        if isinstance(notify, list):
            watch_patterns = notify
        elif notify is not None:
            notify_on_complete = notify
        patterns = [each for each in watch_patterns or [] if each]
        seconds = timeout or self._timeout
        promoted = not background and seconds > self._longest
        if not background and not promoted:
            wrong = {
                "pty": pty,
                "notify_on_complete": notify_on_complete,
                "watch_patterns": patterns,
                "heartbeat": heartbeat,
                "persist_on_release": persist_on_release,
            }
            if given := [name for name, value in wrong.items() if value]:
                raise BadRequest(
                    f"{' and '.join(given)} only for background commands (foreground results "
                    "return directly). Drop it, or retry as terminal(command=..., "
                    f"background=true, {given[0]}=...)."
                )
            return await self._run(call, command, workdir, seconds)
        interval = max(heartbeat, _HEARTBEAT) if heartbeat else 0
        process = await self.spawn(
            command,
            cwd=workdir or None,
            env=_environment(pty),
            tty=pty,
            size="120x30",
            stdin=True,
            timeout=None,
            keep=persist_on_release,
            watch=_watches(patterns, interval),
            max_running=self._max_running,
        )
        answer: Answer = {
            "output": "Background process started",
            "session_id": process.handle,
            "pid": process.record.pid,
            "exit_code": None,
            "error": None,
            "notify_on_complete": True,
        }
        if patterns:
            answer["watch_patterns"] = patterns
        if interval:
            answer["heartbeat_seconds"] = interval
        if persist_on_release:
            answer["persist_on_release"] = True
        if promoted:
            answer["promoted_from_foreground"] = (
                f"A timeout of {seconds}s is above the maximum of {self._longest}s in the "
                "foreground, so it was started in the background. Do not run it again: its end "
                "will be told, and process(action='poll') shows how it goes."
            )
        return answer

    async def _run(self, call: Call, command: str, workdir: str, seconds: int) -> Answer:
        process = await self.spawn(
            command,
            cwd=workdir or None,
            timeout=seconds,
            label=_FOREGROUND,
            max_running=self._max_running,
        )
        exit = await call.wait(process)
        view = await process.view(budget=_OUTPUT)
        output, record = view.text.strip(), process.record
        if exit is None:
            return {
                "output": output,
                "exit_code": None,
                "error": None,
                "status": "yielded_to_background",
                "session_id": process.handle,
                "pid": record.pid,
                "notify_on_complete": True,
                "note": "Still running: this call had to be answered before it ended, so it goes "
                f"on in the background, for at most {seconds}s in all. Do not run it again: its "
                "end will be told, and process(action='wait') waits for it.",
            }
        code = -1 if exit.shell_code is None else exit.shell_code
        if exit.reason == "timeout":
            code = 124
            output = f"{output}\n[Command timed out after {seconds}s]"
        answer: Answer = {"output": output, "exit_code": code, "error": None}
        if exit.status == "lost":
            answer["error"] = "Nobody can know how it ended: its keeper was killed."
        if not view.complete:
            answer["full_output_path"] = record.log
            answer["truncation_note"] = (
                "Where the output says so, something was left out. process(action='log', "
                f"session_id='{process.handle}', offset=0) has all of it."
            )
        if word := meaning(command, code):
            answer["exit_code_meaning"] = word
        return answer

    # -- process -------------------------------------------------------------------------------

    def actions(self) -> dict[str, Callable[..., Awaitable[Answer]]]:
        """The actions on one process."""
        return {
            "poll": self.poll,
            "log": self.log,
            "wait": self.wait,
            "kill": self.kill,
            "write": self.write,
            "submit": self.submit,
            "close": self.close,
        }

    async def process(
        self, call: Call, action: str, session_id: str = "", **arguments: Any
    ) -> Answer:
        if action == "list":
            return await self.list_all()
        if not session_id:
            raise BadRequest(f"session_id is required for {action}")
        return await self.actions()[action](call, await self.find(session_id), **arguments)

    async def list_all(self) -> Answer:
        known = [
            each
            for each in await self.client.list()
            if each.record.running or each.record.label != _FOREGROUND
        ]
        known.sort(key=lambda process: not process.record.running)
        return {"processes": [await self._listed(process) for process in known]}

    async def _listed(self, process: Process) -> Answer:
        record = process.record
        tail = await process.tail_bytes(5 * _LISTED)
        answer: Answer = {
            "session_id": record.handle,
            "command": record.command_text[:200],
            "cwd": record.cwd,
            "pid": record.pid,
            "started_at": local(record.started_at),
            "uptime_seconds": uptime(record),
            "status": status(record),
            "output_preview": clean_tail(tail.data, _LISTED),
        }
        if record.keep:
            answer["persist_on_release"] = True
        return {**answer, **ended(record), **waiting(record)}

    async def poll(self, call: Call, process: Process, **_: Any) -> Answer:
        record = await process.refresh()
        answer: Answer = {
            "session_id": record.handle,
            "command": record.command_text,
            "status": status(record),
            "pid": record.pid,
            "uptime_seconds": uptime(record),
            "output_preview": await self._unread(process),
        }
        await self.saw(record)
        await self.saw_prompt(record)
        return {**answer, **ended(record), **waiting(record)}

    async def _unread(self, process: Process) -> str:
        record = process.record
        cursor = (self.client.home, record.session, _READER, record.handle, "stdout")
        end = (await process.tail_bytes(0)).end
        start = load_cursor(*cursor)
        if end - start > _UNREAD:
            save_cursor(*cursor, end - _UNREAD)  # the view looks at what is before
        new = await process.read(reader=_READER, limit=2 * _UNREAD)
        return (await process.view(budget=_PREVIEW, start=start, end=max(start, new.end))).text

    async def log(
        self,
        call: Call,
        process: Process,
        offset: int | None = None,
        limit: int = _LINES,
        **_: Any,
    ) -> Answer:
        record = await process.refresh()
        lines = await process.lines(-limit if offset is None else offset, limit)
        last = await process.lines(-1, 1)
        view = await process.view(budget=_OUTPUT, start=lines.start, end=lines.end)
        if not lines.more:
            await self.saw(record)
        count = lines.data.count(b"\n") + (not lines.data.endswith(b"\n") and bool(lines.data))
        answer: Answer = {
            "session_id": record.handle,
            "command": record.command_text,
            "status": status(record),
            "output": view.text,
            "total_lines": (last.first_line or 0) + bool(last.data),
            "showing": f"{count} lines",
        }
        if lines.gone:
            answer["note"] = f"{lines.gone} lines before these were let go (the log is capped)"
        return answer

    async def wait(
        self, call: Call, process: Process, timeout: int | None = None, **_: Any
    ) -> Answer:
        seconds = min(timeout or self._timeout, self._timeout)
        clamped = ""
        if timeout is not None and timeout > seconds:
            clamped = f"Requested wait of {timeout}s was clamped to configured limit of {seconds}s"
        if await call.wait(process, seconds) is not None:
            answer = await self._end(process, "exited")
            return {**answer, "timeout_note": clamped} if clamped else answer
        record = await process.refresh()
        await self.saw_prompt(record)
        note = (
            f"Waited {call.elapsed:.0f}s, process still running. This is not an error: it goes on, "
            "and its end will be told; do something else meanwhile, or wait again."
        )
        return {
            "status": "timeout",
            "command": record.command_text,
            "output": await self.output(process, _PREVIEW),
            "timeout_note": f"{clamped}. {note}" if clamped else note,
            "process_running": record.running,
            **waiting(record),
        }

    async def _end(self, process: Process, status: str) -> Answer:
        return {
            "status": status,
            "command": process.record.command_text,
            **ended(process.record),
            "output": await self.output(process, _ENDED),
        }

    async def kill(self, call: Call, process: Process, **_: Any) -> Answer:
        receipt = await process.kill(grace=_GRACE)
        record = receipt.record
        if receipt.already_ended:
            return await self._end(process, "already_exited")
        if receipt.survivors:
            alive = ", ".join(map(str, receipt.survivors))
            return {
                "status": "error",
                "error": f"Kill incomplete: {len(receipt.survivors)} process(es) still alive "
                f"({alive}); session {status(record)}",
                "session_id": record.handle,
                "survivors": receipt.survivors,
                "process_running": record.running,
            }
        return {
            "status": "killed",
            "session_id": record.handle,
            "completion_reason": "killed",
            "termination_source": "process.kill",
            "output": await self.output(process, _ENDED),
        }

    async def write(self, call: Call, process: Process, data: str = "", **_: Any) -> Answer:
        self.check_input(process)
        raw = data.encode("utf-8", "surrogatepass")
        return written(await process.send(raw), len(raw))

    async def submit(self, call: Call, process: Process, data: str = "", **_: Any) -> Answer:
        self.check_input(process)
        size = len(data.encode("utf-8", "surrogatepass")) + 1
        return written(await process.send(data, enter=True), size)

    async def close(self, call: Call, process: Process, **_: Any) -> Answer:
        self.check_input(process)
        await process.send(b"", eof=True)
        pipe = not process.record.capabilities.terminal
        return {"status": "ok", "message": "stdin closed" if pipe else "EOF sent"}

    def notice(self, event: Event) -> str:
        return notice(event)


# -- what is asked for -------------------------------------------------------------------------


def _environment(pty: bool) -> dict[str, str]:
    env = {"PYTHONUNBUFFERED": "1"}
    if pty:
        env |= {name: os.environ.get(name, "cat") for name in ("PAGER", "GIT_PAGER")}
    return env


def _watches(patterns: list[str], interval: int) -> list[Answer]:
    watches: list[Answer] = []
    if patterns:
        # One watch for all of them: the limits are of the process.
        any_of = "|".join(map(re.escape, patterns))
        watches.append({"output": any_of, "cooldown": _COOLDOWN, "most": _MOST})
    if interval:
        watches.append({"every": interval, "most": _HEARTBEATS})
    return watches
