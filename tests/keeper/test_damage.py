"""Every kind of file in the home, damaged in every way, while processes run and across restarts.

Only what the file was of is affected. What runs can be listed and stopped, the others' codes and
output are exact, no half of the keeper fails, and keeper.log has a word and no traceback.

The cases are drawn from a seed: HOLDFAST_DAMAGE_SEED changes it. With HOLDFAST_DAMAGE_CASES every
kind of file meets every restart, so many times each.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import HoldfastError, StoreError, SyncClient
from holdfast.client.connect import open_client
from holdfast.client.link import run
from holdfast.core.home import Home
from holdfast.core.index import tag_of
from holdfast.linux.kernel import all_processes, mark_of, stat
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Damage = Callable[[Path, random.Random], None]

SEED = int(os.environ.get("HOLDFAST_DAMAGE_SEED", "12"))
CASES = int(os.environ.get("HOLDFAST_DAMAGE_CASES", "0"))
SOMEBODY = 54321  # a user that nobody is
WORKERS = 4  # that may be used up by one piece of damage, besides those that are killed on purpose

# The files of a home: of its own, of a process that runs, of one that has ended, of a session.
FILES = {
    "lock": "keeper.lock",
    "socket": "keeper.sock",
    "journal": "keeper.log",
    "config": "config.toml",
    "record": "processes/{running}.meta.json",
    "log": "processes/{running}.log",
    "stderr log": "processes/{running}.err.log",
    "fifo": "processes/{running}.out",
    "stderr fifo": "processes/{running}.err.out",
    "head": "processes/{running}.head",
    "exit note": "processes/{running}.exit",
    "old record": "processes/{ended}.meta.json",
    "old log": "processes/{ended}.log",
    "old head": "processes/{ended}.head",
    "spare record": "processes/spare.record",
    "spare fifo": "processes/spare.fifo",
    "processes": "processes",
    "sessions": "sessions",
    "index of what runs": "active",
    "index of what ended": "ended",
    "entry": "active/{running}.{tag}",
    "session": "sessions/test",
    "outbox": "sessions/test/outbox.jsonl",
    "lease": "sessions/test/lease.json",
    "cursor": "sessions/test/cursors/default/{running}.stdout",
    "cursors": "sessions/test/cursors",
    "gathering": "sessions/test/gathered/{gathering}.json",
    "gatherings": "sessions/test/gathered",
    "agent": "sessions/test/agents/reviewer.json",
    "agents": "sessions/test/agents",
    "adoptions": "sessions/test/adopted.json",
}


WIDE = {"processes", "sessions"}  # of everybody

# -- ways to damage a file -------------------------------------------------------------------------


def clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def written(path: Path, data: bytes) -> None:
    """In its place, where there is a file; the keeper has that open, perhaps."""
    if path.is_symlink() or not path.is_file():
        clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(0o600)


def content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b'{"version":1}'


def truncated(path: Path, chance: random.Random) -> None:
    data = content(path)
    written(path, data[: chance.randrange(len(data) + 1)])


def emptied(path: Path, chance: random.Random) -> None:
    written(path, b"")


def random_bytes(path: Path, chance: random.Random) -> None:
    written(path, chance.randbytes(chance.choice((1, 28, 100, 4096, 70_000))))


def flipped(path: Path, chance: random.Random) -> None:
    data = bytearray(content(path) or b"x")
    for _ in range(chance.randrange(1, 5)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    written(path, bytes(data))


def nested(path: Path, chance: random.Random) -> None:
    opening, closing = chance.choice((("[", "]"), ('{"a":', "}")))
    written(path, (opening * 100_000 + "1" + closing * 100_000).encode())


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 63,
    1 << 200,
    1e300,
    float("inf"),
    float("nan"),
    "",
    "x" * 10_000,
    "\0",
    "\ud800",
    [],
    [None],
    [[]],
    {},
    {"x": None},
]


def wrong_field(path: Path, chance: random.Random) -> None:
    """One field, at any depth, is something else; the rest is as it was."""
    lines = content(path).splitlines() or [b"{}"]
    number = chance.randrange(len(lines))
    try:
        table = json.loads(lines[number])
    except ValueError:
        table = {}
    if isinstance(table, dict):
        table.pop("check", None)  # a checksum would tell
    place = table
    while isinstance(place, (dict, list)) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = chance.choice(keys)
        if not isinstance(place[key], (dict, list)) or not place[key] or chance.random() < 0.5:
            place[key] = chance.choice(ODD)
            break
        place = place[key]
    else:
        table = chance.choice(ODD)
    lines[number] = json.dumps(table).encode()
    written(path, b"\n".join(lines) + b"\n")


def without_field(path: Path, chance: random.Random) -> None:
    try:
        table = json.loads(content(path))
        del table[chance.choice(list(table))]
        table.pop("check", None)
    except (ValueError, LookupError, TypeError):
        table = {}
    written(path, json.dumps(table).encode())


def deleted(path: Path, chance: random.Random) -> None:
    clear(path)


def as_directory(path: Path, chance: random.Random) -> None:
    clear(path)
    path.mkdir(parents=True)
    if chance.random() < 0.5:
        (path / "something").write_text("of somebody's")


def as_file(path: Path, chance: random.Random) -> None:
    clear(path)
    written(path, b"nothing")


def as_link(path: Path, chance: random.Random) -> None:
    clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aim = chance.choice(("/dev/zero", "/nowhere/at/all", str(path), "/dev", "elsewhere"))
    (path.parent / "elsewhere").touch()
    path.symlink_to(aim)


def as_fifo(path: Path, chance: random.Random) -> None:
    clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def as_socket(path: Path, chance: random.Random) -> None:
    clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    directory = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)


def read_only(path: Path, chance: random.Random) -> None:
    if not path.exists():
        written(path, b"{}")
    path.chmod(chance.choice((0o400, 0o500, 0o000)))


def of_somebody(path: Path, chance: random.Random) -> None:
    if not path.exists():
        written(path, b"{}")
    os.chown(path, SOMEBODY, SOMEBODY)


WAYS: list[Damage] = [
    truncated,
    emptied,
    random_bytes,
    flipped,
    nested,
    wrong_field,
    wrong_field,
    wrong_field,
    without_field,
    deleted,
    as_directory,
    as_file,
    as_link,
    as_fifo,
    as_socket,
    read_only,
    *([of_somebody] if os.geteuid() == 0 else []),
]


def done_to(path: Path, way: Damage, seed: int) -> None:
    """The keeper may make a file again in the middle of this."""
    for _ in range(20):
        try:
            way(path, random.Random(seed))
            return
        except OSError as error:
            last = error
    raise last


# -- restarts --------------------------------------------------------------------------------------


def stopped(hf: SyncClient, *halves: str) -> list[int]:
    """Their pids, stopped: what is damaged meanwhile neither of them sees happen."""
    status = hf.keeper_status()
    pids = [status[half] for half in halves]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def nothing(hf: SyncClient, damage: Callable[[], None]) -> None:
    damage()


def new_worker(hf: SyncClient, damage: Callable[[], None]) -> None:
    guard, worker = stopped(hf, "guard", "worker")
    damage()
    os.kill(worker, signal.SIGKILL)
    os.kill(guard, signal.SIGCONT)


def new_guard(hf: SyncClient, damage: Callable[[], None]) -> None:
    guard, worker = stopped(hf, "guard", "worker")
    damage()
    os.kill(guard, signal.SIGKILL)
    os.kill(worker, signal.SIGCONT)


def both_anew(hf: SyncClient, damage: Callable[[], None]) -> None:
    pids = stopped(hf, "guard", "worker")
    damage()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all((found := stat(pid)) is None or found.state in "ZX" for pid in pids))


RESTARTS = [nothing, new_worker, new_guard, both_anew]


# -- the home --------------------------------------------------------------------------------------


class Scene:
    """A session with processes of every kind, and one of another session beside it."""

    def __init__(self, hf: SyncClient, other: SyncClient) -> None:
        self.hf, self.other = hf, other
        self.ended = hf.spawn("echo over; exit 3")
        self.ended.wait(30)
        self.running = hf.spawn(
            "echo out; echo err >&2; trap 'exit 5' TERM; while :; do sleep 0.02; done",
            stderr="separate",
            stdin=True,
            label="victim",
            grace=1,
            timeout=1000,
            watch="output=never",
        )
        self.member = hf.spawn("sleep 1000", group="pair", grace=0)
        self.gate = Path(hf.home.path + ".gate")
        self.bystander = other.spawn(
            f"echo hi; until test -e {self.gate}; do sleep 0.02; done; echo bye; exit 4"
        )
        self.witness = other.spawn("exit 6")
        self.witness.wait(30)
        wait_until(lambda: self.running.tail().text == "out\n")
        wait_until(lambda: self.bystander.tail().text == "hi\n")
        self.running.read()
        self.gathering = "gather-" + "a" * 16
        asked = {"group": "pair", "name": self.gathering}
        run(hf._client._link.call("gather", asked))
        hf.register_agent("reviewer", "reviews")
        home = Path(hf.home.path)
        (home / "config.toml").write_text("grace = 1\n")
        adopted = {"old": {"token": "x", "handles": [], "done": True}}
        (home / "sessions/test/adopted.json").write_text(json.dumps(adopted))
        self.began = self.workers()

    def path(self, kind: str) -> Path:
        names = {
            "running": self.running.handle,
            "ended": self.ended.handle,
            "gathering": self.gathering,
            "tag": tag_of("test"),
        }
        return Path(self.hf.home.path, FILES[kind].format(**names))

    def workers(self) -> int:
        """How many there were so far, by what each says when it begins or fails."""
        return self.journal().count("the worker failed")

    def journal(self) -> str:
        found = ""
        for path in Path(self.hf.home.path).glob("keeper.log*"):
            if path.is_file() and not path.is_symlink():
                found += path.read_bytes().decode("utf-8", "replace")
        return found

    def others(self) -> set[str]:
        return {self.bystander.handle, self.witness.handle}


def living(handle: str) -> list[int]:
    return [
        found.pid
        for found in all_processes()
        if found.state not in "ZX" and mark_of(found.pid) == handle
    ]


def opened(home: Home) -> SyncClient:
    """A person's client; while something is in the place of a directory, there can be none."""
    found: list[SyncClient] = []

    def tried() -> bool:
        try:
            found.append(open_client(home, None))
        except StoreError:
            return False
        return True

    wait_until(tried)
    return found[0]


