"""Duragent's tools: `spawn_process` and `process`. The core of the native ones too.

Where its document is silent: `output` is the log as a model should read it, at most 10,000
characters, with a note of what is left out. `tmux` is on for what runs in the background where tmux
is installed. Offsets and limits are lines, and stay what they are when the log grows or is capped.
"""

from __future__ import annotations

from ...client.config import UNSET
from ...core import tmux_server
from ...core.errors import BadRequest, NotFound
from .._dialect import OUTPUT, Dialect
from .._tool import Tool, published

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from ...client.process import Process
    from ...core.errors import HoldfastError
    from ...core.record import Record
    from .._schema import Schema
    from .._tool import Call

    Answer = dict[str, Any]
    Action = Callable[..., Awaitable[Answer]]

_LINES = 200
_STILL_RUNNING = (
    "still running: it goes on in the background and its end will be told; call process with "
    "action status or log to look at it"
)

SPAWN: dict[str, Schema] = {
    "command": {"type": "string", "minLength": 1, "description": "a shell command line"},
    "workdir": {"type": "string", "description": "directory to run in (default: the agent's)"},
    "wait": {
        "type": "boolean",
        "description": "true: return when it has ended, with its output; default false",
    },
    "tmux": {
        "type": "boolean",
        "description": "in a terminal that a person can join; default: true if tmux is installed, "
        "unless wait",
    },
    "label": {"type": "string", "description": "a name for people"},
    "timeout_seconds": {
        "type": "number",
        "minimum": 0,
        "description": "stop it after this long; default 1800, 0: never",
    },
}
HANDLE: Schema = {
    "type": "string",
    "description": "from spawn_process, or its label; all but list need it",
}
PROCESS: dict[str, Schema] = {
    "handle": HANDLE,
    "offset": {
        "type": "integer",
        "description": "log: first line, from 0; negative: from the end; default: the last lines",
    },
    "limit": {"type": "integer", "minimum": 1, "description": f"log: lines, default {_LINES}"},
    "byte": {
        "type": "integer",
        "minimum": 0,
        "description": "log: from this byte on instead, to read what was left out",
    },
    "keys": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "send_keys: text, or key names like Up, C-c, Escape",
    },
    "enter": {
        "type": "boolean",
        "description": "send_keys: Enter afterwards; default true after text, false after a key",
    },
    "data": {"type": "string", "description": "write: text for its stdin, with its newlines"},
    "eof": {"type": "boolean", "description": "write: end its input afterwards"},
}


