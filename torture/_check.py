"""The check of a round: what holdfast promises, compared with what its parties wrote down.

Everything here is read from disk: the journals, what each process said of itself, the home.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast import HoldfastError
from holdfast.core.home import Home
from holdfast.core.store import Store
from holdfast.linux.cgroup import Trees
from holdfast.output.log import Log

from ._history import HALVES, SLACK, Act, History
from ._plan import NATURAL

if TYPE_CHECKING:
    from typing import Any

    from holdfast import Record

    from ._plan import Plan, Spec

_START_TRIES = 6
_STOPS = ("kill", "remove", "stop_group", "stop_all")
# What an error of this code may be due to.
_EXCUSES: dict[str, tuple[str, ...]] = {
    "store": ("fill-disk", "few-descriptors"),
    "spawn_failed": ("fill-disk", "few-descriptors", "kill-tmux", "stop-tmux", "kill-both"),
    "unavailable": ("fill-disk", "few-descriptors", "kill-tmux", "stop-tmux"),
    "limit_reached": (),
    "keeper": ("fill-disk", "few-descriptors"),
    "unsupported": ("kill-both", "kill-tmux", "stop-tmux"),
    "wait_timeout": ("fill-disk", "few-descriptors"),
    "error": ("fill-disk", "few-descriptors"),
}


@dataclass
class Problem:
    what: str
    expected: str
    seen: str
    journal: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.what}", f"  expected: {self.expected}", f"  seen:     {self.seen}"]
        return "\n".join([*lines, *("    " + line[:600] for line in self.journal[:30])])


def check(plan: Plan, root: str, *, hung: bool) -> list[Problem]:
    """Every promise that was not kept in a round. After a hang only what is on disk is told."""
    history = History(root)
    home = Home(root + "/disk/home")
    checker = _Checker(plan, root, history, home)
    checker.logs()
    checker.bystanders()
    checker.clients()
    if not hung:
        checker.settled()
        checker.processes()
        checker.events()
        checker.files()
    return checker.problems


class _Checker:
    def __init__(self, plan: Plan, root: str, history: History, home: Home) -> None:
        self.plan = plan
        self.root = root
        self.history = history
        self.home = home
        self.store = Store(home)
        self.specs = plan.specs
        self.problems: list[Problem] = []
        with open(root + "/pattern", "rb") as file:
            self.pattern = file.read()
        self.down = list(history.down())
        self.removed = {
            act.handle: act for act in history.acts if act.verb == "remove" and not act.error
        }

    def say(self, what: str, expected: str, seen: object, journal: list[str] | None = None) -> None:
        self.problems.append(Problem(what, expected, str(seen), journal or []))

    # -- keeper.log, bystanders ----------------------------------------------------------------

    def logs(self) -> None:
        for name in ("keeper.log", "keeper.log.old"):
            try:
                with open(f"{self.home.path}/{name}", errors="replace") as file:
                    lines = file.read().splitlines()
            except FileNotFoundError:
                continue
            for index, line in enumerate(lines):
                if "Traceback" in line or line.endswith("the worker failed:"):
                    self.say("a traceback", f"none in {name}", line, lines[index : index + 30])
                    return

    def bystanders(self) -> None:
        try:
            with open(self.root + "/bystanders") as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return
        if lines:
            self.say("a bystander was signalled", "nobody touches them", lines[0], lines)

    # -- errors of calls -----------------------------------------------------------------------

    def clients(self) -> None:
        for act in self.history.acts:
            if act.crash:
                self.say(
                    "a call raises what it should not",
                    "an answer, or a HoldfastError",
                    f"{act.client}: {act.verb} {act.arguments}",
                    act.crash.splitlines(),
                )
            elif act.error and not self._excused(act):
                about = self.history.about(act.handle) or [str(act)]
                self.say("a call fails", "an answer", act, about)
        for entry in self.history.lives:
            if entry["status"] not in (0, -9):
                with open(f"{self.root}/journals/{entry['client']}.err") as file:
                    lines = file.read().splitlines()[-30:]
                self.say("a client fails", "status 0", entry, lines)

    def _excused(self, act: Act) -> bool:
        history, handle = self.history, act.handle
        if act.error == "not_found":
            return self._may_be_missing(handle, act) or not handle
        if act.error == "not_running":
            return True
        if act.error == "bad_request":
            # Another client closed the session in good order while this one was at it.
            return False
        if act.error == "spawn_failed" and "before it had begun" in act.message:
            return self._was_stopped(self.specs[handle], act.session, act.begun, closing=True)
        if act.error == "keeper" and "while it wrote" in act.message:
            return act.verb in ("send", "eof") and history.had(*HALVES, "stop-worker-long")
        if act.error == "keeper" and "and ended each time" in act.message:
            # To whoever starts them, keepers that are killed at once look like any that fail.
            return len(history.both_killed(act.begun, act.ended)) >= _START_TRIES
        if act.error == "keeper" and act.verb == "restart":
            return history.during(act.begun, act.ended, *HALVES, *_EXCUSES["keeper"])
        if act.error == "keeper" and act.message.startswith("tmux "):
            return self.specs[handle].mode == "tmux" and history.during(
                act.begun, act.ended, "kill-tmux", "stop-tmux", *_EXCUSES["keeper"]
            )
        if act.error == "unsupported" and self._was_stopped(
            self.specs[handle], act.session, act.begun, closing=True
        ):
            return True  # it is on its way out, and has let go of its end
        if act.error == "unsupported" and act.verb in ("send", "eof", "resize", "screen"):
            return any(begun <= (act.ended or act.begun) + SLACK for begun, _ in self.down) or (
                self.specs[handle].mode == "tmux" and history.had("kill-tmux", "stop-tmux")
            )
        if act.error == "wait_timeout" and act.verb == "wait" and handle in self.specs:
            spec = self.specs[handle]
            spawns = [a for a in history.by_handle[handle] if a.verb == "spawn"]
            if spec.kind == "daemon" and any(history.both_killed(a.begun, a.ended) for a in spawns):
                return True  # its pid was not written down yet, and the daemon passes for it
            if spec.kind == "echo":
                return True  # its end may have been typed into a terminal that was gone
            if spec.kind not in NATURAL and spec.timeout is None:
                return not any(
                    a.verb == "signal" and not a.error for a in history.by_handle[handle]
                )
        kinds = _EXCUSES.get(act.error or "", ())
        if act.error == "spawn_failed" and "did not start it within" in act.message:
            kinds += ("stop-worker", "stop-worker-long", "stop-guard", "stop-guard-long")
        if self.plan.descriptors and "few-descriptors" in kinds:
            return True
        if self.plan.small_disk and "fill-disk" in kinds:
            return True  # which is full without a fault too, when enough was written
        return history.during(act.begun, act.ended, *kinds)

    def _may_be_missing(self, handle: str, act: Act | None = None) -> bool:
        """Whether there need not be a record: it was removed, or nobody was told that it began."""
        acts = self.history.by_handle.get(handle, [])
        if any(a.verb == "remove" and a is not act for a in acts):
            return True
        answered = any(a.verb == "spawn" and a.ok is not None for a in acts)
        return not answered

    # -- the end of it all ---------------------------------------------------------------------

    def settled(self) -> None:
        for name, entries in self.history.settled.items():
            for entry in entries:
                if "error" in entry and not (name == "kill" and entry["error"] == "not_found"):
                    self.say("the end fails", f"{name} succeeds", entry)
        for handle in self._settled("naturally") or []:
            self.say(
                "an end is never noticed",
                "what ends by itself, or at its deadline, is seen to have ended",
                f"{handle} ({self.specs[handle].kind}) is running; {self._witness(handle)}",
                self.history.about(handle),
            )
        stopped = self._settled("stop")
        receipts = stopped[1] if stopped else []
        receipts += [
            entry["ok"][:2] for entry in self.history.settled.get("kill", []) if entry.get("ok")
        ]
        for act in self.history.acts:
            for receipt in (act.ok or {}).get("receipts", []) if isinstance(act.ok, dict) else []:
                receipts.append([receipt["handle"], receipt["survivors"]])
            if act.verb == "kill" and act.ok:
                receipts.append([act.handle, act.ok["survivors"]])
        for handle, survivors in receipts:
            if survivors:
                about = self.history.about(handle)
                self.say("somebody survives a kill", "no survivors", (handle, survivors), about)
        for handle in self._settled("running") or []:
            about = self.history.about(handle)
            self.say("a process outlives stop_all", "it has ended", handle, about)
        for half, names in (self._settled("descriptors") or {}).items():
            counts: dict[str, int] = {}
            for name in names:
                kind = re.sub(r"\d+", "N", name)
                counts[kind] = counts.get(kind, 0) + 1
            self.say("descriptors leak", f"few in the {half}", f"{len(names)}: {counts}")

    def _settled(self, name: str) -> Any:
        entries = self.history.settled.get(name, [])
        return entries[-1].get("ok") if entries else None

    # -- processes -----------------------------------------------------------------------------

    def processes(self) -> None:
        known = set(self.store.handles())
        for handle, acts in self.history.by_handle.items():
            spec = self.specs[handle]
            spawn = next((act for act in acts if act.verb == "spawn"), None)
            if spawn is None:
                continue
            starts = [line for line in self._witness(handle) if line.startswith("began")]
            about = self.history.about(handle)
            if len(starts) > 1:
                self.say("a process was started twice", "once", starts, about)
            if handle not in known:
                if spawn.ok is not None and not self._may_be_missing(handle):
                    self.say(
                        "a process is not accounted for", "a record", f"none of {handle}", about
                    )
                continue
            if spawn.error is not None and spawn.error != "keeper" and not starts:
                self.say("a refused start left a record", "none", f"{handle}: {spawn}", about)
            try:
                record = self.store.load(handle)
            except HoldfastError as error:
                self.say("a record cannot be read", "a record", error, about)
                continue
            self._one(spec, spawn, record, acts, starts, about)
        for handle in known - set(self.history.by_handle):
            self.say("a process nobody started", "none", handle)

    def _one(
        self,
        spec: Spec,
        spawn: Act,
        record: Record,
        acts: list[Act],
        starts: list[str],
        about: list[str],
    ) -> None:
        end = (record.status, record.exit_code, record.signal)
        if record.running:
            self.say("a process is running", "it was stopped", record, about)
            return
        wrong = self._wrong_end(spec, spawn, record, acts)
        if wrong:
            told = [
                *about,
                f"its own words: {self._witness(spec.handle)}",
                f"notes: {record.notes}",
            ]
            self.say("a wrong end", wrong, f"{record!r} reason={record.reason}", told)
        for act in acts:
            shown = act.ok if act.verb in ("wait", "kill") and act.ok else None
            if shown and (shown["status"], shown["code"], shown["signal"]) != end:
                self.say("two stories of one end", f"the record's {end}", shown, about)
        if not record.told:
            self.say("an end was not told", "told", record, about)
        own = record.reason in ("exited", "signal") and end[1:] == self._own_end(spec)
        if own and not starts:
            self.say("it never ran", "what was answered for runs", record, about)
        if spec.kind == "echo":
            self._echoed(spec, record, acts, about)
        else:
            self._output(spec, spawn, record, acts, about)

    def _wrong_end(self, spec: Spec, spawn: Act, record: Record, acts: list[Act]) -> str:
        """Why this cannot have been its end, or "" if it can."""
        status, reason, code, name = record.status, record.reason, record.exit_code, record.signal
        begun = spawn.begun
        terminal = spec.mode != "pipe"
        own = self._own_end(spec)
        hung_up = terminal and (
            (spec.mode == "pty" and any(until >= begun for _, until in self.down))
            or (spec.mode == "tmux" and self.history.had("kill-tmux", "stop-tmux", "kill-both"))
        )
        if (code, name) == own and reason in ("exited", "signal"):
            return ""
        if reason in ("killed", "lease_ended", "timeout"):
            until = record.started_clock + (record.duration_seconds or 0.0) + 0.1
            if reason == "killed" and not self._was_stopped(spec, spawn.session, begun, until):
                return "nobody stopped it"
            if reason == "lease_ended" and not self._session_ended(spec, spawn.session):
                return "its session never ended"
            if reason == "timeout" and spec.timeout is None:
                return "it has no deadline"
            ways = [(None, "SIGTERM"), (None, "SIGKILL"), own]
            ways += [(spec.code, None)] if spec.kind == "handler" else []
            ways += [(None, "SIGHUP")] if terminal else []
            # A shell at its end may have seen its last child go by the signal that was for both.
            ways += [(143, None), (137, None), (129, None)]
            return "" if (code, name) in ways else f"one of {ways}"
        if status == "failed" and reason == "signal":
            signals = {f"SIG{act.arguments[1]}" for act in acts if act.verb == "signal"}
            if name in signals or (name == "SIGHUP" and hung_up):
                return ""
            if name == "SIGKILL" and any(f.get("pid") == record.pid for f in self.history.faults):
                return ""  # by us, who took it for a worker before its exec
        if status == "failed" and hung_up and code in (129, 128 + 1):
            return ""
        if status == "failed" and terminal and spec.kind == "echo" and hung_up:
            return ""
        if status == "lost":
            return self._wrongly_lost(spec, begun)
        return f"{own} by itself" if own else "stopped by somebody"

    def _own_end(self, spec: Spec) -> tuple[int | None, str | None] | None:
        if spec.kind in ("exit", "pattern", "daemon", "echo"):
            return spec.code, None
        return (None, f"SIG{spec.signal}") if spec.kind == "signal" else None

    def _was_stopped(
        self,
        spec: Spec,
        session: str,
        begun: float,
        until: float = float("inf"),
        *,
        closing: bool = False,
    ) -> bool:
        """Somebody may have stopped it then; the end of the round stops whatever is left."""
        stopped = self._settled("stop")
        if stopped and spec.handle in stopped[0]:
            return True
        for act in self.history.acts:
            if act.verb not in (*_STOPS, "close") or (act.verb == "close" and not closing):
                continue
            last = float("inf") if act.ended is None else act.ended
            if last < begun or act.begun > until:
                continue
            if act.handle == spec.handle:
                return True
            if act.verb in ("stop_all", "close") and act.session == session:
                return True
            if act.verb == "stop_group" and act.arguments == [spec.group]:
                return True
        return any(entry.get("ok", [""])[0] == spec.handle for entry in self._killed())

    def _killed(self) -> list[dict[str, Any]]:
        return [entry for entry in self.history.settled.get("kill", []) if entry.get("ok")]

    def _session_ended(self, spec: Spec, session: str) -> bool:
        if spec.keep:
            return False
        if any(act.verb == "close" and act.session == session for act in self.history.acts):
            return True
        # A client that was killed lets go of its session after the grace of the lease.
        for script in self.plan.scripts:
            for life in script.lives:
                for row in life.rows:
                    for stand in row:
                        if stand.session == session and stand.grace < self.plan.length:
                            return True
        return False

    def _wrongly_lost(self, spec: Spec, begun: float) -> str:
        ended = self._ended_at(spec.handle)
        for since, until in self.down:
            if until + SLACK < begun:
                continue
            if spec.mode == "pty" or ended is None:
                return ""  # hung up at that moment, or nobody can say when it ended
            stops = [
                s for s, e in self.history.windows("stop-worker", "stop-worker-long") if e >= since
            ]
            from_when = min([since, *stops]) - SLACK
            if from_when <= ended <= until + SLACK:
                return ""
        return "lost only if it ended while there was no keeper"

    def _witness(self, handle: str) -> list[str]:
        try:
            with open(f"{self.root}/witness/{handle}") as file:
                return file.read().splitlines()
        except FileNotFoundError:
            return []

    def _ended_at(self, handle: str) -> float | None:
        for line in self._witness(handle):
            if line.startswith("ends"):
                return float(line.split()[2])
        return None

    # -- output --------------------------------------------------------------------------------

    def _expected(self, spec: Spec, stream: str) -> bytes:
        if spec.kind == "pattern":
            data = self.pattern[: spec.pieces * spec.size if stream == "stdout" else spec.errors]
        else:
            data = b"" if spec.kind == "exit" or stream == "stderr" else b"ready\n"
        return data if spec.mode == "pipe" else data.replace(b"\n", b"\r\n")

    def _read(self, handle: str, stream: str) -> tuple[int, bytes]:
        """Where the log begins, and all of it from there on."""
        log = Log(self.home.log(handle, stream), self.home.head(handle, stream))
        try:
            begin = position = log.begin()
            parts = []
            while (output := log.read(position, 1 << 20)).data:
                parts.append(output.data)
                position = output.end
            return begin, b"".join(parts)
        finally:
            log.close()

    def _output(
        self, spec: Spec, spawn: Act, record: Record, acts: list[Act], about: list[str]
    ) -> None:
        own = (record.exit_code, record.signal) == self._own_end(spec)
        whole = own and record.reason in ("exited", "signal") and not self._may_lose(spec, spawn)
        if any("disk was full" in note for note in record.notes):
            # What waited for room in its FIFO when it had ended went with both halves.
            whole = whole and not self.history.both_killed(spawn.begun, None)
        for stream in ("stdout", "stderr") if record.err_log else ("stdout",):
            expected = self._expected(spec, stream)
            begin, data = self._read(spec.handle, stream)
            cleared = spec.log_cap is not None or any(act.verb == "clear" for act in acts)
            if begin and not cleared:
                self.say("output is gone", "a log from its first byte on", begin, about)
            if data != expected[begin : begin + len(data)]:
                at = next(
                    i
                    for i, byte in enumerate(data)
                    if expected[begin + i : begin + i + 1] != bytes([byte])
                )
                seen = (
                    f"{stream} at {begin + at}: {data[at : at + 60]!r}, of {len(data)} from {begin}"
                )
                want = repr(expected[begin + at : begin + at + 60])
                if not (spec.kind not in NATURAL and b"ready" in data):  # a shell's word of its end
                    self.say("wrong output", want, seen, about)
            elif whole and begin + len(data) != len(expected):
                seen = f"{stream}: {len(data)} from {begin}"
                self.say("output is lost", f"{len(expected)} bytes", seen, about)
        for act in acts:
            if act.verb == "follow" and act.ok:
                length, gap = act.ok["length"], act.ok["gap"]
                expected = self._expected(spec, "stdout")
                # On a full disk an end is told before there is room for the last of its output.
                # So it is when tmux, which has the rest, is stopped.
                faults = ("fill-disk", *(["stop-tmux"] if spec.mode == "tmux" else []))
                waits = self.history.during(act.begun, act.ended, *faults)
                if whole and not waits and length + gap != len(expected):
                    self.say("a follower misses output", f"{len(expected)} bytes", act.ok, about)
                elif not gap and hashlib.sha256(expected[:length]).hexdigest() != act.ok["sha256"]:
                    self.say("a follower sees other output", "the log's bytes", act.ok, about)

    def _may_lose(self, spec: Spec, spawn: Act) -> bool:
        """Whether output may be missing at the end, by what is promised."""
        if spec.mode == "tmux":
            return self.history.had("kill-tmux")
        for since, until in self.down:
            if until + SLACK < spawn.begun:
                continue
            ended = self._ended_at(spec.handle)
            if spec.mode == "pty" or ended is None or since - SLACK <= ended <= until + SLACK:
                return True
        return False

    def _echoed(self, spec: Spec, record: Record, acts: list[Act], about: list[str]) -> None:
        """Each line that was sent came back once, in order; of the doubtful ones at most once."""
        _, data = self._read(spec.handle, "stdout")
        lines = data.decode("utf-8", "replace").replace("\r", "").split("\n")
        came = [line.removeprefix("got ") for line in lines if line.startswith("got ")]
        sends = [act for act in acts if act.verb == "send"]
        order = [act.arguments[1] for act in sends]
        if len(set(came)) != len(came):
            self.say("a line was typed twice", "once each", came, about)
        elif [line for line in order if line in came] != came:
            self.say("what came back is not what was sent", str(order), came, about)
        whole = record.reason == "exited" and not self._may_lose(spec, sends[0]) if sends else False
        sure = [
            act.arguments[1]
            for act in sends
            if act.ok and act.ok["written"] == len(act.arguments[1].encode()) + 1
        ]
        if whole and (missing := [line for line in sure if line not in came]):
            self.say("a line that was taken is lost", str(missing), came, about)

    # -- events --------------------------------------------------------------------------------

    def events(self) -> None:
        outbox = {entry[1]: entry for entry in self._settled("events") or []}
        for event_id, claims in self.history.claims.items():
            winners = [client for client, claimed, _ in claims if claimed]
            handle = event_id.partition(":")[0]
            if len(winners) > 1:
                self.say("told twice", "one claim of each event", (event_id, winners))
            entry = outbox.get(event_id)
            if winners and entry is not None and not entry[2]:
                self.say("a claim is forgotten", f"{event_id} acknowledged", entry)
            if event_id == f"{handle}:end":
                self._same_story(
                    handle,
                    [(told["status"], told["code"], told["signal"]) for _, _, told in claims],
                )
        gathered = {member for entry in outbox.values() for member in entry[6]} | {
            member
            for claims in self.history.claims.values()
            for *_, told in claims
            for member in told["members"]
        }
        for handle, acts in self.history.by_handle.items():
            spawn = next((act for act in acts if act.verb == "spawn"), None)
            if spawn is None or handle in gathered or self._may_be_missing(handle):
                continue
            entry = outbox.get(f"{handle}:end")
            if entry is not None:
                self._same_story(handle, [tuple(entry[3:6])])
            if entry is None or entry[2]:
                # Acknowledged: then there is somebody who saw it, or was killed as he did.
                claims = self.history.claims.get(f"{handle}:end", [])
                doubtful = any(claimed is not False for _, claimed, _ in claims)
                if not doubtful and not self._seen_by_stop(self.specs[handle], spawn, acts):
                    about = self.history.about(handle)
                    self.say(
                        "an end is told to nobody", f"{handle}:end open, or claimed", entry, about
                    )

    def _same_story(self, handle: str, stories: list[Any]) -> None:
        try:
            record = self.store.load(handle)
        except HoldfastError:
            return
        end = (record.status, record.exit_code, record.signal)
        for story in stories:
            if tuple(story) != end:
                self.say(
                    "two stories of one end",
                    f"the record's {end}",
                    story,
                    self.history.about(handle),
                )

    def _seen_by_stop(self, spec: Spec, spawn: Act, acts: list[Act]) -> bool:
        """A wait, a stop or a close shows the end, and so acknowledges it."""
        if any(act.verb == "wait" and not act.error for act in acts):
            return True
        if self._was_stopped(spec, spawn.session, spawn.begun):
            return True
        return any(
            (act.verb == "gather" and act.arguments == [spec.group])
            or (act.verb == "close" and act.session == spawn.session and not spec.keep)
            for act in self.history.acts
        )

    # -- the home ------------------------------------------------------------------------------

    def files(self) -> None:
        known = set(self.store.handles())
        odd = []
        for name in os.listdir(self.home.processes):
            handle = name.partition(".")[0]
            if name.startswith("spare."):
                continue
            empty = os.path.getsize(f"{self.home.processes}/{name}") == 0
            if name.endswith(".bad") and empty and self.down:
                continue  # both halves died as it was made, and it never was
            # An exit note may outlive a worker that was killed as it had used it: it goes with its
            # record, as the log does.
            if handle not in known or name.endswith((".out", ".tmp", ".bad", ".begun")):
                odd.append(name)
        if odd:
            handles = [name.partition(".")[0] for name in odd]
            about = [line for handle in handles[:2] for line in self.history.about(handle)]
            self.say(
                "files are left", "records, logs, heads and screens only", sorted(odd)[:10], about
            )
        for name in ("keeper.sock", "tmux.sock"):
            if os.path.lexists(f"{self.home.path}/{name}") and name == "keeper.sock":
                self.say("a socket is left", "none when the keeper has gone", name)
        trees = Trees(self.home.path)
        for tree in trees._own:
            base = trees._base(tree)
            if os.path.isdir(base):
                left = [os.path.join(base, name) for name in os.listdir(base)]
                self.say("control groups are left", "none", [base, *left][:8])
                return
