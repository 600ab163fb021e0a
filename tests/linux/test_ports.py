"""Who listens on which port, and who belongs to whom: real servers on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import SyncClient, SyncProcess
from holdfast.linux import ports as _ports
from holdfast.linux.kernel import start_time, stat
from holdfast.linux.ports import (
    Listener,
    Snapshot,
    addresses,
    family,
    is_local,
    is_open,
    listeners,
    open_ports,
    owner,
)
from holdfast.linux.site import site_of
from holdfast.testing import wait_until

pytestmark = pytest.mark.shared_keeper

Child = Callable[..., list[str]]
Ready = Callable[[SyncProcess], SyncProcess]

NOBODY = 65534


class Server:
    """One of ``serves_tcp``'s ways, its port, and who has it."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words, "it did not say its port"
        self.port, self.holder = int(words[1]), int(words[2])
        assert self.process.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        assert self.process.stdout is not None
        os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


Serve = Callable[..., Server]


@pytest.fixture
def serve(no_leaks: None, child: Child) -> Iterator[Serve]:
    started: list[Server] = []

    def begin(way: str, host: str = "127.0.0.1", port: int = 0) -> Server:
        started.append(Server(child("serves_tcp", way, host, str(port))))
        return started[-1]

    yield begin
    for server in started:
        server.end()


