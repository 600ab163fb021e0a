"""The agent in `examples`: five scenarios, from what a user says to the last answer."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest

from holdfast import SyncClient
from holdfast.testing import wait_until
from tests.conftest import CHILDREN, Gate
from tests.person import Person
from tests.scripted_model import Reply, Request, ScriptedModel, Step, Use

pytestmark = pytest.mark.shared_keeper

AGENT = Path(__file__).parent.parent / "examples" / "agent.py"
ENDED = "[Background Process Completed]"


class Chat:
    """The agent as its user has it: lines are typed, and answers read."""

    def __init__(self, model: ScriptedModel, api: str, session: str, url: str = "") -> None:
        env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        self._process = subprocess.Popen(
            [
                *(sys.executable, str(AGENT), "--api", api, "--url", url or model.url),
                *("--model", "scripted", "--session", session),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reads = threading.Thread(target=self._read)
        self._reads.start()
        self.seen = ""

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def says(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def hears(self, text: str) -> None:
        """The agent says this, now or soon."""
        while text not in self.seen:
            try:
                self.seen += self._lines.get(timeout=120)
            except queue.Empty:
                raise AssertionError(f"never heard {text!r}; but:\n{self.seen}") from None

    def kill(self) -> None:
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, what: object, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            if what is not None:
                self._process.kill()
            self._process.stdin.close()
            code = self._process.wait(120)
        finally:
            self._process.kill()
            self._process.wait()
            self._reads.join()
            self._process.stdout.close()
        assert what is not None or code in (0, -9)


@pytest.fixture(params=["anthropic", "openai"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def result(request: Request, number: int = -1) -> dict[str, Any]:
    """A result of a tool since the model's last answer."""
    found: dict[str, Any] = json.loads(request.results[number])
    return found


def handle_in(request: Request) -> str:
    return str(result(request)["handle"])


def test_scenario_1_simple_delegation(session: str, api: str, here: Path) -> None:
    """The tool blocks until it is done; the agent reads the result and says what changed."""
    writes = 'echo validated > api.txt; echo \'{"changed": ["api.txt"]}\''

    def summary(request: Request) -> Reply:
        done = result(request)
        assert (done["status"], done["exit_code"]) == ("completed", 0)
        return f"Changed: {json.loads(done['output'])['changed'][0]}"

    script: list[Step] = [Use("spawn_process", command=writes, wait=True), summary]
    with ScriptedModel(script) as model, Chat(model, api, session) as chat:
        chat.says("Have the coding agent add input validation to the API")
        chat.hears("agent: Changed: api.txt")
    assert (here / "api.txt").read_text() == "validated\n"
    assert model.told(ENDED) == 0  # it was handled inline
    assert len(model.requests) == 2


def test_scenario_2_fire_and_forget(session: str, api: str, gate: Gate) -> None:
    """The end starts a turn by itself, in which the agent reports."""
    tests = f": < {gate.path}; echo 12 passed, 1 failed; exit 1"

    def report(request: Request) -> Reply:
        assert request.results == []
        assert request.text.startswith(f"{ENDED}\n\nHandle: proc-")
        assert "Label: tests" in request.text
        assert "Exit code: 1" in request.text
        return "The tests are done: " + request.text.rpartition("| ")[2]

    script: list[Step] = [
        Use("spawn_process", command=tests, label="tests"),
        lambda request: f"{handle_in(request)} runs, I'll let you know",
        report,
    ]
    with ScriptedModel(script) as model, Chat(model, api, session) as chat:
        chat.says("Run the full test suite and tell me when it's done")
        chat.hears("runs, I'll let you know")
        gate.open()
        chat.hears("* news of proc-")
        chat.hears("agent: The tests are done: 12 passed, 1 failed")
    assert model.told(ENDED) == 1
    assert len(model.requests) == 3


def test_scenario_3_parallel_coding_agents(session: str, api: str, tmp_path: Path) -> None:
    """Three at once; each end is told once, as it comes, and summed up."""
    gates = [Gate(str(tmp_path / f"issue-{number}")) for number in (12, 13, 14)]
    spawns = [
        Use("spawn_process", command=f": < {each.path}; echo fixed", label=Path(each.path).name)
        for each in gates
    ]

    def script(request: Request) -> Reply:
        if request.results:
            assert [json.loads(each)["status"] for each in request.results] == ["running"] * 3
            return "All three have begun"
        fixed = [each for each in ("issue-12", "issue-13", "issue-14") if each in request.text]
        if ENDED in request.text:
            return f"fixed: {', '.join(fixed)}; {request.said.count(ENDED)} of 3"
        return spawns

    try:
        with ScriptedModel(script) as model, Chat(model, api, session) as chat:
            chat.says("Fix issues #12, #13, and #14 in parallel")
            chat.hears("All three have begun")
            gates[1].open()
            chat.hears("agent: fixed: issue-13; 1 of 3")
            gates[0].open()
            gates[2].open()
            chat.hears("3 of 3")
    finally:
        for each in gates:
            each.close()
    for number in (12, 13, 14):
        assert model.told(f"Label: issue-{number}") == 1


