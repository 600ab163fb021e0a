"""Tables, colours, and text from outside made harmless.

Colours only on a terminal and without NO_COLOR. Commands, labels and sessions are whatever somebody
passed; `safe` shows their control characters escaped, so that none of them reaches the terminal.
"""

from __future__ import annotations

import os
import re
import sys
import time

from holdfast.core.quote import escaped
from holdfast.core.record import duration_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TextIO

    from holdfast.core.record import Event, Record
    from holdfast.linux.usage import Usage

_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
STATUS_COLOURS = {
    "running": "cyan",
    "completed": "green",
    "failed": "red",
    "killed": "yellow",
    "timed_out": "yellow",
    "lost": "red",
}
_WIDEST_NAME = 24
_ROOM = 20  # columns for what is cut
_TITLE = 19
_HIDDEN = "their files, ports and I/O"


def can_draw() -> bool:
    """True if a terminal of ours knows codes, as far as TERM says."""
    return os.environ.get("TERM", "") not in ("", "dumb")


def coloured(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and can_draw()


def paint(text: str, colour: str | None, on: bool) -> str:
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if on and colour else text


def safe(text: str) -> str:
    """Text from outside on one line, with everything that is not printable escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else escaped(c) for c in text)


def safe_lines(text: str) -> str:
    """Make text of several lines `safe`."""
    return "\n".join(safe(line) for line in text.split("\n"))


def shown_at(fd: int) -> Callable[[str], str]:
    """Text of several lines for stdout: as it is, but on a terminal without controls."""
    if not os.isatty(fd):
        return str
    from holdfast.core.quote import legible

    return legible


def width_of(text: str) -> int:
    """Columns a terminal needs for it."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(c) in ("Mn", "Me", "Cf") else 2 if east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, width: int) -> str:
    if width_of(text) <= width:
        return text
    kept, used = "", 0
    for character in text:
        used += width_of(character)
        if used > width - 1:
            break
        kept += character
    return kept + "…"


def terminal_width(stream: TextIO) -> int | None:
    """Columns to fit into, or None when it is not a terminal."""
    if not stream.isatty():
        return None
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except OSError:
        return None


class Table:
    """Rows of cells under a header; a cell is text, or text with a colour."""

    def __init__(self, *header: str, dispensable: Sequence[str] = ()) -> None:
        self.header = header
        self._dispensable = dispensable  # columns that a narrow terminal does without, these first
        self.rows: list[tuple[tuple[str, str | None], ...]] = []

    def add(self, *cells: str | tuple[str, str | None]) -> None:
        self.rows.append(
            tuple((safe(c), None) if isinstance(c, str) else (safe(c[0]), c[1]) for c in cells)
        )

    def lines(self, width: int | None, colour: bool) -> list[str]:
        """The table's lines; with a width, names are shortened and the last column cut."""
        rows = [tuple((name, "bold") for name in self.header), *self.rows]
        if width is not None:
            rows = [(*((cut(t, _WIDEST_NAME), c) for t, c in row[:-1]), row[-1]) for row in rows]
        rows, widths = self._that_fit(rows, width)
        room = None if width is None else max(10, width - sum(widths) - 2 * len(widths))
        lines = []
        for row in rows:
            line = "".join(
                paint(text, tint, colour) + " " * (widths[i] - width_of(text) + 2)
                for i, (text, tint) in enumerate(row[:-1])
            )
            text, tint = row[-1]
            line += paint(text if room is None else cut(text, room), tint, colour)
            lines.append(line.rstrip())
        return lines

    def _that_fit(
        self, rows: list[tuple[tuple[str, str | None], ...]], width: int | None
    ) -> tuple[list[tuple[tuple[str, str | None], ...]], list[int]]:
        """Rows without columns for which there is no room, and how wide the others are."""
        dispensable = list(self._dispensable)
        while True:
            names = [name for name, _ in rows[0]]
            widths = [max(width_of(row[i][0]) for row in rows) for i in range(len(names) - 1)]
            fits = width is None or width - sum(widths) - 2 * len(widths) >= _ROOM
            if fits or not dispensable:
                return rows, widths
            name = dispensable.pop(0)
            if name in names:
                at = names.index(name)
                rows = [row[:at] + row[at + 1 :] for row in rows]

    def show(self, stream: TextIO | None = None) -> None:
        stream = stream or sys.stdout
        stream.write("\n".join(self.lines(terminal_width(stream), coloured(stream))) + "\n")


def status_text(status: str, code: int | None, signal: str | None) -> str:
    """``failed 3``, ``killed SIGTERM``, ``running``."""
    how = signal if signal is not None else code
    return status if how is None else f"{status} {how}"


def status_cell(item: Record | Event) -> tuple[str, str | None]:
    status = item.status or "-"
    return status_text(status, item.exit_code, item.signal), STATUS_COLOURS.get(status)


def waiting_text(record: Record) -> str | None:
    """The input that it waits for, if it does."""
    waiting = record.waiting_for_input
    if not isinstance(waiting, dict):
        return None if waiting is False else "perhaps; the kernel does not say"
    kind = {"line": "a line", "password": "a password", "key": "a key"}[waiting["kind"]]
    return f"for {kind}" + (f": {waiting['prompt']}" if waiting["prompt"] else "")


def process_table(records: Iterable[Record], used: Mapping[str, Usage] | None = None) -> Table:
    """A row for each; with columns for the mode, the group and the ports where some have them.

    In every table a column is called as its key in JSON, without ``_at`` or the unit.
    """
    records = list(records)
    terminals = any(record.capabilities.terminal for record in records)
    mode = ["MODE"] if terminals else []
    groups = any(record.group for record in records)
    ports = {
        record.handle: _ports_cell(record, (used or {}).get(record.handle)) for record in records
    }
    some = any(ports.values())
    deadlines = any(record.running and record.timeout is not None for record in records)
    usage = [] if used is None else ["CPU AVERAGE", "MEMORY"]
    table = Table(
        *("HANDLE", "LABEL", *(["GROUP"] if groups else []), "STATUS", *mode, "STARTED"),
        *("DURATION", *(["DEADLINE"] if deadlines else []), *usage),
        *(*(["PORTS"] if some else []), "SESSION", "COMMAND"),
        dispensable=("STARTED", "DEADLINE"),
    )
    for record in records:
        status, colour = status_cell(record)
        if isinstance(record.waiting_for_input, dict):
            status, colour = f"{status}, waits", "yellow"
        table.add(
            record.handle,
            record.label or "-",
            *([record.group or "-"] if groups else []),
            (status, colour),
            *([record.mode] if terminals else []),
            local_time(record.started_at),
            duration_text(record.elapsed()),
            *([_deadline_cell(record)] if deadlines else []),
            *([] if used is None else _usage_cells(used.get(record.handle))),
            *([ports[record.handle] or "-"] if some else []),
            record.session,
            _command_text(record),
        )
    return table


def _deadline_cell(record: Record) -> str:
    """The time it may go on."""
    clock = record.deadline_clock
    if clock is None or not record.running:
        return "-"
    return f"in {duration_text(max(0.0, clock - time.monotonic()))}"


def local_time(text: str | None) -> str:
    """A time of a record, for people: in their zone, and without what goes without saying."""
    try:
        year, month, day, hour, minute, second = map(int, re.split("[-T:.Z]", text or "")[:6])
        # As if it were in the zone's own time, without summer; strptime would cost an import.
        at = time.mktime((year, month, day, hour, minute, second, 0, 0, 0)) - time.timezone
    except (ValueError, TypeError, OverflowError):
        return text or "-"
    then, now = time.localtime(at), time.localtime()
    if then[:3] == now[:3]:
        return time.strftime("%H:%M:%S", then)
    return time.strftime("%b %d %H:%M" if then[0] == now[0] else "%Y-%m-%d %H:%M", then)


def _usage_cells(used: Usage | None) -> list[str]:
    if used is None:
        return ["-", "-"]
    return [percent_text(used.cpu_average_percent) or "-", size_text(used.memory_bytes) or "-"]


def _ports_cell(record: Record, used: Usage | None) -> str | None:
    return published_text(record) or (None if used is None else ports_text(used))


def _command_text(record: Record) -> str:
    if not record.command:
        return f"({(record.docker or {}).get('image')})"  # the image's own command
    return record.command_text


def published_text(record: Record) -> str | None:
    """``3000->49153``: a port of the container, and where it is at this machine."""
    return ", ".join(f"{inner}->{outer}" for inner, outer in record.ports.items()) or None


def _docker_text(record: Record) -> str | None:
    if not record.docker:
        return None
    words = ("container", "network", "user")
    said = [f"{word} {record.docker[word]}" for word in words if record.docker.get(word)]
    return ", ".join([f"image {record.docker.get('image')}", *said])


def _sandbox_text(record: Record) -> str | None:
    if record.sandbox is None:
        return None
    where = record.sandbox.get("root") or record.cwd
    network = "with the network" if record.sandbox.get("network") else "no network"
    sockets = ", with Unix sockets" if record.sandbox.get("sockets") else ""
    return f"{network}{sockets}, {where} can be written to"


def _limits_text(record: Record) -> str | None:
    def text(name: str, limit: Any) -> str | None:
        return size_text(limit) if name == "memory" else f"{limit:g}"

    limits = record.limits.items()
    return ", ".join(f"{name} {text(name, at['limit'])} (by {at['by']})" for name, at in limits)


def _ends_with_text(record: Record) -> str | None:
    if not record.running or record.ends_with is None:
        return None
    return f"it ends together with {record.ends_with}"


def show_record(record: Record, used: Usage | None = None) -> None:
    """One process, a line for each thing known."""
    colour = coloured(sys.stdout)
    text, tint = status_cell(record)
    entries: list[tuple[str, Any, str | None]] = [
        ("handle", record.handle, "bold"),
        ("label", record.label, None),
        ("status", text, tint),
        ("waiting for input", waiting_text(record), "yellow"),
        ("reason", record.reason, None),
        ("ended by", record.ended_by, None),
        ("command", _command_text(record), None),
        ("docker", _docker_text(record), None),
        ("ports", _ports_cell(record, used), None),
        ("cwd", record.cwd, None),
        ("sandbox", _sandbox_text(record), None),
        ("limits", _limits_text(record), None),
        ("containment", record.containment or None, None),
        ("session", record.session, None),
        ("group", record.group, None),
        ("mode", record.mode, None),
        ("size", record.size and "{}x{}".format(*record.size), None),
        ("attach", record.attach if record.running else None, None),
        ("tmux session", record.tmux_session, None),
        ("pid", record.pid, None),
        ("started", local_time(record.started_at), None),
        ("ended", record.ended_at and local_time(record.ended_at), None),
        ("duration", duration_text(record.elapsed()), None),
        ("timeout", "none" if record.timeout is None else duration_text(record.timeout), None),
        ("deadline", _deadline_cell(record).strip("-"), None),
        ("stdin", "open" if record.stdin else "closed", None),
        ("keep", "yes, it outlives its session" if record.keep else None, None),
        ("peak memory", size_text(record.peak_memory_bytes), None),
        ("cpu", seconds_text(record.cpu_seconds), None),
        *(() if used is None else _usage_entries(used)),
        ("log", record.log, None),
        ("err log", record.err_log, None),
        ("ends with", _ends_with_text(record), None),
        *(("notes", note, None) for note in record.notes),
    ]
    for name, value, tint in entries:
        if value not in (None, ""):
            title = paint(f"{name}:".ljust(_TITLE), "dim", colour)
            print(title + paint(safe(str(value)), tint, colour))


def _usage_entries(used: Usage) -> list[tuple[str, str | None, None]]:
    average, peak = percent_text(used.cpu_average_percent), size_text(used.peak_memory_bytes)
    cpu, memory = seconds_text(used.cpu_seconds), size_text(used.memory_bytes)
    read, written = size_text(used.read_bytes), size_text(used.written_bytes)
    shown = {
        "cpu": cpu and (f"{cpu}, {average} on average" if average else cpu),
        "memory": memory and f"{memory}, at most {peak}",
        "processes": str(used.processes) if used.processes else None,
        "threads": str(used.threads) if used.processes else None,
        "open files": None if used.open_files is None else str(used.open_files),
        "read": read,
        "written": written,
        "hidden": f"{used.hidden} of another user, without {_HIDDEN}" if used.hidden else None,
    }
    return [(name, text, None) for name, text in shown.items()]


def ports_text(used: Usage) -> str | None:
    return ", ".join(map(str, used.ports)) or None


def percent_text(percent: float | None) -> str | None:
    if percent is None:
        return None
    return f"{percent:.1f}%" if percent < 10 else f"{percent:.0f}%"


def size_text(size: int | None) -> str | None:
    if size is None:
        return None
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def seconds_text(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.3f} s"


def show_json(value: object) -> None:
    """One JSON value on one line, at once: a follow is a line for each."""
    import json

    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def remark(message: str) -> None:
    """A line on stderr that is worth knowing, where nothing is wrong."""
    complain(message, "dim")


def complain(message: str, colour: str = "red") -> None:
    """The one line of an error, or of anything else that is not the answer, on stderr."""
    name = paint("holdfast:", colour, coloured(sys.stderr))
    sys.stdout.flush()
    sys.stderr.write(f"{name} {safe(message)}\n")
    sys.stderr.flush()
