"""``demo``: the real thing in half a minute, in a home of its own that is gone afterwards.

Everything goes through the public client, and everything that is claimed is checked: the demo exits
with 1 if anything was not as it should be.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import holdfast

from . import _render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any

    from holdfast.client.sync import SyncClient, SyncProcess

    from ._parser import Parser

_PATIENCE = 20.0
_BUILD = 'for i in 1 2 3 4 5; do echo "compiled part $i of 5"; sleep 0.4; done'
_GREET = 'echo "What is your name?"; read -r name; echo "Hello, $name."'
_LONG = (
    'for i in $(seq 1 16); do echo "tick $i"; sleep 0.25; done; '
    'read -r word; echo "heard: $word"; exit 7'
)
_ALONE = 'for i in $(seq 1 12); do echo "tock $i"; sleep 0.25; done; exit 3'
_TREE = (
    "trap '' TERM; sleep 300 & echo child $!; setsid sleep 300 & echo child $!; "
    "echo ready; while :; do wait; done"
)


def options_demo(parser: Parser) -> None:
    parser.epilog = "It uses a temporary home and leaves nothing behind."


def do_demo(args: Namespace) -> int:
    import shutil
    import tempfile

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    directory = tempfile.mkdtemp(prefix="holdfast-demo-")
    try:
        with holdfast.connect(session="demo", home=directory) as client:
            demo = Demo(client)
            demo.run()
    finally:
        # After the session is closed: closing it would start a keeper that was stopped before.
        _stop_keeper(directory)
        shutil.rmtree(directory, ignore_errors=True)
    return demo.summary()


def _stop_keeper(directory: str) -> None:
    from holdfast.client.connect import open_client
    from holdfast.core.home import Home

    client = open_client(Home.locate(directory), None)
    try:
        client.keeper_stop(kill=True)
    finally:
        client.close()


class Demo:
    def __init__(self, client: SyncClient) -> None:
        self._client = client
        self._wrong: list[str] = []
        self._checks = 0
        self._chapter = 0
        self._began = time.monotonic()
        self._colour = _render.coloured(sys.stdout)
        self._pause = 1.5 if sys.stdout.isatty() else 0.0

    def run(self) -> None:
        self._say("Background processes that outlive whoever started them, shown for real", "bold")
        self._say(f"in a home of their own, {self._client.home.path}.")
        build = self._background()
        self._conversation()
        self._completion(build)
        self._keeper_halves()
        self._keeper_gone()
        self._tree()
        self._once()

    # -- chapters ------------------------------------------------------------------------------

    def _background(self) -> SyncProcess:
        self._title("Start something in the background", "holdfast run -d --label build -- '...'")
        build = self._spawn(_BUILD, label="build")
        for output in build.follow():
            self._output(output.text)
        self._check("the whole output came, as it was written", build.read().text.count("\n") == 5)
        return build

    def _conversation(self) -> None:
        self._title("Talk to one that asks", "holdfast send HANDLE --enter Ada")
        greet = self._spawn(_GREET, label="greet", stdin=True)
        self._until("it asks", lambda: b"?" in greet.tail(1).data)
        self._output(greet.tail(1).text)
        greet.send("Ada\n")
        end = greet.wait(_PATIENCE)
        self._output(greet.tail(1).text)
        self._check("it was heard, and ended with exit code 0", end.code == 0)

    def _completion(self, build: SyncProcess) -> None:
        self._title("Be told when something ended", "holdfast events --text")
        events = [event for event in self._client.events() if event.handle == build.handle]
        self._say("Nobody waited for `build`. Its end is in the session's outbox, as the text to")
        self._say("inject into an agent's conversation:")
        for event in events:
            self._output(event.text)
        self._check("its end was delivered once, with exit code 0", _codes(events) == [0])
        self._client.acknowledge(*events)
        left = [event for event in self._client.events() if event.handle == build.handle]
        self._check("once acknowledged, it is not delivered again", not left)

    def _keeper_halves(self) -> None:
        self._title("Kill the keeper with -9, one half, then the other", "holdfast keeper status")
        long = self._spawn(_LONG, label="long", stdin=True)
        self._until("it ticks", lambda: b"tick 2" in long.tail(5).data)
        for half in ("worker", "guard"):
            before = self._client.keeper_status()
            self._say(f"guard {before['guard']}, worker {before['worker']}: kill -9 the {half}")
            os.kill(before[half], signal.SIGKILL)
            began = time.monotonic()
            after = self._new_keeper(before)
            self._say(
                f"guard {after['guard']}, worker {after['worker']}, "
                f"{(time.monotonic() - began) * 1000:.0f} ms later"
            )
            self._goes_on(long)
            self._output(long.tail(1).text)
        self._until("it listens", lambda: b"tick 16" in long.tail(1).data)
        long.send("still with you\n")
        end = long.wait(_PATIENCE)
        self._output(long.tail(1).text)
        expected = [f"tick {i}" for i in range(1, 17)] + ["heard: still with you"]
        self._check("not a line is missing or doubled", _lines(long) == expected)
        self._check("its stdin still works", "heard: still with you" in _lines(long))
        self._check("its exit code is exact: 7", (end.status, end.code) == ("failed", 7))

    def _keeper_gone(self) -> None:
        self._title("Kill both halves at once", "kill -9 GUARD WORKER")
        alone = self._spawn(_ALONE, label="alone")
        self._until("it runs", lambda: b"tock 2" in alone.tail(5).data)
        before = self._client.keeper_status()
        for half in ("guard", "worker"):
            os.kill(before[half], signal.SIGKILL)
        self._say(f"guard {before['guard']} and worker {before['worker']} are gone")
        end = alone.wait(_PATIENCE)
        after = self._client.keeper_status()
        self._say(f"a new keeper found it: guard {after['guard']}, worker {after['worker']}")
        self._output(alone.tail(2).text)
        expected = [f"tock {i}" for i in range(1, 13)]
        self._check("not a line is missing or doubled", _lines(alone) == expected)
        if end.status == "lost":
            # Linux before 6.15 tells nobody but the parent, and the parent was killed.
            self._check("this kernel cannot tell its exit code, so it is `lost`", end.code is None)
        else:
            self._check("its exit code is exact: 3", (end.status, end.code) == ("failed", 3))

    def _tree(self) -> None:
        self._title("Stop a tree that does not want to stop", "holdfast kill --grace 500ms HANDLE")
        tree = self._spawn(_TREE, label="tree", grace=0.5)
        self._until("it is ready", lambda: "ready" in _lines(tree))
        pids = [int(line.split()[1]) for line in _lines(tree) if line.startswith("child ")]
        self._say(f"It ignores TERM; its child {pids[1]} is in a session of its own.")
        receipt = tree.kill()
        self._say(f"signalled {receipt.signalled}, {'by force' if receipt.forced else 'politely'}")
        self._check("its status is killed", receipt.record.status == "killed")
        alive = [pid for pid in (*pids, tree.record.pid) if pid and _alive(pid)]
        self._check("nothing of it is left", not receipt.survivors and not alive)

    def _once(self) -> None:
        self._title("What is known of it all", "holdfast ps -a")
        processes = self._client.list()
        table = _render.process_table(process.record for process in processes)
        width = _render.terminal_width(sys.stdout) or 100
        for line in table.lines(width - 3, self._colour):
            self._say(line)
        events = list(self._client.events(acknowledged=True))
        told = sorted(event.handle or "" for event in events)
        ended = sorted(process.handle for process in processes)
        self._check("every end was told exactly once", told == ended)

    # -- doing and showing ---------------------------------------------------------------------

    def _spawn(self, command: str, **options: Any) -> SyncProcess:
        began = time.monotonic()
        process = self._client.spawn(command, timeout=60, **options)
        took = (time.monotonic() - began) * 1000
        self._say(f"{_render.paint(process.handle, 'cyan', self._colour)} after {took:.0f} ms")
        return process

    def _until(self, what: str, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise holdfast.WaitTimeout(f"waited {_PATIENCE:.0f} s and more until {what}")
            time.sleep(0.02)

    def _goes_on(self, process: SyncProcess) -> None:
        seen = len(_lines(process))
        self._until("it goes on", lambda: len(_lines(process)) > seen)

    def _new_keeper(self, before: dict[str, Any]) -> dict[str, Any]:
        status: dict[str, Any] = {}

        def back() -> bool:
            nonlocal status
            try:
                status = self._client.keeper_status()
            except holdfast.KeeperError:
                return False
            return bool(status["running"]) and status["worker"] != before["worker"]

        self._until("the keeper is back", back)
        return status

    def _title(self, text: str, command: str) -> None:
        time.sleep(self._pause)
        self._chapter += 1
        print(flush=True)
        self._say(f"{self._chapter}. {text}", "bold", indent="")
        self._say(f"$ {command}", "dim")

    def _say(self, text: str, colour: str | None = None, indent: str = "   ") -> None:
        print(indent + _render.paint(text, colour, self._colour), flush=True)

    def _output(self, text: str) -> None:
        for line in text.rstrip("\n").split("\n"):
            self._say(f"| {_render.safe(line)}".rstrip())

    def _check(self, what: str, right: bool) -> None:
        self._checks += 1
        if not right:
            self._wrong.append(what)
        word = _render.paint("ok", "green", self._colour)
        if not right:
            word = _render.paint("WRONG", "red", self._colour)
        self._say(f"{word}: {what}")

    def summary(self) -> int:
        took = time.monotonic() - self._began
        print()
        if self._wrong:
            count = f"{len(self._wrong)} of {self._checks}"
            self._say(f"{count} things were not as they should be:", "red")
            for what in self._wrong:
                self._say(f"- {what}")
            self._say("Please report it, with what `holdfast doctor` prints.")
            return 1
        self._say(f"All {self._checks} things were as they should be, in {took:.0f} s:", "green")
        self._say("five processes were started, watched, talked to, waited for and stopped while")
        self._say(
            "their keeper was killed with -9, each half and both at once; no output, exit code or"
        )
        self._say("completion was lost. The keeper is stopped and the home removed.")
        print()
        self._say("Try next:")
        self._say("  holdfast run -d --label web -- 'python3 -m http.server'")
        self._say("  holdfast ps; holdfast logs -f web; holdfast kill web")
        self._say("  holdfast --help, and `import holdfast` in Python")
        return 0


def _lines(process: SyncProcess) -> list[str]:
    return process.read_at(0).text.splitlines()


def _alive(pid: int) -> bool:
    """A zombie is not: it waits to be reaped, and the keeper does that when it gets to it."""
    from holdfast.linux.kernel import stat

    found = stat(pid)
    return found is not None and found.state not in "ZX"


def _codes(events: list[Any]) -> list[int | None]:
    return [event.exit_code for event in events]
