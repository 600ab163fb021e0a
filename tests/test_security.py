"""Nobody sees, touches or tricks what is not theirs: sessions, commands, files, the socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    BadDirectory,
    BadRequest,
    HoldfastError,
    KeeperError,
    NotExecutable,
    NotFound,
    StoreError,
    SyncClient,
    SyncProcess,
    connect,
)
from holdfast.client import link
from holdfast.client.connect import open_client
from holdfast.core import wire
from holdfast.core.home import Home, new_handle
from holdfast.core.machine import machine
from holdfast.core.quote import as_name
from holdfast.testing import wait_until

Child = Callable[..., list[str]]
ROOT = os.geteuid() == 0
NOBODY = 65534


class Raw:
    """A client that says what it likes to the keeper."""

    def __init__(self, home: str, session: str | None = None, *, greet: bool = True) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(Home(home).socket_address())
        self._decoder = wire.Decoder()
        self._answers: list[dict[str, Any]] = []
        if greet:
            self.say(self.greeting(session))
            assert "error" not in self.hear()

    @staticmethod
    def greeting(session: str | None = None, **changes: object) -> dict[str, Any]:
        return {
            "hello": wire.PROTOCOL,
            "version": "test",
            "client": "raw",
            "session": session,
            "lease": None,
            "machine": machine(),
            **changes,
        }

    def say(self, message: object) -> None:
        self.shout(json.dumps(message).encode() + b"\n")

    def shout(self, data: bytes) -> None:
        self._socket.sendall(data)

    def hear(self) -> dict[str, Any]:
        """The next message; ConnectionError if the keeper hung up instead."""
        while not self._answers:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the keeper hung up")
            self._answers += self._decoder.feed(data)
        return self._answers.pop(0)

    def ask(self, verb: object, **arguments: object) -> dict[str, Any]:
        self.say({"id": 1, "verb": verb, **arguments})
        return self.hear()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def told(process: SyncProcess) -> dict[str, Any]:
    assert process.wait(30).ok
    answer: dict[str, Any] = json.loads(process.tail_bytes(1 << 20).data)
    return answer


def processes(home: str) -> list[str]:
    """What there is of processes, ended or not."""
    return [name for name in os.listdir(Home(home).processes) if name.startswith("proc-")]


def files_under(path: str) -> dict[str, bytes]:
    found = {}
    for directory, _, names in os.walk(path):
        for name in names:
            full = os.path.join(directory, name)
            if stat.S_ISREG(os.lstat(full).st_mode):
                found[full] = Path(full).read_bytes()
    return found


# -- one session and another -----------------------------------------------------------------------


@pytest.fixture
def theirs(hf: SyncClient) -> SyncProcess:
    """A process of session "test" that answers, for somebody else to have a go at."""
    process = hf.spawn("echo secret; cat", stdin=True, label="theirs", stderr="separate")
    wait_until(lambda: process.tail().text == "secret\n")
    return process


def without(handle: str, text: str) -> str:
    assert handle in text
    return text.replace(handle, "HANDLE")


def test_another_sessions_process_does_not_exist_for_the_library(
    hf: SyncClient, theirs: SyncProcess
) -> None:
    nowhere = new_handle()
    with connect(session="other") as other:
        errors = []
        for handle in (theirs.handle, nowhere):
            with pytest.raises(NotFound) as caught:
                other.get(handle)
            assert (caught.value.code, caught.value.handle) == ("not_found", handle)
            errors.append(without(handle, str(caught.value)))
        assert errors[0] == errors[1]
        assert other.list() == []
        assert other.problems() == []
        assert other.stop_all() == []
        assert list(other.events(acknowledged=True)) == []
    assert theirs.refresh().running, "closing the other session stopped nothing of this one"


ATTEMPTS: list[tuple[str, Callable[[SyncProcess], object]]] = [
    ("refresh", lambda process: process.refresh()),
    ("read", lambda process: process.read()),
    ("send", lambda process: process.send(b"hello\n")),
    ("wait", lambda process: process.wait(5)),
    ("kill", lambda process: process.kill()),
    ("signal", lambda process: process.signal("TERM")),
    ("clear", lambda process: process.clear()),
    ("remove", lambda process: process.remove()),
]


@pytest.mark.parametrize(("name", "attempt"), ATTEMPTS, ids=[name for name, _ in ATTEMPTS])
def test_even_a_process_object_is_of_no_use_to_another_session(
    hf: SyncClient, theirs: SyncProcess, name: str, attempt: Callable[[SyncProcess], object]
) -> None:
    """One made from another session's record: everything that acts says not found."""
    from dataclasses import replace

    from holdfast.client.process import Process

    with connect(session="other") as other:
        messages = []
        for handle in (theirs.handle, new_handle()):
            record = replace(theirs.record, handle=handle)
            stolen = SyncProcess(Process(other._client, record))
            with pytest.raises(NotFound) as caught:
                attempt(stolen)
            messages.append(without(handle, str(caught.value)))
        assert messages[0] == messages[1]
    assert theirs.refresh().running
    assert theirs.tail().text == "secret\n"


