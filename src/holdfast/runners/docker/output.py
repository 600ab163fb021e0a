"""Writing to the log, counted for each stream, since that is the position in the output."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import struct
import termios
import time

from .frames import ERR, OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .resume_state import ResumeState

_TAIL = 256


class Output:
    __slots__ = (
        "_complaints",
        "_last",
        "_merged",
        "_saved",
        "_separate",
        "_terminal",
        "counts",
        "head",
        "tails",
    )

    def __init__(self, saved: ResumeState, sizes: tuple[int, int]) -> None:
        """`sizes` are those of the logs now: everything that was ever written, and nothing else."""
        request = saved.request
        self._saved = saved
        self._separate: bool = request["separate"]
        self._terminal: bool = request["tty"]
        self._merged = not self._separate and not self._terminal
        self.tails = {OUT: b"", ERR: b""}  # of what we wrote
        first = sizes[0] - request["skip"]
        if self._merged:
            out, err, self._last = saved.split(first)
            saved.add_run(first, err, self._last)  # so that none is believed that begins later
        else:
            out, err, self._last = first, sizes[1] if self._separate else 0, OUT
        self.counts = [0, out, err]  # by stream
        self._complaints = OUT if self._terminal else ERR
        self.head = b""  # of that stream, where a container's init says what is wrong

    @property
    def total(self) -> int:
        return self.counts[OUT] + self.counts[ERR]

    def write(self, stream: int, data: bytes) -> None:
        if not data:
            return
        if self._merged and stream != self._last:
            self._saved.add_run(self.total, self.counts[ERR], stream)
            self._last = stream
        if stream == self._complaints and self.counts[stream] == len(self.head) < _TAIL:
            self.head += data[:_TAIL]
        write_all(2 if self._separate and stream == ERR else 1, data)
        self.counts[stream] += len(data)
        self.tails[stream] = (self.tails[stream] + data[-_TAIL:])[-_TAIL:]

    def hold_if_unread(self) -> None:
        """Do not end before all was read that we wrote: it would be gone with us.

        With a terminal that is gone it is: who comes after us writes what was in it.
        """
        if self._terminal:
            poller = select.poll()
            poller.register(1, 0)
            if poller.poll(0):
                _wait_for_the_next_keeper()
            return
        step = 0.0005
        while any(_unread(fd) for fd in ((1, 2) if self._separate else (1,))):
            time.sleep(step)
            step = min(2 * step, 0.1)

    def at_line_begin(self) -> bool:
        """True if each stream is, as far as we have written anything of it."""
        return all(
            not self.counts[stream] or self.tails[stream].endswith(b"\n") for stream in (OUT, ERR)
        )


def _unread(pipe: int) -> int:
    try:
        count: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
    except OSError:  # no pipe
        return 0
    return count


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            _wait_for_the_next_keeper()


def _wait_for_the_next_keeper() -> None:
    """The terminal is gone with ours. We hold the descriptors for the next one, which kills us."""
    while True:
        time.sleep(3600.0)
