"""``events``: what sessions are to be told."""

from __future__ import annotations

import sys

from holdfast.core.record import duration_text

from . import _render
from ._handles import open_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.core.record import Event

    from ._parser import Parser

_BESIDE = 30
_HEADER = ("AT", "SESSION", "SEQ", "HANDLE", "LABEL", "STATUS", "DURATION", "COMMAND")


def options_events(parser: Parser) -> None:
    parser.epilog = "Shows what nobody has acknowledged. A `wait` that saw the end acknowledges it."
    parser.option(
        "--after", metavar="N", type=int, default=0, help="only those whose SEQ is above N"
    )
    parser.option("-f", "--follow", action="store_true", help="go on with what comes")
    parser.option("--ack", action="store_true", help="acknowledge what was shown")
    parser.option("-a", "--all", action="store_true", help="acknowledged ones too")
    parser.option("--text", action="store_true", help="print each as the text for an agent")
    parser.session()
    parser.json("print one JSON array; with -f one object a line")


def do_events(args: Namespace) -> int:
    client = open_for(args)
    events = client.events(after=args.after, follow=args.follow, acknowledged=args.all)
    if args.follow:
        table_begun = False
        for event in events:
            if args.json:
                _render.show_json(event.public())
            elif args.text:
                print(_render.safe_lines(event.text) + "\n", flush=True)
            else:
                # A row at a time: the columns are as wide as what they usually hold.
                _show_row(event, header=not table_begun)
                table_begun = True
            if args.ack and not event.acknowledged:
                client.acknowledge(event)
        return 0
    found = list(events)
    if args.json:
        _render.show_json([event.public() for event in found])
    elif args.text:
        print("\n\n".join(_render.safe_lines(event.text) for event in found), flush=True)
    else:
        table = _render.Table(*_HEADER)
        for event in found:
            table.add(*_cells(event))
        table.show()
        sys.stdout.flush()
    fresh = [event for event in found if not event.acknowledged]
    if args.ack and fresh:
        client.acknowledge(*fresh)
    return 0


def _cells(event: Event) -> tuple[str | tuple[str, str | None], ...]:
    import shlex

    command = event.command if isinstance(event.command, str) else shlex.join(event.command)
    status = _render.status_cell(event) if event.status else event.type
    if event.type == "gap":
        command = f"{event.dropped} older events were dropped because nobody read them"
    elif event.type == "group":
        command = "; ".join(
            f"{member.label or member.handle} {member.status}" for member in event.members
        )
    elif event.type == "input":
        status = f"waits {event.kind}", "yellow"
        if event.prompt:  # which is what counts, so a long command leaves room for it
            command = f"{_render.cut(_render.safe(command), _BESIDE)} asks: {event.prompt}"
    elif event.type == "watch":
        status = f"{event.type} {event.watch}", "yellow"
        seen = event.line or event.match
        more = f" ({event.missed} more before it)" if event.missed else ""
        command = event.condition + (f": {seen}" if seen else "") + more
    return (
        _render.local_time(event.at),
        event.session,
        str(event.seq),
        event.handle or "-",
        event.label or event.group or "-",
        status,
        duration_text(event.duration_seconds) if event.type in ("end", "group") else "-",
        command,
    )


def _show_row(event: Event, header: bool) -> None:
    table = _render.Table(
        *(name.ljust(width) for name, width in zip(_HEADER, _WIDTHS, strict=True))
    )
    table.add(*_cells(event))
    colour = _render.coloured(sys.stdout)
    lines = table.lines(_render.terminal_width(sys.stdout), colour)
    print("\n".join(lines if header else lines[1:]), flush=True)


_WIDTHS = (12, 12, 3, 21, 12, 15, 8, 7)
