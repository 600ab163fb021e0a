"""Writes numbered lines as fast as it can: writes_pattern.py BYTES EXIT_CODE [FD...].

Every line tells its place within a period that is no power of two, so a byte read at a wrong
offset cannot pass for the right one. With several descriptors each gets all of it.
"""

import os
import sys

PERIOD = 16 * 262147


def main() -> int:
    total, code = int(sys.argv[1]), int(sys.argv[2])
    targets = [int(argument) for argument in sys.argv[3:]] or [1]
    pattern = b"".join(b"%015d\n" % number for number in range(PERIOD // 16))
    twice = memoryview(pattern + pattern)
    position = 0
    while position < total:
        start = position % PERIOD
        piece = twice[start : start + min(1 << 20, total - position)]
        for target in targets:
            view = piece
            while view:
                view = view[os.write(target, view) :]
        position += len(piece)
    return code


sys.exit(main())
