"""``view``, ``search`` and ``stats``: output as it is best read, found in, and what it costs."""

from __future__ import annotations

import sys

from . import _render
from ._handles import find, find_all, open_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast._usage import Usage

    from ._parser import Parser

NOTHING_FOUND = 1


def options_view(parser: Parser) -> None:
    parser.words("HANDLE", 1, 1)
    parser.epilog = (
        "The output without terminal codes, progress bars as they were last, repeated lines "
        "counted; of much of it the first and the last part and the first error, with notes that "
        "say exactly what was left out. `holdfast logs` has every byte."
    )
    parser.option(
        "--budget", metavar="N", type=int, default=10_000, help="at most so many characters (10000)"
    )
    parser.option("--start", metavar="OFFSET", type=int, help="only from this byte on")
    parser.option("--end", metavar="OFFSET", type=int, help="only up to this byte")
    parser.option("--stream", choices=("stdout", "stderr"), default="stdout", help="which one")
    parser.session()
    parser.json("print it with what was left out as JSON")


def do_view(args: Namespace) -> int:
    process = find(open_for(args), args.words[0])
    view = process.view(budget=args.budget, start=args.start, end=args.end, stream=args.stream)
    if args.json:
        _render.show_json({"handle": process.handle, **view.public()})
    elif view.text:
        sys.stdout.write(view.text + ("" if view.text.endswith("\n") else "\n"))
    return 0


def options_search(parser: Parser) -> None:
    parser.words("HANDLE PATTERN", 2, 2)
    parser.epilog = (
        "Prints the last matching lines, each after its byte offset, with lines around it. The "
        "exit code is 1 if nothing matched."
    )
    parser.option("-C", "--context", metavar="N", type=int, default=2, help="lines around it (2)")
    parser.option("--first", metavar="N", type=int, help="the first N matches")
    parser.option("--last", metavar="N", type=int, default=20, help="the last N matches (20)")
    parser.option("-i", "--ignore-case", action="store_true", help="A is a")
    parser.option("-F", "--literal", action="store_true", help="PATTERN is plain text")
    parser.option(
        "--timeout", metavar="S", type=float, default=2.0, help="take no longer than this (2)"
    )
    parser.option("--stream", choices=("stdout", "stderr"), default="stdout", help="which one")
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
        timeout=args.timeout,
        stream=args.stream,
    )
    if args.json:
        _render.show_json({"handle": process.handle, **found.public()})
    elif found.text:
        print(found.text)
    return 0 if found.count else NOTHING_FOUND


def options_stats(parser: Parser) -> None:
    parser.words("[HANDLE...]", 0, None)
    parser.epilog = "Of each process with everything it started; without handles, of all that run."
    parser.option(
        "--interval", metavar="S", type=float, default=0.2, help="look twice, so far apart (0.2)"
    )
    parser.session()
    parser.json()


def do_stats(args: Namespace) -> int:
    from holdfast._usage import usages

    client = open_for(args)
    processes = find_all(client, args.words) if args.words else client.list()
    records = [process.record for process in processes if args.words or process.record.running]
    found = usages(records, interval=max(0.0, min(args.interval, 60.0)))
    if args.json:
        _render.show_json(
            [{"handle": record.handle, **found[record.handle].public()} for record in records]
        )
        return 0
    table = _render.Table("HANDLE", "LABEL", "CPU", "MEMORY", "PROCESSES", "THREADS", "PORTS")
    for record in records:
        table.add(record.handle, record.label or "-", *_cells(found[record.handle]))
    table.show()
    return 0


def _cells(used: Usage) -> list[str]:
    percent = "-" if used.cpu_percent is None else f"{used.cpu_percent:.0f}%"
    ports = ", ".join(map(str, used.ports)) or "-"
    memory = _render.size_text(used.memory_bytes) or "-"
    return [percent, memory, str(used.processes), str(used.threads), ports]
