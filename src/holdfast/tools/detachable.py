"""A toolset whose calls may go on after their caller was answered: for servers with tasks."""

from __future__ import annotations

from . import Toolset
from ._tool import Call, Reply, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..client.process import Process

__all__ = ["Call", "DetachableToolset"]


class DetachableToolset(Toolset):
    async def perform(self, call: Call, name: str, arguments: dict[str, Any]) -> Result:
        """Do it as `call`, which says how long it may block and what becomes of its result."""
        return await self._perform(call, name, arguments)

    def resumable(self, name: str) -> bool:
        """True if a call of this tool that was lost goes on when it is made again."""
        return name in self._tools and self._tools[name].resumable

    async def finish(self, call: Call, process: Process) -> Result:
        """Wait for the end of a process and tell of it: for a call that started it, and is gone."""
        await call.wait(process)
        answer = await self.dialect.finished(process)
        return Result(answer, text=answer.text if isinstance(answer, Reply) else None)

    async def take_over(self, handle: str) -> bool:
        """Take over the lost session of this directory that this process is of, if there is one."""
        return self._adoption is not None and await self._adoption.take_over(handle)
