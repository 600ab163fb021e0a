"""Takes so many MiB, a few at a time, says `ready` and waits."""

import signal
import sys

held = [b"x" * (1 << 20) for _ in range(int(sys.argv[1]))]
print("ready", flush=True)
while True:
    signal.pause()
