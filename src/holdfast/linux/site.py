"""The site of a process: the place it runs in, and what the kernel says of it there.

That is this machine, unless a runner stands for the process. Then the pid in its record is the
runner's, and who is meant runs elsewhere. `site_of` chooses, once, by the record; whoever asks for
processes, ports or evidence of a wait for input asks the site and never where that is.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ..core.machine import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..core.record import Record
    from .input_evidence import Seen
    from .ports import Listener, Snapshot


@dataclass(frozen=True, slots=True)
class Serving:
    """A port at one moment: what is known of its server, or the stranger who has it, or neither.

    `why` says what keeps others from reaching it, where that is known.
    """

    facts: dict[str, Any] | None = None
    stranger: Listener | None = None
    why: str = ""


class Site:
    """This machine. Others differ in where they look."""

    # What is seen there may be ahead of the log: output takes a moment to get into it.
    ahead = False

    def __init__(self, record: Record) -> None:
        self._record = record

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._record.handle}>"

    @property
    def paths(self) -> list[str]:
        """Files whose changes say that something is to be seen."""
        return []

    @property
    def visible(self) -> bool:
        """True if its processes can be looked at from here, now."""
        return True

    def family(self, look: Snapshot) -> set[int]:
        """The living processes that belong to it; none if it is of another time."""
        record = self._record
        if sys.platform != "linux" or record.boot_id not in ("", boot_id()):
            return set()
        found = look.family(record.pid, record.handle, record.start_time)
        if record.cgroups:  # which also know who left the family
            from .cgroup import members

            found |= {pid for pid in members(record.cgroups) if pid in look.processes()}
        return found

    def see(self) -> Seen:
        """The evidence that it waits for input."""
        from .input_evidence import see

        return see(self._record.pid or 0, self._record.tty)

    def ports(self, members: Iterable[int], look: Snapshot) -> list[int]:
        """The ports of this machine at which its processes are reached."""
        return look.ports_of(members)

    def port(self, port: int, addresses: list[bytes], look: Snapshot) -> Serving:
        """Find who serves a port at these addresses of this machine."""
        if not look.serving(port, addresses):
            return Serving()
        ours = self.family(look)
        listener = look.owner(port, addresses, ours)
        if listener is None or listener.pid not in ours:
            return Serving(stranger=listener)
        return Serving({"port": port, "pid": listener.pid, "host": listener.host})

    def check_port(self, port: int) -> None:
        """Raise for a port that nobody will ever reach."""


def site_of(record: Record) -> Site:
    return _SITES.get(record.site, Site)(record)


def _in_container(record: Record) -> Site:
    from .container import ContainerSite

    return ContainerSite(record)


_SITES: dict[str, Callable[[Record], Site]] = {"docker": _in_container}
