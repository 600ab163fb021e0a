"""Waiting for what an agent is to be told, for as long as there is somebody to tell it to."""

from __future__ import annotations

import select
import time

from holdfast.linux.inotify import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.client.sync import SyncAgent, SyncClient
    from holdfast.core.home import Home
    from holdfast.core.record import Event

    from ._hook_agents import Agent, AgentEntry

_LOOK_AGAIN = 1.0  # for a keeper that died while nobody else looked
_WITHOUT_INOTIFY = 0.5
_ASKING = 60.0  # seconds after which a task that nobody asks after is told of as anything else


class Inbox:
    """The events of one session that an agent is to be told of: all, or those of its handles."""

    def __init__(self, home: Home, session: str, handles: tuple[str, ...] | None) -> None:
        from holdfast.client.connect import open_client

        self.session = session
        self.client: SyncClient = open_client(home, session)
        self._handles = None if handles is None else frozenset(handles)
        self.tasks: frozenset[str] = frozenset()
        self._since: dict[str, float] = {}  # when each event of a task was first seen unclaimed

    def pending(self) -> list[Event]:
        """The events to tell of: open, and not those of a task that its client asks after.

        Whoever asks has claimed them, but for a moment: when a conversation goes on, say.
        """
        events = [event for event in self.client.events() if self._is_ours(event)]
        of_tasks = [event for event in events if self._is_of_task(event)]
        now = time.monotonic()
        self._since = {event.id: self._since.get(event.id, now) for event in of_tasks}
        return [each for each in events if now - self._since.get(each.id, now - _ASKING) >= _ASKING]

    def _is_of_task(self, event: Event) -> bool:
        return event.handle in self.tasks and event.type in ("end", "input")

    def _is_ours(self, event: Event) -> bool:
        if self._handles is None:
            return True
        about = {event.handle, *(member.handle for member in event.members)}
        return not self._handles.isdisjoint(about)

    def expects_more(self) -> bool:
        """True while something runs, or has ended and nobody has been told for certain.

        Whoever has claimed an event may yet let go of it, or die.
        """
        client, handles = self.client, self._handles
        if handles is None and any(map(_is_open, client.agents())):
            return True
        working = client.list(ended=False)
        if any(handles is None or process.handle in handles for process in working):
            return True
        events = client.events(acknowledged=True)
        if any(self._is_ours(event) and not event.acknowledged for event in events):
            return True
        ended = [each for each in client.list() if handles is None or each.handle in handles]
        if all(process.record.told for process in ended):
            return False
        client.keeper_start()  # it will tell
        return True

    def running(self) -> list[str]:
        """A line for each process that runs."""
        from holdfast.core.quote import one_line

        found = []
        for process in self.client.list(ended=False):
            if process.record.running and (
                self._handles is None or process.handle in self._handles
            ):
                label = f" ({process.record.label})" if process.record.label else ""
                found.append(one_line(f"{process.handle}{label}: {process.record.command_text}"))
        return found


class Inboxes:
    """All of an agent's, opened once each."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._open: dict[tuple[str, tuple[str, ...] | None], Inbox] = {}

    def of(self, entry: AgentEntry) -> list[Inbox]:
        wanted = list(entry.sessions.items())
        for key in self._open.keys() - set(wanted):
            self._open.pop(key).client.close()
        for session, handles in wanted:
            if (session, handles) not in self._open:
                self._open[session, handles] = Inbox(self._home, session, handles)
        for key in wanted:
            self._open[key].tasks = frozenset(entry.tasks)
        return [self._open[key] for key in wanted]

    def close(self) -> None:
        for inbox in self._open.values():
            inbox.client.close()
        self._open.clear()


def wait_for_news(
    agent: Agent, inboxes: Inboxes, settle: float, deadline: float | None, most: int
) -> list[tuple[Inbox, list[Event]]]:
    """Claim what this hook is to tell of; nothing if another waits or nothing is left to wait for.

    `most` characters at a time: the rest stays open, for the hook that comes after this turn.
    """
    while agent.take_place():
        entry = agent.load()
        found = _look(agent, entry, inboxes.of(entry), settle, deadline)
        agent.leave_place()  # from here on another one may wait, and see the same
        if found is None:
            return []
        claimed = claim(found, most)
        if claimed:
            return claimed
        if not found and agent.load().calls == entry.calls:
            return []
    return []


def claim(inboxes: list[Inbox], most: int) -> list[tuple[Inbox, list[Event]]]:
    """Claim as many open events as have room, of each session the oldest first."""
    claimed: list[tuple[Inbox, list[Event]]] = []
    for inbox in inboxes:
        wanted: list[Event] = []
        for event in inbox.pending():
            most -= len(event.text)
            if most < 0 and (wanted or claimed):
                break
            wanted.append(event)
        mine = inbox.client.claim(*wanted) if wanted else []
        if mine:
            claimed.append((inbox, mine))
    return claimed


def _look(
    agent: Agent,
    entry: AgentEntry,
    inboxes: list[Inbox],
    settle: float,
    deadline: float | None,
) -> list[Inbox] | None:
    """Wait for events; the inboxes that have some, and None when there is nobody to tell."""
    outboxes = [inbox.client.home.outbox(inbox.session) for inbox in inboxes]
    with Watch([agent.path, *outboxes]) as watch:
        while True:
            watch.drain()
            if reader_is_gone():
                return None
            if any(inbox.pending() for inbox in inboxes):
                time.sleep(settle)
                found = [inbox for inbox in inboxes if inbox.pending()]
                if reader_is_gone():
                    return None
                if found:
                    return found
                continue
            if agent.load().calls != entry.calls:
                return []  # a call was added: look at all that it was about
            if not any(inbox.expects_more() for inbox in inboxes):
                return []
            left = _LOOK_AGAIN
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0:
                    return None
            _rest(watch.fileno(), left)


def _rest(fd: int | None, seconds: float) -> None:
    """Wait until something changed, our reader is gone, or the time is over."""
    poll = select.poll()
    poll.register(2, 0)
    if fd is None:
        seconds = min(seconds, _WITHOUT_INOTIFY)
    else:
        poll.register(fd, select.POLLIN)
    poll.poll(seconds * 1000)


def reader_is_gone() -> bool:
    """True if nobody can read what we would print: the agent has ended, and we have not.

    Of a pipe that is an error, of a socket, which Claude Code uses, a hang-up.
    """
    poll = select.poll()
    poll.register(2, 0)  # which tells of these alone
    gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
    return any(events & gone for _, events in poll.poll(0))


def _is_open(agent: SyncAgent) -> bool:
    return agent.record.running or not agent.record.told
