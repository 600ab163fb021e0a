"""A terminal without a window: the few calls of libghostty that a screen needs.

The library comes with pyghostty, and so do the declarations of its functions, numbers and layouts.
pyghostty parses all of them when it is imported, which takes 0.15 s and 5 MiB: twice what
`holdfast screen` takes for all the rest. So those that are used here were parsed before, into
`ghostty_abi.py` by `.ci/ghostty-abi`. That is taken only if it was made from the very declarations
that are installed; else pyghostty's own are.
"""

from __future__ import annotations

import os
import re
import zlib
from importlib.util import find_spec

from ..core.errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def _load() -> tuple[Any, Any]:
    """The declarations and the library, as cffi has them."""
    spec = find_spec("pyghostty")
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable(
            "the screen of a terminal is drawn with pyghostty, which is not installed; "
            "`pip install pyghostty` brings it"
        )
    try:
        from . import ghostty_abi

        package = spec.submodule_search_locations[0]
        if _checksum(os.path.join(package, "_cdef.py")) == ghostty_abi.MADE_FROM:
            path = os.path.join(package, "_lib", "libghostty-vt.so")
            return ghostty_abi.ffi, ghostty_abi.ffi.dlopen(path)
        from pyghostty import ffi, lib

        return ffi, lib
    except (ImportError, OSError) as error:
        raise Unavailable(
            f"the screen of a terminal is drawn with pyghostty, whose library cannot be used: "
            f"{error}; `pip install --force-reinstall pyghostty` may mend it"
        ) from error


def _checksum(path: str) -> int | None:
    try:
        with open(path, "rb") as file:
            return zlib.crc32(file.read())
    except OSError:
        return None  # a pyghostty that keeps its declarations elsewhere


ffi, lib = _load()

_SCROLLBACK = 1000  # nobody looks at it, but with none short lines take ten times as long
_CELL = 8, 16  # pixels, for programs that ask
_UNFINISHED = 64 << 10  # bytes of a sequence that has begun and not ended
_LIGHT, _BLACK = (229, 229, 229), (0, 0, 0)
_TERMINFO = ffi.new("uint8_t[]", b"xterm-256color")
_XTVERSION = re.compile(rb"(?<=\x1bP>\|)[^\x1b]*")
_DECXCPR = b"\x1b[?6n"
_PLAIN, _VT = lib.GHOSTTY_FORMATTER_FORMAT_PLAIN, lib.GHOSTTY_FORMATTER_FORMAT_VT
# By the shape of the cursor: its number in DECSCUSR if it is steady.
_SHAPES = {
    lib.GHOSTTY_RENDER_STATE_CURSOR_VISUAL_STYLE_BAR: 6,
    lib.GHOSTTY_RENDER_STATE_CURSOR_VISUAL_STYLE_BLOCK: 2,
    lib.GHOSTTY_RENDER_STATE_CURSOR_VISUAL_STYLE_UNDERLINE: 4,
}


# cffi passes no union by value; pyghostty declares a point of the same size without one.
_grid_ref = ffi.cast(
    "GhosttyResult(*)(GhosttyTerminal, GhosttyPointS, GhosttyGridRef *)",
    ffi.addressof(lib, "ghostty_terminal_grid_ref"),
)


def _check(failed: int, what: str) -> None:
    if failed:
        out = failed == lib.GHOSTTY_OUT_OF_MEMORY
        raise MemoryError if out else RuntimeError(f"libghostty: {what}: {failed}")


def _made(kind: str, new: Any, free: Any, *arguments: Any) -> Any:
    """A thing of the library's, freed with the last use of it or at the end of a `with`."""
    to = ffi.new(f"{kind} *")
    _check(new(ffi.NULL, to, *arguments), kind)
    return ffi.gc(to[0], free)


def _sized(kind: str) -> Any:
    """A struct that says its own size, and those in it likewise, as the library wants them."""
    made = ffi.new(f"{kind} *")
    parts = [made]
    for part in parts:
        declared = ffi.typeof(part).item
        part.size = ffi.sizeof(declared)
        parts += [
            ffi.addressof(part[0], name)
            for name, field in declared.fields
            if field.type.kind == "struct"
        ]
    return made


