"""Cursors: each reader goes on where it left off, across programs and crashes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.core.cursors import check_reader, forget_cursors, load_cursor, save_cursor
from holdfast.core.errors import BadRequest, NotFound, StoreError
from holdfast.core.home import Home, new_handle

HANDLE = "proc-" + "a" * 16
OTHER = "proc-" + "a" * 17


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "home")).ensure()


def files(home: Home) -> list[Path]:
    return [path for path in Path(home.sessions).rglob("*") if path.is_file()]


def test_a_reader_that_never_read_is_at_the_beginning(home: Home) -> None:
    assert load_cursor(home, "s", "reader", HANDLE, "stdout") == 0
    assert files(home) == []


def test_a_cursor_is_kept_for_each_session_reader_handle_and_stream(home: Home) -> None:
    places = [
        (session, reader, handle, stream)
        for session in ("one", "two")
        for reader in ("agent", "../agent", "äé")
        for handle in (HANDLE, OTHER)
        for stream in ("stdout", "stderr")
    ]
    for offset, place in enumerate(places, 1):
        save_cursor(home, *place, offset)
    assert [load_cursor(home, *place) for place in places] == list(range(1, len(places) + 1))
    assert all(str(path).startswith(home.sessions + "/") for path in files(home))


def test_a_cursor_can_go_back(home: Home) -> None:
    for offset in (1 << 40, 0, 7):
        save_cursor(home, "s", "reader", HANDLE, "stdout", offset)
        assert load_cursor(home, "s", "reader", HANDLE, "stdout") == offset


def test_cursors_are_private_whatever_the_umask(home: Home) -> None:
    before = os.umask(0)
    try:
        save_cursor(home, "s", "reader", HANDLE, "stdout", 5)
    finally:
        os.umask(before)
    for path in Path(home.sessions).rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600)


@given(garbage=st.binary(max_size=40))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_counts_as_the_beginning(home: Home, garbage: bytes) -> None:
    save_cursor(home, "s", "reader", HANDLE, "stdout", 5)
    (path,) = files(home)
    path.write_bytes(garbage)
    offset = load_cursor(home, "s", "reader", HANDLE, "stdout")
    digits = garbage.removesuffix(b"\n")
    assert offset == (int(digits) if digits.isdigit() and len(digits) <= 18 else 0)


@pytest.mark.parametrize("garbage", [b"", b"-5\n", b"5 5", b"9" * 30, b"\xff", b"1_0\n", b"5\n\n"])
def test_torn_cursors_count_as_the_beginning(home: Home, garbage: bytes) -> None:
    save_cursor(home, "s", "reader", HANDLE, "stdout", 5)
    (path,) = files(home)
    path.write_bytes(garbage)
    assert load_cursor(home, "s", "reader", HANDLE, "stdout") == 0


@pytest.mark.parametrize("reader", ["", "x" * 81, "é" * 41, "a\nb", "a\0b", "\ud800", 5, None])
def test_a_reader_is_short_printable_text(home: Home, reader: object) -> None:
    with pytest.raises(BadRequest):
        check_reader(reader)
    with pytest.raises(BadRequest):
        load_cursor(home, "s", reader, HANDLE, "stdout")  # type: ignore[arg-type]


@given(reader=st.text(min_size=1, max_size=80))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_reader_that_is_allowed_can_be_kept(home: Home, reader: str) -> None:
    try:
        check_reader(reader)
    except BadRequest:
        return
    save_cursor(home, "s", reader, HANDLE, "stdout", 3)
    assert load_cursor(home, "s", reader, HANDLE, "stdout") == 3


def test_what_is_no_handle_or_stream_never_becomes_part_of_a_path(home: Home) -> None:
    for handle in ("../../../etc/passwd", "proc-", "", "proc-" + "a" * 15 + "/"):
        with pytest.raises(NotFound):
            save_cursor(home, "s", "reader", handle, "stdout", 1)
        with pytest.raises(NotFound):
            forget_cursors(home, "s", handle)
    with pytest.raises(BadRequest, match="stdout or stderr"):
        load_cursor(home, "s", "reader", HANDLE, "../x")


def test_forgetting_a_process_removes_its_cursors_and_no_others(home: Home) -> None:
    for reader in ("one", "two"):
        for stream in ("stdout", "stderr"):
            save_cursor(home, "s", reader, HANDLE, stream, 5)
    save_cursor(home, "s", "two", OTHER, "stdout", 6)
    save_cursor(home, "t", "one", HANDLE, "stdout", 7)
    forget_cursors(home, "s", HANDLE)
    assert load_cursor(home, "s", "one", HANDLE, "stdout") == 0
    assert load_cursor(home, "s", "two", OTHER, "stdout") == 6
    assert load_cursor(home, "t", "one", HANDLE, "stdout") == 7
    assert os.listdir(home.session("s") + "/cursors") == ["two"]
    save_cursor(home, "s", "one", HANDLE, "stdout", 8)
    assert load_cursor(home, "s", "one", HANDLE, "stdout") == 8


def test_forgetting_takes_what_a_crashed_writer_left_behind(home: Home) -> None:
    save_cursor(home, "s", "one", HANDLE, "stdout", 5)
    (path,) = files(home)
    path.with_name(path.name + ".4711.tmp").write_bytes(b"5")
    forget_cursors(home, "s", HANDLE)
    assert files(home) == []


def test_forgetting_what_was_never_kept_is_nothing(home: Home) -> None:
    forget_cursors(home, "nobody", HANDLE)


def test_a_symlink_in_the_place_of_a_cursor_is_refused(home: Home, tmp_path: Path) -> None:
    save_cursor(home, "s", "reader", HANDLE, "stdout", 5)
    (path,) = files(home)
    secret = tmp_path / "secret"
    secret.write_bytes(b"123\n")
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(StoreError):
        load_cursor(home, "s", "reader", HANDLE, "stdout")
    with pytest.raises(StoreError):
        save_cursor(home, "s", "reader", HANDLE, "stdout", 6)
    assert secret.read_bytes() == b"123\n"


def test_a_home_that_is_gone_is_a_store_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot keep the cursor"):
        save_cursor(Home(str(tmp_path / "none")), "s", "reader", HANDLE, "stdout", 1)


def test_threads_that_save_the_same_cursor_leave_a_whole_one(home: Home) -> None:
    offsets = [10**6 + number for number in range(8)]
    handles = [new_handle() for _ in range(10)]
    wrong: list[object] = []

    def save(offset: int) -> None:
        for handle in handles * 5:
            try:
                save_cursor(home, "s", "reader", handle, "stdout", offset)
                seen = load_cursor(home, "s", "reader", handle, "stdout")
                if seen not in offsets:
                    wrong.append(seen)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=save, args=(offset,)) for offset in offsets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(files(home)) == len(handles)


def test_the_module_loads_nothing_that_costs() -> None:
    """The keeper forgets cursors too, and stays small."""
    code = (
        f"import sys; sys.path.append({os.path.dirname(os.path.dirname(holdfast.__file__))!r}); "
        "import holdfast.core.cursors; "
        "print(sorted(name for name in sys.modules if name.startswith('holdfast.')), "
        "[name for name in ('dataclasses', 're', 'typing') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    core = ["holdfast.core", *(f"holdfast.core.{name}" for name in ("cursors", "errors", "home"))]
    assert done.stdout.strip() == f"{core} []", done.stderr
