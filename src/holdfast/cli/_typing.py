"""Keys that a person types while attached: those that let them go, and the others on their way."""

from __future__ import annotations

import re
import threading
from collections import deque

from holdfast.core.errors import BadRequest, HoldfastError, NotFound, NotRunning
from holdfast.terminal.keys import parse

from ._handles import open_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from holdfast.client.sync import SyncProcess

    Work = bytes | Callable[[SyncProcess], object]

_QUIET = 1.0
_SEND = 1.0
_TYPED_AHEAD = 1 << 20


class Detach:
    """Finds the keys that mean "let me go" in what is typed."""

    def __init__(self, keys: str) -> None:
        names = [] if keys.lower() == "none" else keys.split(",")
        try:
            patterns = [parse(name.strip()).pattern() for name in names]
        except BadRequest as error:
            raise BadRequest(
                f"--detach-keys is like C-], C-p,C-q or none, not {keys!r}: {error}"
            ) from None
        self._all = re.compile(b"".join(patterns)) if patterns else None
        self._some = [
            re.compile(b"".join(patterns[:n]) + rb"\Z") for n in range(len(patterns) - 1, 0, -1)
        ]
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """The bytes typed for the process, and whether the person wants to go."""
        if self._all is None:
            return data, False
        data, self._held = self._held + data, b""
        if (found := self._all.search(data)) is not None:
            return data[: found.start()], True
        for beginning in self._some:
            if (found := beginning.search(data)) is not None:
                self._held = found[0]
                return data[: found.start()], False
        return data, False


class Typist(threading.Thread):
    """Sends keys and sizes to the process, in order, with a client of its own."""

    def __init__(self, args: Namespace, handle: str) -> None:
        super().__init__(daemon=True)
        self._args, self._handle = args, handle
        self._todo: deque[Work] = deque()
        self._typed = 0
        self._change = threading.Condition()
        self._closed = False
        self.trouble = ""
        self.start()

    def type(self, data: bytes) -> bool:
        """False when the process has been reading nothing for so long that this is one too many."""
        with self._change:
            if self._typed + len(data) > _TYPED_AHEAD:
                return False
            self._typed += len(data)
            self._todo.append(data)
            self._change.notify()
            return True

    def do(self, work: Callable[[SyncProcess], object]) -> None:
        with self._change:
            self._todo.append(work)
            self._change.notify()

    def close(self) -> None:
        """Let it finish what it is at, but not wait for that."""
        with self._change:
            self._closed = True
            self._change.notify()
        self.join(0.5)

    def run(self) -> None:
        client = open_for(self._args)
        try:
            process = client.get(self._handle)
            while (work := self._next()) is not None:
                try:
                    self._do(process, work)
                except (NotRunning, NotFound):
                    return
                except (HoldfastError, OSError) as error:
                    self.trouble = str(error)
        except (HoldfastError, OSError) as error:
            self.trouble = str(error)
        finally:
            try:
                client.close()
            except (HoldfastError, OSError):
                pass

    def _next(self) -> Work | None:
        with self._change:
            if not self._todo and not self._closed:
                self._change.wait(_QUIET)
            if self._closed and not self._todo:
                return None
            if not self._todo:
                return _see_that_it_is_kept
            work = self._todo.popleft()
            if not isinstance(work, bytes):
                return work
            while self._todo and isinstance(self._todo[0], bytes):
                work += self._todo.popleft()  # type: ignore[operator]
            return work

    def _do(self, process: SyncProcess, work: Work) -> None:
        if not isinstance(work, bytes):
            work(process)
            return
        taken = 0
        try:
            taken = process.send(work, timeout=_SEND)
        except (NotRunning, NotFound):
            raise
        except (HoldfastError, OSError):
            taken = len(work)  # perhaps it arrived: typing it twice would be worse
            raise
        finally:
            with self._change:
                self._typed -= taken
                if taken < len(work) and not self._closed:
                    self._todo.appendleft(work[taken:])


def _see_that_it_is_kept(process: SyncProcess) -> None:
    process.read_at(0, 0)  # a look: if both halves of the keeper died, it starts another one
