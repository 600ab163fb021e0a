"""How a container, or a command inside one, comes to be.

DESIGN. The place is made before the container, and the connection is on the shelf before the start.
So a runner that is killed here leaves: nothing; a place alone, or a container that was not started,
which the next runner starts; or one that runs, with its connection on the shelf. The request with
its environment is known to the first runner alone, so only that one can make the container; if it
was just doing that, the next one waits for the engine to be done with it.
"""

from __future__ import annotations

import os
import time

from . import inside, place, ports
from .container import Container, init_is_gone, name_of
from .engine import Engine, EngineError
from .follow import Follower
from .link import await_request
from .output import Output, write_all
from .refusal import Refused, refused, silent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .desk import Desk
    from .notes import Notes

_TRIES = 5
_NOT_STARTED = (126, 127)  # what an engine says of a command that it could not start
_END_PATIENCE, _NEAR_END_PATIENCE = 0.2, 5.0


class Stopped(Exception):
    """We were told to stop before there was a container; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Life:
    """A container with what is needed to follow it."""

    __slots__ = ("container", "follower", "found", "output", "place")

    def __init__(self, at: place.Place, container: Container, sizes: tuple[int, int], desk: Desk):
        self.place = at
        self.container = container
        self.output = Output(at, sizes)
        self.follower = Follower(container, at, self.output, desk)
        self.found: dict[str, Any] | None = None  # how it was at the start, until that is said


def begin(spec: dict[str, Any], notes: Notes, desk: Desk) -> Life:
    """Make and start a container; Refused if that cannot be."""
    engine = Engine(spec["socket"])
    asked = ports.parse(spec["ports"] or [], spec["network"])
    try:
        skip = _pull(engine, spec, notes, desk) if spec["pull"] else 0
        if spec["network"] != "host":
            ports.choose(asked)
        at = _make_place(
            notes,
            spec,
            container=name_of(spec["handle"]),
            skip=skip,
            network=spec["network"],
            ports=[port.name for port in asked],
        )
        if stops := desk.stops():
            raise Stopped(stops[0])
        container = container_of(at)
        life = Life(at, container, (skip, 0), desk)
        for attempt in range(_TRIES):
            container.create(spec, asked)
            life.follower.attach(first=True)
            try:
                container.start()
                break
            except EngineError as error:
                container.remove()
                if attempt == _TRIES - 1 or not ports.was_taken(error.message, asked):
                    raise
    except EngineError as error:
        raise refused(error, engine.path, spec["image"]) from None
    _started(life, notes, desk)
    return life


def go_on(notes: Notes, sizes: tuple[int, int], desk: Desk) -> Life | None:
    """A container that an earlier runner made; None if it is not there any more."""
    at = find_place(notes)
    life = Life(at, container_of(at), sizes, desk)
    desk.serve(life.container, at)
    stop = _stop()
    if stop:
        desk.ask(stop)  # now: who waits for an engine from here on does not wait for ever
    if notes.said().get("container") and life.follower.resume():
        return life  # how it is, the connection tells, which the engine may be waiting for
    state = desk.state()
    if state is None and await_request():
        state = desk.state()
    if state is None:
        if notes.said().get("container") is None:
            raise _too_early()
        return None
    found_connection = life.follower.resume()
    if state.said == "created":
        if stop:
            raise Stopped(stop)  # and it is removed
        try:
            if not found_connection:
                life.follower.attach(first=True)
            life.container.start()
        except EngineError as error:
            raise refused(error, life.container.engine.path, "") from None
        _started(life, notes, desk)
    elif state.running:
        _look(life)
        say_started(life, notes)
    return life


def _started(life: Life, notes: Notes, desk: Desk) -> None:
    desk.serve(life.container, life.place)
    if life.place.notes["tty"]:
        desk.resize()  # before Docker 23 it starts with no size at all
    _look(life)
    pid = life.found["State"]["Pid"] if life.found is not None else 0
    if init_is_gone(pid):
        # Its end will be told in a moment; or it is on a machine of its own, and we cannot see it.
        near = life.container.engine.is_near()
        late = time.monotonic() + (_NEAR_END_PATIENCE if near else _END_PATIENCE)
        while time.monotonic() < late:
            state = desk.state()
            if state is None or not state.running:
                return  # what there is to say depends on how it ended
            time.sleep(0.01)
    say_started(life, notes)


def _look(life: Life) -> None:
    try:
        life.found = life.container.describe()
    except EngineError:
        pass  # it is said by the next runner, or at the end


def say_started(life: Life, notes: Notes) -> None:
    if life.found is None:
        return
    told, found = life.place.notes, life.found
    published = (found.get("NetworkSettings") or {}).get("Ports")
    if not published:  # it ended before it was looked at: as it was asked for
        published = (found.get("HostConfig") or {}).get("PortBindings")
    notes.say(
        container=life.container.name,
        id=found["Id"],
        pid=found["State"]["Pid"],
        ports=ports.mapping(told["ports"], told["network"], published),
        network=told["network"] or "bridge",
    )
    life.found = None


def _pull(engine: Engine, spec: dict[str, Any], notes: Notes, desk: Desk) -> int:
    """Fetch the image if it is missing; how much of the log its progress takes."""
    from .pull import has, pull

    image = spec["image"]
    if has(engine, image):
        return 0
    notes.say(pulling=image)
    written = 0

    def say(line: str) -> None:
        nonlocal written
        data = line.encode() + (b"\r\n" if spec["tty"] else b"\n")
        write_all(1, data)
        written += len(data)

    stops: list[int] = []

    def stopped() -> bool:
        stops.extend(desk.stops())
        return bool(stops)

    try:
        if not pull(engine, image, spec["login"], say, desk.woken, stopped):
            raise Stopped(stops[0])
    except Refused as refusal:
        say(refusal.sentence)  # who started it has gone on, and looks at the output
        raise
    return written


# -- inside another container


class LifeInside:
    __slots__ = ("follower", "output", "place", "target")

    def __init__(self, at: place.Place, target: inside.Inside, sizes: tuple[int, int], desk: Desk):
        self.place = at
        self.target = target
        self.output = Output(at, sizes)
        self.follower = Follower(target, at, self.output, desk)


def begin_inside(spec: dict[str, Any], notes: Notes, desk: Desk) -> LifeInside:
    engine = Engine(spec["socket"])
    name = spec["exec"]
    try:
        container_id, exec_id = inside.create(engine, spec)
        at = _make_place(notes, spec, container=name, id=container_id, exec=exec_id, skip=0)
        life = LifeInside(at, inside.Inside(engine, spec["handle"], at.notes), (0, 0), desk)
        life.follower.attach(first=True)
        desk.serve(life.target, at)
        state = life.target.await_begin()
        if spec["tty"]:
            desk.resize()
    except EngineError as error:
        if error.status == 0:
            raise silent(error, engine.path) from None
        if error.status in (404, 409):
            raise Refused(
                f"the container {name} does not run any more; start its process again", "not_found"
            ) from None
        raise refused(error, engine.path, "") from None
    if state is not None and state.code in _NOT_STARTED and not state.running and not state.pid:
        said = life.follower.last_words()
        raise refused(EngineError(400, said), engine.path, "")
    notes.say(
        container=name, id=container_id, pid=life.target.pid, ports={}, network=None, exec=exec_id
    )
    return life


def go_on_inside(handle: str, notes: Notes, sizes: tuple[int, int], desk: Desk) -> LifeInside:
    at = find_place(notes)
    target = inside.Inside(Engine(at.notes["socket"]), handle, at.notes)
    target.pid = notes.said().get("pid") or 0
    life = LifeInside(at, target, sizes, desk)
    desk.serve(target, at)
    if stop := _stop():
        desk.ask(stop)
    life.follower.resume()
    return life


def is_inside(notes: Notes) -> bool:
    """Of a place that an earlier runner made."""
    return "exec" in find_place(notes).notes


# -- the place


def _make_place(notes: Notes, spec: dict[str, Any], **more: Any) -> place.Place:
    keep = ("socket", "tty", "stdin", "separate")
    told = {name: spec[name] for name in keep} | more
    notes.when_there_is_room(lambda: place.make(notes.place, told))
    return place.Place(notes.place)


def find_place(notes: Notes) -> place.Place:
    try:
        return place.Place(notes.place)
    except FileNotFoundError:
        raise _too_early() from None


def container_of(at: place.Place) -> Container:
    told = at.notes
    stdin = told["tty"] or told["stdin"]
    engine = Engine(told["socket"])
    return Container(engine, told["container"], tty=told["tty"], stdin=stdin)


def _stop() -> int:
    """The signal of a stop that was under way when our predecessor died, or 0."""
    return int(os.environ.get("HOLDFAST_STOP", "0"))


def _too_early() -> Refused | Stopped:
    if stop := _stop():
        return Stopped(stop)
    return Refused(
        "the runner was killed before its container was made; start it again", "unavailable"
    )
