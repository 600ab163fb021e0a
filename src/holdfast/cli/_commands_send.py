"""``send``, ``wait`` and ``gather``."""

from __future__ import annotations

import sys
import time

from holdfast.core.errors import WaitTimeout

from . import ENDED_FIRST, FAILED, TIMED_OUT, _render
from ._handles import find, find_all, find_group, open_for
from ._parser import Usage, duration, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

    from holdfast.client.sync import SyncClient, SyncProcess
    from holdfast.client.wait_for import Waited
    from holdfast.core.types import Condition

    from ._parser import Parser

_CHUNK = 1 << 20
_LAST_LINES = 10


def options_send(parser: Parser) -> None:
    parser.words("HANDLE [TEXT] [--keys KEY...]", 1, 2)
    parser.epilog = (
        "TEXT - is our own stdin, to its end. Keys are named as in tmux: Enter, Tab, Escape, Up, "
        "PageDown, F5, C-c, M-x, S-Tab; a single character is itself. They come after the text."
    )
    parser.option("--enter", action="store_true", help="press Enter (end it with a newline)")
    parser.option(
        "--paste", action="store_true", help="as a paste, if the program tells them apart"
    )
    parser.option(
        "--eof", action="store_true", help="close its stdin afterwards (in a terminal: C-d)"
    )
    parser.option(
        "--keys", metavar="KEY", nargs="...", default=[], help="press these; must come last"
    )
    parser.session()


def do_send(args: Namespace) -> int:
    if len(args.words) == 1 and not (args.enter or args.eof or args.keys):
        raise Usage("there is nothing to send; give TEXT, --enter, --eof or --keys KEY...")
    process = find(open_for(args), args.words[0])
    if args.keys:
        parse_keys(args.keys)  # nothing is sent unless all of it can be
    taken = 0
    for data, enter, eof in _parts(args):
        wrote = process.send(data, enter=enter, paste=args.paste and bool(data), eof=eof)
        taken += wrote
        if wrote < _least(process, data, enter):
            _render.complain(
                f"{process.handle} took {taken} bytes and reads no more; send the rest when it does"
            )
            return FAILED
    if args.keys:
        process.keys(*args.keys)
        if args.eof:
            process.send(b"", eof=True)
    return 0


def _parts(args: Namespace) -> Iterator[tuple[str | bytes, bool, bool]]:
    """Yield what to send: a text, whether with Enter, and whether it ends the input."""
    eof = args.eof and not args.keys
    text = args.words[1:]
    if text == ["-"]:
        import os

        text = []
        while data := os.read(0, _CHUNK):
            yield data, False, False
    if text or args.enter or eof:
        yield "".join(text), args.enter, eof


def _least(process: SyncProcess, data: str | bytes, enter: bool) -> int:
    """The number of bytes it takes if it takes everything."""
    from holdfast.terminal.control import typed

    raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    return len(typed(data, raw, terminal=process.record.capabilities.terminal, enter=enter))


def parse_keys(names: list[str]) -> None:
    from holdfast.terminal.keys import parse

    for name in names:
        parse(name)


def options_wait(parser: Parser) -> None:
    parser.words("HANDLE... | --group G", 0, None)
    parser.epilog = (
        "Prints one line for each, in the order given: the exit code, 128+n for signal n, `lost` "
        "when nobody can know, `running` when the time was up (the exit code is then 124). With "
        "--for it prints what came to hold. CONDITION is exit, input, output=PATTERN, port=3000, "
        "http=URL, file=PATH or quiet=5s, or a JSON object with more; output counts from its "
        "start, and each match once: the same wait again goes on after it. The exit code is 1 if a "
        "process ended first."
    )
    parser.option("--timeout", metavar="TIME", help="wait no longer than this")
    parser.option(
        "--for",
        dest="conditions",
        metavar="CONDITION",
        action="append",
        default=[],
        help="wait until this holds, not for the end; may be repeated",
    )
    parser.option("--any", action="store_true", help="one is enough (the default)")
    parser.option("--all", dest="every", action="store_true", help="every condition, for each")
    parser.option("--group", metavar="G", help="all that were started with this group")
    parser.option(
        "--from-start", action="store_true", help="all output counts, found before or not"
    )
    parser.option("--from-now", action="store_true", help="only output that is yet to come counts")
    parser.session()
    parser.json("print the records as one JSON array, or with --for what came of it")


