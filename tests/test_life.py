"""The contract of a process, whatever its mode: how it starts, speaks, ends and is forgotten."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import (
    BadDirectory,
    BadRequest,
    LimitReached,
    NotExecutable,
    NotFound,
    NotRunning,
    SpawnError,
    Stream,
    SyncClient,
    SyncProcess,
    Unsupported,
    WaitTimeout,
    connect,
)
from holdfast.core.home import new_handle
from holdfast.core.record import ExitNote, Record
from holdfast.core.record import signal_number as end_number
from holdfast.testing import wait_until

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tests.conftest import Gate

pytestmark = pytest.mark.shared_keeper

CHILDREN = Path(__file__).parent / "children"

Start = Callable[..., SyncProcess]
Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]


# What to ask for so that a process runs in this mode.
MODES: dict[str, dict[str, Any]] = {
    "pipe": {},
    "pty": {"tty": True},
    "tmux": {"tmux": True},
    "docker": {"docker": "hfbox"},
    "docker-tty": {"docker": "hfbox", "tty": True},
}
ON_THE_MACHINE = ("pipe", "pty", "tmux")


def _param(mode: str, *, at_once: bool = False) -> Any:
    """A container takes its time, and is for later unless a test wants it at once."""
    later = mode == "docker-tty" or (mode == "docker" and not at_once)
    return pytest.param(mode, marks=[pytest.mark.long] if later else [])


@pytest.fixture(params=[_param(mode) for mode in MODES])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def only(*modes: str) -> pytest.MarkDecorator:
    """For what the other modes do differently, which their own files test."""
    return pytest.mark.parametrize("mode", [_param(mode) for mode in modes], indirect=True)


# Also in a container, in each run of the tests.
everywhere = pytest.mark.parametrize(
    "mode", [_param(mode, at_once=True) for mode in MODES], indirect=True
)


@pytest.fixture
def asked(mode: str, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """What to ask for so that a process runs in the mode under test.

    A container gets the machine's programs, since the image has few, and the test's directory.
    """
    asked = dict(MODES[mode])
    if "docker" in asked:
        request.getfixturevalue("engine")
        programs = {"/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix, str(CHILDREN)}
        mounts = [f"{path}:{path}:ro" for path in sorted(programs)] + [f"{tmp_path}:{tmp_path}"]
        asked["docker"] = {"image": asked["docker"], "mounts": mounts}
    return asked


@pytest.fixture
def start(hf: SyncClient, asked: dict[str, Any], mode: str) -> Start:
    """Start a process of the mode under test."""
    kept_as = {"docker": "pipe", "docker-tty": "pty"}.get(mode, mode)

    def spawn(command: str | list[str], **options: Any) -> SyncProcess:
        process = hf.spawn(command, **asked, **options)
        assert process.record.mode == kept_as
        return process

    return spawn


@pytest.fixture
def client(
    home: str, monkeypatch: pytest.MonkeyPatch, session: str
) -> Iterator[Callable[..., SyncClient]]:
    """A client of the test's session, with settings of its own."""
    opened = []

    def open_with(**settings: str) -> SyncClient:
        for name, value in settings.items():
            monkeypatch.setenv(f"HOLDFAST_{name.upper()}", value)
        opened.append(connect(session=session))
        return opened[-1].__enter__()

    yield open_with
    for connector in opened:
        connector.__exit__(None, None, None)


def output(process: SyncProcess, stream: Stream = "stdout") -> str:
    """All of it, with the line ends that were written: a terminal makes two characters of one."""
    return process.read_at(0, 1 << 20, stream=stream).text.replace("\r\n", "\n")


def shown(process: SyncProcess) -> dict[str, Any]:
    """What `shows_itself` printed."""
    assert process.wait(30).ok, output(process)
    shown: dict[str, Any] = json.loads(output(process).removeprefix("ready\n"))
    return shown


def files_of(home: str, handle: str) -> list[str]:
    return [
        os.path.join(folder, name)
        for folder, _, names in os.walk(home)
        for name in names
        if handle in name
    ]


