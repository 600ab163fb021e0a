"""Starting a program by a list of system calls: with our memory shared, or a copy of it."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import NotExecutable, SyncProcess, connect
from holdfast.keeper import clone, vfork
from holdfast.linux.cgroup import V2, Trees, members, remove
from holdfast.testing import wait_until
from tests.contained import BEST, MODES, alive, daemon_of, mode_of

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]
Start = Callable[..., int]

HANDLED = signal.SIGUSR1


# With a copy only in a process of one thread, as the worker is: see the last test.
COPIED = os.environ.get("TEST_CLONE_COPIED") == "1"


@pytest.fixture(params=["copied" if COPIED else "shared"])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setattr(clone, "USE_VFORK", request.param == "shared")

    def begin(
        program: str,
        argv: list[str],
        env: dict[str, str] | None = None,
        actions: Any = (),
        **options: Any,
    ) -> int:
        return clone.start(program, argv, env or {}, actions, [], **options)

    assert vfork.runner() or os.uname().machine != "x86_64"
    return begin


def code_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_it_has_its_own_session_descriptors_limits_and_environment(start: Start) -> None:
    reader, writer = os.pipe()
    command = (
        "import os, resource as r; print(os.getsid(0) == os.getpid(), r.getrlimit(7), *os.environ)"
    )
    argv = ["python", "-ISc", command]
    actions: list[Any] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0)]
    actions.append((os.POSIX_SPAWN_DUP2, writer, 1))
    pid = start(sys.executable, argv, env={"A": "1"}, actions=actions, rlimits=[(7, 40, 50)])
    os.close(writer)
    with open(reader) as file:
        assert file.read().split()[:4] == ["True", "(40,", "50)", "A"]
    assert code_of(pid) == 0


@pytest.mark.parametrize(
    ("program", "argv", "error"),
    [
        ("/nonexistent/program", ["x"], errno.ENOENT),
        (os.devnull, ["x"], errno.EACCES),
        ("/", ["x"], errno.EACCES),
        ("/bin/true", ["true", "x" * (4 << 20)], errno.E2BIG),
        ("/bin/true", ["true", *["x" * 1000] * 10_000], errno.E2BIG),
    ],
    ids=["missing", "not executable", "a directory", "a long word", "many words"],
)
def test_execs_own_error_comes_back_and_nobody_is_left(
    start: Start, program: str, argv: list[str], error: int
) -> None:
    """Neither a zombie nor a second one of us; again and again without a leak."""
    before = open_descriptors()
    for _ in range(20):
        with pytest.raises(OSError, match=r".") as caught:
            start(program, argv)
        assert caught.value.errno == error
        assert not isinstance(caught.value, clone.Refused), "another way would be no better"
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert open_descriptors() == before


def test_an_error_before_exec_comes_back_too(start: Start) -> None:
    """A descriptor that is not there, a limit above what is allowed."""
    with pytest.raises(OSError, match=r".") as caught:
        start("/bin/true", ["true"], actions=[(os.POSIX_SPAWN_DUP2, 9999, 1)])
    assert caught.value.errno == errno.EBADF
    with pytest.raises(OSError, match=r".") as caught:
        start("/bin/true", ["true"], rlimits=[(99, 1, 1)])
    assert caught.value.errno == errno.EINVAL


def test_what_cannot_be_held_on_to_is_ended(start: Start) -> None:
    """Without a descriptor for it, it would run on with nobody to see its end."""
    pid = start("/bin/sleep", ["sleep", "600"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            clone.pidfd_of(pid)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    "bad", [{"argv": ["a\0b"]}, {"env": {"A\0": "1"}}, {"env": {"A=B": "1"}}, {"env": {"": "1"}}]
)
def test_what_no_program_could_be_given_is_refused_before(start: Start, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"null|illegal"):
        start("/bin/true", bad.get("argv", ["true"]), env=bad.get("env", {}))


def test_words_and_variables_arrive_byte_for_byte(start: Start) -> None:
    reader, writer = os.pipe()
    words = ["", " ", "ü\udcff", "-x", "$(touch x)", "x" * 100_000]
    argv = [sys.executable, "-ISc", "import sys; print([*map(ascii, sys.argv[1:])])", *words]
    env = {"PYTHONUTF8": "1", "ODD ONE": "\udcfe"}
    pid = start(sys.executable, argv, env=env, actions=[(os.POSIX_SPAWN_DUP2, writer, 1)])
    os.close(writer)
    with open(reader) as file:
        assert file.read().strip() == str([*map(ascii, words)])
    assert code_of(pid) == 0


def test_signals_that_come_meanwhile_are_ours_and_not_the_childs(start: Start) -> None:
    """Our handler runs here, whenever that is, and never in what was started."""
    got: list[int] = []
    before = signal.signal(HANDLED, lambda number, frame: got.append(os.getpid()))
    pester = f"while kill -{HANDLED.name[3:]} {os.getpid()}; do :; done"
    pesterer = subprocess.Popen(["sh", "-c", pester])
    try:
        wait_until(lambda: got)
        for n in range(20):
            assert code_of(start("/bin/sh", ["sh", "-c", f"exit {n}"])) == n
    finally:
        pesterer.kill()
        pesterer.wait()
        signal.signal(HANDLED, before)
    assert set(got) == {os.getpid()}


def test_a_handler_and_a_mask_of_ours_are_not_handed_down(start: Start) -> None:
    before = signal.signal(HANDLED, lambda number, frame: None)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])
    reader, writer = os.pipe()
    try:
        pid = start(
            "/bin/cat",
            ["cat", "/proc/self/status"],
            actions=[(os.POSIX_SPAWN_DUP2, writer, 1)],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(HANDLED, before)
    os.close(writer)
    with open(reader) as file:
        found = dict(line.split() for line in file if line.startswith(("SigBlk", "SigCgt")))
    assert code_of(pid) == 0
    assert int(found["SigBlk:"], 16) == int(found["SigCgt:"], 16) == 0


def test_other_threads_go_on_while_it_starts() -> None:
    """They run in the memory that the child shares with us for a moment, and nothing is torn.

    Only there: in a copy Python has lost its other threads, and the worker has none.
    """
    stop = threading.Event()
    wrong: list[int] = []

    def work() -> None:
        while not stop.is_set():
            numbers = list(range(1000))
            if sum(numbers) != 499_500:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = []
    try:
        for n in range(20):
            argv = ["sh", "-c", f"exit {n}"]
            codes.append(code_of(clone.start("/bin/sh", argv, {}, [], [])))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert codes == list(range(20))
    assert wrong == []


FORBID = """
import ctypes, os, struct, sys
def forbid(call, argument, bits, error):
    # load the call's number; another: allow; load its argument; without the bits: allow; refuse
    rules = [(0x20, 0, 0, 0), (0x15, 0, 3, call)]
    rules += [(0x20, 0, 0, 16 + 8 * argument), (0x45, 0, 1, bits), (0x06, 0, 0, 0x50000 | error)]
    rules += [(0x06, 0, 0, 0x7FFF0000)]
    code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, program) == 0, ctypes.get_errno()
