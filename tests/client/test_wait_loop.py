"""A wait leaves the caller's event loop alone, whatever it has to look at."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast import BadRequest, Client, connect

pytestmark = [pytest.mark.shared_keeper, pytest.mark.anyio]

# It is given a second of the processor, and takes all of it.
EVIL = {"output": "(a|aa)+$", "since": "start"}
FOOD = "a" * 60 + "!"

# What asks the kernel of processes and their sockets, or a name server.
_SCANS = {"open": 0, "os.listdir": 0, "os.scandir": 0, "socket.__new__": 1, "socket.getaddrinfo": 0}
_OF_A_PROCESS = re.compile(r"/proc/(\d|net)")


@pytest.fixture
async def hf(home: str, session: str) -> AsyncIterator[Client]:
    async with connect(session=session) as client:
        yield client


async def test_a_pattern_that_takes_its_time_does_not_stop_the_loop(hf: Client) -> None:
    """Neither the caller's own work nor another wait has to wait for it."""
    process = await hf.spawn(["printf", FOOD])
    await process.wait()
    other = await hf.spawn("read; echo ready; read", stdin=True)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    ticking = asyncio.create_task(tick())
    began = time.thread_time()
    slow = asyncio.create_task(process.wait_for(EVIL, timeout=60))
    await other.send("go", enter=True)
    assert (await other.wait_for("output=ready", timeout=60)).ok
    with pytest.raises(BadRequest, match="took longer"):
        await slow
    on_the_loop = time.thread_time() - began
    ticking.cancel()
    assert ticks >= 20
    assert on_the_loop < 0.6  # of the second and more that it took somewhere else


class Audit:
    """What was looked at in the loop's thread and in others, while `on`: a hook stays for ever."""

    on = False
    here: list[str]
    elsewhere: list[str]


def _hook(event: str, args: tuple[object, ...]) -> None:
    if not Audit.on or event not in _SCANS:
        return
    what = args[_SCANS[event]]
    if event.startswith("socket."):
        scan = event == "socket.getaddrinfo" or what == socket.AF_NETLINK
    else:
        scan = isinstance(what, str) and _OF_A_PROCESS.match(what) is not None
    if scan:
        main = threading.current_thread() is threading.main_thread()
        (Audit.here if main else Audit.elsewhere).append(f"{event} {what}")


@contextmanager
def audited() -> Iterator[type[Audit]]:
    if not hasattr(Audit, "here"):
        sys.addaudithook(_hook)
    Audit.here, Audit.elsewhere = [], []
    Audit.on = True
    try:
        yield Audit
    finally:
        Audit.on = False


async def test_processes_and_sockets_are_not_looked_at_on_the_loop(hf: Client, port: int) -> None:
    """A machine with many processes takes its time to say who they are."""
    serve = f"import socket; s = socket.create_server(('127.0.0.1', {port})); input('more? ')"
    process = await hf.spawn([sys.executable, "-c", serve], stdin=True)
    named = f"port={socket.gethostname()}:{port}"  # which a name server may have to be asked for
    with audited() as audit:
        waited = await process.wait_for(f"port={port}", "input", all=True, timeout=60)
        await process.wait_for(named, timeout=0)
        (listed,) = await hf.list()
    assert waited.ok
    assert listed.record.waiting_for_input == {"prompt": "more?", "kind": "line"}
    assert audit.here == []
    scanned = " ".join(audit.elsewhere)
    for part in ("socket.__new__", "socket.getaddrinfo", "/syscall", "/stat", "/fd"):
        assert part in scanned


async def test_waits_need_none_of_the_callers_threads(hf: Client) -> None:
    """All of the loop's own may be busy, or waiting for what we do."""
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    process = await hf.spawn("sleep 600")
    busy = [loop.run_in_executor(None, go_on.wait, 60) for _ in range(80)]
    try:
        waited = await process.wait_for("exit", "output=never", timeout=0.1)
        assert waited.timed_out
        assert [each.handle for each in await hf.list()] == [process.handle]
        assert not go_on.is_set()
        assert not any(each.done() for each in busy)
    finally:
        go_on.set()
        await asyncio.gather(*busy)


async def test_a_file_is_seen_under_whatever_name_it_was_asked_for(
    hf: Client, tmp_path: Path
) -> None:
    """``./x`` and ``sub/../x``, also where ``sub`` is a link to somewhere else."""
    (tmp_path / "there" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there" / "below")
    process = await hf.spawn("sleep 600", cwd=tmp_path)
    for name, path in (("./a", "a"), ("there/../b", "b"), ("link/../c", "there/c")):
        wait = asyncio.ensure_future(process.wait_for(f"file={name}", timeout=60))
        await asyncio.sleep(0.1)
        assert not wait.done()
        (tmp_path / path).touch()
        assert (await wait).ok, name
