"""Beginning a process: find the program, make its descriptors, start it.

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
from functools import partial

from ..core.errors import BadDirectory, NotExecutable, SpawnError
from ..core.home import BadFile
from ..core.store import Store
from ..linux.kernel import MARK
from . import clone
from .held_fds import Held

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .containment import Plan

    Action = tuple[int, int, int] | tuple[int, int, str, int, int]

FD_STORE = 3
_RESET = [signal.SIGPIPE, signal.SIGXFSZ]


class Ends:
    """The descriptors of one launch: ours to keep, and the child's to close after the start."""

    __slots__ = ("out", "err", "stdin", "tty", "splice_pipe", "fd_store", "input", "_theirs")

    def __init__(self) -> None:
        self.out = self.err = self.stdin = self.tty = -1
        self.splice_pipe = self.fd_store = self.input = -1
        self._theirs: list[int] = []

    def held(self, record: str) -> Held:
        """Hold the ends of a process that is about to be made."""
        return Held(
            0,
            -1,
            self.out,
            self.err,
            self.stdin,
            self.tty,
            self.splice_pipe,
            self.fd_store,
            self.input,
            record=record,
        )

    def give(self, fd: int) -> int:
        self._theirs.append(fd)
        return fd

    def close_theirs(self) -> None:
        for fd in self._theirs:
            os.close(fd)
        self._theirs.clear()

    def close_all(self) -> None:
        self.close_theirs()
        for fd in self.held("").descriptors():
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


def make_fd_store() -> int:
    """A socket connected to itself: what is sent to it lies there until it is taken."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as fd_store:
        fd_store.bind("")
        fd_store.connect(fd_store.getsockname())
        # Not the number that it has in a runner: that one must not be closed there.
        return fcntl.fcntl(fd_store, fcntl.F_DUPFD_CLOEXEC, FD_STORE + 1)


def with_fd_store(fd_store: int) -> list[Action]:
    return [(os.POSIX_SPAWN_DUP2, fd_store, FD_STORE)] if fd_store >= 0 else []


def fifo(store: Store, path: str) -> tuple[int, int]:
    """A new FIFO: our end and the process's."""
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
    handle: str,
    directory: str,
    actions: list[Action],
    umask: int,
    plan: Plan,
) -> int:
    """Start it and return its pid; SpawnError and its kin when the kernel refuses."""
    env[MARK] = handle
    try:
        try:
            os.chdir(directory)
        except OSError as error:
            raise BadDirectory(
                f"cannot use {directory!r} as working directory: {error.strerror}"
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
