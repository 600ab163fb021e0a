"""A client says nothing to a keeper that is somebody else's."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

import holdfast
from holdfast import KeeperError
from holdfast.core.home import Home

STRANGER = 65534


class Impostor:
    """A listener at a home's socket that belongs to another user; what it hears is the test's."""

    def __init__(self, home: Home, uid: int) -> None:
        home.ensure()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(home.socket_address())
        os.seteuid(uid)  # whose it is, is decided by who calls listen
        try:
            self._listener.listen(8)
        finally:
            os.seteuid(0)

    def heard(self) -> bytes:
        said = b""
        self._listener.settimeout(0)
        while True:
            try:
                end, _ = self._listener.accept()
            except BlockingIOError:
                return said
            with end:
                end.settimeout(0)
                try:
                    said += end.recv(1 << 20)
                except BlockingIOError:
                    continue

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def impostor(home: str) -> Iterator[Impostor]:
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    place = Home(home)
    found = Impostor(place, STRANGER)
    yield found
    found.close()
    os.unlink(place.socket)


def test_a_blocking_client_says_nothing_to_a_stranger(impostor: Impostor) -> None:
    """Neither its greeting nor its environment; the error names the user and what to do."""
    with (
        pytest.raises(KeeperError, match=r"user 65534.*HOLDFAST_HOME"),
        holdfast.connect(session="x") as hf,
    ):
        hf.spawn("true", env={"SECRET": "of mine"})
    assert impostor.heard() == b""


def test_neither_does_one_in_an_event_loop(impostor: Impostor) -> None:
    async def main() -> None:
        async with holdfast.connect(session="x") as hf:
            await hf.spawn("true", env={"SECRET": "of mine"})

    with pytest.raises(KeeperError, match="user 65534"):
        asyncio.run(main())
    assert impostor.heard() == b""
