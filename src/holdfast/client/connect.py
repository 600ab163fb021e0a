"""`connect`: hold a session for as long as a block runs, and close it in good order after."""

from __future__ import annotations

from ..core.errors import BadRequest
from ..core.home import Home, new_session
from ..core.spawn_spec import SPAWN_SPEC
from .client import Client, checked_session, make_config
from .config import UNSET, load_config_later
from .exit_hooks import remember, settle
from .link import BlockingLink, Greeting, run
from .sync import SyncClient

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from types import TracebackType
    from typing import Any

    from ..core.types import Duration, Size

_OF_CLIENTS = frozenset(name for name in dir(Client) if not name.startswith("_"))


class Connector:
    """A connection to be entered: with ``async with`` for asyncio, with ``with`` without."""

    def __init__(
        self, home: Home, session: str, lease_grace: Duration, defaults: dict[str, Any]
    ) -> None:
        self._home = home
        self._session = session
        self._lease_grace = lease_grace
        self._defaults = defaults
        self._client: Client | None = None

    def __repr__(self) -> str:
        return f"<holdfast.connect session={self._session!r} home={self._home.path!r}>"

    def __getattr__(self, name: str) -> Any:
        if name in _OF_CLIENTS:
            raise AttributeError(
                f"connect() is not a client yet: `with holdfast.connect(...) as hf:` (or `async "
                f"with`), then hf.{name}"
            )
        raise AttributeError(name)

    async def __aenter__(self) -> Client:
        from .link_asyncio import AsyncioLink

        client = self._open(AsyncioLink)
        try:
            await client.keeper_start()
        except BaseException:
            settle(client)
            await client.close()
            raise
        return client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._client is not None
        try:
            await self._client.end_session()
            settle(self._client)
        except BadRequest:
            settle(self._client)  # somebody has closed it: there is nothing to be tried again
            raise
        finally:
            await self._client.close()

    def __enter__(self) -> SyncClient:
        client = self._open(BlockingLink)
        try:
            run(client.keeper_start())
        except BaseException:
            settle(client)
            run(client.close())
            raise
        return SyncClient(client)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._client is not None
        try:
            run(self._client.end_session())
            settle(self._client)
        except BadRequest:
            settle(self._client)
            raise
        finally:
            run(self._client.close())

    def _open(self, link: Any) -> Client:
        if self._client is not None:
            raise RuntimeError("connect() is entered once; call it again for another client")
        config = make_config(self._home).changed(**self._defaults)
        greeting = Greeting(self._session, config.choose("lease_grace", self._lease_grace))
        idle = config["keeper_idle"]
        self._client = Client(self._home, link(self._home, greeting, idle), self._session, config)
        remember(self._client, greeting)
        return self._client


def open_client(home: Home, session: str | None) -> SyncClient:
    """A client that holds no lease. Without a session it is a person, who sees every session."""
    home.exists()  # refuses a home that is not ours before anything in it is believed
    config = load_config_later(home)
    link = BlockingLink(home, Greeting(checked_session(session), None), config.keeper_idle)
    return SyncClient(Client(home, link, session, config))


def connect(
    session: str | None = None,
    *,
    home: str | os.PathLike[str] | None = None,
    lease_grace: Duration = UNSET,
    memory: Size | None = UNSET,
    cpu: float | None = UNSET,
    processes: int | None = UNSET,
    files: int | None = UNSET,
    log_cap: Size = UNSET,
    log_limit: Size | None = UNSET,
) -> Connector:
    """Hold a session: start, see and stop its processes.

        async with holdfast.connect(session="release-42") as hf:
            ...

    Leaving the block stops the session's processes (not those spawned with ``keep=True``). If this
    program dies instead, they go on for `lease_grace` (30 minutes by default, 0 for not at all), in
    which a client that connects with the same session finds everything again. Without a name the
    session is a new one of its own.

    `memory`, `cpu`, `processes`, `files`, `log_cap` and `log_limit` are the limits of each process
    that is started here without limits of its own, as in `spawn`; else the settings are::

        with holdfast.connect(memory="2GiB", processes=200) as hf:
            hf.spawn("make -j8")
            hf.spawn("./train", memory=None)  # as much as there is
    """
    defaults = {name: value for name, value in locals().items() if name in SPAWN_SPEC}
    chosen = checked_session(session) or new_session()
    return Connector(Home.locate(home), chosen, lease_grace, defaults)
