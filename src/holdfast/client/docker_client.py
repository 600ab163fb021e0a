"""Docker on the client's side: what can be asked for, what the runner is told, and its start.

    docker="python:3.12"
    docker={"image": "node:22", "pull": True, "network": "none", "user": "1000",
            "mounts": ["~/.cache:/cache:ro"], "workdir": "/srv"}

DESIGN. The container is made by a runner, a program under the keeper (`runners/docker/runner.py`).
What it needs to know travels in its environment, so that nothing of it is ever on disk: the
container's own environment is in there, and that is only what the caller gave. The client waits
until the runner says, in ``.runner``, that the container has begun, that its image is being pulled,
or why neither can be; in the last case the process is removed again, and it never was.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..core import environment
from ..core.errors import (
    BadDirectory,
    BadRequest,
    HoldfastError,
    NotExecutable,
    NotFound,
    NotRunning,
    SpawnError,
    StoreError,
    Unavailable,
    Unsupported,
)
from ..core.programs import docker_program
from ..core.record import DEFAULT_SESSION
from ..core.spawn_spec import LIMITS
from ..core.watch import unknown_word
from ..linux.container import runner_path, said
from ..linux.inotify import Watch
from .config import UNSET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.record import Record
    from ..core.store import Store
    from ..runners.docker.engine import Engine
    from .client import Client
    from .process import Process

_POLL, _LOOK = 0.05, 1.0
_PATIENCE = 5.0  # with an engine that only has to say something
_SAYS = frozenset({"container", "pulling", "error"})
_PART = 100 << 10
# A command that is a string: by bash, if the image has one. Docker keeps stdout and stderr apart
# and does not tell which came first: they keep their order only if the shell makes one of them.
_SHELL = "/bin/sh"
_BY_BASH = 'command -v bash > /dev/null 2>&1 && exec bash -c "$1"; exec sh -c "$1"'
_AS_ONE = "exec 2>&1; "
_WORDS = ("image", "pull", "network", "user", "mounts", "workdir")
# What a command cannot have otherwise than the container that it runs in.
_OF_CONTAINER = ("docker", "ports", "sandbox", "tmux", *LIMITS)
_NOT_BY_DOCKER = (
    "ports are published by Docker only: say which image with docker=..., or leave ports out: a "
    "plain process listens on the machine itself"
)
_ERRORS: dict[str, type[SpawnError] | type[BadRequest]] = {
    "unavailable": Unavailable,
    "not_found": Unavailable,  # an image that this start needs
    "bad_request": BadRequest,
    "bad_directory": BadDirectory,
    "not_executable": NotExecutable,
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked request to Docker: a container of an image, or a place in another one."""

    image: str
    pull: bool = False
    network: str | None = None
    user: str | None = None
    mounts: tuple[dict[str, Any], ...] = ()
    workdir: str | None = None
    ports: tuple[str, ...] = ()
    inside: str | None = None  # the container to run in

    def public(self) -> dict[str, Any]:
        """The entry in the record, besides the container's name."""
        return {
            "image": self.image,
            "network": self.network,
            "user": self.user,
            "mounts": list(self.mounts),  # besides its working directory
        }


