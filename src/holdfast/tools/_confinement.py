"""Where the commands of a toolset run and what they may use, as whoever embeds it has decided.

What a model says may narrow that and never widen it. In a sandbox it can write to the agent's
directory, whichever directory it works in; a container has that directory mounted and no other
than those that were decided on. So a directory that a model names is only where its command begins.
"""

from __future__ import annotations

import os

from .._config import UNSET
from .._environment import working_directory
from .._errors import BadDirectory, BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .._client import Client
    from .._model import Record
    from .._process import Process

LIMITS = ("memory", "cpu", "processes", "files")


class Confinement:
    """The decisions for one toolset: an image or a sandbox for every command, and limits."""

    def __init__(
        self,
        client: Client,
        *,
        docker: str | Mapping[str, Any] | None = None,
        sandbox: bool | Mapping[str, Any] = False,
        **limits: Any,
    ) -> None:
        if docker and sandbox:
            raise BadRequest("commands run in containers or in a sandbox: give docker or sandbox")
        self._client = client
        self.docker = _docker(docker)
        self.sandbox = _sandbox(sandbox)
        self._limits = {
            name: client.config.choose(name, value)
            for name, value in limits.items()
            if value is not UNSET
        }

    @property
    def offline(self) -> bool:
        """Whether commands have no network, so that their model should have none by our help."""
        if self.docker is not None:
            return bool(self.docker.get("network") == "none")
        return self.sandbox is not None and not self.sandbox["network"]

    @property
    def decided(self) -> frozenset[str]:
        """Of the arguments of `spawn`, those that are no longer a model's to give."""
        if self.docker is not None:
            return frozenset({"docker", "sandbox"})
        if self.sandbox is not None:
            return frozenset({"docker", "ports", "inside", "sandbox"})
        return frozenset()

    @property
    def words(self) -> str:
        """What a model has to know of it."""
        if self.docker is not None:
            where = (
                f"Each command runs in a new container of the image {self.docker['image']}, where "
                "of this machine there is only the agent's directory"
            )
        elif self.sandbox is not None:
            where = "Commands run in a sandbox and can write to the agent's directory only"
        else:
            return ""
        return f"{where}; they have no network." if self.offline else f"{where}."

    def covers(self, record: Record) -> bool:
        """Whether a process that runs already is confined like those that are started here."""
        if self.docker is not None:
            return record.docker is not None and _place(record.docker) == _place(self.docker)
        if self.sandbox is not None:
            return record.sandbox is not None and (
                self.sandbox["network"] or not record.sandbox["network"]
            )
        return True

    async def spawn(
        self,
        command: str | list[str],
        *,
        cwd: str | None = None,
        tty: bool = False,
        tmux: bool = False,
        docker: str | Mapping[str, Any] | None = None,
        ports: list[str] | None = None,
        sandbox: bool | Mapping[str, Any] = False,
        limits: Mapping[str, Any] | None = None,
        inside: Process | None = None,
        **options: Any,
    ) -> Process:
        """As `Client.spawn`, confined; with `inside` in the container of that process."""
        if inside is not None:
            return await inside.exec(command, cwd=cwd, tty=tty or tmux, **options)
        options |= self._limited(limits or {})
        if self.docker is not None:
            docker, cwd = self._beginning_in(cwd), None
        elif self.sandbox is not None:
            sandbox = {**self.sandbox, "root": working_directory(None)}
        if docker is not None:
            options["docker"] = docker
            tty, tmux = tty or tmux, False  # a container has its own terminal
        if ports:
            options["ports"] = ports
        return await self._client.spawn(
            command, cwd=cwd, tty=tty, tmux=tmux, sandbox=sandbox, **options
        )

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

    def _beginning_in(self, cwd: str | None) -> dict[str, Any]:
        """The container, whose mounts do not depend on where the command begins."""
        docker = dict(self.docker or {})
        if cwd is not None:
            root = working_directory(None)
            start = os.path.normpath(os.path.join(docker.get("workdir") or root, cwd))
            if f"{start}/".startswith(f"{root}/") and not os.path.isdir(start):
                raise BadDirectory(f"there is no directory {start!r}; give one that exists")
            docker["workdir"] = start
        return docker


def _docker(given: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if given is None:
        return None
    docker = {"image": given} if isinstance(given, str) else dict(given)
    from .._docker import asked

    asked(docker, (), working_directory(None))  # what is wrong with it is said now
    return docker


def _place(docker: Mapping[str, Any]) -> tuple[str, str]:
    return docker["image"], docker.get("network") or "bridge"


def _sandbox(given: bool | Mapping[str, Any]) -> dict[str, Any] | None:
    if given is False or given is None:
        return None
    options = {} if given is True else dict(given)
    network = options.pop("network", False)
    if options or not isinstance(network, bool):
        raise BadRequest('sandbox is True or {"network": True}')
    return {"network": network}
