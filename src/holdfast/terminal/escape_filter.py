"""The filter between a process's output and the terminal of a person who looks at it.

A program asks its terminal questions (what are you, where is the cursor, which colour is the
background). The watcher answers them, once, whether anybody is attached or not; the terminals of
those who are must not answer too, for the program would take that for typing. Nor may a program
read or set the clipboard of whoever looks at it, or leave their terminal in a state that we do not
know how to undo.

DESIGN. Terminals disagree about sequences that are broken: what a control character inside does,
what ends a string, whether characters of eight bits count. So output is taken apart here, with
states of our own, and nothing of a sequence is passed on before it is complete and known to be
harmless; then it is written anew, in the one form that all terminals read alike. What is dropped is
dropped whole, and what stood around it cannot become a sequence: outside of them no escape passes.

Output that is only to be read is looked at once more (`Legible`): of the sequences nothing is left
but colours, as other output has no business with the rest.
"""

from __future__ import annotations

import codecs
import re
from functools import lru_cache

from holdfast.core.quote import DIRECTIONS, escaped

_ESC, _BEL, _DEL, _LEAD = 0x1B, 0x07, 0x7F, 0xC2
_TEXT, _ESCAPE, _CSI, _OSC, _STRING = range(5)
_LONGEST = 4096  # of a sequence that passes

# Shortcuts, for what most output has most of. Whatever else there is takes the long way, which
# comes to the same. C2 is the first byte of the control characters of eight bits.
_PLAIN = rb"[^\x05\x1b\xc2]*+"
_CLEAN = re.compile(
    _PLAIN + rb"(?:(?:\x1b(?:\[(?:[0-9;:]{0,64}+m|[0-9;]{0,64}+[@-HJ-MPX`df])|\([0AB])"
    rb"|\xc2[\xa0-\xbf])" + _PLAIN + rb")*+"
)
_WHOLE = re.compile(rb"\x1b(?:\[[ -?]{0,256}+[@-~]|\][^\x00-\x1f\x7f\xc2]{0,2048}+(?:\x07|\x1b\\))")
_ESCAPE_RUN = re.compile(rb"[ -/]*+")
_CSI_RUN = re.compile(rb"[ -?]*+")
_STRING_RUN = re.compile(rb"[^\x00-\x1f\x7f\xc2]*+")

# Begun by these after an escape, or by one character of UTF-8 that means the same. ESC k is how
# some terminals are told a title.
_BEGINS = {ord("["): _CSI, ord("]"): _OSC} | dict.fromkeys(b"PX^_k", _STRING)
_BEGINS_C1 = {byte + 0x40: state for byte, state in _BEGINS.items() if byte != ord("k")}
_IDENTIFY_C1, _TERMINATOR_C1 = 0x9A, 0x9C
# Inside a sequence these are obeyed, before it is; the others are not. These two break it off.
_OBEYED = frozenset(b"\a\b\t\n\v\f\r\x0e\x0f")
_BREAKS_OFF = frozenset(b"\x18\x1a")

# The codes that pass: cursor, margins, tabs, character sets, reset. Not "identify yourself", and
# not those that leave UTF-8.
_HARMLESS_ESCAPE = re.compile(rb"\x1b(?:[6-9<=>\\cDEHMNOno|}~]|[(-+\--/][ -/]?[0-~]|#[34568]|%G)")
_SHAPE = re.compile(rb"\x1b\[([<=>?]?)([0-9;:]*+)([ -/]?)([@-~])")
_HARMLESS_CSI: dict[bytes, bytes] = {
    b"": b"@ABCDEFGHIJKLMPSTXZ^`abdefghjklmqrstu",
    b"?": b"hlrsJKW",
    b">": b"fmnpsu",
    b"<": b"u",
    b"=": b"u",
    b" ": b"@Aq",
    b"!": b"p",
    b'"': b"q",
    b"#": b"pqPQ{}",
    b"$": b"rtvxz{",
    b"'": b"}~",
    b"*": b"x",
}
# Modes that do not: a locked keyboard; the language of the VT52, reports of the size, which begin
# with one at once, and pastes that come as questions.
_NOT_MODES = {b"": frozenset({2}), b"?": frozenset({2, 2048, 5522})}
_PUT_TITLE_AWAY, _FETCH_TITLE = 22, 23

_NUMBERED = re.compile(rb"\x1b\]([0-9]{1,9})(;.*)?", re.DOTALL)
_ANY_OSC = {0, 1, 2, 7, 133, 633}  # titles, the directory, marks of shells
_COLOUR_OSC = {4, 10, 11, 12, 17, 19, 104, 110, 111, 112}
_LINK_OSC = 8
_LINK = re.compile(rb";[^;]*+;(?:(?:https?|mailto|file):.*)?", re.DOTALL | re.IGNORECASE)


