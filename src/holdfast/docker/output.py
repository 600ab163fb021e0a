"""What is written to the log: counted for each stream, since that is the position in the output."""

from __future__ import annotations

import errno
import os
import time

from .frames import ERR, OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .place import Place

_TAIL = 256


class Output:
    __slots__ = (
        "_complaints",
        "_last",
        "_merged",
        "_place",
        "_separate",
        "counts",
        "head",
        "tails",
    )

    def __init__(self, place: Place, sizes: tuple[int, int]) -> None:
        """`sizes` are those of the logs now: everything that was ever written, and nothing else."""
        notes = place.notes
        self._place = place
        self._separate: bool = notes["separate"]
        self._merged = not self._separate and not notes["tty"]
        self.tails = {OUT: b"", ERR: b""}  # of what we wrote
        first = sizes[0] - notes["skip"]
        if self._merged:
            out, err, self._last = place.split(first)
            place.add_run(first, err, self._last)  # so that none is believed that begins later
        else:
            out, err, self._last = first, sizes[1] if self._separate else 0, OUT
        self.counts = [0, out, err]  # by stream
        self._complaints = OUT if notes["tty"] else ERR
        self.head = b""  # of that stream, where a container's init says what is wrong

    @property
    def total(self) -> int:
        return self.counts[OUT] + self.counts[ERR]

    def write(self, stream: int, data: bytes) -> None:
        if not data:
            return
        if self._merged and stream != self._last:
            self._place.add_run(self.total, self.counts[ERR], stream)
            self._last = stream
        if stream == self._complaints and self.counts[stream] == len(self.head) < _TAIL:
            self.head += data[:_TAIL]
        write_all(2 if self._separate and stream == ERR else 1, data)
        self.counts[stream] += len(data)
        self.tails[stream] = (self.tails[stream] + data[-_TAIL:])[-_TAIL:]

    def at_line_begin(self) -> bool:
        """Whether each stream is, as far as we have written anything of it."""
        return all(
            not self.counts[stream] or self.tails[stream].endswith(b"\n") for stream in (OUT, ERR)
        )


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # The terminal is gone with the keeper. We keep the shelf until the next one kills us.
            while True:
                time.sleep(3600.0)
