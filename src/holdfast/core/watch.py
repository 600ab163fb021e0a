"""Watches: something about a running process that its session asked to be told of.

    {"output": PATTERN, "since": OFFSET}   every line that matches, from this place of the log on
    {"quiet": SECONDS}                     it wrote nothing for that long; again after new output
    {"port": NUMBER}                       it listens there, or somebody else does
    {"every": SECONDS}                     what is new in its log, if anything is

Where stderr has a log of its own, both are looked at, unless ``"stream"`` names one of them. An
offset is a place in one log, by default stdout's; a pair of them is one in each.

Nobody is flooded: between two events of one watch there are `cooldown` seconds, and there are at
most `most` of them, of which the last says so.

DESIGN. A watch is kept in the record of its process, with how far it has come:

    id       "w1", "w2" and so on; never used twice in one process
    place    output, every: the log was looked at up to here; quiet: the log ended here when it was
             last told of (-1: never); port: 0 not told of, 1 somebody else has it, 2 open.
             A list of two for a watch that looks at two logs, stdout's first
    partly   the place is in a line that was told of before it was finished; a list likewise
    told     how many events there were
    clock    when the last one was, or when it was begun; monotonic
    over     no more will come
    done     the process has ended, and its output was looked at to the end

An event's id ends in the place to which it moves its watch. The event is appended first, then the
record is saved; a worker killed in between leaves an id that is further than the record, by which
its successor corrects the record (`catch_up`). A watcher says from which place to which it went:
what does not begin at the place of the record comes too late, and is left to the next look.

With two logs an id ends in both places, and one step moves both: what the cooldown held back in one
may be counted in an event of the other. As neither place ever goes back, the sum of the two orders
the steps and each has an id of its own.
"""

from __future__ import annotations

from .errors import BadRequest, Unsupported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Watch = dict[str, Any]
    Place = int | list[int]  # in one log, or in two

KINDS = ("output", "quiet", "port", "every")
STREAMS = ("stdout", "stderr")
MOST_WATCHES = 20
TAKEN, OPEN = 1, 2  # places of a watch on a port
GIVEN_UP = "over"  # what the id of an event ends in that moves nothing
_COOLDOWN, _MOST = 10.0, 20
_LONGEST_PATTERN = 10_000
_LONGEST_TIME = 1e9
_LARGEST = 1 << 62


def checked(spec: object) -> Watch:
    """Complete what was asked for; BadRequest if it makes no sense. Patterns are not tried."""
    if not isinstance(spec, dict):
        raise BadRequest(f"a watch is a table like {{'output': PATTERN}}, not {shown(spec)}")
    kinds = [kind for kind in KINDS if kind in spec]
    if len(kinds) != 1:
        raise BadRequest(f"a watch is one of {', '.join(KINDS)}, not {shown(spec)}")
    (kind,) = kinds
    known = {"cooldown", "most"}
    known |= {"stream"} if kind != "port" else set()
    known |= {"since"} if kind == "output" else set()
    odd = set(spec) - known - {kind}
    if odd:
        raise unknown_word(f"a watch on {kind}", min(odd, key=str), known)
    value = spec[kind]
    watch: Watch = {
        kind: value,
        # An interval is its own cooldown.
        "cooldown": spec.get("cooldown", 0.0 if kind == "every" else _COOLDOWN),
        "most": spec.get("most", _MOST),
    }
    watch |= {name: spec[name] for name in ("stream", "since") if name in spec}
    why = _why_not(watch)
    if why:
        raise BadRequest(why)
    return watch


