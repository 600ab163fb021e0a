"""What is special about tmux: its server, its sessions, people who attach, and its absence."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast import (
    HoldfastError,
    NotFound,
    NotRunning,
    SpawnError,
    SyncClient,
    SyncProcess,
    connect,
)
from holdfast.core.home import new_handle
from holdfast.keeper.modes import tmux_pane
from holdfast.linux import kernel
from holdfast.terminal.tmux_pane import Pane
from holdfast.testing import wait_until
from tests.contained import carriers
from tests.proc_files import proc_file
from tests.stepping import killed_when, stepper_of
from tests.tmux_of import server_pid, servers, tmux

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]
KillBoth = Callable[[SyncClient], None]


def output(process: SyncProcess) -> str:
    return process.read_at(0, 1 << 20).text.replace("\r\n", "\n")


def shows(process: SyncProcess, text: str) -> None:
    wait_until(lambda: text in process.screen().text, what=f"{text!r} on the screen of {process}")


def parents(home: object) -> list[int]:
    """The pids of what tmux started in panes of a home and that is still there."""
    found = []
    for process in kernel.all_processes():
        environment = proc_file(process.pid, "environ")
        if b"HOLDFAST_PANE=" in environment and f"HOLDFAST_HOME={home}\0".encode() in environment:
            found.append(process.pid)
    return found


@pytest.fixture(autouse=True)
def no_parent_is_left(tmp_path: Path) -> Iterator[None]:
    """However a process in tmux ended, and the test: nothing stays in its place."""
    yield
    wait_until(lambda: parents(tmp_path / "home") == [])


class Person:
    """Somebody with a terminal of their own, who runs a shell command in it."""

    def __init__(self, command: str) -> None:
        environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        environment.pop("TMUX", None)
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe("sh", ["sh", "-c", command], environment)

    def look(self) -> bytes:
        while select.select([self.fd], [], [], 0)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                break
            if not data:
                break
            self.seen += data
        return self.seen

    def sees(self, text: str) -> None:
        wait_until(lambda: text.encode() in self.look(), what=f"{text!r} in {self.seen[-500:]!r}")

    def type(self, data: bytes) -> None:
        os.write(self.fd, data)

    def leave(self) -> int:
        wait_until(lambda: (self.look(), os.waitid(os.P_PID, self.pid, _LOOK))[1])
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return status


_LOOK = os.WEXITED | os.WNOHANG | os.WNOWAIT


@pytest.fixture
def bash(hf: SyncClient) -> Iterator[SyncProcess]:
    process = hf.spawn(["bash", "--norc", "--noprofile"], tmux=True, env={"PS1": "shell> "})
    shows(process, "shell>")
    yield process
    for log in process._process._logs.values():
        log.close()  # pytest keeps the process itself until after the check for leaks


# -- sessions and the server -----------------------------------------------------------------------


def test_the_session_and_how_to_attach_are_in_every_result(hf: SyncClient) -> None:
    """The session is named after the handle, in the record, its JSON and the object."""
    process = hf.spawn("sleep 1000", tmux=True)
    name = f"holdfast-{process.handle}"
    command = f"tmux -S {shlex.quote(hf.home.tmux_socket)} attach -t {name}"
    for record in (process.record, process.refresh(), hf.list()[0].record):
        assert record.tmux_session == record.public()["tmux_session"] == name
        assert record.attach == record.public()["attach"] == command
    assert process.attach_command == command
    assert tmux(hf, "list-sessions", "-F", "#{session_name}") == name
    assert tmux(hf, "display-message", "-p", "-t", f"={name}:", "#{pane_tty}") == process.record.tty


def test_nothing_of_tmux_is_left_when_all_have_ended(hf: SyncClient) -> None:
    """Sessions go with their processes, and the server with the last of them."""
    processes = [hf.spawn("exit 3", tmux=True) for _ in range(3)]
    processes.append(hf.spawn("sleep 1000", tmux=True))
    processes[-1].kill()
    for process in processes:
        process.wait(30)
    wait_until(lambda: servers(hf) == [])
    wait_until(lambda: not any(name.endswith(".out") for name in os.listdir(hf.home.processes)))


def test_the_server_is_private(hf: SyncClient, bash: SyncProcess) -> None:
    """Only its owner can reach it, and neither it nor its list of processes knows a secret."""
    assert stat.S_IMODE(os.stat(hf.home.path).st_mode) == 0o700
    secret = hf.spawn("sleep 1000", tmux=True, env={"PASSWORD": "tell-nobody"})
    for pid in servers(hf):
        for what in ("cmdline", "environ"):
            assert b"tell-nobody" not in Path(f"/proc/{pid}/{what}").read_bytes()
    environment = Path(f"/proc/{secret.record.pid}/environ").read_bytes()
    assert b"tell-nobody" in environment
    assert "tell-nobody" not in tmux(hf, "show-environment", "-g")


def test_the_persons_own_tmux_settings_play_no_part(
    hf: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".tmux.conf").write_text("set -g remain-on-exit off\nnonsense\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hf.spawn("exit 7", tmux=True).wait(30).code == 7


def test_a_home_with_an_odd_or_a_long_name_works(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tmux would expand or cut in a path is neither expanded nor cut."""
    for name in ("a #(touch made) %H '$x;", "d" * 100):
        place = tmp_path / name
        monkeypatch.chdir(tmp_path)
        with connect(session="odd", home=place) as hf:
            process = hf.spawn("echo here; read x; exit 7", tmux=True)
            wait_until(lambda p=process: "here" in output(p))  # type: ignore[misc]
            person = Person(process.attach_command or "")
            person.sees("here")
            person.type(b"\r")
            assert process.wait(30).code == 7
            person.type(b"\x02d")
            person.leave()
            hf.keeper_stop()
    assert not (tmp_path / "made").exists()


