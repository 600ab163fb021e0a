# Written by .ci/sync_client from the classes with asyncio: edit those, then `make format`.
"""`Toolset` for plain scripts: the same methods, without await."""

from __future__ import annotations

from ..client.config import UNSET
from ..client.link import run
from ..client.sync import SyncClient
from . import Toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal

    from ..core.record import Event
    from ..core.types import DialectName, Duration, Progress, Size, Style
    from ._tool import Result


class SyncToolset:
    """`Toolset` for plain scripts: the same methods, without await.

    The tools of one dialect over a client; made for one conversation, the client's session.

    With `adoption`, the first answer tells of what lost sessions of the same directory left behind,
    and a tool `adopt` takes it over.

    With `docker` (an image, or as for `Client.spawn`) every command runs in a container, with
    `sandbox` in a sandbox, whatever the dialect and whatever a model says; in the agent's
    directory, which is all that they share with it. `memory`, `cpu`, `processes` and `files` are
    the most that each may have.

    The others are options of one dialect or another, under the names that they have there:

    - claude-code: `names` of the tools, those of its shells or Claude's own
    - codex: `stdin`, `max_running`, `background_terminal_max_timeout` in milliseconds
    - hermes: `timeout` and `max_foreground_timeout` in seconds, `max_running`
    - deepchat: `backgroundMs`, `cleanupMs`, `timeoutSec`, `maxOutputChars`
    - openclaw: `backgroundMs`, `cleanupMs`, `timeoutSeconds`
    """

    def __init__(
        self,
        client: SyncClient,
        dialect: DialectName = "native",
        *,
        adoption: bool = False,
        docker: str | Mapping[str, Any] | None = None,
        sandbox: bool | Mapping[str, Any] = False,
        memory: Size | None = UNSET,
        cpu: float | None = UNSET,
        processes: int | None = UNSET,
        files: int | None = UNSET,
        names: Literal["shell", "claude"] = UNSET,
        stdin: bool = UNSET,
        max_running: int = UNSET,
        background_terminal_max_timeout: int = UNSET,
        timeout: int = UNSET,
        max_foreground_timeout: int = UNSET,
        backgroundMs: float | None = UNSET,
        cleanupMs: float | None = UNSET,
        timeoutSec: float = UNSET,
        timeoutSeconds: float = UNSET,
        maxOutputChars: int = UNSET,
    ) -> None:
        self._toolset = Toolset(
            getattr(client, "_client", UNSET),
            dialect,
            adoption=adoption,
            docker=docker,
            sandbox=sandbox,
            memory=memory,
            cpu=cpu,
            processes=processes,
            files=files,
            names=names,
            stdin=stdin,
            max_running=max_running,
            background_terminal_max_timeout=background_terminal_max_timeout,
            timeout=timeout,
            max_foreground_timeout=max_foreground_timeout,
            backgroundMs=backgroundMs,
            cleanupMs=cleanupMs,
            timeoutSec=timeoutSec,
            timeoutSeconds=timeoutSeconds,
            maxOutputChars=maxOutputChars,
        )

    def __repr__(self) -> str:
        return repr(self._toolset).replace(".", ".Sync", 1)

    @property
    def names(self) -> list[str]:
        return self._toolset.names

    @property
    def callable(self) -> frozenset[str]:
        """Every name that can be called: some that no model is told of, too."""
        return self._toolset.callable

    def definitions(self, style: Style = "anthropic") -> list[dict[str, Any]]:
        """The tools as a model's API, or an MCP client, wants them described."""
        return self._toolset.definitions(style)

    def call(
        self,
        name: str,
        arguments: dict[str, Any] | str | None = None,
        *,
        patience: Duration | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Do what a model asked for; what it did wrong is an answer too, never an exception.

        `arguments` may be the JSON text that some APIs give. With `patience`, calls that block
        answer within that time, with a word that the process goes on. `progress` is called every
        few seconds meanwhile, with the seconds so far and a line of text, and may be asynchronous.
        """
        return run(self._toolset.call(name, arguments, patience=patience, progress=progress))

    def notice(self, event: Event) -> str:
        """The text of an event, in the words of the dialect."""
        return self._toolset.notice(event)

    def read(self) -> None:
        """Say that the model has read all results so far, as it has when it answered its user.

        Else the next call says so; until then this program's death has their events told again.
        """
        run(self._toolset.read())

    def unread(self, result: Result) -> None:
        """Say that a result did not reach its model: its events come with the next one.

        Or somebody else in the session tells of them.
        """
        run(self._toolset.unread(result))
