"""`doctor`'s look at where the keeper lives."""

from __future__ import annotations

import os

from holdfast._home import Home
from holdfast._place import ends_with

from ._doctor import Check


def place_check(home: Home) -> Check:
    pid, whose = _keeper_pid(home), "the keeper"
    if pid is None:
        pid, whose = os.getpid(), "a keeper started from here"
    what = ends_with(pid)
    if what is None:
        return Check("ok", "lifetime", f"{whose} ends only with the machine")
    return Check("note", "lifetime", f"{whose} ends with {what}")


def _keeper_pid(home: Home) -> int | None:
    from holdfast._errors import HoldfastError
    from holdfast._sync import open_client

    try:
        status = open_client(home, None).keeper_status()
    except (HoldfastError, OSError):
        return None
    return status.get("guard") if status["running"] else None
