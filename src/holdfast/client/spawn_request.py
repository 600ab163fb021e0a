"""The request of a start, from the arguments of `Client.spawn`.

All that is the caller's is resolved here, and nothing by the keeper: its directory, environment,
shell and settings, the programs that confine it or give it a terminal.
"""

from __future__ import annotations

from ..core import environment, spawn_spec, tmux_server
from ..core.errors import BadRequest
from ..core.home import Home, is_handle, new_handle

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .client import Client

_NO_TMUX = (
    "tmux is not installed: it runs in a terminal of the keeper's own instead, which ends if both "
    "halves of the keeper are killed at once"
)


def spawn_request(
    client: Client,
    command: str | list[str],
    options: dict[str, Any],
    *,
    cwd: str | os.PathLike[str] | None,
    env: Mapping[str, str] | None,
    tty: bool,
    tmux: bool,
    sandbox: bool | Mapping[str, Any],
    docker: Any,
    ports: Sequence[str | int],
    watch: Any,
    handle: str | None,
) -> dict[str, Any]:
    if handle is not None and not is_handle(handle):
        raise BadRequest("a handle is proc- and 16 to 64 small letters or digits")
    handle, separate = handle or new_handle(), options["stderr"] == "separate"
    watches = _parse_watches(watch, [0, 0] if separate else [0]) if watch else []
    directory = environment.working_directory(cwd)
    container = None
    if docker is not None or ports:
        from . import docker_client

        container = docker_client.asked(docker, ports, directory)
    if container is None:
        argv = environment.arguments(command, client.config["shell"])
    else:
        docker_client.check_combination(container, tmux=tmux, sandbox=sandbox, watches=watches)
        argv = docker_client.arguments(command, container, options["stderr"])
        directory = docker_client.working_directory(directory)
    terminal = tty or tmux
    if terminal and separate:
        raise BadRequest("a terminal has one output: in one, stderr cannot be separate")
    confined = _sandboxed(sandbox, directory)
    writable = None if confined is None else confined.get("root", directory)
    tmux_program = tmux_server.find_tmux(writable) if tmux else None
    in_tmux = tmux_program is not None
    request = {
        **spawn_spec.to_wire(options),
        "handle": handle,
        "mode": "tmux" if in_tmux else "pty" if terminal else "pipe",
        "tmux": tmux_program,
        "attach": _attach_command(client.home, handle, in_tmux) if terminal else None,
        "watches": watches,
        "notes": [_NO_TMUX] if tmux and not in_tmux else [],
        "command": command if isinstance(command, str) else list(command),
        "argv": argv,
        "cwd": directory,
        "env": {} if container else environment.environment(env, terminal=terminal, tmux=in_tmux),
        "umask": environment.current_umask(),
        "sandbox": confined,
    }
    if container is not None:
        request |= docker_client.request(container, request, env, client)
    return request


def _attach_command(home: Home, handle: str, in_tmux: bool) -> str:
    """The command a person types; with the home unless it is the one they would get anyway."""
    if in_tmux:
        return tmux_server.attach_command(home, tmux_server.session_name(handle))
    import shlex

    where = "" if home.path == Home.usual() else f"HOLDFAST_HOME={shlex.quote(home.path)} "
    return f"{where}holdfast attach {handle}"


def _parse_watches(given: Any, ends: list[int]) -> list[dict[str, Any]]:
    from .watch_request import parse

    if isinstance(given, (str, dict)):
        given = [given]
    if not hasattr(given, "__iter__"):
        raise BadRequest(f"watch is like output=PATTERN, or a list of such; not {given!r:.80}")
    return [parse(each, ends) for each in given]


def _sandboxed(asked: bool | Mapping[str, Any], cwd: str) -> dict[str, Any] | None:
    if asked is False or asked is None:
        return None
    options = {} if asked is True else dict(asked)
    root = options.pop("root", None)
    from ..linux.sandbox import choices, find, homes, ourselves
    from .docker_client import ways_out

    found = choices(options)
    found |= {
        "program": find(environment.working_directory(root or cwd)),
        "homes": homes(),
        "ways_out": ways_out(),
        "fixed": ourselves(),
    }
    return found if root is None else {**found, "root": environment.working_directory(root)}
