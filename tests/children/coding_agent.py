"""A small interactive coding agent: asks before it deletes each file, and honours the answer."""

import os
import sys

for path in sys.argv[1:]:
    name = os.path.basename(path)
    print(f"Refactoring: {name} is no longer used.")
    answer = input(f"Delete {name}? [y/n] ")
    if answer.strip().lower() == "y":
        os.unlink(path)
        print(f"deleted {name}")
    else:
        print(f"kept {name}")
print("done")
