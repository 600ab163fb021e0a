"""The commands there are, and how their arguments are read.

argparse reads the options. It does not get to see the words (handles, the command of ``run``): it
cannot mix them with options (``wait A --timeout 5 B``), and it takes a ``--`` out of them that was
meant for the command. `Parser.parse` sorts the two apart first.
"""

from __future__ import annotations

import argparse
import os

from holdfast.core.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from holdfast.core.types import Condition

# name: the module that has options_<name> and do_<name>, and one line for the overview.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("_commands_run", "start a process, here or (-d) in the background"),
    "exec": ("_commands_exec", "start a command in the container of a Docker process"),
    "ps": ("_commands_ps", "list processes"),
    "status": ("_commands_ps", "show all that is known of one process"),
    "logs": ("_commands_logs", "show or follow a process's output"),
    "view": ("_commands_view", "show a process's output as it is best read, in a budget"),
    "search": ("_commands_view", "find lines in a process's output"),
    "stats": ("_commands_view", "show what processes use: processor, memory, ports"),
    "screen": ("_commands_terminal", "show what is on a process's terminal"),
    "attach": ("_commands_terminal", "see a process's terminal and type into it"),
    "send": ("_commands_send", "write to a process, or press keys in its terminal"),
    "wait": ("_commands_send", "wait for processes and print their exit codes"),
    "gather": ("_commands_send", "be told of the end of a group once, not of each"),
    "kill": ("_commands_stop", "stop processes and everything they started"),
    "signal": ("_commands_stop", "send one signal to a process and its group"),
    "resize": ("_commands_terminal", "change the size of a process's terminal"),
    "rm": ("_commands_stop", "remove processes with their logs"),
    "clear": ("_commands_stop", "empty the logs of processes"),
    "events": ("_commands_events", "show, follow or acknowledge what sessions are to be told"),
    "hook": ("_commands_hook", "wake an agent when what it started has news"),
    "mcp": ("_commands_mcp", "serve the tools to an agent over MCP"),
    "keeper": ("_commands_keeper", "show, stop or restart the keeper"),
    "config": ("_commands_keeper", "show the settings in force"),
    "doctor": ("_doctor", "check what works on this machine"),
    "demo": ("_demo", "see it all work in half a minute"),
    "completion": ("_shell_completion", "print a completion script for bash, zsh or fish"),
}
# Words that hands know from docker, pueue and tmux: what they mean here, and what to type instead.
_START = "run -d -- COMMAND"
_ALIASES = {"stop": "kill", "list": "ps", "ls": "ps", "log": "logs"}
_INSTEAD = {
    **dict.fromkeys(("start", "add", "create", "restart", "new", "new-session"), _START),
    **dict.fromkeys(("tail", "follow"), "logs -f HANDLE"),
    **dict.fromkeys(("unpause", "resume"), "signal HANDLE CONT"),
    **dict.fromkeys(("inspect", "show", "get"), "status HANDLE"),
    **dict.fromkeys(("remove", "delete"), "rm HANDLE"),
    **dict.fromkeys(("clean", "prune"), "rm --all-finished"),
    **dict.fromkeys(("kill-session", "terminate"), "kill HANDLE"),
    "kill-server": "keeper stop --kill",
    "pause": "signal HANDLE STOP",
    "top": "stats -f",
    "history": "ps -a",
    "list-sessions": "ps",
    "capture-pane": "screen HANDLE",
    "send-keys": "send HANDLE --keys KEY",
    "wait-for": "wait HANDLE --for CONDITION",
}
# The same for options, by command.
_OPTIONS_INSTEAD = {
    "run": {
        "-i": "--stdin",
        "--interactive": "--stdin",
        "-p": "--publish PORT",
        "-w": "--cwd DIR",
        "-v": "--mount SRC:DST",
        "--volume": "--mount SRC:DST",
        "-m": "--memory SIZE",
        "--rm": "nothing: what has ended goes by itself",
        "-u": "--user U",
        "-g": "--group G",
    },
    "attach": {"-t": "the handle or label alone", "-r": "--read-only"},
    "kill": {"-9": "-s KILL", "-K": "-s KILL", "-t": "the handle or label alone"},
    "ps": {"--filter": "--group G or --session S", "--format": "--json"},
}
_EPILOG = "`holdfast COMMAND --help` tells more. Handles may be shortened, or given by their label."


def _formatter(prog: str) -> argparse.HelpFormatter:
    # With a width given argparse need not import shutil to ask for it, at every start.
    width = int(os.environ.get("COLUMNS", "")) if os.environ.get("COLUMNS", "").isdigit() else 80
    return argparse.HelpFormatter(prog, max_help_position=28, width=max(60, min(width, 100)))


class Usage(BadRequest):
    """The arguments make no sense; the message says what to type instead."""


def duration(text: str, flag: str) -> float:
    from holdfast.core.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise Usage(f"{flag} {error}, not {text!r}") from None


def table(text: str, flag: str) -> Condition:
    """A condition: a text as it is, or a table where it is a JSON object."""
    if not text.lstrip().startswith("{"):
        return text
    import json

    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError as error:
        raise Usage(f"{flag} {_cut(text)} is no JSON: {error}") from None


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:79] + "…"