class EscapeFilter:
    """Takes questions and clipboards out of a stream of output, wherever its pieces are cut."""

    __slots__ = ("_state", "_held", "_lost", "_lead")

    def __init__(self) -> None:
        self._state = _TEXT
        self._held = bytearray()  # of the sequence we are in, without control characters
        self._lost = False  # it will not pass, so nothing of it is held
        self._lead = 0  # an escape in a string, or a C2, whose meaning depends on the next byte

    def feed(self, data: bytes) -> bytes:
        """Take bytes, return what may be shown; the beginning of a sequence waits for the rest."""
        in_text = self._state == _TEXT and not self._lead
        if in_text and b"\x1b" not in data and b"\xc2" not in data and b"\x05" not in data:
            return data
        out: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if self._lead:
                at = self._after_lead(data, at, out)
            elif self._state == _TEXT:
                at = self._text(data, at, out)
            elif self._state in (_OSC, _STRING):
                at = self._string(data, at, out)
            else:
                at = self._code(data, at, out)
        return b"".join(out)

    def rest(self) -> bytes:
        """Return what waited for more, but nothing of strings: some would be obeyed."""
        held = bytes(self._held) if self._state in (_ESCAPE, _CSI) else b""
        self._begin(_TEXT)
        self._lead = 0
        return held

    def _begin(self, state: int, held: bytes = b"") -> None:
        self._state = state
        self._lost = state == _STRING
        self._held = bytearray() if self._lost else bytearray(held)

    def _hold(self, part: bytes) -> None:
        if not self._lost:
            self._held += part
            if len(self._held) > _LONGEST:
                self._lose()

    def _lose(self) -> None:
        self._lost = True
        self._held = bytearray()

    # Each of these takes what it can from `data` at `at`, and returns where it has come to. ---

    def _text(self, data: bytes, at: int, out: list[bytes]) -> int:
        while True:
            end = _end(_CLEAN, data, at)
            if end > at:
                out.append(data[at:end])
            if (whole := _WHOLE.match(data, end)) is None:
                break
            out.append(_judged(whole[0]))
            at = whole.end()
        if end == len(data):
            return end
        byte = data[end]
        if byte == _ESC:
            self._begin(_ESCAPE, b"\x1b")
        elif byte == _LEAD:
            self._lead = byte
        return end + 1

    def _code(self, data: bytes, at: int, out: list[bytes]) -> int:
        """Go on in a sequence that is not a string."""
        end = _end(_CSI_RUN if self._state == _CSI else _ESCAPE_RUN, data, at)
        if end > at:
            self._hold(data[at:end])
        if end == len(data):
            return end
        byte = data[end]
        if byte == _ESC:
            self._begin(_ESCAPE, b"\x1b")
        elif byte > _DEL or byte in _BREAKS_OFF:
            self._begin(_TEXT)
            return end  # it is text
        elif byte in _OBEYED:
            out.append(data[end : end + 1])
        elif byte < 0x20 or byte == _DEL:
            pass
        elif self._state == _ESCAPE and self._held == b"\x1b" and byte in _BEGINS:
            self._begin(_BEGINS[byte], b"\x1b" + data[end : end + 1])
        else:
            self._hold(data[end : end + 1])
            if not self._lost:
                judge = _csi if self._state == _CSI else _escape
                out.append(judge(bytes(self._held)))
            self._begin(_TEXT)
        return end + 1

    def _string(self, data: bytes, at: int, out: list[bytes]) -> int:
        end = _end(_STRING_RUN, data, at)
        if end > at:
            self._hold(data[at:end])
        if end == len(data):
            return end
        byte = data[end]
        if byte in (_ESC, _LEAD):
            self._lead = byte
        elif byte == _BEL and self._state == _OSC:
            self._end_string(b"\a", out)
        elif byte in _BREAKS_OFF:
            self._begin(_TEXT)
            return end
        return end + 1

    def _end_string(self, terminator: bytes, out: list[bytes]) -> None:
        if not self._lost:
            out.append(_osc(bytes(self._held), terminator))
        self._begin(_TEXT)

    def _after_lead(self, data: bytes, at: int, out: list[bytes]) -> int:
        lead, self._lead = self._lead, 0
        byte = data[at]
        if lead == _ESC:
            if byte == ord("\\"):
                self._end_string(b"\x1b\\", out)
                return at + 1
            self._begin(_ESCAPE, b"\x1b")
            return at
        in_string = self._state != _TEXT
        if not 0x80 <= byte < 0xC0:
            # Half a character. Were it passed on, it could find its other half.
            if in_string:
                self._lose()
            else:
                out.append("\N{REPLACEMENT CHARACTER}".encode())
            return at
        if byte in _BEGINS_C1:
            self._begin(_BEGINS_C1[byte], bytes((_ESC, byte - 0x40)))
        elif in_string:
            if byte == _TERMINATOR_C1:
                self._end_string(b"\x1b\\", out)
            elif byte < 0xA0:
                self._lose()
            else:
                self._hold(bytes((lead, byte)))
        elif byte != _IDENTIFY_C1:
            out.append(bytes((lead, byte)))
        return at + 1


