"""Leaves something behind that has another pid, session and group every millisecond.

With an empty environment. It writes its pid into the file that is given, each time, and gives up
after a minute. Then this process waits.
"""

import os
import signal
import sys

HOPPER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
until = time.monotonic() + 60
while time.monotonic() < until:
    if os.fork():
        os._exit(0)
    os.setsid()
    os.pwrite(file, b"%10d" % os.getpid(), 0)
    time.sleep(0.001)
"""

if os.fork() == 0:
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.execve(sys.executable, [sys.executable, "-ISc", HOPPER, sys.argv[1]], {})
while not os.path.exists(sys.argv[1]):
    signal.sigtimedwait([], 0.01)
print("ready", flush=True)
while True:
    signal.pause()
