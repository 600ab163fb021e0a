"""Resources, read without a tool: each process's log and screen, and what is to be told.

    holdfast://processes/<handle>/log       its output, as a model should read it
    holdfast://processes/<handle>/screen    what is on its terminal
    holdfast://events                       the session's unacknowledged events, as JSON

Only what is the connection's own session's; anything else is not there.
"""

from __future__ import annotations

import json

from ..core.errors import HoldfastError, NotFound
from ..core.home import is_handle
from ..core.quote import one_line
from ..tools import told_apart

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..client.client import Client

    Content = dict[str, Any]

EVENTS = "holdfast://events"
_PROCESSES = "holdfast://processes/"
_BUDGET = 50_000  # characters of a log in one answer
_TEXT = "text/plain"

TEMPLATES: list[Content] = [
    {
        "uriTemplate": _PROCESSES + "{handle}/log",
        "name": "log",
        "title": "Output of a process",
        "description": "What it has written, without terminal codes, its middle left out if long.",
        "mimeType": _TEXT,
    },
    {
        "uriTemplate": _PROCESSES + "{handle}/screen",
        "name": "screen",
        "title": "Screen of a process",
        "description": "What a person at its terminal would see now.",
        "mimeType": _TEXT,
    },
]


def parse(uri: str) -> tuple[str, str] | None:
    """The handle and the part of it that an address names; None if it names nothing of ours."""
    handle, slash, part = uri.removeprefix(_PROCESSES).partition("/")
    if not uri.startswith(_PROCESSES) or not slash or part not in ("log", "screen"):
        return None
    return (handle, part) if is_handle(handle) else None


async def listed(client: Client) -> list[Content]:
    found: list[Content] = [
        {
            "uri": EVENTS,
            "name": "events",
            "title": "Events that were not acknowledged yet",
            "mimeType": "application/json",
        }
    ]
    for process in await client.list():
        record = process.record
        name = one_line(record.label) or record.handle
        about = f"{record.status}: {one_line(record.command_text[:200])}"
        for part, title in (("log", "Output"), ("screen", "Screen")):
            if part == "screen" and not record.tty:
                continue
            found.append(
                {
                    "uri": f"{_PROCESSES}{record.handle}/{part}",
                    "name": f"{name} {part}",
                    "title": f"{title} of {name}",
                    "description": about,
                    "mimeType": _TEXT,
                }
            )
    return found


async def check(client: Client, uri: str) -> None:
    """Raise NotFound for what cannot be looked at."""
    if uri == EVENTS:
        return
    found = parse(uri)
    if found is None:
        raise NotFound(f"there is no resource {uri[:200]!r}; resources/list has those there are")
    await client.get(found[0])


async def read(client: Client, uri: str) -> Content:
    """The contents, or NotFound."""
    if uri == EVENTS:
        events = [event.public() async for event in client.events()]
        return {"uri": uri, "mimeType": "application/json", "text": json.dumps(events)}
    await check(client, uri)
    found = parse(uri)
    assert found is not None
    process = await client.get(found[0])
    try:
        if found[1] == "screen":
            text = (await process.screen()).text
        else:
            text = (await process.view(budget=_BUDGET)).text
    except NotFound:
        raise
    except HoldfastError as error:  # it has no screen, for example
        raise NotFound(str(error)) from error
    return {"uri": uri, "mimeType": _TEXT, "text": told_apart(text)}
