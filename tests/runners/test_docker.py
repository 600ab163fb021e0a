"""Processes in Docker, from outside: the library and the command line over a real engine."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import hashlib
import http.server
import io
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    BadDirectory,
    BadRequest,
    NotExecutable,
    NotRunning,
    SyncClient,
    SyncProcess,
    Unavailable,
    Unsupported,
    WaitTimeout,
    connect,
)
from holdfast.core.home import new_handle
from holdfast.linux.container import Container, runner_path, stays_open
from holdfast.linux.kernel import stat
from holdfast.runners.docker.resume_state import ResumeState
from holdfast.testing import wait_until
from tests.docker_engine import Engine, root_filesystem

pytestmark = [pytest.mark.shared_keeper, pytest.mark.long]

BOX = "hfbox"
SERVE = "mkdir -p /tmp/www; echo served > /tmp/www/index.html; exec httpd -f -h /tmp/www -p "
PATIENCE = 60


def holdfast(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        capture_output=True,
        text=True,
        input=input,
        timeout=PATIENCE,
    )


def printed(*arguments: str) -> Any:
    done = holdfast(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ended(process: SyncProcess, code: int | None = 0) -> str:
    """What it wrote, once it has ended as it should."""
    end = process.wait(PATIENCE)
    text = process.read_at(0).text.replace("\r", "")
    assert end.code == code, (end, text, process.refresh().notes)
    return text


def fetch(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as answer:
        text: str = answer.read().decode()
        return text


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- what runs there -------------------------------------------------------------------------------


def test_a_command_runs_in_the_image_with_the_working_directory(
    hf: SyncClient, engine: Engine, here: Path
) -> None:
    """Output from the first byte, files both ways at the same path, and the true exit code."""
    (here / "given").write_text("from outside\n")
    process = hf.spawn("cat given; echo from inside > made; pwd; exit 7", docker=BOX)
    assert ended(process, 7) == f"from outside\n{here}\n"
    assert (here / "made").read_text() == "from inside\n"
    docker = process.record.docker
    assert docker is not None
    assert docker["image"] == BOX
    assert docker["container"] == f"holdfast-{process.handle}"
    assert engine.containers(f"holdfast.handle={process.handle}") == []


def test_the_environment_is_only_what_was_given_and_on_no_disk(
    hf: SyncClient, engine: Engine, home: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the caller's own gets in; what is given is in no file and no repr of ours."""
    monkeypatch.setenv("OF_THE_CALLER", "private-3141")
    secret = "secret-2718"
    process = hf.spawn("env; exec sleep 1000", docker=BOX, env={"GIVEN": secret})
    wait_until(lambda: "GIVEN" in process.read_at(0).text)
    text = process.read_at(0).text
    assert f"GIVEN={secret}" in text
    assert "OF_THE_CALLER" not in text
    assert "HOLDFAST" not in text
    shown = f"{process!r} {process.record!r} {process.record.public()} {hf!r}"
    assert secret not in shown
    for path in Path(home).rglob("*"):
        if path.is_file() and path.suffix != ".log":
            assert secret.encode() not in path.read_bytes(), path
    process.kill(signal="KILL")


@pytest.mark.parametrize("inside", [False, True])
def test_an_environment_may_be_long(
    hf: SyncClient, engine: Engine, here: Path, inside: bool
) -> None:
    """As long as that of a plain process: each variable up to 128 KiB, all together far more."""
    env = {f"LONG_{number}": str(number) * 120_000 for number in range(8)}
    command = "echo ${#LONG_0} ${#LONG_7}"
    if inside:
        process = hf.spawn("exec sleep 1000", docker=BOX).exec(command, env=env)
    else:
        process = hf.spawn(command, docker=BOX, env=env)
    assert ended(process) == "120000 120000\n"


def test_options_of_a_container(hf: SyncClient, engine: Engine, here: Path, tmp_path: Path) -> None:
    """User, mounts (one that cannot be written to), another directory to begin in, no network."""
    seen, closed = tmp_path / "seen", tmp_path / "closed"
    seen.mkdir()
    closed.mkdir()
    docker = {
        "image": BOX,
        "user": "tester",
        "mounts": [f"{seen}:/seen", {"source": closed, "target": "/closed", "read_only": True}],
        "workdir": "/tmp",
        "network": "none",
    }
    seen.chmod(0o777)
    command = (
        "exec 2>&1; id -un; pwd; touch /seen/it; touch /closed/it; tail -n +3 /proc/net/dev | wc -l"
    )
    text = ended(hf.spawn(command, docker=docker))
    assert text.splitlines()[:2] == ["tester", "/tmp"]
    assert "Read-only file system" in text
    assert text.splitlines()[-1] == "1"
    assert (seen / "it").exists()
    assert not (closed / "it").exists()


def test_an_empty_command_is_the_images_own(hf: SyncClient, engine: Engine, here: Path) -> None:
    engine.add_image("hfgreets:latest", 'CMD ["echo", "greetings"]')
    process = hf.spawn([], docker="hfgreets")
    assert ended(process) == "greetings\n"
    assert process.record.command == []
    assert "(hfgreets)" in holdfast("ps", "-a").stdout


def test_limits_are_the_engines(hf: SyncClient, engine: Engine, here: Path) -> None:
    """They are in the record, by whom they are kept, and running out of memory is the reason."""
    process = hf.spawn(
        "tail /dev/zero", docker=BOX, memory="16MiB", cpu=0.5, processes=20, files=64
    )
    assert process.record.limits["memory"] == {"limit": 16 << 20, "by": "docker"}
    assert process.record.limits["files"] == {"limit": 64, "by": "docker"}
    end = process.wait(PATIENCE)
    assert (end.status, end.reason) == ("failed", "out_of_memory")


