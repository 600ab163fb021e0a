"""`deliver`: tell a host's agent of what happens in its session, once, and wake it with that.

DESIGN. Look for events, wait while a turn runs, claim, inject, acknowledge: in this order, again
and again. While a turn runs nothing is claimed, so the results of its tool calls may tell of it.
From the claim on nobody else of the session is shown the event. What a crash leaves behind:

- before `inject` is called, or inside it: the claim ends with the process that made it, and the
  next one is told. Whether the agent had heard of it already nobody can know.
- after `inject` has returned, and before the keeper has the acknowledgement: told again, too. The
  keeper may die meanwhile; it is asked until one answers, and nothing is injected a second time.
- after that: it is not told again.

A claim outlives both halves of the keeper. It is let go when `inject` has failed for good, and when
whoever runs this is cancelled, stops it or closes its client.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import get_args, overload

from ..core.completion_text import as_many_as_fit
from ..core.errors import BadRequest, HoldfastError
from ..core.types import EventType
from .client import Client
from .link import run
from .sync import SyncClient

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any, Protocol

    from ..core.record import Event
    from ..linux.inotify import Watch

    class Words(Protocol):
        """A `Toolset`, or a `SyncToolset`."""

        def notice(self, event: Event) -> str: ...

    class Flag(Protocol):
        """A `threading.Event`."""

        def is_set(self) -> bool: ...


_LOOK = 1.0  # seconds between two looks, should nothing be heard of meanwhile
_STEP = 0.1  # and until a stop is seen
_POLL = 0.05  # where inotify is not to be had; and between two questions whether a turn runs
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
_ATTEMPTS = 10  # which take about three minutes


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """News for an agent: ``str(message)`` is the text for its model, `events` are for programs.

    `attempt` is 1, and more if `inject` has failed before. `more` events did not fit, and come with
    the next message.
    """

    text: str
    events: tuple[Event, ...]
    attempt: int = 1
    more: int = 0

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Message of {', '.join(event.id for event in self.events)}>"

    @property
    def handles(self) -> tuple[str, ...]:
        """The processes that it is about, each once."""
        return tuple(dict.fromkeys(event.handle for event in self.events if event.handle))


@overload
def deliver(
    client: Client,
    inject: Callable[[Message], Any],
    *,
    types: EventType | Iterable[EventType] | None = None,
    busy: Callable[[], Any] | None = None,
    toolset: Words | None = None,
    attempts: int | None = _ATTEMPTS,
) -> Coroutine[Any, Any, None]: ...


@overload
def deliver(
    client: SyncClient,
    inject: Callable[[Message], object],
    *,
    types: EventType | Iterable[EventType] | None = None,
    busy: Callable[[], object] | None = None,
    toolset: Words | None = None,
    attempts: int | None = _ATTEMPTS,
    stop: Flag | None = None,
) -> None: ...


def deliver(
    client: Client | SyncClient,
    inject: Callable[[Message], Any],
    *,
    types: EventType | Iterable[EventType] | None = None,
    busy: Callable[[], Any] | None = None,
    toolset: Words | None = None,
    attempts: int | None = _ATTEMPTS,
    stop: Flag | None = None,
) -> Coroutine[Any, Any, None] | None:
    """Call `inject` with a `Message` whenever the client's session is to be told something.

        turn = asyncio.Lock()

        async def inject(message):
            async with turn:
                await agent.run(str(message))

        task = asyncio.create_task(holdfast.deliver(hf, inject, busy=turn.locked))

    It goes on until it is cancelled, or the client is closed. With the client of a plain ``with``
    block it is a blocking function, for a thread of its own, and ends soon after `stop` (a
    `threading.Event`) is set::

        threading.Thread(target=holdfast.deliver, args=(hf, inject), kwargs={"stop": stop}).start()

    An event counts as told when `inject` has returned, and nobody else of the session is told of
    it meanwhile. What happens while it runs comes as one message afterwards. If it raises, it is
    called again after a pause that grows to a minute; after so many `attempts` (None: without end)
    what it raised is raised here, and the events are left to others. If this program is killed
    inside it, the next one that delivers is told again, with the same ids.

    `types` of events, such as ``("end", "group")``, are the only ones that are taken; others are
    left as they are. A ``"gap"`` is always told. While `busy` returns true a turn of the agent
    runs, and nothing is claimed or injected: results of the turn's tool calls may tell of it. Both
    may be asynchronous; plain functions are called on the event loop, and must not block there.
    With a `toolset` the text is in the words of its dialect.
    """
    inner = client._client if isinstance(client, SyncClient) else client
    if not isinstance(inner, Client):
        raise BadRequest(f"deliver takes the client of a connect() block, not {client!r:.80}")
    if inner.session is None:
        raise BadRequest("deliver is for a session: name one in connect()")
    if not callable(inject) or not (busy is None or callable(busy)):
        raise BadRequest("inject is a function that takes a message; busy is one without arguments")
    if attempts is not None and (type(attempts) is not int or attempts < 1):
        raise BadRequest(f"attempts is a number from 1 on, or None, not {attempts!r:.80}")
    if stop is not None and inner is client:
        raise BadRequest("stop is for `with connect()`; with asyncio, cancel the task instead")
    plain = inner is not client
    delivery = _Delivery(inner, inject, _chosen(types), busy, toolset, attempts, stop, plain)
    if plain:
        run(delivery.run())
        return None
    return delivery.run()


def _chosen(types: Any) -> frozenset[str]:
    known = get_args(EventType)
    if types is None:
        return frozenset(known)
    given = [types] if isinstance(types, str) or not hasattr(types, "__iter__") else [*types]
    for each in given:
        if each not in known:
            raise BadRequest(f"there are no events of type {each!r:.80}: {', '.join(known)}")
    return frozenset((*given, "gap"))


class _OfTheHost(Exception):
    """Something that the host's own functions raised, and that is for it to see."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Delivery:
    def __init__(
        self,
        client: Client,
        inject: Callable[[Message], Any],
        types: frozenset[str],
        busy: Callable[[], Any] | None,
        toolset: Words | None,
        attempts: int | None,
        stop: Flag | None,
        plain: bool,
    ) -> None:
        self._client = client
        self._inject = inject
        self._types = types
        self._busy = busy
        self._toolset = toolset
        self._attempts = attempts
        self._stop = stop
        self._plain = plain
        self._held: list[Event] = []  # claimed, and not told yet
        self._failed = 0  # times in a row
        self._troubles = 0  # of the keeper's, in a row

    async def run(self) -> None:
        client = self._client
        watch = client._watch_events([str(client.session)])
        try:
            while not self._over:
                watch.drain()
                try:
                    if not await self._round():
                        await client._see_to_a_keeper()
                        await self._rest(watch)
                    self._troubles = 0
                except _OfTheHost as raised:
                    raise raised.error from None
                except BadRequest:
                    if not client._link.closed:
                        raise
                except HoldfastError as error:
                    self._troubles += 1
                    await self._pause("the events of a session", error, self._troubles)
        finally:
            watch.close()
            held, self._held = self._held, []
            await client.release(*held)

    @property
    def _over(self) -> bool:
        return self._client._link.closed or (self._stop is not None and self._stop.is_set())

    async def _round(self) -> bool:
        """Tell what there is to be told now; False if that is nothing."""
        client = self._client
        if self._held:
            still = {e.id async for e in client.events(acknowledged=True) if not e.acknowledged}
            self._held = [event for event in self._held if event.id in still]
        fresh = [event async for event in client.events() if event.type in self._types]
        if not fresh and not self._held:
            self._failed = 0
            return False
        if await self._turn_runs():
            await client._link.readable(None, _POLL)
            return True
        texts = as_many_as_fit([*self._held, *fresh], self._text)
        claimed = await client.claim(*(event for event in fresh if event.id in texts))
        self._held = sorted([*self._held, *claimed], key=lambda event: event.seq)
        if not self._held:
            return False  # somebody was first, which the outbox says by now
        if await self._turn_runs():  # since this moment
            await client.release(*claimed)
            self._held = [event for event in self._held if event not in claimed]
            return True
        more = len(fresh) - sum(event.id in texts for event in fresh)
        told = self._held
        message = Message(
            _joined([texts[e.id] for e in told], more), (*told,), self._failed + 1, more
        )
        if await self._injected(message):
            self._held = []
            await self._acknowledge(told)
        return True

    def _text(self, event: Event) -> str:
        return event.text if self._toolset is None else self._toolset.notice(event)

    async def _turn_runs(self) -> bool:
        if self._busy is None:
            return False
        try:
            answer = self._busy()
            if hasattr(answer, "__await__") and not self._plain:
                answer = await answer
        except Exception as error:
            raise _OfTheHost(error) from None
        if hasattr(answer, "__await__"):
            raise _asynchronous("busy", answer)
        return bool(answer)

    async def _injected(self, message: Message) -> bool:
        try:
            done = self._inject(message)
            if hasattr(done, "__await__") and not self._plain:
                done = await done
        except Exception as error:
            self._failed += 1
            if self._attempts is not None and self._failed >= self._attempts:
                raise _OfTheHost(error) from None
            await self._pause("what inject was given", error, self._failed)
            return False
        if self._plain and hasattr(done, "__await__"):
            raise _asynchronous("inject", done)
        self._failed = 0
        return True

    async def _acknowledge(self, told: list[Event]) -> None:
        """Say that they were told, whatever becomes of the keeper meanwhile."""
        troubles = 0
        try:
            while not all(event.acknowledged for event in told):
                try:
                    await self._client.acknowledge(*told)
                except BadRequest:
                    raise  # the client was closed
                except HoldfastError as error:
                    troubles += 1
                    await self._pause("the acknowledgement of events", error, troubles)
                    if self._over:
                        return
        finally:  # cancelled or stopped, perhaps while no keeper answered
            if not all(event.acknowledged for event in told):
                ids = [event.id for event in told]
                try:
                    used = {"session": self._client.session, "ids": ids}
                    await self._client._link.post("acknowledge", used)
                except HoldfastError:
                    pass  # nobody is left to be told

    async def _rest(self, watch: Watch) -> None:
        """Wait until something may have happened."""
        fd = watch.fileno()
        if fd is None:
            await self._client._link.readable(None, _POLL)
            return
        until = time.monotonic() + _LOOK
        while not self._over and (left := until - time.monotonic()) > 0:
            await self._client._link.readable(fd, min(left, self._step))
            if watch.drain():
                return

    async def _pause(self, what: str, error: Exception, times: int) -> None:
        """Wait before the next attempt, and leave a word: else nobody would know why it lasts."""
        from logging import getLogger

        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(times - 1, 10))
        text = "%s: trying again in %g s, after %s: %s"
        getLogger("holdfast.deliver").warning(text, what, pause, type(error).__name__, error)
        until = time.monotonic() + pause
        while not self._over and (left := until - time.monotonic()) > 0:
            await self._client._link.readable(None, min(left, self._step))

    @property
    def _step(self) -> float:
        return _LOOK if self._stop is None else _STEP


def _joined(texts: list[str], more: int) -> str:
    if more:
        texts = [*texts, f"[{more} more background events come with the next message]"]
    return "\n\n".join(texts)


def _asynchronous(what: str, answer: Any) -> BadRequest:
    if hasattr(answer, "close"):
        answer.close()  # a coroutine that is not awaited would be complained about
    return BadRequest(f"{what} is asynchronous: use the client of `async with connect()`")
