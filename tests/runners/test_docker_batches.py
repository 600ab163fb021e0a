"""Output on its way from a container's connection into the log, when its runner is killed.

The next runner finds the batch that the last one had looked at and not yet taken, and writes just
what is missing of it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SyncClient
from holdfast.runners.docker.link import Link
from holdfast.testing import wait_until
from tests.docker_engine import Engine
from tests.stepping import Stepper

BOX = "hfbox"
PATIENCE = 60
SO_PEEK_OFF = 42


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The engine's end of a connection, and ours."""
    theirs, ours = socket.socketpair()
    yield theirs, ours
    theirs.close()
    ours.close()


def successor(connection: socket.socket) -> Link:
    """The same connection in the hands of another runner."""
    return Link(socket.socket(fileno=os.dup(connection.fileno())), 1)


def test_a_batch_that_was_not_taken_is_found_again(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Just that one, whatever has come since; once it is taken there is none."""
    theirs, ours = ends
    first = Link(ours, 1)
    first.begin()
    assert first.look() is None
    theirs.send(b"one ")
    theirs.send(b"two")
    assert first.look() == b"one two"
    theirs.send(b"three")
    for _ in range(2):  # who looks again and is killed leaves it as it was
        second = successor(ours)
        assert second.looked_at() == 7
        assert second.look_again(7) == b"one two"
        second.close()
    second = successor(ours)
    second.take(7)
    assert second.looked_at() == 0
    assert second.look() == b"three"
    second.close()


def test_one_that_was_killed_while_it_looked_again_is_told_apart(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Then the size is on disk, and the batch where it was."""
    theirs, ours = ends
    first = Link(ours, 1)
    first.begin()
    theirs.send(b"batch")
    assert first.look() == b"batch"
    ours.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, -1)
    second = successor(ours)
    assert second.looked_at() is None
    assert second.look_again(5) == b"batch"
    assert second.looked_at() == 5
    second.close()


def test_an_engine_that_dies_leaves_what_it_had_sent(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    theirs, ours = ends
    link = Link(ours, 1)
    link.begin()
    ours.send(b"input that nobody reads")
    theirs.send(b"words")
    theirs.close()
    assert link.look() == b"words"
    link.take(5)
    assert link.look() == b""


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 40, 4))
def test_a_runner_killed_at_each_call_of_a_batch_writes_it_once(
    hf: SyncClient, engine: Engine, here: Path, first: int
) -> None:
    """Between any two system calls while it passes on what came on both streams."""
    os.mkfifo(here / "steps")
    steps = os.open(here / "steps", os.O_RDWR)
    command = (
        "exec 3<>steps; while read n <&3; do [ $n = end ] && exit 7; echo $n; echo $n >&2; done"
    )
    process = hf.spawn(command, docker=BOX, stderr="separate")
    expected = ""

    def written() -> bool:
        texts = [process.read_at(0, 1 << 16, stream=each).text for each in ("stdout", "stderr")]
        return texts == [expected, expected]

    try:
        for moment in range(first, first + 4):
            pid = process.refresh().pid
            assert pid is not None
            stepper = Stepper(pid)
            os.write(steps, f"{moment}\n".encode())
            expected += f"{moment}\n"
            while stepper.step(0.5 if stepper.steps else PATIENCE) and stepper.steps <= moment:
                stepper.go_on()
            stepper.kill()
            wait_until(written, what=f"{moment} on both streams")
            wait_until(lambda: process.refresh().pid not in (None, pid))  # noqa: B023
        os.write(steps, b"end\n")
        assert process.wait(PATIENCE).code == 7
        assert written()
        assert process.refresh().notes == []
    finally:
        os.close(steps)