# -- output and the end ----------------------------------------------------------------------------


@pytest.mark.long
def test_everything_a_flood_wrote_is_in_the_log_when_it_has_ended(hf: SyncClient) -> None:
    """On a busy machine, several at once: not the last byte is missing, and the codes are exact."""
    last = 60_000
    busy = [subprocess.Popen(["nice", "-n", "5", "sh", "-c", "while :; do :; done"]) for _ in "ab"]
    try:
        for _ in range(5):
            floods = [hf.spawn(f"seq {last}; exit {n}", tmux=True) for n in range(4)]
            for n, process in enumerate(floods):
                assert process.wait(60).code == n
                assert process.tail_bytes(7).data == b"%d\r\n" % last
    finally:
        for each in busy:
            each.kill()
            each.wait()


def test_what_still_writes_to_the_terminal_does_not_hold_up_the_end(hf: SyncClient) -> None:
    """A child that outlives the process is hung up on; all that the process wrote is there."""
    chatter = "(trap '' HUP; while sleep 0.01; do echo more; done)"
    process = hf.spawn(f"{chatter} & seq 20000; echo [$!]; exit 7", tmux=True)
    assert process.wait(30).code == 7
    text = output(process)
    assert "20000" in text
    os.kill(int(text.partition("[")[2].partition("]")[0]), signal.SIGKILL)


def test_a_command_that_cannot_be_run_leaves_nothing(hf: SyncClient, tmp_path: Path) -> None:
    """The pane finds out, long after tmux has made it."""
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF and nothing else")
    program.chmod(0o755)
    with pytest.raises(SpawnError, match=f"{program} is neither a binary"):
        hf.spawn([str(program)], tmux=True)
    assert hf.list() == []
    wait_until(lambda: servers(hf) == [])


# -- people ----------------------------------------------------------------------------------------


def test_a_person_attaches_watches_takes_over_and_leaves(bash: SyncProcess) -> None:
    """With the printed command, in a terminal of their own; the process goes on afterwards."""
    person = Person(bash.attach_command or "")
    person.sees("shell>")
    bash.send("echo from the agent", enter=True)
    person.sees("from the agent")
    person.type(b"echo from the $((40 + 2))nd\r")
    shows(bash, "from the 42nd")
    person.type(b"\x02d")
    assert person.leave() == 0
    assert bash.refresh().running
    bash.send("exit 5", enter=True)
    assert bash.wait(30).code == 5


