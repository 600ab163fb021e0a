"""The plan of a round, from a seed: who starts what, does what with it, and what goes wrong when.

Plain data, so that it can be printed, handed to the clients as JSON, and made again.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
PATTERN_BYTES = 1 << 21

# Faults by name: how often each comes, and between which times (seconds) it lasts, if it lasts.
FAULTS: dict[str, tuple[int, tuple[float, float]]] = {
    "kill-worker": (10, (0, 0)),
    "kill-guard": (8, (0, 0)),
    "kill-both": (4, (0, 0)),
    "kill-worker-again": (4, (0, 0)),
    "kill-worker-then-guard": (4, (0, 0)),
    "stop-worker": (6, (0.05, 2.5)),
    "stop-guard": (4, (0.05, 2.5)),
    "stop-worker-long": (1, (40.0, 75.0)),
    "stop-guard-long": (1, (15.0, 30.0)),
    "kill-watcher": (3, (0, 0)),
    "stop-watcher": (2, (0.2, 3.0)),
    "kill-tmux": (2, (0, 0)),
    "stop-tmux": (2, (0.2, 3.0)),
    "kill-client": (1, (0, 0)),
    "stop-client": (1, (0.2, 3.0)),
    "delete-socket": (2, (0, 0)),
    "fill-disk": (5, (0.3, 3.0)),
    "few-descriptors": (1, (0, 0)),
}
CREWS = ("agents", "visitors", "burst", "crowd", "listeners")
# Faults that belong to a whole round: where the home is, and what its keeper is started with.
_OF_ROUNDS = ("fill-disk", "few-descriptors")
_LONG = ("stop-worker-long", "stop-guard-long")

NATURAL = ("exit", "pattern", "signal", "daemon")  # which end by themselves
_SIGNALS = ("SEGV", "ABRT", "KILL", "USR1", "TERM", "BUS")


@dataclass
class Spec:
    """A process: what it is, and what it does."""

    handle: str
    kind: str
    mode: str = "pipe"
    code: int = 0
    seconds: float = 0.0
    signal: str = ""
    pieces: int = 1
    size: int = 0
    errors: int = 0  # bytes on a stderr of its own
    timeout: float | None = None
    grace: float = 1.0
    keep: bool = False
    group: str = ""
    log_cap: int | None = None

    @property
    def stdin(self) -> bool:
        return self.kind == "echo"


@dataclass
class Stand:
    """A time for which a client holds a session, in which lanes of steps go side by side."""

    session: str
    lanes: list[list[list[Any]]]
    grace: float = 1800.0  # of the lease
    close: bool = True


@dataclass
class Life:
    """A client process, from its start to its end: rows of stands, one after the other in each."""

    rows: list[list[Stand]]
    vanishes: bool = False


@dataclass
class Script:
    """A client: its lives, one after the other."""

    name: str
    asyncio: bool
    lives: list[Life]
    specs: dict[str, Spec] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Script:
        lives = [
            Life([[Stand(**stand) for stand in row] for row in life["rows"]], life["vanishes"])
            for life in data["lives"]
        ]
        specs = {handle: Spec(**spec) for handle, spec in data["specs"].items()}
        return cls(data["name"], data["asyncio"], lives, specs)


@dataclass
class Fault:
    at: float
    kind: str
    seconds: float = 0.0
    choice: int = 0  # among those that it could be


@dataclass
class Plan:
    seed: str
    number: int
    length: float
    scripts: list[Script]
    faults: list[Fault]
    small_disk: int = 0  # bytes
    descriptors: int = 0

    @property
    def specs(self) -> dict[str, Spec]:
        return {h: spec for script in self.scripts for h, spec in script.specs.items()}

    def describe(self) -> str:
        counts: dict[str, int] = {}
        for fault in self.faults:
            counts[fault.kind] = counts.get(fault.kind, 0) + 1
        faults = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())) or "no faults"
        extra = f", {self.small_disk >> 20} MiB of disk" if self.small_disk else ""
        extra += f", {self.descriptors} descriptors" if self.descriptors else ""
        crew = " ".join(script.name for script in self.scripts)
        return f"{crew}; {len(self.specs)} processes; {faults}{extra}"


def plan_of(
    seed: str,
    number: int,
    *,
    length: float = 15.0,
    only: Iterable[str] | None = None,
    without: Iterable[str] = (),
    crews: Iterable[str] | None = None,
    modes: Iterable[str] = ("pipe", "pty", "tmux"),
    can_mount: bool = True,
) -> Plan:
    """The plan of one round. The same arguments give the same plan."""
    plan = _Planner(random.Random(f"{seed}/{number}"), length, list(modes)).plan(
        seed, number, None if only is None else list(only), list(crews or ()), can_mount
    )
    plan.faults = [fault for fault in plan.faults if fault.kind not in without]
    return plan


class _Planner:
    def __init__(self, dice: random.Random, length: float, modes: list[str]) -> None:
        self.dice = dice
        self.length = length
        self.modes = modes
        self.script = Script("", False, [])

    def plan(
        self, seed: str, number: int, only: list[str] | None, crews: list[str], can_mount: bool
    ) -> Plan:
        dice = self.dice
        allowed = list(FAULTS) if only is None else [kind for kind in FAULTS if kind in only]
        few = "few-descriptors" in allowed and (only is not None or dice.random() < 0.15)
        full = "fill-disk" in allowed and can_mount and (only is not None or dice.random() < 0.25)
        # Rounds differ: a few kinds of faults each, many of them.
        kinds = [kind for kind in allowed if kind not in _OF_ROUNDS]
        if only is None:
            long = [kind for kind in kinds if kind in _LONG and dice.random() < 0.12]
            kinds = [kind for kind in kinds if kind not in _LONG]
            kinds = dice.sample(kinds, dice.choice((0, 2, 3, 4, 6)))
            kinds += long
        if full:
            kinds.append("fill-disk")
        scripts = self._crew(crews, few)
        return Plan(
            seed,
            number,
            self.length,
            scripts,
            self._faults(kinds),
            small_disk=dice.choice((6, 12, 24)) << 20 if full else 0,
            descriptors=dice.choice((64, 96, 160)) if few else 0,
        )

    def _faults(self, kinds: list[str]) -> list[Fault]:
        dice, faults = self.dice, []
        rare = [kind for kind in kinds if kind in _LONG]
        usual = [kind for kind in kinds if kind not in _LONG]
        weights = [FAULTS[kind][0] for kind in usual]
        pace = dice.choice((0.3, 0.7, 1.5))
        at = 0.3
        while usual and at < self.length:
            kind = dice.choices(usual, weights)[0]
            faults.append(self._fault(at, kind))
            at += dice.uniform(0.3, 1.7) * pace + (1.0 if kind == "kill-worker-again" else 0.0)
        for kind in rare:
            faults.append(self._fault(dice.uniform(1, self.length * 0.6), kind))
        return sorted(faults, key=lambda fault: fault.at)

    def _fault(self, at: float, kind: str) -> Fault:
        low, high = FAULTS[kind][1]
        return Fault(
            round(at, 3),
            kind,
            round(self.dice.uniform(low, high), 3),
            self.dice.randrange(1 << 16),
        )

    # -- clients -------------------------------------------------------------------------------

    def _crew(self, crews: list[str], few: bool) -> list[Script]:
        dice = self.dice
        if not crews:
            crews = ["agents"]
            crews += [k for k in ("visitors", "burst", "listeners") if dice.random() < 0.4]
            if dice.random() < 0.08 and not few:
                crews.append("crowd")
        scripts: list[Script] = []
        for kind in crews:
            if kind == "agents":
                shared = [self._session(), self._session()]
                for _ in range(dice.randint(2, 4)):
                    scripts.append(self._agent(len(scripts), dice.choice([*shared, ""])))
            elif kind == "listeners":
                session = self._session()
                scripts.append(self._listeners(len(scripts), session, starts=True))
                scripts.append(self._listeners(len(scripts), session, starts=False))
            else:
                make = {"visitors": self._visitors, "burst": self._burst, "crowd": self._crowd}
                scripts.append(make[kind](len(scripts)))
        return scripts

    def _begin(self, name: str, asynchronous: bool) -> Script:
        self.script = Script(name, asynchronous, [])
        return self.script

    def _agent(self, number: int, session: str) -> Script:
        """Does everything, in several lanes at once, and comes back under the same name."""
        dice = self.dice
        asynchronous = dice.random() < 0.6
        script = self._begin(f"{'async' if asynchronous else 'sync'}-{number}", asynchronous)
        session = session or self._session()
        for _ in range(dice.randint(3, 9)):
            lanes = [self._lane(dice.randint(2, 7)) for _ in range(dice.randint(1, 4))]
            lanes.append([["listen", round(dice.uniform(0.5, self.length / 3), 1)], ["drain"]])
            close = dice.random() < 0.5
            stand = Stand(session, lanes, dice.choice((1800.0, 1800.0, 1800.0, 0.5)), close)
            script.lives.append(Life([[stand]], vanishes=not close))
        return script

    def _visitors(self, number: int) -> Script:
        """Many who come, start something that outlives them, and go."""
        dice = self.dice
        script = self._begin(f"visitors-{number}", dice.random() < 0.5)
        for _ in range(2):
            rows = []
            for _ in range(3):
                row = []
                for _ in range(dice.randint(15, 40)):
                    spec = self._spec(dice.choice(("exit", "pattern")), mode="pipe", keep=True)
                    spec.seconds = 0
                    row.append(Stand(self._session(), [[["spawn", spec.handle]]]))
                rows.append(row)
            script.lives.append(Life(rows))
        return script

    def _burst(self, number: int) -> Script:
        """One program with many sessions, each of which starts many at the same moment."""
        dice = self.dice
        script = self._begin(f"burst-{number}", True)
        for _ in range(2):
            rows = []
            for _ in range(10):
                lanes: list[list[list[Any]]] = []
                for _ in range(20):
                    spec = self._spec("exit", mode="pipe")
                    lanes.append([["spawn", spec.handle], ["wait", spec.handle, 60]])
                rows.append([Stand(self._session(), lanes)])
            script.lives.append(Life(rows, vanishes=dice.random() < 0.2))
        return script

    def _listeners(self, number: int, session: str, *, starts: bool) -> Script:
        """Two programs that want to be told of the same ends, which come thick and fast."""
        script = self._begin(f"listeners-{number}", True)
        for _ in range(3):
            lanes: list[list[list[Any]]] = [[["listen", self.length]] for _ in range(2)]
            for _ in range(3 if starts else 0):
                specs = [self._spec("exit", mode="pipe", keep=True) for _ in range(60)]
                lanes.append([["spawn", spec.handle] for spec in specs])
            script.lives.append(Life([[Stand(session, lanes, close=False)]], vanishes=True))
        return script

    def _crowd(self, number: int) -> Script:
        """Three hundred that stay, whatever happens, until their sessions are closed."""
        script = self._begin(f"crowd-{number}", True)
        rows = []
        for _ in range(15):
            lanes: list[list[list[Any]]] = []
            for _ in range(20):
                spec = self._spec("sleep", mode="pipe")
                lanes.append([["spawn", spec.handle]])
            lanes.append([["pause", self.length], ["list"]])
            rows.append([Stand(self._session(), lanes)])
        script.lives.append(Life(rows))
        return script

    # -- steps ---------------------------------------------------------------------------------

    def _session(self) -> str:
        return "s-" + "".join(self.dice.choice(_LETTERS) for _ in range(6))

    def _handle(self) -> str:
        return "proc-" + "".join(self.dice.choice(_LETTERS) for _ in range(16))

    def _mode(self) -> str:
        weights = {"pipe": 12, "pty": 4, "tmux": 2}
        return self.dice.choices(self.modes, [weights[mode] for mode in self.modes])[0]

    def _spec(self, kind: str, mode: str | None = None, keep: bool = False) -> Spec:
        dice = self.dice
        spec = Spec(self._handle(), kind, mode or self._mode(), keep=keep)
        spec.code = dice.randrange(256) if kind != "exit" or dice.random() < 0.7 else 0
        spec.seconds = dice.choice((0, 0, 0, 0.02, 0.1, 0.4))
        spec.grace = dice.choice((0.2, 0.5, 1.0))
        if kind == "signal":
            spec.signal = dice.choice(_SIGNALS)
        elif kind == "pattern":
            spec.pieces = dice.choice((1, 1, 1, 3, 8))
            spec.size = dice.choice((1, 16, 1000, 4096, 30_000, 70_000, 200_000))
            if spec.mode == "pipe":
                spec.errors = dice.choice((0, 0, 0, 1, 5000))
            if dice.random() < 0.1:
                spec.pieces, spec.size, spec.log_cap = 10, 200_000, 1 << 20
        elif kind == "daemon":
            spec.seconds = dice.choice((0.05, 0.3, 1.0))
        self.script.specs[spec.handle] = spec
        return spec

    def _lane(self, stories: int) -> list[list[Any]]:
        dice, lane = self.dice, []
        told: list[str] = []
        for _ in range(stories):
            kinds = ("quick", "quick", "quick", "stop", "stop", "talk", "deadline", "group", "look")
            story = getattr(self, "_story_" + dice.choice(kinds))
            lane += story(told)
            if dice.random() < 0.5:
                lane.append(["pause", round(dice.uniform(0, 0.4), 3)])
        return lane

    def _reading(self, handle: str) -> list[list[Any]]:
        verbs = ("read", "tail", "search", "view", "refresh", "lines", "usage")
        return [[self.dice.choice(verbs), handle]]

    def _story_quick(self, told: list[str]) -> list[list[Any]]:
        """One that ends by itself."""
        dice = self.dice
        spec = self._spec(dice.choice(NATURAL), keep=dice.random() < 0.2)
        handle = spec.handle
        told.append(handle)
        steps: list[list[Any]] = [["spawn", handle]]
        if spec.kind == "pattern" and dice.random() < 0.4:
            steps.append(["follow", handle])
        if spec.kind == "pattern" and dice.random() < 0.15:
            steps.append(["clear", handle])
        if dice.random() < 0.15:
            steps.append(["watch", handle, dice.choice(("output=0[0-4]7$", "quiet=50ms"))])
        if dice.random() < 0.3:
            steps += self._reading(handle)
        if dice.random() < 0.5:
            steps.append(["wait", handle, 60])
        if dice.random() < 0.15:
            steps.append(["kill", handle, "TERM", 0.2])
        if dice.random() < 0.15:
            steps.append(["remove", handle])
        return steps

    def _story_stop(self, told: list[str]) -> list[list[Any]]:
        """One that stays until it is stopped, or until its session ends."""
        dice = self.dice
        spec = self._spec(dice.choice(("sleep", "handler", "deaf", "family", "daemon")))
        if spec.kind == "daemon":
            spec.seconds = 30.0
        handle = spec.handle
        told.append(handle)
        steps: list[list[Any]] = [["spawn", handle]]
        if dice.random() < 0.6:
            steps.append(["pause", round(dice.uniform(0, 0.5), 3)])
        if spec.mode != "pipe" and dice.random() < 0.4:
            steps.append([dice.choice(("screen", "resize")), handle])
        ends = ("kill", "kill", "force", "signal", "remove", "leave", "stop_all")
        end = dice.choice(ends)
        if end == "kill":
            steps.append(["kill", handle, "TERM", dice.choice((0.2, 0.5))])
        elif end == "force":
            steps.append(["kill", handle, "KILL", 0])
        elif end == "signal":
            steps += [["signal", handle, "KILL"], ["wait", handle, 60]]
        elif end == "remove":
            steps.append(["remove", handle])
        elif end == "stop_all":
            steps.append(["stop_all"])
        return steps

    def _story_talk(self, told: list[str]) -> list[list[Any]]:
        """One that is spoken to."""
        dice = self.dice
        spec = self._spec("echo")
        handle = spec.handle
        told.append(handle)
        steps: list[list[Any]] = [["spawn", handle], ["ready", handle]]
        for number in range(dice.randint(1, 5)):
            steps.append(["send", handle, f"line {number} of {handle[-6:]}"])
            if dice.random() < 0.3:
                steps.append(["pause", round(dice.uniform(0, 0.3), 3)])
        if dice.random() < 0.8:
            steps += [["eof", handle], ["wait", handle, 60]]
        elif dice.random() < 0.5:
            steps.append(["kill", handle, "TERM", 0.2])
        return steps

    def _story_deadline(self, told: list[str]) -> list[list[Any]]:
        """One that is stopped at its deadline, by nobody's doing."""
        spec = self._spec(self.dice.choice(("sleep", "deaf", "family")))
        spec.timeout = self.dice.choice((0.3, 1.0, 2.0))
        told.append(spec.handle)
        return [["spawn", spec.handle], ["wait", spec.handle, 60]]

    def _story_group(self, told: list[str]) -> list[list[Any]]:
        """Several that belong together."""
        dice = self.dice
        name = "g-" + "".join(dice.choice(_LETTERS) for _ in range(6))
        steps: list[list[Any]] = []
        for _ in range(dice.randint(2, 4)):
            spec = self._spec(dice.choice(("exit", "pattern", "sleep")))
            spec.group = name
            told.append(spec.handle)
            steps.append(["spawn", spec.handle])
        if dice.random() < 0.5:
            steps.append(["gather", name])
        steps.append(["stop_group", name])
        return steps

    def _story_look(self, told: list[str]) -> list[list[Any]]:
        """A look around, and at what was started earlier."""
        dice = self.dice
        steps: list[list[Any]] = [[dice.choice(("list", "drain", "status", "drain"))]]
        if told:
            steps += self._reading(dice.choice(told))
        if dice.random() < 0.1:
            steps.append(["restart"])
        return steps
