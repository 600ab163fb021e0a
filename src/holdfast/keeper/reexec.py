"""A keeper that turns into a new one: same pid, same children, clean interpreter."""

from __future__ import annotations

import json
import os

from ..core.home import write_all
from .guard import Guard
from .held_fds import Held, Table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What keepers of earlier versions call them.
_RENAMED = {"tank": "splice_pipe", "shelf": "fd_store"}
_FIRST = ("pid", "pidfd", "out", "err", "stdin", "token", "sent")


def renew(guard: Guard, table: Table, program: list[str]) -> None:
    """Become a guard by execve, with every descriptor that matters kept open."""
    state = {
        "lock": guard.lock,
        "listen": guard.listen,
        "notify": guard.notify,
        "idle": guard.idle,
        "nofile": guard.nofile,
        "fresh": guard.fresh,
        "table": {handle: held.to_json() for handle, held in table.items()},
    }
    # The table may be longer than an argument can be, so it travels in memory without a name.
    fd = os.memfd_create("holdfast-state", 0)
    write_all(fd, json.dumps(state).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    kept = [guard.lock, guard.listen, *([guard.notify] if guard.notify >= 0 else [])]
    for held in table.values():
        kept += held.descriptors()
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    os.execve(program[0], [*program, "renew", guard.home.path, str(fd)], dict(os.environ))


def read_state(fd: int) -> tuple[int, int, int, float, int, bool, Table]:
    """The state that `renew` left: descriptors, settings, whether it is fresh, and the table."""
    with open(fd, "rb") as file:
        state = json.load(file)
    table = {handle: _held(fields) for handle, fields in state["table"].items()}
    notify = state.get("notify", -1)  # which keepers before it do not have
    for descriptor in [state["lock"], state["listen"], *([notify] if notify >= 0 else [])]:
        os.set_inheritable(descriptor, False)
    for held in table.values():
        for descriptor in held.descriptors():
            os.set_inheritable(descriptor, False)
    fresh = state.get("fresh", False)  # nor that
    return state["lock"], state["listen"], notify, state["idle"], state["nofile"], fresh, table


def _held(fields: dict[str, Any] | list[Any]) -> Held:
    if isinstance(fields, list):  # of a keeper of the first version
        fields = dict(zip(_FIRST, fields, strict=True))
    for old, name in _RENAMED.items():
        if old in fields:
            fields[name] = fields.pop(old)
    return Held(**{name: fields[name] for name in Held.__slots__ if name in fields})
