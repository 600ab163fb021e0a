"""``kill``, ``signal``, ``rm`` and ``clear``."""

from __future__ import annotations

from holdfast.client.config import UNSET
from holdfast.core.errors import BadRequest

from . import FAILED, _render
from ._handles import find, find_all, find_group, open_for
from ._parser import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.process import Receipt
    from holdfast.client.sync import SyncClient

    from ._parser import Parser


def options_kill(parser: Parser) -> None:
    parser.words("HANDLE... | --group G | --all | --session S", 0, None)
    parser.epilog = (
        "The signal goes to all of the process's group; what is left after the grace is killed. "
        "Stopping what has ended is fine. A group is one session's: if several have it, say which."
    )
    parser.option("--all", action="store_true", help="everything that runs")
    parser.option("--group", metavar="G", help="what was started with this group")
    parser.option("-s", "--signal", metavar="NAME", help="begin with this one (TERM)")
    parser.option("--grace", metavar="TIME", help="wait this long before force (5s)")
    parser.option("--session", metavar="S", help="only this session; without handles, all of it")
    parser.json("print what was done to whom, a list of receipts")


def do_kill(args: Namespace) -> int:
    ways = bool(args.words) + args.all + (args.group is not None)
    if not ways and args.session is None:
        raise Usage("which process? give its handle, --group G, --all or --session S")
    if ways > 1:
        raise Usage("give handles, --group or --all, not several of them")
    if args.session is None:
        import os

        args.session = os.environ.get("HOLDFAST_SESSION") or None
    client = open_for(args)
    receipts = _receipts(client, args)
    client.close()  # what was seen is acknowledged by now
    if args.json:
        _render.show_json([receipt.public() for receipt in receipts])
    for receipt in receipts:
        handle = receipt.record.handle
        if not args.json:
            print(_told(receipt))
        for each in receipt.processes:
            if "survived" in each:
                who = f"pid {each['pid']} ({each['name']})"
                _render.complain(f"{handle}: {who} is still alive: {each['survived']}")
    return FAILED if any(receipt.survivors for receipt in receipts) else 0


def _told(receipt: Receipt) -> str:
    if not receipt.already_ended:
        return receipt.record.handle
    told = f"{receipt.record.handle} had already ended"
    left = len(receipt.processes)
    return f"{told}; so is now what it had left behind ({left})" if left else told


def _receipts(client: SyncClient, args: Namespace) -> list[Receipt]:
    grace = UNSET if args.grace is None else args.grace
    signal = args.signal or "TERM"
    if args.group is not None:
        processes = find_group(client, args.group)  # of which there must be something
        sessions = {each.record.session for each in processes if each.record.running}
        if len(sessions) > 1:
            raise BadRequest(
                f"group {args.group!r} is in several sessions, {', '.join(sorted(sessions))}; "
                "say which with --session S"
            )
        return client.group(args.group).stop(signal=signal, grace=grace)
    if not args.words:
        return client.stop_all(signal=signal, grace=grace)
    handles = [process.handle for process in find_all(client, args.words)]

    def kill(handle: str) -> Receipt:
        own = open_for(args)
        try:
            return own.get(handle).kill(signal=signal, grace=grace)
        finally:
            own.close()

    if len(handles) == 1:
        return [kill(handles[0])]
    # Side by side, so that ten that ignore TERM cost one grace and not ten.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(32) as pool:
        return list(pool.map(kill, handles))


def options_signal(parser: Parser) -> None:
    parser.words("HANDLE NAME", 2, 2)
    parser.epilog = "NAME is like HUP, SIGUSR1 or 10. To stop a process, use `holdfast kill`."
    parser.session()


def do_signal(args: Namespace) -> int:
    find(open_for(args), args.words[0]).signal(args.words[1])
    return 0


def options_rm(parser: Parser) -> None:
    parser.words("HANDLE... | --all-finished", 0, None)
    parser.epilog = "A running process is stopped first."
    parser.option("--all-finished", action="store_true", help="every process that has ended")
    parser.session()


def do_rm(args: Namespace) -> int:
    if bool(args.words) == args.all_finished:
        raise Usage("which process? give handles or --all-finished")
    client = open_for(args)
    if args.all_finished:
        chosen = [process for process in client.list() if not process.record.running]
    else:
        chosen = find_all(client, args.words)
    for process in {process.handle: process for process in chosen}.values():
        process.remove()
        print(process.handle, flush=True)
    return 0


def options_clear(parser: Parser) -> None:
    parser.words("HANDLE...", 1, None)
    parser.epilog = "Offsets go on where they were, and cursors stay valid."
    parser.session()


def do_clear(args: Namespace) -> int:
    for process in find_all(open_for(args), args.words):
        process.clear()
        print(process.handle, flush=True)
    return 0
