"""``mcp``."""

from __future__ import annotations

from importlib.util import find_spec

from holdfast.core.spawn_spec import LIMITS, SPAWN_SPEC

from ._parser import Usage, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from ._parser import Parser

_NOT_INSTALLED = (
    "the MCP server needs the package mcp, which is not installed; "
    "`pip install 'holdfast-agents[mcp]'` brings it"
)
CLIENTS = ("claude", "codex", "cursor", "vscode", "gemini", "opencode")


def options_mcp(parser: Parser) -> None:
    parser.option("--dialect", metavar="NAME", default="native", help="whose tools (default: ours)")
    parser.option(
        "--session", metavar="S", help="always this session (default: a new one per connection)"
    )
    parser.option(
        "--on-exit",
        metavar="stop|grace",
        choices=("stop", "grace"),
        help="what becomes of processes when a client goes: by default they get the grace, and "
        "stop at once if it says that it is over",
    )
    parser.option("--channel", action="store_true", help="push events to Claude Code's channel")
    parser.option(
        "--patience", metavar="T", help="longest a call may block (default: by the client)"
    )
    parser.option("--docker", metavar="IMAGE", help="run every command in a container of it")
    parser.option("--pull", action="store_true", help="with --docker: pull the image if need be")
    parser.option("--network", metavar="none|host|NAME", help="with --docker: their network")
    parser.option("--user", metavar="U", help="with --docker: who they run as")
    parser.option(
        "--mount",
        metavar="SRC:DST[:ro]",
        action="append",
        default=[],
        help="with --docker: what they see besides this directory; may be repeated",
    )
    parser.option(
        "--sandbox",
        nargs="?",
        const="closed",
        choices=("closed", "network", "sockets", "network,sockets"),
        help="run every command in a sandbox: it can write to this directory only; =network: with "
        "a network; =sockets: with Unix sockets",
    )
    for name in LIMITS:
        option = SPAWN_SPEC[name]
        parser.option(*option.flags, metavar=option.unit, help=f"each command: {option.help}")
    parser.option("--http", metavar="HOST:PORT", help="serve HTTP there instead of stdio")
    parser.option("--token-file", metavar="FILE", help="with --http: the token is in this file")
    parser.option(
        "--no-token", action="store_true", help="with --http: none, on a loopback address only"
    )
    parser.option(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="with --http: a name that others reach this machine by; needed for any address that "
        "is not loopback",
    )
    parser.option(
        "--print-config",
        metavar="CLIENT",
        choices=CLIENTS,
        help=f"print what to paste for {', '.join(CLIENTS)}, and exit",
    )
    parser.epilog = (
        "The MCP client starts this itself: `holdfast mcp --print-config claude` shows how. With "
        "--http a token is printed at the start, unless HOLDFAST_MCP_TOKEN or --token-file has one."
    )


def do_mcp(args: Namespace) -> int:
    import gc
    import os

    from holdfast.client.client import checked_session
    from holdfast.linux.kernel import forget_variable
    from holdfast.tools import load_dialect

    load_dialect(args.dialect)
    session = checked_session(args.session)
    patience = None if args.patience is None else duration(args.patience, "--patience")
    confinement = _confinement(args)
    if args.print_config is not None:
        if args.http is not None or args.token_file or args.no_token or args.allow_host:
            raise Usage(
                "--print-config is for stdio; for HTTP give the client the address and token"
            )
        from holdfast.mcp import config_for

        print(config_for(args.print_config, _options(args)))
        if not os.environ.get("UV") and find_spec("mcp") is None:
            from ._render import complain

            complain(_NOT_INSTALLED)  # the agent would only say that the server does not answer
        return 0
    token = forget_variable("HOLDFAST_MCP_TOKEN")  # which nothing that is started may have
    if args.http is None and (args.token_file or args.no_token or args.allow_host):
        raise Usage("--token-file, --no-token and --allow-host are for --http")
    gc.disable()  # importing makes no garbage, and looking for it takes a tenth of the time
    _check_installed()
    from holdfast.mcp import Address, Settings

    settings = Settings(args.dialect, session, args.on_exit, args.channel, patience, confinement)
    if args.http is not None:
        where = Address.parse(args.http, args.allow_host)
        token = where.token(token, args.token_file, not args.no_token)
        try:
            from holdfast.mcp import serve_http
        except ImportError as error:
            raise _broken(error) from None
        return serve_http(settings, where, token)
    if os.isatty(0):
        from ._render import complain

        complain("this speaks MCP on stdin; --print-config CLIENT shows how an agent starts it")
    from holdfast.mcp import Handshake, take_stdio

    handshake = Handshake(take_stdio(), settings)
    try:
        handshake.run(_load)
    except ImportError as error:
        raise _broken(error) from None
    from holdfast.mcp import serve_stdio

    return serve_stdio(settings, handshake)


def _load() -> None:
    from holdfast.mcp import serve_stdio  # noqa: F401


def _check_installed() -> None:
    if find_spec("mcp") is None:
        from holdfast.core.errors import Unavailable

        raise Unavailable(_NOT_INSTALLED)


def _broken(error: ImportError) -> Exception:
    from holdfast.core.errors import Unavailable

    return Unavailable(
        f"the package mcp is there but does not work: {error}; "
        "`pip install -U 'holdfast-agents[mcp]'` may mend it"
    )


def _confinement(args: Namespace) -> dict[str, Any]:
    """The confinement of every command, as a Toolset takes it."""
    from holdfast.linux import sandbox

    about = {name: getattr(args, name) for name in ("pull", "network", "user") if vars(args)[name]}
    if args.mount:
        about["mounts"] = args.mount
    if about and args.docker is None:
        raise Usage("--pull, --network, --user and --mount are for --docker")
    if args.docker is not None and args.sandbox is not None:
        raise Usage("commands run in containers or in a sandbox: give --docker or --sandbox")
    found = {name: vars(args)[name] for name in LIMITS if vars(args)[name] is not None}
    for name, text in found.items():
        try:
            SPAWN_SPEC[name].parse(text)
        except ValueError as error:
            raise Usage(f"--{name} {error}, not {text!r}") from None
    if args.docker is not None:
        found["docker"] = {"image": args.docker, **about}
    if args.sandbox is not None:
        found["sandbox"] = sandbox.named(args.sandbox)
    return found


def _options(args: Namespace) -> list[str]:
    """The other options, as they would be given again."""
    found: list[str] = []
    if args.dialect != "native":
        found += ["--dialect", args.dialect]
    for name in ("session", "on_exit", "patience", "docker", "network", "user", *LIMITS):
        if getattr(args, name) is not None:
            found += ["--" + name.replace("_", "-"), getattr(args, name)]
    for mount in args.mount:
        found += ["--mount", mount]
    if args.sandbox is not None:
        closed = args.sandbox == "closed"
        found.append("--sandbox" if closed else f"--sandbox={args.sandbox}")
    return found + [f"--{name}" for name in ("pull", "channel") if getattr(args, name)]