@pytest.mark.parametrize("state", ["running", "ended"])
def test_another_sessions_process_does_not_exist_for_the_protocol(
    hf: SyncClient, home: str, theirs: SyncProcess, state: str
) -> None:
    """Every verb about a process answers as it does for a handle that nobody has."""
    if state == "ended":
        theirs.send(b"", eof=True)
        wait_until(lambda: not theirs.refresh().running)
    requests: list[tuple[str, dict[str, object]]] = [
        ("wait", {}),
        ("send", {"data": "aGk=", "token": "t", "eof": True, "timeout": 1}),
        ("signal", {"signal": "KILL"}),
        ("kill", {"signal": "KILL", "grace": 0}),
        ("clear", {}),
        ("remove", {}),
    ]
    with Raw(home, "other") as raw:
        for verb, arguments in requests:
            answers = []
            for handle in (theirs.handle, new_handle()):
                answer = raw.ask(verb, handle=handle, **arguments)
                assert answer["error"]["code"] == "not_found"
                answers.append(without(handle, json.dumps(answer)))
            assert answers[0] == answers[1]
        for ids in ([f"{theirs.handle}:end"], [f"{new_handle()}:end"]):
            answer = raw.ask("acknowledge", session="test", ids=ids)
            assert answer["ok"] == {"acknowledged": []}
        assert raw.ask("stop_all", signal="KILL", grace=0)["ok"] == {"receipts": []}
        assert raw.ask("close")["ok"] == {"receipts": []}
    assert theirs.refresh().running == (state == "running")
    assert theirs.tail().text == "secret\n"
    assert len(list(hf.events())) == (state == "ended")


def test_another_sessions_events_cannot_be_acknowledged(
    hf: SyncClient, theirs: SyncProcess
) -> None:
    theirs.send(b"", eof=True)
    (event,) = wait_until(lambda: list(hf.events()))
    with connect(session="other") as other, pytest.raises(BadRequest):
        other.acknowledge(event)
    assert [found.id for found in hf.events()] == [event.id]


def test_a_handle_that_another_session_has_taken_is_refused(
    hf: SyncClient, theirs: SyncProcess
) -> None:
    """Neither given away nor replaced; the error does not say whose it is."""
    with connect(session="other") as other, pytest.raises(BadRequest) as caught:
        other.spawn("true", handle=theirs.handle)
    assert "test" not in str(caught.value)
    assert theirs.refresh().label == "theirs"


# -- commands --------------------------------------------------------------------------------------


def hostile(witness: str) -> list[str]:
    return [
        f'"; touch {witness}; "',
        f"'; touch {witness}; '",
        f"$(touch {witness})",
        f"`touch {witness}`",
        f"x\ntouch {witness}\n",
        f"#(touch {witness})",
        f"| touch {witness}",
        f"& touch {witness} &",
        "-rf",
        "--help",
        "*",
        "~",
        "${HOME}",
        "\\",
        " ",
        "\u202e\u20ac",
        os.fsdecode(b"\xff\xfe\x80 raw"),
        "%s%n{0}",
    ]


def test_hostile_text_is_only_text_wherever_it_stands(
    hf: SyncClient, home: str, child: Child, tmp_path: Path
) -> None:
    """In arguments, label, group, directory and environment: exact everywhere, run nowhere.

    A name of more than one line is refused; of those, one is made.
    """
    witness = str(tmp_path / "witness")
    texts = hostile(witness)
    place = tmp_path / "place"
    place.mkdir()
    for text in texts:
        name = text.replace("/", "_")
        directory = place / name
        directory.mkdir()
        process = hf.spawn(
            child("tells_all", *texts, text),
            cwd=str(directory),
            env={"HOSTILE": text, text.replace("=", ""): text},
            label=as_name(text),
            group=as_name(text),
        )
        seen = told(process)
        assert seen["argv"] == [os.fsencode(given).hex() for given in [*texts, text]]
        assert bytes.fromhex(seen["cwd"]) == os.fsencode(directory)
        assert seen["env"][b"HOSTILE".hex()] == os.fsencode(text).hex()
        assert seen["env"][os.fsencode(text.replace("=", "")).hex()] == os.fsencode(text).hex()
        record = hf.get(process.handle).record
        label = as_name(text)
        assert (record.label, record.group, record.cwd) == (label, label, str(directory))
        assert record.command == child("tells_all", *texts, text)
    wait_until(lambda: len(list(hf.events(acknowledged=True))) == len(texts))
    events = {event.handle: event for event in hf.events(acknowledged=True)}
    assert {event.label for event in events.values()} == set(map(as_name, texts))
    assert all(event.text for event in events.values())
    assert not os.path.exists(witness)
    assert not any("witness" in name for name in os.listdir(tmp_path))


