"""Beginning a process: find the program, make its FIFOs or its terminal, start it.

`clone.start` is the vfork road without Popen around it: no fork of the keeper's memory, and an
error of exec comes back as an error instead of an exit code. Directory and umask of the caller are
taken on by the worker, which has one thread, for the moment of the call.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import termios
import tty
from functools import partial

from .._errors import BadDirectory, NotExecutable, SpawnError
from .._home import BadFile
from .._kernel import MARK, make_tank
from .._model import Record
from .._store import Store
from .._tty import set_size, set_utf8
from . import clone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .contain import Plan
    from .guard import Held

    Action = tuple[int, int, int] | tuple[int, int, str, int, int]

SHELF = 3
_RESET = [signal.SIGPIPE, signal.SIGXFSZ]


class Ends:
    """The descriptors of one launch: ours to keep, and the child's to close after the start."""

    __slots__ = ("out", "err", "stdin", "tty", "tank", "shelf", "input", "_theirs")

    def __init__(self) -> None:
        self.out = self.err = self.stdin = self.tty = self.tank = self.shelf = self.input = -1
        self._theirs: list[int] = []

    def give(self, fd: int) -> int:
        self._theirs.append(fd)
        return fd

    def close_theirs(self) -> None:
        for fd in self._theirs:
            os.close(fd)
        self._theirs.clear()

    def close_all(self) -> None:
        self.close_theirs()
        for fd in (
            self.out,
            self.err,
            self.stdin,
            self.tty,
            self.tank,
            self.shelf,
            self.input,
        ):
            if fd >= 0:
                os.close(fd)


def find_program(argv: list[str], env: dict[str, str], cwd: str) -> str:
    """The file to execute for ``argv[0]``, looked up as a shell would in the child's own PATH."""
    name = argv[0]
    if not name:
        raise NotExecutable("the command is empty; give a program to run", missing=True)
    if "/" in name:
        candidates = [os.path.join(cwd, name)]
    else:
        path = env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        candidates = [os.path.join(cwd, part, name) for part in path.split(":")]
    denied = ""
    for candidate in candidates:
        try:
            mode = os.stat(candidate).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and os.access(candidate, os.X_OK):
            return candidate
        denied = denied or candidate
    if denied:
        raise NotExecutable(
            f"{denied} is not an executable file; chmod +x it, or run it with its interpreter"
        )
    where = "" if "/" in name else " on the PATH"
    raise NotExecutable(f"no program {name!r}{where}; check the name, or install it", missing=True)


def check_directory(cwd: str) -> None:
    try:
        mode = os.stat(cwd).st_mode
    except OSError as error:
        raise BadDirectory(
            f"cannot use {cwd!r} as working directory: {error.strerror}; give one that exists"
        ) from None
    if not stat.S_ISDIR(mode):
        raise BadDirectory(f"{cwd!r} is not a directory; give one that is")


def make_ends(store: Store, record: Record) -> tuple[Ends, list[Action]]:
    """Make FIFOs and stdin, or a terminal; returns what to keep and the child's file actions."""
    ends = Ends()
    try:
        if record.runner is not None:
            ends.shelf = make_shelf()
        if record.mode == "pty":
            make_terminal(ends, record)
            return ends, _at_terminal(record) + _with_shelf(ends.shelf)
        reader, theirs = _fifo(store, store.home.fifo(record.handle))
        ends.out = reader
        actions: list[Action] = [(os.POSIX_SPAWN_DUP2, ends.give(theirs), 1)]
        if record.err_log is None:
            actions.append((os.POSIX_SPAWN_DUP2, theirs, 2))
        else:
            reader, theirs = _fifo(store, store.home.fifo(record.handle, "stderr"))
            ends.err = reader
            actions.append((os.POSIX_SPAWN_DUP2, ends.give(theirs), 2))
        if record.stdin:
            theirs, ends.stdin = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(ends.stdin, False)
            actions.append((os.POSIX_SPAWN_DUP2, theirs, 0))
            if record.runner is None:
                ends.give(theirs)
            else:
                ends.input = theirs  # for the next one too
        else:
            actions.append((os.POSIX_SPAWN_DUP2, 0, 0))  # our own stdin is /dev/null
    except BaseException:
        ends.close_all()
        raise
    return ends, actions + _with_shelf(ends.shelf)


