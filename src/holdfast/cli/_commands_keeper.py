"""``keeper`` and ``config``."""

from __future__ import annotations

import os

from holdfast.client.config import DEFAULT
from holdfast.core.record import DEFAULT_SESSION

from . import _render
from ._handles import open_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from ._parser import Parser

_KEPT = "; 1d for what `holdfast run` starts"


def options_keeper(parser: Parser) -> None:
    parser.words("status | stop | restart", 1, 1)
    parser.epilog = (
        "`stop` is refused while a process runs, unless --kill stops them all first. `restart` "
        "loses nothing, and runs the code that is installed now."
    )
    parser.option("--kill", action="store_true", help="with stop: stop every process first")
    parser.json("print the keeper's state as JSON")


def do_keeper(args: Namespace) -> int:
    verb = args.words[0]
    if verb not in ("status", "stop", "restart") or (args.kill and verb != "stop"):
        from ._parser import Usage

        raise Usage("it is `holdfast keeper status`, `stop [--kill]` or `restart`")
    client = open_for(args)
    if verb == "stop":
        ran = client.keeper_status()["running"]
        client.keeper_stop(kill=args.kill)
        if ran and not args.json:
            print("stopped; the next `run` starts another one")
            return 0
    status = client.keeper_restart() if verb == "restart" else client.keeper_status()
    if args.json:
        _render.show_json(status)
    elif not status["running"]:
        print(f"no keeper runs for {_render.safe(client.home.path)}; the next `run` starts one")
    else:
        _show_status(client.home.path, status)
    return 0


def _show_status(home: str, status: dict[str, Any]) -> None:
    for name, value in {"home": home, **status}.items():
        if name == "running":
            continue
        if name == "memory_bytes":
            name, value = "memory", _render.size_text(value)
        print(f"{name.replace('_', ' ') + ':':<13}{_render.safe(str(value))}")


def options_config(parser: Parser) -> None:
    parser.epilog = (
        "Each can be set in config.toml of the home, or as HOLDFAST_ and its name in capitals, "
        "which counts more. Behind each is where it comes from."
    )
    parser.session("the session to tell of (default: $HOLDFAST_SESSION, else `default`)")
    parser.json("print the settings as a JSON object, and in `sources` where they come from")


def do_config(args: Namespace) -> int:
    from holdfast.client.config import SETTINGS

    client = open_for(args)
    values = {key: client.config[key] for key in SETTINGS}
    sources = {key: client.config.source(key) for key in SETTINGS}
    home, session = client.home.path, client.session or DEFAULT_SESSION
    where = {"home": _home_source(), "session": _session_source(args)}
    if args.json:
        sources |= where
        _render.show_json({**values, "home": home, "session": session, "sources": sources})
        return 0
    print(_render.safe(f"# home: {home} ({where['home']})"))
    print(_render.safe(f"# session: {session} ({where['session']})"))
    lines = {key: f"{key} = {_toml(SETTINGS[key].unit, value)}" for key, value in values.items()}
    width = max(map(len, lines.values()))
    for key, line in lines.items():
        kept = _KEPT if key == "retention" and sources[key] == DEFAULT else ""
        unset = "# " if sources[key] == DEFAULT else ""  # in a file it would be set
        print(_render.safe(f"{unset}{line:<{width + 2 - len(unset)}}  # {sources[key]}{kept}"))
    return 0


def _home_source() -> str:
    names = ("HOLDFAST_HOME", "XDG_STATE_HOME")
    return next((name for name in names if os.environ.get(name)), DEFAULT)


def _session_source(args: Namespace) -> str:
    own = os.environ.get("HOLDFAST_SESSION") or None
    if args.session is None:
        return DEFAULT
    return "HOLDFAST_SESSION" if args.session == own else "--session"


def _toml(unit: str, value: Any) -> str:
    """A value as it would be written in the file."""
    import json

    if value is None:
        return '"none"'
    if unit == "CxR":
        return '"{}x{}"'.format(*value)
    if unit == "SIZE":
        for power, letters in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value and value % (1 << power) == 0:
                return f'"{value >> power}{letters}"'
    if unit == "TIME":
        for seconds, letter in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
            if value and value % seconds == 0:
                return f'"{int(value // seconds)}{letter}"'
    return json.dumps(value)
