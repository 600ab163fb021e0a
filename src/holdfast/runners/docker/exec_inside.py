"""A command inside another process's container.

The engine keeps no log of it and has no call to signal it. So its output lives by the connection
alone, and signals go to its process on this machine where we see it and may, else through another
command in the container, which finds it by a mark in its environment.
"""

from __future__ import annotations

import errno
import os
import signal
import time

from .engine import Engine, EngineError
from .target import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator
    from typing import Any

_MARK = "HOLDFAST_EXEC"
_TO_GROUP = 1 << 2  # PIDFD_SIGNAL_PROCESS_GROUP
_START_PATIENCE = 60.0
_START_STEP = 0.002
_KILL = """for p in /proc/[0-9]*; do
if grep -qa "^$1$" "$p/environ" || tr '\\0' '\\n' < "$p/environ" | grep -qx "$1"
then kill -"$2" "${p#/proc/}"; fi; done 2> /dev/null"""


class Inside:
    has_log = False

    def __init__(self, engine: Engine, handle: str, request: dict[str, Any]) -> None:
        self.engine = engine
        self.container: str = request["container"]
        self.title = f"the command in the container {self.container}"
        self._container_id: str = request["id"]
        self._exec: str = request["exec"]
        self._tty: bool = request["tty"]
        self._mark = f"{_MARK}={handle}"
        self.pid = 0

    def attach(self) -> socket.socket:
        """Connect, which also starts it."""
        body = {"Detach": False, "Tty": self._tty}
        path = f"/exec/{self._exec}/start"
        connection, _ = self.engine.open("POST", path, body, upgrade=True)
        return connection

    def state(self) -> State | None:
        try:
            state = State(self.engine.call("GET", f"/exec/{self._exec}/json", timeout=10.0))
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        self.pid = state.pid or self.pid
        return state

    def await_begin(self) -> State | None:
        """Wait until it has a process; its state, without a pid if it failed to get one."""
        late = time.monotonic() + _START_PATIENCE
        while (state := self.state()) is not None:
            if state.pid or not state.running or time.monotonic() > late:
                break
            time.sleep(_START_STEP)
        return state

    def resize(self, rows: int, columns: int) -> None:
        self.engine.call("POST", f"/exec/{self._exec}/resize?h={rows}&w={columns}", timeout=10.0)

    def is_alive(self) -> bool:
        """True if we see its process, and it is no other one that got its number."""
        return bool(self.pid) and self._is_in_container(self.pid)

    def signal(self, number: int) -> None:
        if not self.pid:
            self.state()
        if self.is_alive():
            try:
                self._send(self.pid, number, group=True)
                if number == signal.SIGKILL:
                    for pid in self._marked():
                        self._send(pid, number)
                return
            except PermissionError:
                pass
        self._signal_from_inside(number)

    def _send(self, pid: int, number: int, *, group: bool = False) -> None:
        """Signal whoever has this number now, or its group, if that is in the container."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if not self._is_in_container(pid):
                return
            if group and os.getpgid(pid) == pid:
                _send_to_group(pid, pidfd, number)
            else:
                signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(pidfd)

    def _signal_from_inside(self, number: int) -> None:
        command = ["sh", "-c", _KILL, "sh", self._mark, str(number)]
        path = f"/containers/{self.container}/exec"
        try:
            made = self.engine.call("POST", path, {"Cmd": command, "User": "0"}, timeout=10.0)
            start = f"/exec/{made['Id']}/start"
            self.engine.call("POST", start, {"Detach": True, "Tty": False}, timeout=10.0)
        except EngineError as error:
            if error.status not in (404, 409):  # the container has ended, and all in it
                raise

    def _marked(self) -> Iterator[int]:
        """The processes that it started, as far as we see them."""
        mark = self._mark.encode()
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        yield int(name)
            except OSError:
                continue

    def _is_in_container(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/cgroup") as file:
                return self._container_id in file.read()
        except OSError:
            return False


def _send_to_group(pid: int, pidfd: int, number: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, number, None, _TO_GROUP)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel before 6.9
            raise
        signal.pidfd_send_signal(pidfd, 0)
        os.killpg(pid, number)


def create(engine: Engine, spec: dict[str, Any]) -> tuple[str, str]:
    """Make it, not started yet; the ids of its container and of it."""
    tty = spec["tty"]
    env = [f"{name}={value}" for name, value in spec["env"].items()]
    body: dict[str, Any] = {
        "Cmd": spec["command"],
        "Env": [*env, f"{_MARK}={spec['handle']}"],
        "Tty": tty,
        "AttachStdin": tty or spec["stdin"],
        "AttachStdout": True,
        "AttachStderr": not tty,
    }
    if spec["workdir"] or spec["cwd"]:
        body["WorkingDir"] = spec["workdir"] or spec["cwd"]
    if spec["user"]:
        body["User"] = spec["user"]
    found = engine.call("GET", f"/containers/{spec['exec']}/json")
    made = engine.call("POST", f"/containers/{spec['exec']}/exec", body)
    return found["Id"], made["Id"]
