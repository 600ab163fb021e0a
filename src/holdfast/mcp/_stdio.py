"""Standard input and output as the streams that the package reads and writes.

The package's own transport reads in a thread that nothing can interrupt, so that a signal leaves it
hanging. Here the event loop reads and writes, and a signal ends it at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from ._refusal import refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from ._handshake import Handshake

    Streams = tuple[
        MemoryObjectReceiveStream[SessionMessage | Exception],
        MemoryObjectSendStream[SessionMessage],
        asyncio.Task[None],
    ]
    Settle = Callable[[Callable[[], int]], Awaitable[None]]

_READ = 1 << 16
_BUFFERED = 64  # messages
_LAST_WORDS = 1.0  # for answers that are still to be written when the client has gone


@asynccontextmanager
async def streams(handshake: Handshake, settle: Settle) -> AsyncIterator[Streams]:
    """The wire from where the handshake has left it, and what ends when nobody reads any more.

    At the end of input `settle` is awaited, with how to ask how much was not heard yet.
    """
    wire = handshake.wire
    to_server, read = anyio.create_memory_object_stream[SessionMessage | Exception](_BUFFERED)
    write, from_server = anyio.create_memory_object_stream[SessionMessage](_BUFFERED)
    refused = write.clone()

    async def take() -> None:
        async with to_server, refused:
            async for line in _lines(wire[0], handshake.input):
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    # The package would pass it over in silence.
                    if (answer := refusal(line)) is not None:
                        await refused.send(SessionMessage(answer))
                else:
                    await to_server.send(SessionMessage(message))
            await settle(lambda: to_server.statistics().current_buffer_used)

    async def give() -> None:
        async with from_server:
            async for each in from_server:
                if _answers(each.message, handshake.answered):
                    continue
                await _write(wire[1], _line(each.message))

    loop = asyncio.get_running_loop()
    reading, writing = loop.create_task(_until_gone(take)), loop.create_task(_until_gone(give))
    try:
        yield read, write, writing
    finally:
        write.close()
        refused.close()
        await asyncio.wait([writing], timeout=_LAST_WORDS)
        for task in (reading, writing):
            task.cancel()
        await asyncio.wait([reading, writing], timeout=_LAST_WORDS)


def _line(message: types.JSONRPCMessage) -> bytes:
    """The line of a message, in any case: one that cannot be written would be the last."""
    try:
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
    except ValueError:  # halves of characters, which file names may have
        data = message.model_dump(by_alias=True, exclude_unset=True)
        text = json.dumps(data, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace") + b"\n"


def _answers(message: types.JSONRPCMessage, answered: set[Any]) -> bool:
    """True if this answers a request that has its answer; it is told only once."""
    id = getattr(message, "id", None)
    if not answered or id not in answered or hasattr(message, "method"):
        return False
    answered.discard(id)
    return True


async def _lines(fd: int, said: bytes) -> AsyncIterator[bytes]:
    buffer = bytearray(said)
    searched = 0
    while True:
        end = buffer.find(b"\n", searched)
        if end >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            searched = 0
            if line.strip():
                yield line
            continue
        searched = len(buffer)
        await _ready(fd, reading=True)
        data = os.read(fd, _READ)
        if not data:
            if buffer.strip():
                yield bytes(buffer)
            return
        buffer += data


async def _write(fd: int, data: bytes) -> None:
    """Write in pieces that a pipe takes whole when it is ready: it may be in blocking mode."""
    rest = memoryview(data)
    while rest:
        if not select.select([], [fd], [], 0)[1]:
            await _ready(fd, reading=False)
        rest = rest[os.write(fd, rest[: select.PIPE_BUF]) :]


async def _ready(fd: int, *, reading: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    add: Callable[..., Any] = loop.add_reader if reading else loop.add_writer
    remove = loop.remove_reader if reading else loop.remove_writer
    try:
        add(fd, ready.set)
    except PermissionError:
        return  # an ordinary file, which never keeps anybody waiting
    try:
        await ready.wait()
    finally:
        remove(fd)


async def _until_gone(work: Callable[[], Any]) -> None:
    try:
        await work()
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return  # the other side is gone, or the server is
