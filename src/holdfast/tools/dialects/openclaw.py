"""OpenClaw's tools: `exec` and `process`, as its release 2026.9.6 has them.

A model is shown text, in OpenClaw's words; the dictionary has what its `details` have. Options are
those of its `tools.exec`: `backgroundMs`, `timeoutSeconds`, `cleanupMs`. What a call says comes
first, then the options, then ``OPENCLAW_BASH_YIELD_MS`` and ``OPENCLAW_BASH_JOB_TTL_MS``.
``OPENCLAW_BASH_MAX_OUTPUT_CHARS`` is how much of the output an answer of `exec` or `log` shows.
These three have older names that begin with ``PI_``. For `poll` that is
``OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS``. ``OPENCLAW_PROCESS_INPUT_WAIT_IDLE_MS`` is for how long
it is silent when it may wait for input.

Not as there: stdin is open without `pty` too, so that `write` works. Whether a session waits for
input is asked of the kernel; silence counts only where that cannot tell. `kill` and `remove` return
when nothing is left of it. Ids are handles, and sessions outlive whoever started them. There is one
host, the sandbox if the toolset has one, and nobody to ask for approval, so `host`, `node`,
`elevated` and `ask` can change nothing.
"""

from __future__ import annotations

import os
import time

from ...core.completion_text import clean_text
from ...core.errors import BadDirectory, BadRequest, NotFound, NotRunning, Unsupported
from ...core.quote import as_name, one_line
from .._bash import (
    Characters,
    Foreground,
    from_environment,
    last_characters,
    last_output,
    logs_of,
    milliseconds,
)
from .._dialect import Dialect
from .._forged_notices import told_apart
from .._tool import Reply, Tool
from . import openclaw_words as words
from .openclaw_input import STDIN_CLOSED, typed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...client.client import Client
    from ...client.process import Process
    from ...core.errors import HoldfastError
    from ...core.record import Event, Record
    from ...output.log import Output
    from .._schema import Schema
    from .._tool import Call

    Details = dict[str, Any]

ACTIONS = (
    *("list", "poll", "log", "write", "send-keys", "submit", "paste"),
    *("kill", "clear", "remove"),
)
_READER = "openclaw"
_SIZE = "120x30"
_GRACE = 5.0
_TAIL = 2000
_LINES = 200
_LONGEST_POLL = 30.0
_RETRY = (5000, 10_000, 30_000, 60_000)
_PIECE = 1 << 20
_PENDING, _MOST_SHOWN = 30_000, 200_000  # characters
_FOLLOW_UP = f"Use process ({'/'.join(ACTIONS)}) for follow-up."
_DISCARDED = "[earlier output was discarded at the retention cap and cannot be recovered]\n\n"
_OMITTED = (
    "[earlier output is omitted from this poll; use action=log with offset and limit to inspect "
    "retained output]\n\n"
)

_EXEC: dict[str, Schema] = {
    "title": {"type": "string", "maxLength": 120, "description": "its purpose, in a few words"},
    "command": {"type": "string", "description": "a shell command line"},
    "workdir": {"type": "string", "description": "an existing directory; default: the agent's"},
    "env": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "variables to add to the environment, as they are",
    },
    "yieldMs": {
        "type": "number",
        "description": "wait this long for its end, then it goes on in the background; "
        "default 10000",
    },
    "background": {"type": "boolean", "description": "true: do not wait at all"},
    "timeoutSeconds": {
        "type": "number",
        "description": "stop it after this long, in the background too; default 1800, 0: never",
    },
    "pty": {"type": "boolean", "description": "in a terminal, for programs that need one"},
    "elevated": {"type": "boolean", "description": "not available here"},
    "host": {
        "type": "string",
        "enum": ["auto", "sandbox", "gateway", "node"],
        "description": "leave out: there is only this one",
    },
    "ask": {"type": "string", "description": "leave out: nobody can be asked"},
    "node": {"type": "string", "description": "leave out"},
}
_STRINGS: Schema = {"type": "array", "items": {"type": "string"}}
_PROCESS: dict[str, Schema] = {
    "action": {"type": "string", "enum": list(ACTIONS)},
    "sessionId": {"type": "string", "description": "all but list need it"},
    "data": {"type": "string", "description": "write: text, with its newlines"},
    "keys": {**_STRINGS, "description": "send-keys: names like Enter, C-c, Up"},
    "hex": {**_STRINGS, "description": "send-keys: bytes, like 1b"},
    "literal": {"type": "string", "description": "send-keys: text to type first"},
    "text": {"type": "string", "description": "paste: the text"},
    "bracketed": {"type": "boolean", "description": "paste: false for a plain one"},
    "eof": {"type": "boolean", "description": "write: end its input afterwards"},
    "offset": {"type": "number", "description": "log: first line, from 0"},
    "limit": {"type": "number", "description": f"log: lines; default: the last {_LINES}"},
    "timeout": {
        "type": "number",
        "minimum": 0,
        "description": "poll: wait so many milliseconds for output or the end, at most 30000",
    },
}


