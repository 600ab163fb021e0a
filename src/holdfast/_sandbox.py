"""A sandbox made by bubblewrap: the working directory writable, the rest of the file system not,
no other processes to be seen, and the network only if it is asked for.

Bubblewrap stays as the parent of what it runs. Signals go to the whole process group, so it must
survive those that the command is to handle by itself: it is started with them ignored, and `env`
gives the command the default again.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

from ._errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# What bubblewrap itself does not see.
IGNORED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
)
# Sockets of daemons, by which a command could leave the sandbox; names are still resolved.
_HIDDEN = ("/run", "/var/run", "/tmp", "/var/tmp")
_NAMES = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf")


def find() -> str:
    """The path of bubblewrap; Unavailable with the next step where it cannot be used."""
    program = shutil.which("bwrap")
    if program is None:
        raise Unavailable("a sandbox needs bubblewrap; install it (the package is `bubblewrap`)")
    return program


def arguments(
    bwrap: str, program: str, argv: Sequence[str], cwd: str, home: str, network: bool
) -> list[str]:
    """What runs `argv` inside."""
    found = [bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not network:
        found.append("--unshare-net")
    found += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for path in _HIDDEN:
        if os.path.isdir(path) and not os.path.islink(path):
            found += ["--tmpfs", path]
    for path in _NAMES if network else ():
        found += ["--ro-bind-try", path, path]
    hidden, writable = ["--tmpfs", home], ["--bind", cwd, cwd]  # never a way to the keeper
    within = f"{home}/".startswith(f"{cwd}/")
    found += [*writable, *hidden] if within else [*hidden, *writable]
    found += ["--chdir", cwd, "--"]
    names = ",".join(number.name[3:] for number in IGNORED)
    return [*found, "/usr/bin/env", f"--default-signal={names}", "--", program, *argv[1:]]


def problem() -> str | None:
    """Why there can be no sandbox here, found out by trying."""
    try:
        bwrap = find()
        command = arguments(bwrap, "/bin/true", ["true"], "/", "/nonexistent-home", False)
        at = command.index("--tmpfs", command.index("/proc"))
        del command[at : command.index("--chdir")]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, text=True
        )
    except Unavailable as error:
        return str(error)
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap cannot be run: {error}"
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
