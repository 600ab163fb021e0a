"""The tmux server of a home, asked directly."""

from __future__ import annotations

import subprocess

from holdfast import SyncClient
from holdfast.linux.kernel import all_processes
from tests.proc_files import proc_file


def tmux(hf: SyncClient, *arguments: str) -> str:
    done = subprocess.run(
        ["tmux", "-S", hf.home.tmux_socket, *arguments], capture_output=True, text=True, timeout=30
    )
    return done.stdout.strip()


def server_pid(hf: SyncClient) -> int:
    return int(tmux(hf, "display-message", "-p", "#{pid}"))


def servers(hf: SyncClient) -> list[int]:
    """The pids of tmux servers of this home."""
    found = []
    for process in all_processes():
        command = proc_file(process.pid, "cmdline")
        if command.startswith(b"tmux") and hf.home.tmux_socket.encode() in command:
            found.append(process.pid)
    return found
