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

from ._errors import BadDirectory, NotExecutable, Unavailable

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
_HIDDEN_WORDS = "/run, /tmp and /var/tmp"
# What in /proc is the machine's, and root could write to without any capability.
_MACHINE = ("acpi", "asound", "bus", "fs", "irq", "mtrr", "scsi", "sys", "sysrq-trigger")
# What root may still do, on what it can write to: whoever the files there belong to.
_CAPABILITIES = ("CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_CHOWN")
_ASIDE = "HOLDFAST_"  # before the names of variables that are not for bubblewrap
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

    command = [*_made(bwrap, False), "--chdir", "/", "--", *_inside([], "true", ["true"])]
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
    ways_out: Sequence[str] = (),
) -> list[str]:
    """What runs `argv` inside, where it can write to `root`, or else to its working directory.

    Variables that would have bubblewrap itself load something get other names in `env`, and theirs
    again inside: their values are on no command line.
    """
    root = root or cwd
    if _is_in(root, home):
        raise BadDirectory(f"{root} is in holdfast's own home, which no sandbox sees; give a cwd")
    env = {} if env is None else env
    loading = [name for name in env if _loads(name)]
    for name in loading:
        env[_ASIDE + name] = env.pop(name)
    found = _made(bwrap, network)
    hidden = [path for path in _HIDDEN if os.path.isdir(path) and not os.path.islink(path)]
    named = os.path.dirname(os.path.join(cwd, program))
    if any(_is_in(named, path) for path in hidden) and not _is_in(named, root):
        raise NotExecutable(
            f"{program} is not to be seen in the sandbox, where {_HIDDEN_WORDS} are empty; put it "
            "into the working directory",
            missing=True,
        )
    for path in hidden:
        found += ["--tmpfs", path]
    for path in _NAMES if network else ():
        found += ["--ro-bind-try", path, path]
    found += ["--bind", root, root]
    for path in dict.fromkeys([home, *ways_out]):
        if _is_in(path, root) or not any(_is_in(path, place) for place in hidden):
            found += ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]
    return [*found, "--chdir", cwd, "--", *_inside(loading, program, argv)]


def _made(bwrap: str, network: bool) -> list[str]:
    """The namespaces, with nothing hidden yet."""
    found = [bwrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not network:
        found.append("--unshare-net")
    found += ["--cap-drop", "ALL"]  # or root would make the file system writable again
    if os.geteuid() == 0:
        for name in _CAPABILITIES:
            found += ["--cap-add", name]
    found += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    for name in _MACHINE:
        found += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    return found


def _inside(loading: list[str], program: str, argv: Sequence[str]) -> list[str]:
    names = ",".join(number.name[3:] for number in IGNORED)
    found = ["/usr/bin/env", f"--default-signal={names}"]
    if loading:
        aside = " ".join(f"-u {_ASIDE}{name}" for name in loading)
        again = " ".join(f"{name}=${{{_ASIDE}{name}}}" for name in loading)
        found.append(f"--split-string={aside} -- {again}")
    else:
        found.append("--")
    if "=" in program:  # which `env` would take for a variable
        found += ["/bin/sh", "-c", 'exec "$0" "$@"']
    return [*found, program, *argv[1:]]


def ways_out() -> list[str]:
    """Where somebody may listen who does for the caller what a command says: other keepers of its
    user, and Docker's engine."""
    from ._home import Home
    from .docker.engine import EngineError, find_socket

    user = os.path.expanduser("~")
    places = [Home.usual(), f"{user}/.docker/run", f"{user}/.docker/desktop"]
    try:
        places.append(find_socket(os.environ))
    except EngineError:
        pass
    return [path for path in places if os.path.exists(path)]


def _is_in(path: str, directory: str) -> bool:
    path, directory = os.path.realpath(path), os.path.realpath(directory)
    return os.path.commonpath([path, directory]) == directory


def _loads(name: str) -> bool:
    # What is no name for `env` means nothing to the loader either.
    known = name.startswith("LD_") or name in ("GCONV_PATH", "GLIBC_TUNABLES")
    return known and name.isascii() and name.isidentifier()


def problem() -> str | None:
    """Why there can be no sandbox here."""
    try:
        find()
    except Unavailable as error:
        return str(error)
    return None
