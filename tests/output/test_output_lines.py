"""Lines keep their numbers for good, whatever is written, cleared, freed, or killed meanwhile."""

from __future__ import annotations

import binascii
import contextlib
import errno
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Output, SyncClient, SyncProcess
from holdfast.client.link import run
from holdfast.core.log_head import LogHead, Tally, broken_head, read_head, spoil_head, write_head
from holdfast.keeper import log_writer
from holdfast.keeper.log_writer import LogWriter
from holdfast.linux import kernel
from holdfast.output import log as _output
from holdfast.output.log import Log
from holdfast.output.search import search
from holdfast.testing import wait_until

pytestmark = pytest.mark.shared_keeper

MIB = 1 << 20
NUMBERS = 262147  # after so many lines ``children/writes_pattern.py`` begins again


def naive_lines(data: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


def refuse_holes(fd: int, offset: int, length: int) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory where making and removing thousands of files takes no time."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pump and readers that do with a few bytes what they do with mebibytes."""
    monkeypatch.setattr(log_writer, "_BLOCK", 4)
    monkeypatch.setattr(log_writer, "_PIECE", 16)
    monkeypatch.setattr(log_writer, "_COUNTED", 24)
    monkeypatch.setattr(log_writer, "_COUNT_PIECE", 7)
    monkeypatch.setattr(_output, "_FIRST_BLOCK", 5)
    monkeypatch.setattr(_output, "_SCAN", 40)
    monkeypatch.setattr(_output, "_MARK", 16)


class Model:
    """A log, its writer, and all that was ever written to it."""

    def __init__(self, directory: Path) -> None:
        self.path, self.head = str(directory / "proc.log"), str(directory / "proc.head")
        self.data = b""
        self.writer = LogWriter(self.path, self.head, 64, new=True)
        self.reader = self.log()  # which remembers what it once counted

    def log(self) -> Log:
        return Log(self.path, self.head)

    def write(self, data: bytes) -> None:
        self.data += data
        self.writer.append(data)

    def reopen(self) -> None:
        """What the next worker does; what the last one did not get into the log is lost here."""
        with contextlib.suppress(OSError):  # it may have been killed between two files
            self.writer.close()
        self.writer = LogWriter(self.path, self.head, 64)
        self.data = self.data[: self.writer.size]

    def clear(self, counted: bool) -> None:
        self.writer.clear(self.reader.tally() if counted else None)

    def check(self, log: Log, first: int, count: int) -> None:
        """Each line is the one of that number, or is told to be gone."""
        lines = naive_lines(self.data)
        begin = self.writer.begin
        kept = self.data.count(b"\n", 0, begin)
        wanted = first if first >= 0 else max(len(lines) + first, 0)
        output = log.lines(first, count)
        assert output.first_line == max(wanted, kept)
        assert output.gone == output.first_line - wanted
        lost = begin - (self.data.rfind(b"\n", 0, begin) + 1) if wanted <= kept else 0
        assert output.gap == lost
        page = b"".join(lines[output.first_line : output.first_line + count])
        assert output.data == page[lost:]
        assert output.next_line == output.first_line + page.count(b"\n")
        assert output.start == begin or not lost
        assert self.data[output.start : output.end] == output.data

    def check_all(self) -> None:
        for log in (self.log(), self.reader):
            for first in range(-3, self.data.count(b"\n") + 3):
                self.check(log, first, 2)

    def close(self) -> None:
        self.writer.close()


STEPS = st.one_of(
    st.tuples(st.just("write"), st.lists(st.sampled_from([b"\n", b"a", b"bcd", b"e" * 30]))),
    st.tuples(st.just("clear"), st.booleans()),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("read"), st.booleans(), st.integers(-9, 99), st.integers(0, 9)),
)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("holes", [True, False], ids=["holes", "rotation"])
def test_a_line_is_the_one_of_its_number_whatever_was_freed(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool
) -> None:
    """Against a model that keeps every line, with a reader that remembers and one that does not."""
    if not holes:
        monkeypatch.setattr(kernel, "punch_hole", refuse_holes)
    freed = 0

    @given(steps=st.lists(STEPS, max_size=30))
    @settings(deadline=None, max_examples=150)
    def run(steps: list[tuple[Any, ...]]) -> None:
        nonlocal freed
        with tempfile.TemporaryDirectory(dir=memory_path) as directory:
            model = Model(Path(directory))
            for step in steps:
                match step:
                    case ("write", pieces):
                        model.write(b"".join(pieces))
                    case ("clear", counted):
                        model.clear(counted)
                    case ("reopen",):
                        model.reopen()
                    case ("read", remembers, first, count):
                        model.check(model.reader if remembers else model.log(), first, count)
            model.check_all()
            freed += model.writer.begin > 0
            model.close()

    run()
    assert freed > 10


