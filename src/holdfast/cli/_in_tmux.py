"""A person at the terminal of a process in tmux: tmux shows it, and we see to the end.

A session stays, with its last screen, while somebody is attached to it. So that a person need not
leave a program that has ended, we detach their client then, and say how it ended.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time

from holdfast import _tmux
from holdfast._errors import HoldfastError, NotFound, Unsupported
from holdfast._watch import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast._model import Record
    from holdfast._sync import SyncClient, SyncProcess

_POLL = 0.05
# The keeper notices a tmux server that was killed within this time.
_NOTICED = 4.0


def stay_in_tmux(
    client: SyncClient,
    process: SyncProcess,
    *,
    read_only: bool = False,
    on_signal: Callable[[int], bool] | None = None,
) -> tuple[Record | None, int]:
    """Until the end or until the person goes: the record (None: removed), and a signal to us."""
    if (program := _tmux.find_tmux()) is None:
        raise Unsupported(f"{process.handle} runs in tmux, which is not on the PATH any more")
    home, record = client.home, process.record
    terminal = os.ttyname(0)
    flags = ["-r"] if read_only else []
    target = _tmux.target(record.tmux_session or "")
    arguments = _tmux.arguments(home, "attach-session", *flags, "-t", target)
    environment = {name: value for name, value in os.environ.items() if name != "TMUX"}
    os.chdir(home.path)  # where the address of its socket is short
    shown = os.posix_spawn(program, arguments, environment)
    caught = 0

    def on(number: int, frame: object) -> None:
        nonlocal caught
        if on_signal is None or not on_signal(number):
            caught = number
            os.kill(shown, signal.SIGTERM)  # it gives the terminal back

    def detach_at_the_end() -> None:
        if _ended(client, process.handle, None):
            try:
                _tmux.run(home, "detach-client", "-t", terminal)
            except HoldfastError:
                pass  # they have left already

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, on) for number in numbers}
    threading.Thread(target=detach_at_the_end, daemon=True).start()
    try:
        left_well = _wait(shown)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if not left_well and not caught:
        _ended(client, process.handle, _NOTICED)
    try:
        return client.store.load(process.handle), caught
    except NotFound:
        return None, caught


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