def test_a_shell_command_is_byte_exact_too(hf: SyncClient) -> None:
    command = os.fsdecode(b"printf '%s' '\xff\x80 \xe2\x82\xac $(true)'")
    process = hf.spawn(command)
    assert process.wait(30).ok
    assert process.tail_bytes(100).data == b"\xff\x80 \xe2\x82\xac $(true)"
    assert hf.get(process.handle).record.command == command


REFUSED: list[tuple[dict[str, Any], type[HoldfastError]]] = [
    ({"command": ["true", "a\0b"]}, BadRequest),
    ({"command": "true\0"}, BadRequest),
    ({"command": ""}, BadRequest),
    ({"command": []}, BadRequest),
    ({"command": ["true", 5]}, BadRequest),
    ({"command": 7}, BadRequest),
    ({"command": ["no-such-program-here"]}, NotExecutable),
    ({"command": ["/etc/passwd"]}, NotExecutable),
    ({"command": ["true", "\ud800"]}, HoldfastError),
    ({"command": "true", "cwd": "/no/such/directory"}, BadDirectory),
    ({"command": "true", "cwd": "a\0b"}, BadDirectory),
    ({"command": "true", "env": {"A=B": "x"}}, BadRequest),
    ({"command": "true", "env": {"": "x"}}, BadRequest),
    ({"command": "true", "env": {"A": "x\0y"}}, BadRequest),
    ({"command": "true", "env": {"A": 5}}, BadRequest),
    ({"command": "true", "env": {"A": "\ud800"}}, HoldfastError),
    ({"command": "true", "label": 5}, BadRequest),
    ({"command": "true", "label": "x" * 1001}, BadRequest),
    ({"command": "true", "stderr": "elsewhere"}, BadRequest),
    ({"command": "true", "timeout": "soon"}, BadRequest),
    ({"command": "true", "timeout": float("nan")}, BadRequest),
    ({"command": "true", "grace": -1}, BadRequest),
    ({"command": "true", "log_cap": "1"}, BadRequest),
    ({"command": "true", "handle": "../../x"}, BadRequest),
    ({"command": "true", "handle": "proc-short"}, BadRequest),
]


@pytest.mark.usefixtures("keeper")
def test_what_cannot_be_run_is_refused_and_leaves_nothing(hf: SyncClient, home: str) -> None:
    for arguments, error in REFUSED:
        with pytest.raises(error) as caught:
            hf.spawn(**arguments)
        assert "\n" not in str(caught.value)
        assert processes(home) == [], arguments


# -- handles ---------------------------------------------------------------------------------------


def test_a_malformed_handle_is_not_found_and_touches_nothing(
    hf: SyncClient, home: str, theirs: SyncProcess, tmp_path: Path
) -> None:
    """A prefix, a glob, a path, a NUL, ten kilobytes: no process and no file."""
    (tmp_path / "home" / "x.meta.json").write_text("{}")
    wait_until(lambda: [event.type for event in hf.events()] == ["input"])  # it waits for a line
    before = files_under(str(tmp_path))
    handles: list[Any] = [
        theirs.handle[:-1],
        theirs.handle[:12],
        theirs.handle + "a",
        theirs.handle.upper(),
        theirs.handle + "\n",
        " " + theirs.handle,
        "proc-*",
        "proc-" + "?" * 16,
        "proc-" + "[a-z]" * 4,
        "../x",
        "proc-../../../../../x",
        "../processes/" + theirs.handle,
        theirs.handle + "/../" + theirs.handle,
        theirs.handle + "\0",
        "\0",
        "proc-" + "a" * 10_000,
        "",
        "%",
        "proc-" + "\u0430" * 16,
        "\ud800",
        None,
        5,
        True,
        ["proc-aaaaaaaaaaaaaaaa"],
        {},
    ]
    with Raw(home, "test") as raw:
        for handle in handles:
            with pytest.raises(NotFound) as caught:
                hf.get(handle)
            assert len(str(caught.value)) < 300
            for verb in ("wait", "signal", "kill", "clear", "remove", "send"):
                answer = raw.ask(verb, handle=handle, signal="KILL", grace=0)
                assert answer["error"]["code"] == "not_found", (verb, handle)
        assert "error" in raw.ask("kill", signal="KILL", grace=0), "no handle at all"
    assert theirs.refresh().running
    assert files_under(str(tmp_path)) == before


# -- the home and who may touch it -----------------------------------------------------------------


def snapshot(path: Path) -> list[tuple[str, int]]:
    return sorted((str(found), found.lstat().st_mode) for found in path.rglob("*"))


