"""A client's line to the keeper, once for plain programs and once for asyncio.

The client is written once, in ``async`` functions that await nothing but a `Link`. Over
`AsyncioLink` they are ordinary coroutines. Over `BlockingLink` every await returns at once because
the work was done blocking, so `run` can drive the same coroutine to its end without any event loop.

Both reconnect and ask again when the keeper goes away in the middle of a request: every request may
be repeated (see `wire`). A keeper that says nothing is asked for a sign of life now and then, and
given up when none comes: however long a wait may be, it never lasts because a keeper hangs.
"""

from __future__ import annotations

import os
import select
import socket
import time
from _thread import get_ident

from ..core import wire
from ..core.errors import BadRequest, HoldfastError, KeeperError, WaitTimeout, from_wire
from ..core.home import Home
from ..core.machine import machine
from ..core.version import __version__
from . import find_keeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from typing import Any, Protocol, TypeVar

    T = TypeVar("T")

    class Link(Protocol):
        greeting: Greeting

        @property
        def connected(self) -> bool:
            """True if there is a connection to a keeper, as far as is known."""

        @property
        def closed(self) -> bool:
            """True once it was closed: nothing can be asked any more."""

        async def call(self, verb: str, args: dict[str, Any], timeout: float | None = None) -> Any:
            """Ask the keeper; raises `WaitTimeout` after `timeout` seconds."""

        async def post(self, verb: str, args: dict[str, Any]) -> None:
            """Ask without waiting for the answer; made sure of at the next call, or at close."""

        async def readable(self, fd: int | None, timeout: float) -> None:
            """Wait until a descriptor is readable (None: never) or the time is over."""

        async def run_in_thread(self, work: Callable[[], T]) -> T:
            """Do something that takes its time, without holding up anything else."""

        def beside(self, work: Coroutine[Any, Any, None]) -> None:
            """Do something while everything else goes on; given up when the link is closed."""

        async def close(self) -> None: ...


# How long a request is tried again while the keeper goes away under it.
PATIENCE = 20.0
# After this long without a word the keeper is asked for a sign of life, again and again.
SILENCE = 5.0
# How long it may say nothing at all. A half that hangs was replaced by the other long before.
LONGEST_SILENCE = 45.0
# How long a request that is answered at once is asked again, whatever it is that takes so long.
_LONGEST_ANSWER = 120.0


class Greeting:
    """The greeting at the beginning of every connection: who we are."""

    __slots__ = ("client", "session", "grace", "directory", "_pid")

    def __init__(self, session: str | None, grace: float | None) -> None:
        self.client = os.urandom(8).hex()
        self.session = session
        self.grace = grace  # None: no lease
        self.directory = None if grace is None else _working_directory()
        self._pid = os.getpid()

    def message(self) -> bytes:
        if os.getpid() != self._pid:  # forked: a holder in its own right, beside its parent
            self.client, self._pid = os.urandom(8).hex(), os.getpid()
        return wire.encode(
            {
                "hello": wire.PROTOCOL,
                "version": __version__,
                "client": self.client,
                "session": self.session,
                "lease": None
                if self.grace is None
                else {"grace": self.grace, "directory": self.directory},
                "machine": machine(),
            }
        )


def _working_directory() -> str | None:
    try:
        return os.path.realpath(os.getcwd())
    except OSError:
        return None  # it was deleted under us


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Drive a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking client awaited something that blocks elsewhere")


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """The items of an asynchronous iterator that never suspends."""

    async def following() -> T:
        return await items.__anext__()

    try:
        while True:
            try:
                yield run(following())
            except StopAsyncIteration:
                return
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            run(close())


