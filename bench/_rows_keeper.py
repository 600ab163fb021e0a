"""The keeper at rest, what it weighs, how soon it is back, and the command line's start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from ._floor import cpu_seconds, memory, wakeups
from ._measure import Row, interleave, median, now, percentile, ratio_row, value_row

if TYPE_CHECKING:
    from holdfast import SyncClient

    from ._stage import Stage

KIB = 1 << 10
MIB = 1 << 20
IDLE = 200


def idle(stage: Stage) -> list[Row]:
    """200 processes that do nothing."""
    with stage.client() as client:
        for process in [client.spawn("exec sleep 1000") for _ in range(5)]:
            process.kill(signal="KILL")
        pids = stage.keeper(client)
        before = memory(pids)
        for _ in range(IDLE):
            client.spawn("exec sleep 1000")
        time.sleep(0.2)
        after = memory(pids)
        seconds = stage.pick(5, 2)
        ran, woke = cpu_seconds(pids), wakeups(pids)
        time.sleep(seconds)
        ran, woke = cpu_seconds(pids) - ran, wakeups(pids) - woke
    return [
        value_row(
            "memory for each idle process",
            "B",
            (after["Pss"] - before["Pss"]) / IDLE,
            at_most=30 * KIB,
            samples=IDLE,
            note="PSS of guard and worker",
            rss=(after["Rss"] - before["Rss"]) / IDLE,
        ),
        value_row(
            f"CPU time in {seconds} s with {IDLE} idle processes",
            "s",
            ran,
            at_most=0.0,
            samples=1,
            note=f"guard and worker; {woke} wake-ups",
            wakeups=woke,
        ),
    ]


def weight(stage: Stage) -> list[Row]:
    """Guard and worker, after they have done some work."""
    with stage.client() as client:
        for process in [client.spawn("echo hello") for _ in range(100)]:
            process.wait()
        pids = stage.keeper(client)
        total = memory(pids)
        halves = {name: memory([pid]) for name, pid in zip(("guard", "worker"), pids, strict=True)}
    note = ", ".join(f"{name} {half['Rss'] / MIB:.1f}" for name, half in halves.items())
    return [
        value_row("guard and worker, PSS", "B", total["Pss"], at_most=30 * MIB, detail=halves),
        value_row(
            "guard and worker, RSS added up",
            "B",
            total["Rss"],
            at_most=30 * MIB,
            note=f"MiB: {note}; what they share counts twice",
        ),
    ]


def new_worker(stage: Stage) -> list[Row]:
    """kill -9 of a half until the next request is answered."""
    rounds = stage.pick(15, 5)
    with stage.client() as client:
        kept = client.spawn("exec sleep 1000")
        worker = [_answer_after_kill(stage, client, 1) for _ in range(rounds)]
        guard = [_answer_after_kill(stage, client, 0) for _ in range(rounds)]
        if not kept.refresh().running:
            raise RuntimeError("a process was lost with a half of the keeper")
        kept.kill(signal="KILL")
    return [
        value_row(
            "answered after kill -9 of the worker, worst",
            "s",
            max(worker),
            at_most=0.1,
            samples=rounds,
            note=f"p50 {median(worker) * 1e3:.1f} ms",
            p50=median(worker),
        ),
        value_row(
            "answered after kill -9 of the guard, worst",
            "s",
            max(guard),
            at_most=None,
            samples=rounds,
            note=f"p50 {median(guard) * 1e3:.1f} ms",
            p50=median(guard),
        ),
    ]


def _answer_after_kill(stage: Stage, client: SyncClient, half: int) -> float:
    time.sleep(0.1)
    pids = stage.keeper(client)
    started = now()
    os.kill(pids[half], signal.SIGKILL)
    while stage.keeper(client)[1] == pids[1]:
        if now() - started > 10:
            raise RuntimeError("no new worker within 10 s")
    return now() - started


def ps(stage: Stage) -> list[Row]:
    """`holdfast ps`, with ten processes to show, against an interpreter that does nothing."""
    installed = os.path.join(os.path.dirname(sys.executable), "holdfast")
    if os.access(installed, os.X_OK):
        argv = [installed, "ps"]
    else:
        argv = [sys.executable, "-c", "from holdfast.cli import main; main()", "ps"]
    with stage.client() as client:
        for _ in range(10):
            client.spawn("exec sleep 1000")

        def ours() -> float:
            return _run(argv, b"sleep 1000")

        def floor() -> float:
            return _run([sys.executable, "-c", "pass"], b"")

        mine, bare = interleave(stage.pick(25, 10), ours, floor, warm=3)
    p90 = percentile(mine, 0.9) / percentile(bare, 0.9)
    return [ratio_row("`holdfast ps`", mine, bare, at_most=6, note=f"p90 {p90:.1f}x")]


def _run(argv: list[str], expected: bytes) -> float:
    started = now()
    result = subprocess.run(argv, capture_output=True)
    took = now() - started
    if result.returncode or expected not in result.stdout:
        raise RuntimeError(f"{' '.join(argv)}: {result.stderr.decode() or result.stdout.decode()}")
    return took
