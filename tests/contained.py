"""What tests of containment share: which kinds there are here, and what is left of processes."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import HoldfastError, SyncClient, SyncProcess, connect
from holdfast.linux.cgroup import LIMITS, Trees, members, own_groups
from holdfast.linux.kernel import all_processes, mark_number, mark_of, marked_number, stat

MODES = ("pipe", "pty", "tmux")
_NOWHERE = f"nowhere-{os.getpid()}"  # its groups are its own: others run tests at the same time
BEST = Trees(_NOWHERE).kind()
# What a control group can limit here.
LIMITING = {
    name for name in LIMITS if BEST != "tree" and Trees(_NOWHERE).limiting(name) is not None
}
# The strongest that can be had, and the weaker ones that can be asked for.
KINDS = [BEST]
if BEST == "cgroup" and Trees(_NOWHERE).usable("freezer"):
    KINDS.append("cgroup-v1")
if BEST != "tree":
    KINDS.append("tree")
Trees(_NOWHERE).clean_up(going=True)


def _param(kind: str) -> Any:
    """Where both can be had, the older control groups are for later: few have no others."""
    return pytest.param(kind, marks=[pytest.mark.long] if kind == "cgroup-v1" != BEST else [])


@pytest.fixture(params=[_param(kind) for kind in KINDS])
def kind(request: pytest.FixtureRequest, home: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What contains the processes of the test."""
    wanted: str = request.param
    if wanted != BEST:
        monkeypatch.setenv("HOLDFAST_CONTAINMENT", wanted)
    return wanted


@pytest.fixture
def hf(session: str, kind: str) -> Iterator[SyncClient]:
    """A client that holds the test's own session, whose processes are contained in that way."""
    with connect(session=session) as client:
        yield client
        with contextlib.suppress(HoldfastError):
            client.stop_all(grace=0)  # closing would wait for the grace of what is left


def mode_of(mode: str) -> dict[str, Any]:
    return {"tty": mode == "pty", "tmux": mode == "tmux"}


def alive(pid: int | None) -> bool:
    found = stat(pid or 0)
    return found is not None and found.state not in "ZX"


def carriers(*handles: str) -> list[int]:
    """Who carries the mark of one of these processes, in its limits or its environment."""
    numbers = {mark_number(handle) for handle in handles}
    return [
        found.pid
        for found in all_processes()
        if found.state not in "ZX"
        and (marked_number(found.pid) in numbers or mark_of(found.pid) in handles)
    ]


def daemon_of(process: SyncProcess) -> int:
    lines = process.read_at(0).text.split("\n")
    return int(next(line for line in lines if line.startswith("daemon")).split()[1])


def groups_of(home: str) -> list[str]:
    """The control groups of a home's keeper and its processes, in every tree."""
    name = f"holdfast-{zlib.crc32(os.fsencode(home)):08x}"
    found: set[str] = set()
    for path in own_groups().values():
        for directory, _, _ in os.walk(f"{path}/{name}"):
            found.add(directory)
    return sorted(found)


def inhabited(home: str) -> list[str]:
    """Those of them that a process is in."""
    named = ("holdfast-", "keeper")
    leaves = [path for path in groups_of(home) if not os.path.basename(path).startswith(named)]
    return [path for path in leaves if members([path])]
