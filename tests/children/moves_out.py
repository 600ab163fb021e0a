"""Leaves a daemon behind that has moved to other control groups: those whose files are given.

It has a session of its own, an empty environment, and is deaf to SIGTERM and to hangups. Its pid is
printed before `ready`. Then this process waits.
"""

import os
import signal
import sys

read, write = os.pipe()
if os.fork() == 0:
    for path in sys.argv[1:]:
        with open(path, "w") as file:
            file.write("0")
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(write, 3)
    for number in range(3):
        os.dup2(null, number)
    os.closerange(4, 64)
    waits = "import os, signal; os.write(3, str(os.getpid()).encode()); os.close(3)\n"
    waits += "for n in (1, 15): signal.signal(n, signal.SIG_IGN)\nwhile True: signal.pause()"
    os.execve(sys.executable, [sys.executable, "-ISc", waits], {})
os.close(write)
print("daemon", os.read(read, 20).decode(), flush=True)
print("ready", flush=True)
while True:
    signal.pause()
