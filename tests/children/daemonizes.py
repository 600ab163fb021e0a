"""Leaves a daemon behind: forked twice, a session of its own, deaf to SIGTERM and to hangups.

The daemon's pid is printed before `ready`. Then this process waits, or ends with the code given.
"""

import os
import signal
import sys

read, write = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.write(write, str(os.getpid()).encode())
    os.close(write)
    while True:
        signal.pause()
os.close(write)
print("daemon", os.read(read, 20).decode(), flush=True)
print("ready", flush=True)
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
while True:
    signal.pause()
