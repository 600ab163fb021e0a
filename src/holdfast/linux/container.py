"""The container of a Docker process, as its runner and the kernel tell of it.

What the runner says is in ``.runner`` beside the record. The engine's pid of the container means
something only where its processes can be seen: not from within another container, and not where the
engine is in a virtual machine. There the number may be anybody's, so it is believed only if that
process is in a control group of this container.

DESIGN. A published port takes connections before anybody serves it: the engine's proxy listens from
the start on, and drops what nobody takes. So the container's own sockets are looked at, in
``/proc/PID/net``. Where that may not be read, a connection tells: one that is not dropped at once
has somebody behind it. What listens on the container's loopback is reached by nobody outside.
"""

from __future__ import annotations

import json
import os
import socket
import stat

from ..core.errors import BadRequest, StoreError
from ..core.home import read_private
from .ports import listening_in
from .site import Serving, Site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..core.record import Record
    from .input_evidence import Seen
    from .ports import Listener, Snapshot

_NAME = "holdfast-"  # and the handle
_CONNECT, _STAYS = 1.0, 0.05
_TERMINALS = range(136, 144)  # major numbers of those in /dev/pts


def runner_path(directory: str, handle: str) -> str:
    return f"{directory}/{handle}.runner"


def said(directory: str, handle: str) -> dict[str, Any]:
    """A runner's report of its container; empty before it has said anything."""
    try:
        told = json.loads(read_private(runner_path(directory, handle)))
    except (OSError, StoreError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


class Container:
    """A container that has begun; `pid` is of its first process, where that can be seen."""

    __slots__ = ("name", "network", "pid", "ports")

    def __init__(self, told: dict[str, Any]) -> None:
        self.name = str(told["container"])
        self.network = told.get("network")
        self.ports = {str(inner): int(outer) for inner, outer in (told.get("ports") or {}).items()}
        pid, id = told.get("pid"), told.get("id")
        self.pid: int | None = pid if id and type(pid) is int and _belongs(pid, str(id)) else None

    @classmethod
    def of(cls, directory: str, handle: str) -> Container | None:
        told = said(directory, handle)
        if "container" not in told:
            return None
        if "exec" in told:  # a command in another's container, which has its ports
            whole = said(directory, str(told["container"]).removeprefix(_NAME))
            told |= {name: whole.get(name) for name in ("ports", "network")}
        return cls(told)

    @classmethod
    def of_record(cls, record: Record) -> Container | None:
        """None before it has begun."""
        return cls.of(os.path.dirname(record.log), record.handle)

    def __repr__(self) -> str:
        return f"<Container {self.name} pid={self.pid} ports={self.ports}>"

    @property
    def on_this_machine(self) -> bool:
        """True if its ports are the machine's own."""
        return self.network == "host"

    def published(self, port: int) -> tuple[int, int] | None:
        """Find what a number means, in the container and at this machine.

        First of all a port of the container, else one of the machine.
        """
        if self.on_this_machine:
            return port, port
        if str(port) in self.ports:
            return port, self.ports[str(port)]
        for inner, outer in self._tcp():
            if outer == port:
                return inner, outer
        return None

    def _tcp(self) -> list[tuple[int, int]]:
        return [(int(inner), outer) for inner, outer in self.ports.items() if inner.isdigit()]

    def listener(self, port: int, look: Snapshot) -> tuple[Listener | None, str]:
        """Find who listens at a port of it for others, or why nobody does; "" if unknown."""
        found = [each for each in self._listeners() or () if each.port == port]
        reached = [each for each in found if not each.on_loopback]
        if reached:
            return look.held(reached, self.family(look)) or reached[0], ""
        if found:
            why = "it listens at the container's own loopback, where nobody else reaches it"
            return None, f"{why}; let it listen at 0.0.0.0"
        return None, ""

    def family(self, look: Snapshot) -> set[int]:
        """The processes in it, as far as can be seen."""
        return set() if self.pid is None else look.descendants(self.pid)

    def serving(self, look: Snapshot) -> list[int]:
        """The ports of this machine behind which somebody listens now, as far as can be seen."""
        if self.on_this_machine:
            return look.ports_of(self.family(look))
        reached = {each.port for each in self._listeners() or () if not each.on_loopback}
        return sorted(outer for inner, outer in self._tcp() if inner in reached)

    def _listeners(self) -> list[Listener] | None:
        return None if self.pid is None else listening_in(self.pid)

    def see(self, terminal: bool) -> Seen:
        """The evidence that somebody in it waits for input."""
        from .input_evidence import Seen, see

        if self.pid is None:
            return Seen("unknown")
        if not terminal:
            return see(self.pid, None)
        found = self._terminal()
        if found is None:
            return Seen("unknown")
        fd, name = found
        try:
            return see(self.pid, _again(fd), name)
        finally:
            os.close(fd)

    def open_terminal(self) -> int | None:
        """Open its terminal, where that can be seen, to ask how it is set."""
        found = self._terminal()
        if found is None:
            return None
        from .tty import open_terminal

        try:
            return open_terminal(_again(found[0]))
        except OSError:
            return None
        finally:
            os.close(found[0])

    def _terminal(self) -> tuple[int, str] | None:
        """The path of its stdin, if that is a terminal, and the name of that in there.

        By the descriptor itself: the name, looked up from here, could lead to a file of ours. It is
        not opened before it is known to be a terminal; until then we only hold on to it.
        """
        path = f"/proc/{self.pid}/fd/0"
        try:
            name = os.readlink(path)
            if not name.startswith("/dev/"):
                return None
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return None
        found = os.fstat(fd)
        if stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) in _TERMINALS:
            return fd, name
        os.close(fd)
        return None


