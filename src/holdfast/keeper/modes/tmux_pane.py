"""The program that tmux starts in a pane: asks the keeper for the command, then becomes it.

So tmux is never given the command, its arguments or its environment (which would show in lists of
processes, be cut at 16 KiB, and pass through tmux's own parser), and the log has the first byte
because the keeper answers only once the pane is piped.

It is a child of what tmux started that becomes the command; the parent stays, as a `cat` that has
nothing to read. tmux closes the terminal of a pane whose own process has ended, and with it what
the kernel has not passed on yet. As long as the parent is there it closes it when nobody else has
it open any more, and then everything has been read. The parent also leaves the command unreaped,
so that how it ended can be seen by a keeper that comes later.
"""

from __future__ import annotations

import _socket  # the part of socket that is needed: the rest takes longer than our fork
import fcntl
import json
import os
import resource
import signal
import sys
import termios
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Not how to reach the server: a script that ends "its" tmux would end everybody's terminals.
_OF_TMUX = ("TERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION")
_NO_COMMAND, _CANNOT_RUN = 125, 126
_PATIENCE, _SOON = 5.0, 0.01


def main(argv: list[str]) -> int:
    home, handle, token = argv
    parent = os.getpid()
    # The command is to lead a session with this terminal, so we let go of it. That hangs up on us.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fcntl.ioctl(0, termios.TIOCNOTTY)
    stays, staying = os.pipe()  # which ends when the parent is what it stays
    if os.fork():
        _stay(home, handle)
    code = _NO_COMMAND
    try:
        os.close(staying)
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        code = _become(home, handle, token, stays)
    finally:
        if os.getppid() == parent:
            os.kill(parent, signal.SIGKILL)
        if code == _NO_COMMAND:
            _close_pane()
    return code


def _close_pane() -> None:
    """Take our pane along: nobody waits for us, and tmux would keep a dead pane for ever."""
    address, server, _ = os.environ["TMUX"].rsplit(",", 2)
    close = f"kill-pane -t {os.environ['TMUX_PANE']}"
    # Another server at this address has another pane of that name.
    ours = ["if-shell", "-F", f"#{{==:#{{pid}},{server}}}", close]
    command = ["tmux", "-S", address, *ours]
    try:
        os.execv(os.readlink(f"/proc/{server}/exe"), command)
    except OSError:
        os.execvp("tmux", command)  # it was replaced by another version meanwhile


def _stay(home: str, handle: str) -> None:
    """Be small, hold nothing, and end only when we are killed.

    Our environment says where we are to a keeper that tmux does not answer.
    """
    _reset_signals()
    env = {
        "HOLDFAST_HOME": home,
        "HOLDFAST_PANE": handle,
        "HOLDFAST_TTY": os.readlink("/proc/self/fd/0"),
    }
    env |= {name: os.environ[name] for name in ("PATH", "TMUX_PANE") if name in os.environ}
    reader, writer = os.pipe()
    nowhere = os.open("/dev/null", os.O_RDWR)
    for fd, number in ((reader, 0), (nowhere, 1), (nowhere, 2)):
        os.dup2(fd, number)
    os.set_inheritable(writer, True)  # so that what it reads from has no end
    os.chdir("/")
    try:
        os.execvpe("cat", ["cat"], env)
    except OSError:  # there is none
        os.execve(sys.executable, [sys.executable, "-ISc", "import signal; signal.pause()"], env)


def _become(home: str, handle: str, token: str, stays: int) -> int:
    os.chdir(home)  # the way to a socket whose path is too long for an address
    keeper = _connect()
    peer = keeper.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, uid, gid
    if int.from_bytes(peer[4:8], sys.byteorder) != os.geteuid():
        return _NO_COMMAND  # no keeper of ours, so nothing to do as it says
    keeper.sendall(_line({"pane": handle, "token": token}))
    answer = b""
    while not answer.endswith(b"\n"):
        part = keeper.recv(1 << 16)
        if not part:
            return _NO_COMMAND  # whoever started us is gone, and will not be asked again
        answer += part
    launch = json.loads(answer)
    env = {name: os.environ[name] for name in _OF_TMUX if name in os.environ} | launch["env"]
    os.read(stays, 1)
    _reset_signals()
    begun = f"{home}/processes/{handle}.begun"
    try:
        os.close(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        os.chdir(launch["cwd"])
        os.umask(launch["umask"])
        _contain(launch["contain"])
        os.execve(launch["program"], launch["argv"], env)
    except (OSError, ValueError, MemoryError) as error:
        if os.path.exists(begun):
            os.unlink(begun)
        why = error.errno if isinstance(error, OSError) else None
        keeper.sendall(_line({"failed": why, "why": str(error) or "its limit of memory"}))
    return _CANNOT_RUN


def _connect() -> _socket.socket:
    """Reach the keeper, also while its socket is made anew because somebody deleted it."""
    keeper = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            keeper.connect("keeper.sock")
            return keeper
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > until:
                raise
            time.sleep(_SOON)


def _contain(how: dict[str, Any]) -> None:
    """Be where, and limited as, the command is to be."""
    for group in how["groups"]:
        name = "tasks" if os.path.exists(f"{group}/tasks") else "cgroup.procs"
        with open(f"{group}/{name}", "w") as file:
            file.write("0")
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(how["oom"]))
    except OSError:
        pass  # where /proc is read-only
    if how["affinity"] is not None:
        os.sched_setaffinity(0, how["affinity"])
    for number in how["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    for number, soft, hard in how["rlimits"]:  # of memory too, so as the last
        try:
            resource.setrlimit(number, (soft, hard))
        except ValueError:
            pass  # tmux was started with less than that


def _reset_signals() -> None:
    """Python ignores some signals and tmux others; a program is to find none of that."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # those that the C library keeps for itself
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _line(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
