"""Searching a large log, and what a model reads of it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from holdfast.core.home import Home
from holdfast.output.log import Log
from holdfast.output.search import search as find
from holdfast.output.view import view

from ._measure import Row, interleave, now, percentile, ratio_row, value_row

if TYPE_CHECKING:
    from ._stage import Stage

GIB = 1 << 30
LINE = "2026-01-01T00:00:00Z INFO as long as lines in logs often are ..\n"
# One line in so many has the needle in it.
EVERY = 1 << 17
WRITE = """
import os, sys
line = sys.argv[1].encode()
rare = line.replace(b"as long as", b"needles as")
for number in range(16384):
    os.write(1, (rare if number % 128 == 0 else line) + line * 1023)
"""


def search(stage: Stage) -> list[Row]:
    """Plain texts in a 1 GiB log against `grep -c`, a pattern, one that never ends, and a view."""
    assert len(LINE) == 64
    with stage.client() as client:
        process = client.spawn([sys.executable, "-S", "-c", WRITE, LINE], log_cap=2 * GIB)
        process.wait()
        home = Home(stage.home)
        log = Log(home.log(process.handle), home.head(process.handle))
        try:
            return [
                _against_grep(stage, log, "needles", GIB // 64 // EVERY, "a text few lines have"),
                _against_grep(stage, log, "error", 0, "a text no line has, of common letters"),
                _against_grep(stage, log, "often", GIB // 64, "a text that every line has"),
                _pattern(stage, log),
                _endless(stage, log),
                _view(stage, log),
            ]
        finally:
            log.close()
            process.remove()


def _against_grep(stage: Stage, log: Log, text: str, lines: int, name: str) -> Row:
    def ours() -> float:
        started = now()
        found = find({"": log}, text, timeout=60)
        took = now() - started
        if found.count != lines or not found.complete:
            raise RuntimeError(f"{found.count} lines found, not {lines}")
        return took

    def floor() -> float:
        started = now()
        # Into a pipe: grep looks no further than the first match when it writes to /dev/null.
        done = subprocess.run(["grep", "-c", text, log.path], stdout=subprocess.PIPE, check=False)
        took = now() - started
        if int(done.stdout) != lines:
            raise RuntimeError(f"grep found {int(done.stdout)} lines, not {lines}")
        return took

    mine, bare = interleave(stage.pick(10, 3), ours, floor)
    return ratio_row(f"1 GiB searched for {name}", mine, bare, at_most=3, note="floor: `grep -c`")


def _pattern(stage: Stage, log: Log) -> Row:
    def ours() -> float:
        started = now()
        found = find({"": log}, r"INFO (needle\w+) .*often", timeout=60)
        took = now() - started
        if found.count != GIB // 64 // EVERY:
            raise RuntimeError(f"{found.count} lines found")
        return took

    (mine,) = interleave(stage.pick(5, 2), ours)
    return value_row(
        "1 GiB searched for a pattern",
        "s",
        percentile(mine, 0.5),
        measured_p90=percentile(mine, 0.9),
        at_most=None,
        samples=len(mine),
        note="one with a text in it that lines can be told by",
    )


def _endless(stage: Stage, log: Log) -> Row:
    """How long a search takes that is allowed half a second."""

    def ours() -> float:
        started = now()
        if find({"": log}, r"(?:[a-z]+ ?|[a-z ]+)+[0-9]$", timeout=0.5).complete:
            raise RuntimeError("this should have taken forever")
        return now() - started

    (mine,) = interleave(stage.pick(5, 2), ours)
    return value_row(
        "a search that may take 0.5 s and needs much more",
        "s",
        percentile(mine, 0.5),
        measured_p90=percentile(mine, 0.9),
        at_most=0.6,
        samples=len(mine),
    )


def _view(stage: Stage, log: Log) -> Row:
    def ours() -> float:
        started = now()
        shown = view(log)
        took = now() - started
        if len(shown.text) > 10_000 or shown.end != GIB:
            raise RuntimeError("this is not a view of all of it")
        return took

    (mine,) = interleave(stage.pick(10, 3), ours)
    return value_row(
        "a 1 GiB log as a model reads it",
        "s",
        percentile(mine, 0.5),
        measured_p90=percentile(mine, 0.9),
        at_most=0.5,
        samples=len(mine),
        note="both ends, and a bounded look for an error",
    )
