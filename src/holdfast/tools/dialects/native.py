"""Our own tools: Duragent's, and everything else that holdfast can do."""

from __future__ import annotations

import re

from ...client.config import UNSET
from ...core.cursors import save_cursor
from ...core.errors import BadRequest
from .._agent_tool import AgentTool
from .._dialect import OUTPUT
from .._tool import Tool, published
from .duragent import PROCESS, SPAWN, Duragent, how_it_ended, listed, rounded, started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...client.process import Process
    from ...core.types import Stream
    from .._schema import Schema
    from .._tool import Call
    from .duragent import Action, Answer

_READER = "tools"
_WAIT = 60.0
_GO_ON = re.compile(r"go on with (?:end=\d+|start=)")
_STRINGS: Schema = {"type": "array", "items": {"type": "string"}}

_SPAWN: dict[str, Schema] = {
    **SPAWN,
    "tty": {"type": "boolean", "description": "in a terminal without tmux"},
    "yield_ms": {
        "type": "integer",
        "minimum": 0,
        "description": "wait this long for its end; then it goes on in the background",
    },
    "group": {"type": "string", "description": "a word shared by what belongs together"},
    "watch": {
        **_STRINGS,
        "description": "be told, in `events`, of output=REGEX, quiet=30s, port=3000, every=60s",
    },
    "env": {"type": "object", "description": "variables to add to the environment"},
    "docker": {
        "anyOf": [
            {"type": "string"},
            {
                "type": "object",
                "properties": {
                    "image": {"type": "string"},
                    "pull": {"type": "boolean"},
                    "network": {"type": "string", "enum": ["none", "host"]},
                    "user": {"type": "string"},
                },
                "required": ["image"],
                "additionalProperties": False,
            },
        ],
        "description": "an image: run it in a container, with workdir mounted",
    },
    "ports": {
        "type": "array",
        "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "description": "of the container; `ports` of the results has where each is on this machine",
    },
    "inside": {"type": "string", "description": "handle of a container to run it in"},
    "sandbox": {
        "type": "string",
        "enum": ["closed", "network"],
        "description": "it can write to workdir only, no Unix sockets; closed: and no network",
    },
    "limits": {
        "type": "object",
        "properties": {
            "memory": {"type": "string", "description": "like 2G"},
            "cpu": {"type": "number"},
            "processes": {"type": "integer"},
            "files": {"type": "integer"},
        },
        "additionalProperties": False,
        "description": "the most it may use",
    },
    "keep": {"type": "boolean", "description": "true: it outlives this session"},
    "max_output_bytes": {"type": "integer", "minimum": 1, "description": "stop it after so much"},
}
_PROCESS: dict[str, Schema] = {
    **PROCESS,
    "pattern": {"type": "string", "description": "search: a regex; the last, or from byte on"},
    "size": {"type": "string", "description": "resize: like 120x40"},
    "condition": {"type": "string", "description": "watch: as in spawn_process; unwatch: its name"},
    "group": {"type": "string", "description": "list, kill, gather: a group instead of a handle"},
    "signal": {"type": "string", "description": "kill: like INT or KILL; default TERM, then KILL"},
}


