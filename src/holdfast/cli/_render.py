"""How things look: tables, colours, and text from outside made harmless.

Colours only on a terminal and without NO_COLOR. Commands, labels and sessions are whatever somebody
passed; `safe` shows their control characters escaped, so that none of them reaches the terminal.
"""

from __future__ import annotations

import os
import sys

from holdfast._model import duration_text
from holdfast._quote import escaped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, TextIO

    from holdfast._model import Event, Record
    from holdfast._usage import Usage

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
_HIDDEN = "their files, ports and I/O"


def can_draw() -> bool:
    """Whether a terminal of ours knows codes, as far as TERM says."""
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
    """As `safe`, for text of several lines."""
    return "\n".join(safe(line) for line in text.split("\n"))


def shown_at(fd: int) -> Callable[[str], str]:
    """How text of several lines is put there: as it is, but on a terminal without controls."""
    if not os.isatty(fd):
        return str
    from holdfast._quote import legible

    return legible


def width_of(text: str) -> int:
    """Columns a terminal needs for it."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0
        if unicodedata.combining(c) or unicodedata.category(c) == "Me"
        else 2
        if unicodedata.east_asian_width(c) in "WF"
        else 1
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

    def __init__(self, *header: str) -> None:
        self.header = header
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
        widths = [max(width_of(row[i][0]) for row in rows) for i in range(len(self.header) - 1)]
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
    """What it waits for somebody to type, if it does."""
    waiting = record.waiting_for_input
    if not isinstance(waiting, dict):
        return None if waiting is False else "perhaps; the kernel does not say"
    kind = {"line": "a line", "password": "a password", "key": "a key"}[waiting["kind"]]
    return f"for {kind}" + (f": {waiting['prompt']}" if waiting["prompt"] else "")


def process_table(records: Iterable[Record], used: Mapping[str, Usage] | None = None) -> Table:
    """A row for each; with columns for the mode, the group and the ports where some have them."""
    records = list(records)
    terminals = any(record.mode != "pipe" for record in records)
    mode = ["MODE"] if terminals else []
    groups = any(record.group for record in records)
    ports = {
        record.handle: _ports_cell(record, (used or {}).get(record.handle)) for record in records
    }
    some = any(ports.values())
    usage = [] if used is None else ["CPU AVG", "MEM"]
    table = Table(
        *("HANDLE", "LABEL", *(["GROUP"] if groups else []), "STATUS", *mode, "DURATION"),
        *(*usage, *(["PORTS"] if some else []), "SESSION", "COMMAND"),
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
            duration_text(record.elapsed()),
            *([] if used is None else _usage_cells(used.get(record.handle))),
            *([ports[record.handle] or "-"] if some else []),
            record.session,
            _command_text(record),
        )
    return table


def _usage_cells(used: Usage | None) -> list[str]:
    if used is None:
        return ["-", "-"]
    return [percent_text(used.cpu_average_percent) or "-", size_text(used.memory_bytes) or "-"]


def _ports_cell(record: Record, used: Usage | None) -> str | None:
    return published_text(record) or (None if used is None else ports_text(used))


def _command_text(record: Record) -> str:
    if record.docker is not None and not record.command:
        return f"({record.docker.get('image')})"  # the image's own command
    return record.command_text


def published_text(record: Record) -> str | None:
    """``3000->49153``: a port of the container, and where it is at this machine."""
    return ", ".join(f"{inner}->{outer}" for inner, outer in record.ports.items()) or None


def _docker_text(record: Record) -> str | None:
    if record.docker is None:
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


def show_record(record: Record, used: Usage | None = None) -> None:
    """One process, a line for each thing known."""
    colour = coloured(sys.stdout)
    text, tint = status_cell(record)
    entries: list[tuple[str, Any, str | None]] = [
        ("handle", record.handle, "bold"),
        ("label", record.label, None),
        ("status", text, tint),
        ("waiting", waiting_text(record), "yellow"),
        ("reason", record.reason, None),
        ("ended by", record.ended_by, None),
        ("command", _command_text(record), None),
        ("docker", _docker_text(record), None),
        ("published", published_text(record), None),
        ("directory", record.cwd, None),
        ("sandbox", _sandbox_text(record), None),
        ("limits", _limits_text(record), None),
        ("contained", record.containment or None, None),
        ("session", record.session, None),
        ("group", record.group, None),
        ("mode", record.mode, None),
        ("size", record.size and "{}x{}".format(*record.size), None),
        ("attach", record.attach if record.running else None, None),
        ("tmux session", record.tmux_session, None),
        ("pid", record.pid, None),
        ("started", record.started_at, None),
        ("ended", record.ended_at, None),
        ("duration", duration_text(record.elapsed()), None),
        ("deadline", "none" if record.timeout is None else duration_text(record.timeout), None),
        ("stdin", "open" if record.stdin else "closed", None),
        ("kept", "yes, outlives its session" if record.keep else None, None),
        ("peak memory", size_text(record.peak_memory_bytes), None),
        ("cpu time", seconds_text(record.cpu_seconds), None),
        *(() if used is None else _usage_entries(used)),
        ("log", record.log, None),
        ("stderr log", record.err_log, None),
        ("ends with", record.ends_with if record.running else None, None),
        *(("note", note, None) for note in record.notes),
    ]
    for name, value, tint in entries:
        if value not in (None, ""):
            title = paint(f"{name}:".ljust(14), "dim", colour)
            print(title + paint(safe(str(value)), tint, colour))


def _usage_entries(used: Usage) -> list[tuple[str, str | None, None]]:
    average, peak = percent_text(used.cpu_average_percent), size_text(used.peak_memory_bytes)
    cpu, memory = seconds_text(used.cpu_seconds), size_text(used.memory_bytes)
    read, written = size_text(used.read_bytes), size_text(used.written_bytes)
    shown = {
        "cpu time": cpu and (f"{cpu}, {average} on average" if average else cpu),
        "memory": memory and f"{memory}, at most {peak}",
        "processes": f"{used.processes}, threads {used.threads}" if used.processes else None,
        "open files": None if used.open_files is None else str(used.open_files),
        "ports": ports_text(used),
        "I/O": read and f"{read} read, {written} written",
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


def complain(message: str) -> None:
    """The one line of an error, or of anything else that is not the answer, on stderr."""
    name = paint("holdfast:", "red", coloured(sys.stderr))
    sys.stdout.flush()
    sys.stderr.write(f"{name} {safe(message)}\n")
    sys.stderr.flush()
