"""Published ports: what was asked for, and where on this machine it is.

3000         the same port on the machine if it is free, else another one
8080:3000    that port on the machine, or an error
3000/udp     either can be for UDP
"""

from __future__ import annotations

import errno
import re
import socket

from .refusal import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOPBACK = "127.0.0.1"
_FORM = r"(?:([0-9]{1,5}):)?([0-9]{1,5})(?:/(tcp|udp))?"
_TAKEN = "already in use", "already allocated"


class Port:
    __slots__ = ("host", "inside", "kind", "wanted")

    def __init__(self, inside: int, kind: str, wanted: int | None) -> None:
        self.inside = inside
        self.kind = kind  # tcp, udp
        self.wanted = wanted  # on the machine
        self.host = wanted or inside  # what the engine is asked for; 0 for any

    @property
    def name(self) -> str:
        """The port as it is reported, with its kind only where that is not TCP."""
        return str(self.inside) if self.kind == "tcp" else f"{self.inside}/{self.kind}"

    @property
    def key(self) -> str:
        return f"{self.inside}/{self.kind}"


def parse(asked: list[Any], network: str | None) -> list[Port]:
    ports: list[Port] = []
    for word in asked:
        found = re.fullmatch(_FORM, str(word).strip())
        numbers = (
            [int(number) for number in (found.group(1), found.group(2)) if number] if found else []
        )
        if found is None or not all(0 < number < 65536 for number in numbers):
            raise Refused(
                f"{str(word)!r} is no port; give a number from 1 to 65535, such as 3000, 3000/udp, "
                "or 8080:3000 for port 8080 on this machine",
                "bad_request",
            )
        port = Port(numbers[-1], found.group(3) or "tcp", numbers[0] if len(numbers) > 1 else None)
        if any(port.key == other.key for other in ports):
            raise Refused(f"port {port.name} is asked for twice; name it once", "bad_request")
        ports.append(port)
    if ports and network == "none":
        raise Refused(
            "a container without a network has no ports; leave out ports, or network none",
            "bad_request",
        )
    for port in ports:
        if network == "host" and port.wanted not in (None, port.inside):
            raise Refused(
                f"on the host's network port {port.inside} is the machine's own and cannot become "
                f"{port.wanted}; name it alone, or leave out network host",
                "bad_request",
            )
    return ports


def choose(ports: list[Port]) -> None:
    """Ask for the same port where it is free now, else for any."""
    for port in ports:
        if not _is_free(port.host, port.kind):
            if port.wanted is not None:
                raise taken(port)
            port.host = 0


def taken(port: Port) -> Refused:
    return Refused(
        f"port {port.wanted} on this machine is taken; name another, or only {port.name} for any",
        "bad_request",
    )


def was_taken(message: str, ports: list[Port]) -> bool:
    """True if a start failed for a port of ours that somebody took; that one may be any then."""
    if not ports or not any(words in message for words in _TAKEN):
        return False
    named = [port for port in ports if re.search(rf":{port.host}\b", message)]
    for port in named or ports:
        if port.wanted is not None and named:
            raise taken(port)
        if port.wanted is None:
            port.host = 0
    return True


def _is_free(number: int, kind: str) -> bool:
    how = socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, how) as probe:
        if kind == "tcp":  # connections that ended a moment ago are not in the way
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, number))
        except OSError as error:
            return error.errno == errno.EACCES  # not ours to say; the engine may
    return True


def mapping(names: list[str], network: str | None, found: dict[str, Any] | None) -> dict[str, int]:
    """Port of the container -> port of the machine, from the engine's description of it."""
    if network == "host":
        return {name: int(name.partition("/")[0]) for name in names}
    told: dict[str, int] = {}
    for key, hosts in (found or {}).items():
        if hosts and hosts[0]["HostPort"] not in ("", "0"):
            told[key.removesuffix("/tcp")] = int(hosts[0]["HostPort"])
    return told
