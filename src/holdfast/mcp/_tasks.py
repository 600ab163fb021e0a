"""Tasks: calls that go on after their client was answered, and are asked after until they end.

This is the extension ``io.modelcontextprotocol/tasks``, for requests that declare it. A call that
blocks for longer than a moment becomes a task, and so does one that leaves a process running. The
client asks how it goes (`tasks/get`) and tells its model of the end, idle or not.

DESIGN. The id of a task says how to find it again. That of a call that started a process is its
handle, and the process's end is the task's. That of a wait has the handle of the first process, and
names a call that is kept on disk (`core.waits`) and can be made again. So any server of the session
can be asked: one that does not know a task takes it up, and with it, if need be, the lost session
of the same directory that had it.

The end that a task is about is claimed (`Call`) while somebody asks after it, so that nobody else
is told. It is acknowledged when the answer that shows it has surely been read, which is when the
client is still there a moment later. A server that dies before lets go of the claim, and the end
is told to whoever comes next; a client that asks again gets the same answer. A client that has
stopped asking loses the claim too.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.extension import MethodBinding
from mcp.shared.exceptions import MCPError

from ..core.completion_text import clean_tail
from ..core.errors import HoldfastError, NotFound
from ..core.home import is_handle
from ..core.outbox import end_event_id
from ..core.quote import one_line
from ..core.record import Exit, rfc3339
from ..core.waits import drop_wait, handle_of_wait, load_wait, new_wait, save_wait
from ..tools import Result
from ..tools.detachable import Call
from ._advertised import TASKS
from ._answers import COMPLETE, in_words, readable, result_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from mcp.server.context import ServerRequestContext

    from ..client.process import Process
    from ..core.record import Event, Record
    from ._session import Session

    Answer = dict[str, Any]

_VERSIONS = frozenset({"2026-07-28"})
_SOON = 3.0  # seconds: what is answered by then is no task
_LOOK = 0.25
_BRIEF = 10.0  # a wait that its caller limited to this is none either
_POLL_MS = 1000
_READ = 2.0  # after an answer: the client is still there, so it has read it
_LAPSE = 30.0  # without a question: nobody asks any more
_COMING = 3.0  # for the server of a client that was killed to be gone too
_AGAIN = 0.2
_AT_ONCE = 0.3  # for the result of what has ended already
_UNNOTICED = 10.0  # a prompt of what runs in the background, before a person is asked
_KEPT = 200  # tasks that are over
_TAIL = 4096
_TOLD_ANYHOW = "there is no need to: each is a task, and you are told when it ends"
_TOLD_BEFORE = "an earlier result told of its end"
_LINE = 200


class TaskParams(types.RequestParams):
    task_id: str


class UpdateParams(TaskParams):
    input_responses: dict[str, Any]


# -- what a request declares ---------------------------------------------------------------------


def declares(ctx: ServerRequestContext[Any, Any]) -> bool:
    """True if the client that makes this request can be answered with a task."""
    return isinstance(_table(_capabilities(ctx).get("extensions")).get(TASKS), dict)


def shows_forms(ctx: ServerRequestContext[Any, Any]) -> bool:
    return "form" in _table(_capabilities(ctx).get("elicitation"))


def _capabilities(ctx: ServerRequestContext[Any, Any]) -> Mapping[str, Any]:
    if ctx.protocol_version not in _VERSIONS:
        return {}
    meta = _table((ctx.params or {}).get("_meta"))
    return _table(meta.get("io.modelcontextprotocol/clientCapabilities"))


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def methods(
    tasks: Callable[[ServerRequestContext[Any, Any], str], Tasks],
) -> list[MethodBinding]:
    """The requests about tasks, given how to find where one of a client's is."""

    def check(ctx: ServerRequestContext[Any, Any]) -> None:
        if not declares(ctx):
            raise MCPError(
                types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                f"this needs a client that declares {TASKS} in the request's capabilities",
                {"requiredCapabilities": {"extensions": {TASKS: {}}}},
            )

    async def get(ctx: ServerRequestContext[Any, Any], params: TaskParams) -> Answer:
        check(ctx)
        return await tasks(ctx, params.task_id).get(params.task_id, forms=shows_forms(ctx))

    async def update(ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> Answer:
        check(ctx)
        await tasks(ctx, params.task_id).update(params.task_id, params.input_responses)
        return {**COMPLETE}

    async def cancel(ctx: ServerRequestContext[Any, Any], params: TaskParams) -> Answer:
        check(ctx)
        await tasks(ctx, params.task_id).cancel(params.task_id)
        return {**COMPLETE}

    return [
        MethodBinding("tasks/get", TaskParams, get, _VERSIONS),
        MethodBinding("tasks/update", UpdateParams, update, _VERSIONS),
        MethodBinding("tasks/cancel", TaskParams, cancel, _VERSIONS),
    ]


# -- one task ------------------------------------------------------------------------------------


class Task:
    """One call that goes on, and whoever asks after it."""

    def __init__(
        self,
        id: str,
        call: Call,
        processes: list[Process],
        work: asyncio.Task[Result],
        *,
        created: str,
        waits: bool,
    ) -> None:
        self.id = id
        self.call = call
        self.processes = processes
        self.work = work
        self.created = created
        self.waits = waits  # it is a wait, and cancelled without harm to what it waits for
        self.cancelled = False
        self.held = True  # the ends it is about are claimed
        self.known: bool | None = None  # its end was told by another result; None: not seen yet
        self.over = False  # its end counts as told
        self.asked: dict[str, Event] = {}  # prompts that are claimed, to be shown as forms
        self.dismissed: set[str] = set()  # prompts that the person would not answer
        self.seen: dict[str, float] = {}  # when each prompt was first seen
        self.timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<holdfast.mcp.Task {self.id}>"

    @property
    def handles(self) -> list[str]:
        return [process.handle for process in self.processes]


def resumption(call: Call) -> Answer | None:
    """All that is needed to make the call of a wait again; None if it cannot be made again."""
    tool = call.tool
    if tool is None or not tool.resumable or call.started:
        return None
    arguments = dict(call.arguments)
    if "handles" in tool.properties:
        arguments.pop("group", None)  # those that were there then, and no others
        arguments["handles"] = [process.handle for process in call.waits_for]
    return {"created": rfc3339(time.time()), "tool": tool.name, "arguments": arguments}


class Tasks:
    """The tasks of one session of a connection: the client's own, or a subagent's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tasks: dict[str, Task] = {}
        self._shown_by: dict[str, str] = {}  # for each end, the first task that showed it
        self._taking_up = asyncio.Lock()
        self._beside: set[asyncio.Task[Any]] = set()

    def __contains__(self, id: str) -> bool:
        return id in self._tasks

    # -- beginning -----------------------------------------------------------------------------

    async def instead_of(self, call: Call, work: asyncio.Task[Result]) -> Answer | None:
        """Answer a call with a task, unless it is over in a moment or cannot be one."""
        await asyncio.wait([work], timeout=_SOON)
        while not work.done():
            if call.waits_for and (call.limit is None or call.limit > _BRIEF):
                if not call.started and call.only_ends and self._tells_of(call.waits_for):
                    return await self._no_need(call, work)
                id = self._id_of(call)
                if id is not None:
                    call.detach()
                    return self._begun(id, call, call.waits_for, work)
            await asyncio.wait([work], timeout=_LOOK)
        if work.cancelled() or work.exception() is not None or not call.detached:
            return None
        process = call.started[0]
        work = self._start(self._session.tools.finish(call, process))
        return self._begun(process.handle, call, [process], work)

    def _tells_of(self, processes: list[Process]) -> bool:
        """True if each of these is a task that its client asks after."""
        tasks = [self._tasks.get(process.handle) for process in processes]
        return all(task is not None and task.held and not task.work.done() for task in tasks)

    async def _no_need(self, call: Call, work: asyncio.Task[Result]) -> Answer:
        """Answer a wait for ends that are told anyhow, by tasks: twice would be once too often."""
        name, arguments = call.tool.name if call.tool else "", call.arguments
        self.give_up(call, work)
        await asyncio.wait([work])
        result = await self._session.tools.perform(Call(0.0), name, arguments)
        result.add_note(_TOLD_ANYHOW)
        return result_answer(result)

    def _id_of(self, call: Call) -> str | None:
        """The name of what it waits for: a process that it started, or a wait that is kept."""
        if call.waits_for == call.started:
            return call.started[0].handle
        kept = resumption(call)
        if kept is None:
            return None
        id = new_wait(call.waits_for[0].handle)
        client = self._session.client
        try:
            save_wait(client.home, self._session.name, id, kept)
        except OSError:
            return None  # then it is answered as it would be without tasks
        return id

    def _begun(
        self, id: str, call: Call, processes: list[Process], work: asyncio.Task[Result]
    ) -> Answer:
        waits = not is_handle(id)
        created = rfc3339(time.time()) if waits else processes[0].record.started_at
        task = Task(id, call, list(processes), work, created=created, waits=waits)
        self._keep(task)
        self._asked_after(task)
        message = _last_line(processes[0]) if len(processes) == 1 else ""
        return {
            "resultType": "task",
            **self._facts(task, "working", message or "running", processes[0].record),
        }

    def _keep(self, task: Task) -> None:
        self._tasks[task.id] = task
        known = self._tasks.values()
        over = [each for each in known if each.over or (each.work.done() and not each.held)]
        for each in over[: max(0, len(over) - _KEPT)]:
            del self._tasks[each.id]

    async def _task(self, id: str) -> Task:
        """The task of this id, taken up if this server did not begin it."""
        async with self._taking_up:
            task = self._tasks.get(id)
            if task is None:
                task = await self._take_up(id)
                self._keep(task)
                await asyncio.wait([task.work], timeout=_AT_ONCE)
            return task

    async def _take_up(self, id: str) -> Task:
        tools = self._session.tools
        call = Call(detachable=True)
        call.detach()
        if is_handle(id):
            process = await self._find(id, id)
            work = self._start(tools.finish(call, process))
            created = process.record.started_at
            task = Task(id, call, [process], work, created=created, waits=False)
            task.known = False  # who told of it, if anybody did, may have been this very task
            return task
        handle = handle_of_wait(id)
        if handle is None:
            raise _unknown(id)
        await self._find(handle, id)
        kept = load_wait(self._session.client.home, self._session.name, id) or {}
        began, name, arguments = (kept.get(key) for key in ("created", "tool", "arguments"))
        if not (isinstance(began, str) and isinstance(name, str) and tools.resumable(name)):
            raise _unknown(id)
        handles = _table(arguments).get("handles", [handle])
        processes = [await self._find(each, id) for each in handles]
        work = self._start(tools.perform(call, name, dict(_table(arguments))))
        return Task(id, call, processes, work, created=began, waits=True)

    async def _find(self, handle: str, id: str) -> Process:
        """A process of this session, or of a lost one of this directory, which is taken over.

        The server of a client that was killed may be there for a moment longer than its client.
        """
        session, loop = self._session, asyncio.get_running_loop()
        session.use()
        until = loop.time() + _COMING
        while True:
            try:
                return await session.client.get(handle)
            except NotFound:
                if await session.tools.take_over(handle):
                    continue
            if loop.time() >= until:
                raise _unknown(id)
            await asyncio.sleep(_AGAIN)

    # -- asking after it -----------------------------------------------------------------------

    async def get(self, id: str, *, forms: bool) -> Answer:
        task = await self._task(id)
        self._asked_after(task)
        if not task.held and not task.over:
            task.held = True
            await task.call.hold()
        record = await self._record(task)
        if task.work.done():
            if task.known is None:
                task.known = await self._is_known(task)
            self._asked_after(task)  # it may have ended since
            return self._ended(task, record)
        requests, message = await self._prompts(task, forms)
        status = "input_required" if requests else "working"
        if not message and len(task.processes) == 1:
            message = _last_line(task.processes[0])
        found = {**COMPLETE, **self._facts(task, status, message or "running", record)}
        if requests:
            found["inputRequests"] = requests
        return found

    def _ended(self, task: Task, record: Record) -> Answer:
        if task.cancelled or task.work.cancelled():
            return {**COMPLETE, **self._facts(task, "cancelled", "cancelled", record)}
        error = task.work.exception()
        if error is not None:
            text = readable(in_words(error if isinstance(error, Exception) else Exception(error)))
            facts = self._facts(task, "failed", text, record)
            return {
                **COMPLETE,
                **facts,
                "error": {"code": types.INTERNAL_ERROR, "message": text},
            }
        result = task.work.result()
        message = "waited" if task.waits or record.running else Exit.of(record).describe()
        facts = self._facts(task, "completed", message, record)
        if task.known:
            brief = {"handle": record.handle, "status": record.status, "note": _TOLD_BEFORE}
            result = Result(brief)
        return {**COMPLETE, **facts, "result": result_answer(result)}

    def told_of(self, ends: set[str], by: str = "") -> None:
        """These ends are in a result: that of a wait, or of a call that was answered at once."""
        for handle in ends:
            self._shown_by.setdefault(handle, by)

    async def _is_known(self, task: Task) -> bool:
        """True if its model has been told of the end by another result: of a wait, or a look."""
        if task.waits:
            self.told_of(task.call.ends, task.id)
            return False
        if self._shown_by.setdefault(task.id, task.id) != task.id:
            return True
        ended = end_event_id(task.id)
        events = self._session.client.events(acknowledged=True)
        return any([event.acknowledged async for event in events if event.id == ended])

    async def _record(self, task: Task) -> Record:
        """The record of the first process; as it was last seen, if there is none any more."""
        process = task.processes[0]
        with suppress(HoldfastError):
            return self._session.client.store.load(process.handle)
        return process.record

    def _facts(self, task: Task, status: str, message: str, record: Record) -> Answer:
        """The fields that every task has; it lives as long as the process is kept."""
        timeout = task.call.limit if task.waits else record.timeout
        ttl = None if timeout is None else timeout + record.grace + record.retention
        if not record.running:
            ttl = (record.duration_seconds or 0.0) + record.retention
        return {
            "taskId": task.id,
            "status": status,
            "statusMessage": readable(message),
            "createdAt": task.created,
            "lastUpdatedAt": _updated(task, record),
            "ttlMs": None if ttl is None else int(ttl * 1000),
            "pollIntervalMs": _POLL_MS,
        }

    def _asked_after(self, task: Task) -> None:
        """Somebody asks: let the end be told here, until nobody has asked for a while."""
        if task.timer is not None:
            task.timer.cancel()
        if task.over:
            return
        loop = asyncio.get_running_loop()
        if task.work.done():
            task.timer = loop.call_later(_READ, self._read, task)
        else:
            task.timer = loop.call_later(_LAPSE, self._lapsed, task)

    def _read(self, task: Task) -> None:
        """The client was answered, and is still there."""
        task.over = True
        self._start(task.call.told())

    def _lapsed(self, task: Task) -> None:
        task.held = False
        self._start(self._let_go(task))

    async def _let_go(self, task: Task) -> None:
        asked, task.asked = task.asked, {}
        await self._session.client.release(*asked.values())
        await task.call.let_go()

    # -- prompts -------------------------------------------------------------------------------

    async def _prompts(self, task: Task, forms: bool) -> tuple[Answer, str]:
        """Forms for what its processes ask, as far as nobody else answers; and words about it."""
        requests: Answer = {}
        message = ""
        open_now = await self._open_prompts(task)
        for event in open_now:
            if event.kind == "password":
                message = _password(event, task)
                continue
            message = f"waits for input: {one_line(event.prompt)}"[:_LINE]
            if forms and event.id not in task.dismissed and await self._asks(task, event):
                requests[event.id] = _form(event)
        task.asked = {id: task.asked[id] for id in requests}
        return requests, message

    async def _open_prompts(self, task: Task) -> list[Event]:
        return [
            event
            async for event in self._session.client.events(acknowledged=True)
            if event.type == "input" and event.handle in task.handles and not event.acknowledged
        ]

    async def _asks(self, task: Task, event: Event) -> bool:
        """True if this prompt is one that the person is to be asked, and nobody else tells of it.

        What reads keys is driven with keys. Of what was left to the background the model may be
        about to read for itself.
        """
        if event.id in task.asked:
            return True
        if event.kind != "line" or not event.prompt:
            return False
        if task.call.left_running is not None:
            since = task.seen.setdefault(event.id, time.monotonic())
            if time.monotonic() - since < _UNNOTICED:
                return False
        if not await self._session.client.claim(event):
            return False
        task.asked[event.id] = event
        return True

    async def update(self, id: str, responses: dict[str, Any]) -> None:
        """Type the answers of the person; those to what is not asked any more go nowhere."""
        task = await self._task(id)
        self._asked_after(task)
        if task.work.done():
            return
        asked = {event.id: event for event in await self._open_prompts(task)}
        for key, response in responses.items():
            event, given = asked.get(key), _table(response)
            if event is None or event.kind == "password" or key in task.dismissed:
                continue
            task.dismissed.add(key)  # whatever becomes of it, it is not asked again
            if given.get("action") != "accept":
                await self._session.client.release(event)
                continue
            text = _table(given.get("content")).get("answer", "")
            process = next(each for each in task.processes if each.handle == event.handle)
            try:
                self._session.tools.dialect.check_input(process)
                await process.send(str(text), enter=True)
            except HoldfastError as error:
                await self._session.client.release(event)
                raise MCPError(types.INVALID_PARAMS, readable(in_words(error))) from None

    # -- ending --------------------------------------------------------------------------------

    async def cancel(self, id: str) -> None:
        """End a wait, or the process that the task is about."""
        task = await self._task(id)
        self._asked_after(task)
        if task.work.done():
            return
        if task.waits:
            task.cancelled = True
            task.work.cancel()
            drop_wait(self._session.client.home, self._session.name, id)
            await self._let_go(task)
            return
        stopping = self._start(self._stop(task))
        await asyncio.wait([stopping], timeout=_READ)

    async def _stop(self, task: Task) -> None:
        receipt = await task.processes[0].kill()
        task.cancelled = not receipt.already_ended

    def give_up(self, call: Call, work: asyncio.Task[Result]) -> None:
        """Nobody waits for a call any more: only the wait is over."""
        work.cancel()
        self._start(self._given_up(call, work))

    async def _given_up(self, call: Call, work: asyncio.Task[Result]) -> None:
        await asyncio.wait([work])  # what it was just starting is to be let go of, too
        await call.let_go()

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._beside.discard(task)
        if not task.cancelled():
            task.exception()  # seen; whoever asks after the task is told

    def close(self) -> None:
        """The client is gone: its tasks can be taken up by whoever comes next."""
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            if task.timer is not None:
                task.timer.cancel()
            task.work.cancel()
        for each in self._beside:
            each.cancel()


# -- words ---------------------------------------------------------------------------------------


def _unknown(id: str) -> MCPError:
    return MCPError(
        types.INVALID_PARAMS,
        readable(
            f"there is no task {one_line(id)[:80]!r} in this session, nor in a lost one of this "
            "directory; it may have been forgotten: processes that ended are kept for a while only"
        ),
    )


def _last_line(process: Process) -> str:
    """The last line of its output that shows anything."""
    try:
        data = process.log().tail_bytes(_TAIL).data
    except (HoldfastError, OSError):
        return ""
    for line in reversed(clean_tail(data, _TAIL).splitlines()):
        if line.strip():
            return one_line(line.strip())[:_LINE]
    return ""


def _updated(task: Task, record: Record) -> str:
    """When it ended, or wrote something; or when the task began."""
    if record.ended_at is not None and not task.waits:
        return record.ended_at
    try:
        changed = rfc3339(os.stat(task.processes[0].log().path).st_mtime)
    except (HoldfastError, OSError):
        return task.created
    return max(changed, task.created)


def _password(event: Event, task: Task) -> str:
    process = next(each for each in task.processes if each.handle == event.handle)
    attach = process.attach_command
    where = f"; a person can type it with `{attach}`" if attach else ""
    return f"waits for a password{where}"


def _form(event: Event) -> Answer:
    """The question to the person. What a process wrote is quoted, whatever it says."""
    name = event.label or (
        event.command if isinstance(event.command, str) else " ".join(event.command)
    )
    who = f"{one_line(name)[:_LINE]} ({event.handle})"
    return {
        "method": "elicitation/create",
        "params": {
            "mode": "form",
            "message": readable(f"{who} asks: {one_line(event.prompt)}"),
            "requestedSchema": {
                "type": "object",
                "properties": {
                    "answer": {
                        "type": "string",
                        "title": "Answer",
                        "description": "typed into it, with Enter",
                    }
                },
            },
        },
    }
