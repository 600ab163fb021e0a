"""Terminals: from a key to its echo, and how fast a program can write to one."""

from __future__ import annotations

import os
import pty
import select
from typing import TYPE_CHECKING

from ._floor import SHELL
from ._measure import Row, interleave, now, ratio_row, speed_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast import Output, SyncProcess

    from ._stage import Stage

RAW_CAT = "stty raw -echo; echo ready; exec cat"
FLOW = 32 << 20
WRITE = f"stty raw; exec head -c {FLOW} /dev/zero"


class Bare:
    """A command at a terminal that `pty.fork` made, and nothing else."""

    def __init__(self, command: str) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(SHELL, [SHELL, "-c", command])

    def key(self) -> float:
        started = now()
        os.write(self.fd, b"k")
        os.read(self.fd, 1024)
        return now() - started

    def pump(self, path: str) -> None:
        """Copy what it writes into a file until it hangs up: the plainest of pumps."""
        with open(path, "wb", buffering=0) as file:
            while True:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:
                    break
                if not data:
                    break
                file.write(data)

    def wait_until_ready(self) -> None:
        seen = b""
        while b"ready" not in seen:
            select.select([self.fd], [], [])
            seen += os.read(self.fd, 1024)

    def close(self) -> None:
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def key_to_echo(stage: Stage) -> list[Row]:
    """A key pressed, until a follower sees what the program made of it."""
    with stage.client() as client:
        process = client.spawn(RAW_CAT, tty=True)
        outputs = process.follow()
        while "ready" not in next(outputs).text:
            pass
        bare = Bare(RAW_CAT)
        bare.wait_until_ready()
        try:
            ours, floor = interleave(
                stage.pick(1000, 300), lambda: _key(process, outputs), bare.key, settle=None
            )
        finally:
            bare.close()
            process.kill(signal="KILL")
            process.remove()
    return [ratio_row("key to echo at a terminal", ours, floor, at_most=3)]


def _key(process: SyncProcess, outputs: Iterator[Output]) -> float:
    started = now()
    process.send(b"k")
    next(outputs)
    return now() - started


def terminal_flow(stage: Stage) -> list[Row]:
    """A program that writes as fast as its terminal takes it, from its start to its noticed end."""
    with stage.client() as client:

        def ours() -> float:
            started = now()
            process = client.spawn(WRITE, tty=True)
            process.wait()
            took = now() - started
            if os.path.getsize(process.record.log) != FLOW:
                raise RuntimeError("the log is not complete")
            process.remove()
            return took

        def floor() -> float:
            started = now()
            bare = Bare(WRITE)
            path = stage.scratch.file()
            bare.pump(path)
            bare.close()
            took = now() - started
            os.unlink(path)
            return took

        mine, bare = interleave(stage.pick(12, 4), ours, floor)
    return [speed_row("output at a terminal, 32 MiB", FLOW, mine, bare, at_least=0.8)]