def _again(fd: int) -> str:
    """A path by which what a descriptor holds on to can be opened."""
    return f"/proc/self/fd/{fd}"


class ContainerSite(Site):
    """The container of a process; before it has begun, and after the end, nothing is to be seen.

    Docker publishes ports, so a number means a port of the container first, wherever that is here.
    """

    ahead = True

    def _begun(self) -> Container | None:
        return Container.of_record(self._record) if self._record.running else None

    @property
    def paths(self) -> list[str]:
        return [runner_path(os.path.dirname(self._record.log), self._record.handle)]

    @property
    def visible(self) -> bool:
        container = self._begun()
        return not self._record.running or (container is not None and container.pid is not None)

    def family(self, look: Snapshot) -> set[int]:
        container = self._begun()
        return set() if container is None else container.family(look)

    def see(self) -> Seen:
        from .input_evidence import Seen

        container = self._begun()
        return Seen(False) if container is None else container.see(self._record.tty is not None)

    def ports(self, members: Iterable[int], look: Snapshot) -> list[int]:
        container = self._begun()
        return [] if container is None else container.serving(look)

    def port(self, port: int, addresses: list[bytes], look: Snapshot) -> Serving:
        container = self._begun()
        if container is None:
            return Serving(why="its container has not begun" if self._record.running else "")
        if container.on_this_machine and container.pid is not None:
            return super().port(port, addresses, look)
        ports = container.published(port)
        if ports is None:
            return Serving()
        inner, outer = ports
        listener, why = container.listener(inner, look)
        if listener is None and not (container.pid is None and stays_open(outer)):
            return Serving(why=why)
        facts = {"port": inner, "host": "127.0.0.1", "host_port": outer}
        if listener is not None and listener.pid is not None:
            facts["pid"] = listener.pid
        return Serving(facts)

    def check_port(self, port: int) -> None:
        """Before it has begun, nobody can say."""
        container = self._begun()
        if container is not None and container.published(port) is None:
            raise unpublished(port, container, self._record.handle)


def unpublished(port: int, container: Container, handle: str) -> BadRequest:
    published = ", ".join(f"{inner} (here {outer})" for inner, outer in container.ports.items())
    return BadRequest(
        f"the container of {handle} does not publish port {port}, only {published or 'none'}; "
        f"start it with port {port} published",
        handle=handle,
        port=port,
    )


def stays_open(port: int) -> bool:
    """True if more than the engine's proxy takes connections to a published port."""
    try:
        with socket.create_connection(("127.0.0.1", port), _CONNECT) as made:
            made.settimeout(_STAYS)
            return bool(made.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


def _belongs(pid: int, container: str) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup") as file:
            return container in file.read()
    except OSError:
        return False
