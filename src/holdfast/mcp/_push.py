"""Telling a client without being asked: of resources that changed, and of events.

Old clients subscribe to a resource and are told on the connection; new ones listen, and the answer
to that request is the stream of what they are told (`mcp.server.subscriptions`). Both are told at
most twice a second of one resource, however fast it changes, and always of the last change.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any, Literal, cast

import anyio
import mcp_types as types
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
)
from mcp.shared.exceptions import MCPError

from ..core.errors import HoldfastError
from ..core.quote import inside
from ..linux.inotify import Watch
from ._resources import EVENTS, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession

    from ..core.record import Event
    from ._session import Session

_REST = 0.5  # between two words about one resource
_LOOK = 60.0  # where inotify tells of changes; where it does not, `_REST`
_LIST = "list"


class Channel(types.Notification[dict[str, Any], Literal["notifications/claude/channel"]]):
    method: Literal["notifications/claude/channel"] = "notifications/claude/channel"
    params: dict[str, Any]


class Push:
    """Notifications of one connection: the resources it asked for, and the tasks that look."""

    def __init__(self, session: Session, channel: bool) -> None:
        self._session = session
        self._channel = channel
        self._wanted: Counter[str] = Counter()
        self._subscribed: set[str] = set()  # by old clients
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._begun_looking: dict[str, asyncio.Event] = {}
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus)
        self._due: dict[str, asyncio.Task[None]] = {}
        self._last: dict[str, float] = {}
        self._begun = False
        self.to: ServerSession | None = None  # of the latest request; reaches the connection
        session.listed = lambda: self._soon(_LIST)

    def begin(self) -> None:
        """Start to look for what is told without a subscription."""
        if self._channel and not self._begun:
            self._begun = True
            self._want(EVENTS)
        for uri in self._subscribed.difference(self._looking):
            self._want(uri)  # the client was thought to be lost, and has come back

    # -- old clients ---------------------------------------------------------------------------

    async def subscribe(self, uri: str) -> None:
        if uri not in self._subscribed:
            self._subscribed.add(uri)
            await self._want(uri).wait()

    def unsubscribe(self, uri: str) -> None:
        if uri in self._subscribed:
            self._subscribed.discard(uri)
            self._unwant(uri)

    # -- new clients ---------------------------------------------------------------------------

    async def listen(
        self,
        ctx: ServerRequestContext[Any, Any],
        params: types.SubscriptionsListenRequestParams,
    ) -> types.SubscriptionsListenResult:
        uris = [str(uri) for uri in params.notifications.resource_subscriptions or ()]
        begun = [self._want(uri) for uri in uris]
        try:
            for each in begun:
                await each.wait()
            return await self._listen(ctx, params)
        finally:
            for uri in uris:
                self._unwant(uri)

    # -- looking -------------------------------------------------------------------------------

    def _want(self, uri: str) -> asyncio.Event:
        """Look at a resource; what changes once the event is set will be told."""
        self._wanted[uri] += 1
        if uri not in self._looking:
            begun = self._begun_looking[uri] = asyncio.Event()
            look = self._events(begun) if uri == EVENTS else self._process(uri, begun)
            task = asyncio.get_running_loop().create_task(_quietly(look))
            task.add_done_callback(lambda _: begun.set())  # there was nothing to look at
            self._looking[uri] = task
        return self._begun_looking[uri]

    def _unwant(self, uri: str) -> None:
        self._wanted[uri] -= 1
        if self._wanted[uri] <= 0:
            del self._wanted[uri]
            task = self._looking.pop(uri, None)
            if task is not None:
                task.cancel()

    async def _process(self, uri: str, begun: asyncio.Event) -> None:
        """Tell of a process whose log has grown, and so its screen may have; or that has ended."""
        found = parse(uri)
        if found is None:
            return
        client = self._session.client
        record = (await client.get(found[0])).record
        logs = [client.home.log(record.handle, stream) for stream in ("stdout", "stderr")]
        watch = Watch([*logs, client.home.meta(record.handle)], client.spares)
        try:
            seen: Any = None
            while True:
                watch.drain()
                now = [_size(path) for path in logs], client.store.load(record.handle).status
                if seen not in (None, now):
                    self._soon(uri)
                    await asyncio.sleep(_REST)  # and then what has changed meanwhile, as one
                seen = now
                begun.set()
                if watch.fileno() is None:
                    await asyncio.sleep(_REST)
                else:
                    await client.readable(watch.fileno(), _LOOK)
        finally:
            watch.close()

    async def _events(self, begun: asyncio.Event) -> None:
        begun.set()  # those that are there already are told of, too
        async for event in self._session.client.events(follow=True):
            if self._channel:
                await self._say(event)
            self._soon(EVENTS)

    # -- telling -------------------------------------------------------------------------------

    def _soon(self, uri: str) -> None:
        """Tell of a resource, or of the list: now, or when some time has passed since the last."""
        if uri not in self._due:
            task = asyncio.get_running_loop().create_task(_quietly(self._tell(uri)))
            self._due[uri] = task

    async def _tell(self, uri: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, self._last.get(uri, 0.0) + _REST - loop.time()))
            self._last[uri] = loop.time()
        finally:
            self._due.pop(uri, None)
        if uri == _LIST:
            await self._bus.publish(ResourcesListChanged())
            if self.to is not None:
                await self.to.send_resource_list_changed()
            return
        await self._bus.publish(ResourceUpdated(uri=uri))
        if self.to is not None and uri in self._subscribed:
            await self.to.send_resource_updated(uri)

    async def _say(self, event: Event) -> None:
        if self.to is None:
            return
        meta = {"event_id": event.id, "type": event.type, "handle": event.handle or ""}
        # Which comes to the model between tags of this name.
        text = inside("channel", event.text).encode("utf-8", "replace").decode()
        note = Channel(params={"content": text, "meta": meta})
        await self.to.send_notification(cast("types.ServerNotification", note))

    def finish(self) -> None:
        """End the streams of those that listen, with a word that this was on purpose."""
        self._listen.close()

    def close(self) -> None:
        for task in (*self._looking.values(), *self._due.values()):
            task.cancel()
        self._looking.clear()
        self._wanted.clear()
        self._begun = False


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


async def _quietly(work: Any) -> None:
    """Run `work`; it ends in silence if there is nothing to look at, or nobody to tell."""
    try:
        await work
    except (HoldfastError, OSError, anyio.ClosedResourceError, anyio.BrokenResourceError, MCPError):
        return
