"""Background processes for AI agents: start, watch, talk to them, and be told when they end."""

# Names are loaded when they are used (PEP 562): the keeper, the watcher and the runner of
# containers import a few modules of this package, and must not pay for the client.

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .client.agents import Agent
    from .client.client import Client
    from .client.conditions import Met
    from .client.config import Config
    from .client.connect import Connector, connect
    from .client.deliver import Message, deliver
    from .client.group import Group
    from .client.lost_sessions import LeftBehind
    from .client.process import Process, Receipt
    from .client.sync import SyncAgent, SyncClient, SyncGroup, SyncProcess
    from .client.wait_for import Waited
    from .core.agent_record import AgentRecord
    from .core.capabilities import Capabilities
    from .core.errors import (
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
    from .core.home import Home
    from .core.record import Event, Exit, Member, Record, Screen, Stop
    from .core.store import Store
    from .core.types import (
        Condition,
        DialectName,
        Duration,
        EndedBy,
        EventType,
        ModeName,
        Progress,
        Reason,
        Signal,
        Size,
        Status,
        Stream,
        Style,
        Survives,
    )
    from .core.version import __version__
    from .linux.usage import Usage, UsageHistory
    from .output.fit import Gap
    from .output.log import Log, Output
    from .output.search import Found, Match
    from .output.view import View
    from .tools import Result, Toolset
    from .tools.sync import SyncToolset

__all__ = [
    "Agent",
    "AgentRecord",
    "BadDirectory",
    "BadRequest",
    "Capabilities",
    "Client",
    "Condition",
    "Config",
    "ConfigError",
    "Connector",
    "DialectName",
    "Duration",
    "EndedBy",
    "Event",
    "EventType",
    "Exit",
    "ExitError",
    "Found",
    "Gap",
    "Group",
    "HoldfastError",
    "Home",
    "KeeperError",
    "LeftBehind",
    "LimitReached",
    "Log",
    "Match",
    "Member",
    "Message",
    "Met",
    "ModeName",
    "NotExecutable",
    "NotFound",
    "NotRunning",
    "Output",
    "Process",
    "Progress",
    "Reason",
    "Receipt",
    "Record",
    "Result",
    "Screen",
    "Signal",
    "Size",
    "SpawnError",
    "Status",
    "Stop",
    "Store",
    "StoreError",
    "Stream",
    "Style",
    "Survives",
    "SyncAgent",
    "SyncClient",
    "SyncGroup",
    "SyncProcess",
    "SyncToolset",
    "Toolset",
    "Unavailable",
    "Unsupported",
    "Usage",
    "UsageHistory",
    "View",
    "WaitTimeout",
    "Waited",
    "__version__",
    "connect",
    "deliver",
]

# Where they are; what is not named here is an error.
_WHERE = {
    "client.agents": "Agent",
    "client.client": "Client",
    "client.conditions": "Met",
    "client.config": "Config",
    "client.connect": "Connector connect",
    "client.deliver": "Message deliver",
    "client.group": "Group",
    "client.lost_sessions": "LeftBehind",
    "client.process": "Process Receipt",
    "client.sync": "SyncAgent SyncClient SyncGroup SyncProcess",
    "client.wait_for": "Waited",
    "core.agent_record": "AgentRecord",
    "core.capabilities": "Capabilities",
    "core.home": "Home",
    "core.record": "Event Exit Member Record Screen Stop",
    "core.store": "Store",
    "core.types": "Condition DialectName Duration EndedBy EventType ModeName Progress Reason "
    "Signal Size Status Stream Style Survives",
    "core.version": "__version__",
    "linux.usage": "Usage UsageHistory",
    "output.fit": "Gap",
    "output.log": "Log Output",
    "output.search": "Found Match",
    "output.view": "View",
    "tools": "Result Toolset",
    "tools.sync": "SyncToolset",
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f".{_MODULE_OF.get(name, 'core.errors')}", __name__)
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
