"""The first error in a program's output: where it begins and ends, as its tool prints it.

What is known here was taken from the output of real tools (``tests/data/output``). A block is sure
when its first line has a shape that only errors have; words such as ``ERROR`` alone make one that
is taken only where nothing better is found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    End = Callable[[Sequence[str], int], int]

_LONGEST = 500  # characters of a line that are looked at
_MOST_LINES = 400
_MOST_BEFORE = 6

# No line without one of these begins a block, so blocks of bytes without them need no look at all.
# They are by a byte that is in each: where that is missing, which is found out in no time, so are
# they.
_CUES = {
    "R": ("ERR", "CRITICAL", "SEVERE"),
    "A": ("FAIL", "PANIC", "FATAL"),
    "o": ("rror", "Exception", "not found", "No such", "Segmentation", "core dumped"),
    "a": ("Traceback (", "panic", "atal"),
    "e": ('File "', "undefined reference", "denied", "Killed", "Out of memory"),
    "*": ("***",),
    ":": (".go:",),
    "-": ("---- ",),
    "●": ("●",),
}
# Most errors have one of these.
_USUAL = {"ERR", "FATAL", "rror", "Exception", "Traceback (", "panic"}
_CUE = re.compile("|".join(re.escape(cue) for cues in _CUES.values() for cue in cues))
_CUE_BYTES = [
    (byte.encode(), [(cue.encode(), cue in _USUAL) for cue in cues]) for byte, cues in _CUES.items()
]


def may_have_error(data: bytes, *, thorough: bool = True) -> bool:
    """False if no line of `data` begins a block; unless `thorough`, rare kinds are passed over."""
    return any(
        byte in data and any((usual or thorough) and cue in data for cue, usual in cues)
        for byte, cues in _CUE_BYTES
    )


@dataclass(slots=True)
class Block:
    """Lines `start` to `end` (which is not part of it)."""

    start: int
    end: int
    sure: bool


def first_error(lines: Sequence[str]) -> Block | None:
    """The first block that is surely an error, else the first that may be one."""
    perhaps: Block | None = None
    for number, line in enumerate(lines):
        if _CUE.search(line, 0, _LONGEST) is None:
            continue
        for kind in _KINDS:
            if (kind.sure or perhaps is None) and kind.begins(lines, number):
                block = kind.block(lines, number)
                if block.sure:
                    return block
                perhaps = block
                break
    return perhaps


@dataclass(slots=True)
class _Kind:
    """A block begins at a line that matches `begin`, takes in lines above it, and has its `end`."""

    begin: re.Pattern[str]
    end: End
    above: re.Pattern[str] | None = None
    above_anything: bool = False  # lines above it may be found beyond others
    then: re.Pattern[str] | None = None  # what one of the next lines must look like
    sure: bool = True

    def begins(self, lines: Sequence[str], number: int) -> bool:
        if self.begin.search(lines[number][:_LONGEST]) is None:
            return False
        return self.then is None or any(map(self.then.match, lines[number + 1 : number + 4]))

    def block(self, lines: Sequence[str], number: int) -> Block:
        end = min(self.end(lines, number), number + _MOST_LINES)
        while end > number + 1 and not lines[end - 1].strip():
            end -= 1
        start = number
        if self.above is not None:
            for above in range(number - 1, max(number - _MOST_BEFORE, 0) - 1, -1):
                if self.above.match(lines[above]):
                    start = above
                elif not self.above_anything:
                    break
        return Block(start, end, self.sure)


def _while(pattern: str) -> End:
    """An end that goes on as long as lines look like this."""
    goes_on = re.compile(pattern)

    def end(lines: Sequence[str], number: int) -> int:
        number += 1
        while number < len(lines) and goes_on.match(lines[number]):
            number += 1
        return number

    return end


def _until(pattern: str, *, skip: int = 1) -> End:
    """Up to a line that looks like this, `skip` lines further on or later."""
    stops = re.compile(pattern)

    def end(lines: Sequence[str], number: int) -> int:
        number += skip
        while number < len(lines) and not stops.match(lines[number]):
            number += 1
        return min(number, len(lines))

    return end


def _paragraphs(following: str) -> End:
    """Up to an empty line, and on through the paragraphs that begin like this."""
    belongs = re.compile(following)
    paragraph = _until(r"\s*$|exit status ")

    def end(lines: Sequence[str], number: int) -> int:
        stop = paragraph(lines, number)
        while stop + 1 < len(lines) and belongs.match(lines[stop + 1]):
            stop = paragraph(lines, stop + 1)
        return stop

    return end


def _traceback(lines: Sequence[str], number: int) -> int:
    """Frames, the exception, and the tracebacks that are chained to it.

    All of its lines may have a prefix, as the programs that gather logs put before each.
    """
    prefix = lines[number][: lines[number].index("Traceback (")]
    if prefix.endswith(_GROUP):
        return _group(lines, number)

    def line(at: int) -> str | None:
        inside = at < len(lines) and lines[at].startswith(prefix.rstrip())
        return lines[at][len(prefix) :] if inside else None

    at = number + 1
    while True:
        while (text := line(at)) is not None and text.startswith("  "):
            at += 1
        if text:
            at += 1  # the exception itself
        after = at
        while line(after) == "":
            after += 1
        if not (line(after) or "").startswith(_CHAINED):
            return at
        after += 1
        while line(after) == "":
            after += 1
        if (line(after) or "").lstrip(" +").startswith(_GROUP):
            return _group(lines, after)
        if not (line(after) or "").startswith("Traceback ("):
            return at
        at = after + 1


_group = _while(r"\s+[|+]")
_GROUP = "Exception Group "
_CHAINED = ("During handling of the above", "The above exception was the direct cause")


def _stack(lines: Sequence[str], number: int) -> int:
    """The message, the calls, and the properties that node prints in braces after them."""
    at = number + 1
    while at < len(lines) and not _CALL.match(lines[at]):
        at += 1
    at = _while(_CALLS)(lines, at)
    if lines[at - 1].endswith("{"):
        at = _until(r"\}")(lines, at - 1) + 1
    return min(at, len(lines))


_CALL = re.compile(r"\s+at \S")
_CALLS = r"\s+at \S|Caused by: |\s+\.\.\. \d+ more"

_PLACE = r"[^\s:(][^:(]*:\d+(?::\d+)?: "
_GO_PLACE = r"(?:vet: )?[\w./-]+\.go:\d+:\d+: "


def _kind(
    begin: str,
    end: End,
    above: str | None = None,
    then: str | None = None,
    *,
    above_anything: bool = False,
    sure: bool = True,
) -> _Kind:
    return _Kind(
        re.compile(begin),
        end,
        None if above is None else re.compile(above),
        above_anything,
        None if then is None else re.compile(then),
        sure,
    )


_KINDS = [
    # Python, with the heading that unittest puts above
    _kind(r"Traceback \(most recent call last\):", _traceback, r"-{20,}$|(?:ERROR|FAIL): "),
    _kind(r'^  File ".+", line \d+$', _while(r"    |\w*(?:Error|Warning)\b")),
    # pytest
    _kind(r"^=+ (?:FAILURES|ERRORS) =+$", _until(r"(_{3,} .+ _{3,}|=+ .+ =+)$", skip=2)),
    # tsc, plain and pretty
    _kind(r"^\S.*\(\d+,\d+\): error TS\d+: ", _while(r".*\(\d+,\d+\): error TS|\s+\S")),
    _kind(r"^\S+:\d+:\d+ - error\b", _until(r"\S+:\d+:\d+ - error\b|Found \d+ error")),
    # gcc, clang, mypy and others that name a place; the linker
    _kind(
        rf"^{_PLACE}(?:fatal )?error: ",
        _while(rf"{_PLACE}(?:note|error|fatal error): |\s+\S"),
        above=r".*: In .*:$|In file included from |\s+from ",
    ),
    _kind(
        r"undefined reference to ",
        _while(r".*undefined reference to |.*in function |collect2: |\S*ld: "),
        above=r".*in function ",
    ),
    _kind(r"^(?:\S+/)?g?make(?:\[\d+\])?: \*\*\* ", _while(r"\S*make(?:\[\d+\])?: \*\*\* ")),
    # Go: build, test, panic
    _kind(rf"^{_GO_PLACE}", _while(rf"{_GO_PLACE}|\t"), above="# "),
    _kind(r"^\s*--- FAIL: ", _while(r"\s+\S"), above=r"\s+\S+\.go:\d+: |=== RUN "),
    _kind(r"^(?:panic|fatal error): ", _paragraphs(r"goroutine \d+ ")),
    # Rust: diagnostics, tests, panics
    _kind(r"^error(?:\[E\d+\])?: ", _paragraphs(r"(?!)"), then=r" *--> "),
    _kind(r"^---- .+ stdout ----$", _until(r"---- .+ stdout ----$|failures:$|test result: ")),
    _kind(r"^thread '.*'.* panicked at ", _paragraphs(r"(?!)")),
    _kind(r"^error: ", _paragraphs(r"Caused by:")),
    # npm; node, Java and what prints stacks as they do; jest
    _kind(r"^npm (?:ERR!|error)(?: |$)", _while(r"npm (?:ERR!|error)")),
    _kind(
        r"(?:Error|Exception)\b(?::|$| \[| \{)|^Exception in thread ",
        _stack,
        above=r"\S+:\d+$",
        above_anything=True,
        then=_CALL.pattern,
    ),
    _kind(r"^\s+● \S", _until(r"\s+● \S|Test Suites: |Tests: ")),
    # anything that says so
    _kind(
        r"(?:^|[\s\[|\"])(?:ERROR|FATAL|CRITICAL|PANIC|SEVERE|FAILED|FAIL)(?:$|[\s\]:|!,(\"])"
        r"|\b(?:[Ee]rror|[Ff]atal|[A-Z]\w*(?:Error|Exception)): "
        r"|: (?:command )?not found$|No such file or directory|[Pp]ermission denied"
        r"|^Segmentation fault|^Killed$|core dumped\)|^Out of memory",
        _while(r"\s+\S"),
        sure=False,
    ),
]
