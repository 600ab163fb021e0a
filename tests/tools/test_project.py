"""How a project is tested and built: found in its files, and run as it is, in each ecosystem."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from holdfast import BadDirectory, SyncClient, Toolset, Unavailable
from holdfast.tools._project import find_command
from tests.toolcalls import call, toolset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.tools._project import Kind

pytestmark = pytest.mark.shared_keeper


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def tools(hf: SyncClient) -> Toolset:
    return toolset(hf, "dodo")


def write(project: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content)
        (project / name).write_text(text)


def need(program: str) -> None:
    if shutil.which(program) is None:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {program}")
        pytest.skip(f"{program} is not installed")


def stand_in(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that says how it was called, in the place of a compiler that is not ours to try."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    (folder / program).write_text(f'#!/bin/sh\necho "{program} $*"\n')
    (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


# -- each ecosystem, run -------------------------------------------------------------------------


def test_a_node_project_is_tested_and_built_by_npm(
    tools: Toolset, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """package.json's scripts run with their arguments, and a failing one is told as it is."""
    need("npm")
    monkeypatch.setenv("npm_config_update_notifier", "false")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
    scripts = {"test": "node test.js", "build": "node -e 'console.log(6 * 7); process.exit(3)'"}
    write(project, {"package.json": {"name": "web", "scripts": scripts}})
    write(project, {"test.js": "console.log('given', process.argv.slice(2).join('+'))"})
    tested = call(tools, "run_test", cwd=str(project), args=["--only", "a b"])
    assert tested["cmd"] == "npm test -- --only 'a b'"
    assert tested["found_in"] == "package.json"
    assert "given --only+a b" in tested["output"]
    assert (tested["exit_code"], tested["passed"]) == (0, True)
    built = call(tools, "run_build", cwd=str(project))
    assert built["cmd"] == "npm run build"
    assert (built["status"], built["exit_code"]) == ("failed", 3)
    assert "42" in built["output"]


