"""Asks for a password until it is right, and says how it went."""

import getpass

while getpass.getpass("Password: ") != "sesame":
    print("wrong", flush=True)
print("right", flush=True)
