"""The line to the keeper for asyncio: one connection, any number of requests at once on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ..core import wire
from ..core.errors import HoldfastError, WaitTimeout
from ..core.home import Home
from ..core.version import __version__
from . import find_keeper, link
from .link import Gone, Greeting, Patience, closed_client, result_of

T = TypeVar("T")

_MOST_THREADS = 16


class _Protocol(asyncio.Protocol):
    """Answers matched to the futures that wait for them."""

    def __init__(self, home: Home, greeting: bytes) -> None:
        self._home = home
        self._greeting = greeting
        self._decoder = wire.Decoder()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next = 1
        self._greeted = False
        self._error: HoldfastError | None = None
        self._early: dict[int, str] = {}  # what was asked before the greeting came
        self._refusal: HoldfastError | None = None  # by a keeper of another protocol
        self._transport: asyncio.WriteTransport | None = None
        self._look: asyncio.TimerHandle | None = None  # for a sign of life, while anybody waits
        self._heard = 0.0

    @property
    def alive(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(self._greeting)

    def _watch(self) -> None:
        if self._look is None:
            self._heard = time.monotonic()
            self._look = asyncio.get_running_loop().call_later(link.SILENCE, self._listen)

    def _listen(self) -> None:
        self._look = None
        if not self._waiting or self._transport is None:
            return
        silence = time.monotonic() - self._heard
        if silence > link.LONGEST_SILENCE:
            self._error = link.silent_keeper(self._home)
            self._transport.abort()
            return
        if silence >= link.SILENCE * 0.9:
            find_keeper.wake(self._home)
            if self._greeted:
                self._transport.write(wire.encode({"id": 0, "verb": "status"}))
        self._look = asyncio.get_running_loop().call_later(link.SILENCE, self._listen)

    def data_received(self, data: bytes) -> None:
        self._heard = time.monotonic()
        for message in self._decoder.feed(data):
            if not self._greeted:
                try:
                    self._refusal = wire.check_greeting(message, __version__)
                except HoldfastError as error:
                    self._error = error
                    self.close()
                    return
                self._greeted = True
                if self._refusal is not None:
                    self._refuse(self._refusal)
                continue
            future = self._waiting.pop(message.get("id", 0), None)
            if future is not None and not future.done():
                future.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._look is not None:
            self._look.cancel()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(self._error or Gone())

    def _refuse(self, refusal: HoldfastError) -> None:
        """The keeper has another protocol: only what is always allowed is answered."""
        for number, verb in self._early.items():
            future = None if verb in wire.ALWAYS_ALLOWED else self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_exception(refusal)

    async def ask(self, verb: str, args: dict[str, Any]) -> dict[str, Any]:
        if self._transport is None:
            raise self._error or Gone()
        if self._refusal is not None and verb not in wire.ALWAYS_ALLOWED:
            raise self._refusal
        number = self._next
        self._next += 1
        request = wire.encode_request(number, verb, args)
        if not self._greeted:
            self._early[number] = verb
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._watch()
        self._transport.write(request)
        try:
            return await future
        except asyncio.CancelledError:
            self._waiting.pop(number, None)
            if self._transport is not None:
                self._transport.write(wire.encode({"cancel": number}))
            raise

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class AsyncioLink:
    def __init__(self, home: Home, greeting: Greeting, idle: float) -> None:
        self._home = home
        self.greeting = greeting
        self._idle = idle
        self._protocol: _Protocol | None = None
        self._connecting = asyncio.Lock()
        self._posted: set[asyncio.Task[Any]] = set()
        self._beside: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._threads: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    @property
    def connected(self) -> bool:
        return self._protocol is not None and self._protocol.alive and self._pid == os.getpid()

    @property
    def closed(self) -> bool:
        return self._closed

    async def _connected(self) -> _Protocol:
        if self._closed:
            raise closed_client()
        if self._protocol is not None and self._protocol.alive and self._pid == os.getpid():
            return self._protocol
        async with self._connecting:
            if self._protocol is not None and self._protocol.alive and self._pid == os.getpid():
                return self._protocol
            end = await self._open()
            if self._closed:  # meanwhile
                end.close()
                raise closed_client()
            end.setblocking(False)
            loop = self._loop = asyncio.get_running_loop()
            _, protocol = await loop.create_unix_connection(
                lambda: _Protocol(self._home, self.greeting.message()), sock=end
            )
            if self._closed:
                protocol.close()
                raise closed_client()
            self._protocol, self._pid = protocol, os.getpid()
            return protocol

    async def _open(self) -> socket.socket:
        end = find_keeper.try_connect(self._home) if self._home.exists() else None
        if end is not None:
            return end
        return await self.run_in_thread(lambda: find_keeper.connect(self._home, self._idle))

    async def call(self, verb: str, args: dict[str, Any], timeout: float | None = None) -> Any:
        try:
            async with asyncio.timeout(timeout):
                return await self._call(verb, args)
        except TimeoutError:
            raise WaitTimeout(f"no answer within {timeout:g} s") from None

    async def _call(self, verb: str, args: dict[str, Any]) -> Any:
        patience = Patience(verb)
        while True:
            patience.asked()
            try:
                protocol = await self._connected()
                return result_of(await protocol.ask(verb, args))
            except Gone:
                patience.went_away()
                await asyncio.sleep(0.002)

    async def post(self, verb: str, args: dict[str, Any]) -> None:
        task = asyncio.get_running_loop().create_task(self._post(verb, args))
        self._posted.add(task)
        task.add_done_callback(self._posted.discard)

    async def _post(self, verb: str, args: dict[str, Any]) -> None:
        with contextlib.suppress(HoldfastError):  # nobody is left to be told
            await self._call(verb, args)

    def beside(self, work: Coroutine[Any, Any, None]) -> None:
        async def quietly() -> None:
            with contextlib.suppress(HoldfastError):  # nobody is left to be told
                await work

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(quietly())
            self._beside.add(task)
            task.add_done_callback(self._beside.discard)

        try:
            asyncio.get_running_loop()
        except RuntimeError:  # another thread: a future of concurrent.futures has ended there
            if self._loop is None or self._loop.is_closed():
                work.close()
            else:
                self._loop.call_soon_threadsafe(begin)
        else:
            begin()

    async def readable(self, fd: int | None, timeout: float) -> None:
        if fd is None:
            await asyncio.sleep(timeout)
            return
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        loop.add_reader(fd, ready.set)
        try:
            async with asyncio.timeout(timeout):
                await ready.wait()
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(fd)

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        # Threads of our own: those of the caller's loop may all be busy, perhaps waiting for us.
        if self._threads is None or self._pid != os.getpid():
            self._threads = ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="holdfast")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def close(self) -> None:
        if self._posted:
            await asyncio.gather(*self._posted, return_exceptions=True)
        self._closed = True
        beside = self._beside - {asyncio.current_task()}
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        if self._protocol is not None:
            self._protocol.close()
            self._protocol = None
        if self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
