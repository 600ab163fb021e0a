"""The injector of faults: finds whoever a fault is for, and kills or stops exactly that one.

Everybody is signalled through a pidfd that was opened first and looked at afterwards.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.linux.kernel import all_processes, children, stat

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._journal import Journal
    from ._plan import Fault

_AGAIN = 4
_PATIENCE = 3.0


def words_of(pid: int) -> str:
    """The command line of a process, "" for what is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.fsdecode(file.read().replace(b"\0", b" ")).strip()
    except OSError:
        return ""


def alive(pid: int) -> bool:
    found = stat(pid)
    return found is not None and found.state not in "ZX"


def guard_of(home: str) -> int | None:
    try:
        with open(home + "/keeper.lock") as file:
            guard = int(json.load(file)["guard"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return guard if _is_keeper(guard) and home in words_of(guard) else None


def _is_keeper(pid: int) -> bool:
    return "keeper/__main__.py" in words_of(pid) and alive(pid)


def worker_of(guard: int) -> int | None:
    """Its fork: what else the guard may have as a child has another command line, or session.

    But for the moment in which a process that a dead worker started has neither.
    """
    words, own = words_of(guard), stat(guard)
    for pid in _children(guard):
        found = stat(pid)
        if own is None or found is None or found.session != own.session or found.state in "ZX":
            continue
        if words and words_of(pid) == words:
            return pid
    return None


def watcher_of(worker: int) -> int | None:
    for pid in _children(worker):
        if "watcher/__main__.py" in words_of(pid):
            return pid
    return None


def tmux_server_of(home: str) -> int | None:
    for found in all_processes():
        if home + "/tmux.sock" not in words_of(found.pid):
            continue
        try:
            with open(f"/proc/{found.pid}/comm") as file:
                if file.read().startswith("tmux: server"):
                    return found.pid
        except OSError:
            continue
    return None


def _children(pid: int) -> list[int]:
    try:
        return children(pid)
    except OSError:
        return []


def send(pid: int, number: int, still: Callable[[], bool]) -> bool:
    """Signal a process, if it is still the one that was meant."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not still():
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)
    return True


@dataclass
class _Stopped:
    until: float
    pid: int
    pidfd: int
    kind: str


class Injector:
    def __init__(self, home: str, journal: Journal, clients: Callable[[], list[int]]) -> None:
        self.home = home
        self.journal = journal
        self._clients = clients
        self._stopped: list[_Stopped] = []
        self._filled = 0.0
        self._filler = os.path.dirname(home) + "/filler"
        self._down = False  # both halves were killed, and no other pair was seen yet

    def inject(self, fault: Fault) -> None:
        method = getattr(self, "_" + fault.kind.replace("-", "_"))
        done = method(fault)
        if not done:
            self.journal.write(fault=fault.kind, skipped=True)

    def tick(self) -> None:
        """What is due: those who were stopped go on, the disk has room, a new keeper was seen."""
        now = time.monotonic()
        for entry in [entry for entry in self._stopped if entry.until <= now]:
            self._go_on(entry)
        if self._filled and self._filled <= now:
            self._free()
        if self._down and self._pair() is not None:
            self._down = False
            self.journal.write(fault="keeper", back=True)

    def release(self) -> None:
        for entry in list(self._stopped):
            self._go_on(entry)
        if self._filled:
            self._free()

    def _wait_for(self, condition: Callable[[], object]) -> bool:
        """Wait for something that takes moments; what is due meanwhile is done."""
        until = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > until:
                return False
            self.tick()
            time.sleep(0.001)
        return True

    # -- the keeper ----------------------------------------------------------------------------

    def _pair(self) -> tuple[int, int] | None:
        guard = guard_of(self.home)
        worker = None if guard is None else worker_of(guard)
        return None if guard is None or worker is None else (guard, worker)

    def _is_worker(self, guard: int, worker: int) -> Callable[[], bool]:
        return lambda: worker_of(guard) == worker

    def _is_guard(self, guard: int) -> Callable[[], bool]:
        return lambda: guard_of(self.home) == guard

    def _kill_worker(self, fault: Fault) -> bool:
        pair = self._pair()
        if pair is None or not send(pair[1], signal.SIGKILL, self._is_worker(*pair)):
            return False
        self.journal.write(fault=fault.kind, pid=pair[1])
        self._wait_for(lambda: not alive(pair[1]))
        if not alive(pair[0]):  # it was ended too, as when a keeper is renewed
            self._both(fault, *pair)
        return True

    def _kill_guard(self, fault: Fault) -> bool:
        pair = self._pair()
        return pair is not None and self._end_guard(fault, *pair)

    def _end_guard(self, fault: Fault, guard: int, worker: int) -> bool:
        if not send(guard, signal.SIGKILL, self._is_guard(guard)):
            return False
        self._wait_for(lambda: not alive(guard))
        self.journal.write(fault=fault.kind, pid=guard)
        # By chance they went together, or it was no worker: see `worker_of`.
        self._wait_for(lambda: guard_of(self.home) == worker or not _is_keeper(worker))
        if not _is_keeper(worker):
            self._both(fault, guard, worker)
        return True

    def _both(self, fault: Fault, *pids: int) -> None:
        """Both halves go at this moment."""
        self.journal.write(fault=fault.kind, both=True, pids=pids)
        for pid in pids:
            self._wait_for(lambda pid=pid: not alive(pid))  # type: ignore[misc]
        self._down = True

    def _kill_both(self, fault: Fault) -> bool:
        """Stopped first, so that neither sees the other go."""
        pair = self._pair()
        if pair is None:
            return False
        guard, worker = pair
        checks = {guard: self._is_guard(guard), worker: self._is_worker(guard, worker)}
        for pid, still in checks.items():
            send(pid, signal.SIGSTOP, still)
        for pid, still in reversed(checks.items()):
            send(pid, signal.SIGKILL, still)
        self._both(fault, guard, worker)
        return True

    def _kill_worker_again(self, fault: Fault) -> bool:
        """One after the other, each as soon as there is one."""
        count = 0
        for _ in range(_AGAIN):
            if self._wait_for(lambda: self._pair() is not None) and self._kill_worker(fault):
                count += 1
        return count > 0

    def _kill_worker_then_guard(self, fault: Fault) -> bool:
        """The guard goes when the new worker is hardly there."""
        before = self._pair()
        if before is None or not self._kill_worker(fault):
            return False
        found: list[tuple[int, int]] = []

        def another() -> bool:
            pair = self._pair()
            if pair is not None and pair[1] != before[1]:
                found.append(pair)
            return bool(found)

        return self._wait_for(another) and self._end_guard(fault, *found[0])

    def _stop(self, fault: Fault, pid: int | None, still: Callable[[], bool]) -> bool:
        if pid is None or not send(pid, signal.SIGSTOP, still):
            return False
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        until = time.monotonic() + fault.seconds
        self._stopped.append(_Stopped(until, pid, pidfd, fault.kind))
        self.journal.write(fault=fault.kind, pid=pid, seconds=fault.seconds)
        return True

    def _go_on(self, entry: _Stopped) -> None:
        self._stopped.remove(entry)
        try:
            if entry.pid not in [other.pid for other in self._stopped]:
                signal.pidfd_send_signal(entry.pidfd, signal.SIGCONT)
        except ProcessLookupError:
            pass
        os.close(entry.pidfd)
        self.journal.write(fault=entry.kind, over=True)

    def _stop_worker(self, fault: Fault) -> bool:
        pair = self._pair()
        return pair is not None and self._stop(fault, pair[1], self._is_worker(*pair))

    _stop_worker_long = _stop_worker

    def _stop_guard(self, fault: Fault) -> bool:
        pair = self._pair()
        return pair is not None and self._stop(fault, pair[0], self._is_guard(pair[0]))

    _stop_guard_long = _stop_guard

    # -- who helps it --------------------------------------------------------------------------

    def _watcher(self) -> tuple[int | None, Callable[[], bool]]:
        pair = self._pair()
        pid = None if pair is None else watcher_of(pair[1])
        return pid, lambda: pid is not None and "watcher/__main__.py" in words_of(pid)

    def _kill_watcher(self, fault: Fault) -> bool:
        pid, still = self._watcher()
        return self._kill(fault, pid, still)

    def _stop_watcher(self, fault: Fault) -> bool:
        return self._stop(fault, *self._watcher())

    def _tmux(self) -> tuple[int | None, Callable[[], bool]]:
        pid = tmux_server_of(self.home)
        return pid, lambda: tmux_server_of(self.home) == pid

    def _kill_tmux(self, fault: Fault) -> bool:
        return self._kill(fault, *self._tmux())

    def _stop_tmux(self, fault: Fault) -> bool:
        return self._stop(fault, *self._tmux())

    def _kill(self, fault: Fault, pid: int | None, still: Callable[[], bool]) -> bool:
        if pid is None or not send(pid, signal.SIGKILL, still):
            return False
        self.journal.write(fault=fault.kind, pid=pid)
        return True

    # -- clients -------------------------------------------------------------------------------

    def _client(self, fault: Fault) -> int | None:
        clients = self._clients()
        return clients[fault.choice % len(clients)] if clients else None

    def _kill_client(self, fault: Fault) -> bool:
        pid = self._client(fault)
        return self._kill(fault, pid, lambda: pid in self._clients())

    def _stop_client(self, fault: Fault) -> bool:
        pid = self._client(fault)
        return self._stop(fault, pid, lambda: pid in self._clients())

    # -- the home ------------------------------------------------------------------------------

    def _delete_socket(self, fault: Fault) -> bool:
        try:
            os.unlink(self.home + "/keeper.sock")
        except FileNotFoundError:
            return False
        self.journal.write(fault=fault.kind)
        return True

    def _fill_disk(self, fault: Fault) -> bool:
        """All but a few bytes, or pages, of it."""
        if self._filled:
            return False
        left = (0, 0, 4096, 65536)[fault.choice % 4]
        fd = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for size in (1 << 20, 1 << 12, 1):
                while True:
                    try:
                        if os.write(fd, b"\0" * size) == 0:
                            break
                    except OSError as error:
                        if error.errno != errno.ENOSPC:
                            raise
                        break
            if left:
                os.ftruncate(fd, max(0, os.fstat(fd).st_size - left))
        finally:
            os.close(fd)
        self._filled = time.monotonic() + fault.seconds
        self.journal.write(fault=fault.kind, seconds=fault.seconds, left=left)
        return True

    def _free(self) -> None:
        self._filled = 0.0
        os.unlink(self._filler)
        self.journal.write(fault="fill-disk", over=True)
