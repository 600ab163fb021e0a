"""Listeners on TCP ports, and which processes belong together, as the kernel tells of them.

DESIGN. Nothing here connects to a port of this machine to find out whether it is open: a server
would see a guest that leaves at once, and a program that serves one connection would be done. The
kernel is asked for its listening sockets (sock_diag, the way of `ss`), and whose they are is in
``/proc/PID/fd``. Reading ``/proc/net/tcp`` instead walks the table of all connections, which took
a hundred times as long, and does not tell whether a socket at ``::`` takes IPv4 too; it is what is
left where there is no sock_diag, as in gVisor.

A `Snapshot` is one moment. It asks for the sockets, the processes and their descriptors when these
are first needed, and only once, so that one look serves everybody who wants to know something. What
may not be read is unknown: a listener without a pid is somebody's whom we may not look at, or who
is outside our pid namespace. Ports of other network namespaces are not ours to reach, and not seen.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from dataclasses import dataclass, replace

from .kernel import Stat, mark_of, stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

_FAMILIES = {"ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}
_ANY = (bytes(4), bytes(16), bytes(10) + b"\xff\xff" + bytes(4))
_MAPPED = bytes(10) + b"\xff\xff"  # what an IPv4 address begins with that is written as IPv6
_LOOPBACK, _LOOPBACK_6 = b"\x7f\0\0\1", bytes(15) + b"\1"
_MOST_DESCRIPTORS = 10_000  # of one process; what it has beyond is not looked at

# linux/netlink.h, sock_diag.h and inet_diag.h
_NETLINK_SOCK_DIAG = 4
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, pid
_BY_FAMILY, _ERROR, _DONE = 20, 2, 3
_DUMP = 0x301
_LISTEN = 10
_REQUEST = struct.Struct("=BBBxI")  # family, protocol, extensions, states; then a socket's id
_ID = struct.Struct(">H46x")
_ANSWER = struct.Struct("=Bxxx2s2x16s28x12xII")  # family; port, address; uid, inode
_ATTRIBUTE = struct.Struct("=HH")
_ONLY_V6 = 11


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening socket; `pid` and `name` are of a process that has it, where that is known."""

    host: str
    port: int
    family: Literal["ipv4", "ipv6"]
    uid: int
    inode: int
    only_v6: bool = False
    pid: int | None = None
    name: str = ""

    @property
    def address(self) -> bytes:
        return socket.inet_pton(_FAMILIES[self.family], self.host)

    @property
    def on_loopback(self) -> bool:
        return self.address == _LOOPBACK_6 or self.address.removeprefix(_MAPPED)[:1] == b"\x7f"

    def takes(self, address: bytes) -> int:
        """The fit for a connection to `address`: 2 exactly, 1 as a wildcard, 0 not at all."""
        mine = self.address
        if address in (mine, mine.removeprefix(_MAPPED)):
            return 2
        if mine not in _ANY:
            return 0
        if self.family == "ipv4" or mine != bytes(16):
            return int(len(address) == 4)
        return int(len(address) == 16 or not self.only_v6)

    def public(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("host", "port", "family", "pid", "name")}

    def __str__(self) -> str:
        if self.pid is None:
            return f"a process of user {self.uid} that cannot be looked at"
        return f"{self.name} (pid {self.pid})"


def listeners(port: int | None = None) -> list[Listener]:
    """Everybody who listens on this machine, or on this port of it."""
    return Snapshot(port).listeners()


def owner(
    port: int, host: str | list[bytes] = "127.0.0.1", ours: Iterable[int] = ()
) -> Listener | None:
    """Find who would answer at this address of this machine; see `Snapshot.owner`."""
    return Snapshot(port).owner(port, host, ours)


def open_ports(pids: Iterable[int]) -> list[int]:
    """The ports on which any of these processes listens."""
    return Snapshot().ports_of(pids)


def family(pid: int | None, handle: str, born: int | None = None) -> set[int]:
    """The living processes that belong to a process of ours; see `Snapshot.family`."""
    return Snapshot().family(pid, handle, born)


