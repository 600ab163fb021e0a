"""The two forms in which the engine sends output: frames, and lines of its log with their times.

A frame is eight bytes, of which the first is the stream and the last four the length, and that many
bytes. A container with a terminal has no frames: its output comes as it is.

A message of the log is a line with its time. Longer ones come in parts of 16 KiB, which share the
time of the first. The `local` driver of Docker 20.10 forgets the line end of those: a part that is
shorter, has no line end and follows a full one was the last of its line, so its line end is put
back as soon as another message of its stream shows that this was not the end of all output.
"""

from __future__ import annotations

import re
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Frame = tuple[int, int]  # stream, bytes left of it; or a head that is cut
    Message = tuple[int, str, bytes]  # stream, time, text

OUT, ERR = 1, 2
STREAMS = (OUT, ERR)
PART = 16384
_CUT = 0x80
_STAMP = 31  # 2006-01-02T15:04:05.000000000Z and a space
_STAMP_FORM = rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{9}Z "
_LINE_END = 10


def deframe(data: bytes, frame: Frame) -> tuple[list[tuple[int, bytes]], Frame]:
    """Pieces of output, neighbours of one stream in one, and how the next data goes on."""
    stream, left = frame
    cut = b""
    if stream & _CUT:  # the head's first bytes: how many, the stream, and the length so far
        cut = (bytes((stream & 3, 0, 0, 0)) + left.to_bytes(4, "big"))[: stream >> 2 & 0x1F]
        left = 0
    runs: list[tuple[int, list[bytes]]] = []
    at, size = 0, len(data)
    while at < size:
        if left:
            piece = data[at : at + left]
            if runs and runs[-1][0] == stream:
                runs[-1][1].append(piece)
            else:
                runs.append((stream, [piece]))
            at += len(piece)
            left -= len(piece)
            continue
        head = cut + data[at : at + 8 - len(cut)]
        at += len(head) - len(cut)
        if len(head) == 8:
            stream, left, cut = head[0], int.from_bytes(head[4:], "big"), b""
        else:
            cut = head
    pieces = [(stream, b"".join(parts)) for stream, parts in runs]
    if cut:
        return pieces, (
            _CUT | len(cut) << 2 | cut[0],
            int.from_bytes(cut[4:].ljust(4, b"\0"), "big"),
        )
    return pieces, (stream, left)


class Messages:
    """The messages of one reading of the log, line ends put back.

    After the last one, `open_ended` has the streams whose last message may lack its line end.
    """

    __slots__ = ("_source", "open_ended")

    def __init__(self, pieces: Iterable[bytes], *, framed: bool) -> None:
        self._source = _framed(pieces) if framed else _unframed(pieces)
        self.open_ended: set[int] = set()

    def __iter__(self) -> Iterator[Message]:
        held: dict[int, Message] = {}  # the end of a long line, without a line end
        going_on = [False] * 256
        for message in self._source:
            stream, _, text = message
            if held and stream in held:
                _, when, last = held.pop(stream)
                yield stream, when, last + b"\n"
            if going_on[stream] or len(text) >= PART:
                ended = text[-1:] == b"\n"
                if going_on[stream] and not ended and len(text) < PART:
                    held[stream] = message
                    going_on[stream] = False
                    continue
                going_on[stream] = not ended
            yield message
        self.open_ended = set(held)
        yield from held.values()


def _framed(pieces: Iterable[bytes]) -> Iterator[Message]:
    data = b""
    for piece in pieces:
        data = data + piece if data else piece
        at, size = 0, len(data)
        while size - at >= 8:
            begin = at + 8
            end = begin + int.from_bytes(data[at + 4 : begin], "big")
            if end > size:
                break
            text = begin + _STAMP
            yield data[at], data[begin : text - 1].decode(), data[text:end]
            at = end
        data = data[at:]


def _unframed(pieces: Iterable[bytes]) -> Iterator[Message]:
    """A terminal's: a message ends with its line, or at 16 KiB, or where the next time stands."""
    data, going_on = b"", False
    for piece in pieces:
        data += piece
        at = 0
        while True:
            text = at + _STAMP
            most = text + PART
            line = data.find(b"\n", text, most)
            end = line + 1 if line >= 0 else most
            if going_on:  # its line end may be forgotten
                found = re.compile(_STAMP_FORM).search(data, text, min(len(data), end + _STAMP))
                if found is not None:
                    end = found.start()
            if end > len(data):
                break
            yield OUT, data[at : text - 1].decode(), data[text:end]
            going_on = end == most and data[end - 1] != _LINE_END
            at = end
        data = data[at:]
    if len(data) > _STAMP:
        yield OUT, data[: _STAMP - 1].decode(), data[_STAMP:]


def stamp(ns: int) -> str:
    """A time as the engine writes it; such strings sort as their times do."""
    seconds, rest = divmod(ns, 10**9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:09d}Z"


def nanoseconds(when: str) -> int:
    """The other way; the engine cuts zeros at the end in some places."""
    from datetime import datetime  # few runners ever need it

    seconds = int(datetime.fromisoformat(when[:19] + "+00:00").timestamp())
    return seconds * 10**9 + int(when[20:].rstrip("Z").ljust(9, "0"))


def now() -> str:
    return stamp(time.time_ns())
