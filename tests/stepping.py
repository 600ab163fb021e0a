"""Killing another process between any two of its system calls."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import KeeperError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SEIZE, _INTERRUPT, _SYSCALL, _DETACH = 0x4206, 0x4207, 24, 17
_TRACESYSGOOD = 1
_WALL = 0x40000000


class Stepper:
    """Takes another process from system call to system call, and kills it between two of them."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.steps = 0
        self._ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        self._ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self._ptrace.restype = ctypes.c_long
        self._ask(_SEIZE, _TRACESYSGOOD)
        self._ask(_INTERRUPT, 0)
        assert self._stopped(5) is not None
        self._ask(_SYSCALL, 0)

    def _ask(self, what: int, data: int) -> None:
        if self._ptrace(what, self.pid, None, data) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def _stopped(self, patience: float) -> int | None:
        """The wait status of its next stop, or None if it does not stop."""
        until = time.monotonic() + patience
        while True:
            pid, status = os.waitpid(self.pid, _WALL | os.WNOHANG)
            if pid:
                assert os.WIFSTOPPED(status), f"it ended by itself: {status:#x}"
                return status
            if time.monotonic() > until:
                return None
            time.sleep(0.0002)

    def step(self, patience: float) -> bool:
        """To the next beginning or end of a system call; False if none comes."""
        while True:
            status = self._stopped(patience)
            if status is None:
                return False
            number = os.WSTOPSIG(status)
            if number == signal.SIGTRAP | 0x80:
                self.steps += 1
                return True
            # A signal on its way is passed on; a stop of ptrace's own is not one.
            self._ask(_SYSCALL, 0 if status >> 16 else number)

    def go_on(self) -> None:
        self._ask(_SYSCALL, 0)

    def release(self) -> None:
        """Let it go on by itself."""
        self._ask(_DETACH, 0)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        while not os.WIFSIGNALED(os.waitpid(self.pid, _WALL)[1]):
            pass


def stepper_of(pid: int) -> Stepper:
    try:
        return Stepper(pid)
    except PermissionError:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip("ptrace is not allowed here")


def killed_at(pid: int, step: int, work: Callable[[], Any]) -> tuple[Any, bool]:
    """Run `work` in a thread, kill `pid` at the n-th step; what came of it, and if it got there."""
    results: list[Any] = []
    begin = threading.Event()

    def run() -> None:
        begin.wait()
        try:
            results.append(work())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    reached = False
    try:
        stepper = stepper_of(pid)
        begin.set()
        while not reached and stepper.step(1.0 if thread.is_alive() else 0.05):
            reached = stepper.steps > step
            if not reached:
                stepper.go_on()
        stepper.kill()
    finally:
        begin.set()
        thread.join(60)
    assert not thread.is_alive()
    if isinstance(results[0], BaseException) and not isinstance(results[0], KeeperError):
        raise results[0]
    return results[0], reached


def killed_when(
    pid: int, happened: Callable[[], bool], then: Callable[[], None], work: Callable[[], Any]
) -> Any:
    """Run `work` in a thread, hold `pid` as soon as something has happened, do `then`, kill it."""
    stepper = stepper_of(pid)
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        try:
            while not happened():
                assert stepper.step(60), "it waits for something"
                stepper.go_on()
            then()
        finally:
            stepper.kill()
        return result.result(60)
