"""Dodo's tools: servers in the background, waiting until they are ready, tests and builds.

Its document is a plan; where it is silent: a `cmd` without `args` is a shell command line, with
them a program that gets them as they are. A `process_id` and a `job_id` are handles of the same
kind and good for every tool. Times are seconds. What was started ends with its session at once, as
the plan demands (`lease_grace`), and has no deadline but that; a test or build that is waited for
has the usual one. The limit of three is on what is started for the background.

With ``Toolset(client, "dodo", docker=IMAGE)`` all of them run in containers. Waits then take the
port that the server in the container has, or the one of this machine at which it is published.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from ...client.conditions import TakenPort
from ...client.config import UNSET
from ...core.environment import working_directory
from ...core.errors import BadRequest, LimitReached, NotExecutable, Unavailable
from ...core.quote import one_line
from .._dialect import OUTPUT, Dialect
from .._listening import owner_of, wait_for_owner
from .._project import find_command
from .._tool import Tool, published
from .duragent import how_it_ended, notes, rounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...client.client import Client
    from ...client.process import Process
    from ...client.wait_for import Waited
    from ...core.record import Record
    from ...linux.usage import Usage
    from .._project import Kind
    from .._schema import Schema
    from .._tool import Call

    Answer = dict[str, Any]

MOST_RUNNING = 3
_LINES = 50
_TIMEOUT = 60.0
_ENDED_LISTED = 10
_TAIL = 20  # lines that come with a wait that found no service
_CPU_INTERVAL = 0.1
_USED = ("cpu_seconds", "peak_memory_bytes")
_USES = ("cpu_percent", "memory_bytes", "processes", "threads", "open_files", *_USED)
_NO_PORTS = (
    "'ports' are published only for processes in Docker, which commands do not run in here; "
    "nothing was started. Without Docker a process's own ports are reachable as they are: leave "
    "'ports' out and use wait_for_port"
)
_AGAIN = "call again with the same arguments to go on waiting"

_ARGS: Schema = {
    "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}],
    "description": "its arguments, as a list or one string",
}
_PORTS: Schema = {
    "type": "array",
    "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    "description": "only in Docker: container ports to publish",
}
_CWD: Schema = {"type": "string", "description": "directory to run in; default: the agent's"}
_START: dict[str, Schema] = {
    "cmd": {
        "type": "string",
        "minLength": 1,
        "description": "a shell command line; with args, a program",
    },
    "args": _ARGS,
    "ports": _PORTS,
    "cwd": _CWD,
    "options": {
        "type": "object",
        "properties": {"ports": {"type": "array", "items": _PORTS["items"]}, "cwd": _CWD},
        "additionalProperties": False,
        "description": "ports and cwd, if not given directly",
    },
}
_ID: Schema = {"type": "string", "description": "a process_id or job_id"}
_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_WAIT: Schema = {
    "type": "number",
    "minimum": 0,
    "description": f"seconds, default {_TIMEOUT:g}",
}
_JOB: dict[str, Schema] = {
    "cmd": {
        "type": "string",
        "minLength": 1,
        "description": "a command instead of the project's own",
    },
    "args": {**_ARGS, "description": "added to the command, as a list or one string"},
    "cwd": {"type": "string", "description": "the project's directory; default: the agent's"},
    "timeout": {
        "type": "number",
        "minimum": 0,
        "description": "stop it after so many seconds, 0: never; default 1800, in the background 0",
    },
    "background": {
        "type": "boolean",
        "description": "true: return a job_id at once; default false: return the result",
    },
}
_ANY_ID = {"process_id": "id", "job_id": "id"}


class Dodo(Dialect):
    name = "dodo"
    lease_grace = 0.0
    instructions = (
        "Start servers and watchers with run_background, wait_for_service until they are ready, "
        "then test against them. Do not sleep and poll: ends and crashes are told in `events` of "
        "a later result. Everything stops when the session ends."
    )

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._unseen: set[str] = set()  # started here, and no tool has shown their end

    def tools(self) -> list[Tool]:
        run_background = Tool(
            "run_background",
            "Start a long-running command (server, watcher, database) and return its process_id at "
            "once. Then wait_for_service until it is ready; read_process_output shows its output. "
            f"At most {MOST_RUNNING} run at a time.",
            self.run_background,
            _START,
            ("cmd",),
            title="Start a process",
            starts=True,
        )
        run_test = Tool(
            "run_test",
            "Run the project's tests and return exit code and output, or with background a job_id. "
            "The command is found in package.json, Makefile, pyproject.toml, go.mod or Cargo.toml.",
            self.run_test,
            _JOB,
            title="Run tests",
            starts=True,
        )
        return [
            run_background,
            replace(
                run_background, name="start_process", description="The same as run_background."
            ),
            Tool(
                "stop_process",
                "Stop a process with everything it started; returns how it ended.",
                self.stop_process,
                {"process_id": _ID},
                ("process_id",),
                title="Stop a process",
                destroys=True,
                also={"id": "process_id", "job_id": "process_id"},
                handles=("process_id",),
            ),
            Tool(
                "list_processes",
                "The processes of this session: status, exit code, processor and memory, the "
                "ports on which they listen.",
                self.list_processes,
                title="List processes",
                reads=True,
            ),
            Tool(
                "read_process_output",
                "The last lines that a process wrote, and how it stands.",
                self.read_process_output,
                {
                    "id": _ID,
                    "lines": {
                        "type": "integer",
                        "minimum": 1,
                        "description": f"default {_LINES}",
                    },
                },
                ("id",),
                title="Read output",
                reads=True,
                also=_ANY_ID,
                handles=("id",),
            ),
            Tool(
                "wait_for_port",
                "Wait until somebody listens on a local TCP port, and say who; with id, until "
                "that process does.",
                self.wait_for_port,
                {"port": _PORT, "timeout": _WAIT, "id": _ID},
                ("port",),
                title="Wait for a port",
                reads=True,
                also=_ANY_ID,
                handles=("id",),
            ),
            Tool(
                "wait_for_service",
                "Wait until a process is ready: it listens on a port, or its output (from its "
                "start) matches a pattern; if both are given, both. Returns at once if it ends.",
                self.wait_for_service,
                {
                    "port": _PORT,
                    "output_regex": {"type": "string", "minLength": 1},
                    "timeout": _WAIT,
                    "id": {**_ID, "description": "default: the only process that runs"},
                },
                title="Wait for a service",
                reads=True,
                also=_ANY_ID,
                handles=("id",),
            ),
            run_test,
            replace(run_test, name="run_tests", hidden=True),  # as Dodo calls it today
            Tool(
                "run_build",
                "Build the project, like run_test.",
                self.run_build,
                _JOB,
                title="Build",
                starts=True,
            ),
        ]

    # -- run_background, stop_process ----------------------------------------------------------

    async def run_background(
        self,
        call: Call,
        cmd: str,
        args: Sequence[str] = (),
        ports: list[str | int] | None = None,
        cwd: str | None = None,
        options: Answer | None = None,
    ) -> Answer:
        for name, value in (options or {}).items():
            if {"ports": ports, "cwd": cwd}[name] not in (None, value):
                raise BadRequest(f"{name!r} is given twice, once in 'options'; nothing was started")
        options = {"ports": ports, "cwd": cwd, **(options or {})}
        wanted = [str(port) for port in options["ports"] or ()]
        if wanted and not self.confinement.contained:
            raise Unavailable(_NO_PORTS)
        process = await self._start(_command(cmd, _words(args)), options["cwd"], ports=wanted)
        self._unseen.add(process.handle)
        return {"process_id": process.handle, **started(process.record)}

    @property
    def _most_running(self) -> int:
        return min(MOST_RUNNING, int(self.client.config["max_running"]))

    async def _start(
        self,
        command: str | list[str],
        cwd: str | None,
        *,
        ports: Sequence[str] = (),
        label: str = "",
        timeout: Any = None,
        background: bool = True,
    ) -> Process:
        most = self._most_running if background else UNSET
        try:
            return await self.spawn(
                command, cwd=cwd, ports=ports, label=label, timeout=timeout, max_running=most
            )
        except LimitReached:
            running = [each.record for each in await self.client.list(ended=False)]
            raise LimitReached(
                f"no more than {len(running)} may run at a time; stop_process one of them first, "
                f"or wait for its end: {_named(running)}",
                running=[record.handle for record in running],
            ) from None
        except NotExecutable as error:
            if error.missing and isinstance(command, list) and " " in command[0]:
                raise NotExecutable(
                    f"with 'args', 'cmd' is one program, and there is none {command[0]!r}; give "
                    "the whole command line as 'cmd', without 'args'",
                    missing=True,
                ) from None
            raise

    async def saw(self, record: Record) -> None:
        if not record.running:
            self._unseen.discard(record.handle)
        await super().saw(record)

    async def stop_process(self, call: Call, process_id: str) -> Answer:
        receipt = await (await self.find(process_id)).kill()
        await self.saw(receipt.record)
        record = receipt.record
        answer: Answer = {"process_id": process_id, **how_it_ended(record), **published(record)}
        if receipt.already_ended:
            answer["message"] = "it had already ended"
        elif receipt.survivors:
            answer["survivors"] = receipt.survivors
        else:
            answer["message"] = "stopped, with everything it started"
        return answer

    # -- list_processes, read_process_output ---------------------------------------------------

    async def list_processes(self, call: Call) -> Answer:
        from ...linux.usage import usages

        records = [process.record for process in await self.client.list()]
        running = [record for record in records if record.running]
        ended = [record for record in records if not record.running]
        shown = running + ended[-_ENDED_LISTED:]
        interval = _CPU_INTERVAL if running else 0.0
        used = await self.client.run_in_thread(lambda: usages(shown, interval=interval))
        for record in shown:
            await self.saw(record)
        answer: Answer = {
            "processes": [listed(record, used[record.handle]) for record in shown],
            "running": len(running),
            "most": self._most_running,
        }
        if len(ended) > _ENDED_LISTED:
            older = len(ended) - _ENDED_LISTED
            answer["note"] = f"{older} that ended before these are not shown"
        return answer

    async def read_process_output(self, call: Call, id: str, lines: int = _LINES) -> Answer:
        process = await self.find(id)
        record = await process.refresh()
        output = await _last_lines(process, lines)
        await self.saw(record)
        return {
            "process_id": record.handle,
            **how_it_ended(record),
            "output": output,
            "duration_seconds": rounded(record.elapsed()),
            **published(record),
            **notes(record),
        }

    # -- waiting -------------------------------------------------------------------------------

    async def wait_for_port(
        self, call: Call, port: int, timeout: float = _TIMEOUT, id: str | None = None
    ) -> Answer:
        process = await (self._publisher(port) if id is None else self.find(id))
        if process is not None:
            return await self._service(call, process, port, None, timeout)
        _, impatient = call.left(timeout)
        owner, failed = await wait_for_owner(self.client, call, port, timeout, self._unseen)
        answer: Answer = {"ready": owner is not None, "port": port}
        if owner is not None:
            answer |= {"owner": owner.public(), "message": f"port {port} is open: {owner}"}
        elif failed is not None:
            answer |= await self._how_it_stands(failed)
            answer["message"] = (
                f"nobody listens on port {port}, and nothing of this session runs any more: "
                f"{failed.handle} has ended ({_end(failed.record)})"
            )
        else:
            answer["timed_out"] = True
            answer["message"] = _not_yet(f"nobody listens on port {port}", call, impatient)
        answer["seconds"] = round(call.elapsed, 3)
        return answer

    async def _publisher(self, port: int) -> Process | None:
        """Find whose container has this port, or is reached by it at this machine."""
        running = await self.client.list(ended=False)
        for found in (
            [each for each in running if port in each.ports.values()],
            [each for each in running if str(port) in each.ports],
        ):
            if len(found) == 1:
                return found[0]
            if found:
                named = _named([process.record for process in found])
                raise BadRequest(
                    f"{len(found)} containers have a port {port}; say which as 'id': {named}"
                )
        return None

    async def wait_for_service(
        self,
        call: Call,
        port: int | None = None,
        output_regex: str | None = None,
        timeout: float = _TIMEOUT,
        id: str | None = None,
    ) -> Answer:
        if port is None and output_regex is None:
            raise BadRequest("wait_for_service needs 'port' or 'output_regex', or both")
        process = await (self._only_running() if id is None else self.find(id))
        return await self._service(call, process, port, output_regex, timeout)

    async def _service(
        self,
        call: Call,
        process: Process,
        port: int | None,
        output_regex: str | None,
        timeout: float,
    ) -> Answer:
        conditions: list[Any] = []
        if port is not None:
            conditions.append(f"port={port}")
        if output_regex is not None:
            # From the start: a server may have said so before anybody could ask.
            conditions.append({"output": output_regex, "since": "start"})
        _, impatient = call.left(timeout)
        answer: Answer = {
            "ready": False,
            "process_id": process.handle,
            **published(process.record),
        }
        if port is not None:
            answer["port"] = port
        try:
            waited = await self.until(call, [process], conditions, all=True, timeout=timeout)
        except TakenPort as error:
            answer |= await self._how_it_stands(process)
            if (owner := await owner_of(self.client, port or 0)) is not None:
                answer["owner"] = owner.public()
            return {**answer, "message": str(error), "seconds": round(call.elapsed, 3)}
        owner = None
        if port is not None and not process.ports:  # of a container the engine would be named
            owner = await owner_of(self.client, port)
        if owner is not None:
            answer["owner"] = owner.public()
        for met in waited.met:
            if "line" in met.detail:
                answer["match"] = met.detail["line"]
                if any(met.detail.get("groups") or ()):
                    answer["groups"] = met.detail["groups"]
        if waited.ok and not waited.ended:
            answer |= {"ready": True, "message": f"{process.handle} is ready{_at(waited)}"}
        else:
            answer |= await self._how_it_stands(process)
            what = " and ".join(waited.waiting)
            record = process.record
            if waited.ok:
                answer["ready"] = record.status == "completed"
                answer["message"] = f"it was ready, and has ended since ({_end(record)})"
            elif waited.timed_out and record.running:
                answer |= {"waiting_for": waited.waiting, "timed_out": True}
                answer["message"] = _not_yet(f"still waiting for {what}", call, impatient)
            else:
                answer["waiting_for"] = waited.waiting
                answer["message"] = f"it has ended ({_end(record)}) without {what}"
            if owner is not None and owner.process_id != process.handle:
                answer["message"] += f". Port {port} is taken: {owner}"
        answer["seconds"] = round(call.elapsed, 3)
        return answer

    async def _only_running(self) -> Process:
        processes = await self.client.list()
        running = [process for process in processes if process.record.running]
        if len(running) == 1:
            return running[0]
        if running:
            named = _named([process.record for process in running])
            raise BadRequest(f"{len(running)} processes run; say which as 'id': {named}")
        ended = [process.record for process in processes[-MOST_RUNNING:]]
        last = f"; these have ended: {_named(ended)}" if ended else ""
        raise BadRequest(f"no process runs; run_background starts one{last}")

    async def _how_it_stands(self, process: Process) -> Answer:
        record = await process.refresh()
        await self.saw(record)
        output = await _last_lines(process, _TAIL)
        answer = {"process_id": record.handle, **how_it_ended(record), **published(record)}
        return {**answer, "output": output}

    # -- run_test, run_build -------------------------------------------------------------------

    async def run_test(self, call: Call, **arguments: Any) -> Answer:
        answer = await self._job(call, "test", **arguments)
        if answer["status"] != "running":
            answer["passed"] = answer["status"] == "completed"
        return answer

    async def run_build(self, call: Call, **arguments: Any) -> Answer:
        return await self._job(call, "build", **arguments)

    async def _job(
        self,
        call: Call,
        kind: Kind,
        cmd: str | None = None,
        args: Sequence[str] = (),
        cwd: str | None = None,
        timeout: float | None = None,
        background: bool = False,
    ) -> Answer:
        source: Answer = {}
        if cmd is None:
            contained = self.confinement.contained
            directory = working_directory(cwd)
            self.confinement.check_project(directory)
            found = find_command(kind, directory, contained=contained)
            command: str | list[str] = found.with_more(_words(args))
            source = {"found_in": found.source}
        else:
            command = _command(cmd, _words(args))
        deadline = UNSET if timeout is None and not background else timeout
        process = await self._start(
            command, cwd, label=kind, timeout=deadline, background=background
        )
        if background:
            return {"job_id": process.handle, **started(process.record), **source}
        ended = await call.wait(process) is not None
        answer = {"job_id": process.handle, "cmd": process.record.command_text, **source}
        if not ended:
            return {
                **answer,
                "status": "running",
                "output": await _last_lines(process, _TAIL),
                "message": f"still running after {call.elapsed:.0f} s: it goes on in the "
                "background, and its end is told in `events`; read_process_output shows how far "
                "it is",
            }
        return {
            **answer,
            **how_it_ended(process.record),
            "output": await self.output(process),
            "duration_seconds": rounded(process.record.duration_seconds),
        }


# -- arguments ---------------------------------------------------------------------------------


def _words(args: Sequence[str]) -> list[str]:
    if not isinstance(args, str):
        return list(args)
    try:
        return shlex.split(args)
    except ValueError as error:
        raise BadRequest(f"'args' cannot be taken apart ({error}); give a list") from None


def _command(cmd: str, args: list[str]) -> str | list[str]:
    return [cmd, *args] if args else cmd


# -- what is said of a process -----------------------------------------------------------------


def started(record: Record) -> Answer:
    return {
        "status": record.status,
        "pid": record.pid,
        "cmd": record.command_text,
        "cwd": record.cwd,
        **published(record),
        **notes(record),
    }


def listed(record: Record, used: Usage) -> Answer:
    facts = used.public()
    shown = _USES if record.running else _USED
    return {
        "process_id": record.handle,
        **({"label": record.label} if record.label else {}),
        "cmd": record.command_text,
        "cwd": record.cwd,
        **how_it_ended(record),
        "pid": record.pid,
        "started_at": record.started_at,
        "duration_seconds": rounded(record.elapsed()),
        "usage": {name: facts[name] for name in shown},
        **({"listens_on": used.ports} if used.ports else {}),
        **published(record),
        **notes(record),
    }


def _at(waited: Waited) -> str:
    """The address at which the port of a container is reached."""
    for met in waited.met:
        if "host_port" in met.detail:
            return f", at 127.0.0.1:{met.detail['host_port']} of this machine"
    return ""


def _named(records: list[Record]) -> str:
    return ", ".join(
        f"{record.handle} ({one_line(record.command_text[:60])}"
        + (")" if record.running else f": {_end(record)})")
        for record in records
    )


def _end(record: Record) -> str:
    if record.signal is not None:
        return f"{record.status}, {record.signal}"
    if record.exit_code is None:
        return record.status
    return f"{record.status}, exit code {record.exit_code}"


def _not_yet(what: str, call: Call, impatient: bool) -> str:
    so_far = f"{what} after {call.elapsed:.1f} s"
    if impatient:
        return f"{so_far}, and this call may not take longer; {_AGAIN}"
    return f"{so_far}; {_AGAIN}, or see read_process_output"


async def _last_lines(process: Process, lines: int) -> str:
    tail = await process.tail(lines)
    view = await process.view(budget=OUTPUT, start=tail.start, end=tail.end)
    return view.text
