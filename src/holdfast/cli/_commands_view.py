"""``view``, ``search`` and ``stats``: output as it is best read, found in, and what it costs."""

from __future__ import annotations

import sys
import time

from . import _render
from ._handles import find, find_all, open_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.sync import SyncClient
    from holdfast.core.record import Record
    from holdfast.linux.usage import Usage

    from ._parser import Parser

NOTHING_FOUND = 1
_STATS = {
    "HANDLE": 21,
    "LABEL": 6,
    "CPU": 5,
    "MEMORY": 9,
    "PROCESSES": 9,
    "THREADS": 7,
    "PORTS": 5,
}
_ONCE, _OFTEN, _LEAST, _MOST = 0.2, 1.0, 0.1, 86400.0  # seconds between looks


def options_view(parser: Parser) -> None:
    parser.words("HANDLE", 1, 1)
    parser.epilog = (
        "The output without terminal codes, progress bars as they were last, repeated lines "
        "counted; of much of it the first and the last part and the first error, with notes that "
        "say exactly what was left out; --start N shows more from byte N on. `holdfast logs` has "
        "every byte."
    )
    parser.option(
        "--budget", metavar="N", type=int, default=10_000, help="at most so many characters (10000)"
    )
    _range(parser)
    parser.session()
    parser.json("print it with what was left out as JSON")


def _range(parser: Parser) -> None:
    parser.option("--start", metavar="OFFSET", type=int, help="only from this byte on")
    parser.option("--end", metavar="OFFSET", type=int, help="only up to this byte")
    parser.option(
        "--stream",
        choices=("stdout", "stderr"),
        help="only this one (default: both where stderr is separate; of a range stdout)",
    )


def do_view(args: Namespace) -> int:
    process = find(open_for(args), args.words[0])
    view = process.view(budget=args.budget, start=args.start, end=args.end, stream=args.stream)
    if args.json:
        _render.show_json({"handle": process.handle, **view.public()})
    elif view.text:
        text = _render.shown_at(1)(view.text)
        sys.stdout.write(text + ("" if text.endswith("\n") else "\n"))
    return 0


def options_search(parser: Parser) -> None:
    parser.words("HANDLE PATTERN", 2, 2)
    parser.epilog = (
        "Prints the last matching lines, each with its number (as `holdfast logs --lines` takes "
        "it) and its byte offset, with lines around it. The exit code is 1 if nothing matched."
    )
    parser.option("-C", "--context", metavar="N", type=int, default=2, help="lines around it (2)")
    parser.option("--first", metavar="N", type=int, help="the first N matches")
    parser.option("--last", metavar="N", type=int, default=20, help="the last N matches (20)")
    parser.option("-i", "--ignore-case", action="store_true", help="A is a")
    parser.option("-F", "--literal", action="store_true", help="PATTERN is plain text")
    parser.option(
        "--timeout", metavar="S", type=float, default=2.0, help="take no longer than this (2)"
    )
    _range(parser)
    parser.session()
    parser.json()


def do_search(args: Namespace) -> int:
    handle, pattern = args.words
    process = find(open_for(args), handle)
    found = process.search(
        pattern,
        context=args.context,
        first=args.first,
        last=args.last,
        ignore_case=args.ignore_case,
        literal=args.literal,
        start=args.start,
        end=args.end,
        timeout=args.timeout,
        stream=args.stream,
    )
    if args.json:
        _render.show_json({"handle": process.handle, **found.public()})
    elif found.text:
        print(_render.shown_at(1)(found.text))
    return 0 if found.count else NOTHING_FOUND


def options_stats(parser: Parser) -> None:
    parser.words("[HANDLE...]", 0, None)
    parser.epilog = (
        "Of each process with everything it started; without handles, of all that run. With -f it "
        "goes on, a line for each look, until none of them runs."
    )
    parser.option("-f", "--follow", action="store_true", help="look again and again")
    parser.option("-n", "--count", metavar="N", type=int, help="with -f: look so many times")
    parser.option(
        "--interval", metavar="S", help="time between two looks (0.2; with -f 1, at least 0.1)"
    )
    parser.session()
    parser.json("print one JSON array; with -f one object a line")


def do_stats(args: Namespace) -> int:
    from holdfast.linux.usage import usages

    from ._parser import duration

    _check_count(args)
    interval = None
    if args.interval is not None:
        interval = min(duration(args.interval, "--interval"), _MOST)
    client = open_for(args)
    processes = find_all(client, args.words) if args.words else client.list(ended=False)
    records = [process.record for process in processes]
    if args.follow:
        return _follow_stats(args, client, records, max(_LEAST, interval or _OFTEN))
    found = usages(records, interval=_ONCE if interval is None else interval)
    if args.json:
        _render.show_json([_public(record, found[record.handle]) for record in records])
        return 0
    table = _render.Table(*_STATS)
    for record in records:
        table.add(*_cells(record, found[record.handle]))
    table.show()
    return 0


def _check_count(args: Namespace) -> None:
    from ._parser import Usage

    if args.count is not None and not args.follow:
        raise Usage("--count is for --follow; give both")
    if args.count is not None and args.count < 1:
        raise Usage(f"--count is how many times to look, at least 1, not {args.count}")


def _follow_stats(
    args: Namespace, client: SyncClient, records: list[Record], interval: float
) -> int:
    from holdfast.linux.usage import usages

    found = usages(records, interval=min(_ONCE, interval))
    seen = 0
    while True:
        _show_stats(records, found, header=seen == 0, json=args.json)
        seen += 1
        if seen == args.count:
            return 0
        records = _running_after(interval, client, records, named=bool(args.words))
        if not records:
            return 0
        found = usages(records, since=found)


def _running_after(
    seconds: float, client: SyncClient, records: list[Record], *, named: bool
) -> list[Record]:
    """The processes that run after so long, of these or of all; at once if none of these does."""
    import select

    from holdfast.linux.inotify import Watch

    until = time.monotonic() + seconds
    handles = {record.handle for record in records}
    with Watch([client.home.meta(handle) for handle in handles]) as watch:
        fd = watch.fileno()
        while True:
            watch.drain()
            running = [process.record for process in client.list(ended=False)]
            theirs = [record for record in running if record.handle in handles]
            left = until - time.monotonic()
            if left <= 0 or not theirs:
                return theirs if named else running
            select.select([] if fd is None else [fd], [], [], left)


def _show_stats(
    records: list[Record], found: dict[str, Usage], *, header: bool, json: bool
) -> None:
    if json:
        for record in records:
            _render.show_json(_public(record, found[record.handle]))
        return
    # A look at a time: the columns are as wide as what they usually hold.
    table = _render.Table("AT      ", *(name.ljust(width) for name, width in _STATS.items()))
    for record in records:
        used = found[record.handle]
        table.add(time.strftime("%H:%M:%S", time.localtime(used.at)), *_cells(record, used))
    lines = table.lines(_render.terminal_width(sys.stdout), _render.coloured(sys.stdout))
    for line in lines if header else lines[1:]:
        print(line, flush=True)


def _public(record: Record, used: Usage) -> dict[str, object]:
    return {"handle": record.handle, "label": record.label, **used.public()}


def _cells(record: Record, used: Usage) -> list[str]:
    return [
        record.handle,
        record.label or "-",
        _render.percent_text(used.cpu_percent) or "-",
        _render.size_text(used.memory_bytes) or "-",
        *("-" if each is None else str(each) for each in (used.processes, used.threads)),
        _render.ports_text(used) or "-",
    ]
