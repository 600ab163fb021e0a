"""A picture of a terminal in a terminal of another size: what fits of it, around the cursor."""

from __future__ import annotations

import re

from ._render import width_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast import Screen

_PIECE = re.compile(r"(\x1b\[[\d;:]*m)|(.)", re.DOTALL)
_PLAIN = re.compile(r"[\x20-\x7e]*")


def frame(screen: Screen, columns: int, rows: int) -> tuple[list[str], tuple[int, int] | None]:
    """The rows to show, each ending in plain style, and where the cursor is among them."""
    lines = (screen.text if screen.styled is None else screen.styled).split("\n")
    left, top = corner(screen, columns, rows)
    shown = [part(line, left, columns) for line in lines[top : top + rows]]
    shown += [""] * (rows - len(shown))
    if screen.cursor is None:
        return shown, None
    return shown, (screen.cursor[0] - left, screen.cursor[1] - top)


def corner(screen: Screen, columns: int, rows: int) -> tuple[int, int]:
    """The first column and row to show, such that the cursor is seen."""
    column, row = screen.cursor or (0, 0)
    wide, high = screen.size
    left = min(max(0, column - columns + 1), max(0, wide - columns))
    top = min(max(0, row - rows + 1), max(0, high - rows))
    return left, top


def part(line: str, left: int, columns: int) -> str:
    """Some columns of a line, with the style they have; what is cut in two is a blank."""
    if _PLAIN.fullmatch(line):
        return line[left : left + columns]
    shown: list[str] = []
    place, right = 0, left + columns
    seen = False  # whether the character before is shown, for what goes on top of it
    for code, character in _PIECE.findall(line):
        if code:
            shown.append(code)
            continue
        width = width_of(character)
        if width == 0:
            shown += [character] if seen else []
            continue
        end = place + width
        seen = left <= place and end <= right
        if seen:
            shown.append(character)
        elif end > left and place < right:
            shown.append(" " * (min(end, right) - max(place, left)))
        place = end
    return "".join(shown) + "\x1b[m"
