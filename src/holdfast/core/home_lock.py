"""The lock on a home's directory: one at a time sets something aside in it, or makes it again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .home import Home

_HELD = 1.0  # the longest that somebody holds it


@contextlib.contextmanager
def locked(home: Home) -> Iterator[None]:
    """Hold the home's directory, while something in it is set aside or made again."""
    directory = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    until = time.monotonic() + _HELD
    try:
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.002)
        yield
    finally:
        os.close(directory)
