"""The surroundings of a command: shell, environment, directory, umask; all the caller's own."""

from __future__ import annotations

import os

from .errors import BadDirectory, BadRequest, NotExecutable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# A background process has nobody in front of it: no pager that waits for a key, no colours in the
# log. FORCE_COLOR=0 turns colours off in most programs but on in Python's, which look only for it
# being set; PYTHON_COLORS and PY_COLORS (pytest) come before it there.
NOT_INTERACTIVE = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "FORCE_COLOR": "0",
    "PYTHON_COLORS": "0",
    "PY_COLORS": "0",
    "CLICOLOR": "0",
}
_DROPPED = ("COLORTERM", "CLICOLOR_FORCE")
# In a terminal the program is to behave as in front of a person: colours, full screen, pagers.
IN_TERMINAL = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
# Of another terminal, or of the tmux that the caller itself may run in.
_DROPPED_IN_TERMINAL = (
    "LINES",
    "COLUMNS",
    "TERMCAP",
    "TERM_PROGRAM",
    "TERM_PROGRAM_VERSION",
    "TMUX",
    "TMUX_PANE",
    "STY",
)
_BASH = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/opt/homebrew/bin/bash")


def environment(
    extra: Mapping[str, str] | None, *, terminal: bool = False, tmux: bool = False
) -> dict[str, str]:
    """The caller's environment, made for a terminal or for nobody, with `extra` on top."""
    env = dict(os.environ)
    for name in _DROPPED_IN_TERMINAL if terminal else _DROPPED:
        env.pop(name, None)
    env.update(IN_TERMINAL if terminal else NOT_INTERACTIVE)
    if tmux:
        del env["TERM"]  # which is tmux's to say, unless the caller does
    env.update(checked(extra))
    return env


def checked(extra: Mapping[str, str] | None) -> dict[str, str]:
    """Check what a caller adds to an environment."""
    for name, value in (extra or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadRequest(f"environment names and values are text, not {name!r}: {type(value)}")
        if not name or "=" in name or "\0" in name + value:
            raise BadRequest(f"{name!r} cannot be an environment variable; no = and no NUL in it")
    return dict(extra or {})


def arguments(command: str | list[str], shell: str) -> list[str]:
    """The argv for a command: a list as it is, a string through bash where there is one."""
    if isinstance(command, str):
        if not command.strip():
            raise BadRequest("the command is empty; give something to run")
        if "\0" in command:
            raise BadRequest("the command contains a NUL byte, which no program can be given")
        return [shell or default_shell(), "-c", command]
    if not isinstance(command, (list, tuple)) or not command:
        raise BadRequest("a command is a string for the shell or a non-empty list of arguments")
    for argument in command:
        if not isinstance(argument, str):
            raise BadRequest(f"every argument is text, not {argument!r}")
        if "\0" in argument:
            raise BadRequest("an argument contains a NUL byte, which no program can be given")
    return list(command)


def default_shell() -> str:
    for path in _BASH:
        if os.access(path, os.X_OK):
            return path
    if os.access("/bin/sh", os.X_OK):
        return "/bin/sh"
    raise NotExecutable(
        "there is neither bash nor sh here; give the command as a list", missing=True
    )


def working_directory(cwd: str | os.PathLike[str] | None) -> str:
    try:
        here = os.getcwd()
    except FileNotFoundError:
        if cwd is None or not os.path.isabs(cwd):
            raise BadDirectory(
                "the current directory was removed; give a cwd that exists"
            ) from None
        here = "/"
    path = here if cwd is None else os.path.join(here, os.fspath(cwd))
    if "\0" in path:
        raise BadDirectory("the working directory contains a NUL byte; give one that exists")
    return path


def is_within(path: str, *directories: str) -> bool:
    """True if it is one of these, or below, wherever links lead."""
    real = os.path.realpath(path) + "/"
    return any(real.startswith(os.path.realpath(each).rstrip("/") + "/") for each in directories)


def program_path(writable: str | None = None) -> list[str]:
    """The `PATH` for programs of our own: no directory that a confined command can write to."""
    places = [os.path.abspath(place) for place in os.get_exec_path()]
    if writable is None or os.path.realpath(writable) == "/":
        return places
    return [place for place in places if not is_within(place, writable)]


def current_umask() -> int:
    try:
        fd = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _, found, rest = os.read(fd, 256).partition(b"\nUmask:")
        finally:
            os.close(fd)
        if found:
            return int(rest.split(None, 1)[0], 8)
    except OSError:
        pass
    # Not atomic, and so the second choice: for a moment other threads see the strict one.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
