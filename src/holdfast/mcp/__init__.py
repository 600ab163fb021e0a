"""The tools over MCP: `holdfast mcp`, for any agent that can start an MCP server.

One holdfast session per connection. A client that goes away without a word is a lost one: what it
started goes on for the lease's grace, and the next connection in the same directory is told of it.
Nothing here is imported by anything but that command.
"""

# Each is loaded when it is used: the first answer must not wait for the rest.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._address import Address
    from ._configs import config_for
    from ._handshake import Handshake, take_stdio
    from ._http import serve_http
    from ._session import Settings
    from ._stdio_server import serve_stdio

__all__ = [
    "Address",
    "Handshake",
    "Settings",
    "config_for",
    "serve_http",
    "serve_stdio",
    "take_stdio",
]

_WHERE = {
    "_address": "Address",
    "_configs": "config_for",
    "_handshake": "Handshake take_stdio",
    "_http": "serve_http",
    "_stdio_server": "serve_stdio",
    "_session": "Settings",
}


def __getattr__(name: str) -> object:
    for module, names in _WHERE.items():
        if name in names.split():
            from importlib import import_module

            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
