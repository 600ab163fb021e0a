"""Forwarding signals to a container, also past an engine that is away or busy.

Signals only write to a pipe, which every wait of the runner also waits for. A stop that the engine
could not be given is kept and tried again; if there is no engine for a minute after it, the runner
ends and says so, rather than never.

DESIGN. An engine that ends a container answers nobody who asks about it before all its output was
read, which is for us to do. So signals are passed on by a thread beside the one that reads.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time

from .engine import EngineError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .resume_state import ResumeState
    from .target import State, Target

_PASSED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL)
_ENGINE_PATIENCE = 60.0
_FIRST_STEP, _LAST_STEP = 0.05, 1.0
_AGAIN = 0.2
_CARRIED = 0  # among the numbers of signals: the messenger is back


class GaveUp(Exception):
    """A stop could not be passed on: the engine did not come back in time."""


class SignalForwarder:
    __slots__ = (
        "_asked",
        "_messenger",
        "_refusal",
        "_target",
        "_waiting",
        "_wake",
        "engine_was_away",
        "saved",
        "woken",
    )

    def __init__(self) -> None:
        self.woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._target: Target | None = None
        self.saved: ResumeState | None = None
        self._waiting: list[int] = []  # signals that the engine was not given yet
        self._messenger: threading.Thread | None = None
        self._refusal: EngineError | None = None  # why the last one could not be given
        self._asked = 0.0  # when the first of those that end it came
        self.engine_was_away = False
        for number in (*_PASSED, signal.SIGWINCH):
            signal.signal(number, self._signalled)

    def serve(self, target: Target, saved: ResumeState) -> None:
        """Forward signals to this target from now on."""
        self._target, self.saved = target, saved

    def _signalled(self, number: int, _frame: object) -> None:
        try:
            os.write(self._wake, bytes((number,)))
        except BlockingIOError:
            pass  # full of signals that nobody has looked at: one more says nothing new

    def _taken(self) -> list[int]:
        try:
            return list(os.read(self.woken, 256))
        except BlockingIOError:
            return []

    def stops(self) -> list[int]:
        """Signals that have come and are to end what is not there yet; the others are dropped."""
        return [number for number in (*self._waiting, *self._taken()) if number in _ENDING]

    def pass_on(self) -> None:
        """Look for signals and have the engine given what it has not got yet."""
        for number in self._taken():
            if number != _CARRIED:
                self.ask(number)
        if not self._waiting or self._target is None or self.saved is None:
            return
        if self._refusal and self._asked and time.monotonic() - self._asked > _ENGINE_PATIENCE:
            raise GaveUp(
                f"{self._target.title} was not stopped: {self._refusal.message}; it may still run "
                "when the engine is back, see docker ps"
            )
        if self._messenger is None or not self._messenger.is_alive():
            work = (self._target, self.saved)
            self._messenger = threading.Thread(target=self._carry, args=work, daemon=True)
            self._messenger.start()

    def ask(self, number: int) -> None:
        self._waiting.append(number)
        if number in _ENDING and not self._asked:
            self._asked = time.monotonic()

    def _carry(self, target: Target, saved: ResumeState) -> None:
        """The messenger: until there is nothing left, or the engine does not take it."""
        try:
            while self._waiting:
                number = self._waiting[0]
                if number == signal.SIGWINCH:
                    self.resize()
                else:
                    saved.add_sent(number)
                    target.signal(number)
                self._refusal = None
                del self._waiting[0]
            self._asked = 0.0
        except EngineError as refusal:
            self._refusal = refusal
            time.sleep(_AGAIN)
        finally:
            self._signalled(_CARRIED, None)

    @property
    def step(self) -> float | None:
        """The longest time to wait; None, for ever, unless something is still to be passed on."""
        return _LAST_STEP if self._waiting else None

    def resize(self) -> None:
        if self._target is None:
            return
        try:
            size = os.get_terminal_size(0)
            self._target.resize(size.lines, size.columns)
        except (OSError, EngineError):
            pass  # not running yet, or not any more

    def pause(self, seconds: float) -> None:
        select.select([self.woken], [], [], seconds)
        self.pass_on()

    def state(self) -> State | None:
        """The state of the target, from an engine that may be waited for; None if it is gone."""
        assert self._target is not None
        step = _FIRST_STEP
        while True:
            try:
                return self._target.state()
            except EngineError:
                self.engine_was_away = True
            self.pause(step)
            step = min(step * 1.5, _LAST_STEP)
