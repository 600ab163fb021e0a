from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from holdfast.core.tmux_server import find_tmux

from . import __doc__ as about
from ._history import summary
from ._plan import CREWS, FAULTS, plan_of
from ._round import Round, Surroundings

if TYPE_CHECKING:
    from ._check import Problem
    from ._plan import Plan

_PIDS = 2000
_OWN_PID_MAX = (6, 14)  # since then each pid namespace has one
_SHOWN = 5
_GOES_WITHIN = 40.0


def main() -> int:
    options = _arguments()
    if options.inside is not None:
        return _inside(options)
    namespace = _can_unshare() and not options.no_namespace
    if not namespace:
        print("not root, or no namespaces here: no small disk, pids are the machine's", flush=True)
        return _run(options, namespace=False)
    return _outside(options)


def _outside(options: argparse.Namespace) -> int:
    """Start the run in namespaces of its own, where it ends as soon as we do."""
    line, ours = os.pipe()  # whose end says that we are gone, or want it to stop
    words = [sys.executable, "-m", "torture", *sys.argv[1:], "--seed", options.seed]
    words += ["--inside", f"{options.pids},{line}"]
    inner = subprocess.Popen([*_UNSHARE, *words], pass_fds=[line])
    os.close(line)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return inner.wait()
    except KeyboardInterrupt:
        os.close(ours)
        try:
            return inner.wait(_GOES_WITHIN)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            inner.kill()  # and with it everything in there
            return 130


_UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]


def _can_unshare() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True)
    return tried.returncode == 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m torture",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", default="", help="replay the plan of an earlier run")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no round after (10)")
    parser.add_argument("--rounds", type=int, help="how many at most")
    parser.add_argument("--round", type=int, help="only the round of this number, from 1")
    parser.add_argument("--length", type=float, default=15.0, help="of a round, in seconds (15)")
    parser.add_argument("--only", help=f"faults, with commas between, or none: {', '.join(FAULTS)}")
    parser.add_argument("--without", default="", help="the same plan, but for these faults")
    parser.add_argument("--crew", help=f"clients, with commas between: {', '.join(CREWS)}")
    parser.add_argument("--modes", help="of processes: pipe, pty, tmux")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds in which a call is answered (60)"
    )
    parser.add_argument("--keep-going", action="store_true", help="also after a round that failed")
    parser.add_argument("--keep", metavar="DIRECTORY", help="keep all homes and journals, there")
    parser.add_argument("--plan", action="store_true", help="print the plan, and do nothing")
    parser.add_argument("--pids", type=int, default=_PIDS, help="in the pid namespace (2000)")
    parser.add_argument("--no-namespace", action="store_true", help="as for an ordinary user")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.seed = options.seed or str(random.SystemRandom().randrange(1 << 32))
    for name, known in (("only", [*FAULTS, "none"]), ("without", [*FAULTS, ""]), ("crew", CREWS)):
        given = getattr(options, name)
        chosen = None if given is None else given.split(",")
        setattr(options, name, chosen)
        if unknown := [word for word in chosen or [] if word not in known]:
            parser.error(f"--{name} knows {', '.join(known)}, not {unknown[0]}")
    modes = (options.modes or "pipe,pty,tmux").split(",")
    options.modes = [mode for mode in modes if mode != "tmux" or find_tmux()]
    return options


def _inside(options: argparse.Namespace) -> int:
    """The first process of the namespace: reaps whoever is left to it, as an init does."""
    pids, line = map(int, options.inside.split(","))
    os.set_inheritable(line, False)
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release >= _OWN_PID_MAX:
        with open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(str(pids))
    driver = os.fork()
    if driver == 0:
        threading.Thread(target=_stop_at_the_end_of, args=(line,), daemon=True).start()
        try:
            code = _run(options, namespace=True)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            code = 3
        sys.stdout.flush()
        os._exit(code)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == driver:
            return os.waitstatus_to_exitcode(status)


def _stop_at_the_end_of(line: int) -> None:
    os.read(line, 1)
    os.kill(os.getpid(), signal.SIGINT)


def _run(options: argparse.Namespace, *, namespace: bool) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"seed {options.seed}", flush=True)
    surroundings = Surroundings(namespace, options.limit, bool(options.keep))
    root = tempfile.mkdtemp(prefix="holdfast-torture-", dir=options.keep)
    began = time.monotonic()
    number, failed = options.round or 1, 0
    try:
        while True:
            plan = plan_of(
                options.seed,
                number,
                length=options.length,
                only=options.only,
                without=options.without,
                crews=options.crew,
                modes=options.modes,
                can_mount=namespace,
            )
            if options.plan:
                _print_plan(plan)
            elif _one(plan, f"{root}/{number}", surroundings, _again(options, number)):
                failed += 1
                if not options.keep_going:
                    break
            number += 1
            spent = (time.monotonic() - began) / 60
            if options.round or spent >= options.minutes or number > (options.rounds or number):
                break
            if options.plan and number > (options.rounds or 10):
                break
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("interrupted", flush=True)
        return 130
    finally:
        if not failed and not options.keep:
            shutil.rmtree(root, ignore_errors=True)
    if failed:
        print(f"{failed} failed; homes and journals are in {root}")
        return 1
    if options.keep:
        print(f"homes and journals are in {root}")
    print("all that was promised was kept")
    return 0


def _again(options: argparse.Namespace, number: int) -> str:
    """The arguments with which a round is played again."""
    words = ["--seed", options.seed, "--round", str(number), "--length", f"{options.length:g}"]
    for name in ("only", "without", "crew", "modes"):
        given = getattr(options, name)
        if given not in (None, [""]):
            words += [f"--{name}", ",".join(given)]
    return " ".join(words)


def _one(plan: Plan, root: str, surroundings: Surroundings, again: str) -> list[Problem]:
    """Play one round and say what came of it."""
    os.mkdir(root)
    began = time.monotonic()
    print(f"round {plan.number}: {plan.describe()}", flush=True)
    problems = Round(plan, root, surroundings).run()
    seconds = time.monotonic() - began
    if not problems:
        print(f"round {plan.number}: kept, {seconds:.0f} s; {summary(root)}", flush=True)
        if not surroundings.keep:
            shutil.rmtree(root)
        return []
    print(f"round {plan.number}: FAILED, {len(problems)} problems, {seconds:.0f} s")
    for problem in problems[:_SHOWN]:
        print(problem)
    if len(problems) > _SHOWN:
        rest: dict[str, int] = {}
        for problem in problems[_SHOWN:]:
            rest[problem.what] = rest.get(problem.what, 0) + 1
        print("and", ", ".join(f"{n} x {what}" for what, n in rest.items()))
    print(f"home: {root}/disk/home, journals: {root}/journals")
    print(f"again: make torture ARGS='{again}'", flush=True)
    with open(f"{root}/problems", "w") as file:
        file.write("\n".join(str(problem) for problem in problems))
    return problems


def _print_plan(plan: Plan) -> None:
    print(f"round {plan.number}: {plan.describe()}")
    for script in plan.scripts:
        print(f"  {script.name}: {len(script.lives)} lives, {len(script.specs)} processes")
    for fault in plan.faults:
        print(f"  {fault.at:6.2f} {fault.kind} {fault.seconds or ''}")


if __name__ == "__main__":
    sys.exit(main())
