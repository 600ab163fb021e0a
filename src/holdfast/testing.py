"""Helpers for testing programs that use holdfast.

from holdfast.testing import temporary_home, wait_until

def test_my_agent():
    with temporary_home() as home, holdfast.connect(home=home) as hf:
        process = hf.spawn("sleep 0.1; echo done")
        wait_until(lambda: "done" in process.tail().text)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time

from .client.connect import open_client
from .client.find_keeper import wait_until_gone
from .core.home import Home
from .core.units import parse_patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from .core.types import Duration

    T = TypeVar("T")

__all__ = ["end_keeper", "temporary_home", "wait_until"]


def wait_until(
    condition: Callable[[], T],
    *,
    timeout: Duration = 30.0,
    interval: Duration = 0.005,
    what: str = "",
) -> T:
    """Wait for `condition` to be true and return what it returned; AssertionError if it never is.

    The time is a ceiling, not a duration: a generous one costs nothing.
    """
    patience, pause = parse_patience(timeout), parse_patience(interval, "interval")
    deadline = time.monotonic() + patience
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not true after {patience:g} s: {what or condition}")
        time.sleep(pause)


@contextlib.contextmanager
def temporary_home() -> Iterator[str]:
    """A home of its own for one test; its processes and its keeper are gone afterwards."""
    path = tempfile.mkdtemp(prefix="holdfast-test-")
    try:
        yield path
    finally:
        end_keeper(path)
        shutil.rmtree(path, ignore_errors=True)


def end_keeper(path: str) -> None:
    """Kill every process of a home, and then its keeper."""
    home = Home(path)
    if not os.path.isdir(home.sessions):
        return
    client = open_client(home, None)
    try:
        records, _ = client.store.scan(ended=False)
        if records:
            client.stop_all(grace=0)
        client.keeper_stop(kill=True)
    finally:
        client.close()
    if not wait_until_gone(home):
        raise AssertionError(
            f"the keeper of {path} did not end (signal {signal.SIGKILL} it by pid)"
        )