def test_a_terminal_in_a_container(hf: SyncClient, engine: Engine, here: Path) -> None:
    """Keys, the screen, the size and a change of it: the container's terminal is ours."""
    process = hf.spawn(["sh"], docker=BOX, tty=True, size="90x20")
    wait_until(lambda: "#" in process.screen().text, what="a prompt")
    process.send("stty size", enter=True)
    wait_until(lambda: "20 90" in process.screen().text)
    process.resize(70, 15)

    def has_another_size() -> bool:  # which comes to the container after a moment
        process.send("stty size", enter=True)
        return "15 70" in process.screen().text

    wait_until(has_another_size, interval=0.2)
    process.send("sleep 1000", enter=True)
    wait_until(lambda: process.usage().processes == 3, what="init, sh and sleep")
    process.keys("C-c")
    assert process.wait_for("input", timeout=PATIENCE).ok  # a shell throws away what comes before
    process.send("exit 5", enter=True)
    assert process.wait(PATIENCE).code == 5


def test_its_stdin_can_be_written_to_and_ended(hf: SyncClient, engine: Engine, here: Path) -> None:
    process = hf.spawn(["sort"], docker=BOX, stdin=True)
    process.send("b\na\n", eof=True)
    assert ended(process) == "a\nb\n"


def test_stderr_can_be_apart(hf: SyncClient, engine: Engine, here: Path) -> None:
    process = hf.spawn("echo out; echo err >&2", docker=BOX, stderr="separate")
    process.wait(PATIENCE)
    assert process.read_at(0).text == "out\n"
    assert process.read_at(0, stream="stderr").text == "err\n"


def test_the_asynchronous_client_does_the_same(
    home: str, engine: Engine, here: Path, session: str
) -> None:
    """A start that waits for a container holds up nothing else in its event loop."""

    async def both() -> None:
        async with connect(session=session) as hf:
            first, second = await asyncio.gather(
                hf.spawn("exit 3", docker=BOX), hf.spawn("exit 4", docker=BOX)
            )
            assert [(await each.wait(PATIENCE)).code for each in (first, second)] == [3, 4]

    asyncio.run(both())


# -- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ports": ["3000"]}, "by Docker only"),
        ({"docker": BOX, "tmux": True}, "own terminal"),
        ({"docker": BOX, "sandbox": True}, "sandbox by itself"),
        ({"docker": BOX, "ports": ["http"]}, "no port"),
        ({"docker": BOX, "ports": ["70000"]}, "no port"),
        ({"docker": BOX, "ports": "3000"}, "a list"),
        ({"docker": BOX, "ports": [3.5]}, "a number or a text"),
        ({"docker": {"image": BOX, "network": "none"}, "ports": ["3000"]}, "network"),
        ({"docker": {"image": BOX, "imgae": 1}}, "imgae"),
        ({"docker": {"image": ""}}, "needs an image"),
        ({"docker": {}}, "needs an image"),
        ({"docker": 5}, "an image"),
        ({"docker": {"image": BOX, "pull": "yes"}}, "pull"),
        ({"docker": {"image": BOX, "workdir": "here"}}, "absolute"),
        ({"docker": {"image": BOX, "mounts": "a:b"}}, "a list"),
        ({"docker": {"image": BOX, "mounts": ["alone"]}}, "absolute"),
        ({"docker": {"image": BOX, "mounts": ["/nosuchdir:/there"]}}, "make it first"),
        ({"docker": {"image": BOX, "mounts": ["/tmp:/there:rx"]}}, "SRC:DST"),
        ({"docker": BOX, "env": {"A=B": "c"}}, "environment"),
        ({"docker": BOX, "ports": ["80"], "watch": "port=3000"}, "cannot be watched"),
        ({"docker": BOX, "tty": True, "stderr": "separate"}, "one output"),
    ],
)
def test_what_makes_no_sense_is_refused(
    hf: SyncClient, here: Path, options: dict[str, Any], words: str
) -> None:
    """In one line, before anything is made: no engine is asked."""
    with pytest.raises(BadRequest, match=words) as caught:
        hf.spawn("true", **options)
    assert "\n" not in str(caught.value)
    assert hf.list() == []


@pytest.mark.own_keeper
def test_the_home_is_covered_wherever_it_would_be_seen(
    hf: SyncClient, engine: Engine, here: Path, tmp_path: Path
) -> None:
    """In a mount of a directory above it or of all there is; beside it everything is there."""
    (tmp_path / "beside").touch()
    (tmp_path / "link").symlink_to("/")
    command = "cd {}; ls | tr '\\n' ' '; ls home | wc -l"
    for mounts in (["/:/all", f"{tmp_path}:/above"], [f"{tmp_path}/link:/all:ro"]):
        seen = [f"/all{tmp_path}", "/above"][: len(mounts)]
        commands = "; ".join(command.format(path) for path in seen)
        process = hf.spawn(commands, docker={"image": BOX, "mounts": mounts})
        assert ended(process) == "beside home link project 0\n" * len(mounts)
    assert os.listdir(hf.home.path)


def test_a_mount_that_is_covered_itself_covers_the_home(
    hf: SyncClient, engine: Engine, here: Path, tmp_path: Path
) -> None:
    """Nothing is made in what is mounted over it."""
    over = tmp_path / "over"
    over.mkdir()
    mounts = ["/:/all", f"{over}:/all{tmp_path}"]
    assert ended(hf.spawn("echo fine", docker={"image": BOX, "mounts": mounts})) == "fine\n"
    assert os.listdir(over) == []


