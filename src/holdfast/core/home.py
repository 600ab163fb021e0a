"""The home directory: where everything is, and who may touch it.

    keeper.sock  keeper.lock  keeper.log  config.toml  tmux.sock
    processes/<handle>.meta.json   the record
    processes/<handle>.log         raw output (and .err.log where stderr was asked for separately)
    processes/<handle>.out         the FIFO of a running process (and .err.out)
    processes/<handle>.exit        how it ended, where the guard had to reap it
    processes/<handle>.screen      the last screen of a process that ran in tmux
    processes/<handle>.head        where the log begins, once its head was freed (and .err.head)
    processes/<handle>.runner      what its runner says, where it has one (and .place, .end)
    active/ and ended/             which records there are, by name: see `core.index`
    sessions/<session>/            outbox.jsonl, lease.json, cursors/, waits/
    hooks/                         which agents' programs used which sessions: see `holdfast hook`

Directories are 0700 and files 0600 whatever the umask. A home that is a symlink, or somebody
else's, is refused: whoever owns it could read every log and speak to the keeper.
"""

from __future__ import annotations

import errno
import os
import stat
from _thread import get_ident

from .errors import BadRequest, StoreError, why

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_HANDLE_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")
_SESSION_BYTES = 80
_ASIDE = 1000  # directories that are moved aside under one name, at most
_STEPS = {
    errno.EROFS: "make the home writable, or set HOLDFAST_HOME to a directory that is",
    errno.EACCES: "make the home readable and writable for you, or set another HOLDFAST_HOME",
    errno.EPERM: "make the home writable for you, or set another HOLDFAST_HOME",
    errno.ENOSPC: "free some space and try again",
    errno.EDQUOT: "free some space and try again",
    errno.EMFILE: "close some files and try again",
    errno.ENFILE: "end some programs and try again",
    errno.ELOOP: "move the link away that is in its place",
    errno.EISDIR: "move the directory away that is in its place",
    errno.ENXIO: "move away what is in its place",
}
_SMALL = 8192
_OURS = frozenset(
    (
        "keeper.sock",
        "keeper.sock.new",
        "keeper.lock",
        "keeper.log",
        "keeper.log.old",
        "config.toml",
        "tmux.sock",
        "tmux.sock.lock",
        "processes",
        "active",
        "ended",
        "sessions",
        "hooks",
    )
)


class BadFile(StoreError, OSError):
    """A path of the home at which there is no file of ours: to whoever does with files, an OSError.

    Callers see a `StoreError`.
    """


def new_handle() -> str:
    return "proc-" + _random()


def new_session() -> str:
    return "session-" + _random()


def new_gathering() -> str:
    return "gather-" + _random()


def _random() -> str:
    return "".join(_ALPHABET[byte & 31] for byte in os.urandom(16))


def is_handle(handle: object) -> bool:
    """True for what could be a handle; nothing else ever becomes part of a path."""
    return _is_name(handle, "proc-")


def is_gathering(name: object) -> bool:
    return _is_name(name, "gather-")


def _is_name(name: object, kind: str) -> bool:
    return (
        isinstance(name, str)
        and 16 <= len(name) - len(kind) <= 64
        and name.startswith(kind)
        and _HANDLE_CHARACTERS.issuperset(name[len(kind) :])
    )


def check_session(session: object) -> str:
    if not isinstance(session, str) or not session:
        raise BadRequest("a session is a non-empty string; leave it out for the default")
    if len(session.encode("utf-8", "surrogatepass")) > _SESSION_BYTES:
        raise BadRequest(
            f"a session's name has at most {_SESSION_BYTES} bytes; choose a shorter one"
        )
    if not session.isprintable():
        raise BadRequest("a session's name must be printable; choose another one")
    return session


def file_name(text: str) -> str:
    """Any short text as one safe path component, different texts as different ones."""
    safe = "".join(c if c in _PLAIN else "".join(f"%{b:02X}" for b in c.encode()) for c in text)
    return "%2E" + safe[1:] if safe.startswith(".") else safe


def text_of_file_name(name: str) -> str | None:
    """The inverse of `file_name`; None for a name it never made."""
    head, *rest = name.split("%")
    try:
        raw = head.encode()
        for part in rest:
            raw += bytes([int(part[:2], 16)]) + part[2:].encode()
        text = raw.decode()
    except ValueError:
        return None
    return text if file_name(text) == name else None


