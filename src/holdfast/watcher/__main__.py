"""Run as a script by the keeper: ``python -I watcher/__main__.py``, JSON lines in and out."""

from __future__ import annotations

import os
import sys
import types

# Only what is needed here: executing the package's __init__ would load the whole client.
_package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if "holdfast" not in sys.modules:
    _holdfast = types.ModuleType("holdfast")
    _holdfast.__path__ = [_package]
    sys.modules["holdfast"] = _holdfast
    sys.path.append(os.path.dirname(_package))  # where the packages we use may be installed too

from holdfast.watcher.loop import Watcher  # noqa: E402

if __name__ == "__main__":
    Watcher(0, 1).run()
