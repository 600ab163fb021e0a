"""A keeper that ends as soon as it is started: not started for ever, and the error says why."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest

from holdfast import KeeperError, StoreError, connect
from holdfast.client import find_keeper
from holdfast.client.connect import open_client
from holdfast.core.home import Home
from holdfast.core.programs import keeper_program
from holdfast.testing import end_keeper

FAILS = """
import os, socket, sys
home, lock = sys.argv[2], int(sys.argv[3])
os.set_inheritable(lock, False)
with open(home + ".starts", "a") as starts:
    starts.write("x")
{before}
listener = socket.socket(socket.AF_UNIX)
try:
    os.unlink(home + "/keeper.sock")
except FileNotFoundError:
    pass
os.chdir(home)
listener.bind("keeper.sock")
listener.listen(5)
if os.fork():
    os._exit(0)
null = os.open(os.devnull, os.O_RDWR)
for number in range(3):
    os.dup2(null, number)
with open(home + "/keeper.log", "a") as log:
    log.write("ImportError: no module named zlib\\n")
{after}
"""
SAYS = "sys.exit('no room for a keeper here')"
ANSWERS = "listener.accept()[0].recv(10)"  # and goes while somebody waits for its greeting


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_keeper, "_starts", {})


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("", "", "no module named zlib"),
        ("", ANSWERS, "no module named zlib"),
        (SAYS, "", "no room for a keeper here"),
    ],
    ids=["ends", "ends when asked", "does not begin"],
)
def test_it_is_not_started_in_a_circle(
    clean: None,
    home: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    before: str,
    after: str,
    words: str,
) -> None:
    """A few times, more and more slowly; then its last words are the error, at once."""
    program = tmp_path / "keeper.py"
    program.write_text(FAILS.format(before=before, after=after))
    real = keeper_program
    monkeypatch.setattr(find_keeper, "keeper_program", lambda: [*real()[:3], str(program)])
    client = open_client(Home(home).ensure(), "test")
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    for _ in range(10):
        with pytest.raises(KeeperError, match=words) as caught:
            client.spawn("exit 0")
        assert "keeper.log" in str(caught.value)
    client.close()
    starts = len(Path(home + ".starts").read_text())
    assert starts <= 25
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used < 20


def test_one_that_was_killed_is_started_again_at_once(clean: None, home: str) -> None:
    """However often: it had been ready, so there is nothing wrong with it."""
    client = open_client(Home(home).ensure(), "test")
    began = time.monotonic()
    for _ in range(12):
        assert client.spawn("exit 5").wait(30).code == 5
        status = client.keeper_status()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for half in ("guard", "worker"):
                os.kill(status[half], number)
    assert time.monotonic() - began < 60
    client.close()
    end_keeper(home)


def test_with_the_cause_gone_it_starts(
    clean: None, home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "keeper.py"
    program.write_text(FAILS.format(before=SAYS, after=""))
    real = keeper_program
    with monkeypatch.context() as broken:
        broken.setattr(find_keeper, "keeper_program", lambda: [*real()[:3], str(program)])
        with pytest.raises(KeeperError), connect(session="test") as hf:
            hf.spawn("exit 0")
    with connect(session="test") as hf:
        assert hf.spawn("exit 6").wait(30).code == 6


def test_on_a_disk_without_room_for_its_lock_the_error_says_so(clean: None, home: str) -> None:
    """A home that is used for the first time, or whose lock was deleted, on a full disk."""
    client = open_client(Home(home).ensure(), "test")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StoreError, match="cannot start a keeper in"):
            client.spawn("exit 0")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert client.spawn("exit 5").wait(30).code == 5
    client.close()
