"""Starting a process inside a control group (version 2), before its first instruction.

`posix_spawn` cannot, and to move there and back ourselves takes the kernel 6 to 20 ms each time.
`clone3` can: its child is born there. What a child does between its birth and `execve` is a list of
system calls that is made before. What is the child's alone, such as its limits, is among them: to
take on its limit of memory or descriptors for a moment could end us.

There are two ways to run the list. `vfork.runner()` is the quick one, in our memory and by machine
code. `_copied` is the plain one: the child gets a copy of our memory and makes the same calls in
Python, which takes a millisecond longer. It is taken where the other cannot be had, or where
`USE_VFORK` says so; it is only for a process with one thread, as the worker is, for Python in the
copy would wait for the others.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct

from . import vfork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .vfork import Call

    Action = tuple[int, int, int] | tuple[int, int, str, int, int]

USE_VFORK = True  # the one switch between the two ways

_SIG_SETMASK = 2
_AT_FDCWD = -100
_WORD = (1 << 8 * struct.calcsize("L")) - 1
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM)

_libc = ctypes.PyDLL(None, use_errno=True)
_zeros = ctypes.create_string_buffer(256)  # the default action of a signal, or an empty mask


class Refused(OSError):
    """The kernel will not have a child in one of the groups; there is none."""


def pidfd_of(pid: int) -> int:
    """A pidfd of what was just started; it is ended if there is no descriptor to be had."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        end(pid)
        raise


def end(pid: int) -> None:
    """End what was just started, a child that nobody has reaped."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def start(
    program: str,
    argv: list[str],
    env: dict[str, str],
    actions: Iterable[Action],
    reset: Iterable[int],
    group: int = -1,
    joins: Iterable[int] = (),
    rlimits: Iterable[tuple[int, int, int]] = (),
) -> int:
    """As `os.posix_spawn` in a new session, with these limits: which, soft, hard.

    It is born in the control group that `group` is a directory of, if it is one and not -1, and
    moves into those that `joins` are lists of members of, opened for writing.
    """
    kept: list[Any] = []  # what the list points to

    def held(value: bytes) -> int:
        kept.append(ctypes.create_string_buffer(value))
        return ctypes.addressof(kept[-1])

    def text(value: str) -> int:
        if "\0" in value:
            raise ValueError("embedded null byte")
        return held(os.fsencode(value))

    def texts(values: list[bytes]) -> int:
        if b"\0" in b"".join(values):
            raise ValueError("embedded null byte")
        kept.append((ctypes.c_char_p * (len(values) + 1))(*values, None))
        return ctypes.addressof(kept[-1])

    zeros = ctypes.addressof(_zeros)
    calls: list[Call] = [("write", fd, held(b"0"), 1, 0) for fd in joins]
    joining = len(calls)
    calls.append(("setsid", 0, 0, 0, 0))
    for action in actions:
        if len(action) == 5:  # only ever of descriptor 0, so the lowest that is free then
            calls.append(("close", action[1], 0, 0, 0))
            calls.append(("openat", _AT_FDCWD, text(action[2]), action[3], 0))
        elif action[1] != action[2]:
            calls.append(("dup3", action[1], action[2], 0, 0))
    calls += [("sigaction", int(number), zeros, 0, 8) for number in reset]
    calls.append(("sigprocmask", _SIG_SETMASK, zeros, 0, 8))
    for number, soft, hard in rlimits:
        limits = struct.pack("2L", soft & _WORD, hard & _WORD)
        calls.append(("prlimit", 0, number, held(limits), 0))
    if any(not name or "=" in name for name in env):
        raise ValueError("illegal environment variable name")
    whole = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in env.items()]
    words = texts([os.fsencode(word) for word in argv])
    calls.append(("execve", text(program), words, texts(whole), 0))
    run = vfork.runner() if USE_VFORK else None
    pid, error, at = (run or _copied)(group, calls)
    if pid < 0 and group < 0 and error not in _NO_ROOM:
        pid, error, at = _copied(None, calls)  # a plain fork: clone3 is not to be had
    if not error:
        return pid
    if pid > 0:
        os.waitpid(pid, 0)
    if at < joining if pid > 0 else error not in _NO_ROOM:
        raise Refused(error, os.strerror(error))
    raise OSError(error, os.strerror(error))


def _copied(group: int | None, calls: list[Call]) -> tuple[int, int, int]:
    """As a `Runner`, in Python; without a group (None) it needs no `clone3`."""
    ready = [(getattr(_libc, name), tuple(map(ctypes.c_long, rest))) for name, *rest in calls]
    told, tell = os.pipe2(os.O_CLOEXEC)  # which ends at exec
    try:
        if group is None:
            pid = os.fork()
        else:
            how = vfork.clone_arguments(group, 0)
            pid = _libc.syscall(ctypes.c_long(vfork.CLONE3), how, ctypes.c_size_t(len(how)))
        if pid == 0:
            at, error = 0, errno.ENOMEM
            try:
                while ready[at][0](*ready[at][1]) >= 0:
                    at += 1
                error = ctypes.get_errno()
            finally:  # whatever happens: there must not be two of us
                os.write(tell, struct.pack("2i", error, at))
                os._exit(127)
        failed = ctypes.get_errno()
    finally:
        os.close(tell)
        with open(told, "rb") as file:
            said = file.read()
    if pid < 0:
        return -1, failed, 0
    error, at = struct.unpack("2i", said or bytes(8))
    return pid, error, at
