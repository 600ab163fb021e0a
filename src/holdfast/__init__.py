"""Background processes for AI agents: start, watch, talk to them, and be told when they end."""

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
from ._model import Event, Exit, Member, Record, Screen
from ._output import Output
from ._process import Process, Receipt
from ._sync import SyncClient, SyncGroup, SyncProcess
from ._version import __version__

__all__ = [
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
    "SyncClient",
    "SyncGroup",
    "SyncProcess",
    "Unavailable",
    "Unsupported",
    "WaitTimeout",
    "__version__",
    "connect",
]