class Home:
    """The paths of one home directory."""

    __slots__ = ("path", "processes", "active", "ended", "sessions", "_dirfd")

    def __init__(self, path: str) -> None:
        self.path = path
        self.processes = path + "/processes"
        self.active = path + "/active"
        self.ended = path + "/ended"
        self.sessions = path + "/sessions"
        self._dirfd: int | None = None

    def __del__(self) -> None:
        if self._dirfd is not None:
            os.close(self._dirfd)

    @classmethod
    def locate(cls, path: str | os.PathLike[str] | None = None) -> Home:
        """The home an argument, ``HOLDFAST_HOME`` or the platform's state directory names."""
        chosen = os.fspath(path) if path is not None else os.environ.get("HOLDFAST_HOME")
        chosen = chosen or cls.usual()
        if "\0" in chosen:
            raise StoreError(
                "the home's path contains a NUL byte; set HOLDFAST_HOME to another one"
            )
        return cls(os.path.abspath(chosen))

    @staticmethod
    def usual() -> str:
        """The home that is used if nobody says otherwise."""
        from platformdirs import user_state_dir

        return os.path.abspath(user_state_dir("holdfast", appauthor=False))

    # -- paths ---------------------------------------------------------------------------------

    @property
    def socket(self) -> str:
        return self.path + "/keeper.sock"

    @property
    def lock(self) -> str:
        return self.path + "/keeper.lock"

    @property
    def keeper_log(self) -> str:
        return self.path + "/keeper.log"

    @property
    def config(self) -> str:
        return self.path + "/config.toml"

    def meta(self, handle: str) -> str:
        return f"{self.processes}/{handle}.meta.json"

    @property
    def spare_record(self) -> str:
        return self.processes + "/spare.record"

    @property
    def spare_fifo(self) -> str:
        return self.processes + "/spare.fifo"

    def exit(self, handle: str) -> str:
        return f"{self.processes}/{handle}.exit"

    def log(self, handle: str, stream: str = "stdout") -> str:
        return f"{self.processes}/{handle}{'.err' if stream == 'stderr' else ''}.log"

    def fifo(self, handle: str, stream: str = "stdout") -> str:
        return f"{self.processes}/{handle}{'.err' if stream == 'stderr' else ''}.out"

    def head(self, handle: str, stream: str = "stdout") -> str:
        return f"{self.processes}/{handle}{'.err' if stream == 'stderr' else ''}.head"

    def screen(self, handle: str) -> str:
        """The last screen of a tmux-mode process."""
        return f"{self.processes}/{handle}.screen"

    def begun(self, handle: str) -> str:
        """There while a pane of tmux becomes its command."""
        return f"{self.processes}/{handle}.begun"

    @property
    def tmux_socket(self) -> str:
        return self.path + "/tmux.sock"

    def session(self, session: str) -> str:
        return f"{self.sessions}/{file_name(session)}"

    def ended_of(self, session: str) -> str:
        return f"{self.ended}/{file_name(session)}"

    @property
    def hooks(self) -> str:
        return self.path + "/hooks"

    def outbox(self, session: str) -> str:
        return self.session(session) + "/outbox.jsonl"

    def agents(self, session: str) -> str:
        return self.session(session) + "/agents"

    def agent(self, session: str, id: str) -> str:
        return f"{self.agents(session)}/{file_name(id)}.json"

    def gathered(self, session: str) -> str:
        """The directory of groups that are told of as one."""
        return self.session(session) + "/gathered"

    def session_names(self) -> list[str]:
        try:
            names = os.listdir(self.sessions)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise cannot(f"look into {self.sessions}", error) from error
        texts = [text_of_file_name(name) for name in names]
        return sorted(text for text in texts if text is not None)

    def socket_address(self) -> str:
        """An address that fits the kernel's 108 bytes, however deep the home."""
        if len(os.fsencode(self.socket)) <= 100:
            return self.socket
        if self._dirfd is not None and not os.path.samestat(
            os.fstat(self._dirfd), os.stat(self.path)
        ):
            os.close(self._dirfd)  # it was deleted, and made again
            self._dirfd = None
        if self._dirfd is None:
            self._dirfd = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._dirfd}/keeper.sock"

    # -- permissions ---------------------------------------------------------------------------

    def ensure(self) -> Home:
        """Make the directories where they are missing and refuse them where they are not ours."""
        created = not os.path.lexists(self.path)
        if created:
            try:
                os.makedirs(os.path.dirname(self.path), mode=0o755, exist_ok=True)
                os.mkdir(self.path, 0o700)
                os.chmod(self.path, 0o700)
            except FileExistsError:
                pass
            except OSError as error:
                raise StoreError(
                    f"cannot make the home {self.path}: {error.strerror}; set HOLDFAST_HOME to a "
                    "directory you can write"
                ) from error
        self._check_directory(self.path)
        for path in (self.processes, self.sessions):
            try:
                if not os.path.lexists(path):
                    make_private_directory(path)
                self._check_directory(path)
            except OSError as error:
                raise cannot(f"use {path}", error) from error
        return self

    def exists(self) -> bool:
        """True when there is a home to read; refuses one that is not ours."""
        if not os.path.lexists(self.path):
            return False
        self._check_directory(self.path)
        for path in (self.processes, self.sessions):
            if not os.path.lexists(path):
                return False
            self._check_directory(path)
        return True

    def _check_directory(self, path: str) -> None:
        try:
            info = os.lstat(path)
        except OSError as error:
            raise cannot(f"use {path}", error) from error
        within = path != self.path
        if stat.S_ISLNK(info.st_mode):
            step = "move it away" if within else "set HOLDFAST_HOME to the directory itself"
            raise StoreError(f"{path} is a symlink; {step}")
        if not stat.S_ISDIR(info.st_mode):
            step = "move it away" if within else "set HOLDFAST_HOME to one"
            raise StoreError(f"{path} is not a directory; {step}")
        if info.st_uid != os.geteuid():
            step = "move it away" if within else "set HOLDFAST_HOME to your own"
            raise StoreError(f"{path} belongs to uid {info.st_uid}, not to you; {step}")
        if info.st_mode & 0o077:
            # Ours, but open to others: close it, unless it is plainly somebody's other directory.
            if path == self.path and not self._looks_like_home():
                raise StoreError(
                    f"{path} holds other files and is open to others; set HOLDFAST_HOME to a "
                    "directory of its own, or chmod it to 0700"
                )
            try:
                os.chmod(path, 0o700)
            except OSError as error:
                raise cannot(f"close {path} to others", error) from error

    def _looks_like_home(self) -> bool:
        return _OURS.issuperset(name.partition(".bad")[0] for name in os.listdir(self.path))


