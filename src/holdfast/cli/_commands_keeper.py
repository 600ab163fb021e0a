"""``keeper`` and ``config``."""

from __future__ import annotations

from . import _render
from ._handles import open_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from ._parser import Parser


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
        "which counts more."
    )
    parser.json("print the settings as a JSON object")


def do_config(args: Namespace) -> int:
    from holdfast._config import SETTINGS

    client = open_for(args)
    values = {key: client.config[key] for key in SETTINGS}
    if args.json:
        _render.show_json(values)
        return 0
    print(f"# {_render.safe(client.home.config)}")
    for key, value in values.items():
        print(f"{key} = {_toml(key, value)}")
    return 0


def _toml(key: str, value: Any) -> str:
    """A value as it would be written in the file."""
    import json

    if value is None:
        return '"none"'
    if key in ("log_cap", "log_limit", "memory"):
        for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value and value % (1 << power) == 0:
                return f'"{value >> power}{unit}"'
    if isinstance(value, float) and key != "cpu":
        for seconds, unit in ((3600, "h"), (60, "m"), (1, "s")):
            if value and value % seconds == 0:
                return f'"{int(value // seconds)}{unit}"'
    return json.dumps(value)
