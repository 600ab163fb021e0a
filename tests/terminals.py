"""Programs at terminals and with pipes that no keeper holds, for tests of what looks at them."""

from __future__ import annotations

import os
import pty
import signal
import termios
from pathlib import Path

from holdfast.linux.kernel import all_processes
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/dev/null",  # nothing can be written there
    "TERM": "xterm-256color",
    "LANG": "C.UTF-8",
    "PS1": "shell> ",
    "HISTFILE": "",
    "LESS": "",
}

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Program:
    """A program with a terminal (or a pipe as its stdin) of its own; its output goes to a log."""

    def __init__(self, command: list[str], log: Path, *, pipe: bool = False) -> None:
        self.log = log
        self.output = b""
        self._file = os.open(log, _FLAGS, 0o600)
        self.tty: str | None = None
        if pipe:
            theirs, self._writer = os.pipe2(os.O_CLOEXEC)
            self._reader, out = os.pipe2(os.O_CLOEXEC)
            self.pid = os.posix_spawnp(
                command[0],
                command,
                ENVIRONMENT,
                setsid=True,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs, 0),
                    (os.POSIX_SPAWN_DUP2, out, 1),
                    (os.POSIX_SPAWN_DUP2, out, 2),
                ],
            )
            os.close(theirs)
            os.close(out)
        else:
            self._reader, slave = pty.openpty()
            self._writer = self._reader
            termios.tcsetwinsize(slave, (24, 80))
            self.tty = os.ttyname(slave)
            # The leader of a session without a terminal gets the one that it opens.
            self.pid = os.posix_spawnp(
                command[0],
                command,
                ENVIRONMENT,
                setsid=True,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, self.tty, os.O_RDWR, 0),
                    (os.POSIX_SPAWN_DUP2, 0, 1),
                    (os.POSIX_SPAWN_DUP2, 0, 2),
                ],
            )
            self._slave = slave
        os.set_blocking(self._reader, False)
        self._gone = False

    def pump(self) -> bytes:
        """Move what it wrote into its log, and return all that it ever wrote."""
        while True:
            try:
                data = os.read(self._reader, 1 << 16)
            except OSError:  # nothing there, or nobody left to write
                break
            if not data:
                break
            os.write(self._file, data)
            self.output += data
        return self.output

    def shows(self, text: str) -> None:
        wait_until(lambda: text.encode() in self.pump(), what=f"{text!r} in {self.output[-300:]!r}")

    def type(self, text: str) -> None:
        os.write(self._writer, text.encode("latin-1"))

    def rotate(self) -> None:
        """Begin a new log in the place of the old one."""
        os.rename(self.log, f"{self.log}.old")
        os.close(self._file)
        self._file = os.open(self.log, _FLAGS, 0o600)

    def end(self) -> None:
        """Kill it and everything in its session."""
        if not self._gone:
            self._gone = True
            for process in all_processes():
                if process.session == self.pid and process.pid != self.pid:
                    os.kill(process.pid, signal.SIGKILL)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        fds = {self._reader, self._writer, self._file}
        if self.tty is not None:
            fds.add(self._slave)
        for fd in fds:
            os.close(fd)