class Terminal:
    """Bytes in, a picture out. Not for two threads at once."""

    def __init__(self, columns: int, rows: int) -> None:
        self._terminal = _made(
            "GhosttyTerminal", lib.ghostty_terminal_new, lib.ghostty_terminal_free, columns, rows
        )
        self.columns, self.rows = columns, rows
        for name, most in (
            ("SCROLLBACK_MAX_LINES", _SCROLLBACK),
            ("KITTY_IMAGE_STORAGE_LIMIT", 0),
            ("APC_MAX_BYTES", 4096),
            ("CLIPBOARD_WRITE_MAX_BYTES", 0),
            ("CONTINUATION_MAX_BYTES", _UNFINISHED),
        ):
            self._set(name, ffi.new("size_t *", most))
        for name in ("KITTY_IMAGE_MEDIUM_FILE", "KITTY_IMAGE_MEDIUM_SHARED_MEM", "GLYPH_PROTOCOL"):
            self._set(name, ffi.new("bool *", False))
        self._set("KITTY_IMAGE_MEDIUM_TEMP_FILE", ffi.NULL)  # from no directory

    def close(self) -> None:
        if self._terminal:
            ffi.release(self._terminal)
            self._terminal = ffi.NULL

    def feed(self, data: bytes) -> None:
        # A terminal ignores DEL; libghostty would give it a cell.
        data = data.replace(b"\x7f", b"")
        lib.ghostty_terminal_vt_write(self._terminal, data, len(data))

    def ask(self, data: bytes) -> bytes:
        """Feed `data` and return what a terminal replies to the queries in it."""
        replies: list[bytes] = []

        def reply(terminal: Any, user: Any, data: Any, size: int) -> None:
            replies.append(ffi.buffer(data, size)[:])

        def tell_size(terminal: Any, user: Any, to: Any) -> bool:
            to.rows, to.columns = self.rows, self.columns
            to.cell_width, to.cell_height = _CELL
            return True

        def tell_scheme(terminal: Any, user: Any, to: Any) -> bool:
            to[0] = lib.GHOSTTY_COLOR_SCHEME_DARK
            return True

        # They must outlive the feeding: the library has only their addresses.
        callbacks = {
            "WRITE_PTY": ffi.callback("GhosttyTerminalWritePtyFn", reply),
            "SIZE": ffi.callback("GhosttyTerminalSizeFn", tell_size),
            "COLOR_SCHEME": ffi.callback("GhosttyTerminalColorSchemeFn", tell_scheme),
        }
        for name, callback in callbacks.items():
            self._set(name, callback)
        for name, colour in (("FOREGROUND", _LIGHT), ("CURSOR", _LIGHT), ("BACKGROUND", _BLACK)):
            self._set(f"COLOR_{name}", ffi.new("GhosttyColorRgb *", colour))
        self._set("TERMINFO_NAME", ffi.new("GhosttyString *", (_TERMINFO, len(_TERMINFO) - 1)))
        try:
            first, *others = data.split(_DECXCPR)  # which libghostty leaves alone
            self.feed(first)
            for part in others:
                column, row = self.cursor
                replies.append(b"\x1b[?%d;%d;1R" % (row + 1, column + 1))
                self.feed(part)
        finally:
            for name in callbacks:
                self._set(name, ffi.NULL)
        return _XTVERSION.sub(b"holdfast", b"".join(replies))

    def resize(self, columns: int, rows: int) -> None:
        if (columns, rows) != (self.columns, self.rows):
            _check(lib.ghostty_terminal_resize(self._terminal, columns, rows, *_CELL), "resize")
            self.columns, self.rows = columns, rows

    # -- what it is like -----------------------------------------------------------------------

    @property
    def cursor(self) -> tuple[int, int]:
        return int(self._get("CURSOR_X", "uint16_t")), int(self._get("CURSOR_Y", "uint16_t"))

    @property
    def cursor_visible(self) -> bool:
        return bool(self._get("CURSOR_VISIBLE", "bool"))

    @property
    def pending_wrap(self) -> bool:
        """The last column was written, and the next character goes to the next row."""
        return bool(self._get("CURSOR_PENDING_WRAP", "bool"))

    @property
    def alternate(self) -> bool:
        return bool(self._get("ACTIVE_SCREEN", "GhosttyTerminalScreen"))

    @property
    def kitty_flags(self) -> int:
        return int(self._get("KITTY_KEYBOARD_FLAGS", "uint8_t"))

    @property
    def title(self) -> str:
        title = self._get("TITLE", "GhosttyString")
        text: bytes = ffi.buffer(title.ptr, title.len)[:] if title.len else b""
        return text.decode("utf-8", "replace")

    def mode(self, number: int) -> bool:
        """True if a DEC private mode is set."""
        return bool(self._get("MODE", "GhosttyTerminalModeConfig", {"mode": number}).value)

    def cursor_shape(self) -> int:
        """The cursor's number in DECSCUSR; 2, a steady block, unless the program chose another."""
        style, blinking = ffi.new("GhosttyRenderStateCursorVisualStyle *"), ffi.new("bool *")
        with _made(
            "GhosttyRenderState", lib.ghostty_render_state_new, lib.ghostty_render_state_free
        ) as state:
            _check(lib.ghostty_render_state_update(state, self._terminal), "render_state_update")
            for name, to in (("VISUAL_STYLE", style), ("BLINKING", blinking)):
                what = getattr(lib, f"GHOSTTY_RENDER_STATE_DATA_CURSOR_{name}")
                _check(lib.ghostty_render_state_get(state, what, to), name)
        return _SHAPES.get(style[0], 2) - bool(blinking[0])

    def unfinished(self) -> bytes:
        """The bytes fed of a sequence or character that has not ended yet."""
        buffer = ffi.new("uint8_t[]", _UNFINISHED)
        size = ffi.new("size_t *")
        failed = lib.ghostty_terminal_continuation_buf(self._terminal, buffer, _UNFINISHED, size)
        return b"" if failed else ffi.buffer(buffer, size[0])[:]

    # -- its contents --------------------------------------------------------------------------

    def plain(self) -> bytes:
        return self._format(_PLAIN)

    def plain_before(self, column: int, row: int) -> bytes:
        """The text of a row up to and including a column."""
        return self._format(_PLAIN, part=((0, row), (column, row)))

    def styled(self, *, trim: bool = True) -> bytes:
        """Rows with colours, each of them reset at its end, parted by CR LF."""
        return self._format(_VT, trim=trim)

    def styled_part(self, start: tuple[int, int], end: tuple[int, int]) -> bytes:
        return self._format(_VT, trim=False, part=(start, end))

    def modes(self) -> bytes:
        """Every mode that is not as in a fresh terminal."""
        return self._around(("modes",))

    def region(self) -> bytes:
        return self._around(("scrolling_region",))

    def tab_stops(self) -> bytes:
        """The sequence that sets them, or nothing while they are where they always were."""
        fresh = Terminal(self.columns, self.rows)
        stops = self._around(("tabstops",))
        return b"" if stops == fresh._around(("tabstops",)) else stops

    def pen(self) -> bytes:
        """The sequences for how the next character will look, and what keys send."""
        screen = ("style", "hyperlink", "protection", "kitty_keyboard", "charsets")
        return self._around(("keyboard",), screen)

    def _around(self, extra: Iterable[str], screen: Iterable[str] = ()) -> bytes:
        """The sequences for the extras, before or after the contents, without the contents."""
        contents = self._format(_VT)
        whole = self._format(_VT, extra=extra, screen=screen)
        if whole.startswith(contents):
            return whole[len(contents) :]
        return whole.removesuffix(contents)

    def _format(
        self,
        emit: int,
        *,
        trim: bool = True,
        extra: Iterable[str] = (),
        screen: Iterable[str] = (),
        part: tuple[tuple[int, int], tuple[int, int]] | None = None,
    ) -> bytes:
        options = _sized("GhosttyFormatterTerminalOptions")
        options.emit, options.trim = emit, trim
        for name in extra:
            setattr(options.extra, name, True)
        for name in screen:
            setattr(options.extra.screen, name, True)
        # Never without a selection: that would be what scrolled out of sight as well.
        start, end = part or ((0, 0), (self.columns - 1, self.rows - 1))
        selection = _sized("GhosttySelection")
        selection.start, selection.end = self._ref(*start), self._ref(*end)
        options.selection = selection
        size = ffi.new("size_t *")
        new, free = lib.ghostty_formatter_terminal_new, lib.ghostty_formatter_free
        with _made("GhosttyFormatter", new, free, self._terminal, options[0]) as formatter:
            lib.ghostty_formatter_format_buf(formatter, ffi.NULL, 0, size)
            buffer = ffi.new("uint8_t[]", size[0] + 1)
            failed = lib.ghostty_formatter_format_buf(formatter, buffer, len(buffer), size)
            _check(failed, "formatter_format_buf")
            return bytes(ffi.buffer(buffer, size[0]))

    def _ref(self, column: int, row: int) -> Any:
        point = {"tag": lib.GHOSTTY_POINT_TAG_ACTIVE, "value": {"x": column, "y": row}}
        ref = _sized("GhosttyGridRef")
        _check(_grid_ref(self._terminal, ffi.new("GhosttyPointS *", point)[0], ref), "grid_ref")
        return ref[0]

    # -- calls ---------------------------------------------------------------------------------

    def _set(self, name: str, value: Any) -> None:
        option = getattr(lib, f"GHOSTTY_TERMINAL_OPT_{name}")
        _check(lib.ghostty_terminal_set(self._terminal, option, value), name)

    def _get(self, name: str, kind: str, *asked: Any) -> Any:
        to = ffi.new(f"{kind} *", *asked)
        what = getattr(lib, f"GHOSTTY_TERMINAL_DATA_{name}")
        _check(lib.ghostty_terminal_get(self._terminal, what, to), name)
        return to[0]
