"""No value of an environment is on a command line, and a token is nobody else's to read."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from holdfast import SyncClient
from holdfast.linux.kernel import all_processes
from holdfast.testing import wait_until
from tests.contained import MODES, mode_of
from tests.mcp_servers import PROGRAM, Web
from tests.proc_files import proc_file


def shown(secret: str, file: str) -> list[int]:
    """Whose `cmdline` or `environ` has it, of all processes but this one."""
    found = []
    for process in all_processes():
        data = proc_file(process.pid, file)
        if secret.encode() in data and process.pid != os.getpid():
            found.append(process.pid)
    return found


@pytest.mark.parametrize("sandbox", [False, True], ids=["outside", "sandbox"])
@pytest.mark.parametrize("mode", MODES)
def test_no_command_line_has_a_value_of_the_environment(
    mode: str, sandbox: bool, hf: SyncClient, tmp_path: Path
) -> None:
    """Also of what must not be loaded into bubblewrap, and which only its command gets."""
    work = tmp_path / "work"
    work.mkdir()
    secret = secrets.token_hex(16)
    odd = f"{secret} $HOME ${{X}} \"'\\ #\t;"
    env = {
        "LD_LIBRARY_PATH": f"/nowhere/{secret}",
        "LD_ODD": odd,
        "LD_EMPTY": "",
        "GCONV_PATH": f"/nowhere/{secret}",
        "PLAIN": secret,
    }
    process = hf.spawn(
        "env -0 > there; mv there done; read x",
        cwd=str(work),
        env=env,
        stdin=True,
        sandbox=sandbox,
        **mode_of(mode),
    )
    wait_until(lambda: (work / "done").exists())
    assert shown(secret, "cmdline") == []
    got = dict(line.partition("=")[::2] for line in (work / "done").read_text().split("\0") if line)
    assert {name: got.get(name) for name in env} == env
    assert not [name for name in got if name.startswith("HOLDFAST_LD")]
    process.kill()


# -- the token of the server -----------------------------------------------------------------------


class Tokened(Web):
    """A server that was given its token."""

    def __init__(self, token: str, *options: str, env: dict[str, str]) -> None:
        before = dict(os.environ)
        os.environ.update(env)
        try:
            super().__init__(*options)
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.token = token


@pytest.fixture
def token() -> str:
    return secrets.token_urlsafe(24)


@pytest.fixture(params=["variable", "file"])
def server(
    request: pytest.FixtureRequest, token: str, home: str, here: Path, no_leaks: None
) -> Iterator[Tokened]:
    file = here.parent / "token"
    file.write_text(token + "\n")
    file.chmod(0o600)
    if request.param == "variable":
        found = Tokened(token, env={"HOLDFAST_MCP_TOKEN": token, "OTHER": "value"})
    else:
        found = Tokened(token, "--token-file", str(file), env={"OTHER": "value"})
    yield found
    found.end()


def called(server: Web, command: str) -> str:
    headers = {
        "Accept": "application/json, text/event-stream",
        "Authorization": f"Bearer {server.token}",
        "MCP-Protocol-Version": "2025-11-25",
    }
    with httpx2.Client(headers=headers, timeout=60) as client:
        about = {"name": "test", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
        first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
        client.headers["mcp-session-id"] = client.post(server.url, json=first).headers[
            "mcp-session-id"
        ]
        call = {"name": "spawn_process", "arguments": {"command": command, "wait": True}}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        return client.post(server.url, json=request).text


def test_the_token_is_in_no_environment_and_on_no_command_line(server: Tokened, token: str) -> None:
    """Neither the server's, which others of its user can read, nor that of anything it starts."""
    environ = Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert token.encode() not in environ
    assert b"OTHER=value" in environ.split(b"\0")
    answer = called(server, "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; echo end")
    assert "OTHER=value" in answer
    assert "end" in answer
    assert token not in answer
    assert "HOLDFAST_MCP_TOKEN=" not in answer
    assert shown(token, "environ") == []
    assert shown(token, "cmdline") == []


@pytest.mark.long
def test_the_token_is_forgotten_on_stdio_too(home: str, here: Path, no_leaks: None) -> None:
    secret = secrets.token_hex(16)
    env = {**os.environ, "HOLDFAST_MCP_TOKEN": secret}
    pipe = subprocess.PIPE
    with subprocess.Popen(PROGRAM, stdin=pipe, stdout=pipe, stderr=pipe, env=env) as process:
        try:
            environ = Path(f"/proc/{process.pid}/environ")
            wait_until(lambda: secret.encode() not in environ.read_bytes())
        finally:
            process.communicate(timeout=60)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o644, True)])
def test_a_token_file_that_others_can_read_is_told(
    mode: int, warned: bool, token: str, home: str, here: Path, no_leaks: None
) -> None:
    file = here.parent / "token"
    file.write_text(token)
    file.chmod(mode)
    server = Tokened(token, "--token-file", str(file), env={})
    try:
        said = [line for line in server.said if "chmod 600" in line]
        assert bool(said) == warned
        assert not [line for line in server.said if token in line]
    finally:
        server.end()


def test_a_variable_is_forgotten_whatever_is_around_it() -> None:
    """Where its name ends others', where it is there twice, or not at all."""
    program = (
        "import os\n"
        "from holdfast.linux.kernel import forget_variable\n"
        "taken = forget_variable('SECRET')\n"
        "assert 'SECRET' not in os.environ\n"
        "left = open('/proc/self/environ', 'rb').read()\n"
        "print(repr(taken), b'hidden' in left, b'NOT_SECRET=seen' in left, os.environ['LAST'])\n"
        "print(forget_variable('SECRET'), os.system('test -z \"$SECRET\"'))\n"
    )
    env = {**os.environ, "NOT_SECRET": "seen", "SECRET": "hidden", "LAST": "one"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["'hidden' False True one", "None 0"], done.stderr
