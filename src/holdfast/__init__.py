"""Background processes for AI agents: start, watch, talk to them, and be told when they end."""

from ._agents import Agent, AgentRecord
from ._client import Client
from ._connect import Connector, connect
from ._errors import (
    BadDirectory,
    BadRequest,
    ConfigError,
    ExitError,
    HoldfastError,
    KeeperError,
    LimitReached,
    NotExecutable,
    NotFound,
    NotRunning,
    SpawnError,
    StoreError,
    Unavailable,
    Unsupported,
    WaitTimeout,
)
from ._group import Group
from ._left_behind import LeftBehind
from ._model import Event, Exit, Member, Record, Screen
from ._output import Output
from ._process import Process, Receipt
from ._sync import SyncAgent, SyncClient, SyncGroup, SyncProcess
from ._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tools import SyncToolset, Toolset

__all__ = [
    "Agent",
    "AgentRecord",
    "BadDirectory",
    "BadRequest",
    "Client",
    "ConfigError",
    "Connector",
    "Event",
    "Exit",
    "ExitError",
    "Group",
    "HoldfastError",
    "KeeperError",
    "LeftBehind",
    "LimitReached",
    "Member",
    "NotExecutable",
    "NotFound",
    "NotRunning",
    "Output",
    "Process",
    "Receipt",
    "Record",
    "Screen",
    "SpawnError",
    "StoreError",
    "SyncAgent",
    "SyncClient",
    "SyncGroup",
    "SyncProcess",
    "SyncToolset",
    "Toolset",
    "Unavailable",
    "Unsupported",
    "WaitTimeout",
    "__version__",
    "connect",
]


def __getattr__(name: str) -> object:
    if name in ("SyncToolset", "Toolset"):  # loaded when used: the command line never does
        from . import tools

        return getattr(tools, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
