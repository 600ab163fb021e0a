"""Listens, spends a processor in a child, writes to a file it was told of; "port NUMBER", "ready".

serves_busily.py FILE MEGABYTES: it has two children (one busy, one with a second thread) that
share the memory it filled before they came.
"""

import os
import signal
import socket
import sys
import threading

block = bytearray(b"x") * (int(sys.argv[2]) << 20)
server = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    while True:
        pass
read, write = os.pipe()
if os.fork() == 0:
    threading.Thread(target=signal.pause, daemon=True).start()
    os.write(write, b"x")
    while True:
        signal.pause()
os.read(read, 1)
with open(sys.argv[1], "wb") as file:
    file.write(bytes(1 << 20))
    file.flush()
    os.fsync(file.fileno())
print("port", server.getsockname()[1], flush=True)
print("ready", flush=True)
while True:
    signal.pause()
