"""Labels in the place of handles, alike in the library, the tools and the command line."""

from __future__ import annotations

from ..core.errors import BadRequest
from ..core.home import is_handle
from ..core.record import DEFAULT_SESSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.record import Record
    from ..core.store import Store

_NAMED = 4


def labelled(store: Store, session: str | None, label: str) -> Record | None:
    """The process that a label means, if there is one; BadRequest if several run with it.

    What looks like a handle is never a label.
    """
    if not isinstance(label, str) or not label or is_handle(label):
        return None
    records, _ = store.scan(session)
    return meant(label, [record for record in records if record.label == label], session)


def meant(label: str, records: Sequence[Record], session: str | None) -> Record | None:
    """Choose among those with a label, oldest first: the one that runs, else the newest.

    The own session counts before others, which only a person (session None) sees.
    """
    own = [record for record in records if record.session == (session or DEFAULT_SESSION)]
    running = [record for record in own or records if record.running]
    if len(running) > 1:
        named = ", ".join(record.handle for record in running[:_NAMED])
        more = f" and {len(running) - _NAMED} more" if len(running) > _NAMED else ""
        raise BadRequest(f"{label!r} is the label of {named}{more}; give the handle of one")
    found = running or own or records
    return found[-1] if found else None


def note(label: str, record: Record, session: str | None) -> str:
    """A word on which process was taken for a label."""
    own = record.session == (session or DEFAULT_SESSION)
    where = "" if own else f", session {record.session}"
    return f"{label!r} is {record.handle} ({record.status}{where})"
