"""A process that floods its log harms nobody: bounded disk, honest readers, a keeper at ease."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Output, Stream, SyncClient, SyncProcess
from holdfast.core import log_head
from holdfast.core.log_head import LogHead, read_head
from holdfast.keeper import log_writer
from holdfast.keeper.log_writer import LogWriter
from holdfast.linux import kernel
from holdfast.output.log import Log
from holdfast.testing import wait_until

pytestmark = pytest.mark.shared_keeper

MIB = 1 << 20
PERIOD = 16 * 262147
PATTERN = b"".join(b"%015d\n" % number for number in range(PERIOD // 16))


def expected(start: int, size: int) -> bytes:
    """The bytes that ``children/writes_pattern.py`` wrote there."""
    at = start % PERIOD
    data = PATTERN[at : at + size]
    while len(data) < size:
        data += PATTERN[: size - len(data)]
    return data


def begin_of(process: SyncProcess, stream: Stream = "stdout") -> int:
    return process.read_at(0, 0, stream=stream).start


def size_of(process: SyncProcess, stream: Stream = "stdout") -> int:
    return process.tail_bytes(0, stream=stream).end


class Sampler:
    """Looks at what a log takes on disk, as often as it can, until it is left."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.highest = 0
        self.looks = 0

    def _run(self) -> None:
        while not self._stop.wait(0.0005):
            taken = 0
            for path in (self._path, self._path + ".old"):
                try:
                    taken += os.stat(path).st_blocks * 512
                except FileNotFoundError:
                    continue
            self.highest = max(self.highest, taken)
            self.looks += 1

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Account:
    """What one reader was given: every byte right, none twice, none missing without a word."""

    def __init__(self, start: int = 0) -> None:
        self.position = start
        self.read = 0
        self.gaps = 0

    def add(self, output: Output) -> None:
        assert output.start == self.position + output.gap, "a byte twice, or a gap not told"
        assert output.end == output.start + len(output.data)
        assert output.data == expected(output.start, len(output.data))
        self.position = output.end
        self.read += len(output.data)
        self.gaps += output.gap


# -- the cap ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "total"),
    [(8 * MIB, 300 * MIB), pytest.param(256 * MIB, 700 * MIB, marks=pytest.mark.long)],
)
def test_a_flood_stays_within_its_cap_and_its_end_is_recorded(
    hf: SyncClient, child: Callable[..., list[str]], cap: int, total: int
) -> None:
    """Disk never above the cap plus 64 MiB, the keeper's memory flat, the newest output kept."""
    hf.spawn(child("writes_pattern", str(4 * MIB), "0"), log_cap=MIB).wait(60)  # warmed up
    before = hf.keeper_status()["memory_bytes"]
    process = hf.spawn(child("writes_pattern", str(total), "7"), log_cap=cap)
    with Sampler(process.record.log) as sampler:
        end = process.wait(100)
    assert (end.status, end.code) == ("failed", 7)
    assert sampler.looks > 50
    assert sampler.highest <= cap + 64 * MIB
    assert hf.keeper_status()["memory_bytes"] < before + 4 * MIB
    assert size_of(process) == total, "offsets count every byte ever written"
    begin = begin_of(process)
    assert total - cap - 64 * MIB <= begin <= total - cap, "all that the cap allows is kept"
    account = Account()
    while (output := process.read_at(account.position, 8 * MIB)).data:
        account.add(output)
    assert (account.gaps, account.read) == (begin, total - begin)


def test_a_log_within_its_cap_loses_nothing(
    hf: SyncClient, child: Callable[..., list[str]]
) -> None:
    process = hf.spawn(child("writes_pattern", str(8 * MIB), "0"), log_cap=8 * MIB)
    assert process.wait(60).ok
    assert begin_of(process) == 0
    account = Account()
    for output in process.follow():
        account.add(output)
    assert (account.gaps, account.read) == (0, 8 * MIB)


