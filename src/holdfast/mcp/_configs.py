"""Configurations to paste, so that a client starts the server, in the form each wants it."""

from __future__ import annotations

import json

from ..core.programs import cli_program
from ..core.units import parse_patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "holdfast"
# Codex gives up on a call after a minute unless its configuration says otherwise. What it says and
# what the server does come from the same place, so that no result comes too late.
_CODEX_PATIENCE = "280s"
_CODEX_MARGIN = 20  # seconds


def config_for(client: str, options: list[str]) -> str:
    """The block for one client, with a comment-free body that can be merged into its file."""
    if client == "codex" and "--patience" not in options:
        options = [*options, "--patience", _CODEX_PATIENCE]
    whole = [*cli_program(), "mcp", *options]
    program, arguments = whole[0], whole[1:]
    plain: dict[str, Any] = {"command": program, "args": arguments}
    blocks: dict[str, dict[str, Any]] = {
        "claude": {"mcpServers": {NAME: {"type": "stdio", **plain}}},
        "cursor": {"mcpServers": {NAME: plain}},
        "vscode": {"servers": {NAME: {"type": "stdio", **plain}}},
        "gemini": {"mcpServers": {NAME: plain}},
        "opencode": {
            "$schema": "https://opencode.ai/config.json",
            "mcp": {
                NAME: {"type": "local", "command": [program, *arguments], "enabled": True},
            },
        },
    }
    if client == "codex":
        patience = options[options.index("--patience") + 1]
        return _toml(program, arguments, parse_patience(patience, "--patience"))
    return json.dumps(blocks[client], indent=2)


def _toml(program: str, arguments: list[str], patience: float) -> str:
    # JSON's strings and lists of them are TOML's too.
    return "\n".join(
        (
            f"[mcp_servers.{NAME}]",
            f"command = {json.dumps(program)}",
            f"args = {json.dumps(arguments)}",
            'env_vars = ["HOLDFAST_HOME"]',  # it passes on few others
            # It waits a second for servers that are not required, and begins without their tools.
            "required = true",
            "startup_timeout_sec = 60",
            f"tool_timeout_sec = {int(patience) + _CODEX_MARGIN}",
            # Where nobody can be asked, as in `codex exec`, it would refuse every call.
            'default_tools_approval_mode = "approve"',
        )
    )
