"""Reads one line from its terminal as the kernel edits it, and says how long it is and its sum."""

import hashlib
import os

print("ready", flush=True)
line = b""
while not line.endswith(b"\n"):
    line += os.read(0, 65536)
print(len(line), hashlib.sha256(line).hexdigest(), flush=True)
