"""Journals: what each party is about to do, and what came of it, a JSON object a line.

An entry is written before the act and another one after it, each in one write. So a party that was
killed leaves behind what it had done, and the one thing of which nobody can know.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

Entry = dict[str, "Any"]


class Journal:
    """The writing side."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, **entry: Any) -> None:
        line = json.dumps({"t": round(time.monotonic(), 4), **entry}) + "\n"
        os.write(self._fd, line.encode())

    def close(self) -> None:
        os.close(self._fd)


class Reader:
    """What was added to a journal since the last look."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._offset = 0

    def read(self) -> Iterator[Entry]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].splitlines():
            yield json.loads(line)