def test_the_last_screen_stays_for_whoever_looks_at_it(hf: SyncClient, bash: SyncProcess) -> None:
    """The end is told at once; the session goes when the last person has left."""
    person = Person(bash.attach_command or "")
    person.sees("shell>")
    bash.send("clear; echo last words; exit 5", enter=True)
    assert bash.wait(30).code == 5
    person.sees("last words")
    assert "last words" in bash.screen().text
    assert servers(hf)
    person.type(b"\x02d")
    person.leave()
    wait_until(lambda: servers(hf) == [])


# -- crashes ---------------------------------------------------------------------------------------


def test_both_halves_die_and_the_terminal_is_adopted_screen_and_all(
    hf: SyncClient, bash: SyncProcess, kill_both: KillBoth
) -> None:
    bash.send("echo before $((1 + 1))", enter=True)
    shows(bash, "before 2")
    kill_both(hf)
    bash.send("echo between $((1 + 2))", enter=True)
    assert bash.refresh().running
    shows(bash, "between 3")
    assert "before 2" in bash.screen().text
    bash.send("exit 11", enter=True)
    end = bash.wait(30)
    assert (end.code, end.status) == (11, "failed")
    assert "between 3" in output(bash)


@pytest.mark.parametrize(
    ("command", "code", "name"), [("exit 7", 7, None), ("kill -SEGV $$", None, "SIGSEGV")]
)
def test_what_ended_while_there_was_no_keeper_has_its_true_end(
    hf: SyncClient,
    kill_both: KillBoth,
    tmp_path: Path,
    command: str,
    code: int | None,
    name: str | None,
) -> None:
    """Its parent leaves it unreaped, so the kernel still tells; and its output is in the log."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    process = hf.spawn(f"ulimit -c 0; : < {gate}; echo last words; {command}", tmux=True)
    pid = process.record.pid
    kill_both(hf)
    gate.open("w").close()
    wait_until(lambda: "State:\tZ" in status(pid))
    end = process.wait(30)
    assert (end.status, end.code, end.signal) == ("failed", code, name)
    assert any("while no keeper ran" in note for note in process.refresh().notes)
    assert output(process) == "last words\n"
    wait_until(
        lambda: [event.id for event in hf.events(acknowledged=True)] == [f"{process.handle}:end"]
    )
    wait_until(lambda: servers(hf) == [])


def status(pid: int | None) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def test_a_pty_is_hung_up_when_both_halves_die(hf: SyncClient, kill_both: KillBoth) -> None:
    """The keeper's own terminals go with it; nothing is ever called a success then."""
    process = hf.spawn("echo ready; sleep 1000", tty=True)
    wait_until(lambda: "ready" in output(process))
    kill_both(hf)
    wait_until(lambda: not process.refresh().running)
    assert (process.record.status, process.record.signal) in [
        ("failed", "SIGHUP"),
        ("lost", None),
    ]


def test_a_killed_server_is_noticed_and_how_its_processes_ended_is_told(
    hf: SyncClient, bash: SyncProcess
) -> None:
    """Its processes are hung up; the record says by what, and why."""
    asleep = hf.spawn("sleep 1000", tmux=True)
    os.kill(server_pid(hf), signal.SIGKILL)
    for process in (bash, asleep):
        end = process.wait(60)
        assert (end.status, end.signal) == ("failed", "SIGHUP")
        assert any("tmux server" in note for note in process.refresh().notes)
    assert hf.spawn("exit 4", tmux=True).wait(30).code == 4, "the next one gets a new server"


