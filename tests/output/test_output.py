"""Reading logs: every byte returned is the one at its offset, whatever the pump does meanwhile."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.errors import BadRequest, StoreError
from holdfast.core.log_head import LogHead, spoil_head, write_head
from holdfast.output import log as _output
from holdfast.output.log import Log, Output

# A log whose every line tells its own offset, so that a wrong byte cannot pass for a right one.
PERIOD = 4 << 20
PATTERN = b"".join(b"%015d\n" % number for number in range(PERIOD // 16))

property_test = settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def expected(start: int, size: int) -> bytes:
    at = start % PERIOD
    data = PATTERN[at : at + size]
    while len(data) < size:
        data += PATTERN[: size - len(data)]
    return data


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    path.chmod(0o600)


class Place:
    """The files of one log."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "proc.log"
        self.old = directory / "proc.log.old"
        self.head = directory / "proc.head"

    def log(self, data: bytes | None = None) -> Log:
        if data is not None:
            write(self.path, data)
        return Log(str(self.path), str(self.head))

    def append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def free(self, begin: int) -> None:
        """As the pump does: first the head, then the bytes."""
        write_head(str(self.head), LogHead(begin))
        with self.path.open("r+b") as file:
            file.write(bytes(begin))

    def rotate(self, base: int, end: int) -> None:
        """As the pump does where holes cannot be punched: [base, end) becomes the older file."""
        spoil_head(str(self.head), LogHead(base, base))
        self.path.rename(self.old)
        write(self.path, b"")
        write_head(str(self.head), LogHead(base, end, base))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory where making and removing thousands of files takes no time."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        yield Path(directory)


def naive_lines(data: bytes) -> list[bytes]:
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


# -- ranges ------------------------------------------------------------------------------------


def test_a_log_without_files_is_empty(place: Place) -> None:
    log = place.log()
    assert (log.begin(), log.size()) == (0, 0)
    for output in (log.read(0, 10), log.tail_bytes(10), log.tail_lines(10)):
        assert output == Output(b"", 0, 0)
    assert log.lines(0, 10) == Output(b"", 0, 0, first_line=0)


def test_a_range_says_where_it_ends_and_whether_there_is_more(place: Place) -> None:
    log = place.log(b"hello world")
    assert log.read(0, 5) == Output(b"hello", 0, 5, more=True)
    assert log.read(6, 5) == Output(b"world", 6, 11)
    assert log.read(6, 500) == Output(b"world", 6, 11)
    assert log.read(3, 0) == Output(b"", 3, 3, more=True)


def test_reading_past_the_end_stays_there_until_the_log_gets_there(place: Place) -> None:
    log = place.log(b"abc")
    assert log.read(5, 10) == Output(b"", 5, 5)
    place.append(b"defg")
    assert log.read(5, 10) == Output(b"fg", 5, 7)


def test_what_is_appended_is_seen_by_the_same_log(place: Place) -> None:
    log = place.log(b"one\n")
    assert log.read(0, 100).data == b"one\n"
    place.append(b"two\n")
    assert log.read(4, 100) == Output(b"two\n", 4, 8)
    assert log.tail_lines(1).data == b"two\n"
    assert log.size() == 8


def test_a_log_that_appears_later_is_found(place: Place) -> None:
    log = place.log()
    assert log.read(0, 10).data == b""
    write(place.path, b"here")
    assert log.read(0, 10).data == b"here"


def test_a_removed_log_is_empty_even_if_it_was_kept_open(place: Place) -> None:
    log = place.log(b"x" * 100)
    place.free(50)
    assert log.read(60, 10).data == b"x" * 10
    place.path.unlink()
    place.head.unlink()
    assert log.read(60, 10) == Output(b"", 60, 60)
    assert log.read(0, 10) == Output(b"", 0, 0)


