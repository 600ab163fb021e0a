"""Ends at once, with the code it was given, when it gets SIGTERM."""

import signal
import sys

# Not a handler and pause(): a signal that comes just before the pause would be slept over.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
signal.sigwait([signal.SIGTERM])
sys.exit(int(sys.argv[1]))
