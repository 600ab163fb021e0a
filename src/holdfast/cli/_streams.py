"""Output to our own stdout and stderr; and signals to us."""

from __future__ import annotations

import os
import signal
import threading

from . import _render
from ._handles import open_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable

    from holdfast.output.log import Output

    from ..terminal.escape_filter import Legible

FDS = {"stdout": 1, "stderr": 2}


def on_terminal() -> bool:
    return os.isatty(0) and os.isatty(1)


def write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # somebody made the terminal we share non-blocking
            import select

            select.select([], [fd], [])


def tell_gap(output: Output) -> None:
    if output.gap:
        _render.complain(
            f"{output.gap} bytes before offset {output.start} are gone: the log is cleared, or "
            "longer than its cap (run --log-cap keeps more)"
        )


def copy_all(outputs: Iterable[Output], fd: int) -> None:
    """Output as it is; on a terminal, of which it must ask nothing, text and colours."""
    screen: Legible | None = None
    if os.isatty(fd):
        from ..terminal.escape_filter import Legible

        screen = Legible()
    try:
        for output in outputs:
            tell_gap(output)
            write(fd, output.data if screen is None else screen.feed(output.data))
    finally:
        if screen is not None:
            write(fd, screen.rest())


def listen(numbers: Iterable[int], tell: Callable[[int], object]) -> Callable[[], None]:
    """Tell of these signals, from a thread of their own, until what is returned is called.

    A handler in Python waits for the main thread, and that may be on its way into a call that
    blocks: then the signal would not be heard before the call returns.
    """
    wanted = frozenset(numbers)
    ear, mouth = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(mouth, False)

    def hear() -> None:
        while True:
            for number in os.read(ear, 64):
                if number in wanted:
                    tell(number)

    def stop() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    threading.Thread(target=hear, daemon=True).start()
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    before = {number: signal.signal(number, _heard) for number in wanted}
    return stop


def _heard(number: int, frame: object) -> None:
    pass


class Pump(threading.Thread):
    """Does `work` with a client of its own, then says so: ``done(None)`` or ``done(error)``."""

    def __init__(
        self,
        args: Namespace,
        handle: str,
        work: Callable[..., None],
        done: Callable[[BaseException | None], None],
    ) -> None:
        super().__init__(daemon=True)
        self._args, self._handle, self._work, self._done = args, handle, work, done
        self.start()

    def run(self) -> None:
        try:
            client = open_for(self._args)
            try:
                self._work(client.get(self._handle))
            finally:
                client.close()
        except BaseException as error:
            self._done(error)
        else:
            self._done(None)
