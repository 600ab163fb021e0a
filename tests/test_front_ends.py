"""Front ends use what anybody could: no private name of another room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import holdfast

PACKAGE = Path(holdfast.__file__).parent
FILES = [
    path for room in ("tools", "mcp", "cli") for path in sorted((PACKAGE / room).rglob("*.py"))
]
STANDARD = {"_exit"}  # os._exit


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in STANDARD


def defined(module: ast.Module) -> set[str]:
    """The private names of a module's own classes: what they set on themselves, and methods."""
    own = {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}
    own |= {node.name for node in ast.walk(module) if isinstance(node, ast.AsyncFunctionDef)}
    return own | {
        node.attr
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id in ("self", "cls") and isinstance(node.ctx, ast.Store)
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nobody_reaches_into_what_is_private_elsewhere(path: Path) -> None:
    """Attributes that begin with an underscore are a file's own; so are modules, of a room."""
    if path.name == "sync.py":
        return  # written by a script, for the classes that hold one another
    module = ast.parse(path.read_text())
    own = defined(module)
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and private(node.attr):
            of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            assert of_self or node.attr in own, f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom):
            room = len(path.relative_to(PACKAGE).parts) - 1  # levels within it
            outside = node.level > room or (node.level == 0 and (node.module or "") != "")
            parts = [*(node.module or "").split("."), *(each.name for each in node.names)]
            if outside and (node.level or parts[0] == "holdfast"):
                assert not any(map(private, parts)), f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Import):
            for each in node.names:
                assert not any(map(private, each.name.split("."))), f"line {node.lineno}"
