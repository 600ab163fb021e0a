"""The beginning of a container, or of a command inside one.

DESIGN. The resume state is made before the container, and the connection is in the store of
descriptors before the start. So a runner that is killed here leaves: nothing; a resume state alone,
or a container that was not started, which the next runner starts; or one that runs, with its
connection in the store. The request with
its environment is known to the first runner alone, so only that one can make the container; if it
was just doing that, the next one waits for the engine to be done with it.
"""

from __future__ import annotations

import os
import time

from . import exec_inside, ports
from .container import Container, init_is_gone, name_of
from .engine import Engine, EngineError
from .follow import Follower
from .link import await_request
from .output import write_all
from .refusal import Refused, refused, silent
from .resume_state import ResumeState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .reports import Reports
    from .signal_forwarder import SignalForwarder

_TRIES = 5
_NOT_STARTED = (126, 127)  # what an engine says of a command that it could not start
_END_PATIENCE, _NEAR_END_PATIENCE = 0.2, 5.0


class Stopped(Exception):
    """We were told to stop before there was a container; `number` is the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Life:
    """A container with what follows it."""

    __slots__ = ("container", "follower", "found")

    def __init__(self, container: Container, follower: Follower) -> None:
        self.container = container
        self.follower = follower
        self.found: dict[str, Any] | None = None  # how it was at the start, until that is said


def begin(spec: dict[str, Any], reports: Reports, signals: SignalForwarder) -> Life:
    """Make and start a container; Refused if that cannot be."""
    engine = Engine(spec["socket"])
    asked = ports.parse(spec["ports"] or [], spec["network"])
    try:
        skip = _pull(engine, spec, reports, signals) if spec["pull"] else 0
        if spec["network"] != "host":
            ports.choose(asked)
        saved = _make_resume_state(
            reports,
            spec,
            container=name_of(spec["handle"]),
            skip=skip,
            network=spec["network"],
            ports=[port.name for port in asked],
        )
        if stops := signals.stops():
            raise Stopped(stops[0])
        container = container_of(saved)
        life = Life(container, Follower(container, saved, (skip, 0), signals))
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
    _started(life, reports, signals)
    return life


def go_on(reports: Reports, sizes: tuple[int, int], signals: SignalForwarder) -> Life | None:
    """A container that an earlier runner made; None if it is not there any more."""
    saved = find_resume_state(reports)
    container = container_of(saved)
    life = Life(container, Follower(container, saved, sizes, signals))
    signals.serve(container, saved)
    stop = _stop()
    if stop:
        signals.ask(stop)  # now: who waits for an engine from here on does not wait for ever
    if reports.said().get("container") and life.follower.resume():
        return life  # how it is, the connection tells, which the engine may be waiting for
    state = signals.state()
    if state is None and await_request():
        state = signals.state()
    if state is None:
        if reports.said().get("container") is None:
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
        _started(life, reports, signals)
    elif state.running:
        _look(life)
        say_started(life, reports)
    return life


def _started(life: Life, reports: Reports, signals: SignalForwarder) -> None:
    signals.serve(life.container, life.follower.saved)
    if life.follower.saved.request["tty"]:
        signals.resize()  # before Docker 23 it starts with no size at all
    _look(life)
    pid = life.found["State"]["Pid"] if life.found is not None else 0
    if init_is_gone(pid):
        # Its end will be told in a moment; or it is on a machine of its own, and we cannot see it.
        near = life.container.engine.is_near()
        late = time.monotonic() + (_NEAR_END_PATIENCE if near else _END_PATIENCE)
        while time.monotonic() < late:
            state = signals.state()
            if state is None or not state.running:
                return  # what there is to say depends on how it ended
            time.sleep(0.01)
    say_started(life, reports)


def _look(life: Life) -> None:
    try:
        life.found = life.container.describe()
    except EngineError:
        pass  # it is said by the next runner, or at the end


def say_started(life: Life, reports: Reports) -> None:
    if life.found is None:
        return
    request, found = life.follower.saved.request, life.found
    published = (found.get("NetworkSettings") or {}).get("Ports")
    if not published:  # it ended before it was looked at: as it was asked for
        published = (found.get("HostConfig") or {}).get("PortBindings")
    reports.say(
        container=life.container.name,
        id=found["Id"],
        pid=found["State"]["Pid"],
        ports=ports.mapping(request["ports"], request["network"], published),
        network=request["network"] or "bridge",
    )
    life.found = None


def _pull(engine: Engine, spec: dict[str, Any], reports: Reports, signals: SignalForwarder) -> int:
    """Fetch the image if it is missing; how much of the log its progress takes."""
    from .pull import has, pull

    image = spec["image"]
    if has(engine, image):
        return 0
    reports.say(pulling=image)
    written = 0

    def say(line: str) -> None:
        nonlocal written
        data = line.encode() + (b"\r\n" if spec["tty"] else b"\n")
        write_all(1, data)
        written += len(data)

    stops: list[int] = []

    def stopped() -> bool:
        stops.extend(signals.stops())
        return bool(stops)

    try:
        if not pull(engine, image, spec["login"], say, signals.woken, stopped):
            raise Stopped(stops[0])
    except Refused as refusal:
        say(refusal.sentence)  # who started it has gone on, and looks at the output
        raise
    return written


# -- inside another container


def begin_inside(
    spec: dict[str, Any], reports: Reports, signals: SignalForwarder
) -> tuple[exec_inside.Inside, Follower]:
    engine = Engine(spec["socket"])
    name = spec["exec"]
    try:
        container_id, exec_id = exec_inside.create(engine, spec)
        saved = _make_resume_state(
            reports, spec, container=name, id=container_id, exec=exec_id, skip=0
        )
        target = exec_inside.Inside(engine, spec["handle"], saved.request)
        follower = Follower(target, saved, (0, 0), signals)
        follower.attach(first=True)
        signals.serve(target, saved)
        state = target.await_begin()
        if spec["tty"]:
            signals.resize()
    except EngineError as error:
        if error.status == 0:
            raise silent(error, engine.path) from None
        if error.status in (404, 409):
            raise Refused(
                f"the container {name} does not run any more; start its process again", "not_found"
            ) from None
        raise refused(error, engine.path, "") from None
    if state is not None and state.code in _NOT_STARTED and not state.running and not state.pid:
        said = follower.last_words()
        raise refused(EngineError(400, said), engine.path, "")
    reports.say(
        container=name, id=container_id, pid=target.pid, ports={}, network=None, exec=exec_id
    )
    return target, follower


def go_on_inside(
    handle: str, reports: Reports, sizes: tuple[int, int], signals: SignalForwarder
) -> tuple[exec_inside.Inside, Follower]:
    saved = find_resume_state(reports)
    target = exec_inside.Inside(Engine(saved.request["socket"]), handle, saved.request)
    target.pid = reports.said().get("pid") or 0
    follower = Follower(target, saved, sizes, signals)
    signals.serve(target, saved)
    if stop := _stop():
        signals.ask(stop)
    follower.resume()
    return target, follower


def is_inside(reports: Reports) -> bool:
    """True if an earlier runner began a command inside a container."""
    return "exec" in find_resume_state(reports).request


# -- the resume state


def _make_resume_state(reports: Reports, spec: dict[str, Any], **more: Any) -> ResumeState:
    keep = ("socket", "tty", "stdin", "separate")
    request = {name: spec[name] for name in keep} | more
    reports.when_there_is_room(lambda: ResumeState.make(reports.resume_path, request))
    return ResumeState(reports.resume_path)


def find_resume_state(reports: Reports) -> ResumeState:
    try:
        return ResumeState(reports.resume_path)
    except FileNotFoundError:
        raise _too_early() from None


def container_of(saved: ResumeState) -> Container:
    request = saved.request
    stdin = request["tty"] or request["stdin"]
    engine = Engine(request["socket"])
    return Container(engine, request["container"], tty=request["tty"], stdin=stdin)


def _stop() -> int:
    """The signal of a stop that was under way when our predecessor died, or 0."""
    return int(os.environ.get("HOLDFAST_STOP", "0"))


def _too_early() -> Refused | Stopped:
    if stop := _stop():
        return Stopped(stop)
    return Refused(
        "the runner was killed before its container was made; start it again", "unavailable"
    )
