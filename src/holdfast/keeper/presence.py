"""The keeper's presence: home, lock, socket and records, made again when they go.

DESIGN. Somebody may delete or replace files of a home while its keeper runs, or the whole of it.
The processes go on, and only the keeper can still stop them, so it sees to it that it is found:
inotify tells the worker of what goes from the home, and it makes that again a moment later. A new
worker looks once before it takes up anything, so that what went while there was none is made too.

The order is: directories, lock, socket, records. The lock is what makes us the keeper. Where its
file is another one by now, we take a lock on that one too; if somebody holds it, another keeper was
started here in the meantime, and we touch nothing of what is its. Lock and listening socket belong
to both halves: the guard is given the new ones, which take the numbers of the old. A worker that
dies before that leaves a lock nobody holds and a socket nobody listens at, and the next one mends
them again. Whoever sets something aside in the home does so under a lock on its directory, so that
nobody moves away what another has just made.

The descriptor of inotify is both halves', for the kernel takes 10 ms to close one, and a worker
that was killed would be missed for as long.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time

from ..core import index
from ..core.errors import HoldfastError
from ..core.home import Home, open_private, unlink
from ..core.home_lock import locked
from ..core.machine import machine
from ..core.version import __version__
from ..linux import inotify, kernel
from .damaged_files import clear_way, clear_way_for_directory
from .journal import say
from .loop import IN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .loop import Timer
    from .worker import Worker

_SOON = 0.02  # after the last thing was deleted: `rm -r` must not find new files behind it
_AGAIN = 1.0
_SELDOM = 30.0  # where there is no inotify
_NEW = ".new"
_LOCK_TRIES = 20  # whoever looks for a keeper holds the lock for a moment

_SELF = inotify.DELETE_SELF | inotify.MOVE_SELF
# Not what is renamed in there: every start does that.
_BELOW = inotify.DELETE | _SELF | inotify.ONLY_DIRECTORY
_ABOVE = _BELOW | inotify.ATTRIB | inotify.MOVED_FROM | inotify.MOVED_TO | inotify.CREATE
_NAMES = frozenset(b"keeper.sock keeper.lock keeper.log processes sessions active ended".split())
_RECORD, _LOG = b".meta.json", b".log"


class Presence:
    __slots__ = ("_bound", "_ended", "_fd", "_rival", "_said", "_timer", "_watches", "_worker")

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._fd = -1
        self._watches: dict[int, str] = {}
        self._timer: Timer | None = None
        self._bound: tuple[int, int] | None = None  # what the socket's path was when it was ours
        self._rival = False
        self._said = ""
        self._ended = False

    def begin(self) -> None:
        """Look once, and be told of what goes from now on."""
        self._fd = self._worker.guard.notify
        if self._fd >= 0:
            self._worker.loop.add(self._fd, IN, lambda _: self._hear())
        if _answers(self._worker.home):
            self._bound = _identity(self._worker.home.socket)
        write_lock(self._worker.guard.lock, self._worker.guard.pid, ready=None)
        self.mend()

    def end(self) -> None:
        """The keeper goes: what goes with it is not made again."""
        self._ended = True

    def ready(self) -> None:
        """Everything is taken up."""
        if not self._rival:
            write_lock(self._worker.guard.lock, self._worker.guard.pid, ready=True)

    # -- hearing of it -------------------------------------------------------------------------

    def _watch(self) -> None:
        """Watch what has the names now; the kernel knows directories that it watches already."""
        home = self._worker.home
        for path, mask in ((home.path, _ABOVE), (home.processes, _BELOW), (home.active, _BELOW)):
            watch = inotify.add_watch(self._fd, path, mask)
            if watch >= 0:
                self._watches[watch] = path

    def _hear(self) -> None:
        changed = False
        for watch, mask, name in inotify.pending(self._fd):
            changed |= self._matters(watch, mask, name)
        if changed:
            self._mend_in(_SOON)

    def _matters(self, watch: int, mask: int, name: bytes) -> bool:
        if mask & (_SELF | inotify.OVERFLOW):
            return True
        if mask & inotify.IGNORED:
            self._watches.pop(watch, None)
            return True
        if self._watches.get(watch) == self._worker.home.path:
            return name in _NAMES
        in_index = self._watches.get(watch) == self._worker.home.active
        if not in_index and not name.endswith((_RECORD, _LOG)):
            return False
        child = self._worker.children.get(name.partition(b".")[0].decode("ascii", "replace"))
        return child is not None and child.note is None

    def _mend_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._worker.loop.after(seconds, self.mend)

    # -- mending -------------------------------------------------------------------------------

    def mend(self) -> None:
        """See that all of it is there, and make again what is not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        home = self._worker.home
        if self._ended:
            return
        if not os.path.lexists(home.path) and not self._worker.is_needed:
            return  # whoever deleted it has no use for it, and nor have we: we go soon
        try:
            self._directories(home)
            if self._lock(home):
                self._socket(home)
                self._log(home)
                self._records()
            self._said = ""
        except (OSError, HoldfastError) as error:
            if str(error) != self._said:
                say(f"the home cannot be mended now: {error}")
            self._said = str(error)
            self._mend_in(_AGAIN)
        if self._fd >= 0:
            self._watch()
        elif self._timer is None:
            self._mend_in(_SELDOM)

    def _directories(self, home: Home) -> None:
        for path in (home.active, home.ended):  # without which lists look at everything
            clear_way_for_directory(path)
        for path in (home.processes, home.sessions):
            clear_way_for_directory(path)
            if os.path.lexists(path) and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                os.chmod(path, 0o700)
            elif not os.path.lexists(path):
                home.ensure()
                say(f"{path} was gone, and is made again")

    def _lock(self, home: Home) -> bool:
        """True while we are the keeper of this home."""
        ours = os.fstat(self._worker.guard.lock)
        if _identity(home.lock) == (ours.st_dev, ours.st_ino) and ours.st_uid == os.geteuid():
            self._rival = False
            return True
        with locked(home):
            clear_way(home.lock)
            lock = open_private(home.lock, os.O_RDWR | os.O_CREAT)
            try:
                if not _take(lock):
                    if not self._rival:
                        say("another keeper was started in this home, which is left to it")
                    self._rival = True
                    self._mend_in(_AGAIN)  # or somebody was just looking whether there is a keeper
                    return False
                write_lock(lock, self._worker.guard.pid, ready=True)
                self._worker.replace("lock", lock)
                if self._worker.serving:
                    self._worker.index.complete()  # which the old one said
            finally:
                os.close(lock)
        self._rival = False
        say(f"{home.lock} was gone, and is made again")
        return True

    def _socket(self, home: Home) -> None:
        found = _identity(home.socket)
        if found is not None and found == self._bound:
            if os.lstat(home.socket).st_mode & 0o600 != 0o600:
                os.chmod(home.socket, 0o600)
            return
        with locked(home):
            # Elsewhere first: who finds a socket at which nobody listens yet takes us for dead.
            listener = bind(home, _NEW)
            unlink(home.socket)
            os.rename(home.socket + _NEW, home.socket)
        self._bound = _identity(home.socket)
        self._worker.listen(listener)
        say(f"{home.socket} was gone, and is made again")

    def _log(self, home: Home) -> None:
        here = os.fstat(2)
        if _identity(home.keeper_log) != (here.st_dev, here.st_ino):
            open_log(home)

    def _records(self) -> None:
        for child in self._worker.children.values():
            if child.note is None:
                child.restore()
                self._worker.index.again(child.record)


