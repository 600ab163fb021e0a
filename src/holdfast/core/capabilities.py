"""Capabilities of a process, so that nobody has to know how it is run.

A record says it: callers ask ``record.capabilities.terminal``, never which mode this is.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .record import Record
    from .types import Stream, Survives


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The things that a process can be asked for.

    - `streams`: the logs it has; ``stderr`` only where it was asked to be apart
    - `stdin`: it can be written or typed to
    - `terminal`: it has a screen, takes keys and pastes, and can be attached to
    - `resize`: its terminal can be given another size
    - `survives`: ``"the keeper"`` if it goes on when the keeper is killed, ``"a half"`` if only the
      death of one of the keeper's two halves leaves its terminal as it was
    - `signals`: those that reach it, or None for all
    - `exec`: other commands can be started where it runs (`Process.exec`)
    """

    streams: tuple[Stream, ...]
    stdin: bool
    terminal: bool
    resize: bool
    survives: Survives
    signals: tuple[str, ...] | None
    exec: bool

    def takes(self, signal: str) -> bool:
        return self.signals is None or signal in self.signals

    def public(self) -> dict[str, Any]:
        shown = asdict(self)
        shown["streams"] = list(self.streams)
        shown["signals"] = None if self.signals is None else list(self.signals)
        return shown


# Of each mode: a terminal, and what it survives. The keeper's own terminals die with it.
_MODES: dict[str, tuple[bool, Survives]] = {
    "pipe": (False, "the keeper"),
    "pty": (True, "a half"),
    "tmux": (True, "the keeper"),
}
# A runner passes these on, and refuses others: stopping only the runner would stop nothing.
_PASSED_ON = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGKILL")


def capabilities_of(record: Record) -> Capabilities:
    terminal, survives = _MODES[record.mode]
    return Capabilities(
        streams=record.streams,
        stdin=record.stdin,
        terminal=terminal,
        resize=terminal,
        survives="the keeper" if record.elsewhere else survives,
        signals=_PASSED_ON if record.elsewhere else None,
        exec=record.elsewhere,
    )
