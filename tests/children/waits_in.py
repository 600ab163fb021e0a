"""Waits at its stdin in one way or another.

waits_in.py WAY [DESCRIPTOR]: "ready" when it is about to. The ways are the functions below.
"""

import fcntl
import os
import select
import sys
import termios
import threading
import time
import tty

fd = int(sys.argv[2]) if len(sys.argv) > 2 else 0


def epoll() -> None:
    with select.epoll() as waiter:
        waiter.register(fd, select.EPOLLIN)
        waiter.poll()


def epoll_beside_a_pipe() -> None:
    with select.epoll() as waiter:
        waiter.register(fd, select.EPOLLIN)
        waiter.register(os.pipe()[0], select.EPOLLIN)
        waiter.poll()


def epoll_elsewhere() -> None:
    with select.epoll() as waiter:
        waiter.register(os.pipe()[0], select.EPOLLIN)
        waiter.poll()


def poll() -> None:
    waiter = select.poll()
    waiter.register(fd, select.POLLIN)
    waiter.poll()


def poll_beside_a_pipe() -> None:
    waiter = select.poll()
    waiter.register(fd, select.POLLIN)
    waiter.register(os.pipe()[0], select.POLLIN)
    waiter.poll()


def poll_for_a_while() -> None:
    waiter = select.poll()
    waiter.register(fd, select.POLLIN)
    waiter.poll(600_000)


def select_alone() -> None:
    select.select([fd], [], [])


def select_for_a_while() -> None:
    select.select([fd], [], [], 600)


def select_elsewhere() -> None:
    select.select([os.pipe()[0]], [], [])


def thread() -> None:
    threading.Thread(target=os.read, args=(fd, 1), daemon=True).start()
    time.sleep(600)


def timed_reads() -> None:
    tty.setraw(fd)
    modes = termios.tcgetattr(fd)
    modes[6][termios.VMIN], modes[6][termios.VTIME] = 0, 50
    termios.tcsetattr(fd, termios.TCSANOW, modes)
    while not os.read(fd, 1):
        pass


def readv() -> None:
    os.readv(fd, [bytearray(10)])


def high_descriptor() -> None:
    high = fcntl.fcntl(fd, fcntl.F_DUPFD, 200)
    os.read(high, 1)


def pipe() -> None:
    os.read(os.pipe()[0], 1)


def sleep() -> None:
    time.sleep(600)


def busy() -> None:
    while True:
        pass


print("ready", flush=True)
globals()[sys.argv[1]]()
