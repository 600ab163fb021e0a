"""What happened in a round: the journals of all parties, put together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._journal import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# Between what we wrote down and what happened, on a busy machine.
SLACK = 3.0
BUSY = 10.0
LONG = ("stop-worker-long", "stop-guard-long")
HALVES = ("kill-worker", "kill-guard", "kill-worker-again", "kill-worker-then-guard", "kill-both")


@dataclass
class Act:
    """A step of a client, from its beginning to its end."""

    client: str
    session: str
    begun: float
    verb: str
    arguments: list[Any]
    ended: float | None = None  # None: nobody can know, it was killed in the middle
    ok: Any = None
    error: str | None = None
    message: str = ""
    crash: str = ""

    @property
    def handle(self) -> str:
        first = self.arguments[0] if self.arguments else ""
        return first if isinstance(first, str) and first.startswith("proc-") else ""

    def __str__(self) -> str:
        end = "never ended" if self.ended is None else f"to {self.ended:.2f}"
        came = self.error and f"{self.error}: {self.message}"
        words = " ".join(str(word) for word in [self.verb, *self.arguments])
        return f"{self.begun:.2f} {end} {self.client}: {words} -> {came or self.crash or self.ok}"


class History:
    """What happened, from the journals."""

    def __init__(self, root: str) -> None:
        self.acts: list[Act] = []
        self.claims: dict[str, list[tuple[str, bool | None, dict[str, Any]]]] = {}
        self.faults: list[dict[str, Any]] = []
        self.lives: list[dict[str, Any]] = []
        self.settled: dict[str, list[dict[str, Any]]] = {}
        for name in sorted(os.listdir(root + "/journals")):
            if not name.endswith(".jsonl"):
                continue
            entries = list(Reader(f"{root}/journals/{name}").read())
            if name == "driver.jsonl":
                self.faults = [entry for entry in entries if "fault" in entry]
                self.lives = [entry for entry in entries if "client" in entry]
            elif name == "settle.jsonl":
                for entry in entries:
                    self.settled.setdefault(entry["settle"], []).append(entry)
            else:
                self._take(name.removesuffix(".jsonl"), entries)
        self.acts.sort(key=lambda act: act.begun)
        self.by_handle: dict[str, list[Act]] = {}
        for act in self.acts:
            if act.handle:
                self.by_handle.setdefault(act.handle, []).append(act)

    def _take(self, client: str, entries: list[dict[str, Any]]) -> None:
        acts: dict[int, Act] = {}
        for entry in entries:
            if "do" in entry:
                verb, *arguments = entry["do"]
                act = Act(client, entry["session"], entry["t"], verb, arguments)
                acts[entry["n"]] = act
            elif "n" in entry:
                act = acts[entry["n"]]
                act.ended, act.ok = entry["t"], entry.get("ok")
                act.error, act.message = entry.get("error"), entry.get("message", "")
                act.crash = entry.get("crash", "")
            elif "claimed" in entry:
                told = self.claims[entry["event"]]
                index = next(
                    i for i, (_, _, e) in enumerate(told) if e["by"] == (client, entry["claim"])
                )
                told[index] = (client, entry["claimed"], told[index][2])
            elif "claim" in entry:
                entry["by"] = (client, entry["claim"])
                self.claims.setdefault(entry["event"], []).append((client, None, entry))
        self.acts += acts.values()

    def about(self, handle: str) -> list[str]:
        acts = self.by_handle.get(handle, [])
        lines = [(act.begun, str(act)) for act in acts]
        if lines:
            first, last = lines[0][0] - 1, max(act.ended or act.begun for act in acts) + 2
            for fault in self.faults:
                if first < fault["t"] < last and not fault.get("skipped"):
                    told = {name: value for name, value in fault.items() if name != "t"}
                    lines.append((fault["t"], f"{fault['t']:.2f} fault {told}"))
        return [line for _, line in sorted(lines)]

    def windows(self, *kinds: str) -> Iterator[tuple[float, float]]:
        """From when to when faults of these kinds were in force."""
        open_since: dict[str, float] = {}
        for entry in self.faults:
            if entry["fault"] not in kinds or entry.get("skipped"):
                continue
            if entry.get("over"):
                yield open_since.pop(entry["fault"], entry["t"]), entry["t"]
            elif "seconds" in entry:
                open_since.setdefault(entry["fault"], entry["t"])
            else:
                yield entry["t"], entry["t"]
        for since in open_since.values():
            yield since, float("inf")

    def down(self) -> Iterator[tuple[float, float]]:
        """From when to when there was no half of a keeper that can have seen to anything.

        What ended before both died, while halves were killed or stopped one after the other, may
        not have been taken up by any of them.
        """
        trouble = list(self.windows(*HALVES, "stop-worker", "stop-guard", *LONG))
        since = None
        for entry in self.faults:
            if entry.get("both") and since is None:
                since = entry["t"]
                while before := [b for b, e in trouble if b < since <= e + SLACK]:
                    since = min(before)
            elif entry.get("back") and since is not None:
                yield since, entry["t"]
                since = None
        if since is not None:
            yield since, since + BUSY

    def both_killed(self, begun: float, ended: float | None) -> list[float]:
        """When both halves were killed during an act."""
        times = [entry["t"] for entry in self.faults if entry.get("both")]
        return [t for t in times if begun - SLACK <= t <= (ended or float("inf"))]

    def had(self, *kinds: str) -> bool:
        return any(True for _ in self.windows(*kinds))

    def during(self, begun: float, ended: float | None, *kinds: str) -> bool:
        """Whether an act may be due to one of these faults."""
        last = float("inf") if ended is None else ended
        return any(s - SLACK <= last and begun <= e + BUSY for s, e in self.windows(*kinds))


def summary(root: str) -> str:
    """What happened in a round, in numbers."""
    history = History(root)
    starts = [act for act in history.acts if act.verb == "spawn"]
    claims = [claimed for told in history.claims.values() for _, claimed, _ in told]
    faults = [
        entry
        for entry in history.faults
        if not entry.keys() & {"over", "back"}
        and (entry["fault"] == "kill-both" or "both" not in entry)
    ]
    counts = {
        "calls": len(history.acts),
        "cut off": sum(act.ended is None for act in history.acts),
        "starts": sum(act.ok is not None for act in starts),
        "events claimed": claims.count(True),
        "lives": len(history.lives),
        "faults": sum(not entry.get("skipped") for entry in faults),
    }
    errors = [act.error for act in history.acts if act.error]
    counts |= {f"{code}!": errors.count(code) for code in sorted(set(errors))}
    return ", ".join(f"{n} {what}" for what, n in counts.items())
