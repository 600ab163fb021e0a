"""A terminal without a window: the few calls of libghostty that a screen needs.

The library comes with pyghostty. It is called through ctypes and not through pyghostty's modules,
for those read the declarations of the whole library when they are imported: that takes 130 ms and
10 MiB, this 7 ms, and a first screen is to be there within 100 ms. A test compares every number
and layout here with pyghostty's own.
"""

from __future__ import annotations

import ctypes
import re
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_bool,
    c_int,
    c_size_t,
    c_ubyte,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    sizeof,
)
from importlib.util import find_spec
from pathlib import Path

from ._errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# What a terminal is told, ...
OPT_WRITE_PTY, OPT_SIZE, OPT_COLOR_SCHEME = 1, 6, 7
OPT_COLOR_FOREGROUND, OPT_COLOR_BACKGROUND, OPT_COLOR_CURSOR = 11, 12, 13
OPT_KITTY_IMAGE_STORAGE_LIMIT, OPT_KITTY_IMAGE_MEDIUM_FILE = 15, 16
OPT_KITTY_IMAGE_MEDIUM_TEMP_FILE, OPT_KITTY_IMAGE_MEDIUM_SHARED_MEM = 17, 18
OPT_APC_MAX_BYTES, OPT_GLYPH_PROTOCOL, OPT_SCROLLBACK_MAX_LINES = 19, 24, 28
OPT_CONTINUATION_MAX_BYTES, OPT_TERMINFO_NAME, OPT_CLIPBOARD_WRITE_MAX_BYTES = 31, 37, 39
# ... what it is asked, ...
DATA_COLS, DATA_ROWS, DATA_CURSOR_X, DATA_CURSOR_Y, DATA_CURSOR_PENDING_WRAP = 1, 2, 3, 4, 5
DATA_ACTIVE_SCREEN, DATA_CURSOR_VISIBLE, DATA_KITTY_KEYBOARD_FLAGS = 6, 7, 8
DATA_TITLE, DATA_MODE = 12, 37
RENDER_STATE_DATA_CURSOR_VISUAL_STYLE, RENDER_STATE_DATA_CURSOR_BLINKING = 10, 12
# ... and how its contents are written.
FORMATTER_FORMAT_PLAIN, FORMATTER_FORMAT_VT, POINT_TAG_ACTIVE = 0, 1, 0

_SCROLLBACK = 1000  # nobody looks at it, but with none short lines take ten times as long
_CELL = 8, 16  # pixels, for programs that ask
_UNFINISHED = 64 << 10  # bytes of a sequence that has begun and not ended
_TERMINFO = ctypes.create_string_buffer(b"xterm-256color")
_XTVERSION = re.compile(rb"(?<=\x1bP>\|)[^\x1b]*")
_DECXCPR = b"\x1b[?6n"


class String(Structure):
    _fields_ = (("ptr", c_void_p), ("len", c_size_t))


class ColorRgb(Structure):
    _fields_ = (("r", c_ubyte), ("g", c_ubyte), ("b", c_ubyte))


class TerminalModeConfig(Structure):
    _fields_ = (("mode", c_uint16), ("value", c_bool))


class SizeReportSize(Structure):
    _fields_ = (
        ("rows", c_uint16),
        ("columns", c_uint16),
        ("cell_width", c_uint32),
        ("cell_height", c_uint32),
    )


class PointCoordinate(Structure):
    # The padding is that of the union which has this as its only member of use.
    _fields_ = (("x", c_uint16), ("y", c_uint32), ("_padding", c_uint64))


class Point(Structure):
    # Too large for registers, so that it is passed as the one with the union is.
    _fields_ = (("tag", c_int), ("value", PointCoordinate))


class GridRef(Structure):
    _fields_ = (("size", c_size_t), ("node", c_void_p), ("x", c_uint16), ("y", c_uint16))


class Selection(Structure):
    _fields_ = (("size", c_size_t), ("start", GridRef), ("end", GridRef), ("rectangle", c_bool))


class FormatterScreenExtra(Structure):
    _fields_ = (
        ("size", c_size_t),
        ("cursor", c_bool),
        ("style", c_bool),
        ("hyperlink", c_bool),
        ("protection", c_bool),
        ("kitty_keyboard", c_bool),
        ("charsets", c_bool),
    )


