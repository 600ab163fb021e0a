"""Much output: how fast it flows, what it costs the keeper meanwhile, and that the cap holds."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from ._floor import Child, Echo, memory, wait_all
from ._measure import Row, interleave, now, percentile, speed_row, value_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import SyncClient, SyncProcess

    from ._stage import Stage

MIB = 1 << 20
GIB = 1 << 30


def one_process(stage: Stage) -> list[Row]:
    """1 GiB through one process: as an ordinary program writes, and as fast as one can."""
    rows = _flow(stage, "1 GiB through one process", [f"head -c {GIB} /dev/zero"], GIB)
    if not stage.quick:
        fastest = f"dd if=/dev/zero bs=64k count={GIB >> 16} 2>/dev/null"
        rows += _flow(stage, "1 GiB in 64 KiB writes", [fastest], GIB, observed=False)
    return rows


def many_processes(stage: Stage) -> list[Row]:
    """20 x 50 MiB at the same time."""
    size = 50 * MIB
    return _flow(stage, "20 x 50 MiB", [f"head -c {size} /dev/zero"] * 20, 20 * size)


def _flow(
    stage: Stage, name: str, commands: list[str], size: int, *, observed: bool = True
) -> list[Row]:
    each = size // len(commands)
    with stage.client() as client, stage.client() as other:
        written: list[SyncProcess] = []

        def run() -> float:
            started = now()
            written[:] = [client.spawn(command, log_cap=2 * GIB) for command in commands]
            for process in written:
                process.wait()
            return now() - started

        def remove() -> None:
            for process in written:
                if os.path.getsize(process.record.log) != each or process.read_at(0, 1).gap:
                    raise RuntimeError(f"{process.handle} wrote {each} bytes; not all were kept")
                process.remove()

        def ours() -> float:
            took = run()
            remove()
            return took

        def floor(suffix: str = "") -> float:
            started = now()
            wait_all(
                Child(command + suffix.format(stage.scratch.file()), stage.scratch.file())
                for command in commands
            )
            took = now() - started
            stage.scratch.empty()
            return took

        def cat() -> float:
            return floor(" | cat > {}")

        mine, bare, piped = interleave(stage.pick(5, 2), ours, floor, cat, settle=0.02)
        rows = [
            speed_row(f"{name}, to a file as stdout", size, mine, bare, at_least=0.5),
            speed_row(f"{name}, to `| cat > file`", size, mine, piped, at_least=0.8),
        ]
        if observed:
            rows += _meanwhile(stage, name, other, run, remove, floor)
    return rows


def _meanwhile(
    stage: Stage,
    name: str,
    other: SyncClient,
    run: Callable[[], float],
    remove: Callable[[], None],
    floor: Callable[[], float],
) -> list[Row]:
    """The same once more, looked at: pings would slow the runs that are timed."""
    pids = stage.keeper(other)
    grown: list[int] = []
    flowing: list[float] = []
    removing: list[float] = []
    echoes: list[float] = []

    before = memory(pids)["Pss"]

    def ask() -> float:
        started = now()
        other.keeper_status()
        return now() - started

    def weigh() -> None:
        grown.append(memory(pids)["Pss"] - before)

    for _ in range(stage.pick(2, 1)):
        _during(run, [partial(_append, flowing, ask)] * 8 + [weigh])
        _during(remove, [partial(_append, removing, ask)])
        with Echo() as echo:
            _during(floor, [partial(_append, echoes, echo.ask)])
    return [
        value_row(
            f"{name}: answers to others meanwhile, worst",
            "s",
            max(flowing),
            at_most=0.020,
            floor=max(echoes),
            samples=len(flowing),
            note=f"p50 {percentile(flowing, 0.5) * 1e3:.2f} ms, p99 "
            f"{percentile(flowing, 0.99) * 1e3:.2f} ms; floor: a bare pipe's echo beside the floor",
            p50=percentile(flowing, 0.5),
            p99=percentile(flowing, 0.99),
        ),
        value_row(
            f"{name}: answers to others as it is removed, worst",
            "s",
            max(removing),
            at_most=None,
            samples=len(removing),
        ),
        value_row(
            f"{name}: growth of the keeper's memory",
            "B",
            max(grown),
            at_most=MIB,
            samples=len(grown),
            note="PSS of guard and worker",
        ),
    ]


def _append(samples: list[float], take: Callable[[], float]) -> None:
    samples.append(take())


def _during(
    work: Callable[[], object], looks: list[Callable[[], None]], every: float = 0.003
) -> None:
    """Do `work` in a thread and take the looks in turn until it is done."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    turn = 0
    while thread.is_alive():
        looks[turn % len(looks)]()
        turn += 1
        time.sleep(every)
    thread.join()
    if failure:
        raise failure[0]


def cap(stage: Stage) -> list[Row]:
    """The disk a log takes while its process writes as fast as it can."""
    cap = 256 * MIB
    size = stage.pick(6, 2) * GIB
    taken: list[int] = []
    with stage.client() as client:
        process = client.spawn(
            f"dd if=/dev/zero bs=64k count={size >> 16} 2>/dev/null", log_cap=cap
        )
        paths = (process.record.log, process.record.log + ".old")

        def look() -> None:
            total = 0
            for path in paths:
                try:
                    total += os.stat(path).st_blocks * 512
                except FileNotFoundError:
                    continue
            taken.append(total)

        started = now()
        _during(process.wait, [look], every=0.0005)
        took = now() - started
        look()
        kept = taken[-1]
        process.remove()
    return [
        value_row(
            "disk above the cap of 256 MiB, worst",
            "B",
            max(taken) - cap,
            at_most=64 * MIB,
            samples=len(taken),
            note=f"{size >> 30} GiB at {size / took / GIB:.2f} GiB/s; {kept >> 20} MiB kept",
            speed=size / took,
            kept=kept,
        )
    ]
