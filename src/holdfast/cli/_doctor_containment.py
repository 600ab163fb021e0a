"""`doctor`'s look at how processes are contained, limited and put into a sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterator

from holdfast.client.config import load_config
from holdfast.core.errors import ConfigError
from holdfast.core.home import Home
from holdfast.linux import cgroup, lockdown, sandbox
from holdfast.linux.lifetime import lingers

from ._doctor_check import Check

_HOW = {
    "cgroup": "a control group for each process: nothing it starts survives a kill",
    "cgroup-v1": "a control group (version 1) for each process: nothing survives a kill",
}
_TREE = "no control group can be made: what a process starts is found by marks that it inherits"
_SYSTEMD = (
    "; for one, `holdfast keeper stop`, and then start what uses holdfast as "
    "`systemd-run --user --scope -p Delegate=yes COMMAND`"
)
_LINGER = " (after `loginctl enable-linger`, or it ends with your last login)"
_GIVEN = "; docs/containment.md says how one is given to you"


def _weaker() -> str:
    if not os.path.isdir("/run/systemd/system") or os.geteuid() == 0:
        return _TREE + _GIVEN
    return _TREE + _SYSTEMD + ("" if lingers() else _LINGER)


def contain_checks(home: Home) -> Iterator[Check]:
    trees = cgroup.Trees(f"{home.path}#doctor")  # not the groups of a keeper
    kind = trees.kind()
    try:
        wanted = load_config(home)["containment"]
    except ConfigError:
        wanted = "auto"  # another check tells of that
    if wanted == "tree" or (wanted == "cgroup-v1" and kind == "cgroup"):
        chosen = f"the setting `containment` chooses {wanted}; the machine allows {kind}"
        yield Check("note", "containment", chosen)
    else:
        yield Check("ok" if kind in _HOW else "note", "containment", _HOW.get(kind) or _weaker())
    limiting = [name for name in cgroup.LIMITS if kind in _HOW and trees.could_limit(name)]
    rest = [name for name in cgroup.LIMITS if name not in limiting]
    words = {"memory": "memory", "pids": "processes", "cpu": "cpu"}
    said = []
    if limiting:
        said.append(f"{', '.join(words[name] for name in limiting)} by control group")
    if rest:
        said.append(f"{', '.join(words[name] for name in rest)} for each process by itself")
    yield Check("note" if rest else "ok", "limits", "; ".join(said))
    trees.clean_up(going=True)
    problem = sandbox.problem()
    if problem is not None:
        yield Check("note", "sandbox", problem)
    elif lockdown.landlock_version() < lockdown.LEAST_LANDLOCK:
        why = "without Landlock (Linux 5.19) it can write into FIFOs of others"
        yield Check("note", "sandbox", f"bubblewrap works, for --sandbox; {why}")
    else:
        yield Check("ok", "sandbox", "bubblewrap works, for --sandbox")