def test_others_are_served_while_one_floods(
    hf: SyncClient, child: Callable[..., list[str]]
) -> None:
    flood = hf.spawn(child("writes_pattern", str(1 << 50), "0"), log_cap=MIB)
    wait_until(lambda: begin_of(flood) > 0)
    for number in range(5):
        other = hf.spawn(f"echo {number}; exit {number}")
        assert other.wait(20).code == number
        assert other.tail().text == f"{number}\n"
    receipt = flood.kill()
    assert receipt.record.status == "killed"
    assert size_of(flood) - begin_of(flood) >= MIB


def test_a_log_limit_stops_the_process_that_passes_it(
    hf: SyncClient, child: Callable[..., list[str]]
) -> None:
    process = hf.spawn(child("writes_pattern", str(1 << 50), "0"), log_limit="3MiB", log_cap="1MiB")
    end = process.wait(60)
    assert (end.status, end.reason, end.ended_by) == ("killed", "log_limit", "keeper")


def test_a_process_may_end_as_it_passes_its_log_limit(hf: SyncClient) -> None:
    """What it wrote last is read at its end: its end is told as any other, by the same worker."""
    worker = hf.keeper_status()["worker"]
    for _ in range(30):
        process = hf.spawn(["head", "-c", "60000", "/dev/zero"], log_limit=1000)
        assert process.wait(30).reason in ("exited", "log_limit")
    assert hf.keeper_status()["worker"] == worker


# -- readers while the head is freed ---------------------------------------------------------------


def by_offset(process: SyncProcess) -> Iterator[Output]:
    position = 0
    while True:
        running = process.refresh().running
        output = process.read_at(position, 300_000)
        position = output.end
        if output.data or output.gap:
            yield output
        elif not running:
            return


def by_cursor(process: SyncProcess) -> Iterator[Output]:
    while True:
        running = process.refresh().running
        output = process.read(reader="flood", limit=200_000)
        if output.data or output.gap:
            yield output
        elif not running:
            return


def by_following(process: SyncProcess) -> Iterator[Output]:
    yield from process.follow(offset=0)


@pytest.mark.parametrize("reading", [by_offset, by_cursor, by_following])
def test_a_reader_that_is_overtaken_is_told_and_gets_no_wrong_byte(
    hf: SyncClient,
    child: Callable[..., list[str]],
    reading: Callable[[SyncProcess], Iterator[Output]],
) -> None:
    """A log of 1 MiB under a flood: the head goes away under the reader all the time."""
    total = 150 * MIB
    process = hf.spawn(child("writes_pattern", str(total), "0"), log_cap=MIB)
    account = Account()
    for output in reading(process):
        account.add(output)
    assert account.read + account.gaps == account.position == total
    assert account.gaps > 0, "this flood cannot be kept up with"
    assert account.read >= MIB


def test_many_readers_of_one_flood_each_get_a_true_account(
    hf: SyncClient, child: Callable[..., list[str]]
) -> None:
    total = 60 * MIB
    process = hf.spawn(child("writes_pattern", str(total), "0"), log_cap=MIB)
    accounts = [Account() for _ in range(4)]
    failures: list[BaseException] = []

    def read(account: Account) -> None:
        try:
            for output in hf.get(process.handle).follow(offset=0):
                account.add(output)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=[account]) for account in accounts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {account.read + account.gaps for account in accounts} == {total}


def test_a_cleared_log_is_a_gap_for_its_readers_and_offsets_go_on(hf: SyncClient) -> None:
    process = hf.spawn("cat", stdin=True)
    process.send(b"before\n")
    wait_until(lambda: size_of(process) == 7)
    assert process.read().data == b"before\n"
    process.send(b"unread\n")
    wait_until(lambda: size_of(process) == 14)
    process.clear()
    assert (begin_of(process), size_of(process)) == (14, 14)
    assert Path(process.record.log).read_bytes().strip(b"\0") == b"", "nothing of it is left"
    process.send(b"after\n", eof=True)
    assert process.wait(20).ok
    output = process.read()
    assert (output.data, output.start, output.gap) == (b"after\n", 14, 7)
    process.clear()  # of an ended process, by the keeper all the same
    assert (begin_of(process), size_of(process)) == (20, 20)


# -- following -------------------------------------------------------------------------------------


