"""Writes one byte of its message for every byte it reads: steps.py HEX."""

import os
import sys

message = bytes.fromhex(sys.argv[1])
written = 0
while asked := len(os.read(0, 1)):
    os.write(1, message[written : written + asked])
    written += asked
os.write(1, message[written:])
