"""Samples, medians and the rows they become."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

now = time.perf_counter

# Between two samples: what a sample leaves running behind itself must not slow the next one.
SETTLE = 0.002


def percentile(samples: Sequence[float], share: float) -> float:
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(samples: Sequence[float]) -> float:
    return percentile(samples, 0.5)


def interleave(
    rounds: int, *sides: Callable[[], Any], warm: int = 1, settle: float | None = SETTLE
) -> list[list[Any]]:
    """Run each side in turn, `rounds` times over, and return what each of them gave."""
    results: list[list[Any]] = [[] for _ in sides]
    for turn in range(-warm, rounds):
        for side, into in zip(sides, results, strict=True):
            if settle is not None:
                time.sleep(settle)
            value = side()
            if turn >= 0:
                into.append(value)
    return results


@dataclass(slots=True)
class Row:
    """One line of the table.

    `ratio` is measured to floor (or, where `unit` is a speed, the share of the floor's speed);
    `bound` is what `judged` ("ratio" or "measured") must not exceed, or not fall below where
    `at_least` is set. A row without a bound is there to be read.
    """

    name: str
    unit: str
    measured: float
    measured_p90: float | None = None
    floor: float | None = None
    floor_p90: float | None = None
    ratio: float | None = None
    bound: float | None = None
    judged: str = "ratio"
    at_least: bool = False
    samples: int = 1
    note: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool | None:
        if self.bound is None:
            return None
        value = self.ratio if self.judged == "ratio" else self.measured
        assert value is not None
        return value >= self.bound if self.at_least else value <= self.bound

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"ok": self.ok}


def ratio_row(
    name: str,
    ours: Sequence[float],
    floor: Sequence[float],
    *,
    at_most: float | None,
    unit: str = "s",
    note: str = "",
) -> Row:
    """Durations against the floor's durations."""
    return Row(
        name,
        unit,
        median(ours),
        percentile(ours, 0.9),
        median(floor),
        percentile(floor, 0.9),
        median(ours) / median(floor),
        at_most,
        samples=len(ours),
        note=note,
    )


def speed_row(
    name: str, size: int, ours: Sequence[float], floor: Sequence[float], *, at_least: float
) -> Row:
    """Durations of moving `size` bytes, told as bytes per second; p90 is the slower tail's."""
    return Row(
        name,
        "B/s",
        size / median(ours),
        size / percentile(ours, 0.9),
        size / median(floor),
        size / percentile(floor, 0.9),
        median(floor) / median(ours),
        at_least,
        at_least=True,
        samples=len(ours),
    )


def value_row(
    name: str,
    unit: str,
    measured: float,
    *,
    at_most: float | None,
    measured_p90: float | None = None,
    floor: float | None = None,
    floor_p90: float | None = None,
    samples: int = 1,
    note: str = "",
    **detail: Any,
) -> Row:
    """A figure with a bound of its own; a floor beside it is there to be read."""
    return Row(
        name,
        unit,
        measured,
        measured_p90,
        floor,
        floor_p90,
        None if not floor else measured / floor,
        at_most,
        judged="measured",
        samples=samples,
        note=note,
        detail=detail,
    )