@pytest.mark.own_keeper
def test_the_home_cannot_be_mounted(
    hf: SyncClient, engine: Engine, here: Path, tmp_path: Path
) -> None:
    """Neither as it is, nor a part of it, nor by another name, nor as the working directory."""
    hf.keeper_status()
    (tmp_path / "link").symlink_to(hf.home.path)
    for source in (hf.home.path, hf.home.processes, str(tmp_path / "link"), f"{here}/../home"):
        with pytest.raises(BadDirectory, match="own home"):
            hf.spawn("true", docker={"image": BOX, "mounts": [f"{source}:/there"]})
        with pytest.raises(BadDirectory, match="own home"):
            hf.spawn("true", docker=BOX, cwd=source)
    assert hf.list() == []
    assert engine.containers(f"holdfast.home={hf.home.path}") == []


def test_a_missing_image_is_said_at_once(hf: SyncClient, engine: Engine, here: Path) -> None:
    """With what to do, and nothing is left: no process, no container, nothing to be told of."""
    with pytest.raises(Unavailable, match="docker pull hfnone") as caught:
        hf.spawn("true", docker="hfnone")
    assert "pull" in str(caught.value)
    assert hf.list() == []
    assert list(hf.events()) == []
    assert [name for name in os.listdir(hf.home.processes) if name.startswith("proc-")] == []


def test_what_the_engine_refuses_is_an_error_of_ours(
    hf: SyncClient, engine: Engine, here: Path
) -> None:
    """Each with its cause, and nothing is left of it."""
    with pytest.raises(BadRequest, match="no user nobodyhere"):
        hf.spawn("true", docker={"image": BOX, "user": "nobodyhere"})
    with pytest.raises(BadRequest, match="no network hfnonet"):
        hf.spawn("true", docker={"image": BOX, "network": "hfnonet"})
    with pytest.raises(BadRequest, match="6MB"):
        hf.spawn("true", docker=BOX, memory="5MiB")
    with pytest.raises(NotExecutable, match="no-such-program") as caught:
        hf.spawn(["no-such-program"], docker=BOX)
    assert caught.value.missing
    with pytest.raises(NotExecutable) as caught:
        hf.spawn(["/etc/passwd"], docker=BOX)
    assert not caught.value.missing
    with pytest.raises(BadDirectory):
        hf.spawn("true", docker=BOX, cwd="/")
    with pytest.raises(BadDirectory):
        hf.spawn("true", docker=BOX, cwd=here / "missing")
    assert hf.list() == []
    assert engine.containers(f"holdfast.home={hf.home.path}") == []


