"""Leaves a daemon behind that carries nothing of what it was started with.

Forked twice, a session of its own, an empty environment, deaf to SIGTERM and to hangups. Its pid is
printed before `ready`. Then this process waits, or ends with the code given.
"""

import os
import signal
import sys

DAEMON = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.write(3, str(os.getpid()).encode())
os.close(3)
while True:
    signal.pause()
"""

read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(write, 3)
    for number in range(3):
        os.dup2(null, number)
    os.closerange(4, 64)
    os.execve(sys.executable, [sys.executable, "-ISc", DAEMON], {})
os.close(write)
print("daemon", os.read(read, 20).decode(), flush=True)
print("ready", flush=True)
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
while True:
    signal.pause()