@given(data=st.binary(max_size=400), limits=st.lists(st.integers(1, 90), min_size=1))
@property_test
def test_reading_by_any_limits_gives_the_whole(
    place: Place, data: bytes, limits: list[int]
) -> None:
    log = place.log(data)
    pieces, offset, turn = [], 0, 0
    while (output := log.read(offset, limits[turn % len(limits)])).data:
        assert (output.start, output.end) == (offset, offset + len(output.data))
        assert output.more == (output.end < len(data))
        pieces.append(output.data)
        offset, turn = output.end, turn + 1
    assert b"".join(pieces) == data


def test_numbers_that_make_no_sense_are_refused(place: Place) -> None:
    log = place.log(b"abc")
    asked: list[Callable[[], Output]] = [
        lambda: log.read(-1, 5),
        lambda: log.read(0, -5),
        lambda: log.read(1 << 70, 5),
        lambda: log.tail_lines(-1),
        lambda: log.tail_lines(1, -1),
        lambda: log.tail_bytes(-1),
        lambda: log.lines(0, -1),
    ]
    for wrong in asked:
        with pytest.raises(BadRequest):
            wrong()


def test_text_replaces_what_is_not_utf8_and_keeps_nul(place: Place) -> None:
    log = place.log(b"a\0b\xff\xc3\xa4")
    assert log.read(0, 100).text == "a\0b\ufffd\u00e4"


def test_the_repr_is_short_and_says_what_matters() -> None:
    shown = repr(Output(b"x" * 5000, 10, 5010, gap=10, more=True))
    assert shown.startswith("<Output 10:5010 b'xxx")
    assert shown.endswith("... gap=10 more>")
    assert len(shown) < 100
    assert repr(Output(b"a", 0, 1)) == "<Output 0:1 b'a'>"
    assert repr(Output(b"a", 9, 10, first_line=0, gone=4)).endswith("b'a' first_line=0 gone=4>")


# -- tails -------------------------------------------------------------------------------------


def test_the_last_bytes(place: Place) -> None:
    log = place.log(b"0123456789")
    assert log.tail_bytes(3) == Output(b"789", 7, 10)
    assert log.tail_bytes(100) == Output(b"0123456789", 0, 10)
    assert log.tail_bytes(0) == Output(b"", 10, 10)


def test_a_last_line_without_a_line_end_counts(place: Place) -> None:
    log = place.log(b"one\ntwo\nthr")
    assert log.tail_lines(1) == Output(b"thr", 8, 11)
    assert log.tail_lines(2) == Output(b"two\nthr", 4, 11)
    assert log.tail_lines(0) == Output(b"", 11, 11)


@given(
    data=st.lists(st.sampled_from([b"\n", b"\r", b"\0", b"a", b"bb", b"\xff", b"\xc3\xa4"])).map(
        b"".join
    ),
    n=st.integers(0, 40),
    block=st.integers(1, 20),
)
@property_test
def test_the_last_lines_are_the_naive_ones(place: Place, data: bytes, n: int, block: int) -> None:
    log = place.log(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_output, "_FIRST_BLOCK", block)
        output = log.tail_lines(n)
    wanted = b"".join(naive_lines(data)[len(naive_lines(data)) - n :] if n else [])
    if n > len(naive_lines(data)):
        wanted = data
    assert output == Output(wanted, len(data) - len(wanted), len(data))


@given(
    data=st.lists(st.sampled_from([b"\n", b"a", b"bbb"])).map(b"".join),
    n=st.integers(1, 20),
    max_bytes=st.integers(1, 30),
    block=st.integers(1, 20),
)
@property_test
def test_last_lines_beyond_the_bytes_allowed_are_cut_at_the_front(
    place: Place, data: bytes, n: int, max_bytes: int, block: int
) -> None:
    log = place.log(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_output, "_FIRST_BLOCK", block)
        output = log.tail_lines(n, max_bytes)
    lines = naive_lines(data)[-n:]
    cut = len(b"".join(lines)) > max_bytes
    while len(lines) > 1 and len(b"".join(lines)) > max_bytes:
        lines.pop(0)
    wanted = b"".join(lines)[-max_bytes:]
    assert output == Output(wanted, len(data) - len(wanted), len(data), cut=cut)


