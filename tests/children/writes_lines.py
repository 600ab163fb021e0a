"""Writes COUNT short lines, one write each: writes_lines.py NAME COUNT [PAUSE]."""

import os
import sys
import time

name, count = sys.argv[1], int(sys.argv[2])
pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
for number in range(count):
    os.write(1, f"{name} {number}\n".encode())
    if pause:
        time.sleep(pause)
