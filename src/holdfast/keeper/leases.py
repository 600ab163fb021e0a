"""Sessions are leases: what a session started ends when nobody holds the session any more.

DESIGN. A client that connects with a lease holds its session. Closing it in good order stops the
session's processes. Losing the last holder (its connection, or the death of its process: a forked
child may keep the socket open) starts the grace, in which the agent can come back; then they stop.

``lease.json`` says who holds a session, by pid and start time, and when it was lost. A keeper that
starts finds the holders that still live and watches them through pidfds until they connect again
or die; so a crash of the keeper never looks like a lost client, and a running grace goes on.
"""

from __future__ import annotations

import json
import os
import time

from ..core.errors import StoreError
from ..core.home import Home, make_private_directory, read_private, replace_private
from ..core.machine import boot_id
from ..linux import kernel
from .damaged_files import drop, is_for_now, put_aside
from .journal import say
from .loop import IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .connection import Connection
    from .loop import Loop, Timer


class Holder:
    """A client's process that holds a session, connected or not."""

    __slots__ = ("client", "pid", "start_time", "pidfd", "connections")

    def __init__(self, client: str, pid: int, start_time: int, pidfd: int | None) -> None:
        self.client = client
        self.pid = pid
        self.start_time = start_time
        self.pidfd = pidfd
        self.connections: set[object] = set()


class Lease:
    __slots__ = ("session", "grace", "directory", "holders", "lost_clock", "timer")

    def __init__(self, session: str, grace: float, directory: str | None = None) -> None:
        self.session = session
        self.grace = grace
        self.directory = directory  # where its first holder works
        self.holders: dict[str, Holder] = {}
        self.lost_clock: float | None = None
        self.timer: Timer | None = None


