"""DeepChat's tools: `execute_command` and `process`, by its specification and plan.

Options are its configuration: `backgroundMs`, `timeoutSec`, `cleanupMs`, `maxOutputChars`. What a
call says comes first; then ``PI_BASH_YIELD_MS``, ``PI_BASH_MAX_OUTPUT_CHARS`` and
``PI_BASH_JOB_TTL_MS``; then ``OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS``; then the configuration.

Where its documents are silent: the answers are those of its source (``status: "ok"``, `sessions`,
`totalLength`, `outputFilePath`). A command that was waited for is answered with its output and
``Exit Code:`` as text. A session that ran out of time, or that somebody else stopped, is `killed`.
Offsets count the characters of what is kept of the log; terminal codes count, but are not shown.
All output is on disk from its first byte; "offloaded" is what has more than 10 KB of it, and is
better read from the file.
"""

from __future__ import annotations

from ...core.errors import BadRequest, NotFound, NotRunning, StoreError, Unsupported
from ...core.quote import as_name
from .._bash import Characters, Foreground, from_environment, last_output, milliseconds
from .._dialect import OUTPUT, Dialect
from .._forged_notices import told_apart
from .._tool import Reply, Tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...client.client import Client
    from ...client.process import Process
    from ...core.record import Record
    from ...output.log import Log
    from .._schema import Schema
    from .._tool import Call

    Answer = dict[str, Any]

_GRACE = 2.0
_OFFLOAD = 10_000  # bytes
_LIMIT = 1000  # characters that `log` gives unless it is told
_LARGEST_LIMIT = 100_000
_SHORTEST_YIELD = 100

_EXECUTE: dict[str, Schema] = {
    "command": {"type": "string", "minLength": 1, "description": "a shell command line"},
    "timeout": {
        "type": "number",
        "minimum": 100,
        "description": "stop it after so many milliseconds; default 30 minutes",
    },
    "description": {
        "type": "string",
        "minLength": 5,
        "maxLength": 100,
        "description": "what it does, in a few words",
    },
    "background": {
        "type": "boolean",
        "description": "true: return a sessionId at once; for what takes longer than 10 s",
    },
    "yieldMs": {
        "type": "number",
        "minimum": _SHORTEST_YIELD,
        "description": "wait this long for its end; then it goes on in the background",
    },
}
_PROCESS: dict[str, Schema] = {
    "action": {
        "type": "string",
        "enum": ["list", "poll", "log", "write", "kill", "clear", "remove"],
    },
    "sessionId": {"type": "string", "description": "all but list need it"},
    "offset": {"type": "integer", "minimum": 0, "description": "log: first character, from 0"},
    "limit": {
        "type": "integer",
        "minimum": 1,
        "description": f"log: characters, default {_LIMIT}",
    },
    "data": {"type": "string", "description": "write: text for its stdin, with its newlines"},
    "eof": {"type": "boolean", "description": "write: end its input afterwards"},
}


