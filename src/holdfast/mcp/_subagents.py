"""Subagents: those who give a name with a call have a session of their own, beside the client's.

A client's subagents speak through its one connection, and nothing in a request tells them apart
(Claude Code starts one server even for several of a kind). So they say who they are.
"""

from __future__ import annotations

from ..core.errors import BadRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ARGUMENT = "agent"
_SCHEMA = {
    "type": "string",
    "description": "only for subagents: a name of your own, in each call; what you start is then "
    "yours, and its end is told to you alone",
}
MOST = 64  # in one connection: each holds a connection to the keeper
_CHARACTERS = 64


def offered(definitions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools of a dialect, which take the name of a subagent too."""
    return [
        each
        if each["name"] == "adopt"  # which is the client's
        else {
            **each,
            "inputSchema": {
                **each["inputSchema"],
                "properties": {**each["inputSchema"]["properties"], ARGUMENT: _SCHEMA},
            },
        }
        for each in definitions
    ]


def session_name(of_client: str, agent: object) -> str:
    """The session of a subagent: the same whenever that name is used with the client's session."""
    named = isinstance(agent, str) and agent.strip() and agent.isprintable()
    if not named or len(str(agent)) > _CHARACTERS:
        raise BadRequest(
            f"{ARGUMENT} is a name of 1 to {_CHARACTERS} printable characters; leave it out unless "
            "you are a subagent"
        )
    return f"{of_client}.{agent}"
