"""Bytes stay bytes, and text stays text: nothing a process writes is lost, split or misread."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Event, SyncClient, SyncProcess
from holdfast.core.completion_text import clean_tail, clean_text
from holdfast.core.record import duration_text
from holdfast.output.log import Log
from holdfast.testing import wait_until

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]

# Characters of one to four bytes, and control sequences of every kind between them.
TEXT = (
    "a\u00e9\u20ac\U0001f600 \u0416\u4e2d\U0010ffff \x1b[1;31mred\x1b[0m \x1b]0;title \u20ac\x07"
    "\x1b]8;;http://x/\x1b\\link\x1b(B\x1b7\x1b[?25h e\u0301 end\n"
)


def size_of(process: SyncProcess) -> int:
    return process.tail_bytes(0).end


# -- reading while it is written -------------------------------------------------------------------


def test_reads_between_any_two_bytes_never_split_a_character_or_a_code(
    hf: SyncClient, child: Child
) -> None:
    """A process that writes byte by byte, and a cursor that reads after each of them."""
    message = TEXT.encode()
    process = hf.spawn(child("steps", message.hex()), stdin=True)
    pieces = []
    for written in range(1, len(message) + 1):
        process.send(b".")
        wait_until(lambda: size_of(process) == written, what=f"byte {written}")  # noqa: B023
        pieces.append(process.read().data)
    process.send(b"", eof=True)
    assert process.wait(20).ok
    pieces.append(process.read().data)
    assert b"".join(pieces) == message
    for piece in pieces:
        assert "\ufffd" not in piece.decode(), "valid text was cut inside a character"
    assert "".join(clean_text(piece) for piece in pieces) == clean_text(message)


def test_an_unfinished_character_is_given_once_the_process_has_ended(
    hf: SyncClient, child: Child
) -> None:
    process = hf.spawn(child("steps", b"ok\xe2\x82".hex()), stdin=True)
    process.send(b"....")
    wait_until(lambda: size_of(process) == 4)
    assert process.read().data == b"ok"
    assert process.read().data == b"", "the rest may still come"
    process.send(b"", eof=True)
    process.wait(20)
    assert process.read().data == b"\xe2\x82"


def test_a_follower_never_gets_half_a_character(hf: SyncClient, child: Child) -> None:
    message = TEXT.encode() * 3
    process = hf.spawn(child("steps", message.hex()), stdin=True)
    other = hf.get(process.handle)

    def drive() -> None:
        for written in range(7, len(message), 7):
            other.send(b"." * 7)
            wait_until(lambda: size_of(other) == written)  # noqa: B023
        other.send(b"", eof=True)

    driver = threading.Thread(target=drive)
    driver.start()
    pieces = [output.data for output in process.follow()]
    driver.join()
    assert len(pieces) > 3, "it was read while it was written"
    assert b"".join(pieces) == message
    assert all("\ufffd" not in piece.decode() for piece in pieces)


def test_what_is_written_while_a_read_looks_never_splits_a_character(tmp_path: Path) -> None:
    """Between a read of the bytes and the look whether there are more, more may come."""
    path = tmp_path / "proc.log"
    path.touch()
    count = 20_000
    writer = f"""
import os
fd = os.open({str(path)!r}, os.O_WRONLY | os.O_APPEND)
for byte in "\u20ac".encode() * {count}:
    os.write(fd, bytes([byte]))
