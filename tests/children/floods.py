"""Writes numbered lines: as many as it was told, or without end."""

import itertools
import os
import sys

count = int(sys.argv[1]) if len(sys.argv) > 1 else 0
print("ready", flush=True)
for first in itertools.count(0, 1000):
    numbers = range(first, first + 1000 if not count else min(first + 1000, count))
    data = b"".join(b"%09d\n" % number for number in numbers)
    while data:
        data = data[os.write(1, data) :]
    if count and first + 1000 >= count:
        break
