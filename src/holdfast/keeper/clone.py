"""Starting a process inside a control group (version 2), before its first instruction.

`posix_spawn` cannot, and to move there and back ourselves takes the kernel 6 to 20 ms each time.
`clone3` can, and its child is then born there. Shared memory (vfork) makes it as quick as
`posix_spawn`, but then the child must not run Python. So it runs a list of system calls that was
made before, by 74 bytes of machine code: a loop that makes one call after the other, the last of
which is `execve`. The parent sleeps meanwhile. What is the child's alone, such as its limits, is
done by the child: to take on its limit of memory or descriptors for a moment could end us.

Where that code is not known or memory cannot be made executable, the child gets a copy of our
memory and makes the same calls in Python, which takes a millisecond longer. That is only for a
process with one thread, as the worker is: Python in the copy would wait for the others.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Action = tuple[int, int, int] | tuple[int, int, str, int, int]
    Call = tuple[str, int, int, int, int]

_CLONE3 = 435


class Refused(OSError):
    """The kernel will not have a child in one of the groups; there is none."""


_VM, _VFORK, _CLEAR_HANDLERS, _INTO_CGROUP = 0x100, 0x4000, 0x1_0000_0000, 0x2_0000_0000
_SIG_SETMASK = 2
_MACHINE = os.uname().machine
_AT_FDCWD = -100
_WORD = (1 << 8 * struct.calcsize("L")) - 1
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM)

# By the names that the C library has for them too.
_NUMBERS = {
    "x86_64": {
        "write": 1,
        "close": 3,
        "sigaction": 13,
        "sigprocmask": 14,
        "execve": 59,
        "setsid": 112,
        "openat": 257,
        "dup3": 292,
        "prlimit": 302,
    }
}

# rdi: the arguments of clone3, rsi: their size, rdx: the list, of five words for each call. In the
# words before the list the child leaves which call failed, and its error.
_CODE = {
    "x86_64": bytes.fromhex(
        "4989d0"  #         mov r8, rdx
        "b8b3010000"  #     mov eax, 435
        "0f05"  #           syscall
        "4885c0"  #         test rax, rax
        "7401"  #           jz child
        "c3"  #             ret
        "4d89c7"  #  child: mov r15, r8
        "4d89c6"  #         mov r14, r8
        "498b07"  #  next:  mov rax, [r15]
        "498b7f08"  #       mov rdi, [r15+8]
        "498b7710"  #       mov rsi, [r15+16]
        "498b5718"  #       mov rdx, [r15+24]
        "4d8b5720"  #       mov r10, [r15+32]
        "0f05"  #           syscall
        "4885c0"  #         test rax, rax
        "7806"  #           js failed
        "4983c728"  #       add r15, 40
        "ebe0"  #           jmp next
        "4d897ef0"  # failed: mov [r14-16], r15
        "498946f8"  #       mov [r14-8], rax
        "b8e7000000"  #     mov eax, 231 (exit_group)
        "bf7f000000"  #     mov edi, 127
        "0f05"  #           syscall
    )
}

_libc = ctypes.PyDLL(None, use_errno=True)
_zeros = ctypes.create_string_buffer(256)  # the default action of a signal, or an empty mask
_page: mmap.mmap | None = None
_runs: Callable[[bytes, int, int], int] | None = None


def prepare() -> bool:
    """Make the code; False where it cannot be had."""
    global _page, _runs
    code = _CODE.get(_MACHINE)
    if _runs is not None or code is None:
        return _runs is not None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        readable = mmap.PROT_READ | mmap.PROT_EXEC
        if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), readable):
            return False
    except OSError:
        return False
    kind = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
    _page, _runs = page, kind(address)
    return True


def start(
    program: str,
    argv: list[str],
    env: dict[str, str],
    actions: Iterable[Action],
    reset: Iterable[int],
    group: int = -1,
    joins: Iterable[int] = (),
    rlimits: Iterable[tuple[int, int, int]] = (),
    *,
    copy: bool = False,
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
    if prepare() and not copy:
        pid, error, at = _shared(group, calls)
    else:
        pid, error, at = _copied(group, calls)
    if pid < 0 and group < 0 and error not in _NO_ROOM:
        pid, error, at = _copied(None, calls)  # a plain fork: clone3 is not to be had
    if not error:
        return pid
    if pid > 0:
        os.waitpid(pid, 0)
    if at < joining if pid > 0 else error not in _NO_ROOM:
        raise Refused(error, os.strerror(error))
    raise OSError(error, os.strerror(error))


def _arguments(group: int, flags: int) -> bytes:
    flags |= _VFORK | _CLEAR_HANDLERS | (_INTO_CGROUP if group >= 0 else 0)
    return struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, max(0, group))


def _shared(group: int, calls: list[Call]) -> tuple[int, int, int]:
    """Its pid, or -1; the error, or 0; and at which call, if it was one of its."""
    assert _runs is not None
    numbers = _NUMBERS[_MACHINE]
    flat = [word for name, *rest in calls for word in (numbers[name], *rest)]
    table = ctypes.create_string_buffer(struct.pack(f"{2 + len(flat)}q", 0, 0, *flat))
    begin = ctypes.addressof(table) + 16
    how = _arguments(group, _VM)
    pid = _runs(how, len(how), begin)
    if pid < 0:
        return -1, -pid, 0
    at, error = struct.unpack_from("2q", table)
    return pid, -error, (at - begin) // 40


def _copied(group: int | None, calls: list[Call]) -> tuple[int, int, int]:
    """The same in Python; without a group (None) it needs no `clone3`."""
    ready = [(getattr(_libc, name), tuple(map(ctypes.c_long, rest))) for name, *rest in calls]
    told, tell = os.pipe2(os.O_CLOEXEC)  # which ends at exec
    try:
        if group is None:
            pid = os.fork()
        else:
            how = _arguments(group, 0)
            pid = _libc.syscall(ctypes.c_long(_CLONE3), how, ctypes.c_size_t(len(how)))
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