def test_without_an_engine(
    hf: SyncClient, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it was looked for and what to do; an engine elsewhere cannot have our directories."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(Unavailable, match=r"none\.sock; start it"):
        hf.spawn("true", docker=BOX)
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2375")
    with pytest.raises(Unavailable, match="only unix://"):
        hf.spawn("true", docker=BOX)
    assert hf.list() == []


# -- ports -----------------------------------------------------------------------------------------


def test_a_port_is_published_at_the_same_number_or_another(
    hf: SyncClient, engine: Engine, here: Path, free_port: int
) -> None:
    """The first gets its own number, the second another; both are said everywhere, and answer."""
    name = str(free_port)
    first = hf.spawn(SERVE + name, docker=BOX, ports=[name])
    assert first.ports == {name: free_port}
    second = hf.spawn(SERVE + name, docker=BOX, ports=[free_port], label="second")
    other = second.ports[name]
    assert other != free_port
    for process in (first, second):
        assert process.wait_for(f"port={name}", timeout=PATIENCE).ok
        assert fetch(process.ports[name]) == "served\n"
    assert second.record.public()["ports"] == {name: other}
    assert hf.get(second.handle).ports == {name: other}
    told = printed("status", second.handle, "--json")
    assert told["ports"] == {name: other}
    assert told["docker"]["image"] == BOX
    assert told["usage"]["ports"] == [other]
    shown = holdfast("ps").stdout
    assert "PORTS" in shown
    assert f"{name}->{other}" in shown
    shown = holdfast("status", "second").stdout
    assert f"{name}->{other}" in shown
    assert f"image {BOX}" in shown


def test_a_port_is_open_when_the_container_serves_it(
    hf: SyncClient, engine: Engine, here: Path, free_port: int
) -> None:
    """The engine's proxy listens from the start on, and that is not believed."""
    gate = here / "gate"
    command = f"while [ ! -e gate ]; do sleep 0.02; done; {SERVE}{free_port}"
    process = hf.spawn(command, docker=BOX, ports=[free_port])
    socket.create_connection(("127.0.0.1", free_port), 5).close()  # somebody does listen
    waited = process.wait_for(f"port={free_port}", timeout=0.5)
    assert waited.timed_out
    wait_until(lambda: not stays_open(free_port))  # a busy proxy takes a moment to let go
    gate.touch()
    waited = process.wait_for(f"port={free_port}", timeout=PATIENCE)
    assert waited.ok
    assert waited.first is not None
    assert waited.first.detail["host_port"] == free_port
    held = stat(waited.first.detail["pid"])
    assert held is not None
    assert held.name in ("httpd", "busybox", "sh")
    assert fetch(free_port) == "served\n"
    assert stays_open(free_port)


def test_a_published_port_can_be_waited_for_by_either_number(
    hf: SyncClient, engine: Engine, here: Path, free_port: int
) -> None:
    with socket.create_server(("127.0.0.1", free_port)):
        process = hf.spawn(SERVE + str(free_port), docker=BOX, ports=[free_port])
        outer = process.ports[str(free_port)]
        assert outer != free_port
        waited = process.wait_for({"port": outer}, timeout=PATIENCE)
        assert waited.ok
        assert process.wait_for({"port": free_port}, timeout=PATIENCE).ok


def test_a_port_that_is_not_published_is_no_use_to_wait_for(
    hf: SyncClient, engine: Engine, here: Path, free_port: int
) -> None:
    process = hf.spawn("sleep 1000", docker=BOX)
    with pytest.raises(BadRequest, match="does not publish"):
        process.wait_for(f"port={free_port}", timeout=PATIENCE)
    with pytest.raises(BadRequest, match="does not publish"):
        process.watch(f"port={free_port}")


def test_who_serves_only_the_containers_loopback_is_told_so(
    hf: SyncClient, engine: Engine, here: Path, free_port: int
) -> None:
    process = hf.spawn(f"{SERVE}127.0.0.1:{free_port}", docker=BOX, ports=[free_port])
    waiting: list[str] = []

    def told() -> bool:
        waiting[:] = process.wait_for(f"port={free_port}", timeout=0.2).waiting
        return "0.0.0.0" in waiting[0]

    wait_until(told, what=f"the reason in {waiting}")


def test_a_container_that_cannot_be_looked_into_is_connected_to(
    hf: SyncClient, engine: Engine, here: Path, free_port: int
) -> None:
    """Where the engine's pids mean nothing to us, a connection that stays tells."""
    command = f"while [ ! -e gate ]; do sleep 0.02; done; {SERVE}{free_port}"
    process = hf.spawn(command, docker=BOX, ports=[free_port])
    path = Path(runner_path(hf.home.processes, process.handle))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": os.getpid()}))
    assert process.wait_for(f"port={free_port}", timeout=0.5).timed_out
    assert process.usage().processes is None
    (here / "gate").touch()
    assert process.wait_for(f"port={free_port}", timeout=PATIENCE).ok
    assert fetch(free_port) == "served\n"


def test_host_networking_reports_the_same_port(
    hf: SyncClient, engine: Engine, here: Path, free_port: int
) -> None:
    """What listens is in the container, and nobody else's."""
    docker = {"image": BOX, "network": "host"}
    process = hf.spawn(f"{SERVE}127.0.0.1:{free_port}", docker=docker, ports=[free_port])
    assert process.ports == {str(free_port): free_port}
    waited = process.wait_for(f"port={free_port}", timeout=PATIENCE)
    assert waited.ok
    container = Container.of_record(process.refresh())
    assert container is not None
    assert waited.first is not None
    assert fetch(free_port) == "served\n"
    assert process.usage().ports == [free_port]
    with socket.create_server(("127.0.0.1", 0)) as strange:
        taken = strange.getsockname()[1]
        with pytest.raises(BadRequest, match="is held by"):
            process.wait_for(f"port={taken}", timeout=PATIENCE)


def test_a_watch_tells_when_a_published_port_opens(
    hf: SyncClient, engine: Engine, here: Path, free_port: int
) -> None:
    command = f"while [ ! -e gate ]; do sleep 0.02; done; {SERVE}{free_port}"
    hf.spawn(command, docker=BOX, ports=[free_port], watch=f"port={free_port}")
    (here / "gate").touch()
    wait_until(lambda: [event for event in hf.events() if event.type == "watch"])
    (event,) = [event for event in hf.events() if event.type == "watch"]
    assert event.condition == f"port={free_port}"
    assert event.last
    assert fetch(free_port) == "served\n"


# -- pulling ---------------------------------------------------------------------------------------


class Registry:
    """A registry on loopback with one image, whose layer it holds back until it is let go."""

    def __init__(self, changes: dict[str, Any]) -> None:
        root = _unlike_others(root_filesystem())
        layer = gzip.compress(root, 1)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": changes,
            "rootfs": {"type": "layers", "diff_ids": [_digest(root)]},
        }
        self.let_go = threading.Event()
        self.secret = ""  # what who asks has to show
        self._layer, raw = _digest(layer), json.dumps(config).encode()
        kind = "application/vnd.docker.distribution.manifest.v2+json"
        manifest = {
            "schemaVersion": 2,
            "mediaType": kind,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(raw),
                "digest": _digest(raw),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(layer),
                    "digest": self._layer,
                }
            ],
        }
        said = json.dumps(manifest).encode()
        self._found = {
            "/v2/": (b"{}", "application/json"),
            "/v2/box/manifests/latest": (said, kind),
            f"/v2/box/manifests/{_digest(said)}": (said, kind),
            f"/v2/box/blobs/{_digest(raw)}": (raw, "application/octet-stream"),
            f"/v2/box/blobs/{self._layer}": (layer, "application/octet-stream"),
        }
        registry = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                data, kind = registry._found.get(self.path, (b"", ""))
                if registry.secret and registry.secret not in self.headers.get("Authorization", ""):
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="box"')
                    self.end_headers()
                    return
                self.send_response(200 if kind else 404)
                self.send_header("Content-Type", kind or "text/plain")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Docker-Content-Digest", _digest(data))
                self.end_headers()

            def do_GET(self) -> None:
                if self.path.endswith(registry._layer):
                    registry.let_go.wait(PATIENCE)
                self.do_HEAD()
                self.wfile.write(registry._found.get(self.path, (b"", ""))[0])

            def log_message(self, format: str, *arguments: object) -> None:
                return

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.image = f"127.0.0.1:{self.server.server_address[1]}/box"

    def lose_layer(self) -> None:
        del self._found[f"/v2/box/blobs/{self._layer}"]


