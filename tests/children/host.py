"""A program that holds a session: host.py WAY SESSION GRACE THEN [COMMAND...].

It starts a process for each command (kept ones begin with "keep:"), prints their handles and
"ready", and then does THEN:

    inside      stays in the block, idle            waiting    stays in the block, in a wait
    stubborn    the same, but shrugs off a KeyboardInterrupt once
    leaves      leaves the block                    fails      an exception leaves the block
    ends        ends without ever leaving it        dies       an exception outside any block
    forks       forks a child that does nothing     daemon     goes on in a forked child
    strays      forks a child that leaves the block
    handles     has a SIGTERM handler of its own, set before the session was opened
"""

import asyncio
import contextlib
import os
import signal
import sys
import time

import holdfast

way, session, grace, then, *commands = sys.argv[1:]


def say(*words: object) -> None:
    print(*words, flush=True)


if then == "handles":
    signal.signal(signal.SIGTERM, lambda number, frame: say("mine"))

connector = holdfast.connect(session=session, lease_grace=grace)


def options(command: str) -> dict[str, object]:
    return {"command": command.removeprefix("keep:"), "keep": command.startswith("keep:")}


def idle() -> None:
    while True:
        time.sleep(0.05)  # rather than pause(): a signal may come just before


def background() -> None:
    """What a fork changes."""
    if then == "forks":
        child = os.fork()
        if child == 0:
            idle()
        say("child", child)
    elif then == "strays":
        child = os.fork()
        if child == 0:
            sys.exit()
        os.waitpid(child, 0)
    elif then == "daemon":
        child = os.fork()
        if child > 0:
            os.read(parting, 1)  # until the child has used the client
            os._exit(0)
        say("child", os.getpid())


parting, part = os.pipe()


def plain() -> None:
    if then in ("ends", "dies"):
        hf = connector.__enter__()
    else:
        stack = contextlib.ExitStack()
        stack.__enter__()
        hf = stack.enter_context(connector)
    try:
        processes = [hf.spawn(**options(command)) for command in commands]  # type: ignore[arg-type]
        say(*(process.handle for process in processes))
        background()
        if then == "daemon":
            say(hf.spawn("sleep 300").handle)
            os.write(part, b".")
        say("ready")
        if then in ("ends", "leaves"):
            return
        if then in ("fails", "dies"):
            raise RuntimeError("on purpose")
        if then == "stubborn":
            try:
                processes[0].wait()
            except KeyboardInterrupt:
                say("interrupted", hf.get(processes[0].handle).record.status)
        if then == "waiting":
            processes[0].wait()
        idle()
    finally:
        if then not in ("ends", "dies"):
            stack.__exit__(*sys.exc_info())


async def asynchronous() -> None:
    if then in ("ends", "dies"):
        hf = await connector.__aenter__()
    else:
        stack = contextlib.AsyncExitStack()
        await stack.__aenter__()
        hf = await stack.enter_async_context(connector)
    try:
        processes = [await hf.spawn(**options(command)) for command in commands]  # type: ignore[arg-type]
        say(*(process.handle for process in processes))
        background()
        say("ready")
        if then in ("ends", "leaves"):
            return
        if then in ("fails", "dies"):
            raise RuntimeError("on purpose")
        if then == "waiting":
            await processes[0].wait()
        while True:
            await asyncio.sleep(0.05)
    finally:
        if then not in ("ends", "dies"):
            await stack.__aexit__(*sys.exc_info())


if way == "asyncio":
    asyncio.run(asynchronous())
else:
    plain()
