"""The codes that a terminal obeys and does not show, found in text; all who take them out ask here.

Strings (OSC, DCS, SOS, PM, APC) that are never terminated swallow the rest of their line only, and
a sequence that is cut off goes as far as it got: a colour at the end of a piece of output leaves
nothing behind. Each kind is also known by its C1 control, the one character that stands for ``ESC``
and a letter.
"""

from __future__ import annotations

import re

CSI = r"(?:\x1b\[|\x9b)(?P<numbers>[0-?]*)[ -/]*(?P<final>[@-~]?)"
STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x9c|\x1b\\)?"
ESCAPE = r"\x1b[ -/]*(?P<escape>[0-~]?)"

_CODES = re.compile(f"{CSI}|{STRING}|{ESCAPE}")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def without_codes(text: str) -> str:
    """Text without codes, and without controls but tabs and the ends of lines (LF and CR)."""
    return _CONTROLS.sub("", _CODES.sub("", text))
