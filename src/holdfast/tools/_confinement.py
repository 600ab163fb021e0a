"""Confinement of a toolset's commands: where they run and what they may use.

What a model says may narrow that and never widen it. In a sandbox it can write to the agent's
directory, whichever directory it works in; a container has that directory mounted and no other
than those that were decided on. So a directory that a model names is only where its command begins.

What is already there would be a way out: a process that is not confined like that can be looked at
and stopped, and nothing is typed into it. Nor do we look for a model where its commands cannot.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextvars import ContextVar

from ..client.config import UNSET
from ..core.environment import is_within, working_directory
from ..core.errors import BadDirectory, BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..client.client import Client
    from ..client.process import Process
    from ..core.record import Record

# The processes that the call of a tool has started. Their ends are the call's until it answers: who
# else follows the session is not told of what this answer may show.
STARTED: ContextVar[list[Process] | None] = ContextVar("started", default=None)
_HERE = ("", "localhost", "127.0.0.1", "::1")
_LOCAL_URL = re.compile(r"(https?)://(?:127\.0\.0\.1|localhost)(?::([0-9]+))?(?=[/?# ]|$)")
_PORTS = {"http": 80, "https": 443}


class Confinement:
    """The decisions for one toolset: limits, and here no more than those.

    `InContainers` and `InSandbox` decide where every command runs.
    """

    # Each command has a container of its own, whose shell is this one.
    contained = False
    shell: str | None = None
    # Commands have no network, so that their model should have none by our help.
    offline = False
    # Of the arguments of `spawn`, those that are no longer a model's to give.
    decided: frozenset[str] = frozenset()

    def __init__(self, client: Client, limits: Mapping[str, Any] | None = None) -> None:
        self._client = client
        self._limits = {
            name: client.config.choose(name, value)
            for name, value in (limits or {}).items()
            if value is not UNSET
        }
        self._started: set[str] = set()  # by these tools, wherever their program was then

    @property
    def words(self) -> str:
        """The words for a model about its confinement."""
        return ""

    def covers(self, record: Record) -> bool:
        """True if a process that runs already is confined like those that are started here."""
        return record.handle in self._started or self._confines(record)

    def _confines(self, record: Record) -> bool:
        return True

    def check_input(self, record: Record) -> None:
        """Refuse input for what is not confined as the model's commands are."""
        if record.running and not self.covers(record):
            raise BadRequest(
                f"{record.handle} was not started by these tools and is not confined as their "
                "commands are: it can be looked at and stopped, but not typed into, and nothing "
                "can be run in it; start one of your own",
                handle=record.handle,
            )

    async def conditions(self, given: Sequence[Any], processes: Sequence[Process]) -> list[Any]:
        """Conditions for a wait; refused if they tell more than commands could find out."""
        return list(given)

    def check_project(self, directory: str) -> None:
        """A directory whose files we read is the one that commands find there."""

    # -- starting ------------------------------------------------------------------------------

    async def spawn(
        self,
        command: str | list[str],
        *,
        tty: bool = False,
        tmux: bool = False,
        limits: Mapping[str, Any] | None = None,
        inside: Process | None = None,
        **options: Any,
    ) -> Process:
        """Spawn, confined; with `inside` in the container of that process."""
        started = STARTED.get()
        claim = started is not None
        if inside is not None:
            self.check_input(inside.record)
            for name in ("docker", "ports", "sandbox"):
                options.pop(name, None)
            process = await inside.exec(command, tty=tty or tmux, claim=claim, **options)
        else:
            options = self._confined(options | self._limited(limits or {}))
            if options.get("docker"):
                tty, tmux = tty or tmux, False  # a container has its own terminal
            process = await self._client.spawn(command, tty=tty, tmux=tmux, claim=claim, **options)
        self._started.add(process.handle)
        if started is not None:
            started.append(process)
        return process

    def _confined(self, options: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `spawn`, with what was decided."""
        return options

    def _limited(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The limits of one process: a model may ask for less than there is, not for more."""
        config, found = self._client.config, dict(self._limits)
        for name, value in asked.items():
            most = found.get(name, config[name])
            wanted = config.choose(name, value)
            if most is not None and (wanted is None or wanted > most):
                raise BadRequest(
                    f"{name} is at most {most} here, not {value!r}; ask for less or leave it out"
                )
            found[name] = wanted
        return found


class _Apart(Confinement):
    """One whose commands do not see all of this machine; nor do we look there for their model."""

    # What is asked from here is asked from where commands are.
    _on_this_network: bool
    _where: str

    @property
    def _missing(self) -> list[str]:
        return ["no network"] if self.offline else []

    @property
    def words(self) -> str:
        missing = " and ".join(self._missing)
        return f"{self._where}; they have {missing}." if missing else f"{self._where}."

    async def conditions(self, given: Sequence[Any], processes: Sequence[Process]) -> list[Any]:
        return [await self._condition(each, processes) for each in given]

    async def _condition(self, given: Any, processes: Sequence[Process]) -> Any:
        table = dict(given) if isinstance(given, Mapping) else dict([given.partition("=")[::2]])
        if "file" in table:
            self._check_file(str(table["file"]), processes)
            return {**table, "within": self._shared()}
        if "port" in table:
            host = str(table["port"]).rpartition(":")[0].strip("[]") or table.get("host", "")
            if host not in _HERE and not self._on_this_network:
                raise self._not_waited_for(f"port={table['port']}")
        if "http" in table and not self._on_this_network:
            return {**table, "http": await self._published(str(table["http"]))}
        return given

    def _not_waited_for(self, condition: str) -> BadRequest:
        why = "commands have no network here"
        if not self.offline:
            why = (
                "commands have another network than this machine; only the published ports of "
                "running containers are asked, as http://127.0.0.1:PORT"
            )
        return BadRequest(f"{condition[:80]!r} cannot be waited for: {why}")

    async def _published(self, url: str) -> str:
        """A URL of a container: on loopback, where nobody else has the port."""
        found = None if self.offline else _LOCAL_URL.match(url)
        if found is not None:
            port = int(found[2]) if found[2] else _PORTS[found[1]]
            for process in await self._client.list(ended=False):
                if port in process.record.ports.values():
                    return f"{found[1]}://127.0.0.1:{port}{url[found.end() :]}"
        raise self._not_waited_for(f"http={url}")

    def _check_file(self, path: str, processes: Sequence[Process]) -> None:
        directories = self._shared()
        for process in processes:
            try:
                place = os.path.join(process.record.cwd, os.path.expanduser(path))
                if is_within(place, *directories):
                    continue
            except ValueError:
                return  # no path at all, which is said better by whoever waits
            raise BadRequest(
                f"'file={path[:80]}' cannot be waited for: only files in the agent's directory can"
            )

    def _shared(self) -> list[str]:
        """The directories of this machine that commands have too, or can write to."""
        return [working_directory(None)]


class InContainers(_Apart):
    """A container of one image for every command, with the agent's directory in it."""

    contained = True
    shell = "sh"  # which every image has that has a shell
    decided = frozenset({"docker", "sandbox"})

    def __init__(
        self, client: Client, docker: str | Mapping[str, Any], limits: Mapping[str, Any]
    ) -> None:
        super().__init__(client, limits)
        self._docker = {"image": docker} if isinstance(docker, str) else dict(docker)
        self._mounts()  # what is wrong with it is said now
        network = self._docker.get("network")
        self.offline = network == "none"
        self._on_this_network = network == "host"
        self._where = (
            f"Each command runs in a new container of the image {self._docker['image']}, where "
            "of this machine there is only the agent's directory"
        )

    def _confines(self, record: Record) -> bool:
        """Nothing is mounted in it but what would be here, and of the agent's directory a part."""
        docker, ours = record.docker or {}, self._mounts()
        mounts = docker.get("mounts")
        return (
            _place(docker) == _place(self._docker)
            and mounts is not None
            and all(mount in ours for mount in mounts)
            and is_within(record.cwd, working_directory(None))
        )

    def _mounts(self) -> tuple[dict[str, Any], ...]:
        """The limits that were decided on."""
        from ..client.docker_client import asked

        ours = asked(self._docker, (), working_directory(None))
        return () if ours is None else ours.mounts

    def _shared(self) -> list[str]:
        return [*super()._shared(), *(mount["source"] for mount in self._mounts())]

    def check_project(self, directory: str) -> None:
        if not is_within(directory, *self._shared()):
            raise BadDirectory(
                f"{directory!r} is not in the agent's directory; give the command as 'cmd', or a "
                "'cwd' that is"
            )

    def _confined(self, options: dict[str, Any]) -> dict[str, Any]:
        """The container's mounts do not depend on where the command begins."""
        docker = dict(self._docker)
        if (cwd := options.get("cwd")) is not None:
            root = working_directory(None)
            start = os.path.normpath(os.path.join(docker.get("workdir") or root, cwd))
            if is_within(start, root) and not os.path.isdir(start):
                raise BadDirectory(f"there is no directory {start!r}; give one that exists")
            docker["workdir"] = start
        return {**options, "docker": docker, "cwd": None}


class InSandbox(_Apart):
    """A sandbox for every command, which can write to the agent's directory."""

    decided = frozenset({"docker", "ports", "inside", "sandbox"})
    _where = "Commands run in a sandbox and can write to the agent's directory only"

    def __init__(
        self, client: Client, sandbox: Mapping[str, Any], limits: Mapping[str, Any]
    ) -> None:
        from ..linux.sandbox import choices

        super().__init__(client, limits)
        self._sandbox = choices(sandbox)
        self._on_this_network = self._sandbox["network"]
        self.offline = not self._on_this_network

    @property
    def _missing(self) -> list[str]:
        return [*super()._missing, *([] if self._sandbox["sockets"] else ["no Unix sockets"])]

    def _confines(self, record: Record) -> bool:
        # One of an earlier version, which does not say what is open, was open.
        open = {name for name in self._sandbox if (record.sandbox or {}).get(name, True)}
        if record.sandbox is None or any(not self._sandbox[name] for name in open):
            return False
        return is_within(record.sandbox.get("root") or record.cwd, working_directory(None))

    def _confined(self, options: dict[str, Any]) -> dict[str, Any]:
        return {**options, "sandbox": {**self._sandbox, "root": working_directory(None)}}


def confinement(
    client: Client,
    *,
    docker: str | Mapping[str, Any] | None = None,
    sandbox: bool | Mapping[str, Any] = False,
    **limits: Any,
) -> Confinement:
    """The decisions of whoever makes a toolset: an image or a sandbox for every command, limits."""
    if docker and sandbox:
        raise BadRequest("commands run in containers or in a sandbox: give docker or sandbox")
    if docker is not None:
        return InContainers(client, docker, limits)
    if sandbox is not False and sandbox is not None:
        return InSandbox(client, {} if sandbox is True else sandbox, limits)
    return Confinement(client, limits)


def _place(docker: Mapping[str, Any]) -> tuple[str | None, ...]:
    return docker.get("image"), docker.get("network") or "bridge", docker.get("user")
