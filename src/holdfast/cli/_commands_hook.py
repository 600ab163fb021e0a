"""``hook``: wake an agent that has nothing to do when something it started has news.

DESIGN. Claude Code runs this in the background after each call of our tools, at the end of each
turn and when it starts. It waits until a session of that agent has an event that nobody was told
of, claims it, prints it, acknowledges it and exits with the code that wakes the agent. The keeper
says who claimed first; what a call waits for, or its answer shows, is claimed by that call. One
hook waits for each agent (`_hook_agents`), and the end of the turn that it began brings the next.
A hook whose reader is gone claims nothing and ends: however the agent ended, what there is to tell
waits for the next one.

With ``--left-behind``, when a conversation begins or goes on, it waits for nothing and prints what
was left behind: what this conversation was not told of, and lost sessions of the same directory.
"""

from __future__ import annotations

import json
import os
import sys
import time

from holdfast.core.errors import HoldfastError
from holdfast.core.home import Home
from holdfast.core.quote import inside
from holdfast.core.record import DEFAULT_SESSION

from . import _render
from ._parser import Usage, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast.client.lost_sessions import LeftBehind
    from holdfast.core.record import Event

    from ._hook_agents import Agent, AgentEntry
    from ._hook_input import HookInput
    from ._hook_wait import Inbox, Inboxes
    from ._parser import Parser

WAKE = 2  # the exit code that makes Claude Code show our stderr to the agent
_MATCHER = "mcp__holdfast__.*|Bash"
_AT_MOST = 7 * 86400  # seconds that Claude Code lets a hook wait
_AT_START = 30  # and a conversation wait for a hook
_WAKING = 40_000  # characters that a wake may have
_CONTEXT = 9_000  # of what is added to a conversation Claude Code shows no more than 10,000
_LISTED = 15
_LINE = 120
_SESSIONS = 5


def options_hook(parser: Parser) -> None:
    parser.words("claude", 1, 1)
    parser.epilog = (
        "For Claude Code's hooks with asyncRewake: reads the hook's JSON on stdin, waits until a "
        "session that this agent uses has news, prints that on stderr and exits with 2, which "
        "wakes the agent; exits with 0 when there is nothing left to wait for, or another hook of "
        "this agent waits. --print-config shows what to put into the settings."
    )
    parser.option("--print-config", action="store_true", help="print the settings to paste")
    parser.option(
        "--left-behind",
        action="store_true",
        help="for SessionStart: print what was left behind here, and do not wait",
    )
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
    from ._hook_agents import Agent
    from ._hook_input import HookInput, read_input
    from ._hook_wait import Inboxes, reader_is_gone, wait_for_news

    given = read_input() if args.session is None or not sys.stdin.isatty() else HookInput("")
    home = Home.locate()
    if reader_is_gone() or not home.exists():
        return 0
    found = [(args.session, "")] if args.session else _sessions_of(home, given)
    agent = Agent(home, given.conversation, args.session)
    entry = agent.called(found, given.tasks)
    inboxes = Inboxes(home)
    try:
        _acknowledge_shown(inboxes, entry, given.events)
        if args.left_behind:
            return _tell_of_left_behind(home, agent, inboxes, entry, given)
        # In print mode it would be waited for, and there is nobody to wake.
        if not entry.sessions or os.environ.get("CLAUDE_CODE_ENTRYPOINT", "cli") != "cli":
            return 0
        claimed = wait_for_news(agent, inboxes, settle, deadline, _WAKING)
        if not claimed:
            return 0
        agent.telling({event.id: _text(event) for _, events in claimed for event in events})
        _print_whole(2, _texts(claimed) + "\n")
        _acknowledge(claimed)
    except ConnectionError:
        return 0  # nobody read it; what we have claimed is free again when we are gone
    finally:
        inboxes.close()
    return WAKE


def _settings() -> dict[str, object]:
    """The block for Claude Code's settings."""
    import shlex

    from holdfast.core.programs import cli_program

    command = [*cli_program(), "hook", "claude"]
    waits = {
        "type": "command",
        "command": shlex.join(command),
        "async": True,
        "asyncRewake": True,
        "timeout": _AT_MOST,
        "rewakeMessage": "News of what you started with holdfast:",
        "rewakeSummary": "A background process has news",
    }
    tells = {
        "type": "command",
        "command": shlex.join([*command, "--left-behind"]),
        "timeout": _AT_START,
    }
    return {
        "hooks": {
            "PostToolUse": [{"matcher": _MATCHER, "hooks": [waits]}],
            "Stop": [{"hooks": [waits]}],
            "SessionStart": [{"hooks": [tells, waits]}],
        }
    }


