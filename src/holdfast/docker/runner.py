"""The program that the keeper starts for a container: ``python -I -S runner.py``.

It is started by its path and without the packages of the installation, which takes a third of the
time, so it makes its siblings a package by themselves. All else is in `main`.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.append(os.path.dirname(here))
    os._exit(__import__(f"{os.path.basename(here)}.main", fromlist=["main"]).main())
