"""``ps`` and ``status``."""

from __future__ import annotations

from . import _render
from ._handles import find, open_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from ._parser import Parser


def options_ps(parser: Parser) -> None:
    parser.option("-a", "--all", action="store_true", help="finished processes too")
    parser.session()
    parser.json("print the records as one JSON array")


def do_ps(args: Namespace) -> int:
    client = open_for(args)
    records = [process.record for process in client.list()]
    if not args.all:
        records = [record for record in records if record.running]
    if args.json:
        _render.show_json([record.public() for record in records])
    else:
        _render.process_table(records).show()
    problems = client.problems()
    if problems:
        what = "a record" if len(problems) == 1 else f"{len(problems)} records"
        _render.complain(f"{what} could not be read; `holdfast doctor` says which and why")
    return 0


def options_status(parser: Parser) -> None:
    parser.words("HANDLE", 1, 1)
    parser.session()
    parser.json("print the record as JSON")


def do_status(args: Namespace) -> int:
    record = find(open_for(args), args.words[0]).refresh()
    if args.json:
        _render.show_json(record.public())
    else:
        _render.show_record(record)
    return 0
