"""Tools whose commands run in containers: ports, waits, limits, ends, and what a model sees."""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import SyncClient, Toolset, connect
from holdfast.testing import wait_until
from tests.docker_engine import Engine
from tests.lost_agent import Lost
from tests.mcp_servers import wire
from tests.toolcalls import call, toolset
from tests.tools.test_tools_confinement import IDS, STARTS, only_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.tools import Result

SERVER = "echo up > page; echo serving; exec httpd -f -p 3000"
# What the server does not begin before somebody makes the file `go`.
LATER = f"until test -e go; do sleep 0.05; done; {SERVER}"

pytestmark = [
    pytest.mark.shared_keeper,
    pytest.mark.long,
    pytest.mark.usefixtures("engine", "here"),
]


@pytest.fixture
def native(hf: SyncClient) -> Toolset:
    return toolset(hf, "native")


@pytest.fixture
def dodo(hf: SyncClient) -> Toolset:
    return toolset(hf, "dodo", docker="hfbox")


@pytest.fixture
def taken(no_leaks: None) -> Iterator[int]:
    """A port on which the test itself listens."""
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        yield mine.getsockname()[1]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        number: int = found.getsockname()[1]
        return number


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def spawn(tools: Toolset, command: str, **arguments: Any) -> Result:
    started = call(tools, "spawn_process", **{"command": command, "docker": "hfbox", **arguments})
    assert not started.is_error, started
    return started


def act(tools: Toolset, action: str, handle: str, **arguments: Any) -> Result:
    return call(tools, "process", action=action, handle=handle, **arguments)


# -- native ----------------------------------------------------------------------------------------


def test_every_result_says_where_the_ports_are(native: Toolset) -> None:
    """Start, waits, looks, the end and the word about it."""
    started = spawn(native, SERVER, ports=[3000, "3001"], group="web")
    ports, handle = started["ports"], started["handle"]
    assert sorted(ports) == ["3000", "3001"]
    assert started["tmux_session"] is None
    ready = call(native, "wait_for", handles=[handle], conditions=["port=3000"])
    assert ready["ok"]
    assert page(ports["3000"]) == "up\n"
    (met,) = ready["met"]
    assert (met["port"], met["host_port"]) == (3000, ports["3000"])
    listed = call(native, "process", action="list")["processes"]
    results = [ready, met, *listed]
    for action, more in (
        ("status", {}),
        ("poll", {}),
        ("log", {}),
        ("search", {"pattern": "serving"}),
        ("usage", {}),
        ("watch", {"condition": "quiet=1h"}),
        ("clear", {}),
    ):
        result = act(native, action, handle, **more)
        assert not result.is_error, result
        results.append(result)
    assert results[-3]["listening"] == [ports["3000"]]
    (killed,) = call(native, "process", action="kill", group="web")["killed"]
    results += [killed, act(native, "kill", handle), act(native, "status", handle)]
    assert [result["ports"] for result in results] == [ports] * len(results)


def test_the_word_about_an_end_says_where_the_ports_were(native: Toolset) -> None:
    started = spawn(native, "until test -e go; do sleep 0.05; done; exit 3", ports=[3000])
    Path("go").touch()
    told = wait_until(lambda: call(native, "process", action="list").get("events", []))
    (event,) = told
    assert (event["handle"], event["exit_code"]) == (started["handle"], 3)
    assert event["ports"] == started["ports"]
    waited = call(native, "wait_for", handles=[started["handle"]])
    assert waited["ended"][started["handle"]]["ports"] == started["ports"]


def test_a_wait_for_a_port_is_for_the_server_in_the_container(native: Toolset) -> None:
    """The engine listens for it from the start on; nobody answers there yet."""
    started = spawn(native, LATER, ports=[3000])
    wait = {"handles": [started["handle"]], "conditions": ["port=3000"]}
    early = call(native, "wait_for", **wait, timeout_seconds=0.5)
    assert (early["timed_out"], early["ports"]) == (True, started["ports"])
    Path("go").touch()
    assert call(native, "wait_for", **wait)["ok"]
    by_its_place_here = {**wait, "conditions": [f"port={started['ports']['3000']}"]}
    assert call(native, "wait_for", **by_its_place_here)["ok"]