class Snapshot:
    """The kernel's word at one moment; with a port, only of those who listen there.

    seen = Snapshot()
    if seen.serving(3000):  # cheap, and mostly no
        print(seen.owner(3000, ours=seen.family(record.pid, record.handle)))
    """

    __slots__ = ("_descriptors", "_marks", "_port", "_processes", "_sockets")

    def __init__(self, port: int | None = None) -> None:
        self._port = port
        self._sockets: list[Listener] | None = None
        self._processes: dict[int, Stat] | None = None
        self._descriptors: dict[int, Descriptors | None] = {}
        self._marks: dict[int, str | None] = {}

    @property
    def known(self) -> bool:
        """False where listeners cannot be seen at all: then only a connection can tell."""
        self.sockets()
        return self._sockets is not None

    def sockets(self) -> list[Listener]:
        """The listening sockets, without whose they are."""
        if self._sockets is None:
            self._sockets = _listening(self._port)
        return self._sockets or []

    def listeners(self) -> list[Listener]:
        """The same, with whose they are."""
        holders: dict[int, int] = {}
        for pid in sorted(_pids(), reverse=True) if self.sockets() else ():
            held = self.descriptors(pid)
            if held is not None:
                holders.update(dict.fromkeys(held.sockets, pid))
        return [_with_holder(found, holders.get(found.inode)) for found in self.sockets()]

    def serving(self, port: int, host: str | list[bytes] = "127.0.0.1") -> list[Listener]:
        """The sockets among which the kernel would choose for a connection to this address.

        Whoever looks often at a name's port has its `addresses` looked up once.
        """
        for address in addresses(host) if isinstance(host, str) else host:
            fits = [(found.takes(address), found) for found in self.sockets() if found.port == port]
            best = max((fit for fit, _ in fits), default=0)
            if best:
                return [found for fit, found in fits if fit == best]
        return []

    def owner(
        self, port: int, host: str | list[bytes] = "127.0.0.1", ours: Iterable[int] = ()
    ) -> Listener | None:
        """The process that would answer there, or None: one of `ours` if one has the socket.

        A socket may be held by many, as by a server and its forked workers; of others it is the
        one of the lowest pid that is named.
        """
        found = self.serving(port, host)
        return self._named(found, ours) if found else None

    def _named(self, found: list[Listener], ours: Iterable[int]) -> Listener:
        return self.held(found, ours) or self.held(found, _pids()) or found[0]

    def held(self, found: list[Listener], pids: Iterable[int]) -> Listener | None:
        """The first of these sockets that one of these processes has, with who that is."""
        for pid in sorted(pids):
            held = self.descriptors(pid)
            if held is None:
                continue
            for listener in found:
                if listener.inode in held.sockets:
                    return _with_holder(listener, pid)
        return None

    def ports_of(self, pids: Iterable[int]) -> list[int]:
        """The ports on which any of these processes listens."""
        ports = {found.inode: found.port for found in self.sockets()}
        if not ports:
            return []
        held = [self.descriptors(pid) for pid in pids]
        return sorted(
            {ports[i] for each in held if each is not None for i in each.sockets if i in ports}
        )

    def descriptors(self, pid: int) -> Descriptors | None:
        """The open files of a process; None if it is gone or somebody else's."""
        if pid not in self._descriptors:
            self._descriptors[pid] = Descriptors.of(pid)
        return self._descriptors[pid]

    def processes(self) -> dict[int, Stat]:
        """Every process that can be seen."""
        if self._processes is None:
            # Sockets come first, so that whoever had one then is among the processes.
            self.sockets()
            self._processes = {}
            for pid in _pids():
                try:
                    found = stat(pid)
                except OSError:
                    continue  # hidden from us (hidepid)
                if found is not None:
                    self._processes[pid] = found
        return self._processes

    def family(self, pid: int | None, handle: str, born: int | None = None) -> set[int]:
        """The living processes that belong to a process of ours.

        These are itself (if it started at `born`, where that is known), its group and session,
        whoever carries its handle in the environment, and the descendants of any of them.
        """
        processes = self.processes()
        leader = processes.get(pid) if pid is not None else None
        if leader is not None and born is not None and leader.start_time != born:
            leader = pid = None  # the number was used again, so nobody has it as a group
        if born is None:
            born = leader.start_time if leader is not None else 0
        young = [found for found in processes.values() if found.start_time >= born]
        members = {
            found.pid for found in young if found is leader or self._belongs(found, pid, handle)
        }
        children: dict[int, list[int]] = {}
        for found in young:
            children.setdefault(found.parent, []).append(found.pid)
        return _living(members, children, processes)

    def descendants(self, pid: int) -> set[int]:
        """A process and all that it started, as far as that was not left to others."""
        processes = self.processes()
        children: dict[int, list[int]] = {}
        for found in processes.values():
            children.setdefault(found.parent, []).append(found.pid)
        return _living({pid} & processes.keys(), children, processes)

    def _belongs(self, found: Stat, pid: int | None, handle: str) -> bool:
        mark = self._mark(found)
        # Same group number but another handle's mark: the number was used again.
        return mark == handle or (mark is None and pid in (found.group, found.session))

    def _mark(self, found: Stat) -> str | None:
        if found.pid not in self._marks:
            self._marks[found.pid] = mark_of(found.pid)
        return self._marks[found.pid]


def _living(
    members: set[int], children: dict[int, list[int]], processes: dict[int, Stat]
) -> set[int]:
    """Some processes and their descendants, without those that have ended."""
    members = set(members)
    new = list(members)
    while new:
        born_to = [child for child in children.get(new.pop(), ()) if child not in members]
        members.update(born_to)
        new += born_to
    return {member for member in members if processes[member].state not in "ZX"}


# -- addresses -------------------------------------------------------------------------------------


def addresses(host: str) -> list[bytes]:
    """The addresses that a host means to a client here, packed; names may ask a name server."""
    host = host.strip("[]")
    if host == "localhost":
        return [_LOOPBACK, _LOOPBACK_6]
    try:
        found = [socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]
    except OSError:
        try:
            told = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []
        found = [
            socket.inet_pton(kind, str(where[0]).partition("%")[0]) for kind, _, _, _, where in told
        ]
    # To connect to "any address" is to connect to this machine.
    meant = {_ANY[0]: _LOOPBACK, _ANY[1]: _LOOPBACK_6}
    return [meant.get(each, each) for each in (one.removeprefix(_MAPPED) for one in found)]


