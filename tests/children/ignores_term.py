"""Ignores SIGTERM, and other signals that are named, and says so."""

import signal
import sys

for name in ("TERM", *sys.argv[1:]):
    signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
