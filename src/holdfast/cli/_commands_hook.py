"""``hook``: wake an agent that has nothing to do when something it started has news.

DESIGN. The agent's program runs this after each call of our tools, in the background. It finds the
session by the handle in what it is given, waits until that session has an event that nobody was
told of, claims it, prints it, acknowledges it and exits with the code that wakes the agent. The
keeper says who claimed first, so of any number of hooks that wait one tells of each event; what a
call waits for, or its answer shows, is claimed by that call. A hook whose reader is gone claims
nothing and ends: however the agent ended, what there is to tell waits for the next one.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time

from holdfast.core.errors import HoldfastError
from holdfast.core.home import Home, make_private_directory, open_private
from holdfast.core.quote import inside
from holdfast.linux.inotify import Watch

from . import _render
from ._parser import Usage, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.sync import SyncAgent, SyncClient
    from holdfast.core.record import Event

    from ._parser import Parser

WAKE = 2  # the exit code that makes Claude Code show our stderr to the agent
_HANDLE = re.compile(r"proc-[a-z0-9]{16,64}")
# Where our tools, in their dialects, say which process they speak of; and what holds answers.
_NAMES = frozenset(
    {"handle", "handles", "id", "sessionId", "session_id", "process_id", "job_id", "members"}
    | {"bash_id", "shell_id", "task_id", "backgroundTaskId"}
)
_WITHIN = frozenset(("content", "structuredContent", "structured_content", "result", "processes"))
_MOST_INPUT = 16 << 20
_DEPTH = 8
_HEAD = 300
_HOOKS = 8
_LOOK_AGAIN = 1.0  # for a keeper that died while nobody else looked
_MATCHER = "mcp__holdfast__.*|Bash"
_AT_MOST = 7200  # seconds that Claude Code lets a hook wait


def options_hook(parser: Parser) -> None:
    parser.words("claude", 1, 1)
    parser.epilog = (
        "For Claude Code's hooks with asyncRewake: reads the hook's JSON on stdin, waits until the "
        "session of the handle in it has news, prints that on stderr and exits with 2, which wakes "
        "the agent; exits with 0 when there is nothing left to wait for. --print-config shows what "
        "to put into the settings."
    )
    parser.option("--print-config", action="store_true", help="print the settings to paste")
    parser.option("--timeout", metavar="TIME", help="wait no longer than this, then exit with 0")
    parser.option(
        "--settle", metavar="TIME", default="1s", help="leave the end to a call that waits (1s)"
    )
    parser.session("the session, instead of looking for a handle on stdin")


def do_hook(args: Namespace) -> int:
    if args.words != ["claude"]:
        raise Usage(f"there is a hook for claude, not for {args.words[0]!r}")
    if args.print_config:
        print(json.dumps(_settings(), indent=2))
        return 0
    settle = duration(args.settle, "--settle")
    deadline = None
    if args.timeout is not None:
        deadline = time.monotonic() + duration(args.timeout, "--timeout")
    if os.environ.get("CLAUDE_CODE_ENTRYPOINT", "cli") != "cli":
        return 0  # in print mode it would be waited for, and there is nobody to wake
    home = Home.locate()
    given = _Given(_read_stdin() if args.session is None or not sys.stdin.isatty() else "")
    session = args.session or _session_of(home, given.handles)
    if session is None:
        return 0  # the call was about no process of ours
    place = _take_place(home, session)
    if place is None:
        return 0  # enough others wait for the same
    from holdfast.client.connect import open_client

    client = open_client(home, session)
    try:
        shown = [each for each in client.events(acknowledged=True) if each.id in given.events]
        # They were in the very answer that we are called after.
        client.acknowledge(*(event for event in shown if not event.acknowledged))
        events = _news(client, session, settle, deadline)
        if not events:
            return 0
        text = "\n\n".join(_render.safe_lines(event.text) for event in events)
        sys.stderr.write(inside("system-reminder", text) + "\n")  # as which the agent gets it
        sys.stderr.flush()
        client.acknowledge(*events)
    except BrokenPipeError:
        return 0  # nobody read it; what we have claimed is free again when we are gone
    finally:
        client.close()
        os.close(place)
    return WAKE


def _is_open(agent: SyncAgent) -> bool:
    return agent.record.running or not agent.record.told


def _reader_is_gone() -> bool:
    """True if nobody can read what we would print: the agent has ended, and we have not."""
    poll = select.poll()
    poll.register(2, 0)  # which tells of errors alone
    return any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0))


def _settings() -> dict[str, object]:
    """The block for Claude Code's settings."""
    import shlex

    from holdfast.core.programs import cli_program

    hook = {
        "type": "command",
        "command": shlex.join([*cli_program(), "hook", "claude"]),
        "asyncRewake": True,
        "timeout": _AT_MOST,
        "rewakeSummary": "A background process has news",
    }
    return {"hooks": {"PostToolUse": [{"matcher": _MATCHER, "hooks": [hook]}]}}


