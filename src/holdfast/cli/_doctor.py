"""``doctor``: what works on this machine, what does not, and what to do about it.

Every check tries the thing itself rather than asking for a version.
"""

from __future__ import annotations

import os
import sys
from functools import partial

from holdfast.core.errors import BadRequest, HoldfastError
from holdfast.core.home import Home
from holdfast.linux import kernel

from . import _render
from ._doctor_check import Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Iterator

    from ._parser import Parser

_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


def options_doctor(parser: Parser) -> None:
    parser.json("print the checks as one JSON array")
    parser.words("[CHECK...]", 0, None)


def do_doctor(args: Namespace) -> int:
    checks = []
    for check in _checks(args.words):
        checks.append(check)
        if not args.json:
            state = _render.paint(
                f"{check.state:<8}", _COLOURS[check.state], _render.coloured(sys.stdout)
            )
            print(f"{state} {check.name:<14} {_render.safe(check.text)}")
    if args.json:
        _render.show_json([check.public() for check in checks])
    return 1 if any(check.state == "problem" for check in checks) else 0


def _checks(wanted: list[str]) -> Iterator[Check]:
    """All of them, or those with these names; nothing else is tried then."""
    parts = _parts(Home.locate())
    known = [name for names, _ in parts for name in names]
    for name in wanted:
        if name not in known:
            raise BadRequest(f"no check is called {name!r}; there are {', '.join(known)}")
    for names, make in parts:
        if not wanted or not set(names).isdisjoint(wanted):
            for check in make():
                if not wanted or check.name in wanted or check.state == "problem":
                    yield check


def _parts(home: Home) -> list[tuple[list[str], Callable[[], Iterable[Check]]]]:
    """The checks in their order: names that are looked at together, and the look."""
    from ._doctor_agents import hook_check, mcp_check
    from ._doctor_containment import contain_checks
    from ._doctor_docker import docker_checks
    from ._doctor_home import home_checks
    from ._doctor_lifetime import place_check

    return [
        (["python"], lambda: [_python()]),
        *(([name], partial(_tried, name, attempt, without)) for name, attempt, without in _KERNEL),
        (["bash", "tmux"], _programs),
        (["containment", "limits", "sandbox"], lambda: contain_checks(home)),
        (["docker"], lambda: docker_checks(home)),
        (["mcp"], lambda: [mcp_check()]),
        (["hook"], lambda: [hook_check()]),
        (
            ["home", "disk", "log caps", "settings", "keeper", "records"],
            lambda: home_checks(home),
        ),
        (["lifetime"], lambda: [place_check(home)]),
    ]


def _python() -> Check:
    from holdfast.core.version import __version__

    version = sys.version.split()[0]
    return Check("ok", "python", f"{version} at {sys.executable}, holdfast {__version__}")


# -- kernel ----------------------------------------------------------------------------------------


def _try_pidfd() -> str:
    pidfd = os.pidfd_open(os.getpid())
    os.close(pidfd)
    return "ends are noticed at once and signals never reach a recycled pid"


def _try_splice() -> str:
    read, write = os.pipe()
    target = os.memfd_create("holdfast-doctor")
    try:
        os.write(write, b"x")
        if os.splice(read, target, 1) != 1:
            raise OSError(0, "nothing was moved")
    finally:
        for fd in (read, write, target):
            os.close(fd)
    return "output goes into logs without passing through the keeper's memory"


def _try_subreaper() -> str:
    kernel.become_subreaper()
    return "orphans of a process stay in the keeper's hands"


def _try_exit_info() -> str:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    pidfd = os.pidfd_open(pid)
    try:
        os.waitpid(pid, 0)
        found = kernel.exit_of_stranger(pid, pidfd)
    finally:
        os.close(pidfd)
    if found is None or found.code != 7:
        raise OSError(0, "not in this kernel")
    return "exit codes are exact even if both halves of the keeper are killed at once"


def _try_inotify() -> str:
    import ctypes

    fd = kernel.libc().inotify_init1(os.O_CLOEXEC)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    os.close(fd)
    return "logs are followed without polling"


def _try_syscall() -> str:
    """Look at what a process of ours waits in that is no child of the one that looks."""
    pid = os.fork()
    if pid == 0:
        try:
            with open(f"/proc/{os.getppid()}/syscall", "rb") as file:
                file.read()
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    if number := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise OSError(number, os.strerror(number))
    return "the kernel tells which processes wait for input"


def _try_screen() -> str:
    from holdfast.terminal.ghostty import Terminal

    terminal = Terminal(20, 2)
    terminal.feed(b"\x1b[1mtest\x1b[m")
    shown = terminal.plain().split()
    terminal.close()
    if shown != [b"test"]:
        raise OSError(0, "it draws something else than it should")
    return "pyghostty draws the screens of terminals"


# name, what tries it, and what its absence means (a state and the next step).
_KERNEL: tuple[tuple[str, Callable[[], str], tuple[str, str]], ...] = (
    ("pidfd", _try_pidfd, ("problem", "holdfast needs Linux 5.4 or later")),
    ("splice", _try_splice, ("problem", "holdfast needs splice(2); a sandbox may be refusing it")),
    ("subreaper", _try_subreaper, ("problem", "holdfast needs prctl(PR_SET_CHILD_SUBREAPER)")),
    (
        "exit info",
        _try_exit_info,
        (
            "note",
            "if both halves of the keeper are killed at once, what ends meanwhile is `lost`; "
            "Linux 6.15 can tell",
        ),
    ),
    (
        "inotify",
        _try_inotify,
        ("note", "logs are polled every 50 ms; raise fs.inotify.max_user_instances"),
    ),
    (
        "waiting",
        _try_syscall,
        (
            "note",
            "whether a process waits for input is often `unknown`; kernel.yama.ptrace_scope=0 "
            "allows to see it",
        ),
    ),
    ("screens", _try_screen, ("note", "no screens, and no attach; `pip install pyghostty`")),
)


def _tried(name: str, attempt: Callable[[], str], without: tuple[str, str]) -> Iterator[Check]:
    try:
        yield Check("ok", name, attempt())
    except (OSError, AttributeError, HoldfastError) as error:
        state, text = without
        why = getattr(error, "strerror", None) or str(error)
        yield Check(state, name, f"{why}: {text}")


# -- programs --------------------------------------------------------------------------------------


def _programs() -> Iterator[Check]:
    import shutil

    bash = shutil.which("bash")
    if bash:
        yield Check("ok", "bash", f"{bash} runs commands that are one string")
    else:
        yield Check("note", "bash", "not found: sh runs string commands; install bash")
    if shutil.which("tmux"):
        yield Check("ok", "tmux", f"{_answer('tmux', '-V') or 'found'}, for --tmux")
    else:
        yield Check("note", "tmux", "not installed: --tmux gives a terminal as --tty does")


def _answer(*command: str) -> str | None:
    """The output of a program, or None if it fails or takes long."""
    import subprocess

    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=True, text=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip().partition("\n")[0] or None
