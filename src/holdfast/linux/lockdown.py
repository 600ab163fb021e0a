"""The last step into a sandbox: what mounts cannot close is closed, then this becomes the command.

    python -I -S -X utf8=1 lockdown.py closed|sockets|outside DIRECTORY... -- PROGRAM ARGUMENT...

DESIGN. A read-only mount stops nobody from connecting to a Unix socket or from writing into a FIFO
on it: neither changes the file system. And somebody outside may make either at any time.

- Sockets: a filter (seccomp) sees of a connection only where its address is, not what it says. So
  it is the sockets themselves that cannot be made: only those of the Internet, of the kernel's own
  news (netlink), and Unix pairs, which are born connected. Pairs of datagrams could still send to a
  name, and io_uring makes sockets unseen: both are refused. So are all other families; the host
  of a virtual machine (vsock), say, is reached from any network namespace. Nor are there the
  kernel's keys, which a command would have in common with everybody of its session.
- FIFOs: Landlock refuses to open anything for writing but in the DIRECTORIES, and what the command
  was given as its three files. It also keeps the command from tracing who is not in its domain:
  bubblewrap's first process, which has no filter. Where there is no Landlock, the filter is put
  around bubblewrap too (`outside`), and FIFOs stay as they are.

Nothing is left open between the two: what is refused here ends the start, with a word and code 125.
It is run by its path with nothing but the standard library, and as few parts of that as can be.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the part of signal that is needed
import ctypes
import os
import struct
import sys

# Variables that are for the command only have this before their name until here.
KEPT = "HOLDFAST_KEPT_"

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # on every machine
_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _REFER = 1 << 1, 1 << 13
_SCOPE_ABSTRACT = 1
# The first version that lets files be moved between directories, and that of scopes.
LEAST_LANDLOCK, _SCOPES = 2, 6

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_LOAD, _EQUAL, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_ENOSYS, _EAFNOSUPPORT = 38, 97  # the same on each of the machines below
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24  # where they are in struct seccomp_data
_AF_UNIX, _FAMILIES = 1, (2, 10, 16)  # AF_INET, AF_INET6, AF_NETLINK
_PAIRS, _DATAGRAMS, _TYPE = (1, 5), 2, 0xF  # SOCK_STREAM, SOCK_SEQPACKET; SOCK_DGRAM
_IO_URING_SETUP = 425
_SOCKETCALL, _CALLS = 102, (1, 8)  # socket and socketpair
_X32, _64_BITS = 0x40000000, 0x80000000

# For each machine its kinds of programs: the architecture, and its numbers of socket, socketpair
# and add_key, after which come request_key and keyctl.
_MACHINES = {
    "x86_64": ((0xC000003E, 41, 53, 248), (0x40000003, 359, 360, 286)),
    "aarch64": ((0xC00000B7, 198, 199, 217), (0x40000028, 281, 288, 309)),
    "riscv64": ((0xC00000F3, 198, 199, 217),),
}

_libc = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """The version of Landlock that the kernel has; 0 without it."""
    found: int = _libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), _VERSION)
    return max(found, 0)


def knows(machine: str) -> bool:
    """True if there is a filter for programs of this machine."""
    return machine in _MACHINES


def socket_filter(machine: str, unix: bool) -> bytes:
    """A program for seccomp: the sockets that can be made, with those of Unix or without."""
    families = (*_FAMILIES, _AF_UNIX) if unix else _FAMILIES
    pairs = (*_PAIRS, _DATAGRAMS) if unix else _PAIRS
    # Labels, and instructions: code, value, and where to go on if so and if not (else the next).
    lines: list[str | tuple[int, int, str, str]] = []
    for architecture, make, pair, keys in _MACHINES[machine]:
        lines += [
            (_LOAD, _ARCHITECTURE, "", ""),
            (_EQUAL, architecture, "", f"not {architecture}"),
            (_LOAD, _NUMBER, "", ""),
            (_ANY_BIT, _X32, "no call", ""),
            (_EQUAL, _IO_URING_SETUP, "no call", ""),
            *((_EQUAL, keys + number, "no call", "") for number in range(3)),
            (_EQUAL, make, "socket", ""),
            (_EQUAL, pair, "pair", ""),
        ]
        if architecture & _64_BITS == 0:
            lines.append((_EQUAL, _SOCKETCALL, "socketcall", ""))
        lines += [(_RETURN, _ALLOW, "", ""), f"not {architecture}"]
    lines += [
        "no call",
        (_RETURN, _ERRNO | _ENOSYS, "", ""),
        "socket",
        (_LOAD, _FIRST, "", ""),
        *((_EQUAL, family, "allow", "") for family in families),
        (_RETURN, _ERRNO | _EAFNOSUPPORT, "", ""),
        "pair",
        (_LOAD, _FIRST, "", ""),
        (_EQUAL, _AF_UNIX, "", "refuse"),
        (_LOAD, _SECOND, "", ""),
        (_AND, _TYPE, "", ""),
        *((_EQUAL, kind, "allow", "") for kind in pairs),
        (_RETURN, _ERRNO | _EAFNOSUPPORT, "", ""),
        "socketcall",
        (_LOAD, _FIRST, "", ""),
        *((_EQUAL, call, "refuse", "") for call in _CALLS),  # whose arguments cannot be seen
        "allow",
        (_RETURN, _ALLOW, "", ""),
        "refuse",
        (_RETURN, _ERRNO | _EAFNOSUPPORT, "", ""),
    ]
    labels: dict[str, int] = {}
    code: list[tuple[int, int, str, str]] = []
    for line in lines:
        if isinstance(line, str):
            labels[line] = len(code)
        else:
            code.append(line)

    def jump(label: str, at: int) -> int:
        return labels[label] - at - 1 if label else 0

    return b"".join(
        struct.pack("=HBBI", operation, jump(yes, at), jump(no, at), value)
        for at, (operation, value, yes, no) in enumerate(code)
    )


def close_sockets(unix: bool) -> None:
    """Put the filter on this process and all that it starts, for good."""
    code = socket_filter(os.uname().machine, unix)
    kept = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(kept))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))), "no_new_privs")
    _check(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), program), "seccomp")


def close_files(version: int, directories: list[str]) -> None:
    """Let nothing be opened for writing but what is in these, and the three files we have."""
    size = 24 if version >= _SCOPES else 8
    attributes = struct.pack("=QQQ", _WRITE_FILE | _REFER, 0, _SCOPE_ABSTRACT)[:size]
    rules = _libc.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0)
    _check(rules, "Landlock")
    for path in directories:
        _allow(rules, path, _WRITE_FILE | _REFER)
    for number in range(3):
        _allow(rules, f"/proc/self/fd/{number}", _WRITE_FILE)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))), "no_new_privs")
    _check(_libc.syscall(_LANDLOCK_RESTRICT, rules, 0), "Landlock")
    os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    # What has no place in a file system, like a pipe, needs no rule and can have none.
    _libc.syscall(_LANDLOCK_ADD, rules, _PATH_BENEATH, struct.pack("=Qi", access, fd), 0)
    os.close(fd)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main(argv: list[str]) -> int:
    how, *rest = argv
    split = rest.index("--")
    directories, command = rest[:split], rest[split + 1 :]
    try:
        close_sockets(how == "sockets")
        version = landlock_version()
        if how != "outside" and version >= LEAST_LANDLOCK:
            close_files(version, directories)
    except OSError as error:
        print(f"holdfast: the sandbox cannot be closed: {error.strerror}", file=sys.stderr)
        return 125
    environment = dict(os.environb)
    if how != "outside":
        kept = KEPT.encode()
        for name in [name for name in environment if name.startswith(kept)]:
            environment[name.removeprefix(kept)] = environment.pop(name)
        for number in range(1, _signal.NSIG):
            try:
                _signal.signal(number, _signal.SIG_DFL)
            except (OSError, ValueError):
                continue  # those that cannot be, or that the C library keeps for itself
    try:
        os.execve(command[0], command, environment)
    except OSError as error:
        print(f"holdfast: {command[0]}: {error.strerror}", file=sys.stderr)
    return 127 if not os.path.lexists(command[0]) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
