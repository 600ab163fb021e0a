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
import sys

# Started by its path and without site-packages, so it says itself where its package is: last, and
# nothing there takes the place of a module of Python's own.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from holdfast.core.home import Home
from holdfast.keeper.guard import Guard
from holdfast.keeper.held_fds import Table
from holdfast.keeper.presence import bind, open_log, write_lock
from holdfast.keeper.reexec import read_state
from holdfast.keeper.worker import run_worker
from holdfast.linux import cgroup, kernel

_LOG_LIMIT = 1 << 20


def main(argv: list[str]) -> int:
    verb, home_path, *rest = argv
    home = Home(home_path)
    if verb == "start":
        lock, idle = int(rest[0]), float(rest[1])
        os.set_inheritable(lock, False)
        listen, notify = bind(home), -1  # before the starter, which waits for us, goes on
        if os.fork() > 0:
            os._exit(0)
        os.setsid()  # nobody's child, in no terminal
        _reset(home)
        soft = _raise_descriptor_limit()
        _leave(home)
        fresh, table = True, Table()
    else:
        lock, listen, notify, idle, soft, fresh, table = read_state(int(rest[0]))
        _reset(home)
    kernel.become_subreaper()
    write_lock(lock, os.getpid(), ready=False)
    guard = Guard(home, lock, listen, table, idle, soft, fresh=fresh, notify=notify)
    guard.run(run_worker)
    cgroup.Trees(home.path).leave()
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
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    try:
        if os.stat(home.keeper_log).st_size > _LOG_LIMIT:
            os.replace(home.keeper_log, home.keeper_log + ".old")
    except OSError:
        pass  # there is none, or it cannot be moved: then it grows
    open_log(home)


def _leave(home: Home) -> None:
    """Whoever started us may be a process of another keeper's, with what marks and contains it."""
    for number, most in ((kernel.RLIMIT_MARK, None), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(number)
        resource.setrlimit(number, (hard if most is None else most, hard))
    cgroup.Trees(home.path).enter()


def _raise_descriptor_limit() -> int:
    """Take as many descriptors as we may have; children get back what was there before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return soft


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
