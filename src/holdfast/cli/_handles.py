"""From what a person typed to a process.

The library takes handles exactly. A person may shorten one, or use a label, where that can mean
only one process (or only one that runs) and nothing matches exactly. A label of several that have
all ended means the newest. Never a pattern, never a part from the middle.
"""

from __future__ import annotations

from holdfast._errors import BadRequest, NotFound
from holdfast._home import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

    from holdfast._model import Record
    from holdfast._sync import SyncClient, SyncProcess

_NAMED = 4


def open_for(args: Namespace) -> SyncClient:
    """A client for the session that was asked for, or for a person, who sees them all."""
    from holdfast._sync import open_client

    return open_client(Home.locate(), getattr(args, "session", None))


def find(client: SyncClient, text: str) -> SyncProcess:
    try:
        return client.get(text)
    except NotFound:
        matches = matching(text, (process.record for process in client.list()))
        if not matches:
            raise
    if len(matches) > 1:  # a label that is used again means the one that runs
        matches = [record for record in matches if record.running] or matches
    if all(record.label == text and not record.running for record in matches):
        matches = matches[-1:]  # they come oldest first
    if len(matches) > 1:
        named = ", ".join(describe(record) for record in matches[:_NAMED])
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


def matching(text: str, records: Iterable[Record]) -> list[Record]:
    """The processes with exactly this label, else those whose handle begins like this."""
    start = text.removeprefix("proc-")
    if not start:
        return []
    labelled, beginning = [], []
    for record in records:
        if record.label == text:
            labelled.append(record)
        elif record.handle.removeprefix("proc-").startswith(start):
            beginning.append(record)
    return labelled or beginning


def describe(record: Record) -> str:
    label = f" {record.label!r}" if record.label else ""
    return f"{record.handle}{label} ({record.status})"
