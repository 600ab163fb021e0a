"""Files of the home deleted or replaced while processes run: the keeper is found all the same.

What it holds can be listed and stopped through it, by the library, the command line and the tools.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import NotFound, SyncClient, SyncProcess, connect
from holdfast.client.connect import open_client
from holdfast.core.home import Home, unlink
from holdfast.linux.kernel import stat
from holdfast.testing import wait_until

KillBoth = Callable[[SyncClient], None]


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def alive(process: SyncProcess) -> bool:
    found = stat(process.record.pid or 0)
    return found is not None and found.state not in "ZX"


def journal(hf: SyncClient) -> str:
    return Path(hf.home.keeper_log).read_text()


def whole_home(hf: SyncClient, process: SyncProcess) -> None:
    shutil.rmtree(hf.home.path, ignore_errors=True)


def all_records(hf: SyncClient, process: SyncProcess) -> None:
    shutil.rmtree(hf.home.processes, ignore_errors=True)


def one_record(hf: SyncClient, process: SyncProcess) -> None:
    unlink(hf.home.meta(process.handle))


def torn_record(hf: SyncClient, process: SyncProcess) -> None:
    path = hf.home.meta(process.handle)
    Path(path).write_bytes(Path(path).read_bytes()[:100])


def nonsense(hf: SyncClient, process: SyncProcess) -> None:
    Path(hf.home.meta(process.handle)).write_bytes(os.urandom(4096))


def a_directory(hf: SyncClient, process: SyncProcess) -> None:
    os.unlink(hf.home.meta(process.handle))
    os.mkdir(hf.home.meta(process.handle))


def a_fifo(hf: SyncClient, process: SyncProcess) -> None:
    os.unlink(hf.home.meta(process.handle))
    os.mkfifo(hf.home.meta(process.handle))


LOSSES = [whole_home, all_records, one_record, torn_record, nonsense, a_directory, a_fifo]


@pytest.mark.parametrize("lose", LOSSES)
class TestWhatRuns:
    def test_is_killed_and_signalled_at_once(
        self, hf: SyncClient, lose: Callable[[SyncClient, SyncProcess], None]
    ) -> None:
        """A client that is connected need not wait until the files are there again."""
        process = hf.spawn("trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done")
        other = hf.spawn("sleep 1000", keep=True)
        wait_until(lambda: "ready" in process.tail().text)
        lose(hf, process)
        process.signal("USR1")
        assert process.wait(30).code == 7
        lose(hf, other)
        assert other.kill().record.status == "killed"
        assert not alive(other)

    def test_is_listed_and_stopped_by_others(
        self, hf: SyncClient, lose: Callable[[SyncClient, SyncProcess], None]
    ) -> None:
        """Also by a person at the command line, who has no connection yet."""
        process, other = hf.spawn("sleep 1000", label="web"), hf.spawn("sleep 1000")
        lose(hf, process)
        handles = {process.handle, other.handle}
        wait_until(lambda: {each.handle for each in hf.list()} == handles)
        assert hf.get(process.handle).record.label == "web"
        listed = json.loads(cli("ps", "--json").stdout)
        assert {each["handle"] for each in listed} == handles
        lose(hf, other)
        assert cli("kill", process.handle).returncode == 0
        wait_until(lambda: not alive(process))
        receipts = hf.stop_all()
        assert [receipt.record.handle for receipt in receipts] == [other.handle]
        assert "Traceback" not in journal(hf)

    def test_is_kept_by_the_next_worker(
        self, hf: SyncClient, lose: Callable[[SyncClient, SyncProcess], None]
    ) -> None:
        """The guard knows what it was; its code is exact, and its deadline and label are kept."""
        process = hf.spawn("read line; exit 5", stdin=True, label="web", timeout=1000)
        hf.spawn("sleep 1000")
        status = hf.keeper_status()
        for half in ("guard", "worker"):
            os.kill(status[half], signal.SIGSTOP)
        lose(hf, process)
        os.kill(status["worker"], signal.SIGKILL)
        os.kill(status["guard"], signal.SIGCONT)
        wait_until(lambda: len(hf.list()) == 2)
        again = hf.get(process.handle)
        assert (again.record.label, again.record.timeout) == ("web", 1000)
        again.send("x", enter=True)
        assert again.wait(30).code == 5
        assert [receipt.record.status for receipt in hf.stop_all()] == ["killed"]
        assert "Traceback" not in journal(hf)


def test_a_damaged_record_of_a_process_that_both_halves_left(
    home: str, kill_both: KillBoth
) -> None:
    """It is found by its mark, and what can be read of the record is kept."""
    hf = open_client(Home(home).ensure(), "test")
    processes = [hf.spawn("sleep 1000", label=name) for name in ("torn", "emptied", "wrong")]
    kill_both(hf)
    torn, emptied, wrong = [Path(hf.home.meta(process.handle)) for process in processes]
    torn.write_bytes(torn.read_bytes()[:600])
    emptied.write_bytes(b"")
    wrong.write_text(json.dumps({**json.loads(wrong.read_bytes()), "pid": 1 << 63}))
    hf.keeper_restart()
    with closing(open_client(Home(home), None)) as person:
        assert {each.handle for each in person.list()} == {each.handle for each in processes}
        records = {each.handle: each.record for each in person.list()}
        found = [records[process.handle] for process in processes]
        assert [record.label for record in found] == ["torn", "", "wrong"]
        assert [record.session for record in found] == ["test", "default", "test"]
        assert [record.pid for record in found] == [each.record.pid for each in processes]
        receipts = person.stop_all()
        assert {receipt.record.status for receipt in receipts} == {"killed"}
    assert not any(alive(process) for process in processes)
    assert "Traceback" not in journal(hf)
    hf.close()


@pytest.mark.parametrize("size", [1000, 20_000_000])
def test_a_deleted_log_is_made_again(hf: SyncClient, size: int) -> None:
    """With what was in it, or the end of that; offsets and numbers of lines go on."""
    process = hf.spawn(f"yes | head -c {size}; echo; read line; echo two; read line", stdin=True)
    wait_until(lambda: process.tail(1).text == "\n")
    os.unlink(hf.home.log(process.handle))
    wait_until(lambda: os.path.exists(hf.home.log(process.handle)))
    process.send("x", enter=True)
    wait_until(lambda: process.tail(1).text == "two\n")
    output = process.read_at(size - 2, 100)
    assert (output.gap, output.text, output.end) == (0, "y\n\ntwo\n", size + 5)
    assert process.lines(size // 2 - 1, 3).text == "y\n\ntwo\n"
    lost = size - process.read_at(0, 1).start
    assert bool(process.read_at(0, 1).gap) == (size > 1000), lost
    assert any("deleted" in note for note in process.refresh().notes) == (size > 1000)
    process.kill()


# -- the socket and the lock -----------------------------------------------------------------------


def delete(path: str) -> None:
    os.unlink(path)


def put(path: str, other: str) -> None:
    """The keeper may make it again at any moment, which a rename does not mind."""
    while True:
        unlink(path)
        try:
            os.rename(other, path)
            return
        except NotADirectoryError:
            continue


def replace_by_file(path: str) -> None:
    Path(path + ".x").write_text("nothing")
    put(path, path + ".x")


def replace_by_directory(path: str) -> None:
    os.mkdir(path + ".x")
    put(path, path + ".x")


def replace_by_link(path: str) -> None:
    os.symlink(path, path + ".x")
    put(path, path + ".x")


def replace_by_socket(path: str) -> None:
    directory = os.open(os.path.dirname(path), os.O_RDONLY)  # for its path may be too long
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(f"/proc/self/fd/{directory}/{os.path.basename(path)}.x")
    os.close(directory)
    put(path, path + ".x")


def asked(home: Home) -> int | None:
    """What a client gets that has no connection yet."""
    with closing(open_client(home, "other")) as client:
        return client.spawn("exit 0").wait(30).code


WAYS = [delete, replace_by_file, replace_by_directory, replace_by_link, replace_by_socket]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["keeper.sock", "keeper.lock"])
def test_socket_and_lock_are_made_again(
    hf: SyncClient, name: str, way: Callable[[str], None]
) -> None:
    """By the same keeper, for any number of clients that come at once; and again the next time."""
    process = hf.spawn("sleep 1000")
    before = hf.keeper_status()["guard"]
    path = f"{hf.home.path}/{name}"
    for half in ("", "worker", "guard"):
        wait_until(lambda: os.path.exists(path), what=f"{name} is made again")
        way(path)
        with ThreadPoolExecutor(3) as threads:
            assert list(threads.map(lambda _: asked(hf.home), range(3))) == [0, 0, 0]
        with closing(open_client(hf.home, None)) as person:
            status = person.keeper_status()
            assert process.handle in {each.handle for each in person.list()}
        if half:
            os.kill(status[half], signal.SIGKILL)
            wait_until(lambda: hf.keeper_status()[half] != status[half])  # noqa: B023
        else:
            assert status["guard"] == before, "it is the same keeper"
    assert process.kill().record.status == "killed"
    assert "Traceback" not in journal(hf)


def test_a_socket_that_goes_while_there_is_no_worker_is_made_again(hf: SyncClient) -> None:
    """The next worker looks before it does anything else."""
    process = hf.spawn("sleep 1000")
    status = hf.keeper_status()
    for half in ("guard", "worker"):
        os.kill(status[half], signal.SIGSTOP)
    os.unlink(hf.home.socket)
    os.unlink(hf.home.lock)
    os.kill(status["worker"], signal.SIGKILL)
    os.kill(status["guard"], signal.SIGCONT)
    wait_until(lambda: os.path.exists(hf.home.socket))
    with closing(open_client(hf.home, None)) as person:
        assert [each.handle for each in person.list()] == [process.handle]
        assert person.keeper_status()["guard"] == status["guard"]
        assert len(person.stop_all()) == 1


def test_a_keeper_with_nothing_to_keep_does_not_make_a_home_again(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deletes it when all is over has it deleted."""
    monkeypatch.setenv("HOLDFAST_KEEPER_IDLE", "0.2")
    with connect(session="test") as hf:
        hf.spawn("exit 0").wait(30)
        guard = hf.keeper_status()["guard"]
    shutil.rmtree(home, ignore_errors=True)
    wait_until(lambda: stat(guard) is None)
    assert not os.path.exists(home)


def test_what_never_was_is_still_not_found(hf: SyncClient) -> None:
    """Nor is another session's: the keeper that is asked says no more than the disk."""
    process = hf.spawn("sleep 1000")
    with closing(open_client(hf.home, "other")) as other:
        for handle in (process.handle, "proc-aaaaaaaaaaaaaaaa"):
            with pytest.raises(NotFound):
                other.get(handle)
    process.kill()