def _read_stdin() -> str:
    return os.fsdecode(sys.stdin.buffer.read(_MOST_INPUT)) if sys.stdin is not None else ""


class _Given:
    """The call a hook was told of: the handles it was about, and the events it showed.

    Handles are taken from where our tools put them, never from output: what a process prints may
    name anybody's.
    """

    def __init__(self, text: str) -> None:
        self.handles: list[str] = []
        self.events: set[str] = set()
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(data, dict):
            for key in ("tool_input", "tool_response"):
                self._look(data.get(key), 0)

    def _look(self, value: object, depth: int) -> None:
        if depth > _DEPTH:
            return
        if isinstance(value, list):
            for each in value:
                self._look(each, depth + 1)
        elif isinstance(value, dict):
            for key, each in value.items():
                if key in _NAMES:
                    self._take(each)
                elif key == "events" and isinstance(each, list):
                    self.events.update(str(e.get("id")) for e in each if isinstance(e, dict))
                elif key == "text" and isinstance(each, str):
                    self._look_at_text(each, depth)
                elif key in _WITHIN:
                    self._look(each, depth + 1)
                elif key == "stdout":  # of `holdfast run -d` in a shell
                    self._take(str(each).strip())
        elif isinstance(value, str):
            self._look_at_text(value, depth)

    def _look_at_text(self, text: str, depth: int) -> None:
        """An answer: JSON, or the words of a dialect, which begin with whom they speak of."""
        try:
            self._look(json.loads(text), depth + 1)
        except (ValueError, RecursionError):
            self.handles += _HANDLE.findall(text[:_HEAD])

    def _take(self, value: object) -> None:
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str) and _HANDLE.fullmatch(each):
                self.handles.append(each)


def _session_of(home: Home, handles: list[str]) -> str | None:
    from holdfast.core.store import Store

    store = Store(home)
    for handle in reversed(handles):
        try:
            return store.load(handle).session
        except HoldfastError:
            continue
    return None


def _take_place(home: Home, session: str) -> int | None:
    """A lock that is held while a hook waits: there are a few for each session."""
    import fcntl

    directory = home.session(session) + "/hooks"
    for path in (home.session(session), directory):
        make_private_directory(path)
    for number in range(_HOOKS):
        fd = open_private(f"{directory}/{number}.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
        else:
            return fd
    return None


def _news(client: SyncClient, session: str, settle: float, deadline: float | None) -> list[Event]:
    """Claim what this hook is the first to tell of; nothing when nothing is left to wait for."""
    with Watch([client.home.outbox(session)]) as watch:
        while True:
            watch.drain()
            if _reader_is_gone():
                return []
            if list(client.events()):
                time.sleep(settle)
                if _reader_is_gone():
                    return []
                claimed = client.claim(*client.events())
                if claimed:
                    return claimed
                continue
            working = client.list(ended=False)
            if not working and not any(map(_is_open, client.agents())):
                if list(client.events()):
                    continue  # it came just now
                if all(process.record.told for process in client.list()):
                    return []
                client.keeper_start()  # it will tell
            left = _LOOK_AGAIN
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    return []
            fd = watch.fileno()
            client.readable(fd, left if fd is not None else min(left, 0.5))
