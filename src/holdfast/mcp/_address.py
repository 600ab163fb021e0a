"""Where the HTTP server listens, who may reach it, and the token that they have to show.

Nothing here needs the server itself: what is wrong with the options is said at once.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import sys
from dataclasses import dataclass

from ..core.errors import BadRequest

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    names: tuple[str, ...]  # that others may reach us by

    @classmethod
    def parse(cls, text: str, allowed: list[str]) -> Address:
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not port.isdecimal() or int(port) > 65535:
            raise BadRequest(f"--http is HOST:PORT, like 127.0.0.1:8765, not {text!r}")
        host = "127.0.0.1" if host in ("", "localhost") else host
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            raise BadRequest(f"--http takes an IP address or localhost, not {host!r}") from None
        if not loopback and not allowed:
            raise BadRequest(
                f"{host} can be reached from other machines; if that is wanted, say by which name "
                "with --allow-host NAME"
            )
        return cls(host, int(port), tuple(name.lower() for name in allowed))

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback

    def token(self, given: str | None, path: str | None, wanted: bool) -> str | None:
        """The token that clients have to show; a new one is printed, once."""
        if not wanted:
            if not self.loopback:
                raise BadRequest("--no-token is for loopback addresses only")
            return None
        if path is not None:
            try:
                with open(path, "rb") as file:
                    given = file.read(4096).decode("ascii").strip()
                    if os.fstat(file.fileno()).st_mode & 0o077:
                        text = f"others can read the token in {path}; `chmod 600` makes it yours"
                        print(f"holdfast: {text}", file=sys.stderr, flush=True)
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is no plain text"
                raise BadRequest(f"the token cannot be read from {path}: {why}") from None
            if not given:
                raise BadRequest(f"{path} has no token in it; write one there, on one line")
        if given:
            return given
        made = secrets.token_urlsafe(32)
        print(f"token: {made}", file=sys.stderr, flush=True)
        return made

    def listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        # With the protocol named asyncio sets TCP_NODELAY; a call takes 40 ms more without.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((self.host, self.port))
            found.listen(100)  # before anybody is told the address
        except OSError as error:
            found.close()
            raise BadRequest(
                f"cannot listen on {self.host}:{self.port}: {error.strerror}; choose another port"
            ) from None
        return found

    def hosts(self, port: int) -> frozenset[str]:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        names = {*_LOOPBACK, shown, *self.names}
        return frozenset({*self.names, *(f"{name}:{port}" for name in names)})