class Native(Duragent):
    name = "native"
    always_loaded = True
    subagents = True

    def tools(self) -> list[Tool]:
        return [
            Tool(
                "spawn_process",
                "Start a shell command in the background and return a handle at once. Use it for "
                "anything that may take more than a few seconds: builds, tests, servers, other "
                "agents. With wait or yield_ms the result comes back if it ends in time. Else you "
                "are told of its end in `events` of a later result: do not sleep and poll.",
                self.spawn_process,
                {
                    name: schema
                    for name, schema in _SPAWN.items()
                    if name not in self.confinement.decided
                },
                ("command",),
                title="Start a process",
                starts=True,
                handles=("inside",),
            ),
            Tool(
                "process",
                "Look at or act on processes of this session. list; status; poll (new output since "
                "the last poll); log (output by lines); search (lines that match); usage (CPU, "
                "memory, ports); capture (its screen), send_keys, resize (in a terminal); write "
                "(to stdin); watch, unwatch; gather (one event for a group); kill (with everything "
                "it started); clear (its log); remove (all of it).",
                self.process,
                {"action": {"type": "string", "enum": [*self.actions()]}, **_PROCESS},
                ("action",),
                title="Look at and act on processes",
                destroys=True,
                handles=("handle",),
            ),
            Tool(
                "wait_for",
                "Block until something holds, instead of sleeping and polling. Returns as soon as "
                "it does, or when a process has ended before it did. Conditions: exit, "
                "output=REGEX (each match once), port=3000, http=URL, file=PATH, quiet=5s, "
                "input. If it answers timed_out, call it again with the same arguments.",
                self.wait_for,
                {
                    "handles": {**_STRINGS, "description": "default: all that run"},
                    "group": {"type": "string", "description": "instead of handles"},
                    "conditions": {**_STRINGS, "description": "default: exit"},
                    "all": {"type": "boolean", "description": "every one; default: any"},
                    "timeout_seconds": {
                        "type": "number",
                        "minimum": 0,
                        "description": "default 60",
                    },
                },
                title="Wait until something holds",
                reads=True,
                handles=("handles",),
                resumable=True,
            ),
            AgentTool(self.client).tool(),
        ]

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
        tty: bool = False,
        yield_ms: int | None = None,
        group: str = "",
        watch: list[str] | None = None,
        env: dict[str, Any] | None = None,
        docker: str | dict[str, Any] | None = None,
        ports: list[str | int] | None = None,
        inside: str | None = None,
        sandbox: str | None = None,
        limits: dict[str, Any] | None = None,
        keep: bool = False,
        max_output_bytes: int | None = None,
    ) -> Answer:
        if wait and yield_ms is not None:
            raise BadRequest("give 'wait' or 'yield_ms', not both")
        if inside is not None and (docker or ports or sandbox or limits):
            raise BadRequest(
                "'inside' runs it in a container that is there, with that one's ports and limits: "
                "leave docker, ports, sandbox and limits out"
            )
        if tmux is None:
            contained = docker is not None or inside is not None
            tmux = not (wait or tty or yield_ms is not None or contained) and self.in_tmux
        process = await self.spawn(
            command,
            cwd=workdir,
            env=_texts(env),
            tty=tty and not tmux,
            tmux=tmux,
            label=label,
            group=group,
            timeout=UNSET if timeout_seconds is None else timeout_seconds,
            stdin=not wait,
            watch=watch or (),
            docker=docker,
            ports=[str(port) for port in ports or ()],
            inside=None if inside is None else await self.find(inside),
            sandbox={"network": sandbox == "network"} if sandbox else False,
            limits=limits,
            keep=keep,
            log_limit=UNSET if max_output_bytes is None else max_output_bytes,
        )
        if wait:
            return await self.result(call, process)
        if yield_ms is not None and await call.wait(process, yield_ms / 1000) is None:
            early = await self.output(process)
            note = f"still running after {yield_ms} ms: it goes on in the background"
            return {**started(process.record), "output": early, "note": note}
        if yield_ms is not None:
            return await self.result(call, process)
        return started(process.record)

    # -- process -------------------------------------------------------------------------------

    def actions(self) -> dict[str, Action]:
        return {
            **super().actions(),
            "list": self.list_group,
            "poll": self.poll,
            "search": self.search,
            "usage": self.usage,
            "resize": self.resize,
            "watch": self.watch,
            "unwatch": self.unwatch,
            "gather": self.gather,
            "kill": self.kill_any,
            "clear": self.clear,
            "remove": self.remove,
        }

    async def list_group(self, group: str | None = None) -> Answer:
        found = await self.client.list(group=group)
        return {"processes": [listed(process.record) for process in found]}

    async def poll(self, handle: Process) -> Answer:
        record = await handle.refresh()
        answer: Answer = {"handle": record.handle, **how_it_ended(record)}
        answer["output"] = await self._unread(handle, "stdout")
        if len(record.streams) > 1:
            answer["errors"] = await self._unread(handle, "stderr")
        await self.saw(record)
        answer["duration_seconds"] = rounded(record.elapsed())
        return answer

    async def _unread(self, process: Process, stream: Stream) -> str:
        """The new output, however much, as a model should read it."""
        new = await process.read(reader=_READER, stream=stream)
        end = None if new.more else new.end
        view = await process.view(budget=OUTPUT, start=new.start - new.gap, end=end, stream=stream)
        if new.more:
            home, record = self.client.home, process.record
            save_cursor(home, record.session, _READER, record.handle, stream, view.end)
        return view.text

    async def search(
        self, handle: Process, pattern: str = "", limit: int = 20, byte: int | None = None
    ) -> Answer:
        if not pattern:
            raise BadRequest("action search needs 'pattern', a regular expression")
        first = None if byte is None else limit
        found = await handle.search(pattern, first=first, last=limit, start=byte, budget=OUTPUT)
        text, note = map(_as_arguments, (found.text, found.note))
        answer: Answer = {"handle": handle.handle, "count": found.count, "output": text}
        if not found.complete:
            answer["note"] = note
        return answer

    async def usage(self, handle: Process) -> Answer:
        used = await handle.usage(interval=0.1)
        answer = {"handle": handle.handle, "status": handle.record.status, **used.public()}
        if handle.record.ports:  # which are the container's then; of these somebody listens at
            answer["listening"] = used.ports
        return answer

    async def resize(self, handle: Process, size: str = "") -> Answer:
        from ...core.units import parse_screen_size

        try:
            columns, rows = parse_screen_size(size)
        except ValueError as error:
            raise BadRequest(f"'size' {error}, not {size[:40]!r}") from None
        await handle.resize(columns, rows)
        return {"handle": handle.handle, "size": size}

    async def watch(self, handle: Process, condition: str = "") -> Answer:
        return {"handle": handle.handle, "watch": await handle.watch(condition)}

    async def unwatch(self, handle: Process, condition: str = "") -> Answer:
        await handle.unwatch(condition)
        return {"handle": handle.handle}

    async def gather(self, group: str = "") -> Answer:
        return {"group": group, "members": await self.client.group(group).gather()}

    async def kill_any(
        self, handle: str | None = None, group: str | None = None, signal: str = "TERM"
    ) -> Answer:
        if (handle is None) == (group is None):
            raise BadRequest("action kill needs 'handle' or 'group'")
        if handle is not None:
            process = await self.find(handle)
            return {**await self.kill(process, signal), **published(process.record)}
        receipts = await self.client.group(group or "").stop(signal=signal)
        return {
            "group": group,
            "killed": [
                {
                    "handle": receipt.record.handle,
                    **how_it_ended(receipt.record),
                    **published(receipt.record),
                }
                for receipt in receipts
            ],
        }

    async def clear(self, handle: Process) -> Answer:
        await handle.clear()
        return {"handle": handle.handle, "status": handle.record.status}

    async def remove(self, handle: Process) -> Answer:
        await handle.remove()
        return {"handle": handle.handle, "removed": True}

    # -- wait_for ------------------------------------------------------------------------------

    async def wait_for(
        self,
        call: Call,
        handles: list[str] | None = None,
        group: str | None = None,
        conditions: list[str] | None = None,
        all: bool = False,
        timeout_seconds: float | None = None,
    ) -> Answer:
        if timeout_seconds is None:
            call.at_most(_WAIT)
        if handles:
            processes = [await self.find(handle) for handle in handles]
        else:
            known = await self.client.list(group=group)
            processes = [each for each in known if each.record.running or group is not None]
        if not processes:
            where = f"in group {group!r}" if group else "in this session"
            raise BadRequest(f"nothing runs {where}; spawn_process starts something")
        waited = await self.until(
            call, processes, conditions or ["exit"], all=all, timeout=timeout_seconds
        )
        answer = waited.public()
        found = {process.handle: published(process.record) for process in processes}
        for met in answer["met"]:
            met |= found[met["handle"]]
        for handle, end in answer["ended"].items():
            end |= found[handle]
        if len(processes) == 1:
            answer |= found[processes[0].handle]
        if waited.timed_out:
            answer["note"] = "not yet; call again with the same arguments to go on waiting"
        return answer


def _as_arguments(note: str) -> str:
    """The note of a search about going on, in the words of the tool."""
    return _GO_ON.sub(
        lambda found: "go on with byte=" + ("" if found[0].endswith("=") else "0, from the start"),
        note,
    )


def _texts(env: dict[str, Any] | None) -> dict[str, str] | None:
    """Models give numbers and truth values too."""
    if env is None:
        return None
    odd = [name for name, value in env.items() if not isinstance(value, (str, int, float))]
    if odd:
        raise BadRequest(f"{odd[0]!r} in 'env' is text or a number; nothing was started")
    words = {True: "true", False: "false"}
    return {
        name: words[value] if isinstance(value, bool) else str(value) for name, value in env.items()
    }
