"""``exec``: start a command in the container of a Docker process; else as `run`."""

from __future__ import annotations

from ._commands_run import check_common, common_arguments, common_options, stand_in
from ._handles import find
from ._parser import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.sync import SyncClient, SyncProcess

    from ._parser import Parser


def options_exec(parser: Parser) -> None:
    parser.words("HANDLE -- COMMAND [ARGUMENT...]", 2, None, options_first=2)
    parser.epilog = (
        "COMMAND alone is a string for the container's sh; with arguments it is run as it is. It "
        "is a process of its own, with a handle and a log, and ends with the container at the "
        "latest. `holdfast exec -t HANDLE -- sh` is a shell in there."
    )
    common_options(parser)
    parser.option("-C", "--cwd", metavar="DIR", help="a directory in the container")
    parser.option("--user", metavar="U", help="run as this user of the image")


def do_exec(args: Namespace) -> int:
    args.tmux = False
    if args.size is not None and not args.tty:
        raise Usage("--size is for a terminal; give it with --tty")
    check_common(args)
    return stand_in(args, _exec)


def _exec(client: SyncClient, args: Namespace) -> SyncProcess:
    handle, *command = args.words
    return find(client, handle).exec(
        command[0] if len(command) == 1 else command,
        cwd=args.cwd,
        user=args.user,
        **common_arguments(client, args),
    )
