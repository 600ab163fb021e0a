"""Run as a script by the keeper: ``python -I watcher/__main__.py``, JSON lines in and out."""

from __future__ import annotations

import os
import sys

# Where the package is, and the packages that it uses may be installed too.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from holdfast.watcher.loop import Watcher

if __name__ == "__main__":
    Watcher(0, 1).run()
