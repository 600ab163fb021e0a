"""Bystanders: python -m torture._bystander REPORT SECONDS. Nobody has any business with them.

A parent that starts others again and again, so that one of them soon has the pid of a process that
has just ended, leads a group and a session of that number, and writes down every signal it gets.
One that ends in another way than by itself is written down by the parent.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

_AT_ONCE = 6
_USED = (signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP, signal.SIGALRM, signal.SIGTERM)


def _report(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{time.monotonic():.3f} {text}\n".encode())
    os.close(fd)


def _stand_by(path: str, seconds: float) -> None:
    os.setsid()
    for number in signal.valid_signals():
        if number in (signal.SIGKILL, signal.SIGSTOP):
            continue
        try:
            signal.signal(
                number,
                lambda number, _: _report(path, f"pid {os.getpid()} got signal {number}"),
            )
        except (OSError, ValueError):
            continue
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(left)
    os._exit(0)


def main(argv: list[str]) -> int:
    path, longest = argv[0], float(argv[1])
    parent = os.getppid()
    goes = False

    def go(number: int, frame: object) -> None:
        nonlocal goes
        goes = True

    signal.signal(signal.SIGTERM, go)
    dice = random.Random(0)
    until = time.monotonic() + longest
    children: set[int] = set()
    while not goes and time.monotonic() < until and os.getppid() == parent:
        while len(children) < _AT_ONCE:
            pid = os.fork()
            if pid == 0:
                _stand_by(path, dice.uniform(0.1, 0.8))
            children.add(pid)
            dice.random()
        _reap(path, children)
        time.sleep(0.03)
    while children:
        _reap(path, children)
        time.sleep(0.01)
    return 0


def _reap(path: str, children: set[int]) -> None:
    for pid in list(children):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            children.discard(pid)
            if status:
                _report(path, f"pid {pid} ended with status {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
