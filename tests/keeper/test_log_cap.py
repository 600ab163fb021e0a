"""The cap of a log is a cap: what is on the disk, looked at again and again under a flood."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from holdfast import SyncClient

MIB = 1 << 20
BLOCKS = 64 << 10  # what a file system may round up, and count for itself


@pytest.mark.parametrize("mode", ["pipe", "pty"])
@pytest.mark.parametrize(
    ("cap", "margin"), [(MIB, MIB // 8), pytest.param(24 * MIB, MIB, marks=pytest.mark.long)]
)
def test_a_log_never_has_more_than_its_cap_and_a_margin(
    hf: SyncClient, child: Callable[..., list[str]], cap: int, margin: int, mode: str
) -> None:
    """A mebibyte, or an eighth of the cap if that is less; and all that the cap allows is kept."""
    total = 4 * cap + 7777
    process = hf.spawn(
        child("writes_pattern", str(total), "0"), log_cap=cap, tty=mode == "pty", timeout="5m"
    )
    taken, over = [0], threading.Event()

    def look() -> None:
        while not over.is_set():
            for path in (process.record.log, process.record.log + ".old"):
                try:
                    taken.append(os.stat(path).st_blocks * 512)
                except FileNotFoundError:
                    continue
            over.wait(0.0005)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert process.wait(120).ok
    finally:
        over.set()
        looking.join()
    assert len(taken) > 20
    assert max(taken) <= cap + margin + BLOCKS
    output = process.read_at(0, 1)
    written = process.tail_bytes(0).end
    assert written >= total
    assert cap <= written - output.start <= cap + margin + BLOCKS
