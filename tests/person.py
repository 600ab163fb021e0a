"""A person at a terminal of their own, who runs a command in it, types, and sees what it draws."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time

from pyghostty import Terminal

from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Self

BEFORE = "what was there before"


class Person:
    """`holdfast` (or another program) with these arguments, in a terminal as real ones are.

    It draws with Ghostty's emulation, answers what it is asked, and has something on its screen
    before the command begins.
    """

    def __init__(
        self,
        *arguments: str,
        size: tuple[int, int] = (80, 24),
        env: dict[str, str] | None = None,
        program: Sequence[str] = (sys.executable, "-m", "holdfast"),
    ) -> None:
        self.arguments = arguments
        self.terminal = Terminal(*size)
        self.output = b""
        self.replies = b""
        self.terminal.on_reply(self._reply)
        self._master, self.slave = pty.openpty()
        self._size(size)
        self.modes = termios.tcgetattr(self.slave)
        os.write(self.slave, f"{BEFORE}\n$ holdfast\n".encode())
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *program, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", **(env or {})},
        )

    def __repr__(self) -> str:
        return f"<Person at {' '.join(self.arguments)!r}, who sees:\n{self.screen()}>"

    def _reply(self, data: bytes) -> None:
        self.replies += data
        os.write(self._master, data)

    def _size(self, size: tuple[int, int]) -> None:
        termios.tcsetwinsize(self.slave, (size[1], size[0]))

    def resize(self, columns: int, rows: int) -> None:
        self.terminal.resize(columns, rows)
        self._size((columns, rows))

    def look(self) -> None:
        """Draw whatever has come."""
        while select.select([self._master], [], [], 0)[0]:
            data = os.read(self._master, 1 << 16)
            self.output += data
            self.terminal.feed(data)

    def screen(self) -> str:
        self.look()
        text: str = self.terminal.text()
        return "\n".join(line.rstrip() for line in text.split("\n")).rstrip()

    def everything(self) -> str:
        """The screen and all that can be scrolled back to."""
        self.look()
        text: str = self.terminal.contents()
        return text

    def sees(self, *texts: str) -> None:
        self._until(lambda: all(text in self.screen() for text in texts), f"{texts} is seen")

    def sees_first(self, text: str) -> None:
        """At the beginning of the screen's first line."""
        self._until(lambda: self.line(0).startswith(text), f"{text!r} is seen first")

    def was_shown(self, text: bytes) -> None:
        """As soon as it was written; whether it is still to be seen depends on how busy we are."""

        def shown() -> bool:
            self.look()
            return text in self.output

        self._until(shown, f"{text!r} was shown")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition)
        except AssertionError:
            raise AssertionError(f"never: {what} by {self!r}") from None

    def line(self, number: int) -> str:
        return (self.screen().split("\n") + [""] * 200)[number]

    @property
    def fullscreen(self) -> bool:
        self.look()
        return bool(self.terminal.get("active_screen", "int"))

    def mode(self, number: int) -> bool:
        self.look()
        return bool(self.terminal.mode(number))

    def types(self, text: str) -> None:
        os.write(self._master, text.encode())

    def leaves_tmux(self) -> None:
        """Press C-b d, slowly, and again if need be: what comes fast tmux takes for a paste."""
        while not self._left():
            for key in "\x02d":
                os.write(self._master, key.encode())
                time.sleep(0.2)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def leaves_with(self) -> int:
        """The exit code, once the command has ended."""
        self._until(self._left, "it is left")
        self.look()
        return self.process.returncode

    def _left(self) -> bool:
        self.look()
        return self.process.poll() is not None

    def is_restored(self) -> bool:
        """Whether the terminal is as it was: how it takes keys, which screen, which modes."""
        self.look()
        modes = (1, 5, 6, 66, 69, 1000, 1002, 1003, 1004, 1006, 2004, 2026, 2048)
        return (
            termios.tcgetattr(self.slave) == self.modes
            and not self.fullscreen
            and not any(self.terminal.mode(number) for number in modes)
            and self.terminal.mode(7)
            and self.terminal.mode(25)
            and not self.terminal.get("kitty_keyboard_flags", "uint8_t")
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for fd in (self._master, self.slave):
            if fd >= 0:
                os.close(fd)
        self.terminal.close()

    def hangs_up(self) -> None:
        """Close the terminal's window."""
        os.close(self._master)
        os.close(self.slave)
        self._master = self.slave = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


# The terminal becomes the session's own, as it is for a shell's commands.
_CHILD = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
