"""Searching logs: the same lines as a plain loop would find, and never longer than allowed."""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.errors import BadRequest
from holdfast.core.log_head import LogHead, write_head
from holdfast.output import matcher as _matcher
from holdfast.output import scan
from holdfast.output.log import Log
from holdfast.output.matcher import Lines, among_lines, matcher_of, plain_text, required_texts
from holdfast.output.plain import rows_of
from holdfast.output.search import Found, search

property_test = settings(deadline=None, max_examples=100)


def log_of(directory: Path | str, data: bytes) -> Log:
    path = Path(directory) / "proc.log"
    path.write_bytes(data)
    path.chmod(0o600)
    return Log(str(path), str(Path(directory) / "proc.head"))


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., Found]:
    """Search in these bytes."""

    def run(data: bytes | str, pattern: str, **options: Any) -> Found:
        log = log_of(tmp_path, data.encode() if isinstance(data, str) else data)
        try:
            return search({"": log}, pattern, **options)
        finally:
            log.close()

    return run


def texts(found: Found) -> list[str]:
    return [match.text for match in found.matches]


NUMBERS = "".join(f"line {number}\n" for number in range(100))

EVIL = [
    (r"(a+)+$", "a" * 40 + "b"),
    (r"(a|aa)+$", "a" * 80 + "b"),
    (r"(.*?,){30}P$", "1," * 60),
    (r"(?:a+){10}b\b|(.*?,){30}P", "1," * 60),
    (r"(a|a?)+$", "a" * 40 + "b"),
    (r"(.*)*x$", "a" * 60),
    (r"(x+x+)+y", "x" * 60),
    (r"^(([a-z])+.)+[A-Z]([a-z])+$", "a" * 60),
    (r"(?:a?){60}a{60}", "a" * 59),
    (r"(a*)*\1b", "a" * 60),
    (r"(?=(a+))*\1+$|(a+)+c", "a" * 60 + "b"),
]