class Duragent(Dialect):
    name = "duragent"
    instructions = (
        "Start anything that may take more than a few seconds with spawn_process and go on; its "
        "end is told in `events` of a later result. Do not sleep and poll."
    )

    def tools(self) -> list[Tool]:
        return [
            Tool(
                "spawn_process",
                "Start a shell command in the background and return a handle at once, or with wait "
                "its result. Use it for builds, tests, servers, other agents. When it ends you are "
                "told in `events` of a later result; there is no need to poll.",
                self.spawn_process,
                SPAWN,
                ("command",),
                title="Start a process",
                starts=True,
            ),
            Tool(
                "process",
                "Look at or act on processes of this session. Actions: list; status; log (its "
                "output by lines); capture (its screen) and send_keys, for those in a terminal; "
                "write (to its stdin); kill (with everything it started).",
                self.process,
                {"action": {"type": "string", "enum": list(self.actions())}, **PROCESS},
                ("action",),
                title="Look at and act on processes",
                destroys=True,
                handles=("handle",),
            ),
        ]

    def failure(self, error: HoldfastError, tool: str, arguments: dict[str, Any]) -> Answer:
        """Say it in the words of these tools, where the library speaks of its own."""
        answer = super().failure(error, tool, arguments)
        if isinstance(error, NotFound) and error.handle:
            answer["error"] = (
                f"no process {error.handle!r} in this session; action list shows those there are"
            )
        elif error.detail.get("needs") == "terminal":
            answer["error"] = (
                f"{error.handle} has no terminal: use log and write, or start it with tmux true"
            )
        elif "wrong" in error.detail:  # a pattern, which these tools never take literally
            answer["error"] = error.detail["wrong"]
        return answer

    # -- spawn_process -------------------------------------------------------------------------

    async def spawn_process(
        self,
        call: Call,
        command: str,
        workdir: str | None = None,
        wait: bool = False,
        tmux: bool | None = None,
        label: str = "",
        timeout_seconds: float | None = None,
    ) -> Answer:
        if tmux is None:
            tmux = not wait and self.in_tmux
        process = await self.spawn(
            command,
            cwd=workdir,
            tmux=tmux,
            label=label,
            timeout=UNSET if timeout_seconds is None else timeout_seconds,
            stdin=not wait,  # nobody could write to it meanwhile
        )
        if wait:
            return await self.result(call, process)
        return started(process.record)

    @property
    def in_tmux(self) -> bool:
        """True if tmux is where commands go that nobody waits for."""
        return not self.confinement.contained and tmux_server.find_tmux() is not None

    async def result(self, call: Call, process: Process) -> Answer:
        """Tell how it ended; or, where a caller cannot wait that long, that it goes on."""
        if await call.wait(process) is None:
            return {**started(process.record), "note": _STILL_RUNNING}
        return await self.finished(process)

    async def finished(self, process: Process) -> Answer:
        record = process.record
        return {
            "handle": record.handle,
            **how_it_ended(record),
            "output": await self.output(process),
            "duration_seconds": rounded(record.duration_seconds),
            **published(record),
        }

    # -- process -------------------------------------------------------------------------------

    def actions(self) -> dict[str, Action]:
        return {
            "list": self.list_all,
            "status": self.status,
            "log": self.log,
            "capture": self.capture,
            "send_keys": self.send_keys,
            "write": self.write,
            "kill": self.kill,
        }

    async def process(self, call: Call, action: str, **arguments: Any) -> Answer:
        """Hands an action what it takes; an argument of another action is a mistake to be told."""
        run = self.actions()[action]
        takes = _parameters(run)
        for name in arguments:
            if name not in takes:
                its = ", ".join(takes) or "no others"
                raise BadRequest(f"{name!r} is not for action {action}, which takes {its}")
        if takes[:1] == ["handle"] and "group" not in takes:
            handle = arguments.pop("handle", None)
            if handle is None:
                raise BadRequest(
                    f"action {action} needs 'handle', from spawn_process or action list"
                )
            process = await self.find(handle)
            answer = await run(process, **arguments)
            return {**answer, **published(process.record)}
        return await run(**arguments)

    async def list_all(self) -> Answer:
        return {"processes": [listed(process.record) for process in await self.client.list()]}

    async def status(self, handle: Process) -> Answer:
        record = await handle.refresh()
        await self.saw(record)
        return {**listed(record), "cwd": record.cwd, **notes(record)}

    async def log(
        self,
        handle: Process,
        offset: int | None = None,
        limit: int = _LINES,
        byte: int | None = None,
    ) -> Answer:
        record = await handle.refresh()
        if byte is not None:
            view = await handle.view(budget=OUTPUT, start=byte)
            return {"handle": record.handle, "status": record.status, "output": view.text}
        lines = await handle.lines(-limit if offset is None else offset, limit)
        view = await handle.view(budget=OUTPUT, start=lines.start, end=lines.end)
        if not lines.more:
            await self.saw(record)
        answer: Answer = {
            "handle": record.handle,
            "status": record.status,
            "output": view.text,
            "offset": lines.first_line,
            "next_offset": lines.next_line,
            "more": lines.more,
        }
        if lines.gone:
            answer["note"] = f"{lines.gone} lines before these were let go (the log is capped)"
        return answer

    async def capture(self, handle: Process) -> Answer:
        screen = await handle.screen()
        await handle.refresh()
        return {
            "handle": handle.handle,
            "status": handle.record.status,
            "screen": screen.text,
            **{key: value for key, value in screen.public().items() if key != "text" and value},
            **waiting(handle.record),
        }

    async def send_keys(
        self, handle: Process, keys: str | list[str] = "", enter: bool | None = None
    ) -> Answer:
        self.check_input(handle)
        terminal(handle)
        pressed = [keys] if isinstance(keys, str) else keys
        named = False
        for each in pressed:
            named = is_key(each)
            if named:
                await handle.keys(each)
            elif each:
                await handle.send(each)
        if enter or (enter is None and not named):
            await handle.keys("Enter")
        return {"handle": handle.handle, "status": "sent"}

    async def write(self, handle: Process, data: str = "", eof: bool = False) -> Answer:
        self.check_input(handle)
        written = await handle.send(data, eof=eof)
        answer: Answer = {"handle": handle.handle, "written": written}
        if written < len(data.encode("utf-8", "surrogateescape")):
            answer["note"] = "it did not read all of it; write the rest when it does"
        return answer

    async def kill(self, handle: Process, signal: str = "TERM") -> Answer:
        receipt = await handle.kill(signal=signal)
        answer: Answer = {"handle": handle.handle, **how_it_ended(receipt.record)}
        if receipt.already_ended:
            answer["note"] = "it had already ended"
        if receipt.survivors:
            answer["survivors"] = receipt.survivors
        return answer


# -- what is said of a process -----------------------------------------------------------------


def started(record: Record) -> Answer:
    """Just begun, or still running."""
    answer: Answer = {
        "handle": record.handle,
        "tmux_session": record.tmux_session,
        "status": record.status,
        "pid": record.pid,
    }
    if record.attach and record.running:
        answer["attach"] = record.attach
    return {**answer, **published(record), **notes(record)}


def how_it_ended(record: Record) -> Answer:
    answer: Answer = {"status": record.status, "exit_code": record.exit_code}
    if record.signal is not None:
        answer["signal"] = record.signal
    if record.reason not in (None, "exited"):
        answer["reason"] = record.reason
    return answer


def listed(record: Record) -> Answer:
    """The entry of one process, with what a model needs to know."""
    return {
        "handle": record.handle,
        "label": record.label,
        "command": record.command_text,
        **how_it_ended(record),
        "pid": record.pid,
        "tmux_session": record.tmux_session,
        "started_at": record.started_at,
        "duration_seconds": rounded(record.elapsed()),
        **published(record),
        **({"group": record.group} if record.group else {}),
        **waiting(record),
    }


def waiting(record: Record) -> Answer:
    return {"waiting_for_input": record.waiting_for_input} if record.waiting_for_input else {}


def notes(record: Record) -> Answer:
    return {"notes": record.notes} if record.notes else {}


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def is_key(text: str) -> bool:
    """True if this names a key and is not text to be typed; `next` is a word, `PageDown` is not."""
    from ...terminal.keys import parse

    if len(text) < 2 or (text.isalpha() and text.islower()):
        return False
    try:
        parse(text)
    except BadRequest:
        return False
    return True


def terminal(process: Process) -> None:
    from ...terminal.control import check_terminal

    check_terminal(process.record)


def _parameters(run: Action) -> list[str]:
    code = run.__code__
    return [name for name in code.co_varnames[1 : code.co_argcount] if name != "call"]
