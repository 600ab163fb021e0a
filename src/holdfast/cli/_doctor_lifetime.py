"""`doctor`'s look at where the keeper lives."""

from __future__ import annotations

import os

from holdfast.core.home import Home
from holdfast.linux.lifetime import ends_with

from ._doctor_check import Check


def place_check(home: Home) -> Check:
    pid, whose = _keeper_pid(home), "the keeper"
    if pid is None:
        pid, whose = os.getpid(), "a keeper started from here"
    what = ends_with(pid)
    if what is None:
        return Check("ok", "lifetime", f"{whose} ends only with the machine")
    return Check("note", "lifetime", f"{whose} ends with {what}")


def _keeper_pid(home: Home) -> int | None:
    from holdfast.client.connect import open_client
    from holdfast.core.errors import HoldfastError

    try:
        status = open_client(home, None).keeper_status()
    except (HoldfastError, OSError):
        return None
    return status.get("guard") if status["running"] else None