@pytest.mark.parametrize("which", ["home", "processes", "sessions", "dangling"])
def test_a_symlink_in_the_place_of_the_home_is_refused(
    home: str, tmp_path: Path, which: str
) -> None:
    """By library, command line and keeper alike; nothing is made where it points to."""
    elsewhere = tmp_path / "elsewhere"
    if which != "dangling":
        elsewhere.mkdir()
    place = Path(home)
    if which in ("processes", "sessions"):
        Home(home).ensure()
        place = place / which
        place.rmdir()
    place.symlink_to(elsewhere)
    before = snapshot(tmp_path)
    for attempt in (
        lambda: connect(session="test").__enter__(),
        lambda: open_client(Home(home), None).spawn("true"),
        lambda: open_client(Home(home), None).list(),
    ):
        with pytest.raises(StoreError, match="symlink"):
            attempt()
    assert snapshot(tmp_path) == before
    place.unlink()


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
@pytest.mark.parametrize("which", ["", "processes", "sessions"])
def test_somebody_elses_home_is_refused(home: str, which: str) -> None:
    Home(home).ensure()
    os.chown(os.path.join(home, which), NOBODY, NOBODY)
    try:
        with pytest.raises(StoreError, match=f"belongs to uid {NOBODY}"):
            connect(session="test").__enter__()
    finally:
        os.chown(os.path.join(home, which), 0, 0)


def test_a_directory_with_other_things_in_it_is_not_made_private(home: str, tmp_path: Path) -> None:
    """HOLDFAST_HOME set to, say, the user's home directory by mistake."""
    Path(home).mkdir(mode=0o755)
    Path(home).chmod(0o755)
    (Path(home) / "thesis.txt").write_text("precious")
    with pytest.raises(StoreError, match="holds other files"):
        connect(session="test").__enter__()
    assert stat.S_IMODE(Path(home).stat().st_mode) == 0o755


def test_a_home_left_open_to_others_is_closed(home: str) -> None:
    Home(home).ensure()
    (Path(home) / "keeper.log.old").write_text("an earlier log of ours\n")
    for path in (home, home + "/processes", home + "/sessions"):
        os.chmod(path, 0o777)
    with connect(session="test") as hf:
        hf.spawn("true").wait(30)
    for path in (home, home + "/processes", home + "/sessions"):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def replace_by_symlink(log: str, secret: Path) -> None:
    os.unlink(log)
    os.symlink(secret, log)


def give_away(log: str, secret: Path) -> None:
    os.chown(log, NOBODY, NOBODY)


def take_away(log: str, secret: Path) -> None:
    os.unlink(log)


@pytest.mark.parametrize(
    "how",
    [
        replace_by_symlink,
        pytest.param(give_away, marks=pytest.mark.skipif(not ROOT, reason="needs root")),
        take_away,
    ],
)
def test_a_log_that_was_tampered_with_is_not_read_and_the_end_is_told_all_the_same(
    hf: SyncClient, tmp_path: Path, how: Callable[[str, Path], None]
) -> None:
    """Readers refuse it, the keeper writes nowhere else, and the completion is delivered."""
    secret = tmp_path / "secret"
    secret.write_text("not for you\n")
    process = hf.spawn("echo before; cat", stdin=True)
    wait_until(lambda: process.tail().text == "before\n")
    worker = hf.keeper_status()["worker"]
    how(process.record.log, secret)
    fresh = hf.get(process.handle)
    if how is take_away:
        assert fresh.tail().data == b""
    else:
        with pytest.raises(StoreError):
            fresh.tail()
    process.send(b"after\n", eof=True)
    (event,) = wait_until(lambda: list(hf.events()))
    assert (event.handle, event.exit_code) == (process.handle, 0)
    assert event.text.endswith("| before\n| after\n")
    wait_until(lambda: not process.refresh().running)
    assert secret.read_text() == "not for you\n"
    assert hf.keeper_status()["worker"] == worker
    if how is not take_away:
        with pytest.raises(StoreError):
            hf.get(process.handle).tail()
    process.remove()
    assert not os.path.lexists(process.record.log)
    assert secret.exists()


def check_private(home: str) -> set[str]:
    kinds = set()
    assert stat.S_IMODE(os.lstat(home).st_mode) == 0o700
    for directory, directories, names in os.walk(home):
        for name in directories + names:
            path = os.path.join(directory, name)
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue
            wanted = 0o700 if stat.S_ISDIR(mode) else 0o600
            assert stat.S_IMODE(mode) == wanted, path
            kinds.add(name.rpartition(".")[2] if "." in name else name)
    return kinds


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_everything_is_private_whatever_the_umask(
    home: str, child: Child, tmp_path: Path, umask: int
) -> None:
    """Socket, lock, logs, FIFOs, records, heads, outbox, cursors; the process gets the caller's."""
    before = os.umask(umask)
    try:
        with connect(session="test") as hf:
            running = hf.spawn("echo x; sleep 300", stdin=True, stderr="separate")
            wait_until(lambda: running.read().data)
            flood = hf.spawn(child("writes_pattern", str(3 << 20), "0"), log_cap="1MiB")
            flood.wait(60)
            flood.read()
            made = hf.spawn(["touch", "made"], cwd=tmp_path)
            made.wait(30)
            kinds = check_private(home)
            hf.keeper_restart()
            hf.acknowledge(*hf.events())
            kinds |= check_private(home)
        check_private(home)
    finally:
        os.umask(before)
    assert {"sock", "lock", "log", "out", "json", "head", "jsonl", "stdout"} <= kinds
    assert stat.S_IMODE((tmp_path / "made").stat().st_mode) == 0o666 & ~umask


