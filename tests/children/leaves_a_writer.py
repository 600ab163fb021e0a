"""Ends with code 6 while a grandchild holds its stdout, and writes to it once the gate is open."""

import os
import signal
import sys

signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal sends it when its leader ends
print("ready", flush=True)
if os.fork() == 0:
    os.setsid()
    open(sys.argv[1]).close()
    os.write(1, b"from the grandchild\n")
    os._exit(0)
print("parent ends", flush=True)
sys.exit(6)
