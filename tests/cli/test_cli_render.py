"""What a person sees: tables, colours, escapes; and how arguments are read. Starts no process."""

from __future__ import annotations

import io
import re
import time

import pytest

from holdfast.cli import _render
from holdfast.cli._handles import beginning
from holdfast.cli._parser import COMMANDS, Parser, Usage, command
from holdfast.core.record import Record


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(handle: str, **details: object) -> Record:
    return Record(handle=handle, session="default", command="true", cwd="/", **details)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("two\nlines\tand\rmore", "two\\nlines\\tand\\rmore"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("c1\x9b31m", "c1\\x9b31m"),
        ("bidi\u202eoverride", "bidi\\u202eoverride"),
        ("bytes\udcff", "bytes\\xff"),
        ("zażółć 日本", "zażółć 日本"),
    ],
)
def test_text_from_outside_never_reaches_the_terminal_raw(text: str, shown: str) -> None:
    assert _render.safe(text) == shown


def test_tables_align_by_columns_shown_not_by_characters() -> None:
    table = _render.Table("NAME", "WHAT")
    table.add("日本", "wide")
    table.add("e\u0301", "combining")
    table.add("longest", "ascii")
    assert table.lines(None, colour=False) == [
        "NAME     WHAT",
        "日本     wide",
        "e\u0301        combining",
        "longest  ascii",
    ]


def test_the_last_column_is_cut_to_the_terminal_and_whole_when_piped() -> None:
    table = _render.Table("NAME", "COMMAND")
    table.add("a", "x" * 200)
    assert [len(line) for line in table.lines(40, colour=False)][1] == 40
    assert table.lines(40, colour=False)[1].endswith("x…")
    assert table.lines(None, colour=False)[1].endswith("x" * 200)


def test_a_cut_never_splits_a_wide_character() -> None:
    assert _render.cut("日本語", 4) == "日…"
    assert _render.cut("日本", 4) == "日本"


def test_colours_only_on_a_terminal_and_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert _render.coloured(Terminal())
    assert not _render.coloured(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not _render.coloured(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not _render.coloured(Terminal())


def test_a_process_row_has_how_it_ended_and_escapes_its_command() -> None:
    one = record(
        "proc-aaaaaaaaaaaaaaaa",
        label="x\x1b[2J",
        status="failed",
        exit_code=3,
        duration_seconds=142.0,
    )
    line = _render.process_table([one]).lines(None, colour=False)[1]
    assert re.split(" {2,}", line) == [
        "proc-aaaaaaaaaaaaaaaa",
        "x\\x1b[2J",
        "failed 3",
        "-",
        "2m 22s",
        "default",
        "true",
    ]


def test_times_are_shown_in_the_zone_of_whoever_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in summer."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert _render.local_time("2020-07-01T12:00:00.000000Z") == "2020-07-01 08:00"
        assert _render.local_time("2020-01-01T12:00:00Z") == "2020-01-01 07:00"
        assert _render.local_time("nonsense") == "nonsense"
        assert _render.local_time(None) == "-"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("columns", [70, 80, 120, 200])
def test_a_narrow_terminal_does_without_some_columns(columns: int) -> None:
    """What it was started with stays legible."""
    one = record("proc-aaaaaaaaaaaaaaaa", started_at="2020-01-01T12:00:00Z", timeout=60.0)
    header, line = _render.process_table([one]).lines(columns, colour=False)
    assert ("STARTED" in header, "DEADLINE" in header) == (columns >= 120, columns >= 120)
    assert line.endswith("true")
    assert len(line) <= columns


# -- handles ---------------------------------------------------------------------------------------

ONE = record("proc-abcdabcdabcdabcd", label="web")
TWO = record("proc-abcexxxxxxxxxxxx", label="abcd")
THREE = record("proc-zzzzzzzzzzzzzzzz", label="web")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("proc-abcda", [ONE]),
        ("abce", [TWO]),
        ("abc", [ONE, TWO]),
        ("abcd", [ONE]),
        ("proc-", []),
        ("", []),
        ("web", []),  # a label is found by the client
        ("bcda", []),  # not from the middle
        ("proc-*", []),
        ("PROC-ABCD", []),
    ],
)
def test_short_handles_match_a_beginning(text: str, found: list[Record]) -> None:
    assert beginning(text, [ONE, TWO, THREE]) == found


# -- arguments -------------------------------------------------------------------------------------