@pytest.mark.weight(5)
def test_a_python_project_is_tested_by_pytest(
    tools: Toolset, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pytest runs in the project's directory; a failing test is its exit code and its output."""
    here = os.path.dirname(sys.executable)
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    write(project, {"pyproject.toml": '[project]\nname = "sums"\nversion = "1"\n'})
    write(project, {"sums.py": "def add(a, b):\n    return a + b\n"})
    test = "import sums\n\ndef test_adds():\n    assert sums.add(2, 2) == 5\n"
    write(project, {"test_sums.py": test})
    failed = call(tools, "run_test", cwd=str(project))
    assert failed["cmd"] == "python -m pytest"
    assert (failed["exit_code"], failed["passed"]) == (1, False)
    assert "assert 4 == 5" in failed["output"]
    write(project, {"test_sums.py": test.replace("5", "4")})
    passed = call(tools, "run_test", cwd=str(project), args="-q -k adds")
    assert passed["cmd"] == "python -m pytest -q -k adds"
    assert (passed["exit_code"], passed["passed"]) == (0, True)


def test_a_makefile_is_made(tools: Toolset, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its targets test and build are run, with variables as arguments."""
    need("make")
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        monkeypatch.delenv(name, raising=False)  # of the make that runs the tests
    makefile = "build: ; @echo made $(WHAT)\ntest: build\n\t@echo tested; exit 1\n"
    write(project, {"Makefile": makefile})
    tested = call(tools, "run_test", cwd=str(project))
    assert (tested["cmd"], tested["found_in"]) == ("make test", "Makefile")
    assert (tested["exit_code"], tested["passed"]) == (2, False)
    assert tested["output"].startswith("made\ntested\n")
    built = call(tools, "run_build", cwd=str(project), args=["WHAT=it all"])
    assert (built["exit_code"], built["output"]) == (0, "made it all\n")


@pytest.mark.parametrize(
    ("program", "file", "tests", "builds"),
    [
        ("go", "go.mod", "go test ./...", "go build ./..."),
        ("cargo", "Cargo.toml", "cargo test", "cargo build"),
    ],
)
def test_go_and_rust_projects_are_tested_and_built_by_their_tools(
    tools: Toolset,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    file: str,
    tests: str,
    builds: str,
) -> None:
    """What is run is what their tools are called with; a script stands in for the tool itself."""
    stand_in(program, tmp_path, monkeypatch)
    write(project, {file: ""})
    tested = call(tools, "run_test", cwd=str(project), args=["-v"])
    assert (tested["found_in"], tested["output"]) == (file, f"{tests} -v\n")
    built = call(tools, "run_build", cwd=str(project))
    assert (built["found_in"], built["output"]) == (file, f"{builds}\n")


def test_a_project_without_a_command_is_told_how_to_go_on(tools: Toolset, project: Path) -> None:
    """Nothing is started, and the message says what was looked for and what to give instead."""
    for tool, word in (("run_test", "test"), ("run_build", "build")):
        result = call(tools, tool, cwd=str(project))
        assert result.is_error
        assert result["code"] == "unavailable"
        assert result["error"].startswith(f"no {word} command was found in {project}: ")
        for name in ("package.json", "pyproject.toml", "Makefile", "go.mod", "Cargo.toml"):
            assert name in result["error"]
        assert "give it as 'cmd'" in result["error"]
    assert call(tools, "list_processes")["processes"] == []


def test_a_program_that_is_not_installed_is_named(
    tools: Toolset, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    write(project, {"Cargo.toml": ""})
    result = call(tools, "run_build", cwd=str(project))
    assert result["code"] == "not_executable"
    assert "'cargo'" in result["error"]


# -- what is found ---------------------------------------------------------------------------------

TEST = {"scripts": {"test": "jest", "build": "tsc"}}


@pytest.mark.parametrize(
    ("lock", "test", "build", "with_more"),
    [
        (None, "npm test", "npm run build", "npm test -- -x"),
        ("package-lock.json", "npm test", "npm run build", "npm test -- -x"),
        ("npm-shrinkwrap.json", "npm test", "npm run build", "npm test -- -x"),
        ("pnpm-lock.yaml", "pnpm test", "pnpm run build", "pnpm test -x"),
        ("yarn.lock", "yarn test", "yarn run build", "yarn test -x"),
        ("bun.lock", "bun run test", "bun run build", "bun run test -x"),
        ("bun.lockb", "bun run test", "bun run build", "bun run test -x"),
    ],
)
def test_the_lock_file_says_who_runs_the_scripts(
    project: Path, lock: str | None, test: str, build: str, with_more: str
) -> None:
    """npm without one; only npm needs a dash before arguments for the script."""
    write(project, {"package.json": TEST, **({lock: ""} if lock else {})})
    found = find_command("test", str(project))
    assert " ".join(found.words) == test
    assert " ".join(found.with_more(["-x"])) == with_more
    assert " ".join(find_command("build", str(project)).words) == build


def test_a_declared_package_manager_comes_before_lock_files(project: Path) -> None:
    write(project, {"package.json": {**TEST, "packageManager": "pnpm@9.1.0"}, "yarn.lock": ""})
    assert find_command("test", str(project)).words == ["pnpm", "test"]


@pytest.mark.parametrize(
    ("lock", "test", "build"),
    [
        ("uv.lock", "uv run pytest", "uv build"),
        ("poetry.lock", "poetry run pytest", "poetry build"),
        ("pdm.lock", "pdm run pytest", "pdm build"),
        (".venv/bin/python", ".venv/bin/python -m pytest", ".venv/bin/python -m build"),
    ],
)
def test_a_python_project_is_run_in_its_own_environment(
    project: Path, lock: str, test: str, build: str
) -> None:
    write(project, {"pyproject.toml": "[build-system]\nrequires = []\n", lock: ""})
    assert " ".join(find_command("test", str(project)).words) == test
    assert " ".join(find_command("build", str(project)).words) == build


@pytest.mark.parametrize(
    ("files", "kind", "words"),
    [
        # What a project says by name comes before what its kind does by custom.
        ({"Makefile": "test:\n", "pyproject.toml": "[project]\n"}, "test", "make test"),
        ({"Makefile": "check:\n", "Cargo.toml": ""}, "test", "cargo test"),
        ({"Makefile": "check:\n"}, "test", "make check"),
        ({"Makefile": "all: a.o\n"}, "build", "make all"),
        ({"package.json": TEST, "Makefile": "test:\n"}, "test", "npm test"),
        # A file that does not help is passed over.
        ({"package.json": {"scripts": {}}, "go.mod": ""}, "test", "go test ./..."),
        ({"package.json": "{", "go.mod": ""}, "test", "go test ./..."),
        ({"package.json": [], "go.mod": ""}, "test", "go test ./..."),
        ({"pyproject.toml": "[tool.ruff]\n", "go.mod": ""}, "test", "go test ./..."),
        ({"pyproject.toml": "[project]\n", "go.mod": ""}, "build", "go build ./..."),
        ({"pyproject.toml": "= ]", "Cargo.toml": ""}, "build", "cargo build"),
    ],
)
def test_the_best_of_several_files_is_used(
    project: Path, files: dict[str, Any], kind: Kind, words: str
) -> None:
    write(project, files)
    assert " ".join(find_command(kind, str(project)).words) == words


@pytest.mark.parametrize(
    "makefile",
    [
        "test:\n",
        "test: build\n",
        "lint test : a\n",
        "test::\n",
        "a: b\n\techo\n\ntest: ; true\n",
        "a \\\n  test: b\n",
        "test: FLAGS = -v\ntest:\n",
    ],
)
def test_a_target_is_found_however_it_is_written(project: Path, makefile: str) -> None:
    write(project, {"Makefile": makefile})
    assert find_command("test", str(project)).words == ["make", "test"]


@pytest.mark.parametrize(
    "makefile",
    [
        ".PHONY: test\n",
        "test := 1\n",
        "test ::= 1\n",
        "test = a:b\n",
        "# test:\n",
        "\ttest: a\n",
        "a: test\n",
        "test-all:\n",
    ],
)
def test_what_only_looks_like_a_target_is_none(project: Path, makefile: str) -> None:
    write(project, {"Makefile": makefile})
    with pytest.raises(Unavailable, match="Makefile has no target 'test' or 'check'"):
        find_command("test", str(project))


def test_the_test_that_npm_init_writes_is_none(project: Path) -> None:
    """It only says that there is none, and fails."""
    script = 'echo "Error: no test specified" && exit 1'
    write(project, {"package.json": {"scripts": {"test": script, "dev": "vite"}}})
    with pytest.raises(Unavailable, match=r"no script 'test' \(it has dev\)"):
        find_command("test", str(project))


def test_files_that_do_not_help_are_told(project: Path) -> None:
    """Each with what is wrong with it, in the one line of the message."""
    write(project, {"package.json": "{", "pyproject.toml": "=", "Makefile": "run:\n"})
    with pytest.raises(Unavailable) as raised:
        find_command("build", str(project))
    message = str(raised.value)
    assert "package.json is no JSON" in message
    assert "pyproject.toml is no TOML" in message
    assert "Makefile has no target 'build' or 'all'" in message
    assert "\n" not in message


def test_a_directory_that_is_not_there_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(BadDirectory, match="'cwd' that exists"):
        find_command("test", str(tmp_path / "nowhere"))