# -- secrets and what a process inherits -----------------------------------------------------------


def test_a_secret_in_the_environment_is_nowhere_of_ours(
    hf: SyncClient, home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No record, log of ours, outbox, repr or error text; only the process itself has it."""
    inherited, given = "hunter2-inherited", "hunter2-given"
    monkeypatch.setenv("API_KEY", inherited)
    env = {"TOKEN": given}
    process = hf.spawn('test "$API_KEY$TOKEN" = "$0"; cat', env=env, stdin=True, label="l")
    texts = [repr(process), repr(process.record), repr(hf), str(process.record.to_json())]
    for arguments in (
        {"command": ["no-such-program"]},
        {"command": "true", "cwd": "/nowhere"},
        {"command": ["true", "\ud800"]},
        {"command": "true", "env": {"X=": given}},
        {"command": "true", "env": {"X": given + "\0"}},
        {"command": "true", "env": {"X": given + "\ud800"}},
        {"command": "true", "env": {given: 5}, "label": "x"},
        {"command": [given * 200_000], "env": env},
    ):
        with pytest.raises(HoldfastError) as caught:
            hf.spawn(**{"env": env, **arguments})  # type: ignore[arg-type]
        if arguments.get("env") != {given: 5} and given not in str(arguments["command"]):
            texts += [str(caught.value), repr(caught.value), repr(caught.value.to_wire())]
    os.kill(hf.keeper_status()["worker"], 9)
    hf.keeper_restart()
    process.send(b"", eof=True)
    wait_until(lambda: not process.refresh().running)
    events = wait_until(lambda: list(hf.events()))
    texts += [repr(events), str([event.public() for event in events]), repr(hf.list())]
    texts += [data.decode("utf-8", "replace") for data in files_under(home).values()]
    for text in texts:
        assert "hunter2" not in text
    for half in ("guard", "worker"):
        environment = Path(f"/proc/{hf.keeper_status()[half]}/environ").read_bytes()
        assert b"hunter2" not in environment, "the keeper was started without it"


def test_a_process_gets_its_three_files_and_nothing_of_ours(
    hf: SyncClient, home: str, child: Child
) -> None:
    """Whatever else the keeper holds at the time: sockets, other processes' stdin, locks."""
    others = [hf.spawn("cat", stdin=True, stderr="separate") for _ in range(3)]
    os.kill(hf.keeper_status()["worker"], 9)
    for arguments in ({}, {"stdin": True}, {"stderr": "separate"}):
        seen = told(hf.spawn(child("tells_all"), **arguments))
        assert sorted(seen["files"]) == ["0", "1", "2"]
        assert not any(word in str(seen["files"]) for word in ("keeper", "socket", "memfd"))
        names = {bytes.fromhex(name).decode() for name in seen["env"]} - set(os.environ)
        assert {name for name in names if "HOLDFAST" in name} == {"HOLDFAST_HANDLE"}
    for other in others:
        assert other.refresh().running


# -- the socket ------------------------------------------------------------------------------------


GARBAGE: list[bytes] = [
    b"\n",
    b"{}\n",
    b"[]\n",
    b"null\n",
    b"NaN\n",
    b'"hello"\n',
    b"{\n",
    b'{"hello": 1}\n',
    b'{"hello": 99, "machine": 3}\n',
    b'{"hello": NaN}\n',
    b'{"id": 1, "verb": "status"}\n',
    b"\0\0\0\0\n",
    b"\xff\xfe\xfd\n",
    bytes(range(256)) * 10,
    b"[" * 100_000 + b"\n",
    b'{"a":' * 100_000 + b"\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b'{"hello": ' + b"9" * 5000 + b"}\n",
]


@pytest.fixture
def keeper(hf: SyncClient, home: str) -> Iterator[Callable[[], None]]:
    """Call it to see that the keeper is the same as at first, and serves others."""
    before = hf.keeper_status()

    def alive() -> None:
        now = hf.keeper_status()
        assert (now["guard"], now["worker"]) == (before["guard"], before["worker"])
        assert hf.spawn("exit 5").wait(30).code == 5

    yield alive
    alive()


@pytest.mark.usefixtures("keeper")
def test_garbage_instead_of_a_greeting_harms_nobody(hf: SyncClient, home: str) -> None:
    for data in GARBAGE:
        with Raw(home, greet=False) as raw, contextlib.suppress(ConnectionError):
            raw.shout(data)
            raw.say(Raw.greeting())
            raw.hear()