def asked(docker: Any, ports: Any, cwd: str) -> Asked | None:
    """Check what `spawn` was given; None for what does not run in Docker."""
    if isinstance(docker, Asked):
        return docker
    if docker is None:
        if ports:
            raise BadRequest(_NOT_BY_DOCKER)
        return None
    options = {"image": docker} if isinstance(docker, str) else docker
    if not isinstance(options, Mapping):
        raise BadRequest(
            f"docker is an image, or a table like {{'image': 'python:3.12'}}; not {docker!r:.80}"
        )
    for word in options:
        if word not in _WORDS:
            raise unknown_word("docker", word, _WORDS)
    image, pull = options.get("image"), options.get("pull", False)
    if not isinstance(image, str) or not _is_plain(image):
        raise BadRequest(f"docker needs an image like python:3.12, not {image!r:.80}")
    if not isinstance(pull, bool):
        raise BadRequest(f"pull is true or false, not {pull!r:.80}")
    for name in ("network", "user", "workdir"):
        value = options.get(name)
        if value is not None and not (isinstance(value, str) and _is_plain(value)):
            raise BadRequest(f"docker's {name} is a text without blanks, not {value!r:.80}")
    workdir, network = options.get("workdir"), options.get("network")
    if workdir is not None and not workdir.startswith("/"):
        raise BadRequest(f"docker's workdir is an absolute path in the container, not {workdir!r}")
    published = _ports(ports, network)
    mounts = options.get("mounts") or ()
    if isinstance(mounts, (str, Mapping)) or not hasattr(mounts, "__iter__"):
        raise BadRequest(f"mounts are a list like ['SRC:DST:ro'], not {mounts!r:.80}")
    return Asked(
        image=image,
        pull=pull,
        network=network,
        user=options.get("user"),
        mounts=tuple(_mount(each, cwd) for each in mounts),
        workdir=workdir,
        ports=published,
    )


def inside(record: Record, cwd: str | os.PathLike[str] | None, user: str | None) -> Asked:
    """The `docker` options that run a command in the container of a process."""
    handle = record.handle
    if not record.capabilities.exec:
        raise Unsupported(
            f"{handle} runs on the machine itself, not in Docker: start another process instead",
            handle=handle,
        )
    if not record.running:
        raise NotRunning(
            f"{handle} has ended ({record.status}) and its container with it; start it again",
            handle=handle,
            status=record.status,
        )
    told = said(os.path.dirname(record.log), handle)
    if "container" not in told:
        raise NotRunning(
            f"the container of {handle} has not begun yet: its image is being pulled; try again "
            "once it has",
            handle=handle,
            status=record.status,
        )
    if user is not None and not (isinstance(user, str) and _is_plain(user)):
        raise BadRequest(f"a user is a text without blanks, not {user!r:.80}")
    workdir = None if cwd is None else os.path.join(record.cwd, os.fspath(cwd))
    shown = record.docker or {}
    return Asked(
        image=shown["image"],
        network=shown.get("network"),
        user=user or shown.get("user"),
        mounts=tuple(shown.get("mounts") or ()),
        workdir=workdir,
        inside=str(told["container"]),
    )


def check_inside(options: Mapping[str, Any]) -> None:
    for name in _OF_CONTAINER:
        if options.get(name, UNSET) is not UNSET:
            raise BadRequest(
                f"{name} is the container's, and not to be chosen for one command in it"
            )


def arguments(command: str | list[str], asked: Asked, stderr: str) -> list[str]:
    """The argv in the container; none where the image's own command is to run."""
    if asked.inside is None and command in ("", [], ()):
        return []
    argv = environment.arguments(command, _SHELL)
    if not argv[0]:
        raise NotExecutable("the command is empty; give a program to run", missing=True)
    for word in argv:
        _check_encoding(word, "an argument")
    if isinstance(command, str):
        script = _BY_BASH if stderr == "separate" else _AS_ONE + _BY_BASH
        return [_SHELL, "-c", script, "sh", command]
    return argv


