"""A process that waits for input, by the evidence of the kernel (`linux.input_evidence`)."""

from __future__ import annotations

from ..linux.input_evidence import Seen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..linux.site import Site


class InputDetector:
    """`seen` is what the last look found.

    With `twice` it takes two looks that agree, with no output between them; so it does where the
    kernel may be ahead of the log, whose last lines are not what was asked then.
    """

    __slots__ = ("_last", "_twice", "seen")

    def __init__(self, *, twice: bool) -> None:
        self._twice = twice
        self._last: tuple[object, ...] = ()
        self.seen = Seen(False)

    def forget(self) -> None:
        """Count what was seen so far as another wait."""
        self._last = ()

    def look(self, site: Site, size: int) -> Seen | None:
        """Look who waits for input, once that is sure; `size` is that of the log."""
        self.seen = seen = site.see()
        before = self._last
        self._last = (seen.answer, seen.tid, size) if seen.waits else ()
        if not seen.waits or ((self._twice or site.ahead) and before != self._last):
            return None
        return seen