# -- the files -------------------------------------------------------------------------------------


def bind(home: Home, suffix: str = "") -> int:
    """A new listening socket. Only for whoever holds the lock: the one that is there is dead."""
    unlink(home.socket + suffix)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(home.socket_address() + suffix)
        os.chmod(home.socket + suffix, 0o600)
        listener.listen(512)
        listener.setblocking(False)
        return listener.detach()
    finally:
        listener.close()


def write_lock(lock: int, guard: int, *, ready: bool | None) -> None:
    """Say in the lock who holds it; one that ends before it is ready has failed to start.

    Without `ready` it is as ready as it was: a worker comes in place of another.
    """
    said = {
        "guard": guard,
        "start_time": kernel.start_time(guard),
        "machine": machine(),
        "version": __version__,
        "ready": ready,
    }
    if guard != os.getpid():
        said["worker"] = os.getpid()
        said["worker_start_time"] = kernel.start_time(os.getpid())
    try:
        index.write_lock(lock, said)
    except OSError as error:
        say(f"the lock cannot be written to: {error}")  # it is held all the same


def open_log(home: Home) -> None:
    """Make keeper.log our stderr; where that cannot be, what we have to say is said to nobody."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    try:
        with locked(home):
            clear_way(home.keeper_log)
        log = open_private(home.keeper_log, flags)
    except (OSError, HoldfastError):
        log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(log, 2)
    os.close(log)


def _identity(path: str) -> tuple[int, int] | None:
    """The identity of the file that has this name, if it is ours."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return (info.st_dev, info.st_ino) if info.st_uid == os.geteuid() else None


def _answers(home: Home) -> bool:
    """True if somebody listens at the socket, which is we as long as we hold the lock."""
    try:
        if not stat.S_ISSOCK(os.lstat(home.socket).st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            probe.connect(home.socket_address())
    except BlockingIOError:
        return True  # so many are waiting to be answered
    except OSError:
        return False
    return True


def _take(lock: int) -> bool:
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.002)
    return False
