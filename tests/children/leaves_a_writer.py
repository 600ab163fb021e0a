"""Ends with code 6 while a grandchild holds its stdout, and writes to it once the gate is open."""

import os
import sys

print("ready", flush=True)
if os.fork() == 0:
    os.setsid()
    open(sys.argv[1]).close()
    os.write(1, b"from the grandchild\n")
    os._exit(0)
print("parent ends", flush=True)
sys.exit(6)
