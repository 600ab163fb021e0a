"""Machine code that starts a child in our own memory, as vfork does, by a list of system calls.

All that the rest of the keeper sees of it is `runner()`: a function, or None where there is none.
Without any of this the keeper works the same, a millisecond slower for each start (`clone`).

Until it executes its program the child runs in the parent's memory while the parent sleeps. So it
must not run Python, whose state it would change. It runs 74 bytes of code instead: a loop that
makes one system call of the list after the other, the last of which is `execve`. The code is one of
x86-64; other machines, and those that do not let memory be made executable (SELinux without
execmem), have no runner.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Call = tuple[str, int, int, int, int]  # a name, and its arguments
    # From a directory of the control group (-1: none) and a list of calls to the pid, or -1; the
    # error, or 0; and at which call that was, if it was the child's.
    Runner = Callable[[int, list[Call]], tuple[int, int, int]]

CLONE3 = 435

_VM, _VFORK, _CLEAR_HANDLERS, _INTO_CGROUP = 0x100, 0x4000, 0x1_0000_0000, 0x2_0000_0000
_MACHINE = os.uname().machine

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

_page: mmap.mmap | None = None
_execute: Callable[[bytes, int, int], int] | None = None


def runner() -> Runner | None:
    """The function that runs a list; None where this machine has none."""
    return _run if _prepare() else None


def clone_arguments(group: int, flags: int) -> bytes:
    """The struct that clone3 takes: with the parent asleep, our handlers not the child's."""
    flags |= _VFORK | _CLEAR_HANDLERS | (_INTO_CGROUP if group >= 0 else 0)
    return struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, max(0, group))


def _prepare() -> bool:
    global _page, _execute
    code = _CODE.get(_MACHINE)
    if _execute is not None or code is None:
        return _execute is not None
    try:
        # Written before it is executable: never both at once.
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        page.write(code)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        readable = mmap.PROT_READ | mmap.PROT_EXEC
        libc = ctypes.PyDLL(None)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), readable):
            return False
    except OSError:
        return False
    # PYFUNCTYPE keeps the interpreter's lock: no thread runs Python while the child is among us.
    kind = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
    _page, _execute = page, kind(address)
    return True


def _run(group: int, calls: list[Call]) -> tuple[int, int, int]:
    assert _execute is not None
    numbers = _NUMBERS[_MACHINE]
    flat = [word for name, *rest in calls for word in (numbers[name], *rest)]
    table = ctypes.create_string_buffer(struct.pack(f"{2 + len(flat)}q", 0, 0, *flat))
    begin = ctypes.addressof(table) + 16
    how = clone_arguments(group, _VM)
    pid = _execute(how, len(how), begin)
    if pid < 0:
        return -1, -pid, 0
    at, error = struct.unpack_from("2q", table)
    return pid, -error, (at - begin) // 40
