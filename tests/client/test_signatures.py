"""The public API as editors and ``help()`` show it, and times as every call takes them."""

from __future__ import annotations

import inspect
import pydoc
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, get_args

import pytest

import holdfast
from holdfast import BadRequest, SyncClient, SyncToolset, WaitTimeout
from holdfast.core.cursors import STREAMS
from holdfast.core.record import MODES, STATUSES
from holdfast.core.watch import STREAMS as WATCHED
from holdfast.testing import wait_until
from holdfast.tools import DIALECTS, STYLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.shared_keeper

CLASSES = [each for name in holdfast.__all__ if inspect.isclass(each := getattr(holdfast, name))]
# Those of ours alone: their methods are for front ends.
INNER = (holdfast.Log, holdfast.Store)
TIMES = {"timeout", "grace", "check", "retention", "lease_grace", "interval", "patience"}
# Milliseconds or seconds, as the tools of another vendor have them.
NOT_TIMES = {("Toolset", "timeout"), ("SyncToolset", "timeout")}


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function and method, properties too, with its name."""
    yield "connect", holdfast.connect
    for cls in CLASSES:
        for name, member in vars(cls).items():
            found = member.fget if isinstance(member, property) else member
            found = getattr(found, "__func__", found)
            if inspect.isfunction(found) and (not name.startswith("_") or name == "__init__"):
                yield f"{cls.__name__}.{name}", found


def words(annotation: object) -> set[str]:
    """The names in an annotation, without what is quoted."""
    return set(re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'|\"[^\"]*\"", "", str(annotation))))


def test_a_fresh_interpreter_shows_all_of_it() -> None:
    """Names are loaded when they are used, and listed before that."""
    code = "import holdfast; print(set(holdfast.__all__) <= set(dir(holdfast)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_defaults_read_as_such() -> None:
    """Where a setting is what counts, ``help()`` says <default>."""
    for name in ("connect", "SyncClient", "Process", "SyncGroup", "Toolset"):
        shown = pydoc.render_doc(getattr(holdfast, name))
        assert "<object object" not in shown
        assert "= <default>" in shown
    signature = str(inspect.signature(holdfast.SyncProcess.kill))
    assert "grace: 'Duration | None' = <default>" in signature


def test_times_are_durations_wherever_they_are_taken() -> None:
    found = []
    for name, function in functions():
        for each in inspect.signature(function).parameters.values():
            if each.name in TIMES and (name.partition(".")[0], each.name) not in NOT_TIMES:
                if name.endswith(("__init__", "UsageHistory.look")) and "Toolset" not in name:
                    continue  # what nobody constructs or calls but the client
                assert "Duration" in str(each.annotation), f"{name}({each})"
                found.append(name)
    assert {"Client.spawn", "SyncProcess.wait", "Group.stop", "connect"} <= set(found)


def test_no_argument_with_a_default_setting_may_be_anything() -> None:
    """Of those the type says what can be given."""
    for name, function in functions():
        for each in inspect.signature(function).parameters.values():
            if repr(each.default) == "<default>":
                assert str(each.annotation) != "Any", f"{name}({each})"


def test_everything_that_is_returned_is_exported() -> None:
    """Of public functions, properties and fields; what annotations name can be imported."""
    standard = {"str", "bytes", "int", "float", "bool", "None", "object", "list", "dict", "tuple"}
    standard |= {"frozenset", "Any", "Literal", "Iterator", "AsyncIterator", "_List", "T", "cls"}
    known = {*holdfast.__all__, *standard}
    for name, function in functions():
        if not any(name.startswith(f"{cls.__name__}.") for cls in INNER):
            assert words(function.__annotations__.get("return")) <= known, name
    for cls in CLASSES:
        for name, annotation in inspect.get_annotations(cls).items():
            if not name.startswith("_"):
                assert words(annotation) <= known, f"{cls.__name__}.{name}"


def test_closed_sets_are_the_ones_that_are_checked() -> None:
    """What an editor offers is what is taken, and nothing else is."""
    assert set(get_args(holdfast.Status)) == STATUSES
    assert set(get_args(holdfast.ModeName)) == MODES
    assert set(get_args(holdfast.Stream)) == set(STREAMS) == set(WATCHED)
    assert set(get_args(holdfast.DialectName)) == set(DIALECTS)
    assert set(get_args(holdfast.Style)) == set(STYLES)


def test_a_wait_takes_a_time_as_every_call_does(hf: SyncClient) -> None:
    process = hf.spawn("sleep 1000", timeout="1h", grace="10ms", group="unit")
    with pytest.raises(WaitTimeout, match=r"still running after 0\.01 s"):
        process.wait("10ms")
    with pytest.raises(WaitTimeout, match=r"still run after 0\.01 s"):
        hf.group("unit").wait("10ms")
    assert process.wait_for("output=never", timeout="10ms").timed_out
    assert process.usage(interval="10ms").processes == 1
    assert process.search("x", timeout="500ms").matches == []
    process.kill(grace="10ms")
    assert process.wait("1m").status == "killed"


def test_helpers_for_tests_take_times_too() -> None:
    assert wait_until(lambda: True, timeout="1m", interval="1ms")
    with pytest.raises(AssertionError, match=r"not true after 0\.01 s: tea"):
        wait_until(lambda: False, timeout="10ms", what="tea")


def test_what_is_sent_waits_as_long_as_it_is_told_to(hf: SyncClient) -> None:
    process = hf.spawn("head -n1", stdin=True)
    assert process.send("hello", enter=True, timeout="5s") == 6
    wait_until(lambda: "hello" in process.tail().text)
    process.wait(30)


@pytest.mark.parametrize("bad", ["soon", "", "-1s", -1, float("nan"), float("inf"), True, [1]])
def test_what_is_no_time_is_refused_in_one_line(hf: SyncClient, bad: Any) -> None:
    """By every call that takes one, before it does anything."""
    process = hf.spawn("exec cat", stdin=True, group="unit")
    tools = SyncToolset(hf)
    calls: dict[str, Callable[[], object]] = {
        "timeout": lambda: process.wait(bad),
        "timeout of a group": lambda: hf.group("unit").wait(bad),
        "timeout of a condition": lambda: process.wait_for("exit", timeout=bad),
        "timeout of a search": lambda: process.search("x", timeout=bad),
        "timeout of what is sent": lambda: process.send("x", timeout=bad),
        "timeout of a process": lambda: hf.spawn("true", timeout=bad),
        "check": lambda: hf.spawn("true", check=bad),
        "interval": lambda: process.usage(interval=bad),
        "grace": lambda: process.kill(grace=bad),
        "grace of all": lambda: hf.stop_all(grace=bad),
        "lease_grace": lambda: hf.lease(bad),
        "patience": lambda: tools.call("list_processes", patience=bad),
    }
    for name, call in calls.items():
        with pytest.raises(BadRequest, match=rf"^{name.partition(' ')[0]} must be ") as caught:
            call()
        assert "\n" not in str(caught.value), name
    assert process.refresh().running
    assert len(hf.list()) == 1
