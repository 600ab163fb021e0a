"""The torture: its plans can be played again, and its check sees what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.home import Home
from holdfast.core.store import Store
from torture._check import check
from torture._plan import CREWS, FAULTS, Plan, Script, plan_of

ROOT = Path(__file__).parent.parent
SEED, LENGTH = "5", 8.0


def test_a_seed_gives_the_same_plan_again() -> None:
    for number in range(1, 6):
        plan = plan_of("seed", number)
        assert plan == plan_of("seed", number)
        assert plan != plan_of("another seed", number)
        assert plan.specs
        for script in plan.scripts:
            again = Script.from_json(json.loads(json.dumps(script.to_json())))
            assert again == script


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "few-descriptors"])
def test_a_plan_has_only_the_faults_that_were_asked_for(fault: str) -> None:
    plan = plan_of("seed", 1, only=[fault])
    assert {entry.kind for entry in plan.faults} == {fault}
    assert bool(plan.small_disk) == (fault == "fill-disk")
    assert plan.descriptors == 0


@pytest.mark.parametrize("crew", CREWS)
def test_a_plan_has_only_the_clients_that_were_asked_for(crew: str) -> None:
    plan = plan_of("seed", 1, crews=[crew], only=[])
    assert plan.scripts
    assert plan.faults == []
    stem = {"agents": ("sync", "async")}.get(crew, (crew,))
    assert {script.name.partition("-")[0] for script in plan.scripts} <= set(stem)


def play(tmp_path: Path, *arguments: str) -> Path:
    """Play a round of the fixed seed; where its home and journals are."""
    words = ["--seed", SEED, "--round", "1", "--length", str(LENGTH), "--keep", str(tmp_path)]
    played = subprocess.run(
        [sys.executable, "-m", "torture", *words, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert played.returncode == 0, played.stdout[-6000:] + played.stderr[-3000:]
    (run,) = tmp_path.glob("holdfast-torture-*")
    return run / "1"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_was_promised_is_kept_through_kills(tmp_path: Path) -> None:
    """A short one with a fixed seed; `make torture` plays for ten minutes, each time another."""
    play(
        tmp_path, "--only", "kill-worker,kill-guard,kill-both,kill-client,stop-worker,kill-watcher"
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_check_sees_what_is_wrong(tmp_path: Path) -> None:
    """A code, a byte, an event or a record that is changed afterwards is a problem each."""
    crew = ["listeners"]
    root = play(tmp_path, "--only", "none", "--crew", *crew, "--modes", "pipe")
    plan = plan_of(SEED, 1, length=LENGTH, only=["none"], crews=crew, modes=["pipe"])
    assert seen(plan, root) == set()
    store = Store(Home(str(root / "disk" / "home")))
    first, second, third, *_ = store.handles()

    record = store.load(first)
    record.exit_code = ((record.exit_code or 0) + 1) % 256
    store.save(record)
    assert seen(plan, root) == {"a wrong end", "two stories of one end"}

    with open(store.home.log(second), "ab") as log:
        log.write(b"more")
    assert "wrong output" in seen(plan, root)

    store.delete(third)
    assert "a process is not accounted for" in seen(plan, root)

    with open(root / "witness" / second, "a") as witness:
        witness.write("began 1 1.0\n")
    assert "a process was started twice" in seen(plan, root)

    with open(os.path.join(store.home.path, "keeper.log"), "a") as said:
        said.write("Traceback (most recent call last):\n")
    assert "a traceback" in seen(plan, root)

    with open(root / "bystanders", "w") as bystanders:
        bystanders.write("1.0 pid 7 got signal 15\n")
    assert "a bystander was signalled" in seen(plan, root)


def seen(plan: Plan, root: Path) -> set[str]:
    return {problem.what for problem in check(plan, str(root), hung=False)}