"""
MPROTECT = {"x86_64": 10}.get(os.uname().machine, 226)
# Every clone3 (its second argument, the size, is never 0); memory that is to become executable.
NO_CLONE3 = f"forbid(435, 1, 0xFFFFFFFF, {errno.ENOSYS})"
NO_CODE = f"forbid({MPROTECT}, 2, 4, {errno.EACCES})"


def start_keeper(rule: str, home: str) -> None:
    """A keeper that a filter of system calls keeps from something; who starts it is kept too."""
    code = f"{FORBID}\n{rule}\nimport holdfast\nwith holdfast.connect(home=sys.argv[1]): pass\n"
    subprocess.run([sys.executable, "-c", code, home], check=True, timeout=60)


@pytest.mark.parametrize("mode", MODES)
def test_where_clone3_is_refused_it_is_contained_all_the_same(
    home: str, child: Child, ready: Ready, mode: str
) -> None:
    """As by Docker's filter, or an old kernel: the same group, by the long way; the same limits."""
    start_keeper(NO_CLONE3, home)
    with connect(session="filtered") as hf:
        process = ready(hf.spawn(child("scrubs"), grace=0.1, files=60, **mode_of(mode)))
        record = process.record
        assert record.containment == BEST
        assert len(record.cgroups) == (BEST != "tree")
        daemon = daemon_of(process)
        if BEST != "tree":
            assert {record.pid, daemon} <= set(members(record.cgroups))
        worker = hf.keeper_status()["worker"]
        assert worker not in members(record.cgroups)
        with open(f"/proc/{record.pid}/limits") as file:
            (line,) = [line for line in file if line.startswith("Max open files")]
        assert line.split()[3:5] == ["60", "60"]
        assert process.kill().survivors == []
        assert not alive(daemon)
        with pytest.raises(NotExecutable):
            hf.spawn(["/nonexistent/program"])


def test_where_memory_cannot_be_made_executable_it_starts_with_a_copy(
    home: str, child: Child, ready: Ready
) -> None:
    """As under SELinux without execmem."""
    start_keeper(NO_CODE, home)
    with connect(session="filtered") as hf:
        process = ready(hf.spawn(child("scrubs"), grace=0.1, files=60))
        daemon = daemon_of(process)
        assert process.record.containment == BEST
        if BEST != "tree":
            assert {process.record.pid, daemon} <= set(members(process.record.cgroups))
        assert process.kill().survivors == []
        assert [hf.spawn(f"exit {n}").wait(30).code for n in range(20)] == list(range(20))


if BEST == "cgroup":

    def test_it_is_born_in_the_group(start: Start) -> None:
        """Before its first instruction; a group that is gone, or no group at all, is refused."""
        trees = Trees(f"clone-{os.getpid()}")
        assert trees.usable(V2)
        path = trees.path(V2, "one")
        trees.make(path)
        group = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            pid = start("/bin/sleep", ["sleep", "1000"], group=group)
            assert members([path]) == [pid]
            os.kill(pid, signal.SIGKILL)
            assert code_of(pid) == -signal.SIGKILL
            wait_until(lambda: remove([path]))
            with pytest.raises(clone.Refused) as caught:
                start("/bin/true", ["true"], group=group)
            assert caught.value.errno in (errno.ENODEV, errno.ENOENT)
        finally:
            os.close(group)
            trees.clean_up(going=True)
        with open(os.devnull) as file, pytest.raises(clone.Refused):
            start("/bin/true", ["true"], group=file.fileno())
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)


if not COPIED:

    @pytest.mark.long
    @pytest.mark.timeout(600)
    def test_all_of_this_holds_with_a_copy_of_our_memory() -> None:
        options = ["-q", "-m", "", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", "copied"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, __file__],
            env={**os.environ, "TEST_CLONE_COPIED": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=580,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert " passed" in done.stdout
