"""A sandbox made by bubblewrap: the working directory writable, the rest of the file system not,
no other processes to be seen, and the network and Unix sockets only if they are asked for.

Mounts do not close everything: the rest, `lockdown` does in there before it becomes the command.

What must not be reached may lie in the directory that is written to: homes of keepers, who would
run anything for whoever has their socket. They are covered there, and nothing on the way to them
can be renamed (`linux/masked_paths.py`). The program that we are is read-only: it makes the next
sandbox.

Bubblewrap stays as the parent of what it runs. Signals go to the whole process group, so it must
survive those that the command is to handle by itself: it is started with them ignored, and
`lockdown` gives the command the default again.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys

from ..core.environment import program_path
from ..core.errors import BadDirectory, BadRequest, NotExecutable, Unavailable
from . import masked_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

OPENINGS = ("network", "sockets")
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
# Others' temporary files; names are still resolved.
_HIDDEN = ("/run", "/var/run", "/tmp", "/var/tmp")
_HIDDEN_WORDS = "/run, /tmp and /var/tmp"
# What in /proc is the machine's, and root could write to without any capability.
_MACHINE = ("acpi", "asound", "bus", "fs", "irq", "mtrr", "scsi", "sys", "sysrq-trigger")
# What root may still do, on what it can write to: whoever the files there belong to.
_CAPABILITIES = ("CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_CHOWN")
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
    ("seccomp", "use a kernel with seccomp filters (CONFIG_SECCOMP_FILTER)"),
    ("programs of", "use a container instead"),
)
_works: set[str] = set()


def choices(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check what is to be open in a sandbox, each as true or false."""
    found = {name: options.get(name, False) for name in OPENINGS}
    if not options.keys() <= found.keys() or not all(
        type(value) is bool for value in found.values()
    ):
        raise BadRequest(
            'sandbox is True or like {"network": True, "sockets": True, "root": DIRECTORY}'
        )
    return found


def named(word: str | None) -> dict[str, bool] | bool:
    """A sandbox as the command line has it: "closed", or its openings, like "network,sockets"."""
    if word is None or word == "closed":
        return word is not None
    return dict.fromkeys(word.split(","), True)


def find(root: str | None = None) -> str:
    """The path of bubblewrap; Unavailable with the next step where it cannot be used.

    None in `root` is taken: the command before could have put it there.
    """
    program = shutil.which("bwrap", path=os.pathsep.join(program_path(root)))
    if program is None and shutil.which("bwrap") is not None:
        raise Unavailable(
            f"a sandbox needs bubblewrap, one outside of {root}, where a command could change it; "
            "install it, or give another cwd"
        )
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
    """Try bubblewrap: why it refuses, if it does."""
    import subprocess

    from . import lockdown

    machine = os.uname().machine
    if not lockdown.knows(machine):
        return f"sockets cannot be closed to programs of {machine}"
    true = shutil.which("true") or "/bin/true"
    command = arguments(bwrap, true, ["true"], "/", network=False)
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
    *,
    root: str | None = None,
    homes: Sequence[str] = (),
    ways_out: Sequence[str] = (),
    fixed: Sequence[str] = (),
    network: bool,
    sockets: bool = False,
    env: dict[str, str] | None = None,
    landlock: int | None = None,
) -> list[str]:
    """The command that runs `argv` inside, where it can write to `root`, or to nothing.

    `homes` of keepers cannot be reached, nor can `ways_out`; neither need exist. What is `fixed`
    cannot be changed, nor can what we run from ourselves.
    Variables that would have bubblewrap itself load something get another name in `env`.
    """
    from . import lockdown

    for name in [name for name in env or () if _loads(name)]:
        assert env is not None
        env[lockdown.KEPT + name] = env.pop(name)
    found = _made(bwrap, network)
    hidden = [path for path in _HIDDEN if os.path.isdir(path) and not os.path.islink(path)]
    for path in hidden:
        found += ["--tmpfs", path]
    for path in _NAMES if network else ():
        found += ["--ro-bind-try", path, path]
    python, last_step = os.path.realpath(sys.executable), os.path.realpath(lockdown.__file__)
    for path in (os.path.realpath(sys.base_prefix), python, last_step):
        if any(_is_in(path, place) for place in hidden):
            found += ["--ro-bind", path, path]
    cwd = os.path.realpath(cwd)
    if root is not None:
        root = os.path.realpath(root)
        directory, name = os.path.split(os.path.join(cwd, program))
        named = os.path.realpath(directory)
        if any(masked_paths.is_within(directory, path) for path in hidden):
            program = os.path.join(named, name)  # links in there are not to be seen either
        if any(_is_in(named, path) for path in hidden) and not _is_in(named, root):
            raise NotExecutable(
                f"{program} is not to be seen in the sandbox, where {_HIDDEN_WORDS} are empty; "
                "put it into the working directory",
                missing=True,
            )
        found += ["--bind", root, root]
        found += _protected(root, homes, ways_out, (*fixed, *ourselves()))
    for path in dict.fromkeys(map(os.path.realpath, (*homes, *ways_out))):
        seen = not any(_is_in(path, place) for place in (*hidden, *([root] if root else [])))
        if seen and os.path.exists(path):
            found += _cover(path)
    writable = [*hidden, "/dev", "/proc", *([root] if root else [])]
    run = [python, "-I", "-S", "-X", "utf8=1", last_step]
    inside = [*run, "sockets" if sockets else "closed", *writable, "--", program, *argv[1:]]
    found += ["--chdir", cwd, "--", *inside]
    version = lockdown.landlock_version() if landlock is None else landlock
    if version < lockdown.LEAST_LANDLOCK and not sockets:
        found = [*run, "outside", "--", *found]
    return found


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


