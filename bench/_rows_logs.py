"""Reading: the end of a large log, a part of it, and an echo."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ._floor import Echo
from ._measure import Row, interleave, now, percentile, ratio_row, value_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast import Output, SyncProcess

    from ._stage import Stage

GIB = 1 << 30
CHUNK = 64 << 10


def large_log(stage: Stage) -> list[Row]:
    """The last 50 lines of a 1 GiB log, and 64 KiB from somewhere in it."""
    line = "2026-01-01T00:00:00Z INFO as long as lines in logs often are ..\n"
    assert len(line) == 64
    write = "import os, sys; [os.write(1, sys.argv[1].encode() * 1024) for _ in range(16384)]"
    with stage.client() as client:
        # 64 bytes a line, so 64 KiB a write
        process = client.spawn([sys.executable, "-S", "-c", write, line], log_cap=2 * GIB)
        process.wait()
        fd = os.open(process.record.log, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return [_tail(stage, process, fd), *_chunks(stage, process, fd)]
        finally:
            os.close(fd)
            process.remove()


def _tail(stage: Stage, process: SyncProcess, fd: int) -> Row:
    def ours() -> float:
        started = now()
        output = process.tail(50)
        took = now() - started
        if output.end != GIB or output.data.count(b"\n") != 50:
            raise RuntimeError("these are not the last 50 lines")
        return took

    def floor() -> float:
        started = now()
        size = os.fstat(fd).st_size
        lines = os.pread(fd, 8192, size - 8192).split(b"\n")
        b"\n".join(lines[-51:])
        return now() - started

    mine, bare = interleave(stage.pick(300, 100), ours, floor, warm=5, settle=0.0005)
    return value_row(
        "last 50 lines of a 1 GiB log",
        "s",
        percentile(mine, 0.5),
        measured_p90=percentile(mine, 0.9),
        floor=percentile(bare, 0.5),
        floor_p90=percentile(bare, 0.9),
        at_most=0.001,
        samples=len(mine),
        note="floor: the last 8 KiB, split",
    )


def _chunks(stage: Stage, process: SyncProcess, fd: int) -> list[Row]:
    """One piece after another, as somebody reads who catches up."""
    rounds = stage.pick(3000, 1000)

    def held(offset: int) -> Output:
        return process.read_at(offset, CHUNK)

    def kept(offset: int) -> Output:
        return process.read(reader="bench", limit=CHUNK)

    def pair(read: Callable[[int], Output]) -> list[list[float]]:
        places = iter(range(0, GIB, CHUNK))
        others = iter(range(GIB // 2, GIB, CHUNK))  # not what ours just brought into the cache

        def ours() -> float:
            offset = next(places)
            started = now()
            output = read(offset)
            took = now() - started
            _check(output, offset)
            return took

        def floor() -> float:
            offset = next(others)
            started = now()
            os.pread(fd, CHUNK, offset)
            return now() - started

        return interleave(rounds, ours, floor, warm=5, settle=None)

    return [
        ratio_row("64 KiB at a cursor the caller holds", *pair(held), at_most=2),
        ratio_row(
            "64 KiB since the last read, place kept on disk",
            *pair(kept),
            at_most=None,
            note="it writes the cursor too",
        ),
    ]


def _check(output: Output, offset: int) -> None:
    if (output.start, len(output.data)) != (offset, CHUNK):
        raise RuntimeError(
            f"asked for 64 KiB at {offset}, got {len(output.data)} at {output.start}"
        )


def echo(stage: Stage) -> list[Row]:
    """A line sent to `cat` until it is seen by a follower."""
    rounds = stage.pick(150, 40)
    with stage.client() as client, Echo(["cat"]) as bare:
        process = client.spawn("exec cat", stdin=True)
        outputs = process.follow()

        def ours() -> float:
            return _line(process, outputs)

        spaced, floor = interleave(rounds, ours, bare.ask, warm=5, settle=0.015)
        at_once, _ = interleave(rounds * 2, ours, bare.ask, warm=5, settle=None)
        process.send("", eof=True)
        process.wait()
        process.remove()
    notes = {
        "line in, echo out": (spaced, "sent to a quiet process; floor: `cat` between two pipes"),
        "line in, echo out, one upon another": (at_once, "the next as soon as the last was seen"),
    }
    return [
        value_row(
            name,
            "s",
            percentile(samples, 0.5),
            measured_p90=percentile(samples, 0.9),
            floor=percentile(floor, 0.5),
            floor_p90=percentile(floor, 0.9),
            at_most=0.0005,
            samples=len(samples),
            note=note,
        )
        for name, (samples, note) in notes.items()
    ]


def _line(process: SyncProcess, outputs: Iterator[Output]) -> float:
    started = now()
    process.send("some line of text\n")
    seen = b""
    while not seen.endswith(b"\n"):
        seen += next(outputs).data
    return now() - started
