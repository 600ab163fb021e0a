"""Where the commands of a toolset run and what they may use, as whoever embeds it has decided.

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

from .._config import UNSET
from .._environment import is_within, working_directory
from .._errors import BadDirectory, BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .._client import Client
    from .._model import Record
    from .._process import Process

LIMITS = ("memory", "cpu", "processes", "files")
_HERE = ("", "localhost", "127.0.0.1", "::1")
_LOCAL_URL = re.compile(r"(https?)://(?:127\.0\.0\.1|localhost)(?::([0-9]+))?(?=[/?# ]|$)")
_PORTS = {"http": 80, "https": 443}


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
        self._started: set[str] = set()  # by these tools, wherever their program was then

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
        missing = ["no network"] if self.offline else []
        if self.sandbox is not None and not self.sandbox["sockets"]:
            missing.append("no Unix sockets")
        return f"{where}; they have {' and '.join(missing)}." if missing else f"{where}."

    def covers(self, record: Record) -> bool:
        """Whether a process that runs already is confined like those that are started here."""
        if record.handle in self._started:
            return True
        if self.docker is not None:
            return record.docker is not None and self._covers_container(record.docker, record.cwd)
        if self.sandbox is not None:
            # One of an earlier version, which does not say what is open, was open.
            open = {name for name in self.sandbox if (record.sandbox or {}).get(name, True)}
            if record.sandbox is None or any(not self.sandbox[name] for name in open):
                return False
            return is_within(record.sandbox.get("root") or record.cwd, working_directory(None))
        return True

    def _covers_container(self, docker: Mapping[str, Any], cwd: str) -> bool:
        """Nothing is mounted in it but what would be here, and of the agent's directory a part."""
        mounts, ours = docker.get("mounts"), self._mounts()
        return (
            _place(docker) == _place(self.docker or {})
            and mounts is not None
            and all(mount in ours for mount in mounts)
            and is_within(cwd, working_directory(None))
        )

    def _mounts(self) -> tuple[dict[str, Any], ...]:
        """Those that were decided on."""
        from .._docker import asked

        ours = asked(self.docker, (), working_directory(None))
        return () if ours is None else ours.mounts

    def check_input(self, record: Record) -> None:
        """What a model types into, or runs something in, is confined like its commands."""
        if record.running and not self.covers(record):
            raise BadRequest(
                f"{record.handle} was not started by these tools and is not confined as their "
                "commands are: it can be looked at and stopped, but not typed into, and nothing "
                "can be run in it; start one of your own",
                handle=record.handle,
            )

    # -- what is looked at for a model ---------------------------------------------------------

    async def conditions(self, given: Sequence[Any], processes: Sequence[Process]) -> list[Any]:
        """Conditions for a wait; refused if they tell more than commands could find out."""
        if self.docker is None and self.sandbox is None:
            return list(given)
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

    @property
    def _on_this_network(self) -> bool:
        """Whether what is asked from here is asked from where commands are."""
        if self.docker is not None:
            return bool(self.docker.get("network") == "host")
        return not self.offline

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
        return [working_directory(None), *(mount["source"] for mount in self._mounts())]

    def check_project(self, directory: str) -> None:
        """A directory whose files we read is the one that commands find there."""
        if self.docker is not None and not is_within(directory, *self._shared()):
            raise BadDirectory(
                f"{directory!r} is not in the agent's directory; give the command as 'cmd', or a "
                "'cwd' that is"
            )

    # -- starting ------------------------------------------------------------------------------

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
            self.check_input(inside.record)
            process = await inside.exec(command, cwd=cwd, tty=tty or tmux, **options)
            self._started.add(process.handle)
            return process
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
        process = await self._client.spawn(
            command, cwd=cwd, tty=tty, tmux=tmux, sandbox=sandbox, **options
        )
        self._started.add(process.handle)
        return process

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
            if is_within(start, root) and not os.path.isdir(start):
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


def _place(docker: Mapping[str, Any]) -> tuple[str | None, ...]:
    return docker.get("image"), docker.get("network") or "bridge", docker.get("user")


def _sandbox(given: bool | Mapping[str, Any]) -> dict[str, Any] | None:
    if given is False or given is None:
        return None
    from .. import _sandbox

    return _sandbox.choices({} if given is True else given)