# -- the start -------------------------------------------------------------------------------------


@everywhere
def test_a_string_is_run_by_bash(start: Start) -> None:
    """A command given as a string may use what agents write: bash, pipes, lists."""
    process = start("[[ ab == a* ]] && echo ${BASH_VERSION:+bash} {1..3} | tr a-z A-Z; exit 4")
    assert process.wait(30).code == 4
    assert output(process) == "BASH 1 2 3\n"
    assert process.refresh().command_text.startswith("[[ ab")


def test_a_list_is_run_without_a_shell_and_byte_for_byte(
    start: Start, child: Child, tmp_path: Path, mode: str
) -> None:
    """Arguments of a list arrive exactly, whatever a shell would make of them."""
    witness = tmp_path / "made"
    arguments = [
        "",
        " a  b ",
        '"; touch ' + str(witness),
        f"$(touch {witness})",
        f"`touch {witness}`",
        "line\nline\r\n",
        "-rf",
        "*",
        "#(x)",
        "'\"\\",
        "ünïcödé \U0001f980",
    ]
    if mode in ON_THE_MACHINE:  # Docker's language is JSON
        arguments.append(os.fsdecode(b"not \xff utf-8 \xc3"))
    process = start(child("shows_itself", *arguments))
    assert shown(process)["argv"] == [os.fsencode(argument).hex() for argument in arguments]
    assert process.refresh().command == child("shows_itself", *arguments)
    assert not witness.exists()


