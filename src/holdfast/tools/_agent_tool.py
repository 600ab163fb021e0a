"""Background agents as a tool: those of the session, whoever registered them."""

from __future__ import annotations

from ..client.agents import read_output
from ..core.errors import BadRequest
from ._tool import Tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..client.client import Client
    from ..core.agent_record import AgentRecord
    from ._tool import Call

    Answer = dict[str, Any]

_OUTPUT = 10_000  # bytes
_ACTIONS = ("list", "status", "output", "stop", "register", "done")


class AgentTool:
    """`background_agent`: the keys and texts are those of the TypeScript module."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def tool(self) -> Tool:
        return Tool(
            "background_agent",
            "Agents that work in the background of this program, not processes. list; status; "
            "output (what it has written); stop (asks whoever runs it to end it); register and "
            "done are for whoever does such work itself. Their ends are told in `events`.",
            self.run,
            {
                "action": {"type": "string", "enum": list(_ACTIONS)},
                "id": {"type": "string", "description": "all but list need it"},
                "type": {"type": "string", "description": "register: what kind it is"},
                "output_file": {"type": "string", "description": "register: where it writes"},
                "success": {"type": "boolean", "description": "done: default true"},
            },
            ("action",),
            title="Background agents",
            destroys=True,
        )

    async def run(self, call: Call, action: str, id: str | None = None, **more: Any) -> Answer:
        if action == "list":
            return {"agents": [_shown(agent.record) for agent in await self._client.agents()]}
        if not id:
            raise BadRequest(f"action {action} needs 'id', the agent's")
        if action == "register":
            kind = more.get("type") or "agent"
            agent = await self._client.register_agent(id, kind, more.get("output_file"))
            return _shown(agent.record)
        agent = await self._client.agent(id)
        if action == "output":
            path = agent.record.output_file
            text, left_out = await self._client.run_in_thread(lambda: read_output(path, _OUTPUT))
            shown: Answer = {"status": agent.status, "output": text}
            if left_out:
                shown["note"] = f"the first {left_out} bytes are left out; they are in outputFile"
                shown["outputFile"] = agent.record.output_file
            return shown
        if action == "done":
            return _shown(await agent.done(more.get("success", True)))
        if action == "status":
            return _shown(agent.record)
        if not agent.record.running:
            return {"success": False, "message": f"Agent already {agent.status}"}
        record = await agent.stop()
        answer: Answer = {"success": True, "message": f"Agent {id} marked as stopped"}
        if record.reason == "unconfirmed":
            answer["note"] = "whoever runs it did not say that it has ended; it may still work"
        return answer


def _shown(record: AgentRecord) -> Answer:
    return {
        "id": record.id,
        "type": record.type,
        "outputFile": record.output_file,
        "startTime": record.started_at,
        "status": record.status,
    }
