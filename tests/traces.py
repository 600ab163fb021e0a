"""Traces of a home on the machine: processes, sockets, FIFOs and files that are somehow its own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast.core.home import Home
from holdfast.core.store import Store
from holdfast.linux.kernel import all_processes, mark_number, marked_number


class Traces:
    """What there is of a home: its processes, sockets and FIFOs."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.known = set(self._processes())

    def _processes(self) -> list[tuple[int, int]]:
        return [(each.pid, each.start_time) for each in all_processes() if each.state not in "ZX"]

    def new_processes(self) -> list[str]:
        """Those that came since, and are somehow of this home."""
        found = []
        numbers = {mark_number(handle) for handle in Store(Home(self.home)).handles()}
        for pid, start in self._processes():
            if (pid, start) in self.known:
                continue
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                where = os.readlink(f"/proc/{pid}/cwd")
                open_files = [
                    os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")
                ]
            except OSError:
                continue
            near = os.path.dirname(self.home)
            texts = [os.fsdecode(environment), os.fsdecode(command), where, *open_files]
            ours = marked_number(pid) in numbers or any(near in text for text in texts)
            if pid != os.getpid() and ours:
                found.append(f"{pid} {os.fsdecode(command)}")
        return found

    def special_files(self) -> list[str]:
        """Sockets, FIFOs, and what a process has only while it runs."""
        found = []
        for directory, _, names in os.walk(self.home):
            for name in names:
                try:
                    mode = os.lstat(os.path.join(directory, name)).st_mode
                except FileNotFoundError:
                    continue
                passing = name.endswith((".out", ".begun", ".tmp"))
                if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode) or passing:
                    found.append(name)
        return found

    def of(self, handles: list[str]) -> list[str]:
        """Files that name one of these processes."""
        return [
            name
            for _, _, names in os.walk(self.home)
            for name in names
            if any(handle in name for handle in handles)
        ]
