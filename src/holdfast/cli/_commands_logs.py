"""``logs``: a log as it is, its end, a page of it, what is new, or all that still comes."""

from __future__ import annotations

import os

from . import _render
from ._handles import find, open_for
from ._streams import FDS, Pump, copy_all, tell_gap, write

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import Protocol

    from holdfast.client.sync import SyncProcess
    from holdfast.core.types import Stream
    from holdfast.output.log import Output

    from ._parser import Parser

    class Decoder(Protocol):
        def decode(self, data: bytes, final: bool = False) -> str: ...


_CHUNK = 1 << 18
_LONGEST_LINE = 1 << 20


def options_logs(parser: Parser) -> None:
    parser.words("HANDLE", 1, 1)
    parser.epilog = (
        "CURSOR is a byte offset (the cursor of an earlier --json), or any name: then you get what "
        "is new since the last time that name was used. Line 0 is the first that was ever written, "
        "and lines keep their numbers; -50:50 are the last 50. With --json each stream is one "
        "object; with -f there is one object a line. On a terminal the output asks nothing of it "
        "and leaves it as it was; anywhere else every byte is as it was written."
    )
    parser.option("-f", "--follow", action="store_true", help="go on until the process ends")
    parser.option("-n", "--tail", metavar="N", type=int, help="only the last N lines")
    parser.option("--since", metavar="CURSOR", help="only what came after")
    parser.option("--lines", metavar="FIRST:COUNT", help="only so many lines, from this one on")
    parser.option("--plain", action="store_true", help="whole lines, without terminal codes")
    parser.option("--stream", choices=("stdout", "stderr"), help="only this one")
    parser.session()
    parser.json()


def do_logs(args: Namespace) -> int:
    _check(args)
    client = open_for(args)
    process = find(client, args.words[0])
    streams = [args.stream] if args.stream else process.record.streams
    if args.follow and len(streams) > 1:
        return _both(args, process.handle)
    for stream in streams:
        _show(args, process, stream)
    return 0


def _check(args: Namespace) -> None:
    from ._parser import Usage

    given = {"-n": args.tail, "--since": args.since, "--lines": args.lines}
    flags = [flag for flag, value in given.items() if value is not None]
    if len(flags) > 1:
        raise Usage(f"{flags[0]} and {flags[1]} cannot be combined; give one of them")
    if args.lines is not None:
        if args.follow:
            raise Usage("--lines shows a page that ends; follow with -n or --since")
        try:
            first, count = map(int, args.lines.split(":"))
        except ValueError:
            count = -1
        if count < 0:
            raise Usage(f"--lines takes FIRST:COUNT, such as 200:50 or -50:50, not {args.lines!r}")
        args.lines = first, count


def _both(args: Namespace, handle: str) -> int:
    from queue import SimpleQueue

    ends: SimpleQueue[BaseException | None] = SimpleQueue()
    for stream in FDS:
        Pump(args, handle, lambda process, stream=stream: _show(args, process, stream), ends.put)
    for _ in FDS:
        error = ends.get()
        if error is not None:
            raise error
    return 0


def _show(args: Namespace, process: SyncProcess, stream: Stream) -> None:
    outputs = _outputs(args, process, stream)
    if args.json:
        show = _json_lines if args.follow else _json_object
        show(process.handle, stream, outputs, _decoder(args))
    elif args.plain:
        _plain(outputs, FDS[stream])
    elif process.record.capabilities.terminal and os.isatty(1) and _render.can_draw():
        from ._own_terminal import show_all

        show_all(outputs)
    else:
        copy_all(outputs, FDS[stream])


def _decoder(args: Namespace) -> Decoder:
    """A decoder of bytes that may be cut anywhere, such as inside a character."""
    if args.plain:
        return _Plain()
    import codecs

    return codecs.getincrementaldecoder("utf-8")("replace")


class _Plain:
    """Text without terminal codes, in whole lines: there a code is whole too."""

    def __init__(self) -> None:
        self._held = b""

    def decode(self, data: bytes, final: bool = False) -> str:
        from holdfast.core.completion_text import clean_text

        data = self._held + data
        whole = final or len(data) > _LONGEST_LINE
        end = len(data) if whole else data.rfind(b"\n") + 1
        self._held = data[end:]
        return clean_text(data[:end])


