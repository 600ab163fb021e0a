"""Claude Code in front of a person: in a terminal of a private tmux server, set up and trusted.

    with ScriptedModel(script) as model, ClaudeCode(agents, tmp_path, model.url) as claude:
        claude.type("start the server")
        claude.wait_for("it runs")

Its home, its settings and its project are directories of the test's. The MCP server is configured
as `holdfast mcp --print-config claude` prints it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.linux.kernel import stat
from holdfast.testing import wait_until
from tests.mcp_servers import PROGRAM

KEY = "sk-ant-api03-scripted-model-000000000000000000000000"
_PROMPT = "\N{HEAVY RIGHT-POINTING ANGLE QUOTATION MARK ORNAMENT}"
_TOOLS_TAKEN = "Channel notifications"  # what it says of a server after it took its tools
PATIENCE = 120.0  # seconds for anything to appear, on a busy machine


def printed_config(client: str, *options: str) -> str:
    """The configuration for one client, as people paste it."""
    command = [*PROGRAM, "--print-config", client, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Surroundings:
    """The home and the project of an agent, and the environment it has."""

    def __init__(self, programs: Path, place: Path) -> None:
        self.home = place / "agent-home"
        self.project = place / "project"
        for directory in (self.home, self.project):
            directory.mkdir(parents=True, exist_ok=True)
        self.env = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "HOLDFAST_HOME": os.environ["HOLDFAST_HOME"],
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "SHELL": "/bin/sh",
        }

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def set_up(around: Surroundings, url: str, settings: Mapping[str, Any] | None = None) -> None:
    """Past the first start: onboarding done, project trusted, key and MCP server approved."""
    project = {
        "hasTrustDialogAccepted": True,
        "hasCompletedProjectOnboarding": True,
        "projectOnboardingSeenCount": 5,
        "enabledMcpjsonServers": ["holdfast"],
        "allowedTools": [],
    }
    state = {
        "hasCompletedOnboarding": True,
        "lastOnboardingVersion": "99.0.0",
        "theme": "dark",
        "autoUpdates": False,
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(around.project): project},
    }
    chosen = {
        "permissions": {"allow": ["mcp__holdfast"]},
        "enableAllProjectMcpServers": True,
        **(settings or {}),
    }
    around.write(around.home / ".claude.json", json.dumps(state))
    around.write(around.home / ".claude" / "settings.json", json.dumps(chosen))
    around.env |= {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
        "IS_DEMO": "1",  # a start screen without anybody's name on it
    }


class ClaudeCode:
    """One interactive Claude Code after the other, in one project.

    `settings` go into the user's settings file (hooks, permissions), `mcp` is the text of the
    project's .mcp.json, and `options` are arguments of every start.
    """

    def __init__(
        self,
        programs: Path,
        place: Path,
        url: str,
        *options: str,
        settings: Mapping[str, Any] | None = None,
        mcp: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.around = Surroundings(programs, place)
        set_up(self.around, url, settings)
        self.around.env |= env or {}
        self.around.write(self.around.project / ".mcp.json", mcp or printed_config("claude"))
        self._options = options
        self._server = tempfile.mkdtemp(prefix="claude-")  # its path has to be a short one
        self._starts = 0
        self.pid = 0

    @property
    def debug_log(self) -> Path:
        """What it says of itself since its last start."""
        return self.around.home / f"debug-{self._starts}.log"

    def __enter__(self) -> ClaudeCode:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *options: str) -> None:
        """Start it and wait for its prompt; again after `kill` or `leave`, with `--continue`."""
        self._starts += 1
        command = ["claude", "--debug-file", str(self.debug_log), *self._options, *options]
        size = ("-x", "160", "-y", "50")
        where = ("-c", str(self.around.project))
        self._tmux(
            "new-session", "-d", *size, *where, "-s", "claude", f"exec {shlex.join(command)}"
        )
        self.pid = int(self._tmux("display-message", "-p", "-t", "claude", "#{pane_pid}"))
        self.wait_for(_PROMPT)
        # It prompts before its servers are there, and takes what is typed then without their tools.
        wait_until(self._has_tools, what="the tools of its MCP servers", timeout=PATIENCE)

    def type(self, text: str) -> None:
        """Type a line, and Enter when it is there."""
        before = self.screen()
        self._tmux("send-keys", "-t", "claude", "-l", "--", text)
        wait_until(lambda: self.screen() != before, what="what was typed", timeout=PATIENCE)
        self.press("Enter")

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names for them."""
        self._tmux("send-keys", "-t", "claude", *keys)

    def screen(self) -> str:
        """The screen and what has scrolled off it; nothing once it has ended."""
        found = self._run("capture-pane", "-p", "-J", "-S", "-500", "-t", "claude")
        return found.stdout if found.returncode == 0 else ""

    def wait_for(self, text: str, timeout: float = PATIENCE) -> None:
        """Wait until this is on the screen."""
        try:
            wait_until(lambda: text in self.screen(), timeout=timeout)
        except AssertionError:
            raise AssertionError(f"no {text!r} on the screen:\n{self.screen()}") from None

    def kill(self) -> None:
        """kill -9, as the kernel would where memory ran out."""
        os.kill(self.pid, signal.SIGKILL)
        self._ended()

    def leave(self) -> None:
        """As a person leaves: Ctrl-C twice."""
        self.press("C-c")
        self.press("C-c")
        self._ended()

    def close(self) -> None:
        """End it, whatever it does, and its tmux server."""
        if self._alive():
            os.kill(self.pid, signal.SIGKILL)
            self._ended()
        self._run("kill-server")
        shutil.rmtree(self._server, ignore_errors=True)

    def _has_tools(self) -> bool:
        servers = json.loads((self.around.project / ".mcp.json").read_text())["mcpServers"]
        said = self.debug_log.read_text() if self.debug_log.exists() else ""
        return all(f'"{name}": {_TOOLS_TAKEN}' in said for name in servers)

    def _ended(self) -> None:
        wait_until(lambda: not self._alive(), what="the end of Claude Code", timeout=PATIENCE)
        wait_until(lambda: self._run("has-session", "-t", "claude").returncode != 0)

    def _alive(self) -> bool:
        found = stat(self.pid) if self.pid else None
        return found is not None and found.state not in "ZX"

    def _tmux(self, *arguments: str) -> str:
        done = self._run(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command: Sequence[str] = ("tmux", "-S", f"{self._server}/tmux", "-f", "/dev/null")
        return subprocess.run(
            [*command, *arguments], env=self.around.env, capture_output=True, text=True
        )
