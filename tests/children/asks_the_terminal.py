"""Asks its terminal something and shows what it answers.

asks_the_terminal.py TEXT...: each TEXT is written as it is; after each it reads what comes until
nothing has for a while, and prints that in a line; "none" if nothing came. For the
answer to what does not end in "text" it waits as long as a busy machine may take.
"""

import os
import select
import sys
import tty

tty.setraw(0)
print("ready\r", flush=True)
for text in sys.argv[1:]:
    os.write(1, text.encode().decode("unicode_escape").encode("latin-1"))
    reply = b""
    first = 2 if text.endswith("text") else 60
    while select.select([0], [], [], 0.3 if reply else first)[0]:
        reply += os.read(0, 1000)
    print(f"\r\nreply {reply!r}\r" if reply else "\r\nreply none\r", flush=True)
print("\r\ndone\r", flush=True)
select.select([0], [], [], 600)
