"""Waiting: how soon a matching line is seen, and what it costs to wait for a long time."""

from __future__ import annotations

import os
import resource
import threading
from typing import TYPE_CHECKING

from ._measure import Row, now, percentile, value_row

if TYPE_CHECKING:
    from ._stage import Stage

CONDITIONS = 50
FOR = 10
BEGIN = 2


def matching_line(stage: Stage) -> list[Row]:
    """From the write of a line to the return of a wait that had begun, while others are written."""
    took = []
    with stage.client() as client:
        process = client.spawn("stty -echo 2>/dev/null; exec cat", stdin=True)
        for number in range(stage.pick(100, 30)):
            written: list[float] = []

            def write(number: int = number, written: list[float] = written) -> None:
                for noise in range(20):
                    process.send(f"compiling file {noise}\n")
                written.append(now())
                process.send(f"ready {number}\n")

            thread = threading.Timer(0.02, write)
            thread.start()
            waited = process.wait_for(rf"output=^ready {number}$", timeout=30)
            seen = now()
            thread.join()
            if not waited.ok:
                raise RuntimeError(f"not seen: {waited}")
            took.append(seen - written[0])
        process.kill(signal="KILL")
        process.remove()
    return [
        value_row(
            "a matching line is seen, p95",
            "s",
            percentile(took, 0.95),
            measured_p90=percentile(took, 0.9),
            at_most=0.02,
            samples=len(took),
        )
    ]


def waiting_costs(stage: Stage) -> list[Row]:
    """CPU of client and keeper while 50 conditions on 25 processes do not hold.

    A wait looks often at first, and then twice a second: a short one says what the beginning costs,
    a longer one what the rest of the time does.
    """
    os.environ["HOLDFAST_MAX_RUNNING"] = "100"
    seconds = stage.pick(FOR, 4)
    try:
        with stage.client() as client:
            processes = [client.spawn("exec sleep 1000") for _ in range(CONDITIONS // 2)]
            status = client.keeper_status()
            keeper = [status["guard"], status["worker"]]

            def spent(timeout: float) -> float:
                before = _cpu(keeper)
                client.wait_for(processes, "output=never", "port=65530", timeout=timeout)
                return _cpu(keeper) - before

            spent(0.2)
            begin = spent(BEGIN)
            rest = (spent(seconds) - begin) / (seconds - BEGIN)
            client.stop_all(signal="KILL")
    finally:
        del os.environ["HOLDFAST_MAX_RUNNING"]
    return [
        value_row(
            "CPU of waiting for 50 conditions, 10 s",
            "s",
            begin + rest * (FOR - BEGIN),
            at_most=0.05,
            note="client, guard and worker together",
        )
    ]


def _cpu(keeper: list[int]) -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = used.ru_utime + used.ru_stime
    for pid in keeper:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            total += int(file.read().split()[0]) / 1e9
    return total