@pytest.mark.usefixtures("keeper")
def test_garbage_after_a_greeting_harms_nobody(hf: SyncClient, home: str) -> None:
    for data in GARBAGE:
        with Raw(home, "test") as raw, contextlib.suppress(ConnectionError):
            raw.shout(data)
            raw.ask("status")


GREETINGS: list[dict[str, object]] = [
    {"session": 5},
    {"session": ""},
    {"session": "a\nb"},
    {"session": "x" * 81},
    {"session": "\ud800"},
    {"session": "../../x" * 20},
    {"session": "ok", "lease": 5},
    {"session": "ok", "lease": {"grace": "soon"}},
    {"session": "ok", "lease": {"grace": float("nan")}},
    {"session": "ok", "lease": {"grace": -1}},
    {"session": "ok", "lease": {"grace": float("inf")}},
    {"session": "ok", "lease": {"grace": 10**400}},
    {"session": "ok", "lease": {"grace": [1]}},
    {"session": "ok", "lease": {}},
    {"client": {"a": 1}},
    {"client": "x" * 100_000},
    {"machine": ["other", "place"]},
    {"machine": None},
    {"hello": "1"},
    {"hello": [1]},
    {"version": ["x"]},
]


def test_a_greeting_that_makes_no_sense_harms_nobody(
    hf: SyncClient, home: str, keeper: Callable[[], None]
) -> None:
    """Refused or taken, but timers go on: a short deadline after it is kept."""
    for change in GREETINGS:
        with Raw(home, greet=False) as raw:
            raw.say({**Raw.greeting(), **change})
            with contextlib.suppress(ConnectionError):
                raw.hear()
                raw.ask("status")
        assert hf.spawn("sleep 300", timeout=0.01).wait(30).status == "timed_out", change
        keeper()


def a_spawn(**changes: object) -> dict[str, object]:
    return {
        "handle": new_handle(),
        "command": "true",
        "argv": ["/bin/true"],
        "cwd": "/",
        "env": {"PATH": "/bin"},
        "umask": 0o22,
        "mode": "pipe",
        "size": [80, 24],
        "tmux": None,
        "attach": None,
        "notes": [],
        "label": "",
        "group": "",
        "timeout": None,
        "grace": 5.0,
        "stdin": False,
        "stderr": "merged",
        "keep": False,
        "log_cap": 1 << 20,
        "log_limit": None,
        "retention": 1800.0,
        "max_running": 20,
        "max_finished": 100,
        **changes,
    }


NAN = float("nan")
SPAWNS: list[dict[str, object]] = [
    {"mode": "telepathy"},
    {"mode": None},
    {"mode": "pty", "size": [0, 24]},
    {"mode": "pty", "size": [80, 1e9]},
    {"mode": "pty", "size": "80x24"},
    {"mode": "tmux", "size": None},
    {"mode": "tmux", "tmux": None},
    {"mode": "tmux", "tmux": "/no/such/tmux"},
    {"attach": 5},
    {"notes": 5},
    {"argv": []},
    {"argv": "true"},
    {"argv": None},
    {"argv": [5]},
    {"argv": ["/bin/true", 5]},
    {"argv": ["/bin/true", None]},
    {"argv": ["/bin/true", "a\0b"]},
    {"argv": ["/bin/true", "\ud800"]},
    {"argv": {"0": "true"}},
    {"env": None},
    {"env": []},
    {"env": {"PATH": 5}, "argv": ["true"]},
    {"env": {"A": None}},
    {"env": {"A=B": "x"}},
    {"env": {"": "x"}},
    {"env": {"A": "\ud800"}},
    {"umask": "x"},
    {"umask": None},
    {"umask": 10**30},
    {"cwd": 5},
    {"cwd": None},
    {"cwd": ""},
    {"cwd": "a\0b"},
    {"cwd": "\ud800"},
    {"command": None},
    {"command": {"a": 1}},
    {"command": [1, 2]},
    {"label": 5},
    {"label": None},
    {"group": []},
    {"timeout": NAN},
    {"timeout": "x"},
    {"timeout": -5},
    {"timeout": 10**400},
    {"timeout": [1]},
    {"grace": NAN},
    {"grace": "x"},
    {"grace": None},
    {"grace": -1},
    {"log_cap": "x"},
    {"log_cap": 0},
    {"log_cap": -5},
    {"log_cap": None},
    {"log_cap": NAN},
    {"log_limit": "x"},
    {"log_limit": NAN},
    {"retention": "x"},
    {"retention": NAN},
    {"retention": None},
    {"max_running": "x"},
    {"max_running": None},
    {"max_finished": "x"},
    {"max_finished": -1},
    {"max_finished": None},
    {"handle": None},
    {"handle": "../x"},
]


