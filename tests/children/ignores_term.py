"""Ignores SIGTERM, and says so."""

import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
