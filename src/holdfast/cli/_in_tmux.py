"""A person at the terminal of a process in tmux: tmux shows it, and we see to the end.

DESIGN. A session stays, with its last screen, while somebody is attached to it. So that a person
need not leave a program that has ended, we end their client then, and say how it ended. We end it
with a signal, which it takes as its own wish to leave: tmux 3.3a crashes, with all that runs in it,
if it is asked to detach the last client of a session that is to be destroyed when unattached.

It is tmux's server that changes the person's terminal and puts it back. Whatever becomes of the
server, we have put it back as well when we are done. What the client has to say besides (that it
was detached, or why it cannot be attached) we read ourselves.
"""

from __future__ import annotations

import os
import re
import select
import signal
import threading
import time

from holdfast.core import tmux_server
from holdfast.core.errors import HoldfastError, NotFound, Unsupported
from holdfast.linux.inotify import Watch
from holdfast.linux.kernel import send_signal

from ._own_terminal import LEAVE_ALTERNATE, PLAIN, foreground_modes, restore, set_modes, set_raw
from ._streams import listen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.client.sync import SyncClient, SyncProcess
    from holdfast.core.record import Record

LEAVE = "C-b d"
_POLL = 0.05
# The keeper notices a tmux server that was killed within this time.
_NOTICED = 4.0
_ABOUT_TERMINAL = re.compile(r"\bterminal\b|\bterminfo\b")


class Visit:
    """A person in tmux, from before their terminal is taken until it is as it was."""

    def __init__(
        self,
        client: SyncClient,
        process: SyncProcess,
        *,
        read_only: bool = False,
        started_here: bool = False,
        on_signal: Callable[[int], bool] | None = None,
    ) -> None:
        if (program := tmux_server.find_tmux()) is None:
            raise Unsupported(f"{process.handle} runs in tmux, which is not on the PATH any more")
        self._program = program
        self._client, self._process, self._handle = client, process, process.handle
        self._target = tmux_server.target(process.record.tmux_session or "")
        self._read_only, self._on_signal = read_only, on_signal
        self._size = None if read_only or started_here else process.record.size
        self._pidfd = -1
        self.caught = 0  # the signal to us that ended it

    def stay(self, hint: float = 0.0) -> Record | None:
        """Until the end or until the person goes: the record, or None if it was removed."""
        signal.signal(signal.SIGCONT, lambda number, frame: None)  # see foreground_modes
        stop = listen((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self._on)
        try:
            well, said = self._show(hint)
        finally:
            stop()
        if not well and not self.caught:
            self._explain(said)
        try:
            record = self._client.store.load(self._handle)
        except NotFound:
            return None
        if record.running:
            self._give_size_back()
        return record

    def _show(self, hint: float) -> tuple[bool, str]:
        """Have tmux show it: whether it left the terminal well, and what else it said."""
        modes = foreground_modes()
        well, said = False, ""
        try:
            if hint:
                set_raw()  # a key is seen when it is pressed; it waits there for the process
                select.select([0], [], [], hint)
                set_modes(modes)
            pid, heard = self._start()
            try:
                threading.Thread(target=self._end_with_it, daemon=True).start()
                if self.caught:
                    send_signal(self._pidfd, signal.SIGTERM)
                well = _wait(pid)
                said = os.read(heard, 4096).decode("utf-8", "replace").strip()
            except BlockingIOError:
                pass
            finally:
                os.close(heard)
        finally:
            untouched = well or _ABOUT_TERMINAL.search(said)
            restore(modes, b"" if untouched else PLAIN + LEAVE_ALTERNATE)
        return well, said

    def _start(self) -> tuple[int, int]:
        """The client's pid, and where it is heard."""
        flags = ["-r"] if self._read_only else []
        home = self._client.home
        arguments = tmux_server.arguments(home, "attach-session", *flags, "-t", self._target)
        environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
        os.chdir(home.path)  # where the address of its socket is short
        heard, says = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            actions = [(os.POSIX_SPAWN_DUP2, says, 1), (os.POSIX_SPAWN_DUP2, says, 2)]
            pid = os.posix_spawn(self._program, arguments, environment, file_actions=actions)
        finally:
            os.close(says)
        self._pidfd = os.pidfd_open(pid)
        return pid, heard

    def _on(self, number: int) -> None:
        if self._on_signal is None or not self._on_signal(number):
            self.caught = number
            if self._pidfd >= 0:
                send_signal(self._pidfd, signal.SIGTERM)  # it gives the terminal back

    def _end_with_it(self) -> None:
        if _ended(self._client, self._handle, None):
            send_signal(self._pidfd, signal.SIGTERM)

    def _explain(self, said: str) -> None:
        """Say why tmux let the person go, unless it was the end."""
        if _ABOUT_TERMINAL.search(said):
            term = os.environ.get("TERM")
            raise Unsupported(
                f"tmux cannot use a terminal with {f'TERM={term}' if term else 'TERM unset'} "
                f"({said}); set TERM to what yours is, such as xterm-256color. {self._handle} goes "
                f"on: `holdfast attach {self._handle}` gets you to it",
                handle=self._handle,
            )
        if not _ended(self._client, self._handle, _NOTICED):
            why = said.strip("[]") or "its client was killed"
            raise Unsupported(f"tmux let you go: {why}; {self._handle} goes on")

    def _give_size_back(self) -> None:
        """The size it had before, unless others look at it."""
        if self._size is None:
            return
        try:
            others = tmux_server.run(self._client.home, None, "list-clients", "-t", self._target)
            if not others.strip() and self._process.refresh().size != self._size:
                self._process.resize(*self._size)
        except HoldfastError:
            pass  # it ended just now


def _wait(pid: int) -> bool:
    """Wait for tmux's client, and stop with it when it is suspended."""
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status) == 0
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)


def _ended(client: SyncClient, handle: str, patience: float | None) -> bool:
    """Wait for the end by the record alone: whoever looks on takes nobody's event away."""
    deadline = None if patience is None else time.monotonic() + patience
    with Watch([client.home.meta(handle)]) as watch:
        while deadline is None or time.monotonic() < deadline:
            watch.drain()
            try:
                if not client.store.load(handle).running:
                    return True
            except NotFound:
                return True
            fd = watch.fileno()
            select.select([] if fd is None else [fd], [], [], _POLL if fd is None else 1.0)
    return False
