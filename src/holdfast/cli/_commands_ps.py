"""``ps`` and ``status``."""

from __future__ import annotations

from . import _render
from ._handles import find, open_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from holdfast.core.record import Record
    from holdfast.linux.usage import Usage

    from ._parser import Parser


def options_ps(parser: Parser) -> None:
    parser.option("-a", "--all", action="store_true", help="finished processes too")
    parser.option(
        "-u", "--usage", action="store_true", help="what those that run use, with all they started"
    )
    parser.option("-q", "--quiet", action="store_true", help="print handles only")
    parser.option("--group", metavar="G", help="only this group")
    parser.epilog = (
        "CPU AVERAGE is since the start of the process; `holdfast stats` has it for now."
    )
    parser.session()
    parser.json("print the records as one JSON array, with what they use")


def do_ps(args: Namespace) -> int:
    client = open_for(args)
    listed = client.list(group=args.group, ended=args.all)
    records = [process.record for process in listed]
    if args.quiet and not args.json:
        for record in records:
            print(record.handle)
        return 0
    running = [record for record in records if record.running]
    used = None
    if args.usage or args.json:
        from holdfast.linux.usage import usages

        used = usages(running)
    if args.json:
        _render.show_json([_public(record, (used or {}).get(record.handle)) for record in records])
    else:
        _render.process_table(records, used).show()
    problems = client.problems()
    if problems:
        what = "a record" if len(problems) == 1 else f"{len(problems)} records"
        _render.complain(f"{what} could not be read; `holdfast doctor` says which and why")
    return 0


def options_status(parser: Parser) -> None:
    parser.words("HANDLE", 1, 1)
    parser.session()
    parser.json("print the record as JSON, with what it uses")


def do_status(args: Namespace) -> int:
    process = find(open_for(args), args.words[0])
    record = process.refresh()
    used = process.usage() if record.running else None
    if args.json:
        _render.show_json(_public(record, used))
    else:
        _render.show_record(record, used)
    return 0


def _public(record: Record, used: Usage | None) -> dict[str, Any]:
    return {**record.public(), "usage": None if used is None else used.public()}
