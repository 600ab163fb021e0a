"""The Python in README and guide does what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What each prints at least; the ends of processes are told in words of their own.
EXAMPLES = {
    "README.md": [r"Exit code: 1\n(.*\n)*\| 12 passed, 1 failed"],
    "docs/guide.md": [
        r"\| 12 passed, 1 failed\n(.*\n)*True Serving HTTP",
        r"^completed 0 Hello, Ada\.$",
        r"^line rm: remove regular empty file 'old.py'\?\n(.*\n)*rm: remove .* n$",
        r"^True Serving HTTP .*\n(.*\n)*\| E501 line too long\n(.*\n)*\d+ \[PORT\]",
        r"^\d+ \{'limit': 536870912, 'by': '[a-z0-9-]+'\}$",
        r"\"exit_code\": 3",
        r"^1 \[Background Process Completed\]\n(.*\n)*\| 12 passed, 1 failed$",
    ],
}


def blocks(page: str) -> list[str]:
    """What can be run everywhere: the others say, after `python`, what they need."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)


@pytest.mark.parametrize("page", EXAMPLES)
def test_each_example_is_tried(page: str) -> None:
    assert len(blocks(page)) == len(EXAMPLES[page])


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("page", "number"), [(page, n) for page, says in EXAMPLES.items() for n in range(len(says))]
)
def test_an_example_prints_what_it_says(page: str, number: int, tmp_path: Path, port: int) -> None:
    (tmp_path / "old.py").touch()
    program = blocks(page)[number].replace("8123", str(port))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pattern = EXAMPLES[page][number].replace("PORT", str(port))
    assert re.search(pattern, done.stdout, re.M), done.stdout
