"""A Docker engine of the tests' own, which leaves the machine as it was.

DESIGN. An engine is a directory ``/tmp/hfe-KEY`` (short: socket addresses end at 108 bytes). Who
uses it holds a shared lock on the directory, which the kernel drops however its holder ends. So an
engine that nobody has locked is over, whether its run ended or was killed, and `sweep` removes it:
at the end of every run, and before an engine is made. Making and sweeping happen under a lock on
``/tmp``, one at a time on the machine. What an engine has outside of its directory is found by
name, not by notes that a killed run would not have written:

    processes    carry the directory in their environment; those in containers are in its cgroup
    cgroups      are below ``hfe-KEY`` in every hierarchy
    links        the bridge ``hfe-KEY``, those with an address in the network in ``daemon.json``
                 (written before the first link is made), and those attached to one of them
    mounts       are in a namespace of its processes, and go with them; so do networks in containers
    shim sockets are named in containerd's notes below the directory

The directory goes last: who is killed while removing leaves the rest to the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import io
import ipaddress
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from holdfast.linux.kernel import all_processes
from holdfast.testing import wait_until
from tests.proc_files import proc_file

PLACE = Path("/tmp")
PREFIX = "hfe-"
MARK = "HFE_DIRECTORY"
# Set aside for trials of networks (RFC 2544): nobody's own network is in it.
NETWORKS = ipaddress.IPv4Network("198.18.0.0/15")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
# One after the other, each engine would give out the machine's ports from the first on, and one
# that is restarted would find its ports taken by the next. So each sees a range of its own.
OUR_PORTS = [
    *("unshare", "--mount", "--propagation", "slave", "sh", "-c"),
    'mount --bind ports /proc/sys/net/ipv4/ip_local_port_range && exec "$@"',
    "sh",
]
LAUNCHERS = ("setsid", "unshare", "sh", "mount", "nsenter")
PROGRAMS = ("dockerd", "containerd", "runc", "ip", "busybox")


class EngineFailed(Exception):
    """The engine cannot be started on this machine."""


class Engine:
    """A private engine with the image ``hfbox:latest``: busybox, and a user ``tester`` (1000)."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = str(directory / "docker.sock")
        self.host = f"unix://{self.socket}"

    def __repr__(self) -> str:
        return f"<Engine {self.directory}>"

    # -- its life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it if it does not run, and wait until it answers."""
        if not self._accepts("containerd.sock"):
            self._launch(OUR_PORTS, "containerd", "--config", "containerd.toml")
            self._wait("containerd", lambda: self._accepts("containerd.sock"))
        if not self.answers():
            containerd = min(self._processes("containerd"))
            inside = ["nsenter", f"--mount=/proc/{containerd}/ns/mnt"]
            self._launch(inside, "dockerd", "--config-file", "daemon.json")
            self._wait("dockerd", self.answers)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the engine with a signal; its containers go on, and so does containerd.

        containerd is apart from it because an engine that is killed takes one of its own along,
        and the next engine waits in vain for that.
        """
        for pid in self._processes("dockerd"):
            _kill(pid, number)
        # What it forwards ports with ends just after it, and holds them until then.
        wait_until(lambda: not self._processes("dockerd", "docker-proxy"), what=f"{self} stopped")
        (self.directory / "dockerd.pid").unlink(missing_ok=True)

    def restart(self, number: int = signal.SIGTERM) -> None:
        self.stop(number)
        self.start()

    def answers(self) -> bool:
        try:
            return self.call("GET", "/_ping")[0] == 200
        except OSError:
            return False

    # -- what is in it -----------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """One request: the status, and the answer (from JSON, if it is that). Bytes are a tar."""
        kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
        data = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        head = (
            f"{method} {path} HTTP/1.0\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n"
        )
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(self.socket)
            connection.sendall(head.encode() + b"\r\n" + data)
            with connection.makefile("rb") as answer:
                status = answer.readline().split(b" ", 2)
                while answer.readline().strip():
                    pass
                text = answer.read()
        if len(status) < 2:
            raise ConnectionResetError("the engine hung up")
        try:
            return int(status[1]), json.loads(text)
        except ValueError:
            return int(status[1]), text.decode("utf-8", "replace")

    def containers(self, *labels: str) -> list[dict[str, Any]]:
        """All with these labels (``name`` or ``name=value``), also those that ended."""
        filters = quote(json.dumps({"label": labels}))
        status, found = self.call("GET", f"/containers/json?all=1&filters={filters}")
        assert status == 200, found
        return list(found)

    def remove(self, container: str) -> None:
        status, answer = self.call("DELETE", f"/containers/{container}?v=1&force=1")
        assert status in (204, 404), answer

    def add_image(self, name: str, *changes: str) -> None:
        """An image with busybox in it; changes are lines of a Dockerfile, ``'CMD ["ls"]'``."""
        repository, _, tag = name.partition(":")
        query = {"fromSrc": "-", "repo": repository, "tag": tag or "latest", "changes": changes}
        path = f"/images/create?{urlencode(query, doseq=True)}"
        status, answer = self.call("POST", path, root_filesystem())
        if status != 200 or self.call("GET", f"/images/{name}/json")[0] != 200:
            raise EngineFailed(f"the engine does not take the image {name}: {answer}")

    # -- how it is made ----------------------------------------------------------------------------

    def make(self) -> None:
        key = self.directory.name
        network = _free_network()
        containers, others = network.subnets(prefixlen_diff=1)
        settings = {
            "hosts": [self.host],
            "containerd": str(self.directory / "containerd.sock"),
            "data-root": str(self.directory / "data"),
            "exec-root": str(self.directory / "exec"),
            "pidfile": str(self.directory / "dockerd.pid"),
            "live-restore": True,
            "cgroup-parent": f"/{key}",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "bridge": key,
            "default-address-pools": [{"base": str(others), "size": 28}],
            # Ports are published by docker-proxy: the machine's firewall stays as it is.
            "iptables": False,
            "ip6tables": False,
            "ip-masq": False,
            "ip-forward": False,
        }
        (self.directory / "daemon.json").write_text(json.dumps(settings))
        first = 20000 + int(network[0]) // 256 % 64 * 150  # below those of outgoing connections
        (self.directory / "ports").write_text(f"{first}\t{first + 149}\n")
        (self.directory / "containerd.toml").write_text(
            "version = 2\n"
            f'root = "{self.directory}/containerd"\n'
            f'state = "{self.directory}/shims"\n'
            # The others listen or write at places that all containerds share.
            'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt",'
            ' "io.containerd.nri.v1.nri"]\n'
            f'[grpc]\naddress = "{self.directory}/containerd.sock"\n'
        )
        _ip("link", "add", key, "type", "bridge")
        _ip("addr", "add", f"{containers[1]}/{containers.prefixlen}", "dev", key)
        _ip("link", "set", key, "up")
        self.start()
        self.add_image("hfbox:latest", 'CMD ["sh"]')

    def _launch(self, start: list[str], name: str, option: str, file: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            # Not a child of ours: it outlives this worker, and nobody here has to wait for it.
            subprocess.run(
                ["setsid", "--fork", *start, name, option, str(self.directory / file)],
                env={"PATH": PATH, "HOME": str(self.directory), MARK: str(self.directory)},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )

    def _wait(self, name: str, up: Callable[[], bool]) -> None:
        # Twice: who is just becoming another program has no environment for a moment.
        seen = [True, True]

        def decided() -> bool:
            seen.append(bool(self._processes(name, *LAUNCHERS)))
            return up() or not any(seen[-2:])

        wait_until(decided, interval=0.02, what=f"{name} is up")
        if not up():
            log = (self.directory / f"{name}.log").read_text(errors="replace")
            raise EngineFailed(f"{name} does not start here: {log[-2000:].strip()}")

    def _accepts(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.directory / name))
            except OSError:
                return False
        return True

    def _processes(self, *names: str) -> list[int]:
        """Its own processes of these names (all without one), not those in containers."""
        mark = f"{MARK}={self.directory}".encode()
        return [
            process.pid
            for process in all_processes()
            if process.state not in "ZX"
            and (not names or process.name in names)
            and mark in _environment(process.pid)
        ]

    # -- how it goes -------------------------------------------------------------------------------

    def destroy(self) -> None:
        """Remove all of it, in whatever state it is."""
        # Killed while it starts a container it would leave links that nothing tells from another
        # engine's. To remove the container is to wait for the end of its start.
        try:
            for container in self.containers():
                self.call("DELETE", f"/containers/{container['Id']}?v=1&force=1")
        except OSError:
            pass  # it does not run
        wait_until(self._kill_all, interval=0.02, what=f"no processes of {self}")
        for link in self._links():
            _ip("link", "delete", link)
        wait_until(self._remove_cgroups, interval=0.02, what=f"no cgroups of {self}")
        for path in self._shim_sockets():
            Path(path).unlink(missing_ok=True)
        shutil.rmtree(self.directory)

    def _kill_all(self) -> bool:
        found = self._processes()
        for cgroup in self._cgroups():
            try:
                lines = (cgroup / "cgroup.procs").read_text().split()
            except OSError:
                continue
            found += [int(line) for line in lines if line != "0"]  # 0 would be ourselves
        for pid in found:
            _kill(pid, signal.SIGKILL)
        return not found

    def _remove_cgroups(self) -> bool:
        for cgroup in self._cgroups():
            try:
                cgroup.rmdir()
            except OSError:
                return False  # its last process is about to be gone
        return True

    def _links(self) -> list[str]:
        try:
            settings = json.loads((self.directory / "daemon.json").read_text())
        except (OSError, ValueError):
            return []  # it did not come as far as having links
        network = ipaddress.IPv4Network(settings["default-address-pools"][0]["base"]).supernet()
        links = json.loads(_ip("-json", "addr"))
        bridges = [
            link["ifname"]
            for link in links
            if link["ifname"] == self.directory.name
            or any(
                address["family"] == "inet" and ipaddress.IPv4Address(address["local"]) in network
                for address in link["addr_info"]
            )
        ]
        return [link["ifname"] for link in links if link.get("master") in bridges] + bridges

    def _cgroups(self) -> list[Path]:
        root = Path("/sys/fs/cgroup")
        name = self.directory.name
        tops = [root / name, *root.glob(f"*/{name}")]
        below = [Path(where) for top in tops for where, _, _ in os.walk(top)]
        return sorted(below, key=lambda path: len(path.parts), reverse=True)

    def _shim_sockets(self) -> Iterator[str]:
        for name in ("address", "bootstrap.json"):
            for note in self.directory.glob(f"shims/io.containerd.runtime.v2.task/*/*/{name}"):
                yield from re.findall(r"/run/containerd/s/[0-9a-f]{64}", note.read_text())


in_use: list[Engine] = []


@contextlib.contextmanager
def use(key: str) -> Iterator[Engine]:
    """The engine of this key, made if it is not there; a sweep after its last use removes it."""
    for program in PROGRAMS:
        if shutil.which(program, path=PATH) is None:
            raise EngineFailed(f"{program} is not installed; `.ci/setup tools` does that")
    if os.geteuid() != 0:
        raise EngineFailed("only root can start one")
    engine = Engine(PLACE / f"{PREFIX}{key}")
    with _lock(PLACE):
        _sweep()
        new = not engine.directory.exists()
        if new:
            engine.directory.mkdir(0o700)
        used = os.open(engine.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(used, fcntl.LOCK_SH)
            if new:
                engine.make()
        except BaseException:
            os.close(used)
            _sweep()
            raise
    in_use.append(engine)
    try:
        yield engine
    finally:
        in_use.remove(engine)
        os.close(used)


@contextlib.contextmanager
def use_or_skip(key: str) -> Iterator[Engine]:
    with contextlib.ExitStack() as stack:
        try:
            engine = stack.enter_context(use(key))
        except EngineFailed as error:
            if os.environ.get("CI") == "true":
                pytest.fail(f"CI must have a Docker engine: {error}")
            pytest.skip(f"no Docker engine for the tests: {error}")
        yield engine


def key_of(run: str) -> str:
    return hashlib.sha256(run.encode()).hexdigest()[:8]


def new_key() -> str:
    return secrets.token_hex(4)


def sweep() -> None:
    """Remove the engines that nobody uses any more."""
    if os.geteuid() == 0 and any(PLACE.glob(f"{PREFIX}*")):
        with _lock(PLACE):
            _sweep()


def _sweep() -> None:
    for directory in PLACE.glob(PREFIX + "[0-9a-f]" * 8):
        if directory.lstat().st_uid != 0:
            continue  # somebody else has a use for such names
        try:
            with _lock(directory, fcntl.LOCK_NB):
                Engine(directory).destroy()
        except BlockingIOError:
            continue


@contextlib.contextmanager
def _lock(directory: Path, flags: int = 0) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | flags)
        yield
    finally:
        os.close(fd)


def no_containers(home: str) -> None:
    """A test that leaves a container of its home behind has failed."""

    def left() -> list[tuple[Engine, str]]:
        return [
            (engine, container["Names"][0])
            for engine in in_use
            if engine.answers()
            for container in engine.containers(f"holdfast.home={home}")
        ]

    try:
        wait_until(lambda: not left())
    except AssertionError:
        found = left()
        for engine, name in found:
            engine.remove(name.removeprefix("/"))
        raise AssertionError(f"containers of the test survived it: {found}") from None


@functools.cache
def root_filesystem() -> bytes:
    """What an image has, as a tar."""
    busybox = shutil.which("busybox", path=PATH)
    assert busybox is not None
    if subprocess.run(["ldd", busybox], capture_output=True).returncode == 0:
        raise EngineFailed(f"{busybox} is not a static one; `.ci/setup tools` installs that")
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    users = "root:x:0:0:root:/root:/bin/sh\ntester:x:1000:1000:tester:/tmp:/bin/sh\n"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)):
            _add(tar, name, tarfile.DIRTYPE, mode)
        _add(tar, "bin/busybox", tarfile.REGTYPE, 0o755, Path(busybox).read_bytes())
        for applet in applets.stdout.split():
            if applet != "busybox":
                _add(tar, f"bin/{applet}", tarfile.SYMTYPE, 0o777, link="busybox")
        _add(tar, "etc/passwd", tarfile.REGTYPE, 0o644, users.encode())
        _add(tar, "etc/group", tarfile.REGTYPE, 0o644, b"root:x:0:\ntester:x:1000:\n")
    return out.getvalue()


def _add(
    tar: tarfile.TarFile, name: str, kind: bytes, mode: int, data: bytes = b"", link: str = ""
) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(data), link
    tar.addfile(entry, io.BytesIO(data))


def _free_network() -> ipaddress.IPv4Network:
    routes = json.loads(_ip("-json", "-4", "route", "show", "table", "all"))
    taken = [
        ipaddress.IPv4Network(route["dst"], strict=False)
        for route in routes
        if route["dst"] != "default"
    ]
    for network in NETWORKS.subnets(new_prefix=24):
        if not any(network.overlaps(other) for other in taken):
            return network
    raise EngineFailed(f"all networks in {NETWORKS} are taken")


def _ip(*arguments: str) -> str:
    program = shutil.which("ip", path=PATH) or "ip"
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise EngineFailed(f"`ip {' '.join(arguments)}`: {done.stderr.strip()}")
    return done.stdout


def _environment(pid: int) -> list[bytes]:
    return proc_file(pid, "environ").split(b"\0")


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