@only(*ON_THE_MACHINE)
def test_directory_environment_and_umask_are_the_callers_at_the_call(
    start: Start, child: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is how things stand with the caller now, not with whoever started the keeper."""
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir()
    one.mkdir()
    seen = []
    before = os.umask(0)
    try:
        for place, mask in ((one, 0o027), (two, 0o000)):
            monkeypatch.chdir(place)
            monkeypatch.setenv("WHERE", place.name)
            os.umask(mask)
            seen.append((start(child("shows_itself")), place, mask))
    finally:
        os.umask(before)
    for process, place, mask in seen:
        found = shown(process)
        assert (found["cwd"], found["umask"]) == (str(place), mask)
        assert found["environment"]["WHERE"] == place.name
        assert process.refresh().cwd == str(place)
    found = shown(start(child("shows_itself"), cwd="../one", env={"MORE": "ä=b\n", "WHERE": "x"}))
    assert found["cwd"] == str(one)
    assert found["environment"]["MORE"] == "ä=b\n"
    assert found["environment"]["WHERE"] == "x"


@only("pipe")
def test_the_environment_is_not_interactive_unless_the_caller_says_so(
    start: Start, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pager and no colours by default; every one of these can be set by the call."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")
    found = shown(start(child("shows_itself")))["environment"]
    assert (found["TERM"], found["PAGER"], found["GIT_PAGER"]) == ("dumb", "cat", "cat")
    assert found["FORCE_COLOR"] == "0"
    assert "COLORTERM" not in found
    env = {"TERM": "xterm", "PAGER": "less", "FORCE_COLOR": "1"}
    found = shown(start(child("shows_itself"), env=env))["environment"]
    assert {name: found[name] for name in env} == env


@only(*ON_THE_MACHINE)
def test_a_process_inherits_nothing_of_ours(start: Start, child: Child, mode: str) -> None:
    """Three descriptors, the caller's limits, no signal blocked or ignored, its own session."""
    import resource

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
    process = start(child("shows_itself"))
    found = shown(process)
    assert sorted(found["descriptors"]) == ["0", "1", "2"], found["descriptors"]
    assert found["descriptors"]["0"] == ("/dev/null" if mode == "pipe" else process.record.tty)
    assert found["session"]
    assert found["nofile"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
    process = start(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
    assert process.wait(30).ok
    blocked, ignored = (int(line.split()[1], 16) for line in output(process).splitlines())
    # 32 and 33 are the C library's own, which posix_spawn ignores in the child until it needs them.
    assert (blocked, ignored & ~(0b11 << 31)) == (0, 0)


def test_label_group_and_session_are_in_the_record(start: Start, hf: SyncClient) -> None:
    """Label and group are kept as given, and shown in list and in the completion."""
    label = 'odd "label" $(x)'
    process = start("exit 0", label=label, group="builds")
    wait_until(lambda: list(hf.events()))
    record = process.refresh()
    assert (record.label, record.group, record.session) == (label, "builds", hf.session)
    assert [found.record.label for found in hf.list()] == [label]
    (event,) = hf.events()
    assert (event.handle, event.label, event.session) == (process.handle, label, hf.session)


@only(*ON_THE_MACHINE)
@pytest.mark.parametrize(
    ("make", "error", "word"),
    [
        (lambda place: ["no-such-program-anywhere"], NotExecutable, "no program"),
        (lambda place: [str(place / "nothing")], NotExecutable, "no program"),
        (lambda place: [str(place)], NotExecutable, "not an executable file"),
        (lambda place: [script(place, "#!/bin/sh\n", 0o600)], NotExecutable, "chmod"),
        (lambda place: [script(place, "no first line\n", 0o700)], NotExecutable, "#! line"),
        (lambda place: [script(place, "#!/no/such\n", 0o700)], NotExecutable, "interpreter"),
        (lambda place: [""], NotExecutable, "empty"),
        (lambda place: [], BadRequest, "non-empty"),
        (lambda place: " ", BadRequest, "empty"),
        (lambda place: "a\0b", BadRequest, "NUL"),
        (lambda place: ["true", "x" * 3_000_000], SpawnError, "too long"),
    ],
)
def test_what_cannot_be_started_is_an_error_and_leaves_nothing(
    start: Start,
    hf: SyncClient,
    tmp_path: Path,
    make: Callable[[Path], str | list[str]],
    error: type[Exception],
    word: str,
) -> None:
    """A program that cannot run is a distinct error, never a process and never code 127."""
    with pytest.raises(error, match=word) as raised:
        start(make(tmp_path))
    assert type(raised.value) is error
    assert files_of(hf.home.processes, "proc-") == []
    assert hf.list() == []
    assert start("exit 3").wait(30).code == 3, "the keeper goes on"


@only("docker", "docker-tty")
@pytest.mark.parametrize(
    ("make", "error", "word"),
    [
        (lambda place: ["no-such-program-anywhere"], NotExecutable, "no program"),
        (lambda place: [str(place / "nothing")], NotExecutable, "no program"),
        (lambda place: [str(place)], NotExecutable, "may not be executed"),
        (lambda place: [script(place, "#!/bin/sh\n", 0o600)], NotExecutable, "permissions"),
        (lambda place: [script(place, "#!/no/such\n", 0o700)], NotExecutable, "no program"),
        (lambda place: [""], NotExecutable, "empty"),
        (lambda place: " ", BadRequest, "empty"),
        (lambda place: "a\0b", BadRequest, "NUL"),
        (lambda place: ["true", os.fsdecode(b"\xff")], BadRequest, "UTF-8"),
        (lambda place: ["true", "x" * 3_000_000], SpawnError, "too long"),
    ],
)
def test_what_cannot_be_started_in_a_container_is_an_error_and_leaves_nothing(
    start: Start,
    hf: SyncClient,
    tmp_path: Path,
    make: Callable[[Path], str | list[str]],
    error: type[Exception],
    word: str,
) -> None:
    """The image decides what can run, and Docker what can be said; the rest is as elsewhere."""
    with pytest.raises(error, match=word) as raised:
        start(make(tmp_path))
    assert type(raised.value) is error
    assert files_of(hf.home.processes, "proc-") == []
    assert hf.list() == []
    assert start("exit 3").wait(30).code == 3, "the keeper goes on"


def script(place: Path, text: str, mode: int) -> str:
    path = place / "script"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_missing_and_not_executable_can_be_told_apart(start: Start, tmp_path: Path) -> None:
    """The error says whether there is no such program or one that cannot be run."""
    with pytest.raises(NotExecutable) as missing:
        start(["no-such-program-anywhere"])
    with pytest.raises(NotExecutable) as denied:
        start([script(tmp_path, "#!/bin/sh\n", 0o600)])
    assert missing.value.missing
    assert not denied.value.missing


def test_a_directory_that_cannot_be_used_is_an_error_and_leaves_nothing(
    start: Start, hf: SyncClient, tmp_path: Path
) -> None:
    """A working directory that is missing, or a file, is refused before anything starts."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BadDirectory, match="No such file"):
        start("true", cwd=tmp_path / "nowhere")
    with pytest.raises(BadDirectory, match="not a directory"):
        start("true", cwd=file)
    assert files_of(hf.home.processes, "proc-") == []


def test_the_same_handle_is_the_same_process(start: Start, tmp_path: Path, gate: Gate) -> None:
    """A start that is repeated with its handle, before or after the end, starts nothing new."""
    handle = new_handle()
    starts = tmp_path / "starts"
    command = f"echo x >> {starts}; : < {gate.path}; exit 9"
    first = start(command, handle=handle)
    again = start(command, handle=handle)
    assert again.record.pid == first.record.pid
    gate.open()
    assert again.wait(30).code == 9
    late = start(command, handle=handle)
    assert (late.record.pid, late.record.exit_code) == (first.record.pid, 9)
    assert starts.read_text() == "x\n"


@pytest.mark.weight(3)
def test_an_end_in_the_first_millisecond_is_seen_with_its_output(
    client: Callable[..., SyncClient], asked: dict[str, Any]
) -> None:
    """Many processes that end at once: every code and every byte."""
    hf = client(max_running="200", max_finished="200")
    many = 10 if "docker" in asked else 30 if "tmux" in asked else 100
    processes = [hf.spawn(f"echo out {n}; exit {n}", **asked) for n in range(many)]
    for n, process in enumerate(processes):
        end = process.wait(30)
        assert (end.code, end.reason) == (n, "exited")
        assert output(process) == f"out {n}\n"


# -- output and input ------------------------------------------------------------------------------


def test_stdout_and_stderr_share_a_log_in_their_order(start: Start) -> None:
    """Merged output is what a terminal would show, and has no separate stderr."""
    process = start("echo one; echo two >&2; echo three")
    process.wait(30)
    assert output(process) == "one\ntwo\nthree\n"
    assert process.refresh().err_log is None
    with pytest.raises(Unsupported, match="separate"):
        process.tail(stream="stderr")


@only("pipe", "docker")
def test_stdout_and_stderr_are_kept_apart_on_request(start: Start) -> None:
    """With stderr separate each stream has a log of its own."""
    process = start("echo one; echo two >&2; echo three", stderr="separate")
    process.wait(30)
    assert output(process) == "one\nthree\n"
    assert output(process, "stderr") == "two\n"
    err_log = process.refresh().err_log
    assert err_log is not None
    assert stat.S_IMODE(os.stat(err_log).st_mode) == 0o600


@only("pipe")
@pytest.mark.parametrize("stderr", ["merged", "separate"])
def test_reopening_its_own_stderr_harms_nothing(start: Start, stderr: str) -> None:
    """`> /dev/stderr` and `tee /dev/stderr` reopen the output; nothing written before is lost."""
    process = start(
        "echo one >&2; echo two > /dev/stderr; echo three | tee /dev/stderr > /dev/null; "
        "echo four > /dev/stdout; echo five >&2",
        stderr=stderr,
    )
    assert process.wait(30).ok
    if stderr == "merged":
        assert output(process) == "one\ntwo\nthree\nfour\nfive\n"
    else:
        assert output(process) == "four\n"
        assert output(process, "stderr") == "one\ntwo\nthree\nfive\n"


@everywhere
def test_all_output_is_there_when_the_end_is_told(start: Start, child: Child, mode: str) -> None:
    """The last byte of a process that floods is in the log before anybody hears of the end."""
    process = start(child("floods", "200000"))
    assert process.wait(60).ok
    ends = 0 if mode in ("pipe", "docker") else 200_001
    assert os.path.getsize(process.record.log) == len("ready\n") + 200_000 * 10 + ends
    assert process.tail(1).text.rstrip() == "000199999"


@only("pipe", "docker")
def test_stdin_is_closed_unless_asked_for(start: Start, gate: Gate) -> None:
    """A process that reads finds the end at once, and writing to it is refused with the reason."""
    process = start(f"cat; echo end; : < {gate.path}")
    wait_until(lambda: output(process) == "end\n")
    with pytest.raises(Unsupported, match="without stdin"):
        process.send("hello\n")
    gate.open()
    assert process.wait(30).ok


@everywhere
def test_stdin_is_written_to_and_closed(
    start: Start, child: Child, ready: Ready, mode: str
) -> None:
    """With stdin open, lines can be sent one after the other, and the end as well."""
    process = ready(start(child("prompts"), stdin=True))
    assert process.send("Ada\n") == 4
    wait_until(lambda: "hello Ada\nname?\n" in output(process))
    assert process.send("Łu", eof=False) == 3
    assert process.send(b"kasz\n") == 5
    wait_until(lambda: "hello Łukasz\nname?\n" in output(process))
    assert process.send("Bob", eof=True) == 3
    wait_until(lambda: "hello Bob\n" in output(process))
    if mode not in ("pipe", "docker"):
        process.send("", eof=True)  # a terminal's end of file ends one read, not all
    assert process.wait(30).code == 3
    assert output(process).endswith("hello Bob\nname?\nnobody left\n")
    with pytest.raises(NotRunning) as refused:
        process.send("late\n")
    assert refused.value.status == "failed"


@only("pipe", "docker")
def test_a_closed_stdin_stays_closed(start: Start, gate: Gate) -> None:
    """After eof nothing more can be written, and the error says so."""
    process = start(f"cat; : < {gate.path}", stdin=True)
    process.send("last\n", eof=True)
    with pytest.raises(Unsupported, match="closed"):
        process.send("more\n")
    gate.open()
    assert process.wait(30).ok
    assert output(process) == "last\n"


@only("pipe", "pty")
def test_a_grandchild_that_holds_stdout_delays_nothing(
    start: Start, child: Child, gate: Gate
) -> None:
    """The end is told when the process ends; what its grandchild writes later is still logged."""
    process = start(child("leaves_a_writer", gate.path))
    assert process.wait(30).code == 6
    assert output(process) == "ready\nparent ends\n"
    gate.open()
    wait_until(lambda: output(process) == "ready\nparent ends\nfrom the grandchild\n")


# -- the end ---------------------------------------------------------------------------------------

ENDS = [
    ("exit 0", "completed", 0, None, "exited", "itself"),
    ("exit 7", "failed", 7, None, "exited", "itself"),
    ("exit 255", "failed", 255, None, "exited", "itself"),
    ("exit 137", "failed", 137, None, "exited", "itself"),
    ("kill -SEGV $$", "failed", None, "SIGSEGV", "signal", "itself"),
    ("ulimit -c 0; kill -ABRT $$", "failed", None, "SIGABRT", "signal", "itself"),
    ("kill -KILL $$", "failed", None, "SIGKILL", "signal", "outside"),
    ("kill -TERM $$", "failed", None, "SIGTERM", "signal", "outside"),
    ("kill -40 $$", "failed", None, "SIGRTMIN+6", "signal", "outside"),
]


@pytest.mark.parametrize(("command", "status", "code", "signal", "reason", "ended_by"), ENDS)
def test_how_a_process_ended_by_itself(
    start: Start,
    hf: SyncClient,
    mode: str,
    command: str,
    status: str,
    code: int | None,
    signal: str | None,
    reason: str,
    ended_by: str,
) -> None:
    """Code or signal, and who caused it, are the same in the answer, the record and the event."""
    if mode.startswith("docker") and signal is not None:
        # Its engine knows ends as codes only.
        code, reason, ended_by = 128 + (end_number(signal) or 0), "exited", "itself"
        signal = None
    process = start("ulimit -c 0; " + command)
    wait_until(lambda: list(hf.events()))
    (event,) = hf.events()
    assert event.type == "end"
    assert (event.status, event.exit_code, event.signal, event.reason) == (
        status,
        code,
        signal,
        reason,
    )
    end = process.wait(30)
    assert (end.status, end.code, end.signal) == (status, code, signal)
    assert (end.reason, end.ended_by) == (reason, ended_by)
    record = process.refresh()
    assert (record.status, record.exit_code, record.signal) == (status, code, signal)
    assert (record.reason, record.ended_by) == (reason, ended_by)
    assert end.shell_code == (code if signal is None else end.shell_code)
    assert end.ok is (status == "completed")


@everywhere
def test_how_a_process_ended_by_us(start: Start, hf: SyncClient) -> None:
    """Kill, deadline and log limit each have their status and reason, and name who did it."""
    killed = start("sleep 1000")
    killed.kill()
    late = start("sleep 1000", timeout=0.2, grace=60)  # a container may still be made then
    loud = start("yes", log_limit=100_000)
    found = {}
    for name, process in (("killed", killed), ("late", late), ("loud", loud)):
        end = process.wait(30)
        found[name] = (end.status, end.reason, end.ended_by, end.signal)
    assert found == {
        "killed": ("killed", "killed", "caller", "SIGTERM"),
        "late": ("timed_out", "timeout", "keeper", "SIGTERM"),
        "loud": ("killed", "log_limit", "keeper", "SIGTERM"),
    }
    assert os.path.getsize(loud.record.log) > 100_000


def test_a_closed_session_ends_its_processes(home: str, asked: dict[str, Any]) -> None:
    """Leaving the block stops what the session started, with the reason in the record."""
    with connect(session="short") as hf:
        process = hf.spawn("sleep 1000", **asked)
        kept = hf.spawn("sleep 1000", keep=True, **asked)
    with connect(session="short") as hf:
        record = hf.get(process.handle).record
        assert (record.status, record.reason, record.ended_by) == (
            "killed",
            "lease_ended",
            "keeper",
        )
        assert hf.get(kept.handle).record.running
        hf.get(kept.handle).kill()


def test_the_kernels_memory_killer_has_a_reason_of_its_own() -> None:
    """What the kernel killed for memory failed, and neither by itself nor by a caller."""
    record = Record("proc-" + "m" * 16, "test", "eat", "/")
    record.end(ExitNote(None, "SIGKILL", 1.0, 2.0, out_of_memory=True))
    assert (record.status, record.reason, record.ended_by) == ("failed", "out_of_memory", "kernel")


def test_the_code_of_a_handler_does_not_hide_that_it_was_killed(
    start: Start, child: Child, ready: Ready
) -> None:
    """A process that ends with 0 because we stopped it was killed, not completed."""
    process = ready(start(child("exits_on_term", "0")))
    process.kill(grace=60)
    end = process.wait(30)
    assert (end.status, end.code, end.signal, end.ok) == ("killed", 0, None, False)


def test_time_memory_and_processor_are_in_the_record(start: Start, child: Child, mode: str) -> None:
    """What a process used is known when it has ended."""
    process = start(child("works_hard", "60", "0.2"))
    assert process.wait(60).ok
    record = process.refresh()
    assert record.duration_seconds is not None
    assert 0.1 < record.duration_seconds < 60
    if mode in ("pipe", "pty"):  # the servers of the others reap, and do not tell
        assert record.peak_memory_bytes is not None
        assert 60 << 20 < record.peak_memory_bytes < 600 << 20
        assert record.cpu_seconds is not None
        assert 0.2 <= record.cpu_seconds < 30
        assert record.cpu_seconds * 0.5 < record.duration_seconds
    assert record.ended_at is not None
    assert record.started_at < record.ended_at
    assert record.started_at.endswith("Z")


def test_a_deadline_ends_it_and_only_then(start: Start) -> None:
    """At its deadline a process is stopped; the time it ran is the time it was given."""
    process = start("echo begun; sleep 1000", timeout=0.5)
    end = process.wait(30)
    assert (end.status, end.reason) == ("timed_out", "timeout")
    assert end.duration_seconds is not None
    assert 0.5 <= end.duration_seconds < 15
    assert output(process) == "begun\n"


def test_a_deadline_is_half_an_hour_unless_told(start: Start) -> None:
    """The default is thirty minutes; None and 0 mean no deadline; words are understood."""
    for given, kept in ((None, None), (0, None), ("2h", 7200.0), (90, 90.0)):
        assert start("true", timeout=given).record.timeout == kept
    assert start("true").record.timeout == 1800.0
    with pytest.raises(BadRequest, match="timeout"):
        start("true", timeout="soon")


def test_a_wait_that_is_too_short_leaves_the_process_alone(start: Start, gate: Gate) -> None:
    """A wait can be given up and begun again."""
    process = start(f": < {gate.path}; exit 2")
    with pytest.raises(WaitTimeout, match="still running"):
        process.wait(0.05)
    assert process.refresh().running
    gate.open()
    assert process.wait(30).code == 2
    assert process.wait(30).code == 2, "an end can be asked for again"


# -- caps, forgetting, clearing, removing ----------------------------------------------------------


def test_too_many_are_refused_with_the_names_of_what_runs(
    client: Callable[..., SyncClient], home: str, asked: dict[str, Any], session: str
) -> None:
    """Over the cap is an error that names the running ones; other sessions have their own."""
    hf = client(max_running="2")
    one = hf.spawn("sleep 1000", label="first", **asked)
    two = hf.spawn("sleep 1000", **asked)
    with pytest.raises(LimitReached) as refused:
        hf.spawn("true")
    text = str(refused.value)
    assert one.handle in text
    assert two.handle in text
    assert "first" in text
    assert len(hf.list()) == 2
    with connect(session=f"{session}-other") as other:
        assert other.spawn("exit 1").wait(30).code == 1
    one.kill()
    assert hf.spawn("exit 5").wait(30).code == 5, "an ended one makes room"


def test_the_oldest_finished_are_let_go_first(client: Callable[..., SyncClient]) -> None:
    """Only so many finished processes are kept; what nobody was told of yet is still told."""
    hf = client(max_finished="3")
    running = hf.spawn("sleep 1000")
    processes = []
    for n in range(5):
        processes.append(hf.spawn(f"exit {n}"))
        wait_until(lambda n=n: len(list(hf.events())) == n + 1)  # type: ignore[misc]
    kept = [running.handle] + [process.handle for process in processes[2:]]
    # An end is told first, and then what is too old is let go.
    wait_until(lambda: [process.handle for process in hf.list()] == kept)
    with pytest.raises(NotFound):
        hf.get(processes[0].handle)
    wait_until(lambda: not files_of(hf.home.path, processes[0].handle))
    assert [event.exit_code for event in hf.events()] == [0, 1, 2, 3, 4]


def test_a_finished_process_is_forgotten_some_time_after_the_last_look(
    client: Callable[..., SyncClient],
) -> None:
    """Nobody looks for the whole retention: record and log go, what was not told yet stays."""
    hf = client(retention="0.5s")
    process = hf.spawn("echo here")
    wait_until(lambda: process.handle not in hf.store.handles())
    assert hf.list() == []
    wait_until(lambda: files_of(hf.home.path, process.handle) == [])
    with pytest.raises(NotFound):
        process.tail()
    assert [event.handle for event in hf.events()] == [process.handle]


@pytest.mark.own_keeper
@pytest.mark.parametrize("look", ["refresh", "tail", "read", "get", "wait", "follow"])
def test_a_look_postpones_forgetting(client: Callable[..., SyncClient], look: str) -> None:
    """Any status or read by handle is a look; a list is not. It holds across keepers."""
    hf = client(retention="1h")
    looked, ignored = hf.spawn("echo here"), hf.spawn("true")
    looked.wait(30)
    ignored.wait(30)
    hf.keeper_stop()
    long_ago = time.time() - 3601
    for process in (looked, ignored):
        os.utime(hf.home.meta(process.handle), (long_ago, long_ago))
    if look == "get":
        hf.get(looked.handle)
    elif look == "follow":
        assert [piece.text for piece in looked.follow()] == ["here\n"]
    else:
        getattr(looked, look)()
    hf.list()
    young = hf.spawn("true")
    assert [process.handle for process in hf.list()] == [looked.handle, young.handle]


@only("pipe", "docker")
def test_clear_empties_the_log_and_offsets_go_on(start: Start, child: Child, ready: Ready) -> None:
    """After clear the old bytes are gone, new ones have new offsets, and cursors stay valid."""
    process = ready(start(child("prompts"), stdin=True))
    process.send("Ada\n")
    wait_until(lambda: output(process).endswith("hello Ada\nname?\n"))
    first = process.read()
    process.clear()
    assert process.tail().text == ""
    process.send("Bob\n", eof=True)
    process.wait(30)
    rest = "hello Bob\nname?\nnobody left\n"
    assert process.read().text == rest
    assert process.tail().text == rest
    whole = process.read_at(0, 1 << 20)
    assert (whole.gap, whole.start, whole.text) == (first.end, first.end, rest)
    process.clear()
    assert process.tail().text == ""
    assert process.read_at(0).end == first.end + len(rest)


def test_remove_deletes_all_traces(start: Start, hf: SyncClient, home: str) -> None:
    """Nothing on disk and nothing to be told remains of a removed process."""
    process = start("echo out; echo err >&2")
    wait_until(lambda: list(hf.events()))
    process.read()
    assert files_of(home, process.handle)
    process.remove()
    assert files_of(home, process.handle) == []
    assert list(hf.events()) == []
    assert hf.list() == []
    for gone in (process.refresh, process.tail, process.read, process.kill, process.remove):
        with pytest.raises(NotFound):
            gone()


def test_removing_a_running_process_stops_it_first(
    start: Start, hf: SyncClient, child: Child, ready: Ready, home: str
) -> None:
    """Remove on a running process is kill and remove, with all it started."""
    process = ready(start(child("ignores_term"), grace=0.2))
    pid = process.record.pid
    process.remove()
    assert not os.path.exists(f"/proc/{pid}")
    assert files_of(home, process.handle) == []
    assert hf.list() == []
    assert list(hf.events(acknowledged=False)) == []


def test_list_is_oldest_first_and_of_this_session(
    start: Start, hf: SyncClient, session: str
) -> None:
    """List shows running and finished processes in the order they were started."""
    processes = [start("sleep 1000" if n % 2 else "true") for n in range(4)]
    processes[0].wait(30)
    processes[2].wait(30)
    with connect(session=f"{session}-other") as other:
        other.spawn("true").wait(30)
        assert len(other.list()) == 1
    found = [(process.handle, process.record.running) for process in hf.list()]
    assert found == [(process.handle, n % 2 == 1) for n, process in enumerate(processes)]


@pytest.mark.own_keeper
def test_records_and_logs_are_readable_without_a_keeper(start: Start, hf: SyncClient) -> None:
    """A finished process can be looked at when no keeper runs, and looking starts none."""
    process = start("echo kept; exit 3")
    process.wait(30)
    hf.keeper_stop()
    assert hf.keeper_status() == {"running": False}
    assert (output(process), process.refresh().exit_code) == ("kept\n", 3)
    assert process.wait(30).code == 3
