"""The command with which a project tests or builds itself, from the files in its directory.

What a project says by name comes first: a script in package.json, a target of its Makefile. Then
what its kind does by custom (pyproject.toml, go.mod, Cargo.toml), and last what a Makefile calls
otherwise: `check`, `all`. A file that does not help is told of if no other one does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from dataclasses import dataclass

from ..core.errors import BadDirectory, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal

    Kind = Literal["test", "build"]

_FILES = "package.json, pyproject.toml, Makefile, go.mod or Cargo.toml"
_LARGEST = 4 << 20

# Whose lock file it is; the first that is there.
_NODE = {
    "pnpm-lock.yaml": "pnpm",
    "yarn.lock": "yarn",
    "bun.lock": "bun",
    "bun.lockb": "bun",
    "package-lock.json": "npm",
    "npm-shrinkwrap.json": "npm",
}
_PYTHON = {"uv.lock": "uv", "poetry.lock": "poetry", "pdm.lock": "pdm"}
_NO_SCRIPT = "no test specified"  # what `npm init` writes as a test

_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")  # in the order in which make looks
# The names before the colon of a rule, which is no assignment; recipes begin with a tab.
_RULE = re.compile(r"^([^\s#:=][^#:=\n]*?)[ \t]*::?(?![:=])", re.MULTILINE)
_BY_NAME = {"test": ("test", "tests"), "build": ("build",)}
_OTHERWISE = {"test": "check", "build": "all"}


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run, the file that says so, and what has to stand before further arguments."""

    words: list[str]
    source: str
    before_more: tuple[str, ...] = ()

    def with_more(self, more: list[str]) -> list[str]:
        return [*self.words, *self.before_more, *more] if more else self.words


def find_command(kind: Kind, directory: str, *, contained: bool = False) -> Command:
    """Find how the project in `directory` is tested or built; Unavailable says what was looked for.

    What is `contained` runs where other programs are installed than here.
    """
    if not os.path.isdir(directory):
        raise BadDirectory(f"there is no directory {directory!r}; give a 'cwd' that exists")
    project = _Project(directory, kind, contained)
    for found in project.commands():
        return found
    looked = "; ".join(project.misses) or f"there is no {_FILES}"
    raise Unavailable(
        f"no {kind} command was found in {directory}: {looked}; give it as 'cmd', or the "
        "project's directory as 'cwd'"
    )


class _Project:
    def __init__(self, directory: str, kind: Kind, contained: bool) -> None:
        self._directory = directory
        self._kind = kind
        self._contained = contained
        self.misses: list[str] = []  # files that are there and do not help

    def commands(self) -> Iterator[Command]:
        """The commands that could be run, the best first."""
        yield from self._node()
        makefile, targets = self._targets()
        for name in _BY_NAME[self._kind]:
            if name in targets:
                yield Command(["make", name], makefile)
        yield from self._python()
        if self._has("go.mod"):
            yield Command(["go", self._kind, "./..."], "go.mod")
        if self._has("Cargo.toml"):
            yield Command(["cargo", self._kind], "Cargo.toml")
        other = _OTHERWISE[self._kind]
        if other in targets:
            yield Command(["make", other], makefile)
        elif makefile:
            self.misses.append(f"{makefile} has no target {self._kind!r} or {other!r}")

    # -- package.json --------------------------------------------------------------------------

    def _node(self) -> Iterator[Command]:
        text = self._read("package.json")
        if text is None:
            return
        try:
            package = json.loads(text)
        except ValueError as error:
            self.misses.append(f"package.json is no JSON ({error})")
            return
        scripts = _table(package, "scripts")
        script = scripts.get(self._kind)
        if not isinstance(script, str) or not script.strip() or _NO_SCRIPT in script:
            others = ", ".join(name for name in scripts if name != self._kind) or "nothing else"
            self.misses.append(f"package.json has no script {self._kind!r} (it has {others})")
            return
        manager = self._node_manager(package)
        # `bun test` would be bun's own test runner, and `bun build` its bundler.
        short = self._kind == "test" and manager != "bun"
        words = [manager, "test"] if short else [manager, "run", self._kind]
        yield Command(words, "package.json", ("--",) if manager == "npm" else ())

    def _node_manager(self, package: Any) -> str:
        declared = str(package.get("packageManager", "")).partition("@")[0]
        return declared if declared in _NODE.values() else self._locked_by(_NODE) or "npm"

    # -- pyproject.toml ------------------------------------------------------------------------

    def _python(self) -> Iterator[Command]:
        text = self._read("pyproject.toml")
        if text is None:
            return
        try:
            project = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self.misses.append(f"pyproject.toml is no TOML ({error})")
            return
        tools = _table(project, "tool")
        package = "build-system" in project or "poetry" in tools
        manager = self._locked_by(_PYTHON)
        if self._kind == "build":
            if not package:
                self.misses.append("pyproject.toml has no [build-system]")
            elif manager:
                yield Command([manager, "build"], "pyproject.toml")
            else:
                yield Command([self._interpreter(), "-m", "build"], "pyproject.toml")
        elif not (package or "project" in project or "pytest" in tools):
            self.misses.append("pyproject.toml has only settings of other tools")
        elif manager:
            yield Command([manager, "run", "pytest"], "pyproject.toml")
        else:
            yield Command([self._interpreter(), "-m", "pytest"], "pyproject.toml")

    def _interpreter(self) -> str:
        for place in (".venv", "venv"):
            if self._has(f"{place}/bin/python"):
                return f"{place}/bin/python"
        return "python" if shutil.which("python") and not self._contained else "python3"

    # -- Makefile ------------------------------------------------------------------------------

    def _targets(self) -> tuple[str, set[str]]:
        """The Makefile's name and its targets, as far as they are written there by name."""
        for name in _MAKEFILES:
            text = self._read(name)
            if text is not None:
                joined = text.replace("\\\n", " ")
                return name, {word for rule in _RULE.findall(joined) for word in rule.split()}
        return "", set()

    # -- files ---------------------------------------------------------------------------------

    def _has(self, name: str) -> bool:
        return os.path.isfile(os.path.join(self._directory, name))

    def _locked_by(self, managers: dict[str, str]) -> str | None:
        return next((manager for lock, manager in managers.items() if self._has(lock)), None)

    def _read(self, name: str) -> str | None:
        if not self._has(name):
            return None
        try:
            with open(os.path.join(self._directory, name), "rb") as file:
                return file.read(_LARGEST).decode("utf-8-sig", "replace")
        except OSError as error:
            self.misses.append(f"{name} cannot be read ({error.strerror})")
            return None


def _table(data: Any, name: str) -> dict[str, Any]:
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}
