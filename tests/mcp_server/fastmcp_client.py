"""A client of `fastmcp-tasks`, run as a program by that package's own interpreter.

It calls blocking tools as any other, with somebody who answers forms, then drives a task by hand,
and prints what it was told as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from fastmcp import Client  # type: ignore[import-not-found]
from fastmcp.client.transports import StdioTransport  # type: ignore[import-not-found]
from fastmcp_tasks import call_tool_task  # type: ignore[import-not-found]


async def main() -> None:
    asked: list[str] = []

    async def answers(message: str, kind: Any, params: Any, context: Any) -> Any:
        asked.append(message)
        return kind(answer="yes")

    server = StdioTransport(sys.argv[1], sys.argv[2:], env=dict(os.environ), cwd=os.getcwd())
    async with Client(server, elicitation_handler=answers) as client:

        async def start(command: str, **more: Any) -> Any:
            arguments = {"command": command, "wait": True, **more}
            return (await client.call_tool("spawn_process", arguments)).structured_content

        failed = await start("sleep 5; echo over; exit 3")
        answered = await start("read -p 'sure? ' a; echo got $a", tty=True)
        arguments = {"command": "sleep 1000", "wait": True}
        task = await call_tool_task(client, "spawn_process", arguments)
        before = (await task.status()).status
        await task.cancel()
        after = (await task.wait()).status
        listed = await client.call_tool("process", {"action": "list"})
    found = {
        "failed": failed,
        "answered": answered,
        "asked": asked,
        "task": [task.task_id, before, after],
        "listed": listed.structured_content,
    }
    print(json.dumps(found))


asyncio.run(main())