def test_following_an_ended_process_gives_all_of_it_and_ends(hf: SyncClient) -> None:
    process = hf.spawn("seq 1 5000")
    process.wait(20)
    text = "".join(output.text for output in process.follow())
    assert text == "".join(f"{number}\n" for number in range(1, 5001))
    assert list(process.follow(offset=len(text))) == []


def test_following_a_silent_process_ends_with_it(hf: SyncClient) -> None:
    process = hf.spawn("read line", stdin=True)
    threading.Timer(0.05, lambda: process.send(b"", eof=True)).start()
    assert list(process.follow()) == []
    assert not process.refresh().running


def test_two_streams_are_followed_apart_and_each_is_whole(
    hf: SyncClient, child: Callable[..., list[str]]
) -> None:
    total = 5 * MIB
    process = hf.spawn(child("writes_pattern", str(total), "0", "1", "2"), stderr="separate")
    accounts: dict[Stream, Account] = {"stdout": Account(), "stderr": Account()}

    def follow(stream: Stream) -> None:
        for output in hf.get(process.handle).follow(stream=stream):
            accounts[stream].add(output)

    other = threading.Thread(target=follow, args=["stderr"])
    other.start()
    follow("stdout")
    other.join()
    assert [account.read for account in accounts.values()] == [total, total]


def test_a_follower_sees_lines_while_the_process_runs(hf: SyncClient) -> None:
    process = hf.spawn("cat", stdin=True)
    following = process.follow()
    for number in range(20):
        line = f"line {number}\n"
        process.send(line)
        assert next(following).text == line
    process.send(b"", eof=True)
    assert list(following) == []


def test_many_chatty_processes_lose_no_line(
    hf: SyncClient, child: Callable[..., list[str]]
) -> None:
    """Batched when busy: thousands of small writes of many processes, all there and in order."""
    processes = [
        hf.spawn(child("writes_lines", f"p{number}", "3000", "0.0001")) for number in range(16)
    ]
    for number, process in enumerate(processes):
        assert process.wait(60).ok
        lines = b"".join(output.data for output in process.follow()).decode().splitlines()
        assert lines == [f"p{number} {line}" for line in range(3000)]


# -- where holes cannot be punched -----------------------------------------------------------------


