"""Starting and ending: how soon there is a handle, and how soon an end is known."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import holdfast

from ._floor import Child, Killer, wait_all
from ._measure import Row, interleave, median, now, ratio_row

if TYPE_CHECKING:
    from ._stage import Stage

BURST = 200


def start(stage: Stage) -> list[Row]:
    """`true`: the time to its handle and, in the same runs, to its noticed end."""
    with stage.client() as client:
        # As many finished processes as are kept: from here on each end also lets an old one go.
        for process in [client.spawn("true") for _ in range(100)]:
            process.wait()

        def ours() -> tuple[float, float]:
            started = now()
            process = client.spawn("true")
            handle = now()
            process.wait()
            return handle - started, now() - started

        def floor(path: str | None = None) -> tuple[float, float]:
            started = now()
            child = Child("true", path or stage.scratch.file())
            handle = now()
            child.wait()
            return handle - started, now() - started

        # Some file systems take long to make a file; without that the floor is this much lower.
        old = stage.scratch.file()
        sides = (ours, floor, lambda: floor(old))
        mine, bare, reusing = interleave(stage.pick(300, 100), *sides, warm=10)
    stage.scratch.empty()
    rows = []
    for which, (name, bound) in enumerate(
        (("time to the handle", 3), ("time to the noticed end of `true`", 2))
    ):
        took, least = ([sample[which] for sample in side] for side in (mine, bare))
        row = ratio_row(name, took, least, at_most=bound)
        lower = median([sample[which] for sample in reusing])
        row.note = f"{row.measured / lower:.2f}x where the floor's file exists already"
        row.detail["floor_with_existing_file"] = lower
        rows.append(row)
    return rows


def exit_to_waiter(stage: Stage) -> list[Row]:
    """From a SIGTERM sent by somebody else to the return of a wait that had long begun."""
    command = "exec sleep 1000"
    with stage.client() as client, Killer() as killer:

        def ours() -> float:
            process = client.spawn(command)
            assert process.record.pid is not None
            killer.aim(process.record.pid)
            process.wait()
            ended = now()
            return ended - killer.fired_at()

        def floor() -> float:
            child = Child(command, stage.scratch.file())
            killer.aim(child.pid)
            child.wait()
            ended = now()
            return ended - killer.fired_at()

        mine, bare = interleave(stage.pick(120, 40), ours, floor, warm=3)
    stage.scratch.empty()
    return [ratio_row("exit to waiter", mine, bare, at_most=2.5)]


def burst(stage: Stage) -> list[Row]:
    """200 processes as fast as they can be asked for, until the last end is known."""
    rounds = stage.pick(7, 2)

    def floor() -> float:
        return _burst_of_the_floor(stage)

    with stage.client(max_finished=BURST) as client:

        def ours() -> float:
            started = now()
            for process in [client.spawn("true") for _ in range(BURST)]:
                process.wait()
            return now() - started

        mine, bare = interleave(rounds, ours, floor, settle=0.05)
    rows = [ratio_row("burst of 200, one after another", mine, bare, at_most=2.5)]
    mine, bare = asyncio.run(_burst_at_once(stage, rounds))
    rows.append(ratio_row("burst of 200, all at once (asyncio)", mine, bare, at_most=2.5))
    return rows


async def _burst_at_once(stage: Stage, rounds: int) -> tuple[list[float], list[float]]:
    mine: list[float] = []
    bare: list[float] = []
    with stage.limits(max_finished=BURST):
        async with holdfast.connect(home=stage.home) as client:
            for turn in range(-1, rounds):
                await asyncio.sleep(0.05)
                started = now()
                processes = await asyncio.gather(*(client.spawn("true") for _ in range(BURST)))
                await asyncio.gather(*(process.wait() for process in processes))
                ours = now() - started
                await asyncio.sleep(0.05)
                floor = _burst_of_the_floor(stage)
                if turn >= 0:
                    mine.append(ours)
                    bare.append(floor)
    return mine, bare


def _burst_of_the_floor(stage: Stage) -> float:
    started = now()
    wait_all([Child("true", stage.scratch.file()) for _ in range(BURST)])
    took = now() - started
    stage.scratch.empty()
    return took
