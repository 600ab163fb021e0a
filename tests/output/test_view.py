"""A log as a model reads it: nothing unsaid about what is left out, and never over the budget."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.errors import BadRequest
from holdfast.core.log_head import LogHead, write_head
from holdfast.output import view as _view
from holdfast.output.error_blocks import first_error
from holdfast.output.log import Log
from holdfast.output.plain import rows_of
from holdfast.output.view import View, view, view_both

OUTPUT = Path(__file__).parents[1] / "data" / "output"
property_test = settings(deadline=None, max_examples=100)


def log_of(directory: Path | str, data: bytes) -> Log:
    path = Path(directory) / "proc.log"
    path.write_bytes(data)
    path.chmod(0o600)
    return Log(str(path), str(Path(directory) / "proc.head"))


def view_of(data: bytes, **options: Any) -> View:
    """The view of a log that has these bytes."""
    with tempfile.TemporaryDirectory() as directory, closing(log_of(directory, data)) as log:
        return view(log, **options)


def text_of(data: bytes | str) -> str:
    """What shows of this, without any limit that matters."""
    return view_of(data.encode() if isinstance(data, str) else data, budget=100_000).text


def lines_of(count: int, word: str = "line") -> bytes:
    return b"".join(f"{word} {number} of this log\n".encode() for number in range(count))


class TestText:
    @pytest.mark.parametrize(
        ("data", "text"),
        [
            ("plain\n", "plain\n"),
            ("no end", "no end"),
            ("", ""),
            ("\n\n", "\n\n"),
            ("tab\there\n", "tab\there\n"),
            ("\x1b[1m\x1b[31mred\x1b[0m\n", "red\n"),
            ("\x1b]0;a title\x07shown\n", "shown\n"),
            ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\\n", "link\n"),
            ("\x1bPsome string\x1b\\after\n", "after\n"),
            ("\x1b]never ended\nnext\n", "\nnext\n"),
            ("cut off \x1b[3", "cut off "),
            ("bell\x07 nul\x00 del\x7f c1\x85\n", "bell nul del c1\n"),
            ("windows\r\nlines\r\n", "windows\nlines\n"),
            ("doubled\r\r\n", "doubled\n"),
            (b"stray \xff byte\n", "stray \N{REPLACEMENT CHARACTER} byte\n"),
        ],
    )
    def test_codes_and_controls_are_not_content(self, data: bytes | str, text: str) -> None:
        """What is left is what can be read."""
        assert text_of(data) == text

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            ("10%\r20%\r100%\n", "100%\n"),
            ("a long one\rshort\n", "shortg one\n"),
            ("a long one\r\x1b[Kshort\n", "short\n"),
            ("a long one\x1b[2K\rshort\n", "short\n"),
            ("abc\b\bx\n", "axc\n"),
            ("one\ntwo\n\x1b[2A\x1b[2Knew\n\x1b[2Ktwo more\nthree\n", "new\ntwo more\nthree\n"),
            ("one\ntwo\n\x1b[1A\x1b[Jx\n", "one\nx\n"),
            ("one\ntwo\n\x1b[2Anew\x1b[2B\rend\n", "new\ntwo\nend\n"),
            ("\x1b[99999999999999999999Aup\n", "up\n"),
            ("a\x1b[5Gb\x1b[1Gc\n", "c   b\n"),
            ("abcdef\x1b[3D\x1b[2P!\n", "abc!\n"),
            ("abc\r\x1b[2@x\n", "x abc\n"),
            ("first\x1b[H\x1b[2Jsecond\n", "first\nsecond\n"),
            ("working \r", "working"),
        ],
    )
    def test_what_was_drawn_over_shows_as_it_was_last(self, data: str, text: str) -> None:
        """As a terminal would have left it."""
        assert text_of(data) == text

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("pnpm", "Progress: resolved 70, reused 0, downloaded 70, added 70, done\n\ndep"),
            ("git", "remote: Counting objects: 100% (718/718), done.\nremote: Compressing"),
            ("cargo", "(1 try remaining): [6] Could not resolve hostname (Could not resolve host"),
            ("curl", "Left  Speed\n100 5689k  100 5689k"),
        ],
    )
    def test_real_progress_is_its_last_state(self, name: str, text: str) -> None:
        """What real tools draw on a terminal, with moves up and erased lines, is read as a page."""
        shown = text_of((OUTPUT / f"{name}-progress.txt").read_bytes())
        assert text in shown
        assert "Counting objects:  50%" not in shown
        assert "Fetch" not in shown
        assert shown.count("Progress: resolved") <= 1

    def test_repeated_lines_are_folded(self) -> None:
        """One of them and a count, where that is shorter."""
        assert text_of("a\n" + "same line\n" * 42 + "b\n") == (
            "a\nsame line\n[last line repeated 41 more times]\nb\n"
        )
        assert text_of("x\n" * 5) == "x\n" * 5
        coloured = "\x1b[1msame line\x1b[0m\nsame line\n" * 10
        assert text_of(coloured) == "same line\n[last line repeated 19 more times]\n"

    def test_lines_that_differ_in_a_number_are_kept(self) -> None:
        """A counter that was not drawn over is what the program wanted to be read."""
        data = "".join(f"{percent}% done\n" for percent in range(20))
        assert text_of(data) == data


class TestBudget:
    def test_the_first_and_the_last_lines_are_kept(self) -> None:
        """And a note between them says how much is missing and where it is."""
        data = lines_of(1000)
        shown = view_of(data, budget=2000)
        (gap,) = shown.gaps
        first, note, last = re.split(r"^(\[\.\.\. .* \.\.\.\])\n", shown.text, flags=re.M)
        assert data.startswith(first.encode())
        assert data.endswith(last.encode())
        assert len(first) < len(last)
        lines = data[gap.start : gap.end].count(b"\n")
        assert note == (
            f"[... {lines:,} lines ({gap.end - gap.start:,} bytes) left out, "
            f"from byte {gap.start} on ...]"
        )
        assert first.encode() + data[gap.start : gap.end] + last.encode() == data
        assert gap.characters == gap.end - gap.start
        assert not shown.complete
        assert len(shown.text) > 1900

    def test_long_lines_lose_their_middle_only_when_they_must(self) -> None:
        """With the number of characters left out, and where the line is."""
        line = "begin " + "x" * 5000 + " end"
        assert view_of(line.encode(), budget=6000).text == line
        shown = view_of(f"before\n{line}\nafter\n".encode(), budget=4000)
        (gap,) = shown.gaps
        mark = (
            f" [... {gap.characters:,} characters of this line left out; it begins at byte 7 ...] "
        )
        assert gap.characters is not None
        before, cut, after, _ = shown.text.split("\n")
        assert (before, after) == ("before", "after")
        assert cut.startswith("begin xxx")
        assert mark in cut
        assert cut.endswith("xxx end")
        assert len(cut) - len(mark) + gap.characters == len(line)
        assert (gap.start, gap.end, gap.why) == (7, 7 + len(line) + 1, "line")

    @pytest.mark.parametrize("budget", range(0, 201, 5))
    def test_a_tiny_budget_is_kept_too(self, budget: int) -> None:
        """A note if one fits, else a mark, else nothing; the gaps are told all the same."""
        data = lines_of(50)
        shown = view_of(data, budget=budget)
        assert len(shown.text) <= budget
        assert sum(gap.end - gap.start for gap in shown.gaps) > 0
        assert ("left out" in shown.text) or shown.text in ("", "…")
        assert (shown.text == "") == (budget == 0)

    def test_an_error_in_the_middle_is_kept(self) -> None:
        """Between the first and the last lines, with notes on both sides."""
        error = (OUTPUT / "python-traceback.txt").read_bytes()
        data = lines_of(200, "before") + error + lines_of(400, "after")
        shown = view_of(data, budget=5000)
        assert "Traceback (most recent call last)" in shown.text
        assert "ValueError: not enough values to unpack (expected 2, got 1)\n[..." in shown.text
        assert len(shown.gaps) == 2
        assert shown.text.startswith("before 0 of")
        assert shown.text.endswith("after 399 of this log\n")
        without = view_of(data, budget=5000, errors=False)
        assert "Traceback" not in without.text
        assert len(without.gaps) == 1

    def test_an_error_larger_than_its_share_keeps_its_ends(self) -> None:
        """Its first lines and its last, which are those that matter."""
        frames = "".join(f'  File "a.py", line {n}, in f\n    f({n})\n' for n in range(100))
        error = f"Traceback (most recent call last):\n{frames}RuntimeError: too deep\n"
        shown = view_of(lines_of(500) + error.encode() + lines_of(500), budget=3000)
        assert 'Traceback (most recent call last):\n  File "a.py", line 0' in shown.text
        assert "f(99)\nRuntimeError: too deep\n" in shown.text
        assert len(shown.gaps) == 3

    def test_offsets_of_a_piece_begin_where_it_begins(self) -> None:
        """So that notes are right for a piece of a log."""
        before, data = b"x" * 4999 + b"\n", lines_of(300)
        shown = view_of(before + data, budget=1000, start=5000)
        (gap,) = shown.gaps
        assert (shown.start, shown.end) == (5000, 5000 + len(data))
        assert f"byte {gap.start}" in shown.text
        assert data[: gap.start - 5000].endswith(b"\n")

    def test_it_can_be_told_as_json(self) -> None:
        """Everything in it is plain data."""
        shown = json.loads(json.dumps(view_of(lines_of(300), budget=1000).public()))
        assert shown["complete"] is False
        assert shown["gaps"][0]["why"] == "budget"


class TestLogs:
    def test_a_small_log_is_shown_whole(self, tmp_path: Path) -> None:
        """As it is."""
        log = log_of(tmp_path, b"one\ntwo\n")
        assert view(log) == View("one\ntwo\n", 0, 8)
        assert view(log).complete
        assert view(log, start=4).text == "two\n"
        assert view(log, end=3).text == "one"
        assert view(log, start=100, end=200).text == ""
        log.close()

    def test_a_log_without_files_is_empty(self, tmp_path: Path) -> None:
        """Nothing was written yet."""
        assert view(Log(str(tmp_path / "a.log"), str(tmp_path / "a.head"))) == View("", 0, 0)

    def test_a_large_log_is_read_at_its_ends(self, tmp_path: Path) -> None:
        """The note about the middle is exact, and the error in it is found."""
        error = (OUTPUT / "cargo-build-colours.txt").read_bytes()
        head, tail = lines_of(60_000, "head"), lines_of(60_000, "tail")
        data = head + error + tail
        log = log_of(tmp_path, data)
        shown = view(log, budget=10_000)
        assert len(shown.text) <= 10_000
        assert shown.text.startswith("head 0 of this log\n")
        assert shown.text.endswith("tail 59999 of this log\n")
        assert "error[E0277]: a value of type" in shown.text
        low, high = shown.gaps
        assert low.end == len(head) + error.index(b"\n") + 1
        for gap in (low, high):
            lines = data[gap.start : gap.end].count(b"\n")
            assert gap.lines == lines
            assert f"[... {lines:,} lines ({gap.end - gap.start:,} bytes) left out" in shown.text
        log.close()

    def test_it_says_where_no_error_was_looked_for(self, tmp_path: Path) -> None:
        """A look that had to stop is told, and lines are counted or not told at all."""
        path = tmp_path / "proc.log"
        path.touch(0o600)
        with path.open("r+b") as file:
            file.write(b"first\n" * 10)
            file.truncate(100 << 20)  # a hole in the file, as long as one line
            file.seek(0, 2)
            file.write(b"\n" + lines_of(100_000, "last"))
        log = Log(str(path), str(tmp_path / "proc.head"))
        with patch.object(_view, "_SEARCHED", 16 << 20):
            shown = view(log)
        (gap,) = [gap for gap in shown.gaps if gap.why == "budget"]
        assert gap.lines is None
        assert gap.unsearched > 50 << 20
        assert f"{gap.unsearched:,} of them not searched for errors" in shown.text
        assert "last 99999 of" in shown.text
        log.close()

    def test_an_error_far_into_a_huge_log_is_found(self, tmp_path: Path) -> None:
        """What is not there is passed over faster than it is read."""
        path = tmp_path / "proc.log"
        path.touch(0o600)
        with path.open("r+b") as file:
            file.write(lines_of(10_000, "first"))
            file.truncate(100 << 20)
            file.seek(0, 2)
            file.write(b"\nERROR: far away\n" + lines_of(100_000, "last"))
        log = Log(str(path), str(tmp_path / "proc.head"))
        with patch.object(_view, "_SEARCH_SECONDS", 60):
            shown = view(log)
        assert "ERROR: far away" in shown.text
        assert not any(gap.unsearched for gap in shown.gaps)
        log.close()

    def test_two_streams_share_a_budget(self, tmp_path: Path) -> None:
        """Stderr comes under a mark; each is complete or says where the rest is."""
        for name in ("out", "err"):
            (tmp_path / name).mkdir()
        few, many = b"one\ntwo\n", lines_of(5_000)
        for stdout, stderr in ((few, few), (many, few), (few, many), (many, many), (b"", few)):
            logs = log_of(tmp_path / "out", stdout), log_of(tmp_path / "err", stderr)
            shown = view_both(*logs, budget=2000)
            assert len(shown.text) <= 2000
            assert shown.complete == (many not in (stdout, stderr))
            output, mark, errors = shown.text.partition("[stderr]\n")
            assert mark
            if stdout == few:
                assert output == "one\ntwo\n"
            if stderr == few:
                assert errors == "one\ntwo\n"
            if many in (stdout, stderr):
                assert len(shown.text) > 1500, "what one leaves is the other's"
            for gap in shown.gaps:
                assert f"from byte {gap.start} of {gap.stream} on" in shown.text
            assert [*shown.public()["streams"]] == ["stdout", "stderr"]
            for log in logs:
                log.close()
        logs = log_of(tmp_path / "out", few), log_of(tmp_path / "err", b"")
        assert view_both(*logs).text == "one\ntwo\n"
        for log in logs:
            log.close()

    @pytest.mark.parametrize("budget", [0, 1, 5, 20, 40, 100])
    def test_two_streams_keep_a_tiny_budget(self, tmp_path: Path, budget: int) -> None:
        """Whatever is not shown is in a gap."""
        for name in ("out", "err"):
            (tmp_path / name).mkdir()
        logs = log_of(tmp_path / "out", b"out " * 50), log_of(tmp_path / "err", b"err " * 50)
        shown = view_both(*logs, budget=budget)
        assert len(shown.text) <= budget
        assert {gap.stream for gap in shown.gaps} == {"stdout", "stderr"}
        for log in logs:
            log.close()

    def test_a_freed_head_is_told(self, tmp_path: Path) -> None:
        """What cannot be read any more is a gap of its own kind."""
        data = lines_of(100)
        log = log_of(tmp_path, data)
        begin = data.index(b"line 90 ")
        write_head(log.head_path, LogHead(begin))
        shown = view(log)
        assert shown.gaps[0].why == "freed"
        assert (shown.gaps[0].start, shown.gaps[0].end) == (0, begin)
        assert shown.text.startswith(f"[... {begin:,} bytes freed")
        assert "\nline 90 of this log\n" in shown.text
        assert not shown.complete
        assert view(log, start=begin).complete
        assert view(log, start=5, end=10).gaps[0].why == "freed"
        log.close()

    def test_a_log_of_one_endless_line_has_two_ends(self, tmp_path: Path) -> None:
        """They are cut between characters."""
        log = log_of(tmp_path, "ä".encode() * (3 << 20))
        shown = view(log, budget=1000)
        assert len(shown.text) <= 1000
        assert "\N{REPLACEMENT CHARACTER}" not in shown.text
        assert shown.text.startswith("ä")
        assert shown.text.endswith("ä")
        log.close()

    def test_progress_of_a_megabyte_is_one_line(self, tmp_path: Path) -> None:
        """What shows little is read further, until it fills the budget or is all of it."""
        bar = b"".join(b"\r%6d of 60000 done" % number for number in range(60_001))
        log = log_of(tmp_path, b"start\n" + bar + b"\nend\n")
        assert view(log).text == "start\n 60000 of 60000 done\nend\n"
        log.close()

    def test_impossible_ranges_are_refused(self, tmp_path: Path) -> None:
        """With what is wrong."""
        log = log_of(tmp_path, b"x")
        for start, end, budget in [(0, None, -1), (-1, None, 10), (0, -1, 10), (5, 3, 10)]:
            with pytest.raises(BadRequest):
                view(log, start=start, end=end, budget=budget)
        log.close()

    def test_looking_at_a_huge_log_holds_little_of_it(self, tmp_path: Path) -> None:
        """A gibibyte (with a hole in the file for most of it) is seen in some megabytes."""
        path = tmp_path / "proc.log"
        path.touch(0o600)
        with path.open("r+b") as file:
            file.truncate(1 << 30)
            file.seek(0, 2)
            file.write(lines_of(10))
        program = (
            "import resource, sys\n"
            "from holdfast.output.log import Log\n"
            "from holdfast.output.view import view\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "assert view(Log(sys.argv[1], sys.argv[2])).text.endswith('line 9 of this log\\n')\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        )
        command = [sys.executable, "-c", program, str(path), str(tmp_path / "proc.head")]
        grown = int(subprocess.run(command, check=True, capture_output=True).stdout)
        assert grown < 64 << 10  # KiB


# The first line and the last of the block that each tool's output has first.
BLOCKS = {
    "cargo-build": ("error[E0277]: a value of type", "  = note: this error originates in"),
    "cargo-build-colours": ("error[E0277]: a value of type", "  = note: this error originates"),
    "cargo-progress": ("error: failed to get `serde_json`", "  [6] Could not resolve hostname"),
    "cargo-test": ("---- tests::reads_a_price stdout ----", "note: Some details are omitted"),
    "curl-progress": None,
    "gcc-link": ("/usr/bin/ld: main.o: in function `main':", "collect2: error: ld returned 1"),
    "gcc-make": ("price.c: In function ", "      | ~"),
    "git-progress": None,
    "go-build": ("# example.com/shop", "./shop.go:10:9: undefined: sums"),
    "go-panic": ("panic: assignment to entry in nil map", "\t/project/go/cmd/main.go:14 +0x10a"),
    "go-test": ("=== RUN   TestTwo", "--- FAIL: TestTwo (0.00s)"),
    "go-test-panic": ("--- FAIL: TestTwo", "    shop_test.go:14: Total(1, 2) = 3, want 4"),
    "jest": ("  ● sums two", "      at Object.toBe (shop.test.js:4:25)"),
    "node-rejection": ("node:fs:448", "}"),
    "node-stack": ("/project/thrower.js:2", "    at node:internal/main/run_main_module:28:49"),
    "npm-install": ("npm error code E404", "npm error A complete log of this run"),
    "npm-missing-script": ('npm error Missing script: "absent"', "npm error A complete log of"),
    "npm-script": ("shop.ts(4,3): error TS2322:", "shop.ts(8,13): error TS2552:"),
    "pnpm-progress": None,
    "pytest-collection-error": ("=", "E   ImportError: cannot import name 'parse_all'"),
    "pytest-failures": ("=", "test_prices.py:25: ConnectionError"),
    "pytest-failures-colours": ("=", "test_prices.py:25: ConnectionError"),
    "pytest-fixture-error": ("=", "test_prices.py:25: ConnectionError"),
    "pytest-passes": None,
    "python-chained": ("Traceback (most", "RuntimeError: line 2 is no price"),
    "python-group": ("Traceback (most", "    +------------------------------------"),
    "python-syntax": ('  File "/project/py/syntax.py", line 1', "SyntaxError: invalid syntax"),
    "python-traceback": ("Traceback (most", "ValueError: not enough values to unpack"),
    "python-unittest": ("Traceback (most", "ModuleNotFoundError: No module named 'nothing'"),
    "tsc": ("shop.ts(4,3): error TS2322:", "shop.ts(8,13): error TS2552:"),
    "tsc-pretty": ("shop.ts:4:3 - error TS2322:", "    ~~~~~~"),
}


class TestErrors:
    def test_every_sample_is_known(self) -> None:
        """Each file of real output has its block written down here."""
        assert {path.stem for path in OUTPUT.glob("*.txt")} == set(BLOCKS)

    @pytest.mark.parametrize("name", BLOCKS)
    def test_the_first_error_of_real_tools_is_found(self, name: str) -> None:
        """From its first line to its last, and none where nothing failed."""
        lines = [row.text for row in rows_of((OUTPUT / f"{name}.txt").read_bytes())]
        block = first_error(lines)
        expected = BLOCKS[name]
        if expected is None:
            assert block is None
            return
        assert block is not None
        assert block.sure
        assert lines[block.start].startswith(expected[0])
        assert lines[block.end - 1].startswith(expected[1])

    @pytest.mark.parametrize("name", [name for name, block in BLOCKS.items() if block])
    def test_the_first_error_is_kept_in_a_flood(self, name: str, tmp_path: Path) -> None:
        """Its first line is in the view of a log that is mostly something else."""
        data = (OUTPUT / f"{name}.txt").read_bytes()
        log = log_of(tmp_path, lines_of(30_000) + data + lines_of(30_000))
        shown = view(log)
        expected = BLOCKS[name]
        assert expected is not None
        assert "\n" + expected[0] in shown.text
        assert len(shown.text) <= 10_000
        log.close()

    @pytest.mark.parametrize(
        "line",
        [
            "2026-01-01 12:00:00 ERROR could not connect",
            "[error] ERROR: no such table",
            "bash: nonsense: command not found",
            "cat: absent: No such file or directory",
            "Segmentation fault (core dumped)",
        ],
    )
    def test_words_that_mean_failure_are_a_last_resort(self, line: str) -> None:
        """They are taken where nothing has the shape of an error."""
        block = first_error(["fine", line, "fine"])
        assert block is not None
        assert (block.start, block.end, block.sure) == (1, 2, False)
        block = first_error([line, "error: real", " --> a.rs:1:1", "  |"])
        assert block is not None
        assert (block.start, block.sure) == (1, True)

    @pytest.mark.parametrize(
        "line",
        [
            "0 errors, 3 warnings",
            "test error_handling ... ok",
            "errors=0",
            "no error here",
            "failed: 0",
        ],
    )
    def test_words_alone_are_no_error(self, line: str) -> None:
        """Counting none, or a name that has the word in it."""
        assert first_error([line] * 3) is None

    def test_a_prefix_before_each_line_does_not_hide_a_traceback(self) -> None:
        """As programs that gather logs put there."""
        lines = [
            "web-1  | starting",
            "web-1  | Traceback (most recent call last):",
            'web-1  |   File "a.py", line 1, in <module>',
            "web-1  |     f()",
            "web-1  | NameError: name 'f' is not defined",
            "web-1  | restarting",
        ]
        block = first_error(lines)
        assert block is not None
        assert (block.start, block.end) == (1, 5)


# -- whatever the bytes ----------------------------------------------------------------------------

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
TOKENS = [
    *(b"\n", b"\r", b"\r\n", b"\b", b"\t", b"a", b"word ", "ä".encode(), b"\xff", b"\xc2", b"\x85"),
    *(
        b"\x1b",
        b"\x1b[",
        b"\x1b[2K",
        b"\x1b[1A",
        b"\x1b[31m",
        b"\x1b]0;t\x07",
        b"\x1b]x",
        b"\x9b2J",
    ),
    *(
        b"\x1b[2J",
        b"\x1b[H",
        b"\x1b[5;9H",
        b"\x1b[99C",
        b"\x1b[3D",
        b"\x1b[J",
        b"\x1b[1K",
        b"\x1bM",
    ),
    *(
        b"\x1b[2P",
        b"\x1b[4@",
        b"\x1b[9X",
        b"\x1b[3G",
        b"\x1b[2B",
        b"\x1b[E",
        b"\x1b[F",
        b"\xc2\x9b",
    ),
    *(b"same\n" * 6, b"x" * 300, b"Traceback (most recent call last):\n  x\nE: y\n", b"error: z\n"),
]
noise = st.one_of(
    st.binary(max_size=400),
    st.lists(st.sampled_from(TOKENS), max_size=60).map(b"".join),
    st.builds(lambda data, times: data * times, st.binary(max_size=40), st.integers(1, 2000)),
    st.builds(
        lambda parts, times: b"".join(parts) * times,
        st.lists(st.sampled_from(TOKENS), max_size=12),
        st.integers(1, 800),
    ),
)
budgets = st.one_of(st.integers(0, 200), st.integers(0, 3000))


def check(shown: View, budget: int, end: int) -> None:
    assert len(shown.text) <= budget
    assert CONTROL.search(shown.text) is None
    assert (shown.start, shown.end) == (0, end)
    low = 0
    for gap in shown.gaps:
        assert low <= gap.start <= gap.end <= end
        low = gap.end if gap.why != "line" else gap.start
    if not shown.complete and shown.text not in ("", "…"):
        for gap in shown.gaps:
            short = gap.short_note() in shown.text and shown.text.startswith("[...")
            line = f"{gap.characters:,} character" if gap.why == "line" else gap.note()
            assert short or line in shown.text


@property_test
@given(noise, budgets)
@example(b"", 0)
@example(b"x" * 5000, 81)
@example(b"\n" * 5000, 30)
@example(b"\x1b[H\x1b[2Jscreen" * 500, 400)
def test_whatever_is_dropped_is_noted_and_the_budget_is_kept(data: bytes, budget: int) -> None:
    """For any bytes: no control characters, never longer than asked, a note for each gap."""
    check(view_of(data, budget=budget), budget, len(data))


@pytest.mark.weight(8)
@settings(deadline=None, max_examples=100)
@given(noise, st.integers(1, 4000), budgets)
def test_the_same_holds_for_logs_with_windows(data: bytes, times: int, budget: int) -> None:
    """Also where only the ends of a log are read."""
    data = (data * times)[: 600 << 10]
    with tempfile.TemporaryDirectory() as directory:
        log = log_of(directory, data)
        check(view(log, budget=budget), budget, len(data))
        log.close()


@property_test
@given(
    st.text(
        st.characters(blacklist_categories=["Cc", "Cs"]) | st.sampled_from("\n\t"), max_size=300
    )
)
def test_a_view_of_clean_short_text_is_that_text(text: str) -> None:
    """What needs no cleaning is not changed, and a view of a view is the same."""
    if not re.search(r"^(.*)\n(\1\n){3}", text + "\n", re.M):
        shown = view_of(text.encode(), budget=10_000)
        assert shown.text == text
        assert shown.complete


@property_test
@given(
    st.lists(st.integers(0, 120), max_size=400),
    st.integers(0, 3000),
    st.integers(0, 400),
)
def test_every_line_is_shown_or_in_a_gap(sizes: list[int], budget: int, error: int) -> None:
    """No line goes missing: it is there to be read, or the gap that it is in is told."""
    lines = [f"<{number}>{'x' * size}" for number, size in enumerate(sizes)]
    if error < len(lines):
        lines[error] += " ERROR: here"
    data = "".join(line + "\n" for line in lines)
    shown = view_of(data.encode(), budget=budget)
    offset = 0
    for line in lines:
        end = offset + len(line) + 1
        hidden = any(gap.start <= offset and end <= gap.end for gap in shown.gaps)
        assert hidden != (f"{line}\n" in shown.text)
        offset = end


@property_test
@given(noise)
def test_rows_own_all_the_bytes(data: bytes) -> None:
    """Rows begin at offsets that never go back, so that gaps between them are exact."""
    starts = [row.start for row in rows_of(data)]
    assert starts == sorted(starts)
    assert starts[0] == 0
    assert starts[-1] <= len(data)


@pytest.mark.parametrize(
    "unit",
    [
        b"\x1b[1Ax\n",
        b"\x1b[1A\x1b[1B",
        b"x\x1b[2P",
        b"\x1b[9@",
        b"\x1b[1K\x1b[9C",
        b"\x1b[2Jx",
        b"\b",
    ],
)
def test_no_bytes_make_it_slow(unit: bytes) -> None:
    """Rows of half a megabyte that are drawn over again and again are done in linear time."""
    data = b"x" * (1 << 19) + b"\n" + unit * ((1 << 19) // len(unit))
    assert len(view_of(data, budget=1000).text) <= 1000
