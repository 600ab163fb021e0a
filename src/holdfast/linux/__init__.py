"""Facts that only the kernel knows: processes, control groups, terminals, ports, inotify, mounts.

Whatever reads ``/proc`` or makes a system call that is Linux's own is here. It imports `core`.
"""
