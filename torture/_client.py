"""A client of the torture: python -m torture._client ROOT SCRIPT LIFE CURFEW.

Runs one life of a script, with asyncio or with threads, and writes down each step before and after.
After the curfew (of the monotonic clock) no new step is begun.
"""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import inspect
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING

from holdfast import HoldfastError, NotFound, connect

from ._journal import Journal
from ._plan import Script, Spec, Stand

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

CHILD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_child.sh")


def command_of(spec: Spec, root: str) -> list[str]:
    """The command line of a process."""
    arguments: dict[str, list[object]] = {
        "exit": [spec.code, spec.seconds],
        "pattern": [
            spec.code,
            root + "/pattern",
            spec.pieces,
            spec.size,
            spec.seconds,
            spec.errors,
        ],
        "signal": [spec.signal, spec.seconds],
        "handler": [spec.code],
        "echo": [spec.code],
        "daemon": [spec.code, spec.seconds],
    }
    words = [str(word) for word in arguments.get(spec.kind, [])]
    return ["sh", CHILD, f"{root}/witness/{spec.handle}", spec.kind, *words]


def options_of(spec: Spec) -> dict[str, Any]:
    options: dict[str, Any] = {
        "handle": spec.handle,
        "timeout": spec.timeout,
        "grace": spec.grace,
        "keep": spec.keep,
        "group": spec.group,
        "stdin": spec.stdin and spec.mode == "pipe",
        "tty": spec.mode == "pty",
        "tmux": spec.mode == "tmux",
        "cwd": "/",
    }
    if spec.errors:
        options["stderr"] = "separate"
    if spec.log_cap is not None:
        options["log_cap"] = spec.log_cap
    return options


async def got(value: Any) -> Any:
    """The result of a call of either kind of client."""
    return await value if inspect.isawaitable(value) else value


