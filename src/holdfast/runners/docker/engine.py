"""A Docker engine's API over its Unix socket.

By hand, because a runner is started for every container: requests are HTTP/1.0, so every answer
ends with its connection, nothing comes in chunks, and nothing has to be imported for it. Paths name
no version of the API: each engine then speaks its own, and what is asked here is in all of them.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_PIECE = 1 << 16
_LISTENERS = (b"dockerd", b"systemd")  # which listens for it where it starts on demand


class EngineError(Exception):
    """The engine refused. `status` is HTTP's; 0 when there was no answer, and `number` says why."""

    def __init__(self, status: int, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.number = number  # errno's


class Engine:
    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def is_near(self) -> bool:
        """True if it is surely on this machine, where pids in containers mean what ours mean."""
        try:
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(self.path)
                pid = struct.unpack(
                    "3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                )[0]
            with open(f"/proc/{pid}/comm", "rb") as file:
                return file.read().strip() in _LISTENERS
        except OSError:
            return False

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: float = 30.0,
        connected: Callable[[socket.socket], None] | None = None,
    ) -> Any:
        """The whole answer, from JSON; None if it is empty."""
        end, answer = self.open(method, path, body, timeout=timeout, connected=connected)
        try:
            while piece := end.recv(_PIECE):
                answer += piece
        except OSError as error:
            raise self._silent(error) from None
        finally:
            end.close()
        return json.loads(answer) if answer else None

    def open(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        timeout: float | None = 30.0,
        upgrade: bool = False,
        login: str = "",
        connected: Callable[[socket.socket], None] | None = None,
    ) -> tuple[socket.socket, bytes]:
        """Send a request; the connection, and what of the body has come with the head.

        With `upgrade` the connection is the container's own input and output from then on.
        `connected` gets it before anything is sent.
        """
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.{int(upgrade)}", "Host: docker"]
        if upgrade:
            lines += ["Connection: Upgrade", "Upgrade: tcp"]
        if body is not None:
            lines.append("Content-Type: application/json")
        if login:
            lines.append(f"X-Registry-Auth: {login}")
        lines += [f"Content-Length: {len(data)}", "", ""]
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            end.settimeout(timeout)
            end.connect(self.path)
            if connected is not None:
                connected(end)
            end.sendall("\r\n".join(lines).encode() + data)
            head, rest = self._head(end, 1 if upgrade else _PIECE)
            status = int(head.split(None, 2)[1])
            if status < 400:
                return end, rest
            while piece := end.recv(_PIECE):
                rest += piece
        except OSError as error:
            end.close()
            raise self._silent(error) from None
        except BaseException:
            end.close()
            raise
        end.close()
        raise EngineError(status, _message(rest))

    def _head(self, end: socket.socket, step: int) -> tuple[bytes, bytes]:
        # Bytewise where a stream follows that is not ours to read yet.
        got = b""
        while b"\r\n\r\n" not in got:
            piece = end.recv(step)
            if not piece:
                raise EngineError(0, f"{self.path}: the engine hung up", errno.ECONNRESET)
            got += piece
        head, _, rest = got.partition(b"\r\n\r\n")
        return head, rest

    def _silent(self, error: OSError) -> EngineError:
        why = error.strerror or str(error)
        return EngineError(0, f"{self.path}: {why}", error.errno or errno.ETIMEDOUT)


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"]).strip()
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace").strip()


def find_socket(environ: Mapping[str, str]) -> str:
    """The path of the engine's socket, found as Docker's own command finds it."""
    host = environ.get("DOCKER_HOST", "")
    home = environ.get("HOME") or os.path.expanduser("~")
    source = "DOCKER_HOST"
    if not host:
        config = config_directory(environ)
        chosen = read_json(f"{config}/config.json").get("currentContext")
        name = environ.get("DOCKER_CONTEXT") or chosen
        if name and name != "default":
            host = _context(config, str(name))
            source = f"the Docker context {name}"
            if not host:
                raise EngineError(0, f"{source} does not exist; choose one with docker context use")
    if host:
        if not host.startswith("unix://"):
            raise EngineError(
                0,
                f"{source} is {host}, but only unix:// engines can be used: "
                "the working directory must be on the engine's machine",
            )
        return host.removeprefix("unix://")
    places = ["/var/run/docker.sock"]
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        places.append(f"{runtime}/docker.sock")
    places.append(f"{home}/.docker/run/docker.sock")
    return next((path for path in places if os.path.exists(path)), places[0])


def config_directory(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME") or os.path.expanduser("~")
    return environ.get("DOCKER_CONFIG") or os.path.join(home, ".docker")


def _context(config: str, name: str) -> str:
    metas = os.path.join(config, "contexts", "meta")
    try:
        folders = os.listdir(metas)
    except OSError:
        return ""
    for folder in folders:
        meta = read_json(f"{metas}/{folder}/meta.json")
        if meta.get("Name") == name:
            endpoint = (meta.get("Endpoints") or {}).get("docker") or {}
            return str(endpoint.get("Host") or "")
    return ""


def read_json(path: str) -> dict[str, Any]:
    """A file of Docker's settings; empty if there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
