"""The target of a runner: a container, or a command inside another process's container."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any, Protocol

    from .engine import Engine

    class Target(Protocol):
        """Every method may raise EngineError; `state` says None of what is not there any more."""

        engine: Engine
        title: str  # for people: which one it is
        has_log: bool  # the engine keeps what it writes

        def attach(self) -> socket.socket: ...
        def state(self) -> State | None: ...
        def signal(self, number: int) -> None: ...
        def resize(self, rows: int, columns: int) -> None: ...


class State:
    __slots__ = ("code", "finished", "out_of_memory", "pid", "running", "said", "started")

    def __init__(self, told: dict[str, Any]) -> None:
        self.running: bool = told["Running"]
        self.code: int | None = told.get("ExitCode")
        self.pid: int = told.get("Pid") or 0
        self.out_of_memory: bool = told.get("OOMKilled") or False
        self.started: str = told.get("StartedAt") or ""
        self.finished: str = told.get("FinishedAt") or ""
        self.said: str = told.get("Status") or ""  # created, running, removing, ...
