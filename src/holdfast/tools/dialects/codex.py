"""Codex CLI's tools: `exec_command` and `write_stdin`, its "unified exec".

Follows openai/codex at 343074d4 (2026-08-22, about 0.150), with the error texts of the release
0.166.0 (2026-10-29): names, arguments, yield times and their bounds, the header of a result and the
way in which long output is cut.

A session id is a number that follows from the handle. There is no table of them, so another client
of the same session finds them too; whoever starts a process takes a handle whose number is free.
"""

from __future__ import annotations

import binascii
import os
import time

from ...core import environment
from ...core.completion_text import clean_text
from ...core.cursors import load_cursor, save_cursor
from ...core.errors import BadRequest, LimitReached, NotFound, NotRunning, Unsupported
from ...core.home import new_handle
from ...core.quote import one_line
from ...core.record import Exit
from .._dialect import Dialect
from .._forged_notices import told_apart
from .._tool import Reply, Tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...client.client import Client
    from ...client.process import Process
    from ...core.errors import HoldfastError
    from .._schema import Schema
    from .._tool import Call

_READER = "codex"
_FIRST_ID, _IDS = 1000, 99_000
_TOKENS, _TOKEN = 10_000, 4  # the most in one result, and the bytes that count as one
_HALF = 512 << 10  # of more unread output than two of these, the middle is left out
_LEAST, _LONGEST, _POLL = 250, 30_000, 5000  # milliseconds
_EXEC, _WRITE = 10_000, 250
_CTRL_C, _CTRL_D = "\x03", "\x04"
# What runs here is read as a stream, in a terminal too: no colours, no pagers, no full screen.
_QUIET = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    "LC_CTYPE": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "COLORTERM": "",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
}
_NO_STDIN = "stdin is closed for this session; rerun exec_command with tty=true to keep stdin open"
_NO_SANDBOX = "no effect: commands are not sandboxed here"
_CLOSED = "leave out: what commands run in cannot be left"
_ESCALATION = ("sandbox_permissions", "justification", "prefix_rule")

_BUDGET: dict[str, Schema] = {
    "max_output_tokens": {
        "type": "integer",
        "minimum": 0,
        "description": "Output token budget. Defaults to 10000 tokens, which is also the most.",
    }
}
_COMMAND: dict[str, Schema] = {
    "cmd": {"type": "string", "description": "Shell command to execute."},
    "workdir": {
        "type": "string",
        "description": "Working directory for the command. Defaults to the agent's.",
    },
    "tty": {
        "type": "boolean",
        "description": "True allocates a PTY for the command; false or omitted uses plain pipes.",
    },
    "yield_time_ms": {
        "type": "integer",
        "minimum": 0,
        "description": "Wait before yielding output. Defaults to 10000 ms; effective range is "
        "250-30000 ms.",
    },
    **_BUDGET,
    "shell": {"type": "string", "description": "Shell binary to launch. Defaults to bash."},
    "login": {
        "type": "boolean",
        "description": "True runs the shell with -l semantics; false disables them. Defaults to "
        "true.",
    },
    "sandbox_permissions": {
        "type": "string",
        "enum": ["use_default", "require_escalated"],
        "description": _NO_SANDBOX,
    },
    "justification": {"type": "string", "description": _NO_SANDBOX},
    "prefix_rule": {"type": "array", "items": {"type": "string"}, "description": _NO_SANDBOX},
}
_INPUT: dict[str, Schema] = {
    "session_id": {
        "type": "integer",
        "description": "Identifier of the running unified exec session.",
    },
    "chars": {
        "type": "string",
        "description": "Bytes to write to stdin. Defaults to empty, which polls without writing. "
        "\\u0003 interrupts, also without a tty.",
    },
    "yield_time_ms": {
        "type": "integer",
        "minimum": 0,
        "description": "Wait before yielding output. Non-empty writes default to 250 ms and cap at "
        "30000 ms; empty polls wait 5000-300000 ms by default.",
    },
    **_BUDGET,
}