# Of what has passed: colours, and erasing the rest of a line, as progress bars do. Everything else
# goes, also control characters; what turns the direction of writing shows that it was there.
_LEFT = re.compile(
    r"(?P<stays>\x1b\[[0-9;:]*[mK])"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b\[[ -?]*[@-~]?|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x06\x0b\x0c\x0e-\x1f\x7f-\x9f]"
    rf"|(?P<turns>[{DIRECTIONS}])"
)
_RESET = "\x1b[0m"
_RESETS = ("\x1b[m", _RESET)


class Legible:
    """Output as text and colours, for a terminal that it is only read at."""

    __slots__ = ("_coloured", "_decoder", "_filter")

    def __init__(self) -> None:
        self._filter = EscapeFilter()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._coloured = False

    def feed(self, data: bytes) -> bytes:
        """Take bytes, return what may be shown; a sequence or character only when it is whole."""
        return _LEFT.sub(self._left, self._decoder.decode(self._filter.feed(data))).encode()

    def rest(self) -> bytes:
        """Return what waited for more, when there is no more, and the colours as they were."""
        end = _LEFT.sub(self._left, self._decoder.decode(b"", True))
        return (end + _RESET * self._coloured).encode()

    def _left(self, found: re.Match[str]) -> str:
        if stays := found["stays"]:
            if not stays.endswith("K"):
                self._coloured = stays not in _RESETS
            return stays
        return escaped(found["turns"]) if found["turns"] else ""


def _end(run: re.Pattern[bytes], data: bytes, at: int) -> int:
    found = run.match(data, at)
    return at if found is None else found.end()


# -- what passes of a complete sequence ------------------------------------------------------------


@lru_cache(maxsize=256)
def _judged(sequence: bytes) -> bytes:
    if sequence[1] == ord("["):
        return _csi(sequence)
    terminator = b"\a" if sequence.endswith(b"\a") else b"\x1b\\"
    return _osc(sequence.removesuffix(terminator), terminator)


def _escape(sequence: bytes) -> bytes:
    return sequence if _HARMLESS_ESCAPE.fullmatch(sequence) else b""


def _csi(sequence: bytes) -> bytes:
    shape = _SHAPE.fullmatch(sequence)
    if shape is None:
        return b""
    private, numbers, between, final = shape.groups()
    kind = private + between
    if final not in _HARMLESS_CSI.get(kind, b"") or (b":" in numbers and (kind or final != b"m")):
        return b""
    if (kind == b"?" and final in b"hlrs") or (not kind and final in b"hl"):
        modes = [int(number) for number in numbers.split(b";") if number]
        modes = [mode for mode in modes if mode not in _NOT_MODES[kind] and mode < 1 << 16]
        if not modes:
            return b""
        return b"\x1b[%b%b%b" % (kind, b";".join(b"%d" % mode for mode in modes), final)
    # Anything else of a window is a question, or moves it.
    if final == b"t" and not kind:
        first = int(numbers.split(b";")[0] or b"0")
        return sequence if first in (_PUT_TITLE_AWAY, _FETCH_TITLE) else b""
    return sequence


def _osc(sequence: bytes, terminator: bytes) -> bytes:
    numbered = _NUMBERED.fullmatch(sequence)
    if numbered is None:
        return b""
    number, body = int(numbered[1]), numbered[2] or b""
    if not (
        number in _ANY_OSC
        or (number in _COLOUR_OSC and b"?" not in body)
        or (number == _LINK_OSC and _LINK.fullmatch(body))
    ):
        return b""
    try:
        body.decode()  # half a character at its end could take the terminator for its other half
    except UnicodeDecodeError:
        return b""
    return b"\x1b]%d%b%b" % (number, body, terminator)
