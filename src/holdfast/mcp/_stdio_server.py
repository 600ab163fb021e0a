"""Serving on stdio until the client or a signal ends it.

The end of input and a signal are the same: the client is lost, and its session's grace begins. The
interpreter is not taken down in good order, which takes longer than clients wait before they kill.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from typing import TYPE_CHECKING

from ._handshake import SIGNALS
from ._stdio import streams
from ._tool_server import Connections, build

if TYPE_CHECKING:
    from typing import NoReturn

    from ._handshake import Handshake
    from ._session import Settings

_PATIENCE = 1.0


def serve_stdio(settings: Settings, handshake: Handshake) -> NoReturn:
    settle_memory()
    asyncio.run(_serve(settings, handshake))


async def _serve(settings: Settings, handshake: Handshake) -> NoReturn:
    connections = Connections(settings)
    server = build(connections)
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    for number in SIGNALS:
        loop.add_signal_handler(number, told.set)
    stopping = loop.create_task(told.wait())
    if settings.session is not None:
        holding = loop.create_task(connections.open("", settings.session).session.hold())
    async with streams(handshake, connections.settle) as (read, write, gone):
        options = server.create_initialization_options()
        serving = loop.create_task(server.run(read, write, options))
        # A client that reads no more is lost, whether or not it still has something to say.
        await asyncio.wait([serving, stopping, gone], return_when=asyncio.FIRST_COMPLETED)
        ended = serving.done()
        serving.cancel()
        await asyncio.wait([serving], timeout=_PATIENCE)
    if settings.session is not None:
        await asyncio.wait([holding], timeout=_PATIENCE)
    await connections.close()
    if ended:
        serving.result()  # what went wrong, if anything; when told to stop, the package may stumble
    leave()  # from here: a thread that still looks at something must not keep us


def settle_memory() -> None:
    """Keep the collector from what was imported, which stays for good."""
    gc.freeze()
    gc.enable()


def leave() -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(0)