class Codex(Dialect):
    """`stdin` leaves the stdin of what has no tty open for write_stdin; Codex closes it."""

    name = "codex"
    instructions = (
        "What exec_command leaves running goes on by itself. Its end is told with the result of a "
        "later call: do not poll in a loop."
    )

    def __init__(
        self,
        client: Client,
        *,
        stdin: bool = False,
        max_running: int = 64,
        background_terminal_max_timeout: int = 300_000,
    ) -> None:
        super().__init__(client)
        self._stdin = stdin
        self._max_running = max_running
        self._longest_poll = max(_POLL, background_terminal_max_timeout)
        self._starting: set[int] = set()

    def tools(self) -> list[Tool]:
        return [
            Tool(
                "exec_command",
                "Runs a command, returning output or a session ID for ongoing interaction. What "
                "is still running after yield_time_ms goes on in the background: write_stdin polls "
                "it or writes to it, and its end is told with a later result.",
                self.exec_command,
                self._arguments(),
                ("cmd",),
                title="Run a command",
                starts=True,
                destroys=True,
            ),
            Tool(
                "write_stdin",
                "Writes characters to an existing unified exec session and returns recent output. "
                "Without chars it waits for more output.",
                self.write_stdin,
                _INPUT,
                ("session_id",),
                title="Write to a running command, or poll it",
                destroys=True,
            ),
        ]

    def _arguments(self) -> dict[str, Schema]:
        if not self.confinement.words:
            return _COMMAND
        closed = {name: {**_COMMAND[name], "description": _CLOSED} for name in _ESCALATION}
        return {**_COMMAND, **closed}

    def failure(self, error: HoldfastError, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        text = one_line(str(error))
        if tool in ("exec_command", "write_stdin"):
            # Arguments that were refused are not handed on.
            text = (
                f"{tool} failed: {text}"
                if arguments
                else f"failed to parse function arguments: {text}"
            )
        return Reply({"error": text, "code": error.code}, text)

    # -- exec_command --------------------------------------------------------------------------

    async def exec_command(
        self,
        call: Call,
        cmd: str,
        workdir: str = "",
        tty: bool = False,
        yield_time_ms: int = _EXEC,
        max_output_tokens: int = _TOKENS,
        shell: str = "",
        login: bool = True,
        sandbox_permissions: str = "use_default",
        **unused: Any,
    ) -> Reply:
        if not cmd.strip():
            raise BadRequest("missing command line for unified exec request")
        if sandbox_permissions == "require_escalated" and self.confinement.words:
            raise BadRequest(
                "what commands run in cannot be left here; run it without sandbox_permissions"
            )
        began = time.monotonic()
        program = shell or self._shell
        handle = self._free_handle()
        try:
            process = await self.spawn(
                [program, "-lc" if login else "-c", cmd],
                cwd=workdir or None,
                env=_QUIET,
                tty=tty,
                size="80x24",
                stdin=self._stdin,
                timeout=None,
                label=f"session {number_of(handle)}",
                max_running=self._max_running,
                handle=handle,
            )
        except LimitReached as error:
            raise LimitReached(_full(error.detail.get("running", []))) from None
        finally:
            self._starting.discard(number_of(handle))
        await self._stay(call, process, _LEAST, _bounded(yield_time_ms, _LEAST, _LONGEST))
        return await self._result(process, began, max_output_tokens)

    @property
    def _shell(self) -> str:
        own = self.confinement.shell or self.client.config["shell"]
        return own or environment.default_shell()

    def _free_handle(self) -> str:
        handles = self.client.store.handles(self.client.session)
        taken = {number_of(handle) for handle in handles} | self._starting
        while number_of(handle := new_handle()) in taken:
            pass
        self._starting.add(number_of(handle))
        return handle

    # -- write_stdin ---------------------------------------------------------------------------

    async def write_stdin(
        self,
        call: Call,
        session_id: int,
        chars: str = "",
        yield_time_ms: int = _WRITE,
        max_output_tokens: int = _TOKENS,
    ) -> Reply:
        process = await self._session(session_id)
        least, longest = (_LEAST, _LONGEST) if chars else (_POLL, self._longest_poll)
        if chars:
            await self._write(call, process, chars)
        began = time.monotonic()
        await self._stay(call, process, least, _bounded(yield_time_ms, least, longest))
        return await self._result(process, began, max_output_tokens)

    async def _session(self, number: int) -> Process:
        """The session's process with this number; the oldest, should a stranger's be the same."""
        found: list[Process] = []
        for handle in self.client.store.handles(self.client.session):
            if number_of(handle) == number:
                try:
                    found.append(await self.find(handle))
                except NotFound:
                    continue  # another session's
        if not found:
            raise NotFound(f"Unknown process id {number}")
        return min(found, key=lambda process: process.record.started_at)

    async def _write(self, call: Call, process: Process, chars: str) -> None:
        """Write; that it has ended is no error: the result says so."""
        data = chars.encode("utf-8", "surrogatepass")
        record = process.record
        if chars != _CTRL_C:  # which is how one is stopped
            self.check_input(process)
        signal = not record.capabilities.terminal and chars == _CTRL_C
        if record.running and not record.stdin and not signal:
            raise Unsupported(_NO_STDIN)
        try:
            if signal:
                await process.signal("INT")
                return
            eof = not record.capabilities.terminal and chars == _CTRL_D
            taken = await process.send(b"" if eof else data, eof=eof)
        except NotRunning:
            return
        except Unsupported as error:
            if await call.wait(process, _LEAST / 1000) is None:
                raise Unsupported("failed to write to stdin") from error
            return
        if not eof and taken < len(data):
            raise Unsupported(
                f"failed to write to stdin: it took {taken} of {len(data)} bytes; write the rest "
                "when it reads again"
            )

    # -- results -------------------------------------------------------------------------------

    async def _stay(self, call: Call, process: Process, least: int, longest: int) -> None:
        """Until its end, until it waits for somebody to type, or for so many milliseconds.

        Not before the least of them: what was just written must have been taken first, and who
        polls again and again is to be slowed down.
        """
        if await call.wait(process, least / 1000) is not None or longest <= least:
            return
        left = (longest - least) / 1000
        if process.record.stdin:
            await self.until(call, [process], ["exit", "input"], timeout=left)
        else:
            await call.wait(process, left)

    async def _result(self, process: Process, began: float, tokens: int) -> Reply:
        record = process.record
        if record.running:
            record = await process.refresh()
        output, count = await self._unread(process, min(tokens, _TOKENS) * _TOKEN)
        seconds = time.monotonic() - began
        data: dict[str, Any] = {"chunk_id": os.urandom(3).hex(), "wall_time_seconds": seconds}
        header = [f"Chunk ID: {data['chunk_id']}", f"Wall time: {seconds:.4f} seconds"]
        if record.running:
            data["session_id"] = number_of(record.handle)
            header.append(f"Process running with session ID {data['session_id']}")
            await self.saw_prompt(record)
        else:
            code = Exit.of(record).shell_code
            data["exit_code"] = -1 if code is None else code
            header.append(f"Process exited with code {data['exit_code']}")
            await self.saw(record)
            if code is None:
                output += "\n[nobody can know how it ended: its keeper was killed]"
        header += [f"Original token count: {count}", "Output:"]
        data |= {"original_token_count": count, "output": output}
        return Reply(data, "\n".join([*header, told_apart(output)]))

    async def _unread(self, process: Process, budget: int) -> tuple[str, int]:
        """The output that no result has shown yet, in so many bytes, and its tokens."""
        record = process.record
        cursor = (self.client.home, record.session, _READER, record.handle, "stdout")
        end = (await process.tail_bytes(0)).end
        first = await process.read(reader=_READER, limit=_HALF)
        text, size = clean_text(first.data), len(first.data)
        notes = _Omitted()
        if first.gap:
            text = f"{notes.add(first.gap)}\n{text}"
        if first.more:
            if end - _HALF > first.end and load_cursor(*cursor) == first.end:
                save_cursor(*cursor, end - _HALF)
            last = await process.read(reader=_READER, limit=_HALF)
            if last.start > first.end:
                text += f"\n{notes.add(last.start - first.end)}\n"
            text += clean_text(last.data)
            size += len(last.data)
        tokens = _tokens(size + notes.size)
        return _cut(text, budget, notes, tokens), tokens


class _Omitted:
    """The words in a text about bytes that are not in it."""

    def __init__(self) -> None:
        self.size = 0
        self.notes: list[str] = []

    def add(self, size: int) -> str:
        self.size += size
        self.notes.append(_omitted(size))
        return self.notes[-1]


def number_of(handle: str) -> int:
    return _FIRST_ID + binascii.crc32(handle.encode()) % _IDS


def _bounded(milliseconds: int, least: int, longest: int) -> int:
    return min(max(milliseconds, least), longest)


def _full(running: list[str]) -> str:
    ids = ", ".join(str(number_of(handle)) for handle in running)
    return (
        f"{len(running)} processes are running, as many as there may be; wait for one, or end one "
        f"by writing \\u0003 to it: session IDs {ids}"
    )


def _tokens(size: int) -> int:
    return -(-size // _TOKEN)


def _omitted(size: int) -> str:
    return f"... {size} bytes omitted ..."


def _cut(text: str, budget: int, omitted: _Omitted, tokens: int) -> str:
    """The beginning and the end of a text in so many bytes, and before it how much there was."""
    raw = text.encode()
    if len(raw) <= budget:
        return text
    before = raw[: budget // 2].decode(errors="ignore")
    after = raw[len(raw) - (budget - budget // 2) :].decode(errors="ignore")
    cut = f"{before}…{_tokens(len(raw) - budget)} tokens truncated…{after}"
    if not omitted.size:
        lines = text.count("\n") + (not text.endswith("\n"))
        note = f"Total output lines: {lines}\n"
    elif any(each in cut for each in omitted.notes):
        note = ""
    else:
        note = f"{_omitted(omitted.size)}\n"
    return f"Warning: truncated output (original token count: {tokens})\n{note}\n{cut}"
