"""The screen of a terminal: drawn for the first time, and again."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING

from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.testing import wait_until

from ._measure import Row, interleave, now, percentile, value_row

if TYPE_CHECKING:
    from holdfast import SyncProcess

    from ._stage import Stage

SIZE = 10_000_000
BUSY = r"""
import sys, tty
ROW = (b"\x1b[%d;1H\x1b[38;5;%dm%-30d\x1b[0m \x1b[1;32m%6d\x1b[m "
       b"\x1b[48;2;9;%d;9m%s\x1b[m\x1b[K")
def frame(n):
    rows = (ROW % (row, (n + row) % 256, n * row, n + row, n % 256, b"#" * ((n + row) % 60))
            for row in range(1, 41))
    return b"".join((b"\x1b[?2026h", *rows, b"\x1b[?2026l"))
out = sys.stdout.buffer
tty.setraw(0)
out.write(b"\x1b[?1049h\x1b[?25l\x1b]0;busy\x07")
written = n = 0
while written < int(sys.argv[1]):
    written += out.write(frame(n))
    n += 1
out.write(b"\x1b]0;ready\x07")
out.flush()
while sys.stdin.buffer.read1(1):
    n += 1
    out.write(frame(n))
    out.flush()
"""


def screen(stage: Stage) -> list[Row]:
    """A full-screen program that redrew itself for 10 MB, and then once between two looks."""
    with stage.client() as client:
        command = [sys.executable, "-S", "-c", BUSY, str(SIZE)]
        process = client.spawn(command, tty=True, size="120x40")
        try:
            wait_until(lambda: process.screen().title == "ready", timeout=60)
            first, _ = interleave(
                stage.pick(30, 10), lambda: _first(stage, process), lambda: None, settle=0.01
            )
            again, _ = interleave(
                stage.pick(200, 50), lambda: _again(process), lambda: None, settle=None
            )
        finally:
            process.kill()
            process.wait()
            process.remove()
    return [
        _row(
            "screen of a busy 10 MB log, first", first, 0.1, "by a client that has not looked yet"
        ),
        _row("screen of a busy 10 MB log, again", again, 0.005, "after one more frame of 4 KB"),
    ]


def _first(stage: Stage, process: SyncProcess) -> float:
    with closing(open_client(Home(stage.home), None)) as client:
        started = now()
        seen = client.get(process.handle).screen()  # who gets it may already draw it for a prompt
        took = now() - started
    if not (seen.exact and seen.fullscreen and seen.title == "ready"):
        raise RuntimeError(f"this is not the screen: {seen}")
    return took


def _again(process: SyncProcess) -> float:
    end = process.tail(0).end
    process.send(b"x")
    wait_until(lambda: process.read_at(end).data.endswith(b"\x1b[?2026l"))
    started = now()
    process.screen()
    return now() - started


def _row(name: str, samples: list[float], at_most: float, note: str) -> Row:
    return value_row(
        name,
        "s",
        percentile(samples, 0.5),
        measured_p90=percentile(samples, 0.9),
        at_most=at_most,
        samples=len(samples),
        note=note,
    )
