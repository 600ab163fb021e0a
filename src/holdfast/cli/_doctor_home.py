"""`doctor`'s look at the home: directory, disk, settings, keeper, records."""

from __future__ import annotations

import os
import stat

from holdfast.core.errors import ConfigError, HoldfastError
from holdfast.core.home import Home
from holdfast.linux import kernel

from . import _render
from ._doctor_check import Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LOW_SPACE = 1 << 30
_BLOCK = 1 << 16


def home_checks(home: Home) -> Iterator[Check]:
    try:
        exists = home.exists()
    except (HoldfastError, OSError) as error:
        yield Check("problem", "home", _line(error))
        return
    yield _directory(home, exists)
    base = home.path
    while not os.path.isdir(base):
        base = os.path.dirname(base)
    if not os.access(base, os.W_OK | os.X_OK):
        yield Check("problem", "disk", f"{base} is not writable; set HOLDFAST_HOME to another one")
        return
    yield _space(base)
    yield _holes(base)
    yield _settings(home)
    yield _keeper(home)
    if exists:
        yield from _records(home)


def _directory(home: Home, exists: bool) -> Check:
    if not exists:
        return Check("ok", "home", f"{home.path} (the first `run` makes it)")
    info = os.lstat(home.path)
    mode = stat.S_IMODE(info.st_mode)
    return Check("ok", "home", f"{home.path}, uid {info.st_uid}, mode {mode:04o}")


def _space(base: str) -> Check:
    disk = os.statvfs(base)
    free = disk.f_bavail * disk.f_frsize
    text = f"{_render.size_text(free)} free"
    if free < _LOW_SPACE:
        return Check("note", "disk", f"{text}; make room, or set HOLDFAST_HOME to another disk")
    return Check("ok", "disk", text)


def _holes(base: str) -> Check:
    """Write a file, free its first half, and see whether the file system gave it back."""
    import tempfile

    with tempfile.TemporaryFile(dir=base) as file:
        file.write(b"x" * (2 * _BLOCK))
        file.flush()
        os.fsync(file.fileno())
        before = os.fstat(file.fileno()).st_blocks
        try:
            kernel.punch_hole(file.fileno(), 0, _BLOCK)
        except OSError as error:
            why = error.strerror
            return Check("note", "log caps", f"by rotation; no holes on this file system ({why})")
        freed = os.fstat(file.fileno()).st_blocks < before
    how = "the head of a long log is given back in place"
    return Check("ok", "log caps", how if freed else how + ", though this file system keeps it")


def _settings(home: Home) -> Check:
    from holdfast.client.config import load_config

    try:
        load_config(home)
    except (ConfigError, HoldfastError) as error:
        return Check("problem", "settings", str(error))
    where = home.config if os.path.exists(home.config) else "defaults"
    changed = sorted(name for name in os.environ if name.startswith("HOLDFAST_"))
    return Check("ok", "settings", f"{where}{', ' + ' '.join(changed) if changed else ''}")


def _keeper(home: Home) -> Check:
    from holdfast.client.connect import open_client

    try:
        status = open_client(home, None).keeper_status()
    except (HoldfastError, OSError) as error:
        return Check("problem", "keeper", _line(error))
    if not status["running"]:
        return Check("ok", "keeper", "none runs; the first `run` starts one")
    memory = _render.size_text(status.get("memory_bytes"))
    return Check(
        "ok",
        "keeper",
        f"holdfast {status['version']}, guard {status['guard']}, worker {status['worker']}, "
        f"{status['processes']} running{f', {memory}' if memory else ''}",
    )


def _records(home: Home) -> Iterator[Check]:
    from holdfast.core.store import Store

    records, problems = Store(home).scan()
    set_aside = [name for name in os.listdir(home.processes) if name.endswith(".meta.json.bad")]
    if not problems and not set_aside:
        yield Check("ok", "records", f"{len(records)}, all readable")
    for problem in problems:
        yield Check("note", "records", f"{problem.handle}: {problem}")
    for name in sorted(set_aside):
        yield Check(
            "note",
            "records",
            f"set aside, unreadable: {home.processes}/{name}; look at it, then delete it",
        )


def _line(error: BaseException) -> str:
    if isinstance(error, HoldfastError):
        return str(error)
    return getattr(error, "strerror", None) or str(error)
