"""Claude Code's own tools: `Bash`, `TaskOutput` and `TaskStop` of 2.1, `BashOutput` and `KillShell`
(once `KillBash`) of 2.0, with their arguments and the texts that its models are shown.

Read from the published types of 2.0.14 to 2.1.325 and from public transcripts. 2.1.277 has no
`TaskOutput` any more and lets models read the output file; it is still here for those who cannot.
Every command begins in the agent's directory: one does not move the next.
"""

from __future__ import annotations

import time

from ...core.completion_text import clean_text
from ...core.errors import ExitError, NotFound, NotRunning
from ...core.quote import as_name, one_line
from ...core.record import Exit, rfc3339
from .._forged_notices import told_apart
from .._tool import Reply, Tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...client.process import Process
    from ...core.errors import HoldfastError
    from ...core.record import Record
    from .._schema import Schema
    from .._tool import Call
    from .claude_code import ClaudeCode

    Answer = dict[str, Any]

OUTPUT = 30_000  # characters in one answer
_STATUS = {"timed_out": "killed", "lost": "failed"}
_TYPE = "local_bash"

# Milliseconds: unless the model says otherwise, and at most.
_FOREGROUND = 120_000, 600_000
_BACKGROUND = 1_800_000, 7_200_000
_TASK_OUTPUT = 30_000, 600_000

DESCRIPTION: Schema = {"type": "string", "description": "what it does, in a few words"}
FILTER: Schema = {
    "type": "string",
    "description": "regular expression, upper and lower case alike: only lines that match come "
    "back, the others count as read",
}
_ID: Schema = {"type": "string", "description": "the ID from Bash"}


# What each tool calls a process when it finds none.
WORDS = {
    "Bash": "task",
    "TaskOutput": "task",
    "TaskStop": "task",
    "BashOutput": "shell",
    "KillShell": "shell",
    "KillBash": "shell",
}


