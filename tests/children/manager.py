"""An agent that starts processes, says which, and is not there when they end.

The commands come as a JSON list in the first argument; the handles are printed as one.
"""

import json
import signal
import sys

import holdfast

with holdfast.connect(session="managed") as hf:
    print(json.dumps([hf.spawn(command).handle for command in json.loads(sys.argv[1])]))
    print("ready", flush=True)
    while True:
        signal.pause()