@pytest.fixture(params=["netlink", "proc"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to ask the kernel, which must tell the same."""
    if request.param == "proc":
        monkeypatch.setattr(_ports, "_from_netlink", _ports._from_proc)
    else:
        monkeypatch.setattr(_ports, "_from_proc", None)  # a failure must not go unnoticed
    return str(request.param)


# -- addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "bound", "reached", "not_reached"),
    [
        ("itself", "127.0.0.1", ["127.0.0.1", "localhost", "0.0.0.0"], ["::1", "127.0.0.2"]),
        ("itself", "127.0.0.2", ["127.0.0.2"], ["127.0.0.1", "localhost"]),
        ("itself", "0.0.0.0", ["127.0.0.1", "127.0.0.2", "localhost"], ["::1"]),
        ("itself", "::1", ["::1", "[::1]", "::", "localhost"], ["127.0.0.1"]),
        ("with_ipv4", "::", ["::1", "127.0.0.1", "127.0.0.2", "localhost"], []),
        ("with_ipv4", "::ffff:127.0.0.1", ["127.0.0.1", "::ffff:127.0.0.1"], ["::1"]),
        ("with_ipv4", "::ffff:0.0.0.0", ["127.0.0.1", "127.0.0.2"], ["::1"]),
    ],
)
def test_a_server_is_found_at_the_addresses_it_answers_at(
    serve: Serve, source: str, way: str, bound: str, reached: list[str], not_reached: list[str]
) -> None:
    """Wildcards and IPv4 in IPv6 included, and just where a connection says so too."""
    server = serve(way, bound)
    for host in reached:
        found = owner(server.port, host)
        assert found is not None, host
        assert found.pid == server.pid
        assert owner(server.port, addresses(host)) == found
        # Not every machine's table of hosts has both addresses of this one.
        assert is_open(host, server.port) or host == "localhost"
    for host in not_reached:
        assert owner(server.port, host) is None, host
        assert not is_open(host, server.port)


def test_a_wildcard_for_ipv6_alone_does_not_answer_ipv4(serve: Serve) -> None:
    """Only sock_diag tells the two kinds of ``::`` apart."""
    server = serve("without_ipv4", "::")
    assert owner(server.port, "127.0.0.1") is None
    assert not is_open("127.0.0.1", server.port)
    found = owner(server.port, "::1")
    assert found is not None
    assert (found.pid, found.host, found.only_v6) == (server.pid, "::", True)


def test_of_two_servers_at_a_port_each_is_found_at_its_own_address(serve: Serve) -> None:
    """``::`` for IPv6 alone and 0.0.0.0 may both be taken, by different processes."""
    four = serve("itself", "0.0.0.0")
    six = serve("without_ipv4", "::", four.port)
    for host, server in (("127.0.0.1", four), ("::1", six)):
        found = owner(four.port, host)
        assert found is not None
        assert found.pid == server.pid


def test_an_address_comes_before_a_wildcard(serve: Serve) -> None:
    """As the kernel chooses, whoever of them is ours."""
    wide = serve("sharing", "0.0.0.0")
    near = serve("sharing", "127.0.0.1", wide.port)
    for ours in ((), (wide.pid,)):
        found = owner(wide.port, "127.0.0.1", ours)
        assert found is not None
        assert found.pid == near.pid
    found = owner(wide.port, "127.0.0.2")
    assert found is not None
    assert found.pid == wide.pid


def test_this_machine_is_told_from_others() -> None:
    """By its addresses; nothing is sent, and 192.0.2.1 is nobody's."""
    for host in ("localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]", "0.0.0.0", "::"):
        assert is_local(host), host
    for host in ("192.0.2.1", "2001:db8::1", "no-such-name.invalid"):
        assert not is_local(host), host
    assert addresses("no-such-name.invalid") == []


def test_a_connection_to_itself_is_no_server() -> None:
    """TCP lets a socket connect to the port that it is bound to, with nobody listening there."""
    with socket.socket() as alone:
        alone.bind(("127.0.0.1", 0))
        port = alone.getsockname()[1]
        assert not is_open("127.0.0.1", port)
        alone.connect(("127.0.0.1", port))
        assert owner(port) is None


@pytest.mark.parametrize("port", [0, 70_000, -1])
def test_a_port_that_cannot_be_is_not_open(port: int) -> None:
    """Whatever was asked for, the answer is no, not an error."""
    assert not is_open("127.0.0.1", port, 0.2)


# -- owners ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["itself", "child", "grandchild", "multipath", "daemon"])
def test_the_process_that_has_the_socket_is_named(serve: Serve, way: str) -> None:
    """Who opened it is forgotten; who has it now is what counts, also after fork."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).close()
    except OSError:
        if way == "multipath":
            pytest.skip("this kernel has no MPTCP")
    server = serve(way)
    try:
        found = owner(server.port)
        assert found is not None
        assert found.pid == server.holder
        assert found.name.startswith("python")
        assert found.uid == os.getuid()
        assert open_ports([server.holder]) == [server.port]
        assert (open_ports([server.pid]) == []) == (server.pid != server.holder)
    finally:
        if way == "daemon":
            os.kill(server.holder, signal.SIGKILL)


def test_of_many_who_have_a_socket_the_asked_for_is_named(serve: Serve) -> None:
    """Workers inherit their server's socket; by itself the first of them is named."""
    server = serve("workers")
    others = family(server.pid, "none") - {server.pid}
    assert len(others) == 2
    found = owner(server.port)
    assert found is not None
    assert found.pid == min(server.pid, *others)
    for pid in others:
        found = owner(server.port, ours=[pid])
        assert found is not None
        assert found.pid == pid
        assert open_ports([pid]) == [server.port]


def test_of_servers_that_share_a_port_ours_is_named(serve: Serve, source: str) -> None:
    """With SO_REUSEPORT there is a socket of each, and all of them answer."""
    servers = [serve("sharing")]
    servers += [serve("sharing", port=servers[0].port) for _ in range(2)]
    look = Snapshot(servers[0].port)
    assert {found.pid for found in look.listeners()} == {server.pid for server in servers}
    assert len(look.serving(servers[0].port)) == 3
    for server in servers:
        found = look.owner(server.port, ours=[server.pid])
        assert found is not None
        assert found.pid == server.pid


def test_a_listener_says_who_it_is(serve: Serve) -> None:
    """To a person in words, to a program as JSON."""
    server = serve("itself")
    found = owner(server.port)
    assert found is not None
    assert str(found) == f"{found.name} (pid {server.pid})"
    assert found.public() == {
        "host": "127.0.0.1",
        "port": server.port,
        "family": "ipv4",
        "pid": server.pid,
        "name": found.name,
    }


def test_whose_a_socket_is_that_we_may_not_look_at_is_unknown(serve: Serve) -> None:
    """Another user's process has no pid for us, but it is there, and its user is known."""
    if os.getuid() != 0:
        pytest.skip("only root can become somebody else")
    server = serve("itself")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            found = owner(server.port)
            os.write(write, f"{found} {found and found.pid}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    told = os.read(read, 1000).decode()
    os.close(read)
    assert told == "a process of user 0 that cannot be looked at None"


def test_a_socket_that_does_not_listen_is_no_listener() -> None:
    """Bound is not open, nor is a connection's end."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert owner(port) is None
        assert listeners(port) == []
        bound.listen()
        assert [found.pid for found in listeners(port)] == [os.getpid()]
        with socket.create_connection(("127.0.0.1", port)) as guest:
            assert owner(guest.getsockname()[1]) is None
    assert owner(port) is None


def test_a_closed_port_is_gone_from_the_next_look(serve: Serve) -> None:
    """A look is one moment, and goes on saying what it saw."""
    server = serve("itself")
    look = Snapshot()
    assert look.serving(server.port)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: not Snapshot(server.port).sockets())
    assert look.serving(server.port)


def test_a_thousand_listeners_are_all_seen(source: str) -> None:
    """More than fits into one answer of the kernel's."""
    servers = []
    try:
        for _ in range(1000):
            try:
                servers.append(socket.create_server(("127.0.0.1", 0)))
            except OSError:
                break  # as many as we may
        assert len(servers) > 100
        ports = {server.getsockname()[1] for server in servers}
        assert ports <= {found.port for found in Snapshot().sockets()}
        assert set(open_ports([os.getpid()])) == ports
    finally:
        for server in servers:
            server.close()


def test_both_sources_and_ss_tell_the_same(serve: Serve) -> None:
    """ss is what people would look at."""
    if not shutil.which("ss"):
        pytest.skip("ss is not installed")
    ports = [
        serve(way, host).port
        for way, host in [
            ("itself", "127.0.0.1"),
            ("itself", "0.0.0.0"),
            ("itself", "::1"),
            ("with_ipv4", "::"),
            ("without_ipv4", "::"),
            ("grandchild", "127.0.0.1"),
        ]
    ]

    def seen(found: list[Listener]) -> set[tuple[int, int]]:
        return {(each.port, each.inode) for each in found if each.port in ports}

    told = subprocess.run(["ss", "-ltnpeH"], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in told.splitlines()]
    by_ss = {}
    for words in lines:
        port = int(words[3].rpartition(":")[2])
        if port in ports:
            (inode,) = (int(word[4:]) for word in words if word.startswith("ino:"))
            by_ss[port, inode] = next(word for word in words if word.startswith("users:"))
    assert seen(_ports._from_netlink(None)) == seen(_ports._from_proc(None)) == set(by_ss)
    for each in listeners():
        if each.port in ports:
            assert f"pid={each.pid}," in by_ss[each.port, each.inode]


def test_where_nothing_can_be_seen_the_look_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a connection has to be tried."""

    def fails(port: int | None) -> list[Listener]:
        raise PermissionError

    monkeypatch.setattr(_ports, "_from_netlink", fails)
    assert Snapshot().known
    monkeypatch.setattr(_ports, "_from_proc", fails)
    look = Snapshot()
    assert not look.known
    assert look.sockets() == look.listeners() == []
    assert look.ports_of([os.getpid()]) == []
    assert look.owner(1) is None


def test_a_port_of_another_network_is_not_seen(tmp_path: Path, child: Child) -> None:
    """It cannot be reached from here either."""
    server = child("serves_tcp", "itself", "0.0.0.0")
    inside = ["unshare", "--map-root-user", "--net", *server]
    if not shutil.which("unshare") or subprocess.run([*inside[:3], "true"]).returncode != 0:
        pytest.skip("no network namespaces here")
    there = Server(inside)
    try:
        found = owner(there.port)
        assert found is None or found.pid != there.holder
        assert open_ports([there.holder]) == []
    finally:
        there.end()


# -- families --------------------------------------------------------------------------------------


def test_a_family_has_everybody_a_process_started(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """Children in its group, and a daemon that left group, session and parent but not the mark."""
    near = ready(hf.spawn(child("grows_a_family")))
    named = near.read_at(0).text.split()
    record = near.record
    assert record.pid is not None
    expected = {record.pid, int(named[1]), int(named[2])}
    assert family(record.pid, record.handle) == expected
    assert site_of(record).family(Snapshot()) == expected

    far = ready(hf.spawn(child("serves_tcp", "daemon", "127.0.0.1")))
    _, port, holder = far.read_at(0).text.split()[:3]
    look = Snapshot()
    assert site_of(far.record).family(look) == {far.record.pid, int(holder)}
    assert look.ports_of(site_of(far.record).family(look)) == [int(port)]
    assert look.ports_of(site_of(near.record).family(look)) == []
    found = look.owner(int(port), ours=site_of(far.record).family(look))
    assert found is not None
    assert found.pid == int(holder)


def test_a_descendant_without_the_mark_belongs_too(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """An empty environment and a session of its own do not change whose child it is."""
    process = ready(hf.spawn(child("serves_tcp", "unmarked", "127.0.0.1")))
    holder = int(process.read_at(0).text.split()[2])
    try:
        assert site_of(process.record).family(Snapshot()) == {process.record.pid, holder}
    finally:
        os.kill(holder, signal.SIGKILL)


def test_what_an_ended_process_left_behind_is_its_family(
    hf: SyncClient, child: Child, ready: Ready
) -> None:
    """By group, session and mark, though nobody of them has a parent among them."""
    process = ready(hf.spawn(child("grows_a_family")))
    named = {int(word) for word in process.read_at(0).text.split()[1:3]}
    assert process.record.pid is not None
    os.kill(process.record.pid, signal.SIGTERM)
    process.wait(timeout=30)
    assert site_of(process.record).family(Snapshot()) == named
    for pid in named:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not site_of(process.record).family(Snapshot()))


def test_a_number_that_was_used_again_is_a_strangers(hf: SyncClient) -> None:
    """A record goes by the start time, and of another boot nothing runs."""
    process = hf.spawn("sleep 600")
    record = process.record
    assert record.pid is not None
    born = start_time(record.pid)
    assert born is not None
    assert family(record.pid, "proc-other", born) == {record.pid}
    assert family(record.pid, "proc-other", born - 1) == set()
    record.boot_id = "another"
    assert site_of(record).family(Snapshot()) == set()


def test_a_dead_process_that_nobody_reaped_is_no_member() -> None:
    """A zombie holds and uses nothing."""
    with subprocess.Popen([sys.executable, "-ISc", ""]) as process:

        def dead() -> bool:
            found = stat(process.pid)
            return found is not None and found.state == "Z"

        wait_until(dead)
        assert process.pid not in family(os.getpid(), "none")
        assert os.getpid() in family(os.getpid(), "none")
