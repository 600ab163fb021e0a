"""Reads its stdin to the end once a gate is open, then says how much and what it was.

reads_when_told.py GATE: opens the FIFO (which waits for its other end), reads, prints length and
SHA-256 of all it read.
"""

import hashlib
import os
import sys

print("ready", flush=True)
os.close(os.open(sys.argv[1], os.O_RDONLY))
digest, total = hashlib.sha256(), 0
while data := os.read(0, 1 << 16):
    digest.update(data)
    total += len(data)
print(total, digest.hexdigest(), flush=True)
