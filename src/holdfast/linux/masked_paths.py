"""A directory given away to be written to, with something in it that must not be reached.

DESIGN. A cover mounted over that thing hides it. But each start mounts it anew, at a path, and who
can write to a directory on the way could rename that one and leave another in its place: the next
cover would hide nothing. The kernel neither renames nor removes what is a mount point (EBUSY), so
every directory on the way is mounted onto itself. Nothing can be mounted onto a symbolic link:
where one is on the way, and in the directory that is given away, there is no cover to rely on.

Whatever is only not to be changed, like our own program, is fixed: mounted read-only in its place.

This is for sandboxes as well as for containers, whose runner has no other modules than these.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_LINKS = 40  # as the kernel has it


def mounts(
    root: str, covered: Iterable[str], fixed: Iterable[str] = (), held: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """The mounts in `root`, in this order, as pairs: "hold", "fix" or "cover", and the path."""
    root = os.path.realpath(root)
    covers = _outermost(path for path in _real(covered) if is_within(path, root))
    fixes = _outermost(path for path in _real(fixed) if is_in(path, root))
    fixes = [path for path in fixes if not any(is_within(path, cover) for cover in covers)]
    kept = [path for path in _real(held) if is_in(path, root)]
    holds = {step for path in (*covers, *fixes, *kept) for step in _way(path, root)}.union(kept)
    closed = (*covers, *fixes)
    loose = [path for path in holds if not any(is_within(path, each) for each in closed)]
    return [
        *(("hold", path) for path in sorted(loose, key=_depth)),
        *(("fix", path) for path in fixes),
        *(("cover", path) for path in covers),
    ]


def loose_link(path: str, directories: Iterable[str]) -> str | None:
    """A symbolic link on the way to `path` that is kept in one of the directories."""
    places = _real(directories)
    at, rest, links = "/", path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name == "..":
            at = os.path.dirname(at)
        if name in ("", ".", ".."):
            continue
        here = os.path.join(at, name)
        try:
            target = os.readlink(here)
        except OSError:  # no link, or nothing at all
            at = here
            continue
        links += 1
        if links > _MOST_LINKS or any(is_within(at, place) for place in places):
            return here
        at = "/" if target.startswith("/") else at
        rest += target.split("/")[::-1]
    return None


def make(home: str) -> str | None:
    """Make a home that is not there yet, so that nobody inside can, as they like it; or why not."""
    try:
        os.makedirs(home, 0o700, exist_ok=True)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):  # then nobody else can
            return error.strerror
    return None


def is_within(path: str, directory: str) -> bool:
    """True if it is this directory or in it; both are absolute."""
    directory = os.path.normpath(directory)
    return os.path.commonpath((directory, os.path.normpath(path))) == directory


def is_in(path: str, directory: str) -> bool:
    return is_within(path, directory) and os.path.normpath(path) != os.path.normpath(directory)


def _way(path: str, root: str) -> list[str]:
    """The directories below `root` that lead to `path`."""
    found = []
    while (path := os.path.dirname(path)) != root and path != "/":
        found.append(path)
    return found


def _outermost(paths: Iterable[str]) -> list[str]:
    found: list[str] = []
    for path in sorted(set(paths), key=_depth):
        if not any(is_within(path, other) for other in found):
            found.append(path)
    return found


def _real(paths: Iterable[str]) -> list[str]:
    return [os.path.realpath(path) for path in paths]


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path
