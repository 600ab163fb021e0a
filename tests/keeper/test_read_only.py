"""A home that can only be read: what can be read is read, and the rest is a clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from holdfast import SyncClient
from holdfast.testing import wait_until

KillBoth = Callable[[SyncClient], None]

READ = """
import sys, holdfast
from holdfast.core.home import Home
from holdfast.client.connect import open_client
client = open_client(Home.locate(), "test")
handle = sys.argv[1]
process = client.get(handle)
print(process.refresh().status, [each.handle for each in client.list()] == [handle])
print(process.tail().text.strip(), process.view().text.strip(), process.read_at(0).text.strip())
print([event.exit_code for event in client.events()])
print(len(process.search("out").matches))
"""
WRITE = """
import sys, holdfast
from holdfast.core.home import Home
from holdfast.client.connect import open_client
client = open_client(Home.locate(), "test")
for work in (lambda: client.spawn("exit 0").wait(30), lambda: client.get(sys.argv[1]).read()):
    try:
        work()
        print("done")
    except holdfast.HoldfastError as error:
        print(error.code, error)
"""


def read_only(home: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run something that sees the home mounted read-only; or, for a user, closed to writing."""
    if os.geteuid() == 0:
        script = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
        command = ["unshare", "-m", "sh", "-c", script, home, *argv]
        tried = subprocess.run([*command[:6], "true"], capture_output=True)
        if tried.returncode != 0:
            pytest.skip("nothing can be mounted here")
        return subprocess.run(command, capture_output=True, text=True, timeout=60)
    directories = [home, *(f"{home}/{name}" for name in ("processes", "sessions", "sessions/test"))]
    for path in directories:
        os.chmod(path, 0o500)
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=60)
    finally:
        for path in directories:
            os.chmod(path, 0o700)


@pytest.mark.parametrize("keeper", ["runs", "gone"])
def test_everything_that_only_looks_works(hf: SyncClient, keeper: str) -> None:
    """get, list, status, tail, view, search and events need to write nothing."""
    process = hf.spawn("echo out; exit 3")
    wait_until(lambda: list(hf.events()))
    if keeper == "gone":
        hf.keeper_stop()
    done = read_only(hf.home.path, sys.executable, "-c", READ, process.handle)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines == ["failed True", "out out out", "[3]", "1"]
    shown = read_only(hf.home.path, sys.executable, "-m", "holdfast", "ps", "--all")
    assert (shown.returncode, process.handle[:12] in shown.stdout) == (0, True), shown
    logs = read_only(hf.home.path, sys.executable, "-m", "holdfast", "logs", process.handle)
    assert (logs.returncode, logs.stdout) == (0, "out\n"), logs


def test_what_has_to_write_says_what_to_do(hf: SyncClient) -> None:
    """With a keeper that can write, what it does works; without one there is a clear error."""
    process = hf.spawn("echo out; exit 3")
    process.wait(30)
    done = read_only(hf.home.path, sys.executable, "-c", WRITE, process.handle)
    spawned, read = done.stdout.splitlines()
    assert spawned == "done"
    assert read.startswith("store ")
    assert "writable" in read
    hf.keeper_stop()
    done = read_only(hf.home.path, sys.executable, "-c", WRITE, process.handle)
    spawned, read = done.stdout.splitlines()
    assert spawned.startswith(("store ", "keeper ")), done
    assert "writable" in spawned
    assert "HOLDFAST_HOME" in spawned
    assert "Traceback" not in done.stderr
