"""Processes that belong together: list, wait for, stop and be told of them as one."""

from __future__ import annotations

from ..core.errors import BadRequest, NotFound, WaitTimeout
from ..core.home import new_gathering
from ..core.quote import check_name
from ..core.units import parse_patience
from .config import UNSET
from .process import Process, Receipt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from builtins import list as _List
    from typing import Any

    from ..core.record import Exit
    from ..core.types import Condition, Duration, Signal
    from .client import Client
    from .wait_for import Waited


class Group:
    """The processes of a session that were started with the same `group`. From `Client.group`.

    checks = hf.group("checks")
    for command in ("pytest -q", "ruff check .", "mypy src"):
        await checks.spawn(command)
    await checks.gather()  # one event, when the last of them has ended
    """

    name: str

    def __init__(self, client: Client, name: str) -> None:
        if not isinstance(name, str) or not name or len(name) > 1000:
            raise BadRequest("a group is named by a text of 1 to 1000 characters")
        check_name("group", name)
        self._client = client
        self.name = name

    def __repr__(self) -> str:
        return f"<holdfast.Group {self.name!r} session={self._client.session!r}>"

    async def spawn(self, command: str | _List[str], **options: Any) -> Process:
        """`Client.spawn`, into this group."""
        return await self._client.spawn(command, **{**options, "group": self.name})

    async def list(self) -> _List[Process]:
        """The processes of the group, running or finished, oldest first."""
        return await self._client.list(group=self.name)

    async def wait(self, timeout: Duration | None = None) -> _List[Exit]:
        """Wait until every one has ended, and see how; WaitTimeout leaves them running."""
        seconds = None if timeout is None else parse_patience(timeout)
        processes = await self._members()
        waited = await self._client.wait_for(processes, "exit", all=True, timeout=seconds)
        if waited.timed_out:
            running = [each.handle for each in processes if each.handle not in waited.ended]
            raise WaitTimeout(
                f"of group {self.name!r} {len(running)} still run after {seconds:g} s: "
                f"{', '.join(running)}; wait again, read their output, or stop the group"
            )
        return [waited.ended[process.handle] for process in processes]

    async def wait_for(
        self, *conditions: Condition, all: bool = False, timeout: Duration | None = None
    ) -> Waited:
        """Wait as `Process.wait_for` does, for any of its processes or, with `all`, for each."""
        processes = await self._members()
        return await self._client.wait_for(processes, *conditions, all=all, timeout=timeout)

    async def stop(
        self, *, signal: Signal = "TERM", grace: Duration | None = UNSET
    ) -> _List[Receipt]:
        """Stop those that run, side by side, with everything they started."""
        client = self._client
        if not await client.list(group=self.name, ended=False):
            return []
        return await client._stop(
            "stop_group", {"group": self.name, "signal": signal, "grace": client._grace(grace)}
        )

    async def gather(self) -> _List[str]:
        """Be told of it as one: a single event when the last of those that now run has ended.

        Returns their handles. Ends of this group that nobody was told of yet are taken back, and
        told with the others. What is started later is told of by itself, unless gathered again.
        """
        answer = await self._client._link.call(
            "gather", {"group": self.name, "name": new_gathering()}
        )
        members: _List[str] = answer["members"]
        return members

    async def _members(self) -> _List[Process]:
        processes = await self.list()
        if not processes:
            raise NotFound(f"there is no process in group {self.name!r}; start some with it first")
        return processes
