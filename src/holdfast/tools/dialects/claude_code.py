"""Background shells as in Claude Code: run_command, bash_output, kill_shell, list_shells.

Claude Code's own tools (`_claude_names`) can be called too; with ``names="claude"`` they are the
ones that models are shown.

An id is a handle. New output is by lines, blank ones left out. Each is given once, the last one
when it is finished. What a filter drops counts as read; one that makes no sense reads nothing.
Statuses are running, completed, failed and killed: a process that was lost has failed, one that
was stopped at its timeout was killed, and a line of its errors says so.
"""

from __future__ import annotations

from dataclasses import replace

from ...core.cursors import STREAMS, load_cursor, save_cursor
from ...core.errors import BadRequest, NotFound, SpawnError
from ...core.quote import MARK, as_name, one_line
from ...core.record import duration_text
from .._agent_tool import AgentTool
from .._dialect import Dialect
from .._new_lines import LineCounts, NewLines, first_lines, new_lines
from .._tool import Tool
from .claude_names import (
    DESCRIPTION,
    FILTER,
    OUTPUT,
    WORDS,
    ClaudeTools,
    explanation,
    iso,
    status_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...client.client import Client
    from ...client.process import Process
    from ...core.errors import HoldfastError
    from ...core.record import Record
    from ...core.types import Stream
    from ...output.pattern import Pattern
    from .._tool import Call

    Answer = dict[str, Any]

_NAMES = ("shell", "claude")
_READER = "bash_output"
_MOST = 20  # running at once
_CHECK = 1.5
_TIMEOUT = 600_000  # milliseconds
_FIRST, _FIRST_ERRORS = 8, 4  # lines of what is written in the check
_ERRORS = 4_000  # characters of the errors of a failure in it


class ClaudeCode(Dialect):
    name = "claude-code"
    instructions = (
        "Start what may take more than a few seconds with run_in_background and go on; its end is "
        "told in `events` of a later result. Do not sleep and poll."
    )

    def __init__(self, client: Client, names: str = "shell") -> None:
        super().__init__(client)
        if names not in _NAMES:
            raise BadRequest(f"names is {' or '.join(map(repr, _NAMES))}, not {names!r}")
        self._names = names
        self._counts = LineCounts()
        self._claude = ClaudeTools(self)

    def tools(self) -> list[Tool]:
        shells = [*self._shell_tools(), AgentTool(self.client).tool()]
        sets = {"shell": shells, "claude": self._claude.tools()}
        return [
            replace(tool, hidden=tool.hidden or name != self._names)
            for name, tools in sets.items()
            for tool in tools
        ]

    def failure(self, error: HoldfastError, tool: str, arguments: dict[str, Any]) -> Answer:
        if tool in WORDS:
            return self._claude.failure(error, tool, arguments)
        text = str(error)
        if tool == "run_command" and isinstance(error, SpawnError):
            return {"id": None, "message": f"Failed to spawn: {text}", "status": "failed"}
        if tool == "kill_shell":
            if isinstance(error, NotFound):
                text = f"Process not found: {one_line(arguments['shell_id'])}"
            return {"success": False, "message": text}
        if tool == "bash_output" and isinstance(error, NotFound):
            text = (
                f"Process not found: {one_line(arguments['bash_id'])}. Use list_shells to see "
                "available processes."
            )
        return {"error": text}

    # -- run_command, bash_output, kill_shell, list_shells -------------------------------------

    def _shell_tools(self) -> list[Tool]:
        return [
            Tool(
                "run_command",
                "Run a shell command and return its output and exit code. With run_in_background "
                "it returns an id after 1.5 s, with the first output or the failure: use that for "
                "servers, watchers, builds and whatever takes more than a few seconds. You are "
                "told of its end in `events` of a later result; there is no need to poll.",
                self.run_command,
                {
                    "command": {
                        "type": "string",
                        "minLength": 1,
                        "description": "a shell command line",
                    },
                    "run_in_background": {"type": "boolean", "description": "default false"},
                    "cwd": {"type": "string", "description": "directory (default: the agent's)"},
                    "timeout": {
                        "type": "number",
                        "minimum": 0,
                        "description": "milliseconds after which it is killed; default 600000",
                    },
                    "description": DESCRIPTION,
                },
                ("command",),
                title="Run a command",
                starts=True,
            ),
            Tool(
                "bash_output",
                "Read output from a running or completed background shell process. Returns only "
                "NEW output and errors since the last read, with its status.",
                self.bash_output,
                {
                    "bash_id": {"type": "string", "description": "the id from run_command"},
                    "filter": FILTER,
                },
                ("bash_id",),
                title="Read new output",
                handles=("bash_id",),
            ),
            Tool(
                "kill_shell",
                "Terminate a running background shell process with everything it started.",
                self.kill_shell,
                {"shell_id": {"type": "string", "description": "the id from run_command"}},
                ("shell_id",),
                title="Kill a process",
                destroys=True,
                handles=("shell_id",),
            ),
            Tool(
                "list_shells",
                "List all background shell processes, running and recently ended.",
                self.list_shells,
                title="List processes",
                reads=True,
            ),
        ]

    async def run_command(
        self,
        call: Call,
        command: str,
        run_in_background: bool = False,
        cwd: str = "",
        timeout: float = 0,
        description: str = "",
    ) -> Answer:
        process = await self.spawn(
            command,
            cwd=cwd or None,
            label=as_name(description)[:1000],
            timeout=(timeout or _TIMEOUT) / 1000,
            stderr="separate",
            max_running=_MOST,
        )
        ended = await call.wait(process, _CHECK if run_in_background else None)
        if ended is not None and not run_in_background:
            return await self.new(process)
        waited = 0.0 if run_in_background else call.elapsed
        message = await self.client.run_in_thread(lambda: self._message(process, waited))
        record = process.record
        return {"id": record.handle, "message": message, "status": status_of(record)}

    async def bash_output(self, call: Call, bash_id: str, filter: str = "") -> Answer:
        return await self.new(await self.find(bash_id), filter)

    async def kill_shell(self, call: Call, shell_id: str) -> Answer:
        stopped, record, survivors = await self.stop(shell_id)
        if not stopped:
            return {"success": False, "message": f"Process already {status_of(record)}"}
        if survivors:
            message = f"Process {shell_id} killed, but not its children {survivors}"
            return {"success": False, "message": message}
        return {"success": True, "message": f"Process {shell_id} killed"}

    async def list_shells(self, call: Call) -> Answer:
        processes = await self.client.list()
        return {"shells": await self.client.run_in_thread(lambda: self._listed(processes))}

    async def new(self, process: Process, filter: str = "", blanks: bool = False) -> Answer:
        """Read what is new of both streams; if that cannot be said, nothing counts as read."""
        pattern = _pattern(filter)
        record = process.record
        home, session, handle = self.client.home, record.session, record.handle
        streams = record.streams

        def read() -> tuple[NewLines, NewLines]:
            starts = [load_cursor(home, session, _READER, handle, each) for each in STREAMS]
            found = [
                new_lines(
                    process.log(stream),
                    start,
                    running=record.running,
                    budget=OUTPUT,
                    pattern=pattern,
                    blanks=blanks,
                )
                for stream, start in zip(streams, starts, strict=False)
            ]
            found += [NewLines("", starts[1])] * (2 - len(found))
            _explain(process, found[1])
            for stream, start, new in zip(STREAMS, starts, found, strict=True):
                if new.end != start:
                    save_cursor(home, session, _READER, handle, stream, new.end)
            return found[0], found[1]

        out, err = await self.client.run_in_thread(read)
        await self.saw(record)
        answer: Answer = {
            "id": handle,
            "status": status_of(record),
            "newOutput": out.text,
            "newErrors": err.text,
            "exitCode": record.exit_code,
        }
        if out.notes or err.notes:
            answer["note"] = "; ".join([*out.notes, *(f"errors: {note}" for note in err.notes)])
        return answer

    async def stop(self, handle: str) -> tuple[bool, Record, list[int]]:
        """Stop it: returns if that was now, how it ended, and what would not go."""
        process = await self.find(handle)
        if not process.record.running:
            await self.saw(process.record)
            return False, process.record, []
        receipt = await process.kill()
        stopped = not receipt.already_ended and receipt.record.status == "killed"
        return stopped, receipt.record, receipt.survivors

    def _message(self, process: Process, waited: float) -> str:
        """Tell how the start went; `waited` for seconds, if the caller wanted it to end."""
        record = process.record
        status = status_of(record)
        if status in ("failed", "killed"):
            how = "failed immediately" if status == "failed" else "killed"
            lines = [f"✕ Process {how}", f" Command: {one_line(record.command_text)}"]
            if errors := self._errors(process):
                lines.append(" Error: " + "\n ".join(errors))
            if record.exit_code is not None:
                lines.append(f" Exit code: {record.exit_code}")
            return "\n".join(lines + self._first(process, "stdout", "Initial output", _FIRST))
        lines = [
            f"✓ Background process {status}",
            f" PID: {record.pid or '?'}",
            f" ID: {record.handle}",
            f" Command: {one_line(record.command_text)}",
        ]
        if not record.running:
            lines.append(f" Exit code: {record.exit_code}")
        elif waited:
            lines.append(
                f" Not done after {duration_text(waited)}: it goes on in the background and you "
                "will be told of its end."
            )
        lines += self._first(process, "stdout", "Initial output", _FIRST)
        lines += self._first(process, "stderr", "Stderr", _FIRST_ERRORS)
        stop = f', kill_shell("{record.handle}") to stop' if record.running else ""
        return "\n".join([*lines, f' Use bash_output("{record.handle}") to check output{stop}.'])

    def _errors(self, process: Process) -> list[str]:
        found = new_lines(process.log("stderr"), 0, running=False, budget=_ERRORS)
        lines = [f"{MARK}{one_line(line)}" for line in found.text.split("\n") if line]
        why = explanation(process.record)
        return [*lines, why] if why else lines

    def _first(self, process: Process, stream: Stream, title: str, most: int) -> list[str]:
        log = process.log(stream)
        shown, count = first_lines(log, most), self._counts.of(log)
        if not shown:
            return []
        more = count - len(shown) if stream == "stdout" else 0
        return [
            f" {title} ({count} lines):",
            *(f" {MARK}{one_line(line)}" for line in shown),
            *([f" ... +{more} more lines"] if more > 0 else []),
        ]

    def _listed(self, processes: list[Process]) -> list[Answer]:
        listed, logs = [], []
        for process in processes:
            record = process.record
            command = record.command_text
            counts = {"stdout": 0, "stderr": 0}
            for stream in record.streams:
                logs.append(process.log(stream))
                counts[stream] = self._counts.of(logs[-1])
            listed.append(
                {
                    "id": record.handle,
                    "pid": record.pid if record.running else None,
                    "command": command if len(command) <= 50 else command[:47] + "...",
                    "status": status_of(record),
                    "startedAt": iso(record.started_at),
                    "runtime": duration_text(record.elapsed()),
                    "outputLines": counts["stdout"],
                    "errorLines": counts["stderr"],
                }
            )
        self._counts.forget_others(logs)
        return listed


def _explain(process: Process, errors: NewLines) -> None:
    """Add how it ended to its errors, as one more line in the place after their last byte."""
    why = explanation(process.record)
    end = process.log("stderr").size() if "stderr" in process.record.streams else 0
    if why and errors.end == end:
        errors.text = f"{errors.text}\n{why}" if errors.text else why
        errors.end += 1


def _pattern(filter: str) -> Pattern | None:
    from ...output.pattern import Pattern

    if not filter:
        return None
    try:
        return Pattern(filter, ignore_case=True)
    except BadRequest as error:
        raise BadRequest(
            f'Invalid regex pattern "{filter[:200]}": {error.__context__ or error}. Nothing was '
            "read; mend the filter or leave it out"
        ) from None