class DeepChat(Dialect):
    name = "deepchat"
    instructions = (
        "Run commands with execute_command; one that takes longer than its yieldMs goes on in the "
        "background under a sessionId. Its end is told in `events` of a later result: do not "
        "sleep and poll."
    )

    def __init__(
        self,
        client: Client,
        *,
        backgroundMs: float = 10_000,
        timeoutSec: float = 1800,
        cleanupMs: float = 1_800_000,
        maxOutputChars: int = 500,
    ) -> None:
        super().__init__(client)
        self._yield_ms = _checked("backgroundMs", backgroundMs, _SHORTEST_YIELD)
        self._timeout = _checked("timeoutSec", timeoutSec, 0)
        self._cleanup_ms = _checked("cleanupMs", cleanupMs, 0)
        self._most_characters = int(_checked("maxOutputChars", maxOutputChars, 1))
        self._foreground = Foreground()
        self._characters = Characters()

    def tools(self) -> list[Tool]:
        return [
            Tool(
                "execute_command",
                "Run a shell command. If it ends within yieldMs (10 s) you get its output and exit "
                "code; else, or with background, a sessionId, and it runs on: use process to look "
                "at it. You are told of its end in `events` of a later result.",
                self.execute_command,
                _EXECUTE,
                ("command", "description"),
                title="Run a command",
                starts=True,
            ),
            Tool(
                "process",
                "Look at or act on background commands. list: all of them; poll: status and the "
                "last output; log: output by characters; write: to its stdin; kill: stop it with "
                "everything it started; clear: empty its output; remove: stop and forget it.",
                self.process,
                _PROCESS,
                ("action",),
                title="Look at and act on background commands",
                destroys=True,
                handles=("sessionId",),
            ),
        ]

    # -- execute_command -----------------------------------------------------------------------

    async def execute_command(
        self,
        call: Call,
        command: str,
        description: str,
        timeout: float | None = None,
        background: bool = False,
        yieldMs: float | None = None,
    ) -> Answer:
        cleanup_ms = from_environment("PI_BASH_JOB_TTL_MS")
        process = await self.spawn(
            command,
            label=as_name(description)[:1000],
            stdin=True,
            grace=_GRACE,
            timeout=self._timeout if timeout is None else timeout / 1000,
            retention=(self._cleanup_ms if cleanup_ms is None else cleanup_ms) / 1000,
        )
        running: Answer = {"status": "running", "sessionId": process.handle}
        if background:
            return running
        if yieldMs is None:
            yieldMs = from_environment("PI_BASH_YIELD_MS", least=_SHORTEST_YIELD)
        patience = (self._yield_ms if yieldMs is None else yieldMs) / 1000
        if await self._foreground.ends(call, process, patience):
            return await self._finished(process)
        return {
            **running,
            "output": (await last_output(self.client, process, self._poll_characters()))[0],
            "note": f"still running after {call.elapsed:.1f} s: it goes on in the background; look "
            "at it with process, action poll, or wait to be told of its end",
        }

    async def _finished(self, process: Process) -> Answer:
        record = process.record
        output, more = await last_output(self.client, process, OUTPUT)
        if more:
            output = output[output.find("\n") + 1 :]  # not half a line
        answer = {**_state(record), "output": output, **_offloaded(process)}
        lines = [told_apart(output.rstrip())] if output.strip() else []
        lines.append(f"Exit Code: {'null' if record.exit_code is None else record.exit_code}")
        if record.signal is not None:
            lines.append(f"Signal: {record.signal}")
        if record.status == "timed_out":
            lines.append("Timed out")
        if answer["offloaded"]:
            lines.append(f"Output offloaded: {answer['outputFilePath']}")
            answer["sessionId"] = record.handle
        return Reply(answer, "\n".join(lines))

    # -- process -------------------------------------------------------------------------------

    async def process(
        self,
        call: Call,
        action: str,
        sessionId: str | None = None,
        offset: int = 0,
        limit: int = _LIMIT,
        data: str = "",
        eof: bool = False,
    ) -> Answer:
        if action == "list":
            known = self._foreground.others(await self.client.list())
            return {"status": "ok", "sessions": [await self._meta(each) for each in known]}
        if not sessionId:
            raise BadRequest(f"sessionId is required for {action} action")
        try:
            process = await self.find(sessionId)
            if action == "poll":
                return await self._poll(process)
            if action == "log":
                return await self._log(process, offset, limit)
            done: Answer = {"status": "ok", "sessionId": sessionId}
            if action == "write":
                done.update(await self._write(process, data, eof))
            elif action == "kill":
                receipt = await process.kill(grace=_GRACE)
                if receipt.survivors:
                    done["survivors"] = receipt.survivors
            elif action == "clear":
                await process.clear()
            else:
                await process.remove()
            return done
        except NotFound:
            raise NotFound(f"Session {_shown(sessionId)} not found", handle=sessionId) from None
        except NotRunning as error:
            raise NotRunning(f"Session {sessionId} is not running", **error.detail) from None

    async def _poll(self, process: Process) -> Answer:
        record = await process.refresh()
        output = (await last_output(self.client, process, self._poll_characters()))[0]
        await self.saw(record)
        return {**_state(record), "output": output, **_offloaded(process)}

    async def _log(self, process: Process, offset: int, limit: int) -> Answer:
        record = await process.refresh()
        log, ended, count = process.log("stdout"), not record.running, min(limit, _LARGEST_LIMIT)

        def look() -> tuple[str, int]:
            text = self._characters.part(log, offset, count, ended=ended)
            return text, self._characters.total(log, ended=ended)

        text, total = await self.client.run_in_thread(look)
        if offset + count >= total:
            await self.saw(record)
        answer = {
            **_state(record),
            "output": _plain(text),
            "totalLength": total,
            **_offloaded(process),
        }
        if count < limit and offset + count < total:
            answer["note"] = f"{count} characters at once are the most; go on at {offset + count}"
        return answer

    async def _write(self, process: Process, data: str, eof: bool) -> Answer:
        self.check_input(process)
        try:
            written = await process.send(data, eof=eof)
        except Unsupported:
            raise Unsupported(f"Session {process.handle} stdin is not available") from None
        if written < len(data.encode("utf-8", "surrogateescape")):
            return {"written": written, "note": "it did not read all of it; write the rest later"}
        return {}

    async def _meta(self, process: Process) -> Answer:
        record, log = process.record, process.log("stdout")
        looked = self.client.store.looked_at(record.handle)
        created = milliseconds(record.started_at)
        meta: Answer = {
            "sessionId": record.handle,
            "command": record.command_text,
            "status": _status(record),
            "createdAt": created,
            "lastAccessedAt": created if looked is None else max(created, int(looked * 1000)),
        }
        for name, value in (("pid", record.pid), ("exitCode", record.exit_code)):
            if value is not None:
                meta[name] = value
        try:
            meta["outputLength"] = await self.client.run_in_thread(
                lambda: self._characters.total(log, ended=not record.running)
            )
            meta["offloaded"] = _is_offloaded(log)
        except StoreError as error:  # which must not hide the others
            meta.update(outputLength=0, offloaded=False, error=str(error))
        return meta

    # -- output --------------------------------------------------------------------------------

    def _poll_characters(self) -> int:
        found = from_environment(
            "PI_BASH_MAX_OUTPUT_CHARS", "OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS", least=1
        )
        return self._most_characters if found is None else found