def _unlike_others(root: bytes) -> bytes:
    """A layer that no engine has yet: it would not be fetched again."""
    made = io.BytesIO(root)
    with tarfile.open(fileobj=made, mode="a") as tar:
        tar.addfile(tarfile.TarInfo(f"etc/{secrets.token_hex(8)}"))
    return made.getvalue()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture
def registry(no_leaks: None, engine: Engine) -> Iterator[Registry]:
    made = Registry({"Cmd": ["sh"]})
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.let_go.set()
    made.server.shutdown()
    made.server.server_close()
    thread.join()
    engine.call("DELETE", f"/images/{made.image}?force=1")


def test_a_pull_goes_on_while_the_start_has_returned(
    hf: SyncClient, registry: Registry, here: Path, free_port: int
) -> None:
    """Its progress is in the log; a port that it gets only afterwards can be waited for already."""
    docker = {"image": registry.image, "pull": True}
    process = hf.spawn(SERVE + str(free_port), docker=docker, ports=[free_port])
    assert process.record.running
    assert process.ports == {}
    with pytest.raises(NotRunning, match="pulled"):
        process.exec("true")
    waited = process.wait_for(f"port={free_port}", timeout=0.3)
    assert waited.timed_out
    assert "has not begun" in waited.waiting[0]
    assert process.usage().processes is None
    threading.Timer(0.2, registry.let_go.set).start()
    assert process.wait_for(f"port={free_port}", timeout=PATIENCE).ok
    assert process.refresh().ports == {str(free_port): free_port}
    assert "Pull" in process.read_at(0).text
    assert fetch(free_port) == "served\n"


def test_a_pull_is_stopped_like_anything_else(
    hf: SyncClient, registry: Registry, here: Path
) -> None:
    process = hf.spawn("true", docker={"image": registry.image, "pull": True})
    assert process.kill().record.status == "killed"


