"""Listens on a TCP port and says so: "port NUMBER PID" (the pid of who serves), then "ready".

serves_tcp.py WAY HOST [PORT]: the ways are the functions below. It never takes a connection.
"""

import os
import signal
import socket
import sys
import time

way, host = sys.argv[1:3]
port = int(sys.argv[3]) if len(sys.argv) > 3 else 0
MPTCP = 262


def listening(
    *, reuse: bool = False, only_v6: bool | None = None, protocol: int = 0
) -> socket.socket:
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(kind, socket.SOCK_STREAM, protocol)
    if reuse:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if only_v6 is not None:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
    server.bind((host, port))
    server.listen()
    return server


def serve(server: socket.socket) -> None:
    print("port", server.getsockname()[1], os.getpid(), flush=True)
    print("ready", flush=True)
    while True:
        signal.pause()


def itself() -> None:
    serve(listening())


def sharing() -> None:
    serve(listening(reuse=True))


def without_ipv4() -> None:
    serve(listening(only_v6=True))


def with_ipv4() -> None:
    serve(listening(only_v6=False))


def multipath() -> None:
    serve(listening(protocol=MPTCP))


def child() -> None:
    """A child opens the socket, and only it ever has it."""
    if os.fork() == 0:
        serve(listening())
    signal.pause()


def grandchild() -> None:
    """A socket that was opened here, and now is a grandchild's alone."""
    server = listening()
    read, write = os.pipe()
    if os.fork() == 0 and os.fork() == 0:
        os.close(write)
        os.read(read, 1)  # ends when the others have closed theirs
        serve(server)
    server.close()
    os.close(write)
    signal.pause()


def passed_on() -> None:
    """A socket that at each line becomes another descendant's, eight times, and nobody else's."""
    server = listening()
    if os.fork() != 0:
        server.close()
        signal.pause()
    print("ready", flush=True)
    while os.read(0, 1):
        for _ in range(8):
            time.sleep(0.002)
            if os.fork() != 0:
                os._exit(0)
        print("passed on", flush=True)


def workers() -> None:
    """Opened here and kept, while two children have it as well."""
    server = listening()
    for _ in range(2):
        if os.fork() == 0:
            signal.pause()
    serve(server)


def daemon() -> None:
    """A grandchild in a session of its own, whose parent is gone."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            serve(listening())
        os._exit(0)
    signal.pause()


def unmarked() -> None:
    """A child in a session of its own, and without any environment."""
    if os.fork() == 0:
        os.setsid()
        os.execve(sys.executable, [sys.executable, "-IS", __file__, "itself", *sys.argv[2:]], {})
    signal.pause()


globals()[way]()