@pytest.fixture
def no_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot punch holes."""

    def refuse(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(kernel, "punch_hole", refuse)


class Place:
    """A log with its writer and a pipe to feed it from."""

    def __init__(self, directory: Path, cap: int) -> None:
        self.path = str(directory / "proc.log")
        self.head = str(directory / "proc.head")
        self.cap = cap
        self.written = 0
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.writer = LogWriter(self.path, self.head, cap, new=True)

    def feed(self, count: int) -> None:
        while count > 0:
            piece = expected(self.written, min(count, 65536))
            os.write(self._write, piece)
            self.written += len(piece)  # in the pipe: a crash leaves it there for the next writer
            count -= len(piece)
            self.drain()

    def drain(self) -> None:
        try:
            while self.writer.take(self._read, 1 << 20):
                pass
        except BlockingIOError:
            return

    def reopen(self) -> None:
        """What the next worker does."""
        self.writer.close()
        self.writer = LogWriter(self.path, self.head, self.cap)

    def taken(self) -> int:
        sizes = [os.stat(path).st_size for path in self.files()]
        return sum(sizes)

    def files(self) -> list[str]:
        return [path for path in (self.path, self.path + ".old") if os.path.exists(path)]

    def check(self) -> int:
        """Read all that is kept, and return where it begins."""
        log = Log(self.path, self.head)
        account = Account()
        while (output := log.read(account.position, 300_000)).data or output.gap:
            account.add(output)
        assert account.position == self.writer.size == self.written
        assert account.gaps == self.writer.begin
        first = log.lines(0, 1)
        assert (first.first_line, first.gap) == divmod(account.gaps, 16), "lines keep their numbers"
        return account.gaps

    def close(self) -> None:
        self.writer.close()
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path, 4 * MIB)
    yield place
    place.close()


@pytest.mark.usefixtures("no_holes")
def test_where_holes_cannot_be_punched_the_log_is_rotated_within_its_cap(place: Place) -> None:
    begin = 0
    while place.written < 20 * MIB:
        place.feed(200_000)
        assert place.taken() <= place.cap + 64 * 1024
        now = place.check()
        assert now >= begin, "what was freed stays freed"
        begin = now
        assert place.written - begin >= min(place.written, place.cap // 2)
    assert begin > 0
    assert len(place.files()) == 2


@pytest.mark.usefixtures("no_holes")
def test_the_last_bytes_for_the_outbox_reach_back_into_the_rotated_file(place: Place) -> None:
    while not os.path.exists(place.path + ".old"):
        place.feed(65536)
    assert os.stat(place.path).st_size < 8192
    assert place.writer.tail(8192) == expected(place.written - 8192, 8192)


@pytest.mark.usefixtures("no_holes")
def test_a_rotated_log_is_cleared_and_goes_on(place: Place) -> None:
    place.feed(9 * MIB)
    place.writer.clear()
    assert place.check() == place.written
    assert place.taken() == 0
    place.writer.clear()
    place.feed(100_000)
    assert place.check() == place.written - 100_000
    place.reopen()
    place.feed(9 * MIB)
    place.check()


class Crash(BaseException):
    """The keeper dies here."""


def crash_before_renaming(patch: pytest.MonkeyPatch) -> None:
    def rename(source: str, target: str) -> None:
        raise Crash

    patch.setattr(os, "rename", rename)


def crash_after_renaming(patch: pytest.MonkeyPatch) -> None:
    def open_private(path: str, flags: int) -> int:
        raise Crash

    patch.setattr(log_writer, "open_private", open_private)


def crash_with_the_older_file_given_up(patch: pytest.MonkeyPatch) -> None:
    def spoil_head(path: str, head: object) -> None:
        raise Crash

    patch.setattr(log_writer, "spoil_head", spoil_head)


def crash_with_a_new_log(patch: pytest.MonkeyPatch) -> None:
    def write_head(path: str, head: LogHead) -> None:
        if head.begin < head.base:
            raise Crash
        log_head.write_head(path, head)

    patch.setattr(log_writer, "write_head", write_head)


@pytest.mark.usefixtures("no_holes")
@pytest.mark.parametrize("earlier", [0, 1, 3])
@pytest.mark.parametrize(
    "crash",
    [
        crash_with_the_older_file_given_up,
        crash_before_renaming,
        crash_after_renaming,
        crash_with_a_new_log,
    ],
)
def test_a_crash_in_the_middle_of_a_rotation_loses_no_byte(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    crash: Callable[[pytest.MonkeyPatch], None],
    earlier: int,
) -> None:
    """The next writer finishes or undoes it: offsets go on and every kept byte is right."""
    rotations = 0
    while rotations < earlier:
        base = read_head(place.head).base
        place.feed(65536)
        rotations += read_head(place.head).base != base
    begin = place.check()
    with monkeypatch.context() as patch:
        crash(patch)
        with contextlib.suppress(Crash):
            while place.written < 50 * MIB:
                place.feed(65536)
                begin = place.check()
    assert place.written < 50 * MIB, "it crashed in the middle"
    place.reopen()
    place.drain()
    assert place.check() >= begin
    assert place.written - place.writer.begin >= place.cap // 2
    place.feed(5 * MIB)
    assert place.check() > begin
    assert place.taken() <= place.cap + 64 * 1024


@pytest.mark.usefixtures("no_holes")
def test_a_rotated_log_is_followed_without_a_wrong_byte(place: Place) -> None:
    """A reader that goes on between writes sees both files as one log."""
    log = Log(place.path, place.head)
    account = Account()
    for turn in range(150):
        place.feed(150_000)
        if turn % 3 == 0:
            account.add(log.read(account.position, 400_000))
    while (output := log.read(account.position, 1 << 20)).data or output.gap:
        account.add(output)
    assert account.position == place.written
    log.close()


def test_a_freed_head_survives_a_new_writer(place: Place) -> None:
    """With holes: what a writer freed stays freed for the one that takes over."""
    place.feed(9 * MIB)
    begin = place.check()
    assert begin > 0
    place.reopen()
    assert place.check() == begin
    place.feed(9 * MIB)
    assert place.check() > begin
    assert os.stat(place.path).st_blocks * 512 <= place.cap + 2 * MIB
