"""Has a child and a grandchild in its own group, both deaf to SIGTERM, and names them.

It ends at SIGTERM itself, and so leaves the two behind.
"""

import os
import signal

read, write = os.pipe()


def deaf() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(write, f"{os.getpid()}\n".encode())
    while True:
        signal.pause()


if os.fork() == 0:
    if os.fork() == 0:
        deaf()
    deaf()
names: list[str] = []
while len(names) < 2:
    names += os.read(read, 100).decode().split()
print("family", *names, flush=True)
print("ready", flush=True)
while True:
    signal.pause()
