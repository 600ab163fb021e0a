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


# What bubblewrap says, and what to do about it.
_ADVICE = (
    ("capabilities", "start it without ambient capabilities (`setpriv --ambient-caps=-all ...`)"),
    (
        "namespace",
        "allow user namespaces: see user.max_user_namespaces, kernel.unprivileged_userns_clone "
        "and kernel.apparmor_restrict_unprivileged_userns in `sysctl -a`",
    ),
    ("uid map", "allow user namespaces (kernel.apparmor_restrict_unprivileged_userns in sysctl)"),
    ("default-signal", "install GNU coreutils 8.31 or later, for `env --default-signal`"),
)
_works: set[str] = set()


def find() -> str:
    """The path of bubblewrap; Unavailable with the next step where it cannot be used."""
    program = shutil.which("bwrap")
    if program is None:
        raise Unavailable("a sandbox needs bubblewrap; install it (the package is `bubblewrap`)")
    if program not in _works:
        why = _refusal(program)
        if why is not None:
            advice = next((text for word, text in _ADVICE if word in why), "try it by hand")
            raise Unavailable(f"bubblewrap can make no sandbox here ({why}); {advice}")
        _works.add(program)
    return program


def _refusal(bwrap: str) -> str | None:
    """What bubblewrap says when it is tried."""
    import subprocess

    command = arguments(bwrap, "true", ["true"], "/", "/nonexistent-home", False)
    at = command.index("--tmpfs", command.index("/proc"))
    del command[at : command.index("--chdir")]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, text=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


def arguments(
    bwrap: str,
    program: str,
    argv: Sequence[str],
    cwd: str,
    home: str,
    network: bool,
    root: str | None = None,
    env: dict[str, str] | None = None,
) -> list[str]:
    """What runs `argv` inside, where it can write to `root`, or else to its working directory.

    Variables that would have bubblewrap itself load something move from `env` to the inside.
    """
    root = root or cwd
    env = {} if env is None else env
    loading = [f"{name}={env.pop(name)}" for name in [*env] if _loads(name)]
    found = [bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not network:
        found.append("--unshare-net")
    found += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for path in _HIDDEN:
        if os.path.isdir(path) and not os.path.islink(path):
            found += ["--tmpfs", path]
    for path in _NAMES if network else ():
        found += ["--ro-bind-try", path, path]
    hidden, writable = ["--tmpfs", home], ["--bind", root, root]  # never a way to the keeper
    within = f"{os.path.realpath(home)}/".startswith(f"{os.path.realpath(root)}/")
    found += [*writable, *hidden] if within else [*hidden, *writable]
    found += ["--chdir", cwd, "--"]
    names = ",".join(number.name[3:] for number in IGNORED)
    return [*found, "/usr/bin/env", f"--default-signal={names}", "--", *loading, program, *argv[1:]]


def _loads(name: str) -> bool:
    return name.startswith("LD_") or name in ("GCONV_PATH", "GLIBC_TUNABLES")


def problem() -> str | None:
    """Why there can be no sandbox here."""
    try:
        find()
    except Unavailable as error:
        return str(error)
    return None