class ClaudeTools:
    """The tools over the same processes; `shells` has what both vocabularies need."""

    def __init__(self, shells: ClaudeCode) -> None:
        self._shells = shells
        self._client = shells.client

    def tools(self) -> list[Tool]:
        return [
            Tool(
                "Bash",
                "Run a shell command and return its output. With run_in_background it returns an "
                "ID at once; a command that does not end within its timeout goes on in the "
                "background too. You are told of its end in a later result: do not sleep and poll.",
                self.bash,
                {
                    "command": {
                        "type": "string",
                        "minLength": 1,
                        "description": "a shell command line",
                    },
                    "timeout": {
                        "type": "number",
                        "minimum": 0,
                        "description": "milliseconds (default 120000, max 600000); in the "
                        "background it is stopped after them (default 1800000, max 7200000)",
                    },
                    "description": DESCRIPTION,
                    "run_in_background": {"type": "boolean", "description": "default false"},
                    "dangerouslyDisableSandbox": {
                        "type": "boolean",
                        "hidden": True,
                    },  # there is none, or it cannot be left
                },
                ("command",),
                title="Run a command",
                starts=True,
            ),
            Tool(
                "TaskOutput",
                "All output so far of a background command, and how it stands. Waits for its end "
                "unless block is false.",
                self.task_output,
                {
                    "task_id": _ID,
                    "block": {"type": "boolean", "description": "wait for its end; default true"},
                    "timeout": {
                        "type": "number",
                        "minimum": 0,
                        "maximum": _TASK_OUTPUT[1],
                        "description": "milliseconds to wait at most; default 30000",
                    },
                },
                ("task_id",),
                title="Read all output",
                reads=True,
                handles=("task_id",),
            ),
            Tool(
                "TaskStop",
                "Stop a background command with everything it started.",
                self.task_stop,
                {"task_id": _ID},
                ("task_id",),
                title="Stop a command",
                destroys=True,
                also={"shell_id": "task_id"},
                handles=("task_id",),
            ),
            Tool(
                "BashOutput",
                "New output of a background command since the last read.",
                self.bash_output,
                {"bash_id": _ID, "filter": FILTER},
                ("bash_id",),
                title="Read new output",
                hidden=True,
                handles=("bash_id",),
            ),
            *(
                Tool(
                    name,
                    "Stop a background command with everything it started.",
                    self.kill_shell,
                    {"shell_id": _ID},
                    ("shell_id",),
                    title="Stop a command",
                    destroys=True,
                    hidden=True,
                    handles=("shell_id",),
                )
                for name in ("KillShell", "KillBash")
            ),
        ]

    def failure(self, error: HoldfastError, tool: str, arguments: dict[str, Any]) -> Answer:
        if isinstance(error, ExitError):
            return Reply(error.detail["answer"], str(error))
        text = one_line(str(error))
        if isinstance(error, NotFound):
            given = next((arguments[name] for name in arguments if name.endswith("_id")), "")
            text = f"No {WORDS[tool]} found with ID: {one_line(given)}"
        return Reply({"error": text}, f"<tool_use_error>{text}</tool_use_error>")

    # -- Bash ----------------------------------------------------------------------------------

    async def bash(
        self,
        call: Call,
        command: str,
        timeout: float = 0,
        description: str = "",
        run_in_background: bool = False,
        dangerouslyDisableSandbox: bool = False,
    ) -> Answer:
        patience, limit = 0.0, _BACKGROUND[0] / 1000
        if run_in_background:
            limit = _milliseconds(timeout, *_BACKGROUND) / 1000
        else:
            patience = _milliseconds(timeout, *_FOREGROUND) / 1000
        # stderr in the same log: the file that the model is told of then has all of the output.
        process = await self._shells.spawn(
            command, label=as_name(description)[:1000], timeout=patience + limit
        )
        answer: Answer = {"stdout": "", "stderr": "", "interrupted": False}
        if run_in_background:
            began = f"Command running in background with ID: {process.handle}."
            answer["backgroundTaskId"] = process.handle
            return Reply(answer, f"{began} {_from_now_on(process, limit)}")
        wait, cut_short = call.left(patience)
        ended = await call.wait(process, patience)
        seen = await process.view(budget=OUTPUT)
        answer["stdout"] = seen.text.rstrip("\n")
        if not seen.complete:
            answer |= {"persistedOutputPath": process.record.log, "persistedOutputSize": seen.end}
            answer["stdout"] += f"\n[Full output: {process.record.log}]"
        if ended is not None:
            return _result(process.record, ended, answer)
        within = f"its {patience:g}s timeout"
        if cut_short:
            within = f"the {wait or 0:.0f}s that this call can wait"
        else:
            answer["timedOutAfterMs"] = round(patience * 1000)
        answer["backgroundTaskId"] = process.handle
        text = (
            f"Command did not complete within {within} and was moved to the background "
            f"(ID: {process.handle}). {_from_now_on(process, limit)}"
        )
        return Reply(answer, f"{told_apart(answer['stdout'])}\n{text}".lstrip("\n"))

    # -- TaskOutput, TaskStop ------------------------------------------------------------------

    async def task_output(
        self, call: Call, task_id: str, block: bool = True, timeout: float = _TASK_OUTPUT[0]
    ) -> Answer:
        process = await self._shells.find(task_id)
        if block and process.record.running:
            await call.wait(process, timeout / 1000)
        record = process.record
        output = await self._client.run_in_thread(lambda: _tail(process))
        await self._shells.saw(record)
        answer: Answer = {
            "retrieval_status": (
                "success" if not record.running else "timeout" if block else "not_ready"
            ),
            "task_id": record.handle,
            "task_type": _TYPE,
            **_how(record),
        }
        parts = [f"<{name}>{value}</{name}>" for name, value in answer.items()]
        if output:
            parts.append(f"<output>\n{told_apart(output, 'output')}\n</output>")
        return Reply({**answer, "output": output}, "\n\n".join(parts))

    async def task_stop(self, call: Call, task_id: str) -> Answer:
        stopped, record, survivors = await self._shells.stop(task_id)
        if not stopped:
            raise NotRunning(f"Task {task_id} is not running (status: {status_of(record)})")
        command = record.command_text
        message = f"Successfully stopped task: {task_id} ({command}){_except(survivors)}"
        return {"message": message, "task_id": task_id, "task_type": _TYPE, "command": command}

    # -- BashOutput, KillShell -----------------------------------------------------------------

    async def bash_output(self, call: Call, bash_id: str, filter: str = "") -> Answer:
        process = await self._shells.find(bash_id)
        new = await self._shells.new(process, filter, blanks=True)
        answer: Answer = _how(process.record)
        parts = [f"<{name}>{value}</{name}>" for name, value in answer.items()]
        for name, text in (("stdout", new["newOutput"]), ("stderr", new["newErrors"])):
            answer[name] = text
            if text:
                parts.append(f"<{name}>\n{told_apart(text, 'stdout', 'stderr')}\n</{name}>")
        if note := new.get("note"):
            answer["note"] = note
            parts.append(f"[{note}]")
        answer["timestamp"] = iso(rfc3339(time.time()))
        parts.append(f"<timestamp>{answer['timestamp']}</timestamp>")
        return Reply(answer, "\n\n".join(parts))

    async def kill_shell(self, call: Call, shell_id: str) -> Answer:
        stopped, record, survivors = await self._shells.stop(shell_id)
        if not stopped:
            raise NotRunning(
                f"Shell {shell_id} is not running, so cannot be killed "
                f"(status: {status_of(record)})"
            )
        message = f"Successfully killed shell: {shell_id} ({record.command_text})"
        return {"message": message + _except(survivors), "shell_id": shell_id}


