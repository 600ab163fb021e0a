"""The floor: the same shell, its output in a file, its end through a pidfd. And ``/proc``."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from ._measure import now

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

SHELL = shutil.which("bash") or "/bin/sh"


class Scratch:
    """A directory on disk for the floor's files."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._files = 0
        os.makedirs(path)

    def file(self) -> str:
        """A new one for every command, as a log is."""
        self._files += 1
        return f"{self.path}/{self._files}"

    def empty(self) -> None:
        for name in os.listdir(self.path):
            os.unlink(f"{self.path}/{name}")


class Child:
    """A command of the floor."""

    __slots__ = ("pid", "pidfd")

    def __init__(self, command: str, out: str) -> None:
        fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        process = subprocess.Popen(
            [SHELL, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
        )
        os.close(fd)
        self.pid = process.pid
        self.pidfd = os.pidfd_open(process.pid)
        process.returncode = 0  # reaped in wait(), not when the object goes

    def wait(self) -> None:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        poll.poll()
        self.reap()

    def reap(self) -> None:
        os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)


def wait_all(children: Iterable[Child]) -> None:
    by_fd = {child.pidfd: child for child in children}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    while by_fd:
        for fd, _ in poll.poll():
            poll.unregister(fd)
            by_fd.pop(fd).reap()
    poll.close()


class Killer:
    """A process that kills another one and says when, as the waiter is blocked in its wait."""

    _PROGRAM = """
import os, signal, sys, time
for line in sys.stdin:
    time.sleep(0.005)
    at = time.perf_counter()
    os.kill(int(line), signal.SIGTERM)
    time.sleep(0.005)
    print(repr(at), flush=True)
"""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", self._PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def aim(self, pid: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pid}\n")

    def fired_at(self) -> float:
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def __enter__(self) -> Killer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


class Echo:
    """A process that answers at once: how late the machine alone makes an answer under load."""

    _PROGRAM = """
import os
while data := os.read(0, 65536):
    os.write(1, data)
"""

    def __init__(self, argv: list[str] | None = None) -> None:
        self._process = subprocess.Popen(
            argv or [sys.executable, "-S", "-c", self._PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self.ask()

    def ask(self) -> float:
        started = now()
        os.write(self._to, b"some line of text\n")
        os.read(self._from, 65536)
        return now() - started

    def __enter__(self) -> Echo:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def memory(pids: Iterable[int]) -> dict[str, int]:
    """``Pss`` and ``Rss`` of the processes together, in bytes."""
    total = {"Pss": 0, "Rss": 0}
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            for line in file:
                key, _, rest = line.partition(":")
                if key in total:
                    total[key] += int(rest.split()[0]) * 1024
    return total


def cpu_seconds(pids: Iterable[int]) -> float:
    """Time the processes have run: the scheduler's nanoseconds where the kernel counts them."""
    total = 0.0
    for pid in pids:
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                    total += int(file.read().split()[0]) / 1e9
            except FileNotFoundError:
                with open(f"/proc/{pid}/task/{thread}/stat") as file:
                    parts = file.read().rsplit(")", 1)[1].split()
                total += (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")
    return total


def wakeups(pids: Iterable[int]) -> int:
    """How often the processes went to sleep so far."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/status") as file:
            for line in file:
                if line.startswith("voluntary_ctxt_switches"):
                    total += int(line.split()[1])
    return total


def busy(seconds: float) -> float:
    """The share of the CPUs' time that others take, watched for a while."""

    def look() -> tuple[int, int]:
        with open("/proc/stat") as file:
            times = [int(part) for part in file.readline().split()[1:9]]
        return sum(times), times[3] + times[4]

    total, idle = look()
    time.sleep(seconds)
    total_after, idle_after = look()
    return 1 - (idle_after - idle) / max(1, total_after - total)


def file_system(path: str) -> str:
    """The kind of file system `path` is on."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields, _, source = line.partition(" - ")
            if fields.split()[2] == wanted:
                return source.split()[0]
    return "unknown"


def end_by_pidfd(pidfds: Iterable[int], within: float) -> None:
    """See that the processes are gone, by force after a while."""
    for fd in pidfds:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(within * 1000):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
            poll.poll(within * 1000)
        os.close(fd)


def new_root() -> str:
    return tempfile.mkdtemp(prefix="holdfast-bench-")
