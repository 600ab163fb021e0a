"""Closing held sessions when the host program ends without leaving its ``with`` block.

A normal exit and an unhandled KeyboardInterrupt run `atexit`. SIGTERM, and a SIGINT that Python was
told to leave to the kernel, would end the program on the spot: for those, and only where nobody
else has a handler, one is installed that closes the sessions and then lets the signal do its work.
What ends without any of this (kill -9, a crash) is a lost client, and the lease's grace begins.
"""

from __future__ import annotations

import atexit
import os
import signal
import time

from ..core.errors import HoldfastError
from . import find_keeper
from .link import Gone, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from .client import Client
    from .link import Greeting

_PATIENCE = 2.0
_open: dict[int, tuple[int, Client, Greeting]] = {}
_installed = False


def remember(client: Client, greeting: Greeting) -> None:
    """Close this client's session when the program ends, unless that is settled before."""
    global _installed
    if not _installed:
        _installed = True
        atexit.register(_close_all)
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, _on_signal)
            except ValueError:
                break  # not the main thread: signals are the host's to handle
    _open[id(client)] = (os.getpid(), client, greeting)


def settle(client: Client) -> None:
    _open.pop(id(client), None)


def _on_signal(number: int, frame: FrameType | None) -> None:
    _close_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _close_all() -> None:
    pending = list(_open.values())
    _open.clear()
    for pid, client, greeting in pending:
        if pid != os.getpid():
            continue  # a forked child: the session is its parent's
        try:
            end = find_keeper.try_connect(client.home)
            if end is None:
                continue
            wire = Wire(client.home, end, greeting.message())
            wire.receive(wire.send("close", {}), time.monotonic() + _PATIENCE)
            wire.close()
        except (OSError, Gone, HoldfastError):
            continue  # a lost client then; nothing here may keep the host from ending
