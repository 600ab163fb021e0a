"""The programs of this package that others start, each by its path.

By path, and without site-packages where they can do without: that takes a third of the time, and
nothing that is installed takes the place of a module of theirs.
"""

from __future__ import annotations

import os
import sys

from .errors import KeeperError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def keeper_program() -> list[str]:
    """The command of a keeper: isolated from the environment and from site-packages."""
    if not sys.executable:
        raise KeeperError(
            "this Python does not know its own interpreter, so no keeper can be started; start one "
            "with the `holdfast` command first"
        )
    return [sys.executable, "-I", "-S", os.path.join(_PACKAGE, "keeper", "__main__.py")]


def watcher_program() -> list[str]:
    """The command of a watcher, which uses packages that are installed."""
    return [sys.executable, "-I", os.path.join(_PACKAGE, "watcher", "__main__.py")]


def pane_program() -> list[str]:
    """The program of a pane of tmux, which becomes the command."""
    return [sys.executable, "-I", "-S", os.path.join(_PACKAGE, "keeper", "modes", "tmux_pane.py")]


def docker_program() -> list[str]:
    """The runner, which the keeper has in place of a process that is in a container."""
    return [sys.executable, "-I", "-S", os.path.join(_PACKAGE, "runners", "docker", "runner.py")]


def cli_program() -> list[str]:
    """The command line, by its whole path: the agents that start it often have another PATH."""
    import shutil

    if os.environ.get("UV"):  # run by uvx, whose environments do not last
        return ["uvx", "--from", "holdfast-agents[mcp]", "holdfast"]
    beside = os.path.join(os.path.dirname(sys.executable), "holdfast")
    found = beside if os.access(beside, os.X_OK) else shutil.which("holdfast")
    return [found] if found else [sys.executable, "-m", "holdfast"]