def test_what_survives_its_server_is_found_and_can_be_stopped(
    hf: SyncClient, tmp_path: Path
) -> None:
    """A process immune to the hangup goes on, says so, and its exit code is exact."""
    script = "trap '' HUP; echo ready; while sleep 0.05; do [ -e {0} ] && exit 6; done"
    flag = tmp_path / "flag"
    stubborn = hf.spawn(script.format(flag), tmux=True)
    other = hf.spawn(script.format("/dev/null/nothing"), tmux=True)
    for process in (stubborn, other):
        wait_until(lambda p=process: "ready" in output(p))  # type: ignore[misc]
    os.kill(server_pid(hf), signal.SIGKILL)
    wait_until(lambda: any("tmux server" in note for note in other.refresh().notes))
    assert stubborn.refresh().running
    flag.touch()
    assert stubborn.wait(30).code == 6
    os.unlink(flag)
    receipt = other.kill(grace=0.5)
    assert receipt.survivors == []
    assert other.refresh().status == "killed"


@pytest.mark.own_keeper
def test_a_worker_killed_while_it_starts_one_leaves_nothing_half_done(
    hf: SyncClient, tmp_path: Path
) -> None:
    """Killed at any moment of a start: the caller gets its one process all the same."""
    starts = tmp_path / "starts"
    for n in range(6):
        worker = hf.keeper_status()["worker"]
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.0{n}; kill -9 {worker}"])
        process = hf.spawn(f"echo {n} >> {starts}; exit {n}", tmux=True)
        assert process.wait(30).code == n
        killer.wait()
    assert starts.read_text().split() == [str(n) for n in range(6)]


@pytest.mark.own_keeper
def test_a_start_during_which_worker_and_server_are_killed_leaves_nobody(hf: SyncClient) -> None:
    """Just when the pane has become the command: it is the caller's one process."""
    for _ in range(4):
        handle = new_handle()
        begun = hf.home.begun(handle)

        def kill_servers(handle: str = handle) -> None:
            wait_until(lambda: carriers(handle))
            for server in servers(hf):
                with contextlib.suppress(ProcessLookupError):  # a client that has ended
                    os.kill(server, signal.SIGKILL)

        process = killed_when(
            hf.keeper_status()["worker"],
            lambda begun=begun: os.path.exists(begun),  # type: ignore[misc]
            kill_servers,
            lambda handle=handle: hf.spawn("trap '' HUP; sleep 1000", tmux=True, handle=handle),  # type: ignore[misc]
        )
        assert len(set(carriers(handle))) <= 2  # the shell and its sleep
        process.kill(grace=0)
        assert carriers(handle) == []
        wait_until(lambda: parents(hf.home.path) == [])


# -- without tmux ----------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [True, False], ids=["keeper", "no keeper"])
def test_a_pane_for_which_nobody_has_a_command_closes_itself(
    hf: SyncClient, tmp_path: Path, there: bool
) -> None:
    """Whoever began it was killed; tmux would keep it, dead, and its server with it."""
    home = hf.home.path if there else str(tmp_path)
    asks = [sys.executable, "-I", "-S", tmux_pane.__file__, home, new_handle(), "token"]
    stays = ["set-option", "-g", "remain-on-exit", "on", ";"]
    tmux(hf, *stays, "new-session", "-d", "-s", "late", *asks)
    wait_until(lambda: not servers(hf), what="no server any more")