@pytest.mark.parametrize("kept", ["in the settings", "by a helper"])
def test_a_pull_uses_what_docker_login_left(
    hf: SyncClient,
    registry: Registry,
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kept: str,
) -> None:
    """As Docker's own command would; and nobody else gets to see it."""
    registry.secret = base64.b64encode(b"ada:s3cret-word").decode()
    registry.let_go.set()
    docker = {"image": registry.image, "pull": True}
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with contextlib.suppress(Unavailable):  # or it is an end, if it took a while
        assert hf.spawn("true", docker=docker).wait(PATIENCE).status == "failed"
    name = registry.image.split("/")[0]
    if kept == "by a helper":
        settings: dict[str, Any] = {"credHelpers": {name: "test"}}
        helper = tmp_path / "docker-credential-test"
        answer = json.dumps({"Username": "ada", "Secret": "s3cret-word"})
        helper.write_text(f"#!/bin/sh\nread asked; [ \"$asked\" = {name} ] && echo '{answer}'\n")
        helper.chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    else:
        settings = {"auths": {name: {"auth": registry.secret}}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    process = hf.spawn("echo here", docker=docker)
    assert process.wait(PATIENCE).ok, process.refresh().notes
    secrets_of_ours = (b"s3cret-word", registry.secret.encode())
    for folder, _, names in os.walk(hf.home.path):
        for file in (Path(folder) / name for name in names):
            if file.is_file():
                assert not any(word in file.read_bytes() for word in secrets_of_ours), file


def test_a_pull_that_fails_is_an_end_with_the_cause(
    hf: SyncClient, registry: Registry, here: Path
) -> None:
    """In its notes, for it has been running by then; a start that fails at once raises it."""
    process = hf.spawn("true", docker={"image": registry.image, "pull": True})
    registry.lose_layer()
    registry.let_go.set()
    end = process.wait(PATIENCE)
    assert end.status == "failed"
    assert any("cannot be pulled" in note for note in process.refresh().notes)
    assert "cannot be pulled" in process.tail().text
    with pytest.raises(Unavailable, match="docker pull"):
        hf.spawn("true", docker=registry.image)


def test_nothing_is_pulled_that_is_there(hf: SyncClient, engine: Engine, here: Path) -> None:
    assert ended(hf.spawn("echo here", docker={"image": BOX, "pull": True})) == "here\n"


# -- what is known of it ---------------------------------------------------------------------------


def test_usage_is_of_what_runs_in_the_container(hf: SyncClient, engine: Engine, here: Path) -> None:
    """Its processes are counted, not the program of ours that looks after them."""
    process = hf.spawn("sleep 1000 & sleep 1000 & while :; do :; done", docker=BOX)
    wait_until(lambda: process.usage().processes == 4, what="init, sh, and two that sleep")
    used = process.usage(interval=0.3)
    assert used.cpu_percent is not None
    assert used.cpu_percent > 10
    assert used.memory_bytes is not None
    assert used.memory_bytes < 8 << 20  # no Python is among them
    (told,) = printed("stats", process.handle, "--json")
    assert told["processes"] == 4


@pytest.mark.parametrize("tty", [False, True])
def test_who_waits_for_input_in_a_container_is_seen(
    hf: SyncClient, engine: Engine, here: Path, tty: bool
) -> None:
    """By a look, by a wait, and by an event while nobody looks."""
    command = "printf 'Name? '; read name; echo hello $name; sleep 1000"
    process = hf.spawn(command, docker=BOX, tty=tty, stdin=True)
    waited = process.wait_for("input", timeout=PATIENCE)
    assert waited.ok
    assert waited.first is not None
    assert waited.first.detail == {"prompt": "Name?", "kind": "line"}
    assert process.refresh().waiting_for_input == {"prompt": "Name?", "kind": "line"}
    wait_until(lambda: [event for event in hf.events() if event.type == "input"])
    process.send("you", enter=True)
    wait_until(lambda: "hello you" in process.read_at(0).text)
    wait_until(lambda: process.refresh().waiting_for_input is False)


@pytest.mark.parametrize("stdin", ["file", "fifo", "null"])
def test_only_a_terminal_is_opened_as_one(
    hf: SyncClient, engine: Engine, here: Path, tmp_path: Path, stdin: str
) -> None:
    """What a command has as its stdin is not to be believed: its name may lead to files of ours."""
    precious = tmp_path / "precious"
    precious.write_text("ours")
    there = "/dev/there"
    made = {
        "file": f"echo > {there}; exec 0< {there}; rm {there}",
        "fifo": f"mkfifo {there}; exec 0<> {there}; rm {there}",
        "null": "exec 0<> /dev/null",
    }
    process = hf.spawn("exec sleep 1000", docker=BOX)
    command = f"{made[stdin]}; ln -s {precious} '{there} (deleted)'; echo ready; sleep 1000"
    trick = process.exec(command, tty=True)
    wait_until(lambda: "ready" in trick.read_at(0).text)
    container = Container.of_record(trick.refresh())
    assert container is not None
    assert container.pid is not None
    assert container.open_terminal() is None
    assert container.see(True).answer == "unknown"
    trick.send("words", enter=True)
    wait_until(lambda: "words" in trick.read_at(0).text, what="its terminal's echo")
    assert precious.read_text() == "ours"


def test_the_terminal_of_a_container_is_found(hf: SyncClient, engine: Engine, here: Path) -> None:
    process = hf.spawn("exec cat", docker=BOX, tty=True)
    for each in (process, process.exec("exec cat", tty=True)):
        assert each.wait_for("input", timeout=PATIENCE).ok
        container = Container.of_record(each.refresh())
        assert container is not None
        terminal = container.open_terminal()
        assert terminal is not None
        assert os.isatty(terminal)
        os.close(terminal)


# -- exec ------------------------------------------------------------------------------------------


def test_exec_runs_another_process_in_the_container(
    hf: SyncClient, engine: Engine, here: Path
) -> None:
    """With a handle, a log and an exit code of its own; what is there, it sees."""
    process = hf.spawn("echo inside > /tmp/note; echo ready; exec sleep 1000", docker=BOX)
    wait_until(lambda: "ready" in process.read_at(0).text)
    other = process.exec("cat /tmp/note; pwd; echo $GIVEN; exit 6", env={"GIVEN": "this"})
    assert ended(other, 6) == f"inside\n{here}\nthis\n"
    docker = other.record.docker
    assert docker is not None
    assert docker["container"] == f"holdfast-{process.handle}"
    assert ended(process.exec("pwd; id -un", cwd="/tmp", user="tester")) == "/tmp\ntester\n"
    elsewhere = hf.spawn("exec sleep 1000", docker={"image": BOX, "workdir": "/etc"})
    assert ended(elsewhere.exec("pwd")) == "/etc\n"
    piped = process.exec(["sort"], stdin=True)
    piped.send("2\n1\n", eof=True)
    assert ended(piped) == "1\n2\n"
    assert process.refresh().running


def test_what_exec_serves_is_published_by_its_container(
    hf: SyncClient, engine: Engine, here: Path, free_port: int
) -> None:
    process = hf.spawn("exec sleep 1000", docker=BOX, ports=[free_port])
    server = process.exec(SERVE + str(free_port), watch=f"port={free_port}")
    assert server.wait_for(f"port={free_port}", timeout=PATIENCE).ok
    assert process.wait_for(f"port={free_port}", timeout=PATIENCE).ok
    assert server.usage().ports == [free_port]
    wait_until(lambda: [event for event in hf.events() if event.type == "watch"])
    with pytest.raises(BadRequest, match="does not publish"):
        server.wait_for("port=1", timeout=PATIENCE)


def test_exec_in_a_terminal(hf: SyncClient, engine: Engine, here: Path) -> None:
    process = hf.spawn("exec sleep 1000", docker=BOX)
    shell = process.exec(["sh"], tty=True, size="80x10")
    wait_until(lambda: "#" in shell.screen().text)
    shell.send("stty size; exit 4", enter=True)
    assert "10 80" in ended(shell, 4)


def test_exec_can_be_stopped_and_ends_with_its_container(
    hf: SyncClient, engine: Engine, here: Path
) -> None:
    process = hf.spawn("exec sleep 1000", docker=BOX)
    first = process.exec("exec sleep 1000")
    assert first.kill().record.status == "killed"
    assert process.refresh().running
    second = process.exec("exec sleep 1000")
    process.kill()
    assert second.wait(PATIENCE).status in ("failed", "killed")


def test_where_nothing_can_be_run_inside(hf: SyncClient, engine: Engine, here: Path) -> None:
    """What is not in Docker, has ended, or asks for what is the container's to have."""
    plain = hf.spawn("sleep 1000")
    with pytest.raises(Unsupported, match="not in Docker"):
        plain.exec("true")
    process = hf.spawn("exec sleep 1000", docker=BOX)
    for options in ({"memory": "1GiB"}, {"ports": ["3000"]}, {"tmux": True}, {"docker": BOX}):
        with pytest.raises(BadRequest, match="the container's"):
            process.exec("true", **options)
    with pytest.raises(NotExecutable, match="no-such-program"):
        process.exec(["no-such-program"])
    process.kill()
    with pytest.raises(NotRunning, match="its container with it"):
        process.exec("true")


# -- when something is missing ---------------------------------------------------------------------


@pytest.fixture
def small_disk(no_leaks: None, tmp_path: Path, engine: Engine) -> Iterator[Path]:
    """A disk of its own for the home, with the file that fills it; before the home is made."""
    path = tmp_path / "home"
    path.mkdir(0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=4m", "tmpfs", path], check=True)
    yield path / "filler"
    subprocess.run(["umount", "--lazy", path], check=True)


def fill(filler: Path) -> None:
    with filler.open("wb", 0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))


def container_ended(engine: Engine, process: SyncProcess) -> bool:
    _, found = engine.call("GET", f"/containers/holdfast-{process.handle}/json")
    return not found["State"]["Running"]


@pytest.mark.weight(5)
@pytest.mark.own_keeper
@pytest.mark.parametrize("by", ["itself", "kill"])
def test_an_end_on_a_full_disk_is_told_when_there_is_room(
    small_disk: Path, hf: SyncClient, engine: Engine, here: Path, by: str
) -> None:
    """Signals reach it meanwhile; then it is told as it was, and nothing is left."""
    command = "trap 'exit 8' TERM; echo begun; until [ -e gate ]; do sleep 0.01; done; exit 7"
    process = hf.spawn(command, docker=BOX)
    wait_until(lambda: process.read_at(0).text == "begun\n")
    runner = process.refresh().pid
    fill(small_disk)
    if by == "itself":
        (here / "gate").touch()
    else:
        process.signal("TERM")
    wait_until(lambda: container_ended(engine, process))
    with pytest.raises(WaitTimeout):
        process.wait(4)
    assert process.refresh().pid == runner
    small_disk.unlink()
    assert ended(process, 7 if by == "itself" else 8) == "begun\n"
    assert engine.containers(f"holdfast.handle={process.handle}") == []


@pytest.mark.own_keeper
def test_a_start_waits_for_room_on_a_full_disk(
    small_disk: Path, hf: SyncClient, engine: Engine, here: Path
) -> None:
    """A runner has a file to make before the container: that there is no room is no end of it."""
    hf.spawn("true").wait(PATIENCE)
    fill(small_disk)
    with small_disk.open("r+b") as file:  # enough for a record and too little for a place
        file.truncate(small_disk.stat().st_size - (64 << 10))
    begun: list[SyncProcess] = []
    handle = new_handle()
    thread = threading.Thread(
        target=lambda: begun.append(hf.spawn("echo words; exit 7", docker=BOX, handle=handle))
    )
    thread.start()
    wait_until(lambda: os.path.exists(f"{hf.home.processes}/{handle}.place.new"))
    thread.join(3)
    assert thread.is_alive()
    small_disk.unlink()
    thread.join(PATIENCE)
    assert ended(begun[0], 7) == "words\n"


def stop_by_the_next_runner(directory: Path, handle: str, socket: str) -> dict[str, Any]:
    """What the next runner of a process says of its end, told to kill it, when the last is dead."""
    told = {"handle": handle, "directory": str(directory), "again": True}
    container: dict[str, Any] = {"container": f"holdfast-{handle}", "network": None, "ports": []}
    streams = {"tty": False, "stdin": False, "separate": False, "skip": 0}
    request = {"socket": socket, **container, **streams}
    ResumeState.make(str(directory / f"{handle}.place"), request)
    # With an engine that is away it is patient for a minute.
    impatient = (
        "from holdfast.runners.docker import main, signal_forwarder; "
        "signal_forwarder._ENGINE_PATIENCE = 0.5; "
    )
    subprocess.run(
        [sys.executable, "-c", impatient + "raise SystemExit(main.main())"],
        env=os.environ | {"HOLDFAST_RUNNER": json.dumps(told), "HOLDFAST_STOP": "9"},
        timeout=PATIENCE,
    )
    end: dict[str, Any] = json.loads((directory / f"{handle}.end").read_text())
    return end


def test_a_forced_stop_ends_although_no_engine_comes_back(tmp_path: Path) -> None:
    """The runner that is told to kill says which container may still run, instead of trying on."""
    handle = new_handle()
    end = stop_by_the_next_runner(tmp_path, handle, str(tmp_path / "none.sock"))
    assert (end["code"], end["signal"]) == (None, None)
    assert f"holdfast-{handle} was not stopped" in end["error"]


def test_what_is_to_be_killed_is_not_started(engine: Engine, here: Path, tmp_path: Path) -> None:
    """A runner that was killed between making the container and its start left one like this."""
    handle = new_handle()
    mount = {"Type": "bind", "Source": str(here), "Target": str(here)}
    body = {
        "Image": BOX,
        "Cmd": ["sh", "-c", f"echo ran > {here}/ran"],
        "HostConfig": {"Mounts": [mount]},
    }
    assert engine.call("POST", f"/containers/create?name=holdfast-{handle}", body)[0] == 201
    end = stop_by_the_next_runner(tmp_path, handle, engine.socket)
    assert (end["signal"], end["error"]) == (9, None)
    assert engine.call("GET", f"/containers/holdfast-{handle}/json")[0] == 404
    assert os.listdir(here) == []


@pytest.mark.own_keeper
def test_what_a_terminal_had_taken_when_the_keeper_died_is_not_lost(
    hf: SyncClient, engine: Engine, here: Path
) -> None:
    """Not even if the container ends before the next keeper comes: its runner waits for that."""
    command = "echo begun; until [ -e first ]; do sleep 0.01; done; echo words; touch written; "
    command += "until [ -e second ]; do sleep 0.01; done; exit 7"
    process = hf.spawn(command, docker=BOX, tty=True)
    wait_until(lambda: "begun" in process.read_at(0).text)
    halves = [hf.keeper_status()[half] for half in ("guard", "worker")]
    for pid in halves:
        os.kill(pid, signal.SIGSTOP)
    (here / "first").touch()
    wait_until((here / "written").exists)
    notes = Path(f"{hf.home.processes}/{process.handle}.place")
    wait_until(lambda: int.from_bytes(notes.read_bytes()[:8], "little") > len("begun\r\n"))
    for pid in halves:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all((found := stat(pid)) is None or found.state == "Z" for pid in halves))
    (here / "second").touch()
    wait_until(lambda: container_ended(engine, process))
    hf.keeper_status()
    assert ended(process, 7) == "begun\nwords\n"