def test_a_command_runs_inside_a_container_that_is_there(native: Toolset, hf: SyncClient) -> None:
    """As a process of its own, which has that container's network; it ends with it."""
    started = spawn(native, SERVER)
    asked = "until wget -qO- http://127.0.0.1:3000/page; do sleep 0.05; done"
    inside = call(native, "spawn_process", command=asked, inside=started["handle"], wait=True)
    assert (inside["status"], inside["output"].splitlines()[-1]) == ("completed", "up")
    left = call(native, "spawn_process", command="sleep 1000", inside=started["handle"])
    act(native, "kill", started["handle"])
    wait_until(lambda: not hf.get(left["handle"]).refresh().running)
    ended = call(native, "spawn_process", command="true", inside=started["handle"])
    assert "has ended" in ended["error"]
    plain = call(native, "spawn_process", command="sleep 1000", tmux=False)["handle"]
    wrong = call(native, "spawn_process", command="true", inside=plain)
    assert "not in Docker" in wrong["error"]
    both = call(native, "spawn_process", command="true", inside=plain, docker="hfbox")
    assert "leave docker" in both["error"]


@pytest.mark.parametrize("terminal", [{"tty": True}, {"tmux": True}])
def test_a_container_has_a_terminal_of_its_own(native: Toolset, terminal: dict[str, Any]) -> None:
    """tmux is of this machine, so its argument means a terminal that is captured and typed into."""
    handle = spawn(native, "sh", **terminal)["handle"]
    act(native, "send_keys", handle, keys="echo $((40 + 2)) $(tty)")
    wait_until(lambda: "42 /dev/pts/" in act(native, "capture", handle)["screen"])


def test_with_the_network_of_the_machine_a_port_is_the_same(native: Toolset) -> None:
    """There is nothing to publish, and who listens is the container."""
    port = free_port()
    started = spawn(
        native,
        f"exec httpd -f -p 127.0.0.1:{port}",
        docker={"image": "hfbox", "network": "host"},
        ports=[port],
    )
    assert started["ports"] == {str(port): port}
    ready = call(native, "wait_for", handles=[started["handle"]], conditions=[f"port={port}"])
    assert ready["ok"]