def result_of(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise from_wire(answer["error"])
    return answer["ok"]


def silent_keeper(home: Home) -> KeeperError:
    guard = find_keeper.wake(home)
    end_it = "end it" if guard is None else f"end it with `kill -9 {guard}`"
    return KeeperError(
        f"the keeper is there but said nothing for {LONGEST_SILENCE:g} s: it is stopped, or very "
        f"busy; see keeper.log in the home and try again, or {end_it}: what it keeps goes on, and "
        "the next one finds it"
    )


class Patience:
    """A count of how often a request was asked again because the keeper went away."""

    __slots__ = ("_asked", "_begun", "_waits")

    def __init__(self, verb: str) -> None:
        self._waits = verb in wire.WAITS
        self._begun = time.monotonic()

    def asked(self) -> None:
        self._asked = time.monotonic()

    def went_away(self) -> None:
        """Raises when that was once too often."""
        now = time.monotonic()
        # A long wait may see several keepers go; what must not happen is a busy circle.
        circling = self._asked > self._begun + PATIENCE and now - self._asked < 1
        if circling or (now - self._begun > _LONGEST_ANSWER and not self._waits):
            raise KeeperError("the keeper keeps going away; see keeper.log") from None


def closed_client() -> BadRequest:
    return BadRequest("this client is closed; call connect() again for another one")


class Gone(Exception):
    """The connection ended before the answer came."""


class Wire:
    """One blocking connection, used for one request at a time."""

    __slots__ = (
        "_decoder",
        "_greeted",
        "_greeting",
        "_home",
        "_next",
        "_refusal",
        "_socket",
        "_verb",
        "posted",
    )

    def __init__(self, home: Home, end: socket.socket, greeting: bytes) -> None:
        self._home = home
        self._socket = end
        self._decoder = wire.Decoder()
        self._greeting = greeting
        self._greeted = False
        self._next = 1
        self._verb = ""  # the last one that was sent
        self._refusal: HoldfastError | None = None  # by a keeper of another protocol
        self.posted: dict[int, tuple[str, dict[str, Any]]] = {}

    def send(self, verb: str, args: dict[str, Any]) -> int:
        if self._refusal is not None and verb not in wire.ALWAYS_ALLOWED:
            raise self._refusal
        self._verb = verb
        number = self._next
        self._next += 1
        data = wire.encode_request(number, verb, args)
        if self._greeting:
            data, self._greeting = self._greeting + data, b""
        try:
            self._socket.settimeout(LONGEST_SILENCE)
            self._socket.sendall(data)
        except TimeoutError:
            raise silent_keeper(self._home) from None
        except OSError as error:
            raise Gone from error
        return number

    def receive(self, number: int, deadline: float | None) -> dict[str, Any]:
        heard = time.monotonic()
        while True:
            limit = time.monotonic() + SILENCE
            if deadline is not None and deadline < limit:
                limit = deadline
            try:
                self._socket.settimeout(max(0.0, limit - time.monotonic()) or 1e-6)
                data = self._socket.recv(1 << 18)
            except TimeoutError:
                if limit is deadline:
                    self._cancel(number)
                    raise
                if time.monotonic() - heard > LONGEST_SILENCE:
                    raise silent_keeper(self._home) from None
                self._ask_for_life()
                continue
            except OSError as error:
                raise Gone from error
            if not data:
                raise Gone
            heard = time.monotonic()
            found = None
            for message in self._decoder.feed(data):
                if not self._greeted:
                    self._refusal = wire.check_greeting(message, __version__)
                    if self._refusal is not None and self._verb not in wire.ALWAYS_ALLOWED:
                        raise self._refusal
                    self._greeted = True
                elif message.get("id") == number:
                    found = message
                else:
                    self.posted.pop(message.get("id", 0), None)
            if found is not None:
                return found

    def _ask_for_life(self) -> None:
        find_keeper.wake(self._home)
        if self._greeted:
            self._say({"id": 0, "verb": "status"})

    def _cancel(self, number: int) -> None:
        self._say({"cancel": number})

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._socket.settimeout(1.0)
            self._socket.sendall(wire.encode(message))
        except OSError:
            return  # gone, or as full as it is silent

    @property
    def stands(self) -> bool:
        """False once the other end is gone."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return not poll.poll(0)

    def hang_up(self) -> None:
        """End the wait of another thread; what has arrived can still be read."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()


class BlockingLink:
    """A small pool of connections: as many as there are threads asking at once."""

    def __init__(self, home: Home, greeting: Greeting, idle: float) -> None:
        self._home = home
        self.greeting = greeting
        self._idle = idle
        self._free: list[Wire] = []
        # What threads of `beside` wait on now, by their idents.
        self._beside: dict[int, Wire | None] = {}
        self._pid = os.getpid()
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._pid == os.getpid() and any(wire.stands for wire in self._free)

    @property
    def closed(self) -> bool:
        return self._closed

    def _take(self) -> Wire:
        if self._closed:
            raise closed_client()
        if os.getpid() != self._pid:  # forked: those connections are our parent's
            self._free, self._beside, self._pid = [], {}, os.getpid()
        try:
            return self._free.pop()
        except IndexError:
            pass
        end = find_keeper.connect(self._home, self._idle)
        return Wire(self._home, end, self.greeting.message())

    def _answer(
        self, wire: Wire, verb: str, args: dict[str, Any], deadline: float | None
    ) -> dict[str, Any]:
        if get_ident() not in self._beside:
            return wire.receive(wire.send(verb, args), deadline)
        self._beside[get_ident()] = wire  # so that closing ends the wait
        try:
            if self._closed:
                raise Gone
            return wire.receive(wire.send(verb, args), deadline)
        finally:
            self._beside[get_ident()] = None

    async def call(self, verb: str, args: dict[str, Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        patience = Patience(verb)
        while True:
            patience.asked()
            wire = self._take()
            try:
                answer = self._answer(wire, verb, args, deadline)
            except Gone:
                wire.close()
                patience.went_away()
                for posted in wire.posted.values():
                    await self.call(*posted)
                time.sleep(0.002)
                continue
            except TimeoutError:
                self._free.append(wire)
                raise WaitTimeout(f"no answer within {timeout:g} s") from None
            except BaseException:
                self._abandon(wire)
                raise
            self._free.append(wire)
            return result_of(answer)

    def _abandon(self, wire: Wire) -> None:
        """Give up a connection in the middle of a request, but not the session it holds."""
        if self.greeting.grace is not None:
            try:
                end = find_keeper.try_connect(self._home)
                if end is not None:
                    spare = Wire(self._home, end, self.greeting.message())
                    spare.receive(spare.send("status", {}), time.monotonic() + 1)
                    self._free.append(spare)
            except (OSError, Gone, HoldfastError):
                pass
        wire.close()

    async def post(self, verb: str, args: dict[str, Any]) -> None:
        wire = self._take()
        try:
            wire.posted[wire.send(verb, args)] = (verb, args)
        except Gone:
            wire.close()
            await self.call(verb, args)
            return
        self._free.append(wire)

    async def _ask_again(self, posted: dict[int, tuple[str, dict[str, Any]]]) -> None:
        for verb, args in posted.values():
            try:
                await self.call(verb, args)
            except HoldfastError:
                return  # nobody is left to be told

    async def readable(self, fd: int | None, timeout: float) -> None:
        if fd is None:
            time.sleep(timeout)
            return
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(int(timeout * 1000) + 1)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        return work()

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        from threading import Thread

        Thread(target=self._run_beside, args=(work,), daemon=True).start()

    def _run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        self._beside[get_ident()] = None
        try:
            run(work)
        except HoldfastError:
            pass  # nobody is left to be told
        finally:
            self._beside.pop(get_ident(), None)
            if self._closed:
                while self._free:
                    self._free.pop().close()

    async def close(self) -> None:
        free, self._free = self._free, []
        for each in free:
            while each.posted:
                # The answers are on their way; a keeper that just went is asked again.
                lost = dict(each.posted)
                try:
                    each.receive(-1, time.monotonic() + 0.001)
                except (TimeoutError, Gone) as error:
                    if isinstance(error, Gone) or each.posted == lost:
                        await self._ask_again(each.posted)
                        break
                except HoldfastError:
                    break  # it speaks another protocol: nobody is left to be told
            each.close()
        self._closed = True
        waiting = list(self._beside.values()) if self._pid == os.getpid() else []
        for waiter in waiting:
            if waiter is not None:
                waiter.hang_up()
        free, self._free = self._free, []
        for each in free:
            each.close()
