"""What must not reach the terminal of a person who is attached.

A program asks its terminal questions (what are you, where is the cursor, which colour is the
background). The watcher answers them, once, whether anybody is attached or not; the terminals of
those who are must not answer too, for the program would take that for typing. Nor may a program set
the clipboard of whoever looks at it. Everything else passes as it is.
"""

from __future__ import annotations

import re

# Each introducer is an escape, or one character of UTF-8 that means the same.
_CSI = rb"(?:\x1b\[|\xc2\x9b)"
_OSC = rb"(?:\x1b\]|\xc2\x9d)"
_DCS = rb"(?:\x1bP|\xc2\x90)"
_APC = rb"(?:\x1b_|\xc2\x9f)"
_INTRODUCER = rb"\xc2[\x90\x98\x9b-\x9f]"
# A string lasts until its terminator, or until something that breaks it off.
_BODY = rb"(?:[^\x07\x1b\x18\x1a\xc2]++|(?!" + _INTRODUCER + rb")\xc2)*+"
_UP_TO_QUESTION = rb"(?:[^\x07\x1b\x18\x1a\xc2?]++|(?!" + _INTRODUCER + rb")\xc2)*+\?"
_END = rb"(?:\x07|\x1b\\|\xc2\x9c|(?=\x1b[^\\]|[\x18\x1a]|" + _INTRODUCER + rb"))"
# Strings that are dropped whatever is in them (the clipboard, questions about settings and
# capabilities, images, whose protocol answers), and those that are when they ask something.
_WHOLE = rb"(?:%b(?:52;|6[01]\b|1337;Re)|%b[+$]q|%bG)" % (_OSC, _DCS, _APC)
_ASKING = rb"%b(?:4|5|1[0-9]|2[12]|50|99);(?=%b)" % (_OSC, _UP_TO_QUESTION)

_DROPPED = re.compile(
    rb"\x05|\x1bZ|%b(?:" % _CSI + rb"[>=]?[0-9;]*+c"  # which terminal it is
    rb"|\??[0-9;]*+n"  # status, where the cursor is
    rb"|\??[0-9;]*+\$p|[0-9;]*+\$w|[01]?x|[0-9;]*+\*y|\?[0-9;]*+[Sm]"  # modes, settings, checksums
    rb"|>[0-9;]*+q"  # its version
    rb"|\?[0-9;]*+u"  # its keyboard
    rb"|(?!2[23][;t])[0-9][0-9;]*+t"  # its window; but titles may be put away and fetched back
    rb")|(?:%b|%b)%b%b" % (_WHOLE, _ASKING, _BODY, _END)
)
# The end of what there is so far, where that may yet become one of those.
_UNFINISHED = re.compile(
    rb"(?:\x1b|\xc2|%b[0-?]*+[ -/]*+" % _CSI
    + rb"|%b(?:[0-9]{0,4}|1337;R?|(?:4|5|1[0-9]|2[12]|50|52|6[01]|99|1337;Re)%b\x1b?)"
    % (_OSC, _BODY)
    + rb"|%b(?:[+$]?|[+$]q%b\x1b?)|%b(?:G%b\x1b?)?)\Z" % (_DCS, _BODY, _APC, _BODY)
)
_BEGINS_WHOLE = re.compile(_WHOLE)
_ENDS = re.compile(_END)
_SUSPECT = re.compile(rb"[\x05\x1b\xc2]")
_HELD = 4096


class Sieve:
    """Takes questions and clipboards out of a stream of output, wherever its pieces are cut."""

    __slots__ = ("_held", "_swallowing")

    def __init__(self) -> None:
        self._held = b""
        self._swallowing = False  # inside a long string that is being dropped

    def feed(self, data: bytes) -> bytes:
        """What may be shown now; the beginning of a sequence waits for the rest of it."""
        if self._held:
            data, self._held = self._held + data, b""
        if self._swallowing:
            end = _ENDS.search(data)
            if end is None:
                self._held = data[-1:] if data.endswith((b"\x1b", b"\xc2")) else b""
                return b""
            self._swallowing = False
            data = data[end.end() :]
        if _SUSPECT.search(data) is None:
            return data
        data = _DROPPED.sub(b"", data)
        # What is unfinished has no escape in it but the one that begins it, and one at the end.
        unfinished = _UNFINISHED.search(data, max(0, data.rfind(b"\x1b", 0, len(data) - 1)))
        if unfinished is None:
            return data
        held = unfinished[0]
        if len(held) <= _HELD:
            self._held = held
        elif _BEGINS_WHOLE.match(held):
            self._swallowing = True
        else:
            return data
        return data[: unfinished.start()]

    def rest(self) -> bytes:
        """What waited for more, when there is no more."""
        held, self._held = self._held, b""
        return held
