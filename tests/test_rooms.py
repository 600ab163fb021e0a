"""The rooms keep to themselves what is theirs, beside what import-linter sees (`make check`)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent
# Where modes and runners are, and where it is told what a record may hold.
THEIRS = ("keeper/modes/", "runners/", "core/record.py")
OWN = {"mode", "runner", "docker"}


def compared(path: Path) -> Iterator[str]:
    """The comparisons in a file that ask how a record is run."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                if (
                    isinstance(side, ast.Attribute)
                    and side.attr in OWN
                    and ast.unparse(side.value).endswith("record")
                ):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}: {ast.unparse(node)}"


def test_nobody_asks_how_a_process_is_run() -> None:
    """Its capabilities say what can be done with it, its site where it is looked at."""
    files = [
        path
        for path in SOURCE.rglob("*.py")
        if not path.relative_to(SOURCE).as_posix().startswith(THEIRS)
    ]
    assert len(files) > 100
    assert [found for path in files for found in compared(path)] == []
