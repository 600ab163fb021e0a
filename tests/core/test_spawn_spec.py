"""The options of a start: one table, and the same meaning wherever they are written."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import BadRequest, LimitReached, SyncToolset, Toolset, connect
from holdfast.client.client import Client
from holdfast.client.config import SETTINGS, UNSET
from holdfast.client.sync import SyncClient
from holdfast.core.record import Record
from holdfast.core.spawn_spec import LIMITS, SPAWN_SPEC, from_wire, to_wire

pytestmark = [pytest.mark.shared_keeper, pytest.mark.usefixtures("home")]

EXAMPLES: dict[str, tuple[str, Any]] = {
    # name: as people write it, and what it means
    "label": ("the name", "the name"),
    "group": ("those", "those"),
    "timeout": ("1h30m", 5400.0),
    "grace": ("500ms", 0.5),
    "retention": ("2h", 7200.0),
    "max_running": ("7", 7),
    "max_finished": ("9", 9),
    "keep": ("", True),
    "stdin": ("", True),
    "stderr": ("separate", "separate"),
    "size": ("100x30", [100, 30]),
    "log_cap": ("3MiB", 3 << 20),
    "log_limit": ("1g", 1 << 30),
    "memory": ("512MiB", 512 << 20),
    "cpu": ("1.5", 1.5),
    "processes": ("900", 900),
    "files": ("77", 77),
    "containment": ("tree", "tree"),
}
ON_COMMAND_LINE = [name for name, option in SPAWN_SPEC.items() if option.help]
DEFAULTS = {name: option.default for name, option in SPAWN_SPEC.items()}


def is_kept(record: Record, name: str, meaning: Any) -> bool:
    """True if a record says that a process was started with this."""
    if name == "stderr":
        return len(record.streams) == (2 if meaning == "separate" else 1)
    if name == "size":
        return record.size == tuple(meaning)
    if name in LIMITS:
        limited: bool = record.limits.get(name, {}).get("limit") == meaning
        return limited or any(note.startswith(f"{name} is not limited") for note in record.notes)
    return bool(getattr(record, name) == meaning)


def check(record: Record, names: list[str]) -> None:
    assert [name for name in names if not is_kept(record, name, EXAMPLES[name][1])] == []


def test_every_option_is_tried_here() -> None:
    assert EXAMPLES.keys() == SPAWN_SPEC.keys()
    assert all(SPAWN_SPEC[name].default != meaning for name, (_, meaning) in EXAMPLES.items())


@pytest.mark.parametrize("client", [Client, SyncClient])
def test_spawn_has_an_argument_for_each_option(client: type) -> None:
    """An editor shows them; what is a setting is taken from there unless it is given."""
    arguments = inspect.signature(client.spawn).parameters  # type: ignore[attr-defined]
    only_settings = {"max_finished", "containment"}
    assert SPAWN_SPEC.keys() - arguments.keys() == only_settings
    for name in SPAWN_SPEC.keys() - only_settings:
        option = SPAWN_SPEC[name]
        assert arguments[name].default == (UNSET if option.setting else option.default), name


def test_an_argument_says_what_the_record_keeps(hf: SyncClient) -> None:
    names = list(SPAWN_SPEC.keys() - {"max_running", "max_finished", "containment", "size"})
    given: dict[str, Any] = {name: EXAMPLES[name][0] or True for name in names}
    check(hf.spawn("true", **given).record, names)
    check(hf.spawn("true", tty=True, size="100x30").record, ["size"])


def test_a_setting_says_what_the_record_keeps(
    session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [name for name in SPAWN_SPEC if name in SETTINGS]
    for name in names:
        monkeypatch.setenv(f"HOLDFAST_{name.upper()}", EXAMPLES[name][0])
    with connect(f"{session}-settings") as client:
        record = client.spawn("true", tty=True).record
        check(record, [name for name in names if name != "max_running"])
        for _ in range(7):
            client.spawn(["sleep", "600"], max_running=100)
        with pytest.raises(LimitReached, match="at most 7"):
            client.spawn("true")


def test_the_command_line_says_what_the_record_keeps(hf: SyncClient, session: str) -> None:
    """Each option that has help there: under its own name, and as a flag where it has no value."""

    def run(*arguments: str) -> Record:
        command = [sys.executable, "-m", "holdfast", "run", "-d", "--session", session, "--json"]
        done = subprocess.run([*command, *arguments, "true"], capture_output=True, timeout=60)
        return hf.get(json.loads(done.stdout)["handle"]).record

    flags = {name: f"--{name.replace('_', '-')}" for name in ON_COMMAND_LINE}
    words: list[str] = []
    for name in ON_COMMAND_LINE:
        written = EXAMPLES[name][0]
        words += [] if name == "size" else [flags[name], written] if written else [flags[name]]
    check(run(*words), [name for name in ON_COMMAND_LINE if name != "size"])
    check(run("--tty", "--size", "100x30"), ["size"])


def test_what_travels_means_itself() -> None:
    """So keeper and client check with the same functions."""
    examples = {name: meaning for name, (_, meaning) in EXAMPLES.items()}
    for values in (DEFAULTS, examples):
        assert from_wire(json.loads(json.dumps(to_wire(values)))) == values


@pytest.mark.parametrize("name", [name for name, (text, _) in EXAMPLES.items() if text])
def test_the_keeper_takes_nothing_that_would_still_change(name: str) -> None:
    """A text that people write is for a client to understand."""
    written, meaning = EXAMPLES[name]
    if written == meaning:
        return
    with pytest.raises(BadRequest, match=f"{name} is to travel as"):
        from_wire(to_wire({**DEFAULTS, name: written}))


def test_a_client_that_does_not_know_an_option_means_its_default() -> None:
    """Those that came after the protocol may be missing from a request, and no others."""
    for name, option in SPAWN_SPEC.items():
        message = to_wire(DEFAULTS)
        (message["limits"] if name in LIMITS else message).pop(name)
        if option.added:
            assert from_wire(message) == DEFAULTS
        else:
            with pytest.raises(KeyError, match=name):
                from_wire(message)


def test_a_limit_that_does_not_exist_is_named() -> None:
    with pytest.raises(BadRequest, match="no limit 'patience'; there are memory, cpu"):
        from_wire({**to_wire(DEFAULTS), "limits": {"patience": 5}})


def test_every_limit_can_be_a_sessions_a_toolsets_and_a_models(hf: SyncClient) -> None:
    for what in (connect, Toolset):
        assert set(LIMITS) <= inspect.signature(what).parameters.keys(), what
    (spawn,) = [
        tool["input_schema"]["properties"]
        for tool in SyncToolset(hf).definitions()
        if tool["name"] == "spawn_process"
    ]
    assert list(spawn["limits"]["properties"]) == list(LIMITS)


def test_the_reference_has_each_setting_with_its_default() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "reference.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `HOLDFAST_(\w+)` \| `(.*?)` \|", page, flags=re.M)
    found = {name: json.loads(default) for name, variable, default in rows}
    assert [variable for _, variable, _ in rows] == [name.upper() for name in found]
    assert {name: SETTINGS[name].parse(default) for name, default in found.items()} == {
        name: option.default for name, option in SETTINGS.items()
    }
