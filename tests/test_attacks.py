"""Attacks by a confined command on its confinement: none of them gets out.

Each is tried as a model would, through its tools: commands run one after the other, and what one
left behind is there for the next. Whatever an attack needs is there and works from outside, which
is tried first: so what holds it is the confinement.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import BadDirectory, SyncClient, SyncProcess, connect
from holdfast.core.home import Home
from holdfast.linux import lockdown as _lockdown
from holdfast.linux import sandbox as _sandbox
from holdfast.linux.sandbox import OPENINGS
from holdfast.testing import end_keeper, wait_until
from tests.mcp_servers import wire
from tests.toolcalls import call, toolset

PYTHON = os.path.realpath(sys.executable)
HAS_LANDLOCK = _lockdown.landlock_version() >= _lockdown.LEAST_LANDLOCK
# What is in an attack besides its own lines: `tried` says what came of it, in one line.
PRELUDE = """
import ctypes, errno, os, signal, socket, struct, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def tried(what, action):
    try: result = action()
    except OSError as error: result = errno.errorcode.get(error.errno, error)
    except Exception as error: result = type(error).__name__
    print(f"{what}: {result}", flush=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
    return "DONE"
def system_call(*arguments):
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "syscall")
    return "DONE"
def connect(path, kind=socket.SOCK_STREAM):
    end = socket.socket(socket.AF_UNIX, kind)
    end.connect(path)
    return "DONE"
def opened(path, flags):
    os.close(os.open(path, flags | os.O_NONBLOCK))
    return "DONE"
"""


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A person's directory, where the agent works, with the usual home two levels inside.

    Its path is short: sockets are made in it.
    """
    with tempfile.TemporaryDirectory(prefix="hfa") as place:
        path = Path(os.path.realpath(place)) / "user"
        path.mkdir()
        monkeypatch.setenv("HOME", str(path))
        for name in list(os.environ):
            if name.startswith(("HOLDFAST_", "XDG_")):
                monkeypatch.delenv(name)
        monkeypatch.chdir(path)
        yield path


