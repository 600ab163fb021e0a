"""The Docker runner: one container, or one command inside one, seen as one process.

DESIGN. A runner ends by exiting; one that dies by a signal is started again by the keeper. So it
may be killed between any two instructions, and the next one goes on. What it finds, in the order in
which it is believed: the end, if that is on disk, and then all that is left to do is to remove the
container; the size of our log (`follow`); the container, by its name; the place; the shelf.

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
from .desk import Desk, GaveUp
from .engine import EngineError
from .notes import Notes
from .refusal import Refused, of_init

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .begin import Life, LifeInside
    from .place import Place
    from .target import State

_FAILED = 125
_KILLED = 128 + signal.SIGKILL
_CUT_OFF = 126
_LAST_OUTPUT = "what it wrote last is missing"
_LOST_OUTPUT = "its runner and the keeper were killed: what it wrote after that is missing"


def main() -> int:
    spec = _spec()
    notes = Notes(spec["directory"], spec["handle"])
    try:
        end = notes.ended()
        if end is None:
            desk = Desk()
            notes.pause = desk.pause
            end = _run(spec, notes, desk)
        _remove(notes)
    except GaveUp as gave_up:
        notes.pause = time.sleep
        notes.end(error=str(gave_up))
        return _FAILED
    except Exception as error:  # started again, the next one may have more luck
        notes.trouble(error)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
        raise
    code, number = end["code"], end["signal"]
    return (code if code is not None else 128 + number if number else _FAILED) & 0xFF


def _spec() -> dict[str, Any]:
    """What we are told. In parts, since one variable cannot be as long as all of them together."""
    parts, name = [], "HOLDFAST_RUNNER"
    while name in os.environ:
        parts.append(os.environ.pop(name))
        name = f"HOLDFAST_RUNNER_{len(parts)}"
    told: dict[str, Any] = json.loads("".join(parts))
    return told


def _run(spec: dict[str, Any], notes: Notes, desk: Desk) -> dict[str, Any]:
    again = spec.get("again", False)
    out, _, err = os.environ.get("HOLDFAST_LOG", "0,0").partition(",")
    sizes = int(out), int(err or 0)
    try:
        if begin_.is_inside(notes) if again else spec["exec"]:
            if again:
                inside = begin_.go_on_inside(spec["handle"], notes, sizes, desk)
            else:
                inside = begin_.begin_inside(spec, notes, desk)
            desk.pass_on()
            return _follow_inside(inside, notes, desk)
        life = begin_.go_on(notes, sizes, desk) if again else begin_.begin(spec, notes, desk)
        desk.pass_on()
        return _follow(life, notes, desk) if life is not None else _removed(spec, notes)
    except Refused as refusal:
        notes.say(**refusal.public())
        return notes.end(_FAILED, error=refusal.sentence)
    except begin_.Stopped as stopped:
        return notes.end(number=stopped.number)


def _follow(life: Life, notes: Notes, desk: Desk) -> dict[str, Any]:
    state = life.follower.follow(life.container)
    life.output.hold_if_unread()
    if state is None or _is_being_removed(life, state, desk):
        return notes.end(error=_who_removed(life.container.name))
    code: int | None = state.code
    number: int | None = None
    out_of_memory = state.out_of_memory
    if code == _KILLED and not out_of_memory and not life.place.was_sent(signal.SIGKILL):
        out_of_memory = life.container.ran_out_of_memory(state)
    if code == _KILLED and state.out_of_memory:
        code, number = None, int(signal.SIGKILL)
    elif code is not None:
        code, number = _told_apart(code, life.place)
    failure = of_init(code, life.output.head)
    if failure is not None:
        notes.say(**failure.public())
    else:
        begin_.say_started(life, notes)
    return notes.end(
        code,
        number,
        out_of_memory=out_of_memory,
        error=failure.sentence if failure is not None else None,
        remarks=life.follower.remarks,
    )


def _is_being_removed(life: Life, state: State, desk: Desk) -> bool:
    if state.code == _KILLED and not life.place.was_sent(signal.SIGKILL):
        time.sleep(0.1)  # who removes it by force kills it first
        after = desk.state()
        return after is None or after.said in ("removing", "dead")
    return False


def _removed(spec: dict[str, Any], notes: Notes) -> dict[str, Any]:
    return notes.end(error=_who_removed(notes.said()["container"]))


def _who_removed(name: str) -> str:
    return f"somebody removed the container {name} while it ran; its end is not known"


def _follow_inside(life: LifeInside, notes: Notes, desk: Desk) -> dict[str, Any]:
    was_connected = life.follower.follow_inside()
    life.output.hold_if_unread()
    remarks = life.follower.remarks if was_connected else [_LOST_OUTPUT]
    step = 0.005
    while (state := desk.state()) is not None and state.running:
        desk.pause(step)
        step = min(1.0, step * 2)
    # An engine that was restarted does not know it any more, and one whose connection to it was
    # cut says 126 of it, at once.
    if state is None or (not was_connected and state.code == _CUT_OFF):
        while life.target.is_alive():
            desk.pause(0.5)
        error = f"{life.target.title} was lost by its engine: how it ended is not known"
        return notes.end(error=error, remarks=remarks or [_LAST_OUTPUT])
    code, number = _told_apart(state.code or 0, life.place)
    return notes.end(code, number, remarks=remarks)


def _told_apart(code: int, place: Place) -> tuple[int | None, int | None]:
    """Code and signal. The engine says 137 of both, so it is a signal only if we sent that."""
    if code > 128 and place.was_sent(code - 128):
        return None, code - 128
    return code, None


def _remove(notes: Notes) -> None:
    """Whatever is left: a container whose end is known."""
    try:
        at = begin_.find_place(notes)
    except (Refused, begin_.Stopped):
        return  # there never was one
    if "exec" in at.notes:
        return
    container = begin_.container_of(at)
    try:
        container.remove()
    except EngineError:
        pass  # it is labelled, for who cleans up