"""
    log = Log(str(path), str(tmp_path / "proc.head"))
    with subprocess.Popen([sys.executable, "-c", writer]) as process:
        try:
            position = 0
            while position < count * 3:
                output = log.read(position, 1 << 16, whole_characters=True)
                assert len(output.data) % 3 == 0, f"cut at {output.end}"
                position = output.end
                assert process.poll() in (None, 0)
        finally:
            process.kill()
    log.close()


# -- any bytes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        bytes(range(256)),
        b"\0" * 1000,
        b"\xff\xfe\x80\xc0\xaf\xed\xa0\x80\xf5\xf8" * 50,
        b"no line end",
        b"\r\n\r\n\n\r\x1b",
        "\ud83d".encode("utf-8", "surrogatepass") + b"\xf0\x9f\x98",
        b"",
    ],
    ids=["every byte", "NUL", "invalid", "no line end", "line ends", "half characters", "nothing"],
)
def test_any_bytes_are_kept_as_they_are(hf: SyncClient, child: Child, data: bytes) -> None:
    """Raw bytes can be had by every way of reading; their text never raises."""
    process = hf.spawn(child("writes_bytes", data.hex()))
    assert process.wait(20).ok
    assert process.read_at(0, 1 << 20).data == data
    assert process.read(reader="a").data == data
    assert process.tail_bytes(1 << 20).data == data
    assert process.tail(10_000).data == data
    assert process.lines(0, 10_000).data == data
    assert b"".join(output.data for output in process.follow()) == data
    parts = [process.read(reader="b", limit=3) for _ in range(len(data) // 2 + 2)]
    assert b"".join(part.data for part in parts) == data
    assert process.tail(1).text == process.tail(1).data.decode("utf-8", "replace")


def test_a_line_of_fifty_megabytes_is_one_line(hf: SyncClient) -> None:
    """No reader gets more of it than it asked for, and all of it is there."""
    size = 50_000_000
    process = hf.spawn(f"head -c {size} /dev/zero | tr '\\0' x; echo; echo last")
    before = hf.keeper_status()["memory_bytes"]
    assert process.wait(60).ok
    assert hf.keeper_status()["memory_bytes"] < before + 4 * (1 << 20)
    assert size_of(process) == size + 6
    assert process.tail(1).text == "last\n"
    two = process.tail(2)
    assert two.cut
    assert len(two.data) <= 1 << 20
    first = process.lines(0, 1)
    assert first.cut
    assert set(first.data) == set(b"x")
    assert process.lines(1, 1).text == "last\n"
    assert process.read_at(size - 2, 4).data == b"xx\nl"
    process.read(reader="skims", limit=10)
    assert process.read(reader="skims", limit=10).start == 10
    (event,) = hf.events(acknowledged=True)
    assert event.text.endswith("| " + "x" * 1994 + "\n| last\n")


# -- the text of a completion ----------------------------------------------------------------------


def the_event(hf: SyncClient, process: SyncProcess) -> Event:
    wait_until(lambda: not process.refresh().running)
    found = wait_until(lambda: [e for e in hf.events() if e.handle == process.handle])
    (event,) = found
    return event


def tail_of(event: Event) -> str:
    """What it quotes, without the marks."""
    head, _, tail = event.text.partition("Output (last 2000 chars):\n")
    assert head
    lines = tail.split("\n")
    assert all(line.startswith("|") for line in lines if line)
    return "\n".join(line.removeprefix("|").removeprefix(" ") for line in lines)


def test_the_text_is_exactly_the_promised_one(hf: SyncClient) -> None:
    process = hf.spawn("echo out; echo err >&2; exit 3", label="build-feature-x")
    text = the_event(hf, process).text
    duration = re.search(r"^Duration: (.*)$", text, re.MULTILINE)
    assert duration is not None
    assert re.fullmatch(r"\d+s", duration[1])
    assert text == (
        "[Background Process Completed]\n"
        "\n"
        f"Handle: {process.handle}\n"
        "Label: build-feature-x\n"
        "Command: echo out; echo err >&2; exit 3\n"
        "Exit code: 3\n"
        f"Duration: {duration[1]}\n"
        "Status: failed\n"
        "\n"
        "Output (last 2000 chars):\n"
        "| out\n| err\n"
    )


def test_a_list_is_shown_as_one_would_type_it_and_no_label_as_a_dash(hf: SyncClient) -> None:
    process = hf.spawn(["printf", "%s|", "a b", "$x"])
    text = the_event(hf, process).text
    assert "\nLabel: -\nCommand: printf '%s|' 'a b' '$x'\nExit code: 0\n" in text
    assert text.endswith("chars):\n| a b|$x|")


@pytest.mark.parametrize(
    ("command", "line"),
    [("kill -KILL $$", "signal SIGKILL"), ("exit 255", "255"), ("kill -SEGV $$", "signal SIGSEGV")],
)
def test_the_exit_code_line_is_a_number_or_a_signal(
    hf: SyncClient, command: str, line: str
) -> None:
    assert f"\nExit code: {line}\n" in the_event(hf, hf.spawn(command)).text


def an_event(**fields: object) -> Event:
    values: dict[str, object] = {
        "seq": 1,
        "id": "proc-x:end",
        "type": "end",
        "at": "2026-01-01T00:00:00.000000Z",
        "session": "s",
        "handle": "proc-x",
        "command": "make",
        "status": "completed",
        "exit_code": 0,
        "reason": "exited",
        "duration_seconds": 142.7,
    }
    return Event(**{**values, **fields})  # type: ignore[arg-type]


def test_what_nobody_can_know_is_said_to_be_lost() -> None:
    event = an_event(status="lost", exit_code=None, reason="lost", duration_seconds=None)
    assert "\nExit code: unknown (lost)\nDuration: unknown\n" in event.text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.999, "0s"),
        (59.9, "59s"),
        (60.0, "1m 0s"),
        (142.7, "2m 22s"),
        (3599.0, "59m 59s"),
        (3600.0, "1h 0m"),
        (5025.0, "1h 23m"),
        (100_000.0, "27h 46m"),
        (None, "unknown"),
    ],
)
def test_durations_read_like_two_minutes_and_some_seconds(seconds: float | None, text: str) -> None:
    assert duration_text(seconds) == text
    assert f"\nDuration: {text}\n" in an_event(duration_seconds=seconds).text


@pytest.mark.parametrize("character", ["x", "\u00e9", "\u20ac", "\U0001f600"])
def test_the_tail_is_the_last_two_thousand_characters_each_of_them_whole(
    hf: SyncClient, child: Child, character: str
) -> None:
    data = ("first" + character * 6000 + "!").encode()
    process = hf.spawn(child("writes_bytes", data.hex()))
    assert tail_of(the_event(hf, process)) == character * 1999 + "!"


def test_terminal_codes_are_no_part_of_the_tail(hf: SyncClient, child: Child) -> None:
    data = (
        b"\x1b[32mgreen\x1b[0m \x1b]0;window\x07title \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\"
        b"\x1b(B\x1b[?25l\x9b\xe2\x82\xac\x07\x08\0 end\r\n"
    )
    process = hf.spawn(child("writes_bytes", data.hex()))
    assert tail_of(the_event(hf, process)) == "green title link\ufffd\u20ac end\n"


@pytest.mark.parametrize("cut", range(12))
def test_a_tail_that_is_mostly_codes_is_clean_wherever_it_was_cut(
    hf: SyncClient, child: Child, tmp_path: Path, cut: int
) -> None:
    """Every character in a colour of its own: what is left is text, and nothing but its end."""
    count = 9000
    data = b"".join(b"\x1b[38;5;200m%c\x1b[0m" % (97 + n % 26) for n in range(count))
    (tmp_path / "data").write_bytes(data + b"." * cut)
    process = hf.spawn(child("writes_bytes", f"@{tmp_path / 'data'}"))
    plain = "".join(chr(97 + n % 26) for n in range(count)) + "." * cut
    tail = tail_of(the_event(hf, process))
    assert plain.endswith(tail)
    assert len(tail) > 400


@pytest.mark.parametrize("cut", range(1, 5))
def test_the_tail_of_separate_streams_has_no_broken_character(
    hf: SyncClient, child: Child, cut: int
) -> None:
    """Wherever the bytes kept for the outbox happen to begin."""
    out = ("\u20ac" * 5000).encode() + b"." * cut
    err = ("\U0001f600" * 5000).encode() + b"." * cut
    process = hf.spawn(child("writes_bytes", out.hex(), err.hex()), stderr="separate")
    tail = tail_of(the_event(hf, process))
    assert "\ufffd" not in tail
    assert len(tail) == 2000
    assert tail.endswith("\U0001f600" * 100 + "." * cut)


@pytest.mark.parametrize("silent", ["stdout", "stderr"])
def test_a_silent_stream_takes_nothing_from_the_other(
    hf: SyncClient, child: Child, silent: str
) -> None:
    text = "\u20ac" * 5000
    written = {"stdout": ("", text), "stderr": (text, "")}[silent]
    arguments = [part.encode().hex() for part in written]
    process = hf.spawn(child("writes_bytes", *arguments), stderr="separate")
    assert tail_of(the_event(hf, process)) == "\u20ac" * 2000


def test_a_tail_may_be_any_bytes() -> None:
    assert clean_tail(bytes(range(256)) * 32)
    assert clean_tail(b"\xe2\x82") == "\ufffd"
    assert clean_tail(b"") == ""
    assert clean_tail(b"\x1b]0;never ended\nnext") == "\nnext"


# -- an event as front ends show it ----------------------------------------------------------------


def test_the_public_form_of_an_event_is_plain_json_with_text_and_tail(hf: SyncClient) -> None:
    process = hf.spawn("printf '\\033[1mhi\\033[0m'; exit 4", label="x")
    event = the_event(hf, process)
    public = event.public()
    assert json.loads(json.dumps(public)) == public
    assert public["text"] == event.text
    assert public["tail"] == "hi"
    assert {
        "seq": 1,
        "id": f"{process.handle}:end",
        "type": "end",
        "session": hf.session,
        "handle": process.handle,
        "label": "x",
        "status": "failed",
        "exit_code": 4,
        "signal": None,
        "reason": "exited",
        "acknowledged": False,
        "dropped": 0,
    }.items() <= public.items()


def test_a_gap_says_how_many_events_were_dropped() -> None:
    event = an_event(type="gap", handle=None, status=None, dropped=7)
    assert event.text.startswith("[Background Events Dropped]\n\n7 older events")
    assert event.public()["dropped"] == 7