def check(scene: Scene, kind: str, lost: set[str]) -> None:
    """Whatever was damaged, all of this holds; of what nobody can know any more, less."""
    running, member = scene.running, scene.member
    known = {running.handle, member.handle, scene.bystander.handle} - lost
    with closing(opened(scene.hf.home)) as person:

        def listed() -> bool:
            try:
                found = {each.handle for each in person.list() if each.record.running}
            except HoldfastError as error:
                print(error)
                return False
            return known <= found

        wait_until(listed, what="what runs is listed")
        # Somebody else's is as it was: output, code, and the event for its session.
        if kind not in WIDE:
            wait_until(  # an index is made again within a moment
                lambda: {each.handle for each in scene.other.list()} == scene.others(),
                what="somebody else's are listed",
            )
        scene.gate.touch()
        if scene.bystander.handle in known:
            beside = person.get(scene.bystander.handle)
            assert beside.wait(30).code == 4
        if kind not in WIDE:
            assert beside.tail().text == "hi\nbye\n"
            told = scene.bystander.handle
            wait_until(lambda: [event.handle for event in scene.other.events()] == [told])
        # What is damaged can be stopped, by its handle and with its session.
        if running.handle in known:
            receipt = person.get(running.handle).kill()
            assert receipt.record.status in ("killed", "failed", "completed", "lost")
            assert living(running.handle) == []
        assert known & {member.handle} <= {each.record.handle for each in person.stop_all()}
        # A new one is started as ever; but settings that cannot be read are for somebody to mend.
        if kind == "config":
            clear(scene.path(kind))
    with closing(open_client(scene.hf.home, None)) as person:
        new = person.spawn("echo new; exit 8")
        assert new.wait(30).code == 8
        if "log" not in kind and kind not in ("processes", "head"):
            assert new.tail().text == "new\n"
    for handle in known:
        wait_until(lambda: living(handle) == [])  # noqa: B023
    journal = scene.journal()
    assert "Traceback" not in journal, journal[-3000:]
    assert scene.workers() - scene.began <= WORKERS


