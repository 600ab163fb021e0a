"""Writing to a process: whole, in order, bounded when it does not read, honest when it cannot."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import BadRequest, NotFound, NotRunning, SyncClient, SyncProcess, Unsupported, connect
from holdfast.testing import wait_until

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]
PIPE = 65536


class Reader:
    """A process that reads nothing until `open`, and then everything."""

    def __init__(self, process: SyncProcess, gate: str) -> None:
        self.process = process
        self._gate = gate
        wait_until(lambda: process.tail().text == "ready\n")

    def open(self) -> None:
        os.close(os.open(self._gate, os.O_WRONLY))

    def check(self, data: bytes) -> None:
        assert self.process.wait(60).ok
        expected = f"{len(data)} {hashlib.sha256(data).hexdigest()}\n"
        assert self.process.tail(1).text == expected


@pytest.fixture
def reader(hf: SyncClient, child: Child, tmp_path: Path) -> Reader:
    gate = str(tmp_path / "reads")
    os.mkfifo(gate)
    return Reader(hf.spawn(child("reads_when_told", gate), stdin=True), gate)


# -- a process that does not read ------------------------------------------------------------------


def test_a_megabyte_to_a_process_that_never_reads_is_a_partial_answer_in_time(
    hf: SyncClient,
) -> None:
    """What the pipe takes is taken, the rest is not, and the answer says how much."""
    process = hf.spawn("sleep 300", stdin=True)
    began = time.monotonic()
    assert process.send(b"x" * 1_000_000, timeout=0.2) == PIPE
    assert process.send(b"x" * 1_000_000, timeout=0.2) == 0
    assert process.send(b"", timeout=0.2) == 0
    assert process.send(b"x", eof=True, timeout=0.2) == 0
    assert time.monotonic() - began < 60
    assert process.kill().record.status == "killed"


def unread(pid: int | None) -> int:
    """How much a process has yet to read of its stdin."""
    fd = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    finally:
        os.close(fd)


def test_other_calls_are_unaffected_while_a_send_waits(hf: SyncClient) -> None:
    """To the same process and to others: they all answer long before the send gives up."""
    stuck = hf.spawn("echo here; sleep 300", stdin=True)
    with ThreadPoolExecutor() as pool:
        sending = pool.submit(stuck.send, b"x" * 1_000_000, timeout=60)
        wait_until(lambda: stuck.tail().text == "here\n")
        wait_until(lambda: unread(stuck.record.pid) == PIPE, what="the send has filled the pipe")
        echo = hf.spawn("cat", stdin=True)
        assert echo.send(b"hello\n") == 6
        wait_until(lambda: echo.tail().text == "hello\n")
        assert hf.spawn("exit 4").wait(30).code == 4
        assert hf.keeper_status()["running"]
        stuck.signal("CONT")
        assert not sending.done(), "the send was still waiting all the while"
        assert stuck.kill().record.status == "killed"
        try:
            assert sending.result(30) == PIPE
        except Unsupported:
            pass  # the closed pipe was seen before the end; either way the send is over
    echo.kill()


def test_what_was_not_taken_can_be_sent_again_without_a_hole(reader: Reader) -> None:
    data = os.urandom(200_000)
    sent = reader.process.send(data, timeout=0.1)
    assert sent == PIPE
    reader.open()
    assert reader.process.send(data[sent:], eof=True, timeout=60) == len(data) - sent
    reader.check(data)


def test_an_end_that_was_not_reached_is_not_done(reader: Reader) -> None:
    """A partial send leaves stdin open, whatever `eof` said."""
    data = b"y" * 100_000
    assert reader.process.send(data, eof=True, timeout=0.1) == PIPE
    reader.open()
    assert reader.process.send(b"tail", eof=True, timeout=60) == 4
    reader.check(data[:PIPE] + b"tail")


def test_an_end_of_input_that_waits_its_turn_in_vain_is_not_done(reader: Reader) -> None:
    """Behind a send that is still waiting: nothing of that one may be cut off."""
    data = b"z" * 100_000
    process = reader.process
    with ThreadPoolExecutor() as pool:
        first = pool.submit(process.send, data, timeout=60)
        wait_until(lambda: queued(process) > 0)
        process.send(b"", eof=True, timeout=0.05)
        reader.open()
        assert first.result(60) == len(data)
    process.send(b"!", eof=True)
    reader.check(data + b"!")


# -- a process that reads --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, PIPE, PIPE + 1, 4 << 20, (4 << 20) + 1, 11_000_000])
def test_a_process_that_reads_gets_all_of_it(
    hf: SyncClient, child: Child, tmp_path: Path, size: int
) -> None:
    gate = str(tmp_path / "reads")
    os.mkfifo(gate)
    reader = Reader(hf.spawn(child("reads_when_told", gate), stdin=True), gate)
    reader.open()
    data = os.urandom(size)
    assert reader.process.send(data, eof=True, timeout=60) == size
    reader.check(data)


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        (bytes(range(256)), bytes(range(256))),
        (bytearray(b"bytes\xff"), b"bytes\xff"),
        ("text \u20ac\n", "text \u20ac\n".encode()),
        ("escaped \udcff\udc80", b"escaped \xff\x80"),
        (b"", b""),
    ],
)
def test_bytes_arrive_as_they_are_and_text_as_utf8(
    hf: SyncClient, given: bytes | str, arrives: bytes
) -> None:
    process = hf.spawn("cat", stdin=True)
    assert process.send(given, eof=True) == len(arrives)
    assert process.wait(30).ok
    assert process.tail_bytes(1000).data == arrives


@pytest.mark.parametrize("data", [5, None, ["x"], "\ud800"])
def test_what_is_neither_text_nor_bytes_is_refused(hf: SyncClient, data: object) -> None:
    process = hf.spawn("cat", stdin=True)
    with pytest.raises(BadRequest):
        process.send(data)  # type: ignore[arg-type]
    process.send(b"", eof=True)
    process.wait(30)
    assert process.tail().data == b""


def test_end_of_input_alone_ends_a_reader(hf: SyncClient) -> None:
    process = hf.spawn("cat; echo done", stdin=True)
    assert process.send(b"", eof=True) == 0
    assert process.wait(30).ok
    assert process.tail().text == "done\n"


# -- several senders -------------------------------------------------------------------------------


def test_several_senders_are_not_mixed(hf: SyncClient) -> None:
    """Each send is one piece in what the process reads, however big and however many at once."""
    process = hf.spawn("cat", stdin=True)
    sizes = [1, 100, 70_000, 300_000, 5, 150_000, 40_000, 65_536]
    pieces = [bytes([97 + number]) * size + b"\n" for number, size in enumerate(sizes)]

    def send(piece: bytes) -> int:
        return hf.get(process.handle).send(piece, timeout=60)

    with ThreadPoolExecutor(len(pieces)) as pool:
        assert list(pool.map(send, pieces)) == [len(piece) for piece in pieces]
    process.send(b"", eof=True)
    assert process.wait(60).ok
    got = b"".join(output.data for output in process.follow())
    assert sorted(got.splitlines(keepends=True)) == sorted(pieces)


def test_a_thousand_sends_that_wait_are_all_taken_when_the_process_reads(
    hf: SyncClient, reader: Reader, session: str
) -> None:
    """One piece fills the pipe and everything behind it waits; then all of it goes at once."""
    import asyncio

    count = 1500

    async def main() -> None:
        async with connect(session=session) as client:
            process = await client.get(reader.process.handle)
            first = asyncio.create_task(process.send(b"a" * 70_000, timeout=60))
            rest = [asyncio.create_task(process.send(b"b", timeout=60)) for _ in range(count)]
            status = await client.keeper_status()
            assert status["worker"] == worker, "they are all queued by now"
            assert not first.done()
            reader.open()
            assert await first == 70_000
            assert await asyncio.gather(*rest) == [1] * count
            await process.send(b"", eof=True)

    worker = hf.keeper_status()["worker"]
    asyncio.run(main())
    reader.check(b"a" * 70_000 + b"b" * count)
    assert hf.keeper_status()["worker"] == worker, "the keeper's worker came through it"


def test_sends_behind_an_end_are_told_that_it_is_closed(hf: SyncClient, reader: Reader) -> None:
    """At once, and both halves of the keeper live on."""
    before = hf.keeper_status()
    process = reader.process
    with ThreadPoolExecutor() as pool:
        first = pool.submit(process.send, b"a" * 70_000, eof=True, timeout=60)
        wait_until(lambda: queued(process) > 0)
        others = [pool.submit(hf.get(process.handle).send, b"late", timeout=60) for _ in range(3)]
        hf.keeper_status()
        began = time.monotonic()
        reader.open()
        assert first.result(60) == 70_000
        for other in others:
            with pytest.raises(Unsupported, match=r"stdin of .* is closed"):
                other.result(60)
        assert time.monotonic() - began < 30
    reader.check(b"a" * 70_000)
    after = hf.keeper_status()
    assert (after["guard"], after["worker"]) == (before["guard"], before["worker"])


def queued(process: SyncProcess) -> int:
    """Bytes in the process's stdin that it has not read."""
    import fcntl
    import struct
    import termios

    fd = os.open(f"/proc/{process.record.pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int(struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))[0])
    finally:
        os.close(fd)


# -- where there is nothing to write to ------------------------------------------------------------


def test_a_process_that_closed_its_stdin_cannot_be_written_to(hf: SyncClient) -> None:
    process = hf.spawn("exec 0<&-; echo closed; exec sleep 300", stdin=True)
    wait_until(lambda: process.tail().text == "closed\n")
    for _ in range(2):
        with pytest.raises(Unsupported, match="closed its stdin") as caught:
            process.send(b"hello\n")
        assert caught.value.handle == process.handle
    assert process.refresh().running


def test_a_process_that_closes_its_stdin_while_we_write_ends_the_send(
    hf: SyncClient, tmp_path: Path
) -> None:
    gate = str(tmp_path / "closes")
    os.mkfifo(gate)
    process = hf.spawn(f"echo ready; : < {gate}; exec 0<&-; exec sleep 300", stdin=True)
    wait_until(lambda: process.tail().text == "ready\n")
    threading.Timer(0.05, lambda: os.close(os.open(gate, os.O_WRONLY))).start()
    with pytest.raises(Unsupported, match="closed its stdin"):
        process.send(b"x" * 1_000_000, timeout=60)


def test_an_end_of_input_is_for_good(hf: SyncClient, reader: Reader) -> None:
    reader.process.send(b"all", eof=True)
    for eof in (False, True):
        with pytest.raises(Unsupported, match=r"stdin of .* is closed"):
            reader.process.send(b"more", eof=eof)
    reader.open()
    reader.check(b"all")


def test_a_process_without_stdin_says_how_to_get_one(hf: SyncClient) -> None:
    process = hf.spawn("sleep 300")
    with pytest.raises(Unsupported, match="started without stdin") as caught:
        process.send(b"hello\n")
    assert caught.value.code == "unsupported"


def test_an_ended_process_is_not_running_and_says_how_it_ended(hf: SyncClient) -> None:
    process = hf.spawn("exit 3", stdin=True)
    process.wait(30)
    with pytest.raises(NotRunning, match="failed") as caught:
        process.send(b"hello\n")
    assert caught.value.status == "failed"
    process.remove()
    with pytest.raises(NotFound):
        process.send(b"hello\n")


@pytest.mark.own_keeper
def test_stdin_goes_on_when_the_worker_was_killed(hf: SyncClient) -> None:
    """Nothing twice, nothing lost: the guard holds the writing end."""
    process = hf.spawn("cat", stdin=True)
    sent = b""
    for number in range(5):
        line = b"line %d\n" % number
        assert process.send(line) == len(line)
        sent += line
        worker = hf.keeper_status()["worker"]
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: hf.keeper_status()["worker"] != worker)  # noqa: B023
    process.send(b"", eof=True)
    assert process.wait(30).ok
    assert process.tail().data == sent