def test_a_container_has_what_the_model_says(native: Toolset, engine: Engine) -> None:
    """Environment, user, network and limits; and of the machine its directory."""
    Path("own").mkdir(mode=0o777)
    Path("own").chmod(0o777)
    done = spawn(
        native,
        "id -u; echo $MINE; pwd; tail -n +3 /proc/net/dev | wc -l; touch made; ls ..",
        docker={"image": "hfbox", "user": "tester", "network": "none"},
        env={"MINE": 7},
        workdir="own",
        limits={"memory": "64M", "cpu": 1, "processes": 20, "files": 99},
        wait=True,
    )
    uid, mine, where, links, *rest = done["output"].splitlines()
    assert (uid, mine, where, links) == ("1000", "7", str(Path("own").resolve()), "1")
    assert rest == ["own"], "of the directory above there is only this"
    assert Path("own/made").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"docker": "no-such-image"}, "no-such-image"),
        ({"docker": {"image": "hfbox", "user": "nobody-here"}}, "nobody-here"),
        ({"ports": ["eighty"]}, "eighty"),
        ({"sandbox": "closed"}, "leave sandbox out"),
        ({"docker": {"image": "hfbox", "network": "none"}, "ports": [80]}, "without a network"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_and_nothing_is_left(
    native: Toolset, hf: SyncClient, engine: Engine, arguments: dict[str, Any], says: str
) -> None:
    refused = call(native, "spawn_process", **{"command": "true", "docker": "hfbox", **arguments})
    assert refused.is_error
    assert says in refused["error"]
    assert "\n" not in refused["error"]
    assert hf.list() == []
    assert engine.containers(f"holdfast.home={hf.home.path}") == []


def test_a_missing_engine_is_said_with_its_address(
    native: Toolset, hf: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    refused = call(native, "spawn_process", command="true", docker="hfbox")
    assert refused["code"] == "unavailable"
    assert "nobody.sock" in refused["error"]
    assert hf.list() == []


# -- decided by whoever embeds the tools -----------------------------------------------------------


@pytest.mark.parametrize(("dialect", "tool", "word", "where", "more"), STARTS, ids=IDS)
def test_every_command_of_every_dialect_runs_in_the_image(
    hf: SyncClient,
    here: Path,
    dialect: str,
    tool: str,
    word: str,
    where: str | None,
    more: dict[str, Any],
) -> None:
    """With the agent's directory, and no other one that a model names."""
    outside = here.parent / "outside"
    outside.mkdir()
    (here / "below").mkdir()
    tools = toolset(hf, dialect, docker="hfbox", memory="64M")
    elsewhere = {} if where is None else {where: str(outside)}
    command = f"grep -c tester /etc/passwd; touch {here}/there {outside}/there; touch here"
    started = call(tools, tool, **{word: command, **elsewhere, **more})
    assert not started.is_error, started
    process = only_process(hf)
    assert "1" in process.read_at(0).text.splitlines()
    assert process.record.docker["image"] == "hfbox"
    assert process.record.limits == {"memory": {"limit": 64 << 20, "by": "docker"}}
    assert (here / "there").exists()
    assert list(outside.iterdir()) == []
    if where is None:
        return
    process.remove()
    call(tools, tool, **{word: "touch found", where: "below", **more})
    only_process(hf)
    assert (here / "below" / "found").exists()
    missing = call(tools, tool, **{word: "true", where: "nowhere", **more})
    assert "nowhere" in missing.text
    assert not (here / "nowhere").exists()


def test_a_model_cannot_choose_another_image(hf: SyncClient) -> None:
    tools = toolset(hf, "native", docker={"image": "hfbox", "network": "none"})
    (start, *_) = tools.definitions()
    assert "a new container of the image hfbox" in start["description"]
    assert "they have no network" in start["description"]
    for name, value in (("docker", "other"), ("sandbox", "network")):
        refused = call(tools, "spawn_process", command="true", **{name: value})
        assert f"no argument {name!r}" in refused["error"]
    done = call(tools, "spawn_process", command="tail -n +3 /proc/net/dev", wait=True)
    assert done["output"].split(":")[0].strip() == "lo"
    refused = call(tools, "wait_for", conditions=["http=http://127.0.0.1:1/"])
    assert refused.is_error
    assert len(hf.list()) == 1


@pytest.mark.own_keeper
@pytest.mark.parametrize("confined", [{"docker": "hfbox"}, {"sandbox": True}])
def test_there_is_no_way_to_the_keeper_from_inside(
    hf: SyncClient, monkeypatch: pytest.MonkeyPatch, confined: dict[str, Any]
) -> None:
    """Its home is empty there, also where it is in the agent's directory."""
    home = Path(hf.home.path)
    monkeypatch.chdir(home.parent)
    tools = toolset(hf, "native", **confined)
    done = call(tools, "spawn_process", command=f"ls {home.parent}; ls -A {home}", wait=True)
    assert "home" in done["output"].split()
    assert "project" in done["output"].split()
    assert set(done["output"].split()) == set(os.listdir(home.parent))
    assert len(os.listdir(home)) > 2


def test_only_containers_of_the_image_are_taken_over(home: str, here: Path, session: str) -> None:
    for session, docker in (("ours", "'hfbox'"), ("host", "{'image': 'hfbox', 'network': 'host'}")):
        Lost(here, session, then=f"hf.spawn('sleep 1000', docker={docker})").kill()
    Lost(here, "free", "exec sleep 1000").kill()
    with connect(session=f"{session}-new") as hf:
        wait_until(lambda: len(hf.left_behind()) == 3)
        tools = toolset(hf, "native", docker="hfbox", adoption=True)
        shown = call(tools, "adopt")["left_behind"]
        assert [each["session"] for each in shown] == ["ours"]
        assert len(call(tools, "adopt", session="ours")["processes"]) == 1
        assert call(tools, "adopt", session="host").is_error
        for session in ("host", "free"):
            hf.adopt(session)


def test_only_containers_that_are_confined_alike_are_typed_into_and_run_in(
    hf: SyncClient, here: Path
) -> None:
    """Of the same image, network and user, with nothing mounted that would not be here too."""
    outside, below = here.parent / "outside", here / "below"
    outside.mkdir()
    below.mkdir()
    shared, more = f"{here.parent}/shared", f"{outside}:/outside"
    Path(shared).mkdir()
    box = {"image": "hfbox", "user": "1000", "mounts": [f"{shared}:/shared:ro"]}
    tools = toolset(hf, "native", docker=box)
    others: list[dict[str, Any]] = [
        {"docker": {**box, "user": "0"}},
        {"docker": {**box, "network": "host"}},
        {"docker": {**box, "mounts": [f"{shared}:/shared"]}},
        {"docker": {**box, "mounts": [*box["mounts"], more]}},
        {"docker": box, "cwd": outside},
        {},
    ]
    alike: list[dict[str, Any]] = [{"docker": box}, {"docker": box, "cwd": below}]
    alike.append({"docker": {**box, "mounts": []}})
    for options, is_alike in [(each, False) for each in others] + [(each, True) for each in alike]:
        cat = hf.spawn("cat", stdin=True, **options)
        wrote = act(tools, "write", cat.handle, data="x\n")
        ran = call(tools, "spawn_process", command="id -u", inside=cat.handle, wait=True)
        said = [wrote.get("error", ""), ran.get("error", "")]
        assert ["not confined as their commands" in each for each in said] == [not is_alike] * 2
        if is_alike:
            assert ran["output"] == "1000\n"
        act(tools, "kill", cat.handle)


def test_what_runs_in_a_container_is_confined_as_that_is(hf: SyncClient) -> None:
    """So that it is typed into by tools that were made again, as after a restart."""
    box = {"image": "hfbox", "user": "1000"}
    server = hf.spawn("sleep 1000", docker=box)
    tools = toolset(hf, "native", docker=box)
    inside = call(tools, "spawn_process", command="cat", inside=server.handle)["handle"]
    assert not act(toolset(hf, "native", docker=box), "write", inside, data="x\n").is_error
    as_root = server.exec("cat", user="root", stdin=True).handle
    assert "not confined" in act(tools, "write", as_root, data="x\n")["error"]


def test_of_this_machine_only_published_ports_are_asked(hf: SyncClient, taken: int) -> None:
    """A container has another loopback than we have, and maybe no way to other machines."""
    tools = toolset(hf, "native", docker="hfbox")
    started = call(tools, "spawn_process", command=SERVER, ports=[3000])
    port = started["ports"]["3000"]
    wait = {"handles": [started["handle"]], "timeout_seconds": 60}
    for url in (
        f"http://127.0.0.1:{port}/page",
        f"http://localhost:{port}/page",
        f"http://localhost:{port}/none status=404",
    ):
        assert call(tools, "wait_for", conditions=[f"http={url}"], **wait)["ok"]
    for condition in (
        f"http=http://127.0.0.1:{taken}/",
        f"http=http://[::1]:{port}/",
        f"http=http://127.0.0.1:{port}@example.com/",
        "http=http://example.com/",
        f"port=example.com:{port}",
    ):
        refused = call(tools, "wait_for", conditions=[condition], **wait)
        assert "only the published ports" in refused["error"]
    call(tools, "process", action="kill", handle=started["handle"])
    over = call(tools, "wait_for", conditions=[f"http=http://127.0.0.1:{port}/"], **wait)
    assert "only the published ports" in over["error"]
    on_this = toolset(hf, "native", docker={"image": "hfbox", "network": "host"})
    wait = {"handles": [call(on_this, "spawn_process", command="sleep 1000")["handle"]]}
    asked = {"conditions": [f"http=http://127.0.0.1:{taken}/"], "timeout_seconds": 0.2}
    assert call(on_this, "wait_for", **wait, **asked)["timed_out"]


def test_files_are_waited_for_where_containers_have_them_too(hf: SyncClient, here: Path) -> None:
    shared = here.parent / "shared"
    shared.mkdir()
    (shared / "file").touch()
    docker = {"image": "hfbox", "mounts": [f"{shared}:/shared:ro"]}
    tools = toolset(hf, "native", docker=docker)
    handle = call(tools, "spawn_process", command="touch made; sleep 1000")["handle"]
    for path in ("made", f"{shared}/file"):
        assert call(tools, "wait_for", handles=[handle], conditions=[f"file={path}"])["ok"]
    for path in ("/etc/shadow", "../none", str(here.parent)):
        refused = call(tools, "wait_for", handles=[handle], conditions=[f"file={path}"])
        assert "only files in the agent's directory" in refused["error"]


def test_mounts_are_those_of_whoever_embeds_the_tools(hf: SyncClient, here: Path) -> None:
    shared = here.parent / "shared"
    shared.mkdir()
    (shared / "file").write_text("shared\n")
    docker = {"image": "hfbox", "mounts": [f"{shared}:/shared:ro"]}
    tools = toolset(hf, "native", docker=docker)
    done = call(tools, "spawn_process", command="cat /shared/file; touch /shared/x", wait=True)
    assert "shared" in done["output"].splitlines()
    assert "Read-only" in done["output"]


def test_the_server_runs_commands_in_the_image_of_its_options(home: str) -> None:
    with wire("--docker", "hfbox", "--network", "none", "--memory", "64M") as server:
        done = server.call("spawn_process", command="grep -c tester /etc/passwd", wait=True)
        assert done["output"] == "1\n"


# -- dodo ------------------------------------------------------------------------------------------


def start(dodo: Toolset, cmd: str, **options: Any) -> Result:
    result = call(dodo, "run_background", cmd=cmd, **options)
    assert not result.is_error, result
    return result


def events(dodo: Toolset) -> list[dict[str, Any]]:
    """What the next result brings along, here of a call that shows nothing."""
    found: list[dict[str, Any]] = call(dodo, "stop_process", process_id="none").get("events", [])
    return found


@pytest.mark.parametrize("options", [{"ports": ["3000"]}, {"options": {"ports": [3000]}}])
def test_the_agent_and_its_user_reach_a_service_in_its_container(
    dodo: Toolset, options: dict[str, Any]
) -> None:
    """Goal: Docker port forwarding. The mapping is reported, and a wait says when it answers."""
    started = start(dodo, LATER, **options)
    ports = started["ports"]
    assert list(ports) == ["3000"]
    handle = started["process_id"]
    early = call(dodo, "wait_for_service", port=3000, id=handle, timeout=0.5)
    assert (early["ready"], early["timed_out"], early["ports"]) == (False, True, ports)
    Path("go").touch()
    ready = call(dodo, "wait_for_service", port=3000, output_regex="serv(ing)", id=handle)
    assert (ready["ready"], ready["ports"], ready["groups"]) == (True, ports, ["ing"])
    assert f"127.0.0.1:{ports['3000']}" in ready["message"]
    assert page(ports["3000"]) == "up\n"


def test_every_answer_about_a_container_has_its_ports(dodo: Toolset) -> None:
    started = start(dodo, SERVER, ports=["3000"])
    handle, ports = started["process_id"], started["ports"]
    answers = [
        call(dodo, "wait_for_port", port=3000),
        call(dodo, "wait_for_port", port=3000, id=handle),
        call(dodo, "wait_for_port", port=ports["3000"]),
        *call(dodo, "list_processes")["processes"],
        call(dodo, "read_process_output", id=handle),
        call(dodo, "stop_process", process_id=handle),
        call(dodo, "stop_process", process_id=handle),
    ]
    assert [answer["ready"] for answer in answers[:3]] == [True] * 3
    assert [answer["ports"] for answer in answers] == [ports] * len(answers)
    assert answers[3]["usage"]["memory_bytes"] > 0


def test_a_port_that_is_taken_is_replaced_and_told(dodo: Toolset, taken: int) -> None:
    """Risk: port conflicts. The host's port is another one then, else the same."""
    same = free_port()
    ports = start(dodo, f"httpd -f -p {taken}", ports=[str(taken), str(same)])["ports"]
    assert ports[str(taken)] != taken
    assert ports[str(same)] == same
    assert call(dodo, "wait_for_port", port=ports[str(taken)])["ready"]


def test_of_two_containers_with_one_port_the_wait_asks_which(dodo: Toolset) -> None:
    first = start(dodo, SERVER, ports=["3000"])
    second = start(dodo, SERVER, ports=["3000"])
    places = [first["ports"]["3000"], second["ports"]["3000"]]
    assert len(set(places)) == 2
    for started, place in zip((first, second), places, strict=True):
        ready = call(dodo, "wait_for_port", port=place)
        assert (ready["ready"], ready["process_id"]) == (True, started["process_id"])
    if 3000 not in places:
        which = call(dodo, "wait_for_port", port=3000)
        assert "say which as 'id'" in which["error"]


def test_a_server_that_ends_ends_the_wait(dodo: Toolset) -> None:
    """With its code and its last words, and told once."""
    port = free_port()
    handle = start(dodo, "echo no config; exit 3", ports=[port])["process_id"]
    failed = call(dodo, "wait_for_service", port=port, id=handle)
    assert (failed["ready"], failed["exit_code"], failed["output"]) == (False, 3, "no config\n")
    assert f"without port={port}" in failed["message"]
    assert "events" not in call(dodo, "list_processes")


def test_logs_are_read_from_a_container(dodo: Toolset) -> None:
    handle = start(dodo, "seq 100; exec sleep 1000")["process_id"]
    wait_until(lambda: "100\n" in call(dodo, "read_process_output", id=handle)["output"])
    assert call(dodo, "read_process_output", id=handle, lines=2)["output"] == "99\n100\n"


def test_a_crash_in_a_container_comes_into_the_conversation(dodo: Toolset) -> None:
    handle = start(dodo, "until test -e go; do sleep 0.05; done; echo boom; exit 9")["process_id"]
    Path("go").touch()
    (event,) = wait_until(lambda: events(dodo))
    assert (event["handle"], event["exit_code"]) == (handle, 9)


def test_tests_and_builds_run_in_containers(dodo: Toolset) -> None:
    """The project's own command, in its directory, whose files they make."""
    Path("Makefile").write_text("test:\n\techo never\nbuild:\n\techo never\n")
    built = call(dodo, "run_build", cmd="echo built > made; hostname; id -u")
    assert built["status"] == "completed"
    assert Path("made").read_text() == "built\n"
    assert built["output"].split()[0] != socket.gethostname()
    failed = call(dodo, "run_test", cmd="cat made; exit 4")
    assert (failed["passed"], failed["exit_code"], failed["output"]) == (False, 4, "built\n")
    found = call(dodo, "run_test")
    assert found["code"] == "not_executable"
    assert "make" in found["error"], "the command was found, and the image does not have it"


def test_a_project_is_looked_at_in_the_agents_directory_only(dodo: Toolset, here: Path) -> None:
    """Another one is not what the container has under that name."""
    outside = here.parent / "outside"
    outside.mkdir()
    (outside / "Makefile").write_text("test:\n\techo never\n")
    Path("link").symlink_to(outside)
    for cwd in (str(outside), "link", "/nowhere"):
        refused = call(dodo, "run_test", cwd=cwd)
        assert "is not in the agent's directory; give the command as 'cmd'" in refused["error"]


def test_a_job_in_the_background_of_a_container_is_told(dodo: Toolset) -> None:
    job = call(dodo, "run_test", cmd="exit 5", background=True)["job_id"]
    (event,) = wait_until(lambda: events(dodo))
    assert (event["handle"], event["exit_code"]) == (job, 5)


def test_containers_honour_the_limits_of_the_sandbox(hf: SyncClient, engine: Engine) -> None:
    """Non-functional: processor and memory; who has too much is ended, with that as the reason."""
    dodo = toolset(hf, "dodo", docker="hfbox", memory="32M", cpu=0.5, processes=30)
    handle = start(dodo, "exec sleep 1000")["process_id"]
    (container,) = engine.containers(f"holdfast.handle={handle}")
    _, about = engine.call("GET", f"/containers/{container['Id']}/json")
    limits = about["HostConfig"]
    assert limits["Memory"] == 32 << 20
    assert limits["NanoCpus"] == 500_000_000
    assert limits["PidsLimit"] == 31, "the init of the container is one"
    greedy = call(dodo, "run_test", cmd="tail /dev/zero")
    assert (greedy["status"], greedy["reason"]) == ("failed", "out_of_memory")


def test_three_containers_may_run(dodo: Toolset) -> None:
    for _ in range(3):
        start(dodo, "sleep 1000")
    refused = call(dodo, "run_background", cmd="sleep 1000")
    assert "no more than 3 may run" in refused["error"]


def test_containers_end_with_the_session(home: str, engine: Engine) -> None:
    """Goal: robust lifecycle management. Nothing of them is left, not even ended."""
    with connect(session="dodo") as hf:
        dodo = toolset(hf, "dodo", docker="hfbox")
        start(dodo, SERVER, ports=["3000"])
        start(dodo, "trap '' TERM; while :; do sleep 1; done")
        assert len(engine.containers(f"holdfast.home={home}")) == 2
    wait_until(lambda: engine.containers(f"holdfast.home={home}") == [])


def test_a_stopped_container_is_gone(dodo: Toolset, engine: Engine, hf: SyncClient) -> None:
    handle = start(dodo, SERVER, ports=["3000"])["process_id"]
    stopped = call(dodo, "stop_process", process_id=handle)
    assert stopped["status"] == "killed"
    wait_until(lambda: engine.containers(f"holdfast.handle={handle}") == [])
