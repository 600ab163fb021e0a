"""What is shown to people has the name that programs find it by."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from holdfast import SyncClient
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.shared_keeper

# What a key has at its end and a column has not: that it is a time, or the unit.
SUFFIX = re.compile("_(at|seconds|bytes|percent)$")


def cli(*arguments: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done
    return done.stdout


def names(found: dict[str, Any]) -> set[str]:
    """The keys as people are shown them, those of an object in it too."""
    inner = found.get("usage") or {}
    return {SUFFIX.sub("", key).replace("_", " ") for key in (*found, *inner)}


def columns(text: str) -> list[str]:
    return re.split(r" {2,}", text.splitlines()[0].strip())


@pytest.fixture
def everything(hf: SyncClient) -> str:
    """A process of which there is something to say in each column."""
    process = hf.spawn(
        "echo up; read line", label="web", group="servers", tty=True, timeout="1h", keep=True
    )
    wait_until(lambda: isinstance(process.refresh().waiting_for_input, dict))
    return process.handle


@pytest.mark.parametrize(
    ("command", "known"),
    [
        (("ps", "-u"), {"GROUP", "MODE", "DEADLINE", "CPU AVERAGE", "MEMORY"}),
        (("stats",), {"CPU", "MEMORY", "PROCESSES", "THREADS"}),
        (("stats", "-f", "-n", "1"), {"AT", "CPU"}),
        (("events",), {"AT", "SEQ"}),
    ],
    ids=["ps", "stats", "stats -f", "events"],
)
@pytest.mark.usefixtures("everything")
def test_a_column_has_the_name_of_its_key(
    hf: SyncClient, command: tuple[str, ...], known: set[str]
) -> None:
    hf.spawn("true", label="ended").wait_for("exit", timeout=30)
    if command == ("events",):
        wait_until(lambda: list(hf.events()), what="an event")
    shown = columns(cli(*command))
    assert known <= set(shown)
    found = json.loads(cli(*command, "--json").splitlines()[0])
    first = found[0] if isinstance(found, list) else found
    assert {name.lower() for name in shown} <= names(first)


def test_the_lines_of_status_have_the_names_of_their_keys(everything: str) -> None:
    lines = [line.partition(":")[0] for line in cli("status", everything).splitlines()]
    assert {"waiting for input", "cwd", "deadline", "keep", "cpu", "started"} <= set(lines)
    assert set(lines) <= names(json.loads(cli("status", everything, "--json")))


def test_a_deadline_is_a_time_while_it_runs(hf: SyncClient) -> None:
    """As the keeper keeps to it: so long after the start."""
    process = hf.spawn("sleep 1000", timeout="1h")
    record = process.record.public()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", record["deadline_at"])
    assert record["started_at"] < record["deadline_at"]
    assert hf.spawn("sleep 1000", timeout=None).record.public()["deadline_at"] is None
    process.kill(grace=0)
    assert process.record.public()["deadline_at"] is None


def test_events_and_stats_are_in_the_zone_of_whoever_looks(hf: SyncClient) -> None:
    """As `ps` is; programs get UTC."""
    hf.spawn("exit 3", label="build")
    wait_until(lambda: list(hf.events()), what="an event")
    (event,) = json.loads(cli("events", "--json"))
    assert event["at"].endswith("Z")
    shown = {zone: cli("events", TZ=zone).splitlines()[1][:12] for zone in ("UTC0", "XYZ-5:30")}
    assert shown["UTC0"] != shown["XYZ-5:30"]
    hf.spawn("sleep 1000")
    rows = [cli("stats", "-f", "-n", "1", TZ=zone).splitlines()[1] for zone in shown]
    assert rows[0][:2] != rows[1][:2] or rows[0][3:5] != rows[1][3:5]
    assert all(re.match(r"\d\d:\d\d:\d\d ", row) for row in rows)
