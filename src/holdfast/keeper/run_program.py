"""A program of ours that does one thing and ends: run beside the loop, within a time."""

from __future__ import annotations

import os
import resource
import select
import signal
import time

from . import clone
from .loop import HUP, IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop, Timer

    Done = Callable[[int, bytes], None]

_MOST = 1 << 20
_KEPT = ("PATH", "HOME", "SHELL", "LANG")
FAILED = 255


def start(
    argv: list[str],
    program: str,
    cwd: str,
    nofile: int,
    stdin: int,
    out: int,
    *,
    errors: int | None = None,
) -> tuple[int, int]:
    """Start a program with these for stdin and output, in a session of its own: pid and pidfd."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    actions = [(os.POSIX_SPAWN_DUP2, stdin, 0)]
    actions += [(os.POSIX_SPAWN_DUP2, out, 1)]
    actions += [(os.POSIX_SPAWN_DUP2, out if errors is None else errors, 2)]
    try:
        os.chdir(cwd)
        reset = [signal.SIGPIPE, signal.SIGXFSZ]
        rlimits = [(resource.RLIMIT_NOFILE, nofile, hard)]
        pid = clone.start(program, argv, env, actions, reset, rlimits=rlimits)
    finally:
        os.chdir("/")
    return pid, clone.pidfd_of(pid)


class Helpers:
    """The helpers that run now."""

    __slots__ = ("_loop", "_nofile", "pids")

    def __init__(self, loop: Loop, nofile: int) -> None:
        self._loop = loop
        self._nofile = nofile
        self.pids: set[int] = set()  # nobody else may reap these

    def run(self, argv: list[str], program: str, cwd: str, timeout: float, done: Done) -> None:
        """Run it; `done` gets its exit code and what it wrote."""
        try:
            ours, pid, pidfd = self._start(argv, program, cwd)
        except OSError as error:
            message = f"cannot run {program}: {error.strerror}".encode()
            self._loop.after(0, lambda: done(FAILED, message))
            return
        self.pids.add(pid)
        _Running(self._loop, self.pids, pid, pidfd, ours, timeout, done)

    def run_now(self, argv: list[str], program: str, cwd: str, timeout: float) -> tuple[int, bytes]:
        """Run it and wait; for a worker that has nothing else to do yet."""
        try:
            ours, pid, pidfd = self._start(argv, program, cwd)
        except OSError as error:
            return FAILED, str(error).encode()
        until = time.monotonic() + timeout
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(timeout * 1000):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll.poll()
        os.close(pidfd)
        said = _read_rest(ours)
        os.close(ours)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return (code, said) if time.monotonic() < until or code >= 0 else (FAILED, b"timed out")

    def _start(self, argv: list[str], program: str, cwd: str) -> tuple[int, int, int]:
        """Our end of its output, its pid and its pidfd."""
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(ours, False)
        try:
            return ours, *start(argv, program, cwd, self._nofile, 0, theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)


class _Running:
    __slots__ = ("_done", "_loop", "_ours", "_parts", "_pid", "_pidfd", "_pids", "_timer")

    def __init__(
        self,
        loop: Loop,
        pids: set[int],
        pid: int,
        pidfd: int,
        ours: int,
        timeout: float,
        done: Done,
    ) -> None:
        self._loop = loop
        self._pids = pids
        self._pid = pid
        self._pidfd = pidfd
        self._ours = ours
        self._parts: list[bytes] = []
        self._done = done
        self._timer: Timer = loop.after(timeout, self._overdue)
        loop.add(ours, IN, self._readable)
        loop.add(self._pidfd, IN, self._ended)

    def _overdue(self) -> None:
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _readable(self, events: int) -> None:
        data = _read_rest(self._ours)
        self._parts.append(data)
        if events & HUP and not data:
            self._loop.remove(self._ours)

    def _ended(self, events: int) -> None:
        self._parts.append(_read_rest(self._ours))
        self._loop.remove(self._ours)
        self._loop.remove(self._pidfd)
        os.close(self._ours)
        os.close(self._pidfd)
        self._timer.cancel()
        self._pids.discard(self._pid)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._done(code, b"".join(self._parts))


def _read_rest(fd: int) -> bytes:
    parts = []
    size = 0
    try:
        while size < _MOST and (part := os.read(fd, 65536)):
            parts.append(part)
            size += len(part)
    except BlockingIOError:
        pass
    return b"".join(parts)
