"""The command line: parse, one client call, render.

Only what the given command needs is imported: `holdfast ps` has to feel instant, and most of what
a command line tool spends its time on is importing. Nobody imports it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Exit codes people's hands know from timeout(1), env(1) and docker.
TIMED_OUT, FAILED, NOT_EXECUTABLE, NOT_FOUND = 124, 125, 126, 127
INTERRUPTED, PIPE_CLOSED = 130, 141
ENDED_FIRST = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises, never shows a traceback."""
    from holdfast.core.errors import HoldfastError

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with it closed; what is printed goes nowhere
            setattr(sys, name, open(os.devnull, "w"))
    for stream in (sys.stdout, sys.stderr):
        # Handles and labels may hold any character; a terminal that cannot show one gets an escape.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except HoldfastError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return PIPE_CLOSED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}; `holdfast doctor` may know why")
    except RecursionError:
        return _fail("an argument is nested too deep")
    except SystemExit as end:  # argparse, after --help
        return end.code if isinstance(end.code, int) else 0
    except Exception as error:
        if os.environ.get("HOLDFAST_DEBUG"):
            raise
        return _fail(
            f"unexpected {type(error).__name__}: {error}; run it again with HOLDFAST_DEBUG=1 and "
            "report what it prints"
        )


def _dispatch(argv: list[str]) -> int:
    from . import _parser

    if not argv or argv[0] in ("-h", "--help", "help"):
        if len(argv) > 1 and argv[1] in _parser.COMMANDS:
            return _dispatch([argv[1], "--help"])
        print(_parser.overview())
        return 0
    if argv[0] in ("-V", "--version", "version"):
        from holdfast.core.version import __version__

        print(f"holdfast {__version__}")
        return 0
    if argv[0] == "__complete":
        from ._shell_completion import complete

        return complete(argv[1:])
    name = argv[0]
    parser, do = _parser.command(name)
    return do(parser.parse(argv[1:]))


def _fail(message: str) -> int:
    from ._render import complain

    try:
        complain(message)
    except OSError:
        pass  # nobody is left to tell
    return FAILED


def _forget_stdout() -> None:
    """Leave nothing in the buffer that the interpreter would try to flush into a closed pipe."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
    except OSError:
        pass