class TestWhatIsFound:
    def test_lines_come_with_the_lines_around_them(self, found: Any) -> None:
        """A match has its offset, its number and the lines before and after."""
        (match,) = found(NUMBERS, "line 50").matches
        assert match.text == "line 50"
        assert match.before == ["line 48", "line 49"]
        assert match.after == ["line 51", "line 52"]
        assert match.line == 50
        assert NUMBERS[match.offset :].startswith("line 50\n")

    def test_the_number_is_the_one_that_lines_takes(self, tmp_path: Path) -> None:
        """A match's line number reads the same line with `Log.lines`."""
        log = log_of(tmp_path, NUMBERS.encode())
        (match,) = search({"": log}, "line 7$").matches
        assert match.line is not None
        assert log.lines(match.line, 1).text == "line 7\n"
        log.close()

    def test_the_last_matches_are_shown_and_all_are_counted(self, found: Any) -> None:
        """By default it is the last 20, in the order of the log."""
        result = found(NUMBERS, "line", context=0)
        assert texts(result) == [f"line {number}" for number in range(80, 100)]
        assert result.count == 100
        assert result.complete
        assert "the last 20 of 100 matching lines" in result.note

    @pytest.mark.parametrize("pattern", ["line", r"l.ne \d"])
    def test_the_first_matches_stop_the_search(self, found: Any, pattern: str) -> None:
        """With `first` the search ends there, and says where to go on."""
        result = found(NUMBERS, pattern, first=3, context=0)
        assert texts(result) == ["line 0", "line 1", "line 2"]
        assert not result.complete
        assert result.searched == (0, 21)
        again = found(NUMBERS, pattern, first=2, context=0, start=result.searched[1])
        assert texts(again) == ["line 3", "line 4"]

    def test_lines_between_two_matches_are_told_once(self, found: Any) -> None:
        """Neighbours do not repeat each other's lines."""
        result = found("a\nhit 1\nb\nhit 2\nhit 3\nc\n", "hit")
        told = [
            line for match in result.matches for line in (*match.before, match.text, *match.after)
        ]
        assert told == ["a", "hit 1", "b", "hit 2", "hit 3", "c"]

    def test_colours_do_not_break_a_match(self, found: Any) -> None:
        """A line is matched without its terminal codes, and its offset is that of the real line."""
        data = b"\x1b[32mfine\x1b[0m\nplain\n\x1b[1m\x1b[31mer\x1b[0mror\x1b[0m: 3\r\nrest\n"
        for pattern in ("error: 3", r"^error: \d$"):
            result = found(data, pattern, context=1)
            (match,) = result.matches
            assert match.text == "error: 3"
            assert match.before == ["plain"]
            assert match.after == ["rest"]
            assert data[match.offset :].startswith(b"\x1b[1m\x1b[31mer")
        assert found(data, "31m").count == 0

    def test_a_last_line_without_its_end_is_a_line(self, found: Any) -> None:
        """What was written so far is searched too."""
        assert texts(found("one\ntwo and no", "two")) == ["two and no"]

    def test_case_can_be_ignored(self, found: Any) -> None:
        """For a text and for a pattern."""
        data = "Error one\nERROR two\nÄRGER\n"
        assert found(data, "error", ignore_case=True).count == 2
        assert found(data, r"error \w+", ignore_case=True).count == 2
        assert found(data, "ärger", ignore_case=True).count == 1
        assert found(data, "error").count == 0

    def test_a_literal_is_taken_as_it_is(self, found: Any) -> None:
        """Nothing in it has a meaning."""
        data = "a.c (1)\nabc (1)\n"
        assert texts(found(data, "a.c (1)", literal=True)) == ["a.c (1)"]
        assert texts(found(data, r"a\.c \(1\)")) == ["a.c (1)"]
        assert found(data, r"a.c \(1\)").count == 2

    def test_bytes_that_are_no_text_match_as_replaced(self, found: Any) -> None:
        """Stray bytes are a replacement character each place they show."""
        data = b"bad \xff byte\nno\n"
        assert found(data, "bad \N{REPLACEMENT CHARACTER} byte").count == 1
        assert found(data, "byte").count == 1
        (match,) = found(data, r"bad . byte").matches
        assert match.text == "bad \N{REPLACEMENT CHARACTER} byte"

    def test_a_part_of_a_log_can_be_searched(self, found: Any) -> None:
        """Between two offsets."""
        start, end = NUMBERS.index("line 20"), NUMBERS.index("line 30")
        result = found(NUMBERS, "line", start=start, end=end, context=0)
        assert texts(result) == [f"line {number}" for number in range(20, 30)]
        assert result.searched == (start, end)

    def test_a_freed_head_is_not_searched(self, tmp_path: Path) -> None:
        """What is gone is neither found nor an error; `searched` says where it begins."""
        log = log_of(tmp_path, NUMBERS.encode())
        begin = NUMBERS.index("line 90")
        write_head(log.head_path, LogHead(begin))
        result = search({"": log}, "line", context=0)
        assert texts(result) == [f"line {number}" for number in range(90, 100)]
        assert result.searched == (begin, len(NUMBERS))
        assert result.matches[0].line == 0
        log.close()

    def test_an_empty_log_has_no_matches(self, found: Any) -> None:
        """And none that is missing."""
        assert found(b"", "x").note == "no line matches"
        assert found(b"", "x.").complete

    def test_it_can_be_told_as_json(self, found: Any) -> None:
        """Everything in it is plain data."""
        shown = json.loads(json.dumps(found(NUMBERS, "line 9$").public()))
        assert shown["count"] == 1
        assert shown["matches"][0]["text"] == "line 9"

    def test_what_was_drawn_over_is_matched_as_it_shows(self, found: Any) -> None:
        """A line is what `view` shows of it; CR LF is a line end."""
        data = b"start\r\n\x1b[31mred\x1b[0m\rprogress 1\rprogress 100\r\n10%\r20%\x1b[K\nend\n"
        (match,) = found(data, "progress").matches
        assert match.text == "progress 100"
        assert (match.before, match.after) == (["start"], ["20%", "end"])
        assert data[match.offset :].startswith(b"\x1b[31mred")
        assert found(data, "10%").count == 0
        assert found(data, "red").count == 0
        assert [match.line for match in found(data, r"^\d+%$|end$").matches] == [2, 3]

    def test_a_match_shows_where_it_is(self, found: Any) -> None:
        """Its number, as `lines` takes it, and its offset."""
        assert "> line 50  [line=50 offset=390]" in found(NUMBERS, "line 50").text

    def test_two_streams_are_searched_within_one_budget(self, tmp_path: Path) -> None:
        """Each match says where it is from; notes are of each."""
        logs = {}
        for name in ("stdout", "stderr"):
            (tmp_path / name).mkdir()
            logs[name] = log_of(tmp_path / name, NUMBERS.replace("line", name).encode())
        how: Any = {"context": 0, "first": None, "last": 20, "ignore_case": False}
        how |= {"literal": False, "start": None, "end": None, "timeout": 10.0}
        result = search(logs, "std... 5$", budget=1000, **how)
        assert [match.stream for match in result.matches] == ["stdout", "stderr"]
        assert "[stderr line=5 offset=" in result.text
        assert result.count == 2
        assert result.complete
        for budget in (0, 10, 100, 300, 1000):
            result = search(logs, "std", budget=budget, **how)
            assert len(result.text) <= budget
            assert result.count == 200
            assert result.streams["stderr"].count == 100
            if budget == 1000:
                assert {match.stream for match in result.matches} == {"stdout", "stderr"}
        assert json.loads(json.dumps(result.public()))["streams"]["stdout"]["count"] == 100
        for log in logs.values():
            log.close()


