"""Taking over what a lost session of the same directory left, as a tool of every dialect."""

from __future__ import annotations

from contextlib import suppress

from ..core.errors import BadRequest, HoldfastError, NotFound
from ._tool import Tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..client.client import Client
    from ..client.lost_sessions import LeftBehind
    from ..core.record import Record
    from ._confinement import Confinement
    from ._tool import Call, Result

    Answer = dict[str, Any]

_SESSIONS = 5  # the newest
_LISTED = 50
_SHOWN = 10  # processes of one session; more would only be noise
_COMMAND = 200


class Adoption:
    """Tells of what was left behind, with the first answer, and takes it over."""

    def __init__(self, client: Client, confinement: Confinement) -> None:
        self._client = client
        self._confinement = confinement
        self._told = False  # it is in an answer, which may be lost
        self._over = False  # it was read, or there is nothing to tell

    def tool(self) -> Tool:
        return Tool(
            "adopt",
            "Take over the processes and untold events of an earlier session of this directory "
            "whose agent was lost; without session: which there are.",
            self.adopt,
            {"session": {"type": "string", "description": "as named in left_behind"}},
            title="Take over what was left behind",
        )

    def called(self) -> None:
        """A call begins: whoever makes it has read the answers before."""
        self._over = self._over or self._told

    async def tell(self, result: Result) -> None:
        if self._over:
            return
        left = []
        if "left_behind" not in result and "adopted" not in result:
            try:
                left = await self._left()
            except HoldfastError:
                return  # with the next answer then; this one is about something else
        self._told = True
        worth = [each for each in left if each.matters]
        if worth:
            told = [_told(each) for each in worth[-_SESSIONS:]]
            if len(worth) > _SESSIONS:
                more = (
                    f"{len(worth) - _SESSIONS} older ones: call adopt without session to see them"
                )
                told.append({"text": more})
            result.add("left_behind", told, "\n".join(each["text"] for each in told))

    async def _left(self) -> list[LeftBehind]:
        return [left for left in await self._client.left_behind() if self._fits(left)]

    def _fits(self, left: LeftBehind) -> bool:
        """True if none of its processes may do more than those that are started here."""
        return all(self._confinement.covers(each) for each in left.records if each.running)

    async def take_over(self, handle: str) -> bool:
        for left in await self._left():
            if any(record.handle == handle for record in left.records):
                with suppress(NotFound):  # somebody else was quicker, or its client is back
                    await self._client.adopt(left.session)
                    return True
        return False

    async def adopt(self, call: Call, session: str | None = None) -> Answer:
        if session is None:
            found = await self._left()
            return {"left_behind": [_told(each) for each in found if each.matters][-_LISTED:]}
        if not session:
            raise BadRequest("'session' of adopt must not be empty; without it you are told which")
        for left in await self._client.left_behind():
            if left.session == session and not self._fits(left):
                raise BadRequest(
                    f"what runs in session {session!r} is not confined as commands are here, so it "
                    "cannot be taken over; the user can look after it with `holdfast ps`"
                )
        processes = await self._client.adopt(session)
        return {
            "adopted": session,
            "processes": [_brief(process.record) for process in processes],
            "note": "they are this session's now: look at them and stop them with its tools",
        }


def _told(left: LeftBehind) -> Answer:
    return {
        "session": left.session,
        "processes": [_brief(record) for record in left.records[-_SHOWN:]],
        "events": left.events,
        "text": left.text,
    }


def _brief(record: Record) -> Answer:
    answer: Answer = {
        "handle": record.handle,
        "command": record.command_text[:_COMMAND],
        "status": record.status,
    }
    if record.exit_code is not None:
        answer["exit_code"] = record.exit_code
    if record.label:
        answer["label"] = record.label
    return answer
