"""The declarations by which libghostty is called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / ".ci" / "ghostty-abi"
BYTES = (
    b"\x1b]2;title\x07\x1b[5 q\x1b[3;10H\x1b[31mred \xe4\xbd\xa0\x1b[?2004h"
    b"\x1b[?1049h\x1b[2;2Hhi\x1b[6"
)
DRAW = f"""
import sys
from holdfast.terminal import ghostty_abi
if sys.argv[1] == "another":
    ghostty_abi.MADE_FROM = 0
from holdfast.terminal.ghostty import Terminal
terminal = Terminal(20, 5)
terminal.feed({BYTES!r})
print(terminal.unfinished(), terminal.ask(b"n\\x1b[14t\\x1b[?996n\\x1b]10;?\\x07\\x1b[?6n"))
print(terminal.cursor, terminal.cursor_visible, terminal.pending_wrap, terminal.alternate)
print(terminal.title, terminal.mode(2004), terminal.cursor_shape(), terminal.kitty_flags)
terminal.resize(30, 6)
print(terminal.plain(), terminal.plain_before(2, 1), terminal.styled(), terminal.modes())
print(terminal.region(), terminal.tab_stops(), terminal.pen())
print("pyghostty" in sys.modules, file=sys.stderr)
"""


def drawn(declarations: str) -> tuple[str, str]:
    command = [sys.executable, "-c", DRAW, declarations]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return result.stdout, result.stderr.strip()


def test_they_are_those_of_the_package() -> None:
    """The file is what its script makes of the declarations that are installed."""
    command = [sys.executable, str(SCRIPT), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_with_another_package_its_own_are_taken() -> None:
    """A pyghostty that they were not made from is slower to load, and draws the same."""
    made, loaded = drawn("installed")
    assert loaded == "False", "the whole package was loaded"
    assert drawn("another") == (made, "True")
