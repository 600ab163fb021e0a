"""The agents as programs without a person: `claude -p`, `codex exec`, `gemini -p`, `opencode run`.

Each has the MCP server configured as `holdfast mcp --print-config` prints it, and besides that only
what it takes to speak to the scripted model and to use the tools without asking anybody.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.linux.kernel import all_processes
from holdfast.testing import wait_until
from tests.real_agents.claude_code import PATIENCE, Surroundings, printed_config, set_up

SetUp = Callable[[Surroundings, str, str], list[str]]


@dataclass(frozen=True)
class Driver:
    """An agent that can be given one prompt; its set-up returns the command for that."""

    name: str
    set_up: SetUp


def _claude(around: Surroundings, url: str, config: str) -> list[str]:
    set_up(around, url)
    around.write(around.project / ".mcp.json", config)
    return ["claude", "-p", "--mcp-config", ".mcp.json", "--strict-mcp-config"]


def _codex(around: Surroundings, url: str, config: str) -> list[str]:
    provider = {"name": "scripted", "base_url": f"{url}/v1", "wire_api": "responses"}
    lines = [
        'model = "scripted"',
        'model_provider = "scripted"',
        "[model_providers.scripted]",
        *(f"{key} = {json.dumps(value)}" for key, value in provider.items()),
    ]
    around.write(around.home / ".codex" / "config.toml", "\n".join([*lines, config]))
    return ["codex", "exec", "--skip-git-repo-check"]


def _gemini(around: Surroundings, url: str, config: str) -> list[str]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"enableAutoUpdate": False},
        **json.loads(config),
    }
    around.write(around.home / ".gemini" / "settings.json", json.dumps(settings))
    around.env |= {"GEMINI_API_KEY": "scripted", "GOOGLE_GEMINI_BASE_URL": url}
    model = ("--model", "gemini-2.5-flash")  # a choice between models would be a request of its own
    return ["gemini", *model, "--skip-trust", "--approval-mode", "yolo", "-p"]


def _opencode(around: Surroundings, url: str, config: str) -> list[str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": "scripted"},
        "models": {"scripted": {"name": "scripted"}},
    }
    settings = {
        **json.loads(config),
        "provider": {"scripted": provider},
        "model": "scripted/scripted",
        "autoupdate": False,
        "share": "disabled",
    }
    around.write(around.project / "opencode.json", json.dumps(settings))
    around.env["OPENCODE_DISABLE_MODELS_FETCH"] = "1"
    return ["opencode", "run"]


DRIVERS = {
    driver.name: driver
    for driver in (
        Driver("claude", _claude),
        Driver("codex", _codex),
        Driver("gemini", _gemini),
        Driver("opencode", _opencode),
    )
}


class Agent:
    """An agent at work on one prompt."""

    def __init__(self, command: list[str], around: Surroundings) -> None:
        self._said = around.home / "said"
        with self._said.open("wb") as out:
            self._process = subprocess.Popen(
                command,
                cwd=around.project,
                env=around.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace")

    def finish(self, timeout: float = 300) -> str:
        """Wait until it is done; what it said."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.said}") from None
        assert code == 0, f"it exited with {code}:\n{self.said}"
        return self.said

    def kill(self) -> None:
        """kill -9, with all that it started and did not put into a group of its own."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


@contextmanager
def driven(
    driver: Driver, programs: Path, place: Path, url: str, prompt: str, *options: str, **env: str
) -> Iterator[Agent]:
    """An agent with a prompt, and the server with options; at the end both are gone."""
    around = Surroundings(programs, place)
    around.env |= env
    command = driver.set_up(around, url, printed_config(driver.name, *options))
    agent = Agent([*command, prompt], around)
    try:
        yield agent
    finally:
        agent.kill()
        mark = f"HOME={around.home}".encode()
        wait_until(lambda: not _servers(mark), what="the end of its server", timeout=PATIENCE)


def _servers(mark: bytes) -> list[int]:
    """The MCP servers of the agent that has this in its environment."""
    found = []
    for process in all_processes():
        try:
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            if b"mcp" not in words:
                continue
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.append(process.pid)
        except OSError:
            continue
    return found