# -- what is said of a process, in both vocabularies -------------------------------------------


def status_of(record: Record) -> str:
    return _STATUS.get(record.status, record.status)


def explanation(record: Record) -> str:
    """Why it ended, where that is neither its exit code nor what the model asked for."""
    match record.reason:
        case "timeout":
            return f"Process killed after {round((record.timeout or 0) * 1000)}ms timeout"
        case "log_limit":
            return f"Process killed after more than {record.log_limit} bytes of output"
        case "lease_ended":
            return "Process killed with the session that it belongs to"
        case "out_of_memory":
            return "Process error: out of memory"
        case "signal":
            return f"Process error: {record.signal}"
        case "lost":
            return "Process error: lost, so that nobody knows how it ended"
    return ""


def iso(time: str) -> str:
    """A time as JavaScript writes it: with milliseconds."""
    return time[:-4] + "Z"


# -- what is said of it in Claude Code's -------------------------------------------------------


def _milliseconds(given: float, default: int, most: int) -> float:
    """A limit beyond the largest one is not refused."""
    return min(given or default, most)


def _from_now_on(process: Process, limit: float) -> str:
    minutes = limit / 60
    shown = f"{minutes:g}m" if minutes == int(minutes) else f"{limit:g}s"
    return (
        f"Output is being written to: {process.record.log}. You will be notified when it "
        f"completes. If it is still running after {shown} in the background, it will be stopped "
        "and you will be notified. To check interim output, use Read on that file path."
    )


def _result(record: Record, ended: Exit, answer: Answer) -> Answer:
    """The output; that of a command that failed is an error with its exit code in front."""
    if ended.ok:
        return Reply(answer, told_apart(answer["stdout"]) or "(no output)")
    code = ended.shell_code
    answer |= {"interrupted": status_of(record) == "killed", "exitCode": code}
    lines = [f"Exit code {'unknown' if code is None else code}", told_apart(answer["stdout"])]
    text = "\n".join(line for line in [*lines, explanation(record)] if line)
    raise ExitError(text, handle=record.handle, answer=answer)


def _how(record: Record) -> Answer:
    code = None if record.running else Exit.of(record).shell_code
    return {"status": status_of(record)} | ({} if code is None else {"exit_code": code})


def _tail(process: Process) -> str:
    """The output, or the last of it and where all of it is."""
    record, parts, cut = process.record, [], False
    for stream in record.streams:
        log = process.log(stream)
        output = log.tail_bytes(4 * OUTPUT)
        data = output.data
        if output.start > log.begin():
            cut = True
            data = data[data.find(b"\n") + 1 :]
        parts.append(clean_text(data).rstrip("\n"))
    text = "\n".join(part for part in [*parts, explanation(record)] if part)
    if cut or len(text) > OUTPUT:
        where = " and ".join(path for path in (record.log, record.err_log) if path)
        return f"[Truncated. Full output: {where}]\n\n{text[-OUTPUT:]}"
    return text


def _except(survivors: list[int]) -> str:
    return f", but not its children {survivors}" if survivors else ""
