"""The agents' programs that hooks work for: which sessions each has used, and which hook waits.

DESIGN. ``hooks/NAME.json`` of the home is about one program, a Claude Code: its conversations, and
the sessions its calls were about. NAME is its pid and start time, or where that cannot be told the
conversation. Each hook that is called adds to it and counts the call. Then it tries for
``NAME.lock``. Who gets that waits for events, and takes in what later calls add; who does not
returns, for somebody waits. The lock goes with its holder, however that ends.

A hook that has nothing left to wait for lets go of the lock first, and then looks whether a call
was added since it last looked: whoever found the lock taken had been counted before, so it is seen
now. A hook that has something to tell lets go of it before it claims that.

The file of a program that is gone stays: a program with one of its conversations, as `claude
--continue` begins, takes its sessions over. What nobody took over is deleted after a week, or with
the last of its sessions.

What a hook is about to print is noted before (`told`). Of a program that is gone nobody knows
whether that reached the conversation: to whoever takes it over the last of it is in `doubt`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from contextlib import contextmanager

from holdfast.core.errors import StoreError
from holdfast.core.home import (
    cannot,
    check_session,
    file_name,
    is_handle,
    make_private_directory,
    open_private,
    read_private,
    replace_private,
    unlink,
)
from holdfast.core.record import DEFAULT_SESSION
from holdfast.linux import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from holdfast.core.home import Home

    Sessions = dict[str, tuple[str, ...] | None]

_WEEK = 7 * 86400.0
_CONVERSATIONS = 50
_SESSIONS = 50
_HANDLES = 200
_TOLD = 150
_TEXT = 800
_PROGRAM = re.compile(r"([0-9]+)-([0-9]+)\.json")


class AgentEntry:
    """One program's file: a count of calls, its conversations, and what they were about.

    Of a session it is told all (None), or what certain processes have to tell; `tasks` are those
    that it asks after by itself. `told` and `doubt` are texts by the ids of their events.
    """

    __slots__ = ("calls", "conversations", "doubt", "sessions", "tasks", "told")

    def __init__(self) -> None:
        self.calls = 0
        self.conversations: list[str] = []
        self.sessions: Sessions = {}
        self.tasks: tuple[str, ...] = ()
        self.told: dict[str, str] = {}
        self.doubt: dict[str, str] = {}

    @classmethod
    def load(cls, path: str) -> Self:
        """The file, or where there is none that makes sense, an empty entry."""
        entry = cls()
        try:
            data = json.loads(read_private(path))
            entry.conversations = [str(each) for each in data["conversations"]][-_CONVERSATIONS:]
            for session, handles in data["sessions"].items():
                known = None if handles is None else tuple(filter(is_handle, handles))
                entry.sessions[check_session(session)] = known
            entry.calls = int(data["calls"])
            entry.tasks = _latest(*filter(is_handle, data.get("tasks", ())))
            entry.told, entry.doubt = _texts(data.get("told")), _texts(data.get("doubt"))
        except (OSError, StoreError, ValueError, LookupError, TypeError, AttributeError):
            return entry
        except (RecursionError, OverflowError):
            return cls()
        return entry

    def to_json(self) -> str:
        about = {
            "calls": self.calls,
            "conversations": self.conversations,
            "sessions": self.sessions,
            "tasks": self.tasks,
            "told": self.told,
            "doubt": self.doubt,
        }
        return json.dumps(about)

    def add(self, session: str, handle: str) -> None:
        """Add a process, or all of a session (""); of more than a few the oldest go."""
        known = self.sessions.pop(session, ())
        if not handle or known is None:
            self.sessions[session] = None
        else:
            self.sessions[session] = _latest(*known, handle)
        while len(self.sessions) > _SESSIONS:
            del self.sessions[next(iter(self.sessions))]

    def join(self, other: Self) -> None:
        for conversation in other.conversations:
            self.met(conversation)
        self.tasks = _latest(*other.tasks, *self.tasks)
        self.doubt = _last({**other.doubt, **other.told, **self.doubt})
        for session, handles in other.sessions.items():
            mine = self.sessions.get(session, ())
            if mine is None or handles is None:
                self.sessions[session] = None
            else:
                self.sessions[session] = _latest(*handles, *mine)

    def met(self, conversation: str) -> None:
        others = [each for each in self.conversations if each != conversation]
        self.conversations = [*others, conversation][-_CONVERSATIONS:]


class Agent:
    """The program that called this hook, as hooks know it."""

    def __init__(self, home: Home, conversation: str | None, session: str | None) -> None:
        self._home = home
        self._conversation = conversation
        program = _program()
        if program is not None:
            self._name = f"{program[0]}-{program[1]}"
        elif conversation is not None:
            self._name = f"conversation-{file_name(conversation)[:150]}"
        else:
            self._name = f"session-{file_name(session or DEFAULT_SESSION)}"
        self.path = f"{home.hooks}/{self._name}.json"
        self._place: int | None = None

    def called(self, found: list[tuple[str, str]], tasks: list[str]) -> AgentEntry:
        """Count a call that was about these sessions and handles; all that is known with it.

        Where nothing is known nothing is written: most agents have no process of ours.
        """
        if not found and not os.path.isdir(self._home.hooks):
            return AgentEntry()
        try:
            make_private_directory(self._home.hooks)
            with self._alone():
                return self._count(found, tasks)
        except OSError as error:
            raise cannot(f"use {self._home.hooks}", error) from error

    def _count(self, found: list[tuple[str, str]], tasks: list[str]) -> AgentEntry:
        entry = AgentEntry.load(self.path)
        self._take_over(entry)
        there = set(self._home.session_names())
        for session, handle in found:
            entry.add(session, handle)
            there.add(session)
        entry.sessions = {each: of for each, of in entry.sessions.items() if each in there}
        entry.tasks = _latest(*entry.tasks, *tasks)
        if self._conversation is not None:
            entry.met(self._conversation)
        if entry.sessions or entry.calls:
            entry.calls += 1
            replace_private(self.path, entry.to_json().encode())
        return entry

    def _take_over(self, entry: AgentEntry) -> None:
        """Take over what a program left that is gone, if it had this conversation."""
        there = set(self._home.session_names())
        for name in os.listdir(self._home.hooks):
            path = f"{self._home.hooks}/{name}"
            if path == self.path or not name.endswith(".json") or self._lives(name):
                continue
            other = AgentEntry.load(path)
            if self._conversation is not None and self._conversation in other.conversations:
                entry.join(other)
            elif there.intersection(other.sessions) and _age(path) < _WEEK:
                continue
            unlink(path)
            unlink(path.removesuffix(".json") + ".lock")

    def _lives(self, name: str) -> bool:
        program = _PROGRAM.fullmatch(name)
        if program is not None:
            return kernel.lives(int(program[1]), int(program[2]))
        return _age(f"{self._home.hooks}/{name}") < _WEEK  # who knows

    def load(self) -> AgentEntry:
        return AgentEntry.load(self.path)

    def telling(self, texts: dict[str, str]) -> None:
        """Note what is about to be printed."""
        with self._alone():
            entry = self.load()
            entry.told = _last({**entry.told, **texts})
            replace_private(self.path, entry.to_json().encode())

    def no_doubt(self) -> None:
        """Forget what was in doubt: it has been looked into."""
        with self._alone():
            entry = self.load()
            entry.doubt = {}
            replace_private(self.path, entry.to_json().encode())

    # -- one waits -----------------------------------------------------------------------------

    def take_place(self) -> bool:
        """True if this hook is the one that waits; False if another one does."""
        if self._place is None:
            fd = open_private(f"{self._home.hooks}/{self._name}.lock", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                return False
            self._place = fd
        return True

    def leave_place(self) -> None:
        if self._place is not None:
            os.close(self._place)
            self._place = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Change files of this directory while no other hook does."""
        fd = open_private(self._home.hooks + "/lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _texts(value: object) -> dict[str, str]:
    found = value.items() if isinstance(value, dict) else ()
    return _last({key: text for key, text in found if isinstance(text, str)})


def _last(texts: dict[str, str]) -> dict[str, str]:
    """The newest of them; a text without all that a process printed."""
    return {key: texts[key][:_TEXT] for key in list(texts)[-_TOLD:]}


def _latest(*handles: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(handles))[-_HANDLES:]


def _program() -> tuple[int, int] | None:
    """Claude Code's process: it starts each hook, or the shell for it, in a session of its own."""
    leader = os.getsid(0)
    if "CLAUDE_PROJECT_DIR" not in os.environ or leader not in (os.getpid(), os.getppid()):
        return None
    hook = kernel.stat(leader)
    program = None if hook is None else kernel.stat(hook.parent)
    if program is None or program.pid == 1:
        return None
    if os.environ.get("CLAUDE_PID", str(program.pid)) != str(program.pid):
        return None  # it is gone, and whoever took its children is not it
    return program.pid, program.start_time


def _age(path: str) -> float:
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return 0.0
