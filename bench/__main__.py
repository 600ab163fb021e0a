from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import holdfast

from . import __doc__ as about
from ._floor import SHELL, busy, file_system
from ._measure import now
from ._rows_docker import docker_start
from ._rows_flow import cap, many_processes, one_process
from ._rows_keeper import idle, new_worker, ps, weight
from ._rows_life import burst, exit_to_waiter, start
from ._rows_logs import echo, large_log
from ._rows_mcp import server_start, tool_calls
from ._rows_screen import screen
from ._rows_search import search
from ._rows_stop import deaf, stop_tree
from ._rows_terminal import key_to_echo, terminal_flow
from ._rows_wait import matching_line, waiting_costs
from ._stage import Stage
from ._table import competitors_table, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._measure import Row

ROWS: dict[str, Callable[[Stage], list[Row]]] = {
    "start": start,
    "exit": exit_to_waiter,
    "burst": burst,
    "stop": stop_tree,
    "deaf": deaf,
    "docker": docker_start,
    "idle": idle,
    "weight": weight,
    "one": one_process,
    "many": many_processes,
    "cap": cap,
    "log": large_log,
    "echo": echo,
    "key": key_to_echo,
    "tty": terminal_flow,
    "screen": screen,
    "search": search,
    "match": matching_line,
    "wait": waiting_costs,
    "mcp": server_start,
    "tools": tool_calls,
    "ps": ps,
    "worker": new_worker,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 40 seconds")
    parser.add_argument("--json", metavar="FILE", help="write the JSON there, not below the table")
    parser.add_argument("--only", action="append", choices=ROWS, help="these rows (repeatable)")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a target is missed")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    rows: list[Row] = []
    failures: dict[str, str] = {}
    noise: dict[str, float] = {}
    began = now()
    environment = _environment(options.quick)
    for name in options.only or ROWS:
        started = now()
        print(f"{name} ...", end="", file=sys.stderr, flush=True)
        noise[name] = round(busy(0.2), 2)
        try:
            with Stage(quick=options.quick) as stage:
                rows += ROWS[name](stage)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
        print(f" {now() - started:.1f} s", file=sys.stderr)
    environment["seconds"] = round(now() - began, 1)

    print(
        "holdfast {holdfast} on Linux {kernel}, {cpus} CPUs, Python {python}, {file_system}, "
        "{seconds} s".format(**environment)
    )
    print()
    print(table(rows))
    for name, message in failures.items():
        print(f"{name} could not be measured: {message}")
    noisy = [f"{name} ({share:.0%})" for name, share in noise.items() if share > 0.1]
    if noisy:
        print(f"others kept the CPUs busy just before these, measure again: {', '.join(noisy)}")
    print()
    print(competitors_table())
    report = {
        "environment": environment,
        "rows": [row.to_json() for row in rows],
        "failures": failures,
        "busy_before": noise,
    }
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=2)
            file.write("\n")
    else:
        print()
        print(json.dumps(report))
    if failures:
        return 1
    return int(options.strict and any(row.ok is False for row in rows))


def _environment(quick: bool) -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "holdfast": holdfast.__version__,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "shell": SHELL,
        "file_system": file_system(tempfile.gettempdir()),
        "quick": quick,
    }


if __name__ == "__main__":
    sys.exit(main())
