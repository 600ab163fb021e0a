"""`doctor`'s look at how processes are contained, limited and put into a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast import _cgroup, _sandbox
from holdfast._home import Home

from ._doctor import Check

_HOW = {
    "cgroup": "a control group for each process: nothing it starts survives a kill",
    "cgroup-v1": "a control group (version 1) for each process: nothing survives a kill",
}
_TREE = (
    "no control group can be made: what a process starts is found by marks that it inherits; "
    "`systemd-run --user --scope -p Delegate=yes holdfast keeper start` gives the keeper one"
)


def contain_checks(home: Home) -> Iterator[Check]:
    trees = _cgroup.Trees(f"{home.path}#doctor")  # not the groups of a keeper
    kind = trees.kind()
    yield Check("ok" if kind in _HOW else "note", "containment", _HOW.get(kind, _TREE))
    limiting = [name for name in _cgroup.LIMITS if kind in _HOW and trees.could_limit(name)]
    rest = [name for name in _cgroup.LIMITS if name not in limiting]
    words = {"memory": "memory", "pids": "processes", "cpu": "cpu"}
    said = []
    if limiting:
        said.append(f"{', '.join(words[name] for name in limiting)} by control group")
    if rest:
        said.append(f"{', '.join(words[name] for name in rest)} for each process only")
    yield Check("note" if rest else "ok", "limits", "; ".join(said))
    trees.clean_up(going=True)
    problem = _sandbox.problem()
    if problem is None:
        yield Check("ok", "sandbox", "bubblewrap works, for --sandbox")
    else:
        yield Check("note", "sandbox", problem)
