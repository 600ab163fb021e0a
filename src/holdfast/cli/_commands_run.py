"""``run``: start a process, and unless detached stand in for it until it ends.

DESIGN. In the foreground our own death leaves the process running (nothing here holds a lease), so
SIGHUP needs no handler. SIGINT and SIGTERM mean the process. Output, input and the wait are each in
a thread with a client of its own; the main thread only takes news from a queue that signals are
put into as well, so none of them ever interrupts a half-done exchange with the keeper.

With a terminal of its own, and on one of ours, the process is attached to instead, and keys such as
C-c are the process's.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
import time
from queue import Empty, SimpleQueue

from holdfast.client.config import DEFAULT, UNSET
from holdfast.client.process import YIELDED
from holdfast.core.errors import NotExecutable, NotFound, NotRunning, Unsupported
from holdfast.core.record import Exit, duration_text
from holdfast.core.spawn_spec import LIMITS, SPAWN_SPEC

from . import FAILED, NOT_EXECUTABLE, NOT_FOUND, PIPE_CLOSED, TIMED_OUT, _render
from ._handles import open_for
from ._parser import duration, table
from ._streams import FDS, Pump, copy_all, listen, on_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable
    from typing import Any

    from holdfast.client.sync import SyncClient, SyncProcess
    from holdfast.core.record import Record
    from holdfast.core.types import Stream

    from ._parser import Parser

    Start = Callable[[SyncClient, Namespace], SyncProcess]

_COMMAND = "-- COMMAND [ARGUMENT...]"
_CHUNK = 1 << 16
RETENTION = "1d"  # a person comes back tomorrow; a program and a model look at once
_MOMENT = 1.0  # that a keeper has to answer after a signal
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def options_run(parser: Parser) -> None:
    parser.words(_COMMAND, 0, None, options_first=1)
    parser.epilog = (
        "COMMAND alone is a shell string; with arguments it is run as it is, without a shell. In "
        "the foreground the exit code is the command's, 128+n for signal n, 124 on timeout. With "
        "--tty on a terminal you are attached to it, until its end or until you press C-], and it "
        "has no deadline unless you give one. With --docker the command may be left out: the image "
        "has one; its ports are published on loopback, and `holdfast status` says where."
    )
    common_options(parser)
    parser.option("-C", "--cwd", metavar="DIR", help="working directory (default: this one)")
    parser.option(
        "--tmux", action="store_true", help="as --tty, but in tmux, which outlives the keeper"
    )
    _from_spec(parser, LIMITS)
    parser.option(
        "--sandbox",
        nargs="?",
        const="closed",
        choices=("closed", "network", "sockets", "network,sockets"),
        help="write to the working directory only, see no other process; =network: with a network; "
        "=sockets: with Unix sockets",
    )
    parser.option(
        "--docker",
        metavar="IMAGE",
        help="run it in a container of this image, with the working directory and -e only",
    )
    parser.option(
        "--publish",
        metavar="PORT",
        action="append",
        default=[],
        help="with --docker: reach this port of the container from here; may be repeated",
    )
    parser.option("--pull", action="store_true", help="with --docker: fetch a missing image")
    parser.option("--network", metavar="NAME", help="with --docker: none, host, or a network")
    parser.option("--user", metavar="U", help="with --docker: run as this user of the image")
    parser.option(
        "--mount",
        metavar="SRC:DST[:ro]",
        action="append",
        default=[],
        help="with --docker: show this file or directory there; may be repeated",
    )


def common_options(parser: Parser) -> None:
    """Add the options that every start has, wherever it runs."""
    parser.option("-d", "--detach", action="store_true", help="print the handle and return")
    parser.option(
        "--yield",
        dest="yielding",
        metavar="TIME",
        help="stay for at most this long, then leave it in the background and say so",
    )
    parser.option("-t", "--tty", action="store_true", help="give it a terminal")
    _from_spec(parser, [name for name in SPAWN_SPEC if name not in LIMITS])
    parser.option(
        "-e", "--env", metavar="K[=V]", action="append", default=[], help="set K; alone: from here"
    )
    parser.session("the session it belongs to (default: $HOLDFAST_SESSION, else `default`)")
    parser.option(
        "--watch",
        metavar="CONDITION",
        action="append",
        default=[],
        help="tell its session of output=PATTERN, quiet=30s, port=3000, every=60s, or as a JSON "
        "object with cooldown and most; may be repeated",
    )
    parser.json(
        "print the record as JSON (in the foreground: at the end, instead of the output; with "
        "--yield it has `backgrounded`, and in `early` what came of the output)"
    )


def _from_spec(parser: Parser, names: Iterable[str]) -> None:
    for option in (SPAWN_SPEC[name] for name in names if SPAWN_SPEC[name].help):
        how: dict[str, Any] = {"action": "store_true"}
        if option.unit or option.choices:
            how = {
                "metavar": option.unit or None,
                "choices": option.choices or None,
                "default": None if option.setting else option.default,
            }
        parser.option(*option.flags, help=option.help, **how)


def do_run(args: Namespace) -> int:
    _check(args)
    return stand_in(args, _spawn)


def stand_in(args: Namespace, start: Start) -> int:
    """Start a process and, unless detached, be it: its output, input, signals and exit code."""
    news: SimpleQueue[tuple[str, Any]] = SimpleQueue()
    staying = not args.detach and not args.json and args.yielding is None
    attached = (args.tty or args.tmux) and staying and on_terminal()
    if attached:
        columns, rows = os.get_terminal_size(1)
        if 1 < columns <= 1000 and 0 < rows <= 1000:
            args.size = f"{columns}x{rows}"
        if args.timeout is None:
            args.timeout = "none"  # a person sits there
    elif not args.detach:
        # Those that nohup, or `&` in a script, made us ignore stay so.
        heeded = [n for n in _SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]
        listen(heeded, lambda number: news.put(("signal", number)))
    client = open_for(args)
    try:
        if args.detach or attached:
            process = start(client, args)
        elif (started := _start_heeding(client, args, start, news)) is None:
            return 128 + int(news.get()[1])
        else:
            process = started
    except NotExecutable as error:
        _render.complain(str(error))
        return NOT_FOUND if error.missing else NOT_EXECUTABLE
    if args.detach:
        for note in process.record.notes:
            _render.complain(note)
        if args.timeout is None and process.record.timeout is not None:
            deadline = duration_text(process.record.timeout)
            _render.remark(f"it is stopped after {deadline}; --timeout 0 lets it run on")
        if args.json:
            _render.show_json(process.record.public())
        else:
            print(process.handle)
        return 0
    if attached:
        return _stay_attached(args, client, process)
    if process.record.capabilities.terminal and not args.stdin and _has_input():
        _render.complain("what is typed or piped here is not passed on; --stdin passes it on")
    code = _Foreground(args, process, news).stay()
    client.close()  # what was seen is acknowledged by now
    return code


def _start_heeding(
    client: SyncClient, args: Namespace, start: Start, news: SimpleQueue[tuple[str, Any]]
) -> SyncProcess | None:
    """Start it, or give up after a signal and put that back; a keeper may not answer for long."""

    def begin() -> None:
        try:
            news.put(("spawn", start(client, args)))
        except BaseException as error:
            news.put(("spawn", error))

    threading.Thread(target=begin, daemon=True).start()
    signals: list[tuple[str, Any]] = []
    until: float | None = None
    while True:
        try:
            what, told = news.get(timeout=until and max(0.0, until - time.monotonic()))
        except Empty:
            break
        if what == "spawn":
            for each in signals:
                news.put(each)  # they are the process's now
            if isinstance(told, BaseException):
                raise told
            process: SyncProcess = told
            return process
        signals.append((what, told))
        until = time.monotonic() + (_MOMENT if len(signals) == 1 else 0)
    _render.complain(
        "the keeper does not answer; `holdfast ps` will tell whether it started the command"
    )
    news.put(signals[0])
    return None


def _check(args: Namespace) -> None:
    from ._parser import Usage

    if args.tty and args.tmux:
        raise Usage("--tty and --tmux cannot be combined; give one of them")
    if args.size is not None and not args.tty and not args.tmux:
        raise Usage("--size is for a terminal; give it with --tty or --tmux")
    check_common(args)
    if args.docker is None:
        if not args.words:
            raise Usage(f"{_COMMAND} is missing; see `holdfast run --help`")
        for name in ("publish", "pull", "network", "user", "mount"):
            if getattr(args, name):
                raise Usage(f"--{name} is for a container; give it with --docker IMAGE")
    for name, instead in (("sandbox", "a container is one"), ("tmux", "--tty is its terminal")):
        if args.docker is not None and getattr(args, name):
            raise Usage(f"--{name} and --docker cannot be combined: {instead}; leave it out")


def check_common(args: Namespace) -> None:
    from ._parser import Usage

    if args.yielding is not None:
        if args.detach:
            raise Usage("-d does not stay at all; give it or --yield")
        args.yielding = duration(args.yielding, "--yield")


def _has_input() -> bool:
    """True if somebody could think that our stdin is read."""
    if sys.stdin is None:
        return False
    ours = os.fstat(0)
    return not (stat.S_ISCHR(ours.st_mode) and ours.st_rdev == os.stat(os.devnull).st_rdev)


def _spawn(client: SyncClient, args: Namespace) -> SyncProcess:
    from holdfast.linux import sandbox

    return client.spawn(
        args.words[0] if len(args.words) == 1 else args.words,
        cwd=args.cwd,
        tmux=args.tmux,
        sandbox=sandbox.named(args.sandbox),
        docker=_docker(args),
        ports=args.publish,
        **common_arguments(client, args),
    )


def common_arguments(client: SyncClient, args: Namespace) -> dict[str, Any]:
    given = {name: value for name, value in vars(args).items() if name in SPAWN_SPEC}
    return {
        "retention": RETENTION if client.config.source("retention") == DEFAULT else UNSET,
        "env": _environment(args.env),
        "tty": args.tty,
        "watch": [table(text, "--watch") for text in args.watch],
        **{name: value for name, value in given.items() if value is not None},
    }


def _docker(args: Namespace) -> dict[str, Any] | None:
    if args.docker is None:
        return None
    return {
        "image": args.docker,
        "pull": args.pull,
        "network": args.network,
        "user": args.user,
        "mounts": args.mount,
    }


def _environment(settings: list[str]) -> dict[str, str]:
    chosen = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if equals:
            chosen[name] = value
        elif name in os.environ:
            chosen[name] = os.environ[name]
    return chosen


class _Foreground:
    """Takes news until the process ended and all its output is written."""

    def __init__(
        self, args: Namespace, process: SyncProcess, news: SimpleQueue[tuple[str, Any]]
    ) -> None:
        self._args, self._process, self._news = args, process, news
        self._open = 0
        self._until = None if args.yielding is None else time.monotonic() + args.yielding
        self._code: int | None = None
        self._signals = 0

    def stay(self) -> int:
        record: Record | None = None

        def ended(process: SyncProcess) -> None:
            # Acknowledged when it is shown: we may have left by then.
            nonlocal record
            process.wait(acknowledge=False)
            record = process.refresh()

        self._follow("wait", ended)
        if not self._args.json:
            self._follow("output", lambda process: _copy_all(process, "stdout"))
            if self._args.stderr == "separate":
                self._follow("errors", lambda process: _copy_all(process, "stderr"))
        if self._args.stdin:
            self._start("input", _forward_input)
        while self._open:
            try:
                left = None if self._until is None else max(0.0, self._until - time.monotonic())
                what, news = self._news.get(timeout=left)
            except Empty:
                if self._process.refresh().running:
                    return self._leave()
                self._until = None  # it has ended, and only its output is still on its way
                continue
            if what == "signal":
                if self._on_signal(news):
                    return 128 + int(news)
            elif what in ("wait", "output", "errors"):
                self._open -= 1
                self._on_end(what, news)
            elif isinstance(news, BaseException):  # input, or a kill
                raise news
        assert record is not None
        return self._finish(record)

    def _leave(self) -> int:
        if self._args.json:
            self._show_json(self._process.record, backgrounded=True)
        handle = self._process.handle
        _render.complain(
            f"{handle} goes on in the background; `holdfast wait {handle}` waits for its end"
        )
        return 0

    def _start(self, what: str, work: Callable[..., None]) -> None:
        Pump(self._args, self._process.handle, work, lambda error: self._news.put((what, error)))

    def _follow(self, what: str, work: Callable[..., None]) -> None:
        self._open += 1
        self._start(what, work)

    def _on_signal(self, number: int) -> bool:
        """Stop the process: politely, then by force; the third signal is for us alone."""
        self._signals += 1
        self._code = 128 + number
        self._until = None  # it is not left in the background now
        if self._signals == 1:
            self._start("kill", lambda process: process.kill() and None)
        elif self._signals == 2:
            self._start("kill", lambda process: process.kill(signal="KILL") and None)
        return self._signals > 2

    def _on_end(self, what: str, error: BaseException | None) -> None:
        if error is None:
            return
        if not isinstance(error, BrokenPipeError):
            raise error
        if what == "output" and self._code is None:
            self._code = PIPE_CLOSED
            self._until = None
            self._start("kill", lambda process: process.kill() and None)

    def _show_json(self, record: Record, *, backgrounded: bool) -> None:
        told = record.public()
        if self._args.yielding is not None:
            early = self._process.view(budget=YIELDED).text
            told |= {"backgrounded": backgrounded, "early": early}
        _render.show_json(told)

    def _finish(self, record: Record) -> int:
        code = self._code
        if code is None:
            code = exit_code(record)
            if record.reason not in ("exited", "signal"):
                _render.complain(_explain(record))
        if self._args.json:
            self._show_json(record, backgrounded=False)
        try:
            self._process.wait()  # which acknowledges the end
        except NotFound:
            pass  # somebody removed it just now
        return code


def _stay_attached(args: Namespace, client: SyncClient, process: SyncProcess) -> int:
    """Be at its terminal; our signals are for it, as they are without a terminal."""
    for note in process.record.notes:
        _render.complain(note)
    from ._commands_terminal import attached

    signals = 0

    def on_signal(number: int) -> bool:
        nonlocal signals
        if number not in _SIGNALS:
            return False
        signals += 1
        how = "TERM" if signals == 1 else "KILL"
        if signals < 3:
            work: Callable[..., None] = lambda own: own.kill(signal=how) and None  # noqa: E731
            Pump(args, process.handle, work, lambda error: None)
        return signals < 3

    code = attached(args, client, process, started_here=True, on_signal=on_signal)
    return _seen(process, code)


def _seen(process: SyncProcess, code: int) -> int:
    """The exit code, after saying what it does not: who waits for an end need not be told again."""
    if process.refresh().running:
        return code
    process.wait()
    if process.record.reason not in ("exited", "signal"):
        _render.complain(_explain(process.record))
    return code


def _copy_all(process: SyncProcess, stream: Stream) -> None:
    outputs = process.follow(stream=stream)
    if process.record.capabilities.terminal and os.isatty(1) and _render.can_draw():
        from ._own_terminal import show_all

        show_all(outputs)
        return
    copy_all(outputs, FDS[stream])


def _forward_input(process: SyncProcess) -> None:
    """Our stdin to the process's, however slowly it reads, and the end of it."""
    try:
        while data := os.read(0, _CHUNK):
            while data:
                data = data[process.send(data) :]
        process.send(b"", eof=True)
    except (NotRunning, Unsupported, NotFound):
        return  # it ended, or closed its stdin, before it read everything, as it may


def exit_code(record: Record) -> int:
    if record.status == "timed_out":
        return TIMED_OUT
    code = Exit.of(record).shell_code
    return FAILED if code is None else code


def _explain(record: Record) -> str:
    after = duration_text(record.duration_seconds)
    return {
        "timeout": f"timed out after {after}; --timeout gives it longer",
        "killed": f"stopped by somebody else after {after}",
        "lease_ended": f"stopped after {after} because its session ended; --keep prevents it",
        "log_limit": f"stopped after {after}: it wrote more than its --log-limit",
        "out_of_memory": f"killed by the kernel after {after}: memory ran out",
    }.get(record.reason or "", "how it ended cannot be known; `holdfast logs` has its output") + (
        f" ({record.handle})"
    )
