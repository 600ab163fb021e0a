"""Background agents: work inside a program that a session keeps track of as of a process.

    task = asyncio.create_task(review())
    agent = await hf.register_agent("review-7", "reviewer", "/tmp/review-7.md", task=task)

A stop cancels the task, and its end is delivered like any other. Without a task, say `done`.

What is known of them is read from the home; registering, ending and stopping go through the keeper,
which also notices when the program that does the work has died: its agents are then `lost`.
"""

from __future__ import annotations

import binascii
import os
import stat
from dataclasses import replace

from ..core.agent_record import AgentRecord, agent_event_id
from ..core.errors import BadRequest, HoldfastError, NotFound
from ..core.outbox import read_events

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, TypeVar

    from ..core.types import Status
    from .client import Client

    T = TypeVar("T")

NO_OUTPUT = "(no output yet)"
UNREADABLE = "(failed to read output file)"
_AGAIN = 1.0  # seconds until a keeper that could not be reached is asked again
_CONTINUATION = bytes(range(0x80, 0xC0))


class Agent:
    """One background agent, as one client sees it. From `register_agent`, `agent` or `agents`."""

    record: AgentRecord
    """All that was known of it at the last look; `refresh` looks again."""

    def __init__(self, client: Client, record: AgentRecord) -> None:
        self._client = client
        self._task: Any = None
        self._cancelled = False
        self.record = record

    def __repr__(self) -> str:
        return f"<holdfast.Agent {self.id!r} {self.record.type} {self.record.status}>"

    @property
    def id(self) -> str:
        """The agent's name in the session."""
        return self.record.id

    @property
    def status(self) -> Status:
        """The status at the last look: running, completed, failed, killed or lost."""
        return self.record.status

    async def refresh(self) -> AgentRecord:
        """Look again: the record as it stands now."""
        found = (await self._client.agent(self.id)).record
        return self._learn(found if found.token == self.record.token else None)

    async def done(self, success: bool = True) -> AgentRecord:
        """Say that the work is over; the session is told, with the end of its output file."""
        return await self._done(success)

    async def _done(self, success: bool, error: BaseException | None = None) -> AgentRecord:
        from ..core.completion_text import TAIL_BYTES

        path = self.record.output_file
        found = await self._client._link.run_in_thread(lambda: read_tail(path, TAIL_BYTES))
        tail = found[0] if isinstance(found, tuple) else b""
        if error is not None:
            words = f"{type(error).__name__}: {error}"[:1000].encode("utf-8", "replace")
            tail = (tail + b"\n" * bool(tail) + words)[-TAIL_BYTES:]
        text = binascii.b2a_base64(tail, newline=False).decode()
        return await self._ask("agent_done", success=success, tail=text)

    async def stop(self) -> AgentRecord:
        """Ask whoever does the work to stop it, and wait until it has.

        A registrant that does not say so within a few seconds is not waited for: the agent is
        `killed` then, with the reason ``unconfirmed``.
        """
        return await self._ask("agent_stop")

    async def stop_requested(self) -> bool:
        """Wait until somebody asks for its stop (True), or until it is over (False)."""
        return (await self._ask("agent_watch")).running

    async def output(self, limit: int = 1 << 20) -> str:
        """Read its output file, at most the last `limit` bytes of it."""
        path = self.record.output_file
        return (await self._client.run_in_thread(lambda: read_output(path, limit)))[0]

    async def _ask(self, verb: str, **more: Any) -> AgentRecord:
        which = {"agent": self.id, "token": self.record.token}
        answer = await self._client._link.call(verb, {**which, **more})
        found = answer["agent"]
        return self._learn(None if found is None else AgentRecord.from_json(found))

    def _learn(self, record: AgentRecord | None) -> AgentRecord:
        """None: its name is another registration's by now, so this one is over."""
        if record is not None:
            self.record = record
        elif self.record.running:
            over = replace(self.record, status="lost", reason="replaced")
            for event in read_events(self._client.home, over.session):
                if event.id == agent_event_id(over):
                    over.status, over.reason = event.status or "lost", event.reason
                    over.ended_at, over.duration_seconds = event.at, event.duration_seconds
            self.record = over
        return self.record

    # -- whoever does the work -----------------------------------------------------------------

    async def _when_stopped(self, on_stop: Callable[[], Any] | None) -> None:
        watching = Agent(self._client, self.record)
        wanted = await self._steadily(watching.stop_requested)
        if not wanted and watching.record.reason not in ("unconfirmed", "lease_ended"):
            return
        self._cancel_task()
        if on_stop is not None:
            answer = on_stop()
            if hasattr(answer, "__await__"):
                await answer

    async def _steadily(self, work: Callable[[], Awaitable[T]]) -> T:
        """Ask until there is an answer: only a client that is closed gives up."""
        while True:
            try:
                return await work()
            except (BadRequest, NotFound):
                raise
            except (HoldfastError, OSError):
                await self._client._link.readable(None, _AGAIN)

    def _follow(self, task: Any) -> None:
        """The work is a task or a future: its end is ours."""
        client = self._client
        self._task = task
        client._tasks.add(self)
        task.add_done_callback(lambda _: client._link.beside(self._steadily(self._task_over)))

    async def _task_over(self) -> None:
        """Say how the task has ended, if it has and that is not said yet."""
        if self not in self._client._tasks or not self._task.done():
            return
        error = None if self._task.cancelled() else self._task.exception()
        await self._done(error is None and not self._task.cancelled(), error)
        self._client._tasks.discard(self)

    def _cancel_task(self) -> None:
        """Once: a second time would hit what it does to end in good order."""
        if self._task is None or self._cancelled:
            return
        self._cancelled = True
        if not hasattr(self._task, "get_loop"):
            self._task.cancel()
            return
        try:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)  # we may be a thread
        except RuntimeError:
            return  # its loop is closed: it cannot go on


def read_tail(path: str | None, limit: int) -> tuple[bytes, int] | str:
    """The end of a file that somebody else writes and where it begins, or why there is none."""
    try:
        if path is None or not os.path.lexists(path):
            return NO_OUTPUT
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                return UNREADABLE
            start = max(0, info.st_size - limit)
            return os.pread(fd, limit, start), start
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return UNREADABLE


def read_output(path: str | None, limit: int) -> tuple[str, int]:
    """The text of an agent's output file, or why there is none; and how much is before it."""
    found = read_tail(path, limit)
    if isinstance(found, str):
        return found, 0
    data, start = found
    if start:
        whole = data.lstrip(_CONTINUATION)  # begin with a whole character
        data, start = whole, start + len(data) - len(whole)
    return data.decode("utf-8", "replace"), start
