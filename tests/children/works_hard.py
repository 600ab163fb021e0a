"""Uses the megabytes and the seconds of processor time it was told to."""

import sys
import time

print("ready", flush=True)
block = bytearray(b"x") * (int(sys.argv[1]) << 20)
while time.process_time() < float(sys.argv[2]):
    block[0] ^= 1
