"""`doctor`'s look at what agents use: the MCP server, and the hook that wakes Claude Code."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys

from ._doctor_check import Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_PATIENCE = 30.0  # seconds for the server's first answers, on a machine that has other things to do
_FIRST, _LAST = 1, 2
# The first is answered before the package is loaded, the last by the package.
_HANDSHAKE: tuple[dict[str, Any], ...] = (
    {
        "id": _FIRST,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "holdfast-doctor", "version": "1"},
        },
    },
    {"method": "notifications/initialized"},
    {"id": _LAST, "method": "resources/templates/list"},
)
_HOOK = re.compile(r"\bholdfast\b.*\bhook\s+claude\b")
_LEFT_BEHIND = "--left-behind"
# Where the hook is needed, and what does not happen without it.
_EVENTS = {
    "PostToolUse": "nothing wakes Claude Code after a call",
    "Stop": "it is woken once after each call, and not by what comes later",
    "SessionStart": "a new conversation is not told of what was left behind",
}
_SHOW = "`holdfast hook claude --print-config` prints what belongs there"


# -- MCP -------------------------------------------------------------------------------------------


def mcp_check() -> Check:
    """Start the server as a client would, and see whether it answers."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        package = version("mcp")
    except PackageNotFoundError:
        how = "`pip install 'holdfast-agents[mcp]'` brings it (only `holdfast mcp` needs it)"
        return Check("note", "mcp", f"the package mcp is not installed; {how}")
    answers, complaint = _shake_hands()
    if any("result" not in answers.get(number, {}) for number in (_FIRST, _LAST)):
        why = complaint or f"not all was answered within {_PATIENCE:g} s"
        return Check("note", "mcp", f"`holdfast mcp` does not work: {why}")
    protocol = answers[_FIRST]["result"]["protocolVersion"]
    return Check("ok", "mcp", f"`holdfast mcp` answers: package mcp {package}, protocol {protocol}")


def _shake_hands() -> tuple[dict[int, dict[str, Any]], str]:
    """The server's answers by their numbers, and what it complained of last."""
    import subprocess
    import tempfile
    import threading

    asked = "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in _HANDSHAKE)
    answers: dict[int, dict[str, Any]] = {}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast", "mcp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        timer = threading.Timer(_PATIENCE, server.kill)
        timer.start()
        try:
            server.stdin.write(asked.encode())
            server.stdin.flush()
            for line in server.stdout:
                answer = json.loads(line)
                answers[answer.get("id")] = answer
                if _LAST in answers:
                    break
            server.stdin.close()
            server.wait()
        except (OSError, ValueError):
            server.kill()
        finally:
            timer.cancel()
        errors.seek(0)
        lines = errors.read().decode(errors="replace").splitlines()
    return answers, lines[-1].removeprefix("holdfast: ") if lines else ""


# -- the hook --------------------------------------------------------------------------------------


def hook_check() -> Check:
    """Look for the hook in Claude Code's settings, and for the program that it names."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for path in _settings():
        try:
            with open(path, "rb") as file:
                settings = json.load(file)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or f"is no JSON: {error}"
            return Check("note", "hook", f"{path}: {why}; mend it")
        ours = ((event, hook) for event, hook in _hooks(settings) if _HOOK.search(_command(hook)))
        found += [(path, event, hook) for event, hook in ours]
    if not found:
        text = f"none in Claude Code's settings; {_SHOW} (only Claude Code needs it)"
        return Check("note", "hook", text)
    for path, _, hook in found:
        program = _program(_command(hook))
        if shutil.which(program) is None:
            why = f"{path}: {program} is not found; {_SHOW}, with the whole path"
            return Check("note", "hook", why)
        if not hook.get("asyncRewake") and _LEFT_BEHIND not in _command(hook):
            return Check("note", "hook", f'{path}: without "asyncRewake": true it holds up calls')
    path, _, hook = found[-1]
    for event, otherwise in _EVENTS.items():
        if event not in [each for _, each, _ in found]:
            why = f"{path}: none for {event}, so {otherwise}; {_SHOW}"
            return Check("note", "hook", why)
    wakes = shutil.which(_program(_command(hook)))
    return Check("ok", "hook", f"{path} wakes Claude Code with {wakes}")


def _settings() -> Iterator[str]:
    """The files of Claude Code's settings, for everybody, the user, and this directory."""
    yield "/etc/claude-code/managed-settings.json"
    own = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~/.claude")
    yield os.path.join(own, "settings.json")
    yield os.path.abspath(".claude/settings.json")
    yield os.path.abspath(".claude/settings.local.json")


def _hooks(settings: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every hook there is, and what for; what is not as it should be is not ours to judge."""
    events = settings.get("hooks") if isinstance(settings, dict) else None
    for event, matchers in events.items() if isinstance(events, dict) else ():
        for matcher in matchers if isinstance(matchers, list) else ():
            hooks = matcher.get("hooks") if isinstance(matcher, dict) else None
            for hook in hooks if isinstance(hooks, list) else ():
                if isinstance(hook, dict):
                    yield event, hook


def _command(hook: dict[str, Any]) -> str:
    command = hook.get("command")
    return command if isinstance(command, str) else ""


def _program(command: str) -> str:
    """The program that a shell would run for it."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return next((word for word in words if not re.match(r"\w+=", word)), command)