class FormatterTerminalExtra(Structure):
    _fields_ = (
        ("size", c_size_t),
        ("palette", c_bool),
        ("modes", c_bool),
        ("scrolling_region", c_bool),
        ("tabstops", c_bool),
        ("pwd", c_bool),
        ("keyboard", c_bool),
        ("screen", FormatterScreenExtra),
    )


class FormatterTerminalOptions(Structure):
    _fields_ = (
        ("size", c_size_t),
        ("emit", c_int),
        ("unwrap", c_bool),
        ("trim", c_bool),
        ("extra", FormatterTerminalExtra),
        ("selection", c_void_p),
    )


_WritePty = CFUNCTYPE(None, c_void_p, c_void_p, POINTER(c_ubyte), c_size_t)
_Size = CFUNCTYPE(c_bool, c_void_p, c_void_p, POINTER(SizeReportSize))
_ColorScheme = CFUNCTYPE(c_bool, c_void_p, c_void_p, POINTER(c_int))

_CALLS: dict[str, tuple[Any, ...]] = {
    "terminal_new": (c_void_p, c_void_p, c_uint16, c_uint16),
    "terminal_resize": (c_void_p, c_uint16, c_uint16, c_uint32, c_uint32),
    "terminal_set": (c_void_p, c_int, c_void_p),
    "terminal_get": (c_void_p, c_int, c_void_p),
    "terminal_continuation_buf": (c_void_p, c_void_p, c_size_t, c_void_p),
    "terminal_grid_ref": (c_void_p, Point, c_void_p),
    "formatter_terminal_new": (c_void_p, c_void_p, c_void_p, FormatterTerminalOptions),
    "formatter_format_buf": (c_void_p, c_void_p, c_size_t, c_void_p),
    "render_state_new": (c_void_p, c_void_p),
    "render_state_update": (c_void_p, c_void_p),
    "render_state_get": (c_void_p, c_int, c_void_p),
}
_VOID_CALLS: dict[str, tuple[Any, ...]] = {
    "terminal_free": (c_void_p,),
    "terminal_vt_write": (c_void_p, ctypes.c_char_p, c_size_t),
    "formatter_free": (c_void_p,),
    "render_state_free": (c_void_p,),
}

_loaded: Any = None


def _library() -> Any:
    global _loaded
    if _loaded is None:
        spec = find_spec("pyghostty")
        if spec is None or not spec.submodule_search_locations:
            raise Unavailable(
                "the screen of a terminal is drawn with pyghostty, which is not installed; "
                "`pip install pyghostty` brings it"
            )
        path = Path(spec.submodule_search_locations[0], "_lib", "libghostty-vt.so")
        try:
            library = ctypes.CDLL(str(path))
            for calls, result in ((_CALLS, c_int), (_VOID_CALLS, None)):
                for name, arguments in calls.items():
                    function = getattr(library, f"ghostty_{name}")
                    function.argtypes = arguments
                    function.restype = result
        except (OSError, AttributeError) as error:
            raise Unavailable(
                f"the screen of a terminal is drawn with pyghostty, whose library cannot be used: "
                f"{error}; `pip install --force-reinstall pyghostty` may mend it"
            ) from error
        _loaded = library
    return _loaded


