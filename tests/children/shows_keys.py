"""In raw mode, prints every byte it gets as hex; q ends it. Arguments are written before that."""

import os
import sys
import termios
import tty

before = termios.tcgetattr(0)
tty.setraw(0)
for argument in sys.argv[1:]:
    os.write(1, argument.encode().decode("unicode_escape").encode("latin-1"))
os.write(1, b"ready\r\n")
try:
    key = b""
    while key != b"q":
        key = os.read(0, 1)
        os.write(1, key.hex().encode() + b"\r\n")
finally:
    termios.tcsetattr(0, termios.TCSADRAIN, before)