class TestSize:
    @pytest.mark.parametrize("budget", [0, 1, 2, 3, 10, 50, 100, 300, 1000, 5000])
    @pytest.mark.parametrize("first", [None, 10])
    def test_the_text_stays_within_its_budget(
        self, found: Any, budget: int, first: int | None
    ) -> None:
        """Matches are dropped from the far side, and counted all the same."""
        result = found(NUMBERS, "line", budget=budget, first=first)
        assert len(result.text) <= budget
        assert result.count == (first or 100)
        if result.matches:
            near = result.matches[0 if first else -1]
            assert near.text == ("line 0" if first else "line 99")
            assert f"{len(result.matches)} of" in result.note or len(result.matches) == first

    def test_a_long_line_is_shown_where_it_matches(self, found: Any) -> None:
        """Its ends are cut, not the match."""
        result = found("x" * 5000 + " needle " + "y" * 5000 + "\n", "needle")
        (match,) = result.matches
        assert "needle" in match.text
        assert len(match.text) < 600
        assert match.text.startswith("…")
        assert match.text.endswith("…")

    def test_a_line_without_end_is_searched_in_pieces(self, found: Any) -> None:
        """A log that is one endless line is not held in memory, and the answer says so."""
        data = b"x" * (5 << 19) + b"needle" + b"x" * (5 << 19)
        for pattern in ("needle", r"ne+dle"):
            for first in (None, 1):
                result = found(data, pattern, first=first, timeout=60)
                assert result.count == 1
                assert not result.complete
                if first is None:
                    assert "in pieces" in result.note


