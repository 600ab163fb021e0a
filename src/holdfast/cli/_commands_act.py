"""``send`` and ``wait``."""

from __future__ import annotations

import time

from holdfast._config import parse_duration
from holdfast._errors import WaitTimeout

from . import FAILED, TIMED_OUT, _render
from ._handles import find, find_all, open_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from holdfast._sync import SyncProcess

    from ._parser import Parser

_CHUNK = 1 << 20


def options_send(parser: Parser) -> None:
    parser.words("HANDLE [TEXT]", 1, 2)
    parser.epilog = "TEXT - is our own stdin, to its end."
    parser.option("--enter", action="store_true", help="end it with a newline")
    parser.option("--eof", action="store_true", help="close its stdin afterwards")
    parser.session()


def do_send(args: Namespace) -> int:
    if len(args.words) == 1 and not (args.enter or args.eof):
        from ._parser import Usage

        raise Usage("there is nothing to send; give TEXT, --enter or --eof")
    process = find(open_for(args), args.words[0])
    taken = 0
    for data, last in _parts(args):
        wrote = process.send(data, eof=args.eof and last)
        taken += wrote
        if wrote < len(data):
            _render.complain(
                f"{process.handle} took {taken} bytes and reads no more; send the rest when it does"
            )
            return FAILED
    return 0


def _parts(args: Namespace) -> Iterator[tuple[bytes, bool]]:
    """What to send in pieces, and which one is the last."""
    import os

    end = b"\n" if args.enter else b""
    if args.words[1:] == ["-"]:
        while data := os.read(0, _CHUNK):
            yield data, False
        if end or args.eof:
            yield end, True
        return
    text = os.fsencode(args.words[1]) if len(args.words) > 1 else b""
    data = text + end
    while len(data) > _CHUNK:
        yield data[:_CHUNK], False
        data = data[_CHUNK:]
    yield data, True


def options_wait(parser: Parser) -> None:
    parser.words("HANDLE...", 1, None)
    parser.epilog = (
        "Prints one line for each, in the order given: the exit code, 128+n for signal n, `lost` "
        "when nobody can know, `running` when the time was up (the exit code is then 124)."
    )
    parser.option("--timeout", metavar="TIME", help="wait no longer than this")
    parser.session()
    parser.json("print the records as one JSON array")


def do_wait(args: Namespace) -> int:
    deadline = None
    if args.timeout is not None:
        deadline = time.monotonic() + _duration(args.timeout)
    client = open_for(args)
    processes = find_all(client, args.words)
    running = []
    for process in processes:
        word = _wait(process, deadline)
        if word is None:
            running.append(process.handle)
        if not args.json:
            print(word or "running", flush=True)
    if args.json:
        _render.show_json([process.refresh().public() for process in processes])
    client.close()  # what was seen is acknowledged by now
    if not running:
        return 0
    _render.complain(f"still running after {args.timeout}: {', '.join(running)}; wait again")
    return TIMED_OUT


def _wait(process: SyncProcess, deadline: float | None) -> str | None:
    """The exit code as `wait` prints it, or None when the time was up."""
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        code = process.wait(left).shell_code
    except WaitTimeout:
        return None
    return "lost" if code is None else str(code)


def _duration(text: str) -> float:
    from ._parser import Usage

    try:
        return parse_duration(text)
    except ValueError as error:
        raise Usage(f"--timeout {error}, not {text!r}") from None
