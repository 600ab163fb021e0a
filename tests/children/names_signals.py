"""Prints the name of each signal it gets, and goes on; SIGTERM ends it."""

import signal

NAMED = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)

signal.pthread_sigmask(signal.SIG_BLOCK, NAMED)
print("ready", flush=True)
while (number := signal.sigwait(NAMED)) != signal.SIGTERM:
    print(signal.Signals(number).name, flush=True)