class Actor:
    """One stand of a life, over either kind of client."""

    def __init__(self, life: LifeRun, stand: Stand, hf: Any) -> None:
        self.life = life
        self.stand = stand
        self.hf = hf
        self.processes: dict[str, Any] = {}

    async def lane(self, steps: list[list[Any]]) -> None:
        for step in steps:
            if self.life.over():
                return
            await self.life.note(self.stand, step, self.perform(step))

    async def rest(self, seconds: float) -> None:
        if self.life.script.asyncio:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)

    async def perform(self, step: list[Any]) -> Any:
        verb, *arguments = step
        method = getattr(self, "do_" + verb, None)
        if method is not None:
            return await method(*arguments)
        handle, *rest = arguments
        process = await self.find(handle)
        return await getattr(self, "on_" + verb)(process, *rest)

    async def find(self, handle: str) -> Any:
        process = self.processes.get(handle)
        return await got(self.hf.get(handle)) if process is None else process

    # -- the session ---------------------------------------------------------------------------

    async def do_spawn(self, handle: str) -> Any:
        spec = self.life.script.specs[handle]
        process = await got(self.hf.spawn(command_of(spec, self.life.root), **options_of(spec)))
        self.processes[handle] = process
        return {"pid": process.record.pid}

    async def do_pause(self, seconds: float) -> None:
        until = min(time.monotonic() + seconds, self.life.curfew)
        await self.rest(max(0.0, until - time.monotonic()))

    async def do_list(self) -> Any:
        return {"n": len(await got(self.hf.list()))}

    async def do_status(self) -> Any:
        return {"running": (await got(self.hf.keeper_status()))["running"]}

    async def do_restart(self) -> None:
        await got(self.hf.keeper_restart())

    async def do_stop_all(self) -> Any:
        receipts = await got(self.hf.stop_all(grace=0.5))
        return {"receipts": [_receipt(receipt) for receipt in receipts]}

    async def do_stop_group(self, name: str) -> Any:
        receipts = await got(self.hf.group(name).stop(grace=0.5))
        return {"receipts": [_receipt(receipt) for receipt in receipts]}

    async def do_gather(self, name: str) -> Any:
        try:
            return {"handles": await got(self.hf.group(name).gather())}
        except NotFound:
            return {"handles": []}

    async def do_drain(self) -> Any:
        """Claim what there is to be told."""
        events = self.hf.events()
        found = [event async for event in events] if self.life.script.asyncio else list(events)
        return {"events": [await self.claim(event) for event in found]}

    async def do_listen(self, seconds: float) -> Any:
        """Claim what comes, for a while."""
        until = min(time.monotonic() + seconds, self.life.curfew)
        if not self.life.script.asyncio:
            heard = []
            while time.monotonic() < until:
                heard += (await self.do_drain())["events"]
                time.sleep(0.1)
            return {"events": len(heard)}
        count = 0
        events = self.hf.events(follow=True)
        try:
            while True:
                following = asyncio.ensure_future(events.__anext__())
                left = until - time.monotonic()
                done, _ = await asyncio.wait([following], timeout=max(0.0, left))
                if not done:
                    following.cancel()
                    await asyncio.wait([following])
                    return {"events": count}
                await self.claim(following.result())
                count += 1
        finally:
            await events.aclose()

    async def claim(self, event: Any) -> str:
        """Use an event as agents do: claimed first, so that nobody else uses it too.

        Who dies before it has acknowledged it has told nobody, and another one will.
        """
        about = {
            "status": event.status,
            "code": event.exit_code,
            "signal": event.signal,
            "members": [member.handle for member in event.members],
        }
        number = self.life.next_number()
        self.life.journal.write(claim=number, event=event.id, session=event.session, **about)
        first = await got(self.hf.claim(event))
        if first:
            await got(self.hf.acknowledge(event))
        self.life.journal.write(claim=number, event=event.id, claimed=bool(first))
        return str(event.id)

    # -- a process -----------------------------------------------------------------------------

    async def on_wait(self, process: Any, timeout: float) -> Any:
        end = await got(process.wait(timeout))
        return {"status": end.status, "code": end.code, "signal": end.signal}

    async def on_kill(self, process: Any, name: str, grace: float) -> Any:
        return _receipt(await got(process.kill(signal=name, grace=grace)))

    async def on_signal(self, process: Any, name: str) -> None:
        await got(process.signal(name))

    async def on_ready(self, process: Any) -> Any:
        until = time.monotonic() + 20
        while time.monotonic() < until and not self.life.over():
            if "ready" in (await got(process.read_at(0))).text:
                return {"ready": True}
            if not (await got(process.refresh())).running:
                break
            await self.rest(0.02)
        return {"ready": False}

    async def on_send(self, process: Any, text: str) -> Any:
        return {"written": await got(process.send(text + "\n"))}

    async def on_eof(self, process: Any) -> None:
        await got(process.send("", eof=True))

    async def on_watch(self, process: Any, condition: str) -> Any:
        return {"watch": await got(process.watch(condition))}

    async def on_clear(self, process: Any) -> None:
        await got(process.clear())

    async def on_remove(self, process: Any) -> None:
        await got(process.remove())

    async def on_refresh(self, process: Any) -> Any:
        return {"status": (await got(process.refresh())).status}

    async def on_read(self, process: Any) -> Any:
        return {"n": len((await got(process.read())).data)}

    async def on_tail(self, process: Any) -> Any:
        return {"n": len((await got(process.tail(5))).data)}

    async def on_lines(self, process: Any) -> Any:
        return {"n": len((await got(process.lines(0, 10))).data)}

    async def on_search(self, process: Any) -> Any:
        return {"n": (await got(process.search("0+7$"))).count}

    async def on_view(self, process: Any) -> Any:
        return {"n": len((await got(process.view(budget=2000))).text)}

    async def on_usage(self, process: Any) -> None:
        await got(process.usage())

    async def on_screen(self, process: Any) -> Any:
        return {"n": len((await got(process.screen())).text)}

    async def on_resize(self, process: Any) -> None:
        await got(process.resize(100, 30))

    async def on_follow(self, process: Any) -> Any:
        """All of its output, as it comes: a reader gets every byte, or is told what is gone."""
        digest, length, gap = hashlib.sha256(), 0, 0

        def take(output: Any) -> None:
            nonlocal length, gap
            digest.update(output.data)
            length += len(output.data)
            gap += output.gap

        outputs = process.follow(offset=0)
        if self.life.script.asyncio:
            async for output in outputs:
                take(output)
        else:
            for output in outputs:
                take(output)
        return {"length": length, "gap": gap, "sha256": digest.hexdigest()}


