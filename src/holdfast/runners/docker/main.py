"""The Docker runner: one container, or one command inside one, seen as one process.

DESIGN. A runner ends by exiting; one that dies by a signal is started again by the keeper. So it
may be killed between any two instructions, and the next one goes on. What it finds, in the order in
which it is believed: the end, if that is on disk, and then all that is left to do is to remove the
container; the size of our log (`follow`); the container, by its name; the resume state; the store
of descriptors.

The end is on disk before the container is removed, so at any moment there is the one or the other.

The environment: HOLDFAST_RUNNER, the request as JSON, or only who we are for a runner that goes on,
in parts if it is long (HOLDFAST_RUNNER_1, and so on);
HOLDFAST_LOG, the sizes of the logs; HOLDFAST_STOP, the signal of a stop that is under way.
"""

from __future__ import annotations

import json
import os
import signal
import time

from . import begin as begin_
from .engine import EngineError
from .refusal import Refused, of_init
from .reports import Reports
from .signal_forwarder import GaveUp, SignalForwarder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .begin import Life
    from .exec_inside import Inside
    from .follow import Follower
    from .resume_state import ResumeState
    from .target import State

_FAILED = 125
_KILLED = 128 + signal.SIGKILL
_CUT_OFF = 126
_LAST_OUTPUT = "what it wrote last is missing"
_LOST_OUTPUT = "its runner and the keeper were killed: what it wrote after that is missing"


def main() -> int:
    spec = _spec()
    reports = Reports(spec["directory"], spec["handle"])
    try:
        end = reports.ended()
        if end is None:
            signals = SignalForwarder()
            reports.pause = signals.pause
            end = _run(spec, reports, signals)
        _remove(reports)
    except GaveUp as gave_up:
        reports.pause = time.sleep
        reports.end(error=str(gave_up))
        return _FAILED
    except Exception as error:  # started again, the next one may have more luck
        reports.trouble(error)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    code, number = end["code"], end["signal"]
    return (code if code is not None else 128 + number if number else _FAILED) & 0xFF


def _spec() -> dict[str, Any]:
    """Read the request, in parts: one variable cannot be as long as all of them together."""
    parts, name = [], "HOLDFAST_RUNNER"
    while name in os.environ:
        parts.append(os.environ.pop(name))
        name = f"HOLDFAST_RUNNER_{len(parts)}"
    told: dict[str, Any] = json.loads("".join(parts))
    return told


def _run(spec: dict[str, Any], reports: Reports, signals: SignalForwarder) -> dict[str, Any]:
    again = spec.get("again", False)
    out, _, err = os.environ.get("HOLDFAST_LOG", "0,0").partition(",")
    sizes = int(out), int(err or 0)
    try:
        if begin_.is_inside(reports) if again else spec["exec"]:
            if again:
                inside, follower = begin_.go_on_inside(spec["handle"], reports, sizes, signals)
            else:
                inside, follower = begin_.begin_inside(spec, reports, signals)
            signals.pass_on()
            return _follow_inside(inside, follower, reports, signals)
        life = (
            begin_.go_on(reports, sizes, signals) if again else begin_.begin(spec, reports, signals)
        )
        signals.pass_on()
        if life is None:
            return reports.end(error=_who_removed(reports.said()["container"]))
        return _follow(life, reports, signals)
    except Refused as refusal:
        reports.say(**refusal.public())
        return reports.end(_FAILED, error=refusal.sentence)
    except begin_.Stopped as stopped:
        return reports.end(number=stopped.number)


def _follow(life: Life, reports: Reports, signals: SignalForwarder) -> dict[str, Any]:
    state = life.follower.follow(life.container)
    life.follower.output.hold_if_unread()
    if state is None or _is_being_removed(life, state, signals):
        return reports.end(error=_who_removed(life.container.name))
    code: int | None = state.code
    number: int | None = None
    out_of_memory = state.out_of_memory
    if code == _KILLED and not out_of_memory and not life.follower.saved.was_sent(signal.SIGKILL):
        out_of_memory = life.container.ran_out_of_memory(state)
    if code == _KILLED and state.out_of_memory:
        code, number = None, int(signal.SIGKILL)
    elif code is not None:
        code, number = _told_apart(code, life.follower.saved)
    failure = of_init(code, life.follower.output.head)
    if failure is not None:
        reports.say(**failure.public())
    else:
        begin_.say_started(life, reports)
    return reports.end(
        code,
        number,
        out_of_memory=out_of_memory,
        error=failure.sentence if failure is not None else None,
        remarks=life.follower.remarks,
    )


def _is_being_removed(life: Life, state: State, signals: SignalForwarder) -> bool:
    if state.code == _KILLED and not life.follower.saved.was_sent(signal.SIGKILL):
        time.sleep(0.1)  # who removes it by force kills it first
        after = signals.state()
        return after is None or after.said in ("removing", "dead")
    return False


def _who_removed(name: str) -> str:
    return f"somebody removed the container {name} while it ran; its end is not known"


def _follow_inside(
    target: Inside, follower: Follower, reports: Reports, signals: SignalForwarder
) -> dict[str, Any]:
    was_connected = follower.follow_inside()
    follower.output.hold_if_unread()
    remarks = follower.remarks if was_connected else [_LOST_OUTPUT]
    step = 0.005
    while (state := signals.state()) is not None and state.running:
        signals.pause(step)
        step = min(1.0, step * 2)
    # An engine that was restarted does not know it any more, and one whose connection to it was
    # cut says 126 of it, at once.
    if state is None or (not was_connected and state.code == _CUT_OFF):
        while target.is_alive():
            signals.pause(0.5)
        error = f"{target.title} was lost by its engine: how it ended is not known"
        return reports.end(error=error, remarks=remarks or [_LAST_OUTPUT])
    code, number = _told_apart(state.code or 0, follower.saved)
    return reports.end(code, number, remarks=remarks)


def _told_apart(code: int, saved: ResumeState) -> tuple[int | None, int | None]:
    """Code and signal. The engine says 137 of both, so it is a signal only if we sent that."""
    if code > 128 and saved.was_sent(code - 128):
        return None, code - 128
    return code, None


def _remove(reports: Reports) -> None:
    """Remove the container, whose end is on disk."""
    try:
        saved = begin_.find_resume_state(reports)
    except (Refused, begin_.Stopped):
        return  # there never was one
    if "exec" in saved.request:
        return
    container = begin_.container_of(saved)
    try:
        container.remove()
    except EngineError:
        pass  # it is labelled, for who cleans up
