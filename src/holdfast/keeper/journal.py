"""keeper.log: what the keeper has to say. Handles only, never a command or an environment."""

from __future__ import annotations

import os
import time


def say(text: str) -> None:
    """One line in keeper.log, which is the keeper's stderr."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        os.write(2, f"{stamp} [{os.getpid()}] {text}\n".encode("utf-8", "replace"))
    except OSError:
        return
