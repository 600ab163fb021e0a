"""Files in /proc of processes that may end at any moment, also between an `open` and a `read`."""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast.linux.kernel import all_processes
from holdfast.testing import wait_until


def proc_file(pid: int, name: str) -> bytes:
    """All of one; nothing where the process is gone, or not ours to look at."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def watchers_below(worker: int) -> list[int]:
    """The pids of the living watchers of a keeper's worker."""
    return [
        process.pid
        for process in all_processes()
        if process.parent == worker
        and process.state not in "ZX"
        and b"watcher/__main__.py" in proc_file(process.pid, "cmdline")
    ]


def turns(pid: int) -> int:
    """How often a process went to sleep so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def descriptors_at_rest(pid: int) -> set[int]:
    """The open descriptors of a process while it does nothing.

    In the middle of something it may have a file open that it closes the next moment.
    """

    def asleep() -> bool:
        return b"\nState:\tS" in proc_file(pid, "status")

    def look() -> set[int]:
        before = turns(pid)
        time.sleep(0.05)  # what is asleep and was not woken in this time is not about to close one
        found = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
        return found if asleep() and turns(pid) == before else set()

    return wait_until(look, what=f"rest of process {pid}")


def first_free_descriptor(pid: int) -> int:
    """The number that the next descriptor of a process gets; with it as the limit it gets none."""
    open_ones = descriptors_at_rest(pid)
    return next(number for number in range(len(open_ones) + 1) if number not in open_ones)
