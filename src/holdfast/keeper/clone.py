"""Starting a process inside a control group (version 2), before its first instruction.

`posix_spawn` cannot, and to move there and back ourselves takes the kernel 6 to 20 ms each time.
`clone3` can, and its child is then born there. Shared memory (vfork) makes it as quick as
`posix_spawn`, but then the child must not run Python. So it runs a list of system calls that was
made before, by some fifty bytes of machine code: a loop that makes one call after the other, the
last of which is `execve`. The parent sleeps meanwhile.

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

_CLONE3 = 435


class Refused(OSError):
    """The kernel will not have a child there; it was not made."""


_VM, _VFORK, _CLEAR_HANDLERS, _INTO_CGROUP = 0x100, 0x4000, 0x1_0000_0000, 0x2_0000_0000
_SIG_SETMASK = 2
_MACHINE = os.uname().machine
_AT_FDCWD = -100


class _Calls:
    """The numbers of the system calls on one kind of machine."""

    def __init__(self, *numbers: int) -> None:
        self.setsid, self.close, self.openat, self.dup3 = numbers[:4]
        self.sigaction, self.sigmask, self.execve, self.prlimit = numbers[4:]


_X86 = _Calls(112, 3, 257, 292, 13, 14, 59, 302)
_GENERIC = _Calls(157, 57, 56, 24, 134, 135, 221, 261)
_NUMBERS = {"x86_64": _X86, "aarch64": _GENERIC, "riscv64": _GENERIC}

# rdi: the arguments of clone3, rsi: their size, rdx: the list, of five words for each call. In the
# word before the list the child leaves the error of the call that failed.
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
        "498946f8"  # failed: mov [r14-8], rax
        "b8e7000000"  #     mov eax, 231 (exit_group)
        "bf7f000000"  #     mov edi, 127
        "0f05"  #           syscall
    )
}

_libc = ctypes.PyDLL(None, use_errno=True)
_zeros = ctypes.create_string_buffer(32)  # the default action of a signal, or an empty mask
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
    group: int,
    rlimits: Iterable[tuple[int, int]] = (),
    *,
    copy: bool = False,
) -> int:
    """As `os.posix_spawn` in a new session, with these limits, which it cannot raise again.

    In the control group that `group` is a directory of, if it is one and not -1.
    """
    numbers = _NUMBERS.get(_MACHINE)
    if numbers is None:
        raise Refused(errno.ENOSYS, os.strerror(errno.ENOSYS))
    kept: list[Any] = []  # what the list points to

    def text(value: str) -> int:
        if "\0" in value:
            raise ValueError("embedded null byte")
        kept.append(ctypes.create_string_buffer(os.fsencode(value)))
        return ctypes.addressof(kept[-1])

    def texts(values: list[bytes]) -> int:
        if b"\0" in b"".join(values):
            raise ValueError("embedded null byte")
        kept.append((ctypes.c_char_p * (len(values) + 1))(*values, None))
        return ctypes.addressof(kept[-1])

    zeros = ctypes.addressof(_zeros)
    calls = [(numbers.setsid, 0, 0, 0, 0)]
    for action in actions:
        if len(action) == 5:  # only ever of descriptor 0, so the lowest that is free then
            calls.append((numbers.close, action[1], 0, 0, 0))
            calls.append((numbers.openat, _AT_FDCWD, text(action[2]), action[3], 0))
        elif action[1] != action[2]:
            calls.append((numbers.dup3, action[1], action[2], 0, 0))
    calls += [(numbers.sigaction, int(number), zeros, 0, 8) for number in reset]
    for number, value in rlimits:
        kept.append(ctypes.create_string_buffer(struct.pack("2Q", value, value)))
        calls.append((numbers.prlimit, 0, number, ctypes.addressof(kept[-1]), 0))
    calls.append((numbers.sigmask, _SIG_SETMASK, zeros, 0, 8))
    if any(not name or "=" in name for name in env):
        raise ValueError("illegal environment variable name")
    whole = [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in env.items()]
    words = texts([os.fsencode(word) for word in argv])
    calls.append((numbers.execve, text(program), words, texts(whole), 0))
    flat = [word for call in calls for word in call]
    table = ctypes.create_string_buffer(struct.pack(f"{1 + len(flat)}q", 0, *flat))
    shared = prepare() and not copy
    flags = _VFORK | _CLEAR_HANDLERS | (_VM if shared else 0) | (_INTO_CGROUP if group >= 0 else 0)
    how = struct.pack("11Q", flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, max(0, group))
    pid, failed = _shared(how, table) if shared else _copied(how, calls)
    if not failed:
        return pid
    if pid > 0:
        os.waitpid(pid, 0)
    elif failed not in (errno.EAGAIN, errno.ENOMEM):
        raise Refused(failed, os.strerror(failed))
    raise OSError(failed, os.strerror(failed))


def _shared(how: bytes, table: ctypes.Array[ctypes.c_char]) -> tuple[int, int]:
    assert _runs is not None
    pid = _runs(how, len(how), ctypes.addressof(table) + 8)
    (error,) = struct.unpack_from("q", table)
    return pid, -pid if pid < 0 else -error


def _copied(how: bytes, calls: list[tuple[int, int, int, int, int]]) -> tuple[int, int]:
    box = mmap.mmap(-1, mmap.PAGESIZE)
    words = [tuple(map(ctypes.c_long, call)) for call in calls]
    pid = _libc.syscall(ctypes.c_long(_CLONE3), how, ctypes.c_size_t(len(how)))
    if pid == 0:
        try:
            for call in words:
                if _libc.syscall(*call) < 0:
                    box[:4] = struct.pack("i", ctypes.get_errno())
                    break
        finally:
            os._exit(127)  # whatever happens: there must not be two of us
    if pid < 0:
        return pid, ctypes.get_errno()
    (error,) = struct.unpack("i", box[:4])
    box.close()
    return pid, error
