"""Durations and sizes as people write them: ``90s``, ``1h30m``, ``64KiB``, ``120x40``."""

from __future__ import annotations

import re

from .errors import BadRequest

# Compiled by the first who writes one as text: the keeper, and most commands, never do.
_DURATION = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?"
_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = r"(?i)(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?"
_SCREEN = r"(\d{1,4})\s*[xX×]\s*(\d{1,4})"  # noqa: RUF001
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# Three hundred years, and more than any file can hold: what is beyond was not meant.
_LONGEST = 1e10
_LARGEST = 1 << 62


def parse_duration(value: object) -> float:
    """``90``, ``"90s"``, ``"1h30m"``, ``"500ms"``: seconds."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 <= value < _LONGEST:
            raise ValueError("must be a number of seconds, neither negative nor for ever")
        return float(value)
    if isinstance(value, str):
        text = value.strip().lower().replace(" ", "")
        parts = re.findall(_DURATION, text)
        whole = parts and "".join(number + unit for number, unit in parts) == text
        if whole and (len(parts) == 1 or all(unit for _, unit in parts)):
            return parse_duration(
                sum(float(number) * _UNITS[unit or None] for number, unit in parts)
            )
    raise ValueError("must be a duration like 90s, 30m or 1h30m")


def parse_timeout(value: object) -> float | None:
    """A duration; 0 and ``"none"`` mean no deadline."""
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return parse_duration(value) or None


def parse_patience(value: object, name: str = "timeout") -> float:
    """The longest time to wait, from an argument."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise BadRequest(f"{name} {error}, not {value!r}") from None


def parse_size(value: object) -> int:
    """``1048576``, ``"64KiB"``, ``"1G"``: bytes, counted in powers of 1024."""
    size: float = -1
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := re.fullmatch(_SIZE, value.strip())):
        size = float(match[1]) * 1024 ** _POWERS[match[2].lower()]
    if 0 <= size < _LARGEST:
        return int(size)
    raise ValueError("must be a size like 64KiB, 256MiB or 1GiB")


def parse_screen_size(value: object) -> list[int]:
    """``"120x40"`` or ``(120, 40)``: columns and rows of a terminal."""
    if isinstance(value, str) and (match := re.fullmatch(_SCREEN, value.strip())):
        value = [int(match[1]), int(match[2])]
    if isinstance(value, (list, tuple)) and len(value) == 2:
        columns, rows = value
        if type(columns) is type(rows) is int and 2 <= columns <= 1000 and 1 <= rows <= 1000:
            return [columns, rows]
    raise ValueError("must be columns and rows like 120x40, from 2x1 to 1000x1000")
