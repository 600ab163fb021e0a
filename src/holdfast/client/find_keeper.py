"""Finding the keeper of a home, or starting it.

Connect; else take the lock, and start a keeper that inherits it. The lock is held as long as either
half of the keeper lives, so there is one keeper per home, and the socket is only ever removed by
whoever holds the lock.

A keeper that ends as soon as it was started is started again more and more slowly, and not for
ever: then its last words are the error.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import time

from ..core import index
from ..core.errors import KeeperError
from ..core.home import Home, cannot, open_private, set_aside, unusable
from ..core.home_lock import locked
from ..core.machine import machine
from ..core.programs import keeper_program
from ..linux import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PATIENCE = 15.0
_LONG = 1.0  # for a keeper that goes or comes: it may be stopped
_SYSTEM_PATH = "/usr/bin:/bin"
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "KUBERNETES_SERVICE_HOST")
# A keeper that ended before it was ready has failed, and the next is started after a wait that
# doubles. So many are tried before it is an error, which then holds for a while: another start
# would end as those did.
_WAIT, _LONGEST_WAIT = 0.02, 2.0
_TRIES = 6
_RECENT = 60.0
_LAST_WORDS = 4096

# By home: when this program last started a keeper there, how many had failed before it, and what
# it said if it did not even begin.
_starts: dict[str, tuple[float, int, str]] = {}


def try_connect(home: Home) -> socket.socket | None:
    """A connection to the running keeper, or None if there is none; an error for a stranger's."""
    try:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:
            raise
        raise KeeperError(
            "no keeper can be reached from a sandbox without Unix sockets; run it outside"
        ) from error
    try:
        end.connect(home.socket_address())
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, NotADirectoryError):
        end.close()
        return None
    except OSError as error:
        end.close()
        if error.errno == errno.ELOOP:
            return None  # a link in its place, which a keeper replaces
        raise KeeperError(
            f"cannot reach the keeper at {home.socket}: {error.strerror}; see that the home is "
            "yours to use, or set another HOLDFAST_HOME"
        ) from error
    _, uid = kernel.peer_of(end)
    if uid != os.geteuid():  # who gets our environment, and starts commands in our name
        end.close()
        raise KeeperError(
            f"the keeper at {home.socket} belongs to user {uid} and not to you; nothing was sent "
            "to it. Remove the socket if it is yours to remove, or choose another HOLDFAST_HOME"
        )
    return end


def keeper_holds(home: Home) -> bool:
    """True if a keeper lives, told by its lock; cheaper than asking it, and it need not wake."""
    try:
        lock = open_private(home.lock, os.O_RDONLY)  # so that a home can be looked at read-only
    except OSError:
        # There is none; or what is there is none, and whether a keeper answers all the same is
        # for whoever needs one to see.
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def wake(home: Home) -> int | None:
    """Have a keeper that somebody stopped (SIGSTOP) go on; the pid of its guard, or what is left.

    Guard and worker see to each other, but not where both are stopped, or one is and the other has
    died meanwhile: of that only those know who wait for an answer.
    """
    try:
        with open(home.lock, "rb") as file:
            said = dict(json.loads(file.read(4096)))
        halves = [
            (int(said[half]), int(said[begun]))
            for half, begun in (("guard", "start_time"), ("worker", "worker_start_time"))
            if said.get(begun) is not None  # else it had died before the other half wrote this
        ]
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return None
    for pid, begun in halves:
        pidfd = kernel.open_process(pid, begun)
        if pidfd is None:
            continue
        try:
            found = kernel.stat(pid)
            if found is None or found.state in "ZX":
                continue
            if found.state == "T":
                kernel.send_signal(pidfd, signal.SIGCONT)
            return pid
        finally:
            os.close(pidfd)
    return None