def sensible(kind: str, way: str) -> bool:
    """A directory can be deleted, replaced, closed or given away, not written to."""
    path = FILES[kind]
    directory = "." not in path.rsplit("/", 1)[-1]
    return not directory or way in (
        "deleted",
        "as_file",
        "as_link",
        "as_fifo",
        "as_socket",
        "read_only",
        "of_somebody",
    )


Restart = Callable[[SyncClient, Callable[[], None]], None]


@pytest.mark.long
@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_costs_nobody_else_anything(home: str, kind: str) -> None:
    """In a way and before a restart that are drawn; or in many, if they are asked for."""
    chance = random.Random(f"{SEED} {kind}")
    ways = [way for way in WAYS if sensible(kind, way.__name__)]
    for restart in RESTARTS if CASES else [chance.choice(RESTARTS)]:
        for way in chance.sample(ways, min(CASES or 1, len(ways))):
            seed = chance.randrange(1 << 30)
            print(f"{kind}: {way.__name__}, then {restart.__name__}; seed {seed}")
            one_case(home, kind, way, restart, seed)


def field_of_record(**odd: Any) -> Damage:
    def damage(path: Path, chance: random.Random) -> None:
        table = json.loads(path.read_bytes())
        del table["check"]
        written(path, json.dumps(table | odd).encode())

    return damage