class Leases:
    __slots__ = ("_home", "_loop", "_expired", "_leases")

    def __init__(self, home: Home, loop: Loop, expired: Callable[[str], None]) -> None:
        self._home = home
        self._loop = loop
        self._expired = expired
        self._leases: dict[str, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    # -- holding -------------------------------------------------------------------------------

    def hold(
        self, session: str, grace: float, directory: str | None, connection: Connection
    ) -> None:
        """A client connected with a lease on `session`; OSError leaves everything as it was."""
        lease = self._leases.get(session) or Lease(session, grace, directory)
        holder = lease.holders.get(connection.client)
        if holder is None:
            pid = connection.pid
            started = kernel.start_time(pid) or 0
            pidfd = kernel.peer_pidfd(connection.socket)
            holder = Holder(connection.client, pid, started, pidfd)
            try:
                self._watch(lease, holder)
            except OSError:
                if pidfd is not None:
                    os.close(pidfd)
                raise
            lease.holders[connection.client] = holder
        self._leases[session] = lease
        lease.grace = grace
        lease.directory = lease.directory or directory
        holder.connections.add(connection)
        lease.lost_clock = None
        self._cancel(lease)
        self._save(lease)

    def set_grace(self, session: str, grace: float) -> None:
        lease = self._leases.get(session)
        if lease is not None and lease.grace != grace:
            lease.grace = grace
            self._save(lease)

    def disconnected(self, session: str, client: str, connection: object) -> None:
        lease = self._leases.get(session)
        holder = None if lease is None else lease.holders.get(client)
        if lease is None or holder is None:
            return
        holder.connections.discard(connection)
        if not holder.connections:
            self._drop(lease, holder)
            self._check_lost(lease)

    def close(self, session: str, client: str) -> bool:
        """A holder closes in good order; True if it was the last, and the session is to stop."""
        lease = self._leases.get(session)
        holder = None if lease is None else lease.holders.get(client)
        if lease is None or holder is None:
            return False
        self._drop(lease, holder)
        if lease.holders:
            self._save(lease)
            return False
        self._end(lease)
        return True

    def _watch(self, lease: Lease, holder: Holder) -> None:
        if holder.pidfd is not None:
            self._loop.add(holder.pidfd, IN, lambda _: self._died(lease, holder))

    def _died(self, lease: Lease, holder: Holder) -> None:
        self._drop(lease, holder)
        self._check_lost(lease)

    def _drop(self, lease: Lease, holder: Holder) -> None:
        lease.holders.pop(holder.client, None)
        if holder.pidfd is not None:
            self._loop.remove(holder.pidfd)
            os.close(holder.pidfd)
            holder.pidfd = None

    # -- what is known of them -----------------------------------------------------------------

    def directory(self, session: str) -> str | None:
        """The directory of a session that somebody holds."""
        lease = self._leases.get(session)
        return lease.directory if lease is not None and lease.holders else None

    def lost_in(self, directory: str) -> list[Lease]:
        """Sessions of this directory in their grace."""
        return [
            lease
            for lease in self._leases.values()
            if lease.lost_clock is not None and not lease.holders and lease.directory == directory
        ]

    def sessions(self) -> set[str]:
        """The sessions that somebody holds, or in their grace."""
        return set(self._leases)

    def forget(self, session: str) -> None:
        """Somebody else has taken over what it held."""
        lease = self._leases.get(session)
        if lease is not None:
            self._end(lease)
        else:
            drop(self._path(session))

    # -- losing --------------------------------------------------------------------------------

    def _check_lost(self, lease: Lease) -> None:
        if lease.holders or lease.session not in self._leases:
            return
        lease.lost_clock = time.monotonic()
        self._save(lease)
        self._start_grace(lease)

    def _start_grace(self, lease: Lease) -> None:
        assert lease.lost_clock is not None
        self._cancel(lease)
        lease.timer = self._loop.at(lease.lost_clock + lease.grace, lambda: self._run_out(lease))

    def _run_out(self, lease: Lease) -> None:
        self._end(lease)
        self._expired(lease.session)

    def _end(self, lease: Lease) -> None:
        self._cancel(lease)
        self._leases.pop(lease.session, None)
        drop(self._path(lease.session))

    def _cancel(self, lease: Lease) -> None:
        if lease.timer is not None:
            lease.timer.cancel()
            lease.timer = None

    # -- on disk -------------------------------------------------------------------------------

    def _path(self, session: str) -> str:
        return self._home.session(session) + "/lease.json"

    def _save(self, lease: Lease) -> None:
        data = {
            "grace": lease.grace,
            "directory": lease.directory,
            "boot_id": boot_id(),
            "lost_clock": lease.lost_clock,
            "holders": [
                [holder.client, holder.pid, holder.start_time] for holder in lease.holders.values()
            ],
        }
        try:
            make_private_directory(self._home.session(lease.session))
            replace_private(self._path(lease.session), json.dumps(data).encode())
        except OSError as error:
            say(f"the lease of a session cannot be written: {error}")

    def recover(self) -> None:
        """Take up the leases an earlier worker left, with the holders that still live."""
        for session in self._home.session_names():
            try:
                data = json.loads(read_private(self._path(session)))
                directory = data.get("directory")
                lease = Lease(session, _number(data["grace"]), directory and str(directory))
                same_boot = data["boot_id"] == boot_id()
                holders = [
                    (str(client), int(_number(pid)), int(_number(start_time)))
                    for client, pid, start_time in data["holders"]
                ]
                lost_clock = _number(data["lost_clock"] or 0)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (
                OSError,
                StoreError,
                ArithmeticError,
                AttributeError,
                LookupError,
                RecursionError,
                TypeError,
                ValueError,
            ) as error:
                if is_for_now(error):
                    say(f"the lease of a session cannot be read: {error}")
                else:
                    put_aside(self._path(session), f"{type(error).__name__}: {error}")
                continue
            self._leases[session] = lease
            for client, pid, start_time in holders if same_boot else []:
                pidfd = kernel.open_process(pid, start_time)
                if pidfd is not None:
                    holder = Holder(client, pid, start_time, pidfd)
                    lease.holders[client] = holder
                    self._watch(lease, holder)
            if not lease.holders:
                lease.lost_clock = lost_clock if same_boot and lost_clock else time.monotonic()
                self._start_grace(lease)


def _number(value: object) -> float:
    """A duration or a clock that timers can be set by; a ValueError for anything else."""
    if isinstance(value, (int, float)) and 0 <= value < 1e12:
        return float(value)
    raise ValueError(f"not a time: {value!r}")