# -- the command line ------------------------------------------------------------------------------


def test_run_and_exec_on_the_command_line(
    home: str, engine: Engine, here: Path, free_port: int
) -> None:
    done = holdfast("run", "--docker", BOX, "-e", "A=1", "--", "echo $A; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, "1\n", "")
    done = holdfast("run", "--docker", BOX, "--", "no-such-program", "x")
    assert done.returncode == 127
    assert "no-such-program" in done.stderr
    done = holdfast("run", "--docker", "hfnone", "--", "true")
    assert done.returncode == 125
    assert "docker pull hfnone" in done.stderr
    options = ("--publish", str(free_port), "--user", "tester", "--mount", f"{here}:/shown:ro")
    handle = holdfast(
        *("run", "-d", "--docker", BOX, *options, "--label", "web", "--", SERVE + str(free_port))
    ).stdout.strip()
    done = holdfast("wait", "web", "--for", f"port={free_port}", "--timeout", "60")
    assert done.returncode == 0, done.stderr
    assert fetch(free_port) == "served\n"
    done = holdfast("exec", "web", "--", "id -un; ls /shown; exit 9")
    assert (done.returncode, done.stdout) == (9, "tester\n")
    done = holdfast("exec", "--user", "root", "web", "id", "-un")
    assert (done.returncode, done.stdout) == (0, "root\n")
    done = holdfast("exec", "web", "--stdin", "--", "cat", input="passed on")
    assert (done.returncode, done.stdout) == (0, "passed on")
    other = holdfast("exec", "-d", handle, "--", "exec sleep 1000").stdout.strip()
    assert printed("status", other, "--json")["docker"]["container"] == f"holdfast-{handle}"
    assert holdfast("kill", "--all").returncode == 0
    done = holdfast("exec", "web", "--", "true")
    assert done.returncode == 125
    assert "its container with it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--publish", "3000", "--", "true"), "--publish is for a container"),
        (("--pull", "--", "true"), "--pull is for a container"),
        (("--docker", BOX, "--sandbox", "--", "true"), "cannot be combined"),
        (("--docker", BOX, "--tmux", "--", "true"), "cannot be combined"),
        (("--docker", BOX, "--publish", "web", "--", "true"), "no port"),
        (("--docker", BOX, "--mount", "web", "--", "true"), "absolute path"),
        ((), "COMMAND"),
    ],
)
def test_combinations_that_make_no_sense(
    home: str, here: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = holdfast("run", *arguments)
    assert done.returncode == 125
    assert re.fullmatch(f"holdfast: .*{words}.*\n", done.stderr)


# -- nothing is left -------------------------------------------------------------------------------


def test_containers_go_with_their_processes(
    home: str, engine: Engine, here: Path, session: str
) -> None:
    """Killed, removed, or of a session that closed: the engine has none of them any more."""

    def left() -> list[dict[str, Any]]:
        return engine.containers(f"holdfast.home={home}")

    with connect(session=session) as hf:
        killed, removed, stubborn, closed = [
            hf.spawn(command, docker=BOX, grace=0.5)
            for command in (
                *("exec sleep 1000", "exec sleep 1000"),
                *("trap '' TERM; while :; do sleep 1; done", "exec sleep 1000"),
            )
        ]
        assert len(left()) == 4
        receipt = killed.kill()
        assert (receipt.record.status, receipt.survivors) == ("killed", [])
        removed.remove()
        stubborn.kill()
        assert [each["Names"] for each in left()] == [[f"/holdfast-{closed.handle}"]]
    assert left() == []


def test_doctor_says_how_docker_is(
    hf: SyncClient, engine: Engine, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which engine, what is left over there with the way to remove it, or what to do."""

    def lines() -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(holdfast("doctor", "--json", "docker").stdout)
        return found

    running = hf.spawn("exec sleep 1000", docker=BOX)
    (line, *_) = lines()
    assert line["state"] == "ok"
    assert engine.socket in line["text"]
    gone = str(tmp_path / "gone")
    for name, home in (("hfleft", hf.home.path), ("hfalone", gone), ("hfother", str(tmp_path))):
        labels = {"holdfast": "1", "holdfast.handle": f"proc-{'0' * 16}", "holdfast.home": home}
        body = {"Image": BOX, "Labels": labels}
        assert engine.call("POST", f"/containers/create?name={name}", body)[0] == 201
    told = [each["text"] for each in lines() if each["state"] == "note"]
    for name in ("hfleft", "hfalone"):
        assert any(f"docker -H unix://{engine.socket} rm -f {name}" in text for text in told)
    for name in ("hfother", running.handle):
        assert not any(name in text for text in told), "somebody keeps it, or may"
    for name in ("hfleft", "hfalone", "hfother"):
        engine.remove(name)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    (line,) = lines()
    assert line["state"] == "note"
    assert "start it" in line["text"]
    monkeypatch.setenv("DOCKER_HOST", engine.host)
