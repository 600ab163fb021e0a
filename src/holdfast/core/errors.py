"""Every exception holdfast raises.

    HoldfastError               .code (stable), .handle when known, a message with a next step
    ├── BadRequest              an argument makes no sense (also a ValueError)
    │   └── ConfigError         a setting in config.toml or the environment makes no sense
    ├── SpawnError              it never started
    │   ├── NotExecutable       no such program, or not one that can be run (.missing tells which)
    │   ├── BadDirectory        the working directory is missing or not a directory
    │   ├── Unavailable         something this start needs is not on the machine
    │   └── LimitReached        the session already runs as many as it may
    ├── NotFound                no such handle for this session (another session's looks the same)
    ├── NotRunning              acting on an ended process; .status tells how it ended
    ├── Unsupported             this process cannot do that, and which one could
    ├── WaitTimeout             also a TimeoutError; the process is untouched
    ├── ExitError               only from Exit.check()
    ├── StoreError              a record, log or home directory cannot be used
    └── KeeperError             the keeper cannot be reached, or speaks another version

The keeper sends errors as ``{"code", "message", "handle", "detail"}``; `from_wire` turns them back
into the same classes on the client's side.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class HoldfastError(Exception):
    """The base of every error holdfast raises."""

    code = "error"

    def __init__(self, message: str, *, handle: str | None = None, **detail: Any) -> None:
        super().__init__(message)
        self.handle = handle
        self.detail = detail

    def to_wire(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": str(self),
            "handle": self.handle,
            "detail": self.detail,
        }


class BadRequest(HoldfastError, ValueError):
    code = "bad_request"


class ConfigError(BadRequest):
    code = "bad_config"


class SpawnError(HoldfastError):
    code = "spawn_failed"


class NotExecutable(SpawnError):
    code = "not_executable"

    @property
    def missing(self) -> bool:
        """True when there is no such program; False when there is one that cannot be run."""
        return bool(self.detail.get("missing"))


class BadDirectory(SpawnError):
    code = "bad_directory"


class Unavailable(SpawnError):
    code = "unavailable"


class LimitReached(SpawnError):
    code = "limit_reached"


class NotFound(HoldfastError):
    code = "not_found"


class NotRunning(HoldfastError):
    code = "not_running"

    @property
    def status(self) -> str | None:
        return self.detail.get("status")


class Unsupported(HoldfastError):
    code = "unsupported"


class WaitTimeout(HoldfastError, TimeoutError):
    code = "wait_timeout"


class ExitError(HoldfastError):
    code = "exit"


class StoreError(HoldfastError):
    code = "store"


class KeeperError(HoldfastError):
    code = "keeper"


def why(error: OSError) -> str:
    """The words of a system error, without its number and path."""
    return error.strerror or str(error)


_BY_CODE: dict[str, type[HoldfastError]] = {
    cls.code: cls
    for cls in (
        BadRequest,
        ConfigError,
        SpawnError,
        NotExecutable,
        BadDirectory,
        Unavailable,
        LimitReached,
        NotFound,
        NotRunning,
        Unsupported,
        WaitTimeout,
        ExitError,
        StoreError,
        KeeperError,
    )
}


def from_wire(error: dict[str, Any]) -> HoldfastError:
    cls = _BY_CODE.get(error.get("code", ""), HoldfastError)
    detail = error.get("detail") or {}
    return cls(str(error.get("message", "unknown error")), handle=error.get("handle"), **detail)


def not_found(handle: str) -> NotFound:
    """The one answer for a handle that does not exist, is malformed, or is another session's."""
    shown = handle if len(handle) <= 60 else handle[:57] + "..."
    return NotFound(
        f"no process {shown!r} here; `holdfast ps -a` shows the ones there are",
        handle=shown,
    )