def _protected(
    root: str, homes: Sequence[str], ways_out: Sequence[str], fixed: Sequence[str]
) -> list[str]:
    """The paths in the directory that can be written to which are out of reach all the same."""
    for path in homes:
        if _is_in(root, path):
            raise BadDirectory(f"{root} is in holdfast's own home, which no sandbox sees")
        link = masked_paths.loose_link(path, [root])
        if link is not None:
            raise BadDirectory(
                f"the way to the home {path} goes through the link {link}, which a command in "
                f"{root} could turn elsewhere; set HOLDFAST_HOME to {os.path.realpath(path)}, or "
                "give another cwd"
            )
        why = masked_paths.make(path) if _is_in(path, root) else None
        if why is not None:
            raise BadDirectory(f"the home {path} cannot be covered: {why}; give another cwd")
    there = [path for path in (*homes, *ways_out) if os.path.exists(path)]
    found: list[str] = []
    for how, path in masked_paths.mounts(
        root, there, [path for path in fixed if os.path.exists(path)]
    ):
        bind = "--ro-bind" if how == "fix" else "--bind"
        found += _cover(path) if how == "cover" else [bind, path, path]
    return found


def _cover(path: str) -> list[str]:
    return ["--tmpfs", path] if os.path.isdir(path) else ["--ro-bind", "/dev/null", path]


def ourselves() -> list[str]:
    """The program that we are, with its interpreter and all that it imports."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    places = (sys.prefix, sys.base_prefix, package)
    return list(dict.fromkeys(map(os.path.realpath, places)))


def homes() -> list[str]:
    """The homes of keepers of this user: the usual one, made or not, and of those that run."""
    from ..core.home import Home

    try:
        with open("/proc/net/unix", errors="surrogateescape") as file:
            bound = [line.rstrip("\n").split(None, 7)[-1] for line in file]
    except OSError:
        bound = []
    places = [os.path.dirname(path) for path in bound if os.path.basename(path) == "keeper.sock"]
    if any(place.startswith("/proc/") for place in places):  # too deep for an address
        places += _homes_of_processes()
    found = [Home.usual()]
    for place in places:
        try:
            if not place.startswith("/proc/") and os.stat(place).st_uid == os.geteuid():
                found.append(place)
        except OSError:
            continue
    return list(dict.fromkeys(found))


def _homes_of_processes() -> list[str]:
    """The homes that running keepers were given."""
    from .kernel import all_processes

    found = []
    for process in all_processes():
        try:
            with open(f"/proc/{process.pid}/cmdline", errors="surrogateescape") as file:
                argv = file.read().split("\0")
        except OSError:
            continue
        pairs = zip(argv, argv[2:], strict=False)
        found += [place for program, place in pairs if program.endswith("/keeper/__main__.py")]
    return found


def _is_in(path: str, directory: str) -> bool:
    return masked_paths.is_within(os.path.realpath(path), os.path.realpath(directory))


def _loads(name: str) -> bool:
    return name.startswith("LD_") or name in ("GCONV_PATH", "GLIBC_TUNABLES", "LOCPATH")


def problem() -> str | None:
    """Why there can be no sandbox here."""
    try:
        find()
    except Unavailable as error:
        return str(error)
    return None