def test_without_tmux_it_is_a_pty_and_says_so(
    hf: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bash", "sh", "sleep", "tty"):
        for place in ("/bin", "/usr/bin"):
            if os.path.exists(f"{place}/{name}") and not (tmp_path / name).exists():
                (tmp_path / name).symlink_to(f"{place}/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    process = hf.spawn("tty; sleep 1000", tmux=True)
    assert process.record.mode == "pty"
    assert process.record.tmux_session is None
    assert any("tmux is not installed" in note for note in process.record.notes)
    assert f"holdfast attach {process.handle}" in (process.attach_command or "")
    wait_until(lambda: "/dev/pts/" in process.screen().text)


def test_a_tmux_that_does_not_work_is_an_error_that_leaves_nothing(
    hf: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "tmux"
    broken.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SpawnError, match="out of order"):
        hf.spawn("true", tmux=True)
    assert hf.list() == []
    assert [name for name in os.listdir(hf.home.processes) if name.startswith("proc-")] == []


# -- what people and accidents do to it ------------------------------------------------------------


@pytest.fixture
def slow_tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tmux that takes a moment to make sessions; until the file is there that it waits for."""
    place = tmp_path / "slow"
    place.mkdir()
    go = place / "go"
    wrapper = place / "tmux"
    real = shutil.which("tmux")
    wrapper.write_text(
        "#!/bin/sh\n"
        'case "$*" in *new-session*) ;; *) exec ' + f'{real} "$@";; esac\n'
        f"while [ ! -e {go} ]; do sleep 0.02; done\n"
        f'{real} "$@"\n'
        "code=$?\n"
        f"touch {place}/made\n"
        "exit $code\n"
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    yield go
    go.touch()


@pytest.mark.parametrize("what", ["kill", "remove"])
def test_a_process_can_be_stopped_before_it_has_begun(
    hf: SyncClient, slow_tmux: Path, tmp_path: Path, what: str, session: str
) -> None:
    """Whoever started it is told so, and it never runs."""
    handle, witness = new_handle(), tmp_path / "made"
    errors: list[BaseException] = []

    def start() -> None:
        try:
            with connect(session=session) as other:
                other.spawn(f"touch {witness}; sleep 1000", tmux=True, handle=handle)
        except SpawnError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    wait_until(lambda: handle in hf.store.handles())
    with pytest.raises(NotFound) if what == "kill" else contextlib.nullcontext():
        getattr(hf.get(handle), what)()
    thread.join(30)
    assert "stopped before it had begun" in str(errors[0])
    slow_tmux.touch()
    assert handle not in hf.store.handles()
    wait_until(lambda: slow_tmux.with_name("made").exists())
    wait_until(lambda: servers(hf) == [])
    assert not witness.exists()


def test_a_wait_for_what_has_not_begun_waits(hf: SyncClient, slow_tmux: Path) -> None:
    handle = new_handle()
    thread = threading.Thread(target=lambda: hf.spawn("exit 6", tmux=True, handle=handle))
    thread.start()
    wait_until(lambda: handle in hf.store.handles())
    opener = threading.Timer(0.1, slow_tmux.touch)
    opener.start()
    assert hf.get(handle).wait(30).code == 6
    thread.join()
    opener.join()


def test_a_persons_own_panes_and_windows_change_nothing(
    hf: SyncClient, bash: SyncProcess, kill_both: KillBoth
) -> None:
    """Keys, screen, size and exit code are those of the process, whatever is active in tmux."""
    name = f"={bash.record.tmux_session}:"
    tmux(hf, "split-window", "-t", name, "cat")
    tmux(hf, "new-window", "-t", name, "sleep 1000")
    bash.send("echo typed $((40 + 2))", enter=True)
    shows(bash, "typed 42")
    assert "typed 42" in output(bash)
    tmux(hf, "split-window", "-t", name, "true")
    bash.send("exec sh -c 'read x; exit 7'", enter=True)
    wait_until(lambda: b"read x" in Path(f"/proc/{bash.record.pid}/cmdline").read_bytes())
    kill_both(hf)
    tmux(hf, "send-keys", "-t", bash.record.pane or "", "Enter")
    assert bash.wait(30).code == 7


def test_a_pane_in_which_somebody_starts_something_else_is_not_the_process_any_more(
    hf: SyncClient, bash: SyncProcess
) -> None:
    """The process was hung up; what is there now is theirs, and stays."""
    pane = bash.record.pane or ""
    tmux(hf, "respawn-pane", "-k", "-t", pane, "echo theirs; sleep 1000")
    assert bash.wait(30).signal == "SIGHUP"
    assert any("ended from outside" in note for note in bash.refresh().notes)
    wait_until(lambda: "theirs" in tmux(hf, "capture-pane", "-p", "-t", pane))
    tmux(hf, "kill-server")


def test_a_session_that_is_gone_does_not_keep_the_others_from_being_taken_up(
    hf: SyncClient, bash: SyncProcess, kill_both: KillBoth
) -> None:
    """No keeper runs, somebody ends one session: that one was hung up, the rest goes on."""
    other = hf.spawn("sleep 1000", tmux=True)
    plain = hf.spawn("exec sleep 1000")
    kill_both(hf)
    tmux(hf, "kill-session", "-t", f"={other.record.tmux_session}")
    wait_until(lambda: not other.refresh().running)
    assert (other.record.status, other.record.signal) == ("failed", "SIGHUP")
    assert plain.refresh().running
    bash.send("exit 3", enter=True)
    assert bash.wait(30).code == 3


def test_a_server_that_is_stopped_holds_up_nothing_else(hf: SyncClient, bash: SyncProcess) -> None:
    """Ends are told all the same; when it goes on, its sessions go, and nothing is left."""
    other = hf.spawn("sleep 1000", tmux=True)
    server = server_pid(hf)
    os.kill(server, signal.SIGSTOP)
    try:
        os.kill(other.record.pid or 0, signal.SIGKILL)
        assert hf.spawn("exit 4").wait(30).code == 4
        assert hf.spawn("exit 5", tty=True).wait(30).code == 5
        assert other.wait(30).signal == "SIGKILL"
    finally:
        os.kill(server, signal.SIGCONT)
    assert not any("ended from outside" in note for note in other.refresh().notes)
    bash.kill()
    wait_until(lambda: servers(hf) == [])
    wait_until(lambda: not any(name.endswith(".out") for name in os.listdir(hf.home.processes)))


@pytest.mark.own_keeper
@pytest.mark.parametrize("halves", [("worker",), ("worker", "guard")], ids=["worker", "both"])
def test_what_a_stopped_server_could_not_let_go_goes_with_the_next_worker(
    hf: SyncClient, kill_both: KillBoth, halves: tuple[str, ...]
) -> None:
    """The process has ended and is told of; who was to let its session go was killed."""
    process = hf.spawn("read line", tmux=True, stdin=True)
    (server,) = servers(hf)
    os.kill(server, signal.SIGSTOP)
    try:
        os.kill(process.record.pid or 0, signal.SIGKILL)
        assert process.wait(30).signal == "SIGKILL"
        if "guard" in halves:
            kill_both(hf)
            assert hf.spawn("exit 4").wait(30).code == 4
        else:
            worker = hf.keeper_status()["worker"]
            os.kill(worker, signal.SIGKILL)
            wait_until(lambda: hf.keeper_status()["worker"] != worker)
    finally:
        os.kill(server, signal.SIGCONT)
    wait_until(lambda: servers(hf) == [])
    wait_until(lambda: not any(name.endswith(".out") for name in os.listdir(hf.home.processes)))
    assert process.refresh().notes == []


def test_a_server_that_is_stopped_does_not_keep_a_keeper_from_starting(
    hf: SyncClient, kill_both: KillBoth, tmp_path: Path
) -> None:
    """What only tmux knows is asked for until it answers; the keeper serves everybody meanwhile."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    processes = [hf.spawn(f": < {gate}; exit {n}", tmux=True) for n in (3, 4, 5)]
    pids = [process.record.pid for process in processes]
    server = server_pid(hf)
    kill_both(hf)
    fd = os.open(gate, os.O_RDWR)
    wait_until(lambda: all("State:\tZ" in status(pid) or not status(pid) for pid in pids))
    os.close(fd)
    os.kill(server, signal.SIGSTOP)
    try:
        assert hf.spawn("exit 9").wait(30).code == 9
    finally:
        os.kill(server, signal.SIGCONT)
    assert [process.wait(60).code for process in processes] == [3, 4, 5]
    wait_until(lambda: servers(hf) == [])


@pytest.mark.own_keeper
def test_what_a_stopped_server_could_not_let_go_goes_with_a_later_keeper(hf: SyncClient) -> None:
    """The process has ended and is told of; its pane is still there when the keeper goes."""
    process = hf.spawn("read line", tmux=True, stdin=True)
    (server,) = servers(hf)
    pid = process.record.pid
    assert pid is not None
    os.kill(server, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        assert process.wait(30).signal == "SIGKILL"
        hf.keeper_stop()
    finally:
        os.kill(server, signal.SIGCONT)
    hf.spawn("exit 0").wait(30)
    hf.keeper_stop()
    wait_until(lambda: not servers(hf), what="no server any more")
    assert not os.path.exists(hf.home.tmux_socket)


def test_a_process_is_not_told_where_the_server_is(bash: SyncProcess) -> None:
    """A script that says `tmux kill-server` does not end everybody's terminals."""
    bash.send("echo [$TMUX$TMUX_PANE]", enter=True)
    shows(bash, "\n[]")


def test_what_could_not_be_typed_is_not_left_in_tmux(hf: SyncClient, bash: SyncProcess) -> None:
    """It may have been a password."""
    other = hf.spawn("sleep 1000", tmux=True)
    record = other.record
    tmux(hf, "kill-session", "-t", f"={record.tmux_session}")
    with pytest.raises(HoldfastError):
        Pane(hf.home, record).type(b"hunter2\r", False)
    assert tmux(hf, "list-buffers") == ""


def test_boxes_are_drawn_as_boxes(hf: SyncClient) -> None:
    """The alternate character set of old programs, as in a pty."""
    draw = r"printf '\033(0lqqk\r\nx\033[31mxx\033[mx\r\nmqqj\033(B ok'; sleep 1000"
    screens = []
    for options in ({"tmux": True}, {"tty": True}):
        process = hf.spawn(draw, **options)  # type: ignore[arg-type]
        shows(process, "ok")
        screens.append(process.screen().text)
    assert screens[0] == screens[1] == "┌──┐\n││││\n└──┘ ok"


# -- a tmux that crashes ---------------------------------------------------------------------------


@pytest.mark.own_keeper
def test_typing_into_one_that_has_just_ended_leaves_the_others_their_terminals(
    hf: SyncClient,
) -> None:
    """tmux 3.3 crashes when it pastes into a dead pane, and every terminal would be gone."""
    other = hf.spawn("read -r line; echo got $line; exit 5", tmux=True)
    process = hf.spawn("read -r line", tmux=True)
    record, terminals = process.record, list[int]()
    person = Person(process.attach_command or "")  # as long as somebody looks, its pane stays
    try:
        wait_until(lambda: tmux(hf, "list-clients") != "")
        process.send("x", enter=True)
        process.wait(30)
        wait_until(lambda: not os.path.exists(record.tty or ""))
        while record.tty not in [os.ttyname(end) for end in terminals[1::2]]:
            terminals += os.openpty()  # its name is somebody else's then
            assert len(terminals) < 100
        with pytest.raises(NotRunning, match="has just ended"):
            Pane(hf.home, record).type(b"more", eof=False)
        person.type(b"\x02d")
    finally:
        person.leave()
        for end in terminals:
            os.close(end)
    other.send("words", enter=True)
    assert other.wait(30).code == 5


@pytest.mark.own_keeper
def test_typing_into_the_last_that_has_ended_says_so_whoever_has_its_terminal_now(
    hf: SyncClient,
) -> None:
    """tmux has gone with it, and the name of its terminal is another's."""
    process = hf.spawn("read -r line", tmux=True)
    record, terminals = process.record, list[int]()
    process.send("x", enter=True)
    process.wait(30)
    wait_until(lambda: not os.path.exists(record.tty or ""))
    wait_until(lambda: not servers(hf))
    try:
        while record.tty not in [os.ttyname(end) for end in terminals[1::2]]:
            terminals += os.openpty()
            assert len(terminals) < 100
        with pytest.raises(NotRunning, match="has just ended"):
            Pane(hf.home, record).type(b"more", eof=False)
    finally:
        for end in terminals:
            os.close(end)


@pytest.mark.own_keeper
def test_a_start_whose_server_crashes_is_begun_again(hf: SyncClient) -> None:
    """tmux had made its session, and the pane had not been given its command."""
    hf.spawn("sleep 1000", tmux=True)
    server, handle = server_pid(hf), new_handle()
    sessions = ["list-sessions", "-F", "#{session_name}"]
    stepper = stepper_of(hf.keeper_status()["worker"])
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(hf.spawn, "exit 6", tmux=True, handle=handle)
        try:
            while handle not in tmux(hf, *sessions):
                assert stepper.step(60)
                stepper.go_on()
            assert stepper.step(60)
            os.kill(server, signal.SIGKILL)
            wait_until(lambda: kernel.stat(server) is None or proc_file(server, "cmdline") == b"")
        finally:
            stepper.release()
        assert started.result(60).wait(30).code == 6


@pytest.mark.own_keeper
def test_output_on_its_way_when_both_halves_are_killed_is_in_the_log(
    hf: SyncClient, kill_both: Callable[[SyncClient], None]
) -> None:
    """Its pane is gone, and nobody has its FIFO open but who holds it for the next keeper."""
    process = hf.spawn("read -r line; echo got $line; exit 5", tmux=True)
    fifo = os.path.realpath(hf.home.fifo(process.handle))
    passes_on = wait_until(lambda: [pid for pid in readers_of(fifo) if is_cat(pid)])
    os.kill(passes_on[0], signal.SIGSTOP)
    process.send("words", enter=True)
    assert process.wait(30).code == 5
    wait_until(lambda: servers(hf) == [], what="the session to be let go")
    kill_both(hf)
    os.kill(passes_on[0], signal.SIGCONT)
    wait_until(lambda: not proc_file(passes_on[0], "cmdline"))
    hf.spawn("true").wait(30)
    wait_until(lambda: "got words" in process.tail().text)
    wait_until(lambda: not os.path.exists(fifo) and readers_of(fifo) == [])


def readers_of(fifo: str) -> list[int]:
    """Who has it open."""
    found = []
    for process in kernel.all_processes():
        with contextlib.suppress(OSError):
            folder = f"/proc/{process.pid}/fd"
            if any(os.readlink(f"{folder}/{fd}") == fifo for fd in os.listdir(folder)):
                found.append(process.pid)
    return found


def is_cat(pid: int) -> bool:
    return proc_file(pid, "cmdline") == b"cat\0"


def around_panes(hf: SyncClient, handle: str) -> list[int]:
    """What stays in the pane of a process, and what its output goes through."""
    mark, fifo = f"HOLDFAST_PANE={handle}".encode(), hf.home.fifo(handle).encode()
    return [
        process.pid
        for process in kernel.all_processes()
        if mark in proc_file(process.pid, "environ").split(b"\0")
        or proc_file(process.pid, "cmdline").startswith(b"sh\0-c\0test -p " + fifo)
        or fifo + b" (deleted)" in links(process.pid)
    ]


def links(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        folder = f"/proc/{pid}/fd"
        return [os.fsencode(os.readlink(f"{folder}/{fd}")) for fd in os.listdir(folder)]
    return []


@pytest.mark.own_keeper
@pytest.mark.parametrize("when", ["the next one begins", "the next one goes"])
def test_what_a_removal_left_that_both_halves_did_not_live_to_finish_is_ended(
    hf: SyncClient, kill_both: Callable[[SyncClient], None], when: str
) -> None:
    """Nobody knows of it any more, and whoever passes its output on has nobody who takes it."""
    process = hf.spawn("exec yes", tmux=True)
    wait_until(lambda: process.log().size() > 1 << 17)
    pid, server = process.record.pid or 0, server_pid(hf)
    kill_both(hf)
    for path in (hf.home.meta(process.handle), hf.home.fifo(process.handle)):
        os.unlink(path)
    os.kill(pid, signal.SIGKILL)
    assert len(around_panes(hf, process.handle)) == 3
    if when == "the next one goes":
        os.kill(server, signal.SIGKILL)
        hf.spawn("true").wait(30)
        hf.keeper_stop()
    else:
        hf.spawn("sleep 1000")
    wait_until(lambda: around_panes(hf, process.handle) == [])
