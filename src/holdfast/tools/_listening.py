"""The owner of a port of this machine, and waiting until it has one, whoever that is."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from ..linux.ports import Snapshot
from ..linux.site import site_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..client.client import Client
    from ..client.process import Process
    from ._tool import Call

_FIRST_LOOK, _SLOWEST_LOOK = 0.03, 0.5  # the kernel tells nobody, so it is asked
_SAY = 5.0
# A server that is just being forked looks like a stranger for a moment, or like nobody: a stranger
# is one who is seen twice. Who passes a socket on for ever is not pursued.
_MOST_LOOKS = 10


@dataclass(frozen=True, slots=True)
class Owner:
    """Tell who has a port; `process_id` if that is a process of this session, or belongs to one."""

    process_id: str | None
    pid: int | None
    name: str
    host: str

    def public(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        who = f"{self.name} (pid {self.pid})"
        if self.pid is None:
            who = "a process of another user, which cannot be looked at,"
        if self.process_id is not None:
            return f"{who} of {self.process_id} listens there"
        return f"{who} listens there, which is no process of this session"


async def owner_of(
    client: Client, port: int, processes: list[Process] | None = None
) -> Owner | None:
    """Find who listens there; of several that have the same socket, one of the session's."""
    known = await client.list() if processes is None else processes

    def look() -> Owner | None:
        found = last = None
        for _ in range(_MOST_LOOKS):
            found = _owner_now(port, known)
            if found is None or found.process_id is not None:
                break
            if found.pid is not None and found == last:
                break
            last = found
        return found

    return await client.run_in_thread(look)


def _owner_now(port: int, known: list[Process]) -> Owner | None:
    now = Snapshot(port)
    if not now.serving(port, "localhost"):
        return None
    families = {process.handle: site_of(process.record).family(now) for process in known}
    listener = now.owner(port, "localhost", set().union(*families.values()))
    if listener is None:
        return None
    ours = [handle for handle, pids in families.items() if listener.pid in pids]
    return Owner(ours[-1] if ours else None, listener.pid, listener.name, listener.host)


async def wait_for_owner(
    client: Client, call: Call, port: int, timeout: float, hopes: Iterable[str]
) -> tuple[Owner | None, Process | None]:
    """Whoever listens, in time; else whose failure leaves nobody of the session who could.

    That is one of those that run, or of `hopes`. What ends well may have left a daemon behind that
    is about to listen.
    """
    seconds, _ = call.left(timeout)
    assert seconds is not None
    now = time.monotonic()
    until, say, pause = now + seconds, now + _SAY, _FIRST_LOOK
    hoped_for = set(hopes)
    while True:
        processes = await client.list()
        owner = await owner_of(client, port, processes)
        if owner is not None:
            return owner, None
        running = {process.handle for process in processes if process.record.running}
        hoped_for |= running
        for process in reversed(processes if not running else []):
            if process.handle in hoped_for and process.record.status != "completed":
                return None, process
        now = time.monotonic()
        if now >= until:
            return None, None
        if now >= say:
            await call.say(f"waiting for port {port}")
            say = now + _SAY
        await client.readable(None, min(pause, until - now))
        pause = min(pause * 1.5, _SLOWEST_LOOK)