@pytest.mark.usefixtures("keeper")
def test_a_spawn_that_makes_no_sense_is_refused_and_leaves_nothing(
    hf: SyncClient, home: str, keeper: Callable[[], None]
) -> None:
    """Each field in turn: an answer, nothing on disk, and the keeper as it was."""
    with Raw(home, "test") as raw:
        for change in SPAWNS:
            answer = raw.ask("spawn", **a_spawn(**change))
            assert "error" in answer, change
            assert processes(home) == [], change
        for name in a_spawn():
            message = a_spawn()
            del message[name]
            assert "error" in raw.ask("spawn", **message), name
        assert processes(home) == []
        assert raw.ask("spawn", **a_spawn())["ok"]["record"]["session"] == "test"
    keeper()


@pytest.mark.usefixtures("keeper")
def test_other_requests_that_make_no_sense_are_refused(
    hf: SyncClient, home: str, theirs: SyncProcess
) -> None:
    hf.spawn("true")
    wait_until(lambda: list(hf.events()))
    handle = theirs.handle
    send = {"handle": handle, "data": "aGk=", "token": "t", "eof": False, "timeout": 1}
    requests: list[tuple[object, dict[str, object]]] = [
        ("no_such_verb", {}),
        ("__class__", {}),
        (None, {}),
        (5, {}),
        ({"a": 1}, {}),
        ("x" * 1000, {}),
        ("wait", {}),
        ("send", {**send, "data": "%%%\u20ac"}),
        ("send", {**send, "data": 5}),
        ("send", {**send, "timeout": NAN}),
        ("send", {**send, "timeout": -1}),
        ("send", {**send, "timeout": "x"}),
        ("send", {**send, "timeout": 10**400}),
        ("send", {**send, "data": "QUFB" * (1 << 21)}),
        ("signal", {"handle": handle, "signal": "NOSUCH"}),
        ("signal", {"handle": handle, "signal": 0}),
        ("signal", {"handle": handle, "signal": -9}),
        ("signal", {"handle": handle, "signal": 1000}),
        ("signal", {"handle": handle, "signal": None}),
        ("signal", {"handle": handle, "signal": "\u00b2"}),
        ("signal", {"handle": handle, "signal": 10**30}),
        ("kill", {"handle": handle, "signal": "NOSUCH", "grace": 0}),
        ("kill", {"handle": handle, "signal": "TERM", "grace": "x"}),
        ("kill", {"handle": handle, "signal": "TERM", "grace": NAN}),
        ("kill", {"handle": handle, "signal": "TERM", "grace": -1}),
        ("kill", {"handle": handle, "signal": "TERM", "grace": 10**400}),
        ("kill", {"handle": handle}),
        ("stop_all", {}),
        ("stop_all", {"signal": "TERM", "grace": "x"}),
        ("stop_all", {"signal": "TERM", "grace": NAN}),
        ("acknowledge", {}),
        ("acknowledge", {"ids": 5}),
        ("acknowledge", {"ids": [[]]}),
        ("acknowledge", {"ids": [{}]}),
        ("restart", {"program": 5}),
        ("restart", {"program": ["/no/such/interpreter"]}),
        ("restart", {"program": [5]}),
        ("quit", {}),
    ]
    with Raw(home, "test") as raw:
        for verb, arguments in requests:
            answer = raw.ask(verb, **arguments)
            assert "error" in answer, (verb, arguments)
            assert len(answer["error"]["message"]) < 400
        cancels: list[object] = [1, 99, "x", None, [], {}, NAN]
        for cancel in cancels:
            raw.say({"cancel": cancel})
        assert raw.ask("status")["ok"]["processes"] == 1
    numbers: list[object] = [None, "x", 1.5, [], {}]
    for number in numbers:
        with Raw(home, "test") as raw, contextlib.suppress(ConnectionError):
            raw.say({"id": number, "verb": "status"})
            raw.hear()
    assert theirs.refresh().running
    assert theirs.tail().text == "secret\n", "nothing was written to it"


@pytest.mark.usefixtures("keeper")
def test_a_line_without_end_is_refused_and_not_kept(hf: SyncClient, home: str) -> None:
    """Twenty megabytes and no newline: its memory is given back, and the next line is heard."""
    before = hf.keeper_status()["memory_bytes"]
    with Raw(home, "test") as raw:
        for _ in range(20):
            raw.shout(b"x" * (1 << 20))
        assert raw.hear()["error"]["code"] == "bad_request"
        assert hf.keeper_status()["memory_bytes"] < before + (8 << 20)
        raw.shout(b"\n")
        assert raw.ask("status")["ok"]["running"]


def test_a_client_that_never_reads_its_answers_is_dropped(
    hf: SyncClient, home: str, keeper: Callable[[], None]
) -> None:
    """Others are served all the while, and what was kept for it is bounded."""
    wordy = hf.spawn(["true", "x" * 100_000])
    wordy.wait(30)
    request = {"id": 1, "verb": "kill", "handle": wordy.handle, "signal": "TERM", "grace": 0}
    with Raw(home, "test") as raw:
        turn = 0
        with contextlib.suppress(ConnectionError):
            for turn in range(10_000):  # each answer has the whole command in it
                raw.say(request)
                if turn % 100 == 0:
                    keeper()
        assert turn < 5000
        status = hf.keeper_status()
    assert status["memory_bytes"] < 120 << 20
    wait_until(lambda: hf.keeper_status()["connections"] == 1)


