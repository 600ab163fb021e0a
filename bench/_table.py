"""The rows as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._measure import Row

# handle and end, as ratios to the floor
COMPETITORS = [
    ("asyncio pipes", 1.5, 1.3, "all output in memory"),
    ("supervisord", 9.0, 12.0, ""),
    ("tmux", 17.0, 8.0, ""),
    ("pm2", 17.0, 6.5, "lost output of processes it reported complete"),
    ("OpenClaw", 30.0, 159.0, ""),
    ("Desktop Commander", 447.0, 248.0, "lost output of processes it reported complete"),
]


def table(rows: Sequence[Row]) -> str:
    lines = [["row", "measured", "p90", "floor", "p90", "ratio", "target", "", ""]]
    for row in rows:
        lines.append(
            [
                row.name,
                _amount(row.measured, row.unit),
                _amount(row.measured_p90, row.unit),
                _amount(row.floor, row.unit),
                _amount(row.floor_p90, row.unit),
                "" if row.ratio is None else f"{row.ratio:.2f}x",
                _target(row),
                {True: "ok", False: "MISSED", None: ""}[row.ok],
                row.note,
            ]
        )
    return _aligned(lines, right={1, 2, 3, 4, 5, 6})


def competitors_table() -> str:
    lines = [["measured earlier, on the same kind of floor", "handle", "end", ""]]
    for name, handle, end, note in COMPETITORS:
        lines.append([name, f"{handle:g}x", f"{end:g}x", note])
    return _aligned(lines, right={1, 2})


def _target(row: Row) -> str:
    if row.bound is None:
        return ""
    bound = f"{row.bound:g}x" if row.judged == "ratio" else _amount(row.bound, row.unit)
    return f"{'>=' if row.at_least else '<='} {bound}"


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "s":
        if value == 0:
            return "0"
        for factor, name in ((1e6, "us"), (1e3, "ms"), (1, "s")):
            if abs(value) * factor < 1000 or factor == 1:
                return f"{_short(value * factor)} {name}"
    suffix = unit.removeprefix("B")
    for power, name in ((3, "GiB"), (2, "MiB"), (1, "KiB"), (0, "B")):
        if abs(value) >= 1024**power or power == 0:
            return f"{_short(value / 1024**power)} {name}{suffix}"
    raise AssertionError(unit)


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aligned(lines: list[list[str]], right: set[int]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