def _sessions_of(home: Home, given: HookInput) -> list[tuple[str, str]]:
    """The sessions of a call, each with the handle that it is about, or "" for all of it.

    A session of its own is an agent's with all that is in it. In that of the command line are
    everybody's processes, and what a shell prints may be somebody else's.
    """
    from holdfast.core.store import Store

    store = Store(home)
    found = []
    for handle in dict.fromkeys([*given.handles, *given.printed]):
        try:
            session = store.load(handle).session
        except HoldfastError:
            continue
        own = session != DEFAULT_SESSION and handle in given.handles
        found.append((session, "" if own else handle))
    return found


def _acknowledge_shown(inboxes: Inboxes, entry: AgentEntry, ids: set[str]) -> None:
    """Events that were in the very answer after which we are called: they were read."""
    for inbox in inboxes.of(entry) if ids else ():
        events = inbox.client.events(acknowledged=True)
        shown = [each for each in events if each.id in ids and not each.acknowledged]
        if shown:
            inbox.client.acknowledge(*shown)


def _texts(claimed: list[tuple[Inbox, list[Event]]]) -> str:
    return "\n\n".join(_text(event) for _, events in claimed for event in events)


def _text(event: Event) -> str:
    """An event as Claude Code may put it into a system-reminder."""
    return inside("system-reminder", _render.safe_lines(event.text))


def _acknowledge(claimed: list[tuple[Inbox, list[Event]]]) -> None:
    for inbox, events in claimed:
        inbox.client.acknowledge(*events)


def _print_whole(fd: int, text: str) -> None:
    """Write all of it, also to a socket that takes a piece at a time."""
    import select

    data = memoryview(text.encode("utf-8", "backslashreplace"))
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while data:
        poll.poll()
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            continue


# -- a conversation begins -------------------------------------------------------------------------


def _tell_of_left_behind(
    home: Home, agent: Agent, inboxes: Inboxes, entry: AgentEntry, given: HookInput
) -> int:
    """Print what was left behind, for the context of a conversation; nothing if there is nothing.

    The events are told of, and acknowledged, where they are this conversation's. Those of others it
    hears of, and may adopt them.
    """
    from ._hook_wait import claim

    mine = inboxes.of(entry)
    doubtful = _in_doubt(mine, entry, given)
    claimed = claim(mine, _CONTEXT // 3)
    room = max(150, _CONTEXT // 3 // max(1, len(doubtful)))
    parts = [text[:room] for text in doubtful[: _CONTEXT // 3 // 150]]
    if len(parts) < len(doubtful):
        parts.append(f"{len(doubtful) - len(parts)} more have ended: list the processes.")
    parts += [_texts(claimed)] if claimed else []
    lost = {left.session: left for left in _left_behind(home, given.directory or os.getcwd())}
    for inbox, events in claimed:
        if inbox.session in lost:
            lost[inbox.session].events -= len(events)
    running = [line for inbox in mine for line in inbox.running()]
    if running:
        more = [f"and {len(running) - _LISTED} more"] if len(running) > _LISTED else []
        lines = [f"- {line[:_LINE]}" for line in running[:_LISTED]] + more
        parts.append("\n".join(["Still running of what this conversation started:", *lines]))
    parts += [left.text for left in list(lost.values())[-_SESSIONS:] if left.matters]
    if parts:
        context = inside("system-reminder", _render.safe_lines("\n\n".join(parts)))
        about = {"hookEventName": "SessionStart", "additionalContext": context}
        _print_whole(1, json.dumps({"hookSpecificOutput": about}) + "\n")
        _acknowledge(claimed)
    if entry.doubt:
        agent.no_doubt()
    return 0


def _in_doubt(inboxes: list[Inbox], entry: AgentEntry, given: HookInput) -> list[str]:
    """The texts that a hook printed for this conversation and that never came to be in it."""
    from ._hook_transcript import untold

    if not entry.doubt:
        return []
    events = [each for inbox in inboxes for each in inbox.client.events(acknowledged=True)]
    open_ones = {event.id for event in events if not event.acknowledged}  # told as any other
    texts = {key: text for key, text in entry.doubt.items() if key not in open_ones}
    return list(untold(texts, given.transcript).values())


def _left_behind(home: Home, directory: str) -> list[LeftBehind]:
    """Sessions that were lost in this directory; no keeper is started where there can be none."""
    from holdfast.client.connect import open_client

    names = home.session_names()
    if not any(os.path.exists(home.session(name) + "/lease.json") for name in names):
        return []
    client = open_client(home, None)
    try:
        return client.left_behind(directory)
    finally:
        client.close()
