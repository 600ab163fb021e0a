"""Files in /proc of processes that may end at any moment, also between an `open` and a `read`."""

from __future__ import annotations

from pathlib import Path

from holdfast.linux.kernel import all_processes


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