class Crash(BaseException):
    """The keeper dies here."""


class Dying:
    """Dies just before the `step`-th of the calls that change something."""

    def __init__(self, step: int) -> None:
        self.left = step
        self.died = False
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Dying:
        for name in ("pwrite", "rename", "open", "unlink"):
            self._patch.setattr(os, name, self._wrapped(getattr(os, name)))
        self._patch.setattr(kernel, "punch_hole", self._wrapped(kernel.punch_hole))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self.died = True
                raise Crash
            return call(*args, **more)

        return wrapper


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("cleared", [False, True], ids=["cap", "clear"])
@pytest.mark.parametrize("holes", [True, False], ids=["holes", "rotation"])
def test_a_crash_between_any_two_steps_leaves_the_right_numbers(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool, cleared: bool
) -> None:
    if not holes:
        monkeypatch.setattr(kernel, "punch_hole", refuse_holes)
    step = 0
    died = True
    while died:
        step += 1
        directory = memory_path / str(step)
        directory.mkdir()
        model = Model(directory)
        number = 0
        with Dying(step) as dying, contextlib.suppress(Crash):
            for number in range(36):
                model.write(b"%d,\n%d" % (number, number * 7))
                if cleared and number % 20 == 13:
                    model.clear(counted=False)
        died = dying.died
        model.reopen()
        model.check_all()
        for number in range(30):
            model.write(b"%d;\n" % number)
        model.check_all()
        model.clear(counted=True)
        model.write(b"last")
        model.check_all()
        model.close()
    assert step > 40


