"""``completion``: the scripts, and the hidden ``__complete`` that they all ask.

The scripts know nothing: they hand over the words up to the cursor and get back a candidate a line,
with a description after a tab. A line that begins with a colon says what the shell itself should
offer: ``:files``, ``:directories`` or ``:commands``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator

    from holdfast.core.record import Record

    from ._parser import Parser

    Candidate = tuple[str, str]

_BASH = r"""# holdfast completion for bash: eval "$(holdfast completion bash)"
_holdfast() {
    local line kind= IFS=$'\n'
    COMPREPLY=()
    while read -r line; do
        case $line in
            :*) kind=$line ;;
            *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <("$1" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    case $kind in
        :commands) COMPREPLY=($(compgen -c -- "$2")) ;;
        :directories) COMPREPLY=($(compgen -d -- "$2")); compopt -o filenames 2>/dev/null ;;
        :files) compopt -o default 2>/dev/null ;;
    esac
}
complete -F _holdfast holdfast
"""

_ZSH = r"""#compdef holdfast
# holdfast completion for zsh: eval "$(holdfast completion zsh)", or as _holdfast in your fpath
_holdfast() {
    local line kind value
    local -a described
    while IFS= read -r line; do
        case $line in
            (:*) kind=$line ;;
            (*) value=${line%%$'\t'*}; described+=("${value//:/\\:}:${line#*$'\t'}") ;;
        esac
    done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    case $kind in
        (:commands) _command_names -e ;;
        (:directories) _directories ;;
        (:files) _files ;;
        (*) (( $#described )) && _describe -t holdfast holdfast described ;;
    esac
}
if [[ $funcstack[1] == _holdfast ]]; then
    _holdfast "$@"
else
    compdef _holdfast holdfast
fi
"""

_FISH = r"""# holdfast completion for fish: holdfast completion fish | source
function __holdfast_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] __complete $words[2..-1] "$current" 2>/dev/null)
        switch $line
            case ':commands'
                complete -C "$current"
            case ':directories'
                __fish_complete_directories "$current"
            case ':files'
                __fish_complete_path "$current"
            case '*'
                echo $line
        end
    end
