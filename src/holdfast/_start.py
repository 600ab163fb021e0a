"""Finding the keeper of a home, or starting it.

Connect; else take the lock, and start a keeper that inherits it. The lock is held as long as either
half of the keeper lives, so there is one keeper per home, and the socket is only ever removed by
whoever holds the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import sys
import time

from . import _kernel
from ._errors import KeeperError
from ._home import Home, open_private

_PATIENCE = 15.0
_SYSTEM_PATH = "/usr/bin:/bin"
_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "KUBERNETES_SERVICE_HOST")


def keeper_program() -> list[str]:
    """How a keeper is started: isolated from the environment and from site-packages."""
    if not sys.executable:
        raise KeeperError(
            "this Python does not know its own interpreter, so no keeper can be started; start one "
            "with the `holdfast` command first"
        )
    main = os.path.join(os.path.dirname(os.path.abspath(__file__)), "keeper", "__main__.py")
    return [sys.executable, "-I", "-S", main]


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
        raise KeeperError(f"cannot reach the keeper at {home.socket}: {error.strerror}") from error
    _, uid = _kernel.peer_of(end)
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
        lock = open_private(home.lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(lock)


def wake(home: Home) -> int | None:
    """Have a guard that somebody stopped (SIGSTOP) go on; its pid, if there is one.

    Guard and worker see to each other, but not where both are stopped, or the worker has died
    meanwhile: of that only those know who wait for an answer.
    """
    try:
        with open(home.lock, "rb") as file:
            owner = json.loads(file.read(4096))
        guard, begun = int(owner["guard"]), int(owner["start_time"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    pidfd = _kernel.open_process(guard, begun)
    if pidfd is None:
        return None
    try:
        found = _kernel.stat(guard)
        if found is not None and found.state == "T":
            _kernel.send_signal(pidfd, signal.SIGCONT)
        return guard
    finally:
        os.close(pidfd)


def connect(home: Home, idle: float) -> socket.socket:
    """A connection to the keeper, which is started if need be."""
    deadline = time.monotonic() + _PATIENCE
    home.ensure()
    while True:
        end = try_connect(home)
        if end is not None:
            return end
        lock = open_private(home.lock, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Somebody is starting one, or one is on its way out.
            _check_machine(home, lock)
            if time.monotonic() > deadline:
                raise KeeperError(
                    f"a keeper holds {home.lock} but does not answer; see {home.keeper_log}"
                ) from None
            time.sleep(0.005)
        else:
            _start(home, lock, idle)
        finally:
            os.close(lock)


def _start(home: Home, lock: int, idle: float) -> None:
    import subprocess

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
        raise KeeperError(f"the keeper did not start: {lines[-1]}; see {home.keeper_log}")


def _check_machine(home: Home, lock: int) -> None:
    try:
        owner = json.loads(os.pread(lock, 4096, 0))["machine"]
    except (ValueError, KeyError, TypeError):
        return
    if owner != _kernel.machine():
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
        if waited > 1:
            wake(home)
        time.sleep(0.005)
    return True