def parser() -> Parser:
    made = Parser("test", "a test")
    made.words("WORD...", 0, None)
    made.option("-f", "--follow", action="store_true")
    made.option("-d", action="store_true")
    made.option("-n", "--number", type=int)
    made.option("--label", default="")
    made.option("-C", "--cwd")
    return made


@pytest.mark.parametrize(
    ("argv", "words", "options"),
    [
        (["a", "-f", "b"], ["a", "b"], {"follow": True}),
        (["a", "--label", "x", "b", "--label=y"], ["a", "b"], {"label": "y"}),
        (["--", "-f", "--", "b"], ["-f", "--", "b"], {"follow": False}),
        (["-", "-f"], ["-"], {"follow": True}),
        (["--label", "--follow"], [], {"label": "--follow", "follow": False}),
        (["--label", ""], [], {"label": ""}),
        (["--label", "two words=x"], [], {"label": "two words=x"}),
        (["-C", "-odd dir"], [], {"cwd": "-odd dir"}),
        (["-C", ""], [], {"cwd": ""}),
        (["-Cdir"], [], {"cwd": "dir"}),
        (["-fdn", "5", "a"], ["a"], {"follow": True, "d": True, "number": 5}),
        (["-n5"], [], {"number": 5}),
        (["-n", "-5"], [], {"number": -5}),
    ],
)
def test_options_and_words_mix_in_any_order(
    argv: list[str], words: list[str], options: dict[str, object]
) -> None:
    args = parser().parse(argv)
    assert args.words == words
    assert {name: getattr(args, name) for name in options} == options


def test_the_first_word_of_run_ends_its_options() -> None:
    args = command("run")[0].parse(["-d", "ls", "-l", "--", "--label", "x"])
    assert args.words == ["ls", "-l", "--", "--label", "x"]
    assert args.detach
    assert args.label == ""


def test_only_the_first_double_dash_of_run_is_ours() -> None:
    args = command("run")[0].parse(["-d", "--", "--", "-x"])
    assert args.words == ["--", "-x"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--folow"], "no option --folow; did you mean --follow?"),
        (["-x"], "no option -x"),
        (["-fx"], "no option -x (in -fx)"),
        (["--label"], "--label needs a value"),
        (["-n", "x"], "invalid int value"),
        (["--follow=1"], "ignored explicit argument"),
    ],
)
def test_a_wrong_option_is_named_with_a_next_step(argv: list[str], says: str) -> None:
    with pytest.raises(Usage) as caught:
        parser().parse(argv)
    assert says in str(caught.value)
    assert "holdfast test --help" in str(caught.value)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    made, do = command(name)
    assert callable(do)
    assert made.format_help().startswith(f"usage: holdfast {name}")


def test_a_table_with_terminals_shows_the_mode_and_who_waits() -> None:
    """The column is there where it says something; a prompt makes a process stand out."""
    plain = record("proc-aaaaaaaaaaaaaaaa")
    terminal = record("proc-bbbbbbbbbbbbbbbb", mode="pty")
    terminal.waiting_for_input = {"kind": "line", "prompt": "Delete? "}
    assert "MODE" not in _render.process_table([plain]).header
    lines = _render.process_table([plain, terminal]).lines(None, colour=False)
    assert [re.split(" {2,}", line)[2:4] for line in lines] == [
        ["STATUS", "MODE"],
        ["running", "pipe"],
        ["running, waits", "pty"],
    ]


@pytest.mark.parametrize(
    ("waiting", "text"),
    [
        (False, None),
        ("unknown", "perhaps; the kernel does not say"),
        ({"kind": "line", "prompt": "y/n?"}, "for a line: y/n?"),
        ({"kind": "password", "prompt": "Password:"}, "for a password: Password:"),
        ({"kind": "key", "prompt": ""}, "for a key"),
    ],
)
def test_what_a_process_waits_for_is_said_in_words(waiting: object, text: str | None) -> None:
    one = record("proc-aaaaaaaaaaaaaaaa")
    one.waiting_for_input = waiting  # type: ignore[assignment]
    assert _render.waiting_text(one) == text


def test_everything_after_keys_is_a_key() -> None:
    """Whatever it looks like: an option, a dash, two dashes."""
    parser, _ = command("send")
    args = parser.parse(["H", "text", "--enter", "--keys", "C-c", "--eof", "-", "--"])
    assert args.words == ["H", "text"]
    assert args.keys == ["C-c", "--eof", "-", "--"]
    assert args.enter
    assert not args.eof
    assert command("send")[0].parse(["H", "--keys=Up", "Enter"]).keys == ["Up", "Enter"]
    assert command("send")[0].parse(["H", "x"]).keys == []
