"""The classes without asyncio: written from those with it, and found out when they are stale."""

from __future__ import annotations

import ast
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parents[2]
PAIRS = [
    (holdfast.Client, holdfast.SyncClient),
    (holdfast.Process, holdfast.SyncProcess),
    (holdfast.Group, holdfast.SyncGroup),
    (holdfast.Agent, holdfast.SyncAgent),
    (holdfast.Toolset, holdfast.SyncToolset),
]


def write(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / ".ci" / "sync_client"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """What the script reads and writes, to be changed."""
    for name in (".ci/sync_client", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for room in ("client", "tools"):
        shutil.copytree(ROOT / "src/holdfast" / room, tmp_path / "src/holdfast" / room)
    return tmp_path


def test_what_is_written_is_what_is_there(tree: Path) -> None:
    """The check passes for the tree as it is, and the files say where they come from."""
    checked = write(tree, "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    for name in ("client/sync.py", "tools/sync.py"):
        first = (ROOT / "src/holdfast" / name).read_text().partition("\n")[0]
        assert ".ci/sync_client" in first


def test_a_change_of_the_asynchronous_class_makes_them_stale(tree: Path) -> None:
    """The check names the file and what to do; writing it anew carries the change over."""
    source = tree / "src/holdfast/client/process.py"
    signature = "async def clear(self) -> None:"
    assert signature in source.read_text()
    source.write_text(
        source.read_text().replace(signature, "async def clear(self, *, first: int = 0) -> None:")
    )
    stale = write(tree, "--check")
    assert stale.returncode == 1
    assert stale.stdout.startswith("client/sync.py")
    assert "`make format`" in stale.stdout
    assert write(tree).returncode == 0
    assert write(tree, "--check").returncode == 0
    module = ast.parse((tree / "src/holdfast/client/sync.py").read_text())
    names = [ast.unparse(each) for each in ast.walk(module) if isinstance(each, ast.FunctionDef)]
    assert any("def clear(self, *, first: int=0) -> None" in each for each in names)
    assert any("self._process.clear(first=first)" in each for each in names)


@pytest.mark.parametrize(("asynchronous", "plain"), PAIRS)
def test_docstrings_are_the_same_without_await(asynchronous: type, plain: type) -> None:
    """Editors and ``help()`` show as much of the one as of the other."""
    for name, member in vars(plain).items():
        if name.startswith("_"):
            continue
        text = inspect.getdoc(getattr(plain, name)) or ""
        assert "await " not in text.replace("is awaited", ""), name
        if inspect.isfunction(member):
            first = (inspect.getdoc(getattr(asynchronous, name)) or "").partition("\n")[0]
            assert text.startswith(first.replace("await ", "")), name
            assert text, name


@pytest.mark.parametrize(("asynchronous", "plain"), PAIRS)
def test_properties_and_attributes_are_the_same(asynchronous: type, plain: type) -> None:
    declared = {name for name in inspect.get_annotations(asynchronous) if name[0] != "_"}
    declared |= {n for n, each in vars(asynchronous).items() if isinstance(each, property)}
    assert declared == {n for n, each in vars(plain).items() if isinstance(each, property)}


def test_each_says_which_of_the_two_it_is(hf: holdfast.SyncClient) -> None:
    process = hf.spawn("true", group="unit")
    assert repr(hf).startswith("<holdfast.SyncClient session=")
    assert repr(process).startswith("<holdfast.SyncProcess proc-")
    assert repr(hf.group("unit")).startswith("<holdfast.SyncGroup 'unit'")
    assert repr(holdfast.SyncToolset(hf)).startswith("<holdfast.SyncToolset native")
    process.wait(30)


def test_a_toolset_needs_the_client_of_its_kind(hf: holdfast.SyncClient) -> None:
    with pytest.raises(holdfast.BadRequest, match="SyncToolset takes a SyncClient"):
        holdfast.SyncToolset(hf._client)  # type: ignore[arg-type]
