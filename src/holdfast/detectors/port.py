"""A port that a process serves, or that somebody else has."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..linux.ports import Snapshot
    from ..linux.site import Serving, Site


class PortDetector:
    """One port of this machine; of a process in a container, the container's.

    The kernel tells nobody of a new listener, so whoever wants to know looks again and again. One
    `Snapshot` serves all who look at that moment.
    """

    __slots__ = ("_addresses", "_host", "_stranger", "port", "why")

    def __init__(self, port: int, host: str = "localhost") -> None:
        self.port = port
        self._host = host
        self._addresses: list[bytes] | None = None
        self._stranger = 0
        self.why = ""  # it is not reached, where that is known

    def look(self, site: Site, look: Snapshot) -> Serving | None:
        """Look who serves it, or which stranger has it; None if nobody does yet."""
        if self._addresses is None:
            from ..linux.ports import addresses

            self._addresses = addresses(self._host)
        found = site.port(self.port, self._addresses, look)
        self.why = found.why
        before, self._stranger = self._stranger, found.stranger.inode if found.stranger else 0
        if found.stranger is not None:
            # Seen twice: a server that is just being forked looks like a stranger for a moment.
            return found if found.stranger.inode == before else None
        return found if found.facts is not None else None