@pytest.fixture
def usual(user: Path) -> Iterator[str]:
    path = str(user / ".local/state/holdfast")
    yield path
    end_keeper(path)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """A daemon that does what anybody says who connects: it makes the file ``run``."""
    witness = tmp_path / "run"
    with contextlib.ExitStack() as stack:

        def listen(path: Path) -> Path:
            end = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            end.bind(str(path))
            end.listen()

            def serve() -> None:
                while True:
                    try:
                        connection, _ = end.accept()
                    except OSError:
                        return
                    witness.touch()
                    connection.close()

            thread = threading.Thread(target=serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(end.shutdown, socket.SHUT_RDWR)
            return witness

        yield listen


def attack(lines: str) -> list[str]:
    return [PYTHON, "-IS", "-c", PRELUDE + textwrap.dedent(lines)]


def said(process: SyncProcess) -> dict[str, set[str]]:
    """What came of each attempt, wherever it was made."""
    process.wait(60)
    text = process.read_at(0).text
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        name, separator, result = line.partition(": ")
        assert separator, text
        found.setdefault(name, set()).add(result)
    return found


def succeeded(found: dict[str, set[str]], *names: str) -> dict[str, set[str]]:
    """Those attempts that were not refused."""
    chosen = {name: found[name] for name in names or found}
    return {
        name: results
        for name, results in chosen.items()
        if not all(result.startswith("E") for result in results)
    }


# -- renaming the way to what is covered -----------------------------------------------------------

RENAMES = """
    at, home = sys.argv[1], sys.argv[2]
    steps = os.path.relpath(home, at).split("/")
    paths = [os.path.join(at, *steps[:number]) for number in range(1, len(steps) + 1)]
    os.makedirs(f"{at}/bait/inner", exist_ok=True)
    for path in paths:
        tried("rename", lambda: os.rename(path, path + ".moved"))
        tried("exchange", lambda: call(
            "renameat2", -100, path.encode(), -100, f"{at}/bait".encode(), 2))
        tried("replace", lambda: os.rename(f"{at}/bait", path))
        tried("remove", lambda: os.rmdir(path))
        tried("link", lambda: os.link(path, f"{at}/linked"))
    tried("unlink", lambda: os.unlink(home))
    for flags in (0x20000, 0x10000000, 0x20000):  # mounts, then users, then mounts again
        libc.unshare(flags)  # which may be allowed, and gains nothing
        tried("umount", lambda: call("umount2", home.encode(), 2))
        tried("move", lambda: call("mount", paths[0].encode(), b"/dev/shm", None, 8192, None))
        tried("bind", lambda: call("mount", at.encode(), b"/dev/shm", None, 4096, None))
    print("sees:", len(os.listdir(home)))
"""


def test_no_directory_on_the_way_to_the_home_can_be_moved(user: Path, usual: str) -> None:
    """Nor exchanged, replaced, linked or unmounted: the next command does not see it either."""
    with connect(session="test") as hf:
        tools = toolset(hf, "native", sandbox=True)
        before = Home(usual).path
        assert os.path.samefile(hf.home.path, before)
        process = hf.spawn(
            [*attack(RENAMES), str(user), usual], sandbox={"root": str(user), "network": True}
        )
        found = said(process)
        assert found.pop("sees") == {"0"}
        assert not succeeded(found), found
        assert found["rename"] == found["remove"] == {"EBUSY"}
        command = f"mv .local .l2; mkdir -p {usual}; ls -A {usual} .l2/state/holdfast | wc -l"
        call(tools, "spawn_process", command=command, wait=True)
        look = call(tools, "spawn_process", command=f"find . -name '*.sock'; ls {usual}", wait=True)
        assert look["output"] == "(no output)" or not look["output"].strip(), look
        assert os.path.exists(f"{usual}/keeper.sock")
        assert hf.spawn("true").wait(30).ok


if shutil.which("tmux"):

    @pytest.mark.parametrize("dialect", ["dodo", "deepchat", "mcp"])
    def test_a_terminal_server_is_no_way_out_by_a_renamed_directory(
        user: Path, usual: str, dialect: str
    ) -> None:
        """With the home in the agent's directory, as when that is a person's own."""
        witness = user.parent / "outside"
        moves = f"mv .local .l2; mkdir -p {usual}; echo moved"
        tmux = " ; ".join(
            f"tmux -S {place}/tmux.sock run-shell 'touch {witness}'"
            for place in (".l2/state/holdfast", ".local/state/holdfast")
        )
        with connect(session="test") as hf:
            hf.spawn("sleep 1000", tmux=True)
            assert stat.S_ISSOCK(os.stat(f"{usual}/tmux.sock").st_mode)
            if dialect == "mcp":
                with wire("--session", "test", "--sandbox") as server:
                    for command in (moves, tmux):
                        server.call("spawn_process", command=command, wait=True)
            else:
                tools = toolset(hf, dialect, sandbox=True)
                for command in (moves, tmux):
                    if dialect == "dodo":
                        call(tools, "run_background", cmd=command)
                    else:
                        call(tools, "execute_command", command=command, description="try it")
                    for process in hf.list():
                        if process.record.sandbox is not None:
                            process.wait(60)
            subprocess.run(
                ["tmux", "-S", f"{usual}/tmux.sock", "run-shell", f"touch {witness}.really"],
                check=True,
                timeout=30,
            )
            hf.stop_all()
        assert Path(f"{witness}.really").exists()
        assert not witness.exists()


def test_a_home_behind_a_link_that_a_command_could_turn_is_refused(
    user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be mounted onto a link; the error says what to set."""
    (tmp_path / "state").mkdir()
    (user / "link").symlink_to(tmp_path / "state")
    monkeypatch.setenv("HOLDFAST_HOME", str(user / "link" / "home"))
    try:
        with connect(session="test") as hf:
            with pytest.raises(BadDirectory, match=f"set HOLDFAST_HOME to {tmp_path}/state/home"):
                hf.spawn("true", sandbox=True)
            (user / "below").mkdir()
            assert hf.spawn("true", sandbox=True, cwd="below").wait(30).ok
    finally:
        end_keeper(str(user / "link" / "home"))


def test_a_home_that_is_made_later_is_not_the_commands_to_make(
    hf: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual one, in the agent's directory: whoever makes it could plant records in it."""
    user = tmp_path / "user"
    user.mkdir()
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    usual = user / ".local/state/holdfast"
    command = f"mkdir -p {usual}/processes; mv .local .l2; ln -s /nowhere .local; ls -A {usual}"
    process = hf.spawn(command, cwd=user, sandbox=True)
    process.wait(30)
    assert "processes" in process.read_at(0).text
    assert list(usual.iterdir()) == []
    assert not usual.parent.parent.is_symlink()


@pytest.mark.parametrize("name", ["short", "long" * 40])
def test_a_home_of_another_keeper_is_out_of_reach(hf: SyncClient, user: Path, name: str) -> None:
    """One that runs, wherever in the agent's directory it has its home, and however deep."""
    work = user / "work"
    other = work / name / "inside" / "home"
    other.parent.mkdir(parents=True)
    with connect(home=other, session="test") as theirs:
        sleeper = theirs.spawn("sleep 1000")
        found = said(hf.spawn([*attack(RENAMES), str(work), str(other)], cwd=work, sandbox=True))
        assert found.pop("sees") == {"0"}
        assert not succeeded(found), found
        sleeper.kill()
    end_keeper(str(other))


def test_our_own_program_cannot_be_changed(
    tmp_path: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed where the agent works, it is read-only there: it makes the next sandbox."""
    work = tmp_path / "work"
    package = work / "lib" / "holdfast"
    shutil.copytree(
        os.path.dirname(holdfast.__file__), package, ignore=shutil.ignore_patterns("__pycache__")
    )
    program = (
        "import holdfast, sys\n"
        "with holdfast.connect(session='test') as hf:\n"
        "    process = hf.spawn(sys.argv[1], cwd=sys.argv[2], sandbox=True)\n"
        "    process.wait(60)\n"
        "    print(process.read_at(0).text)\n"
    )
    command = "touch mine; echo x >> lib/holdfast/testing.py; mv lib lib2; rmdir lib/holdfast"
    done = subprocess.run(
        [sys.executable, "-c", program, command, str(work)],
        env={**os.environ, "PYTHONPATH": str(work / "lib")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.count("Read-only file system") == 1, done
    assert done.stdout.count("busy") == 2, done
    assert (work / "mine").exists()


def test_programs_that_a_command_plants_are_not_run_outside(
    tmp_path: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory of the PATH that it can write to: what makes the next sandbox, or holds it."""
    work, witness = tmp_path / "w", tmp_path / "outside"
    (work / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{work}/bin:{os.environ['PATH']}")
    monkeypatch.chdir(work)
    plant = (
        "for name in bwrap tmux cat test sh env true; do "
        f"printf '#!/bin/bash\ntouch {witness}\nexec /usr/bin/'$name' \"$@\"' > bin/$name; "
        "chmod +x bin/$name; done; ls bin | wc -l"
    )
    with connect(session="test") as hf:
        tools = toolset(hf, "native", sandbox=True)
        done = call(tools, "spawn_process", command=plant, wait=True)
        assert done["output"].split() == ["7"]
        call(tools, "spawn_process", command="echo one", wait=True)
        held = call(tools, "spawn_process", command="echo two; read x; echo got $x", tmux=True)
        call(tools, "process", action="write", handle=held["handle"], data="x\n")
        call(tools, "process", action="capture", handle=held["handle"])
        hf.get(held["handle"]).wait(60)
        assert "got x" in hf.get(held["handle"]).read_at(0).text
        hf.stop_all()
    assert not witness.exists()
    subprocess.run([f"{work}/bin/true"], check=True, timeout=30)
    assert witness.exists()


# -- sockets ---------------------------------------------------------------------------------------

SOCKETS = """
    path = sys.argv[1]
    tried("stream", lambda: connect(path))
    tried("packets", lambda: connect(path, socket.SOCK_SEQPACKET))
    tried("datagrams", lambda: connect(path, socket.SOCK_DGRAM))
    tried("pair of datagrams", lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        one, two = socket.socketpair(socket.AF_UNIX, kind)
        two.close()
        tried(f"pair {kind:d}", lambda: one.connect(path))
        tried(f"send {kind:d}", lambda: one.sendto(b"x", path))
    tried("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
    tried("crypto", lambda: socket.socket(38, socket.SOCK_SEQPACKET))
    tried("bluetooth", lambda: socket.socket(31, socket.SOCK_RAW, 1))
    tried("high bits", lambda: system_call(41, ctypes.c_ulong(1 << 32 | 1), 1, 0))
    tried("io_uring", lambda: system_call(425, 8, ctypes.create_string_buffer(120)))
    tried("x32", lambda: system_call(ctypes.c_long(0x40000000 + 41), 1, 1, 0))
    for number in (248, 249, 250):
        tried("keys", lambda: system_call(number, b"user", b"holdfast", b"x", 1, -3))
    tried("undone", lambda: call("prctl", 22, 0, 0, 0, 0))
    tried("loopback", lambda: socket.create_server(("127.0.0.1", 0)).close() or "fine")
    tried("netlink", lambda: socket.socket(16, socket.SOCK_RAW, 0).close() or "fine")
"""


@pytest.mark.parametrize("where", ["agent", "elsewhere"])
@pytest.mark.parametrize("when", ["before", "later"])
def test_no_socket_is_reached(
    hf: SyncClient, tmp_path: Path, listener: Callable[[Path], Path], where: str, when: str
) -> None:
    """A daemon's, in the agent's directory or anywhere else, there before or made later."""
    work = tmp_path / "work"
    work.mkdir()
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as directory:
        place = work if where == "agent" else Path(directory)
        gate = work / "gate"
        os.mkfifo(gate)
        if when == "before":
            witness = listener(place / "s")
        lines = f"print('begun: yes', flush=True); open({str(gate)!r}).read()\n"
        command = [*attack(lines + textwrap.dedent(SOCKETS)), str(place / "s")]
        process = hf.spawn(command, cwd=work, sandbox={"network": True})
        wait_until(lambda: "begun" in process.read_at(0).text)
        if when == "later":
            witness = listener(place / "s")
        gate.write_text("")
        found = said(process)
        assert not witness.exists()
        assert found.pop("begun") == {"yes"}
        assert found.pop("loopback") == found.pop("netlink") == {"fine"}
        assert not succeeded(found), found
        assert found["stream"] == {"EAFNOSUPPORT"}
        assert os.uname().machine != "x86_64" or found["keys"] == {"ENOSYS"}
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(place / "s"))
        wait_until(witness.exists)


def test_abstract_sockets_are_not_reached_with_the_network(hf: SyncClient, tmp_path: Path) -> None:
    """They have no place in a file system: with the network of the machine they would be there."""
    name = f"\0holdfast-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(name)
        end.listen()
        lines = "    tried('abstract', lambda: connect('\\0' + sys.argv[1]))\n"
        for sockets in (False, True):
            sandbox = {"network": True, "sockets": sockets}
            process = hf.spawn([*attack(lines), name[1:]], cwd=tmp_path / "w", sandbox=sandbox)
            if not sockets:
                assert said(process) == {"abstract": {"EAFNOSUPPORT"}}
            elif _lockdown.landlock_version() >= 6:
                assert said(process) == {"abstract": {"EPERM"}}


def test_sockets_of_its_own_where_they_were_given(
    hf: SyncClient, tmp_path: Path, listener: Callable[[Path], Path]
) -> None:
    """Then also whatever listens in places that it sees; but never homes of keepers that run."""
    work = tmp_path / "work"
    work.mkdir()
    witness = listener(work / "s")
    lines = """
        end = socket.create_server("/tmp/own", family=socket.AF_UNIX)
        tried("own", lambda: connect("/tmp/own"))
        tried("theirs", lambda: connect(sys.argv[1]))
        tried("vsock", lambda: socket.socket(40, socket.SOCK_STREAM))
        tried("io_uring", lambda: system_call(425, 8, ctypes.create_string_buffer(120)))
    """
    process = hf.spawn([*attack(lines), str(work / "s")], cwd=work, sandbox={"sockets": True})
    assert said(process) == {
        "own": {"DONE"},
        "theirs": {"DONE"},
        "vsock": {"EAFNOSUPPORT"},
        "io_uring": {"ENOSYS"},
    }
    wait_until(witness.exists)
    assert process.record.sandbox == {"network": False, "sockets": True}


# -- FIFOs and processes ---------------------------------------------------------------------------


def test_a_fifo_outside_is_not_written_to(hf: SyncClient, tmp_path: Path) -> None:
    """Read-only mounts do not keep anybody from that: such as the way of another's output."""
    work = tmp_path / "work"
    work.mkdir()
    lines = """
        path, own = sys.argv[1:3]
        tried("write", lambda: opened(path, os.O_WRONLY))
        tried("both", lambda: opened(path, os.O_RDWR))
        tried("link", lambda: os.link(path, own + "/linked"))
        os.symlink(path, own + "/symlink")
        tried("symlink", lambda: opened(own + "/symlink", os.O_WRONLY))
        os.mkfifo(own + "/fifo")
        tried("own", lambda: opened(own + "/fifo", os.O_RDWR))
        tried("temporary", lambda: opened("/tmp/new", os.O_RDWR | os.O_CREAT))
        tried("null", lambda: opened("/dev/null", os.O_RDWR))
        tried("terminal", lambda: opened("/dev/ptmx", os.O_RDWR))
        tried("shared", lambda: opened("/dev/shm/new", os.O_RDWR | os.O_CREAT))
        os.mkdir(own + "/a"), os.mkdir(own + "/b")
        os.close(os.open(own + "/a/file", os.O_CREAT))
        tried("moved", lambda: os.rename(own + "/a/file", own + "/b/file") or "DONE")
    """
    with tempfile.TemporaryDirectory(dir=os.path.expanduser("~")) as elsewhere:
        fifo = f"{elsewhere}/fifo"
        os.mkfifo(fifo)
        end = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        try:
            found = said(hf.spawn([*attack(lines), fifo, str(work)], cwd=work, sandbox=True))
        finally:
            os.close(end)
    if HAS_LANDLOCK:
        assert not succeeded(found, "write", "both", "symlink"), found
    assert not succeeded(found, "link"), found
    for name in ("own", "temporary", "null", "terminal", "shared", "moved"):
        assert found[name] == {"DONE"}, found


if HAS_LANDLOCK:

    def test_whoever_runs_it_only_what_was_named_is_opened_for_writing(tmp_path: Path) -> None:
        """The last step alone, without the mounts around it: files and FIFOs, new and old."""
        (tmp_path / "inside").mkdir()
        for name in ("fifo", "inside/fifo"):
            os.mkfifo(tmp_path / name)
        (tmp_path / "file").touch()
        lines = """
            at = sys.argv[1]
            tried("fifo", lambda: opened(at + "/fifo", os.O_RDWR))
            tried("file", lambda: opened(at + "/file", os.O_WRONLY))
            tried("again", lambda: opened(at + "/inside/../fifo", os.O_RDWR))
            os.symlink(at + "/fifo", at + "/inside/link")
            tried("link", lambda: opened(at + "/inside/link", os.O_RDWR))
            os.link(at + "/inside/fifo", at + "/inside/other")
            tried("moved", lambda: os.rename(at + "/fifo", at + "/inside/moved"))
            tried("linked", lambda: os.link(at + "/fifo", at + "/inside/linked"))
            tried("inside", lambda: opened(at + "/inside/other", os.O_RDWR))
            tried("read", lambda: opened(at + "/file", os.O_RDONLY))
        """
        lockdown = [PYTHON, "-I", "-S", "-X", "utf8=1", os.path.realpath(_lockdown.__file__)]
        done = subprocess.run(
            [*lockdown, "closed", f"{tmp_path}/inside", "--", *attack(lines), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        found = dict(line.split(": ") for line in done.stdout.splitlines())
        assert (found.pop("inside"), found.pop("read")) == ("DONE", "DONE"), done
        assert found.pop("moved") == found.pop("linked") == "EXDEV", found
        assert set(found.values()) == {"EACCES"}, found


@pytest.mark.parametrize("mode", ["pipe", "pty"])
def test_what_it_was_given_can_be_opened_again(hf: SyncClient, tmp_path: Path, mode: str) -> None:
    """Scripts write to /dev/stdout and /dev/stderr, which is their FIFO or terminal."""
    command = "echo out > /dev/stdout; echo err | tee /dev/stderr > /dev/null; : > /dev/null"
    process = hf.spawn(command, cwd=tmp_path / "w", sandbox=True, tty=mode == "pty")
    assert process.wait(30).ok, process.read_at(0).text
    assert process.read_at(0).text.split() == ["out", "err"]


def test_nobody_outside_its_own_processes_is_traced_or_entered(
    hf: SyncClient, tmp_path: Path
) -> None:
    """Not by their numbers outside, and not the sandbox's first, which is not closed like it."""
    lines = """
        tried("descriptors", lambda: sorted(os.listdir("/proc/self/fd")))
        outside = int(sys.argv[1])
        for name, pid in (("outside", outside), ("first", 1)):
            tried(f"{name} root", lambda: os.listdir(f"/proc/{pid}/root") and "DONE")
            tried(f"{name} fd", lambda: os.stat(f"/proc/{pid}/fd/0") and "DONE")
            tried(f"{name} memory", lambda: opened(f"/proc/{pid}/mem", os.O_RDWR))
            tried(f"{name} environ", lambda: opened(f"/proc/{pid}/environ", os.O_RDONLY))
            tried(f"{name} trace", lambda: call("ptrace", 16, pid, 0, 0))
            tried(f"{name} descriptor", lambda: system_call(438, os.pidfd_open(pid), 0, 0))
        tried("kill", lambda: os.kill(outside, 9))
        tried("all", lambda: os.kill(-1, 0))
        tried("handle", lambda: call("open_by_handle_at", -100, bytes(16), 0))
        tried("module", lambda: system_call(175, 0, 0, 0))
        child = os.fork()
        if child == 0:
            signal.pause()
        tried("own child", lambda: call("ptrace", 16, child, 0, 0))
        os.kill(child, 9)
    """
    process = hf.spawn([*attack(lines), str(os.getpid())], cwd=tmp_path / "w", sandbox=True)
    found = said(process)
    assert found.pop("own child") == {"DONE"}
    assert found.pop("descriptors") == {"['0', '1', '2', '3']"}
    assert found.pop("all") <= {"None", "ESRCH"}  # its own only
    if not HAS_LANDLOCK:
        found = {name: each for name, each in found.items() if not name.startswith("first")}
    assert not succeeded(found), found


@pytest.fixture(autouse=True)
def work(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    path.mkdir()
    return path


def test_without_landlock_the_first_process_is_closed_too(tmp_path: Path) -> None:
    """A kernel may have none; then the filter is around bubblewrap: to trace it gains nothing."""
    program = "import socket\nsocket.socket(socket.AF_UNIX)"
    argv = _sandbox.arguments(
        _sandbox.find(), PYTHON, ["python", "-c", program], "/", network=False, landlock=0
    )
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert "Address family not supported" in done.stderr
    status = "grep -h ^Seccomp: /proc/1/status /proc/self/status"
    argv = _sandbox.arguments(
        _sandbox.find(), "/bin/sh", ["sh", "-c", status], "/", network=False, landlock=0
    )
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["Seccomp:", "2"] * 2


def test_what_was_given_more_is_typed_into_by_nobody_who_has_less(
    hf: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process with Unix sockets, for tools without; and one that does not say what it has."""
    monkeypatch.chdir(tmp_path / "w")
    wide = hf.spawn("cat", stdin=True, sandbox={"sockets": True})
    narrow = hf.spawn("cat", stdin=True, sandbox=True)
    closed = toolset(hf, "native", sandbox=True)
    opened = toolset(hf, "native", sandbox={"sockets": True})
    for tools, process, refused in (
        (closed, wide, True),
        (closed, narrow, False),
        (opened, wide, False),
    ):
        written = call(tools, "process", action="write", handle=process.handle, data="x")
        assert written.is_error is refused
    assert narrow.record.sandbox is not None
    del narrow.record.sandbox["sockets"]
    assert not closed.dialect.confinement.covers(narrow.record)
    assert opened.dialect.confinement.covers(narrow.record)
    hf.stop_all()


# -- the surroundings ------------------------------------------------------------------------------


def test_a_home_directory_behind_a_link(
    tmp_path: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where /home is a link: the sandbox is made all the same."""
    real, link = tmp_path / "data" / "me", tmp_path / "people"
    real.mkdir(parents=True)
    link.symlink_to(tmp_path / "data")
    monkeypatch.setenv("HOME", str(link / "me"))
    for name in ("XDG_STATE_HOME", "HOLDFAST_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(link / "me")
    usual = str(link / "me/.local/state/holdfast")
    try:
        with connect(session="test") as hf:
            assert hf.home.path == usual
            for cwd in (link / "me", real):
                process = hf.spawn(f"touch made; ls {real}/.local/state/*", cwd=cwd, sandbox=True)
                assert process.wait(30).ok, process.read_at(0).text
                assert process.read_at(0).text == ""
                (real / "made").unlink()
            with pytest.raises(BadDirectory, match="goes through the link"):
                hf.spawn("true", cwd=tmp_path, sandbox=True)
    finally:
        end_keeper(usual)


def test_a_program_behind_a_link_in_what_is_hidden(hf: SyncClient, tmp_path: Path) -> None:
    tool = tmp_path / "w" / "tool"
    tool.write_text("#!/bin/sh\necho ran in $PWD\n")
    tool.chmod(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "w")
    process = hf.spawn(["./tool"], cwd=tmp_path / "link", sandbox=True)
    process.wait(30)
    assert process.read_at(0).text == f"ran in {tmp_path}/w\n"


def test_the_command_line_opens_what_it_names(hf: SyncClient, tmp_path: Path) -> None:
    for word, opened in (("", ()), ("=sockets", ("sockets",)), ("=network,sockets", OPENINGS)):
        options = ["-d", "--session", "test", "-C", str(tmp_path / "w"), "--label", f"l{word}"]
        subprocess.run(
            [sys.executable, "-m", "holdfast", "run", *options, f"--sandbox{word}", "--", "true"],
            check=True,
            capture_output=True,
            timeout=60,
        )
        (process,) = [each for each in hf.list() if each.record.label == f"l{word}"]
        assert process.record.sandbox == {name: name in opened for name in OPENINGS}
        process.wait(30)


def test_secrets_for_the_loader_are_not_in_lists_of_processes(
    hf: SyncClient, tmp_path: Path
) -> None:
    env = {"LD_SECRET": "quite-secret", "LOCPATH": "/quite-secret"}
    process = hf.spawn(
        "echo $LD_SECRET $LOCPATH; echo ready; sleep 1000",
        cwd=tmp_path / "w",
        sandbox=True,
        env=env,
    )
    wait_until(lambda: "ready" in process.read_at(0).text)
    assert process.read_at(0).text.split()[:2] == ["quite-secret", "/quite-secret"]
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, timeout=30)
    assert "quite-secret" not in shown.stdout
    process.kill()
