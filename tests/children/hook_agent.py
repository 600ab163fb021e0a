"""A program that starts hooks as Claude Code does: in sessions of their own, with sockets as stdio.

Each line on stdin is a JSON object, `command` and `input`. It prints an object for each hook that
began, with its `pid`, and one for each that ended, with its `code`, `out` and `text` too.
"""

import json
import os
import socket
import subprocess
import sys
import threading

said = threading.Lock()


def say(**about: object) -> None:
    with said:
        print(json.dumps(about), flush=True)


def whole(end: socket.socket) -> str:
    with end, end.makefile("rb") as file:
        return file.read().decode()


def run(number: int, command: list[str], given: str) -> None:
    out, out_of_hook = socket.socketpair()
    text, text_of_hook = socket.socketpair()
    hook: subprocess.Popen[str] = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=out_of_hook.fileno(),
        stderr=text_of_hook.fileno(),
        start_new_session=True,
        env={**os.environ, "CLAUDE_PROJECT_DIR": os.getcwd()},
        text=True,
    )
    out_of_hook.close()
    text_of_hook.close()
    assert hook.stdin is not None
    with hook.stdin:
        hook.stdin.write(given)
    say(number=number, pid=hook.pid)
    printed = whole(text)
    shown = whole(out)
    say(number=number, pid=hook.pid, code=hook.wait(), out=shown, text=printed)


for number, line in enumerate(sys.stdin):
    asked = json.loads(line)
    given = json.dumps(asked["input"])
    threading.Thread(target=run, args=(number, asked["command"], given), daemon=True).start()
