"""The program that the keeper starts for a container: ``python -I -S runner.py``.

It is started by its path and without the packages of the installation, which takes a third of the
time. All else is in `main`.
"""

from __future__ import annotations

import os
import sys

sys.path.append(os.path.abspath(__file__).rsplit(os.sep, 4)[0])

from holdfast.runners.docker.main import main

if __name__ == "__main__":
    os._exit(main())
