"""The remains of a session whose client was lost."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.record import Record

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
