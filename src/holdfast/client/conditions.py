"""Conditions to wait for: each knows how to look, and when looking again makes sense.

    exit                     it has ended
    output=PATTERN           its output matches a regular expression
    port=3000                it, or something it started, listens there; port=HOST:3000
                             (of a container: its port, wherever it is published)
    http=URL                 the URL answers with 2xx or 3xx; `http=URL status=404` with that
    file=PATH                there is such a file; relative to its working directory
    quiet=5s                 it has written nothing for that long
    input                    it waits for somebody to type

A condition is given as such a text, or as a table with the same words and more of them:
``{"http": URL, "status": 404, "body": PATTERN}``, ``{"output": PATTERN, "since": "start"}``.

Where stderr has a log of its own, output is what is in either, unless a table says ``"stream"``. An
offset to begin at is a place in one log, stdout's if no stream is named.

DESIGN. Conditions are looked at when something happened to the files they name (`paths`), and when
they are `due`. Only ports, URLs and waiting for input have to be asked for again and again, because
the kernel tells nobody; they are asked less and less often, and one look at the kernel's tables
serves all of them. What tells that output, silence, a port or a wait for input is there is in
`detectors`, which the watcher shares.

A look runs patterns and walks ``/proc``, so it is for a thread (`Waiting.run`), where it holds up
nothing of the caller's. One that has much output to go through stops after a while, says that it is
`behind`, and goes on with the next look.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from ..core.environment import is_within
from ..core.errors import BadRequest, StoreError
from ..core.units import parse_duration
from ..core.watch import STREAMS, merged, unknown_word
from ..detectors.input import InputDetector
from ..detectors.output import OutputDetector
from ..detectors.port import PortDetector
from ..detectors.quiet import QuietDetector
from ..linux.site import Site, site_of
from ..output.pattern import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from threading import Thread
    from typing import Any

    from ..core.record import Record
    from ..linux.ports import Snapshot
    from ..output.log import Log

_FIRST_LOOK, _SLOWEST_LOOK = 0.03, 0.5
_AGREE = 0.05
_NO_PROMPT = 0.25  # seconds after which one that asks nothing is believed to
_LOOK_TIME = 0.2  # seconds for output in one look
_ASK_TIME = 5.0
_ASK_AT_ONCE, _ASK_LOOK = 0.005, 0.02
_BODY = 1 << 20


@dataclass(slots=True)
class Met:
    """A condition that holds, for which process, and what was seen."""

    condition: str
    handle: str
    detail: dict[str, Any] = field(default_factory=dict)

    def public(self) -> dict[str, Any]:
        return {"condition": self.condition, "handle": self.handle, **self.detail}

    def describe(self) -> str:
        """The condition in one line, for people."""
        facts = {
            name: value
            for name, value in self.detail.items()
            if name in ("line", "stream", "host_port", "pid", "status", "prompt", "quiet_seconds")
        }
        told = ", ".join(f"{name} {value}" for name, value in facts.items())
        return f"{self.condition}: {told}" if told else self.condition


class Situation:
    """The situation that conditions look at: one process, as it is known at this moment.

    `logs` has one for stdout, and one for stderr where that is separate.
    """

    __slots__ = ("_look", "draw", "logs", "now", "record")

    def __init__(
        self, record: Record, logs: dict[str, Log], draw: Callable[[], Any] | None
    ) -> None:
        self.record = record
        self.logs = logs
        self.draw = draw
        self.now = time.monotonic()
        self._look: Snapshot | None = None

    def begin(self, record: Record, look: Snapshot) -> None:
        """Another moment."""
        self.record = record
        self.now = time.monotonic()
        self._look = look

    @property
    def log(self) -> Log:
        return self.logs["stdout"]

    @property
    def site(self) -> Site:
        return site_of(self.record)

    @property
    def look(self) -> Snapshot:
        assert self._look is not None
        return self._look


class Condition:
    """One thing to wait for, of one process."""

    asks = False  # whether it must be asked again and again while the process runs
    behind = False  # whether there is something that it has not looked at yet
    text = ""

    def __init__(self) -> None:
        self.due: float | None = 0.0
        self._step = _FIRST_LOOK

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.text}>"

    def paths(self, situation: Situation) -> list[str]:
        """Files whose changes are a reason to look."""
        return []

    def look(self, situation: Situation) -> dict[str, Any] | None:
        """Look: what is seen if it holds now, else None."""
        raise NotImplementedError

    def later(self, situation: Situation) -> None:
        """Say when to look again, after a look at which it did not hold."""
        self.due = situation.now + self._step if self.asks else None
        if self.behind:
            self.due = situation.now
        self._step = min(self._step * 1.5, _SLOWEST_LOOK)

    def places(self) -> dict[str, int]:
        """The places it has come to in each stream, to go on from there another time."""
        return {}


class Exited(Condition):
    text = "exit"

    def look(self, situation: Situation) -> dict[str, Any] | None:
        return None if situation.record.running else {}


class _OfOutput(Condition):
    """A condition on one stream, if it was named, or on all there are."""

    def __init__(self, text: str, streams: list[str], named: bool) -> None:
        super().__init__()
        self.text = f"{text} stream={streams[0]}" if named else text
        self._streams = streams

    def paths(self, situation: Situation) -> list[str]:
        return [situation.logs[stream].path for stream in self._streams]


class OutputMatches(_OfOutput):
    """From an offset in each stream on; what came before is not looked at."""

    def __init__(self, pattern: str, since: dict[str, int], named: bool = False) -> None:
        super().__init__(f"output={pattern}", list(since), named)
        self._pattern = Pattern(pattern)
        self._offsets = dict(since)

    def places(self) -> dict[str, int]:
        return self._offsets

    def look(self, situation: Situation) -> dict[str, Any] | None:
        until = time.monotonic() + _LOOK_TIME
        self.behind = False
        for stream in self._streams:
            found = self._search(situation.logs[stream], stream, until)
            if found is not None:
                return found if len(situation.logs) == 1 else {**found, "stream": stream}
        return None

    def _search(self, log: Log, stream: str, until: float) -> dict[str, Any] | None:
        """A match in whole lines, and in the last one though it is not finished, like a prompt."""
        detector = OutputDetector(log, self._offsets[stream])
        hits = detector.search(self._pattern, most=1)
        while not hits and detector.more and time.monotonic() < until:
            hits = detector.search(self._pattern, most=1)
        self._offsets[stream] = detector.at
        self.behind = self.behind or detector.more
        return {**hits[0].found.public(), "offset": hits[0].offset} if hits else None


class _Asked(Condition):
    """One that must ask somebody, in a thread: who does not answer holds up nothing else."""

    asks = True

    def __init__(self) -> None:
        super().__init__()
        self._asking: Thread | None = None
        self._answer: dict[str, Any] | BaseException | None = None
        self.seen = ""  # what was learnt though it does not hold

    def _ask(self) -> dict[str, Any] | None:
        raise NotImplementedError

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except BaseException as error:
            self._answer = error

    def look(self, situation: Situation) -> dict[str, Any] | None:
        if self._asking is None:
            from threading import Thread

            self._answer = None
            self._asking = Thread(target=self._run, daemon=True)
            self._asking.start()
            self._asking.join(_ASK_AT_ONCE)
        if self._asking.is_alive():
            return None
        self._asking = None
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def later(self, situation: Situation) -> None:
        super().later(situation)
        if self._asking is not None:
            self.due = situation.now + _ASK_LOOK


class PortOpen(Condition):
    """A port of this machine, by what the kernel says of its sockets: nobody is connected to.

    Of a Docker process it is a port of its container, if that is published, else as of others.
    """

    asks = True

    def __init__(self, port: int, host: str) -> None:
        super().__init__()
        self.text = f"port={port}" if host == "localhost" else f"port={host}:{port}"
        self._detector = PortDetector(port, host)

    @property
    def seen(self) -> str:
        return self._detector.why

    def paths(self, situation: Situation) -> list[str]:
        return situation.site.paths

    def look(self, situation: Situation) -> dict[str, Any] | None:
        site, port = situation.site, self._detector.port
        found = self._detector.look(site, situation.look)
        if found is None:
            site.check_port(port)
            return None
        if found.stranger is not None:
            raise TakenPort(port, str(found.stranger), situation.record.handle)
        return found.facts


class RemotePortOpen(_Asked):
    """A port of another machine, by connecting to it."""

    def __init__(self, port: int, host: str) -> None:
        super().__init__()
        self._port, self._host = port, host
        self.text = f"port={host}:{port}"

    def _ask(self) -> dict[str, Any] | None:
        from ..linux.ports import is_open

        opened = is_open(self._host, self._port, _ASK_TIME)
        return {"port": self._port, "host": self._host} if opened else None


class TakenPort(BadRequest):
    """Somebody else listens there, so it will never be this process."""

    def __init__(self, port: int, who: str, handle: str) -> None:
        super().__init__(
            f"port {port} is held by {who}, which is not part of {handle}; stop that, or use "
            "another port",
            handle=handle,
            port=port,
            owner=who,
        )


class HttpAnswers(_Asked):
    def __init__(self, url: str, status: int | None, body: str | None) -> None:
        super().__init__()
        self.url = check_url(url)
        self.text = f"http={url}" + (f" status={status}" if status is not None else "")
        self._status = status
        self._body = Pattern(body) if body is not None else None

    def _ask(self) -> dict[str, Any] | None:
        import http.client
        import urllib.error
        import urllib.request

        class Stay(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *redirect: Any) -> None:
                return None  # that it redirects is the answer

        opener = urllib.request.build_opener(Stay, urllib.request.ProxyHandler({}))
        request = urllib.request.Request(self.url, headers={"User-Agent": "holdfast"})
        try:
            with opener.open(request, timeout=_ASK_TIME) as answer:
                return self._judge(answer.status, answer.read(_BODY))
        except urllib.error.HTTPError as error:
            with error:
                return self._judge(error.code, error.read(_BODY))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.seen = str(getattr(error, "reason", error))[:200]
            return None

    def _judge(self, status: int, data: bytes) -> dict[str, Any] | None:
        self.seen = f"status {status}"
        if status != self._status if self._status is not None else not 200 <= status < 400:
            return None
        if self._body is None:
            return {"status": status}
        found = self._body.search(data)
        if found is None:
            self.seen += ", but the body does not match"
            return None
        return {"status": status, **found.public()}


class FileExists(Condition):
    """`within`: not where links lead out of these directories, whenever they are made."""

    def __init__(self, path: str, within: Sequence[str] | None = None) -> None:
        super().__init__()
        if not path or "\0" in path:
            raise BadRequest("a file to wait for needs a path")
        self._path = path
        self._within = within
        self.text = f"file={path}"
        # Through a link `..` leads somewhere that no watch knows of.
        self.asks = os.pardir in path.split("/")

    def _absolute(self, situation: Situation) -> str:
        return os.path.join(situation.record.cwd, os.path.expanduser(self._path))

    def paths(self, situation: Situation) -> list[str]:
        return [self._absolute(situation)]

    def look(self, situation: Situation) -> dict[str, Any] | None:
        path = self._absolute(situation)
        if self._within is not None and not is_within(path, *self._within):
            return None
        return {"path": path} if os.path.exists(path) else None


class OutputQuiet(_OfOutput):
    def __init__(self, seconds: float, streams: list[str], named: bool = False) -> None:
        super().__init__(f"quiet={seconds:g}s", streams, named)
        self._seconds = seconds
        self._detector: QuietDetector | None = None

    def look(self, situation: Situation) -> dict[str, Any] | None:
        if self._detector is None:
            logs = [situation.logs[stream] for stream in self._streams]
            began = situation.record.started_clock
            self._detector = QuietDetector(self._seconds, logs, began)
        if not self._detector.look(situation.now):
            self.due = self._detector.due
            return None
        return {"quiet_seconds": round(situation.now - self._detector.since, 3)}

    def later(self, situation: Situation) -> None:
        """Leave it to `look`, which knows when it will have been quiet for so long."""


class WaitsForInput(Condition):
    asks = True
    text = "input"

    def __init__(self) -> None:
        super().__init__()
        self._detector = InputDetector(twice=True)
        self._asked: float | None = None  # since when it asks nothing, as far as the log goes

    def paths(self, situation: Situation) -> list[str]:
        return [situation.log.path]

    def look(self, situation: Situation) -> dict[str, Any] | None:
        from ..output.prompt import prompt_of

        record = situation.record
        if not record.running or not record.stdin or record.pid is None:
            return None
        seen = self._detector.look(situation.site, situation.log.size())
        if seen is None:
            self._asked = None
            if self._detector.seen.waits:
                self._step = _AGREE
            return None
        kind = str(seen.answer)
        try:
            prompt = prompt_of(situation.log, kind, situation.draw)
        except StoreError:
            prompt = ""
        if not prompt:  # on a busy machine it may be on its way to the log
            self._asked = situation.now if self._asked is None else self._asked
            if situation.now - self._asked < _NO_PROMPT:
                self._step = _AGREE
                return None
        return {"prompt": prompt, "kind": kind}


# -- how they are written --------------------------------------------------------------------------

WORDS = ("exit", "output", "port", "http", "file", "quiet", "input")
_MORE = {
    "output": ("since", "stream"),
    "port": ("host",),
    "http": ("body", "status"),
    "file": ("within",),
    "quiet": ("stream",),
}


def parse(given: object, ends: dict[str, int]) -> Condition:
    """The condition that a text or a table describes; `ends` is where each log ends now."""
    table = _table(given)
    kinds = [word for word in WORDS if word in table]
    if len(kinds) != 1:
        raise BadRequest(f"a condition is one of {', '.join(WORDS)}, not {_shown(given)}")
    kind = kinds[0]
    value = table.pop(kind)
    try:
        condition = _make(kind, value, table, ends)
    except ValueError as error:
        if isinstance(error, BadRequest):
            raise
        raise BadRequest(f"{kind} {error}, not {_shown(value)}") from None
    if table:
        raise unknown_word(f"a condition on {kind}", next(iter(table)), _MORE.get(kind, ()))
    return condition


def _table(given: object) -> dict[str, Any]:
    if isinstance(given, dict):
        return dict(given)
    if not isinstance(given, str):
        raise BadRequest(f"a condition is a text like port=3000, not {_shown(given)}")
    kind, equals, value = given.partition("=")
    if kind in ("exit", "input") and not equals:
        return {kind: True}
    if not equals or kind not in WORDS:
        raise BadRequest(
            f"a condition is exit, input, or like output=PATTERN, port=3000, http=URL, file=PATH, "
            f"quiet=5s; not {_shown(given)}"
        )
    return {kind: value}


def _make(kind: str, value: Any, more: dict[str, Any], ends: dict[str, int]) -> Condition:
    if kind in ("exit", "input"):
        if value is not True:
            raise ValueError("takes no value (true in a table)")
        return Exited() if kind == "exit" else WaitsForInput()
    if kind == "output":
        since = more.pop("since", "now")
        if since not in ("now", "start") and not (type(since) is int and since >= 0):
            raise BadRequest(
                f"since is 'now', 'start' or a byte offset from 0 on, not {_shown(since)}"
            )
        streams, named = _streams(more, ends)
        if type(since) is int:
            places = {streams[0]: since}
        else:
            places = {stream: ends[stream] if since == "now" else 0 for stream in streams}
        return OutputMatches(str(value), places, named)
    if kind == "port":
        from ..linux.ports import is_local

        port, host = _port(value, more.pop("host", "localhost"))
        return PortOpen(port, host) if is_local(host) else RemotePortOpen(port, host)
    if kind == "http":
        status, body = more.pop("status", None), more.pop("body", None)
        url = str(value)
        if status is None and " status=" in url:
            url, _, text = url.partition(" status=")
            status = int(text) if text.isdigit() else -1
        if status is not None and (type(status) is not int or not 100 <= status <= 599):
            raise ValueError("needs a status from 100 to 599")
        return HttpAnswers(url, status, body)
    if kind == "file":
        path = os.fspath(value)
        os.fsencode(path)  # a ValueError for what can be no path
        within = more.pop("within", None)
        if within is not None and not (
            isinstance(within, list) and all(isinstance(each, str) for each in within)
        ):
            raise BadRequest(f"within is a list of directories, not {_shown(within)}")
        return FileExists(path, within)
    return OutputQuiet(parse_duration(value), *_streams(more, ends))


def _streams(more: dict[str, Any], ends: dict[str, int]) -> tuple[list[str], bool]:
    """The streams to look at, and whether one was named."""
    if "stream" not in more:
        return list(ends), False
    stream = more.pop("stream")
    if stream not in STREAMS:
        raise ValueError("can be looked at in the stream 'stdout' or 'stderr'")
    if stream not in ends:
        raise merged()
    return [stream], True


def _port(value: Any, host: str) -> tuple[int, str]:
    if isinstance(value, str):
        before, colon, number = value.rpartition(":")
        if colon:
            host = before.strip("[]")
        value = int(number) if number.isdigit() else -1
    if type(value) is not int or not 0 < value < 65536:
        raise ValueError("must be a number from 1 to 65535, or HOST:PORT")
    return value, host or "localhost"


def check_url(url: str) -> str:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        ok = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        ok = False
    if not ok or not url.isprintable() or " " in url:
        raise BadRequest(f"http needs a URL like http://127.0.0.1:3000/health, not {_shown(url)}")
    return url


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