class OpenClaw(Dialect):
    name = "openclaw"
    instructions = (
        "Run commands with exec; one that takes longer than yieldMs goes on in the background "
        "under a sessionId, for process. Its end is told in `events` of a later result: do not "
        "sleep and poll."
    )

    def __init__(
        self,
        client: Client,
        *,
        backgroundMs: int | None = None,
        timeoutSeconds: float = 1800,
        cleanupMs: int | None = None,
    ) -> None:
        super().__init__(client)
        self._yield_ms = _checked("backgroundMs", backgroundMs)
        self._timeout = _checked("timeoutSeconds", timeoutSeconds)
        self._cleanup_ms = _checked("cleanupMs", cleanupMs)
        self._foreground = Foreground()
        self._characters = Characters()
        self._empty_polls: dict[str, int] = {}
        self._input_ended: set[str] = set()  # by us

    def tools(self) -> list[Tool]:
        return [
            Tool(
                "exec",
                "Run a shell command. If it ends within yieldMs you get its output; else, or with "
                "background, a sessionId, and it runs on: use process with that. You are told of "
                "its end in `events` of a later result, so do not sleep and poll. pty for "
                "interactive programs and other agents. Quote what the shell would take apart, "
                "such as URLs with ? or &.",
                self.exec,
                _EXEC,
                ("command",),
                title="Run a command",
                starts=True,
                also={"timeout": "timeoutSeconds"},  # up to 2026.7
            ),
            Tool(
                "process",
                "Look at or act on what exec left running. list; poll: new output and status, "
                "waiting up to timeout ms; log: output by lines; write: to stdin; send-keys, "
                "submit (Enter), paste: type; kill: stop it with everything it started; clear: "
                "forget a finished one; remove: stop and forget.",
                self.process,
                _PROCESS,
                ("action",),
                title="Look at and act on commands",
                destroys=True,
                handles=("sessionId",),
            ),
        ]

    def failure(self, error: HoldfastError, tool: str, arguments: dict[str, Any]) -> Details:
        text = one_line(str(error))
        return Reply({"status": "failed", "error": text}, text)

    def notice(self, event: Event) -> str:
        return words.notice(event) if event.type == "end" else event.text

    # -- exec ----------------------------------------------------------------------------------

    async def exec(
        self,
        call: Call,
        command: str,
        title: str = "",
        workdir: str = "",
        env: dict[str, str] | None = None,
        yieldMs: float | None = None,
        background: bool = False,
        timeoutSeconds: float | None = None,
        pty: bool = False,
        elevated: bool = False,
        host: str = "auto",
        ask: str = "off",
        node: str = "",
    ) -> Details:
        if not command.strip():
            raise BadRequest("Provide a command to start.")
        self._check_host(elevated, host, ask, node)
        timeout = self._timeout if timeoutSeconds is None else timeoutSeconds
        try:
            process = await self.spawn(
                command,
                cwd=workdir or None,
                env={"OPENCLAW_SHELL": "exec", **(env or {})},
                label=as_name(title),
                timeout=timeout if timeout and timeout > 0 else None,
                grace=_GRACE,
                tty=pty,
                size=_SIZE,
                stdin=True,
                retention=self._retention(),
            )
        except BadDirectory:
            if not workdir:
                raise  # it is the agent's own that is gone
            return words.bad_workdir(workdir)
        if background or not await self._foreground.ends(call, process, self._patience(yieldMs)):
            return await self._still_running(process)
        return await self._finished(process)

    def _check_host(self, elevated: bool, host: str, ask: str, node: str) -> None:
        confined = bool(self.confinement.words)
        if host == "sandbox" and not confined:
            raise BadRequest(
                "exec host=sandbox requires a sandbox runtime for this session. Leave host out to "
                "run it here."
            )
        if host == "gateway" and confined:
            raise BadRequest("commands run in a sandbox here; leave host out to run it there")
        if host == "node" or node:
            raise BadRequest("there are no nodes here; leave host and node out to run it here")
        if elevated:
            raise BadRequest("elevated is not available here; run it without")
        if ask not in ("", "off"):
            raise BadRequest("nobody can be asked for approval here; leave ask out to run it")

    def _patience(self, yield_ms: float | None) -> float:
        if yield_ms is None:
            yield_ms = self._yield_ms
        if yield_ms is None:
            yield_ms = from_environment("OPENCLAW_BASH_YIELD_MS", "PI_BASH_YIELD_MS")
        return min(max(10_000 if yield_ms is None else yield_ms, 10), 120_000) / 1000

    def _retention(self) -> float:
        ttl = self._cleanup_ms
        if ttl is None:
            ttl = from_environment("OPENCLAW_BASH_JOB_TTL_MS", "PI_BASH_JOB_TTL_MS")
        return min(max(1_800_000 if ttl is None else ttl, 60_000), 10_800_000) / 1000

    async def _still_running(self, process: Process) -> Details:
        record = process.record
        pid = "n/a" if record.pid is None else record.pid
        details = {
            "status": "running",
            "sessionId": record.handle,
            "pid": record.pid,
            "startedAt": milliseconds(record.started_at),
            "cwd": record.cwd,
            "tail": (await last_output(self.client, process, _TAIL))[0],
            "followUp": _FOLLOW_UP,
        }
        text = f"Command still running (session {record.handle}, pid {pid}). {_FOLLOW_UP}"
        return Reply(details, text)

    async def _finished(self, process: Process) -> Details:
        record = process.record
        output, more = await last_output(self.client, process, _shown())
        details: Details = {
            "status": "completed",
            **words.exit_details(record),
            "durationMs": words.runtime(record),
            "aggregated": output,
            "cwd": record.cwd,
        }
        shown = told_apart(output.strip())
        text = shown or "(no output)"
        kind, reason = words.failure(record)
        if kind:
            details.update(status="failed", failureKind=kind)
            text = f"{shown}\n\n{reason}" if shown else reason
        elif record.exit_code:
            text += f"\n\n(Command exited with code {record.exit_code})"
        if more:
            details["sessionId"] = record.handle
            text = (
                "[earlier output is omitted; use process action=log with sessionId "
                f"{record.handle}, offset and limit to inspect retained output]\n\n{text}"
            )
        return Reply(details, text)

    # -- process -------------------------------------------------------------------------------

    async def process(
        self, call: Call, action: str, sessionId: str = "", **arguments: Any
    ) -> Details:
        if action == "list":
            return await self._list()
        if not sessionId:
            raise BadRequest("sessionId is required for this action.")
        wanted = {"clear": "finished ", "poll": "", "log": "", "remove": ""}.get(action, "active ")
        missing = NotFound(f"No {wanted}session found for {one_line(words.cut(sessionId, 100))}")
        try:
            process = await self.find(sessionId)
            record = await process.refresh()
            if wanted and record.running != (wanted == "active "):
                raise missing
            if action == "poll":
                return await self._poll(call, process, arguments.get("timeout", 0))
            if action == "log":
                return await self._log(process, arguments.get("offset"), arguments.get("limit"))
            if action in ("kill", "clear", "remove"):
                return await self._end(process, action)
            return await self._type(process, action, arguments)
        except (NotFound, NotRunning):
            raise missing from None

    async def _list(self) -> Details:
        sessions = [
            await self._session(process)
            for process in reversed(self._foreground.others(await self.client.list()))
        ]
        text = "\n".join(map(words.listed, sessions)) or "No running or recent sessions."
        return Reply({"status": "completed", "sessions": sessions}, text)

    async def _session(self, process: Process) -> Details:
        record = process.record
        session = {
            "sessionId": record.handle,
            "status": words.status(record),
            "startedAt": milliseconds(record.started_at),
            "runtimeMs": words.runtime(record),
            "cwd": record.cwd,
            "command": record.command_text,
            "name": words.name(record.command_text),
            "tail": (await last_output(self.client, process, _TAIL))[0],
            "truncated": process.log("stdout").begin() > 0,
        }
        if record.running:
            return {**session, "pid": record.pid, **self._input(record)}
        ended = None if record.ended_at is None else milliseconds(record.ended_at)
        return {**session, "endedAt": ended, **words.exit_details(record)}

    def _input(self, record: Record) -> Details:
        """The state of its input, and of its silence."""
        started = milliseconds(record.started_at)
        last = max([started, *(int(at * 1000) for at in _times(record.log, record.err_log))])
        idle = max(0, int(time.time() * 1000) - last)
        waits = record.waiting_for_input
        if waits == "unknown":
            longest = from_environment(
                "OPENCLAW_PROCESS_INPUT_WAIT_IDLE_MS", least=1000, most=600_000
            )
            waits = idle >= (15_000 if longest is None else longest)
        return {
            "stdinWritable": record.stdin and record.handle not in self._input_ended,
            "waitingForInput": bool(waits),
            "idleMs": idle,
            "lastOutputAt": last,
        }

    # -- poll and log --------------------------------------------------------------------------

    async def _poll(self, call: Call, process: Process, timeout: float) -> Details:
        record = process.record  # from before the output: of an ended one there is all of it
        output, more, end = await self._new(process)
        if not output and record.running and timeout > 0:
            await self.until(
                call,
                [process],
                [{"output": r"[\s\S]", "since": end}],
                timeout=min(timeout / 1000, _LONGEST_POLL),
            )
            record = await process.refresh()
            output, more, end = await self._new(process)
        text = (_OMITTED if more else "") + (told_apart(output.strip()) or "(no new output)")
        details: Details = {
            "sessionId": record.handle,
            "name": words.name(record.command_text),
            "aggregated": (await last_output(self.client, process, _TAIL))[0],
        }
        if record.running:
            empty = 0 if output.strip() else self._empty_polls.get(record.handle, 0) + 1
            self._empty_polls[record.handle] = empty
            retry = _RETRY[min(max(empty - 1, 0), len(_RETRY) - 1)]
            details = {"status": "running", **details, **self._input(record), "retryInMs": retry}
            return Reply(
                details, text + (words.input_hint(details) or "\n\nProcess still running.")
            )
        self._empty_polls.pop(record.handle, None)
        await self.saw(record)
        details = {"status": words.seen_status(record), **details, **words.exit_details(record)}
        return Reply(details, f"{text}\n\n{words.end(record)}")

    async def _new(self, process: Process) -> tuple[str, bool, int]:
        """The output since the last poll, whether some is omitted, and where stdout ends."""
        most = from_environment(
            "OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS", least=1000, most=_MOST_SHOWN
        )
        most = min(_shown(), _PENDING if most is None else most)
        texts, more, ends = "", False, []
        for log, stream in zip(logs_of(process), process.record.streams, strict=True):
            size = log.size()
            output = await process.read(reader=_READER, limit=_PIECE, stream=stream)
            start = output.start
            while output.more and output.end < size:
                output = await process.read(reader=_READER, limit=_PIECE, stream=stream)
            text, cut = last_characters(log, most, start, output.end)
            texts, more = texts + text, more or cut
            ends.append(output.end)
        return texts, more, ends[0]

    async def _log(self, process: Process, first: float | None, count: float | None) -> Details:
        record, log = process.record, process.log("stdout")
        most = max(1, int(_LINES if count is None else count))

        def look() -> tuple[Output, int, int]:
            tally = log.tally()
            total = tally.lines + (tally.line_start < tally.offset)
            if first is None:
                found = log.tail_lines(most, _shown())
            else:
                line = max(0, int(first))
                found = log.lines(line, total if count is None else most, _shown())
            return found, total, self._characters.total(log, ended=not record.running)

        found, total, characters = await self.client.run_in_thread(look)
        output = clean_text(found.data).removesuffix("\n")
        text = told_apart(output) or (
            "(no output yet)" if record.running else "(no output recorded)"
        )
        if found.gone:
            text = _DISCARDED + text
        shown = found.data.count(b"\n") + (not found.data.endswith(b"\n"))
        if first is None and (count is None or found.cut) and shown < total:
            text += f"\n\n[showing last {shown} of {total} lines; pass offset/limit to page]"
        elif first is not None and found.cut:
            last = (found.first_line or 0) + shown - 1
            text += f"\n\n[showing lines {found.first_line} to {last} of {total}; "
            text += f"go on with offset {last + 1}]"
        details: Details = {
            "status": "running" if record.running else words.seen_status(record),
            "sessionId": record.handle,
            "name": words.name(record.command_text),
            "output": output,
            "total": total,
            "totalLines": total,
            "totalChars": characters,
            "truncated": log.begin() > 0,
        }
        details |= self._input(record) if record.running else words.exit_details(record)
        return Reply(details, text + words.input_hint(details))

    # -- input ---------------------------------------------------------------------------------

    async def _type(self, process: Process, action: str, given: dict[str, Any]) -> Details:
        record, handle = process.record, process.handle
        self.check_input(process)
        try:
            text = await typed(process, action, **given)
        except Unsupported:
            raise Unsupported(f"Session {handle} stdin is not writable.") from None
        if text.endswith(STDIN_CLOSED) and not record.capabilities.terminal:
            self._input_ended.add(handle)
        named = {"sessionId": handle, "name": words.name(record.command_text)}
        return Reply({"status": "running", **named}, text)

    # -- the end -------------------------------------------------------------------------------

    async def _end(self, process: Process, action: str) -> Details:
        handle, running = process.handle, process.record.running
        named = {"name": words.name(process.record.command_text)} if running else {}
        details: Details = {"status": "completed", **named}
        self._empty_polls.pop(handle, None)
        if action == "kill":
            receipt = await process.kill(grace=_GRACE)
            text = f"Termination requested for session {handle}."
            if receipt.survivors:
                details["survivors"] = receipt.survivors
                text += f" Still there: {', '.join(map(str, receipt.survivors))}."
            return Reply(details, text)
        await process.remove()
        if action == "clear":
            return Reply(details, f"Cleared session {handle}.")
        requested = " (termination requested)" if running else ""
        return Reply(details, f"Removed session {handle}{requested}.")


def _shown() -> int:
    """The most characters of output an answer has."""
    names = ("OPENCLAW_BASH_MAX_OUTPUT_CHARS", "PI_BASH_MAX_OUTPUT_CHARS")
    found = from_environment(*names, least=1000, most=_MOST_SHOWN)
    return _PENDING if found is None else found


def _times(*paths: str | None) -> list[float]:
    """The time these files were last written, those that are there."""
    found = []
    for path in paths:
        try:
            found.append(os.stat(path or "").st_mtime)
        except OSError:
            continue
    return found


def _checked(name: str, value: object) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
    if value is None or number:
        return value  # type: ignore[return-value]
    raise BadRequest(f"{name} is a number of at least 0, not {value!r}")
