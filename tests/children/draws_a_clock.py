"""Draws a counter while a thread reads keys: a program that never stops to ask.

draws_a_clock.py SECONDS: that long between two numbers.
"""

import os
import sys
import threading
import time
import tty

tty.setraw(0)
threading.Thread(target=os.read, args=(0, 1), daemon=True).start()
number = 0
while True:
    sys.stdout.write(f"\r\n{number} press a key ")
    sys.stdout.flush()
    number += 1
    time.sleep(float(sys.argv[1]))
