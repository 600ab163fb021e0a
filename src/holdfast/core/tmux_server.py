"""The private tmux server of a home: where it is, how it is spoken to.

Its commands are given as arguments, never as text to be parsed, with `=` before the session's name
so that it matches exactly. Two things are still read into arguments by tmux itself: a `;` at the
end of one, and `#` and `%` in those that it expands. We pass neither there that is not escaped.

A session is a person's too: they may split it and open windows in it. So a process is spoken to by
the id of its pane, and only if that is still marked as its own, with what tmux started in it:
another server has panes of the same ids.
"""

from __future__ import annotations

import os

from .environment import program_path
from .errors import KeeperError
from .home import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .record import Record

PREFIX = "holdfast-"
GONE, DEAD = "gone", "dead"
ENDED = "@ended"  # how, for people
_MARK = "@holdfast"
_LONGEST_ADDRESS = 100  # of 108 bytes that an address may have
_PATIENCE = 10.0


def session_name(handle: str) -> str:
    return PREFIX + handle


def target(session: str) -> str:
    """Exactly this session; in it, whichever pane is the active one."""
    return f"={session}:"


def mark(handle: str) -> list[str]:
    """The command that marks the session's pane as the one of this process."""
    name = target(session_name(handle))
    return ["set-option", "-p", "-F", "-t", name, _MARK, f"{handle}/#{{pane_pid}}"]


def is_ours(handle: str) -> str:
    """A format that tmux expands to 1 for the pane of this process, else to 0."""
    return f"#{{==:#{{{_MARK}}},{handle}/#{{pane_pid}}}}"


def if_ours(record: Record, command: str) -> list[str]:
    """Do something if the pane is still the process's; else print GONE, or fail."""
    pane, mine = record.pane or "%", is_ours(record.handle)
    return ["if-shell", "-F", "-t", pane, mine, command, f"display-message -p {GONE}"]


def find_tmux(writable: str | None = None) -> str | None:
    """tmux, but not one that a command could have put there which can write to a directory."""
    for place in program_path(writable):
        path = os.path.join(place, "tmux")
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    return None


def is_deep(home: Home) -> bool:
    return len(os.fsencode(home.tmux_socket)) > _LONGEST_ADDRESS


def arguments(home: Home, *command: str) -> list[str]:
    """The arguments of a tmux client, to be run in the home where that is deep."""
    address = os.path.basename(home.tmux_socket) if is_deep(home) else home.tmux_socket
    return ["tmux", "-u", "-S", address, "-f", "/dev/null", *command]


def attach_command(home: Home, session: str) -> str:
    """The command a person types to see the session."""
    import shlex

    if is_deep(home):
        name = os.path.basename(home.tmux_socket)
        return f"cd {shlex.quote(home.path)} && tmux -S {name} attach -t {session}"
    return f"tmux -S {shlex.quote(home.tmux_socket)} attach -t {session}"


# What `capture` prints: a line about the screen, then the screen.
_ABOUT = (
    " #{pane_width} #{pane_height} #{cursor_x} #{cursor_y} #{cursor_flag} "
    "#{alternate_on} #{?#{==:#{pane_title},#{host}},,#{pane_title}}"
)


def capture(record: Record) -> list[str]:
    """The commands that print what is on its screen."""
    pane = record.pane or "%"
    about = ["display-message", "-p", "-t", pane, is_ours(record.handle) + _ABOUT]
    return [*about, ";", "capture-pane", "-p", "-e", "-t", pane]


class Captured:
    """The output of the commands of `capture`."""

    __slots__ = ("body", "cursor", "fullscreen", "ours", "size", "title")

    def __init__(self, printed: bytes) -> None:
        """ValueError if that is not what it is."""
        about, _, self.body = printed.decode("utf-8", "replace").partition("\n")
        *numbers, self.title = about.split(" ", 7)
        ours, columns, rows, x, y, shown, alternate = map(int, numbers)
        self.ours = bool(ours)
        self.size = columns, rows
        self.cursor = (x, y) if shown else None
        self.fullscreen = bool(alternate)


def resize(record: Record, columns: int, rows: int) -> list[str]:
    # Resizing pins the size; what follows lets it go again with whoever attaches.
    sized = f"resize-window -t {record.pane} -x {columns} -y {rows}"
    return if_ours(record, f"{sized} ; set-option -w -t {record.pane} window-size latest")


def type_buffer(record: Record, buffer: str) -> list[str]:
    """The commands that type their standard input, byte for byte; DEAD for a pane that is.

    tmux 3.3 crashes when it pastes into one, and takes everybody's terminals along.
    """
    paste = f"paste-buffer -d -r -b {buffer} -t {record.pane}"
    alive = f"if-shell -F -t {record.pane} '#{{pane_dead}}' 'display-message -p {DEAD}' '{paste}'"
    paste_if_ours = if_ours(record, alive)
    return ["load-buffer", "-b", buffer, "-", ";", *paste_if_ours]


def run(home: Home, record: Record | None, *command: str, stdin: bytes = b"") -> bytes:
    """Have the server do something, for a process of its, and return what it prints."""
    import subprocess

    writable = None
    if record is not None and record.sandbox is not None:
        writable = record.sandbox.get("root") or record.cwd
    program = find_tmux(writable)
    if program is None:
        raise KeeperError("tmux is not on the PATH any more; put it there to reach this process")
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    try:
        done = subprocess.run(
            arguments(home, *command),
            executable=program,
            env=env,
            cwd=home.path,
            input=stdin,
            capture_output=True,
            timeout=_PATIENCE,
        )
    except subprocess.TimeoutExpired:
        raise KeeperError(f"tmux did not answer within {_PATIENCE:g} s; is it stopped?") from None
    except OSError as error:
        raise KeeperError(f"cannot run {program}: {error.strerror}") from error
    if done.returncode != 0:
        why = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"]
        raise KeeperError(f"tmux could not do it: {why[-1]}")
    return done.stdout