def _plain(outputs: Iterator[Output], fd: int) -> None:
    decoder = _Plain()
    shown = _render.shown_at(fd)
    for output in outputs:
        tell_gap(output)
        write(fd, shown(decoder.decode(output.data)).encode())
    write(fd, shown(decoder.decode(b"", final=True)).encode())


def _outputs(args: Namespace, process: SyncProcess, stream: Stream) -> Iterator[Output]:
    if args.since is not None and not args.since.isdigit():
        yield from _news(args, process, stream)
        return
    if args.lines is not None:
        first, count = args.lines
        for output in _page(process, stream, first, count):
            if output.gone and not args.json:
                _render.complain(
                    f"{output.gone} lines before line {output.first_line} are gone: the log is "
                    "cleared, or longer than its cap (run --log-cap keeps more)"
                )
            yield output
        return
    start = int(args.since or 0)
    if args.tail is not None:
        tail = process.tail(args.tail, stream=stream)
        start = tail.start
        if tail.cut:
            _render.complain(
                f"only the last {tail.end - start} bytes of those {args.tail} lines are shown; "
                "without -n there is all of it"
            )
    if args.follow:
        yield from process.follow(offset=start, stream=stream)
        return
    # As much as there is now: a process that writes faster than we do would never let us go.
    end = process.tail_bytes(1, stream=stream).end
    while True:
        output = process.read_at(start, max(0, min(_CHUNK, end - start)), stream=stream)
        yield output
        if output.end >= end or output.end <= start:
            return
        start = output.end


def _page(process: SyncProcess, stream: Stream, first: int, count: int) -> Iterator[Output]:
    """Lines by number, however many bytes they have: not all may come at once."""
    while True:
        output = process.lines(first, count, stream=stream)
        yield output
        if not output.cut or output.first_line is None or output.next_line is None:
            return
        if not output.data.endswith(b"\n"):
            yield from _rest_of_line(process, stream, output.end)
        first, count = output.next_line, count - (output.next_line - output.first_line)


def _rest_of_line(process: SyncProcess, stream: Stream, offset: int) -> Iterator[Output]:
    while (output := process.read_at(offset, _CHUNK, stream=stream)).data:
        end = output.data.find(b"\n") + 1
        if end:
            output.data, output.end = output.data[:end], output.start + end
        yield output
        if end:
            return
        offset = output.end


def _news(args: Namespace, process: SyncProcess, stream: Stream) -> Iterator[Output]:
    """Read what this reader has not seen, and move its cursor on."""

    def unread() -> Iterator[Output]:
        output = None
        while output is None or output.more:
            output = process.read(reader=args.since, limit=_CHUNK, stream=stream)
            yield output

    for output in unread():
        yield output
    if args.follow:
        for _ in process.follow(offset=output.end, stream=stream):
            yield from unread()
        yield from unread()


def _json_lines(handle: str, stream: str, outputs: Iterator[Output], decoder: Decoder) -> None:
    def show(start: int, cursor: int, gap: int, text: str) -> None:
        _render.show_json(
            {
                "handle": handle,
                "stream": stream,
                "start": start,
                "cursor": cursor,
                "gap": gap,
                "text": text,
            }
        )

    cursor = 0
    for output in outputs:
        cursor = output.end
        if output.data or output.gap:
            show(output.start, output.end, output.gap, decoder.decode(output.data))
    if rest := decoder.decode(b"", final=True):
        show(cursor, cursor, 0, rest)


def _json_object(handle: str, stream: str, outputs: Iterator[Output], decoder: Decoder) -> None:
    """One object, written as the log is read: it may be larger than memory."""
    import json
    import sys

    put = sys.stdout.write
    start, cursor, gap = -1, 0, 0
    lines: dict[str, int | None] = {}
    put(json.dumps({"handle": handle, "stream": stream})[:-1] + ', "text": "')
    for output in outputs:
        if start < 0:
            start = output.start
        cursor, gap = output.end, gap + output.gap
        if output.first_line is not None:
            lines.setdefault("first_line", output.first_line)
            lines["next_line"] = output.next_line
            lines["gone"] = (lines.get("gone") or 0) + output.gone
        put(json.dumps(decoder.decode(output.data))[1:-1])
    put(json.dumps(decoder.decode(b"", final=True))[1:-1])
    found = {"start": start, "cursor": cursor, "gap": gap, **lines}
    put('", ' + json.dumps(found)[1:] + "\n")
