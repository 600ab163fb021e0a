"""Records as version 0.1.0 wrote them in each mode: what is a mode's own is read for ever too."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.connect import open_client
from holdfast.core.home import Home

WRITTEN: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "records-0.1.0-by-mode.json").read_text()
)
# What each says that it can be asked for: a terminal, what it survives, the signals.
ABLE = {
    "pty": (True, "a half", True),
    "tmux": (True, "the keeper", True),
    "docker": (False, "the keeper", False),
}


def kind(written: dict[str, Any]) -> str:
    return "docker" if written["docker"] else str(written["mode"])


def test_there_is_one_of_each_mode() -> None:
    assert [kind(written) for written in WRITTEN] == list(ABLE)


@pytest.mark.parametrize("written", WRITTEN, ids=kind)
def test_a_record_of_each_mode_keeps_every_field(home: str, written: dict[str, Any]) -> None:
    """A client reads the same, before a keeper has seen it and after."""
    place = Home(home).ensure()
    path = place.meta(written["handle"])
    Path(path).write_text(json.dumps(written))
    os.chmod(path, 0o600)
    expected = written | {"log": place.log(written["handle"])}
    client = open_client(place, None)
    try:
        for _ in range(2):
            record = client.get(written["handle"]).record
            assert record.to_json() == expected
            able = record.capabilities
            all_signals = able.signals is None
            assert (able.terminal, able.survives, all_signals) == ABLE[kind(written)]
            client.keeper_restart()
    finally:
        client.close()
