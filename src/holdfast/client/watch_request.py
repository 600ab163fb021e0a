"""Watches as callers ask for them: a text like ``output=ERROR``, or a table."""

from __future__ import annotations

from ..core.errors import BadRequest
from ..core.units import parse_duration
from ..core.watch import KINDS, checked, chosen, packed, shown
from ..output.pattern import Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..core.watch import Watch


def parse(given: object, ends: list[int]) -> Watch:
    """Parse a watch: a text like ``output=ERROR``, or a table; its pattern is tried.

    `ends` is where each log of the process ends, stdout's first.
    """
    spec = dict(given) if isinstance(given, dict) else _spec(given)
    try:
        for name in ("quiet", "every", "cooldown"):
            if name in spec:
                spec[name] = parse_duration(spec[name])
    except ValueError as error:
        raise BadRequest(f"{name} {error}, not {shown(spec[name])}") from None
    if isinstance(spec.get("port"), str) and spec["port"].isdigit():
        spec["port"] = int(spec["port"])
    since = spec.get("since", "now")
    if "output" in spec:
        Pattern(spec["output"])
        if since in ("start", "now"):
            spec.pop("since", None)
    spec = checked(spec)
    places = chosen(spec, ends)
    if "output" in spec:
        spec.setdefault("since", packed([0] * len(places) if since == "start" else places))
    return spec


def _spec(given: object) -> Watch:
    if isinstance(given, str):
        kind, equals, value = given.partition("=")
        if equals and kind in KINDS:
            return {kind: value}
    raise BadRequest(
        f"a watch is like output=PATTERN, quiet=30s, port=3000 or every=60s; not {shown(given)}"
    )
