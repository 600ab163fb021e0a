"""Asks for single keys, each in a line of its own, and names what it got; q ends it."""

import os
import sys
import termios
import tty

before = termios.tcgetattr(0)
tty.setraw(0)
try:
    key = b""
    while key != b"q":
        sys.stdout.write("\r\n\x1b[1mdelete?\x1b[m [y/n] ")
        sys.stdout.flush()
        key = os.read(0, 1)
        sys.stdout.write(f"got {key!r}")
finally:
    termios.tcsetattr(0, termios.TCSADRAIN, before)
