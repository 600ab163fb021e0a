"""The server as it describes itself to a client: the same in the first answers and in later ones.

Nothing of the package is imported here: `_handshake` answers before that is there, and the server
that the package runs (`_server`) takes what it says from here as well.
"""

from __future__ import annotations

from ..core.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TASKS = "io.modelcontextprotocol/tasks"
NAME = TITLE = "holdfast"
VERSION = __version__


def capabilities(*, channel: bool, modern: bool = False) -> dict[str, Any]:
    """The capabilities of a server; with `channel`, that of pushing events to Claude Code too.

    A `modern` client, which shakes no hands, is offered tasks.
    """
    offered: dict[str, Any] = {
        "resources": {"subscribe": True, "listChanged": True},
        "tools": {"listChanged": False},
    }
    if modern:
        offered["extensions"] = {TASKS: {}}
    if channel:
        offered["experimental"] = {"claude/channel": {}}
    return offered


def handshake_versions() -> tuple[str, ...]:
    """Protocol versions that begin with `initialize`, oldest first: those of the installed package.

    Empty if that does not say.
    """
    return _versions("HANDSHAKE_PROTOCOL_VERSIONS")


def stateless_versions() -> tuple[str, ...]:
    """Protocol versions without a handshake, likewise."""
    return _versions("MODERN_PROTOCOL_VERSIONS")


def _versions(name: str) -> tuple[str, ...]:
    """Read them from the one module of the package that has them; to import it imports all."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    package = find_spec("mcp_types")
    for folder in (package and package.submodule_search_locations) or ():
        spec = spec_from_file_location("mcp_types.version", f"{folder}/version.py")
        if spec is None or spec.loader is None:
            continue
        module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            return tuple(getattr(module, name))
        except (OSError, ImportError, AttributeError):
            continue
    return ()
