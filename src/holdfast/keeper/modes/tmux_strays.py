"""Processes around a pane that nobody needs any more: what stays in it, and what its output goes
through.

Both outlive a keeper on purpose: the one keeps how a process ended, the other its last output,
until the next keeper has seen them. A keeper that was killed in the middle of a start it gave up,
or of a removal, leaves them for nobody. So each keeper looks for them: some time after it began,
when it goes, and after it has given something up.
"""

from __future__ import annotations

import os
import re
import shlex
import signal

from ...linux import kernel
from .tmux_end import said_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...core.home import Home

# What a pane's output goes through. When the pane is gone `cat` ends, and the shell holds what the
# FIFO still has, by a descriptor that only reads, until a keeper has read it and unlinks the FIFO:
# both halves of one may have been killed in that moment.
_PIPE = (
    "test -p {fifo} && exec 4<>{fifo} 3<{fifo} 4>&- && cat 1<>{fifo}; n=0; while test -p {fifo}; "
    "do n=$((n+1)); if test $n -lt 40; then sleep 0.05; else sleep 1; fi; done"
)
_HANDLE = re.compile(r"proc-[a-z0-9]{16,64}")


def pipe_command(home: Home, handle: str) -> str:
    return _PIPE.format(fifo=shlex.quote(home.fifo(handle)))


def end_strays(home: Home, kept: Callable[[str], bool]) -> None:
    """End what belongs to processes of this home of which there is no record any more.

    Whoever writes into a FIFO that has no name, and that nobody reads, would do so for ever.
    """
    everybody = list(kernel.all_processes())
    for each in everybody:
        family = [other for other in everybody if other.parent == each.pid]
        if said_by(each.pid, b"HOLDFAST_HOME") == home.path:
            handle = said_by(each.pid, b"HOLDFAST_PANE")
            running = any(other.state not in "ZX" for other in family)
            if handle and not kept(handle) and not running:
                _end(each)
            continue
        handle = _piped_handle(home, each.pid)
        if handle and not os.path.lexists(home.fifo(handle)):
            for other in (each, *family):
                _end(other)


def _piped_handle(home: Home, pid: int) -> str:
    """The process whose output goes through this one; empty for anything else."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = os.fsdecode(file.read()).split("\0")
    except OSError:
        return ""
    found = _HANDLE.search(words[2]) if words[1:2] == ["-c"] and len(words) > 2 else None
    return found[0] if found and words[2] == pipe_command(home, found[0]) else ""


def _end(found: kernel.Stat) -> None:
    pidfd = kernel.open_process(found.pid, found.start_time)
    if pidfd is not None:
        kernel.send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
