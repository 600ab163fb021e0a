"""Starts a keeper: run as a script by the first client, or by a keeper that renews itself.

    python -IS keeper/__main__.py start HOME LOCK_FD IDLE_SECONDS
    python -IS keeper/__main__.py renew HOME STATE_FD

The first caller's accidents must not become everybody's, so nothing of it is kept: the environment
was emptied by the starter, and signals, mask, directory, umask and terminal are reset here.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import types

# Only the keeper's own modules: executing the package's __init__ would load the whole client.
_package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if "holdfast" not in sys.modules:
    _holdfast = types.ModuleType("holdfast")
    _holdfast.__path__ = [_package]
    sys.modules["holdfast"] = _holdfast

from holdfast import _cgroup, _index, _kernel  # noqa: E402
from holdfast._home import Home  # noqa: E402
from holdfast._version import __version__  # noqa: E402
from holdfast.keeper.guard import Guard, Table  # noqa: E402
from holdfast.keeper.renew import read_state  # noqa: E402

_LOG_LIMIT = 1 << 20


def main(argv: list[str]) -> int:
    verb, home_path, *rest = argv
    home = Home(home_path)
    if verb == "start":
        lock, idle = int(rest[0]), float(rest[1])
        os.set_inheritable(lock, False)
        listen = _bind(home)  # before the starter, which waits for this process, goes on
        if os.fork() > 0:
            os._exit(0)
        os.setsid()  # nobody's child, in no terminal
        _reset(home)
        soft = _raise_descriptor_limit()
        _leave(home)
        table: Table = {}
    else:
        lock, listen, idle, soft, table = read_state(int(rest[0]))
        _reset(home)
    _kernel.become_subreaper()
    _write_lock(lock)
    Guard(home, lock, listen, table, idle, soft, fresh=verb == "start").run()
    _cgroup.Trees(home.path).leave()
    return 0


def _reset(home: Home) -> None:
    for number in signal.valid_signals():
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            try:
                signal.signal(number, signal.SIG_DFL)
            except (OSError, ValueError):
                continue  # real-time signals that the C library keeps for itself
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.chdir("/")
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        if os.stat(home.keeper_log).st_size > _LOG_LIMIT:
            os.replace(home.keeper_log, home.keeper_log + ".old")
    except FileNotFoundError:
        pass
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    log = os.open(home.keeper_log, flags, 0o600)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(log, 2)
    os.close(null)
    os.close(log)


def _leave(home: Home) -> None:
    """Whoever started us may be a process of another keeper's, with what marks and contains it."""
    for number, most in ((_kernel.RLIMIT_MARK, None), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(number)
        resource.setrlimit(number, (hard if most is None else most, hard))
    _cgroup.Trees(home.path).enter()


def _raise_descriptor_limit() -> int:
    """As many descriptors for us as we may have; children get back what was there before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


def _bind(home: Home) -> int:
    """Called with the lock held, so a socket that is there is a dead keeper's."""
    try:
        os.unlink(home.socket)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(home.socket_address())
    os.chmod(home.socket, 0o600)
    listener.listen(512)
    listener.setblocking(False)
    return listener.detach()


def _write_lock(lock: int) -> None:
    said = {
        "guard": os.getpid(),
        "start_time": _kernel.start_time(os.getpid()),
        "machine": _kernel.machine(),
        "version": __version__,
    }
    _index.write_lock(lock, said)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