def is_local(host: str) -> bool:
    """True if this host is the machine we are on, so that its listeners are known."""
    return any(_is_mine(address) for address in addresses(host))


def _is_mine(address: bytes) -> bool:
    if address == _LOOPBACK_6 or (len(address) == 4 and address[0] == 127):
        return True
    kind = socket.AF_INET if len(address) == 4 else socket.AF_INET6
    try:
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.bind((socket.inet_ntop(kind, address), 0))  # nothing is sent
    except OSError:
        return False
    return True


def is_open(host: str, port: int, timeout: float = 1.0) -> bool:
    """True if a connection is taken there, by trying: for hosts that are not this one."""
    try:
        with socket.create_connection((host.strip("[]"), port), timeout) as made:
            # Nobody listens at a port of ours from which we happened to connect to itself.
            return bool(made.getsockname() != made.getpeername())
    except (OSError, OverflowError, UnicodeError):
        return False


# -- the kernel ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Descriptors:
    """The number of descriptors of a process, and the inodes of the sockets among them."""

    count: int
    sockets: frozenset[int]

    @classmethod
    def of(cls, pid: int) -> Descriptors | None:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:
            return None
        sockets = set()
        for name in names[:_MOST_DESCRIPTORS]:
            try:
                what = os.readlink(f"{folder}/{name}")
            except OSError:
                continue
            if what.startswith("socket:["):
                sockets.add(int(what[8:-1]))
        return cls(len(names), frozenset(sockets))


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _with_holder(listener: Listener, pid: int | None) -> Listener:
    return listener if pid is None else replace(listener, pid=pid, name=_name(pid))


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().decode("utf-8", "replace").rstrip("\n")
    except OSError:
        return ""


def _listening(port: int | None) -> list[Listener] | None:
    if sys.platform != "linux":
        return None
    for way in (_from_netlink, _from_proc):
        try:
            return way(port)
        except (OSError, struct.error, ValueError):
            continue
    return None


def _from_netlink(port: int | None) -> list[Listener]:
    """The kernel has its answer ready when it is asked, so nothing here ever waits."""
    found = []
    how = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, how, _NETLINK_SOCK_DIAG) as kernel:
        for kind in _FAMILIES.values():
            wanted = _REQUEST.pack(kind, socket.IPPROTO_TCP, 0, 1 << _LISTEN) + _ID.pack(port or 0)
            kernel.send(_HEADER.pack(16 + len(wanted), _BY_FAMILY, _DUMP, 0, 0) + wanted)
            done = False
            while not done:
                data, place = kernel.recv(1 << 16), 0
                while place < len(data):
                    length, message, _, _, _ = _HEADER.unpack_from(data, place)
                    body = data[place + 16 : place + length]
                    place += (length + 3) & ~3
                    if message in (_ERROR, _DONE):
                        done = True
                        (code,) = struct.unpack_from("=i", body)
                        if code != 0:
                            raise OSError(-code, os.strerror(-code))
                    elif message == _BY_FAMILY:
                        found.append(_from_answer(body))
    return found


def _from_answer(body: bytes) -> Listener:
    family, port, address, uid, inode = _ANSWER.unpack_from(body)
    only_v6 = False
    place = _ANSWER.size
    while place + 4 <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, place)
        if kind == _ONLY_V6:
            only_v6 = body[place + 4] != 0
        place += max(4, (length + 3) & ~3)
    if family == socket.AF_INET:
        address = address[:4]
    return _listener(address, int.from_bytes(port, "big"), uid, inode, only_v6)


def listening_in(pid: int) -> list[Listener] | None:
    """The listeners in the network that a process is in; None where that may not be read."""
    try:
        return _from_proc(None, f"/proc/{pid}/net")
    except (OSError, ValueError):
        return None


def _from_proc(port: int | None, tables: str = "/proc/net") -> list[Listener]:
    found = []
    for name in ("tcp", "tcp6"):
        try:
            table = open(f"{tables}/{name}", "rb")
        except FileNotFoundError:
            if name == "tcp6":
                break  # a kernel without IPv6
            raise
        with table:
            next(table, None)
            for line in table:
                fields = line.split()
                if int(fields[3], 16) != _LISTEN:
                    break  # listeners come first; to go on would walk all connections
                host, _, number = fields[1].partition(b":")
                if port in (None, int(number, 16)):
                    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
                    address = struct.pack(f"={len(words)}I", *words)
                    found.append(
                        _listener(address, int(number, 16), int(fields[7]), int(fields[9]), False)
                    )
    return found


def _listener(address: bytes, port: int, uid: int, inode: int, only_v6: bool) -> Listener:
    family: Literal["ipv4", "ipv6"] = "ipv4" if len(address) == 4 else "ipv6"
    host = socket.inet_ntop(_FAMILIES[family], address)
    return Listener(host, port, family, uid, inode, only_v6)