class TestTime:
    @pytest.mark.parametrize(("pattern", "line"), EVIL)
    def test_no_pattern_takes_longer_than_allowed(
        self, found: Any, pattern: str, line: str
    ) -> None:
        """A search ends at its time limit whatever the pattern, and says so if it had to."""
        started = time.monotonic()
        result = found(f"before\n{line}\nafter\n" * 20, pattern, timeout=0.3)
        assert time.monotonic() - started < 60
        assert result.complete or "the time ran out" in result.note

    def test_it_says_what_was_not_searched(self, found: Any) -> None:
        """The last lines come first, so what was searched is the end of the log."""
        slow = "a" * 90 + "b\n"
        lines = "aaab\n" * 10 + slow + "good aaa\n" * 10

        def as_far_as(way: str, place: int, **options: Any) -> Any:
            """On a busy machine the time may run out before it gets to the slow line."""
            for timeout in (0.5, 2.0, 8.0, 30.0):
                result = found(lines, r"(a|aa)+$", timeout=timeout, **options)
                assert not result.complete
                searched = result.searched[0 if way == "end" else 1]
                if searched == place:
                    break
            assert f"{way}={place}" in result.note
            return result

        result = as_far_as("end", lines.index("good"))
        assert result.count == 10
        assert result.searched == (lines.index("good"), len(lines))
        forward = as_far_as("start", lines.index(slow), first=5)
        assert forward.count == 0
        assert forward.searched == (0, lines.index(slow))

    def test_others_run_meanwhile(self, found: Any) -> None:
        """A pattern that takes all its time holds up no other thread."""
        passes = 0
        over = threading.Event()

        def other() -> None:
            nonlocal passes
            while not over.wait(0.001):
                passes += 1

        thread = threading.Thread(target=other)
        thread.start()
        try:
            result = found("a" * 90 + "b\n", r"(a|aa)+$", timeout=1)
        finally:
            over.set()
            thread.join()
        assert not result.complete
        assert passes > 3


class TestRefusals:
    @pytest.mark.parametrize(
        ("pattern", "said"),
        [
            ("(abc", "character"),
            ("abc)", "character 4"),
            ("[a-", "character"),
            ("a{2,1}b(", "character"),
            ("*a", "character 1"),
            (r"\p{Nonsense}", "character"),
            ("(" * 900, "pattern"),
            ("", "empty"),
            ("x" * 1001, "at most 1000"),
            ("(?P<1a>x)", "character"),
        ],
    )
    def test_a_bad_pattern_is_named_with_its_place(
        self, found: Any, pattern: str, said: str
    ) -> None:
        """What is wrong and where, and a way out."""
        with pytest.raises(BadRequest, match=re.escape(said)):
            found(NUMBERS, pattern)

    def test_a_text_with_a_line_end_is_refused(self, found: Any) -> None:
        """It could never be found."""
        with pytest.raises(BadRequest, match="line by line"):
            found(NUMBERS, "line 1\nline 2")

    @pytest.mark.parametrize("option", ["context", "first", "last", "start", "end", "budget"])
    def test_negative_numbers_are_refused(self, found: Any, option: str) -> None:
        """They mean nothing here."""
        with pytest.raises(BadRequest):
            found(NUMBERS, "x", **{option: -1})


ALPHABET = b"ab. E\n\n\r\x1b[0m\xff\xc3\xa4"
PATTERNS = [
    "a",
    "ab",
    "E",
    "b.",
    "a+b",
    "^a",
    "b$",
    "[ab]E",
    "a|E",
    "(a)b*",
    "ä",
    ".ä",
    r"\.",
    "a b",
]


def plain(line: bytes) -> str:
    """A line as `view` has it if something was drawn over, and else without its codes."""
    if re.search(rb"\r|\x1b\[[0-?]*[ -/]*E", line):
        return " ".join(row.text for row in rows_of(line + b"\n") if row.text)
    return re.sub(rb"\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?", b"", line).decode(errors="replace")