def unknown_word(what: str, word: object, known: Iterable[str]) -> BadRequest:
    """Something in a table that means nothing there."""
    import difflib

    words = sorted(known)
    near = difflib.get_close_matches(str(word), words, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    its = f"it knows {', '.join(words)}" if words else "it takes nothing else"
    return BadRequest(f"{what} knows no {shown(word)}{hint}; {its}")


def _why_not(watch: Watch) -> str:
    kind = kind_of(watch)
    value = watch[kind]
    if kind == "output" and not (isinstance(value, str) and 0 < len(value) <= _LONGEST_PATTERN):
        most = _LONGEST_PATTERN
        return f"output to watch for is a pattern of up to {most} characters, not {shown(value)}"
    if kind == "port" and not (_is_count(value) and 0 < value < 65536):
        return f"a port is a number from 1 to 65535, not {shown(value)}"
    if kind in ("quiet", "every") and not (_is_time(value) and value > 0):
        return f"{kind} takes a number of seconds above 0, not {shown(value)}"
    if not _is_time(watch["cooldown"]):
        return f"a cooldown is a number of seconds, not {shown(watch['cooldown'])}"
    if not _is_count(watch["most"]) or watch["most"] < 1:
        return f"most is a whole number above 0, not {shown(watch['most'])}"
    if "stream" in watch and watch["stream"] not in STREAMS:
        return f"a stream is {' or '.join(STREAMS)}, not {shown(watch['stream'])}"
    since = listed(watch.get("since", 0))
    if not (0 < len(since) <= (1 if "stream" in watch else 2)):
        return f"since is one offset for each log, not {shown(watch['since'])}"
    if not all(_is_count(each) and each >= 0 for each in since):
        return f"since is 'now', 'start' or a byte offset from 0 on, not {shown(watch['since'])}"
    return ""


def begun(spec: Watch, number: int, ends: list[int], clock: float) -> Watch:
    """A watch as it is kept, from what was `checked`; `ends` is where each log ends."""
    kind = kind_of(spec)
    watch = {"id": f"w{number}", **spec}
    places = chosen(spec, ends)
    if kind == "output":
        places = listed(watch.setdefault("since", packed(places)))
    elif kind == "quiet":
        places = [-1] * len(places)
    elif kind == "port":
        places = [0]
    if len(places) > len(ends):
        raise merged()
    partly: list[bool] = [False] * len(places)
    watch |= {"place": packed(places), "partly": packed(partly)}
    return watch | {"told": 0, "clock": clock, "over": False}


def chosen(spec: Watch, ends: list[int]) -> list[int]:
    """Choose from a list with an item for each log; a watch with an offset wants one log."""
    stream = spec.get("stream")
    if stream is not None:
        if STREAMS.index(stream) >= len(ends):
            raise merged()
        return [ends[STREAMS.index(stream)]]
    return ends[:1] if type(spec.get("since")) is int else ends


def merged() -> Unsupported:
    return Unsupported("its stderr is in stdout's log; start it with stderr separate")


def streams_of(watch: Watch) -> list[str]:
    """The streams that it looks at; one from before there were two has one place, in stdout."""
    if "stream" in watch:
        return [watch["stream"]]
    return list(STREAMS[: len(listed(watch["place"]))])


def listed(value: Any) -> list[Any]:
    """Make a list with an item for each log of what stands alone for a single one."""
    return list(value) if isinstance(value, list) else [value]


def packed(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else list(values)


def kind_of(watch: Watch) -> str:
    return next(kind for kind in KINDS if kind in watch)


def condition(watch: Watch) -> str:
    """``output=ERROR``, ``quiet=30s stream=stderr``, ``port=3000``, ``every=60s``."""
    kind = kind_of(watch)
    value = watch[kind]
    text = f"{kind}={value:g}s" if kind in ("quiet", "every") else f"{kind}={value}"
    return f"{text} stream={watch['stream']}" if "stream" in watch else text


def is_live(watch: Watch) -> bool:
    """True if there is something to look at."""
    return not watch["over"] and not watch.get("done", False)


def is_same(watch: Watch, spec: Watch) -> bool:
    """True if this is what is asked for, by somebody who may not have heard the answer."""
    names = {*spec, "stream"}
    return is_live(watch) and all(watch.get(name) == spec.get(name) for name in names)


def is_watch(entry: object) -> bool:
    """True if a record's entry is of the right shape."""
    if not isinstance(entry, dict) or sum(kind in entry for kind in KINDS) != 1:
        return False
    whole = all(name in entry for name in ("id", "cooldown", "most", "over", "clock"))
    return (
        whole
        and isinstance(entry["id"], str)
        and not _why_not(entry)
        and _is_place(entry)
        and _is_count(entry.get("told"))
        and _is_time(entry["clock"])
    )


def _is_place(entry: Watch) -> bool:
    places, partly = listed(entry.get("place")), listed(entry.get("partly"))
    most = 1 if "port" in entry or "stream" in entry else 2
    return 0 < len(places) == len(partly) <= most and all(map(_is_count, places))


# -- moving on -------------------------------------------------------------------------------------


def key(place: Place, partly: Any, before: Place) -> str:
    """The end of the id of the event that moves a watch on from `before`."""
    if place == before:
        return GIVEN_UP
    both = zip(listed(place), listed(partly), strict=True)
    return ".".join(f"{each}+" if inside else f"{each}" for each, inside in both)


def _step(text: str) -> tuple[list[int], list[bool]]:
    """The place that an id ends in, and whether it is in a line; empty if it is none."""
    parts = text.split(".")
    if not all(part.removesuffix("+").isdecimal() for part in parts):
        return [], []
    return [int(part.removesuffix("+")) for part in parts], [part[-1] == "+" for part in parts]


def is_step(watch: Watch, said: dict[str, Any]) -> bool:
    """True if what a watcher said leads on from the place of a watch."""
    if said["from"] != watch["place"]:
        return False
    moved = watch | {"place": said["place"], "partly": said["partly"]}
    return _is_place(moved) and streams_of(moved) == streams_of(watch)


def advance(watch: Watch, place: Place, partly: Any, *, told: bool, over: bool) -> None:
    watch["place"], watch["partly"] = place, partly
    if told:
        watch["told"] += 1
    watch["over"] = over or watch["told"] >= watch["most"]


def catch_up(watch: Watch, keys: Iterable[str]) -> bool:
    """Go by events that were told though the record does not say so; True if there were any."""
    before = watch["place"], watch["over"]
    known, logs = list(keys), len(listed(watch["place"]))
    watch["over"] = watch["over"] or GIVEN_UP in known
    told = [step for step in map(_step, known) if len(step[0]) == logs]
    for place, partly in sorted(told, key=lambda step: sum(step[0])):
        if sum(place) > sum(listed(watch["place"])):
            over = watch["over"] or ("port" in watch and place == [OPEN])
            advance(watch, packed(place), packed(partly), told=True, over=over)
    return before != (watch["place"], watch["over"])


def _is_count(value: object) -> bool:
    return type(value) is int and abs(value) < _LARGEST


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < _LONGEST_TIME  # type: ignore[operator]


def shown(value: object) -> str:
    text = f"{value:g}" if type(value) is float else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
