"""One round: a home, its clients, the faults, the end, and what was found."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.linux.kernel import all_processes

from ._check import Problem, check
from ._faults import Injector, alive, guard_of, watcher_of, words_of, worker_of
from ._journal import Journal, Reader
from ._plan import PATTERN_BYTES

if TYPE_CHECKING:
    from typing import Any

    from ._plan import Plan, Script

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SETTINGS = "max_running = 1000\nmax_finished = 100000\n"
_SETTLES_WITHIN = 180.0
_GO_WITHIN = 15.0


@dataclass
class Surroundings:
    """What this run has besides the rounds."""

    namespace: bool  # of pids and mounts
    limit: float  # seconds within which a call is answered
    keep: bool = False  # what is on disk, also if all is well


class Client:
    """The process of a script's present life, and the steps it is in."""

    def __init__(self, round: Round, script: Script) -> None:
        self.round = round
        self.script = script
        self.life = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.again_at = 0.0
        self.open: dict[int, dict[str, Any]] = {}
        self._reader: Reader | None = None

    def start(self) -> None:
        root, name = self.round.root, self.script.name
        path = f"{root}/scripts/{name}.json"
        if self.life == 0:
            with open(path, "w") as file:
                data = {"descriptors": self.round.plan.descriptors, "script": self.script.to_json()}
                json.dump(data, file)
        self._reader = Reader(f"{root}/journals/{name}.{self.life}.jsonl")
        words = [root, path, str(self.life), str(self.round.curfew)]
        with open(f"{root}/journals/{name}.err", "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "torture._client", *words],
                cwd=_HERE,
                env=self.round.environment,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )

    def tick(self) -> None:
        if self.process is None:
            if self.life < len(self.script.lives) and time.monotonic() >= self.again_at:
                if time.monotonic() < self.round.curfew:
                    self.start()
                else:
                    self.life = len(self.script.lives)
            return
        over = self.process.poll() is not None
        self.look()
        if over:
            self.round.journal.write(
                client=self.script.name, life=self.life, status=self.process.returncode
            )
            self.process = None
            self.open.clear()
            self.life += 1
            self.again_at = time.monotonic() + 0.05

    def look(self) -> None:
        """Take in what it has written, and see which steps are not done."""
        assert self._reader is not None
        for entry in self._reader.read():
            if "do" in entry:
                self.open[entry["n"]] = entry
            elif "n" in entry:
                self.open.pop(entry["n"], None)

    def late(self, limit: float) -> list[dict[str, Any]]:
        """Steps that take longer than they may."""
        now = time.monotonic()
        return [entry for entry in self.open.values() if now - entry["t"] > limit + _own(entry)]

    @property
    def done(self) -> bool:
        return self.process is None and self.life >= len(self.script.lives)


def _open_files(pid: int) -> str:
    """How many descriptors of each kind a process has."""
    kinds: dict[str, int] = {}
    try:
        for number in os.listdir(f"/proc/{pid}/fd"):
            kind = os.readlink(f"/proc/{pid}/fd/{number}").partition(":[")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
    except OSError:
        pass  # it has ended
    return str(kinds)


def _own(entry: dict[str, Any]) -> float:
    """The time that a step may take by what it is."""
    verb, *arguments = entry["do"]
    if verb in ("wait", "listen", "pause"):
        return float(arguments[-1])
    return 20.0 if verb in ("ready", "follow") else 0.0