@pytest.mark.usefixtures("small")
def test_what_a_pump_was_killed_before_giving_back_is_given_back_by_the_next(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head says that it is gone; the bytes are still there."""
    model = Model(memory_path)

    def die(fd: int, offset: int, length: int) -> None:
        if length > 4:
            raise Crash

    with monkeypatch.context() as patch, contextlib.suppress(Crash):
        patch.setattr(kernel, "punch_hole", die)
        for number in range(60):
            model.write(b"secret %d\n" % number)
    assert model.writer.begin > 0
    model.reopen()
    model.clear(counted=True)
    assert Path(model.path).read_bytes().strip(b"\0") == b""
    model.check_all()
    model.close()


@pytest.mark.usefixtures("small")
def test_a_log_that_is_cleared_again_and_again_keeps_its_file(memory_path: Path) -> None:
    """Where there is nothing to give back nothing is asked of the file system."""
    model = Model(memory_path)
    for size in (0, 8, 0, 4, 3, 0):
        model.write(b"x" * size)
        model.clear(counted=False)
        model.check_all()
    assert read_head(model.head).base == 0
    assert not os.path.exists(model.path + ".old")
    model.close()


# -- heads -----------------------------------------------------------------------------------------


def earlier_head(begin: int, base: int, old_base: int, *, spoiled: bool = False) -> bytes:
    """A head as it was before lines had numbers."""
    body = struct.pack("<QQQ", begin, base, old_base)
    checksum = binascii.crc32(body) ^ (0xFFFFFFFF if spoiled else 0)
    return body + checksum.to_bytes(4, "little")


def test_a_head_of_an_earlier_version_is_read_and_its_lines_are_counted_from_there(
    tmp_path: Path,
) -> None:
    """Nobody knows how many lines were freed before; from then on numbers are kept."""
    model = Model(tmp_path)
    model.writer.close()
    data = b"".join(b"%d\n" % number for number in range(1000))
    Path(model.path).write_bytes(data)
    begin = data.index(b"500\n")
    Path(model.head).write_bytes(earlier_head(begin, 0, 0))
    Path(model.head).chmod(0o600)
    assert read_head(model.head) == LogHead(begin, 0, 0, None)
    log = model.log()
    assert log.lines(0, 1).text == "500\n"
    writer = LogWriter(model.path, model.head, 4 * MIB)
    writer.append(b"1000\n")
    writer.clear()
    writer.append(b"1001\n")
    writer.close()
    output = log.lines(0, 1)
    assert (output.text, output.first_line, output.gone) == ("1001\n", 501, 501)


def test_a_head_is_read_by_earlier_versions_and_may_be_written_over_by_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "head"
    write_head(str(path), LogHead(100, 50, 20, 7, 96))
    assert read_head(str(path)) == LogHead(100, 50, 20, 7, 96)
    earlier = earlier_head(100, 50, 20)
    assert path.read_bytes()[: len(earlier)] == earlier
    with path.open("r+b") as file:
        file.write(earlier_head(200, 50, 20))
    assert read_head(str(path)) == LogHead(200, 50, 20, None)


def test_a_rotation_that_an_earlier_version_left_half_done_is_finished(tmp_path: Path) -> None:
    model = Model(tmp_path)
    model.writer.close()
    Path(model.path).unlink()
    Path(model.path + ".old").write_bytes(b"one\ntwo\n")
    Path(model.path + ".old").chmod(0o600)
    Path(model.head).write_bytes(earlier_head(0, 20, 0, spoiled=True))
    Path(model.head).chmod(0o600)
    assert broken_head(model.head) == LogHead(0, 20, 0)
    writer = LogWriter(model.path, model.head, 4 * MIB)
    assert (writer.begin, writer.size) == (20, 28)
    writer.append(b"three\n")
    writer.close()
    log = model.log()
    assert log.lines(1, 5).text == "two\nthree\n"
    assert log.lines(0, 1) == Output(b"one\n", 20, 24, more=True, first_line=0)


def test_a_spoiled_head_keeps_its_lines(tmp_path: Path) -> None:
    path = str(tmp_path / "head")
    spoil_head(path, LogHead(100, 50, 20, 7, 96))
    assert broken_head(path) == LogHead(100, 50, 20, 7, 96)


@pytest.mark.parametrize(
    "sent", [None, {}, [1, 2], [1, 2, "3"], [5, 1, 6], [5, 1, -1], [1.0, 2, 3], "abc"]
)
def test_a_count_that_makes_no_sense_is_none(sent: object) -> None:
    assert Tally.of(sent) is None


# -- paging ----------------------------------------------------------------------------------------


class Reads:
    """How many bytes are read meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total = 0
        pread = os.pread

        def counted(fd: int, size: int, offset: int) -> bytes:
            data = pread(fd, size, offset)
            self.total += len(data)
            return data

        monkeypatch.setattr(os, "pread", counted)

    def taken(self) -> int:
        total, self.total = self.total, 0
        return total


def test_one_page_after_another_reads_a_log_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And then every page is found without reading more than a mebibyte to get there."""
    data = b"".join(b"%063d\n" % number for number in range(8 * MIB // 64))
    path = tmp_path / "proc.log"
    path.write_bytes(data)
    log = Log(str(path), str(tmp_path / "proc.head"))
    reads = Reads(monkeypatch)
    pages = []
    number: int | None = 0
    while (output := log.lines(number or 0, 1000)).data:
        assert output.first_line == number
        pages.append(output.data)
        number = output.next_line
    assert b"".join(pages) == data
    assert number == len(data) // 64
    assert reads.taken() < 2 * len(data)
    log.lines(-1, 1)
    for first in (100_000, 3, 77_777, 131_000):
        reads.taken()
        assert log.lines(first, 2).data == b"%063d\n%063d\n" % (first, first + 1)
        assert reads.taken() < 2 * MIB


def test_a_page_goes_on_with_a_line_that_was_not_finished(tmp_path: Path) -> None:
    path = tmp_path / "proc.log"
    path.write_bytes(b"one\ntwo\nthr")
    log = Log(str(path), str(tmp_path / "proc.head"))
    page = log.lines(1, 10)
    assert (page.text, page.first_line, page.next_line) == ("two\nthr", 1, 2)
    with path.open("ab") as file:
        file.write(b"ee\nfour\n")
    page = log.lines(2, 10)
    assert (page.text, page.next_line) == ("three\nfour\n", 4)
    assert log.lines(4, 10) == Output(b"", 19, 19, first_line=4)
    assert log.lines(40, 10) == Output(b"", 19, 19, first_line=40)
    assert log.lines(3, 10).text == "four\n"


def test_a_line_too_long_for_a_page_does_not_stop_the_paging(tmp_path: Path) -> None:
    path = tmp_path / "proc.log"
    path.write_bytes(b"x" * 100 + b"\nshort\n")
    log = Log(str(path), str(tmp_path / "proc.head"))
    page = log.lines(0, 5, max_bytes=40)
    assert (len(page.data), page.cut, page.next_line) == (40, True, 1)
    assert log.lines(1, 5, max_bytes=40).text == "short\n"


def test_a_search_tells_the_numbers_that_lines_takes(tmp_path: Path) -> None:
    """Also behind a freed head, and far from it once somebody was there."""
    path, head = str(tmp_path / "proc.log"), str(tmp_path / "proc.head")
    writer = LogWriter(path, head, MIB, new=True)
    for number in range(40_000):
        writer.append(b"%09d, as long as lines in logs often are ......................\n" % number)
    assert writer.begin > 0
    log = Log(path, head)
    found = search({"": log}, "00039990", first=1)
    assert [match.line for match in found.matches] == [39_990]
    assert log.lines(39_990, 1).text.startswith(found.matches[0].text[:9])
    writer.close()
    # Too far to be counted for it, until somebody has.
    writer = LogWriter(path, head, 64 * MIB)
    for number in range(40_000, 240_000):
        writer.append(b"%09d, as long as lines in logs often are ......................\n" % number)
    writer.close()
    assert search({"": log}, "000239990").matches[0].line is None
    assert log.lines(-1, 1).first_line == 239_999
    assert [match.line for match in search({"": log}, "00023999").matches] == list(
        range(239_990, 240_000)
    )


# -- a real keeper ---------------------------------------------------------------------------------


def check_page(output: Output) -> None:
    """What ``writes_pattern`` wrote at these numbers, with nothing that is not told."""
    assert output.first_line is not None
    assert output.first_line * 16 + output.gap == output.start
    lines = b"".join(
        b"%015d\n" % (number % NUMBERS)
        for number in range(output.first_line, output.first_line + 1 + len(output.data) // 16)
    )
    assert output.data == lines[output.gap : output.gap + len(output.data)]


def page_through(process: SyncProcess, size: int = 2000) -> tuple[int, int]:
    """All lines from the first on, while it runs; how many came and how many were gone."""
    came = gone = number = 0
    while True:
        running = process.refresh().running
        output = process.lines(number, size)
        check_page(output)
        assert output.first_line == number + output.gone
        gone += output.gone
        came += output.data.count(b"\n")
        number = output.next_line or 0
        assert came + gone == number
        if not output.data and not running:
            return came, gone


def test_pages_of_a_flood_are_numbered_right_though_its_head_is_freed(
    hf: SyncClient, child: Callable[..., list[str]]
) -> None:
    """A reader that is overtaken is told how many lines it missed."""
    total = 60 * MIB
    process = hf.spawn(child("writes_pattern", str(total), "0"), log_cap=MIB)
    came, gone = page_through(process)
    assert came + gone == total // 16
    assert gone > 0
    last = process.lines(-3, 3)
    check_page(last)
    assert (last.first_line, last.data.count(b"\n")) == (total // 16 - 3, 3)
    first = process.lines(0, 10)
    assert first.gone == first.first_line
    (match,) = process.search(last.text.split()[-1], last=1).matches
    assert match.line == total // 16 - 1


@pytest.mark.own_keeper
def test_a_worker_killed_while_it_frees_counts_no_line_twice_and_misses_none(
    hf: SyncClient, child: Callable[..., list[str]]
) -> None:
    process = hf.spawn(child("writes_pattern", str(1 << 50), "0"), log_cap=MIB)

    def begin() -> int:
        return process.read_at(0, 0).start

    for _ in range(12):
        worker = hf.keeper_status()["worker"]
        before = begin()
        wait_until(lambda before=before: begin() > before)  # type: ignore[misc]
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda worker=worker: hf.keeper_status()["worker"] != worker)  # type: ignore[misc]
        for first in (0, begin() // 16 + 1000, -2000):
            check_page(process.lines(first, 1000))
    process.kill()
    size = process.tail_bytes(0).end
    end = process.lines(size // 16 - 1, 5)
    check_page(end)
    assert end.end == size


def test_numbers_go_on_after_a_clear(hf: SyncClient) -> None:
    """Also in the middle of a line: what is left of it has the number it had."""
    process = hf.spawn("cat", stdin=True, stderr="separate")
    process.send(b"zero\none\ntw")
    wait_until(lambda: process.tail_bytes(0).end == 11)
    process.clear()
    empty = process.lines(0, 10)
    assert (empty.data, empty.first_line, empty.gone, empty.gap) == (b"", 2, 2, 2)
    process.send(b"o\nthree\n", eof=True)
    assert process.wait(20).ok
    page = process.lines(-2, 2)
    assert (page.text, page.first_line, page.gone, page.gap) == ("o\nthree\n", 2, 0, 2)
    assert process.lines(3, 1) == Output(b"three\n", 13, 19, first_line=3)
    process.clear()  # of an ended process
    assert process.lines(0, 1) == Output(b"", 19, 19, first_line=4, gone=4)


def test_a_clear_by_a_client_that_counts_nothing_keeps_the_numbers(hf: SyncClient) -> None:
    """As clients of earlier versions do, and some that send nonsense."""
    process = hf.spawn("cat", stdin=True)
    name = os.path.basename(process.record.log)
    for number, counted in enumerate((None, 7, {name: "x"}, {name: [1 << 40, 5, 5]})):
        process.send(b"one\ntwo\n")
        wait_until(lambda number=number: process.tail_bytes(0).end == 8 * number + 8)  # type: ignore[misc]
        run(hf._client._link.call("clear", {"handle": process.handle, "counted": counted}))
        output = process.lines(0, 1)
        assert (output.first_line, output.gone) == (2 * number + 2, 2 * number + 2)
    process.kill()


def test_threads_share_a_log_and_its_numbers(
    hf: SyncClient, child: Callable[..., list[str]]
) -> None:
    process = hf.spawn(child("writes_pattern", str(30 * MIB), "0"), log_cap=8 * MIB)
    failures: list[BaseException] = []

    def read(size: int) -> None:
        try:
            came, gone = page_through(process, size)
            assert came + gone == 30 * MIB // 16
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=[size]) for size in (700, 5000, 40_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# -- the command line ------------------------------------------------------------------------------


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "holdfast", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_logs_shows_lines_by_number(hf: SyncClient) -> None:
    process = hf.spawn("seq 0 99; printf unfinished")
    process.wait(20)
    handle = process.handle
    assert cli("logs", handle, "--lines", "10:3").stdout == "10\n11\n12\n"
    assert cli("logs", handle, "--lines", "-2:2").stdout == "99\nunfinished"
    assert cli("logs", handle, "--lines=500:3").stdout == ""
    page = json.loads(cli("logs", handle, "--lines", "98:50", "--json").stdout)
    assert page == {
        "handle": handle,
        "stream": "stdout",
        "text": "98\n99\nunfinished",
        "start": 284,
        "cursor": 300,
        "gap": 0,
        "first_line": 98,
        "next_line": 100,
        "gone": 0,
    }
    process.clear()
    done = cli("logs", handle, "--lines", "0:3")
    assert done.stdout == ""
    assert "100 lines before line 100 are gone" in done.stderr
    page = json.loads(cli("logs", handle, "--lines", "0:3", "--json").stdout)
    assert (page["first_line"], page["gone"], page["gap"]) == (100, 100, 10)


def test_logs_shows_lines_of_any_length(hf: SyncClient, child: Callable[..., list[str]]) -> None:
    """More than a mebibyte, which is what comes at once."""
    zeros = "head -c 3000000 /dev/zero | tr '\\0' x; echo; "
    process = hf.spawn("echo first; " + zeros + "seq 1 400000; echo after")
    process.wait(30)
    whole = b"".join(output.data for output in process.follow()).decode().splitlines(keepends=True)
    shown = cli("logs", process.handle, "--lines", "1:390000").stdout
    assert shown == "".join(whole[1:390_001])
    page = json.loads(cli("logs", process.handle, "--lines", "1:1", "--json").stdout)
    assert (len(page["text"]), page["first_line"], page["next_line"]) == (3_000_001, 1, 2)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "wrong", [["--lines", "5"], ["--lines", "a:b"], ["--lines", "1:-1"], ["--lines", "1:2:3"]]
)
def test_logs_says_how_lines_are_asked_for(wrong: list[str]) -> None:
    done = cli("logs", "proc-none", *wrong)
    assert done.returncode == 125
    assert "FIRST:COUNT" in done.stderr


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("other", [["-n", "5"], ["--since", "6"], ["-f"]])
def test_logs_lines_are_a_page_of_their_own(other: list[str]) -> None:
    done = cli("logs", "proc-none", "--lines", "0:5", *other)
    assert done.returncode == 125
    assert "--lines" in done.stderr
