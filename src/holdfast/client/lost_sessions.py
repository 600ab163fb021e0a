"""The remains of a session whose client was lost."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.record import Record, duration_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


@dataclass(slots=True)
class LeftBehind:
    """A session whose client was lost, and what would be taken over with it; see `adopt`."""

    session: str
    lost_seconds: float
    stops_in_seconds: float
    events: int  # that nobody was told of
    records: list[Record]

    @classmethod
    def of(cls, answer: dict[str, Any]) -> LeftBehind:
        records = [Record.from_json(each) for each in answer.pop("records")]
        return cls(**answer, records=records)

    @property
    def matters(self) -> bool:
        """True if there is anything to take over but what is over and was told."""
        return bool(self.events) or any(record.running for record in self.records)

    @property
    def text(self) -> str:
        """The same in words, for an agent that has the tool `adopt`."""
        running = sum(record.running for record in self.records)
        ago, ends = duration_text(self.lost_seconds), duration_text(self.stops_in_seconds)
        text = (
            f"Session {self.session} worked in this directory and was lost {ago} ago. It left "
            f"{_count(len(self.records), 'process', 'processes')}, {running} running, and "
            f"{_count(self.events, 'untold event', 'untold events')}. If this is your work, call "
            "adopt with this session to take them over"
        )
        return text + (f"; what runs is stopped in {ends} otherwise." if running else ".")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