def plainly(data: bytes, pattern: str, ignore_case: bool) -> list[str]:
    """The lines that match, found in the plainest way."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    shown = [plain(line.rstrip(b"\r")) for line in lines]
    return [line for line in shown if re.search(pattern, line, re.I if ignore_case else 0)]


@property_test
@given(
    st.lists(st.sampled_from([ALPHABET[n : n + 1] for n in range(len(ALPHABET))]), max_size=120),
    st.sampled_from(PATTERNS),
    st.booleans(),
    st.sampled_from([None, 1, 2, 100]),
    st.sampled_from([8, 32, 1 << 20]),
)
@example([b"\xff", b"\n", b"a"], "a", False, None, 8)
def test_the_same_lines_as_a_plain_loop_finds(
    parts: list[bytes], pattern: str, ignore_case: bool, first: int | None, piece: int
) -> None:
    """In whichever direction and in pieces of whatever size."""
    data = b"".join(parts)
    wanted = plainly(data, pattern, ignore_case)
    longest = max(map(len, data.split(b"\n")))
    with (
        tempfile.TemporaryDirectory() as directory,
        patch.object(scan, "_PIECE", max(piece, 2 * longest + 2)),
        patch.object(scan, "_SMALL_PIECE", piece),
    ):
        log = log_of(directory, data)
        result = search(
            {"": log},
            pattern,
            ignore_case=ignore_case,
            first=first,
            last=5,
            context=0,
            budget=100_000,
        )
        log.close()
    shown = [re.sub(r"[\x00-\x1f]", "", line) for line in wanted]
    if first is None:
        assert texts(result) == shown[-5:]
        assert result.count == len(wanted)
        assert result.complete
    else:
        assert texts(result) == shown[:first]
    for match in result.matches:
        assert match.offset == 0 or data[match.offset - 1 : match.offset] == b"\n"
        assert match.line == data[: match.offset].count(b"\n")


PIECES = ["a", "b", "ab", r"\d", r"\.", ".", "a*", "b?", "a+", "(ab)", "(a|b)", "[ab]", "a{2}"]
PIECES += ["(a.b)", "(a(b)+)?", "(?P<n>a)", "(?:ab|b)", "(?!b)", "(?<=a)", "((a)", "b)"]
PIECES += ["(?:b)", "^", "$", r"\b", "a{0,1}", "[^]a]", "(?=a)", "|", "(ab){0,2}", "x{1,}", "}"]


@property_test
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=6), st.text("ab.x1}", max_size=12))
def test_a_required_text_is_in_everything_that_matches(parts: list[str], line: str) -> None:
    """No line is passed over for lack of a text that it need not have."""
    pattern = "".join(parts)
    try:
        match = re.search(pattern, line)
    except re.error:
        return
    if match is not None:
        for text in required_texts(pattern):
            assert text in line
    if (plain := plain_text(pattern)) is not None:
        assert (match is not None) == (plain in line)


SEVERAL = ["a", "b", "ab", r"\d", r"\s", r"\S", r"\W", r"\D", ".", "[^a]", "[^-a]", "[^]a]", "[]b]"]
SEVERAL += [
    "[ab]",
    r"[\s\S]",
    r"[\x00-z]",
    r"\b",
    "^",
    "$",
    r"\A",
    r"\Z",
    "(?!b)",
    "(?=a)",
    "(?<=a)",
]
SEVERAL += [
    "(?<!a)",
    r"(?!\s)",
    "(a|b)",
    r"(\w)\1",
    "a*+",
    "(?>a*)",
    r"\s*",
    "[^a]+",
    "{",
    "x{0,2}",
    "|",
]
SEVERAL += [
    "[[:alpha:]]",
    r"\p{L}",
    r"\x0a",
    "(?i:A)",
    "b{2}",
    "(?:b|)",
    r"\.",
    "-",
    "(?P<n>a)(?P=n)",
]


@property_test
@given(
    st.lists(st.sampled_from(SEVERAL), min_size=1, max_size=5),
    st.lists(st.text("ab.x1}] \t-", max_size=6), min_size=1, max_size=6),
    st.booleans(),
)
@example([r"a", r"\s"], ["a", "", "a "], False)
@example(["[^a]+"], ["b", "a", "b"], False)
@example([r"(?!\s)", "$"], ["a", "b"], False)
def test_many_lines_at_once_match_as_each_does(
    parts: list[str], lines: list[str], ignore_case: bool
) -> None:
    """No match reaches from one line into another, and none is missed at an end."""
    pattern = "".join(parts)
    flags = regex.IGNORECASE if ignore_case else 0
    try:
        alone = regex.compile(pattern, flags)
    except regex.error:
        return
    among = among_lines(pattern)
    assert among is not None
    together = regex.compile(f"(?:{among}).*\\n", flags | regex.MULTILINE)
    found = [match.start() for match in together.finditer("".join(f"{line}\n" for line in lines))]
    wanted, at = [], 0
    for line in lines:
        if match := alone.search(line):
            wanted.append(at + match.start())
        at += len(line) + 1
    assert found == wanted
    finder = Lines(among, ignore_case, time.monotonic() + 60)
    for _ in range(2):  # the second time it knows how many there are
        assert finder.count("".join(f"{line}\n" for line in lines)) == len(wanted)


@pytest.mark.parametrize(
    "pattern",
    [
        r"a\n",
        "a\nb",
        "(?:ab){e<=1}",
        r"\B",
        "(?x)a",
        "(?(1)a|b)",
        "(?R)",
        r"\N{DIGIT ONE}",
        r"\012",
    ],
)
def test_what_is_not_known_among_lines_is_left_alone(pattern: str) -> None:
    """It is tried on each line then."""
    assert among_lines(pattern) is None


def test_flags_before_a_pattern_are_no_reason_to_be_slow() -> None:
    """Case is an option of ours; the others mean nothing within a line."""
    matcher = matcher_of("(?i)Error", False, False, 0)
    assert (matcher.test, matcher.fold, matcher.texts) == (None, True, [b"error"])
    assert matcher_of("(?ms)Error", False, False, 0).texts == [b"Error"]


def test_a_pattern_that_is_slow_in_some_lines_is_tried_on_each(found: Any) -> None:
    """Lines that one look at all of them has no time for are looked at one by one."""
    lines = "x\n" * 20_000 + "a" * 22 + "b\n" + "good aaa\n" * 10
    with patch.object(_matcher, "_LINES_SECONDS", 0.001):
        result = found(lines, r"(a|aa)+$|^y", timeout=60)
    assert result.complete
    assert result.count == 10


def test_required_texts_are_told_where_they_can_be() -> None:
    """What is neither optional nor one of several."""
    assert required_texts(r"Ready on (\d+)") == ["Ready on "]
    assert required_texts(r"error: .* line \d+") == ["error: ", " line "]
    assert required_texts(r"INFO (need\w+) (?:in|out) (?P<n>x)? ") == [
        "INFO ",
        "need",
        " ",
        " ",
        " ",
    ]
    assert required_texts(r"(?=a)b(?!c)(?<=d)") == ["b"]
    assert required_texts("(" * 500 + "a" + ")" * 500) == []
    assert required_texts(r"a|b") == []
    assert required_texts(r"(?i)abc") == []
    assert required_texts(r"\x41bc") == []
    assert matcher_of("Ready (.*)", False, False, 0).texts == [b"Ready "]
    assert matcher_of("skip (.*)", True, False, 0).texts == []


def test_a_growing_log_is_searched_as_far_as_it_was(tmp_path: Path) -> None:
    """Lines that come while a log is searched are for the next time."""
    log = log_of(tmp_path, b"one\n")
    first = search({"": log}, "one")
    with open(log.path, "ab") as file:
        file.write(b"one more\n")
    second = search({"": log}, "one", start=first.searched[1])
    assert texts(second) == ["one more"]
    assert second.matches[0].offset == 4
    log.close()