def test_a_line_cut_at_its_front_does_not_begin_inside_a_character(place: Place) -> None:
    log = place.log("ä€😀".encode() * 100)
    for max_bytes in range(10, 40):
        output = log.tail_lines(1, max_bytes)
        assert "\ufffd" not in output.text
        assert output.cut
        assert max_bytes - 4 < len(output.data) <= max_bytes


def test_a_line_of_fifty_megabytes_costs_no_more_than_what_is_returned(place: Place) -> None:
    with place.path.open("wb") as file:
        for _ in range(50):
            file.write(b"x" * 1_000_000)
    place.path.chmod(0o600)
    log = place.log()
    tracemalloc.start()
    try:
        last = log.tail_lines(50)
        first = log.lines(0, 3)
        missing = log.lines(1, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (last.start, last.end, last.cut, last.gap) == (
        50_000_000 - (1 << 20),
        50_000_000,
        True,
        0,
    )
    assert (first.start, first.end, first.cut, first.more) == (0, 1 << 20, True, True)
    assert missing == Output(b"", 50_000_000, 50_000_000, first_line=1)
    assert peak < 8 << 20


# -- lines by number ---------------------------------------------------------------------------


@given(
    data=st.lists(st.sampled_from([b"\n", b"a", b"bbb", b"\xff"])).map(b"".join),
    first=st.integers(-20, 20),
    count=st.integers(0, 20),
    max_bytes=st.integers(1, 30),
    block=st.integers(1, 20),
)
@property_test
def test_lines_by_number_are_the_naive_ones(
    place: Place, data: bytes, first: int, count: int, max_bytes: int, block: int
) -> None:
    log = place.log(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_output, "_FIRST_BLOCK", block)
        patch.setattr(_output, "_SCAN", block)
        output = log.lines(first, count, max_bytes)
    lines = naive_lines(data)
    if first < 0:
        first = max(len(lines) + first, 0)
    start = len(b"".join(lines[:first]))
    lines = lines[first : first + count]
    cut = len(b"".join(lines)) > max_bytes
    while len(lines) > 1 and len(b"".join(lines)) > max_bytes:
        lines.pop()
    wanted = b"".join(lines)[:max_bytes]
    end = start + len(wanted)
    assert output == Output(wanted, start, end, more=end < len(data), cut=cut, first_line=first)


def test_lines_far_inside_a_long_log(place: Place) -> None:
    log = place.log(PATTERN)
    for first in (0, 1, 65_535, 65_536, 200_001, PERIOD // 16 - 1):
        assert log.lines(first, 1).data == b"%015d\n" % first
    assert log.lines(PERIOD // 16, 1) == Output(b"", PERIOD, PERIOD, first_line=PERIOD // 16)
    assert log.lines(1000, 5000).data == PATTERN[16_000:96_000]


def test_lines_that_nobody_counted_are_numbered_from_the_first_that_is_kept(place: Place) -> None:
    """As a keeper of an earlier version leaves them."""
    log = place.log(PATTERN[:16_000])
    for begin, asked in ((160, (0, 5)), (192, (7, 0))):
        place.free(begin)
        for first in asked:
            start = begin + first * 16
            wanted = Output(PATTERN[start : start + 32], start, start + 32, more=True)
            wanted.first_line = first
            assert log.lines(first, 2) == wanted


# -- whole characters --------------------------------------------------------------------------


def read_whole(log: Log, limits: list[int]) -> list[Output]:
    outputs: list[Output] = []
    offset = 0
    while True:
        limit = limits[len(outputs) % len(limits)]
        output = log.read(offset, limit, whole_characters=True)
        if not output.data:
            assert not output.more
            output = log.read(offset, limit)
        if not output.data:
            return outputs
        outputs.append(output)
        offset = output.end


@given(text=st.text(max_size=200), limits=st.lists(st.integers(4, 20), min_size=1))
@property_test
def test_no_character_is_split(place: Place, text: str, limits: list[int]) -> None:
    text = text.replace("\x1b", "")
    outputs = read_whole(place.log(text.encode()), limits)
    assert "".join(output.data.decode() for output in outputs) == text


@given(data=st.binary(max_size=200), limits=st.lists(st.integers(1, 20), min_size=1))
@property_test
def test_any_bytes_come_through_whole(place: Place, data: bytes, limits: list[int]) -> None:
    outputs = read_whole(place.log(data), limits)
    assert b"".join(output.data for output in outputs) == data


SEQUENCES = (
    b"\x1b[31m",
    b"\x1b[38;5;196;1m",
    b"\x1b[?25l",
    b"\x1b[0 q",
    b"\x1b]0;title \xc3\xa4\x07",
    b"\x1b]8;;http://x/\x1b\\",
    b"\x1bP1$r0m\x1b\\",
    b"\x1b(B",
    b"\x1b7",
)


@given(
    parts=st.lists(
        st.sampled_from([*SEQUENCES, b"plain text ", "ä€😀".encode(), b"\n"]), max_size=80
    ),
    limits=st.lists(st.integers(40, 120), min_size=1),
)
@property_test
def test_no_control_sequence_is_split(place: Place, parts: list[bytes], limits: list[int]) -> None:
    data = b"".join(parts)
    outputs = read_whole(place.log(data), limits)
    assert b"".join(output.data for output in outputs) == data
    allowed, at = {0}, 0
    for part in parts:
        at += len(part)
        if part in SEQUENCES:
            allowed.add(at)
        else:
            allowed.update(range(at - len(part), at + 1))
    assert allowed.issuperset(output.end for output in outputs)


def test_an_unfinished_end_waits_for_the_rest(place: Place) -> None:
    log = place.log(b"ok \xe2\x82")
    assert log.read(0, 100, whole_characters=True) == Output(b"ok ", 0, 3)
    assert log.read(3, 100, whole_characters=True) == Output(b"", 3, 3)
    place.append(b"\xac!\x1b[3")
    assert log.read(3, 100, whole_characters=True) == Output(b"\xe2\x82\xac!", 3, 7)
    assert log.read(7, 100) == Output(b"\x1b[3", 7, 10)


def test_bytes_that_can_become_no_character_do_not_wait(place: Place) -> None:
    for data in (b"a\xff", b"a\x80\x80", b"a\xe0\x80", b"a\xf4\x90", b"a\xc3\xa4", b"a\xc0"):
        assert place.log(data).read(0, 100, whole_characters=True).data == data


def test_a_sequence_that_never_ends_is_not_waited_for_beyond_reason(place: Place) -> None:
    data = b"x\x1b]0;" + b"t" * 300
    assert place.log(data).read(0, 1000, whole_characters=True).data == data
    # A line end ends it: a prompt after a broken title is not held back.
    data = b"x\x1b]0;title\npassword: "
    assert place.log(data).read(0, 1000, whole_characters=True).data == data


def test_a_limit_too_small_for_a_character_still_moves_on(place: Place) -> None:
    log = place.log("😀😀".encode())
    assert log.read(0, 2, whole_characters=True) == Output(b"\xf0\x9f", 0, 2, more=True)
    log = place.log(b"\x1b[31m" + b"x" * 10)
    assert log.read(0, 3, whole_characters=True) == Output(b"\x1b[3", 0, 3, more=True)


# -- freed heads -------------------------------------------------------------------------------


def test_freed_bytes_are_a_gap(place: Place) -> None:
    log = place.log(PATTERN[:1000])
    assert log.read(0, 10).data == PATTERN[:10]
    place.free(400)
    assert log.begin() == 400
    assert log.size() == 1000
    assert log.read(100, 10) == Output(PATTERN[400:410], 400, 410, gap=300, more=True)
    assert log.read(400, 10) == Output(PATTERN[400:410], 400, 410, more=True)
    assert log.tail_bytes(5000) == Output(PATTERN[400:1000], 400, 1000)
    assert log.tail_lines(5000).start == 400


def test_a_cleared_log_is_empty_and_goes_on_where_it_was(place: Place) -> None:
    log = place.log(b"x" * 100)
    place.free(100)
    assert log.read(30, 10) == Output(b"", 100, 100, gap=70)
    assert log.tail_lines(5) == Output(b"", 100, 100)
    assert log.lines(0, 5) == Output(b"", 100, 100, first_line=0)
    place.append(b"new\n")
    assert log.read(30, 10) == Output(b"new\n", 100, 104, gap=70)
    assert log.lines(0, 5) == Output(b"new\n", 100, 104, first_line=0)


@pytest.mark.parametrize("kept", [False, True])
def test_a_head_freed_between_reading_and_looking_is_never_returned(
    place: Place, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    log = place.log(PATTERN[:1000])
    if kept:
        assert log.read(0, 1).data == PATTERN[:1]
    read = os.pread

    def free_then_read(fd: int, size: int, offset: int) -> bytes:
        monkeypatch.setattr(os, "pread", read)
        place.free(64)
        return read(fd, size, offset)

    monkeypatch.setattr(os, "pread", free_then_read)
    output = log.read(16, 160)
    assert (output.start, output.gap, output.more) == (64, 48, True)
    assert output.data == PATTERN[64 : output.end]
    assert output.end in (176, 224)  # what was read in vain may be read again or left out


def test_an_empty_head_file_means_nothing_was_freed(place: Place) -> None:
    """The keeper can be killed, or the disk be full, between making the file and writing it."""
    log = place.log(b"abc")
    write(place.head, b"")
    assert log.read(0, 10).data == b"abc"


# -- rotation ----------------------------------------------------------------------------------


def test_a_rotated_log_reads_as_one(place: Place) -> None:
    log = place.log(PATTERN[:1000])
    assert log.read(0, 10).data == PATTERN[:10]
    place.rotate(0, 1000)
    assert log.size() == 1000
    assert log.read(0, 5000) == Output(PATTERN[:1000], 0, 1000)
    place.append(PATTERN[1000:1600])
    assert log.read(0, 5000) == Output(PATTERN[:1600], 0, 1600)
    assert log.read(990, 20) == Output(PATTERN[990:1010], 990, 1010, more=True)
    assert log.read(1100, 20) == Output(PATTERN[1100:1120], 1100, 1120, more=True)
    assert log.tail_lines(90).data == PATTERN[1600 - 90 * 16 : 1600]
    assert log.lines(60, 10).data == PATTERN[960:1120]
    place.rotate(1000, 1600)
    place.append(PATTERN[1600:1700])
    assert log.read(500, 5000) == Output(PATTERN[1000:1700], 1000, 1700, gap=500)
    assert log.tail_bytes(5000) == Output(PATTERN[1000:1700], 1000, 1700)


def test_an_older_file_that_is_not_whole_is_a_gap(place: Place) -> None:
    log = place.log(PATTERN[:1000])
    place.rotate(0, 1000)
    place.append(PATTERN[1000:1100])
    write(place.old, PATTERN[:500])
    assert log.read(0, 5000) == Output(PATTERN[1000:1100], 1000, 1100, gap=1000)
    place.old.unlink()
    assert log.read(0, 5000) == Output(PATTERN[1000:1100], 1000, 1100, gap=1000)
    assert log.tail_lines(500).data == PATTERN[1000:1100]


def test_a_rotation_left_half_done_is_an_error_and_not_wrong_bytes(place: Place) -> None:
    log = place.log(PATTERN[1000:1600])
    write_head(str(place.head), LogHead(1000, 1000, 1000))
    assert log.read(1000, 10).data == PATTERN[1000:1010]
    spoil_head(str(place.head), LogHead(1000, 1000, 1000))
    with pytest.raises(StoreError, match="damaged"):
        log.read(1000, 10)


# -- the pump at every step of a reading ---------------------------------------------------------


class Pump:
    """What the keeper does to a log, one whole step at a time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.begin = self.base = self.old_base = self.size = 0
        self.removed = False
        write(place.path, b"")

    def append(self, size: int) -> None:
        self.place.append(expected(self.size, size))
        self.size += size

    def free(self, begin: int) -> None:
        self.begin = begin
        self._write_head()
        # Other bytes, not zeros: whoever returns a freed byte is found out.
        for path, base in ((self.place.path, self.base), (self.place.old, self.old_base)):
            if path.exists() and begin > base:
                with path.open("r+b") as file:
                    file.write(b"~" * min(begin - base, path.stat().st_size))

    def rotate(self) -> None:
        self.place.rotate(self.base, self.size)
        self.begin = max(self.begin, self.base)
        self.old_base, self.base = self.base, self.size
        self._write_head()
        self.append(320)

    def rotate_twice(self) -> None:
        self.rotate()
        self.rotate()

    def free_more(self) -> None:
        self.free(self.size - 800)

    def free_little(self) -> None:
        self.free(self.begin + 496)

    def free_and_remove(self) -> None:
        """The head that would tell what was freed goes too."""
        self.free_more()
        self.removed = True
        for path in (self.place.path, self.place.head, self.place.old):
            path.unlink(missing_ok=True)

    def _write_head(self) -> None:
        line, line_start = self.begin // 16, self.begin // 16 * 16
        head = LogHead(self.begin, self.base, self.old_base, line, line_start)
        write_head(str(self.place.head), head)


class Interrupted:
    """Runs `event` just before the `step`-th call into the kernel."""

    CALLS = ("open", "close", "fstat", "pread", "access")

    def __init__(self, step: int, event: Callable[[], None]) -> None:
        self.left = step
        self.event = event
        self.happened = False
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Interrupted:
        for name in self.CALLS:
            self._patch.setattr(os, name, self._wrapped(getattr(os, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def _wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                self._patch.undo()
                self.happened = True
                self.event()
            return call(*args, **more)

        return wrapper


READINGS: dict[str, Callable[[Log], Output]] = {
    "read": lambda log: log.read(320, 1200),
    "read near the end": lambda log: log.read(2400, 100_000),
    "tail_bytes": lambda log: log.tail_bytes(2000),
    "tail_lines": lambda log: log.tail_lines(100),
    "lines": lambda log: log.lines(40, 50),
    "last lines": lambda log: log.lines(-50, 50),
}


@pytest.mark.parametrize("kept", [False, True], ids=["fresh", "kept"])
@pytest.mark.parametrize(
    "event", ["free_little", "free_more", "rotate", "rotate_twice", "free_and_remove"]
)
@pytest.mark.parametrize("layout", ["whole", "freed", "rotated"])
def test_whatever_happens_at_any_step_of_a_reading_every_byte_is_right(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, event: str, kept: bool
) -> None:
    monkeypatch.setattr(_output, "_FIRST_BLOCK", 512)
    monkeypatch.setattr(_output, "_MARK", 768)
    for name, reading in READINGS.items():
        step = 0
        happened = True
        while happened:
            step += 1
            directory = memory_path / f"{name} {step}"
            directory.mkdir()
            place = Place(directory)
            pump = Pump(place)
            pump.append(1600)
            if layout == "rotated":
                pump.rotate()
            pump.append(1600)
            if layout == "freed":
                pump.free(160)
            log = place.log()
            if kept:
                check(log.read(pump.size - 16, 16))
                check(log.lines(10, 10))
            begin, size = pump.begin, pump.size
            with Interrupted(step, getattr(pump, event)) as interrupted:
                output = reading(log)
            happened = interrupted.happened
            check(output)
            if pump.removed and not output.data:
                log.close()
                continue
            if name.startswith("read"):
                asked = 320 if name == "read" else 2400
                assert output.start == asked + output.gap
                assert not output.gap or output.start == pump.begin
            elif name == "lines":
                assert output.start in {max(at, 640) for at in (begin, pump.begin)}
                assert output.first_line == output.start // 16 == 40 + output.gone
            elif name == "last lines":
                assert output.first_line == output.start // 16
                assert output.end in (size, pump.size)
                starts = {max(at, output.end - 800) for at in (begin, pump.begin)}
                assert output.start in starts
            else:
                assert output.end in (size, pump.size)
                wanted = 2000 if name == "tail_bytes" else 1600
                starts = {max(at, output.end - wanted) for at in (begin, pump.begin)}
                assert output.start in starts
            if not pump.removed:
                for reader in (log, place.log()):
                    rest = expected(pump.begin, pump.size - pump.begin)
                    assert reader.read(begin, 100_000) == Output(
                        rest, pump.begin, pump.size, gap=pump.begin - begin
                    )
                    assert reader.read(pump.size, 100_000) == Output(b"", pump.size, pump.size)
                    reader.close()
    assert open_files(memory_path) == 0


# -- a pump at work ----------------------------------------------------------------------------

PUMP_PROGRAM = """
import ctypes, os, sys, time
from holdfast.core.log_head import LogHead, spoil_head, write_head

path, head_path, how = sys.argv[1:]
period, piece, cap = 4 << 20, 48 << 10, 2 << 20
pattern = b"".join(b"%015d\\n" % number for number in range(period // 16)) * 2
os.set_blocking(0, False)
libc = ctypes.CDLL(None)
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
size = begin = base = 0
while True:
    os.pwrite(fd, pattern[size % period : size % period + piece], size - base)
    size += piece
    if how == "free" and size - begin > cap:
        before, begin = begin, size - cap // 2 - size % 4096 - 5
        write_head(head_path, LogHead(begin, 0, 0, begin // 16, begin // 16 * 16))
        os.pwrite(fd, b"~" * (begin - before), before)
        start = -(-before // 4096) * 4096
        libc.fallocate(fd, 3, ctypes.c_long(start), ctypes.c_long(begin // 4096 * 4096 - start))
    elif how == "rotate" and size - base > cap // 2:
        write_head(head_path, LogHead(base, base, begin, base // 16, base // 16 * 16))
        spoil_head(head_path, LogHead(base, base, begin, base // 16, base // 16 * 16))
        os.rename(path, path + ".old")
        os.close(fd)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        begin, base = base, size
        write_head(head_path, LogHead(begin, base, begin, begin // 16, begin // 16 * 16))
    try:
        if not os.read(0, 1):
            break
    except BlockingIOError:
        time.sleep(0.0001)
"""


def check(output: Output) -> None:
    assert output.end == output.start + len(output.data)
    assert output.data == expected(output.start, len(output.data)), output


def follow(log: Log, seen: list[int], until: float) -> None:
    """Read at a cursor, and let the pump overtake it now and then."""
    offset = gaps = reads = 0
    while (gaps < 10 or reads < 400) and time.monotonic() < until:
        while reads % 20 == 0 and log.begin() <= offset and time.monotonic() < until:
            time.sleep(0.001)
        output = log.read(offset, 100_000)
        check(output)
        assert output.start == offset + output.gap
        offset = output.end
        gaps += output.gap > 0
        reads += len(output.data) > 0
    seen.append(gaps)


@pytest.mark.parametrize("how", ["free", "rotate"])
def test_every_byte_is_right_while_a_pump_frees_the_head(place: Place, how: str) -> None:
    """Threads share the log, one at a cursor and one at its very edge, where freeing happens."""
    pump = subprocess.Popen(
        [sys.executable, "-c", PUMP_PROGRAM, str(place.path), str(place.head), how],
        stdin=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    seen: list[int] = []
    log = place.log()
    until = time.monotonic() + 30
    follower = threading.Thread(target=follow, args=(log, seen, until))
    try:
        while log.begin() == 0 and time.monotonic() < until:
            check(log.tail_bytes(100))
        follower.start()
        begins: set[int] = set()
        rounds = 0
        while (rounds < 150 or len(begins) < 20) and time.monotonic() < until:
            rounds += 1
            output = log.read(log.begin(), 1000)
            begins.add(output.start)
            check(output)
            check(log.read(log.begin(), 300_000))
            check(log.tail_bytes(5000))
            tail = log.tail_lines(7)
            check(tail)
            assert tail.data.count(b"\n") == 7
            for first in (3, log.begin() // 16 + 3, -5):
                lines = log.lines(first, 2)
                check(lines)
                assert lines.first_line == lines.start // 16
                assert lines.gap == lines.start % 16
                assert lines.gone == (max(lines.first_line - first, 0) if first >= 0 else 0)
                assert lines.data.count(b"\n") == 2
        follower.join()
    finally:
        assert pump.stdin is not None
        pump.stdin.close()
        pump.wait(30)
    assert len(begins) >= 20
    assert seen[0] >= 10


# -- files that are no logs --------------------------------------------------------------------


def test_a_symlink_is_refused(place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    write(secret, b"secret")
    place.path.symlink_to(secret)
    log = place.log()
    asked: list[Callable[[], object]] = [
        lambda: log.read(0, 10),
        lambda: log.tail_lines(1),
        log.size,
    ]
    for ask in asked:
        with pytest.raises(StoreError, match="symlink") as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_a_symlinked_head_is_refused(place: Place, tmp_path: Path) -> None:
    log = place.log(b"abc")
    assert log.read(0, 10).data == b"abc"
    place.head.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="symlink"):
        log.read(0, 10)


def test_a_directory_or_fifo_in_the_place_of_a_log_is_refused(place: Place) -> None:
    place.path.mkdir()
    with pytest.raises(StoreError, match="not a regular file"):
        place.log().read(0, 10)
    place.path.rmdir()
    os.mkfifo(place.path)
    with pytest.raises(StoreError, match="not a regular file"):
        place.log().tail_lines(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_somebody_elses_log_is_refused(place: Place) -> None:
    log = place.log(b"abc")
    os.chown(place.path, 12345, 12345)
    with pytest.raises(StoreError, match="somebody else"):
        log.read(0, 10)


def test_a_disk_that_fails_is_one_line_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = place.log(b"abc")

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for kept in (False, True):
        if kept:
            assert log.read(0, 10).data == b"abc"
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", fail)
            with pytest.raises(StoreError, match=r"cannot read the log .*proc\.log: Input/output"):
                log.read(0, 10)


# -- descriptors -------------------------------------------------------------------------------


def open_files(directory: Path) -> int:
    """How many descriptors of ours are files of `directory`."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith(str(directory))
        except FileNotFoundError:
            continue  # the descriptor that listed them
    return count


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_only_a_few_logs_are_kept_open_and_none_after_they_are_let_go(tmp_path: Path) -> None:
    logs = []
    for number in range(30):
        directory = tmp_path / str(number)
        directory.mkdir()
        place = Place(directory)
        log = place.log(PATTERN[:100])
        place.free(16)
        assert log.tail_lines(1).data
        logs.append(log)
    assert open_files(tmp_path) == 0
    for _ in range(3):
        for log in logs:
            assert log.read(16, 10).data == PATTERN[16:26]
    assert 0 < open_files(tmp_path) <= 16
    logs[-1].close()
    assert logs[-1].read(16, 10).data == PATTERN[16:26]
    del log
    logs.clear()
    assert open_files(tmp_path) == 0