# -- what is said of a session -----------------------------------------------------------------


def _status(record: Record) -> str:
    if record.status in ("killed", "timed_out"):
        return "killed"
    if record.reason == "signal" and record.ended_by == "outside":
        return "killed"
    return {"running": "running", "completed": "done"}.get(record.status, "error")


def _state(record: Record) -> Answer:
    answer: Answer = {"status": _status(record)}
    if record.exit_code is not None:
        answer["exitCode"] = record.exit_code
    if record.status == "timed_out":
        answer["timedOut"] = True
    elif record.status == "lost":
        answer["note"] = "nobody can know how it ended"
    return answer


def _is_offloaded(log: Log) -> bool:
    return log.size() - log.begin() > _OFFLOAD


def _offloaded(process: Process) -> Answer:
    log = process.log("stdout")
    if not _is_offloaded(log):
        return {"offloaded": False}
    answer: Answer = {"offloaded": True, "outputFilePath": log.path}
    if log.begin():
        answer["outputFileNote"] = (
            f"its first {log.begin()} bytes were cleared; in the file they are empty or missing"
        )
    return answer


def _plain(text: str) -> str:
    from ...core.completion_text import clean_text

    return clean_text(text.encode())


def _shown(session_id: str) -> str:
    return session_id if len(session_id) <= 100 else session_id[:97] + "..."


def _checked(name: str, value: object, least: int) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= least:
        return value
    raise BadRequest(f"{name} is a number of at least {least}, not {value!r}")
