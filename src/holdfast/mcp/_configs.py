"""Configurations to paste, so that a client starts the server, in the form each wants it."""

from __future__ import annotations

import json

from ..core.programs import cli_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "holdfast"


def config_for(client: str, options: list[str]) -> str:
    """The block for one client, with a comment-free body that can be merged into its file."""
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
        return _toml(program, arguments)
    return json.dumps(blocks[client], indent=2)


def _toml(program: str, arguments: list[str]) -> str:
    # JSON's strings and lists of them are TOML's too.
    return "\n".join(
        (
            f"[mcp_servers.{NAME}]",
            f"command = {json.dumps(program)}",
            f"args = {json.dumps(arguments)}",
        )
    )