def do_wait(args: Namespace) -> int:
    deadline = None
    if args.timeout is not None:
        deadline = time.monotonic() + duration(args.timeout, "--timeout")
    if args.words and args.group is not None:
        raise Usage("give handles or --group G, not both")
    if not args.words and args.group is None:
        raise Usage("which process? give handles or --group G")
    client = open_for(args)
    processes = find_all(client, args.words) if args.words else find_group(client, args.group)
    if args.conditions:
        return _wait_for(args, client, processes)
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
    after = _seconds(args.timeout)
    _render.complain(f"still running after {after}: {', '.join(running)}; wait again")
    return TIMED_OUT


def _wait_for(args: Namespace, client: SyncClient, processes: list[SyncProcess]) -> int:
    if args.any and args.every:
        raise Usage("give --any or --all, not both")
    since = "start" if args.from_start else "now" if args.from_now else None
    conditions = [table(text, "--for") for text in args.conditions]
    if since:
        conditions = [_since(each, since) for each in conditions]
    waited = client.wait_for(processes, *conditions, all=args.every, timeout=args.timeout)
    client.close()
    if args.json:
        _render.show_json(waited.public())
    else:
        for met in waited.met:
            name = f"{met.handle}: " if len(processes) > 1 else ""
            how = f": {waited.ended[met.handle].describe()}" if met.condition == "exit" else ""
            print(_render.safe(name + met.describe() + how))
    if waited.ok:
        return 0
    _show_ended(waited, brief=args.json)
    if waited.timed_out:
        waiting = "; ".join(waited.waiting)
        after = _seconds(args.timeout)
        _render.complain(f"still waiting after {after} for {waiting}; wait again")
        return TIMED_OUT
    return ENDED_FIRST


def _show_ended(waited: Waited, *, brief: bool) -> None:
    """Tell who ended before it could do what was waited for, and the last it said."""
    told = {met.handle for met in waited.met if met.condition == "exit"}
    for handle, end in waited.ended.items():
        if handle in told:
            continue
        lines = waited.tail.get(handle, "").rstrip("\n").split("\n")[-_LAST_LINES:]
        said = [] if brief else [line for line in lines if line.strip()]
        below = "; its last output:" if said else ""
        _render.complain(
            f"{handle} {end.describe()} before that; `holdfast logs {handle}` has its output{below}"
        )
        for line in said:
            sys.stderr.write(f"  {_render.safe(line)}\n")


def _seconds(timeout: str) -> str:
    """A time as it was given; a number alone is of seconds."""
    return f"{timeout} s" if timeout.replace(".", "", 1).isdigit() else timeout


def _since(given: Condition, since: str) -> Condition:
    if isinstance(given, dict):
        return {"since": since, **given} if "output" in given else given
    kind, equals, value = str(given).partition("=")
    return {"output": value, "since": since} if kind == "output" and equals else given


def _wait(process: SyncProcess, deadline: float | None) -> str | None:
    """The exit code as `wait` prints it, or None when the time was up."""
    left = None if deadline is None else max(0.0, deadline - time.monotonic())
    try:
        code = process.wait(left).shell_code
    except WaitTimeout:
        return None
    return "lost" if code is None else str(code)


def options_gather(parser: Parser) -> None:
    parser.words("GROUP", 1, 1)
    parser.epilog = (
        "Tells the session once, when the last of those that now run in the group has ended. "
        "Prints their handles. Ends that nobody was told of yet are told with the others."
    )
    parser.session("the session the group is in (default: $HOLDFAST_SESSION, else `default`)")


def do_gather(args: Namespace) -> int:
    for handle in open_for(args).group(args.words[0]).gather():
        print(handle)
    return 0
