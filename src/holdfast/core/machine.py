"""Which machine this is, and which boot of it: what makes a pid on record mean somebody."""

from __future__ import annotations

import os

_boot_id = ""


def boot_id() -> str:
    global _boot_id
    if not _boot_id:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            _boot_id = file.read().strip().decode()
    return _boot_id


def machine() -> list[str]:
    """Boot and pid namespace: two processes that share both mean the same by a pid."""
    return [boot_id(), os.readlink("/proc/self/ns/pid")]
