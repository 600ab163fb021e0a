"""Requests that are long: refused at once with a clear word, or cut so that nobody else waits."""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import threading

import pytest

import holdfast
from holdfast import BadRequest, SpawnError, SyncClient
from holdfast.client.connect import open_client
from holdfast.core.machine import machine
from holdfast.core.wire import PROTOCOL, REQUEST_LIMIT, SEND_PIECE
from holdfast.testing import wait_until

LONG = "x" * (17 << 20)
AT_MOST = f"at most {REQUEST_LIMIT >> 20} MiB"


def test_a_request_that_is_too_long_is_refused_at_once(hf: SyncClient) -> None:
    """It names the limit and a way out, and the client goes on."""
    before = hf.keeper_status()["worker"]
    for _ in range(2):
        with pytest.raises(SpawnError, match=f"{AT_MOST}.*file") as caught:
            hf.spawn(["true", LONG])
        assert len(str(caught.value).splitlines()) == 1
        assert len(str(caught.value)) < 300
    assert hf.spawn("true").wait(30).ok
    assert hf.keeper_status()["worker"] == before


@pytest.mark.anyio
async def test_so_it_is_with_asyncio(home: str) -> None:
    async with holdfast.connect(session="test") as hf:
        with pytest.raises(SpawnError, match=AT_MOST):
            await hf.spawn(["true", LONG])
        with pytest.raises(BadRequest, match=AT_MOST):
            await (await hf.spawn("sleep 1000")).signal(LONG)
        assert (await (await hf.spawn("true")).wait(30)).ok


def test_whoever_sends_one_all_the_same_is_told(hf: SyncClient) -> None:
    """The rest of the line is passed over, and the connection goes on with the next one."""
    hf.keeper_status()
    greeting = {
        "hello": PROTOCOL,
        "version": "0",
        "client": "c",
        "session": None,
        "lease": None,
        "machine": machine(),
    }
    with socket.socket(socket.AF_UNIX) as end:
        end.settimeout(60)
        end.connect(hf.home.socket_address())
        answers = end.makefile("rb")
        end.sendall(json.dumps(greeting).encode() + b"\n")
        assert json.loads(answers.readline())["hello"] == PROTOCOL
        for number in (7, 8):
            end.sendall(b'{"id":%d,"verb":"wait","handle":"' % number + LONG.encode() + b'"}\n')
            refused = json.loads(answers.readline())
            assert refused["id"] == number
            assert refused["error"]["code"] == BadRequest.code
            assert AT_MOST in refused["error"]["message"]
        end.sendall(b'{"id":9,"verb":"status"}\n')
        assert json.loads(answers.readline())["ok"]["running"]
        answers.close()


def test_a_long_send_arrives_whole_while_others_are_answered(hf: SyncClient) -> None:
    """It goes in pieces, in order; between them others have their turn."""
    program = (
        "import hashlib, sys; print(hashlib.file_digest(sys.stdin.buffer, 'sha256').hexdigest())"
    )
    process = hf.spawn([sys.executable, "-c", program], stdin=True)
    data = b"".join(b"%08d\n" % n for n in range((15 << 20) // 9))
    other = open_client(hf.home, None)
    answered, over = [0], threading.Event()

    def ask() -> None:
        while not over.is_set():
            answered[0] += other.keeper_status()["running"]

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        wait_until(lambda: answered[0] > 0)
        before = answered[0]
        assert process.send(data, eof=True, timeout=60) == len(data)
        assert answered[0] - before >= len(data) // SEND_PIECE
    finally:
        over.set()
        asking.join()
        other.close()
    assert process.wait(60).ok
    assert process.tail().text.strip() == hashlib.sha256(data).hexdigest()


def test_the_time_of_a_send_is_for_all_of_it(hf: SyncClient) -> None:
    """What a process that never reads did not take is not written, and the answer says so."""
    process = hf.spawn("sleep 1000", stdin=True)
    taken = process.send(b"x" * (8 << 20), timeout=0.5)
    assert 0 < taken < SEND_PIECE
    process.kill()