def make_private_directory(path: str) -> None:
    """Make a directory of the home, if it is missing; BadFile for what else has its name."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        info = os.lstat(path)
        if not stat.S_ISDIR(info.st_mode):
            raise BadFile(f"{path} is not a directory; move it away") from None
        if info.st_uid != os.geteuid():
            raise BadFile(f"{path} belongs to somebody else; move it away") from None
        return
    os.chmod(path, 0o700)


def open_private(path: str, flags: int, mode: int = 0o600) -> int:
    """Open a file of the home: never through a symlink, never somebody else's.

    Nor anything that is no plain file: a FIFO in its place would keep us waiting for ever.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    info = os.fstat(fd)
    bad = ""
    if not stat.S_ISREG(info.st_mode):
        bad = "is not a regular file; move it away"
    elif info.st_uid != os.geteuid():
        bad = "belongs to somebody else; remove it or set another HOLDFAST_HOME"
    if bad:
        os.close(fd)
        raise BadFile(f"{path} {bad}")
    if flags & os.O_CREAT and info.st_mode & 0o777 != mode:
        os.fchmod(fd, mode)  # a umask stricter than private, or a file once open to others
    return fd


def read_private(path: str) -> bytes:
    fd = open_private(path, os.O_RDONLY)
    try:
        first = os.read(fd, _SMALL)
        if len(first) < _SMALL:
            return first  # a record, as nearly always
        parts = [first]
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def replace_private(path: str, data: bytes) -> None:
    """Write a whole file beside `path`, then rename it over: readers see the old or the new one."""
    temporary = f"{path}.{os.getpid()}.{get_ident()}.tmp"
    fd = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        try:
            write_all(fd, data)
        finally:
            os.close(fd)
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
                raise
            set_aside(path)
            os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def unlink(path: str) -> None:
    """Remove a file, if it is there; a directory in its place is moved aside."""
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise
        set_aside(path)


def is_private_directory(path: str) -> bool:
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid()


def unusable(path: str) -> bool:
    """True for what cannot be a file of ours: a directory, a link, a FIFO, somebody else's."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid()


def set_aside(path: str) -> str:
    """Move what has the name of a file of ours out of the way, and return where it is now.

    The last one of each name is kept, and a directory for good: it may be somebody's.
    """
    target, number = path + ".bad", 1
    while True:
        try:
            os.rename(path, target)
            return target
        except OSError as error:
            taken = error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST)
            if not taken or number > _ASIDE:
                raise
        number += 1
        target = f"{path}.bad{number}"


def cannot(doing: str, error: OSError) -> StoreError:
    """The error for a caller when the system refuses something of the home."""
    if isinstance(error, StoreError):
        return error
    step = _STEPS.get(error.errno or 0, "see whether its owner, permissions and disk allow it")
    return StoreError(f"cannot {doing}: {why(error)}; {step}")


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