def connect(home: Home, idle: float) -> socket.socket:
    """A connection to the keeper, which is started if need be."""
    begun = time.monotonic()
    home.ensure()
    while True:
        end = try_connect(home)
        if end is not None:
            return end
        try:
            lock = _open_lock(home)
        except OSError as error:
            raise cannot(f"start a keeper in {home.path}", error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Somebody is starting one, or one is on its way out.
            _check_machine(home, lock)
            waited = time.monotonic() - begun
            if waited > _PATIENCE:
                raise KeeperError(
                    f"a keeper holds {home.lock} but does not answer; see {home.keeper_log}"
                ) from None
            os.close(lock)
            if waited > _LONG:  # or its guard is stopped, and there is no worker to see to that
                wake(home)
            time.sleep(0.005)
            continue
        except BaseException:
            os.close(lock)
            raise
        try:
            wait = _before_next(home, lock)
            if wait <= 0:
                _start(home, lock, idle)
        except OSError as error:  # a disk without room even for a word in the lock
            raise cannot(f"start a keeper in {home.path}", error) from error
        finally:
            os.close(lock)
        if wait > 0:  # without the lock: somebody else's keeper may fare better
            time.sleep(wait)


def _open_lock(home: Home) -> int:
    try:
        return open_private(home.lock, os.O_RDWR | os.O_CREAT)
    except OSError:
        with locked(home):
            if not unusable(home.lock):
                raise
            set_aside(home.lock)  # a keeper that runs has noticed, and made another one
        return open_private(home.lock, os.O_RDWR | os.O_CREAT)


def _before_next(home: Home, lock: int) -> float:
    """Seconds to wait before a keeper is started; `KeeperError` where that has become pointless."""
    clock, failures, words = _starts.get(home.path, (0.0, 0, ""))
    ago = time.monotonic() - clock
    if not clock or ago > _RECENT or _written(lock).get("ready") is not False:
        _starts.pop(home.path, None)
        return 0.0
    failures += 1
    if failures >= _TRIES and ago < _LONGEST_WAIT:
        raise KeeperError(
            f"the keeper was started {failures} times and ended each time: "
            f"{words or last_words(home)}; see {home.keeper_log}, and mend what it says or set "
            "another HOLDFAST_HOME"
        )
    wait: float = min(_WAIT * 2**failures, _LONGEST_WAIT)
    return wait - ago


def last_words(home: Home) -> str:
    """The keeper's last line, for an error that is about its end."""
    try:
        log = open_private(home.keeper_log, os.O_RDONLY)
    except OSError as error:
        return f"it left no word ({error.strerror or error})"
    try:
        size = os.fstat(log).st_size
        lines = os.pread(log, _LAST_WORDS, max(0, size - _LAST_WORDS)).decode("utf-8", "replace")
    finally:
        os.close(log)
    said = [line.strip() for line in lines.splitlines() if line.strip()]
    return said[-1][:300] if said else "it left no word"


def _start(home: Home, lock: int, idle: float) -> None:
    import subprocess

    _, failures, _ = _starts.get(home.path, (0.0, -1, ""))
    _starts[home.path] = time.monotonic(), failures + 1, ""
    index.write_lock(lock, {"machine": machine(), "ready": False})
    env = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # The machine's own first: what it runs by itself is not from where commands may write.
    env["PATH"] = os.pathsep.join([_SYSTEM_PATH, *env.get("PATH", "").split(os.pathsep)])
    command = [*keeper_program(), "start", home.path, str(lock), str(idle)]
    try:
        started = subprocess.run(
            command,
            env=env,
            cwd="/",
            pass_fds=[lock],
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except OSError as error:
        raise KeeperError(f"cannot start a keeper with {command[0]}: {error.strerror}") from error
    if started.returncode != 0:
        lines = started.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        _starts[home.path] = time.monotonic(), failures + 1, lines[-1][:300]
        raise KeeperError(f"the keeper did not start: {lines[-1]}; see {home.keeper_log}")


def _written(lock: int) -> dict[str, Any]:
    """The facts that a keeper wrote into its lock."""
    try:
        data = json.loads(os.pread(lock, 4096, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _check_machine(home: Home, lock: int) -> None:
    owner = _written(lock).get("machine")
    if owner is not None and owner != machine():
        raise KeeperError(
            f"{home.path} is in use by a keeper in another container or on another machine; set "
            "HOLDFAST_HOME to a directory of this one"
        )


def wait_until_gone(home: Home) -> bool:
    """True once no keeper holds the home's lock any more."""
    begun = time.monotonic()
    while keeper_holds(home):
        waited = time.monotonic() - begun
        if waited > _PATIENCE:
            return False
        if waited > _LONG:
            wake(home)
        time.sleep(0.005)
    return True
