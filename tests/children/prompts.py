"""Asks for a name, greets it, and asks again until there is nobody left."""

import sys

print("ready")
while True:
    print("name?", flush=True)
    line = sys.stdin.readline()
    if not line:
        print("nobody left", flush=True)
        sys.exit(3)
    print(f"hello {line.strip()}", flush=True)