def _receipt(receipt: Any) -> dict[str, Any]:
    return {
        "handle": receipt.record.handle,
        "status": receipt.record.status,
        "code": receipt.record.exit_code,
        "signal": receipt.record.signal,
        "survivors": [
            [entry["pid"], entry.get("name"), entry.get("survived")]
            for entry in receipt.processes
            if entry["pid"] in receipt.survivors
        ]
        or receipt.survivors,
    }


class LifeRun:
    def __init__(self, root: str, script: Script, life: int, curfew: float) -> None:
        self.root = root
        self.script = script
        self.life = script.lives[life]
        self.curfew = curfew
        self.journal = Journal(f"{root}/journals/{script.name}.{life}.jsonl")
        self._steps = 0
        self._lock = threading.Lock()

    def over(self) -> bool:
        return time.monotonic() >= self.curfew

    def next_number(self) -> int:
        with self._lock:
            self._steps += 1
            return self._steps

    async def note(self, stand: Stand, step: list[Any], act: Coroutine[Any, Any, Any]) -> Any:
        """Do something, with an entry before and one after."""
        number = self.next_number()
        self.journal.write(n=number, session=stand.session, do=step)
        try:
            result = await act
        except HoldfastError as error:
            self.journal.write(n=number, error=error.code, message=str(error)[:300])
            return error
        except (Exception, asyncio.CancelledError):
            self.journal.write(n=number, crash=traceback.format_exc()[-3000:])
            return None
        self.journal.write(n=number, ok=result if isinstance(result, dict) else {})
        return result

    # -- asyncio -------------------------------------------------------------------------------

    def run(self) -> None:
        self.journal.write(life="begins", pid=os.getpid(), vanishes=self.life.vanishes)
        if self.script.asyncio:
            asyncio.run(self._run_asyncio())
        else:
            self._run_threads()
        if self.life.vanishes:
            self.journal.write(life="vanishes")
            os._exit(0)
        self.journal.write(life="ends")

    async def _run_asyncio(self) -> None:
        await asyncio.gather(*(self._row_asyncio(row) for row in self.life.rows))
        if self.life.vanishes:  # with its connections
            self.journal.write(life="vanishes")
            os._exit(0)

    async def _row_asyncio(self, row: list[Stand]) -> None:
        for stand in row:
            if self.over():
                return
            connector = connect(
                stand.session, home=self.root + "/disk/home", lease_grace=stand.grace
            )
            hf = await self.note(stand, ["connect"], _entered(connector))
            if hf is None or isinstance(hf, HoldfastError):
                continue
            actor = Actor(self, stand, hf)
            await asyncio.gather(*(actor.lane(lane) for lane in stand.lanes))
            if stand.close and not self.life.vanishes:
                leave = connector.__aexit__(None, None, None)
                await self.note(stand, ["close"], leave)

    # -- threads -------------------------------------------------------------------------------

    def _run_threads(self) -> None:
        threads = [
            threading.Thread(target=self._row_threads, args=(row,)) for row in self.life.rows
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _row_threads(self, row: list[Stand]) -> None:
        for stand in row:
            if self.over():
                return
            connector = connect(
                stand.session, home=self.root + "/disk/home", lease_grace=stand.grace
            )

            async def enter(connector: Any = connector) -> Any:
                return connector.__enter__()

            async def leave(connector: Any = connector) -> Any:
                return connector.__exit__(None, None, None)

            hf = drive(self.note(stand, ["connect"], enter()))
            if hf is None or isinstance(hf, HoldfastError):
                continue
            actor = Actor(self, stand, hf)
            lanes = [
                threading.Thread(target=drive, args=(actor.lane(lane),)) for lane in stand.lanes
            ]
            for thread in lanes:
                thread.start()
            for thread in lanes:
                thread.join()
            if stand.close and not self.life.vanishes:
                drive(self.note(stand, ["close"], leave()))


async def _entered(connector: Any) -> Any:
    return await connector.__aenter__()


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that awaits nothing which blocks."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value
    raise RuntimeError("it waits for something")


def main(argv: list[str]) -> int:
    root, path, life, curfew = argv
    with open(path) as file:
        data = json.load(file)
    if data["descriptors"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (data["descriptors"],) * 2)
    script = Script.from_json(data["script"])
    faulthandler.register(signal.SIGUSR2, open(f"{root}/journals/{script.name}.stacks", "a"))
    LifeRun(root, script, int(life), float(curfew)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