def make_ends_again(store: Store, record: Record, held: Held) -> tuple[Ends, list[Action]]:
    """The same for the next runner of a process, of what is held already."""
    ends = Ends()
    if record.mode == "pty":
        return ends, _at_terminal(record) + _with_shelf(held.shelf)
    try:
        out = ends.give(open_writer(store.home.fifo(record.handle), held.out))
        err = out
        if record.err_log is not None:
            err = ends.give(open_writer(store.home.fifo(record.handle, "stderr"), held.err))
    except BaseException:
        ends.close_all()
        raise
    if held.input >= 0:
        os.set_blocking(held.input, True)  # as the first one found it
    actions: list[Action] = [(os.POSIX_SPAWN_DUP2, max(0, held.input), 0)]
    actions += [(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)]
    return ends, actions + _with_shelf(held.shelf)


def make_shelf() -> int:
    """A socket connected to itself: what is sent to it lies there until it is taken."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as shelf:
        shelf.bind("")
        shelf.connect(shelf.getsockname())
        # Not the number that it has in a runner: that one must not be closed there.
        return fcntl.fcntl(shelf, fcntl.F_DUPFD_CLOEXEC, SHELF + 1)


def _with_shelf(shelf: int) -> list[Action]:
    return [(os.POSIX_SPAWN_DUP2, shelf, SHELF)] if shelf >= 0 else []


def make_terminal(ends: Ends, record: Record) -> None:
    ends.out, ends.tty = os.openpty()  # neither is inherited
    ends.stdin = os.dup(ends.out)
    os.set_blocking(ends.out, False)
    ends.tank = make_tank()
    record.tty = os.ttyname(ends.tty)
    set_size(ends.tty, *record.size or (80, 24))
    set_utf8(ends.tty)
    if record.runner is not None:
        tty.setraw(ends.tty, termios.TCSANOW)


def _at_terminal(record: Record) -> list[Action]:
    # A session leader without a terminal that opens one gets it as its controlling terminal. Not so
    # a runner: what it runs has one of its own, which must not hang up when this one does.
    flags = os.O_RDWR | (0 if record.runner is None else os.O_NOCTTY)
    opened = (os.POSIX_SPAWN_OPEN, 0, record.tty or "", flags, 0)
    return [opened, (os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]


def _fifo(store: Store, path: str) -> tuple[int, int]:
    store.make_fifo(path)
    # Read-write for the child: with a reader of its own the FIFO never breaks, it only fills. Ours
    # is opened second, so that it never sees an end before there was a beginning.
    theirs = open_writer(path)
    try:
        return open_reader(path), theirs
    except BaseException:
        os.close(theirs)
        raise


def make_reader(store: Store, path: str) -> int:
    store.make_fifo(path)
    return open_reader(path)


def open_writer(path: str, reader: int = -1) -> int:
    """The process's end of a FIFO; of one that is held already, whatever has its name by now."""
    if reader >= 0:
        return os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_CLOEXEC)
    return _checked(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), True)


def open_reader(path: str) -> int:
    """Our end of a FIFO; it hangs up when its last writer has gone, not before its first came."""
    return _checked(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))


def _checked(fd: int, blocking: bool = False) -> int:
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise BadFile("there is no FIFO in its place; start it again")
    if blocking:
        os.set_blocking(fd, True)
    return fd


def start(
    program: str,
    argv: list[str],
    env: dict[str, str],
    record: Record,
    actions: list[Action],
    umask: int,
    plan: Plan,
) -> int:
    """Start it and return its pid; SpawnError and its kin when the kernel refuses."""
    env[MARK] = record.handle
    try:
        try:
            os.chdir(record.cwd if record.runner is None else "/")
        except OSError as error:
            raise BadDirectory(
                f"cannot use {record.cwd!r} as working directory: {error.strerror}"
            ) from None
        os.umask(umask)
        return plan.start(partial(clone.start, program, argv, env, actions, _RESET))
    except OSError as error:
        raise refusal(error, program) from None
    except ValueError as error:
        raise SpawnError(f"the command cannot be run: {error}") from None
    finally:
        os.umask(0o077)
        os.chdir("/")


def refusal(error: OSError, program: str) -> SpawnError:
    if error.errno == errno.ENOENT:
        return NotExecutable(
            f"the interpreter that {program} names in its first line does not exist; install it",
            missing=True,
        )
    if error.errno == errno.ENOEXEC:
        return NotExecutable(
            f"{program} is neither a binary nor has a #! line; run it with its interpreter"
        )
    if error.errno == errno.EACCES:
        return NotExecutable(f"{program} may not be executed; check its permissions")
    if error.errno == errno.E2BIG:
        return SpawnError("arguments and environment are too long; pass them in a file")
    return SpawnError(
        f"cannot start {program}: {error.strerror}; free some resources and try again"
    )
