"""Files of the home that are not as they should be: set aside, with a word in keeper.log.

One bad file must cost nobody but its own process or session anything: whoever meets one here goes
on with the rest. What is set aside is kept, beside its place, with ``.bad`` at its end.
"""

from __future__ import annotations

import errno
import os

from ..core.home import is_private_directory, set_aside, unlink, unusable
from .journal import say

_FOR_NOW = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT)


def is_for_now(error: BaseException) -> bool:
    """True for what says nothing about the file: no descriptors, no memory, no room."""
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in _FOR_NOW
    )


def put_aside(path: str, why: object) -> bool:
    """Move a bad file out of the way; False where even that cannot be done."""
    try:
        say(f"{path}: {why}; set aside as {os.path.basename(set_aside(path))}"[:1000])
    except FileNotFoundError:
        return True
    except OSError as error:
        say(f"{path}: {why}; it stays where it is: {error}"[:1000])
        return False
    return True


def clear_way(path: str) -> None:
    """See that a file of ours can be at this path."""
    if unusable(path):
        put_aside(path, "not a file of ours")


def clear_way_for_directory(path: str) -> None:
    if os.path.lexists(path) and not is_private_directory(path):
        put_aside(path, "not a directory of ours")


def drop(path: str) -> None:
    """Remove a file, or say why it stays."""
    try:
        unlink(path)
    except OSError as error:
        say(f"{path} cannot be removed: {error}")