def _check_encoding(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{what} is not UTF-8, and Docker takes nothing else") from None


def _environment_of(env: Mapping[str, str] | None, terminal: bool) -> dict[str, str]:
    """The caller's variables, and of ours only those that say how to behave."""
    given = environment.checked(env)
    for name, value in given.items():
        _check_encoding(name + value, "an environment variable")
    return {
        **(environment.IN_TERMINAL if terminal else environment.NOT_INTERACTIVE),
        **given,
    }


def working_directory(cwd: str) -> str:
    """The directory that the container gets, which has the same name in it."""
    path = os.path.realpath(cwd) if ".." in cwd.split("/") else os.path.normpath(cwd)
    if path == "/":
        raise BadDirectory("a container cannot have / as its working directory; give another cwd")
    return path


def check_combination(
    asked: Asked, *, tmux: bool, sandbox: object, watches: list[dict[str, Any]]
) -> None:
    if tmux:
        raise BadRequest("a container has its own terminal: use tty instead of tmux")
    if sandbox:
        raise BadRequest("a container is a sandbox by itself: leave sandbox out")
    numbers = {int(number) for port in asked.ports for number in re.findall("[0-9]+", port)}
    for watch in watches:
        port = watch.get("port")
        known = port in numbers or asked.network == "host" or asked.inside is not None
        if port is not None and not known:
            raise BadRequest(
                f"port {port} cannot be watched: it is not among the container's ports"
            )


def request(
    asked: Asked, spawn: dict[str, Any], env: Mapping[str, str] | None, client: Client
) -> dict[str, Any]:
    """The part of a request to spawn that makes it one of a runner."""
    from ..linux.sandbox import homes, ourselves

    columns, rows = spawn["size"]
    terminal = spawn["mode"] == "pty"
    limits = spawn["limits"] if asked.inside is None else dict.fromkeys(spawn["limits"])
    spec = {
        "handle": spawn["handle"],
        "home": client.home.path,
        "homes": homes(),
        "fixed": ourselves(),
        "directory": client.home.processes,
        "session": client.session or DEFAULT_SESSION,
        "socket": find_engine().path,
        "image": asked.image,
        "command": spawn["argv"] or None,
        "env": _environment_of(env, terminal),
        "cwd": spawn["cwd"] if asked.inside is None else None,  # else the container's own
        "tty": terminal,
        "stdin": bool(spawn["stdin"]) or terminal,
        "separate": spawn["stderr"] == "separate",
        "rows": rows,
        "cols": columns,
        "ports": list(asked.ports),
        **limits,
        "network": asked.network,
        "user": asked.user,
        "mounts": list(asked.mounts),
        "workdir": asked.workdir,
        "pull": asked.pull,
        "login": _login(asked),
        "exec": asked.inside,
    }
    passed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    runner = {
        "kind": "docker",
        "argv": docker_program(),
        "env": {**passed, **_in_parts(json.dumps(spec))},
    }
    return {"limits": limits, "docker": asked.public(), "runner": runner}


def _in_parts(text: str) -> dict[str, str]:
    """Split a text over variables: none may be longer than the kernel takes, all together may."""
    parts = [text[at : at + _PART] for at in range(0, len(text), _PART)]
    return {
        f"HOLDFAST_RUNNER_{number}" if number else "HOLDFAST_RUNNER": part
        for number, part in enumerate(parts)
    }


def _login(asked: Asked) -> str:
    if not asked.pull:
        return ""
    from ..runners.docker.login import login

    return login(asked.image, os.environ)


async def until_begun(process: Process) -> None:
    """Wait until its container has begun, or its image is being pulled.

    Where neither can be, the process is removed and what hindered it raised.
    """
    client, handle = process._client, process.handle
    directory = client.home.processes
    paths = [runner_path(directory, handle), client.home.meta(handle)]
    with Watch(paths, client.spares) as watch:
        while True:
            watch.drain()
            record = client._load(handle)
            told = said(directory, handle)  # after the record: it comes before an end
            if not record.running or _SAYS.intersection(told):
                break
            await client._kept(record)
            await client._link.readable(watch.fileno(), _POLL if watch.fileno() is None else _LOOK)
    if "container" in told or "pulling" in told or record.stop is not None:
        await process._reload()
        return
    why = str(told.get("error") or _last_words(record))
    try:
        await process.remove()
    except HoldfastError:
        pass  # what it says itself is the news
    kind = _ERRORS.get(str(told.get("kind")), SpawnError)
    if kind is NotExecutable:
        raise NotExecutable(why, missing=bool(told.get("missing")))
    raise kind(why)


def _last_words(record: Record) -> str:
    """The error of a runner that ended without a word."""
    notes = "; ".join(record.notes)
    return notes or "the program that makes the container ended before it could; see keeper.log"


# -- the engine ------------------------------------------------------------------------------------


def find_engine() -> Engine:
    """The engine that the caller's environment or Docker's own settings name."""
    from ..runners.docker.engine import Engine, EngineError, find_socket

    try:
        return Engine(find_socket(os.environ))
    except EngineError as error:
        raise Unavailable(str(error)) from None


def version(engine: Engine) -> str:
    """Ask the engine about itself; Unavailable with the next step if it does not answer."""
    return str(_call(engine, "/version").get("Version") or "of unknown version")


def left_over(engine: Engine, store: Store) -> list[str]:
    """The names of containers whose process is over or gone, or whose home is."""
    from urllib.parse import quote

    wanted = json.dumps({"label": ["holdfast=1"]})
    left = []
    for found in _call(engine, f"/containers/json?all=1&filters={quote(wanted)}"):
        home = found["Labels"].get("holdfast.home", "")
        if home != store.home.path:
            if not os.path.exists(home):
                left.append(str(found["Names"][0]).lstrip("/"))
            continue
        try:
            kept = store.load(found["Labels"]["holdfast.handle"]).running
        except NotFound:
            kept = False
        except StoreError:
            kept = True  # nobody can say
        if not kept:
            left.append(str(found["Names"][0]).lstrip("/"))
    return left


def _call(engine: Engine, path: str) -> Any:
    from ..runners.docker.engine import EngineError
    from ..runners.docker.refusal import silent

    try:
        return engine.call("GET", path, timeout=_PATIENCE)
    except EngineError as error:
        why = silent(error, engine.path).sentence if error.status == 0 else error.message
        raise Unavailable(why) from None


# -- how things are written ------------------------------------------------------------------------


def _is_plain(text: str) -> bool:
    return bool(text) and text.isprintable() and " " not in text and not text.startswith("-")


def _ports(given: Any, network: str | None) -> tuple[str, ...]:
    from ..runners.docker import ports
    from ..runners.docker.refusal import Refused

    if isinstance(given, (str, int)) or not hasattr(given, "__iter__"):
        raise BadRequest(f"ports are a list like ['3000'], not {given!r:.80}")
    listed = list(given)
    for each in listed:
        if type(each) not in (str, int):
            raise BadRequest(f"a port is a number or a text like '3000', not {each!r:.80}")
    try:
        ports.parse(listed, network)
    except Refused as error:
        raise BadRequest(error.sentence) from None
    return tuple(str(each).strip() for each in listed)


def _mount(given: Any, cwd: str) -> dict[str, Any]:
    if isinstance(given, str):
        source, _, rest = given.partition(":")
        target, _, how = rest.partition(":")
        if how not in ("", "ro", "rw"):
            raise BadRequest(f"a mount is like SRC:DST or SRC:DST:ro, not {given!r:.80}")
        mount: dict[str, Any] = {"source": source, "target": target, "read_only": how == "ro"}
    elif isinstance(given, Mapping) and {"source", "target"} <= given.keys():
        mount = {"read_only": False, **given}
    else:
        raise BadRequest(f"a mount is like 'SRC:DST' or 'SRC:DST:ro', not {given!r:.80}")
    for word in mount:
        if word not in ("source", "target", "read_only"):
            raise unknown_word("a mount", word, ("source", "target", "read_only"))
    source, target, read_only = mount["source"], mount["target"], mount["read_only"]
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source):
        raise BadRequest(f"a mount needs a source at this machine, not {source!r:.80}")
    if not isinstance(target, str) or not target.startswith("/") or target.strip("/") == "":
        raise BadRequest(f"a mount needs an absolute path in the container, not {target!r:.80}")
    if not isinstance(read_only, bool):
        raise BadRequest(f"read_only is true or false, not {read_only!r:.80}")
    path = os.path.normpath(os.path.join(cwd, os.path.expanduser(os.fspath(source))))
    if not os.path.exists(path):
        raise BadRequest(f"there is no {path} to mount at {target}; make it first")
    return {"source": path, "target": target, "read_only": read_only}


def ways_out() -> list[str]:
    """The sockets at which somebody may do for the caller what a command says."""
    from ..runners.docker.engine import EngineError, find_socket

    user = os.path.expanduser("~")
    places = [f"{user}/.docker/run", f"{user}/.docker/desktop"]
    try:
        places.append(find_socket(os.environ))
    except EngineError:
        pass
    return places
