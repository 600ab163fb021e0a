"""``attach``, ``screen`` and ``resize``: what people do with the terminal of a process."""

from __future__ import annotations

import os
import sys

from holdfast.core.errors import BadRequest, HoldfastError, NotRunning, Unsupported
from holdfast.core.record import Exit

from . import _render
from ._handles import find, open_for
from ._streams import on_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from holdfast.client.sync import SyncClient, SyncProcess
    from holdfast.core.record import Record

    from ._parser import Parser

_DETACH = "C-]"
_SEEN = 0.7


def options_attach(parser: Parser) -> None:
    parser.words("HANDLE", 1, 1)
    parser.epilog = (
        f"You see its terminal and type into it, in the size of yours. {_DETACH} lets you go; the "
        "process goes on, in the size it had before. Several people may be attached at once. The "
        "exit code is the command's, or 0 after you went. A process in tmux is shown by tmux, "
        "which C-b d leaves."
    )
    parser.option("--read-only", action="store_true", help="only look: no keys, no change of size")
    parser.option(
        "--detach-keys",
        metavar="KEYS",
        help=f"what lets you go ({_DETACH}): keys like C-q or C-p,C-q, or none",
    )
    parser.session()


def do_attach(args: Namespace) -> int:
    client = open_for(args)
    process = find(client, args.words[0])
    _check(process.record)
    return attached(args, client, process, read_only=args.read_only, keys=args.detach_keys)


def _check(record: Record) -> None:
    handle = record.handle
    if not record.capabilities.terminal:
        raise Unsupported(
            f"{handle} has no terminal to attach to; `holdfast logs -f {handle}` follows its "
            "output, and `run --tty` gives a process a terminal"
        )
    if not record.running:
        raise NotRunning(
            f"{handle} is not running any more: {Exit.of(record).describe()}; "
            f"`holdfast screen {handle}` shows what it left on its screen"
        )
    if not on_terminal():
        raise BadRequest(
            "attach needs a terminal on stdin and stdout; without one there are `holdfast screen`, "
            "`holdfast logs -f` and `holdfast send`"
        )
    if record.tty is not None and os.ttyname(0) == record.tty:
        raise BadRequest(f"this is the terminal of {handle}; attach to it from another one")
    if record.tmux_session is None and not _render.can_draw():  # tmux draws for itself
        raise BadRequest(
            "attach needs a terminal that can be drawn on, and TERM says (dumb, or nothing) that "
            f"this one cannot; set TERM to what it is, or use `holdfast screen {handle}`"
        )


def attached(
    args: Namespace,
    client: SyncClient,
    process: SyncProcess,
    *,
    keys: str | None = None,
    read_only: bool = False,
    started_here: bool = False,
    on_signal: Callable[[int], bool] | None = None,
) -> int:
    """Be at a process's terminal until its end or until the person goes; the exit code."""
    if process.record.tmux_session is not None:
        from ._in_tmux import LEAVE, Visit

        visit = Visit(
            client, process, read_only=read_only, started_here=started_here, on_signal=on_signal
        )
        if keys is not None:
            _say(f"[--detach-keys is not for tmux, whose own key is {LEAVE}]")
        hint = _greet(process.handle, LEAVE, read_only=read_only, started_here=started_here)
        record = visit.stay(hint)
        if started_here and record is not None and not record.running:
            _show_last(process)
        if visit.caught:
            return 128 + visit.caught
        return _farewell(process.handle, record, started_here)
    from ._attach import Attachment
    from ._typing import Detach

    keys = _DETACH if keys is None else keys
    attachment = Attachment(
        args,
        client,
        process,
        detach=Detach(keys),
        read_only=read_only,
        from_start=started_here,
        on_signal=on_signal,
    )
    left = attachment.stay(
        _greet(process.handle, keys, read_only=read_only, started_here=started_here)
    )
    if attachment.trouble:
        _render.complain(attachment.trouble)
    if left.how == "signal":
        return 128 + left.number
    record = None if left.how == "removed" else attachment.record
    return _farewell(process.handle, record, started_here, left.how == "detached")


def _greet(handle: str, keys: str, *, read_only: bool, started_here: bool) -> float:
    """Say how to get away; for how long that is to be seen before it is drawn over."""
    if started_here:
        if os.isatty(2):
            _say(f"[{handle}; {keys} lets go of it and leaves it running]")
        return 0.0
    how = "watching" if read_only else "attached to"
    way = "" if keys.lower() == "none" else f"; {keys} lets you go, it goes on"
    _say(f"[{how} {handle}{way}]")
    return _SEEN


def _show_last(process: SyncProcess) -> None:
    """Write again what tmux took off the screen when it left."""
    try:
        text = process.screen().text
    except HoldfastError:
        return  # the log is there
    if text:
        print(_render.safe_lines(text), flush=True)


def _farewell(
    handle: str, record: Record | None, started_here: bool, detached: bool = False
) -> int:
    from ._commands_run import exit_code

    if record is None:
        raise NotRunning(f"{handle} was removed while you looked at it")
    if detached or record.running:
        _say(f"[detached from {handle}; it goes on]")
        return 0
    if not started_here:
        _say(f"[{handle} {Exit.of(record).describe()}]")
    return exit_code(record)


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def options_screen(parser: Parser) -> None:
    parser.words("HANDLE", 1, 1)
    parser.epilog = "Shows what a person at its terminal would see now, or saw last."
    parser.option("--colours", "--colors", action="store_true", help="with colours and styles")
    parser.session()
    parser.json("print it with size, cursor and title as JSON")


def do_screen(args: Namespace) -> int:
    process = find(open_for(args), args.words[0])
    screen = process.screen(colours=args.colours)
    if args.json:
        _render.show_json({"handle": process.handle, **screen.public()})
        return 0
    text = screen.text if screen.styled is None else screen.styled
    if text:
        if not args.colours:
            text = _render.shown_at(1)(text)
        elif os.isatty(1):
            from ..terminal.escape_filter import Legible

            text = Legible().feed(text.encode("utf-8", "replace")).decode()
        sys.stdout.write(text + ("\x1b[0m\n" if args.colours else "\n"))
    if not screen.exact:
        _render.complain(screen.note)
    return 0


def options_resize(parser: Parser) -> None:
    parser.words("HANDLE COLUMNSxROWS", 2, 2)
    parser.session()


def do_resize(args: Namespace) -> int:
    from holdfast.core.units import parse_screen_size

    from ._parser import Usage

    try:
        columns, rows = parse_screen_size(args.words[1])
    except ValueError as error:
        raise Usage(f"a size {error}, not {args.words[1]!r}") from None
    find(open_for(args), args.words[0]).resize(columns, rows)
    return 0
