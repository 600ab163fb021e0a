"""``hook``: wake an agent that has nothing to do when something it started has news.

DESIGN. The agent's program runs this after each call of our tools, in the background. It finds the
session by the handle in what it is given, waits until that session has an event that nobody was
told of, claims it, prints it and exits with the code that wakes the agent. Claiming is
acknowledging: the keeper says who was first, so of any number of hooks that wait one tells of each
event. A moment passes before, in which a call that waits for that very end acknowledges it itself.
"""

from __future__ import annotations

import os
import re
import sys
import time

from holdfast._errors import HoldfastError
from holdfast._home import Home
from holdfast._link import run
from holdfast._watch import Watch

from . import _render
from ._parser import Usage, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from holdfast._model import Event
    from holdfast._sync import SyncClient

    from ._parser import Parser

WAKE = 2  # the exit code that makes Claude Code show our stderr to the agent
_HANDLE = re.compile(r"proc-[a-z0-9]{16,64}")
_MOST_INPUT = 16 << 20
_LOOK_AGAIN = 5.0
_SETTINGS = """{
  "hooks": {
    "PostToolUse": [
      {
        "matcher": "mcp__holdfast__.*",
        "hooks": [
          {
            "type": "command",
            "command": "holdfast hook claude",
            "asyncRewake": true,
            "timeout": 7200,
            "rewakeSummary": "A background process has news"
          }
        ]
      }
    ]
  }
}
"""


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
        sys.stdout.write(_SETTINGS)
        return 0
    settle = duration(args.settle, "--settle")
    deadline = None
    if args.timeout is not None:
        deadline = time.monotonic() + duration(args.timeout, "--timeout")
    home = Home.locate()
    session = args.session or _session_of(home, _given())
    if session is None:
        return 0  # the call was about no process of ours
    from holdfast._sync import open_client

    client = open_client(home, session)
    try:
        events = _news(client, session, settle, deadline)
    finally:
        client.close()
    if not events:
        return 0
    text = "\n\n".join(_render.safe_lines(event.text) for event in events)
    sys.stderr.write(text + "\n")
    return WAKE


def _given() -> str:
    return os.fsdecode(sys.stdin.buffer.read(_MOST_INPUT)) if sys.stdin is not None else ""


def _session_of(home: Home, text: str) -> str | None:
    """The session of the last handle in what the hook was told that is one of ours."""
    from holdfast._store import Store

    store = Store(home)
    for handle in reversed(_HANDLE.findall(text)):
        try:
            return store.load(handle).session
        except HoldfastError:
            continue
    return None


def _news(client: SyncClient, session: str, settle: float, deadline: float | None) -> list[Event]:
    """What this hook is the first to tell of; nothing when there is nothing left to wait for."""
    with Watch([client.home.outbox(session)]) as watch:
        while True:
            watch.drain()
            if list(client.events()):
                time.sleep(settle)
                claimed = client.claim(*client.events())
                if claimed:
                    return claimed
                continue
            working = [process for process in client.list() if process.record.running]
            if not working and not any(agent.record.running for agent in client.agents()):
                if list(client.events()):
                    continue  # it came just now
                return []
            left = _LOOK_AGAIN
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    return []
            fd = watch.fileno()
            run(client._client._link.readable(fd, left if fd is not None else min(left, 0.5)))