end
complete -c holdfast -f -a '(__holdfast_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_KEEPER = (
    ("status", "show the keeper's state"),
    ("stop", "stop the keeper"),
    ("restart", "put a new keeper in its place"),
)
_RUNNING_ONLY = ("attach", "send", "kill", "signal", "resize", "exec")
_TERMINAL_ONLY = ("attach", "screen", "resize")
_BY_HANDLE = (
    *("status", "logs", "screen", "attach", "send", "wait", "kill", "signal", "resize"),
    *("rm", "clear", "view", "search", "stats", "exec"),
)
_SIGNALS = ("TERM", "KILL", "INT", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT", "WINCH")
_SIZES = ("80x24", "120x40", "160x50", "200x60")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+/@")


def options_completion(parser: Parser) -> None:
    parser.words("bash | zsh | fish", 1, 1)
    parser.epilog = 'For example, in ~/.bashrc: eval "$(holdfast completion bash)"'


def do_completion(args: Namespace) -> int:
    shell = args.words[0]
    if shell not in SCRIPTS:
        from ._parser import Usage

        raise Usage(f"no completion for {shell!r}; there are bash, zsh and fish")
    print(SCRIPTS[shell], end="")
    return 0


def complete(argv: list[str]) -> int:
    """Print the candidates for the last of `argv`; whatever goes wrong, just fewer of them."""
    try:
        lines = [
            value if not about else f"{value}\t{about}"
            for value, about in _candidates(argv or [""])
        ]
    except Exception:
        lines = []
    print("\n".join(lines))
    return 0


def _candidates(argv: list[str]) -> Iterator[Candidate]:
    from . import _parser

    *before, current = argv
    if not before:
        for name, (_, summary) in _parser.COMMANDS.items():
            if name.startswith(current):
                yield name, summary
        if current.startswith("-"):
            yield from _beginning(current, (("--help", "show help"), ("--version", "show version")))
        return
    parser, _ = _parser.command(before[0])
    words, flag = _place(parser, before[1:])
    if current.startswith("--") and "=" in current and flag is None and words is not None:
        name, _, part = current.partition("=")
        for value, about in _values(parser, name, part):
            yield value if value.startswith(":") else f"{name}={value}", about
    elif flag is not None:
        yield from _values(parser, flag, "" if current == "=" else current)
    elif words is not None and current.startswith("-"):
        for name, action in parser.actions.items():
            if name.startswith(current):
                yield name, action.help or ""
    else:
        session = _session(before[1:])
        yield from _words(parser, before[1:] if words is None else words, current, session)


def _place(parser: Parser, before: list[str]) -> tuple[list[str] | None, str | None]:
    """The words so far (None once options are over) and the option whose value comes next."""
    words: list[str] = []
    flag = None
    for item in before:
        if flag is not None:
            if item != "=":  # bash makes --option=value three words
                flag = None
        elif item == "--":
            return None, None
        elif not item.startswith("-") or item == "-":
            words.append(item)
            if len(words) == {"run": 1, "exec": 2}.get(parser.name):
                return None, None
        elif item in parser.actions and parser.takes_all(item):
            return None, item
        elif item in parser.actions and parser.takes_value(item):
            flag = item
    return words, flag


def _values(parser: Parser, flag: str, current: str) -> Iterator[Candidate]:
    action = parser.actions.get(flag)
    if action is None or action.nargs == 0:
        return
    if action.choices is not None:
        yield from _beginning(current, ((str(choice), "") for choice in action.choices))
    elif flag == "--session":
        from holdfast.core.home import Home

        names = Home.locate().session_names()
        yield from _beginning(current, ((name, "session") for name in names))
    elif flag == "--group":
        yield from _beginning(current, ((name, "group") for name in _groups()))
    elif flag in ("-s", "--signal"):
        yield from _beginning(current, ((name, "") for name in _SIGNALS))
    elif flag == "--keys":
        from holdfast.terminal.keys import NAMES

        yield from _beginning(current, ((name, "") for name in ("C-c", "C-d", "C-z", *NAMES)))
    elif flag == "--size":
        yield from _beginning(current, ((size, "") for size in _SIZES))
    elif flag in ("-C", "--cwd"):
        yield ":directories", ""
    elif flag == "--network" and parser.name == "run":
        yield from _beginning(current, (("none", "no network"), ("host", "the machine's own")))
    elif flag in ("-e", "--env"):
        import os

        yield from _beginning(current, ((name, "") for name in sorted(os.environ)))


def _words(
    parser: Parser, words: list[str], current: str, session: str | None
) -> Iterator[Candidate]:
    name = parser.name
    if name == "run":
        first = not [word for word in words if word != "--"] or words[-1] == "--"
        yield (":commands" if first else ":files"), ""
    elif name == "keeper" and not words:
        yield from _beginning(current, _KEEPER)
    elif name == "completion" and not words:
        yield from _beginning(current, ((shell, "") for shell in SCRIPTS))
    elif name == "signal" and len(words) == 1:
        yield from _beginning(current, ((signal, "") for signal in _SIGNALS))
    elif name == "resize" and len(words) == 1:
        yield from _beginning(current, ((size, "") for size in _SIZES))
    elif name in _BY_HANDLE and (not words or name in ("wait", "kill", "rm", "clear", "stats")):
        yield from _beginning(current, _handles(words, name, session))


def _session(before: list[str]) -> str | None:
    """The session that the command will look in."""
    import os

    found = os.environ.get("HOLDFAST_SESSION") or None
    before = [word for word in before if word != "="]  # bash takes --session=x for three words
    for flag, value in zip(before, [*before[1:], ""], strict=False):
        if flag.startswith("--session"):
            found = flag.partition("=")[2] or value
    return found


def _records(session: str | None = None) -> list[Record]:
    from argparse import Namespace

    from ._handles import open_for

    return [process.record for process in open_for(Namespace(session=session)).list()]


def _groups() -> list[str]:
    return sorted({record.group for record in _records() if record.group})


def _handles(taken: list[str], command: str, session: str | None) -> Iterator[Candidate]:
    from ._render import cut, safe, status_text

    records = _records(session)
    labels = _labels(records, session)
    if command in _RUNNING_ONLY:
        records = [record for record in records if record.running]
    if command in _TERMINAL_ONLY:
        records = [record for record in records if record.capabilities.terminal]
    if command == "exec":
        records = [record for record in records if record.capabilities.exec]
    for record in records:
        how = status_text(record.status, record.exit_code, record.signal)
        about = safe(f"{how}: {cut(record.label or record.command_text, 40)}")
        if record.handle not in taken:
            yield record.handle, about
        if labels.get(record.label) == record.handle and record.label not in taken:
            yield record.label, about


def _labels(records: list[Record], session: str | None) -> dict[str, str]:
    """Every label that means one process, and which."""
    from holdfast.client.labels import meant
    from holdfast.core.errors import BadRequest

    found: dict[str, str] = {}
    for label in {record.label for record in records} - {""}:
        try:
            record = meant(label, [each for each in records if each.label == label], session)
        except BadRequest:
            continue  # of several that run
        found[label] = "" if record is None else record.handle
    return found


def _beginning(current: str, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    for value, about in candidates:
        if value.startswith(current) and _PLAIN.issuperset(value):
            yield value, about