@pytest.mark.parametrize("way", ["plain", "asyncio"])
def test_a_keeper_that_never_answers_is_a_clear_error(
    home: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """It accepts and says nothing, as one that fails again and again at its start would."""
    monkeypatch.setattr(link, "SILENCE", 0.1)
    monkeypatch.setattr(link, "LONGEST_SILENCE", 0.2)
    Home(home).ensure()

    async def enter() -> None:
        await connect(session="test").__aenter__()

    attempts: dict[str, Callable[[], object]] = {
        "plain": lambda: connect(session="test").__enter__(),
        "asyncio": lambda: asyncio.run(enter()),
    }
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(Home(home).socket_address())
        silent.listen()
        with pytest.raises(KeeperError, match="said nothing"):
            attempts[way]()
    os.unlink(Home(home).socket)


@pytest.mark.skipif(not ROOT, reason="needs somebody else to be")
def test_somebody_else_is_turned_away_at_the_socket(hf: SyncClient, home: str) -> None:
    """Even if the modes of home and socket were opened by mistake."""
    os.chmod(home, 0o755)
    os.chmod(Home(home).socket, 0o666)
    program = (
        "import os, socket; os.setgid(65534); os.setuid(65534); s = socket.socket(socket.AF_UNIX)\n"
        "s.connect('keeper.sock'); s.settimeout(30); print('connected', s.recv(1000))"
    )
    found = subprocess.run(
        [sys.executable, "-ISc", program], cwd=home, capture_output=True, text=True, timeout=60
    )
    os.chmod(home, 0o700)
    assert found.stdout == "connected b''\n", found.stderr
    assert "refused a connection of uid 65534" in Path(home, "keeper.log").read_text()


# -- names of sessions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "session",
    [
        "a/b/c",
        "../../etc",
        ".",
        "..",
        "...",
        ".hidden",
        "%2E",
        "%",
        "a b",
        "-rf",
        "caf\u00e9 \u4f1a\u8a71 \U0001f600",
        "\u20ac" * 26 + "ab",
        "x" * 80,
        "con:nul|<>?*\"'`$(touch x)",
    ],
)
def test_a_session_may_have_any_printable_name(home: str, tmp_path: Path, session: str) -> None:
    """It is one directory in the home, told apart from every other, and found again."""
    with connect(session=session) as hf:
        process = hf.spawn("echo hi")
        wait_until(lambda: list(hf.events()))
        assert process.read().text == "hi\n"
        assert hf.get(process.handle).record.session == session
    assert session in Home(home).session_names()
    assert all("/" not in name for name in os.listdir(Home(home).sessions))
    assert sorted(os.listdir(tmp_path)) == ["home"]
    assert [event.session for event in open_client(Home(home), session).events()] == [session]


def test_different_names_are_different_sessions(home: str) -> None:
    names = ["a", "A", "a ", "a/", "a%2F", ".a", "%2Ea", "a.", "\u00e9", "e\u0301", "\u0435", "e"]
    for name in names:
        with connect(session=name) as hf:
            hf.spawn("true").wait(30)
            assert len(hf.list()) == 1
    assert sorted(Home(home).session_names()) == sorted(names)


@pytest.mark.parametrize("session", ["", "x" * 81, "\u20ac" * 27, "a\nb", "a\0b", "\ud800", "\x1b"])
def test_a_session_name_that_cannot_be_is_refused(home: str, session: str) -> None:
    for attempt in (lambda: connect(session=session), lambda: open_client(Home(home), session)):
        with pytest.raises(BadRequest, match="session"):
            attempt()
    assert not os.path.exists(home)


def test_a_stray_file_among_the_sessions_does_not_keep_the_keeper_from_starting(
    home: str,
) -> None:
    Home(home).ensure()
    for name in (".DS_Store", "100%", "%zz", "%FF", "note.txt"):
        Path(home, "sessions", name).write_text("?")
    with connect(session="test") as hf:
        assert hf.spawn("exit 3").wait(30).code == 3
        person = open_client(Home(home), None)
        events = wait_until(lambda: list(person.events(acknowledged=True)))
        assert [event.session for event in events] == ["test"]
        person.close()


def test_a_home_deeper_than_a_socket_address_can_be_works(tmp_path: Path) -> None:
    from holdfast.testing import end_keeper

    deep = str(tmp_path / ("d" * 100) / ("e" * 100) / "home")
    try:
        for number in range(3):
            with connect(session="test", home=deep) as hf:
                assert hf.spawn(f"exit {number}").wait(30).code == number
    finally:
        end_keeper(deep)