def test_scenario_4_active_monitoring_with_intervention(session: str, api: str, here: Path) -> None:
    """A coding agent in tmux asks to delete a file; the agent is woken, looks, and says no."""
    (here / "auth.py").touch()
    (here / "old.py").touch()
    command = [sys.executable, "-IS", str(CHILDREN / "coding_agent.py"), "auth.py", "old.py"]

    def script(request: Request) -> Reply:
        news = "\n".join([request.text, *request.results])  # by a message, or with a result
        if request.text.startswith("Refactor the"):
            return Use("spawn_process", command=shlex.join(command), label="refactor", tmux=True)
        if request.results and "screen" in result(request):
            last = result(request)["screen"].splitlines()[-1]
            assert last.startswith("Delete "), last
            keys = "n" if last.startswith("Delete auth.py?") else "y"
            return Use("process", action="send_keys", handle="refactor", keys=keys)
        if "[Background Process Waiting For Input]" in news:
            return Use("process", action="capture", handle="refactor")
        if ENDED in news:
            return "It is done, and auth.py is still there"
        return "I review what it does" if "pid" in result(request) else "I have answered"

    with ScriptedModel(script) as model, Chat(model, api, session) as chat:
        chat.says("Refactor the auth module, but I want you to review what it does")
        chat.hears("agent: It is done, and auth.py is still there")
    assert (here / "auth.py").exists()
    assert not (here / "old.py").exists()
    assert model.told(ENDED) == 1
    assert model.told("Prompt: Delete auth.py?") == 1
    assert "kept auth.py" in model.last.said


def test_scenario_5_human_observation(session: str, api: str) -> None:
    """A person attaches with the very command that the agent says, watches, and leaves."""

    def attach(request: Request) -> Reply:
        started = result(request)
        assert started["tmux_session"] == f"holdfast-{started['handle']}"
        return f"Watch it with: {started['attach']}"

    script: list[Step] = [
        Use("spawn_process", command="echo working; cat; echo all done", tmux=True, label="task"),
        attach,
        lambda request: "It is through" if "| all done" in request.text else "It is not",
    ]

    def quiet(request: Request) -> Reply:
        # `cat` waits for input, which is news, too; nobody has to do anything about it.
        if "Waiting For Input" in request.text:
            return "Somebody may answer that"
        step = script.pop(0)
        return step(request) if callable(step) else step

    with ScriptedModel(quiet) as model, Chat(model, api, session) as chat:
        chat.says("Have the coding agent do this complex task")
        chat.hears("Watch it with: ")
        command = chat.seen.partition("Watch it with: ")[2].splitlines()[0]
        with Person(program=shlex.split(command)) as person:
            person.types("from a person\r")
            person.sees("working\nfrom a person\nfrom a person")
            person.leaves_tmux()
        with Person(program=shlex.split(command)) as person:
            person.sees("working\nfrom a person")
            person.types("\x04")
            chat.hears("agent: It is through")
    assert model.told(ENDED) == 1


def test_an_agent_that_was_killed_is_told_when_it_comes_back(
    session: str, api: str, gate: Gate, hf: SyncClient
) -> None:
    script: list[Step] = [
        Use("spawn_process", command=f": < {gate.path}; exit 3", label="build"),
        "It builds",
        lambda request: "It failed" if "Exit code: 3" in request.text else "It did not",
        "You are welcome",
    ]
    with ScriptedModel(script) as model:
        with Chat(model, api, session) as chat:
            chat.says("Build it")
            chat.hears("agent: It builds")
            chat.kill()
        gate.open()
        wait_until(lambda: not hf.list(ended=False))
        with Chat(model, api, session) as chat:
            chat.hears("agent: It failed")
            chat.says("Thanks")
            chat.hears("agent: You are welcome")
    assert model.told(ENDED) == 1


@contextlib.contextmanager
def at_times_down(model: ScriptedModel) -> Iterator[tuple[str, threading.Event]]:
    """The way to a model, which answers 503 while the event is set."""
    down = threading.Event()
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            code, text = 503, b"overloaded"
            if not down.is_set():
                with directly.open(model.url + self.path, body) as answer:
                    code, text = 200, answer.read()
            self.send_response(code)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serves = threading.Thread(target=server.serve_forever, args=(0.05,))
        serves.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", down
        server.shutdown()
        serves.join()


def test_what_the_model_could_not_hear_is_said_again(session: str, api: str, gate: Gate) -> None:
    """By its user, who is told so; and news by themselves, once the endpoint is back."""
    script: list[Step] = [
        Use("spawn_process", command=f": < {gate.path}; exit 3"),
        "It builds",
        lambda request: "It failed" if "Exit code: 3" in request.text else "It did not",
    ]
    with (
        ScriptedModel(script) as model,
        at_times_down(model) as (url, down),
        Chat(model, api, session, url) as chat,
    ):
        down.set()
        chat.says("Build it")
        chat.hears("answered 503: overloaded; say it again")
        down.clear()
        chat.says("Build it")
        chat.hears("agent: It builds")
        down.set()
        gate.open()
        chat.hears("* news of proc-")
        chat.seen = ""
        chat.hears("* news of proc-")  # it is tried again
        down.clear()
        chat.hears("agent: It failed")
    assert model.told("Build it") == 1
    assert model.told(ENDED) == 1


def test_it_is_short_enough_to_be_copied() -> None:
    assert len(AGENT.read_text().splitlines()) < 200
