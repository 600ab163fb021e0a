"""Writes what it is given in hexadecimal to stdout, and a second argument to stderr."""

import os
import sys

for target, text in enumerate(sys.argv[1:], 1):
    data = bytes.fromhex(text)
    while data:
        data = data[os.write(target, data) :]
