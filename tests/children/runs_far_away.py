"""A runner: runs the process of a keeper as a job of ``far_away.py``.

It does as `keeper.modes.runner` says. What it is asked for is a table: the far socket and the
command there, its environment, and a trick to try its keeper with: ``dies first`` (before it has
begun anything), ``dies`` (each time), ``stuck`` (once it is to kill what it runs), or ``lingers``
(when its job has ended).
"""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import time
from typing import Any

FD_STORE = 3
asked: dict[str, Any] = json.loads(os.environ["HOLDFAST_RUNNER"])
base = f"{asked['directory']}/{asked['handle']}"


def write(suffix: str, what: dict[str, Any]) -> None:
    with open(os.open(f"{base}{suffix}.new", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        json.dump(what, file)
    os.rename(f"{base}{suffix}.new", f"{base}{suffix}")


def read(suffix: str) -> dict[str, Any]:
    try:
        with open(f"{base}{suffix}") as file:
            return dict(json.load(file))
    except FileNotFoundError:
        return {}


def connect(do: str, **more: Any) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(place["socket"])
    link.sendall(json.dumps({"name": asked["handle"], "do": do, **more}).encode() + b"\n")
    return link


def ask(do: str, **more: Any) -> dict[str, Any]:
    with connect(do, **more) as link, link.makefile() as answer:
        return dict(json.loads(answer.readline()))


def only_one() -> None:
    """No other runner of this process may be alive."""
    lock = os.open(f"{base}.place", os.O_RDONLY)  # for as long as we live
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        ask("complain", about="two runners")


def pass_on(number: int, frame: object) -> None:
    if number == signal.SIGWINCH:
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, b"\0" * 8)
        rows, columns = struct.unpack("HHHH", size)[:2]
        ask("size", rows=rows, columns=columns)
    else:
        ask("signal", number=number)


def input_link() -> socket.socket:
    """The one that stdin goes through; in the store of descriptors it outlives a runner."""
    fd_store = socket.socket(fileno=os.dup(FD_STORE))
    try:
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        _, ancillary, _, _ = fd_store.recvmsg(1, socket.CMSG_LEN(4), flags)
        return socket.socket(fileno=struct.unpack("i", ancillary[0][2])[0])
    except BlockingIOError:
        link = connect("input")
        socket.send_fds(fd_store, [b"."], [link.fileno()])
        return link


def carry() -> None:
    """Input there, output here, until all of the output is here."""
    begin = [int(size) for size in os.environ.get("HOLDFAST_LOG", "0,0").split(",")]
    streams = ["stdout", "stderr"] if place["separate"] else ["stdout"]
    links = {
        connect("output", stream=stream, **{"from": begin[number]}): 1 + number
        for number, stream in enumerate(streams)
    }
    sources: list[Any] = list(links)
    there = None
    if place["stdin"]:
        there = input_link()
        sources.append(0)
    while links:
        ready, _, _ = select.select(sources, [], [])
        for source in ready:
            if source == 0:
                assert there is not None
                # In one step where that can be: what is only in our memory is lost with us. The
                # Enter key would be a newline at the terminal that jobs do not have.
                if place["tty"]:
                    typed = os.read(0, 4096)
                    while not typed:  # our terminal is gone
                        signal.pause()
                    there.sendall(typed.replace(b"\r", b"\n"))
                elif os.splice(0, there.fileno(), 1 << 16) == 0:
                    there.shutdown(socket.SHUT_WR)
                    sources.remove(0)
                continue
            data = source.recv(1 << 14)
            if not data:
                sources.remove(source)
                del links[source]
            while data:
                try:
                    data = data[os.write(links[source], data) :]
                except OSError:  # the same
                    signal.pause()


def end() -> None:
    """Carry on to the end of the job, and write down how that was."""
    stop = int(os.environ.get("HOLDFAST_STOP", "0"))
    if place["trick"] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    while stop == signal.SIGKILL and place["trick"] == "stuck":
        time.sleep(1000)
    if stop:
        ask("signal", number=stop)
    carry()
    code = ask("state")["code"]
    how = {"code": code, "signal": None} if code >= 0 else {"code": None, "signal": -code}
    write(".end", {**how, "out_of_memory": code == 99, "at": time.time(), "error": None})


if asked.get("again"):
    place = read(".place")
else:
    if asked["trick"] == "dies first":
        os.kill(os.getpid(), signal.SIGKILL)
    place = {name: asked[name] for name in ("socket", "separate", "stdin", "tty", "trick")}
    write(".place", place)
if not place or (asked.get("again") and not read(".end") and not ask("look")["there"]):
    write(".runner", {"error": "its runner was killed before it had begun"})
    sys.exit(125)
only_one()
for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "WINCH"):
    signal.signal(signal.Signals[f"SIG{name}"], pass_on)
if not read(".end"):
    if not asked.get("again"):
        ask("start", **{name: asked[name] for name in ("command", "env", "stdin", "separate")})
    fds = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1]
    container = f"far-{asked['handle']}"
    write(".runner", {"container": container, "ports": {"3000": 49153}, "descriptors": fds})
    end()
    while place["trick"] == "lingers":
        signal.pause()
ask("remove")