# Each of these kept every worker from its work, one after the other.
KNOWN: dict[str, tuple[str, Damage]] = {
    "a directory as exit note": ("exit note", as_directory),
    "a fifo as exit note": ("exit note", as_fifo),
    "a file as fifo": ("fifo", as_file),
    "a directory as fifo": ("fifo", as_directory),
    "somebody's outbox": ("outbox", of_somebody),
    "a deep lease": ("lease", nested),
    "a deep gathering": ("gathering", nested),
    "a fifo as record": ("record", as_fifo),
    "a large pid": ("record", field_of_record(pid=1 << 63)),
    "no runner": ("record", field_of_record(runner={})),
    "no group": ("record", field_of_record(cgroups=[None])),
}


@pytest.mark.parametrize("restart", [new_worker, both_anew], ids=lambda each: each.__name__)
@pytest.mark.parametrize("known", KNOWN)
def test_what_once_kept_every_worker_from_its_work(home: str, known: str, restart: Restart) -> None:
    """It is set aside with a word, and the rest is taken up."""
    kind, way = KNOWN[known]
    if way is of_somebody and os.geteuid() != 0:
        pytest.skip("needs root")
    one_case(home, kind, way, restart, SEED)


def one_case(
    home: str,
    kind: str,
    way: Damage,
    restart: Restart,
    seed: int,
) -> None:
    hf = open_client(Home(home).ensure(), "test")
    other = open_client(Home(home), "other")
    try:
        scene = Scene(hf, other)
        path = scene.path(kind)
        restart(hf, lambda: done_to(path, way, seed))
        lost: set[str] = set()
        if restart is both_anew and kind == "record" and way is deleted:
            lost = {scene.running.handle}
        elif restart is both_anew and kind in WIDE and kind == "processes":
            lost = {scene.running.handle, scene.member.handle, scene.bystander.handle}
        if restart is both_anew and kind in WIDE and way is not deleted:
            with pytest.raises(StoreError, match="move it away"):
                hf.spawn("exit 0")  # there is no keeper, and it is not for us to decide
            clear(path)
        check(scene, kind, lost)
        for handle in lost:
            for pid in living(handle):
                os.kill(pid, signal.SIGKILL)
    finally:
        hf.close()
        other.close()
        Path(home + ".gate").unlink(missing_ok=True)
        end(home)


def end(home: str) -> None:
    """End the keeper as well as this can be done, and begin the next case with nothing."""
    with closing(open_client(Home(home), None)) as person:
        guard = person.keeper_status().get("guard", 0)
        person.keeper_stop(kill=True)
    wait_until(lambda: (found := stat(guard)) is None or found.state in "ZX")
    shutil.rmtree(home)
