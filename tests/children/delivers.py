"""A host with an agent: delivers.py WAY SESSION JOURNAL SECONDS; WAY is asyncio, or a thread.

It writes ``begin PID IDS`` into the journal when an inject begins, and ``end PID IDS`` when it is
over, SECONDS later.
"""

import asyncio
import os
import sys
import threading
import time

import holdfast

way, session, journal, seconds = sys.argv[1:]


def note(word: str, message: holdfast.Message) -> None:
    line = f"{word} {os.getpid()} {' '.join(event.id for event in message.events)}\n"
    fd = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


async def inject(message: holdfast.Message) -> None:
    note("begin", message)
    await asyncio.sleep(float(seconds))
    note("end", message)


def inject_plainly(message: holdfast.Message) -> None:
    note("begin", message)
    time.sleep(float(seconds))
    note("end", message)


connector = holdfast.connect(session=session, lease_grace="30m")


async def main() -> None:
    async with connector as hf:
        await holdfast.deliver(hf, inject)


if way == "asyncio":
    asyncio.run(main())
else:
    with connector as hf:
        thread = threading.Thread(target=holdfast.deliver, args=(hf, inject_plainly))
        thread.start()
        thread.join()
