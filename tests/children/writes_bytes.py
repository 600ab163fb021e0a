"""Writes what it is given in hexadecimal to stdout, and a second argument to stderr.

With an argument that begins with @ it writes the file of that name.
"""

import os
import sys

for target, text in enumerate(sys.argv[1:], 1):
    data = open(text[1:], "rb").read() if text.startswith("@") else bytes.fromhex(text)
    while data:
        data = data[os.write(target, data) :]
