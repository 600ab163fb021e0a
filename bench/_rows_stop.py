"""Stopping a whole tree: how much later than the kernel alone could do it."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import TYPE_CHECKING

from holdfast.linux.cgroup import V2, empty, kill, own_groups, remove

from ._floor import cpu_seconds
from ._measure import Row, interleave, median, now, percentile, value_row

if TYPE_CHECKING:
    from ._stage import Stage

TREE = 100
DEAF = 30
_PROGRAM = f"""
import os, signal
for _ in range({TREE - 1}):
    if os.fork() == 0:
        signal.pause()
print("ready", flush=True)
signal.pause()
"""


def stop_tree(stage: Stage) -> list[Row]:
    """100 processes, from the kill to its receipt; the floor is a bare `cgroup.kill`."""
    group = f"{own_groups().get(V2, '')}/holdfast-bench-{os.getpid()}"
    try:
        os.mkdir(group)
    except OSError:
        return []  # no control groups here, and so no floor
    command = [sys.executable, "-ISc", _PROGRAM]
    try:
        with stage.client() as client:

            def ours() -> float:
                process = client.spawn(command)
                while "ready" not in process.read_at(0).text:
                    time.sleep(0.005)
                started = now()
                receipt = process.kill(signal="KILL")
                took = now() - started
                assert not receipt.survivors
                return took

            mine, bare = interleave(stage.pick(15, 6), ours, lambda: _bare(group, command))
    finally:
        remove([group])
    late = median(mine) - median(bare)
    return [
        value_row(
            f"stop of {TREE} processes, later than `cgroup.kill`",
            "s",
            late,
            at_most=0.05,
            measured_p90=percentile(mine, 0.9) - median(bare),
            floor=median(bare),
            samples=len(mine),
        )
    ]


def deaf(stage: Stage) -> list[Row]:
    """30 stubborn ones in their grace: one look serves all, and not many are taken."""
    grace = stage.pick(3, 1)
    command = "(trap '' TERM; exec setsid sleep 1000) & echo ready; exec sleep 1000"
    with stage.client() as client:
        processes = [client.spawn(command, grace=grace, max_running=100) for _ in range(DEAF)]
        for process in processes:
            while "ready" not in process.read_at(0).text:
                time.sleep(0.005)
        pids = stage.keeper(client)
        before = cpu_seconds(pids)
        client.stop_all()
        ran = cpu_seconds(pids) - before
    return [
        value_row(
            f"CPU time in {grace} s of grace for {DEAF} that ignore it",
            "s",
            ran,
            at_most=0.5 * grace,
            samples=1,
            note="guard and worker",
        )
    ]


def _bare(group: str, command: list[str]) -> float:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with open(f"{group}/cgroup.procs", "w") as file:
            file.write("0")
        os.dup2(writer, 1)
        os.execv(command[0], command)
    os.close(writer)
    os.read(reader, 100)
    os.close(reader)
    pidfd = os.pidfd_open(pid)
    started = now()
    kill([group])
    select.select([pidfd], [], [])
    os.waitpid(pid, 0)
    while not empty([group]):
        time.sleep(0.0002)
    took = now() - started
    os.close(pidfd)
    return took