class Round:
    def __init__(self, plan: Plan, root: str, surroundings: Surroundings) -> None:
        self.plan = plan
        self.root = root
        self.home = root + "/disk/home"
        self.surroundings = surroundings
        self.curfew = 0.0
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")
        }
        self.environment |= {"TORTURE": root, "PYTHONPATH": f"{_HERE}:{_HERE}/src"}
        self.problems: list[Problem] = []
        self._mounted = self._roomy = False
        self._bystander: subprocess.Popen[bytes] | None = None
        for name in ("journals", "witness", "scripts", "disk"):
            os.makedirs(f"{root}/{name}", exist_ok=True)
        self.journal = Journal(root + "/journals/driver.jsonl")
        self.clients = [Client(self, script) for script in plan.scripts]
        self.injector = Injector(self.home, self.journal, self._client_pids)

    def _client_pids(self) -> list[int]:
        return [
            client.process.pid
            for client in self.clients
            if client.process is not None and client.process.poll() is None
        ]

    def run(self) -> list[Problem]:
        try:
            self._set_up()
            self._play()
            if not self.problems:
                self._settle()
            self._look_for_survivors()
            self.problems += check(self.plan, self.root, hung=bool(self.problems))
        finally:
            self.clean_up()
        return self.problems

    def _set_up(self) -> None:
        if self.plan.small_disk:
            size = f"size={self.plan.small_disk},mode=700"
            mount = ["mount", "-t", "tmpfs", "-o", size, "tmpfs", self.root + "/disk"]
            subprocess.run(mount, check=True)
            self._mounted = True
        os.mkdir(self.home, 0o700)
        with open(self.home + "/config.toml", "w") as file:
            file.write(_SETTINGS)
        os.chmod(self.home + "/config.toml", 0o600)
        with open(self.root + "/pattern", "wb") as pattern:
            pattern.write(b"".join(b"%015d\n" % n for n in range(PATTERN_BYTES // 16)))
        longest = str(self.plan.length + 600)
        self._bystander = subprocess.Popen(
            [sys.executable, "-m", "torture._bystander", self.root + "/bystanders", longest],
            cwd=_HERE,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    # -- the play ------------------------------------------------------------------------------

    def _play(self) -> None:
        began = time.monotonic()
        self.curfew = began + self.plan.length
        faults = list(self.plan.faults)
        longest = self.plan.length + self.surroundings.limit + 90
        while not all(client.done for client in self.clients):
            now = time.monotonic()
            while faults and faults[0].at <= now - began and now < self.curfew:
                self.injector.inject(faults.pop(0))
            self.injector.tick()
            if now >= self.curfew:
                self._give_room()
            for client in self.clients:
                client.tick()
                late = client.late(self.surroundings.limit)
                if late and client.process is not None:
                    self._hangs(client, late)
                    return
            if now - began > longest:
                left = [client for client in self.clients if not client.done]
                self._hangs(left[0], list(left[0].open.values()))
                return
            time.sleep(0.01)
        self.injector.release()
        self.injector.tick()

    def _hangs(self, client: Client, steps: list[dict[str, Any]]) -> None:
        seen = [f"{step['do']} since {time.monotonic() - step['t']:.0f} s" for step in steps[:5]]
        if client.process is not None:
            os.kill(client.process.pid, signal.SIGUSR2)  # which writes down where it is
            time.sleep(0.3)
        self.problems.append(
            Problem(
                "a call hangs",
                f"every call of a client ends within {self.surroundings.limit:g} s of its time",
                f"{client.script.name}, life {client.life}: {'; '.join(seen)}",
                self._of_the_keeper(),
            )
        )

    def _of_the_keeper(self) -> list[str]:
        """Where the keeper's halves are, as far as the kernel tells."""
        guard = guard_of(self.home)
        worker = None if guard is None else worker_of(guard)
        lines = []
        for name, pid in (("guard", guard), ("worker", worker)):
            if pid is None:
                lines.append(f"{name}: none")
                continue
            where = []
            for file in ("wchan", "syscall", "stack"):
                try:
                    with open(f"/proc/{pid}/{file}") as about:
                        where.append(f"{file}: {' '.join(about.read().split())[:400]}")
                except OSError:
                    continue
            try:
                with open(f"/proc/{pid}/status") as about:
                    where += [line.strip() for line in about if line.startswith("State")]
            except OSError:
                pass
            lines.append(f"{name} {pid}: " + "; ".join(where))
        return lines

    # -- the end -------------------------------------------------------------------------------

    def _give_room(self) -> None:
        """What was written may have filled a small disk for good: with room again all goes on."""
        if self._mounted and not self._roomy:
            mount = ["mount", "-o", "remount,size=1g", self.root + "/disk"]
            subprocess.run(mount, check=True)
            self._roomy = True

    def _settle(self) -> None:
        self._give_room()
        with open(self.root + "/journals/settle.err", "ab") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "torture._settle", self.root],
                cwd=_HERE,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
        try:
            code = process.wait(_SETTLES_WITHIN)
        except subprocess.TimeoutExpired:
            evidence = self._of_the_keeper()
            process.kill()
            process.wait()
            entries = list(Reader(self.root + "/journals/settle.jsonl").read())
            last = entries[-1].get("settle") if entries else "start"
            self.problems.append(
                Problem(
                    "a call hangs",
                    f"after the faults everything can be stopped within {_SETTLES_WITHIN:g} s",
                    f"it does not come past {last!r}",
                    evidence,
                )
            )
            return
        if code != 0:
            with open(self.root + "/journals/settle.err") as file:
                text = file.read()[-2000:]
            self.problems.append(Problem("settling fails", "it ends with 0", text))

    def _look_for_survivors(self) -> None:
        """Nobody of ours may be left: no process, helper, server or half of a keeper."""
        if self.problems:
            return
        until = time.monotonic() + _GO_WITHIN
        while left := self._of_ours():
            if time.monotonic() > until:
                lines = [f"{pid}: {words_of(pid)[:200]} {_open_files(pid)}" for pid in left]
                self.problems.append(
                    Problem("somebody survives", "nobody is left when the keeper is", "", lines)
                )
                return
            time.sleep(0.05)

    def _of_ours(self) -> list[int]:
        ours = {os.getpid(), 1}
        if self._bystander is not None:
            ours.add(self._bystander.pid)
        mark = f"TORTURE={self.root}".encode()
        found = []
        for process in all_processes():
            if process.pid in ours or process.state in "ZX" or process.parent in ours - {1}:
                continue
            if self.surroundings.namespace:
                if process.parent != 0:
                    found.append(process.pid)
                continue
            if self.root in words_of(process.pid):
                found.append(process.pid)
                continue
            try:
                with open(f"/proc/{process.pid}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(process.pid)
            except OSError:
                continue
        return found

    def clean_up(self) -> None:
        """End what is left of this round, whatever happened; nothing else."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it may come twice
        try:
            self._end_all()
        finally:
            signal.signal(signal.SIGINT, before)

    def _end_all(self) -> None:
        self.injector.release()
        if self._bystander is not None:
            self._bystander.terminate()
            try:
                self._bystander.wait(10)
            except subprocess.TimeoutExpired:
                self._bystander.kill()
                self._bystander.wait()
            self._bystander = None
        for client in self.clients:
            if client.process is not None:
                client.process.kill()
                client.process.wait()
                client.process = None
        for _ in range(20):
            guard = guard_of(self.home)
            worker = None if guard is None else worker_of(guard)
            watcher = None if worker is None else watcher_of(worker)
            left = {*self._of_ours(), *(pid for pid in (guard, worker, watcher) if pid)}
            if not left:
                break
            for pid in left:
                try:
                    pidfd = os.pidfd_open(pid)
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    os.close(pidfd)
                except ProcessLookupError:
                    continue
            end = time.monotonic() + 2
            while any(alive(pid) for pid in left) and time.monotonic() < end:
                time.sleep(0.02)
        if self._mounted:
            if self.problems or self.surroundings.keep:
                self._copy_home()
            subprocess.run(["umount", "-l", self.root + "/disk"], check=False)
            self._mounted = False
            if os.path.isdir(self.root + "/kept"):
                os.rename(self.root + "/kept", self.home)
        self.journal.close()

    def _copy_home(self) -> None:
        """What is on the small disk goes with its mount: keep its plain files."""

        def special(directory: str, names: list[str]) -> list[str]:
            paths = [(name, os.path.join(directory, name)) for name in names]
            return [n for n, path in paths if not (os.path.isfile(path) or os.path.isdir(path))]

        shutil.copytree(self.home, self.root + "/kept", ignore=special)