class Terminal:
    """Bytes in, a picture out. Not for two threads at once."""

    def __init__(self, columns: int, rows: int) -> None:
        self._lib = _library()
        self._terminal = c_void_p()
        self._call("terminal_new", None, byref(self._terminal), columns, rows)
        self.columns, self.rows = columns, rows
        for option, number in (
            (OPT_SCROLLBACK_MAX_LINES, _SCROLLBACK),
            (OPT_KITTY_IMAGE_STORAGE_LIMIT, 0),
            (OPT_APC_MAX_BYTES, 4096),
            (OPT_CLIPBOARD_WRITE_MAX_BYTES, 0),
            (OPT_CONTINUATION_MAX_BYTES, _UNFINISHED),
        ):
            self._set(option, c_size_t(number))
        for option in (
            OPT_KITTY_IMAGE_MEDIUM_FILE,
            OPT_KITTY_IMAGE_MEDIUM_TEMP_FILE,
            OPT_KITTY_IMAGE_MEDIUM_SHARED_MEM,
            OPT_GLYPH_PROTOCOL,
        ):
            self._set(option, c_bool(False))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        terminal, self._terminal = getattr(self, "_terminal", None), c_void_p()
        if terminal:
            self._lib.ghostty_terminal_free(terminal)

    def feed(self, data: bytes) -> None:
        # A terminal ignores DEL; libghostty would give it a cell.
        if b"\x7f" in data:
            data = data.replace(b"\x7f", b"")
        self._lib.ghostty_terminal_vt_write(self._terminal, data, len(data))

    def ask(self, data: bytes) -> bytes:
        """Feed `data` and return what a terminal replies to the queries in it."""
        replies: list[bytes] = []

        def reply(terminal: Any, user: Any, data: Any, size: int) -> None:
            replies.append(ctypes.string_at(data, size))

        def tell_size(terminal: Any, user: Any, to: Any) -> bool:
            to[0] = SizeReportSize(self.rows, self.columns, *_CELL)
            return True

        def tell_scheme(terminal: Any, user: Any, to: Any) -> bool:
            to[0] = 1  # dark
            return True

        callbacks = {
            OPT_WRITE_PTY: _WritePty(reply),
            OPT_SIZE: _Size(tell_size),
            OPT_COLOR_SCHEME: _ColorScheme(tell_scheme),
        }
        for option, callback in callbacks.items():
            self._call("terminal_set", self._terminal, option, ctypes.cast(callback, c_void_p))
        for option in (OPT_COLOR_FOREGROUND, OPT_COLOR_CURSOR):
            self._set(option, ColorRgb(229, 229, 229))
        self._set(OPT_COLOR_BACKGROUND, ColorRgb(0, 0, 0))
        self._set(OPT_TERMINFO_NAME, String(ctypes.addressof(_TERMINFO), len(_TERMINFO.value)))
        try:
            first, *others = data.split(_DECXCPR)  # which libghostty leaves alone
            self.feed(first)
            for part in others:
                column, row = self.cursor
                replies.append(b"\x1b[?%d;%d;1R" % (row + 1, column + 1))
                self.feed(part)
        finally:
            for option in callbacks:
                self._call("terminal_set", self._terminal, option, None)
        return _XTVERSION.sub(b"holdfast", b"".join(replies))

    def resize(self, columns: int, rows: int) -> None:
        if (columns, rows) != (self.columns, self.rows):
            self._call("terminal_resize", self._terminal, columns, rows, *_CELL)
            self.columns, self.rows = columns, rows

    # -- what it is like -----------------------------------------------------------------------

    @property
    def cursor(self) -> tuple[int, int]:
        return self._get(DATA_CURSOR_X, c_uint16()), self._get(DATA_CURSOR_Y, c_uint16())

    @property
    def cursor_visible(self) -> bool:
        return bool(self._get(DATA_CURSOR_VISIBLE, c_bool()))

    @property
    def pending_wrap(self) -> bool:
        """The last column was written, and the next character goes to the next row."""
        return bool(self._get(DATA_CURSOR_PENDING_WRAP, c_bool()))

    @property
    def alternate(self) -> bool:
        return bool(self._get(DATA_ACTIVE_SCREEN, c_int()))

    @property
    def kitty_flags(self) -> int:
        return int(self._get(DATA_KITTY_KEYBOARD_FLAGS, c_ubyte()))

    @property
    def title(self) -> str:
        title = String()
        self._call("terminal_get", self._terminal, DATA_TITLE, byref(title))
        return (
            ctypes.string_at(title.ptr, title.len).decode("utf-8", "replace") if title.len else ""
        )

    def mode(self, number: int) -> bool:
        """Whether a DEC private mode is set."""
        config = TerminalModeConfig(number)
        self._call("terminal_get", self._terminal, DATA_MODE, byref(config))
        return bool(config.value)

    def cursor_shape(self) -> int:
        """Its number in DECSCUSR; 2, a steady block, unless the program chose another."""
        state = c_void_p()
        self._call("render_state_new", None, byref(state))
        try:
            self._call("render_state_update", state, self._terminal)
            style, blinking = c_int(), c_bool()
            for what, to in (
                (RENDER_STATE_DATA_CURSOR_VISUAL_STYLE, style),
                (RENDER_STATE_DATA_CURSOR_BLINKING, blinking),
            ):
                self._call("render_state_get", state, what, byref(to))
        finally:
            self._lib.ghostty_render_state_free(state)
        steady = {0: 6, 1: 2, 2: 4}.get(style.value, 2)  # bar, block, underline
        return steady - blinking.value

    def unfinished(self) -> bytes:
        """What has been fed of a sequence or character that has not ended yet."""
        buffer = ctypes.create_string_buffer(_UNFINISHED)
        size = c_size_t()
        failed = self._lib.ghostty_terminal_continuation_buf(
            self._terminal, buffer, _UNFINISHED, byref(size)
        )
        return b"" if failed else buffer.raw[: size.value]

    # -- its contents --------------------------------------------------------------------------

    def plain(self) -> bytes:
        return self._format(FORMATTER_FORMAT_PLAIN)

    def plain_before(self, column: int, row: int) -> bytes:
        """The text of a row up to and including a column."""
        return self._format(FORMATTER_FORMAT_PLAIN, part=((0, row), (column, row)))

    def styled(self, *, trim: bool = True) -> bytes:
        """Rows with colours, each of them reset at its end, parted by CR LF."""
        return self._format(FORMATTER_FORMAT_VT, trim=trim)

    def styled_part(self, start: tuple[int, int], end: tuple[int, int]) -> bytes:
        return self._format(FORMATTER_FORMAT_VT, trim=False, part=(start, end))

    def modes(self) -> bytes:
        """Every mode that is not as in a fresh terminal."""
        return self._around(("modes",))

    def region(self) -> bytes:
        return self._around(("scrolling_region",))

    def tab_stops(self) -> bytes:
        """What sets them, or nothing while they are where they always were."""
        fresh = Terminal(self.columns, self.rows)
        stops = self._around(("tabstops",))
        return b"" if stops == fresh._around(("tabstops",)) else stops

    def pen(self) -> bytes:
        """How the next character will look, and what keys send."""
        screen = ("style", "hyperlink", "protection", "kitty_keyboard", "charsets")
        return self._around(("keyboard",), screen)

    def _around(self, extra: Iterable[str], screen: Iterable[str] = ()) -> bytes:
        """What is written for the extras, before or after the contents, without the contents."""
        contents = self._format(FORMATTER_FORMAT_VT)
        whole = self._format(FORMATTER_FORMAT_VT, extra=extra, screen=screen)
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
        options = FormatterTerminalOptions(sizeof(FormatterTerminalOptions), emit, False, trim)
        options.extra.size = sizeof(FormatterTerminalExtra)
        options.extra.screen.size = sizeof(FormatterScreenExtra)
        for name in extra:
            setattr(options.extra, name, True)
        for name in screen:
            setattr(options.extra.screen, name, True)
        # Never without a selection: that would be what scrolled out of sight as well.
        start, end = part or ((0, 0), (self.columns - 1, self.rows - 1))
        selection = Selection(sizeof(Selection), self._ref(*start), self._ref(*end))
        options.selection = ctypes.addressof(selection)
        formatter = c_void_p()
        self._call("formatter_terminal_new", None, byref(formatter), self._terminal, options)
        try:
            size = c_size_t()
            self._lib.ghostty_formatter_format_buf(formatter, None, 0, byref(size))
            buffer = ctypes.create_string_buffer(size.value + 1)
            self._call("formatter_format_buf", formatter, buffer, len(buffer), byref(size))
            return buffer.raw[: size.value]
        finally:
            self._lib.ghostty_formatter_free(formatter)

    def _ref(self, column: int, row: int) -> GridRef:
        ref = GridRef(sizeof(GridRef))
        point = Point(POINT_TAG_ACTIVE, PointCoordinate(column, row))
        self._call("terminal_grid_ref", self._terminal, point, byref(ref))
        return ref

    # -- calls ---------------------------------------------------------------------------------

    def _set(self, option: int, value: Any) -> None:
        self._call("terminal_set", self._terminal, option, byref(value))

    def _get(self, what: int, to: Any) -> Any:
        self._call("terminal_get", self._terminal, what, byref(to))
        return to.value

    def _call(self, name: str, *arguments: Any) -> None:
        failed = getattr(self._lib, f"ghostty_{name}")(*arguments)
        if failed:
            raise MemoryError if failed == -1 else RuntimeError(f"ghostty_{name}: {failed}")