class Parser(argparse.ArgumentParser):
    """Options by argparse; words counted here, and found in ``args.words``."""

    def __init__(self, name: str, summary: str) -> None:
        super().__init__(
            prog=f"holdfast {name}",
            description=summary[0].upper() + summary[1:] + ".",
            allow_abbrev=False,
            add_help=False,
            formatter_class=_formatter,
        )
        self.name = name
        self.actions: dict[str, argparse.Action] = {}
        self.shown = ""
        self._least, self._most = 0, 0
        self._options_first = 0
        self.rest: tuple[str, list[str]] | None = None
        self.option("-h", "--help", action="help", help="show this and exit")

    def option(self, *flags: str, **details: Any) -> None:
        action = self.add_argument(*flags, **details)
        self.actions.update(dict.fromkeys(flags, action))

    def words(self, shown: str, least: int, most: int | None, *, options_first: int = 0) -> None:
        """Take `least` to `most` words; that many of them end the options with `options_first`."""
        self.shown, self._least, self._options_first = shown, least, options_first
        self._most = 1 << 30 if most is None else most

    def session(self, help: str = "only this session (default: $HOLDFAST_SESSION)") -> None:
        self.option(
            "--session", metavar="S", default=os.environ.get("HOLDFAST_SESSION") or None, help=help
        )

    def json(self, help: str = "print JSON") -> None:
        self.option("--json", action="store_true", help=help)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        options, words = self._sort(list(argv))
        args = self.parse_args(options)
        if self.rest is not None:
            setattr(args, *self.rest)
        if len(words) < self._least:
            missing = " ".join(self.shown.split()[len(words) :]) if words else self.shown
            self.error(f"{missing} is missing")
        if len(words) > self._most:
            self.error(f"one argument too many, {words[self._most]!r}")
        args.words = words
        return args

    def takes_value(self, flag: str) -> bool:
        return self.actions[flag].nargs is None

    def takes_all(self, flag: str) -> bool:
        """True if everything that comes after it is its value, whatever it looks like."""
        return self.actions[flag].nargs == argparse.REMAINDER

    def _sort(self, argv: list[str]) -> tuple[list[str], list[str]]:
        options: list[str] = []
        words: list[str] = []
        while argv:
            item = argv.pop(0)
            if item == "--":
                return options, words + argv
            if not item.startswith("-") or item == "-":
                words.append(item)
                if len(words) == self._options_first:
                    return options, words + argv
                continue
            flag, joined = self._flag(item)
            if self.takes_all(flag):
                values = [item.partition("=")[2], *argv] if joined else argv
                self.rest = self.actions[flag].dest, values
                return options, words
            if not self.takes_value(flag) or joined:
                options.append(item)
            elif not argv:
                self.error(f"{flag} needs a value")
            elif flag.startswith("--"):
                options.append(f"{item}={argv.pop(0)}")  # so that a value may begin with a dash
            else:
                value = argv.pop(0)
                options += [item + value] if value.startswith("-") else [item, value]
        return options, words

    def _flag(self, item: str) -> tuple[str, bool]:
        """The option an argument ends in (``-df`` is ``-d -f``) and whether it brings its value."""
        if item.startswith("--"):
            name, equals, _ = item.partition("=")
            if name not in self.actions:
                self._unknown(name)
            return name, bool(equals)
        for place, letter in enumerate(item[1:], 2):
            flag = "-" + letter
            if flag not in self.actions:
                self._unknown(flag if len(item) == 2 else f"{flag} (in {item})")
            if self.takes_value(flag):
                return flag, place < len(item)
        return flag, False

    def _unknown(self, flag: str) -> NoReturn:
        import difflib

        if instead := _OPTIONS_INSTEAD.get(self.name, {}).get(flag.partition(" ")[0]):
            self.error(f"no option {flag}; here it is {instead}")
        near = difflib.get_close_matches(flag, self.actions, 1)
        self.error(f"no option {flag}" + (f"; did you mean {near[0]}?" if near else ""))

    def error(self, message: str) -> NoReturn:
        mark = " See" if message.endswith("?") else "; see"
        raise Usage(f"{message.rstrip('.')}{mark} `{self.prog} --help`")

    def format_usage(self) -> str:
        return f"usage: {self._synopsis()}\n"

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_text(self.description)
        formatter.start_section("options")
        formatter.add_arguments(self._actions)
        formatter.end_section()
        formatter.add_text(self.epilog)
        return f"usage: {self._synopsis()}\n\n" + formatter.format_help()

    def _synopsis(self) -> str:
        return f"{self.prog} [options] {self.shown}".rstrip()


def command(name: str) -> tuple[Parser, Callable[[argparse.Namespace], int]]:
    """The parser of a command and the function that does it."""
    name = _ALIASES.get(name, name)
    if name in _INSTEAD:
        raise Usage(f"no command {name!r}; here it is `holdfast {_INSTEAD[name]}`")
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean `holdfast {near[0]}`?" if near else "see `holdfast --help`"
        raise Usage(f"no command {name!r}; {hint}")
    import importlib

    module_name, summary = COMMANDS[name]
    module = importlib.import_module(f"{__package__}.{module_name}")
    parser = Parser(name, summary)
    getattr(module, f"options_{name}")(parser)
    do: Callable[[argparse.Namespace], int] = getattr(module, f"do_{name}")
    return parser, do


def overview() -> str:
    widest = max(map(len, COMMANDS))
    lines = [f"  {name:<{widest}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        (
            "usage: holdfast COMMAND [options] ...",
            "",
            "Background processes that outlive whoever started them.",
            "",
            *lines,
            "",
            _EPILOG,
        )
    )
