"""From what a person typed to a process.

The library takes a handle, or a label, exactly. A person may also shorten a handle, where that can
mean only one process (or only one that runs). Never a pattern, never a part from the middle.
"""

from __future__ import annotations

from holdfast.client.labels import note
from holdfast.core.errors import BadRequest, NotFound
from holdfast.core.home import Home

from ._render import remark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

    from holdfast.client.sync import SyncClient, SyncProcess
    from holdfast.core.record import Record

_NAMED = 4


def open_for(args: Namespace) -> SyncClient:
    """A client for the session that was asked for, or for a person, who sees them all."""
    from holdfast.client.connect import open_client

    return open_client(Home.locate(), getattr(args, "session", None))


def find(client: SyncClient, text: str) -> SyncProcess:
    """The process with this handle or label, or whose handle begins so; says which a label is."""
    try:
        process = client.get(text)
    except NotFound:
        matches = beginning(text, (process.record for process in client.list()))
        if not matches:
            raise
    else:
        if process.handle != text:
            remark(note(text, process.record, client.session))
        return process
    if len(matches) > 1:
        matches = [record for record in matches if record.running] or matches
    if len(matches) > 1:
        named = ", ".join(_describe(record) for record in matches[:_NAMED])
        more = f" and {len(matches) - _NAMED} more" if len(matches) > _NAMED else ""
        raise BadRequest(f"{text!r} could be {named}{more}; give more of the handle")
    return client.get(matches[0].handle)


def find_all(client: SyncClient, texts: Iterable[str]) -> list[SyncProcess]:
    """Every process named, in order; nothing is done to any of them unless all are found."""
    return [find(client, text) for text in texts]


def find_group(client: SyncClient, name: str) -> list[SyncProcess]:
    """Everything that was started with a group, oldest first."""
    if not name:
        raise BadRequest("--group needs the name of a group; `holdfast ps -a` lists them")
    processes = client.list(group=name)
    if not processes:
        raise NotFound(f"there is no process in group {name!r}; `holdfast ps -a` lists them all")
    return processes


def beginning(text: str, records: Iterable[Record]) -> list[Record]:
    """The processes whose handle begins like this."""
    start = text.removeprefix("proc-")
    return [
        record
        for record in records
        if start and record.handle.removeprefix("proc-").startswith(start)
    ]


def _describe(record: Record) -> str:
    label = f" {record.label!r}" if record.label else ""
    return f"{record.handle}{label} ({record.status})"
