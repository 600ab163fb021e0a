"""What tmux starts in a pane: asks the keeper for the command, then becomes it.

So tmux is never given the command, its arguments or its environment (which would show in lists of
processes, be cut at 16 KiB, and pass through tmux's own parser), the log has the first byte because
the keeper answers only once the pane is piped, and the pid and exit are the command's own.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import sys

# Not how to reach the server: a script that ends "its" tmux would end everybody's terminals.
_OF_TMUX = ("TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION")


def main(argv: list[str]) -> int:
    home, handle, token = argv
    os.chdir(home)  # the way to a socket whose path is too long for an address
    keeper = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    keeper.connect("keeper.sock")
    answers = keeper.makefile("rb")
    keeper.sendall(_line({"pane": handle, "token": token}))
    answer = answers.readline()
    if not answer:
        return 125  # whoever started us is gone, and will not be asked again
    launch = json.loads(answer)
    env = {name: os.environ[name] for name in _OF_TMUX if name in os.environ} | launch["env"]
    # Python ignores some signals and tmux others; the command is to find none of that.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # those that the C library keeps for itself
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    begun = f"{home}/processes/{handle}.begun"
    try:
        os.close(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        os.chdir(launch["cwd"])
        os.umask(launch["umask"])
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (launch["nofile"], hard))
        os.execve(launch["program"], launch["argv"], env)
    except (OSError, ValueError) as error:
        if os.path.exists(begun):
            os.unlink(begun)
        why = error.errno if isinstance(error, OSError) else None
        keeper.sendall(_line({"failed": why, "why": str(error)}))
    return 126


def _line(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
