"""What the documents name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The names that a page's headings can be linked by."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path) if path else page
        assert other.exists(), target
        if anchor:
            assert anchor in anchors(other), target


def test_every_test_that_the_compatibility_table_names_exists() -> None:
    tests = ROOT / "tests"
    written = {
        name
        for file in tests.rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    files = {file.name for file in tests.rglob("test_*.py")}
    table = (ROOT / "docs" / "compatibility.md").read_text()
    named = set(re.findall(r"`(?:tests/(?:\w+/)?)?(test_\w+(?:\.py)?)`", table))
    assert len(named) > 100
    assert named <= written | files


def test_every_test_that_the_guarantees_name_exists() -> None:
    """Each promise names its proof, file and function."""
    tests = ROOT / "tests"
    written = {
        f"{file.name}::{name}"
        for file in tests.rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    page = (ROOT / "docs" / "guarantees.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "| test |" not in line]
    assert len(rows) > 40
    assert [row for row in rows if not re.search(r"`test_\w+\.py::test_\w+`", row)] == []
    named = set(re.findall(r"`(test_\w+\.py::test_\w+)`", page))
    assert named - written == set()
