"""One container: made, attached to, started, asked, signalled, removed."""

from __future__ import annotations

import json
import os
import time

from ...linux import masked_paths
from .engine import Engine, EngineError
from .frames import nanoseconds
from .link import store_request
from .ports import LOOPBACK
from .refusal import Refused
from .target import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from .ports import Port

# Of its drivers the one that keeps every byte; the newest 96 MB of it.
_LOG = {"Type": "local", "Config": {"max-size": "32m", "max-file": "3", "compress": "false"}}
_START_TIMEOUT = 120.0
_LOG_TIMEOUT = 3.0  # not longer: meanwhile nobody reads the connection, and it may wait for that
_INIT = b"docker-init"
_INIT_PATIENCE, _INIT_STEP = 3.0, 0.0005  # a busy machine lets an init wait for its turn


def name_of(handle: str) -> str:
    return f"holdfast-{handle}"


class Container:
    """Found by its name: that is unique at the engine, so no two runners make one twice."""

    has_log = True

    def __init__(self, engine: Engine, name: str, *, tty: bool, stdin: bool) -> None:
        self.engine = engine
        self.name = name
        self.title = f"the container {name}"
        self._tty = tty
        self._stdin = stdin

    def _call(self, method: str, what: str, timeout: float = 10.0) -> Any:
        return self.engine.call(method, f"/containers/{self.name}{what}", timeout=timeout)

    def create(self, spec: dict[str, Any], ports: list[Port]) -> None:
        path = f"/containers/create?name={self.name}"
        self.engine.call(
            "POST",
            path,
            request(spec, ports),
            timeout=_START_TIMEOUT,
            connected=store_request,
        )

    def attach(self) -> socket.socket:
        query = "stream=1&stdout=1" + "&stderr=1" * (not self._tty) + "&stdin=1" * self._stdin
        path = f"/containers/{self.name}/attach?{query}"
        connection, _ = self.engine.open("POST", path, upgrade=True)
        return connection

    def start(self) -> None:
        self._call("POST", "/start", _START_TIMEOUT)

    def describe(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._call("GET", "/json")
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        return found

    def state(self) -> State | None:
        found = self.describe()
        return State(found["State"]) if found is not None else None

    def signal(self, number: int) -> None:
        try:
            self._call("POST", f"/kill?signal={number}")
        except EngineError as error:
            if error.status not in (404, 409):  # it is gone, or does not run
                raise

    def resize(self, rows: int, columns: int) -> None:
        self._call("POST", f"/resize?h={rows}&w={columns}")

    def remove(self) -> None:
        try:
            self._call("DELETE", "?v=1&force=1", _START_TIMEOUT)
        except EngineError as error:
            if error.status not in (404, 409):  # somebody else does it
                raise

    def open_wait(self) -> socket.socket | None:
        """A connection on which something comes once the container does not run any more."""
        path = f"/containers/{self.name}/wait?condition=not-running"
        try:
            # The head comes at once, and what came with it of the rest says that it has ended: as
            # does the end of the connection.
            return self.engine.open("POST", path, timeout=10.0)[0]
        except EngineError:
            return None

    def open_log(self, query: str = "") -> tuple[socket.socket, bytes]:
        path = f"/containers/{self.name}/logs?stdout=1&stderr=1&timestamps=1{query}"
        return self.engine.open("GET", path, timeout=_LOG_TIMEOUT)

    def ran_out_of_memory(self, state: State) -> bool:
        """True if anything in it was killed for that: the state tells it only of some."""
        # The engine may hear of it later than of the end.
        since, until = nanoseconds(state.started) // 10**9, int(time.time()) + 2
        filters = json.dumps({"container": [self.name], "event": ["oom"]})
        escaped = "".join(c if c.isalnum() or c in "-_." else f"%{ord(c):02X}" for c in filters)
        path = f"/events?since={since}&until={until}&filters={escaped}"
        try:
            end, rest = self.engine.open("GET", path, timeout=3.0)
        except EngineError:
            return False
        with end:
            try:
                return bool(rest or end.recv(1))
            except OSError:
                return False


def request(spec: dict[str, Any], ports: list[Port]) -> dict[str, Any]:
    cwd, tty, network = spec["cwd"], spec["tty"], spec["network"]
    stdin = tty or spec["stdin"]
    host: dict[str, Any] = {"Init": True, "LogConfig": _LOG}
    body: dict[str, Any] = {
        "Image": spec["image"],
        "Env": [f"{name}={value}" for name, value in spec["env"].items()],
        "WorkingDir": spec["workdir"] or cwd,
        "Labels": {
            "holdfast": "1",
            "holdfast.handle": spec["handle"],
            "holdfast.session": spec["session"],
            "holdfast.home": spec["home"],
        },
        "Tty": tty,
        "OpenStdin": stdin,
        "StdinOnce": stdin and not tty,
        "AttachStdin": stdin,
        "AttachStdout": True,
        "AttachStderr": not tty,
        "HostConfig": host,
    }
    if spec["command"]:
        body["Cmd"] = spec["command"]
    if spec["user"]:
        body["User"] = spec["user"]
    if tty:
        host["ConsoleSize"] = [spec["rows"], spec["cols"]]
    # Not as "binds": of those the engine makes a source that is missing, as root.
    mounts = [
        _mount(mount["source"], mount["target"], mount.get("read_only", False))
        for mount in spec["mounts"]
    ]
    if not any(os.path.normpath(mount["Target"]) == os.path.normpath(cwd) for mount in mounts):
        mounts.insert(0, _mount(cwd, cwd, False))
    host["Mounts"] = mounts + _protected(spec, mounts)
    if network:
        host["NetworkMode"] = network
    if ports and network != "host":
        body["ExposedPorts"] = {port.key: {} for port in ports}
        host["PortBindings"] = {
            port.key: [{"HostIp": LOOPBACK, "HostPort": str(port.host)}] for port in ports
        }
    if spec["memory"]:
        host["Memory"] = host["MemorySwap"] = int(spec["memory"])
    if spec["cpu"]:
        host["NanoCpus"] = round(float(spec["cpu"]) * 10**9)
    if spec["processes"]:
        host["PidsLimit"] = int(spec["processes"]) + 1  # its init is one
    if spec["files"]:
        files = int(spec["files"])
        host["Ulimits"] = [{"Name": "nofile", "Soft": files, "Hard": files}]
    return body


def _protected(spec: dict[str, Any], mounts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mounts that cover keepers' homes, and fix what the next container is given where it is.

    In a mount that was asked for, only our home is covered; in the working directory, every one.
    """
    every = [spec["home"], *spec["homes"]]
    writable = [mount["Source"] for mount in mounts if not mount["ReadOnly"]]
    for mount in mounts:
        if any(masked_paths.is_within(_real(mount["Source"]), _real(home)) for home in every):
            raise _bad(
                f"{mount['Source']} is in holdfast's own home, which no container gets to see; "
                "give another directory"
            )
        _check_link(mount["Source"], writable)
    found = []
    for mount in mounts:
        source = _real(mount["Source"])
        working = source == _real(spec["cwd"])
        homes = every if working else every[:1]
        if not mount["ReadOnly"]:
            _check_homes(homes, source)
        covered = [home for home in homes if os.path.exists(home)]
        fixed = spec["fixed"] if working else []
        sources = [other["Source"] for other in mounts]
        for how, path in masked_paths.mounts(source, covered, fixed, sources):
            inner = os.path.relpath(path, source)
            target = os.path.normpath(f"{mount['Target']}/{inner}")
            over = [other for other in mounts if masked_paths.is_within(target, other["Target"])]
            if max(over, key=lambda other: len(os.path.normpath(other["Target"]))) is not mount:
                continue
            if how == "cover":
                found.append({"Type": "tmpfs", "Target": target})
            elif not mount["ReadOnly"]:
                found.append(_mount(path, target, how == "fix"))
    return found


def _check_homes(homes: list[str], source: str) -> None:
    """Raise for a home that cannot be covered, in a directory that is written to."""
    for home in homes:
        _check_link(home, [source])
        why = masked_paths.make(home) if masked_paths.is_within(_real(home), source) else None
        if why is not None:
            raise _bad(f"the home {home} cannot be covered: {why}; give another directory")


def _check_link(path: str, writable: list[str]) -> None:
    link = masked_paths.loose_link(path, writable)
    if link is not None:
        raise _bad(
            f"the way to {path} goes through the link {link}, which a container could turn "
            f"elsewhere; name it {_real(path)}, or leave it out"
        )


def _bad(why: str) -> Refused:
    return Refused(why, "bad_directory")


def _real(path: str) -> str:
    return os.path.realpath(path)


def _mount(source: str, target: str, read_only: bool) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def init_is_gone(pid: int) -> bool:
    """True if the container's init has ended, or we cannot see it; False once it runs the program.

    An init that cannot run the program says so and ends. So that who asked for the start can be
    told, we look until one or the other has happened, which takes a millisecond.
    """
    until = time.monotonic() + _INIT_PATIENCE
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                children = file.read().split()
            init = _program(str(pid))
        except OSError:
            return True
        if not init:
            return True  # a zombie
        # Until it is the init, it is the engine's own program that is about to become it.
        if init.endswith(_INIT) and any(map(_is_the_program, children)):
            return False
        time.sleep(_INIT_STEP)
    return False


def _is_the_program(pid: str) -> bool:
    try:
        program = _program(pid)
    except OSError:
        return False  # gone meanwhile
    return bool(program) and not program.endswith(_INIT)


def _program(pid: str) -> bytes:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().partition(b"\0")[0]
